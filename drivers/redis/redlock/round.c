/* round.c - asks several nodes at once, and waits no longer than the question needs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_AGAIN_NS (1000 * NS_PER_MS)
#define WAIT_MAX_NS (50 * NS_PER_MS)

/* ---- memory ----------------------------------------------------------------------------------------- */

dli_round_t *dli_round_new(dli_redlock_t *redlock, size_t extra) {
    size_t head = sizeof(dli_round_t) + redlock->n * sizeof(dli_part_t);
    head = (head + _Alignof(max_align_t) - 1) & ~(_Alignof(max_align_t) - 1);
    dli_round_t *round = calloc(1, head + extra);
    if (round == NULL) {
        return NULL;
    }
    round->redlock = redlock;
    round->extra = (char *)round + head;
    LIST_INSERT_HEAD(&redlock->all, round, of_all);
    for (size_t i = 0; i < redlock->n; i++) {
        round->parts[i].round = round;
        round->parts[i].node = &redlock->nodes[i];
    }
    return round;
}

static void free_if_unused(dli_round_t *round) {
    if (round->hold != NULL || round->asked != NULL || round->pending > 0) {
        return;
    }
    LIST_REMOVE(round, of_all);
    free(round);
}

void dli_rounds_abandon(dli_redlock_t *redlock) {
    for (dli_round_t *round = LIST_FIRST(&redlock->all), *older; round != NULL; round = older) {
        older = LIST_NEXT(round, of_all);
        round->pending = 0;
        free_if_unused(round);
    }
}

void dli_round_leave(dli_round_t *round) {
    round->hold = NULL;
    free_if_unused(round);
}

void dli_round_set(dli_round_t *round, const dl_request_t *with) {
    memcpy(round->name, with->name, with->name_len);
    snprintf(round->owner, sizeof round->owner, "%s", with->owner != NULL ? with->owner : "");
    round->with = *with;
    round->with.name = round->name;
    round->with.owner = round->owner;
}

dli_round_t *dli_round_of(dli_redlock_t *redlock, const dli_request_t *request, dli_redlock_hold_t *hold,
                          dl_error_t *err) {
    const dl_request_t *with = &request->with;
    bool has_room = with->token_floor < DLI_EXACT_END - 1 || request->kind == DLI_ASK_RELEASE;
    if (with->hold_id >= DLI_EXACT_END || !has_room) {
        (void)dl_driver_fail(err, DL_ELIMIT, 0, "hold id or token floor is too large for the nodes");
        return NULL;
    }
    dli_round_t *round = hold != NULL && hold->round != NULL ? hold->round : dli_round_new(redlock, 0);
    if (round == NULL) {
        (void)dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
        return NULL;
    }
    round->hold = hold;
    if (hold != NULL) {
        hold->round = round;
    }
    dli_round_set(round, with);
    return round;
}

/* ---- asking ----------------------------------------------------------------------------------------- */

static uint64_t node_timeout_ns(const dli_redlock_t *redlock) {
    return (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
}

uint64_t dli_round_until(const dli_redlock_t *redlock, uint64_t deadline_ns) {
    uint64_t full_ns = redlock->env->now_ns() + node_timeout_ns(redlock);
    return full_ns < deadline_ns ? full_ns : deadline_ns;
}

static void set_until(dli_round_t *round, uint64_t until_ns) {
    dli_redlock_t *redlock = round->redlock;
    round->until_ns = until_ns;
    redlock->due_ns = until_ns < redlock->due_ns ? until_ns : redlock->due_ns;
}

bool dli_round_waits(dli_round_t *round, uint32_t nodes) {
    const dli_redlock_t *redlock = round->redlock;
    uint64_t now_ns = redlock->env->now_ns(), tenth_ns = node_timeout_ns(redlock) / 10;
    bool may_help = false;
    for (size_t i = 0; i < redlock->n; i++) {
        uint64_t waited_ns = redlock->nodes[i].waited_ns;
        may_help |= (nodes >> i & 1) != 0 && (waited_ns == 0 || now_ns >= waited_ns + WAIT_AGAIN_NS);
    }
    if (!round->lingers && may_help) {
        uint64_t until_ns = now_ns + (tenth_ns < WAIT_MAX_NS ? tenth_ns : WAIT_MAX_NS);
        round->lingers = true;
        set_until(round, until_ns < round->until_ns ? until_ns : round->until_ns);
    }
    return round->lingers;
}

void dli_round_begin(dli_round_t *round, dli_request_t *request, uint64_t parts) {
    uint64_t now_ns = round->redlock->env->now_ns(), deadline_ns = request->with.deadline_ns;
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    round->asked = request;
    round->end_ns = deadline_ns - left_ns / parts;
    request->place = round;
}

void dli_round_ask(dli_round_t *round, const dli_question_t *question, uint32_t nodes, size_t count) {
    dli_redlock_t *redlock = round->redlock;
    if (round->asked != NULL && round->question == NULL) {
        LIST_INSERT_HEAD(&redlock->rounds, round, of_asked);
    }
    if (round->asked != NULL) {
        round->question = question;
        round->lingers = false;
        round->began_ns = redlock->env->now_ns();
        set_until(round, dli_round_until(redlock, round->end_ns));
    }
    for (size_t i = 0; i < redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        dli_wire_t *wire = &part->wires[question->wire];
        if ((nodes >> i & 1) == 0 || wire->is_pending) {
            continue; /* a free that is under way is as good as another */
        }
        *wire = (dli_wire_t){
            .request = {.kind = &question->kind, .count = (uint32_t)count}, .part = part, .is_pending = true};
        wire->request.claim = round->with.hold_id;
        round->pending++;
        redlock->has_begun = true;
        dli_mux_begin(&part->node->redis.mux, &wire->request);
    }
    if (round->asked != NULL && dli_round_pending(round, question->wire) == 0) {
        set_until(round, 0); /* it ends with the next flush */
    }
}

uint32_t dli_round_pending(const dli_round_t *round, dli_wire_kind_t wire) {
    uint32_t nodes = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        nodes |= round->parts[i].wires[wire].is_pending ? 1u << i : 0;
    }
    return nodes;
}

