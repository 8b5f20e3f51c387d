/* core_sys_test.c - the real clock and its waits: boot time, whatever the other clocks say. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080 /* Linux 5.6 */
#endif

#define HOUR_S 3600
/* What a call may take beyond its end, as users are promised. */
#define LATE_NS (100 * (int64_t)DLI_NS_PER_MS)

/* Every question for the wall clock in this program comes by here. */
static atomic_long wall_offset_s;

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        t->tv_sec += wall_offset_s;
    }
    return rc;
}

static uint64_t ns_of(clockid_t id) {
    struct timespec t = {0, 0};
    (void)clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The wall clock jumps ahead, back and home again, while somebody waits. */
static void *turn_the_wall_clock(void *arg) {
    static const long offsets_s[] = {HOUR_S, -HOUR_S, 0};
    (void)arg;
    for (int i = 0; i < 3; i++) {
        (void)poll(NULL, 0, 10);
        wall_offset_s = offsets_s[i];
    }
    return NULL;
}

static pthread_t start_turning(void) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, turn_the_wall_clock, NULL), 0);
    return thread;
}

/* What is wrong; "": nothing. A forked child cannot use Criterion's assertions, and says it by this. */
static char wrong[128];

static bool ended_at(uint64_t until_ns) {
    int64_t late_ns = (int64_t)(dli_sys_real.now_ns() - until_ns);
    if (late_ns < 0 || late_ns > LATE_NS) {
        (void)snprintf(wrong, sizeof wrong, "%lld ns late", (long long)late_ns);
        return false;
    }
    return true;
}

static bool poll_is_right(void) {
    uint64_t until_ns = dli_sys_real.now_ns() + 60u * DLI_NS_PER_MS;
    struct pollfd none = {.fd = -1};
    int rc = dli_sys_real.poll(&none, 1, until_ns);
    if (!ended_at(until_ns)) {
        return false;
    }
    int over = dli_sys_real.poll(&none, 1, 0); /* an instant in the past: at once */
    if (rc != 0 || over != 0) {
        (void)snprintf(wrong, sizeof wrong, "poll gave %d, then %d", rc, over);
        return false;
    }
    return true;
}

/* It may wake for nothing, but a wait that does nothing else is no wait. */
#define WAKES_MOST 5

static bool cond_wait_is_right(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    int wakes = 0;
    dli_sys_real.cond_init(&cond);
    pthread_mutex_lock(&mutex);
    uint64_t until_ns = dli_sys_real.now_ns() + 60u * DLI_NS_PER_MS;
    while (dli_sys_real.cond_wait(&cond, &mutex, until_ns) == 0 && wakes <= WAKES_MOST) {
        wakes++;
    }
    pthread_mutex_unlock(&mutex);
    if (wakes > WAKES_MOST) {
        (void)snprintf(wrong, sizeof wrong, "a condition wait wakes again and again");
        return false;
    }
    return ended_at(until_ns);
}

static bool word_wait_is_right(void) {
    atomic_uint word = 0;
    uint64_t until_ns = dli_sys_real.now_ns() + 60u * DLI_NS_PER_MS;
    dli_sys_real.word_wake(&word); /* nobody sleeps on it yet, and it says nothing */
    dli_sys_real.word_wait(&word, until_ns);
    return ended_at(until_ns);
}

static void *say_the_word(void *word) {
    (void)poll(NULL, 0, 20);
    atomic_store((atomic_uint *)word, 1);
    dli_sys_real.word_wake(word);
    return NULL;
}

Test(sys, time_is_the_boot_time_clock_and_not_the_wall_clock) {
    uint64_t before = ns_of(CLOCK_BOOTTIME), now = dli_sys_real.now_ns(), after = ns_of(CLOCK_BOOTTIME);
    cr_assert_leq(before, now, "%llu is not from %llu to %llu", (unsigned long long)now,
                  (unsigned long long)before, (unsigned long long)after);
    cr_assert_leq(now, after, "%llu is not from %llu to %llu", (unsigned long long)now,
                  (unsigned long long)before, (unsigned long long)after);
}

Test(sys, a_poll_ends_at_its_instant_whatever_the_wall_clock_does, .timeout = 30) {
    pthread_t turning = start_turning();
    bool right = poll_is_right();
    pthread_join(turning, NULL);
    cr_assert(right, "%s", wrong);
}

