/* sim_core.h - between the two halves of the simulated clock: the scheduler and the table. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_CORE_H
#define SIM_CORE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/sys.h"

/* A real machine has been up for a while; and an instant of 0 must never look like "none". */
#define START_NS (1000u * (uint64_t)1000000000u)

typedef enum state { RUNNING, READY, IN_POLL, IN_COND, IN_JOIN, ENDED } state_t;

/* One known thread. Guarded by `mutex`. */
typedef struct sim_thread {
    struct sim_thread *next;
    pthread_t id;
    unsigned number;
    pthread_cond_t go; /* signalled when the state becomes RUNNING */
    state_t state;
    uint64_t deadline_ns;     /* of what it is blocked in; DLI_NEVER: none */
    const struct pollfd *fds; /* IN_POLL: the caller's array, which stands still meanwhile */
    nfds_t fd_count;
    const void *cond; /* IN_COND: or a word */
    pthread_t joined; /* IN_JOIN */
    int timed_out;
    int dying; /* how often the destructor has come by */
    void *(*fn)(void *);
    void *arg;
} sim_thread_t;

/* The one clock of the process. */
typedef struct sim_core {
    pthread_mutex_t mutex; /* guards everything here */
    sim_thread_t *threads;
    unsigned running; /* threads in RUNNING; 0 only while the clock is being moved */
    unsigned thread_count;
    atomic_uint_fast64_t clock_ns; /* read without the mutex */
    uint64_t schedule_state;
    int serial;
    pthread_key_t self_key; /* each thread's own sim_thread_t */
    void (*deadlock_fn)(const char *what);
    void (*advance_fn)(uint64_t from_ns, uint64_t to_ns);
} sim_core_t;
extern sim_core_t sim_core;

/* All with the mutex held. */
sim_thread_t *sim_self(void);       /* aborts for a thread that the clock does not know */
sim_thread_t *sim_add_thread(void); /* RUNNING */
void sim_remove_thread(sim_thread_t *t);
/* Blocks in `state` until somebody makes this thread run again. */
void sim_block(sim_thread_t *me, state_t state, uint64_t deadline_ns);
/* A blocked thread may go on; in serial mode only when its turn comes. */
void sim_wake(sim_thread_t *t, int timed_out);
void sim_wake_due(uint64_t now);
/* This thread does not run any more. When it was the last, somebody else is woken, by a descriptor or by the
 * clock. */
void sim_stopped_running(void);
void sim_die(const char *what) __attribute__((noreturn));

/* splitmix64: small, and every seed is good. */
uint64_t sim_next_random(uint64_t *state);

#endif
