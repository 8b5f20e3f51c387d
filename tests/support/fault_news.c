/* fault_news.c - what the inner driver says to the core: passed on, or lost, and what cases ask of it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "support/fault.h"

/* What the inner driver calls, perhaps with its mutexes held: nothing here waits, and no hook runs. */
static void pass_woken(void *state_, const char *name, size_t name_len, int hears) {
    fault_state_t *state = state_;
    ct_mode_t mode = fault_note_woken(state, name, name_len, hears);
    if (mode != CT_LOSE_REPLY) {
        state->env->woken(state->env->core, name, name_len, hears != 0 && mode != CT_FAIL_BEFORE);
    }
}

static void pass_report(void *state_, dl_log_level_t level, const char *text) {
    fault_state_t *state = state_;
    state->env->report(state->env->core, level, text);
}

static void pass_count(void *state_, dl_count_t what, uint64_t n) {
    fault_state_t *state = state_;
    state->env->count(state->env->core, what, n);
}

void fault_lend_env(fault_state_t *state) {
    state->inner_env = *state->env;
    state->inner_env.core = state;
    state->inner_env.woken = pass_woken;
    state->inner_env.report = pass_report;
    state->inner_env.count = pass_count;
}

/* ---- what cases call ----------------------------------------------------------------------------------- */

typedef struct hearing {
    int client;
    const char *name;
    int looked, hears;
} hearing_t;

/* From the newest record back: a busy answer, and before it the news that releases are heard. */
static int look_for_hearing(const ct_call_t *call, void *arg) {
    hearing_t *h = arg;
    if ((h->client != FAULT_ANY_CLIENT && h->client != call->client) || strcmp(h->name, call->name) != 0) {
        return 0;
    }
    h->looked |= call->op == CT_OP_TRY && call->end_ns != 0 && call->status == DL_EBUSY;
    h->hears = call->op == CT_OP_WOKEN && h->looked && call->status == DL_OK && call->applied == 0;
    return call->op == CT_OP_WOKEN || call->op == CT_OP_UNWATCH;
}

void ct_await_hearing(ct_t *ct, dl_client_t *client, const char *name, int64_t within_ms) {
    hearing_t h = {.client = fault_number_of(client), .name = name};
    int64_t until_ms = ct_ran_ms(ct) + within_ms;
    while (h.looked = h.hears = 0, fault_each_record(look_for_hearing, &h), !h.hears) {
        CT_CHECKF(ct_ran_ms(ct) < until_ms, "no waiter hears of '%s' within %lld ms", name,
                  (long long)within_ms);
        ct_sleep_ms(ct, 1);
    }
}

void ct_woken(ct_t *ct, dl_client_t *client, const char *name, int hears) {
    fault_state_t *state = fault_state_of(fault_number_of(client));
    CT_CHECKF(state != NULL, "no such client");
    state->inner_env.woken(state, name, strlen(name), hears);
}
