/* waits_cases.c - faults: row 8, a cancel or a close at every point of a wait, one after the other. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "contract/callers.h"

/* Strikes at the n-th point where the waiter's driver is entered or left. */
typedef struct strike {
    int client;          /* number of the waiting client */
    int at;              /* from 0 */
    int passed;          /* points so far */
    ct_op_t op;          /* where it struck ... */
    int is_asker;        /* ... and whether in the thread that asks */
    int asker;           /* its id */
    dl_cancel_t *cancel; /* what to do: trigger this ... */
    ct_latch_t *now;     /* ... or let another thread close ... */
    dl_client_t *closed; /* ... this client */
} strike_t;

static void pass_point(ct_t *ct, const ct_call_t *call, void *arg) {
    strike_t *s = arg;
    if (call->client == s->client && call->op == CT_OP_TRY) {
        __atomic_store_n(&s->asker, gettid(), __ATOMIC_SEQ_CST);
    }
    if (call->client != s->client || __atomic_fetch_add(&s->passed, 1, __ATOMIC_SEQ_CST) != s->at) {
        return;
    }
    s->op = call->op;
    s->is_asker = __atomic_load_n(&s->asker, __ATOMIC_SEQ_CST) == gettid();
    if (s->cancel != NULL) {
        dl_cancel_trigger(s->cancel);
    } else {
        ct_latch_down(ct, s->now);
        CT_AWAIT(is_closing(s->closed), 5000); /* which cannot end before this call has */
    }
}

static void hook_points(ct_t *ct, strike_t *s) {
    static const ct_op_t ops[] = {CT_OP_TRY, CT_OP_WATCH, CT_OP_LISTEN, CT_OP_UNWATCH};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        for (ct_when_t when = CT_BEFORE; when <= CT_AFTER; when++) {
            ct_hook(ct, ops[i], when, ops[i] == CT_OP_LISTEN ? NULL : "row 8", pass_point, s);
        }
    }
}

/* The caller waits while the lock is held for a little. Returns when it has ended. */
static void wait_a_little(ct_t *ct, dl_lock_t *held, caller_t *caller, strike_t *s) {
    hook_points(ct, s);
    CT_OK(dl_lock(held, CT_ERR));
    start_caller(ct, caller);
    /* It has met the holder, and some of its wait is behind it. */
    CT_AWAIT(ct_thread_done(ct, caller->thread) || __atomic_load_n(&s->passed, __ATOMIC_SEQ_CST) >= 2, 5000);
    for (int i = 0; i < 10 && !ct_thread_done(ct, caller->thread); i++) {
        ct_sleep_ms(ct, 2);
    }
    CT_OK(dl_unlock(held, CT_ERR));
    ct_join(ct, caller->thread);
    ct_hooks_end(ct);
}

static void check_nothing_is_left(ct_t *ct, dl_client_t *c, dl_lock_t *held) {
    ct_expect_free(ct, "row 8", ct_tolerance_ms(ct));
    CT_OK(dl_trylock(held, CT_ERR));
    CT_OK(dl_unlock(held, CT_ERR));
    if (c != NULL) {
        CT_EQ(ct_stats(ct, c).held_now, 0);
        CT_EQ(ct_stats(ct, c).waiting_now, 0);
        CT_EQ(ct_calls_of(ct, CT_OP_RENEW, c, NULL), 0);
    }
}

/* Where the acquisition is over already the answer may be a yes, which the caller then has given back. */
static void check_outcome(ct_t *ct, const strike_t *s, const caller_t *caller, dl_status_t expected) {
    /* In the client's thread, or for the answer to the unlock. */
    bool is_by_another = s->op == CT_OP_LISTEN && (!s->is_asker || ct_traits(ct) & CT_BACKEND);
    if (caller->status == DL_OK && (s->op == CT_OP_UNWATCH || is_by_another)) {
        CT_EITHER(caller->unlocked, DL_OK, DL_ECLOSED);
    } else {
        CT_CHECKF(caller->status == expected, "struck at point %d (op %d): %s, expected %s", s->at,
                  (int)s->op, dl_status_name(caller->status), dl_status_name(expected));
    }
}

/* No more than these, or it never ends. A backend listens for each answer, too. */
static int most_points(ct_t *ct) {
    return ct_traits(ct) & CT_BACKEND ? 80 : 40;
}

/* A server that waits itself is asked once; any other at least twice. */
static int fewest_points(ct_t *ct) {
    return ct_caps(ct) & DL_CAP_NATIVE_WAIT ? 2 : 4;
}

/* At such a point no caller of a queue could cancel. Each wait has a client that hears nothing yet. */
CT_CASE(faults, row08_cancel_at_every_point_of_a_wait, .traits = CT_BLOCKING) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, NULL), "row 8");
    int at = 0;
    for (int reached = 1; reached; at++) {
        CT_LT(at, most_points(ct));
        dl_client_t *b = ct_open(ct, NULL);
        strike_t s = {.client = at + 1, .at = at};
        caller_t caller = CALLER(ct_lock(ct, b, "row 8"), DL_WAIT_FOREVER);
        CT_OK(dl_cancel_new(&caller.opts.cancel, CT_ERR));
        s.cancel = caller.opts.cancel;
        wait_a_little(ct, held, &caller, &s);
        reached = __atomic_load_n(&s.passed, __ATOMIC_SEQ_CST) > at;
        dl_cancel_free(caller.opts.cancel);
        if (reached) {
            check_outcome(ct, &s, &caller, DL_ECANCELED);
            check_nothing_is_left(ct, b, held);
            CT_OK(dl_trylock(caller.lock, CT_ERR)); /* the gate is free */
            CT_OK(dl_unlock(caller.lock, CT_ERR));
        } else {
            CT_EQ(caller.status, DL_OK);
            CT_EQ(caller.unlocked, DL_OK);
        }
        ct_forget(ct, b);
        dl_client_close(b);
    }
    CT_GE(at, fewest_points(ct));
}

typedef struct closing {
    dl_client_t *client;
    ct_latch_t *now;
} closing_t;

static void close_when_told(ct_t *ct, void *arg) {
    closing_t *c = arg;
    ct_latch_wait(ct, c->now, 20000);
    dl_client_close(c->client);
}

CT_CASE(faults, row08_close_at_every_point_of_a_wait) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, NULL), "row 8");
    int at = 0;
    for (int reached = 1; reached; at++) {
        CT_LT(at, most_points(ct));
        dl_client_t *b = ct_open(ct, NULL);
        caller_t caller = CALLER(ct_lock(ct, b, "row 8"), DL_WAIT_FOREVER);
        strike_t s = {.client = at + 1, .at = at, .now = ct_latch(ct, 1), .closed = b};
        closing_t closing = {b, s.now};
        ct_forget(ct, b);
        ct_thread_t *thread = ct_thread(ct, close_when_told, &closing);
        wait_a_little(ct, held, &caller, &s);
        reached = __atomic_load_n(&s.passed, __ATOMIC_SEQ_CST) > at;
        if (!reached) {
            ct_latch_down(ct, s.now);
        }
        ct_join(ct, thread);
        if (reached) {
            check_outcome(ct, &s, &caller, DL_ECLOSED);
        } else {
            CT_EQ(caller.status, DL_OK);
        }
        check_nothing_is_left(ct, NULL, held);
        CT_STATUS(dl_trylock(caller.lock, CT_ERR), DL_ECLOSED);
    }
    CT_GE(at, fewest_points(ct));
}
