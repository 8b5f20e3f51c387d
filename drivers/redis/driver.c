/* driver.c - opening and closing a client of one server: options, connections, scripts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

/* ---- options ---------------------------------------------------------------------------------------- */

dl_status_t dli_redis_read_names(dli_redis_t *redis, const dl_option_value_t *values, dl_error_t *err) {
    int also_at = redis->layout->also_publish;
    const char *prefix =
        values[DLI_REDIS_OPT_PREFIX].string != NULL ? values[DLI_REDIS_OPT_PREFIX].string : "";
    const char *token_key = values[DLI_REDIS_OPT_TOKEN_KEY].string;
    const char *also_publish = also_at != 0 && values[also_at].string != NULL ? values[also_at].string : "";
    if (strlen(prefix) > DLI_PREFIX_MAX) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "prefix is longer than %d bytes", DLI_PREFIX_MAX);
    }
    if (token_key == NULL || token_key[0] == '\0' || strlen(token_key) > DLI_PREFIX_MAX) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "token_key has to have 1 to %d bytes", DLI_PREFIX_MAX);
    }
    if (strlen(also_publish) > DLI_PREFIX_MAX) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "also_publish is longer than %d bytes", DLI_PREFIX_MAX);
    }
    memcpy(redis->also_publish, also_publish, strlen(also_publish) + 1);
    redis->prefix_len = strlen(prefix);
    memcpy(redis->prefix, prefix, redis->prefix_len + 1);
    memcpy(redis->token_key, token_key, strlen(token_key) + 1);
    snprintf(redis->label_key, sizeof redis->label_key, "%s" DLI_LABEL_INFIX "%.36s", token_key,
             redis->env->client_uuid);
    if (dli_redis_is_own_key(redis, prefix, redis->prefix_len) && redis->prefix_len > strlen(token_key)) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "prefix begins with token_key and '" DLI_LABEL_INFIX
                              "', where clients write who they are");
    }
    snprintf(redis->prefix_shown, sizeof redis->prefix_shown, "%s",
             dl_driver_shown(redis->env, values, DLI_REDIS_OPT_PREFIX));
    snprintf(redis->token_key_shown, sizeof redis->token_key_shown, "%s",
             dl_driver_shown(redis->env, values, DLI_REDIS_OPT_TOKEN_KEY));
    return DL_OK;
}

static dl_status_t read_replicas(dli_redis_t *redis, const dl_option_value_t *values, dl_error_t *err) {
    const char *shortfall = values[DLI_REDIS_OPT_REPLICA_SHORTFALL].string;
    redis->min_replicas = values[DLI_REDIS_OPT_MIN_REPLICAS].number;
    redis->replica_timeout_ms = values[DLI_REDIS_OPT_REPLICA_TIMEOUT].number;
    redis->warns_of_shortfall = shortfall != NULL && strcmp(shortfall, "warn") == 0;
    if (redis->min_replicas > 0 && redis->replica_timeout_ms >= redis->env->call_timeout_ms) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "replica_timeout (%s) has to be less than call_timeout (%s)",
                              dl_driver_duration(redis->replica_timeout_ms).text,
                              dl_driver_duration(redis->env->call_timeout_ms).text);
    }
    return DL_OK;
}

dl_status_t dli_redis_read_sharing(dli_mux_options_t *options, const dl_option_value_t *values,
                                   dl_error_t *err) {
    int64_t max_total = values[DLI_REDIS_OPT_MAX_TOTAL].number,
            min_idle = values[DLI_REDIS_OPT_MIN_IDLE].number;
    const dl_option_value_t *given = &values[DLI_REDIS_OPT_MAX_IDLE];
    int64_t max_idle = given->is_set ? given->number : max_total;
    bool tests = values[DLI_REDIS_OPT_TEST_ON_BORROW].number != 0; /* one that was idle at all */
    *options = (dli_mux_options_t){
        .idle_timeout_ms = values[DLI_REDIS_OPT_IDLE_TIMEOUT].number,
        .idle_check_ms = tests ? 0 : values[DLI_REDIS_OPT_IDLE_CHECK].number,
    };
    if (min_idle > max_idle || max_idle > max_total) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "min_idle (%lld), max_idle (%lld), max_total (%lld): none may be larger than "
                              "the one after it",
                              (long long)min_idle, (long long)max_idle, (long long)max_total);
    }
    return DL_OK;
}

