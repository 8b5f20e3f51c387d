/* init.c - marks servers that have never been in use, so that they vote at once; says what a user needs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/report.h"
#include "round.h"

/* ---- printing --------------------------------------------------------------------------------------- */

/* Nothing is connected. */
static void print_plan(const dli_report_t *report, const dli_redlock_t *redlock) {
    if (redlock->voting.quarantines) {
        dli_say(
            report, DL_FINDING_NOTE, "init",
            "each of the %zu servers gets the key %s with the run id of its process, and loses the key %s, "
            "so "
            "that it votes at once instead of after %" PRId64
            " ms (max_lease); refused where locks have been taken already",
            redlock->n, redlock->voting.marker_key, redlock->voting.quarantine_key,
            redlock->voting.max_lease_ms);
    } else {
        dli_say(report, DL_FINDING_NOTE, "init",
                "nothing has to be done: quarantine is off, so every node votes");
    }
    dli_redis_print_rule(&redlock->nodes[0].redis, report->fn, report->arg);
}

/* ---- looking ---------------------------------------------------------------------------------------- */

/* What is known of a node. */
typedef struct look {
    dli_exchange_t exchange; /* its err: why it is not known, or could not be marked */
    dli_commands_t commands;
    redisReply *replies[3];
    dli_node_t *node;
    char name[32];
    dli_exchange_t *listing;
    bool is_known, votes;
    const char *trace; /* of its having been in use; NULL: none */
} look_t;

static bool is_text(const redisReply *reply) {
    return reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_NIL;
}

static void judge(look_t *look) {
    const dli_redlock_t *redlock = look->node->redlock;
    const dli_facts_t facts = dli_redis_facts(&look->node->redis);
    redisReply *const *replies = look->replies;
    int64_t left_ms = 0;
    for (size_t j = 0; j < 3; j++) {
        if (j == 1 ? !dli_reply_int(replies[j], &left_ms) : !is_text(replies[j])) {
            (void)dli_redis_fail(&look->node->redis, NULL, replies[j], &look->exchange.err);
            return;
        }
    }
    bool is_marked = replies[0]->type == REDIS_REPLY_STRING &&
                     (redlock->voting.durable || strcmp(replies[0]->str, facts.run_id) == 0);
    look->trace = replies[2]->type == REDIS_REPLY_STRING ? "a token counter" : NULL;
    look->votes = is_marked && left_ms == -2;
    look->is_known = true;
}

static int find_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    look_t *look = arg;
    (void)name;
    (void)info;
    look->trace = look->trace != NULL ? look->trace : "a lock";
    return 1;
}

/* For node_timeout at most. */
static void ask(look_t *look, bool writes, uint64_t deadline_ns) {
    look->exchange = (dli_exchange_t){.redis = &look->node->redis,
                                      .commands = &look->commands,
                                      .replies = look->replies,
                                      .writes = writes,
                                      .deadline_ns = dli_round_until(look->node->redlock, deadline_ns)};
    dli_exchange_begin(&look->exchange);
}

static void ask_standing(look_t *look, uint64_t deadline_ns) {
    const dli_redlock_t *redlock = look->node->redlock;
    dli_commands_add_words(&look->commands, "GET", redlock->voting.marker_key, NULL);
    dli_commands_add_words(&look->commands, "PTTL", redlock->voting.quarantine_key, NULL);
    dli_commands_add_words(&look->commands, "GET", look->node->redis.token_key, NULL);
    ask(look, false, deadline_ns);
}

/* As far as it is not known yet whether it has been in use. */
static void ask_locks(look_t *look, uint64_t deadline_ns) {
    const dli_listed_t listed = {"", 0, find_lock, look, deadline_ns, deadline_ns};
    if (look->exchange.status == DL_OK) {
        judge(look);
    }
    dli_replies_free(look->replies, 3);
    look->listing = look->is_known ? dli_listing_begin(&look->node->redis, &listed) : NULL;
}

/* All of them at once. */
static void look_at_all(look_t *looks, size_t n, uint64_t deadline_ns) {
    dli_exchange_t *exchanges[DLI_NODES_MAX];
    size_t listings = 0;
    for (size_t i = 0; i < n; i++) {
        ask_standing(&looks[i], deadline_ns);
        exchanges[i] = &looks[i].exchange;
    }
    dli_exchanges_run(exchanges, n);
    for (size_t i = 0; i < n; i++) {
        ask_locks(&looks[i], deadline_ns);
        if (looks[i].listing != NULL) {
            exchanges[listings++] = looks[i].listing;
        }
    }
    dli_exchanges_run(exchanges, listings);
    for (size_t i = 0; i < n; i++) {
        look_t *look = &looks[i];
        look->is_known = look->is_known && dli_listing_end(look->listing, &look->exchange.err) == DL_OK;
    }
}

/* ---- marking ---------------------------------------------------------------------------------------- */

static void ask_mark(look_t *look, uint64_t deadline_ns) {
    const dli_redlock_t *redlock = look->node->redlock;
    const dli_facts_t facts = dli_redis_facts(&look->node->redis);
    dli_commands_clear(&look->commands);
    dli_commands_add_words(&look->commands, "SET", redlock->voting.marker_key, facts.run_id, NULL);
    dli_commands_add_words(&look->commands, "DEL", redlock->voting.quarantine_key, NULL);
    ask(look, true, deadline_ns);
}

