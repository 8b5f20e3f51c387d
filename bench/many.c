/* many.c - 10,000 locks held by one client: how late the latest renewal begins. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define LEASE_MS 6000
#define LOOK_EVERY_MS 50

static dl_lock_t *take(dl_client_t *client, unsigned i) {
    dl_lock_t *lock;
    dl_error_t err;
    char name[32];
    (void)snprintf(name, sizeof name, "many/%u", i);
    if (dl_lock_open(client, name, &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK) {
        die("lock", &err);
    }
    return lock;
}

/* Three full leases: every lock is renewed about nine times. The least that was ever left of one. */
static int64_t await_renewals(dl_lock_t *const *locks, unsigned from, unsigned count) {
    int64_t least_ms = LEASE_MS;
    for (uint64_t end_ns = now_ns() + 3 * (uint64_t)LEASE_MS * 1000000; now_ns() < end_ns;) {
        for (unsigned i = from; i < count; i++) {
            int64_t left_ms = dl_valid_ms(locks[i]);
            least_ms = left_ms < least_ms ? left_ms : least_ms;
        }
        (void)poll(NULL, 0, LOOK_EVERY_MS);
    }
    return least_ms;
}

void hold_many(dl_client_t *client, unsigned count, const char *what, void (*disturb)(const char *name)) {
    dl_lock_t **locks = calloc(count, sizeof *locks);
    if (locks == NULL) {
        die("out of memory", NULL);
    }
    for (unsigned i = 0; i < count; i++) {
        locks[i] = take(client, i);
    }
    if (disturb != NULL) {
        disturb("many/0");
    }
    int64_t least_ms = await_renewals(locks, disturb != NULL, count);
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_client_stats(client, &stats);
    printf("%u locks held by one client%s, lease %d ms, due every %d ms: %llu renewals, latest %.1f ms after "
           "its "
           "due time, mean %.2f ms; least that was left of a lease %lld ms, lost %llu\n",
           count, what, LEASE_MS, LEASE_MS / 3, (unsigned long long)stats.renewed,
           (double)stats.renewal_lateness_us_max / 1e3,
           stats.renewed > 0 ? (double)stats.renewal_lateness_us_sum / (double)stats.renewed / 1e3 : 0.0,
           (long long)least_ms, (unsigned long long)stats.lost);
    for (unsigned i = 0; i < count; i++) {
        dl_error_t err;
        if (dl_unlock(locks[i], &err) != DL_OK && (disturb == NULL || i > 0)) {
            die("unlock", &err);
        }
        dl_lock_close(locks[i]);
    }
    free(locks);
    dl_client_close(client);
}

void bench_many(const char *folder, unsigned scale) {
    hold_many(open_client(folder, ", lease: 6s"), 10000 * scale, "", NULL);
}
