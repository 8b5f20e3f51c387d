/* acquire.c - one attempt to get a majority of the nodes, with a token and while validity is left. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ballots.h"

/* One attempt on its way. */
typedef struct attempt {
    dli_redlock_t *redlock;
    const dl_request_t *request;
    dl_grant_t *grant;
    dl_error_t *err;
    uint64_t until_ns; /* the end of asking; what is left then is for giving back */
    dli_key_t key;
    dli_round_t *claim, *raise; /* raise: NULL without fencing */
    dli_ballot_t ballots[DLI_NODES_MAX], written[DLI_NODES_MAX];
    dli_tally_t tally;
} attempt_t;

/* ---- the questions -------------------------------------------------------------------------------- */

/* As long as any lease may last by the clock of a node: max_lease, 1 % and 2 ms. */
static int64_t quarantine_ms(const dli_redlock_t *redlock) {
    return redlock->quarantines ? redlock->max_lease_ms + redlock->max_lease_ms / 100 + 3 : 0;
}

static void encode_claim(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                         bool with_source, dli_commands_t *commands) {
    const dli_copy_t *copy = round->data;
    const dli_redlock_t *redlock = node->redlock;
    char hold_id[24], lease_ms[24], floor[24], quarantine[24];
    dli_key_t key;
    dli_redis_key(&node->redis, copy->name, copy->name_len, &key);
    const dli_slice_t argv[] = {{key.at, key.len},
                                dli_slice(node->redis.token_key),
                                dli_slice(redlock->marker_key),
                                dli_slice(redlock->quarantine_key),
                                dli_slice(copy->owner),
                                dli_slice_int(hold_id, (int64_t)copy->hold_id),
                                dli_slice_int(lease_ms, copy->lease_ms),
                                dli_slice(redlock->fences ? "1" : "0"),
                                dli_slice_int(floor, (int64_t)copy->token_floor),
                                dli_slice(run_id),
                                dli_slice(redlock->durable ? "1" : "0"),
                                dli_slice_int(quarantine, quarantine_ms(redlock))};
    dli_script_call_t call = {&dli_script_redlock_acquire, 4, sizeof argv / sizeof argv[0], argv};
    dli_script_encode(commands, &call, with_source);
}

static bool is_claim_of(const dli_round_t *round, const dl_request_t *hold) {
    const dli_copy_t *copy = round->data;
    return copy->hold_id == hold->hold_id && strcmp(copy->owner, hold->owner) == 0;
}

static uint64_t linger_ns(const dli_round_t *round);

static const dli_question_t claim_question = {.what = "a claim",
                                              .lane = DLI_LANE_CALLS,
                                              .intent = DLI_CLAIM,
                                              .encode = encode_claim,
                                              .is_of = is_claim_of,
                                              .linger_ns = linger_ns};

static void encode_raise(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                         bool with_source, dli_commands_t *commands) {
    const uint64_t *token = round->data;
    char text[24];
    (void)run_id;
    const dli_slice_t argv[] = {dli_slice(node->redis.token_key), dli_slice_int(text, (int64_t)*token)};
    dli_script_call_t call = {&dli_script_redlock_raise, 1, 2, argv};
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t raise_question = {
    .what = "a token", .lane = DLI_LANE_CALLS, .intent = DLI_PLAIN, .encode = encode_raise};

/* ---- the votes ------------------------------------------------------------------------------------ */

/* The nodes that are about to answer, by what they did last time. */
static size_t count_prompt(const dli_round_t *round) {
    size_t count = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        const dli_part_t *part = &round->parts[i];
        count += part->state == DLI_PART_ASKED && !atomic_load(&part->node->lags);
    }
    return count;
}

/* Are they, if these are all that will come? */
static bool are_settled_with(const dli_round_t *round, size_t pending, size_t *voters) {
    const dli_redlock_t *redlock = round->redlock;
    const dli_copy_t *copy = round->data;
    dli_ballot_t ballots[DLI_NODES_MAX];
    dli_tally_t tally;
    for (size_t i = 0; i < redlock->n; i++) {
        const redisReply *reply = dli_part_reply(&round->parts[i]);
        if (reply != NULL) {
            dli_ballot_read(&ballots[i], reply, redlock->fences, copy->token_floor);
        } else {
            dli_ballot_of_silent(&ballots[i], &round->parts[i]);
        }
    }
    dli_tally_count(&tally, ballots, redlock->n, redlock->quorum);
    *voters = tally.yes + tally.busy;
    return dli_votes_are_settled(&tally, pending);
}

