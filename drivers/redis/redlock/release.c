/* release.c - frees a hold at all nodes, and what an attempt that failed may have got. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

/* ---- the question ----------------------------------------------------------------------------------- */

static void encode_free(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    const char *told = part->round->is_claim ? "k|ohc1" : "k|ohc0";
    dli_part_encode(part, &dli_script_redlock_release, part->round->tells ? told : "k|oh-0", NULL,
                    with_source, commands);
}

static bool free_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    int64_t number;
    if (dli_reply_int(reply, &number)) {
        part->vote = (dli_ballot_t){.vote = number == 1 ? DLI_VOTE_YES : DLI_VOTE_BUSY};
        return number == 0 || number == 1;
    }
    if (dli_redis_is_foreign(reply)) {
        part->vote = (dli_ballot_t){.vote = DLI_VOTE_BUSY};
        return true;
    }
    part->vote = dli_part_refused(part, reply);
    part->vote.vote = DLI_VOTE_UNKNOWN;
    return reply->type == REDIS_REPLY_ERROR;
}

/* On another connection, unless that was killed. */
bool dli_part_may_come(const dli_part_t *part) {
    const dli_mux_t *mux = &part->node->redis.mux;
    return part->claimed_on != 0 && part->claimed_on != dli_part_connection(part) &&
           (mux->may_not_kill || dli_mux_is_to_kill(mux, part->claimed_on));
}

static void free_heard(dli_part_t *part) {
    dli_round_t *round = part->round;
    const dli_backend_env_t *core = round->redlock->core;
    uint32_t before = round->maybe;
    bool was_there = part->vote.vote == DLI_VOTE_YES, is_said = was_there || part->vote.vote == DLI_VOTE_BUSY;
    if (is_said && (!dli_part_may_come(part) || (was_there && !part->is_second))) {
        part->claimed_on = 0;
        round->maybe &= ~(1u << part->node->index);
    }
    if (before != 0 && round->maybe == 0 && round->asked == NULL && round->hold != NULL &&
        core->settled != NULL) {
        core->settled(core->core, round->hold);
    }
}

/* ---- the answer ------------------------------------------------------------------------------------- */

static dl_status_t judge(const dli_tally_t *tally, dl_error_t *err) {
    if (tally->busy > tally->n - tally->quorum) {
        return dl_driver_fail(err, DL_ELOST, 0,
                              "the lock was lost: this hold is no longer on a majority of the nodes");
    }
    if (tally->yes >= tally->quorum) {
        return DL_OK;
    }
    if (tally->yes + tally->busy >= tally->quorum) {
        return dl_driver_fail(
            err, DL_EUNKNOWN, 0,
            "it is free, but it may have been lost before: %zu of %zu nodes had it, %zu had it not",
            tally->yes, tally->n, tally->busy);
    }
    dl_status_t status = dli_tally_failure(tally, err);
    if (tally->yes + tally->busy + tally->unknown > 0) { /* some of it left */
        dl_error_t why = *err;
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "the outcome is unknown: %s", why.message);
    }
    return status;
}

/* Before all have been asked, only what decides ends it: as if all were still to come. */
static void look_at_unlock(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    size_t to_come = dli_round_unsent(round, DLI_WIRE_FREE) != 0 ? tally->n : dli_nodes_count(pending);
    if (pending == 0 || dli_release_is_settled(tally, to_come)) {
        dli_round_end(round, judge(tally, dli_round_err(round)));
    }
}

/* Of a claim of which nothing is known: once it was found on a majority, what may still come is none. */
static dl_status_t status_of(const dli_round_t *round, const dli_tally_t *tally) {
    return round->status == DL_ELOST && tally->yes >= tally->quorum ? DL_OK : round->status;
}

/* After the definite status of a claim the caller is to be able to rely on it: a majority has to be free of
 * it. In the background all are waited for, and `owes` says what is left; not of a hold that is not known
 * here. */
static void look_at_rest(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    const dli_redlock_t *redlock = round->redlock;
    bool is_over = pending == 0, is_claim = round->asked->kind == DLI_ASK_TRY,
         is_enough = is_claim || (is_over && round->hold == NULL);
    size_t left = dli_nodes_count(round->maybe), may_stay = is_enough ? redlock->n - redlock->quorum : 0;
    dl_error_t *err = dli_round_err(round);
    if (left <= may_stay) {
        dli_round_end(round, status_of(round, tally));
    } else if (is_over) {
        dl_error_t why = *err;
        dl_status_t status = is_claim ? DL_EUNKNOWN : DL_EIO;
        dli_round_end(round, dl_driver_fail(err, status, 0, "%zu of %zu nodes may have the claim still: %s",
                                            left, redlock->n, why.message));
    }
}

/* Somebody who waits for an unlock is to hear what became of the hold. */
static void look_at_frees(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    bool is_unlock = round->asked->kind == DLI_ASK_RELEASE && round->asked->err != NULL;
    (is_unlock ? look_at_unlock : look_at_rest)(round, tally, pending);
}

static const dli_question_t freeing = {
    .kind = {DLI_FREE, false, encode_free, free_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_FREE,
    .stays = true,
    .heard = free_heard,
    .look = look_at_frees};

/* ---- what begins it --------------------------------------------------------------------------------- */

void dli_redlock_let_go(dli_round_t *round) {
    uint32_t unsent = dli_round_withdraw(round, DLI_WIRE_CLAIM);
    /* What has not left is not there, unless an earlier claim has put it there. */
    for (size_t i = 0; i < round->redlock->n; i++) {
        round->maybe &= round->parts[i].claimed_on == 0 ? ~(unsent & 1u << i) : UINT32_MAX;
    }
    (void)dli_round_withdraw(round, DLI_WIRE_RAISE);
    /* What may have been on a majority looked like a holder, whose release others wait for. */
    if (!round->is_freed) {
        round->tells = dli_nodes_count(round->maybe) >= round->redlock->quorum;
        round->is_claim = round->asked != NULL && round->asked->kind == DLI_ASK_TRY;
    }
    round->is_freed = true;
    for (size_t i = 0; i < round->redlock->n; i++) { /* those that are not asked surely have nothing */
        bool is_asked = (round->maybe >> i & 1) != 0;
        round->parts[i].vote =
            (dli_ballot_t){.vote = is_asked ? DLI_VOTE_NONE : DLI_VOTE_BUSY, .status = DL_EIO};
    }
    dli_round_ask(round, &freeing, round->maybe, 1);
}

void dli_redlock_give_back(dli_round_t *round, dl_status_t status) {
    round->status = status;
    dli_round_begin(round, round->asked, 4);
    dli_redlock_let_go(round);
    if (status == DL_EBUSY) {
        dli_round_end(round, status); /* a majority has said so */
    } else {
        dli_round_look(round, false);
    }
}

dl_status_t dli_redlock_free(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    dli_redlock_hold_t *hold = request->hold;
    bool is_known = hold != NULL && hold->round != NULL;
    dli_round_t *round = dli_round_of(redlock, request, is_known ? hold : NULL, err);
    if (round == NULL) {
        return err->status;
    }
    dli_round_begin(round, request, 8);
    /* Of what nothing is known a claim may yet come, where it is not yet. */
    round->status = is_known ? DL_OK : DL_ELOST;
    round->maybe = is_known ? round->maybe : dli_nodes_all(redlock);
    dli_redlock_let_go(round);
    return DL_OK;
}