dl_status_t dli_redis_make_endpoint(dli_redis_t *redis, const char *url, const dl_option_value_t *values,
                                    int64_t database, dl_error_t *err) {
    const dl_driver_env_t *env = redis->env;
    const dli_endpoint_extras_t extras = {
        .username = values[DLI_REDIS_OPT_USERNAME].string,
        .username_shown = dl_driver_shown(env, values, DLI_REDIS_OPT_USERNAME),
        .password = values[DLI_REDIS_OPT_PASSWORD].string,
        .database = database,
        .connect_timeout_ms = values[DLI_REDIS_OPT_CONNECT_TIMEOUT].number,
        .keepalive_ms = values[DLI_REDIS_OPT_KEEPALIVE].number,
        .tls_ca = values[DLI_REDIS_OPT_TLS_CA].string,
        .tls_cert = values[DLI_REDIS_OPT_TLS_CERT].string,
        .tls_key = values[DLI_REDIS_OPT_TLS_KEY].string,
        .tls_ca_shown = dl_driver_shown(env, values, DLI_REDIS_OPT_TLS_CA),
        .tls_cert_shown = dl_driver_shown(env, values, DLI_REDIS_OPT_TLS_CERT),
        .tls_key_shown = dl_driver_shown(env, values, DLI_REDIS_OPT_TLS_KEY),
        .tls_server_name = values[DLI_REDIS_OPT_TLS_SERVER_NAME].string,
        .tls_verify = values[DLI_REDIS_OPT_TLS_VERIFY].number != 0,
    };
    return dli_endpoint_make(&redis->endpoint, url, &extras, err);
}

dl_status_t dli_redis_configure(dli_redis_t *redis, const dl_option_value_t *values, dl_error_t *err) {
    const dl_option_value_t *database = &values[DLI_REDIS_OPT_DATABASE];
    dl_status_t status = dli_redis_read_names(redis, values, err);
    return status == DL_OK ? dli_redis_make_endpoint(redis, values[DLI_REDIS_OPT_URL].string, values,
                                                     database->is_set ? database->number : -1, err)
                           : status;
}

/* ---- the first exchange ----------------------------------------------------------------------------- */

void dli_redis_ask_first(dli_commands_t *commands, const dli_script_t *const *scripts, size_t n,
                         const dli_slice_t *keys, size_t key_count) {
    dli_commands_add_words(commands, "INFO", "memory", NULL);
    for (size_t i = 0; i < n; i++) {
        dli_commands_add_words(commands, "SCRIPT", "LOAD", scripts[i]->source, NULL);
    }
    dli_script_encode(commands, scripts[0], false, key_count, key_count, keys);
}

dl_status_t dli_redis_judge_first(const dli_exchange_t *x, dl_error_t *err) {
    const dli_redis_t *redis = x->redis;
    if (x->status != DL_OK) {
        *err = x->err;
        return x->status;
    }
    const redisReply *run = x->replies[x->commands->count - 1];
    if (run->type != REDIS_REPLY_ERROR || dli_redis_is_foreign(run) || dli_reply_is_error(run, "NOSCRIPT")) {
        return DL_OK;
    }
    dl_status_t status = dli_redis_fail(redis, NULL, run, err);
    dl_error_t why = *err;
    return dl_driver_fail(err, status, why.native, "running a script on the token key '%s': %s",
                          redis->token_key_shown, why.message);
}

void dli_redis_warn_of_eviction(const dli_redis_t *redis, const redisReply *info) {
    char policy[24];
    if (info->type == REDIS_REPLY_STRING && dli_info_number(info->str, "maxmemory", 0) > 0 &&
        dli_info_text(info->str, "maxmemory_policy", policy, sizeof policy) &&
        strcmp(policy, "noeviction") != 0) {
        dli_redis_report(redis->env, &dli_redis_no_core, DL_LOG_WARNING,
                         "%s drops locks that are held when its memory is full (maxmemory-policy %s); "
                         "noeviction keeps them",
                         redis->endpoint.label, policy);
    }
}

/* Connects a pipe. The first of them asks the first question. */
static dl_status_t greet(dli_redis_t *redis, size_t pipe, uint64_t deadline_ns, dl_error_t *err) {
    const dli_backend_env_t *core = redis->core;
    const dli_layout_t *layout = redis->layout;
    const dli_script_t *const scripts[] = {layout->inspect, layout->acquire, layout->release};
    enum { SCRIPTS = sizeof scripts / sizeof scripts[0] };
    const dli_slice_t key = dli_slice(redis->token_key);
    redisReply *replies[DLI_FIRST_REPLIES(SCRIPTS)] = {NULL};
    dli_commands_t commands = {0};
    if (pipe == 0) {
        dli_redis_ask_first(&commands, scripts, SCRIPTS, &key, 1);
    } else {
        dli_script_encode(&commands, layout->inspect, false, 1, 1, &key);
    }
    dli_exchange_t x = {.redis = redis,
                        .pipe = (uint32_t)pipe,
                        .commands = &commands,
                        .replies = replies,
                        .deadline_ns = deadline_ns};
    dli_exchange_t *exchange = &x;
    core->lock(core->core);
    dli_exchange_begin(&x);
    core->unlock(core->core);
    dli_exchanges_run(&exchange, 1);
    dl_status_t status = dli_redis_judge_first(&x, err);
    if (status == DL_OK && pipe == 0) {
        dli_redis_warn_of_eviction(redis, replies[0]);
    }
    dli_replies_free(replies, DLI_FIRST_REPLIES(SCRIPTS));
    dli_commands_free(&commands);
    return status;
}