static bool are_all_settled(const dli_round_t *round, size_t *voters) {
    return are_settled_with(round, dli_nodes_count(dli_round_mask(round, DLI_PART_ASKED)), voters);
}

/* Without a majority for it the answer is "busy" where a majority has said something, and a failure where
 * that cannot be any more: which of the two must not depend on who answered first. */
static bool are_votes_settled(const dli_round_t *round, const void *arg) {
    size_t voters;
    (void)arg;
    if (are_all_settled(round, &voters)) {
        return true;
    }
    /* Where claims have met, all keep their votes until they know: a slow node must not decide how long. */
    return voters >= round->redlock->quorum && are_settled_with(round, count_prompt(round), &voters);
}

/* Where late nodes would decide it, "busy" may be wrong: of a lock that was freed the others may not have
 * heard yet. So they get a little time. */
static uint64_t linger_ns(const dli_round_t *round) {
    dli_redlock_t *redlock = round->redlock;
    size_t voters;
    return are_all_settled(round, &voters) ? dli_round_moment_ns(round)
                                           : dli_round_patience_ns(redlock, &redlock->claims_waited_ns);
}

static void read_votes(attempt_t *a, dl_status_t status) {
    uint32_t excluded = 0;
    bool is_any_late = false;
    for (size_t i = 0; i < a->redlock->n; i++) {
        dli_part_t *part = &a->claim->parts[i];
        dli_ballot_t *ballot = &a->ballots[i];
        is_any_late = is_any_late || part->state == DLI_PART_LATE || part->is_left;
        const redisReply *reply = dli_part_reply(part);
        if (reply == NULL) {
            dli_ballot_of_silent(ballot, part);
            continue;
        }
        dli_ballot_read(ballot, reply, a->redlock->fences, a->request->token_floor);
        if (ballot->vote == DLI_VOTE_EXCLUDED) {
            dli_node_tell_excluded(part->node, ballot->left_ms);
            excluded |= 1u << i;
        } else if (ballot->vote != DLI_VOTE_YES && ballot->vote != DLI_VOTE_BUSY) {
            ballot->status = dli_redis_fail(&part->node->redis, &a->key, reply, &part->err);
            ballot->why = part->err.message;
        }
        if (ballot->vote == DLI_VOTE_UNKNOWN) {
            dli_link_distrust(part->node->redis.link);
        }
    }
    if (status == DL_OK) { /* not cut short */
        dli_round_tell(a->claim, excluded);
    }
    if (!is_any_late) {
        atomic_store(&a->redlock->claims_waited_ns, 0);
    }
    dli_tally_count(&a->tally, a->ballots, a->redlock->n, a->redlock->quorum);
}

/* ---- the token ------------------------------------------------------------------------------------ */

static uint32_t raised_nodes(const dli_round_t *round) {
    uint32_t raised = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        const redisReply *reply = dli_part_reply(&round->parts[i]);
        int64_t number;
        raised |= reply != NULL && dli_reply_int(reply, &number) && number == 1 ? 1u << i : 0;
    }
    return raised;
}

static bool is_write_back_settled(const dli_round_t *round, const void *arg) {
    const attempt_t *a = arg;
    size_t pending = dli_nodes_count(dli_round_mask(round, DLI_PART_ASKED) & a->tally.said_yes);
    return dli_quorum_is_decided(dli_tally_written(&a->tally, raised_nodes(round)), pending,
                                 a->redlock->quorum);
}

/* Whoever gets a majority after this one meets a node that knows of the token, so that the next is larger. */
static dl_status_t write_back(attempt_t *a) {
    dli_redlock_t *redlock = a->redlock;
    if (a->raise == NULL || dli_tally_written(&a->tally, 0) >= redlock->quorum) {
        return DL_OK;
    }
    *(uint64_t *)a->raise->data = a->tally.token;
    dl_status_t status = dli_round_run(a->raise, dli_nodes_all(redlock) & ~a->tally.exact, a->until_ns,
                                       &a->request->stop, is_write_back_settled, a);
    if (status != DL_OK) {
        return status;
    }
    dli_round_tell(a->raise, 0);
    if (dli_tally_written(&a->tally, raised_nodes(a->raise)) >= redlock->quorum) {
        return DL_OK;
    }
    dli_tally_t tally;
    dli_ballots_of_answers(a->raise, NULL, a->written);
    for (size_t i = 0; i < redlock->n; i++) {
        if ((a->tally.exact >> i & 1) != 0) {
            a->written[i].vote = DLI_VOTE_YES;
        }
    }
    dli_tally_count(&tally, a->written, redlock->n, redlock->quorum);
    status = dli_tally_failure(&tally, a->err);
    dl_error_t why = *a->err;
    return dl_driver_fail(a->err, status, 0, "the token is not on a majority of the nodes: %s", why.message);
}

