/* renew.c - renewals: what is due goes out in batches, and the answers are applied. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/* What is due in the same slice of time goes out together: a 32nd of a period, and not more than this. */
#define SLICE_NS (20u * (uint64_t)DLI_NS_PER_MS)

static bool is_automatic(const dli_claim_t *claim) {
    return claim->hold->auto_level > 0;
}

static int64_t renew_every(const dli_claim_t *claim) {
    const dl_client_t *client = claim->gate->client;
    if (is_automatic(claim)) {
        return client->renew_every_ms;
    }
    /* The heartbeat of a session with an explicit lease. */
    int64_t third_ms = claim->lease_ms / 3;
    return third_ms < client->renew_every_ms ? third_ms : client->renew_every_ms;
}

/* The beginning of the slice. Each client has its own, so that not all ask at the same instant. A ping of a
 * session keeps its unlock waiting until the whole batch is answered, so those go out one by one. */
static uint64_t begin_of_slice(const dl_client_t *client, uint64_t at_ns, uint64_t every_ns) {
    if (client->session) {
        return at_ns;
    }
    uint64_t slice_ns = dli_min(every_ns / 32, SLICE_NS);
    return at_ns - (at_ns + dli_hash(client->uuid, 8) % SLICE_NS) % slice_ns;
}

/* A period after the instant from which on it lasts as long as a renewal makes it, which an extension may
 * have put off. A session is asked each period besides, and at once where it hung up since its last ping
 * began. */
void dli_renew_plan(dli_claim_t *claim, uint64_t now) {
    const dl_client_t *client = claim->gate->client;
    uint64_t every_ns = dli_ms(renew_every(claim)), from_ns = now;
    if (is_automatic(claim)) {
        from_ns = claim->valid_until_ns - dli_valid_until(0, client->lease_ms);
        from_ns = client->session ? dli_min(from_ns, now) : from_ns;
    }
    claim->renew_due_ns = claim->hung_up ? now : begin_of_slice(client, from_ns + every_ns, every_ns);
    dli_claim_watch(claim);
}

/* Explicit leases are not renewed, but a session that may end early is asked if it lives. */
bool dli_is_renewed(const dli_claim_t *claim) {
    return claim->hold != NULL && (is_automatic(claim) || claim->gate->client->session);
}

void dli_renew_queue(dli_claim_t *claim) {
    dl_client_t *client = claim->gate->client;
    claim->refs++;
    claim->renew_queued = true;
    dli_claim_watch(claim);
    claim->next_due = NULL;
    *(client->due != NULL ? &client->due_last->next_due : &client->due) = claim;
    client->due_last = claim;
}

static void leave_queue(dl_client_t *client) {
    dli_claim_t *claim = client->due;
    client->due = claim->next_due;
    claim->renew_queued = false;
    dli_claim_watch(claim);
    dli_claim_unref(claim);
}

/* May it be renewed now? Much may have changed since it was queued. */
static bool is_still_wanted(dli_claim_t *claim, uint64_t now) {
    if (!dli_is_renewed(claim)) {
        return false;
    }
    if (claim->busy) {
        /* An extension is under way on its connection; it is as good as a ping. */
        claim->renew_due_ns = now + dli_ms(renew_every(claim)) / 4;
        return false;
    }
    return true;
}

static void note_lateness(dli_claim_t *claim, uint64_t now) {
    dl_client_stats_t *stats = &claim->gate->client->stats;
    uint64_t late_us = now > claim->renew_due_ns ? (now - claim->renew_due_ns) / DLI_NS_PER_US : 0;
    stats->renewal_lateness_us_sum += late_us;
    stats->renewal_lateness_us_max = dli_max(stats->renewal_lateness_us_max, late_us);
}

/* Moves up to one batch out of what is due. */
static void take_batch(dl_client_t *client, uint64_t now) {
    while (client->batch_len < DLI_RENEW_BATCH && client->due != NULL) {
        dli_claim_t *claim = client->due;
        if (!is_still_wanted(claim, now)) {
            leave_queue(client);
            continue;
        }
        client->due = claim->next_due;
        note_lateness(claim, now);
        claim->busy = client->session;
        claim->hung_up = false;
        client->batch[client->batch_len] =
            dli_call_renewal_of(claim, is_automatic(claim) ? client->lease_ms : 0);
        client->batch_claims[client->batch_len++] = claim;
    }
}

