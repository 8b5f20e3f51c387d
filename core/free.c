/* free.c - what nobody has and the server may still keep: its freeing in the background. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

#define FIRST_PAUSE_NS (10u * (uint64_t)DLI_NS_PER_MS)
/* Pauses grow up to a second; for what only may be there, up to this part of the time for which it has been
 * looked for: a day's lease is no reason to ask 86,400 times. */
#define SECOND_NS (1000u * (uint64_t)DLI_NS_PER_MS)
#define PART_OF_AGE 8

/* What a backend has sent already may have its answers sooner; and there may be memory again. */
#define REST_PAUSE_NS (100u * (uint64_t)DLI_NS_PER_MS)

static bool owes(dli_claim_t *claim) {
    const dl_client_t *client = claim->gate->client;
    return client->inner != NULL && client->inner->owes != NULL && claim->attempted &&
           client->inner->owes(client->state, dli_claim_driver_hold(claim));
}

/* Is there nothing left to free? Every attempt has a hold id of its own, so a request that was found and
 * freed cannot come again. One that was not there may still be on its way. */
static bool is_settled(dli_claim_t *claim, dl_status_t status) {
    bool is_over = status == DL_OK || (status == DL_ELOST && !claim->may_appear);
    return is_over && !owes(claim);
}

static bool has_been_tried(const dli_claim_t *claim) {
    return claim->free != NULL && claim->free->pause_ns > FIRST_PAUSE_NS;
}

/* Giving back needs no memory: where there is none, one after the other has the client's own. */
static dli_free_t *new_free(dli_claim_t *claim) {
    dli_free_t *spare = &claim->gate->client->spare_free, *made = calloc(1, sizeof *made);
    made = made == NULL && spare->claim == NULL ? spare : made;
    if (made != NULL) {
        made->claim = claim;
        made->pause_ns = FIRST_PAUSE_NS;
    }
    return made;
}

static bool is_asked(const dli_claim_t *claim) {
    return claim->free != NULL && claim->free->request.pending;
}

static void end_freeing(dli_claim_t *claim) {
    claim->freeing = false; /* or it ends with its lease */
    if (claim->free == &claim->gate->client->spare_free) {
        claim->free->claim = NULL;
    } else {
        free(claim->free);
    }
    claim->free = NULL;
    dli_claim_unref(claim);
}

static void settle(dli_claim_t *claim, dl_status_t status) {
    dl_client_t *client = claim->gate->client;
    uint64_t now = dli_now();
    bool is_over = claim->last_try || (client->stop_threads && now >= dli_close_until(client));
    if (is_settled(claim, status) || now >= claim->free_until_ns || is_over) {
        end_freeing(claim);
        return;
    }
    dli_loop_at(client, &claim->timer, dli_min(now + claim->free->pause_ns, claim->free_until_ns));
    uint64_t since_ns = dli_min(claim->free_until_ns - dli_ms(claim->lease_ms), now);
    uint64_t longest_ns = dli_max(SECOND_NS, claim->may_appear ? (now - since_ns) / PART_OF_AGE : 0);
    claim->free->pause_ns = dli_min(claim->free->pause_ns * 2, longest_ns);
}

/* SESSION: an exchange on its connection is under way, and is not waited for. */
static bool start(dli_request_t *request, dli_park_t *park) {
    (void)park;
    dli_claim_t *claim = DLI_CONTAINER_OF(dli_free_t, request, request)->claim;
    dl_client_t *client = claim->gate->client;
    claim->last_try |= client->stop_threads && has_been_tried(claim);
    uint64_t until_ns = dli_ask_deadline(client);
    if (has_been_tried(claim)) { /* the first may have stood behind slow ones until its lease was over */
        until_ns = dli_min(until_ns, claim->free_until_ns);
    }
    if (claim->busy || dli_now() >= until_ns) {
        dli_request_over(client, request);
        settle(claim, DL_EUNKNOWN);
        return false;
    }
    request->with.deadline_ns = until_ns;
    client->stats.background_frees++;
    claim->busy = client->session;
    return true;
}

