/* check.c - says which guarantee these servers give together, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "drivers/redis/check.h"
#include "redlock.h"

#define NS_PER_MS ((uint64_t)1000000)

/* ---- what is said of one node, kept until its turn ---------------------------------------------------- */

typedef struct line {
    dl_finding_level_t level;
    char subject[64], text[1024];
    bool init_may_help;
} line_t;

/* Nodes are looked at side by side, each on a thread; findings come on the caller's. */
typedef struct look {
    const dli_redlock_t *redlock;
    dli_check_t check;
    dli_check_node_t node;
    bool votes, is_used, has_thread; /* is_used: it has a token counter */
    pthread_t thread;
    dl_status_t status;
    dl_error_t err;
    line_t *lines;
    size_t n, cap;
    bool out_of_memory;
} look_t;

static void keep(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    look_t *look = arg;
    if (look->n == look->cap) {
        size_t cap = look->cap > 0 ? 2 * look->cap : 16;
        line_t *lines = realloc(look->lines, cap * sizeof *lines);
        if (lines == NULL) {
            look->out_of_memory = true;
            return;
        }
        look->lines = lines;
        look->cap = cap;
    }
    line_t *line = &look->lines[look->n++];
    *line = (line_t){.level = level};
    (void)snprintf(line->subject, sizeof line->subject, "%s", subject);
    (void)snprintf(line->text, sizeof line->text, "%s", text);
}

/* ---- has it a vote? ---------------------------------------------------------------------------------- */

/* The quarantine's rest, or -2: none. */
static bool say_vote(look_t *look, const redisReply *marker, const redisReply *quarantine) {
    const dli_check_t *check = &look->check;
    char run_id[41] = "";
    int64_t left_ms;
    (void)dli_check_text(check, "run_id", run_id, sizeof run_id);
    bool is_new = marker->type == REDIS_REPLY_NIL;
    bool is_other = marker->type == REDIS_REPLY_STRING && strcmp(marker->str, run_id) != 0;
    if (!dli_reply_int(quarantine, &left_ms) || (!is_new && marker->type != REDIS_REPLY_STRING)) {
        dli_check_say(check, DL_FINDING_ERROR, "vote", "it cannot be told whether it has one: %s",
                      marker->type == REDIS_REPLY_ERROR       ? marker->str
                      : quarantine->type == REDIS_REPLY_ERROR ? quarantine->str
                                                              : "the answer makes no sense");
        return false;
    }
    if (left_ms != -2) {
        dli_check_say(check, DL_FINDING_WARNING, "vote",
                      "none for another %s (quarantine): it is new, or was restarted or emptied, and may "
                      "have forgotten locks that are held",
                      dl_driver_duration(left_ms).text);
    } else if (is_new || (is_other && !look->node.durable)) {
        dli_check_say(check, DL_FINDING_WARNING, "vote", "none for %s (max_lease) from the next lock on: %s",
                      dl_driver_duration(look->node.max_lease_ms).text,
                      is_new ? "it is new, or was emptied" : "it was restarted, or is another server");
    } else {
        dli_check_say(check, DL_FINDING_OK, "vote", "it has one%s",
                      is_other ? ", although it was restarted since it was met last: durable says that it "
                                 "forgot nothing"
                               : "");
        return true;
    }
    if (look->n > 0) { /* else there was no memory for it */
        look->lines[look->n - 1].init_may_help = true;
    }
    return false;
}

static bool has_vote(look_t *look) {
    redisReply *replies[3] = {NULL};
    dli_commands_t commands = {0};
    dl_error_t err;
    bool votes = false;
    dli_commands_add_words(&commands, "GET", look->node.marker_key, NULL);
    dli_commands_add_words(&commands, "PTTL", look->node.quarantine_key, NULL);
    dli_commands_add_words(&commands, "GET", look->check.redis->token_key, NULL);
    if (dli_check_ask(&look->check, &commands, replies, &err) == DL_OK) {
        look->is_used = replies[2]->type != REDIS_REPLY_NIL;
        votes = say_vote(look, replies[0], replies[1]);
    } else {
        dli_check_say(&look->check, DL_FINDING_ERROR, "vote", "it cannot be told whether it has one: %s",
                      err.message);
    }
    dli_check_free(replies, 3);
    dli_commands_free(&commands);
    return votes;
}

/* ---- one node ---------------------------------------------------------------------------------------- */

