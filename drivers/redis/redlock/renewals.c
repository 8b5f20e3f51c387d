/* renewals.c - renewing many holds by one round, and filling in nodes that have lost one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "round.h"

/* So many are renewed at once at most, and have memory that was there before. */
#define SPARE 1000

/* What nodes have answered of one renewal of the request; masks of them. A round has as many beside its
 * parts. */
typedef struct entry {
    uint32_t own, gone, foreign; /* it is there; nobody's is, or another's; something else is */
    uint32_t unknown, failed;    /* it may have been renewed there; it was not, for some reason */
    dl_status_t reason;          /* which; DL_EIO where there are several */
} entry_t;

/* The first answer of a node counts. DL_ELOST: it is not there. */
static void note(const dli_part_t *part, size_t k, dl_status_t status) {
    entry_t *e = (entry_t *)part->round->extra + k;
    uint32_t node = 1u << part->node->index;
    if (((e->own | e->gone | e->foreign | e->unknown | e->failed) & node) != 0) {
        return;
    }
    uint32_t *mask = status == DL_OK         ? &e->own
                     : status == DL_ELOST    ? &e->gone
                     : status == DL_EFOREIGN ? &e->foreign
                     : status == DL_EUNKNOWN ? &e->unknown
                                             : &e->failed;
    *mask |= node;
    if (mask == &e->failed) {
        e->reason = e->reason == DL_OK || e->reason == status ? status : DL_EIO;
    }
}

static bool is_renewed(const dli_redlock_t *redlock, const entry_t *e) {
    return dli_nodes_count(e->own) >= redlock->quorum;
}

static bool is_lost(const dli_redlock_t *redlock, const entry_t *e) {
    return dli_nodes_count(e->gone | e->foreign) > redlock->n - redlock->quorum;
}

/* ---- the question ----------------------------------------------------------------------------------- */

static void encode_renewal(dli_redis_request_t *request, bool with_source, dli_commands_t *commands) {
    const dli_part_t *part = dli_wire_part(request);
    for (size_t k = 0; k < request->count; k++) {
        const dl_request_t with = dli_renewal_request(&part->round->asked->renewals[k]);
        dli_redis_encode(&part->node->redis, &with, &dli_script_string_acquire, "kt|oh0x", NULL,
                         with_source && k == 0, commands);
    }
}

static bool renewal_replied(dli_redis_request_t *request, const redisReply *reply) {
    const dli_part_t *part = dli_wire_part(request);
    bool is_error = reply->type == REDIS_REPLY_ERROR;
    int64_t number = -1;
    dl_error_t err;
    (void)dli_reply_int(reply, &number);
    note(part, request->got - 1,
         number == 1                   ? DL_OK
         : number == 0                 ? DL_ELOST
         : dli_redis_is_foreign(reply) ? DL_EFOREIGN
         : is_error                    ? dli_redis_fail(&part->node->redis, NULL, reply, &err)
                                       : DL_EUNKNOWN);
    return number == 0 || number == 1 || is_error;
}

/* ---- filling in ------------------------------------------------------------------------------------- */

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
        dli_redlock_fill(round, gone);
    }
}

/* Some nodes may just have been told to keep it for another lease, and a claim may be on its way. What is
 * being released already is left to that, which has to find it. */
static void clear_away(const dl_renewal_t *r) {
    dli_round_t *round = hold_of(r);
    if (round != NULL) {
        dli_redlock_let_go(round);
    }
}

/* ---- the answer ------------------------------------------------------------------------------------- */

void dli_redlock_judge_renewals(dli_round_t *round) {
    const dli_redlock_t *redlock = round->redlock;
    dli_tally_t tally;
    dli_round_count(round, false, &tally);
    for (size_t k = 0; k < round->asked->n; k++) {
        dl_renewal_t *r = &round->asked->renewals[k];
        const entry_t *e = (const entry_t *)round->extra + k;
        for (size_t i = 0; i < redlock->n; i++) { /* where an answer is missing */
            bool is_unknown = tally.ballots[i].vote == DLI_VOTE_UNKNOWN;
            note(&round->parts[i], k, is_unknown ? DL_EUNKNOWN : tally.ballots[i].status);
        }
        if (is_renewed(redlock, e)) {
            r->status = DL_OK;
            fill_in(r, e->gone);
        } else if (is_lost(redlock, e)) {
            r->status = DL_ELOST;
            clear_away(r);
        } else { /* no majority has said either */
            r->status = (e->own | e->unknown) != 0 ? DL_EUNKNOWN : e->reason;
        }
    }
}

/* Is each decided? any: is one renewed, so that there may be something to fill in? */
static bool is_decided(const dli_round_t *round, bool *any) {
    const entry_t *entries = round->extra;
    bool all = true;
    *any = false;
    for (size_t k = 0; k < round->asked->n; k++) {
        bool renewed = is_renewed(round->redlock, &entries[k]);
        *any |= renewed;
        all = all && (renewed || is_lost(round->redlock, &entries[k]));
    }
    return all;
}

/* A node is filled in only when its answer is heard, so the rest gets a little time. */
static void look_at_renewals(dli_round_t *round, const dli_tally_t *tally, uint32_t pending) {
    (void)tally; /* each entry has its own */
    bool any;
    if (pending == 0 || (is_decided(round, &any) && !(any && dli_round_waits(round, pending)))) {
        dli_redlock_judge_renewals(round);
        dli_round_end(round, DL_OK);
    }
}

static const dli_question_t renewing = {
    .kind = {DLI_PLAIN, true, encode_renewal, renewal_replied, dli_wire_ended, NULL},
    .wire = DLI_WIRE_CLAIM,
    .look = look_at_renewals};

/* ---- the request ------------------------------------------------------------------------------------ */

static void fail_all(dli_request_t *request, dl_status_t status) {
    for (size_t i = 0; i < request->n; i++) {
        request->renewals[i].status = status;
    }
}

bool dli_redlock_keep_renewals(dli_redlock_t *redlock) {
    dli_round_t *spare = redlock->spare.round = dli_round_new(redlock, SPARE * sizeof(entry_t));
    if (spare != NULL) {
        spare->hold = &redlock->spare; /* it stays */
    }
    return spare != NULL;
}

/* A hold must not end for want of memory. */
static dli_round_t *make_round(dli_redlock_t *redlock, size_t n) {
    dli_round_t *round = dli_round_new(redlock, n * sizeof(entry_t)), *spare = redlock->spare.round;
    if (round == NULL && n <= SPARE && spare != NULL && spare->asked == NULL) {
        memset(spare->extra, 0, SPARE * sizeof(entry_t));
        round = spare;
    }
    return round;
}

dl_status_t dli_redlock_renew(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err) {
    /* A caller's, which is alone, is refused in words. */
    dl_status_t status =
        request->n == 1 ? dli_redlock_check_lease(redlock, request->renewals[0].lease_ms, err) : DL_OK;
    dli_round_t *round = status == DL_OK ? make_round(redlock, request->n) : NULL;
    uint64_t now_ns = redlock->env->now_ns();
    if (round == NULL) {
        status = status == DL_OK ? DL_ENOMEM : status;
        fail_all(request, status);
        return status;
    }
    for (size_t i = 0; i < request->n; i++) {
        request->renewals[i].sent_ns = now_ns;
    }
    dli_round_begin(round, request, 8);
    dli_round_ask(round, &renewing, dli_nodes_all(redlock), request->n);
    return DL_OK;
}
