/* callers.h - a lock call made by another thread, and what became of it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CALLERS_H
#define CALLERS_H

#include <signal.h>

#include "support/contract.h"

typedef struct caller {
    dl_lock_t *lock;
    dl_acquire_opts_t opts;
    ct_latch_t *keep; /* not NULL: what was obtained is kept until this opens */
    ct_thread_t *thread;
    int64_t began_ms;
    _Atomic int64_t ended_ms; /* not 0: the call is back, and so is what follows, but for the last */
    dl_status_t status;       /* of dl_acquire */
    int64_t valid_ms;         /* when it was obtained */
    uint64_t token;
    dl_status_t unlocked; /* of dl_unlock, which follows DL_OK */
    dl_error_t err;       /* of the last call that failed */
} caller_t;

#define CALLER(lock_, wait_ms_)                                                                    \
    {                                                                                              \
        .lock = (lock_), .opts = { sizeof(dl_acquire_opts_t), (wait_ms_), DL_LEASE_AUTO, 0, NULL } \
    }

/* Longer than any case keeps a lock. */
#define KEEP_MS 600000

static inline void run_caller(ct_t *ct, void *arg) {
    caller_t *c = arg;
    c->began_ms = ct_now_ms(ct);
    c->status = dl_acquire(c->lock, &c->opts, &c->err);
    int64_t ended_ms = ct_now_ms(ct);
    c->valid_ms = c->status == DL_OK ? dl_valid_ms(c->lock) : 0;
    c->token = c->status == DL_OK ? dl_token(c->lock) : 0;
    c->ended_ms = ended_ms;
    if (c->status != DL_OK) {
        if (c->status != DL_ECLOSED) {
            CT_EQ(dl_hold_count(c->lock), 0);
        }
        return;
    }
    if (c->keep != NULL) {
        ct_latch_wait(ct, c->keep, KEEP_MS);
    }
    c->unlocked = dl_unlock(c->lock, &c->err);
}

static inline void start_caller(ct_t *ct, caller_t *c) {
    c->thread = ct_thread(ct, run_caller, c);
}

/* Waits for its end, which must be this status. */
static inline void end_caller(ct_t *ct, caller_t *c, dl_status_t expected) {
    ct_join(ct, c->thread);
    CT_CHECKF(c->status == expected, "the caller's dl_acquire was %s, expected %s: %s",
              dl_status_name(c->status), dl_status_name(expected), c->err.message);
    if (expected == DL_OK) {
        CT_CHECKF(c->unlocked == DL_OK, "the caller's dl_unlock was %s: %s", dl_status_name(c->unlocked),
                  c->err.message);
        CT_GT(c->valid_ms, 0);
    }
}

/* When validity ends, by two looks, the first a little old by the second: it ends no earlier than the one
 * says, and no later than the other (1 ms more, as milliseconds are cut off). */
static inline int64_t ends_from_ms(ct_t *ct, dl_lock_t *lock) {
    int64_t now_ms = ct_now_ms(ct);
    return now_ms + dl_valid_ms(lock);
}

static inline int64_t ends_until_ms(ct_t *ct, dl_lock_t *lock) {
    int64_t valid_ms = dl_valid_ms(lock);
    return ct_now_ms(ct) + valid_ms;
}

/* How long a lease can be relied on: less than its length by the allowance for clocks. */
static inline int64_t validity_of(int64_t lease_ms) {
    return lease_ms - lease_ms / 100 - 2;
}

/* Takes the lock once, for this lease (DL_LEASE_AUTO: automatic). */
static inline void take(ct_t *ct, dl_lock_t *lock, int64_t lease_ms) {
    CT_OK(dl_trylock_for(lock, 0, lease_ms, CT_ERR));
}

/* Of a client whose holds outlast a machine that stands still for a while, and are renewed often. */
#define LASTING "lease: 60s\nrenew_every: 200ms"
#define LASTING_MS 60000
#define LASTING_EVERY_MS 200
/* The same for one whose lease a case waits for. */
#define BRIEF "lease: 3s\nrenew_every: 200ms"
#define BRIEF_MS 3000

/* Renewals find a lock of this name gone: the first that is answered in time. A short lease that runs out
 * might do so before it was had. For ct_fault_end, once it is lost. */
static inline int lose_by_renewal(ct_t *ct, const char *name) {
    ct_fault_t gone = {.op = CT_OP_RENEW, .mode = CT_ANSWER, .status = DL_ELOST, .name = name, .count = -1};
    return ct_fault_add(ct, &gone);
}

/* Takes a lock of a LASTING client, and returns when it is lost. */
static inline void lose(ct_t *ct, dl_client_t *c, const char *name) {
    uint64_t before = ct_stats(ct, c).lost;
    int gone = lose_by_renewal(ct, name);
    take(ct, ct_lock_owned(ct, c, name, 1), DL_LEASE_AUTO);
    CT_AWAIT_THAT(ct_stats(ct, c).lost, ==, before + 1, 5000);
    ct_fault_end(ct, gone);
}

/* Not 0 while this thread is in an op of a driver that blocks: it may have mutexes, and cannot be left. */
static _Thread_local volatile sig_atomic_t asks_here;

static inline void begin_asking(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)ct;
    (void)call;
    (void)arg;
    asks_here++;
}

static inline void end_asking(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)ct;
    (void)call;
    (void)arg;
    asks_here--;
}

/* From now on. Of a backend no thread stands in an op. */
static inline void mark_asking(ct_t *ct) {
    static const ct_op_t ops[] = {CT_OP_TRY,     CT_OP_RELEASE, CT_OP_RENEW,
                                  CT_OP_INSPECT, CT_OP_WATCH,   CT_OP_UNWATCH};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && !(ct_traits(ct) & CT_BACKEND); i++) {
        ct_hook(ct, ops[i], CT_BEFORE, NULL, begin_asking, NULL);
        ct_hook(ct, ops[i], CT_AFTER, NULL, end_asking, NULL);
    }
}

/* dl_client_close has begun; a handle or a call keeps the client. */
static inline int is_closing(dl_client_t *client) {
    dl_lock_t *probe = NULL;
    dl_status_t status = dl_lock_open(client, "probe", &probe, NULL);
    dl_lock_close(probe);
    return status == DL_ECLOSED;
}

/* How many renewals of this name the server was asked for. */
static inline int renewals_of(ct_t *ct, const char *name) {
    return ct_calls_of(ct, CT_OP_RENEW, NULL, name);
}

/* What is due in the same slice of time goes out together, at its beginning. */
static inline int64_t slice_ms(int64_t every_ms) {
    return every_ms / 32 < 20 ? every_ms / 32 + 1 : 20;
}

/* As many renewals as one hold can have seen since then: each is due a period, less a slice at most, after
 * the last. */
static inline int64_t renewals_since(ct_t *ct, int64_t since_ms, int64_t every_ms) {
    return (ct_now_ms(ct) - since_ms) / (every_ms - slice_ms(every_ms) - 1) + 1;
}

/* How many calls of this op were answered with DL_OK. */
static inline int done_calls(ct_t *ct, ct_op_t op) {
    int done = 0;
    for (int i = 0; i < ct_calls(ct, op); i++) {
        done += ct_call(ct, op, i).status == DL_OK;
    }
    return done;
}

#endif
