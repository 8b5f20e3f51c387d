/* settings.c - the options of several independent servers, and what is made of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "redlock.h"

static_assert((int)DLI_REDLOCK_OPT_OWN == (int)DLI_REDIS_OPT_USERNAME, "the rest has the same places");

const dl_option_t dli_redlock_options[] = {
    [DLI_REDLOCK_OPT_NODES] = {.name = "nodes",
                               .type = DL_OPTION_LIST,
                               .required = 1,
                               .min = DLI_NODES_MIN,
                               .max = DLI_NODES_MAX,
                               .help =
                                   "The servers: URLs as redis-string has them, best an odd number; each a "
                                   "primary of its own, best on a host of its own"},
    DLI_REDIS_NUMBER(DLI_REDLOCK_OPT_NODE_TIMEOUT, "node_timeout", DL_OPTION_DURATION, "500ms", 10, 60000,
                     "A node that takes longer for one request counts as down for it"),
    DLI_REDIS_NUMBER(DLI_REDLOCK_OPT_MAX_LEASE, "max_lease", DL_OPTION_DURATION, "1m", 1000, DL_LEASE_MAX_MS,
                     "No lease may be longer; a node that lost its data has no vote for so long; the same "
                     "for all clients"),
    DLI_REDIS_SWITCH(DLI_REDLOCK_OPT_FENCING, "fencing", "true",
                     "Draw a fencing token with each lock, which costs a round trip to a majority"),
    DLI_REDIS_SWITCH(DLI_REDLOCK_OPT_QUARANTINE, "quarantine", "true",
                     "Keep nodes that were restarted or emptied from voting for max_lease; off is unsafe"),
    DLI_REDIS_SWITCH(DLI_REDLOCK_OPT_DURABLE, "durable", "false",
                     "Every node syncs each write to its disk (appendfsync always): a restart is no reason "
                     "for a quarantine"),
    DLI_REDIS_COMMON_OPTIONS("\"dlock:\"", DLI_REDIS_WITHOUT_EFFECT "one connection to each node"),
    {.name = NULL},
};

/* ---- the nodes -------------------------------------------------------------------------------------- */

/* The database makes no difference: its server is what may fail. */
static bool is_same_place(const dli_endpoint_t *a, const dli_endpoint_t *b) {
    if (a->path != NULL || b->path != NULL) {
        return a->path != NULL && b->path != NULL && strcmp(a->path, b->path) == 0;
    }
    return strcasecmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

static dl_status_t refuse_same_place(const dli_redlock_t *redlock, size_t i, dl_error_t *err) {
    for (size_t j = 0; j < i; j++) {
        if (is_same_place(&redlock->nodes[j].redis.endpoint, &redlock->nodes[i].redis.endpoint)) {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "nodes %zu and %zu are the same server: %s; list 3 or 5 different ones",
                                  j + 1, i + 1, redlock->nodes[i].redis.endpoint.label);
        }
    }
    return DL_OK;
}

static dl_status_t make_node(dli_redlock_t *redlock, size_t i, const dl_option_value_t *values,
                             dl_error_t *err) {
    dli_node_t *node = &redlock->nodes[i];
    dl_error_t why;
    node->redlock = redlock;
    node->index = i;
    node->redis.env = redlock->env;
    node->redis.layout = &redlock->layout;
    node->redis.voting = &redlock->voting;
    node->redis.core = redlock->core;
    dl_status_t status = dli_redis_read_names(&node->redis, values, err);
    if (status != DL_OK) {
        return status;
    }
    status = dli_redis_make_endpoint(&node->redis, values[DLI_REDLOCK_OPT_NODES].list[i], values, -1, &why);
    if (status != DL_OK) {
        /* It names the option of a driver for one server. */
        size_t skip = strncmp(why.message, "url: ", 5) == 0 ? 5 : 0;
        return dl_driver_fail(err, status, why.native, "nodes: the URL of node %zu: %s", i + 1,
                              why.message + skip);
    }
    return refuse_same_place(redlock, i, err);
}

/* ---- all of it -------------------------------------------------------------------------------------- */

dl_status_t dli_redlock_configure(dli_redlock_t *redlock, const dl_option_value_t *values,
                                  const dl_driver_env_t *env, dl_error_t *err) {
    size_t n = values[DLI_REDLOCK_OPT_NODES].list_len;
    redlock->env = env;
    redlock->core = redlock->core != NULL ? redlock->core : &dli_redis_no_core;
    int64_t node_timeout_ms = values[DLI_REDLOCK_OPT_NODE_TIMEOUT].number;
    redlock->node_timeout_ms =
        node_timeout_ms < redlock->env->call_timeout_ms ? node_timeout_ms : redlock->env->call_timeout_ms;
    redlock->voting.max_lease_ms = values[DLI_REDLOCK_OPT_MAX_LEASE].number;
    redlock->fences = values[DLI_REDLOCK_OPT_FENCING].number != 0;
    redlock->voting.quarantines = values[DLI_REDLOCK_OPT_QUARANTINE].number != 0;
    redlock->voting.durable = values[DLI_REDLOCK_OPT_DURABLE].number != 0;
    if (n < DLI_NODES_MIN || n > DLI_NODES_MAX) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "nodes names %zu servers; %d to %d are needed", n,
                              DLI_NODES_MIN, DLI_NODES_MAX);
    }
    redlock->n = n;
    redlock->quorum = n / 2 + 1;
    redlock->layout = dli_redis_string_layout;
    redlock->layout.driver = "redlock";
    redlock->layout.also_publish = 0;
    if (env->lease_ms > redlock->voting.max_lease_ms) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "lease (%s) may not be longer than max_lease (%s)",
                              dl_driver_duration(env->lease_ms).text,
                              dl_driver_duration(redlock->voting.max_lease_ms).text);
    }
    dl_status_t status = DL_OK;
    for (size_t i = 0; i < n && status == DL_OK; i++) {
        status = make_node(redlock, i, values, err);
    }
    const char *token_key = redlock->nodes[0].redis.token_key;
    (void)snprintf(redlock->voting.marker_key, sizeof redlock->voting.marker_key, "%s:node", token_key);
    (void)snprintf(redlock->voting.quarantine_key, sizeof redlock->voting.quarantine_key, "%s:quarantine",
                   token_key);
    return status;
}
