/* sim_core.c - who runs, who is blocked in what, and when the simulated clock moves. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim_core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/alloc_fail.h"
#include "support/sim.h"

sim_core_t sim_core = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static unsigned next_number;
static const char *const state_names[] = {"running", "ready", "poll", "cond_wait", "thread_join", "ended"};

uint64_t sim_next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int is_blocked(const sim_thread_t *t) {
    return t->state == IN_POLL || t->state == IN_COND || t->state == IN_JOIN;
}

void sim_dump(void) {
    uint64_t now = atomic_load(&sim_core.clock_ns);
    fprintf(stderr, "sim: clock at %.3f ms\n", (double)(now - START_NS) / 1e6);
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        fprintf(stderr, "sim: thread %u: %s", t->number, state_names[t->state]);
        if (is_blocked(t) && t->deadline_ns != DLI_NEVER) {
            fprintf(stderr, " until %.3f ms", ((double)t->deadline_ns - (double)START_NS) / 1e6);
        }
        if (t->state == IN_POLL) {
            for (nfds_t i = 0; i < t->fd_count; i++) {
                fprintf(stderr, " fd %d (0x%x)", t->fds[i].fd, (unsigned)t->fds[i].events);
            }
        } else if (t->state == IN_COND) {
            fprintf(stderr, " on %p", t->cond);
        }
        fputc('\n', stderr);
    }
}

void sim_die(const char *what) {
    fprintf(stderr, "sim: %s\n", what);
    sim_dump();
    if (sim_core.deadlock_fn != NULL) {
        pthread_mutex_unlock(&sim_core.mutex);
        sim_core.deadlock_fn(what);
    }
    abort();
}

/* ---- the scheduler; everything here with the mutex held ---------------------------------------------- */

static void run(sim_thread_t *t) {
    t->state = RUNNING;
    sim_core.running++;
    pthread_cond_signal(&t->go);
}

/* A blocked thread may go on; in serial mode only when its turn comes. */
void sim_wake(sim_thread_t *t, int timed_out) {
    t->timed_out = timed_out;
    if (sim_core.serial) {
        t->state = READY;
    } else {
        run(t);
    }
}

/* Serial mode: lets one of the ready threads run. */
static int run_one_ready(void) {
    unsigned ready = 0;
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        ready += t->state == READY;
    }
    if (ready == 0) {
        return 0;
    }
    uint64_t pick = sim_next_random(&sim_core.schedule_state) % ready;
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        if (t->state == READY && pick-- == 0) {
            run(t);
            return 1;
        }
    }
    return 0;
}

static int poll_now(const struct pollfd *fds, nfds_t n) {
    struct pollfd copy[64];
    if (n == 0) {
        return 0;
    }
    if (n > sizeof copy / sizeof copy[0]) {
        sim_die("a poll of more than 64 descriptors");
    }
    memcpy(copy, fds, n * sizeof copy[0]);
    int rc;
    do {
        rc = poll(copy, n, 0);
    } while (rc < 0 && errno == EINTR);
    return rc;
}

/* Wakes the polls whose descriptors are ready. */
static unsigned wake_pollers(void) {
    unsigned woken = 0;
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        if (t->state == IN_POLL && poll_now(t->fds, t->fd_count) != 0) {
            sim_wake(t, 0);
            woken++;
        }
    }
    return woken;
}

void sim_wake_due(uint64_t now) {
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        if (is_blocked(t) && t->deadline_ns <= now) {
            sim_wake(t, 1);
        }
    }
}

static uint64_t earliest_deadline(void) {
    uint64_t earliest = DLI_NEVER;
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        if (is_blocked(t) && t->deadline_ns < earliest) {
            earliest = t->deadline_ns;
        }
    }
    return earliest;
}

/* Called when a thread has stopped running. When it was the last, somebody else is woken, by a descriptor or
 * by the clock. */
void sim_stopped_running(void) {
    sim_core.running--;
    while (sim_core.running == 0 && sim_core.thread_count > 0) {
        if (sim_core.serial && run_one_ready()) {
            return;
        }
        if (wake_pollers() > 0) {
            continue;
        }
        uint64_t to = earliest_deadline();
        if (to == DLI_NEVER) {
            sim_die("deadlock: every thread waits, and none for a time");
        }
        uint64_t now = atomic_load(&sim_core.clock_ns);
        if (to > now) {
            if (sim_core.advance_fn != NULL) {
                sim_core.advance_fn(now, to);
            }
            atomic_store(&sim_core.clock_ns, to);
            now = to;
        }
        sim_wake_due(now);
    }
}

sim_thread_t *sim_self(void) {
    sim_thread_t *t = pthread_getspecific(sim_core.self_key);
    if (t == NULL) {
        fprintf(stderr, "sim: a thread that the clock does not know waits through it\n");
        abort();
    }
    return t;
}

/* Blocks in `state` until somebody makes this thread run again. */
void sim_block(sim_thread_t *me, state_t state, uint64_t deadline_ns) {
    me->deadline_ns = deadline_ns;
    me->timed_out = 0;
    me->state = state;
    sim_stopped_running();
    while (me->state != RUNNING) {
        pthread_cond_wait(&me->go, &sim_core.mutex);
    }
}

sim_thread_t *sim_add_thread(void) {
    sim_thread_t *t = alloc_real(sizeof *t);
    memset(t, 0, sizeof *t);
    pthread_cond_init(&t->go, NULL);
    t->next = sim_core.threads;
    t->number = next_number++;
    t->state = RUNNING;
    sim_core.threads = t;
    sim_core.thread_count++;
    sim_core.running++;
    return t;
}

void sim_remove_thread(sim_thread_t *t) {
    for (sim_thread_t **at = &sim_core.threads; *at != NULL; at = &(*at)->next) {
        if (*at == t) {
            *at = t->next;
            break;
        }
    }
    sim_core.thread_count--;
    pthread_cond_destroy(&t->go);
    alloc_real_free(t);
}