/* How often this thread has given its processor away by itself: a spin never does. */
static long rests(void) {
    struct rusage usage;
    cr_assert_eq(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
}

/* It has more descriptors than the process may have by now. */
Test(sys, a_poll_that_is_refused_does_not_spin) {
    enum { TIMES = 20 };
    struct pollfd none[2] = {{.fd = -1}, {.fd = -1}};
    struct rlimit before;
    int rc = 0, error = 0;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, before.rlim_max}), 0);
    long rested = -rests();
    for (int i = 0; i < TIMES; i++) {
        errno = 0;
        rc = dli_sys_real.poll(none, 2, DLI_NEVER);
        error = errno;
    }
    rested += rests();
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(rc, -1);
    cr_assert_eq(error, EINVAL);
    cr_assert_geq(rested, TIMES);
}

Test(sys, a_condition_wait_ends_at_its_instant_whatever_the_wall_clock_does, .timeout = 30) {
    static const long offsets_s[] = {HOUR_S, -HOUR_S};
    pthread_t turning = start_turning();
    bool right = cond_wait_is_right();
    pthread_join(turning, NULL);
    cr_assert(right, "%s", wrong);
    for (int i = 0; i < 2; i++) {
        wall_offset_s = offsets_s[i];
        cr_assert(cond_wait_is_right(), "%s", wrong);
    }
}

Test(sys, a_wait_for_a_word_ends_at_its_instant_whatever_the_wall_clock_does, .timeout = 30) {
    pthread_t turning = start_turning();
    bool right = word_wait_is_right();
    pthread_join(turning, NULL);
    cr_assert(right, "%s", wrong);
}

Test(sys, a_wait_for_a_word_ends_when_it_is_said, .timeout = 30) {
    atomic_uint word = 0;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, say_the_word, &word), 0);
    dli_sys_real.word_wait(&word, DLI_NEVER);
    cr_assert_eq(word, 1);
    dli_sys_real.word_wait(&word, DLI_NEVER); /* it was said already: at once */
    pthread_join(thread, NULL);
}

/* ---- a machine that has slept for a day: boot time is ahead of the monotonic clock
 * --------------------------- */

#define DAY_S 86400

static bool write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? write(fd, text, strlen(text)) : -1;
    (void)(fd >= 0 && close(fd));
    return n == (ssize_t)strlen(text);
}

/* Children of this process have such clocks from here on. */
static bool let_children_sleep_for_a_day(void) {
    char text[64];
    (void)snprintf(text, sizeof text, "boottime %d 0\n", DAY_S);
    return (unshare(CLONE_NEWTIME) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWTIME) == 0) &&
           write_file("/proc/self/timens_offsets", text);
}

static bool clock_is_right(void) {
    uint64_t monotonic_ns = ns_of(CLOCK_MONOTONIC), ahead_ns = dli_sys_real.now_ns() - monotonic_ns;
    if (ahead_ns < DAY_S * (uint64_t)1000000000u) {
        (void)snprintf(wrong, sizeof wrong, "only %llu ns ahead of the monotonic clock",
                       (unsigned long long)ahead_ns);
        return false;
    }
    return true;
}

Test(sys, a_sleep_of_the_machine_counts, .timeout = 30) {
    if (!let_children_sleep_for_a_day()) {
        cr_skip("no time namespace here: %s", strerror(errno));
    }
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        bool right = clock_is_right() && poll_is_right() && cond_wait_is_right() && word_wait_is_right();
        (void)(!right && fprintf(stderr, "%s\n", wrong) > 0);
        _exit(!right);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "wait status %d of the process in the namespace", status);
}

static void *look_at_mask(void *mask) {
    pthread_sigmask(SIG_BLOCK, NULL, mask);
    return NULL;
}

Test(sys, threads_take_no_signals_but_those_of_their_own_faults) {
    pthread_t thread;
    sigset_t mask;
    cr_assert_eq(dli_sys->thread_start(&thread, look_at_mask, &mask), 0);
    dli_sys->thread_join(thread);
    static const int others[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGUSR1, SIGALRM, SIGPIPE};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        cr_assert_eq(sigismember(&mask, others[i]), 1, "%d", others[i]);
    }
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        cr_assert_eq(sigismember(&mask, own[i]), 0, "%d", own[i]);
    }
}

Test(sys, the_resume_descriptor_is_quiet_while_the_machine_runs) {
    int fd = dli_sys_real.resume_fd();
    cr_assert_geq(fd, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, 20), 0);
    dli_sys_real.resume_rearm(fd);
    cr_assert_eq(poll(&p, 1, 20), 0);
    close(fd);
}
