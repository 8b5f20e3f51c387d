/* call.c - the only caller of the driver's claiming, renewing, freeing and watching. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

uint64_t dli_call_deadline(const dl_client_t *client) {
    return dli_now() + dli_ms(client->call_timeout_ms);
}

uint64_t dli_ask_deadline(const dl_client_t *client) {
    return client->closing ? dli_close_until(client) : dli_call_deadline(client);
}

void dli_call_note(dl_client_t *client, dl_status_t status, uint64_t now) {
    if (status != DL_EUNKNOWN && status != DL_EIO && status != DL_ECANCELED) {
        client->last_answer_ns = now;
    }
    client->stats.unknown_outcomes += status == DL_EUNKNOWN;
}

dl_request_t dli_call_request(const dli_claim_t *claim, uint32_t level, uint64_t deadline_ns) {
    return (dl_request_t){
        .name = claim->gate->name,
        .name_len = claim->gate->name_len,
        .owner = claim->owner_text,
        .hold_id = claim->hold_id,
        .level = level,
        .token_floor = claim->gate->client->token_floor,
        .deadline_ns = deadline_ns,
        .stop = {{-1, -1}},
        .tokens = 1,
    };
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

/* Validity counts from the instant before the request was sent. A driver that names none, or one in the
 * future, is taken at the instant before it was called. */
static uint64_t sane_sent(uint64_t sent_ns, uint64_t called_ns, uint64_t now) {
    return sent_ns == 0 || sent_ns > now ? called_ns : sent_ns;
}

