/* release.c - frees a hold at all nodes, and what an attempt that failed may have got. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "ballots.h"

#define NS_PER_MS ((uint64_t)1000000)

/* ---- the question --------------------------------------------------------------------------------- */

static void encode_free(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                        bool with_source, dli_commands_t *commands) {
    const dli_copy_t *copy = round->data;
    char hold_id[24];
    dli_key_t key, channel = {.len = 0};
    (void)run_id;
    dli_redis_key(&node->redis, copy->name, copy->name_len, &key);
    if (copy->tells) {
        node->redis.layout->channel(&node->redis, copy->name, copy->name_len, &channel);
    }
    const dli_slice_t argv[] = {{key.at, key.len},
                                dli_slice(copy->owner),
                                dli_slice_int(hold_id, (int64_t)copy->hold_id),
                                {channel.at, channel.len}};
    dli_script_call_t call = {&dli_script_redlock_release, 1, 4, argv};
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t free_question = {
    .what = "a free", .lane = DLI_LANE_CALLS, .intent = DLI_FREE, .encode = encode_free};

/* What the nodes that have answered had of the hold. None of them has anything of it any more. */
typedef struct found {
    size_t freed, gone;
    size_t freed_or_gone; /* the free was sent again: what the first did is not known */
} found_t;

static found_t count_found(const dli_round_t *round) {
    found_t found = {0, 0, 0};
    for (size_t i = 0; i < round->redlock->n; i++) {
        const redisReply *reply = dli_part_reply(&round->parts[i]);
        int64_t number;
        if (reply != NULL && dli_reply_int(reply, &number) && (number == 0 || number == 1)) {
            bool is_known = number == 1 || !round->parts[i].is_unsure;
            found.freed += number == 1;
            found.gone += number == 0 && is_known;
            found.freed_or_gone += !is_known;
        } else if (reply != NULL) {
            found.gone += dli_redis_is_foreign(reply);
        }
    }
    return found;
}

static size_t count_clear(const dli_round_t *round) {
    found_t found = count_found(round);
    return found.freed + found.gone + found.freed_or_gone;
}

/* A hold is not begun without the memory to free it: a round for that is there from before it. */
bool dli_redlock_keep_spare(dli_redlock_t *redlock) {
    return dli_spare_keep(redlock, &redlock->spare, &free_question, sizeof(dli_copy_t));
}

static dli_round_t *make_round(dli_redlock_t *redlock) {
    dli_round_t *round = dli_round_new(redlock, &free_question, sizeof(dli_copy_t), 1);
    return round != NULL ? round : dli_spare_take(redlock, &redlock->spare);
}

/* ---- freeing a hold ------------------------------------------------------------------------------- */

/* A majority that has nothing of it any more is enough to free it: no minority can keep others out. Whether
 * it was lost is known once a majority had it, or so many had not that no majority did; those who might still
 * tell are waited for. */
static bool is_release_settled(const dli_round_t *round, const void *arg) {
    (void)arg;
    size_t quorum = round->redlock->quorum, for_a_loss = round->redlock->n - quorum + 1;
    uint32_t to_come = dli_round_mask(round, DLI_PART_ASKED) | dli_round_mask(round, DLI_PART_LATE);
    size_t pending = dli_nodes_count(to_come);
    found_t found = count_found(round);
    if (found.freed >= quorum || found.gone >= for_a_loss) {
        return true;
    }
    return dli_quorum_is_decided(count_clear(round), pending, quorum) && found.freed + pending < quorum &&
           found.gone + pending < for_a_loss;
}

static dl_status_t judge_release(dli_round_t *round, dl_error_t *err) {
    const dli_redlock_t *redlock = round->redlock;
    const dli_copy_t *copy = round->data;
    dli_ballot_t ballots[DLI_NODES_MAX];
    dli_tally_t tally;
    dli_key_t key;
    dli_redis_key(&redlock->nodes[0].redis, copy->name, copy->name_len, &key);
    dli_ballots_of_answers(round, &key, ballots);
    dli_tally_count(&tally, ballots, redlock->n, redlock->quorum);
    if (tally.busy > redlock->n - redlock->quorum) {
        return dl_driver_fail(err, DL_ELOST, 0,
                              "the lock was lost: this hold is no longer on a majority of the nodes");
    }
    if (tally.yes >= redlock->quorum) {
        return DL_OK;
    }
    if (tally.yes + tally.busy >= redlock->quorum) {
        return dl_driver_fail(
            err, DL_EUNKNOWN, 0,
            "it is free, but it may have been lost before: %zu of %zu nodes had it, %zu had it not",
            tally.yes, redlock->n, tally.busy);
    }
    dl_status_t status = dli_tally_failure(&tally, err);
    if (tally.may_have != 0 || tally.busy > 0) { /* some of it left */
        dl_error_t why = *err;
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "the outcome is unknown: %s", why.message);
    }
    return status;
}

