/* admin.c - what administrators ask: who holds a lock, and free one by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "holders.h"
#include "round.h"

typedef struct subject {
    dli_key_t key, channel;
} subject_t;

/* One question about a lock to all nodes; its data begin with a subject. NULL: out of memory. */
static dli_round_t *make_round(dli_redlock_t *redlock, const dli_question_t *question, size_t data_size,
                               const char *name, size_t name_len, dl_error_t *err) {
    dli_round_t *round = dli_round_new(redlock, question, data_size, 1);
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

/* ---- who the holder is ------------------------------------------------------------------------------ */

static void encode_label(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                         bool with_source, dli_commands_t *commands) {
    const dli_key_t *key = round->data;
    (void)node;
    (void)run_id;
    (void)with_source;
    dli_commands_add_words(commands, "GET", key->at, NULL);
}

static const dli_question_t asking_label = {
    .what = "who a client is", .lane = DLI_LANE_CALLS, .intent = DLI_READ, .encode = encode_label};

/* The label, from any node that has it. */
static const redisReply *find_label(const dli_round_t *round, size_t *answers) {
    const redisReply *label = NULL;
    *answers = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        const redisReply *reply = dli_part_reply(&round->parts[i]);
        *answers += reply != NULL;
        label = reply != NULL && reply->type == REDIS_REPLY_STRING ? reply : label;
    }
    return label;
}

static bool is_label_known(const dli_round_t *round, const void *arg) {
    size_t answers;
    (void)arg;
    return find_label(round, &answers) != NULL || answers >= round->redlock->quorum;
}

/* It is for people: whatever goes wrong, there is none. */
static void ask_label(dli_redlock_t *redlock, uint64_t deadline_ns, dl_lock_info_t *info) {
    dli_key_t key;
    size_t answers;
    dli_redis_label_key(&redlock->nodes[0].redis, info, &key);
    dli_round_t *round = key.len > 0 ? dli_round_new(redlock, &asking_label, sizeof key, 1) : NULL;
    if (round != NULL) {
        memcpy(round->data, &key, sizeof key);
        (void)dli_round_run(round, dli_nodes_all(redlock), deadline_ns, NULL, is_label_known, NULL);
        dli_redis_read_label(find_label(round, &answers), info);
        dli_round_drop(round);
    }
}

dl_status_t dli_redlock_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                dl_lock_info_t *info, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    dli_verdicts_t verdicts = {0};
    dli_holders_t holders;
    size_t foreign = 0;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    dli_round_t *round = make_round(redlock, &inspecting, sizeof(subject_t), name, name_len, err);
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
    if (status == DL_OK && info->held) {
        ask_label(redlock, deadline_ns, info);
    }
    return status;
}

/* ---- force ------------------------------------------------------------------------------------------ */

/* As much of a value as the inspect script shows. */
#define SEEN_MAX 128

/* Each node frees what was seen there and nothing else: a request that arrives late, when others have the
 * lock, does them no harm. */
typedef struct removal {
    subject_t subject;
    struct seen {
        char text[SEEN_MAX];
        size_t len; /* 0: nothing, so there is nothing to free */
    } seen[DLI_NODES_MAX];
    size_t unanswered; /* nodes that may have had it too */
} removal_t;

static void encode_force(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                         bool with_source, dli_commands_t *commands) {
    const removal_t *removal = round->data;
    const struct seen *seen = &removal->seen[node->index];
    const dli_slice_t argv[] = {{removal->subject.key.at, removal->subject.key.len},
                                {seen->text, seen->len},
                                {removal->subject.channel.at, removal->subject.channel.len}};
    dli_script_call_t call = {&dli_script_redlock_force, 1, 3, argv};
    (void)run_id;
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t forcing = {
    .what = "a release by force", .lane = DLI_LANE_CALLS, .intent = DLI_FREE, .encode = encode_force};

/* Left-overs are to go too: every node is waited for. */
static bool is_answered_by_all(const dli_round_t *round, const void *arg) {
    (void)round;
    (void)arg;
    return false;
}

/* Looks what is there. The nodes that have something; err: too few can be looked at, or it is no lock. */
static dl_status_t see(dli_round_t *round, uint64_t deadline_ns, removal_t *removal, uint32_t *nodes,
                       dl_error_t *err) {
    const dli_redlock_t *redlock = round->redlock;
    dli_verdicts_t verdicts = {0};
    size_t foreign = 0;
    (void)dli_round_run(round, dli_nodes_all(redlock), deadline_ns, NULL, is_answered_by_all, NULL);
    for (size_t i = 0; i < redlock->n; i++) {
        const redisReply *reply = take_verdict(round, i, &verdicts);
        bool is_there = reply != NULL && reply->type == REDIS_REPLY_ARRAY && reply->elements >= 2 &&
                        reply->element[1]->type == REDIS_REPLY_STRING && reply->element[1]->len <= SEEN_MAX;
        if (is_there) {
            removal->seen[i].len = reply->element[1]->len;
            memcpy(removal->seen[i].text, reply->element[1]->str, removal->seen[i].len);
            *nodes |= 1u << i;
        } else if (reply != NULL && reply->type != REDIS_REPLY_NIL) {
            take_error(round, i, reply, &verdicts, &foreign);
        }
    }
    removal->unanswered = redlock->n - dli_nodes_count(verdicts.good);
    dl_status_t status = refuse_foreign(redlock, &verdicts, foreign, err);
    return status == DL_OK ? dli_nodes_need_majority(redlock, &verdicts, err) : status;
}

/* Frees what was seen at these nodes. */
static dl_status_t force(dli_round_t *round, uint32_t nodes, uint64_t deadline_ns, dl_error_t *err) {
    const dli_redlock_t *redlock = round->redlock;
    dli_verdicts_t verdicts = {.good = dli_nodes_all(redlock) & ~nodes};
    size_t foreign = 0, freed = 0;
    (void)dli_round_run(round, nodes, deadline_ns, NULL, is_answered_by_all, NULL);
    for (size_t i = 0; i < redlock->n; i++) {
        int64_t number;
        const redisReply *reply = (nodes >> i & 1) != 0 ? take_verdict(round, i, &verdicts) : NULL;
        if (reply != NULL && dli_reply_int(reply, &number) && (number == 0 || number == 1)) {
            freed += (size_t)number;
        } else if (reply != NULL) {
            take_error(round, i, reply, &verdicts, &foreign);
        }
    }
    dli_round_send_lost(round);
    dl_status_t status = dli_nodes_need_majority(redlock, &verdicts, err);
    if (status != DL_OK) { /* what the others may have done is not known */
        dl_error_t why = *err;
        return dl_driver_fail(err, DL_EUNKNOWN, why.native, "%s", why.message);
    }
    const removal_t *removal = round->data;
    bool may_have_been_held = freed > 0 && freed + removal->unanswered >= redlock->quorum;
    return may_have_been_held ? DL_OK : dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
}

dl_status_t dli_redlock_force_release(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                      dl_error_t *err) {
    dli_redlock_t *redlock = state;
    uint32_t nodes = 0;
    dli_round_t *looking = make_round(redlock, &inspecting, sizeof(subject_t), name, name_len, err);
    dli_round_t *freeing = make_round(redlock, &forcing, sizeof(removal_t), name, name_len, err);
    dl_status_t status = DL_ENOMEM;
    if (looking != NULL && freeing != NULL) {
        status = see(looking, deadline_ns, freeing->data, &nodes, err);
        if (status == DL_OK) {
            status = force(freeing, nodes, deadline_ns, err);
        }
    }
    dli_round_drop(looking);
    dli_round_drop(freeing);
    return status;
}
