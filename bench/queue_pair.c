/* queue_pair.c - locks and unlocks of one thread that waits for none, against threads that wait. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "bench.h"

#define ROUNDS 9
#define ROUND_NS 200000000u
#define TASKS_MAX QUEUE_PAIRS_MAX

typedef struct task {
    dl_lock_t *lock, *owned; /* one name: of the thread, and of the task */
    pthread_t thread;
    uint64_t pairs;
} task_t;

static task_t tasks[TASKS_MAX];
static atomic_int running;

static void *work(void *arg) {
    task_t *task = arg;
    dl_error_t err;
    while (atomic_load_explicit(&running, memory_order_relaxed)) {
        if (dl_lock(task->lock, &err) != DL_OK || dl_unlock(task->lock, &err) != DL_OK) {
            die("pair", &err);
        }
        task->pairs++;
    }
    return NULL;
}

static uint64_t rate(uint64_t pairs, uint64_t began) {
    return pairs * 1000000000u / (now_ns() - began);
}

/* Pairs a second of so many threads, each on a name of its own. */
static uint64_t run_threads(int threads, unsigned scale) {
    uint64_t pairs = 0, began = now_ns();
    atomic_store(&running, 1);
    for (int i = 0; i < threads; i++) {
        tasks[i].pairs = 0;
        if (pthread_create(&tasks[i].thread, NULL, work, &tasks[i]) != 0) {
            die("thread", NULL);
        }
    }
    (void)poll(NULL, 0, (int)(scale * (ROUND_NS / 1000000u)));
    atomic_store(&running, 0);
    for (int i = 0; i < threads; i++) {
        pthread_join(tasks[i].thread, NULL);
        pairs += tasks[i].pairs;
    }
    return rate(pairs, began);
}

static void begin_lock(dl_queue_t *queue, task_t *task) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_error_t err;
    if (dl_acquire_begin(task->owned, &opts, queue, task, NULL, &err) != DL_OK) {
        die("begin", &err);
    }
}

/* The same of one thread with so many operations outstanding. */
static uint64_t run_queue(dl_queue_t *queue, int outstanding, unsigned scale) {
    struct pollfd ready = {dl_queue_fd(queue), POLLIN, 0};
    uint64_t pairs = 0, began = now_ns(), end = began + (uint64_t)scale * ROUND_NS;
    for (int i = 0; i < outstanding; i++) {
        begin_lock(queue, &tasks[i]);
    }
    for (int left = outstanding; left > 0;) {
        dl_completion_t done[16];
        dl_error_t err;
        (void)poll(&ready, 1, -1);
        size_t n = dl_queue_take(queue, done, sizeof done[0], 16);
        for (size_t i = 0; i < n; i++) {
            task_t *task = done[i].tag;
            if (done[i].status != DL_OK) {
                die("completion", &done[i].err);
            }
            if (done[i].kind == DL_OP_ACQUIRE) {
                if (dl_unlock_begin(task->owned, queue, task, NULL, &err) != DL_OK) {
                    die("begin", &err);
                }
                continue;
            }
            pairs++;
            if (now_ns() < end) {
                begin_lock(queue, task);
            } else {
                left--;
            }
        }
    }
    return rate(pairs, began);
}

static void compare(dl_queue_t *queue, const char *driver, int outstanding, bare_pairs_fn bare,
                    unsigned scale) {
    samples_t one = {0}, many = {0}, ours = {0}, to_one = {0}, to_many = {0}, floor = {0}, to_floor = {0};
    /* Alternating rounds, so that a change of the machine's speed meets all. */
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = run_threads(1, scale);
        uint64_t b = outstanding > 1 ? run_threads(outstanding, scale) : a;
        uint64_t c = run_queue(queue, outstanding, scale);
        samples_add(&one, a);
        samples_add(&many, b);
        samples_add(&ours, c);
        samples_add(&to_one, c * 1000 / a);
        samples_add(&to_many, c * 1000 / b);
        if (bare != NULL) {
            uint64_t d = bare(outstanding, (uint64_t)scale * ROUND_NS);
            samples_add(&floor, d);
            samples_add(&to_floor, c * 1000 / d);
        }
    }
    printf(
        "%s pairs by a queue, %d outstanding on distinct names from one thread: %llu pairs/s; one blocking "
        "thread %llu, ratio %.2f (of %d rounds: %.2f to %.2f)",
        driver, outstanding, (unsigned long long)samples_percentile(&ours, 50),
        (unsigned long long)samples_percentile(&one, 50), (double)samples_percentile(&to_one, 50) / 1e3,
        ROUNDS, (double)samples_percentile(&to_one, 0) / 1e3, (double)samples_percentile(&to_one, 100) / 1e3);
    if (outstanding > 1) {
        printf("; %d blocking threads %llu, ratio %.2f (%.2f to %.2f)", outstanding,
               (unsigned long long)samples_percentile(&many, 50),
               (double)samples_percentile(&to_many, 50) / 1e3, (double)samples_percentile(&to_many, 0) / 1e3,
               (double)samples_percentile(&to_many, 100) / 1e3);
    }
    if (bare != NULL) {
        printf("; the same requests bare %llu, ratio %.2f (%.2f to %.2f)",
               (unsigned long long)samples_percentile(&floor, 50),
               (double)samples_percentile(&to_floor, 50) / 1e3,
               (double)samples_percentile(&to_floor, 0) / 1e3,
               (double)samples_percentile(&to_floor, 100) / 1e3);
    }
    printf("\n");
    samples_free(&floor);
    samples_free(&to_floor);
    samples_free(&one);
    samples_free(&many);
    samples_free(&ours);
    samples_free(&to_one);
    samples_free(&to_many);
}

void queue_pairs(dl_client_t *client, bare_pairs_fn bare, unsigned scale) {
    static const int counts[] = {1, 16, TASKS_MAX};
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    dl_queue_t *queue;
    dl_error_t err;
    if (dl_client_info(client, &info) != DL_OK || dl_queue_new(&queue, &err) != DL_OK) {
        die("queue", &err);
    }
    for (unsigned i = 0; i < TASKS_MAX; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "pair/%u", i);
        if (dl_lock_open(client, name, &tasks[i].lock, &err) != DL_OK ||
            dl_lock_open_owned(client, name, i, &tasks[i].owned, &err) != DL_OK) {
            die("open", &err);
        }
    }
    for (int k = 0; k < 3; k++) {
        compare(queue, info.driver, counts[k], bare, scale);
    }
    for (unsigned i = 0; i < TASKS_MAX; i++) {
        dl_lock_close(tasks[i].lock);
        dl_lock_close(tasks[i].owned);
    }
    dl_queue_free(queue);
    dl_client_close(client);
}

void bench_queue_pair(const char *folder, unsigned scale) {
    queue_pairs(open_client(folder, ""), NULL, scale);
}