static void *look_at(void *arg) {
    look_t *look = arg;
    dli_check_t *check = &look->check;
    dli_check_time_t time;
    redisReply *info;
    /* One that hangs must not use up the time that is needed to try a lock. */
    const dli_redlock_t *redlock = look->redlock;
    uint64_t until_ns = redlock->env->now_ns() + (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    uint64_t deadline_ns = check->deadline_ns;
    check->deadline_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    look->status = dli_check_begin(check, &info, &look->err);
    check->deadline_ns = deadline_ns;
    if (look->status != DL_OK) {
        return NULL;
    }
    look->votes = !look->node.quarantines || has_vote(look);
    dli_check_first_look(check, &time);
    dli_check_settings(check);
    look->votes = dli_check_rights(check) && look->votes;
    dli_check_last_look(check, &time);
    dli_check_free(&info, 1);
    check->info = NULL;
    return NULL;
}

static void prepare(look_t *look, dli_redlock_t *redlock, size_t i, uint64_t deadline_ns) {
    look->redlock = redlock;
    look->node = (dli_check_node_t){.durable = redlock->durable,
                                    .quarantines = redlock->quarantines,
                                    .max_lease_ms = redlock->max_lease_ms,
                                    .marker_key = redlock->marker_key,
                                    .quarantine_key = redlock->quarantine_key};
    (void)snprintf(look->node.name, sizeof look->node.name, "node %zu", i + 1);
    look->check = (dli_check_t){.redis = &redlock->nodes[i].redis,
                                .fn = keep,
                                .arg = look,
                                .deadline_ns = deadline_ns,
                                .node = &look->node};
}

/* `dlock init` refuses where one of them has been in use, or cannot be looked at. */
static bool may_init_help(const look_t *looks, size_t n) {
    bool may = true;
    for (size_t i = 0; i < n; i++) {
        may = may && looks[i].status == DL_OK && !looks[i].is_used;
    }
    return may;
}

static void say_lines(const look_t *look, const dli_check_t *check, bool init_helps) {
    for (size_t i = 0; i < look->n; i++) {
        line_t *line = &look->lines[i];
        size_t len = strlen(line->text);
        if (line->init_may_help && init_helps) {
            (void)snprintf(line->text + len, sizeof line->text - len, "; " DLI_NEW_NODES);
        }
        check->fn(check->arg, line->level, line->subject, line->text);
    }
}

/* All of them, then says what was found, in their order. */
static void look_at_all(dli_redlock_t *redlock, look_t *looks, const dli_check_t *check) {
    const dl_driver_env_t *env = redlock->env;
    for (size_t i = 0; i < redlock->n; i++) {
        prepare(&looks[i], redlock, i, check->deadline_ns);
        looks[i].has_thread =
            i + 1 < redlock->n && env->thread_start(&looks[i].thread, look_at, &looks[i]) == 0;
        if (!looks[i].has_thread) {
            (void)look_at(&looks[i]);
        }
    }
    for (size_t i = 0; i < redlock->n; i++) {
        if (looks[i].has_thread) {
            env->thread_join(looks[i].thread);
        }
    }
    for (size_t i = 0; i < redlock->n; i++) {
        say_lines(&looks[i], check, may_init_help(looks, redlock->n));
    }
}

/* ---- all of them together ---------------------------------------------------------------------------- */

static void report_number(const dli_redlock_t *redlock, const dli_check_t *check) {
    bool is_even = redlock->n % 2 == 0;
    dli_check_say(check, is_even ? DL_FINDING_WARNING : DL_FINDING_OK, "nodes",
                  "%zu servers, %zu have to agree, so %zu may be down%s", redlock->n, redlock->quorum,
                  redlock->n - redlock->quorum, is_even ? "; one fewer would bear as much, for less" : "");
}

static bool is_here(const dli_endpoint_t *e) {
    return e->host == NULL || strcasecmp(e->host, "localhost") == 0 || strncmp(e->host, "127.", 4) == 0 ||
           strcmp(e->host, "::1") == 0;
}

static bool is_same_host(const dli_endpoint_t *a, const dli_endpoint_t *b) {
    return (is_here(a) && is_here(b)) || (!is_here(a) && !is_here(b) && strcasecmp(a->host, b->host) == 0);
}

static void report_hosts(const dli_redlock_t *redlock, const dli_check_t *check) {
    bool apart = true;
    for (size_t i = 1; i < redlock->n; i++) {
        size_t j = 0;
        const dli_endpoint_t *e = &redlock->nodes[i].redis.endpoint;
        while (j < i && !is_same_host(&redlock->nodes[j].redis.endpoint, e)) {
            j++;
        }
        if (j < i) {
            dli_check_say(check, DL_FINDING_WARNING, "hosts",
                          "nodes %zu and %zu are on one host (%s): they fail together", j + 1, i + 1,
                          is_here(e) ? "this one" : e->host);
            apart = false;
        }
    }
    if (apart) {
        dli_check_say(check, DL_FINDING_OK, "hosts",
                      "each node has another name of a host; two names may "
                      "still be one machine, which cannot be seen from here");
    }
}

static void report_times(const dli_redlock_t *redlock, const dli_check_t *check) {
    const dl_driver_env_t *env = redlock->env;
    /* A claim, the write-back of its token; or a claim, and giving it back. */
    bool is_tight = 2 * redlock->node_timeout_ms > env->call_timeout_ms;
    dli_check_say(check, is_tight ? DL_FINDING_WARNING : DL_FINDING_OK, "node_timeout",
                  "%s of a call_timeout of %s%c a lock takes %s to each node%s",
                  dl_driver_duration(redlock->node_timeout_ms).text,
                  dl_driver_duration(env->call_timeout_ms).text, is_tight ? ':' : ';',
                  redlock->fences ? "two requests" : "one request, and a failed one another,",
                  is_tight ? ", so where nodes hang a call ends before it can give back what it got; make it "
                             "less than half"
                           : "");
    bool is_long = redlock->max_lease_ms > 10 * env->lease_ms;
    dli_check_say(
        check, is_long ? DL_FINDING_NOTE : DL_FINDING_OK, "max_lease", "%s, and automatic leases are of %s%s",
        dl_driver_duration(redlock->max_lease_ms).text, dl_driver_duration(env->lease_ms).text,
        is_long ? ": a node that was restarted has no vote for max_lease; unless some locks ask for "
                  "such a lease, a shorter one brings it back sooner"
                : "; a node that was restarted has no vote for max_lease");
    if (!redlock->quarantines) {
        dli_check_say(check, redlock->durable ? DL_FINDING_NOTE : DL_FINDING_WARNING, "quarantine",
                      "off: a node that comes back without its data, or a replica in its place, votes at "
                      "once, and a second holder can get in");
    }
}

static void report_guarantee(const dli_redlock_t *redlock, const dli_check_t *check) {
    dli_check_say(
        check, DL_FINDING_NOTE, "guarantee",
        "at most one owner of a name among all clients of these servers, until its lease ends, as "
        "long as at most %zu of %zu nodes are without a lock that is held: because its claim did not "
        "reach them, their clock was set forward, %sor they dropped it%s",
        redlock->n - redlock->quorum, redlock->n,
        redlock->quarantines || redlock->durable ? "" : "they were restarted, ",
        redlock->fences ? "; each later holder has a larger token" : "; there are no tokens");
    dli_check_say(
        check, DL_FINDING_NOTE, "limit",
        "leases end by the nodes' clocks and this process cannot see its own pauses: let the guarded "
        "resource refuse smaller tokens%s",
        redlock->fences ? "" : ", which takes fencing: true");
}

static dl_status_t ask_table(void *redlock, const dli_request_t *request) {
    const dl_driver_t *table = &dli_redlock_driver;
    if (request->kind == DLI_ASK_RENEW) {
        table->renew(redlock, request->renewals, request->n, request->with.deadline_ns);
        return DL_OK;
    }
    return request->kind == DLI_ASK_TRY
               ? table->try_acquire(redlock, NULL, &request->with, request->grant, request->err)
               : table->release(redlock, NULL, &request->with, request->err);
}

/* A lock of nobody's, on all of them; not where it could only tell what the votes have told. */
static void try_lock(dli_redlock_t *redlock, const look_t *looks, const dli_check_t *check) {
    dli_redis_t *servers[DLI_NODES_MAX];
    size_t votes = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        votes += looks[i].votes ? 1 : 0;
        servers[i] = &redlock->nodes[i].redis;
    }
    if (votes < redlock->quorum) {
        dli_check_say(check, DL_FINDING_ERROR, "locking",
                      "no lock can be taken now: %zu of %zu nodes have a vote, and %zu are needed%s", votes,
                      redlock->n, redlock->quorum,
                      may_init_help(looks, redlock->n) ? "; " DLI_NEW_NODES : "");
    } else {
        dli_check_trial(check, ask_table, redlock, redlock->max_lease_ms, servers, redlock->n);
    }
}

