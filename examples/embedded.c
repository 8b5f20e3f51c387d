/* embedded.c - one program for every build: opens the configured backend, locks, renews, unlocks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "dlock/dlock.h"

/*
 * usage: embedded [CONFIG [RENEWALS]]
 *   CONFIG    a configuration; left out or "-": the usual file, see docs/configuration.md
 *   RENEWALS  keep the lock until the library has renewed it so many times in the background; 0 if left out
 *
 * It knows no backend: which one it is, `use:` in the file says. It needs no more than <dlock/dlock.h> and
 * the library, built with any of the drivers:
 *   cc -std=c11 embedded.c $(pkg-config --cflags --libs dlock) -o embedded
 */

static int report(const char *what, const dl_error_t *err) {
    fprintf(stderr, "embedded: %s: %s: %s\n", what, dl_status_name(err->status), err->message);
    return 1;
}

/* What the server says of the lock, and what this process knows by itself. */
static int show(dl_lock_t *lock, dl_error_t *err) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    if (dl_inspect(lock, &info, err) != DL_OK)
        return report("inspect", err);
    printf("held by %s%s\n", info.owner, info.ours ? " (ours)" : "");
    printf("token %llu, valid for %lld ms\n", (unsigned long long)dl_token(lock),
           (long long)dl_valid_ms(lock));
    return 0;
}

/* An event ends the wait at once; without one, the counters are looked at now and then. */
static int await_renewals(dl_client_t *client, dl_lock_t *lock, unsigned long wanted) {
    struct pollfd events = {dl_event_fd(client), POLLIN, 0};
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_event_t event = DL_EVENT_INIT;
    while (dl_client_stats(client, &stats) == DL_OK && stats.renewed < wanted && dl_valid_ms(lock) > 0) {
        if (poll(&events, 1, 20) > 0 && dl_event_next(client, &event) == DL_OK)
            fprintf(stderr, "embedded: %s\n", event.text);
    }
    printf("renewed %llu times in the background, valid for %lld ms\n", (unsigned long long)stats.renewed,
           (long long)dl_valid_ms(lock));
    return stats.renewed < wanted;
}

static int hold(dl_client_t *client, dl_lock_t *lock, unsigned long renewals) {
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    dl_error_t err;
    if (dl_lock(lock, &err) != DL_OK)
        return report("lock", &err);
    (void)dl_client_info(client, &info); /* fails only for arguments that are wrong */
    printf("backend %s, driver %s\n", info.backend, info.driver);
    int failed = show(lock, &err);
    failed |= await_renewals(client, lock, renewals);
    /* By hand: at least two leases from now. What it is longer already stays as it is. */
    if (dl_extend(lock, 2 * info.lease_ms, &err) != DL_OK)
        failed = report("extend", &err);
    else
        printf("extended, valid for %lld ms\n", (long long)dl_valid_ms(lock));
    /* It tells whether the lock was ours to the end. */
    if (dl_unlock(lock, &err) != DL_OK)
        return report("unlock", &err);
    printf("unlocked\n");
    return failed;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 && (argv[1][0] != '-' || argv[1][1] != '\0') ? argv[1] : NULL;
    unsigned long renewals = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    dl_client_t *client = NULL;
    dl_lock_t *lock = NULL;
    dl_error_t err;
    int failed;
    if (dl_client_open(path, NULL, &client, &err) != DL_OK)
        return report("open", &err);
    failed = dl_lock_open(client, "embedded", &lock, &err) != DL_OK ? report("open", &err)
                                                                    : hold(client, lock, renewals);
    dl_lock_close(lock);
    dl_client_close(client);
    return failed;
}
