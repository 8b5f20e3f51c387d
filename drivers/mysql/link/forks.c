/* forks.c - fork() while another thread of the process is inside the client library. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <pthread.h>
#include <time.h>

/* Who is inside waits for a server now and then where the library does not tell of it. */
#define PATIENCE_S 1

/* Whoever forks keeps the door shut, so that its turn comes beside however many. The other is for who counts.
 */
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER, counting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_empty = PTHREAD_COND_INITIALIZER;
static unsigned inside;
static _Thread_local bool is_inside;

static void before_fork(void) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&door);
    pthread_mutex_lock(&counting);
    while (inside > is_inside && pthread_cond_clockwait(&is_empty, &counting, CLOCK_MONOTONIC, &until) == 0) {
    }
}

static void open_door(void) {
    pthread_mutex_unlock(&counting);
    pthread_mutex_unlock(&door);
}

static void after_fork_in_child(void) {
    inside = is_inside;
    open_door();
}

/* As the library is loaded, before a thread can fork: in the midst of it, a child would do it once more. */
__attribute__((constructor(101))) static void add_handlers(void) {
    (void)pthread_atfork(before_fork, open_door, after_fork_in_child);
}

void dli_mysql_library_enter(void) {
    pthread_mutex_lock(&door);
    pthread_mutex_lock(&counting);
    inside++;
    is_inside = true;
    open_door();
}

void dli_mysql_library_leave(void) {
    if (is_inside) {
        pthread_mutex_lock(&counting);
        inside--;
        is_inside = false;
        pthread_cond_signal(&is_empty);
        pthread_mutex_unlock(&counting);
    }
}
