/* renewals.c - renewing many holds by few rounds, and filling in nodes that have lost one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "ballots.h"
#include "batch.h"

#define NS_PER_MS ((uint64_t)1000000)
/* The holds of so few renewals are remembered without memory of the heap. */
#define FEW 16
#define MOMENT_NS (NS_PER_MS / 2)

/* ---- the questions ------------------------------------------------------------------------------------ */

static void encode_renewals(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                            bool with_source, dli_commands_t *commands) {
    (void)run_id;
    dli_batch_encode(round->data, node, &dli_script_string_renew, with_source, commands);
}

static void encode_fills(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                         bool with_source, dli_commands_t *commands) {
    (void)run_id;
    dli_batch_encode(round->data, node, &dli_script_redlock_fill, with_source, commands);
}

static bool fills(const dli_round_t *round, const dl_request_t *hold) {
    return dli_batch_find(round, hold) != NULL;
}

static uint64_t linger_ns(const dli_round_t *round);

static const dli_question_t renewing = {
    .what = "renewals",
    .lane = DLI_LANE_RENEWALS,
    .intent = DLI_PLAIN,
    .encode = encode_renewals,
    .linger_ns = linger_ns,
};

/* A claim: what is not carried out in time shall not be carried out behind the release. */
static const dli_question_t filling = {
    .what = "filling in",
    .lane = DLI_LANE_RENEWALS,
    .intent = DLI_CLAIM,
    .encode = encode_fills,
    .is_of = fills,
};

static void encode_clearing(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                            bool with_source, dli_commands_t *commands) {
    const dli_batch_t *batch = round->data;
    const dli_redis_t *redis = &node->redis;
    (void)run_id;
    for (size_t i = 0; i < batch->count; i++) {
        const dli_item_t *item = &batch->items[i];
        if ((item->nodes >> node->index & 1) != 0) {
            dli_key_t channel;
            redis->layout->channel(redis, item->key.at + redis->prefix_len, item->key.len - redis->prefix_len,
                                   &channel);
            const dli_slice_t argv[] = {
                item->key, item->owner, dli_slice(item->hold_id), {channel.at, channel.len}};
            const dli_script_call_t call = {&dli_script_redlock_release, 1, 4, argv};
            dli_script_encode(commands, &call, with_source);
            with_source = false;
        }
    }
}

static const dli_question_t clearing = {
    .what = "what is left of lost holds",
    .lane = DLI_LANE_RENEWALS,
    .intent = DLI_FREE,
    .encode = encode_clearing,
};

/* ---- what they answered ----------------------------------------------------------------------------- */

typedef enum answer { OWN, GONE, FOREIGN, REFUSED, STRANGE } answer_t;

static answer_t read_answer(const redisReply *reply) {
    int64_t number;
    if (dli_reply_int(reply, &number)) {
        return number == 1 ? OWN : number == 0 ? GONE : STRANGE;
    }
    if (reply->type != REDIS_REPLY_ERROR) {
        return STRANGE;
    }
    return dli_redis_is_foreign(reply) ? FOREIGN : REFUSED;
}

/* What the nodes say about one hold. */
typedef struct count {
    size_t own, others; /* nodes where it is; where it is not */
    size_t pending;
    uint32_t gone; /* nodes where nobody has it, or another hold */
} count_t;

static count_t count_answers(const dli_round_t *round, size_t i) {
    count_t count = {0};
    for (size_t k = 0; k < round->redlock->n; k++) {
        const dli_part_t *part = &round->parts[k];
        count.pending += part->state == DLI_PART_ASKED;
        if (part->state != DLI_PART_ENDED || part->replies[i] == NULL) {
            continue;
        }
        answer_t answer = read_answer(part->replies[i]);
        count.own += answer == OWN;
        count.others += answer == GONE || answer == FOREIGN;
        count.gone |= answer == GONE ? 1u << k : 0;
    }
    return count;
}