dl_status_t dli_redis_make_mux(dli_redis_t *redis, const dli_mux_options_t *options, dl_error_t *err) {
    /* One is for renewals. Each acquire that waits for replicas has its connection to itself. */
    size_t count = (redis->min_replicas > 0 ? 3 : 1) * redis->connections + 1;
    return dli_mux_open(&redis->mux, &redis->endpoint, redis->env, redis->core, options, count, err);
}

dli_facts_t dli_redis_facts(const dli_redis_t *redis) {
    redis->core->lock(redis->core->core);
    dli_facts_t facts = redis->mux.pipes[0].facts;
    redis->core->unlock(redis->core->core);
    return facts;
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

/* What is not as it is by default, for dlock check. */
static void note_ignored(dli_redis_t *redis, const dl_option_value_t *values) {
    const struct {
        bool is_given;
        const char *name;
    } without_effect[] = {
        {values[DLI_REDIS_OPT_MAX_IDLE].is_set, "max_idle"},
        {values[DLI_REDIS_OPT_MIN_IDLE].number > 0, "min_idle"},
        {values[DLI_REDIS_OPT_TEST_WHILE_IDLE].number != 0, "test_while_idle"},
        {values[DLI_REDIS_OPT_BORROW_TIMEOUT].number != DLI_REDIS_BORROW_MS, "borrow_timeout"},
    };
    size_t len = 0;
    for (size_t i = 0; i < sizeof without_effect / sizeof without_effect[0]; i++) {
        if (without_effect[i].is_given) {
            len += (size_t)snprintf(redis->ignored + len, sizeof redis->ignored - len, "%s%s",
                                    len > 0 ? ", " : "", without_effect[i].name);
        }
    }
}

dl_status_t dli_redis_open(dli_redis_t *redis, const dli_layout_t *layout, const dl_option_value_t *values,
                           const dl_driver_env_t *env, uint64_t deadline_ns, dl_error_t *err) {
    dli_mux_options_t options;
    redis->env = env;
    redis->core = redis->core != NULL ? redis->core : &dli_redis_no_core;
    redis->layout = layout;
    note_ignored(redis, values);
    dl_status_t status = dli_redis_configure(redis, values, err);
    status = status == DL_OK ? read_replicas(redis, values, err) : status;
    status = status == DL_OK ? dli_redis_read_sharing(&options, values, err) : status;
    if (status == DL_OK) {
        int64_t connections = values[DLI_REDIS_OPT_CONNECTIONS].number;
        int64_t max_total = values[DLI_REDIS_OPT_MAX_TOTAL].number;
        redis->connections = (size_t)(connections < max_total ? connections : max_total);
        options.label_key = redis->label_key;
        status = dli_redis_make_mux(redis, &options, err);
    }
    status = status == DL_OK ? greet(redis, 0, deadline_ns, err) : status;
    /* When a lock is held, renewals have to have a connection, whether or not descriptors are left by then.
     */
    status = status == DL_OK ? greet(redis, redis->connections, deadline_ns, err) : status;
    return status == DL_OK ? dli_subscriber_open(&redis->endpoint, env, &redis->subscriber, err) : status;
}

void dli_redis_close(void *state, int forked) {
    dli_redis_t *redis = state;
    if (redis->env == NULL) {
        return;
    }
    dli_subscriber_close(redis->subscriber, forked != 0);
    dli_mux_close(&redis->mux, forked != 0);
    dli_endpoint_free(&redis->endpoint);
    redis->subscriber = NULL;
    redis->env = NULL;
}

static bool is_key(const char *key, size_t len, const char *text) {
    return len == strlen(text) && memcmp(key, text, len) == 0;
}

bool dli_redis_is_own_key(const dli_redis_t *redis, const char *key, size_t len) {
    size_t label = dli_redis_label_prefix(redis).len;
    return is_key(key, len, redis->token_key) ||
           (len >= label && memcmp(key, redis->label_key, label) == 0) ||
           (redis->voting != NULL &&
            (is_key(key, len, redis->voting->marker_key) || is_key(key, len, redis->voting->quarantine_key)));
}

dl_status_t dli_redis_check_name(void *state, const char *name, size_t name_len, dl_error_t *err) {
    const dli_redis_t *redis = state;
    dli_key_t key;
    dli_redis_key(redis, name, name_len, &key);
    if (dli_redis_is_own_key(redis, key.at, key.len)) {
        return dl_driver_fail(err, DL_EINVAL, 0,
                              "no lock can be at '%s', nor at the driver's other keys, which begin with that",
                              redis->token_key_shown);
    }
    return DL_OK;
}

void dli_redis_describe(void *state, char *text, size_t size) {
    const dli_redis_t *redis = state;
    const dli_facts_t facts = dli_redis_facts(redis);
    const char *product = strcmp(facts.product, "valkey") == 0 ? "Valkey" : "Redis";
    snprintf(text, size, "%s%s%s at %s", product, facts.version[0] != '\0' ? " " : "", facts.version,
             redis->endpoint.label);
}
