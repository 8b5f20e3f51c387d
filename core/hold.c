/* hold.c - what an owner has: begun, extended, lost, ended. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

dli_hold_t *dli_hold_new(dli_gate_t *gate, const dli_owner_t *owner) {
    dli_hold_t *hold = malloc(sizeof *hold); /* as a claim */
    if (hold == NULL) {
        return NULL;
    }
    *hold = (dli_hold_t){
        .gate = gate, .owner = *owner, .refs = 1, .state = DLI_HOLD_TRYING, .max_hold_until_ns = DLI_NEVER};
    gate->refs++;
    dli_thread_ref(owner->thread);
    return hold;
}

void dli_hold_unref(dli_hold_t *hold) {
    if (hold != NULL && --hold->refs == 0) {
        dli_thread_unref(hold->owner.thread);
        dli_gate_unref(hold->gate);
        free(hold);
    }
}

int64_t dli_hold_valid_ms(const dli_hold_t *hold) {
    uint64_t now = dli_now();
    bool is_valid = hold->state == DLI_HOLD_LIVE && now < dli_hold_ends_ns(hold);
    return is_valid ? (int64_t)((dli_hold_ends_ns(hold) - now) / DLI_NS_PER_MS) : 0;
}

/* Whatever is renewed. */
static uint64_t max_hold_until(const dli_op_t *op, uint64_t now) {
    int64_t max_hold_ms = op->opts.max_hold_ms > 0 ? op->opts.max_hold_ms : op->client->max_hold_ms;
    return max_hold_ms > 0 ? now + dli_ms(max_hold_ms) : DLI_NEVER;
}

/* The claim's reference is the hold's. */
static void stand_on(dli_op_t *op, dli_claim_t *claim, uint64_t now) {
    dl_client_t *client = op->client;
    dli_hold_t *hold = op->hold;
    hold->state = DLI_HOLD_LIVE;
    hold->levels = 1;
    hold->auto_level = op->automatic ? 1 : 0;
    hold->acquired_ns = now;
    hold->max_hold_until_ns = max_hold_until(op, now);
    hold->hold_id = claim->passes == 0 ? claim->hold_id : ++client->last_hold_id; /* not on the server */
    hold->token = claim->token != 0 ? claim->token + claim->passes : 0;
    hold->claim = claim;
    claim->hold = hold;
    dli_renew_plan(claim, now);
    hold->refs++;
    hold->gate->current = hold;
    client->stats.acquired++;
    client->stats.held_now++;
    /* Other threads of this owner may be waiting behind this very call. */
    dli_gate_look_again(hold);
}

bool dli_hold_begin(dli_op_t *op, uint64_t now) {
    dli_claim_t *claim = op->claim;
    const dl_grant_t *grant = &op->with.grant;
    uint64_t valid_until_ns = dli_valid_until(grant->sent_ns, op->lease_ms);
    if (now >= valid_until_ns) {
        return false;
    }
    op->claim = NULL;
    claim->token = grant->token;
    claim->passes_max = (uint16_t)(grant->token != 0 ? grant->tokens - 1 : DLI_PASS_MAX);
    claim->granted_ns = now;
    claim->trip_ns = (uint32_t)dli_min(now - grant->sent_ns, DLI_PASS_NS);
    claim->valid_until_ns = valid_until_ns;
    dli_claim_watch_session(claim, grant->session_fd);
    stand_on(op, claim, now);
    return true;
}

void dli_hold_take_over(dli_op_t *op, uint64_t now) {
    dli_claim_t *claim = op->gate->passed;
    op->gate->passed = NULL;
    claim->passes++;
    op->client->stats.passed++;
    stand_on(op, claim, now);
}

static void count_end(dli_hold_t *hold, uint64_t now) {
    dl_client_stats_t *stats = &hold->gate->client->stats;
    uint64_t held_us = (now - hold->acquired_ns) / DLI_NS_PER_US;
    stats->hold_us_sum += held_us;
    stats->hold_us_max = dli_max(stats->hold_us_max, held_us);
    stats->held_now--;
}

void dli_hold_leave_claim(dli_hold_t *hold) {
    hold->state = DLI_HOLD_RELEASING;
    hold->claim->hold = NULL;
    dli_claim_watch(hold->claim);
}

void dli_hold_disarm(dli_hold_t *hold) {
    dli_hold_leave_claim(hold);
    dli_claim_watch_session(hold->claim, -1);
}

