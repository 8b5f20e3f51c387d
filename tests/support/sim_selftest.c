/* sim_selftest.c - the simulated clock proves itself before anything is proved by it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/sim.h"

#define CHECK(cond)                                                             \
    do {                                                                        \
        if (!(cond)) {                                                          \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #cond); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)
#define CHECK_THAT(a, op, b)                                                                              \
    do {                                                                                                  \
        int64_t check_a_ = (int64_t)(a), check_b_ = (int64_t)(b);                                         \
        if (!(check_a_ op check_b_)) {                                                                    \
            fprintf(stderr, "%s:%d: %s is false: %lld and %lld\n", __FILE__, __LINE__, #a " " #op " " #b, \
                    (long long)check_a_, (long long)check_b_);                                            \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)
#define MS(n) ((uint64_t)(n)*DLI_NS_PER_MS)

static void sleep_ms(uint64_t ms) {
    CHECK_THAT(dli_sys->poll(NULL, 0, dli_sys->now_ns() + MS(ms)), ==, 0);
}

static void hours_cost_nothing(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t start = dli_sys->now_ns();
    sleep_ms(3600000);
    CHECK_THAT(dli_sys->now_ns(), ==, start + MS(3600000));
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK_THAT(after.tv_sec - before.tv_sec, <, 5);
}

/* Three sleepers note the order in which they wake. */
static atomic_int order, places[3];
static void *sleeper(void *arg) {
    uint64_t n = (uint64_t)(uintptr_t)arg;
    sleep_ms(300 - 100 * n);
    places[n] = ++order;
    return NULL;
}

static void sleepers_wake_in_the_order_of_their_deadlines(void) {
    pthread_t threads[3];
    uint64_t start = dli_sys->now_ns();
    for (uintptr_t i = 0; i < 3; i++) {
        CHECK_THAT(dli_sys->thread_start(&threads[i], sleeper, (void *)i), ==, 0);
    }
    for (int i = 0; i < 3; i++) {
        dli_sys->thread_join(threads[i]);
    }
    CHECK(places[2] == 1 && places[1] == 2 && places[0] == 3);
    CHECK_THAT(dli_sys->now_ns(), ==, start + MS(300));
}

static int wake_fd;
static void *writer(void *arg) {
    (void)arg;
    uint64_t one = 1;
    sleep_ms(50);
    CHECK_THAT(write(wake_fd, &one, sizeof one), ==, sizeof one);
    return NULL;
}

