/* renew.c - the renewal thread: takes what is due, asks the server in batches, applies the answers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

int64_t dli_renew_every(const dl_client_t *client, const dli_hold_t *hold) {
    if (hold->auto_level > 0) {
        return client->renew_every_ms;
    }
    /* The heartbeat of a session with an explicit lease. */
    int64_t third_ms = hold->lease_ms / 3;
    return third_ms < client->renew_every_ms ? third_ms : client->renew_every_ms;
}

void dli_renewal_queue(dli_hold_t *hold) {
    dl_client_t *client = hold->client;
    dli_hold_ref(hold);
    hold->renew_queued = true;
    hold->next_renewal = NULL;
    if (client->renewals_last != NULL) {
        client->renewals_last->next_renewal = hold;
    } else {
        client->renewals = hold;
        dli_sys->cond_broadcast(&client->renewals_changed);
    }
    client->renewals_last = hold;
    dli_watch_hold(hold);
}

/* May it be renewed now? Much may have changed since it was queued. */
static bool is_still_wanted(dli_hold_t *hold, uint64_t now) {
    if (hold->state != DLI_HOLD_LIVE || !hold->renew_counted) {
        return false;
    }
    if (hold->op_running) {
        /* An extension is under way on its connection; it is as good as a ping. */
        hold->renew_due_ns = now + dli_ms(dli_renew_every(hold->client, hold)) / 4;
        return false;
    }
    return true;
}

static void note_lateness(dli_hold_t *hold, uint64_t now) {
    dl_client_stats_t *stats = &hold->client->stats;
    uint64_t late_us = now > hold->renew_due_ns ? (now - hold->renew_due_ns) / DLI_NS_PER_US : 0;
    stats->renewal_lateness_us_sum += late_us;
    stats->renewal_lateness_us_max = dli_max(stats->renewal_lateness_us_max, late_us);
}

/* Moves up to one batch out of the queue. */
static size_t take_batch(dl_client_t *client, uint64_t now) {
    size_t n = 0;
    while (n < DLI_RENEW_BATCH && client->renewals != NULL) {
        dli_hold_t *hold = client->renewals;
        client->renewals = hold->next_renewal;
        if (client->renewals == NULL) {
            client->renewals_last = NULL;
        }
        if (!is_still_wanted(hold, now)) {
            hold->renew_queued = false;
            dli_watch_hold(hold);
            dli_hold_unref(hold);
            continue;
        }
        note_lateness(hold, now);
        if (hold->auto_level > 0 && client->lease_ms > hold->lease_ms) {
            hold->lease_ms = client->lease_ms; /* what the server may keep it for from now on */
        }
        hold->op_running = client->session;
        hold->hung_up = false;
        client->batch_holds[n] = hold;
        client->batch[n++] = (dl_renewal_t){
            .name = hold->gate->name,
            .name_len = hold->gate->name_len,
            .owner = hold->owner_text,
            .hold_id = hold->hold_id,
            .token = hold->token,
            .lease_ms = hold->auto_level > 0 ? client->lease_ms : 0,
            .hold = hold->driver_hold,
            .status = DL_EIO,
        };
    }
    return n;
}

/* No clear yes: the first time is news, and the next try comes soon. */
static void note_failure(dli_hold_t *hold, dl_status_t status, uint64_t now) {
    dl_client_t *client = hold->client;
    client->stats.renewals_failed++;
    if (!hold->renew_failing) {
        hold->renew_failing = true;
        dli_event_hold(client, hold, DL_EVENT_RENEWAL_FAILING, status,
                       "the server has not confirmed a renewal; trying again");
    }
    /* Ten tries a period, at least 10 ms and at most 1 s apart. */
    int64_t pause_ms = dli_renew_every(client, hold) / 10;
    pause_ms = pause_ms < 10 ? 10 : pause_ms > 1000 ? 1000 : pause_ms;
    hold->renew_due_ns = now + dli_ms(pause_ms);
    dli_watch_hold(hold);
}

static void apply(dli_hold_t *hold, const dl_renewal_t *renewal) {
    dl_client_t *client = hold->client;
    uint64_t now = dli_now();
    hold->renew_queued = false;
    if (client->session) {
        dli_op_end(hold);
    }
    if (hold->state != DLI_HOLD_LIVE) {
        return; /* it ended meanwhile: the answer is about the past */
    }
    if (dli_hold_expire(hold, now)) {
        return; /* a late yes revives nothing */
    }
    switch (renewal->status) {
    case DL_OK:
        client->stats.renewed++;
        if (hold->renew_failing) {
            hold->renew_failing = false;
            dli_event_hold(client, hold, DL_EVENT_RENEWAL_RECOVERED, DL_OK, "renewals work again");
        }
        dli_hold_extended(hold, renewal->sent_ns, renewal->lease_ms, now);
        break;
    case DL_ELOST:
        dli_hold_lose_as(hold, renewal->loss);
        break;
    default:
        note_failure(hold, renewal->status, now);
        break;
    }
}

/* cond_wait releases the mutex without dli_unlock_client. */
static void leave_chores(dl_client_t *client) {
    if (client->dead != NULL || client->log_lines != NULL) {
        dli_sys->cond_broadcast(&client->housekeeping_changed);
    }
}

void *dli_renewal_main(void *arg) {
    dl_client_t *client = arg;
    dli_thread_is_punctual();
    dli_lock_client(client);
    while (!client->stop_threads) {
        if (client->renewals == NULL) {
            leave_chores(client);
            (void)dli_sys->cond_wait(&client->renewals_changed, &client->mutex, DLI_NEVER);
            continue;
        }
        uint64_t now = dli_now();
        size_t n = take_batch(client, now);
        if (n == 0) {
            continue;
        }
        /* A batch that hangs must leave time for another round before the shortest lease is over. */
        uint64_t budget_ns = dli_min(dli_ms(client->call_timeout_ms), dli_ms(client->shortest_renew_ms));
        if (client->session) {
            /* An unlock has to wait for the ping of its connection, and so for the slowest of the batch. */
            budget_ns = dli_min(budget_ns, dli_ms(client->call_timeout_ms) / 4);
        }
        dli_unlock_client(client);
        dli_call_renew_batch(client, n, now + dli_max(budget_ns, 10u * DLI_NS_PER_MS));
        dli_lock_client(client);
        for (size_t i = 0; i < n; i++) {
            apply(client->batch_holds[i], &client->batch[i]);
            dli_hold_unref(client->batch_holds[i]);
        }
    }
    while (client->renewals != NULL) {
        dli_hold_t *hold = client->renewals;
        client->renewals = hold->next_renewal;
        hold->renew_queued = false;
        dli_hold_unref(hold);
    }
    client->renewals_last = NULL;
    dli_unlock_client(client);
    return NULL;
}
