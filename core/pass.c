/* pass.c - a lock that others of this process wait for is passed on, and the server is not asked. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/*
 * An unlock puts the claim down at its gate for whoever is next there, who takes it up in his own step. So a
 * thread that does not come for it loses no more than its turn (gate.c), and the claim goes on to the next.
 *
 * What the server knows stays true: the claim's owner, hold id and lease, whoever of this process has it.
 * Automatic leases only: an explicit one bounds how long a crashed holder keeps others out, and the claim's
 * may be longer.
 *
 * After DLI_PASS_MAX holds or DLI_PASS_NS the lock is freed for other processes. They hear of it when its
 * answer comes here, and have to ask: the next of this process lets so much time pass. If another process has
 * been seen to have the lock lately, it then rests at random for up to four times as long as this one had it
 * (acquire.c): a shorter or fixed rest lets the same two processes take turns, while others wait.
 */

/* No doubt about it, which means that no renewal has failed, is due or under way; and no lease beyond the
 * automatic one. A session that has hung up is due to be asked. */
static bool is_sound(const dli_claim_t *claim, uint64_t now) {
    return !claim->renew_failing && !claim->renew_queued && now < claim->renew_due_ns &&
           claim->lease_ms <= claim->gate->client->lease_ms;
}

/* Its cancel object is its own thread's to look at, which may have left by a jump and freed it. */
bool dli_pass_suits(const dli_op_t *op) {
    bool is_stopped = op->client->closing || op->lock->closed || op->cancelled;
    return op->automatic && !is_stopped && dli_now() < op->deadline_ns;
}

static bool is_wanted(const dli_hold_t *hold) {
    const dli_op_t *next = TAILQ_FIRST(&hold->gate->queue);
    return hold->gate->client->passes && hold->auto_level > 0 && next != NULL && dli_pass_suits(next);
}

bool dli_pass(dli_hold_t *hold, uint64_t now) {
    dli_claim_t *claim = hold->claim;
    dli_gate_t *gate = hold->gate;
    if (!is_wanted(hold) || !is_sound(claim, now)) {
        return false;
    }
    if (claim->passes >= claim->passes_max || now >= claim->granted_ns + DLI_PASS_NS) {
        bool is_in_line = (gate->client->driver->caps & DL_CAP_NATIVE_WAIT) != 0; /* the others, there */
        gate->rest_ns = claim->passes > 0 && !is_in_line ? claim->trip_ns : 0;
        gate->turn_ns = dli_min(now - claim->granted_ns, DLI_PASS_NS);
        return false;
    }
    dli_hold_leave_claim(hold);
    claim->refs++;
    gate->passed = claim;
    dli_hold_end(hold);
    return true;
}

bool dli_pass_take(dli_op_t *op) {
    uint64_t now = dli_now();
    bool is_good = is_sound(op->gate->passed, now);
    if (is_good) {
        dli_hold_take_over(op, now);
    } else {
        dli_pass_end(op->gate);
    }
    return is_good;
}

void dli_pass_end(dli_gate_t *gate) {
    dli_claim_t *claim = gate->passed;
    gate->passed = NULL;
    dli_claim_watch_session(claim, -1);
    dli_free_add(claim, false);
    dli_claim_unref(claim);
}