/* ---- the outcome ---------------------------------------------------------------------------------- */

/* Nothing is held. After a definite status the core frees nothing, so a majority has to be free of it. */
static dl_status_t give_back(attempt_t *a, dl_status_t status) {
    size_t left = dli_redlock_give_back(a->redlock, a->request, a->tally.may_have);
    if (status == DL_ECANCELED) {
        return left > 0 ? dl_driver_fail(a->err, DL_EUNKNOWN, 0, "cancelled; the outcome is unknown")
                        : dl_driver_fail(a->err, DL_ECANCELED, 0, "cancelled");
    }
    if (left > a->redlock->n - a->redlock->quorum) {
        dl_error_t why = *a->err;
        return dl_driver_fail(a->err, DL_EUNKNOWN, 0, "%zu of %zu nodes may have the claim still: %s", left,
                              a->redlock->n, why.message);
    }
    return status;
}

static dl_status_t refuse(attempt_t *a) {
    const dl_driver_env_t *env = a->redlock->env;
    uint64_t draw = 0, took_ns = env->now_ns() - a->claim->began_ns;
    (void)env->random(&draw, sizeof draw);
    return dli_tally_refusal(&a->tally, took_ns, draw, a->grant, a->err);
}

/* DL_OK with the grant; otherwise nothing is to be held. */
static dl_status_t judge(attempt_t *a) {
    if (a->tally.yes < a->redlock->quorum) {
        return refuse(a);
    }
    dl_status_t status = write_back(a);
    if (status != DL_OK) {
        return status;
    }
    /* The clock is looked at after everything that the lock needs. */
    if (!dli_validity_is_left(a->claim->began_ns, a->request->lease_ms, a->redlock->env->now_ns())) {
        return dl_driver_fail(a->err, DL_EIO, 0,
                              "a majority of the nodes said yes, but so late that no validity was left");
    }
    a->grant->token = a->tally.token;
    a->grant->sent_ns = a->claim->began_ns;
    a->grant->session_fd = -1;
    return DL_OK;
}

static dl_status_t run(attempt_t *a) {
    dl_status_t status = dli_round_run(a->claim, dli_nodes_all(a->redlock), a->until_ns, &a->request->stop,
                                       are_votes_settled, a);
    read_votes(a, status);
    if (status == DL_OK) {
        status = judge(a);
    }
    return status == DL_OK ? DL_OK : give_back(a, status);
}

static dl_status_t check_lease(const dli_redlock_t *redlock, const dl_request_t *request, dl_error_t *err) {
    if (request->lease_ms < 1 || request->lease_ms > redlock->max_lease_ms) {
        return dl_driver_fail(err, DL_EINVAL, 0,
                              "a lease of %s is longer than max_lease (%s); ask for less, or raise "
                              "max_lease for all clients",
                              dl_driver_duration(request->lease_ms).text,
                              dl_driver_duration(redlock->max_lease_ms).text);
    }
    return DL_OK;
}

dl_status_t dli_redlock_try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                    dl_error_t *err) {
    (void)hold;
    dli_redlock_t *redlock = state;
    attempt_t a = {.redlock = redlock, .request = request, .grant = grant, .err = err};
    uint64_t now_ns = redlock->env->now_ns();
    dl_status_t status = check_lease(redlock, request, err);
    if (status != DL_OK) {
        return status;
    }
    a.until_ns = request->deadline_ns > now_ns ? request->deadline_ns - (request->deadline_ns - now_ns) / 4
                                               : request->deadline_ns;
    a.claim = dli_round_new(redlock, &claim_question, sizeof(dli_copy_t), 1);
    a.raise = redlock->fences ? dli_round_new(redlock, &raise_question, sizeof(uint64_t), 1) : NULL;
    if (a.claim == NULL || (a.raise == NULL && redlock->fences) || !dli_redlock_keep_spare(redlock) ||
        !dli_redlock_keep_renewal_spare(redlock)) {
        status = dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    if (status == DL_OK) {
        status = dli_copy_make(a.claim->data, request, err);
    }
    if (status == DL_OK) {
        dli_redis_key(&redlock->nodes[0].redis, request->name, request->name_len, &a.key);
        status = run(&a);
    }
    dli_round_drop(a.claim);
    dli_round_drop(a.raise);
    return status;
}
