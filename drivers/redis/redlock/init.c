/* init.c - marks servers that have never been in use, so that they vote at once; says what a user needs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "round.h"

#define NS_PER_MS ((uint64_t)1000000)

typedef struct report {
    dl_finding_fn fn;
    void *arg;
} report_t;

static void say(const report_t *report, dl_finding_level_t level, const dli_node_t *node, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

static void say(const report_t *report, dl_finding_level_t level, const dli_node_t *node, const char *format,
                ...) {
    char text[1024], subject[24] = "init";
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (node != NULL) {
        (void)snprintf(subject, sizeof subject, "node %zu", node->index + 1);
    }
    report->fn(report->arg, level, subject, text);
}

/* ---- printing --------------------------------------------------------------------------------------- */

/* Nothing is connected. */
static void print_plan(const report_t *report, const dli_redlock_t *redlock) {
    const char *const more_keys[] = {redlock->marker_key, redlock->quarantine_key, NULL};
    if (redlock->quarantines) {
        say(report, DL_FINDING_NOTE, NULL,
            "each of the %zu servers gets the key %s with the run id of its process, and loses the key %s, "
            "so "
            "that it votes at once instead of after %" PRId64
            " ms (max_lease); refused where locks have been taken already",
            redlock->n, redlock->marker_key, redlock->quarantine_key, redlock->max_lease_ms);
    } else {
        say(report, DL_FINDING_NOTE, NULL, "nothing has to be done: quarantine is off, so every node votes");
    }
    dli_redis_print_rule(&redlock->nodes[0].redis, more_keys, report->fn, report->arg);
}

/* ---- looking ---------------------------------------------------------------------------------------- */

typedef enum standing {
    STANDING_UNKNOWN,
    STANDING_VOTES,
    STANDING_WAITS, /* it has no vote */
} standing_t;

/* What is known of the nodes. */
typedef struct survey {
    dli_redlock_t *redlock;
    standing_t at[DLI_NODES_MAX];
    dl_error_t errors[DLI_NODES_MAX]; /* UNKNOWN */
    const dli_node_t *used;           /* one that has been in use; NULL: none */
    const char *trace;                /* what shows it */
} survey_t;

static void encode_look(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                        bool with_source, dli_commands_t *commands) {
    (void)run_id;
    (void)with_source;
    dli_commands_add_words(commands, "GET", round->redlock->marker_key, NULL);
    dli_commands_add_words(commands, "PTTL", round->redlock->quarantine_key, NULL);
    dli_commands_add_words(commands, "GET", node->redis.token_key, NULL);
}

static const dli_question_t looking = {
    .what = "what a node is", .lane = DLI_LANE_CALLS, .intent = DLI_READ, .encode = encode_look};

static bool never_settled(const dli_round_t *round, const void *arg) {
    (void)round;
    (void)arg;
    return false;
}

static bool is_text(const redisReply *reply) {
    return reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_NIL;
}

/* DL_OK: the answers make sense, and were taken in. */
static dl_status_t read_answers(survey_t *survey, size_t i, redisReply *const *replies) {
    dli_node_t *node = &survey->redlock->nodes[i];
    char run_id[sizeof node->run_id];
    int64_t left_ms;
    for (size_t j = 0; j < 3; j++) {
        if (!is_text(replies[j]) && !dli_reply_int(replies[j], &left_ms)) {
            return dli_redis_fail(&node->redis, NULL, replies[j], &survey->errors[i]);
        }
    }
    if (!is_text(replies[0]) || !dli_reply_int(replies[1], &left_ms) || !is_text(replies[2])) {
        return dli_reply_unexpected(NULL, "GET", &survey->errors[i]);
    }
    pthread_mutex_lock(&survey->redlock->mutex);
    memcpy(run_id, node->run_id, sizeof run_id);
    pthread_mutex_unlock(&survey->redlock->mutex);
    bool is_marked = replies[0]->type == REDIS_REPLY_STRING &&
                     (survey->redlock->durable || strcmp(replies[0]->str, run_id) == 0);
    survey->at[i] = is_marked && left_ms == -2 ? STANDING_VOTES : STANDING_WAITS;
    if (survey->used == NULL && replies[2]->type == REDIS_REPLY_STRING) {
        survey->used = node;
        survey->trace = "a token counter";
    }
    return DL_OK;
}

typedef struct search {
    const dli_redlock_t *redlock;
    bool found;
} search_t;

static int find_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    search_t *search = arg;
    (void)info;
    search->found = !dli_redlock_is_own_key(search->redlock, name, strlen(name));
    return search->found;
}

/* Are there locks? */
static dl_status_t look_for_locks(survey_t *survey, size_t i, uint64_t deadline_ns) {
    dli_node_t *node = &survey->redlock->nodes[i];
    search_t search = {.redlock = survey->redlock};
    dl_status_t status =
        dli_redis_list(&node->redis, "", 0, find_lock, &search, deadline_ns, &survey->errors[i]);
    if (search.found && survey->used == NULL) {
        survey->used = node;
        survey->trace = "a lock";
    }
    return status;
}

