/* renewals.c - renewing many holds by one round, and filling in nodes that have lost one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "round.h"

/* So many are renewed at once at most, and have memory that was there before. */
#define SPARE 1000

/* What a round of renewals has beside its parts. */
typedef struct batch {
    size_t count;
    int8_t *answers;   /* of node i to entry k: at i * count + k */
    uint16_t places[]; /* of the entries that are asked for, in the request */
} batch_t;

static dl_renewal_t *entry_of(const dli_round_t *round, size_t k) {
    const batch_t *batch = round->extra;
    return &round->asked->renewals[batch->places[k]];
}

static int8_t *answer_of(const dli_part_t *part, size_t k) {
    const batch_t *batch = part->round->extra;
    return &batch->answers[part->node->index * batch->count + k];
}

/* ---- the question ----------------------------------------------------------------------------------- */

static void encode_renewal(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    for (size_t k = 0; k < request->count; k++) {
        const dl_request_t with = dli_renewal_request(entry_of(part->round, k));
        dli_redis_encode(&part->node->redis, &with, &dli_script_string_acquire, "kt|oh0x", NULL,
                         with_source && k == 0, commands);
    }
}

static bool renewal_replied(dli_redis_request_t *request, const redisReply *reply) {
    const dli_part_t *part = dli_wire_part(request);
    int8_t *answer = answer_of(part, request->got - 1);
    int64_t number;
    dl_error_t err;
    if (dli_reply_int(reply, &number)) {
        *answer = number == 1 ? DLI_ANSWER_OWN : number == 0 ? DLI_ANSWER_GONE : DL_EUNKNOWN;
        return number == 0 || number == 1;
    }
    bool is_foreign = dli_redis_is_foreign(reply);
    dl_status_t status = is_foreign ? DL_OK : dli_redis_fail(&part->node->redis, NULL, reply, &err);
    *answer = is_foreign                         ? DLI_ANSWER_FOREIGN
              : reply->type == REDIS_REPLY_ERROR ? (int8_t)status
                                                 : DL_EUNKNOWN;
    return reply->type == REDIS_REPLY_ERROR;
}

/* Where an answer is missing: what was done for those. */
static void fill_answers(dli_part_t *part, dl_status_t status) {
    const batch_t *batch = part->round->extra;
    for (size_t k = 0; k < batch->count; k++) {
        int8_t *answer = answer_of(part, k);
        *answer = *answer == DLI_ANSWER_NONE ? (int8_t)status : *answer;
    }
}

static void renewal_heard(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    (void)why;
    if (status != DL_OK) {
        fill_answers(part, status == DL_EPROTO ? DL_EUNKNOWN : status);
    }
}

static void look_at_renewals(dli_round_t *round, bool is_over);

