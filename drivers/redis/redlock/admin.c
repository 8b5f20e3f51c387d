/* admin.c - what administrators ask: who holds a lock, and free one by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "round.h"

/* What such a round has beside its parts, whose votes are YES where nobody has the lock, or it was freed. */
typedef struct admin {
    size_t freed, unanswered;
    dl_lock_info_t was[DLI_NODES_MAX]; /* before it was freed */
    /* What to free; a part's `text` may come to say what is wrong with the node while its free is still to be
     * sent. */
    char seen[DLI_NODES_MAX][DLI_VALUE_SHOWN];
    dl_lock_info_t infos[DLI_NODES_MAX];
} admin_t;

/* ---- looking ---------------------------------------------------------------------------------------- */

static void encode_look(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    dli_part_encode(dli_wire_part(request), &dli_script_string_inspect, "k|l", NULL, with_source, commands);
}

/* The answer is an error. What is of another kind is an answer all the same. */
static bool refused(dli_part_t *part, const redisReply *reply) {
    part->vote = dli_part_refused(part, reply);
    part->vote.vote = part->vote.status == DL_EFOREIGN ? DLI_VOTE_FOREIGN : DLI_VOTE_NONE;
    return reply->type == REDIS_REPLY_ERROR;
}

static bool look_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    admin_t *admin = part->round->extra;
    dl_lock_info_t *info = &admin->infos[part->node->index];
    *info = (dl_lock_info_t)DL_LOCK_INFO_INIT;
    part->vote = (dli_ballot_t){.vote = DLI_VOTE_YES};
    if (reply->type == REDIS_REPLY_NIL) {
        return true;
    }
    if (!dli_redis_read_info(reply, info)) {
        return refused(part, reply);
    }
    const redisReply *value = reply->element[1];
    size_t len = value->len < DLI_VALUE_SHOWN ? value->len : DLI_VALUE_SHOWN;
    char *seen = admin->seen[part->node->index];
    part->vote = (dli_ballot_t){.vote = DLI_VOTE_BUSY, .value = {memcpy(seen, value->str, len), len}};
    return true;
}

static dl_status_t sum_up(const dli_tally_t *tally, dl_error_t *err) {
    size_t may_lack = tally->n - tally->quorum;
    return tally->silent <= may_lack && tally->foreign <= may_lack ? DL_OK : dli_tally_failure(tally, err);
}

/* ---- inspect ---------------------------------------------------------------------------------------- */

static bool was_seen(const admin_t *admin, const dl_lock_info_t *info) {
    const dl_lock_info_t *was = admin->was, *end = was + DLI_NODES_MAX;
    while (was < end &&
           (was->held == 0 || was->hold_id != info->hold_id || strcmp(was->owner, info->owner) != 0)) {
        was++;
    }
    return was < end;
}

/* By what these nodes have, and so many that may have it, too; of those who were freed, once any were. */
static void find_holder(const dli_round_t *round, const dli_tally_t *tally, size_t unanswered,
                        dl_lock_info_t *holder) {
    const admin_t *admin = round->extra;
    dl_lock_info_t seen[DLI_NODES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < tally->n; i++) {
        if (tally->ballots[i].vote == DLI_VOTE_BUSY &&
            (!round->is_forced || was_seen(admin, &admin->infos[i]))) {
            seen[n++] = admin->infos[i];
        }
    }
    dli_tally_holder(seen, n, unanswered, tally->quorum, holder);
}

/* A quorum says who holds it, but all together for how long: only what lags is not waited for. */
static void look_at_holders(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    bool is_enough = tally->silent <= tally->n - tally->quorum;
    if (pending != 0 && !(is_enough && (pending & ~dli_nodes_lagging(round->redlock)) == 0)) {
        return;
    }
    dl_status_t status = sum_up(tally, dli_round_err(round));
    if (status == DL_OK) {
        find_holder(round, tally, tally->silent, round->asked->info);
    }
    dli_round_end(round, status);
}

/* ---- force ------------------------------------------------------------------------------------------ */

/* Each node frees what was seen there and nothing else: a request that arrives late, when others have the
 * lock, does them no harm. */
static void encode_force(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    dli_part_encode(part, &dli_script_redlock_release, "k|.-c0", &part->vote.value, with_source, commands);
}