static void report_mark(const dli_report_t *report, look_t *look) {
    const dli_node_t *node = look->node;
    dl_status_t status = look->exchange.status;
    for (size_t i = 0; i < 2 && status == DL_OK; i++) {
        int expected = i == 0 ? REDIS_REPLY_STATUS : REDIS_REPLY_INTEGER;
        if (look->replies[i]->type != expected) {
            status = dli_redis_fail(&node->redis, NULL, look->replies[i], &look->exchange.err);
        }
    }
    if (status == DL_OK) {
        dli_say(report, DL_FINDING_OK, look->name, "marked: %s votes at once", node->redis.endpoint.label);
    } else {
        dli_say(report, DL_FINDING_ERROR, look->name, "could not be marked: %s", look->exchange.err.message);
    }
}

/* ---- deciding --------------------------------------------------------------------------------------- */

/* A server that joins others which have been in use may stand for one that had locks: it has to wait until
 * they have ended. Which is so as soon as one node has been in use, or cannot be looked at. true: mark it. */
static bool may_be_marked(const dli_report_t *report, const look_t *look, const look_t *used,
                          const look_t *unknown) {
    const dli_node_t *node = look->node;
    if (!look->is_known) {
        dli_say(report, DL_FINDING_ERROR, look->name, "could not be looked at: %s",
                look->exchange.err.message);
    } else if (look->votes) {
        dli_say(report, DL_FINDING_OK, look->name, "nothing to do: %s has a vote",
                node->redis.endpoint.label);
    } else if (used != NULL) {
        dli_say(
            report, DL_FINDING_ERROR, look->name,
            "not marked: these servers have been in use (node %zu has %s), so this one may have forgotten "
            "locks that are held; it votes %s (max_lease) after the first lock that asks it",
            used->node->index + 1, used->trace, dl_driver_duration(node->redlock->voting.max_lease_ms).text);
    } else if (unknown != NULL) {
        dli_say(
            report, DL_FINDING_ERROR, look->name,
            "not marked: node %zu could not be looked at, so these servers may have been in use; run this "
            "again when it is there",
            unknown->node->index + 1);
    } else {
        return true;
    }
    return false;
}

/* Those that may be. */
static void mark_some(const dli_report_t *report, look_t *looks, size_t n, uint64_t deadline_ns) {
    const look_t *unknown = NULL, *used = NULL;
    dli_exchange_t *exchanges[DLI_NODES_MAX] = {NULL};
    look_t *asked[DLI_NODES_MAX];
    size_t count = 0;
    for (size_t i = n; i-- > 0;) {
        unknown = !looks[i].is_known ? &looks[i] : unknown;
        used = looks[i].trace != NULL ? &looks[i] : used;
    }
    for (size_t i = 0; i < n; i++) {
        if (may_be_marked(report, &looks[i], used, unknown)) {
            ask_mark(&looks[i], deadline_ns);
            asked[count] = &looks[i];
            exchanges[count++] = &looks[i].exchange;
        }
    }
    dli_exchanges_run(exchanges, count);
    for (size_t i = 0; i < count; i++) {
        report_mark(report, asked[i]);
    }
}

static dl_status_t mark_all(const dli_report_t *report, dli_redlock_t *redlock, uint64_t deadline_ns,
                            dl_error_t *err) {
    look_t *looks = calloc(redlock->n, sizeof *looks);
    if (looks == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    for (size_t i = 0; i < redlock->n; i++) {
        looks[i].node = &redlock->nodes[i];
        (void)snprintf(looks[i].name, sizeof looks[i].name, "node %zu", i + 1);
    }
    look_at_all(looks, redlock->n, deadline_ns);
    mark_some(report, looks, redlock->n, deadline_ns);
    for (size_t i = 0; i < redlock->n; i++) {
        dli_replies_free(looks[i].replies, 3);
        dli_commands_free(&looks[i].commands);
    }
    free(looks);
    return DL_OK;
}

dl_status_t dli_redlock_init(const dl_option_value_t *options, const dl_driver_env_t *env, unsigned flags,
                             dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    const dli_report_t report = {.fn = fn, .arg = arg};
    dl_status_t status;
    dli_redlock_t *redlock = calloc(1, sizeof *redlock);
    if (redlock == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    if ((flags & DL_INIT_PRINT) != 0) {
        status = dli_redlock_configure(redlock, options, env, err);
        if (status == DL_OK) {
            print_plan(&report, redlock);
        }
    } else {
        status = dli_redlock_open(redlock, options, env, deadline_ns, err);
        if (status == DL_OK && !redlock->voting.quarantines) {
            dli_say(&report, DL_FINDING_OK, "init", "nothing to do: quarantine is off, so every node votes");
        } else if (status == DL_OK) {
            status = mark_all(&report, redlock, deadline_ns, err);
        }
    }
    dli_redlock_close(redlock, 0);
    free(redlock);
    return status;
}