void dli_hold_lose(dli_hold_t *hold, dl_status_t why, const char *text) {
    dl_client_t *client = hold->gate->client;
    dli_gate_t *gate = hold->gate;
    uint64_t now = dli_now();
    dli_hold_disarm(hold);
    hold->state = DLI_HOLD_LOST;
    gate->current = NULL;
    LIST_INSERT_HEAD(&gate->lost, hold, beside); /* the gate's reference goes along */
    client->stats.lost++;
    count_end(hold, now);
    dli_event_lost(hold, why, text);
    /* Not ELOST: by our arithmetic only, and the server may still keep it, or a late renewal may. */
    dli_free_left(hold->claim, why);
    dli_gate_look_again(hold);
    dli_gate_next(gate);
}

void dli_hold_lose_as(dli_hold_t *hold, dl_loss_t loss) {
    static const char *const texts[] = {
        [DL_LOSS_NOT_OURS] = "the server says that another holds it or nobody does",
        [DL_LOSS_HANG_UP] = "the connection that held it has ended",
        [DL_LOSS_KILLED] = "the server says that it has ended the connection that held it",
        [DL_LOSS_EXPIRED] = "its lease was over before it was renewed",
    };
    bool is_known = (unsigned)loss < sizeof texts / sizeof texts[0];
    dli_hold_lose(hold, DL_ELOST, texts[is_known ? loss : DL_LOSS_NOT_OURS]);
}

bool dli_hold_expire(dli_hold_t *hold, uint64_t now) {
    if (hold->state != DLI_HOLD_LIVE || now < dli_hold_ends_ns(hold)) {
        return false;
    }
    dli_hold_lose(hold, DL_ETIMEDOUT,
                  now >= hold->claim->valid_until_ns ? "validity is over" : "max_hold is over");
    return true;
}

void dli_hold_end(dli_hold_t *hold) {
    dl_client_t *client = hold->gate->client;
    dli_gate_t *gate = hold->gate;
    if (hold->state == DLI_HOLD_LOST) {
        LIST_REMOVE(hold, beside);
    } else {
        gate->current = NULL;
        client->stats.released++;
        count_end(hold, dli_now());
    }
    hold->state = DLI_HOLD_ENDED;
    hold->levels = 0;
    dli_claim_unref(hold->claim);
    hold->claim = NULL;
    dli_gate_look_again(hold);
    dli_gate_next(gate);
    dli_hold_unref(hold); /* the gate's */
}

void dli_hold_give_up_level(dli_hold_t *hold) {
    bool is_held = hold->state == DLI_HOLD_LIVE || hold->state == DLI_HOLD_LOST;
    if (!is_held) {
        return;
    }
    if (--hold->levels > 0) { /* another thread of the owner has entered too, and will leave */
        hold->auto_level = (uint32_t)dli_min(hold->auto_level, hold->levels);
        return;
    }
    if (hold->state == DLI_HOLD_LIVE) {
        dli_hold_disarm(hold);
        dli_free_add(hold->claim, false);
    }
    dli_hold_end(hold);
}

void dli_hold_extended(dli_hold_t *hold, uint64_t sent_ns, int64_t lease_ms, uint64_t now) {
    dli_claim_t *claim = hold->claim;
    claim->valid_until_ns = dli_max(claim->valid_until_ns, dli_valid_until(sent_ns, lease_ms));
    claim->lease_ms = lease_ms > claim->lease_ms ? lease_ms : claim->lease_ms;
    if (claim->renew_failing) {
        claim->renew_failing = false;
        dli_event_hold(hold, DL_EVENT_RENEWAL_RECOVERED, DL_OK, "renewals work again");
    }
    dli_renew_plan(claim, dli_min(sent_ns, now));
}

void dli_hold_enter_auto(dli_hold_t *hold, uint32_t level, uint64_t now) {
    if (hold->auto_level == 0) {
        hold->auto_level = (uint32_t)dli_min(level, hold->levels); /* one below it may have gone meanwhile */
        dli_renew_plan(hold->claim, now);
    }
}

void dli_hold_left_level(dli_hold_t *hold, uint64_t now) {
    hold->levels--;
    if (hold->auto_level > hold->levels) {
        hold->auto_level = 0; /* the levels that are left have explicit leases */
        dli_renew_plan(hold->claim, now);
    }
}
