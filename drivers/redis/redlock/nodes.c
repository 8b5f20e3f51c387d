/* nodes.c - who the nodes are: distinct servers, up or down, with a vote or without. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tally.h"

#include <errno.h>
#include <string.h>

dl_status_t dli_nodes_need_majority(const dli_redlock_t *redlock, const dl_error_t said[], dl_error_t *err) {
    dli_ballot_t ballots[DLI_NODES_MAX];
    dli_tally_t tally;
    char reasons[DLI_REASONS_MAX];
    int native = 0; /* the first */
    for (size_t i = redlock->n; i-- > 0;) {
        bool is_good = said[i].status == DL_OK;
        ballots[i] = (dli_ballot_t){
            .vote = is_good ? DLI_VOTE_YES : DLI_VOTE_NONE, .status = said[i].status, .why = said[i].message};
        native = is_good ? native : said[i].native;
    }
    dli_tally_count(&tally, ballots, redlock->n, redlock->quorum);
    if (tally.yes >= tally.quorum) {
        return DL_OK;
    }
    dl_status_t status = dli_tally_reasons(&tally, reasons);
    return dl_driver_fail(err, status, native, "%zu of %zu nodes can be used, %zu are needed; %s", tally.yes,
                          tally.n, tally.quorum, reasons);
}

/* ---- distinct --------------------------------------------------------------------------------------- */

/* Which other node has this process; NULL: none. One that was refused for this very reason does not count, or
 * neither of two had a vote. */
static const dli_node_t *find_twin(const dli_node_t *node) {
    const dli_redlock_t *redlock = node->redlock;
    for (size_t i = 0; i < redlock->n; i++) {
        const dli_node_t *other = &redlock->nodes[i];
        if (other != node && !other->is_twin && strcmp(other->run_id, node->run_id) == 0) {
            return other;
        }
    }
    return NULL;
}

static void report_twin(dli_node_t *node, const dli_node_t *twin) {
    const dli_redlock_t *redlock = node->redlock;
    if (twin != NULL) {
        dli_redis_report(redlock->env, redlock->core, DL_LOG_WARNING,
                         "nodes %zu (%s) and %zu (%s) are the same server: node %zu has no vote",
                         twin->index + 1, twin->redis.endpoint.label, node->index + 1,
                         node->redis.endpoint.label, node->index + 1);
    } else {
        dli_redis_report(redlock->env, redlock->core, DL_LOG_INFO,
                         "node %zu (%s) is a server of its own again", node->index + 1,
                         node->redis.endpoint.label);
    }
}

/* A node's server is what its last connection found, twin or not: so two nodes whose servers change places
 * are told apart again as soon as both have been met. */
dl_status_t dli_node_meet(void *arg, const dli_facts_t *facts, dl_error_t *err) {
    dli_node_t *node = arg;
    memcpy(node->run_id, facts->run_id, sizeof node->run_id);
    bool is_secret = node->run_id[0] == '\0';
    const dli_node_t *twin = is_secret ? NULL : find_twin(node);
    if (node->is_twin != (twin != NULL)) {
        node->is_twin = twin != NULL;
        report_twin(node, twin);
    }
    if (is_secret) {
        return dl_driver_fail(err, DL_EAUTH, 0,
                              "%s: this user may not ask who the server is (INFO), so it could be that of "
                              "another node, and a restart would not be noticed",
                              node->redis.endpoint.label);
    }
    if (twin == NULL) {
        return DL_OK;
    }
    const dli_node_t *first = twin->index < node->index ? twin : node, *next = first == twin ? node : twin;
    return dl_driver_fail(
        err, DL_ECONFIG, 0, "nodes %zu and %zu are the same server: %s and %s; list 3 or 5 different ones",
        first->index + 1, next->index + 1, first->redis.endpoint.label, next->redis.endpoint.label);
}

/* Without the mutex. */
static dl_status_t meet_alone(void *arg, const dli_facts_t *facts, dl_error_t *err) {
    dli_node_t *node = arg;
    const dli_backend_env_t *core = node->redlock->core;
    core->lock(core->core);
    dl_status_t status = dli_node_meet(node, facts, err);
    core->unlock(core->core);
    return status;
}

dl_status_t dli_node_open_alone(dli_node_t *node, dli_redis_t **alone, dl_error_t *err) {
    dl_status_t status = dli_redis_open_alone(&node->redis, alone, err);
    if (status == DL_OK) {
        (*alone)->mux.meets = meet_alone;
        (*alone)->mux.meets_arg = node;
    }
    return status;
}

/* ---- up or down ------------------------------------------------------------------------------------- */

/* How this process fares says nothing about a node; of twins was told when they were met. */
static bool is_of_the_node(const dli_node_t *node, dl_status_t status, const dl_error_t *why) {
    return status == DL_OK || (status != DL_ENOMEM && status != DL_ECANCELED && why->native != EAGAIN &&
                               !(status == DL_ECONFIG && node->is_twin));
}

static bool is_for_want_of_descriptors(const dl_error_t *why) {
    return why->native == EMFILE || why->native == ENFILE;
}

void dli_node_tell(dli_node_t *node, dl_status_t status, const dl_error_t *why) {
    const dli_redlock_t *redlock = node->redlock;
    bool was_down = node->is_down, is_there = status == DL_OK;
    if (!is_of_the_node(node, status, why)) {
        return;
    }
    /* Nodes without a vote still renew and free. */
    bool votes_again =
        is_there && node->excluded_until_ns != 0 && redlock->env->now_ns() >= node->excluded_until_ns;
    node->is_down = !is_there;
    node->excluded_until_ns = votes_again ? 0 : node->excluded_until_ns;
    if (!is_there && !was_down) {
        dli_redis_report(redlock->env, redlock->core, DL_LOG_WARNING, "node %zu %s: %s", node->index + 1,
                         is_for_want_of_descriptors(why) ? "cannot be asked" : "is down", why->message);
    } else if (is_there && (was_down || votes_again)) {
        dli_redis_report(redlock->env, redlock->core, DL_LOG_INFO, "node %zu (%s) %s again", node->index + 1,
                         node->redis.endpoint.label, votes_again ? "has a vote" : "is there");
    }
}

void dli_node_tell_excluded(dli_node_t *node, int64_t left_ms) {
    const dli_redlock_t *redlock = node->redlock;
    uint64_t now_ns = redlock->env->now_ns();
    bool is_new = node->excluded_until_ns == 0, is_endless = left_ms < 0;
    node->excluded_until_ns = is_endless ? DL_NO_DEADLINE : now_ns + (uint64_t)left_ms * NS_PER_MS;
    node->is_down = false;
    if (is_new) {
        dli_redis_report(redlock->env, redlock->core, DL_LOG_WARNING,
                         "node %zu (%s) has no vote for %s, as it may have forgotten locks; " DLI_NEW_NODES,
                         node->index + 1, node->redis.endpoint.label,
                         is_endless ? "ever (its quarantine has no end)" : dl_driver_duration(left_ms).text);
    }
}
