/* admin.c - what administrators ask: who holds a lock, and free one by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "holders.h"
#include "round.h"

/* What such a round has beside its parts. */
typedef struct admin {
    dli_verdicts_t verdicts;
    bool is_there[DLI_NODES_MAX]; /* something of a lock, and this much of its value is in part->text */
    size_t seen_len[DLI_NODES_MAX];
    size_t foreign, freed, unanswered;
    dl_lock_info_t infos[DLI_NODES_MAX];
} admin_t;

/* ---- verdicts --------------------------------------------------------------------------------------- */

static void heard(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    admin_t *admin = part->round->extra;
    size_t i = part->node->index;
    if (status != DL_OK) {
        admin->verdicts.statuses[i] = status;
        admin->verdicts.errors[i] = *why;
    }
}

/* The answer is an error. What is of another kind is an answer all the same. */
static bool refused(dli_part_t *part, const redisReply *reply) {
    admin_t *admin = part->round->extra;
    size_t i = part->node->index;
    dli_key_t key;
    dli_redis_key(&part->node->redis, part->round->with.name, part->round->with.name_len, &key);
    admin->verdicts.statuses[i] = dli_redis_fail(&part->node->redis, &key, reply, &admin->verdicts.errors[i]);
    if (admin->verdicts.statuses[i] == DL_EFOREIGN) {
        admin->foreign++;
        admin->verdicts.good |= 1u << i;
    }
    return reply->type == REDIS_REPLY_ERROR;
}

/* Before a question: nobody has said anything. */
static void clear_verdicts(dli_round_t *round, uint32_t good, dl_status_t silent) {
    admin_t *admin = round->extra;
    admin->verdicts.good = good;
    admin->foreign = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        admin->verdicts.statuses[i] =
            dl_driver_fail(&admin->verdicts.errors[i], silent, 0, "%s: no answer yet",
                           round->redlock->nodes[i].redis.endpoint.label);
    }
}

static dl_status_t sum_up(const dli_round_t *round, dl_error_t *err) {
    const dli_redlock_t *redlock = round->redlock;
    const admin_t *admin = round->extra;
    for (size_t i = 0; i < redlock->n && admin->foreign > redlock->n - redlock->quorum; i++) {
        if (admin->verdicts.statuses[i] == DL_EFOREIGN) {
            *err = admin->verdicts.errors[i];
            return DL_EFOREIGN;
        }
    }
    return dli_nodes_need_majority(redlock, &admin->verdicts, err);
}

/* ---- looking ---------------------------------------------------------------------------------------- */

static void encode_look(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    dli_part_encode(dli_wire_part(request), &dli_script_string_inspect, "k|l", NULL, with_source, commands);
}

static bool look_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    admin_t *admin = part->round->extra;
    size_t node = part->node->index;
    dl_lock_info_t *info = &admin->infos[node];
    *info = (dl_lock_info_t)DL_LOCK_INFO_INIT;
    if (reply->type == REDIS_REPLY_NIL) {
        admin->verdicts.good |= 1u << node;
        return true;
    }
    if (!dli_redis_read_info(&part->node->redis, reply, info)) {
        return refused(part, reply);
    }
    const redisReply *value = reply->element[1];
    admin->verdicts.good |= 1u << node;
    admin->is_there[node] = true;
    admin->seen_len[node] = value->len < DLI_VALUE_SHOWN ? value->len : DLI_VALUE_SHOWN;
    memcpy(part->text, value->str, admin->seen_len[node]);
    return true;
}

/* The holders, as far as nodes have answered. How many were nobody's. */
static size_t collect(const dli_round_t *round, dli_holders_t *holders) {
    const admin_t *admin = round->extra;
    size_t none = 0;
    holders->n = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        bool is_good = (admin->verdicts.good >> i & 1) != 0;
        none += is_good && !admin->is_there[i] && admin->verdicts.statuses[i] != DL_EFOREIGN;
        if (admin->is_there[i]) {
            dli_holders_add(holders, &admin->infos[i]);
        }
    }
    return none;
}

/* ---- inspect ---------------------------------------------------------------------------------------- */

/* A quorum says who holds it, or that nobody does. */
static void look_at_holders(dli_round_t *round, bool is_over) {
    const dli_redlock_t *redlock = round->redlock;
    const admin_t *admin = round->extra;
    dli_holders_t holders;
    dl_error_t unread, *err = dli_round_err(round, &unread);
    size_t none = collect(round, &holders);
    if (!is_over && none < redlock->quorum && dli_holders_find(&holders, 0, redlock->quorum) == NULL &&
        dli_round_pending(round, DLI_WIRE_CLAIM) != 0) {
        return;
    }
    dl_status_t status = sum_up(round, err);
    if (status == DL_OK) {
        size_t unanswered = redlock->n - dli_nodes_count(admin->verdicts.good);
        dli_holders_tell(&holders, unanswered, redlock->quorum, round->asked->info);
    }
    dli_round_end(round, status);
}

