/* crowd.c - one name that everybody wants: how often it is held, how it changes hands, who waits longest. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "crowd.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 5
#define ROUND_NS 1000000000u
#define SAMPLES_MAX (1u << 17) /* of one thread in one round; the rest is only counted */

/* One thread's part of the memory that all processes share. The pages that nobody writes cost nothing. */
typedef struct member {
    uint64_t holds, waits, handoffs;
    uint64_t wait_ns[SAMPLES_MAX], handoff_ns[SAMPLES_MAX];
} member_t;

/* `by` and `unlocked_ns` belong to whoever holds the lock: the process that had it before, and since when it
 * no longer wanted it. CLOCK_MONOTONIC is one clock on one machine. */
typedef struct shared {
    pthread_barrier_t begin;
    atomic_int stop;
    int by;
    uint64_t unlocked_ns;
    member_t members[];
} shared_t;

typedef struct worker {
    const crowd_t *crowd;
    const way_t *way;
    void *user;
    shared_t *shared;
    member_t *me;
    int process;
    pthread_t thread;
} worker_t;

static void keep(uint64_t *samples, uint64_t *count, uint64_t ns) {
    if (*count < SAMPLES_MAX) {
        samples[(*count)++] = ns;
    }
}

static void hold(const crowd_t *crowd) {
    if (crowd->hold_us > 0) {
        struct timespec time = {.tv_nsec = (long)crowd->hold_us * 1000};
        (void)nanosleep(&time, NULL);
    }
}

static void *take_turns(void *arg) {
    worker_t *w = arg;
    shared_t *shared = w->shared;
    w->way->await(w->user); /* connections, scripts */
    w->way->give(w->user);
    (void)pthread_barrier_wait(&shared->begin);
    while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
        uint64_t begin_ns = now_ns();
        w->way->await(w->user);
        uint64_t now = now_ns();
        keep(w->me->wait_ns, &w->me->waits, now - begin_ns);
        if (shared->by != w->process && shared->unlocked_ns > begin_ns) {
            keep(w->me->handoff_ns, &w->me->handoffs, now - shared->unlocked_ns);
        }
        w->me->holds++;
        hold(w->crowd);
        shared->by = w->process;
        shared->unlocked_ns = now_ns();
        w->way->give(w->user);
    }
    return NULL;
}

