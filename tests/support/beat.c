/* beat.c - how long the machine stood still, by a process that does nothing but look at the clock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/beat.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define EVERY_MS 5
/* So old may its last look be. Who finds an older one waits for the next, but not for that of a dead one. */
#define FRESH_NS (20 * MS)
#define DEAD_NS (10000 * MS)
/* Busy processors alone do not make it as late as this. */
#define STOP_NS (60 * MS)

typedef struct beat {
    _Atomic uint64_t last_ns, stood_ns;
} beat_t;

static beat_t none;
static beat_t *beat = &none; /* shared, once there is one */

static uint64_t now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static _Noreturn void go_on(pid_t parent) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close_range(0, ~0U, 0); /* nobody waits for it at the end of a pipe */
    while (getppid() == parent) {
        (void)poll(NULL, 0, EVERY_MS);
        uint64_t now_ns = now(), since_ns = now_ns - atomic_load(&beat->last_ns);
        /* The rest was shown already. */
        atomic_fetch_add(&beat->stood_ns, since_ns < STOP_NS ? 0 : since_ns - FRESH_NS);
        atomic_store(&beat->last_ns, now_ns);
    }
    _exit(0);
}

void beat_begin(void) {
    if (beat != &none) {
        return;
    }
    pid_t parent = getpid(), pid = -1;
    beat = mmap(NULL, sizeof *beat, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (beat != MAP_FAILED) {
        atomic_store(&beat->last_ns, now());
        pid = fork();
    }
    if (pid < 0) {
        perror("the beat");
        exit(2);
    }
    if (pid == 0) {
        go_on(parent);
    }
}

uint64_t beat_stood_ns(uint64_t *now_ns) {
    for (;;) {
        uint64_t last_ns = atomic_load(&beat->last_ns), at_ns = now(),
                 stood_ns = atomic_load(&beat->stood_ns);
        bool is_fresh = last_ns + FRESH_NS >= at_ns && last_ns == atomic_load(&beat->last_ns);
        if (is_fresh || last_ns + DEAD_NS < at_ns) {
            if (now_ns != NULL) {
                *now_ns = at_ns;
            }
            return stood_ns;
        }
        (void)poll(NULL, 0, 1);
    }
}