static bool is_settled(const dli_round_t *round, const void *arg) {
    (void)arg;
    const dli_batch_t *batch = round->data;
    size_t quorum = round->redlock->quorum, spare = round->redlock->n - quorum;
    for (size_t i = 0; i < batch->count; i++) {
        count_t count = count_answers(round, i);
        bool is_decided = count.own >= quorum || count.others > spare;
        if (!is_decided && (count.own + count.pending >= quorum || count.others + count.pending > spare)) {
            return false;
        }
    }
    return true;
}

/* A node is filled in only when its answer is heard. So the rest gets a tenth of node_timeout, 50 ms at
 * most; if that was in vain, it gets next to nothing for a second. Where nothing was renewed, there is
 * nothing to fill in. */
static uint64_t linger_ns(const dli_round_t *round) {
    dli_redlock_t *redlock = round->redlock;
    const dli_batch_t *batch = round->data;
    bool any = false;
    for (size_t i = 0; i < batch->count && !any; i++) {
        any = count_answers(round, i).own >= redlock->quorum;
    }
    uint64_t patience_ns = any ? dli_round_patience_ns(redlock, &redlock->waited_ns) : 0;
    return patience_ns > MOMENT_NS ? patience_ns : MOMENT_NS;
}

/* What a node did for a hold that it did not answer for with yes or no: DL_EUNKNOWN, or why it surely did
 * nothing. */
static dl_status_t what_went_wrong(const dli_part_t *part, size_t i) {
    dl_error_t err;
    if (part->state == DLI_PART_LATE) {
        return DL_EUNKNOWN;
    }
    if (part->replies[i] == NULL) {
        dl_status_t status = part->exchange.status;
        return status == DL_OK || status == DL_EPROTO ? DL_EUNKNOWN
               : status == DL_ECANCELED               ? DL_EIO
                                                      : status;
    }
    dl_status_t status = dli_redis_fail(&part->node->redis, NULL, part->replies[i], &err);
    return read_answer(part->replies[i]) == STRANGE ? DL_EUNKNOWN : status;
}

static bool has_answered(const dli_part_t *part, size_t i) {
    return part->state == DLI_PART_ENDED && part->replies[i] != NULL &&
           read_answer(part->replies[i]) <= FOREIGN;
}

/* No majority has said either. DL_EUNKNOWN, unless it was surely renewed nowhere: then the reason, or DL_EIO
 * where there are several. */
static dl_status_t judge_failure(const dli_round_t *round, size_t i, size_t own) {
    dl_status_t reason = DL_OK;
    for (size_t k = 0; k < round->redlock->n; k++) {
        if (has_answered(&round->parts[k], i)) {
            continue;
        }
        dl_status_t status = what_went_wrong(&round->parts[k], i);
        if (status == DL_EUNKNOWN) {
            own++;
        }
        reason = reason == DL_OK || reason == status ? status : DL_EIO;
    }
    return own > 0 ? DL_EUNKNOWN : reason;
}

static dl_status_t judge(const dli_round_t *round, size_t i, const count_t *count) {
    if (count->own >= round->redlock->quorum) {
        return DL_OK;
    }
    return count->others > round->redlock->n - round->redlock->quorum ? DL_ELOST
                                                                      : judge_failure(round, i, count->own);
}

/* ---- filling in ------------------------------------------------------------------------------------- */

/* A batch of renewals under way, as dli_stragglers_forsake sees it. */
typedef struct errand {
    dli_redlock_t *redlock;
    dl_renewal_t *renewals;
    size_t n;
    uint64_t deadline_ns;
    atomic_bool *forgotten; /* for each; NULL: out of memory, so nothing is filled in */
} errand_t;

static void forget_renewal(void *arg, const dl_request_t *hold) {
    errand_t *errand = arg;
    for (size_t i = 0; i < errand->n; i++) {
        const dl_renewal_t *r = &errand->renewals[i];
        if (r->hold_id == hold->hold_id && r->name_len == hold->name_len &&
            memcmp(r->name, hold->name, r->name_len) == 0 && strcmp(r->owner, hold->owner) == 0) {
            atomic_store(&errand->forgotten[i], true);
        }
    }
}