static const dli_question_t inspecting = {
    .kind = {DLI_READ, false, encode_look, look_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .heard = heard,
    .look = look_at_holders};

static dl_status_t begin(dli_redlock_t *redlock, dli_request_t *request, const dli_question_t *question) {
    const dl_request_t *with = &request->with;
    dli_round_t *round = dli_round_new(redlock, sizeof(admin_t));
    if (round == NULL) {
        return DL_ENOMEM;
    }
    dli_round_set(round, with);
    uint64_t now_ns = redlock->env->now_ns();
    uint64_t left_ns = with->deadline_ns > now_ns ? with->deadline_ns - now_ns : 0;
    round->end_ns = with->deadline_ns - left_ns / 8; /* so that the core hears what is known by then */
    round->asked = request;
    clear_verdicts(round, 0, DL_EIO);
    dli_round_ask(round, question, dli_nodes_all(redlock), 1, dli_round_until(redlock, round->end_ns));
    return DL_OK;
}

dl_status_t dli_redlock_inspect(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    dl_lock_info_t *info = request->info;
    (void)err;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    return begin(redlock, request, &inspecting);
}

/* ---- force ------------------------------------------------------------------------------------------ */

/* Each node frees what was seen there and nothing else: a request that arrives late, when others have the
 * lock, does them no harm. */
static void encode_force(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    const admin_t *admin = part->round->extra;
    const dli_slice_t seen = {part->text, admin->seen_len[part->node->index]};
    dli_part_encode(part, &dli_script_redlock_release, "k|.-c", &seen, with_source, commands);
}

static bool force_replied(dli_redis_request_t *request, const redisReply *reply) {
    dli_part_t *part = dli_wire_part(request);
    admin_t *admin = part->round->extra;
    int64_t number;
    if (!dli_reply_int(reply, &number)) {
        return refused(part, reply);
    }
    admin->freed += number == 1;
    admin->verdicts.good |= 1u << part->node->index;
    return number == 0 || number == 1;
}

/* Left-overs are to go too: every node is waited for. */
static void look_at_forced(dli_round_t *round, bool is_over) {
    const admin_t *admin = round->extra;
    dl_error_t unread, *err = dli_round_err(round, &unread);
    if (!is_over && dli_round_pending(round, DLI_WIRE_FREE) != 0) {
        return;
    }
    dl_status_t status = dli_nodes_need_majority(round->redlock, &admin->verdicts, err);
    bool may_have_been_held = admin->freed > 0 && admin->freed + admin->unanswered >= round->redlock->quorum;
    if (status != DL_OK) { /* what the others may have done is not known */
        dl_error_t why = *err;
        status = dl_driver_fail(err, DL_EUNKNOWN, why.native, "%s", why.message);
    } else if (!may_have_been_held) {
        status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
    }
    dli_round_end(round, status);
}

static const dli_question_t forcing = {
    .kind = {DLI_FREE, false, encode_force, force_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_FREE,
    .stays = true,
    .heard = heard,
    .look = look_at_forced};

static void look_at_seen(dli_round_t *round, bool is_over) {
    const dli_redlock_t *redlock = round->redlock;
    admin_t *admin = round->extra;
    uint32_t nodes = 0;
    dl_error_t unread, *err = dli_round_err(round, &unread);
    if (!is_over && dli_round_pending(round, DLI_WIRE_CLAIM) != 0) {
        return;
    }
    dl_status_t status = sum_up(round, err);
    for (size_t i = 0; i < redlock->n; i++) {
        nodes |= admin->is_there[i] ? 1u << i : 0;
    }
    if (status == DL_OK && nodes == 0) {
        status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
    }
    if (status != DL_OK) {
        dli_round_end(round, status);
        return;
    }
    admin->unanswered = redlock->n - dli_nodes_count(admin->verdicts.good);
    (void)dli_round_withdraw(round, DLI_WIRE_CLAIM);
    clear_verdicts(round, dli_nodes_all(redlock) & ~nodes, DL_EUNKNOWN);
    dli_round_ask(round, &forcing, nodes, 1, dli_round_until(redlock, round->end_ns));
}

static const dli_question_t seeing = {
    .kind = {DLI_READ, false, encode_look, look_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .heard = heard,
    .look = look_at_seen};

dl_status_t dli_redlock_force(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    (void)err;
    return begin(redlock, request, &seeing);
}