static dl_status_t look_at_all(survey_t *survey, uint64_t deadline_ns, dl_error_t *err) {
    dli_redlock_t *redlock = survey->redlock;
    dli_round_t *round = dli_round_new(redlock, &looking, 0, 3);
    if (round == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    (void)dli_round_run(round, dli_nodes_all(redlock), deadline_ns, NULL, never_settled, NULL);
    for (size_t i = 0; i < redlock->n; i++) {
        const dli_part_t *part = &round->parts[i];
        survey->errors[i] = part->err;
        dl_status_t status = part->exchange.status;
        if (status == DL_OK) {
            status = read_answers(survey, i, part->replies);
        }
        if (status == DL_OK) {
            status = look_for_locks(survey, i, deadline_ns);
        }
        if (status != DL_OK) {
            survey->at[i] = STANDING_UNKNOWN;
        }
    }
    dli_round_drop(round);
    return DL_OK;
}

/* ---- marking ---------------------------------------------------------------------------------------- */

static void encode_mark(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                        bool with_source, dli_commands_t *commands) {
    const dli_slice_t argv[] = {dli_slice(round->redlock->marker_key),
                                dli_slice(round->redlock->quarantine_key), dli_slice(run_id)};
    dli_script_call_t call = {&dli_script_redlock_mark, 2, 3, argv};
    (void)node;
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t marking = {
    .what = "a mark", .lane = DLI_LANE_CALLS, .intent = DLI_PLAIN, .encode = encode_mark};

static dl_status_t mark(const report_t *report, dli_redlock_t *redlock, uint32_t nodes, uint64_t deadline_ns,
                        dl_error_t *err) {
    dli_round_t *round = dli_round_new(redlock, &marking, 0, 1);
    if (round == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    (void)dli_round_run(round, nodes, deadline_ns, NULL, never_settled, NULL);
    for (size_t i = 0; i < redlock->n; i++) {
        const dli_part_t *part = &round->parts[i];
        const redisReply *reply = dli_part_reply(part);
        if ((nodes >> i & 1) == 0) {
            continue;
        }
        if (reply != NULL && reply->type == REDIS_REPLY_ARRAY) {
            say(report, DL_FINDING_OK, part->node, "marked: %s votes at once",
                part->node->redis.endpoint.label);
            continue;
        }
        dl_error_t why = part->err;
        if (reply != NULL) {
            (void)dli_redis_fail(&part->node->redis, NULL, reply, &why);
        }
        say(report, DL_FINDING_ERROR, part->node, "could not be marked: %s", why.message);
    }
    dli_round_drop(round);
    return DL_OK;
}

/* ---- deciding --------------------------------------------------------------------------------------- */

/* A server that joins others which have been in use may stand for one that had locks: it has to wait until
 * they have ended. Which is so as soon as one node has been in use, or cannot be looked at. true: mark it. */
static bool may_be_marked(const report_t *report, const survey_t *survey, size_t i,
                          const dli_node_t *unknown) {
    const dli_redlock_t *redlock = survey->redlock;
    const dli_node_t *node = &redlock->nodes[i];
    if (survey->at[i] == STANDING_UNKNOWN) {
        say(report, DL_FINDING_ERROR, node, "could not be looked at: %s", survey->errors[i].message);
    } else if (survey->at[i] == STANDING_VOTES) {
        say(report, DL_FINDING_OK, node, "nothing to do: %s has a vote", node->redis.endpoint.label);
    } else if (survey->used != NULL) {
        say(report, DL_FINDING_ERROR, node,
            "not marked: these servers have been in use (node %zu has %s), so this one may have forgotten "
            "locks that are held; it votes %s (max_lease) after the first lock that asks it",
            survey->used->index + 1, survey->trace, dl_driver_duration(redlock->max_lease_ms).text);
    } else if (unknown != NULL) {
        say(report, DL_FINDING_ERROR, node,
            "not marked: node %zu could not be looked at, so these servers may have been in use; run this "
            "again when it is there",
            unknown->index + 1);
    } else {
        return true;
    }
    return false;
}

static dl_status_t mark_all(const report_t *report, dli_redlock_t *redlock, uint64_t deadline_ns,
                            dl_error_t *err) {
    survey_t survey = {.redlock = redlock};
    const dli_node_t *unknown = NULL;
    uint32_t nodes = 0;
    dl_status_t status = look_at_all(&survey, deadline_ns, err);
    if (status != DL_OK) {
        return status;
    }
    for (size_t i = 0; i < redlock->n; i++) {
        unknown = unknown == NULL && survey.at[i] == STANDING_UNKNOWN ? &redlock->nodes[i] : unknown;
    }
    for (size_t i = 0; i < redlock->n; i++) {
        nodes |= may_be_marked(report, &survey, i, unknown) ? 1u << i : 0;
    }
    return nodes != 0 ? mark(report, redlock, nodes, deadline_ns, err) : DL_OK;
}

dl_status_t dli_redlock_init(const dl_option_value_t *options, const dl_driver_env_t *env, unsigned flags,
                             dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    const report_t report = {fn, arg};
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
        if (status == DL_OK && !redlock->quarantines) {
            say(&report, DL_FINDING_OK, NULL, "nothing to do: quarantine is off, so every node votes");
        } else if (status == DL_OK) {
            status = mark_all(&report, redlock, deadline_ns, err);
        }
    }
    dli_redlock_close(redlock, 0);
    free(redlock);
    return status;
}
