/* unlock.c - the steps of an unlock: one level, and with the last one the hold, freed on the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/* A level stays: only its loss matters, and no other answer is an error. */
static dli_next_t level_left(dli_op_t *op) {
    return dli_op_end(op, op->hold->state == DLI_HOLD_LOST ? DL_ELOST : DL_OK);
}

static void tell_of_exit(const dli_op_t *op) {
    if (op->lock == NULL) {
        dli_event_hold(op->hold, DL_EVENT_THREAD_EXITED, op->answer,
                       "the thread that held it has ended; the lock was released");
    }
}

/* The end of a hold, whatever the answer is. */
static dli_next_t released(dli_op_t *op) {
    dli_hold_t *hold = op->hold;
    if (hold->state != DLI_HOLD_RELEASING) {
        tell_of_exit(op);
        return dli_op_end(op, op->answer); /* late: its lease was over, and others have gone on */
    }
    if (op->request.in_line) {
        op->gate->rest_ns = 0; /* no other has to ask first */
    }
    if (op->answer == DL_ENOMEM) { /* which would say that nothing was done */
        op->answer = op->err.status = DL_EIO;
    }
    if (op->answer == DL_ELOST) {
        dli_hold_lose(hold, DL_ELOST, "found lost at its release");
    } else {
        dli_free_left(op->claim, op->answer);
        tell_of_exit(op);
    }
    dli_hold_end(hold);
    return dli_op_end(op, op->answer);
}

/* Disarmed first: nothing is renewed any more, and a renewal on its way finds the state changed. */
static dli_next_t release(dli_op_t *op, dli_hold_t *hold) {
    dli_hold_disarm(hold);
    hold->unlock = op;
    dli_op_about(op, hold);
    return dli_tell_server(op, 0, released);
}

dli_next_t dli_unlock_step(dli_op_t *op) {
    uint64_t now = dli_now();
    dli_hold_t *hold = dli_gate_find(op->gate, &op->owner, now);
    if (hold == NULL) {
        return dli_op_end(op, DL_ENOTOWNER);
    }
    if (hold->state == DLI_HOLD_LOST) {
        dli_hold_give_up_level(hold);
        return dli_op_end(op, DL_ELOST);
    }
    if (hold->levels == 1) {
        return dli_pass(hold, now) ? dli_op_end(op, DL_OK) : release(op, hold);
    }
    dli_hold_left_level(hold, now);
    if ((op->client->driver->caps & DL_CAP_SERVER_COUNT) == 0) {
        return dli_op_end(op, DL_OK);
    }
    dli_op_about(op, hold);
    return dli_tell_server(op, hold->levels, level_left);
}

bool dli_unlock_left_behind(dli_hold_t *hold) {
    dli_op_t *op = dli_op_new(&(dli_asked_t){.kind = DL_OP_UNLOCK});
    if (op == NULL) {
        return false;
    }
    op->client = hold->gate->client;
    op->gate = hold->gate;
    (void)release(op, hold);
    dli_op_start(op);
    return true;
}