static uint64_t end_ns(const dli_round_t *round, const dl_request_t *request) {
    uint64_t full_ns = round->began_ns + (uint64_t)round->redlock->node_timeout_ms * NS_PER_MS;
    return full_ns < request->deadline_ns ? full_ns : request->deadline_ns;
}

dl_status_t dli_redlock_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    dli_redlock_t *redlock = state;
    dli_freeing_t freeing = {.hold = request};
    dli_round_t *round = make_round(redlock);
    dl_status_t status = round != NULL ? dli_copy_make(round->data, request, err)
                                       : dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    if (status == DL_OK) {
        ((dli_copy_t *)round->data)->tells = true;
        round->closing_ns = request->deadline_ns;
        uint32_t following = dli_stragglers_forsake(redlock->stragglers, &freeing, round);
        if (dli_round_run(round, dli_nodes_all(redlock) & ~following, request->deadline_ns, &request->stop,
                          is_release_settled, NULL) == DL_OK) {
            dli_round_tell(round, 0);
            dli_stragglers_await(redlock->stragglers, round, end_ns(round, request), &request->stop,
                                 is_release_settled);
        }
        status = judge_release(round, err);
        if (status == DL_OK || status == DL_ELOST) { /* else the core frees it again, everywhere */
            dli_round_send_lost(round);
        }
        dli_stragglers_freed(redlock->stragglers, &freeing);
    }
    if (round != NULL) {
        dli_spare_drop(&redlock->spare, round);
    }
    return status;
}

/* ---- giving back what a failed attempt may have got ----------------------------------------------- */

static bool is_stopped(const dli_redlock_t *redlock, const dl_stop_t *stop) {
    struct pollfd fds[2] = {{.fd = stop->fd[0], .events = POLLIN}, {.fd = stop->fd[1], .events = POLLIN}};
    return redlock->env->poll(fds, 2, 0) > 0;
}

/* arg: how many nodes were asked. */
static bool is_given_back(const dli_round_t *round, const void *arg) {
    const size_t *asked = arg;
    return *asked - count_clear(round) <= round->redlock->n - round->redlock->quorum;
}

/* Asks those; how many nodes may still have it. `asked`: these, and those that are asked later. */
static size_t give_back(dli_round_t *round, const dl_request_t *request, uint32_t nodes, size_t asked) {
    dli_redlock_t *redlock = round->redlock;
    bool can_wait = redlock->env->now_ns() < request->deadline_ns && !is_stopped(redlock, &request->stop);
    if (!round->is_spare && (asked <= redlock->n - redlock->quorum || !can_wait)) {
        dli_round_send(round, nodes, DL_NO_DEADLINE);
        return asked;
    }
    if (dli_round_run(round, nodes, request->deadline_ns, &request->stop, is_given_back, &asked) == DL_OK) {
        dli_round_tell(round, 0);
    }
    size_t left = asked - count_clear(round);
    dli_round_send_lost(round);
    return left;
}

size_t dli_redlock_give_back(dli_redlock_t *redlock, const dl_request_t *request, uint32_t nodes) {
    dli_freeing_t freeing = {.hold = request};
    size_t left = dli_nodes_count(nodes);
    dl_error_t err;
    dli_round_t *round = left > 0 ? make_round(redlock) : NULL;
    if (round == NULL) {
        return left;
    }
    if (dli_copy_make(round->data, request, &err) == DL_OK) {
        /* What may have been on a majority looked like a holder, whose release others wait for. */
        ((dli_copy_t *)round->data)->tells = left >= redlock->quorum;
        uint32_t following = dli_stragglers_forsake(redlock->stragglers, &freeing, round);
        left = give_back(round, request, nodes & ~following, left);
        dli_stragglers_freed(redlock->stragglers, &freeing);
    }
    dli_spare_drop(&redlock->spare, round);
    return left;
}
