/* clock_shim.c - preloaded into servers: moves their wall clock by as many seconds as a file says. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>

#include "wall_clock.h"

/*
 * LD_PRELOAD is this, and DLOCK_TEST_CLOCK names the file, with a number such as -3600. It is read anew at
 * each question, so that a clock can be set while a server runs. Clocks that count from the boot stay.
 *
 * Allocators ask for the time before anything has been set up. So nothing here allocates, looks up a name or
 * keeps a state: the file and the kernel's clock are asked by system calls.
 */

static long offset_s(void) {
    const char *path = getenv("DLOCK_TEST_CLOCK");
    char text[24];
    int before = errno; /* asking for the time leaves it alone */
    long fd = path == NULL ? -1 : syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long n = fd < 0 ? -1 : syscall(SYS_read, fd, text, sizeof text);
    long sum = 0;
    for (long i = 0; i < n && text[i] != '\n'; i++) {
        sum = text[i] >= '0' && text[i] <= '9' ? sum * 10 + text[i] - '0' : sum;
    }
    if (fd >= 0) {
        (void)syscall(SYS_close, fd);
    }
    errno = before;
    return n > 0 && text[0] == '-' ? -sum : sum;
}

int timespec_get(struct timespec *t, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, t) == 0 ? base : 0;
}

/* The kernel waits by its own clock. An instant of the first thirty years is one of a clock that counts from
 * the boot. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec kernels = *until;
    if (until->tv_sec < 1000000000) {
        return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, until);
    }
    kernels.tv_sec -= offset_s();
    return pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &kernels);
}
