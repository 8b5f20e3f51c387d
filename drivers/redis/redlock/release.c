/* release.c - frees a hold at all nodes, and what an attempt that failed may have got. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

/* ---- the question ----------------------------------------------------------------------------------- */

static void encode_free(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    dli_part_encode(part, &dli_script_redlock_release, part->round->tells ? "k|ohc" : "k|oh-", NULL,
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
    const dli_mux_t *mux = part->node->redis.mux;
    return part->claimed_on != 0 && part->claimed_on != dli_part_connection(part) &&
           (mux->may_not_kill || dli_mux_is_to_kill(mux, part->claimed_on));
}

static void free_heard(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    dli_round_t *round = part->round;
    const dli_backend_env_t *core = round->redlock->core;
    uint32_t before = round->maybe;
    if (status != DL_OK) {
        part->vote = dli_part_silent(part, status, why);
    } else if (part->vote.vote != DLI_VOTE_UNKNOWN &&
               (!dli_part_may_come(part) || (part->vote.vote == DLI_VOTE_YES && !part->is_second))) {
        part->claimed_on = 0;
        round->maybe &= ~(1u << part->node->index);
    }
    if (before != 0 && round->maybe == 0 && round->asked == NULL && round->hold != NULL &&
        core->settled != NULL) {
        core->settled(core->core, round->hold);
    }
}

static void look_at_frees(dli_round_t *round, const dli_tally_t *tally, bool is_over);

static const dli_question_t freeing = {
    .kind = {DLI_FREE, false, encode_free, free_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_FREE,
    .stays = true,
    .heard = free_heard,
    .look = look_at_frees};

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

/* What is said before all have been asked is not waited for only if it decides. */
static bool is_settled(const dli_round_t *round, const dli_tally_t *tally, size_t pending) {
    bool is_clear = tally->yes >= tally->quorum || tally->busy > tally->n - tally->quorum;
    for (size_t i = 0; i < round->redlock->n && !is_clear; i++) {
        const dli_wire_t *wire = &round->parts[i].wires[DLI_WIRE_FREE];
        if (wire->is_pending && wire->request.queued) {
            return false;
        }
    }
    return dli_release_is_settled(tally, pending);
}

static void look_at_unlock(dli_round_t *round, const dli_tally_t *tally, bool is_over) {
    size_t pending = dli_nodes_count(dli_round_pending(round, DLI_WIRE_FREE));
    if (is_over || is_settled(round, tally, pending)) {
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
static void look_at_rest(dli_round_t *round, const dli_tally_t *tally, bool is_over) {
    const dli_redlock_t *redlock = round->redlock;
    bool is_claim = round->asked->kind == DLI_ASK_TRY,
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
static void look_at_frees(dli_round_t *round, const dli_tally_t *tally, bool is_over) {
    bool is_unlock = round->asked->kind == DLI_ASK_RELEASE && round->asked->err != NULL;
    is_over = is_over || dli_round_pending(round, DLI_WIRE_FREE) == 0;
    (is_unlock ? look_at_unlock : look_at_rest)(round, tally, is_over);
}

/* ---- what begins it --------------------------------------------------------------------------------- */

void dli_redlock_let_go(dli_round_t *round) {
    uint32_t unsent = dli_round_withdraw(round, DLI_WIRE_CLAIM);
    for (size_t i = 0; i < round->redlock->n; i++) { /* nor an earlier claim, if this is a fill */
        round->maybe &= round->parts[i].claimed_on == 0 ? ~(unsent & 1u << i) : UINT32_MAX;
    }
    (void)dli_round_withdraw(round, DLI_WIRE_RAISE);
    /* What may have been on a majority looked like a holder, whose release others wait for. */
    round->tells = round->is_freed ? round->tells : dli_nodes_count(round->maybe) >= round->redlock->quorum;
    round->is_freed = true;
}

void dli_redlock_send_frees(dli_round_t *round, uint64_t until_ns) {
    dli_round_ask(round, &freeing, round->maybe, 1, until_ns);
}

void dli_redlock_give_back(dli_round_t *round, dl_status_t status) {
    uint64_t now_ns = round->redlock->env->now_ns(), deadline_ns = round->asked->with.deadline_ns;
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    round->status = status;
    dli_redlock_let_go(round);
    dli_redlock_send_frees(round, dli_round_until(round->redlock, deadline_ns - left_ns / 4));
    if (status == DL_EBUSY) {
        dli_round_end(round, status); /* a majority has said so */
    } else {
        dli_round_look(round, false);
    }
}

dl_status_t dli_redlock_free(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    dli_redlock_hold_t *hold = request->hold;
    bool is_known = hold != NULL && hold->round != NULL;
    dli_round_t *round;
    dl_status_t status = dli_round_of(redlock, request, is_known ? hold : NULL, &round, err);
    if (status != DL_OK) {
        return status;
    }
    round->asked = request;
    /* Of what nothing is known a claim may yet come, where it is not yet. */
    round->status = is_known ? DL_OK : DL_ELOST;
    round->maybe = is_known ? round->maybe : dli_nodes_all(redlock);
    dli_redlock_let_go(round);
    for (size_t i = 0; i < redlock->n; i++) { /* those that are not asked surely have nothing */
        bool is_asked = (round->maybe >> i & 1) != 0;
        round->parts[i].vote =
            (dli_ballot_t){.vote = is_asked ? DLI_VOTE_NONE : DLI_VOTE_BUSY, .status = DL_EIO};
        round->parts[i].is_overdue = false;
    }
    dli_redlock_send_frees(round, dli_round_until(redlock, request->with.deadline_ns));
    return DL_OK;
}