static void ended(dli_request_t *request, dl_status_t status) {
    dli_claim_t *claim = DLI_CONTAINER_OF(dli_free_t, request, request)->claim;
    dl_client_t *client = claim->gate->client;
    dli_request_over(client, request);
    dli_claim_idle(claim);
    uint64_t now = dli_now();
    dli_call_note(client, status, now);
    bool is_silent = now >= client->last_answer_ns + dli_ms(client->call_timeout_ms);
    if (claim->may_appear && is_silent) { /* the server may stand still, and carry it out when it goes on */
        claim->free_until_ns = dli_call_deadline(client) + claim->free->pause_ns + dli_ms(claim->lease_ms);
    }
    settle(claim, status);
}

static void ask(dli_claim_t *claim) {
    uint64_t now = dli_now();
    if (claim->free == NULL && (claim->free = new_free(claim)) == NULL) {
        if (now < claim->free_until_ns) {
            dli_loop_at(claim->gate->client, &claim->timer,
                        dli_min(now + REST_PAUSE_NS, claim->free_until_ns));
        } else {
            end_freeing(claim);
        }
        return;
    }
    claim->free->request = (dli_request_t){.kind = DLI_ASK_RELEASE,
                                           .with = dli_call_request(claim, 0, DLI_NEVER),
                                           .hold = dli_claim_driver_hold(claim),
                                           .joins = dli_gate_is_wanted(claim->gate),
                                           .start = start,
                                           .ended = ended,
                                           .timer = &claim->timer,
                                           .lane = DLI_LANE_FREE};
    dli_request_begin(claim->gate->client, &claim->free->request);
}

/* From when on its lease may count on the server, at the latest. */
static void begin_freeing(dli_claim_t *claim, uint64_t from_ns) {
    claim->refs++;
    claim->freeing = true;
    claim->free_until_ns = from_ns + dli_ms(claim->lease_ms);
}

void dli_free_add(dli_claim_t *claim, bool may_appear) {
    begin_freeing(claim, may_appear ? dli_call_deadline(claim->gate->client) : dli_now());
    claim->may_appear = may_appear;
    ask(claim);
}

bool dli_free_rest(dli_claim_t *claim) {
    if (!owes(claim)) {
        return false;
    }
    begin_freeing(claim, dli_call_deadline(claim->gate->client));
    claim->is_rest = true;
    dli_loop_at(claim->gate->client, &claim->timer, dli_now() + REST_PAUSE_NS);
    return true;
}

void dli_free_left(dli_claim_t *claim, dl_status_t answer) {
    if (answer == DL_OK || answer == DL_ELOST) {
        (void)dli_free_rest(claim);
    } else {
        dli_free_add(claim, false);
    }
}

void dli_free_settled(dli_claim_t *claim) {
    if (claim->freeing && !is_asked(claim)) {
        dli_timer_clear(&claim->gate->client->loop.timers, &claim->timer);
        end_freeing(claim);
    }
}

void dli_free_due(dli_claim_t *claim, uint64_t now) {
    dl_client_t *client = claim->gate->client;
    if (!is_asked(claim)) {
        ask(claim);
        return;
    }
    uint64_t until_ns = client->stop_threads ? dli_min(dli_close_until(client), claim->free_until_ns) : now;
    if (now < until_ns) {
        dli_loop_at(client, &claim->timer, until_ns);
    } else {
        dli_request_give_up(client, &claim->free->request);
    }
}

/* Who waits for the next try has it now, and it is the last. */
static void try_all(dl_client_t *client) {
    dli_claim_t *first = NULL, *claim;
    dli_node_t *at = dli_tree_after(client->loop.timers, NULL);
    for (; at != NULL; at = dli_tree_after(client->loop.timers, at)) {
        claim = DLI_CONTAINER_OF(dli_claim_t, timer.node, at);
        claim->last_try = claim->is_rest || has_been_tried(claim);
        if (!is_asked(claim)) {
            claim->next_due = first;
            first = claim;
        }
    }
    while ((claim = first) != NULL) {
        first = claim->next_due;
        dli_timer_clear(&client->loop.timers, &claim->timer);
        ask(claim);
    }
}

void dli_free_all(dl_client_t *client) {
    for (;;) {
        try_all(client);
        if (dli_lane_carry(client, DLI_LANE_FREE)) {
            continue;
        }
        if (client->loop.timers == NULL) {
            return;
        }
        dli_loop_listen_alone(client, dli_timers_due(client->loop.timers));
        dli_loop_fire(client);
    }
}