static void run_process(const crowd_t *crowd, const way_t *way, shared_t *shared, int process) {
    worker_t workers[CROWD_MAX];
    for (int i = 0; i < crowd->threads; i++) {
        workers[i] = (worker_t){.crowd = crowd,
                                .way = way,
                                .user = way->open(crowd->place),
                                .shared = shared,
                                .me = &shared->members[process * crowd->threads + i],
                                .process = process};
    }
    for (int i = 0; i < crowd->threads; i++) {
        if (pthread_create(&workers[i].thread, NULL, take_turns, &workers[i]) != 0) {
            die("thread", NULL);
        }
    }
    for (int i = 0; i < crowd->threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    for (int i = 0; i < crowd->threads; i++) {
        way->close(workers[i].user);
    }
}

/* What the rounds of one way have shown. */
typedef struct result {
    samples_t holds, jain, waits, handoffs; /* a second; in millionths; all of them */
} result_t;

/* 1: all had as much; 1 / n: one had all. */
static double jain(const double *x, int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    return squares > 0 ? sum * sum / (n * squares) : 0;
}

static void add_up(const crowd_t *crowd, const shared_t *shared, uint64_t ns, result_t *result) {
    double of_process[CROWD_MAX] = {0}, all = 0;
    for (int p = 0; p < crowd->processes; p++) {
        for (int i = 0; i < crowd->threads; i++) {
            const member_t *m = &shared->members[p * crowd->threads + i];
            of_process[p] += (double)m->holds;
            for (uint64_t k = 0; k < m->waits; k++) {
                samples_add(&result->waits, m->wait_ns[k]);
            }
            for (uint64_t k = 0; k < m->handoffs; k++) {
                samples_add(&result->handoffs, m->handoff_ns[k]);
            }
        }
        all += of_process[p];
    }
    samples_add(&result->holds, (uint64_t)(all * 1e9 / (double)ns));
    samples_add(&result->jain, (uint64_t)(jain(of_process, crowd->processes) * 1e6));
}

static void run_round(const crowd_t *crowd, const way_t *way, unsigned scale, result_t *result) {
    int all = crowd->processes * crowd->threads;
    size_t size = sizeof(shared_t) + (size_t)all * sizeof(member_t);
    shared_t *shared =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_barrierattr_t shared_one;
    if (shared == MAP_FAILED || pthread_barrierattr_init(&shared_one) != 0 ||
        pthread_barrierattr_setpshared(&shared_one, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_barrier_init(&shared->begin, &shared_one, (unsigned)all + 1) != 0) {
        die("shared memory", NULL);
    }
    for (int p = 0; p < crowd->processes; p++) {
        pid_t pid = fork();
        if (pid == 0) {
            run_process(crowd, way, shared, p);
            _exit(0); /* what ends the server belongs to the first process */
        }
        if (pid < 0) {
            die("fork", NULL);
        }
    }
    (void)pthread_barrier_wait(&shared->begin);
    uint64_t begin_ns = now_ns(), round_ns = scale * (uint64_t)ROUND_NS;
    struct timespec time = {.tv_sec = (time_t)(round_ns / 1000000000u),
                            .tv_nsec = (long)(round_ns % 1000000000u)};
    (void)nanosleep(&time, NULL);
    atomic_store(&shared->stop, 1);
    uint64_t took_ns = now_ns() - begin_ns;
    for (int p = 0; p < crowd->processes; p++) {
        int status;
        if (wait(&status) < 0 || status != 0) {
            die("a process of the crowd", NULL);
        }
    }
    add_up(crowd, shared, took_ns, result);
    munmap(shared, size);
}

static double us(samples_t *samples, double p) {
    return samples->len == 0 ? 0 : (double)samples_percentile(samples, p) / 1e3;
}

static void print(const way_t *way, result_t *r) {
    printf("  %-28s %8llu holds/s, between processes p50 %.0f p99 %.0f us, waits p50 %.0f p99 %.0f longest "
           "%.0f us, Jain over processes %.3f (least %.3f)\n",
           way->name, (unsigned long long)samples_percentile(&r->holds, 50), us(&r->handoffs, 50),
           us(&r->handoffs, 99), us(&r->waits, 50), us(&r->waits, 99), us(&r->waits, 100),
           (double)samples_percentile(&r->jain, 50) / 1e6, (double)samples_percentile(&r->jain, 0) / 1e6);
}

static void forget(result_t *r) {
    samples_free(&r->holds);
    samples_free(&r->jain);
    samples_free(&r->waits);
    samples_free(&r->handoffs);
}

void crowd_compare(const crowd_t *crowd, const way_t *floor, const way_t *ours, unsigned scale) {
    result_t a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    for (int round = 0; round < ROUNDS; round++) {
        if (floor != NULL) {
            run_round(crowd, floor, scale, &a);
        }
        run_round(crowd, ours, scale, &b);
    }
    printf("%s: %d processes of %d threads, held for %u us:\n", crowd->title, crowd->processes,
           crowd->threads, crowd->hold_us);
    print(ours, &b);
    if (floor != NULL) {
        print(floor, &a);
        printf("  ratios: holds %.2f, between processes p50 %.2f, wait p99 %.2f\n",
               (double)samples_percentile(&b.holds, 50) / (double)samples_percentile(&a.holds, 50),
               us(&b.handoffs, 50) / us(&a.handoffs, 50), us(&b.waits, 99) / us(&a.waits, 99));
    }
    forget(&a);
    forget(&b);
}

void crowd_compare_passing(const char *title, void *(*open)(const void *place),
                           void *(*open_without)(const void *place), const void *place, unsigned scale) {
    way_t with = {"passing", open, crowd_user_await, crowd_user_give, crowd_user_close};
    way_t without = {"pass: false", open_without, crowd_user_await, crowd_user_give, crowd_user_close};
    crowd_t crowd = {title, place, 4, 8, 0};
    crowd_compare(&crowd, &without, &with, scale);
}

/* ---- users of one client a process ------------------------------------------------------------------- */

static dl_client_t *client; /* of this process */
static int users;

void *crowd_user_open(dl_client_t *(*open)(const void *place), const void *place) {
    client = users++ == 0 ? open(place) : client;
    dl_lock_t *lock;
    dl_error_t err;
    if (dl_lock_open(client, "crowd", &lock, &err) != DL_OK) {
        die("open", &err);
    }
    return lock;
}

void crowd_user_await(void *lock) {
    dl_error_t err;
    if (dl_lock(lock, &err) != DL_OK) {
        die("lock", &err);
    }
}

void crowd_user_give(void *lock) {
    dl_error_t err;
    if (dl_unlock(lock, &err) != DL_OK) {
        die("unlock", &err);
    }
}

void crowd_user_close(void *lock) {
    dl_lock_close(lock);
    if (--users == 0) {
        dl_client_close(client);
    }
}

/* ---- on SQLite --------------------------------------------------------------------------------------- */

static dl_client_t *open_on_file(const void *folder) {
    return open_client(folder, "");
}

static void *open_user(const void *folder) {
    return crowd_user_open(open_on_file, folder);
}

static dl_client_t *open_without_passing(const void *folder) {
    return open_client(folder, ", pass: false");
}

static void *open_user_without(const void *folder) {
    return crowd_user_open(open_without_passing, folder);
}

void bench_crowd_passing(const char *folder, unsigned scale) {
    crowd_compare_passing("sqlite", open_user, open_user_without, folder, scale);
}

void bench_crowd(const char *folder, unsigned scale) {
    static const way_t ours = {"dl_lock", open_user, crowd_user_await, crowd_user_give, crowd_user_close};
    crowd_compare_all("sqlite", NULL, &ours, folder, scale);
}

void crowd_compare_all(const char *title, const way_t *floor, const way_t *ours, const void *place,
                       unsigned scale) {
    static const struct {
        int processes, threads;
        unsigned hold_us;
    } crowds[] = {{2, 1, 1000}, {4, 2, 1000}, {8, 4, 1000}, {4, 8, 0}, {8, 1, 0}};
    for (size_t i = 0; i < sizeof crowds / sizeof crowds[0]; i++) {
        crowd_t crowd = {title, place, crowds[i].processes, crowds[i].threads, crowds[i].hold_us};
        crowd_compare(&crowd, floor, ours, scale);
    }
}