/* ---- the op ------------------------------------------------------------------------------------------ */

static dl_status_t sum_up(const dli_redlock_t *redlock, const look_t *looks, dl_error_t *err) {
    dli_verdicts_t verdicts = {0};
    for (size_t i = 0; i < redlock->n; i++) {
        verdicts.statuses[i] = looks[i].status;
        verdicts.errors[i] = looks[i].err;
        verdicts.good |= looks[i].status == DL_OK ? 1u << i : 0;
        if (looks[i].out_of_memory) {
            return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
        }
    }
    return dli_nodes_need_majority(redlock, &verdicts, err);
}

dl_status_t dli_redlock_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                              dl_error_t *err) {
    dli_redlock_t *redlock = state;
    dli_check_t check = {.redis = &redlock->nodes[0].redis, .fn = fn, .arg = arg, .deadline_ns = deadline_ns};
    look_t *looks = calloc(redlock->n, sizeof *looks);
    if (looks == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    report_number(redlock, &check);
    report_hosts(redlock, &check);
    dli_check_prefix(&check);
    report_times(redlock, &check);
    look_at_all(redlock, looks, &check);
    dl_status_t status = sum_up(redlock, looks, err);
    if (status == DL_OK) {
        try_lock(redlock, looks, &check);
        report_guarantee(redlock, &check);
    }
    for (size_t i = 0; i < redlock->n; i++) {
        free(looks[i].lines);
    }
    free(looks);
    return status;
}
