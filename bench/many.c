/* many.c - many locks held by one client: how late the latest renewal begins, and what holding costs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench.h"

#define LOOK_EVERY_MS 50

static dl_lock_t *open_lock(dl_client_t *client, unsigned i) {
    dl_lock_t *lock;
    dl_error_t err;
    char name[32];
    (void)snprintf(name, sizeof name, "many/%u", i);
    if (dl_lock_open(client, name, &lock, &err) != DL_OK) {
        die("open", &err);
    }
    return lock;
}

/* Of this process, in memory now. */
static uint64_t memory(void) {
    unsigned long all, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%lu %lu", &all, &resident) != 2) {
        die("/proc/self/statm", NULL);
    }
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double seconds(const struct rusage *used) {
    return (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) +
           (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1e6;
}

/* Of the client's own threads: without this one, which looks. */
static double cpu_seconds(void) {
    struct rusage all, own;
    (void)getrusage(RUSAGE_SELF, &all);
    (void)getrusage(RUSAGE_THREAD, &own);
    return seconds(&all) - seconds(&own);
}

/* Three full leases: every lock is renewed about nine times. The least that was ever left of one; not looked
 * at where that would be most of the work. */
static int64_t await_renewals(dl_lock_t *const *locks, unsigned from, unsigned count, unsigned lease_ms) {
    int64_t least_ms = lease_ms;
    count = count > 10000 ? 10000 : count;
    for (uint64_t end_ns = now_ns() + 3 * (uint64_t)lease_ms * 1000000; now_ns() < end_ns;) {
        for (unsigned i = from; i < count; i++) {
            int64_t left_ms = dl_valid_ms(locks[i]);
            least_ms = left_ms < least_ms ? left_ms : least_ms;
        }
        (void)poll(NULL, 0, LOOK_EVERY_MS);
    }
    return least_ms;
}

void hold_many(dl_client_t *client, unsigned count, unsigned lease_ms, const char *what,
               void (*disturb)(const char *name)) {
    dl_lock_t **locks = calloc(count, sizeof *locks);
    if (locks == NULL) {
        die("out of memory", NULL);
    }
    uint64_t before = memory();
    for (unsigned i = 0; i < count; i++) {
        locks[i] = open_lock(client, i);
    }
    uint64_t opened = memory();
    for (unsigned i = 0; i < count; i++) {
        dl_error_t err;
        if (dl_lock(locks[i], &err) != DL_OK) {
            die("lock", &err);
        }
    }
    uint64_t held = memory();
    if (disturb != NULL) {
        disturb("many/0");
    }
    double began_s = (double)now_ns() / 1e9, cpu_s = cpu_seconds();
    int64_t least_ms = await_renewals(locks, disturb != NULL, count, lease_ms);
    cpu_s = (cpu_seconds() - cpu_s) / ((double)now_ns() / 1e9 - began_s);
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_client_stats(client, &stats);
    printf(
        "%u locks held by one client%s, lease %u ms, due every %u ms: %llu renewals, latest %.1f ms after "
        "its due time, mean %.2f ms; least that was left of a lease %lld ms, lost %llu; %.0f bytes a handle "
        "and %.0f more while it is held, %.1f %% of a processor\n",
        count, what, lease_ms, lease_ms / 3, (unsigned long long)stats.renewed,
        (double)stats.renewal_lateness_us_max / 1e3,
        stats.renewed > 0 ? (double)stats.renewal_lateness_us_sum / (double)stats.renewed / 1e3 : 0.0,
        (long long)least_ms, (unsigned long long)stats.lost, (double)(opened - before) / count,
        (double)(held - opened) / count, 100 * cpu_s);
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
    hold_many(open_client(folder, ", lease: 6s"), 10000 * scale, 6000, "", NULL);
}
