/* mysql_standing.h - a client's clock that stands from when an answer is awaited no more. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_STANDING_H
#define MYSQL_STANDING_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver_env.h"

/* The server's table of transactions stays as it is while it is asked for more often than every 100 ms. */
#define ASKING_PAUSE_MS 150

/* So what is left of a call's time is enough, however slow the machine is. That moment comes once it is due:
 * the statement is on the server, or waits there. */
static struct {
    pthread_t asker;
    bool (*is_due)(void); /* NULL: the clock goes as ever */
    _Atomic uint64_t at_ns;
} standing;

static inline uint64_t standing_now_ns(void) {
    uint64_t at_ns = atomic_load(&standing.at_ns);
    return at_ns != 0 ? at_ns : ran_ns();
}

static inline uint64_t past_standing_ns(uint64_t deadline_ns) {
    uint64_t at_ns = atomic_load(&standing.at_ns);
    return at_ns != 0 && deadline_ns > at_ns ? ran_ns() + 15000 * MS : deadline_ns;
}

static inline int standing_poll(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (pthread_equal(pthread_self(), standing.asker) && standing.is_due != NULL) {
        do {
            int ready = poll_while_it_runs(fds, n, ran_ns() + ASKING_PAUSE_MS * MS);
            if (ready != 0) {
                return ready;
            }
        } while (!standing.is_due());
        standing.is_due = NULL;
        atomic_store(&standing.at_ns, deadline_ns);
        return 0;
    }
    return poll_while_it_runs(fds, n, past_standing_ns(deadline_ns));
}

static inline int standing_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    return wait_while_it_runs(cond, mutex, past_standing_ns(deadline_ns));
}

/* In a client that is not open yet. */
static inline void let_stand(dl_driver_env_t *clients) {
    standing.asker = pthread_self();
    clients->now_ns = standing_now_ns;
    clients->poll = standing_poll;
    clients->cond_wait = standing_cond_wait;
}

/* From now on, but for the wait of this thread that ends when it is due. */
static inline void stand_until_due(bool (*is_due)(void)) {
    standing.is_due = is_due;
    atomic_store(&standing.at_ns, ran_ns());
}

/* Returns where it stood. */
static inline uint64_t go_on(void) {
    cr_assert_null(standing.is_due);
    return atomic_exchange(&standing.at_ns, 0);
}

#endif
