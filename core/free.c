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

void dli_free_try(dli_claim_t *claim, uint64_t deadline_ns) {
    dl_status_t status = release(claim, deadline_ns);
    uint64_t now = dli_now();
    if (is_settled(claim, status) || now >= claim->free_until_ns) {
        forget(claim);
        return;
    }
    dli_loop_at(claim->client, &claim->timer, dli_min(now + claim->free_pause_ns, claim->free_until_ns));
    claim->free_pause_ns = dli_min(claim->free_pause_ns * 2, LONGEST_PAUSE_NS);
}

void dli_free_all(dl_client_t *client, uint64_t began_ns) {
    for (;;) {
        dli_heap_t *timers = &client->loop.timers;
        while (timers->len > 0) { /* the others are waiting for their next try */
            dli_timer_t *timer = timers->at[0];
            dli_timer_clear(timers, timer);
            timer->fire(timer, began_ns);
        }
        dli_claim_t *claim = dli_lane_take_job(client, DLI_LANE_FREE);
        if (claim == NULL) {
            return;
        }
        /* A server that does not answer is asked for call_timeout after its last answer. */
        uint64_t until_ns =
            dli_max(began_ns, atomic_load(&client->last_answer_ns)) + dli_ms(client->call_timeout_ms);
        if (dli_now() < until_ns) {
            (void)release(claim, until_ns);
        }
        forget(claim); /* or it ends with its lease */
    }
}
