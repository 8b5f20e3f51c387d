/* crowd.h - processes and their threads that all want one name. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_CROWD_H
#define DLOCK_BENCH_CROWD_H

#include "bench.h"

#define CROWD_MAX 32 /* processes, and threads of one */

typedef struct crowd {
    const char *title;
    const void *place; /* what ways are opened with */
    int processes, threads;
    unsigned hold_us; /* 0: given back at once */
} crowd_t;

/* Prints what both ways make of it, in alternating rounds. floor NULL: only ours. A user is opened for each
 * thread, before the threads begin. */
void crowd_compare(const crowd_t *crowd, const way_t *floor, const way_t *ours, unsigned scale);
/* Small crowds and large ones, who hold it for 1 ms or not at all. */
void crowd_compare_all(const char *title, const way_t *floor, const way_t *ours, const void *place,
                       unsigned scale);

/* A crowd of several threads a process, with passing and without. */
void crowd_compare_passing(const char *title, void *(*open)(const void *place),
                           void *(*open_without)(const void *place), const void *place, unsigned scale);

/* A user of the library, with a client that it shares with the others of its process. */
void *crowd_user_open(dl_client_t *(*open)(const void *place), const void *place);
void crowd_user_await(void *user);
void crowd_user_give(void *user);
void crowd_user_close(void *user);

#endif
