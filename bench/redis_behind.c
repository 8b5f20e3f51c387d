/* redis_behind.c - what threads wait behind: lists, checks and slow answers of their own client. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "redis.h"

#define ROUNDS 3
#define ROUND_S 3 /* a lease, so each lock is renewed about three times */
#define THREADS 8
#define HOLDS 1000
#define LISTED 100000
#define SLOW_BYTES (12 << 20) /* the server takes some 30 ms to look at a value of this size */
#define SLOW_REST_MS 80

typedef struct phase {
    const char *what;
    void (*ask)(dl_client_t *client); /* over and over, by a thread of its own; NULL: nothing */
    int rest_ms;                      /* between two */
    dl_client_t *client;
    samples_t ours, bare, asked;
    uint64_t ns, late_us, lost;
} phase_t;

typedef struct worker {
    pthread_t thread;
    dl_lock_t *lock; /* NULL: the bare connection's */
    bare_t bare;
    samples_t took;
} worker_t;

static atomic_int running;

static dl_lock_t *open_lock(dl_client_t *client, const char *kind, int i) {
    dl_lock_t *lock;
    dl_error_t err;
    char name[32];
    (void)snprintf(name, sizeof name, "%s/%d", kind, i);
    if (dl_lock_open(client, name, &lock, &err) != DL_OK) {
        die("open", &err);
    }
    return lock;
}

/* ---- what is long ----------------------------------------------------------------------------------- */

static int count_one(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    (void)info;
    ++*(unsigned *)arg;
    return 0;
}

static void list_all(dl_client_t *client) {
    unsigned count = 0;
    dl_error_t err;
    if (dl_list(client, NULL, count_one, &count, &err) != DL_OK) {
        die("list", &err);
    }
    if (count < LISTED + HOLDS) {
        die("a list misses locks", NULL);
    }
}

static void look_at(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    (void)text;
    if (level == DL_FINDING_ERROR) {
        die(subject, NULL);
    }
}

static void check(dl_client_t *client) {
    dl_error_t err;
    if (dl_client_check(client, look_at, NULL, &err) != DL_OK) {
        die("check", &err);
    }
}

/* The server reads the whole value to see that another holds it. */
static void ask_slow(dl_client_t *client) {
    dl_lock_t *lock = open_lock(client, "slow", 0);
    dl_error_t err;
    if (dl_trylock(lock, &err) != DL_EBUSY) {
        die("a lock of another", NULL);
    }
    dl_lock_close(lock);
}

static void command(const bare_t *bare, const char *format, const char *text, int number) {
    redisReply *reply = redisCommand(bare->redis, format, text, number);
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        die(reply != NULL ? reply->str : bare->redis->errstr, NULL);
    }
    freeReplyObject(reply);
}

/* Locks of another client, all in one script, which takes a quarter of a second. */
static const char hold_listed[] = "for i = 1, tonumber(ARGV[1]) do redis.call('set', 'ours:listed/' .. i, "
                                  "'00000000-0000-4000-8000-000000000000:1:' .. i, 'px', '3600000') end";

/* ---- who could wait --------------------------------------------------------------------------------- */

static void *work(void *arg) {
    worker_t *worker = arg;
    dl_error_t err;
    while (atomic_load_explicit(&running, memory_order_relaxed)) {
        uint64_t began = now_ns();
        if (worker->lock == NULL) {
            bare_acquire(&worker->bare);
            bare_release(&worker->bare);
        } else if (dl_lock(worker->lock, &err) != DL_OK || dl_unlock(worker->lock, &err) != DL_OK) {
            die("pair", &err);
        }
        samples_add(&worker->took, now_ns() - began);
    }
    return NULL;
}

static void *ask_on(void *arg) {
    phase_t *phase = arg;
    while (phase->ask != NULL && atomic_load(&running)) {
        uint64_t began = now_ns();
        phase->ask(phase->client);
        if (atomic_load(&running)) {
            samples_add(&phase->asked, now_ns() - began);
        }
        (void)poll(NULL, 0, phase->rest_ms);
    }
    return NULL;
}

