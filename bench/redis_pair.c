/* redis_pair.c - an uncontended lock and unlock against the same scripts, and the recipe, by bare hiredis. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "redis.h"

#define ROUNDS 9
#define PAIRS 1000

static uint64_t measure_scripts(bare_t *bare, int pairs) {
    samples_t samples = {0};
    for (int i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        bare_acquire(bare);
        bare_release(bare);
        samples_add(&samples, now_ns() - begin);
    }
    uint64_t median = samples_percentile(&samples, 50);
    samples_free(&samples);
    return median;
}

static uint64_t measure_recipe(bare_t *bare, int pairs) {
    samples_t samples = {0};
    for (int i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        if (!bare_set(bare)) {
            die("the bare lock is held by another", NULL);
        }
        bare_compare_and_delete(bare);
        samples_add(&samples, now_ns() - begin);
    }
    uint64_t median = samples_percentile(&samples, 50);
    samples_free(&samples);
    return median;
}

static uint64_t measure_dlock(dl_lock_t *lock, int pairs) {
    samples_t samples = {0};
    dl_error_t err;
    for (int i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        if (dl_lock(lock, &err) != DL_OK || dl_unlock(lock, &err) != DL_OK) {
            die("pair", &err);
        }
        samples_add(&samples, now_ns() - begin);
    }
    uint64_t median = samples_percentile(&samples, 50);
    samples_free(&samples);
    return median;
}

static void bench_layout(const layout_t *layout, int pairs) {
    bare_t bare, recipe;
    dl_lock_t *lock;
    dl_error_t err;
    dl_client_t *client = redis_open_client(layout, "");
    bare_open(&bare, layout, "orders");
    bare_open(&recipe, layout, "recipe");
    if (dl_lock_open(client, "orders", &lock, &err) != DL_OK) {
        die("open", &err);
    }
    samples_t scripts = {0}, set = {0}, ours = {0}, to_scripts = {0}, to_set = {0};
    /* Alternating rounds, so that a change of the machine's speed meets all three. */
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = measure_scripts(&bare, pairs);
        uint64_t b = measure_dlock(lock, pairs);
        uint64_t c = measure_recipe(&recipe, pairs);
        samples_add(&scripts, a);
        samples_add(&ours, b);
        samples_add(&set, c);
        samples_add(&to_scripts, b * 1000 / a);
        samples_add(&to_set, b * 1000 / c);
    }
    printf("%s uncontended pair: bare scripts %.1f us, bare SET NX PX and compare-and-delete %.1f us, "
           "dl_lock+dl_unlock %.1f us, ratio %.2f to the scripts (of %d rounds: %.2f to %.2f), %.2f to the "
           "recipe\n",
           layout->driver, (double)samples_percentile(&scripts, 50) / 1e3,
           (double)samples_percentile(&set, 50) / 1e3, (double)samples_percentile(&ours, 50) / 1e3,
           (double)samples_percentile(&to_scripts, 50) / 1e3, ROUNDS,
           (double)samples_percentile(&to_scripts, 0) / 1e3,
           (double)samples_percentile(&to_scripts, 100) / 1e3, (double)samples_percentile(&to_set, 50) / 1e3);
    samples_free(&scripts);
    samples_free(&set);
    samples_free(&ours);
    samples_free(&to_scripts);
    samples_free(&to_set);
    dl_lock_close(lock);
    dl_client_close(client);
    bare_close(&bare);
    bare_close(&recipe);
}

void bench_redis_pair(const char *folder, unsigned scale) {
    redis_start(folder);
    for (int i = 0; i < LAYOUTS; i++) {
        bench_layout(&layouts[i], (int)(PAIRS * scale));
    }
}

/* Pairs a second of one connection with so many requests outstanding: the next of each when it is answered,
 * sent with those of all that were answered by the same read. */
static uint64_t bare_pairs(int outstanding, uint64_t for_ns) {
    static bare_t locks[QUEUE_PAIRS_MAX];
    enum { ACQUIRES, RELEASES, ENDED } does[QUEUE_PAIRS_MAX];
    bare_t connection;
    bare_open(&connection, &layouts[0], "pipeline");
    for (int i = 0; i < outstanding; i++) {
        locks[i] = connection;
        (void)snprintf(locks[i].key, sizeof locks[i].key, "bare:pipeline/%d", i);
        (void)snprintf(locks[i].channel, sizeof locks[i].channel, "bare:released:pipeline/%d", i);
        does[i] = ACQUIRES;
        bare_begin_acquire(&locks[i]);
    }
    uint64_t pairs = 0, began = now_ns(), end = began + for_ns;
    for (int i = 0, left = outstanding; left > 0; i = (i + 1) % outstanding) {
        if (does[i] == ENDED) {
            continue;
        }
        if (bare_end(&connection) <= 0) {
            die("the bare lock is held by another, or was lost", NULL);
        }
        pairs += does[i] == RELEASES;
        if (does[i] == ACQUIRES) {
            does[i] = RELEASES;
            bare_begin_release(&locks[i]);
        } else if (now_ns() < end) {
            does[i] = ACQUIRES;
            bare_begin_acquire(&locks[i]);
        } else {
            does[i] = ENDED;
            left--;
        }
    }
    bare_close(&connection);
    return pairs * 1000000000u / (now_ns() - began);
}

/* Ours by a queue. */
void bench_redis_queue_pair(const char *folder, unsigned scale) {
    redis_start(folder);
    for (int connections = 1; connections <= 2; connections++) {
        char more[32];
        (void)snprintf(more, sizeof more, ", connections: %d", connections);
        printf("connections: %d\n", connections);
        queue_pairs(redis_open_client(&layouts[0], more), bare_pairs, scale);
    }
}
