/* extend.c - what the server is told of a hold: a level more or less, a longer lease, its end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/* The hold may have ended or been lost while the server was asked, and another may have the claim. */
static dli_next_t told_step(dli_op_t *op) {
    dli_hold_t *holder = op->claim->hold;
    uint64_t now = dli_now();
    dli_claim_idle(op->claim);
    if (holder != NULL && !dli_hold_expire(holder, now)) {
        bool is_renewal = op->ask == DLI_ASK_RENEW;
        if (op->answer == DL_ELOST) {
            dli_hold_lose_as(holder, is_renewal ? op->with.renewal.loss : DL_LOSS_NOT_OURS);
        } else if (op->answer == DL_OK && op->ask != DLI_ASK_RELEASE) {
            uint64_t sent_ns = is_renewal ? op->with.renewal.sent_ns : op->with.grant.sent_ns;
            dli_hold_extended(holder, sent_ns, op->lease_ms, now);
        }
    } else if (op->answer == DL_ELOST) {
        op->claim->renew_failing = true; /* should it be passed on just now, nobody takes it */
    }
    if (op->level > 0 && op->hold->state != DLI_HOLD_LIVE) {
        op->answer = dli_fail_plain(&op->err, DL_ELOST);
    }
    return op->then(op);
}

static dli_next_t tell_step(dli_op_t *op) {
    dli_next_t next = dli_claim_use(op);
    if (next != DLI_STEP) {
        return next == DLI_WAIT ? DLI_WAIT : op->then(op);
    }
    if (op->level > 0 && op->hold->state != DLI_HOLD_LIVE) {
        dli_claim_idle(op->claim); /* it ended while its connection was waited for */
        op->answer = dli_fail_plain(&op->err, DL_ELOST);
        return op->then(op);
    }
    bool counted = (op->client->driver->caps & DL_CAP_SERVER_COUNT) != 0 && op->level > 1;
    op->ask = op->kind == DL_OP_UNLOCK ? DLI_ASK_RELEASE : counted ? DLI_ASK_LEVEL : DLI_ASK_RENEW;
    if (op->ask != DLI_ASK_RELEASE && op->hold->auto_level > 0 && op->lease_ms < op->client->lease_ms) {
        op->lease_ms = op->client->lease_ms; /* it is as good as a renewal, which is put off by it */
    }
    /* Noted before the answer: should it get lost, the server may keep the lock this long. */
    dli_claim_t *claim = op->claim;
    claim->lease_ms = op->lease_ms > claim->lease_ms ? op->lease_ms : claim->lease_ms;
    op->step = told_step;
    return DLI_ASK;
}

dli_next_t dli_tell_server(dli_op_t *op, uint32_t level, dli_step_fn then) {
    op->level = level;
    op->then = then;
    op->until_ns = dli_exchange_deadline(op, dli_now());
    op->step = tell_step;
    return DLI_STEP;
}

static dli_next_t extended(dli_op_t *op) {
    return dli_op_end(op, op->answer);
}

dli_next_t dli_extend_step(dli_op_t *op) {
    dli_hold_t *hold = dli_gate_find(op->gate, &op->owner, dli_now());
    if (hold == NULL || hold->state == DLI_HOLD_LOST) {
        return dli_op_end(op, hold == NULL ? DL_ENOTOWNER : DL_ELOST);
    }
    dli_op_about(op, hold);
    op->lease_ms = op->lease_ms == DL_LEASE_AUTO ? op->client->lease_ms : op->lease_ms;
    return dli_tell_server(op, 1, extended);
}
