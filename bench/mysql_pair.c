/* mysql_pair.c - an uncontended lock and unlock against the same statements, said bare. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "mysql_floor.h"

#define ROUNDS 9
#define PAIRS 500

/* Pair by pair in turn, so that a change of the machine's speed meets both. */
static void measure(bare_lock_t *bare, dl_lock_t *lock, int pairs, samples_t *floor, samples_t *ours) {
    dl_error_t err;
    for (int i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        bare_lock_acquire(bare);
        bare_lock_release(bare);
        uint64_t middle = now_ns();
        if (dl_lock(lock, &err) != DL_OK || dl_unlock(lock, &err) != DL_OK) {
            die("pair", &err);
        }
        samples_add(ours, now_ns() - middle);
        samples_add(floor, middle - begin);
    }
}

static void bench_driver(const char *driver, int pairs) {
    bare_lock_t *bare = bare_lock_open(script_record(driver, "orders"));
    dl_client_t *client = mysql_open_client(driver, "");
    dl_lock_t *lock;
    dl_error_t err;
    if (dl_lock_open(client, "orders", &lock, &err) != DL_OK) {
        die("open", &err);
    }
    samples_t floor = {0}, ours = {0}, ratios = {0};
    for (int round = 0; round < ROUNDS; round++) {
        samples_t a = {0}, b = {0};
        measure(bare, lock, pairs, &a, &b);
        uint64_t am = samples_percentile(&a, 50), bm = samples_percentile(&b, 50);
        samples_add(&floor, am);
        samples_add(&ours, bm);
        samples_add(&ratios, bm * 1000 / am);
        samples_free(&a);
        samples_free(&b);
    }
    printf("%s uncontended pair on %s: bare statements %.1f us, dl_lock+dl_unlock %.1f us, ratio %.2f (of %d "
           "rounds: %.2f to %.2f)\n",
           driver, mysql_started(), (double)samples_percentile(&floor, 50) / 1e3,
           (double)samples_percentile(&ours, 50) / 1e3, (double)samples_percentile(&ratios, 50) / 1e3, ROUNDS,
           (double)samples_percentile(&ratios, 0) / 1e3, (double)samples_percentile(&ratios, 100) / 1e3);
    samples_free(&floor);
    samples_free(&ours);
    samples_free(&ratios);
    dl_lock_close(lock);
    dl_client_close(client);
    bare_lock_close(bare);
}

void bench_mysql_pair(const char *folder, unsigned scale) {
    static const char *const drivers[] = {"mysql-pessimistic", "mysql-lease", "mysql-optimistic"};
    mysql_start(folder);
    for (int i = 0; i < 3; i++) {
        bench_driver(drivers[i], (int)(PAIRS * scale));
    }
}
