/* places.h - something happens the moment a thread of the library comes to one place of many. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLACES_H
#define PLACES_H

#include <stdatomic.h>
#include <unistd.h>

#include "contract/queues.h"
#include "core/core.h"
#include "support/fault.h"

/* A place is where a thread is about to wait, has waited or wakes another, has no mutex of the core and is
 * not inside SQLite, where its pauses are: the others and fork() wait for who is there. */
typedef struct places {
    ct_t *ct;
    dl_client_t *client;
    int at;           /* which of them, from 0, as its threads come to them */
    atomic_int place; /* the next */
    void (*come)(struct places *places);
    int64_t until_ms; /* somebody may use the hot name until then; with the mutex of `uses` */
} places_t;

static const dli_sys_t *inner;
static _Thread_local places_t *here;   /* of this thread; NULL: those of everybody */
static _Atomic(places_t *) everywhere; /* NULL: none */
static atomic_int passing;             /* threads that look there */
static _Thread_local int looks_on;     /* this thread passes all places */

/* This thread; elsewhere than with glibc, any. */
static inline int has_mutex(dl_client_t *client) {
#ifdef __GLIBC__
    return client->mutex.__data.__owner == gettid();
#else
    if (pthread_mutex_trylock(&client->mutex) != 0) {
        return 1;
    }
    pthread_mutex_unlock(&client->mutex);
    return 0;
#endif
}

/* NULL elsewhere than inside SQLite. */
extern struct dli_guard *dli_guard_here(void) __attribute__((weak));

static inline int is_inside(void) {
    return fault_inside > 0 || (dli_guard_here != NULL && dli_guard_here() != NULL);
}

static inline void pass(places_t *p) {
    if (is_inside() || asks_here || atomic_load(&p->place) > p->at || has_mutex(p->client) ||
        atomic_fetch_add(&p->place, 1) != p->at) {
        return;
    }
    here = NULL;
    looks_on = 1;
    p->come(p);
    looks_on = 0;
}

static inline void pass_place(void) {
    places_t *p = here;
    if (p != NULL) {
        pass(p);
    } else if (!looks_on) {
        atomic_fetch_add(&passing, 1);
        p = atomic_load(&everywhere);
        if (p != NULL) {
            pass(p);
        }
        atomic_fetch_sub(&passing, 1);
    }
}

/* Until nobody refers to them any more. */
static inline void end_everywhere(ct_t *ct) {
    atomic_store(&everywhere, NULL);
    CT_AWAIT_THAT(atomic_load(&passing), ==, 0, KEEP_MS);
}

static inline int poll_between(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (deadline_ns == 0) { /* it only looks, perhaps again and again */
        return inner->poll(fds, n, 0);
    }
    pass_place();
    int rc = inner->poll(fds, n, deadline_ns);
    pass_place();
    return rc;
}

static inline void wait_between(atomic_uint *word, uint64_t deadline_ns) {
    pass_place();
    inner->word_wait(word, deadline_ns);
    pass_place();
}

static inline void wake_behind(atomic_uint *word) {
    pass_place();
    inner->word_wake(word);
}

static inline void put_places_between(void) {
    static dli_sys_t table;
    inner = dli_sys;
    table = *dli_sys;
    table.poll = poll_between;
    table.word_wait = wait_between;
    table.word_wake = wake_behind;
    dli_sys = &table;
}

/* ---- exclusion -------------------------------------------------------------------------------- */

static pthread_mutex_t uses = PTHREAD_MUTEX_INITIALIZER;

/* Whoever has it may do so for as long as it is told; it is not to be told so while another is. */
static inline void begin_use(places_t *p, dl_lock_t *lock) {
    ct_t *ct = p->ct;
    pthread_mutex_lock(&uses);
    int64_t now_ms = ct_now_ms(ct), valid_ms = dl_valid_ms(lock), other_ms = p->until_ms - now_ms;
    p->until_ms = valid_ms > 0 ? now_ms + valid_ms : p->until_ms;
    pthread_mutex_unlock(&uses);
    CT_CHECKF(valid_ms == 0 || other_ms <= 0,
              "at place %d two have it at once, one for %lld ms, one for %lld ms", p->at, (long long)valid_ms,
              (long long)other_ms);
}

static inline void end_use(places_t *p) {
    pthread_mutex_lock(&uses);
    p->until_ms = 0;
    pthread_mutex_unlock(&uses);
}

#endif
