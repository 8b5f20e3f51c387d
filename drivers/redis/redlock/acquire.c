/* acquire.c - one attempt to get a majority of the nodes, with a token and while validity is left. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "drivers/block.h"
#include "round.h"

/* ---- the questions ---------------------------------------------------------------------------------- */

/* As long as any lease may last by the clock of a node. */
static int64_t quarantine_ms(const dli_redlock_t *redlock) {
    uint64_t lease_ns = (uint64_t)redlock->voting.max_lease_ms * NS_PER_MS;
    uint64_t drift_ns = lease_ns - dli_valid_until(0, redlock->voting.max_lease_ms);
    return redlock->voting.quarantines ? (int64_t)((lease_ns + drift_ns) / NS_PER_MS) + 1 : 0;
}

/* A claim or a fill does. One of this hold that left before, and may still come, is not forgotten for it. */
static void leave(dli_part_t *part) {
    part->is_second = dli_part_may_come(part);
    part->claimed_on = part->is_second ? part->claimed_on : dli_part_connection(part);
}

static const dli_question_t filling;

/* Or a fill, which draws no token and keeps no quarantine: it has no vote. */
static void encode_claim(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    dli_part_t *part = dli_wire_part(request);
    const dli_redlock_t *redlock = part->round->redlock;
    const char *letters = request->kind == &filling.kind ? "kt..|ohx0---0" : "kt..|ohx.f...";
    char quarantine[24];
    leave(part);
    const dli_slice_t more[] = {dli_slice(redlock->voting.marker_key),
                                dli_slice(redlock->voting.quarantine_key),
                                dli_slice(redlock->fences ? "1" : "0"),
                                dli_slice(part->node->redis.mux.pipes[0].facts.run_id),
                                dli_slice(redlock->voting.durable ? "1" : "0"),
                                dli_slice_int(quarantine, quarantine_ms(redlock))};
    dli_part_encode(part, &dli_script_redlock_acquire, letters, more, with_source, commands);
}

static bool claim_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    const dli_round_t *round = part->round;
    bool draws = round->redlock->fences && request->kind != &filling.kind;
    dli_ballot_read(&part->vote, reply, draws, round->with.token_floor);
    if (part->vote.vote == DLI_VOTE_BUSY) {
        part->vote.value.len =
            part->vote.value.len < sizeof part->text ? part->vote.value.len : sizeof part->text;
        part->vote.value.at = memcpy(part->text, part->vote.value.at, part->vote.value.len);
    } else if (reply->type == REDIS_REPLY_ERROR) {
        dli_vote_t vote = part->vote.vote;
        part->vote = dli_part_refused(part, reply);
        part->vote.vote = vote;
    }
    bool is_clear = part->vote.vote != DLI_VOTE_UNKNOWN;
    part->claimed_on = is_clear && !part->is_second ? 0 : part->claimed_on;
    return is_clear;
}

/* What never left says nothing of what did before. */
static void claim_heard(dli_part_t *part) {
    if (part->vote.vote == DLI_VOTE_EXCLUDED) {
        dli_node_tell_excluded(part->node, part->vote.left_ms);
    }
    dli_vote_t vote = part->vote.vote;
    bool may_be = vote == DLI_VOTE_YES || vote == DLI_VOTE_UNKNOWN || part->claimed_on != 0;
    part->round->maybe &= may_be ? UINT32_MAX : ~(1u << part->node->index);
}

/* A claim, too: what has not left when the hold is freed never does, and what has comes before the free. */
static const dli_question_t filling = {
    .kind = {DLI_CLAIM, false, encode_claim, claim_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .stays = true,
    .heard = claim_heard};

static void encode_raise(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    char text[24];
    uint64_t number = part->round->token + part->round->tokens - 1;
    const dli_slice_t last = dli_slice_int(text, (int64_t)number);
    dli_part_encode(part, &dli_script_redlock_raise, "t|.", &last, with_source, commands);
}

static bool raise_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    int64_t number;
    if (dli_reply_int(reply, &number)) {
        part->round->raised |= number == 1 ? 1u << part->node->index : 0;
        return number == 1;
    }
    part->vote = dli_part_refused(part, reply);
    return reply->type == REDIS_REPLY_ERROR;
}

/* ---- nothing is held -------------------------------------------------------------------------------- */

static void refuse(dli_round_t *round, const dli_tally_t *tally) {
    const dl_driver_env_t *env = round->redlock->env;
    uint64_t draw = 0, took_ns = env->now_ns() - round->claimed_ns;
    dl_error_t *err = dli_round_err(round);
    (void)env->random(&draw, sizeof draw);
    dl_status_t status = dli_tally_refusal(tally, took_ns, draw, round->asked->grant, err);
    dli_redlock_give_back(round, status);
}

/* ---- the token, and the yes ------------------------------------------------------------------------- */

/* Whether validity is left is the core's to see, after everything that the lock needs. */
static void grant(dli_round_t *round) {
    dl_grant_t *grant = round->asked->grant;
    grant->token = round->token;
    grant->tokens = round->tokens;
    grant->sent_ns = round->claimed_ns;
    grant->session_fd = -1;
    dli_round_end(round, DL_OK);
}

