/* admin.c - what administrators ask: who holds a lock, and free one by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "holders.h"
#include "round.h"

typedef struct subject {
    dli_key_t key, channel;
} subject_t;

/* One question about a lock to all nodes. NULL: out of memory, err is filled. */
static dli_round_t *make_round(dli_redlock_t *redlock, const dli_question_t *question, const char *name,
                               size_t name_len, dl_error_t *err) {
    dli_round_t *round = dli_round_new(redlock, question, sizeof(subject_t), 1);
    if (round == NULL) {
        (void)dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
        return NULL;
    }
    subject_t *subject = round->data;
    const dli_redis_t *redis = &redlock->nodes[0].redis;
    dli_redis_key(redis, name, name_len, &subject->key);
    redis->layout->channel(redis, name, name_len, &subject->channel);
    return round;
}

/* How the part of node i ended, as a verdict. The reply, or NULL: it did not answer. */
static const redisReply *take_verdict(const dli_round_t *round, size_t i, dli_verdicts_t *verdicts) {
    const dli_part_t *part = &round->parts[i];
    if (part->state != DLI_PART_ENDED) {
        /* What changes something and is late may still be carried out. */
        dl_status_t status = round->question->intent == DLI_READ ? DL_EIO : DL_EUNKNOWN;
        verdicts->statuses[i] = dl_driver_fail(&verdicts->errors[i], status, 0, "%s: no answer yet",
                                               part->node->redis.endpoint.label);
        return NULL;
    }
    if (!part->is_left) {
        dli_node_tell(part->node, part->exchange.status, &part->err);
    }
    verdicts->statuses[i] = part->exchange.status;
    verdicts->errors[i] = part->err;
    if (part->exchange.status != DL_OK) {
        return NULL;
    }
    verdicts->good |= 1u << i;
    return dli_part_reply(part);
}

/* The answer is an error or makes no sense. What is of another kind is an answer all the same. */
static void take_error(const dli_round_t *round, size_t i, const redisReply *reply, dli_verdicts_t *verdicts,
                       size_t *foreign) {
    const subject_t *subject = round->data;
    dli_node_t *node = round->parts[i].node;
    verdicts->statuses[i] = dli_redis_fail(&node->redis, &subject->key, reply, &verdicts->errors[i]);
    if (verdicts->statuses[i] == DL_EFOREIGN) {
        ++*foreign;
    } else {
        verdicts->good &= ~(1u << i);
    }
}

static dl_status_t refuse_foreign(const dli_redlock_t *redlock, const dli_verdicts_t *verdicts,
                                  size_t foreign, dl_error_t *err) {
    for (size_t i = 0; i < redlock->n && foreign > redlock->n - redlock->quorum; i++) {
        if (verdicts->statuses[i] == DL_EFOREIGN) {
            *err = verdicts->errors[i];
            return DL_EFOREIGN;
        }
    }
    return DL_OK;
}

/* ---- inspect ---------------------------------------------------------------------------------------- */

static void encode_inspect(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                           bool with_source, dli_commands_t *commands) {
    const subject_t *subject = round->data;
    const dli_slice_t argv[] = {{subject->key.at, subject->key.len}};
    dli_script_call_t call = {&dli_script_string_inspect, 1, 1, argv};
    (void)node;
    (void)run_id;
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t inspecting = {
    .what = "who holds a lock", .lane = DLI_LANE_CALLS, .intent = DLI_READ, .encode = encode_inspect};

/* The holders, as far as nodes have answered. How many were nobody's. */
static size_t collect_holders(const dli_round_t *round, dli_holders_t *holders) {
    size_t none = 0;
    holders->n = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        const redisReply *reply = dli_part_reply(&round->parts[i]);
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        if (reply != NULL && reply->type == REDIS_REPLY_NIL) {
            none++;
        } else if (reply != NULL && dli_redis_read_info(&round->parts[i].node->redis, reply, &info)) {
            dli_holders_add(holders, &info);
        }
    }
    return none;
}

