/* wall_clock.h - the C library's questions for the wall clock, moved by the includer's offset_s(). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WALL_CLOCK_H
#define WALL_CLOCK_H

#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void);

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        t->tv_sec += offset_s();
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now = {0, 0};
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return rc;
}

time_t time(time_t *t) {
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (t != NULL) {
        *t = now.tv_sec;
    }
    return now.tv_sec;
}

#endif
