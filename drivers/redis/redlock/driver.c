/* driver.c - the driver redlock: its table; opening and closing a client of several servers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
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
    dl_error_t said[DLI_NODES_MAX];
    size_t good;       /* of them */
    uint64_t first_ns; /* once there is a majority, the others have until then */
} opening_t;

static void take_loading(dli_exchange_t *exchange) {
    const dli_node_t *node = (const dli_node_t *)(const void *)exchange->redis; /* its first part */
    opening_t *opening = (opening_t *)(void *)(exchange - node->index);
    dl_error_t *said = &opening->said[node->index];
    said->status = dli_redis_judge_first(exchange, said);
    opening->good += said->status == DL_OK;
    for (size_t i = 0; opening->good == node->redlock->quorum && i < node->redlock->n; i++) {
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
        if (opening->said[i].status == DL_ECONFIG && redlock->nodes[i].is_twin) {
            *err = opening->said[i];
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
        status = dli_nodes_need_majority(redlock, opening.said, err);
    }
    core->lock(core->core);
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        dli_node_tell(&redlock->nodes[i], opening.said[i].status, &opening.said[i]);
    }
    core->unlock(core->core);
    for (size_t i = 0; i < redlock->n; i++) {
        if (status == DL_OK && opening.said[i].status == DL_OK) {
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
            redis->mux.meets = dli_node_meet;
            redis->mux.meets_arg = &redlock->nodes[i];
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

static dl_status_t check_name(void *state, const char *name, size_t name_len, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    return dli_redis_check_name(&redlock->nodes[0].redis, name, name_len, err);
}

/* "Redis 7.0.15 at 3 nodes: redis://a:6379/0, ..." */
static void describe(void *state, char *text, size_t size) {
    const dli_redlock_t *redlock = state;
    dli_facts_t facts = {.version_number = 0};
    for (size_t i = 0; i < redlock->n && facts.version_number == 0; i++) {
        facts = dli_redis_facts(&redlock->nodes[i].redis);
    }
    int len = snprintf(text, size,
                       "%s%s%s on %zu nodes:", strcmp(facts.product, "valkey") == 0 ? "Valkey" : "Redis",
                       facts.version[0] != '\0' ? " " : "", facts.version, redlock->n);
    for (size_t i = 0; i < redlock->n && len >= 0 && (size_t)len < size; i++) {
        const char *label = redlock->nodes[i].redis.endpoint.label;
        bool fits = (size_t)len + strlen(label) + sizeof ", , ..." <= size;
        len += snprintf(text + len, size - (size_t)len, "%s %s", i > 0 ? "," : "", fits ? label : "...");
        if (!fits) {
            break;
        }
    }
}

static uint32_t caps_off(void *state) {
    const dli_redlock_t *redlock = state;
    return redlock->fences ? 0 : DL_CAP_FENCE;
}

const dl_driver_t dli_redlock_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "redlock",
    .summary = "a string key on a majority of independent Redis or Valkey servers",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY,
    .state_size = sizeof(dli_redlock_t),
    .hold_size = sizeof(dli_redlock_hold_t),
    .options = dli_redlock_options,
    .open = dli_redlock_open,
    .close = dli_redlock_close,
    .drop = dli_redlock_drop,
    .watch = dli_redlock_watch,
    .listen = dli_redlock_listen,
    .unwatch = dli_redlock_unwatch,
    .list = dli_redlock_list,
    .check_name = check_name,
    .describe = describe,
    .caps_off = caps_off,
    .check = dli_redlock_check,
    .init = dli_redlock_init,
    .listen_fds = dli_redlock_listen_fds,
};