uint32_t dli_nodes_lagging(const dli_redlock_t *redlock) {
    uint32_t nodes = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        nodes |= redlock->nodes[i].lags ? 1u << i : 0;
    }
    return nodes;
}

uint32_t dli_round_unsent(const dli_round_t *round, dli_wire_kind_t wire) {
    uint32_t nodes = dli_round_pending(round, wire);
    for (size_t i = 0; i < round->redlock->n; i++) {
        nodes &= round->parts[i].wires[wire].request.queued ? UINT32_MAX : ~(1u << i);
    }
    return nodes;
}

uint32_t dli_round_withdraw(dli_round_t *round, dli_wire_kind_t kind) {
    uint32_t unsent = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_wire_t *wire = &round->parts[i].wires[kind];
        if (wire->is_pending) {
            bool was_sent = dli_mux_withdraw(&round->parts[i].node->redis.mux, &wire->request);
            unsent |= was_sent ? 0 : 1u << i;
            wire->is_pending = false;
            round->pending--;
        }
    }
    return unsent;
}

/* ---- ends ------------------------------------------------------------------------------------------- */

dl_error_t *dli_round_err(const dli_round_t *round) {
    return round->asked != NULL && round->asked->err != NULL ? round->asked->err : &round->redlock->unread;
}

void dli_round_stop(dli_round_t *round) {
    if (!round->question->stays) {
        (void)dli_round_withdraw(round, round->question->wire);
    }
    LIST_REMOVE(round, of_asked);
    round->question = NULL;
    round->asked = NULL;
    free_if_unused(round);
}

void dli_round_end(dli_round_t *round, dl_status_t status) {
    dli_request_t *asked = round->asked;
    dli_round_stop(round);
    asked->ended(asked, status);
}

static void keep_text(dli_part_t *part, const char *text) {
    snprintf(part->text, sizeof part->text, "%s", text);
}

/* A vote without an answer: why, and whether it may have been carried out. */
static dli_ballot_t silent(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    bool is_unknown = status == DL_EUNKNOWN || status == DL_EPROTO;
    keep_text(part, why->message);
    return (dli_ballot_t){.vote = is_unknown ? DLI_VOTE_UNKNOWN : DLI_VOTE_NONE,
                          .status = status == DL_EUNKNOWN ? DL_EIO : status,
                          .why = part->text};
}

void dli_wire_ended(dli_redis_request_t *request, dl_status_t status, const dl_error_t *why) {
    dli_wire_t *wire = (dli_wire_t *)(void *)request;
    dli_part_t *part = wire->part;
    const dli_question_t *question = (const dli_question_t *)(const void *)request->kind;
    dli_round_t *round = part->round;
    bool is_in_time = round->asked != NULL && round->question == question;
    wire->is_pending = false;
    round->pending--;
    if (is_in_time && status == DL_OK) {
        part->node->lags = false;
        part->node->waited_ns = 0;
    }
    dli_node_tell(part->node, status, why);
    part->vote = status != DL_OK ? silent(part, status, why) : part->vote;
    if (question->heard != NULL) {
        question->heard(part);
    }
    if (round->asked != NULL) {            /* what comes late may be what the next question waits for */
        set_until(round, round->until_ns); /* who was waited for beyond that may have been this one */
        dli_round_look(round, false);
    } else {
        free_if_unused(round);
    }
}

