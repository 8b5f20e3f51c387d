/* stragglers.h - the state of the stragglers; for the two files that make them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_STRAGGLERS_H
#define DLI_REDLOCK_STRAGGLERS_H

#include "round.h"

#define DLI_NO_SLOT SIZE_MAX        /* of a part: not looked at yet */
#define DLI_UNPOLLED (SIZE_MAX - 1) /* it has nothing to poll, or there is no memory for that */

/*
 * A part is stepped without the mutex, for a step may report, and who hears of it may call us. Meanwhile it
 * is marked busy; who wants to end it waits for that, unless it is called from within that very step.
 */
struct dli_stragglers {
    const dl_driver_env_t *env;
    uint64_t node_timeout_ns;
    int fd; /* eventfd: there is something new */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest; held for moments only */
    pthread_cond_t changed;
    dli_round_t *rounds[2]; /* claims; the rest */
    dli_intention_t *intentions;
    dli_freeing_t *freeings;
    dli_part_t *due; /* frees whose claims have ended */
    bool is_closing;
    uint64_t end_ns;    /* closing: nothing goes on beyond this */
    struct pollfd *fds; /* the thread's own */
    size_t cap;
};

/* There is something new. */
void dli_stragglers_poke(const dli_stragglers_t *stragglers);
/* The rest with the mutex held. One more part of its round is theirs. */
void dli_stragglers_add(dli_stragglers_t *stragglers, dli_part_t *part);
/* The part has ended. true: its round was freed. */
bool dli_stragglers_part_is_over(dli_stragglers_t *stragglers, dli_part_t *part);
/* The only one without the mutex. */
void dli_stragglers_end_part(dli_part_t *part);

#endif