static void a_descriptor_wakes_before_the_clock_moves_on(void) {
    pthread_t thread;
    uint64_t start = dli_sys->now_ns();
    wake_fd = eventfd(0, EFD_CLOEXEC);
    CHECK_THAT(dli_sys->thread_start(&thread, writer, NULL), ==, 0);
    struct pollfd fds[2] = {{.fd = -1, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    CHECK_THAT(dli_sys->poll(fds, 2, start + MS(5000)), ==, 1);
    CHECK(fds[1].revents == POLLIN && dli_sys->now_ns() == start + MS(50));
    dli_sys->thread_join(thread);
    close(wake_fd);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static int flag;
static void *setter(void *arg) {
    (void)arg;
    sleep_ms(20);
    pthread_mutex_lock(&mutex);
    flag = 1;
    dli_sys->cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void conditions_are_broadcast_and_time_out(void) {
    pthread_t thread;
    uint64_t start = dli_sys->now_ns();
    dli_sys->cond_init(&cond);
    pthread_mutex_lock(&mutex);
    CHECK_THAT(dli_sys->cond_wait(&cond, &mutex, start + MS(7)), ==, ETIMEDOUT);
    CHECK_THAT(dli_sys->now_ns(), ==, start + MS(7));
    CHECK_THAT(dli_sys->thread_start(&thread, setter, NULL), ==, 0);
    while (!flag) {
        CHECK_THAT(dli_sys->cond_wait(&cond, &mutex, DLI_NEVER), ==, 0);
    }
    CHECK_THAT(dli_sys->now_ns(), ==, start + MS(27));
    pthread_mutex_unlock(&mutex);
    dli_sys->thread_join(thread);
    pthread_cond_destroy(&cond);
}

/* The library reacts to the end of a thread in a destructor: the clock has to wait for it. */
static pthread_key_t exit_key;
static atomic_uint_fast64_t exited_at;
static void at_exit(void *value) {
    (void)value;
    struct timespec real = {.tv_nsec = 20000000};
    nanosleep(&real, NULL); /* real time, so that a clock that ran on would be seen */
    exited_at = dli_sys->now_ns();
}
static void *exiting(void *arg) {
    pthread_setspecific(exit_key, arg);
    return NULL;
}

static void destructors_of_a_thread_run_before_the_clock_moves(void) {
    pthread_t thread;
    CHECK_THAT(pthread_key_create(&exit_key, at_exit), ==, 0);
    uint64_t start = dli_sys->now_ns();
    CHECK_THAT(dli_sys->thread_start(&thread, exiting, &mutex), ==, 0);
    sleep_ms(1000);
    CHECK_THAT(exited_at, ==, start);
    dli_sys->thread_join(thread);
}

static void a_suspend_wakes_the_resume_descriptors_and_the_sleepers(void) {
    int fd = dli_sys->resume_fd();
    CHECK_THAT(fd, >=, 0);
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    uint64_t start = dli_sys->now_ns();
    CHECK_THAT(dli_sys->poll(&entry, 1, start + MS(10)), ==, 0);
    sim_suspend(MS(60000));
    CHECK_THAT(dli_sys->now_ns(), ==, start + MS(60010));
    CHECK_THAT(dli_sys->poll(&entry, 1, DLI_NEVER), ==, 1);
    dli_sys->resume_rearm(fd);
    CHECK_THAT(dli_sys->poll(&entry, 1, dli_sys->now_ns() + MS(10)), ==, 0);
    close(fd);
}

static void random_is_not_constant(void) {
    unsigned char a[16], b[16];
    CHECK(dli_sys->random(a, sizeof a) == 0 && dli_sys->random(b, sizeof b) == 0);
    CHECK_THAT(memcmp(a, b, sizeof a), !=, 0);
}

static void *waits_for_ever(void *arg) {
    pthread_mutex_lock(&mutex);
    dli_sys->cond_wait(arg, &mutex, DLI_NEVER);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Runs in a child: what it does is to abort. */
static void everybody_waiting_is_a_deadlock(void) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK_THAT(pid, >=, 0);
    if (pid == 0) {
        CHECK(freopen("/dev/null", "w", stderr) != NULL);
        pthread_t thread;
        dli_sys->cond_init(&cond);
        CHECK_THAT(dli_sys->thread_start(&thread, waits_for_ever, &cond), ==, 0);
        dli_sys->thread_join(thread);
        _exit(0);
    }
    int status;
    CHECK_THAT(waitpid(pid, &status, 0), ==, pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* Many threads pass a token around through a condition; used for sanitizers and to compare schedules. */
#define RUNNERS 8
#define ROUNDS 50
static pthread_cond_t turn_cond;
static uint64_t trace;
static void *runner(void *arg) {
    uint64_t number = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&mutex);
        trace = trace * 31 + number + dli_sys->now_ns() % 1000003;
        dli_sys->cond_broadcast(&turn_cond);
        if (i % 3 == 0) {
            dli_sys->cond_wait(&turn_cond, &mutex, dli_sys->now_ns() + MS(5 + number % 3));
        }
        pthread_mutex_unlock(&mutex);
        sleep_ms(1 + (number + (uint64_t)i) % 4);
    }
    return NULL;
}

static uint64_t run_runners(void) {
    pthread_t threads[RUNNERS];
    trace = 0;
    dli_sys->cond_init(&turn_cond);
    for (uintptr_t i = 0; i < RUNNERS; i++) {
        CHECK_THAT(dli_sys->thread_start(&threads[i], runner, (void *)(i + 1)), ==, 0);
    }
    for (int i = 0; i < RUNNERS; i++) {
        dli_sys->thread_join(threads[i]);
    }
    pthread_cond_destroy(&turn_cond);
    return trace;
}

static void all(int serial, uint64_t seed) {
    sim_options_t options = {.seed = seed, .serial = serial};
    sim_install(&options);
    CHECK(sim_active());
    hours_cost_nothing();
    order = 0;
    sleepers_wake_in_the_order_of_their_deadlines();
    a_descriptor_wakes_before_the_clock_moves_on();
    flag = 0;
    conditions_are_broadcast_and_time_out();
    destructors_of_a_thread_run_before_the_clock_moves();
    a_suspend_wakes_the_resume_descriptors_and_the_sleepers();
    random_is_not_constant();
    everybody_waiting_is_a_deadlock();
    sim_uninstall();
    CHECK(!sim_active());
}

static uint64_t schedule(uint64_t seed) {
    sim_options_t options = {.seed = seed, .serial = 1};
    sim_install(&options);
    uint64_t result = run_runners();
    sim_uninstall();
    return result;
}

int main(void) {
    all(0, 1);
    all(1, 2);
    sim_options_t options = {.seed = 3};
    sim_install(&options);
    run_runners();
    sim_uninstall();
    uint64_t first = schedule(7);
    CHECK_THAT(first, ==, schedule(7));
    CHECK_THAT(first, ==, schedule(7));
    int different = 0;
    for (uint64_t seed = 8; seed < 12; seed++) {
        different += schedule(seed) != first;
    }
    CHECK_THAT(different, >, 0);
    puts("sim: all passed");
    return 0;
}