void dli_call_renewed(dl_renewal_t *batch, size_t n, uint64_t called_ns, uint64_t now) {
    for (size_t i = 0; i < n; i++) {
        batch[i].sent_ns = sane_sent(batch[i].sent_ns, called_ns, now);
    }
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* Without the mutex. */
static dl_status_t ask_table(dl_client_t *client, const dli_request_t *request) {
    const dl_driver_t *driver = client->driver;
    void *state = client->state;
    const dl_request_t *with = &request->with;
    dl_error_t unread;
    dl_error_t *err = request->err != NULL ? request->err : &unread;
    dli_error_clear(err);
    switch (request->kind) {
    case DLI_ASK_TRY:
    case DLI_ASK_LEVEL:
        return driver->try_acquire(state, request->hold, with, request->grant, err);
    case DLI_ASK_RENEW:
        driver->renew(state, request->renewals, request->n, with->deadline_ns);
        return DL_OK;
    case DLI_ASK_RELEASE:
        return driver->release(state, request->hold, with, err);
    case DLI_ASK_WATCH:
        *request->watch = NULL;
        return driver->watch(state, with->name, with->name_len, request->watch, err);
    case DLI_ASK_INSPECT:
        return driver->inspect(state, with->name, with->name_len, with->deadline_ns, request->info, err);
    default:
        return driver->force_release(state, with->name, with->name_len, with->deadline_ns, err);
    }
}

dl_status_t dli_request_carry_out(dl_client_t *client, const dli_request_t *request) {
    DLI_PUNCTUAL; /* its deadline is set already: the program's log function may take longer */
    dli_unlock_client(client);
    dl_status_t status = ask_table(client, request);
    dli_lock_client(client);
    return status;
}

/* One of the core's own is withdrawn by its timer; for one of a blocking call, its thread listens. */
void dli_request_begin(dl_client_t *client, dli_request_t *request) {
    request->pending = true;
    if (client->inner == NULL) {
        dli_lane_push(client, request);
    } else {
        if (request->timer != NULL) {
            dli_loop_ask(client, true);
        }
        if (!request->start(request, NULL)) {
            return;
        }
        /* One that the loop is to read goes out together with others that it reads, if it is awake. */
        if (request->timer != NULL && client->loop.asks > 1 && dli_loop_is_awake(client)) {
            client->loop.flushes = true;
        } else {
            client->to_flush = true;
        }
    }
    if (request->timer != NULL && request->with.deadline_ns != DLI_NEVER) {
        dli_loop_at(client, request->timer, request->with.deadline_ns);
    }
    if (client->inner != NULL) {
        client->inner->begin(client->state, request); /* it may end there, and be gone */
    }
}

void dli_request_over(dl_client_t *client, dli_request_t *request) {
    request->pending = false;
    if (request->in_lane) {
        dli_lane_remove(client, request);
    }
    if (request->timer != NULL) {
        dli_timer_clear(&client->loop.timers, request->timer);
    }
    if (request->timer != NULL && client->inner != NULL) {
        dli_loop_ask(client, false);
    }
}

void dli_request_give_up(dl_client_t *client, dli_request_t *request) {
    bool is_asked = !request->in_lane;
    bool is_sent = is_asked && client->inner->withdraw(client->state, request);
    bool is_unknown = is_sent || request->kind == DLI_ASK_INSPECT;
    dl_status_t status = is_sent ? DL_EUNKNOWN : DL_EIO;
    client->to_flush |= is_asked; /* it may leave something to be sent */
    for (size_t i = 0; i < request->n; i++) {
        dl_renewal_t *renewal = &request->renewals[i];
        renewal->status = renewal->status == DL_EIO ? status : renewal->status;
    }
    dli_fail(request->err, status, "%s",
             is_unknown ? "no reply from the server" : "the request was not sent in time");
    request->ended(request, status);
}

void dli_requests_flush(dl_client_t *client) {
    DLI_PUNCTUAL; /* what the backend reports waits until it is done */
    client->to_flush = client->loop.flushes = false;
    if (client->inner->flush(client->state)) {
        dli_loop_listen_anew(client);
    }
}

/* ---- what an operation asks ---------------------------------------------------------------------------- */

static bool is_try(const dli_op_t *op) {
    return op->ask == DLI_ASK_TRY || op->ask == DLI_ASK_LEVEL;
}

static void prepare_try(dli_op_t *op) {
    dli_claim_t *claim = op->claim;
    if (op->ask == DLI_ASK_TRY) {
        /* A new number for every attempt: an older request that comes late never replaces a newer one. */
        claim->hold_id = ++op->client->last_hold_id;
        claim->attempted = true;
        claim->lease_ms = op->lease_ms;
    }
    dli_request_t *request = &op->request;
    request->with = dli_call_request(claim, op->level, op->until_ns);
    request->with.lease_ms = op->lease_ms;
    if (op->ask == DLI_ASK_TRY) {
        bool is_crowded = op->was_queued || !TAILQ_EMPTY(&op->gate->queue); /* by others of this process */
        bool may_pass = op->client->passes && op->automatic && is_crowded;
        request->with.tokens = may_pass ? DLI_PASS_MAX + 1 : 1;
        request->with.wait_ms = op->wait_ms;
        request->with.stop.fd[0] = op->park != NULL ? op->park->fd : -1;
        request->with.stop.fd[1] = op->opts.cancel != NULL ? op->opts.cancel->fd : -1;
        dli_acquire_line_up(op, request);
    }
    op->with.grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    request->grant = &op->with.grant;
}

void dli_call_prepare(dli_op_t *op) {
    dli_request_t *request = &op->request;
    dli_error_clear(&op->err);
    op->interrupted = false;
    op->called_ns = dli_now();
    if (op->ask <= DLI_ASK_RELEASE) {
        request->hold = dli_claim_driver_hold(op->claim);
    }
    if (is_try(op)) {
        prepare_try(op);
    } else if (op->ask == DLI_ASK_RELEASE) {
        request->with = dli_call_request(op->claim, op->level, op->until_ns);
        request->joins = dli_gate_is_wanted(op->gate);
    } else {
        request->with = (dl_request_t){.name = op->gate->name,
                                       .name_len = op->gate->name_len,
                                       .deadline_ns = op->until_ns,
                                       .stop = {{-1, -1}}};
        request->info = op->info;
        request->watch = &op->watch;
    }
    if (op->ask == DLI_ASK_RENEW) {
        op->with.renewal = dli_call_renewal_of(op->claim, op->lease_ms);
        op->with.renewal.by_caller = 1;
        request->renewals = &op->with.renewal;
        request->n = 1;
    }
}

void dli_call_answered(dli_op_t *op, dl_status_t answer) {
    uint64_t now = dli_now();
    op->answer = answer;
    if (is_try(op)) {
        dl_grant_t *grant = &op->with.grant;
        grant->sent_ns = sane_sent(grant->sent_ns, op->called_ns, now);
        if (answer == DL_OK) {
            /* A driver that draws no more than one may say none. */
            grant->tokens = dli_min(dli_max(grant->tokens, 1), op->request.with.tokens);
            op->client->token_floor = dli_max(op->client->token_floor, grant->token + grant->tokens - 1);
        }
    } else if (op->ask == DLI_ASK_RENEW) {
        dli_call_renewed(&op->with.renewal, 1, op->called_ns, now);
        op->answer = op->with.renewal.status;
    }
    if (op->ask <= DLI_ASK_RELEASE) {
        dli_call_note(op->client, op->answer, now);
    }
}