/* Is it being freed, as far as is known? */
static bool is_forgotten(const errand_t *errand, const dl_renewal_t *r) {
    return errand->forgotten != NULL && atomic_load(&errand->forgotten[r - errand->renewals]);
}

static void forget_fill(void *arg, const dl_request_t *hold) {
    dli_item_t *item = dli_batch_find(arg, hold);
    if (item != NULL) {
        atomic_store(&item->is_forgotten, true);
    }
}

static uint64_t valid_until_ns(const dl_renewal_t *r) {
    uint64_t lease_ns = (uint64_t)r->lease_ms * NS_PER_MS;
    return r->sent_ns + lease_ns - lease_ns / 100 - 2 * NS_PER_MS;
}

/* Sends the holds to nodes that have lost them. Nobody waits for that, and it counts for nothing in this
 * round. From now on the round hears of what is freed, and the errand need not. */
static void fill_in(const errand_t *errand, const dli_chunk_t *chunk) {
    dli_stragglers_t *stragglers = errand->redlock->stragglers;
    uint64_t until_ns = DL_NO_DEADLINE;
    uint32_t nodes = 0;
    dli_round_t *round = dli_batch_round(errand->redlock, &filling, chunk);
    if (round == NULL) {
        return; /* the next renewal looks again */
    }
    dli_batch_t *batch = round->data;
    dli_intention_t intention = {.forget = forget_fill, .arg = round};
    dli_stragglers_announce(stragglers, &intention);
    for (size_t i = 0; i < chunk->count; i++) {
        const dl_renewal_t *r = chunk->entries[i];
        if (is_forgotten(errand, r)) {
            atomic_store(&batch->items[i].is_forgotten, true);
        }
        until_ns = valid_until_ns(r) < until_ns ? valid_until_ns(r) : until_ns;
        nodes |= chunk->nodes[i];
    }
    dli_round_send(round, nodes, until_ns);
    dli_stragglers_retire(stragglers, &intention);
    dli_round_drop(round);
}

/* Ends what is on its way of a lost hold: claims that were late, and fills. */
static void forsake(const errand_t *errand, const dl_renewal_t *r) {
    const dl_request_t hold = {.name = r->name,
                               .name_len = r->name_len,
                               .owner = r->owner,
                               .hold_id = r->hold_id,
                               .deadline_ns = errand->deadline_ns};
    dli_freeing_t freeing = {.hold = &hold};
    (void)dli_stragglers_forsake(errand->redlock->stragglers, &freeing, NULL);
    dli_stragglers_freed(errand->redlock->stragglers, &freeing);
}

/* Nobody frees a lost hold, and some nodes may just have been told to keep it for another lease; where nobody
 * has it, a claim that was given up has to be ended before it is carried out. Nodes with many late requests
 * are left out: connections for renewals have no limit of their own. */
static void clear_away(const errand_t *errand, const dli_chunk_t *chunk) {
    dli_redlock_t *redlock = errand->redlock;
    for (size_t i = 0; i < chunk->count; i++) {
        forsake(errand, chunk->entries[i]);
    }
    dli_round_t *round = dli_batch_round(redlock, &clearing, chunk);
    if (round != NULL) { /* else it ends with its lease */
        uint32_t nodes = dli_nodes_all(redlock);
        for (size_t i = 0; i < redlock->n; i++) {
            nodes &= dli_node_lags_behind(&redlock->nodes[i]) ? ~(1u << i) : UINT32_MAX;
        }
        round->closing_ns = errand->deadline_ns;
        dli_round_send(round, nodes, DL_NO_DEADLINE);
        dli_round_drop(round);
    }
}

bool dli_redlock_keep_renewal_spare(dli_redlock_t *redlock) {
    return dli_spare_keep(redlock, &redlock->renewal_spare, &renewing, DLI_BATCH_OF_ONE);
}

/* ---- renewing --------------------------------------------------------------------------------------- */