static bool force_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    admin_t *admin = part->round->extra;
    int64_t number;
    if (!dli_reply_int(reply, &number)) {
        return refused(part, reply);
    }
    admin->freed += number == 1;
    part->vote = (dli_ballot_t){.vote = DLI_VOTE_YES};
    return number == 0 || number == 1;
}

static dl_status_t fail_unknown(const dli_tally_t *tally, dl_error_t *err) {
    dl_error_t why;
    (void)dli_tally_failure(tally, &why);
    return dl_driver_fail(err, DL_EUNKNOWN, why.native, "%s", why.message);
}

static const dli_question_t looking;

/* The nodes were freed one after the other: its holder may have renewed it in between, and filled in those
 * that were free already. */
static void look_again(dli_round_t *round, const dli_tally_t *tally) {
    uint32_t nodes = 0;
    round->is_forced = true;
    for (size_t i = 0; i < tally->n; i++) {
        nodes |= tally->ballots[i].vote == DLI_VOTE_YES ? 1u << i : 0;
    }
    dli_round_ask(round, &looking, nodes, 1);
}

static void look_at_freed(dli_round_t *round, const dli_tally_t *tally) {
    dl_lock_info_t holder = DL_LOCK_INFO_INIT;
    dl_error_t *err = dli_round_err(round);
    find_holder(round, tally, tally->silent, &holder);
    dl_status_t status = sum_up(tally, err) == DL_OK ? DL_OK : fail_unknown(tally, err);
    if (status == DL_OK && holder.held != 0) {
        status = dl_driver_fail(err, DL_EUNKNOWN, 0, "its holder renewed it while it was freed");
    }
    dli_round_end(round, status);
}

/* Left-overs are to go too: every node is waited for. */
static void look_at_forced(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    const admin_t *admin = round->extra;
    dl_error_t *err = dli_round_err(round);
    if (pending != 0) {
        return;
    }
    if (admin->freed + admin->unanswered >= tally->quorum) {
        look_again(round, tally);
        return;
    }
    bool may_come = admin->freed + tally->silent >= tally->quorum;
    dli_round_end(round, may_come ? fail_unknown(tally, err)
                                  : dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it"));
}

static const dli_question_t forcing = {
    .kind = {DLI_FREE, false, encode_force, force_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_FREE,
    .stays = true,
    .look = look_at_forced};

static void look_at_seen(dli_round_t *round, const dli_tally_t *tally) {
    admin_t *admin = round->extra;
    uint32_t nodes = 0;
    dl_error_t *err = dli_round_err(round);
    dl_status_t status = sum_up(tally, err);
    if (status == DL_OK && tally->busy == 0) {
        status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
    }
    if (status != DL_OK) {
        dli_round_end(round, status);
        return;
    }
    admin->unanswered = tally->silent;
    (void)dli_round_withdraw(round, DLI_WIRE_CLAIM);
    for (size_t i = 0; i < tally->n; i++) { /* those that are not asked have said what they say */
        bool is_asked = tally->ballots[i].vote == DLI_VOTE_BUSY;
        nodes |= is_asked ? 1u << i : 0;
        admin->was[i] = is_asked ? admin->infos[i] : admin->was[i];
        round->parts[i].vote = tally->ballots[i];
        round->parts[i].vote.vote = is_asked ? DLI_VOTE_NONE : tally->ballots[i].vote;
    }
    dli_round_ask(round, &forcing, nodes, 1);
}

/* ---- the request ------------------------------------------------------------------------------------ */

static void look_at_lock(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    if (round->asked->kind == DLI_ASK_INSPECT) {
        look_at_holders(round, tally, pending);
    } else if (pending == 0) {
        (round->is_forced ? look_at_freed : look_at_seen)(round, tally);
    }
}

static const dli_question_t looking = {
    .kind = {DLI_READ, false, encode_look, look_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .look = look_at_lock};

dl_status_t dli_redlock_look(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    dli_round_t *round = dli_round_new(redlock, sizeof(admin_t));
    (void)err;
    if (request->kind == DLI_ASK_INSPECT) {
        *request->info = (dl_lock_info_t){.size = request->info->size, .remaining_ms = -1};
    }
    if (round == NULL) {
        return DL_ENOMEM;
    }
    dli_round_set(round, &request->with);
    dli_round_begin(round, request, 8);
    dli_round_ask(round, &looking, dli_nodes_all(redlock), 1);
    return DL_OK;
}
