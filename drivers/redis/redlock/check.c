/* check.c - says which guarantee these servers give together, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "drivers/redis/check.h"
#include "redlock.h"

/* ---- has it a vote? ---------------------------------------------------------------------------------- */

/* false: it has none. */
static bool say_vote(const dli_check_t *check, bool init_helps) {
    const redisReply *marker = check->replies[check->vote_at],
                     *quarantine = check->replies[check->vote_at + 1];
    const char *advice = init_helps ? "; " DLI_NEW_NODES : "";
    char run_id[41] = "";
    int64_t left_ms;
    (void)dli_info_text(check->info, "run_id", run_id, sizeof run_id);
    bool is_new = marker->type == REDIS_REPLY_NIL;
    bool is_other = marker->type == REDIS_REPLY_STRING && strcmp(marker->str, run_id) != 0;
    if (!dli_reply_int(quarantine, &left_ms) || (!is_new && marker->type != REDIS_REPLY_STRING)) {
        dli_check_say(check, DL_FINDING_ERROR, "vote", "it cannot be told whether it has one: %s",
                      marker->type == REDIS_REPLY_ERROR       ? marker->str
                      : quarantine->type == REDIS_REPLY_ERROR ? quarantine->str
                                                              : "the answer makes no sense");
        return false;
    }
    if (left_ms != -2) { /* what is left of a quarantine; -2: there is none */
        dli_check_say(check, DL_FINDING_WARNING, "vote",
                      "none for %s%s (quarantine): it is new, or was restarted or emptied, and may "
                      "have forgotten locks that are held%s",
                      left_ms < 0 ? "ever" : "another ", left_ms < 0 ? "" : dl_driver_duration(left_ms).text,
                      advice);
        return false;
    }
    if (is_new || (is_other && !check->redis->voting->durable)) {
        dli_check_say(
            check, DL_FINDING_WARNING, "vote", "none for %s (max_lease) from the next lock on: %s%s",
            dl_driver_duration(check->redis->voting->max_lease_ms).text,
            is_new ? "it is new, or was emptied" : "it was restarted, or is another server", advice);
        return false;
    }
    dli_check_say(check, DL_FINDING_OK, "vote", "it has one%s",
                  is_other ? ", although it was restarted since it was met last: durable says that it "
                             "forgot nothing"
                           : "");
    return true;
}

/* ---- one node ---------------------------------------------------------------------------------------- */

/* `dlock init` refuses where one of them has been in use, or cannot be looked at. */
static bool may_init_help(const dli_check_t *checks, size_t n) {
    bool may = true;
    for (size_t i = 0; i < n; i++) {
        may = may && checks[i].status == DL_OK &&
              checks[i].replies[checks[i].vote_at + 2]->type == REDIS_REPLY_NIL;
    }
    return may;
}

/* The same, after all that is said of it. */
static bool report_node(const dli_check_t *check, bool init_helps) {
    if (!dli_check_server(check)) {
        return false;
    }
    bool votes = !check->redis->voting->quarantines || say_vote(check, init_helps);
    return dli_check_server_rest(check) && votes;
}

/* ---- all of them together ---------------------------------------------------------------------------- */

static void report_number(const dli_redlock_t *redlock, const dli_check_t *check) {
    bool is_even = redlock->n % 2 == 0;
    dli_check_say(check, is_even ? DL_FINDING_WARNING : DL_FINDING_OK, "nodes",
                  "%zu servers, %zu have to agree, so %zu may be down%s", redlock->n, redlock->quorum,
                  redlock->n - redlock->quorum, is_even ? "; one fewer would bear as much, for less" : "");
}

static bool is_same_host(const dli_endpoint_t *a, const dli_endpoint_t *b) {
    bool is_here = dli_host_is_here(a->host);
    return dli_host_is_here(b->host) == is_here && (is_here || strcasecmp(a->host, b->host) == 0);
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
                          dli_host_is_here(e->host) ? "this one" : e->host);
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
    bool is_long = redlock->voting.max_lease_ms > 10 * env->lease_ms;
    dli_check_say(
        check, is_long ? DL_FINDING_NOTE : DL_FINDING_OK, "max_lease", "%s, and automatic leases are of %s%s",
        dl_driver_duration(redlock->voting.max_lease_ms).text, dl_driver_duration(env->lease_ms).text,
        is_long ? ": a node that was restarted has no vote for max_lease; unless some locks ask for "
                  "such a lease, a shorter one brings it back sooner"
                : "; a node that was restarted has no vote for max_lease");
    if (!redlock->voting.quarantines) {
        dli_check_say(check, redlock->voting.durable ? DL_FINDING_NOTE : DL_FINDING_WARNING, "quarantine",
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
        redlock->voting.quarantines || redlock->voting.durable ? "" : "they were restarted, ",
        redlock->fences ? "; each later holder has a larger token" : "; there are no tokens");
    dli_check_say(
        check, DL_FINDING_NOTE, "limit",
        "leases end by the nodes' clocks and this process cannot see its own pauses: let the guarded "
        "resource refuse smaller tokens%s",
        redlock->fences ? "" : ", which takes fencing: true");
}

/* ---- the op ------------------------------------------------------------------------------------------ */

/* What is said of each, in their order, and then of all. */
static dl_status_t report(dli_redlock_t *redlock, const dli_check_t *checks, const dli_check_t *check,
                          dl_error_t *err) {
    dl_error_t said[DLI_NODES_MAX];
    bool init_helps = may_init_help(checks, redlock->n);
    size_t votes = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        votes += report_node(&checks[i], init_helps) ? 1 : 0;
        said[i] = checks[i].exchange.err;
        said[i].status = checks[i].status;
    }
    dl_status_t status = dli_nodes_need_majority(redlock, said, err);
    if (status == DL_OK) {
        if (votes < redlock->quorum) {
            dli_check_say(check, DL_FINDING_ERROR, "locking",
                          "no lock can be taken now: %zu of %zu nodes have a vote, and %zu are needed%s",
                          votes, redlock->n, redlock->quorum, init_helps ? "; " DLI_NEW_NODES : "");
        }
        report_guarantee(redlock, check);
    }
    return status;
}

dl_status_t dli_redlock_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                              dl_error_t *err) {
    dli_redlock_t *redlock = state;
    const dli_check_t check = {
        .redis = &redlock->nodes[0].redis, .report = {.fn = fn, .arg = arg}, .deadline_ns = deadline_ns};
    dli_check_t *checks = calloc(redlock->n, sizeof *checks);
    if (checks == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    report_number(redlock, &check);
    report_hosts(redlock, &check);
    dli_check_prefix(&check);
    report_times(redlock, &check);
    dl_status_t status = DL_OK;
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        dli_node_t *node = &redlock->nodes[i];
        /* One that hangs must not use up the time that is needed to try a lock. */
        checks[i] = (dli_check_t){.report = {.fn = fn, .arg = arg},
                                  .deadline_ns = deadline_ns,
                                  .patience_ns = (uint64_t)redlock->node_timeout_ms * NS_PER_MS};
        (void)snprintf(checks[i].report.whose, sizeof checks[i].report.whose, "node %zu ", node->index + 1);
        status = dli_node_open_alone(node, &checks[i].redis, err);
    }
    if (status == DL_OK) {
        dli_checks_ask(checks, redlock->n);
        status = report(redlock, checks, &check, err);
    }
    for (size_t i = 0; i < redlock->n; i++) {
        dli_check_free(&checks[i]);
    }
    free(checks);
    return status;
}