/* false: out of memory, nothing was sent. */
static bool renew_chunk(const errand_t *errand, const dli_chunk_t *chunk) {
    dli_redlock_t *redlock = errand->redlock;
    dli_round_t *round = dli_batch_round(redlock, &renewing, chunk);
    if (round == NULL && chunk->count == 1 &&
        (round = dli_spare_take(redlock, &redlock->renewal_spare)) != NULL) {
        dli_batch_put(round, chunk);
    }
    if (round == NULL) {
        return false;
    }
    (void)dli_round_run(round, dli_nodes_all(redlock), errand->deadline_ns, NULL, is_settled, NULL);
    dli_round_tell(round, 0);
    if (dli_round_mask(round, DLI_PART_LATE) == 0) {
        atomic_store(&redlock->waited_ns, 0);
    }
    dli_chunk_t missing = {.count = 0}, lost = {.count = 0};
    for (size_t i = 0; i < chunk->count; i++) {
        dl_renewal_t *r = chunk->entries[i];
        count_t count = count_answers(round, i);
        r->status = judge(round, i, &count);
        r->sent_ns = round->began_ns;
        if (r->status == DL_ELOST && !is_forgotten(errand, r)) { /* else its release has to find it */
            dli_chunk_add(&lost, r, dli_nodes_all(redlock));
        }
        if (r->status == DL_OK && count.gone != 0 && redlock->env->now_ns() < valid_until_ns(r)) {
            dli_chunk_add(&missing, r, count.gone);
        }
    }
    if (missing.count > 0 && errand->forgotten != NULL) {
        fill_in(errand, &missing);
    }
    if (lost.count > 0) {
        clear_away(errand, &lost);
    }
    dli_spare_drop(&redlock->renewal_spare, round);
    return true;
}

/* A lease below 1 ms would delete the key; one above max_lease outlives the quarantine. */
static dl_status_t check_entry(const dli_redlock_t *redlock, const dl_renewal_t *r) {
    if (r->hold_id >= DLI_EXACT_END) {
        return DL_ELIMIT;
    }
    return r->lease_ms < 1 || r->lease_ms > redlock->max_lease_ms ? DL_EINVAL : DL_OK;
}

/* One by one where memory does not suffice for all at once. */
static void renew_some(const errand_t *errand, const dli_chunk_t *chunk) {
    if (renew_chunk(errand, chunk)) {
        return;
    }
    if (chunk->count == 1) {
        chunk->entries[0]->status = DL_ENOMEM;
        return;
    }
    for (size_t i = 0; i < chunk->count; i++) {
        dli_chunk_t one = {.count = 0};
        dli_chunk_add(&one, chunk->entries[i], chunk->nodes[i]);
        if (!renew_chunk(errand, &one)) {
            chunk->entries[i]->status = DL_ENOMEM;
        }
    }
}

static void renew_all(const errand_t *errand) {
    uint32_t everywhere = dli_nodes_all(errand->redlock);
    dli_chunk_t chunk = {.count = 0};
    for (size_t i = 0; i < errand->n; i++) {
        dl_renewal_t *r = &errand->renewals[i];
        r->status = check_entry(errand->redlock, r);
        if (r->status == DL_OK) {
            dli_chunk_add(&chunk, r, everywhere);
        }
        if (chunk.count == DLI_CHUNK || (i + 1 == errand->n && chunk.count > 0)) {
            renew_some(errand, &chunk);
            chunk.count = 0;
        }
    }
}

void dli_redlock_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    dli_redlock_t *redlock = state;
    atomic_bool few[FEW] = {false};
    atomic_bool *many = n > FEW ? calloc(n, sizeof *many) : NULL;
    errand_t errand = {redlock, renewals, n, deadline_ns, n > FEW ? many : few};
    dli_intention_t intention = {.forget = forget_renewal, .arg = &errand};
    uint64_t now_ns = redlock->env->now_ns();
    for (size_t i = 0; i < n; i++) {
        renewals[i].sent_ns = now_ns;
    }
    /* All of them before the first is asked for: a release that begins from now on is heard of. */
    if (errand.forgotten != NULL) {
        dli_stragglers_announce(redlock->stragglers, &intention);
    }
    renew_all(&errand);
    if (errand.forgotten != NULL) {
        dli_stragglers_retire(redlock->stragglers, &intention);
    }
    free(many);
}
