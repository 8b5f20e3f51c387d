/* redis_threads.c - threads on locks of their own through one client, against a bare connection a thread. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "redis.h"

#define ROUNDS 11
#define ROUND_NS 200000000u
#define THREADS_MAX 64

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

/* Pairs a second, of all threads together. */
static uint64_t run_round(worker_t *workers, int threads, unsigned scale) {
    uint64_t pairs = 0;
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
    return pairs * 1000000000u / (now_ns() - begin);
}

static void bench_threads(const layout_t *layout, int threads, unsigned scale) {
    static worker_t workers[THREADS_MAX];
    dl_client_t *client = redis_open_client(layout, "");
    dl_lock_t *locks[THREADS_MAX];
    dl_error_t err;
    samples_t floor = {0}, ours = {0}, ratios = {0};
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
        uint64_t a = run_round(workers, threads, scale);
        for (int i = 0; i < threads; i++) {
            workers[i].lock = locks[i];
        }
        uint64_t b = run_round(workers, threads, scale);
        samples_add(&floor, a);
        samples_add(&ours, b);
        samples_add(&ratios, b * 1000 / a);
    }
    printf("%s %d threads on distinct locks: bare connections %llu pairs/s, dlock %llu pairs/s, ratio %.2f "
           "(of %d "
           "rounds: %.2f to %.2f)\n",
           layout->driver, threads, (unsigned long long)samples_percentile(&floor, 50),
           (unsigned long long)samples_percentile(&ours, 50), (double)samples_percentile(&ratios, 50) / 1e3,
           ROUNDS, (double)samples_percentile(&ratios, 0) / 1e3,
           (double)samples_percentile(&ratios, 100) / 1e3);
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
    static const int counts[] = {1, 16, THREADS_MAX};
    redis_start(folder);
    for (int k = 0; k < 3; k++) {
        bench_threads(&layouts[0], counts[k], scale);
    }
}

/* Of one thread, without waiting for any. */
void bench_redis_queue_scale(const char *folder, unsigned scale) {
    redis_start(folder);
    queue_scale(redis_open_client(&layouts[1], ", lease: 3s"), scale);
}
