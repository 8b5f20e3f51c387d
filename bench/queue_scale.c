/* queue_scale.c - 10,000 acquires of one thread, while 1,000 locks are renewed: threads, memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define HOLDS 1000
#define OUTSTANDING 10000
#define NAMES 100

/* Of this process but its first: of the library, and of the backend's client library. */
static int count_threads(void) {
    int threads = -3; /* . and .. and the first */
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) {
        die("/proc/self/task", NULL);
    }
    while (readdir(folder) != NULL) {
        threads++;
    }
    closedir(folder);
    return threads;
}

static dl_lock_t *hold(dl_client_t *client, unsigned i) {
    dl_lock_t *lock;
    dl_error_t err;
    char name[32];
    (void)snprintf(name, sizeof name, "held/%u", i);
    if (dl_lock_open(client, name, &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK) {
        die("lock", &err);
    }
    return lock;
}

/* Each task unlocks as soon as it holds; all have to. */
static void take_all(dl_queue_t *queue, unsigned outstanding) {
    struct pollfd ready = {dl_queue_fd(queue), POLLIN, 0};
    for (unsigned left = outstanding; left > 0;) {
        dl_completion_t done[16];
        dl_error_t err;
        (void)poll(&ready, 1, -1);
        size_t n = dl_queue_take(queue, done, sizeof done[0], 16);
        for (size_t i = 0; i < n; i++) {
            if (done[i].status != DL_OK) {
                die("completion", &done[i].err);
            }
            left -= done[i].kind == DL_OP_UNLOCK;
            if (done[i].kind == DL_OP_ACQUIRE &&
                dl_unlock_begin(done[i].lock, queue, NULL, NULL, &err) != DL_OK) {
                die("begin", &err);
            }
        }
    }
}

typedef struct outstanding {
    dl_queue_t *queue;
    dl_lock_t **locks;
    unsigned count;
    size_t bytes_each;
    samples_t begin;
} outstanding_t;

static void open_tasks(outstanding_t *tasks, dl_client_t *client, unsigned count) {
    dl_error_t err;
    *tasks = (outstanding_t){.count = count, .locks = calloc(count, sizeof(dl_lock_t *))};
    if (tasks->locks == NULL || dl_queue_new(&tasks->queue, &err) != DL_OK) {
        die("queue", NULL);
    }
    for (unsigned i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "wanted/%u", i % NAMES);
        if (dl_lock_open_owned(client, name, i, &tasks->locks[i], &err) != DL_OK) {
            die("open", &err);
        }
    }
}

static void begin_all(outstanding_t *tasks) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_error_t err;
    uint64_t *took = calloc(tasks->count, sizeof *took);
    if (took == NULL) {
        die("out of memory", NULL);
    }
    size_t before = mallinfo2().uordblks; /* of what this thread allocates from */
    for (unsigned i = 0; i < tasks->count; i++) {
        uint64_t began = now_ns();
        if (dl_acquire_begin(tasks->locks[i], &opts, tasks->queue, NULL, NULL, &err) != DL_OK) {
            die("begin", &err);
        }
        took[i] = now_ns() - began;
    }
    tasks->bytes_each = (mallinfo2().uordblks - before) / tasks->count;
    for (unsigned i = 0; i < tasks->count; i++) {
        samples_add(&tasks->begin, took[i]);
    }
    free(took);
}

static void close_tasks(outstanding_t *tasks) {
    for (unsigned i = 0; i < tasks->count; i++) {
        dl_lock_close(tasks->locks[i]);
    }
    free(tasks->locks);
    samples_free(&tasks->begin);
    dl_queue_free(tasks->queue);
}

void queue_scale(dl_client_t *client, unsigned scale) {
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_lock_t *held[HOLDS];
    outstanding_t tasks;
    (void)dl_client_info(client, &info);
    int opened = count_threads();
    held[0] = hold(client, 0);
    int one = count_threads();
    for (unsigned i = 1; i < HOLDS; i++) {
        held[i] = hold(client, i);
    }
    int many = count_threads();
    open_tasks(&tasks, client, OUTSTANDING * scale);
    begin_all(&tasks);
    /* All but 100 of them wait meanwhile, for a lease. */
    (void)poll(NULL, 0, (int)info.lease_ms);
    printf("%s threads of one client: %d when opened, %d with one lock held, %d with %d held, %d with %u "
           "acquires "
           "outstanding\n",
           info.driver, opened, one, many, HOLDS, count_threads(), tasks.count);
    uint64_t began = now_ns();
    take_all(tasks.queue, tasks.count);
    double seconds = (double)(now_ns() - began) / 1e9;
    (void)dl_client_stats(client, &stats);
    printf(
        "%s %u acquires outstanding on %d names from one thread: begin %.1f us, p99 %.1f us, longest %.1f "
        "us; "
        "%zu bytes each; held and unlocked by turns in %.2f s; meanwhile %d locks with a lease of %lld ms: "
        "%llu renewals, latest %.1f ms after its due time, mean %.2f ms, lost %llu\n",
        info.driver, tasks.count, NAMES, (double)samples_percentile(&tasks.begin, 50) / 1e3,
        (double)samples_percentile(&tasks.begin, 99) / 1e3,
        (double)samples_percentile(&tasks.begin, 100) / 1e3, tasks.bytes_each, seconds, HOLDS,
        (long long)info.lease_ms, (unsigned long long)stats.renewed,
        (double)stats.renewal_lateness_us_max / 1e3,
        stats.renewed > 0 ? (double)stats.renewal_lateness_us_sum / (double)stats.renewed / 1e3 : 0.0,
        (unsigned long long)stats.lost);
    close_tasks(&tasks);
    for (unsigned i = 0; i < HOLDS; i++) {
        dl_lock_close(held[i]);
    }
    dl_client_close(client);
}

void bench_queue_scale(const char *folder, unsigned scale) {
    queue_scale(open_client(folder, ", lease: 3s"), scale);
}