/* No clear yes: the first time is news, and the next try comes soon. */
static void note_failure(dli_claim_t *claim, dl_status_t status, uint64_t now) {
    claim->gate->client->stats.renewals_failed++;
    if (!claim->renew_failing) {
        claim->renew_failing = true;
        dli_event_hold(claim->hold, DL_EVENT_RENEWAL_FAILING, status,
                       "the server has not confirmed a renewal; trying again");
    }
    /* Ten tries a period, at least 10 ms and at most 1 s apart. */
    int64_t pause_ms = renew_every(claim) / 10;
    pause_ms = pause_ms < 10 ? 10 : pause_ms > 1000 ? 1000 : pause_ms;
    claim->renew_due_ns = now + dli_ms(pause_ms);
    dli_claim_watch(claim);
}

static void apply(dli_claim_t *claim, const dl_renewal_t *renewal) {
    uint64_t now = dli_now();
    claim->renew_queued = false;
    dli_call_note(claim->gate->client, renewal->status, now);
    dli_claim_idle(claim);
    /* A hold that ended meanwhile: the answer is about the past. And a late yes revives nothing. */
    dli_hold_t *hold = claim->hold;
    if (hold == NULL || dli_hold_expire(hold, now)) {
        return;
    }
    switch (renewal->status) {
    case DL_OK:
        claim->gate->client->stats.renewed++;
        dli_hold_extended(hold, renewal->sent_ns, renewal->lease_ms, now);
        break;
    case DL_ELOST:
        dli_hold_lose_as(hold, renewal->loss);
        break;
    default:
        note_failure(claim, renewal->status, now);
        break;
    }
}

/* A batch that hangs must leave time for another round before an automatic lease is over. A close waits for
 * it. */
static uint64_t budget_ns(const dl_client_t *client, uint64_t now) {
    uint64_t call_ns = dli_ms(client->call_timeout_ms);
    /* An unlock has to wait for the ping of its session, and so for the slowest of the batch. */
    uint64_t most_ns = client->session ? call_ns / 4 : call_ns;
    if (client->closing) {
        most_ns = dli_min(most_ns, dli_max(dli_close_until(client), now) - now);
    }
    return dli_max(dli_min(most_ns, dli_ms(client->renew_every_ms)), 10u * DLI_NS_PER_MS);
}

static bool start(dli_request_t *request, dli_park_t *park) {
    (void)park;
    dl_client_t *client = DLI_CONTAINER_OF(dl_client_t, batch_request, request);
    client->batch_called_ns = dli_now();
    take_batch(client, client->batch_called_ns);
    request->n = client->batch_len;
    request->with.deadline_ns = client->batch_called_ns + budget_ns(client, client->batch_called_ns);
    if (request->n == 0) {
        dli_request_over(client, request);
    }
    return request->n > 0;
}

static void ended(dli_request_t *request, dl_status_t status) {
    (void)status; /* each entry has its own */
    dl_client_t *client = DLI_CONTAINER_OF(dl_client_t, batch_request, request);
    dli_call_renewed(client->batch, client->batch_len, client->batch_called_ns, dli_now());
    dli_request_over(client, request);
}

static void fire(dli_timer_t *timer, uint64_t now) {
    (void)now;
    dl_client_t *client = DLI_CONTAINER_OF(dl_client_t, batch_timer, timer);
    dli_request_give_up(client, &client->batch_request);
}

static void apply_batch(dl_client_t *client) {
    for (size_t i = 0; i < client->batch_len; i++) {
        apply(client->batch_claims[i], &client->batch[i]);
        dli_claim_unref(client->batch_claims[i]);
    }
    client->batch_len = 0;
}

static void begin_batch(dl_client_t *client) {
    client->batch_timer.fire = fire;
    client->batch_request = (dli_request_t){.kind = DLI_ASK_RENEW,
                                            .with.deadline_ns = DLI_NEVER,
                                            .renewals = client->batch,
                                            .start = start,
                                            .ended = ended,
                                            .timer = &client->batch_timer,
                                            .lane = DLI_LANE_RENEW};
    dli_request_begin(client, &client->batch_request);
}

/* One may have ended as soon as it began. */
void dli_renew_carry_on(dl_client_t *client) {
    while (!client->batch_request.pending && (client->batch_len > 0 || client->due != NULL)) {
        apply_batch(client);
        if (client->due != NULL) {
            begin_batch(client);
        }
    }
}

void dli_renew_stop(dl_client_t *client) {
    if (client->batch_request.pending) {
        dli_request_give_up(client, &client->batch_request);
    }
    apply_batch(client);
    while (client->due != NULL) {
        leave_queue(client);
    }
}
