/* driver.c - opening and closing a client of several independent servers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "round.h"

/* ---- the first question ----------------------------------------------------------------------------- */

static const dli_script_t *const scripts[] = {
    &dli_script_string_inspect,  &dli_script_redlock_acquire, &dli_script_redlock_raise,
    &dli_script_redlock_release, &dli_script_string_acquire,
};
#define SCRIPTS (sizeof scripts / sizeof scripts[0])
#define REPLIES DLI_FIRST_REPLIES(SCRIPTS)

/* What is known of the nodes so far. */
typedef struct opening {
    dli_exchange_t exchanges[DLI_NODES_MAX]; /* first */
    redisReply *replies[DLI_NODES_MAX][REPLIES];
    dli_verdicts_t said;
    uint64_t first_ns; /* once there is a majority, the others have until then */
} opening_t;

static void take_loading(dli_exchange_t *exchange) {
    const dli_node_t *node = (const dli_node_t *)(const void *)exchange->redis; /* its first part */
    opening_t *opening = (opening_t *)(void *)(exchange - node->index);
    dl_status_t status = dli_redis_judge_first(exchange, &opening->said.errors[node->index]);
    opening->said.statuses[node->index] = status;
    opening->said.good |= status == DL_OK ? 1u << node->index : 0;
    for (size_t i = 0; dli_nodes_count(opening->said.good) == node->redlock->quorum && i < node->redlock->n;
         i++) {
        opening->exchanges[i].deadline_ns = opening->first_ns;
    }
}

/* Every node gets node_timeout. While there is no majority, those that are merely slow get the time that
 * making a connection may take. */
static void ask_all(dli_redlock_t *redlock, opening_t *opening, uint64_t deadline_ns) {
    uint64_t patience_ns = (uint64_t)redlock->nodes[0].redis.endpoint.connect_timeout_ms * NS_PER_MS;
    uint64_t until_ns = redlock->env->now_ns() + patience_ns;
    dli_exchange_t *exchanges[DLI_NODES_MAX];
    dli_commands_t commands = {0};
    const dli_slice_t keys[] = {dli_slice(redlock->nodes[0].redis.token_key),
                                dli_slice(redlock->voting.marker_key),
                                dli_slice(redlock->voting.quarantine_key)};
    dli_redis_ask_first(&commands, scripts, SCRIPTS, keys, redlock->voting.quarantines ? 3 : 1);
    opening->first_ns = dli_round_until(redlock, deadline_ns);
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    for (size_t i = 0; i < redlock->n; i++) {
        exchanges[i] = &opening->exchanges[i];
        *exchanges[i] =
            (dli_exchange_t){.redis = &redlock->nodes[i].redis,
                             .commands = &commands,
                             .replies = opening->replies[i],
                             .deadline_ns = until_ns > opening->first_ns ? until_ns : opening->first_ns,
                             .then = take_loading};
        dli_exchange_begin(exchanges[i]);
    }
    dli_exchanges_run(exchanges, redlock->n);
    dli_commands_free(&commands);
}

/* ---- the outcome ------------------------------------------------------------------------------------ */

/* Two nodes with one server are a mistake in the configuration, whether or not a majority is left. */
static dl_status_t refuse_twins(const dli_redlock_t *redlock, const opening_t *opening, dl_error_t *err) {
    for (size_t i = 0; i < redlock->n; i++) {
        if (opening->said.statuses[i] == DL_ECONFIG && redlock->nodes[i].is_twin) {
            *err = opening->said.errors[i];
            return DL_ECONFIG;
        }
    }
    return DL_OK;
}

static dl_status_t meet_all(dli_redlock_t *redlock, uint64_t deadline_ns, dl_error_t *err) {
    const dli_backend_env_t *core = redlock->core;
    opening_t opening = {.first_ns = 0};
    ask_all(redlock, &opening, deadline_ns);
    dl_status_t status = refuse_twins(redlock, &opening, err);
    if (status == DL_OK) {
        status = dli_nodes_need_majority(redlock, &opening.said, err);
    }
    core->lock(core->core);
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        dli_node_tell(&redlock->nodes[i], opening.said.statuses[i], &opening.said.errors[i]);
    }
    core->unlock(core->core);
    for (size_t i = 0; i < redlock->n; i++) {
        if (status == DL_OK && opening.said.statuses[i] == DL_OK) {
            dli_redis_warn_of_eviction(&redlock->nodes[i].redis, opening.replies[i][0]);
        }
        dli_replies_free(opening.replies[i], REPLIES);
    }
    return status;
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

static void warn_of_even_number(const dli_redlock_t *redlock) {
    if (redlock->n % 2 == 0) {
        dli_redis_report(
            redlock->env, &dli_redis_no_core, DL_LOG_WARNING,
            "%zu nodes are an even number: no more of them may fail than of %zu, and more have to "
            "agree; leave one out, or add one",
            redlock->n, redlock->n - 1);
    }
}

static dl_status_t meet_server(void *arg, const dli_facts_t *facts, dl_error_t *err) {
    return dli_node_meet(arg, facts->run_id, err);
}

dl_status_t dli_redlock_connect(dli_redlock_t *redlock, dli_mux_options_t options, dl_error_t *err) {
    dl_status_t status = DL_OK;
    redlock->due_ns = DL_NO_DEADLINE;
    TAILQ_INIT(&redlock->telling);
    options.is_quiet = true; /* dli_node_tell */
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        dli_redis_t *redis = &redlock->nodes[i].redis;
        options.label_key = redis->label_key;
        status = dli_subscriber_open(&redis->endpoint, redlock->env, &redis->subscriber, err);
        status = status == DL_OK ? dli_redis_make_mux(redis, &options, err) : status;
        if (status == DL_OK) {
            redis->mux->meets = meet_server;
            redis->mux->meets_arg = &redlock->nodes[i];
        }
    }
    if (status == DL_OK && !dli_redlock_keep_renewals(redlock)) {
        status = dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    return status;
}

dl_status_t dli_redlock_open(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                             uint64_t deadline_ns, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    dli_mux_options_t options;
    dl_status_t status = dli_redlock_configure(redlock, values, env, err);
    status = status == DL_OK ? dli_redis_read_sharing(&options, values, err) : status;
    status = status == DL_OK ? dli_redlock_connect(redlock, options, err) : status;
    if (status == DL_OK) {
        warn_of_even_number(redlock);
        status = meet_all(redlock, deadline_ns, err);
    }
    return status;
}

void dli_redlock_close(void *state, int forked) {
    dli_redlock_t *redlock = state;
    if (redlock->env == NULL) {
        return;
    }
    if (!forked) {
        dli_rounds_abandon(redlock);
    }
    for (size_t i = 0; i < redlock->n; i++) {
        dli_redis_close(&redlock->nodes[i].redis, forked);
    }
    if (!forked && redlock->spare.round != NULL) {
        dli_round_leave(redlock->spare.round);
        redlock->spare.round = NULL;
    }
    redlock->env = NULL;
}

/* Without the mutex. */
void dli_redlock_drop(void *state, void *driver_hold) {
    const dli_redlock_t *redlock = state;
    dli_redlock_hold_t *hold = driver_hold;
    const dli_backend_env_t *core = redlock->core;
    if (hold->round != NULL) {
        core->lock(core->core);
        dli_round_leave(hold->round);
        core->unlock(core->core);
        hold->round = NULL;
    }
}
