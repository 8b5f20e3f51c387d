/* clock.h - CLOCK_BOOTTIME, which also counts while the machine is suspended, as the library does. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CLOCK_H
#define CLI_CLOCK_H

#include <stdint.h>
#include <sys/timerfd.h>
#include <time.h>

#define NS_PER_MS 1000000u
#define NEVER_NS UINT64_MAX

static inline uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_BOOTTIME, &now); /* cannot fail on a kernel that has it (2.6.39) */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What others have written may be longer than ns can count. */
static inline uint64_t ns_of_ms(int64_t ms) {
    uint64_t ns;
    return ms <= 0 ? 0 : __builtin_mul_overflow((uint64_t)ms, NS_PER_MS, &ns) ? NEVER_NS : ns;
}

/* a - b, and 0 where that would be negative. */
static inline uint64_t ns_before(uint64_t a_ns, uint64_t b_ns) {
    return a_ns > b_ns ? a_ns - b_ns : 0;
}

static inline uint64_t ns_min(uint64_t a_ns, uint64_t b_ns) {
    return a_ns < b_ns ? a_ns : b_ns;
}

/* Makes the timer readable at an instant of CLOCK_BOOTTIME; NEVER_NS: not at all. */
static inline void timer_set(int timer_fd, uint64_t at_ns) {
    struct itimerspec when = {.it_value = {0, 0}};
    if (at_ns != NEVER_NS) {
        at_ns = at_ns == 0 ? 1 : at_ns; /* zero would switch it off */
        when.it_value.tv_sec = (time_t)(at_ns / 1000000000u);
        when.it_value.tv_nsec = (long)(at_ns % 1000000000u);
    }
    (void)timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

#endif
