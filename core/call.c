/* call.c - the only caller of the driver's claiming, renewing, freeing and watching. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

uint64_t dli_call_deadline(const dl_client_t *client) {
    return dli_now() + dli_ms(client->call_timeout_ms);
}

void dli_call_note(dl_client_t *client, dl_status_t status) {
    if (status != DL_EUNKNOWN && status != DL_EIO && status != DL_ECANCELED) {
        atomic_store(&client->last_answer_ns, dli_now());
    }
    client->stats.unknown_outcomes += status == DL_EUNKNOWN;
}

static dl_request_t request_for(const dli_claim_t *claim, uint32_t level, uint64_t deadline_ns) {
    return (dl_request_t){
        .name = claim->gate->name,
        .name_len = claim->gate->name_len,
        .owner = claim->owner_text,
        .hold_id = claim->hold_id,
        .level = level,
        .token_floor = atomic_load(&claim->client->token_floor),
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

static dl_status_t try_acquire(dli_op_t *op) {
    dl_client_t *client = op->client;
    dli_claim_t *claim = op->claim;
    if (op->ask == DLI_ASK_TRY) {
        /* A new number for every attempt: an older request that arrives late can never replace a newer
         * one. */
        claim->hold_id = atomic_fetch_add(&client->last_hold_id, 1) + 1;
        claim->attempted = true;
    }
    dl_request_t request = request_for(claim, op->level, op->ask_until_ns);
    request.lease_ms = op->lease_ms;
    if (op->ask == DLI_ASK_TRY) {
        request.wait_ms = op->wait_ms;
        request.stop.fd[0] = op->park != NULL ? op->park->fd : -1;
        request.stop.fd[1] = op->cancel != NULL ? op->cancel->fd : -1;
    }
    dl_grant_t *grant = &op->with.grant;
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    dl_status_t status =
        client->driver->try_acquire(client->state, dli_claim_driver_hold(claim), &request, grant, &op->err);
    grant->sent_ns = sane_sent(grant->sent_ns, op->called_ns);
    if (status == DL_OK) {
        raise_floor(client, grant->token);
    }
    return status;
}

dl_status_t dli_call_release(dli_claim_t *claim, uint32_t level, uint64_t deadline_ns, dl_error_t *err) {
    dl_client_t *client = claim->client;
    dl_request_t request = request_for(claim, level, deadline_ns);
    dli_error_clear(err);
    return client->driver->release(client->state, dli_claim_driver_hold(claim), &request, err);
}

dl_renewal_t dli_call_renewal_of(dli_claim_t *claim, int64_t lease_ms) {
    return (dl_renewal_t){
        .name = claim->gate->name,
        .name_len = claim->gate->name_len,
        .owner = claim->owner_text,
        .hold_id = claim->hold_id,
        .token = claim->token,
        .lease_ms = lease_ms,
        .hold = dli_claim_driver_hold(claim),
        .status = DL_EIO,
    };
}

void dli_call_renew(dl_client_t *client, dl_renewal_t *batch, size_t n, uint64_t deadline_ns) {
    uint64_t called_ns = dli_now();
    client->driver->renew(client->state, batch, n, deadline_ns);
    for (size_t i = 0; i < n; i++) {
        batch[i].sent_ns = sane_sent(batch[i].sent_ns, called_ns);
    }
}

static dl_status_t renew_one(dli_op_t *op) {
    dl_renewal_t *renewal = &op->with.renewal;
    *renewal = dli_call_renewal_of(op->claim, op->lease_ms);
    dli_call_renew(op->client, renewal, 1, op->ask_until_ns);
    return dli_fail_plain(&op->err, renewal->status);
}

static dl_status_t carry_out(dli_op_t *op) {
    const dl_driver_t *driver = op->client->driver;
    void *state = op->client->state;
    const dli_gate_t *gate = op->gate;
    switch (op->ask) {
    case DLI_ASK_TRY:
    case DLI_ASK_LEVEL:
        return try_acquire(op);
    case DLI_ASK_RENEW:
        return renew_one(op);
    case DLI_ASK_RELEASE:
        return dli_call_release(op->claim, op->level, op->ask_until_ns, &op->err);
    case DLI_ASK_WATCH:
        op->with.watch = NULL;
        return driver->watch(state, gate->name, gate->name_len, &op->with.watch, &op->err);
    case DLI_ASK_INSPECT:
        return driver->inspect(state, gate->name, gate->name_len, op->ask_until_ns, op->info, &op->err);
    default:
        return driver->force_release(state, gate->name, gate->name_len, op->ask_until_ns, &op->err);
    }
}

void dli_call_ask(dli_op_t *op) {
    dl_client_t *client = op->client;
    dli_unlock_client(client);
    dli_error_clear(&op->err);
    op->called_ns = dli_now();
    op->asks = true;
    op->answer = carry_out(op);
    op->asks = false;
    dli_lock_client(client);
    /* With the mutex: a poke of this one must not be left for the next that a worker carries. */
    op->interrupted = op->park != NULL && dli_park_drain(op->park);
    if (op->ask <= DLI_ASK_RELEASE) {
        dli_call_note(client, op->answer);
    }
}
