/* many.c - 10,000 locks held by one client: how late the latest renewal begins. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define LOCKS 10000
#define LEASE_MS 6000

void bench_many(const char *folder, unsigned scale) {
    unsigned count = LOCKS * scale;
    dl_client_t *client = open_client(folder, ", lease: 6s");
    dl_lock_t **locks = calloc(count, sizeof *locks);
    if (locks == NULL) {
        die("out of memory", NULL);
    }
    dl_error_t err;
    for (unsigned i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "many/%u", i);
        if (dl_lock_open(client, name, &locks[i], &err) != DL_OK || dl_lock(locks[i], &err) != DL_OK) {
            die("lock", &err);
        }
    }
    /* Three full leases: every lock is renewed about nine times. An event would be a loss. */
    struct pollfd events = {.fd = dl_event_fd(client), .events = POLLIN};
    int lost = poll(&events, 1, 3 * LEASE_MS);
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_client_stats(client, &stats);
    printf("%u locks held by one client, lease %d ms, due every %d ms: %llu renewals, latest %.1f ms after "
           "its due time, "
           "mean %.2f ms, lost %llu%s\n",
           count, LEASE_MS, LEASE_MS / 3, (unsigned long long)stats.renewed,
           (double)stats.renewal_lateness_us_max / 1e3,
           stats.renewed > 0 ? (double)stats.renewal_lateness_us_sum / (double)stats.renewed / 1e3 : 0.0,
           (unsigned long long)stats.lost, lost > 0 ? " (an event came)" : "");
    for (unsigned i = 0; i < count; i++) {
        if (dl_unlock(locks[i], &err) != DL_OK) {
            die("unlock", &err);
        }
        dl_lock_close(locks[i]);
    }
    free(locks);
    dl_client_close(client);
}
