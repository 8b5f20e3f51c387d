/* call.c - the only caller of the driver's claiming, renewing, freeing and waiting. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

uint64_t dli_call_deadline(const dl_client_t *client) {
    return dli_now() + dli_ms(client->call_timeout_ms);
}

bool dli_op_begin(dli_hold_t *hold, uint64_t deadline_ns) {
    dl_client_t *client = hold->client;
    if (!client->session) {
        return true;
    }
    while (hold->op_running) {
        if (dli_sys->cond_wait(&client->changed, &client->mutex, deadline_ns) != 0 && hold->op_running) {
            return false;
        }
    }
    hold->op_running = true;
    return true;
}

void dli_op_end(dli_hold_t *hold) {
    if (hold->client->session) {
        hold->op_running = false;
        dli_sys->cond_broadcast(&hold->client->changed);
    }
}

/* Notes that the server was heard of, or that nobody knows. */
static void note_outcome(dl_client_t *client, dl_status_t status) {
    if (status != DL_EUNKNOWN && status != DL_EIO && status != DL_ECANCELED) {
        atomic_store(&client->last_answer_ns, dli_now());
    }
    if (status == DL_EUNKNOWN) {
        dli_lock_client(client);
        client->stats.unknown_outcomes++;
        dli_unlock_client(client);
    }
}

static dl_request_t request_for(const dli_hold_t *hold, uint32_t level, uint64_t deadline_ns) {
    return (dl_request_t){
        .name = hold->gate->name,
        .name_len = hold->gate->name_len,
        .owner = hold->owner_text,
        .hold_id = hold->hold_id,
        .level = level,
        .token_floor = atomic_load(&hold->client->token_floor),
        .deadline_ns = deadline_ns,
        .stop = {{-1, -1}},
    };
}

static void raise_floor(dl_client_t *client, uint64_t token) {
    uint_fast64_t seen = atomic_load(&client->token_floor);
    while (token > seen && !atomic_compare_exchange_weak(&client->token_floor, &seen, token)) {}
}

/* Validity counts from the instant before the request was sent. A driver that names none, or one in the
 * future, is taken at the instant before it was called. */
static uint64_t sane_sent(uint64_t sent_ns, uint64_t called_ns) {
    return sent_ns == 0 || sent_ns > dli_now() ? called_ns : sent_ns;
}

dl_status_t dli_call_try(dli_hold_t *hold, uint32_t level, int64_t lease_ms, int64_t wait_ms,
                         uint64_t deadline_ns, const dl_stop_t *stop, dl_grant_t *grant, dl_error_t *err) {
    dl_client_t *client = hold->client;
    if (level == 1) {
        /* A new number for every attempt: an older request that arrives late can never replace a newer
         * one. */
        hold->hold_id = atomic_fetch_add(&client->last_hold_id, 1) + 1;
        hold->attempted = true;
    }
    dl_request_t request = request_for(hold, level, deadline_ns);
    request.lease_ms = lease_ms;
    request.wait_ms = wait_ms;
    request.stop = *stop;
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    dli_error_clear(err);
    uint64_t called_ns = dli_now();
    dl_status_t status = client->driver->try_acquire(client->state, hold->driver_hold, &request, grant, err);
    grant->sent_ns = sane_sent(grant->sent_ns, called_ns);
    if (status == DL_OK) {
        raise_floor(client, grant->token);
    }
    note_outcome(client, status);
    return status;
}

dl_status_t dli_call_release(dli_hold_t *hold, uint32_t level, uint64_t deadline_ns, dl_error_t *err) {
    dl_client_t *client = hold->client;
    dl_request_t request = request_for(hold, level, deadline_ns);
    dli_error_clear(err);
    dl_status_t status = client->driver->release(client->state, hold->driver_hold, &request, err);
    note_outcome(client, status);
    return status;
}

dl_status_t dli_call_renew_one(dli_hold_t *hold, int64_t lease_ms, uint64_t deadline_ns,
                               dl_renewal_t *renewal) {
    dl_client_t *client = hold->client;
    *renewal = (dl_renewal_t){
        .name = hold->gate->name,
        .name_len = hold->gate->name_len,
        .owner = hold->owner_text,
        .hold_id = hold->hold_id,
        .token = hold->token,
        .lease_ms = lease_ms,
        .hold = hold->driver_hold,
        .status = DL_EIO,
    };
    uint64_t called_ns = dli_now();
    client->driver->renew(client->state, renewal, 1, deadline_ns);
    renewal->sent_ns = sane_sent(renewal->sent_ns, called_ns);
    note_outcome(client, renewal->status);
    return renewal->status;
}

void dli_call_renew_batch(dl_client_t *client, size_t n, uint64_t deadline_ns) {
    uint64_t called_ns = dli_now();
    client->driver->renew(client->state, client->batch, n, deadline_ns);
    for (size_t i = 0; i < n; i++) {
        client->batch[i].sent_ns = sane_sent(client->batch[i].sent_ns, called_ns);
        note_outcome(client, client->batch[i].status);
    }
}

dl_status_t dli_call_watch(dl_client_t *client, const dli_gate_t *gate, uint64_t deadline_ns,
                           const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err) {
    *watch = NULL;
    dli_error_clear(err);
    return client->driver->watch(client->state, gate->name, gate->name_len, deadline_ns, stop, watch, err);
}

dl_status_t dli_call_wait(dl_client_t *client, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                          dl_error_t *err) {
    dli_error_clear(err);
    return client->driver->wait(client->state, watch, deadline_ns, stop, err);
}

void dli_call_unwatch(dl_client_t *client, dl_watch_t *watch) {
    client->driver->unwatch(client->state, watch);
}
