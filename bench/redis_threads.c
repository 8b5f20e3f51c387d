/* redis_threads.c - threads on locks of their own through one client, against a bare connection a thread. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>

#include "redis.h"

#define ROUNDS 7
#define ROUND_NS 200000000u
#define THREADS_MAX 256

typedef struct worker {
    pthread_t thread;
    bare_t bare;
    dl_lock_t *lock; /* NULL in a round of bare connections */
    uint64_t pairs;
} worker_t;

static atomic_int running;

static void *work(void *arg) {
    worker_t *worker = arg;
    dl_error_t err;
    while (atomic_load_explicit(&running, memory_order_relaxed)) {
        if (worker->lock == NULL) {
            bare_acquire(&worker->bare);
            bare_release(&worker->bare);
        } else if (dl_lock(worker->lock, &err) != DL_OK || dl_unlock(worker->lock, &err) != DL_OK) {
            die("pair", &err);
        }
        worker->pairs++;
    }
    return NULL;
}

static uint64_t switches(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_nvcsw + (uint64_t)usage.ru_nivcsw;
}

/* Pairs a second, of all threads together, and how often this process changed threads for each, in
 * hundredths. */
static uint64_t run_round(worker_t *workers, int threads, unsigned scale, samples_t *switched) {
    uint64_t pairs = 0, before = switches();
    struct timespec pause = {.tv_sec = (time_t)(scale * ROUND_NS / 1000000000u),
                             .tv_nsec = (long)(scale * (uint64_t)ROUND_NS % 1000000000u)};
    atomic_store(&running, 1);
    uint64_t begin = now_ns();
    for (int i = 0; i < threads; i++) {
        workers[i].pairs = 0;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            die("thread", NULL);
        }
    }
    (void)nanosleep(&pause, NULL);
    atomic_store(&running, 0);
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        pairs += workers[i].pairs;
    }
    uint64_t a_second = pairs * 1000000000u / (now_ns() - begin);
    samples_add(switched, pairs > 0 ? (switches() - before) * 100 / pairs : 0);
    return a_second;
}

static void bench_threads(const layout_t *layout, int threads, int connections, unsigned scale) {
    static worker_t workers[THREADS_MAX];
    char more[32];
    (void)snprintf(more, sizeof more, ", connections: %d", connections);
    dl_client_t *client = redis_open_client(layout, more);
    dl_lock_t *locks[THREADS_MAX];
    dl_error_t err;
    samples_t floor = {0}, ours = {0}, ratios = {0}, bare_switches = {0}, our_switches = {0};
    for (int i = 0; i < threads; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "thread/%d", i);
        bare_open(&workers[i].bare, layout, name);
        if (dl_lock_open(client, name, &locks[i], &err) != DL_OK) {
            die("open", &err);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < threads; i++) {
            workers[i].lock = NULL;
        }
        uint64_t a = run_round(workers, threads, scale, &bare_switches);
        for (int i = 0; i < threads; i++) {
            workers[i].lock = locks[i];
        }
        uint64_t b = run_round(workers, threads, scale, &our_switches);
        samples_add(&floor, a);
        samples_add(&ours, b);
        samples_add(&ratios, b * 1000 / a);
    }
    printf("%s connections: %d, %d threads on distinct locks: bare connections %llu pairs/s, dlock %llu "
           "pairs/s, "
           "ratio %.2f (of %d rounds: %.2f to %.2f); changes of threads a pair %.2f to %.2f\n",
           layout->driver, connections, threads, (unsigned long long)samples_percentile(&floor, 50),
           (unsigned long long)samples_percentile(&ours, 50), (double)samples_percentile(&ratios, 50) / 1e3,
           ROUNDS, (double)samples_percentile(&ratios, 0) / 1e3,
           (double)samples_percentile(&ratios, 100) / 1e3,
           (double)samples_percentile(&our_switches, 50) / 1e2,
           (double)samples_percentile(&bare_switches, 50) / 1e2);
    samples_free(&bare_switches);
    samples_free(&our_switches);
    samples_free(&floor);
    samples_free(&ours);
    samples_free(&ratios);
    for (int i = 0; i < threads; i++) {
        bare_close(&workers[i].bare);
        dl_lock_close(locks[i]);
    }
    dl_client_close(client);
}

void bench_redis_threads(const char *folder, unsigned scale) {
    static const int counts[] = {1, 4, 8, 16, 64, THREADS_MAX}, connections[] = {1, 2, 4};
    redis_start(folder);
    for (size_t c = 0; c < sizeof connections / sizeof connections[0]; c++) {
        for (int k = 0; k < 6; k++) {
            bench_threads(&layouts[0], counts[k], connections[c], scale);
        }
    }
}

/* Of one thread, without waiting for any. */
void bench_redis_queue_scale(const char *folder, unsigned scale) {
    redis_start(folder);
    queue_scale(redis_open_client(&layouts[1], ", lease: 3s"), scale);
}
