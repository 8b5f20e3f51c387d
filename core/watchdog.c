/* watchdog.c - the timer of a client: sees validity end and hands over what is due, without any I/O. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core.h"

void dli_watchdog_wake(dl_client_t *client) {
    uint64_t one = 1;
    ssize_t n = write(client->wake_fd, &one, sizeof one);
    (void)n;
}

/* Automatic leases are renewed. Explicit ones are not, but a session that may end early is asked if it
 * lives. */
static bool wants_renewal(const dli_hold_t *hold) {
    return hold->state == DLI_HOLD_LIVE && (hold->auto_level > 0 || hold->client->session);
}

static void count_renewed(dli_hold_t *hold) {
    dl_client_t *client = hold->client;
    bool wanted = wants_renewal(hold);
    if (wanted && !hold->renew_counted) {
        int64_t every_ms = dli_renew_every(client, hold);
        if (client->renewed_holds++ == 0 || every_ms < client->shortest_renew_ms) {
            client->shortest_renew_ms = every_ms;
        }
    } else if (!wanted && hold->renew_counted) {
        client->renewed_holds--;
    }
    hold->renew_counted = wanted;
}

void dli_watch_hold(dli_hold_t *hold) {
    dl_client_t *client = hold->client;
    count_renewed(hold);
    if (hold->state != DLI_HOLD_LIVE) {
        dli_heap_remove(&client->due, hold);
        return;
    }
    uint64_t key_ns = dli_hold_ends_ns(hold);
    if (hold->renew_counted && !hold->renew_queued) {
        key_ns = dli_min(key_ns, hold->renew_due_ns);
    }
    dli_heap_put(&client->due, hold, key_ns);
    if (key_ns < client->watchdog_sleeps_to_ns) {
        client->watchdog_sleeps_to_ns = key_ns;
        dli_watchdog_wake(client);
    }
}

/* One hold whose instant has come. Each branch moves its key into the future or takes it from the heap. */
static void handle_due(dli_hold_t *hold, uint64_t now) {
    if (!dli_hold_expire(hold, now)) {
        dli_renewal_queue(hold);
    }
}

/* A session has hung up: ask at once whether it lives. */
static void look_at_sessions(dl_client_t *client) {
    struct epoll_event events[64];
    int n = epoll_wait(client->session_epoll_fd, events, 64, 0);
    dli_lock_client(client);
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < client->due.len; k++) {
            dli_hold_t *hold = client->due.at[k];
            if (hold->hold_id == events[i].data.u64) {
                hold->hung_up = true;
                hold->renew_due_ns = dli_now();
                dli_watch_hold(hold);
                break;
            }
        }
    }
    dli_unlock_client(client);
}

/* After a suspend every wait has to look at the clock again. */
static void look_after_resume(dl_client_t *client) {
    dli_sys->resume_rearm(client->resume_fd);
    dli_lock_client(client);
    dli_park_wake_all(client, NULL);
    dli_sys->cond_broadcast(&client->changed);
    dli_sys->cond_broadcast(&client->renewals_changed);
    dli_sys->cond_broadcast(&client->housekeeping_changed);
    dli_unlock_client(client);
}

void *dli_watchdog_main(void *arg) {
    dl_client_t *client = arg;
    dli_thread_is_punctual();
    dli_lock_client(client);
    while (!client->stop_threads) {
        uint64_t now = dli_now();
        while (client->due.len > 0 && client->due.at[0]->heap_key_ns <= now) {
            handle_due(client->due.at[0], now);
        }
        uint64_t until_ns = client->due.len > 0 ? client->due.at[0]->heap_key_ns : DLI_NEVER;
        client->watchdog_sleeps_to_ns = until_ns;
        dli_unlock_client(client);

        struct pollfd fds[3] = {{.fd = client->wake_fd, .events = POLLIN},
                                {.fd = client->session_epoll_fd, .events = POLLIN},
                                {.fd = client->resume_fd, .events = POLLIN}};
        (void)dli_sys->poll(fds, 3, until_ns);
        if (fds[0].revents != 0) {
            uint64_t count;
            ssize_t n = read(client->wake_fd, &count, sizeof count);
            (void)n;
        }
        if (fds[1].revents != 0) {
            look_at_sessions(client);
        }
        if (fds[2].revents != 0) {
            look_after_resume(client);
        }
        dli_lock_client(client);
    }
    dli_unlock_client(client);
    return NULL;
}