/* Whoever gets a majority after this one meets a node that knows of the token, so that the next is larger:
 * those that have the lock. The others may have said yes to the next before their counter was raised. */
static void look_at_raises(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    const dli_redlock_t *redlock = round->redlock;
    uint32_t has_it = 0, may_have_it = dli_round_pending(round, DLI_WIRE_CLAIM);
    for (size_t i = 0; i < redlock->n; i++) {
        bool is_heard = (may_have_it >> i & 1) == 0;
        has_it |= is_heard && round->parts[i].vote.vote == DLI_VOTE_YES ? 1u << i : 0;
    }
    size_t written = dli_nodes_count(round->raised & has_it);
    size_t may_come = dli_nodes_count(pending & (has_it | may_have_it));
    if (!dli_quorum_is_decided(written, may_come, redlock->quorum)) {
        return;
    }
    if (written >= redlock->quorum) {
        grant(round);
        return;
    }
    dl_error_t *err = dli_round_err(round);
    dl_status_t status = dli_tally_failure(tally, err);
    dl_error_t why = *err;
    status = dl_driver_fail(err, status, 0, "the token is not on a majority of the nodes: %s", why.message);
    dli_redlock_give_back(round, status);
}

static const dli_question_t raising = {
    .kind = {DLI_PLAIN, false, encode_raise, raise_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_RAISE,
    .stays = true,
    .look = look_at_raises}; /* without the token a yes is of no use: it is replaced by why */

static void write_back(dli_round_t *round, const dli_tally_t *tally) {
    const dli_redlock_t *redlock = round->redlock;
    uint64_t wanted = dli_block(&round->asked->with, DLI_EXACT_END - 1), room = DLI_EXACT_END - tally->token;
    round->token = tally->token;
    round->tokens = wanted < room ? wanted : room;
    round->raised = round->tokens > 1 ? 0 : tally->exact; /* no node knows the last of several yet */
    if (!redlock->fences || dli_nodes_count(round->raised) >= redlock->quorum) {
        grant(round);
        return;
    }
    dli_round_ask(round, &raising, dli_nodes_all(redlock) & ~round->raised, 1);
}

/* ---- the votes -------------------------------------------------------------------------------------- */

/* Without a majority for it the answer is "busy" where a majority has said something, and a failure where
 * that cannot be any more: which of the two must not depend on who answered first. Where claims have met, all
 * keep their votes until they know; and of a lock that was freed late nodes may not have heard yet. So those
 * that lag are waited for a little: they must not decide how long. */
static bool are_settled(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    uint32_t lagging = pending & dli_nodes_lagging(round->redlock);
    if (dli_votes_are_settled(tally, dli_nodes_count(pending))) {
        return true;
    }
    if (tally->yes + tally->busy < tally->quorum ||
        !dli_votes_are_settled(tally, dli_nodes_count(pending & ~lagging))) {
        return false;
    }
    return !dli_round_waits(round, lagging);
}

static void look_at_claims(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    if (pending != 0 && !are_settled(round, tally, pending)) {
        return;
    }
    if (tally->yes >= tally->quorum) {
        write_back(round, tally);
    } else {
        refuse(round, tally);
    }
}

static const dli_question_t claiming = {
    .kind = {DLI_CLAIM, true, encode_claim, claim_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .stays = true,
    .heard = claim_heard,
    .look = look_at_claims};

/* ---- what begins it --------------------------------------------------------------------------------- */

void dli_redlock_fill(dli_round_t *round, uint32_t nodes) {
    round->maybe |= nodes;
    dli_round_ask(round, &filling, nodes, 1);
}

dl_status_t dli_redlock_check_lease(const dli_redlock_t *redlock, int64_t lease_ms, dl_error_t *err) {
    if (lease_ms < 1 || lease_ms > redlock->voting.max_lease_ms) {
        return dl_driver_fail(err, DL_EINVAL, 0,
                              "a lease of %s is longer than max_lease (%s); ask for less, or raise "
                              "max_lease for all clients",
                              dl_driver_duration(lease_ms).text,
                              dl_driver_duration(redlock->voting.max_lease_ms).text);
    }
    return DL_OK;
}

dl_status_t dli_redlock_claim(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    dl_status_t status = dli_redlock_check_lease(redlock, request->with.lease_ms, err);
    dli_round_t *round = status == DL_OK ? dli_round_of(redlock, request, request->hold, err) : NULL;
    if (round == NULL) {
        return err->status;
    }
    dli_round_begin(round, request, 4);
    round->claimed_ns = redlock->env->now_ns();
    round->token = 0;
    round->maybe = dli_nodes_all(redlock);
    round->is_freed = false;
    (void)dli_round_withdraw(round, DLI_WIRE_CLAIM); /* the same hold may be asked for twice */
    (void)dli_round_withdraw(round, DLI_WIRE_RAISE);
    dli_round_ask(round, &claiming, dli_nodes_all(redlock), 1);
    return DL_OK;
}