static const dli_question_t renewing = {
    .kind = {DLI_PLAIN, true, encode_renewal, renewal_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .heard = renewal_heard,
    .look = look_at_renewals};

/* ---- filling in ------------------------------------------------------------------------------------- */

static void encode_fill(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    dli_part_t *part = dli_wire_part(request);
    part->claimed_on = dli_part_connection(part);
    const dli_redlock_t *redlock = part->round->redlock;
    const dli_slice_t keys[] = {dli_slice(redlock->marker_key), dli_slice(redlock->quarantine_key)};
    dli_part_encode(part, &dli_script_redlock_acquire, "kt..|ohx0---0", keys, with_source, commands);
}

/* It counts for nothing, and the next renewal looks again. */
static bool fill_replied(dli_redis_request_t *request, const redisReply *reply) {
    (void)request;
    return reply->type == REDIS_REPLY_INTEGER || reply->type == REDIS_REPLY_ERROR ||
           reply->type == REDIS_REPLY_ARRAY;
}

static void fill_heard(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    (void)why;
    part->claimed_on = status == DL_EUNKNOWN || status == DL_EPROTO ? part->claimed_on : 0;
}

/* A claim: what has not left when the hold is freed never does, and what has comes before the free. */
static const dli_question_t filling = {
    .kind = {DLI_CLAIM, false, encode_fill, fill_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .stays = true,
    .heard = fill_heard};

static dli_round_t *hold_of(const dl_renewal_t *r) {
    const dli_redlock_hold_t *hold = r->hold;
    return hold != NULL && hold->round != NULL && !hold->round->is_freed ? hold->round : NULL;
}

/* Nodes that lost it; what is being freed is filled in nowhere. */
static void fill_in(const dl_renewal_t *r, uint32_t gone) {
    dli_round_t *round = hold_of(r);
    if (round != NULL && gone != 0 &&
        round->redlock->env->now_ns() < dli_valid_until(r->sent_ns, r->lease_ms)) {
        round->with.lease_ms = r->lease_ms;
        round->maybe |= gone;
        dli_round_ask(round, &filling, gone, 1, DL_NO_DEADLINE);
    }
}

/* Some nodes may just have been told to keep it for another lease, and a claim may be on its way. What is
 * being released already is left to that, which has to find it. */
static void clear_away(const dl_renewal_t *r, const dli_renewed_t *renewed) {
    dli_round_t *round = hold_of(r);
    if (round == NULL) {
        return;
    }
    dli_redlock_let_go(round);
    for (size_t i = 0; i < round->redlock->n; i++) {
        bool is_gone = (renewed->gone >> i & 1) != 0 && round->parts[i].claimed_on == 0;
        round->maybe &= is_gone ? ~(1u << i) : UINT32_MAX;
    }
    dli_redlock_send_frees(round, DL_NO_DEADLINE);
}

/* ---- the answer ------------------------------------------------------------------------------------- */

void dli_redlock_judge_renewals(dli_round_t *round) {
    const dli_redlock_t *redlock = round->redlock;
    const batch_t *batch = round->extra;
    for (size_t i = 0; i < redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if (part->wires[DLI_WIRE_CLAIM].is_pending) {
            fill_answers(part, part->wires[DLI_WIRE_CLAIM].request.queued ? DL_EIO : DL_EUNKNOWN);
        }
    }
    for (size_t k = 0; k < batch->count; k++) {
        dl_renewal_t *r = entry_of(round, k);
        dli_renewed_t renewed = dli_renewed_count(&batch->answers[k], batch->count, redlock->n);
        r->status = dli_renewed_judge(&batch->answers[k], batch->count, redlock->n, redlock->quorum);
        if (r->status == DL_OK) {
            fill_in(r, renewed.gone);
        } else if (r->status == DL_ELOST) {
            clear_away(r, &renewed);
        }
    }
}

/* Is each decided? any: is one renewed, so that there may be something to fill in? */
static bool is_decided(const dli_round_t *round, bool *any) {
    const dli_redlock_t *redlock = round->redlock;
    const batch_t *batch = round->extra;
    bool all = true;
    *any = false;
    for (size_t k = 0; k < batch->count; k++) {
        dli_renewed_t renewed = dli_renewed_count(&batch->answers[k], batch->count, redlock->n);
        *any |= renewed.own >= redlock->quorum;
        all = all && dli_renewed_is_decided(&renewed, redlock->n, redlock->quorum);
    }
    return all;
}

/* A node is filled in only when its answer is heard, so the rest gets a little time, unless that was in vain
 * lately. */
static void look_at_renewals(dli_round_t *round, bool is_over) {
    dli_redlock_t *redlock = round->redlock;
    bool any, is_heard = dli_round_pending(round, DLI_WIRE_CLAIM) == 0;
    if (is_heard || is_over) {
        redlock->waited_ns = is_heard ? 0 : redlock->env->now_ns();
    } else if (!is_decided(round, &any) || (any && dli_round_waits(round, redlock->waited_ns))) {
        return;
    }
    dli_redlock_judge_renewals(round);
    dli_round_end(round, DL_OK);
}

/* ---- the request ------------------------------------------------------------------------------------ */

static void fail_all(dli_request_t *request, dl_status_t status) {
    for (size_t i = 0; i < request->n; i++) {
        request->renewals[i].status = status;
    }
}

static size_t head_of(size_t n) {
    return (sizeof(batch_t) + n * sizeof(uint16_t) + 7) & ~(size_t)7;
}

bool dli_redlock_keep_renewals(dli_redlock_t *redlock) {
    dli_round_t *spare = redlock->spare.round = dli_round_new(redlock, head_of(SPARE) + redlock->n * SPARE);
    if (spare != NULL) {
        spare->hold = &redlock->spare; /* it stays */
    }
    return spare != NULL;
}

/* A hold must not end for want of memory. */
static dli_round_t *make_round(dli_redlock_t *redlock, size_t n) {
    dli_round_t *round = dli_round_new(redlock, head_of(n) + redlock->n * n), *spare = redlock->spare.round;
    if (round == NULL && n <= SPARE && spare != NULL && spare->asked == NULL) {
        memset(spare->extra, 0, head_of(SPARE) + redlock->n * SPARE);
        round = spare;
    }
    return round;
}

dl_status_t dli_redlock_renew(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    dli_round_t *round = make_round(redlock, request->n);
    uint64_t now_ns = redlock->env->now_ns(), deadline_ns = request->with.deadline_ns;
    (void)err;
    if (round == NULL) {
        fail_all(request, DL_ENOMEM);
        return DL_ENOMEM;
    }
    batch_t *batch = round->extra;
    batch->answers = (int8_t *)round->extra + head_of(request->n);
    for (size_t i = 0; i < request->n; i++) {
        dl_renewal_t *r = &request->renewals[i];
        r->sent_ns = now_ns;
        r->status = dli_renewal_check(r, redlock->max_lease_ms); /* a longer one outlives the quarantine */
        if (r->status == DL_OK) {
            batch->places[batch->count++] = (uint16_t)i;
            r->status = DL_EIO;
        }
    }
    /* What is known by then is told before the core gives up. */
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    round->asked = request;
    dli_round_ask(round, &renewing, batch->count > 0 ? dli_nodes_all(redlock) : 0, batch->count,
                  dli_round_until(redlock, deadline_ns - left_ns / 8));
    return DL_OK;
}