static void run_workers(phase_t *phase, worker_t *workers, unsigned scale) {
    struct timespec pause = {.tv_sec = ROUND_S * (time_t)scale};
    pthread_t asking;
    atomic_store(&running, 1);
    int failed = pthread_create(&asking, NULL, ask_on, phase);
    for (int i = 0; i <= THREADS && failed == 0; i++) {
        failed = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    if (failed != 0) {
        die("thread", NULL);
    }
    (void)nanosleep(&pause, NULL);
    atomic_store(&running, 0);
    for (int i = 0; i <= THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        for (size_t k = 0; k < workers[i].took.len; k++) {
            samples_add(i < THREADS ? &phase->ours : &phase->bare, workers[i].took.ns[k]);
        }
        samples_free(&workers[i].took);
    }
    phase->ns += (uint64_t)ROUND_S * scale * 1000000000u;
    pthread_join(asking, NULL);
}

/* The last worker has the bare connection. A client for each round: its stats are of its whole life. */
static void run_round(phase_t *phase, worker_t *workers, unsigned scale) {
    const bare_t *bare = &workers[THREADS].bare;
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_lock_t *held[HOLDS];
    dl_error_t err;
    phase->client = redis_open_client(&layouts[0], ", lease: 3s");
    for (int i = 0; i < HOLDS; i++) {
        held[i] = open_lock(phase->client, "held", i);
        if (dl_lock(held[i], &err) != DL_OK) {
            die("lock", &err);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        workers[i].lock = open_lock(phase->client, "thread", i);
    }
    if (phase->ask == ask_slow) { /* lists would meet it */
        command(bare, "SETRANGE %s %d x", "ours:slow/0", SLOW_BYTES - 1);
    }
    run_workers(phase, workers, scale);
    command(bare, "DEL %s", "ours:slow/0", 0);
    (void)dl_client_stats(phase->client, &stats);
    uint64_t late_us = stats.renewal_lateness_us_max;
    phase->late_us = late_us > phase->late_us ? late_us : phase->late_us;
    phase->lost += stats.lost;
    for (int i = 0; i < THREADS; i++) {
        dl_lock_close(workers[i].lock);
    }
    for (int i = 0; i < HOLDS; i++) {
        dl_lock_close(held[i]);
    }
    dl_client_close(phase->client);
}

static void print_took(const char *who, samples_t *took, uint64_t ns) {
    printf(" %s %llu pairs/s, median %.0f us, p99 %.0f us, p99.9 %.0f us, longest %.1f ms;", who,
           (unsigned long long)(took->len * 1000000000u / ns), (double)samples_percentile(took, 50) / 1e3,
           (double)samples_percentile(took, 99) / 1e3, (double)samples_percentile(took, 99.9) / 1e3,
           (double)samples_percentile(took, 100) / 1e6);
    samples_free(took);
}

static void print_phase(phase_t *phase) {
    printf("redis-string behind %s:", phase->what);
    print_took("8 threads on distinct locks", &phase->ours, phase->ns);
    print_took("a bare connection beside them", &phase->bare, phase->ns);
    printf(" %d locks renewed, latest %.1f ms after its due time, lost %llu", HOLDS,
           (double)phase->late_us / 1e3, (unsigned long long)phase->lost);
    if (phase->ask != NULL) {
        printf("; meanwhile %zu %s, %.1f ms each", phase->asked.len, phase->what,
               (double)samples_percentile(&phase->asked, 50) / 1e6);
        samples_free(&phase->asked);
    }
    printf("\n");
}

void bench_redis_behind(const char *folder, unsigned scale) {
    static worker_t workers[THREADS + 1];
    phase_t phases[] = {{.what = "nothing"},
                        {.what = "lists", .ask = list_all},
                        {.what = "checks", .ask = check},
                        {.what = "slow answers", .ask = ask_slow, .rest_ms = SLOW_REST_MS}};
    size_t n = sizeof phases / sizeof phases[0];
    bare_t *bare = &workers[THREADS].bare;
    redis_start(folder);
    bare_open(bare, &layouts[0], "behind");
    command(bare, "EVAL %s 0 %d", hold_listed, LISTED);
    for (size_t i = 0; i < ROUNDS * n; i++) {
        run_round(&phases[i % n], workers, scale);
    }
    for (size_t i = 0; i < n; i++) {
        print_phase(&phases[i]);
    }
    command(bare, "FLUSHDB", NULL, 0); /* it is the bench's own */
    bare_close(bare);
}