/* A quorum says who holds it, or that nobody does. */
static bool is_inspected(const dli_round_t *round, const void *arg) {
    const dli_redlock_t *redlock = round->redlock;
    dli_holders_t holders;
    size_t none = collect_holders(round, &holders);
    (void)arg;
    return none >= redlock->quorum || dli_holders_find(&holders, 0, redlock->quorum) != NULL;
}

dl_status_t dli_redlock_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                dl_lock_info_t *info, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    dli_verdicts_t verdicts = {0};
    dli_holders_t holders;
    size_t foreign = 0;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    dli_round_t *round = make_round(redlock, &inspecting, name, name_len, err);
    if (round == NULL) {
        return DL_ENOMEM;
    }
    (void)dli_round_run(round, dli_nodes_all(redlock), deadline_ns, NULL, is_inspected, NULL);
    (void)collect_holders(round, &holders);
    for (size_t i = 0; i < redlock->n; i++) {
        dl_lock_info_t one = DL_LOCK_INFO_INIT;
        const redisReply *reply = take_verdict(round, i, &verdicts);
        if (reply != NULL && reply->type != REDIS_REPLY_NIL &&
            !dli_redis_read_info(&redlock->nodes[i].redis, reply, &one)) {
            take_error(round, i, reply, &verdicts, &foreign);
        }
    }
    dl_status_t status = refuse_foreign(redlock, &verdicts, foreign, err);
    if (status == DL_OK) {
        status = dli_nodes_need_majority(redlock, &verdicts, err);
    }
    if (status == DL_OK) {
        dli_holders_tell(&holders, redlock->n - dli_nodes_count(verdicts.good), redlock->quorum, info);
    }
    dli_round_drop(round);
    return status;
}

/* ---- force ------------------------------------------------------------------------------------------ */

static void encode_force(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                         bool with_source, dli_commands_t *commands) {
    const subject_t *subject = round->data;
    const dli_slice_t argv[] = {{subject->key.at, subject->key.len},
                                {subject->channel.at, subject->channel.len}};
    dli_script_call_t call = {&dli_script_string_force, 1, 2, argv};
    (void)node;
    (void)run_id;
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t forcing = {
    .what = "a release by force", .lane = DLI_LANE_CALLS, .intent = DLI_FREE, .encode = encode_force};

/* Left-overs are to go too: every node is waited for. */
static bool is_forced(const dli_round_t *round, const void *arg) {
    (void)round;
    (void)arg;
    return false;
}

/* Too few answered. What a node that did not may have done is not known. */
static dl_status_t force_failed(const dli_redlock_t *redlock, const dli_verdicts_t *verdicts,
                                dl_error_t *err) {
    dl_status_t status = dli_nodes_need_majority(redlock, verdicts, err);
    for (size_t i = 0; i < redlock->n; i++) {
        if (verdicts->statuses[i] == DL_EUNKNOWN) {
            dl_error_t why = *err;
            return dl_driver_fail(err, DL_EUNKNOWN, why.native, "%s", why.message);
        }
    }
    return status;
}

dl_status_t dli_redlock_force_release(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                      dl_error_t *err) {
    dli_redlock_t *redlock = state;
    dli_verdicts_t verdicts = {0};
    size_t foreign = 0, freed = 0;
    dli_round_t *round = make_round(redlock, &forcing, name, name_len, err);
    if (round == NULL) {
        return DL_ENOMEM;
    }
    (void)dli_round_run(round, dli_nodes_all(redlock), deadline_ns, NULL, is_forced, NULL);
    for (size_t i = 0; i < redlock->n; i++) {
        int64_t number;
        const redisReply *reply = take_verdict(round, i, &verdicts);
        if (reply != NULL && dli_reply_int(reply, &number) && (number == 0 || number == 1)) {
            freed += (size_t)number;
        } else if (reply != NULL) {
            take_error(round, i, reply, &verdicts, &foreign);
        }
    }
    dli_round_drop(round);
    dl_status_t status = refuse_foreign(redlock, &verdicts, foreign, err);
    if (status == DL_OK && dli_nodes_count(verdicts.good) < redlock->quorum) {
        status = force_failed(redlock, &verdicts, err);
    } else if (status == DL_OK && freed == 0) {
        status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
    }
    return status;
}
