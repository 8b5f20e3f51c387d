/* driver.c - opening and closing a client of several independent servers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "round.h"

#define NS_PER_MS ((uint64_t)1000000)

/* ---- the first question ----------------------------------------------------------------------------- */

static const dli_script_t *const scripts[] = {
    &dli_script_redlock_acquire, &dli_script_redlock_raise,  &dli_script_redlock_release,
    &dli_script_redlock_fill,    &dli_script_string_inspect, &dli_script_string_renew,
    &dli_script_redlock_force,
};
#define SCRIPTS (sizeof scripts / sizeof scripts[0])

/* Loads the scripts, and runs one that only reads on the keys that every lock needs: whether this user may do
 * so is better known now than at the first lock. All on the connection of the renewals: when a lock is held
 * it has to be there, whether or not descriptors and memory are left by then. */
static void encode_loading(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                           bool with_source, dli_commands_t *commands) {
    const dli_redlock_t *redlock = round->redlock;
    dli_slice_t keys[] = {dli_slice(node->redis.token_key), dli_slice(redlock->marker_key),
                          dli_slice(redlock->quarantine_key)};
    size_t n = redlock->quarantines ? 3 : 1;
    dli_script_call_t look = {.script = &dli_script_string_inspect, .keys = n, .argc = n, .argv = keys};
    (void)run_id;
    for (size_t i = 0; i < SCRIPTS; i++) {
        dli_commands_add_words(commands, "SCRIPT", "LOAD", scripts[i]->source, NULL);
    }
    dli_script_encode(commands, &look, with_source);
}

static const dli_question_t loading = {
    .what = "the scripts", .lane = DLI_LANE_RENEWALS, .intent = DLI_READ, .encode = encode_loading};

/* What is known of the nodes so far. */
typedef struct opening {
    dli_redlock_t *redlock;
    dli_verdicts_t said;
    uint32_t slow; /* had no answer within node_timeout, so may have one later */
} opening_t;

static bool never_settled(const dli_round_t *round, const void *arg) {
    (void)round;
    (void)arg;
    return false;
}

static void judge_part(opening_t *opening, const dli_round_t *round, size_t i) {
    const dli_part_t *part = &round->parts[i];
    const dli_redlock_t *redlock = opening->redlock;
    uint64_t now_ns = redlock->env->now_ns();
    dl_status_t status = part->exchange.status;
    opening->said.errors[i] = part->err;
    if (status == DL_OK) {
        status = dli_redis_judge_loading(&redlock->nodes[i].redis, scripts, SCRIPTS, part->replies,
                                         &opening->said.errors[i]);
    }
    bool is_slow =
        status == DL_EIO && now_ns - round->began_ns >= (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    opening->said.statuses[i] = status;
    opening->said.good |= status == DL_OK ? 1u << i : 0;
    opening->slow |= is_slow ? 1u << i : 0;
}

/* Asks these nodes, each for node_timeout. */
static dl_status_t ask(opening_t *opening, uint32_t nodes, uint64_t deadline_ns, dl_error_t *err) {
    dli_round_t *round = dli_round_new(opening->redlock, &loading, 0, SCRIPTS + 1);
    if (round == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    (void)dli_round_run(round, nodes, deadline_ns, NULL, never_settled, NULL);
    opening->slow = 0;
    for (size_t i = 0; i < opening->redlock->n; i++) {
        if ((nodes >> i & 1) != 0) {
            judge_part(opening, round, i);
        }
    }
    dli_round_drop(round);
    return DL_OK;
}

/* ---- the outcome ------------------------------------------------------------------------------------ */

/* Two nodes with one server are a mistake in the configuration, whether or not a majority is left. */
static dl_status_t refuse_twins(const opening_t *opening, dl_error_t *err) {
    for (size_t i = 0; i < opening->redlock->n; i++) {
        if (opening->said.statuses[i] == DL_ECONFIG && opening->redlock->nodes[i].is_twin) {
            *err = opening->said.errors[i];
            return DL_ECONFIG;
        }
    }
    return DL_OK;
}

/* Waits for every node for node_timeout. While there is no majority, those that were merely slow get the time
 * that making a connection may take. */
static dl_status_t meet_all(dli_redlock_t *redlock, uint64_t deadline_ns, dl_error_t *err) {
    const dl_driver_env_t *env = redlock->env;
    opening_t opening = {.redlock = redlock};
    uint64_t patience_ns = (uint64_t)redlock->nodes[0].redis.endpoint.connect_timeout_ms * NS_PER_MS;
    uint64_t until_ns = env->now_ns() + patience_ns;
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    dl_status_t status = ask(&opening, dli_nodes_all(redlock), deadline_ns, err);
    while (status == DL_OK && dli_nodes_count(opening.said.good) < redlock->quorum && opening.slow != 0 &&
           env->now_ns() < until_ns) {
        status = ask(&opening, opening.slow, until_ns, err);
    }
    if (status == DL_OK) {
        status = refuse_twins(&opening, err);
    }
    if (status == DL_OK) {
        status = dli_nodes_need_majority(redlock, &opening.said, err);
    }
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        dli_node_tell(&redlock->nodes[i], opening.said.statuses[i], &opening.said.errors[i]);
        dli_redis_warn_of_eviction(&redlock->nodes[i].redis);
    }
    return status;
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

static void warn_of_even_number(const dli_redlock_t *redlock) {
    char text[192];
    if (redlock->n % 2 == 0) {
        (void)snprintf(text, sizeof text,
                       "%zu nodes are an even number: no more of them may fail than of %zu, and more have to "
                       "agree; leave one out, or add one",
                       redlock->n, redlock->n - 1);
        redlock->env->report(redlock->env->core, DL_LOG_WARNING, text);
    }
}

static dl_status_t open_links(dli_redlock_t *redlock, const dl_option_value_t *values, dl_error_t *err) {
    dli_pool_options_t pool;
    dl_status_t status = dli_redis_read_pool(&pool, &values[DLI_REDLOCK_OPT_MAX_TOTAL], err);
    pool.is_quiet = true; /* dli_node_tell */
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        dli_redis_t *redis = &redlock->nodes[i].redis;
        pool.label_key = redis->label_key;
        status = dli_link_open(&redis->endpoint, &pool, redlock->env, &redis->link, err);
        if (status == DL_OK) {
            status = dli_subscriber_open(&redis->endpoint, redlock->env, &redis->subscriber, err);
        }
    }
    return status;
}

dl_status_t dli_redlock_open(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                             uint64_t deadline_ns, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    dl_status_t status = dli_redlock_configure(redlock, values, env, err);
    if (status == DL_OK) {
        status = open_links(redlock, values, err);
    }
    if (status == DL_OK) {
        warn_of_even_number(redlock);
        status = dli_stragglers_open(redlock, &redlock->stragglers, err);
    }
    return status == DL_OK ? meet_all(redlock, deadline_ns, err) : status;
}

void dli_redlock_close(void *state, int forked) {
    dli_redlock_t *redlock = state;
    if (redlock->env == NULL) {
        return;
    }
    dli_stragglers_close(redlock->stragglers, forked != 0);
    redlock->stragglers = NULL;
    if (!forked) {
        dli_round_free(redlock->spare);
        dli_round_free(redlock->renewal_spare);
    }
    for (size_t i = 0; i < redlock->n; i++) {
        dli_redis_close(&redlock->nodes[i].redis, forked);
    }
    if (!forked) { /* in a child another thread may have had it */
        pthread_mutex_destroy(&redlock->mutex);
    }
    redlock->env = NULL;
}
