/* sys.c - the real clock, waits, randomness and threads. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sys.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000u

static uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    /* Cannot fail: both clocks exist on every Linux this library compiles for. */
    (void)clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t now_boottime_ns(void) {
    return clock_ns(CLOCK_BOOTTIME);
}

static int fill_random(void *buf, size_t len) {
    unsigned char *at = buf;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -1;
        }
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg) {
    /* The library's threads take no signals: handlers belong to the program's own threads. What a thread's
     * own fault raises, in a callback, is not kept from them. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, old;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&all, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static void join_thread(pthread_t thread) {
    (void)pthread_join(thread, NULL);
}

static struct timespec left_until(uint64_t deadline_ns, uint64_t now) {
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec t = {.tv_sec = (time_t)(left / NS_PER_S), .tv_nsec = (long)(left % NS_PER_S)};
    return t;
}

static int poll_until(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        struct timespec left;
        const struct timespec *timeout = NULL;
        if (deadline_ns != DLI_NEVER) {
            left = left_until(deadline_ns, now_boottime_ns());
            timeout = &left;
        }
        int rc = ppoll(fds, n, timeout, NULL);
        if (rc < 0 && errno != EINTR) {
            /* More descriptors than the process may have by now, or no memory: nobody is to spin for that. */
            int error = errno;
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            errno = error;
            return rc;
        }
        if (rc > 0) {
            return rc;
        }
        /* ppoll counts CLOCK_MONOTONIC: look at the clock that counts before saying it is over. */
        if (rc == 0 && now_boottime_ns() >= deadline_ns) {
            return 0;
        }
    }
}

/* Where long has 32 bits and time_t 64 it is another system call. */
#ifdef SYS_futex_time64
#define FUTEX_CALL (sizeof(time_t) > sizeof(long) ? SYS_futex_time64 : SYS_futex)
#else
#define FUTEX_CALL SYS_futex
#endif

/* Of CLOCK_MONOTONIC: how the instant is said where CLOCK_BOOTTIME is not known. */
static struct timespec monotonic_at(uint64_t deadline_ns) {
    uint64_t now = now_boottime_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
    uint64_t until = clock_ns(CLOCK_MONOTONIC) + left;
    struct timespec t = {.tv_sec = (time_t)(until / NS_PER_S), .tv_nsec = (long)(until % NS_PER_S)};
    return t;
}

static void wait_for_word(atomic_uint *word, uint64_t deadline_ns) {
    while (atomic_load(word) == 0 && (deadline_ns == DLI_NEVER || now_boottime_ns() < deadline_ns)) {
        struct timespec until = {0}, *at = NULL;
        if (deadline_ns != DLI_NEVER) {
            until = monotonic_at(deadline_ns);
            at = &until;
        }
        (void)syscall(FUTEX_CALL, word, FUTEX_WAIT_BITSET_PRIVATE, 0, at, NULL, FUTEX_BITSET_MATCH_ANY);
    }
}

static void wake_word(atomic_uint *word) {
    (void)syscall(FUTEX_CALL, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void init_cond(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

/* Condition variables know no CLOCK_BOOTTIME. The wait is made on CLOCK_MONOTONIC; after a suspend the
 * client's own thread, which notices the resume, broadcasts, and the waiter looks at the clock again. */
static int wait_cond(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    if (deadline_ns == DLI_NEVER) {
        pthread_cond_wait(cond, mutex);
        return 0;
    }
    struct timespec t = monotonic_at(deadline_ns);
    if (pthread_cond_timedwait(cond, mutex, &t) != ETIMEDOUT) {
        return 0;
    }
    return now_boottime_ns() >= deadline_ns ? ETIMEDOUT : 0;
}

static void broadcast_cond(pthread_cond_t *cond) {
    pthread_cond_broadcast(cond);
}

static uint64_t rearm_resume(int fd) {
    /* A timer far in the future on CLOCK_REALTIME that is cancelled, and so readable, when that clock jumps;
     * the kernel treats a resume as such a jump. */
    struct itimerspec spec;
    memset(&spec, 0, sizeof spec);
    spec.it_value.tv_sec = sizeof(time_t) > 4 ? (time_t)(INT64_C(100) * INT_MAX) : INT_MAX;
    uint64_t ticks;
    ssize_t n = read(fd, &ticks, sizeof ticks); /* clears a pending cancellation */
    (void)n;
    (void)timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &spec, NULL);
    uint64_t awake_ns = clock_ns(CLOCK_MONOTONIC);
    return now_boottime_ns() - awake_ns;
}

static int open_resume(void) {
    return timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
}

static unsigned count_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

const dli_sys_t dli_sys_real = {
    .now_ns = now_boottime_ns,
    .random = fill_random,
    .thread_start = start_thread,
    .thread_join = join_thread,
    .poll = poll_until,
    .word_wait = wait_for_word,
    .word_wake = wake_word,
    .cond_init = init_cond,
    .cond_wait = wait_cond,
    .cond_broadcast = broadcast_cond,
    .resume_fd = open_resume,
    .resume_rearm = rearm_resume,
    .processors = count_processors,
};

const dli_sys_t *dli_sys = &dli_sys_real;
