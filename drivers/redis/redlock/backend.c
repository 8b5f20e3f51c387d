/* backend.c - what the core calls: requests begin, are taken back, sent and read, at all nodes. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

void dli_redlock_begin(void *state, dli_request_t *request) {
    static dl_status_t (*const kinds[])(dli_redlock_t *, dli_request_t *, dl_error_t *) = {
        [DLI_ASK_TRY] = dli_redlock_claim,    [DLI_ASK_RENEW] = dli_redlock_renew,
        [DLI_ASK_RELEASE] = dli_redlock_free, [DLI_ASK_INSPECT] = dli_redlock_look,
        [DLI_ASK_FORCE] = dli_redlock_look,
    };
    dli_redlock_t *redlock = state;
    dl_error_t err = {.status = DL_ENOMEM, .message = "out of memory"}; /* where nothing more is said */
    dl_status_t status = kinds[request->kind](redlock, request, &err);
    if (status != DL_OK) {
        if (request->err != NULL) {
            *request->err = err;
        }
        request->ended(request, status);
    }
}

bool dli_redlock_withdraw(void *state, dli_request_t *request) {
    const dli_redlock_t *redlock = state;
    dli_round_t *round = request->place;
    bool has_left = dli_round_unsent(round, round->question->wire) != dli_nodes_all(redlock);
    bool is_unknown = round->is_forced || (has_left && round->question->kind.intent != DLI_READ);
    if (request->kind == DLI_ASK_TRY) {
        dli_redlock_let_go(round);
        is_unknown = round->maybe != 0;
    } else if (request->kind == DLI_ASK_RENEW) {
        dli_redlock_judge_renewals(round);
    }
    dli_round_stop(round);
    return is_unknown;
}

bool dli_redlock_flush(void *state) {
    dli_redlock_t *redlock = state;
    bool look_again = false;
    do {
        redlock->has_begun = false;
        for (size_t i = 0; i < redlock->n; i++) {
            look_again |= dli_mux_flush(&redlock->nodes[i].redis.mux);
        }
        dli_rounds_expire(redlock);
    } while (redlock->has_begun); /* what an answer has led to */
    return look_again || (!LIST_EMPTY(&redlock->rounds) && redlock->due_ns < redlock->polled_to_ns);
}

static void attach(void *state, const dli_backend_env_t *core) {
    dli_redlock_t *redlock = state;
    redlock->core = core;
}

static bool owes(void *state, const void *driver_hold) {
    const dli_redlock_hold_t *hold = driver_hold;
    (void)state;
    return hold->round != NULL && hold->round->is_freed && hold->round->maybe != 0;
}

const dli_backend_t dli_redlock_backend = {
    .driver = &dli_redlock_driver,
    .attach = attach,
    .begin = dli_redlock_begin,
    .withdraw = dli_redlock_withdraw,
    .flush = dli_redlock_flush,
    .owes = owes,
};