/* Since when a node has been asked, however long it took to send to those before it. */
static uint64_t asked_ns(const dli_part_t *part) {
    const dli_round_t *round = part->round;
    const dli_redis_request_t *request = &part->wires[round->question->wire].request;
    return !request->queued && request->sent_ns > round->began_ns ? request->sent_ns : round->began_ns;
}

static uint64_t over_ns(const dli_round_t *round) {
    uint64_t ns = round->until_ns;
    for (size_t i = 0; i < round->redlock->n && !round->lingers; i++) {
        const dli_part_t *part = &round->parts[i];
        uint64_t part_ns = asked_ns(part) + node_timeout_ns(round->redlock);
        bool is_later = part->wires[round->question->wire].is_pending && part_ns > ns;
        ns = !is_later ? ns : part_ns < round->end_ns ? part_ns : round->end_ns;
    }
    return ns;
}

void dli_rounds_expire(dli_redlock_t *redlock) {
    uint64_t now_ns = redlock->read_ns;
    dli_round_t *round = redlock->due_ns <= now_ns ? LIST_FIRST(&redlock->rounds) : NULL;
    if (round != NULL) {
        redlock->due_ns = DL_NO_DEADLINE;
    }
    while (round != NULL) {
        dli_round_t *next = LIST_NEXT(round, of_asked);
        uint64_t until_ns = over_ns(round);
        if (until_ns <= now_ns) {
            round->until_ns = DL_NO_DEADLINE;
            dli_round_look(round, true);
            next = LIST_FIRST(&redlock->rounds); /* others may have gone with it */
        } else if (until_ns < redlock->due_ns) {
            redlock->due_ns = until_ns;
        }
        round = next;
    }
}

/* ---- votes ------------------------------------------------------------------------------------------ */

dli_ballot_t dli_part_refused(dli_part_t *part, const redisReply *reply) {
    dl_error_t err;
    dl_status_t status = dli_redis_fail(&part->node->redis, &part->round->with, reply, &err);
    keep_text(part, err.message);
    return (dli_ballot_t){.vote = DLI_VOTE_NONE, .status = status, .why = part->text};
}

/* The node has let its time run out. In words; NULL: the caller had little, which says nothing about it. */
static const char *note_silence(dli_part_t *part) {
    const dli_round_t *round = part->round;
    const dli_redlock_t *redlock = round->redlock;
    dli_node_t *node = part->node;
    dl_error_t why;
    node->lags = true;
    node->waited_ns = round->lingers ? redlock->env->now_ns() : node->waited_ns;
    if (redlock->read_ns < asked_ns(part) + node_timeout_ns(redlock)) {
        return NULL;
    }
    (void)dl_driver_fail(&why, DL_EIO, 0, "%s: no answer within %s", node->redis.endpoint.label,
                         dl_driver_duration(redlock->node_timeout_ms).text);
    dli_node_tell(node, DL_EIO, &why);
    keep_text(part, why.message);
    return part->text;
}

/* What has not been answered counts as this. */
static dli_ballot_t unheard(dli_part_t *part, dli_wire_kind_t wire, bool is_over) {
    const dli_wire_t *asked = &part->wires[wire];
    bool has_left = wire == DLI_WIRE_FREE || !asked->request.queued; /* or will */
    return (dli_ballot_t){.vote = has_left ? DLI_VOTE_UNKNOWN : DLI_VOTE_NONE,
                          .status = DL_EIO,
                          .why = is_over ? note_silence(part) : NULL};
}

void dli_round_count(dli_round_t *round, bool is_over, dli_tally_t *tally) {
    const dli_redlock_t *redlock = round->redlock;
    dli_ballot_t votes[DLI_NODES_MAX];
    dli_wire_kind_t wire = round->question->wire;
    for (size_t i = 0; i < redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        votes[i] = part->wires[wire].is_pending ? unheard(part, wire, is_over) : part->vote;
    }
    dli_tally_count(tally, votes, redlock->n, redlock->quorum);
}

void dli_round_look(dli_round_t *round, bool is_over) {
    dli_tally_t tally;
    dli_round_count(round, is_over, &tally);
    round->question->look(round, &tally, is_over ? 0 : dli_round_pending(round, round->question->wire));
}
