/* free.c - what nobody has and the server may still keep: its freeing in the background. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#define FIRST_PAUSE_NS (10u * (uint64_t)DLI_NS_PER_MS)
#define LONGEST_PAUSE_NS (1000u * (uint64_t)DLI_NS_PER_MS)

void dli_free_add(dli_claim_t *claim, bool may_appear, uint64_t until_ns) {
    if (claim->freeing) {
        claim->free_until_ns = dli_max(claim->free_until_ns, until_ns);
        return;
    }
    dli_claim_ref(claim);
    claim->freeing = true;
    claim->may_appear = may_appear;
    claim->free_until_ns = until_ns;
    claim->free_pause_ns = FIRST_PAUSE_NS;
    dli_lane_job(claim, DLI_LANE_FREE);
}

static void forget(dli_claim_t *claim) {
    claim->freeing = false;
    dli_claim_unref(claim);
}

/* Is there nothing left to free? Every attempt has a hold id of its own, so a request that was found and
 * freed cannot come again. One that was not there may still be on its way. */
static bool is_settled(const dli_claim_t *claim, dl_status_t status) {
    return status == DL_OK || (status == DL_ELOST && !claim->may_appear);
}

/* SESSION: an exchange on its connection is under way, and is not waited for. */
static dl_status_t release(dli_claim_t *claim, uint64_t deadline_ns) {
    dl_client_t *client = claim->client;
    if (claim->busy) {
        return DL_EUNKNOWN;
    }
    dl_error_t err;
    client->stats.background_frees++;
    claim->busy = client->session;
    dli_unlock_client(client);
    dl_status_t status = dli_call_release(claim, 0, deadline_ns, &err);
    dli_lock_client(client);
    dli_call_note(client, status);
    dli_claim_idle(claim);
    return status;
}

/* A client that closes asks a server that does not answer for call_timeout after its last answer. */
static uint64_t last_try_until(const dl_client_t *client) {
    return dli_max(client->close_began_ns, atomic_load(&client->last_answer_ns)) +
           dli_ms(client->call_timeout_ms);
}

static void settle(dli_claim_t *claim, dl_status_t status) {
    uint64_t now = dli_now();
    bool is_over = claim->last_try || (claim->client->stop_threads && now >= last_try_until(claim->client));
    if (is_settled(claim, status) || now >= claim->free_until_ns || is_over) {
        forget(claim); /* or it ends with its lease */
        return;
    }
    dli_loop_at(claim->client, &claim->timer, dli_min(now + claim->free_pause_ns, claim->free_until_ns));
    claim->free_pause_ns = dli_min(claim->free_pause_ns * 2, LONGEST_PAUSE_NS);
}

void dli_free_try(dli_claim_t *claim, uint64_t deadline_ns) {
    settle(claim, release(claim, deadline_ns));
}

/* ---- at a backend ----------------------------------------------------------------------------------- */

static void end_try(dli_claim_t *claim, dl_status_t status) {
    dli_loop_listen(claim->client, false);
    dli_timer_clear(&claim->client->loop.timers, &claim->timer);
    dli_call_note(claim->client, status);
    settle(claim, status);
}

static void ended(dli_request_t *request, dl_status_t status) {
    request->pending = false;
    end_try(DLI_CONTAINER_OF(dli_claim_t, request, request), status);
}

static bool has_been_tried(const dli_claim_t *claim) {
    return claim->free_pause_ns > FIRST_PAUSE_NS;
}

static void begin(dli_claim_t *claim) {
    dl_client_t *client = claim->client;
    claim->last_try |= client->stop_threads && has_been_tried(claim);
    uint64_t until_ns = dli_call_deadline(client);
    client->stats.background_frees++;
    claim->request = (dli_request_t){.kind = DLI_ASK_RELEASE,
                                     .with = dli_call_request(claim, 0, until_ns),
                                     .hold = dli_claim_driver_hold(claim),
                                     .err = &client->unread,
                                     .ended = ended};
    dli_request_begin(client, &claim->request);
    dli_loop_listen(client, true);
    dli_loop_at(client, &claim->timer, until_ns);
}

void dli_frees_begin(dl_client_t *client) {
    dli_claim_t *claim;
    while ((claim = dli_lane_take_job(client, DLI_LANE_FREE)) != NULL) {
        begin(claim);
    }
}

void dli_free_overdue(dli_claim_t *claim, uint64_t now) {
    dl_client_t *client = claim->client;
    uint64_t until_ns = client->stop_threads ? last_try_until(client) : now;
    if (now < until_ns) {
        dli_loop_at(client, &claim->timer, until_ns);
    } else {
        end_try(claim, dli_request_withdraw(client, &claim->request));
    }
}

/* All at once. A try that is on its way is the last. */
static void free_all_at_once(dl_client_t *client) {
    dli_heap_t *timers = &client->loop.timers;
    for (;;) {
        for (size_t i = 0; i < timers->len; i++) {
            dli_claim_t *claim = DLI_CONTAINER_OF(dli_claim_t, timer, timers->at[i]);
            claim->last_try = claim->request.pending || has_been_tried(claim);
            if (!claim->request.pending) {
                dli_lane_job(claim, DLI_LANE_FREE);
            }
        }
        dli_frees_begin(client);
        if (timers->len == 0) {
            return;
        }
        dli_loop_listen_alone(client, timers->at[0]->at_ns);
        uint64_t now = dli_now();
        while (timers->len > 0 && timers->at[0]->at_ns <= now) {
            dli_timer_t *timer = timers->at[0];
            dli_timer_clear(timers, timer);
            timer->fire(timer, now);
        }
    }
}

/* One after the other. */
static void free_all_in_turn(dl_client_t *client) {
    for (;;) {
        dli_heap_t *timers = &client->loop.timers;
        while (timers->len > 0) { /* the others are waiting for their next try */
            dli_timer_t *timer = timers->at[0];
            dli_timer_clear(timers, timer);
            timer->fire(timer, dli_now());
        }
        dli_claim_t *claim = dli_lane_take_job(client, DLI_LANE_FREE);
        if (claim == NULL) {
            return;
        }
        uint64_t until_ns = last_try_until(client);
        bool is_left = dli_now() < until_ns && !is_settled(claim, release(claim, until_ns));
        if (is_left && !claim->last_try) { /* perhaps only its answer was lost */
            claim->last_try = true;
            dli_lane_job(claim, DLI_LANE_FREE);
        } else {
            forget(claim); /* or it ends with its lease */
        }
    }
}

void dli_free_all(dl_client_t *client) {
    if (client->inner != NULL) {
        free_all_at_once(client);
    } else {
        free_all_in_turn(client);
    }
}
