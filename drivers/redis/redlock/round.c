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

dl_status_t dli_round_of(dli_redlock_t *redlock, const dli_request_t *request, dli_redlock_hold_t *hold,
                         dli_round_t **round, dl_error_t *err) {
    const dl_request_t *with = &request->with;
    *round = NULL;
    bool has_room = with->token_floor < DLI_EXACT_END - 1 || request->kind == DLI_ASK_RELEASE;
    if (with->hold_id >= DLI_EXACT_END || !has_room) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "hold id or token floor is too large for the nodes");
    }
    dli_round_t *made = hold != NULL && hold->round != NULL ? hold->round : dli_round_new(redlock, 0);
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    made->hold = hold;
    if (hold != NULL) {
        hold->round = made;
    }
    dli_round_set(made, with);
    *round = made;
    return DL_OK;
}

/* ---- asking ----------------------------------------------------------------------------------------- */

uint64_t dli_round_until(const dli_redlock_t *redlock, uint64_t deadline_ns) {
    uint64_t full_ns = redlock->env->now_ns() + (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    return full_ns < deadline_ns ? full_ns : deadline_ns;
}

static void set_until(dli_round_t *round, uint64_t until_ns) {
    dli_redlock_t *redlock = round->redlock;
    round->until_ns = until_ns;
    redlock->due_ns = until_ns < redlock->due_ns ? until_ns : redlock->due_ns;
}

bool dli_round_waits(dli_round_t *round, uint64_t waited_ns) {
    dli_redlock_t *redlock = round->redlock;
    uint64_t now_ns = redlock->env->now_ns(), tenth_ns = (uint64_t)redlock->node_timeout_ms * NS_PER_MS / 10;
    bool was_in_vain = waited_ns != 0 && now_ns < waited_ns + WAIT_AGAIN_NS;
    if (!round->lingers && !was_in_vain) {
        uint64_t until_ns = now_ns + (tenth_ns < WAIT_MAX_NS ? tenth_ns : WAIT_MAX_NS);
        round->lingers = true;
        set_until(round, until_ns < round->until_ns ? until_ns : round->until_ns);
    }
    return round->lingers;
}

void dli_round_ask(dli_round_t *round, const dli_question_t *question, uint32_t nodes, size_t count,
                   uint64_t until_ns) {
    dli_redlock_t *redlock = round->redlock;
    if (round->asked != NULL && round->question == NULL) {
        LIST_INSERT_HEAD(&redlock->rounds, round, of_asked);
    }
    if (round->asked != NULL) {
        round->asked->place = round;
        round->question = question;
        round->lingers = false;
        round->began_ns = redlock->env->now_ns();
        set_until(round, until_ns);
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
        dli_mux_begin(part->node->redis.mux, &wire->request);
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

uint32_t dli_round_withdraw(dli_round_t *round, dli_wire_kind_t kind) {
    uint32_t unsent = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_wire_t *wire = &round->parts[i].wires[kind];
        if (wire->is_pending) {
            bool was_sent = dli_mux_withdraw(round->parts[i].node->redis.mux, &wire->request);
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

void dli_wire_ended(dli_redis_request_t *request, dl_status_t status, const dl_error_t *why) {
    dli_wire_t *wire = (dli_wire_t *)(void *)request;
    const dli_question_t *question = (const dli_question_t *)(const void *)request->kind;
    dli_round_t *round = wire->part->round;
    bool is_in_time = round->asked != NULL && round->question == question;
    wire->is_pending = false;
    round->pending--;
    wire->part->node->lags = wire->part->node->lags && !(is_in_time && status == DL_OK);
    dli_node_tell(wire->part->node, status, why);
    question->heard(wire->part, status, why);
    if (round->asked != NULL) { /* what comes late may be what the next question waits for */
        dli_round_look(round, false);
    } else {
        free_if_unused(round);
    }
}

static void keep_text(dli_part_t *part, const char *text) {
    snprintf(part->text, sizeof part->text, "%s", text);
}

/* The nodes that let it run out. */
static void note_silence(dli_round_t *round, uint64_t now_ns) {
    const dli_redlock_t *redlock = round->redlock;
    bool had_its_time = now_ns >= round->began_ns + (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    uint32_t silent = dli_round_pending(round, round->question->wire);
    for (size_t i = 0; i < redlock->n; i++) {
        dli_node_t *node = round->parts[i].node;
        if ((silent >> i & 1) == 0) {
            continue;
        }
        node->lags = true;
        if (had_its_time) { /* that a caller has little says nothing about a node */
            dl_error_t why;
            (void)dl_driver_fail(&why, DL_EIO, 0, "%s: no answer within %s", node->redis.endpoint.label,
                                 dl_driver_duration(redlock->node_timeout_ms).text);
            dli_node_tell(node, DL_EIO, &why);
            round->parts[i].is_overdue = true;
            keep_text(&round->parts[i], why.message);
        }
    }
}

void dli_rounds_expire(dli_redlock_t *redlock) {
    uint64_t now_ns = redlock->env->now_ns();
    dli_round_t *round = redlock->due_ns <= now_ns ? LIST_FIRST(&redlock->rounds) : NULL;
    if (round != NULL) {
        redlock->due_ns = DL_NO_DEADLINE;
    }
    while (round != NULL) {
        dli_round_t *next = LIST_NEXT(round, of_asked);
        if (round->until_ns <= now_ns) {
            note_silence(round, now_ns);
            round->until_ns = DL_NO_DEADLINE;
            dli_round_look(round, true);
            next = LIST_FIRST(&redlock->rounds); /* others may have gone with it */
        } else if (round->until_ns < redlock->due_ns) {
            redlock->due_ns = round->until_ns;
        }
        round = next;
    }
}

/* ---- votes ------------------------------------------------------------------------------------------ */

dli_ballot_t dli_part_silent(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    bool is_unknown = status == DL_EUNKNOWN || status == DL_EPROTO;
    keep_text(part, why->message);
    return (dli_ballot_t){.vote = is_unknown ? DLI_VOTE_UNKNOWN : DLI_VOTE_NONE,
                          .status = status == DL_EUNKNOWN ? DL_EIO : status,
                          .why = part->text};
}

void dli_part_heard(dli_part_t *part, dl_status_t status, const dl_error_t *why) {
    part->vote = status != DL_OK ? dli_part_silent(part, status, why) : part->vote;
}

dli_ballot_t dli_part_refused(dli_part_t *part, const redisReply *reply) {
    dli_key_t key;
    dl_error_t err;
    dli_redis_key(&part->node->redis, part->round->with.name, part->round->with.name_len, &key);
    dl_status_t status = dli_redis_fail(&part->node->redis, &key, reply, &err);
    keep_text(part, err.message);
    return (dli_ballot_t){.vote = DLI_VOTE_NONE, .status = status, .why = part->text};
}

/* What has not been answered counts as this. */
static dli_ballot_t unheard(const dli_part_t *part, dli_wire_kind_t wire) {
    const dli_wire_t *asked = &part->wires[wire];
    bool has_left = asked->is_pending && (wire == DLI_WIRE_FREE || !asked->request.queued); /* or will */
    return (dli_ballot_t){.vote = has_left ? DLI_VOTE_UNKNOWN : DLI_VOTE_NONE,
                          .status = DL_EIO,
                          .why = part->is_overdue ? part->text : NULL};
}

void dli_round_look(dli_round_t *round, bool is_over) {
    const dli_redlock_t *redlock = round->redlock;
    dli_ballot_t votes[DLI_NODES_MAX];
    dli_wire_kind_t wire = round->question->wire;
    dli_tally_t tally;
    for (size_t i = 0; i < redlock->n; i++) {
        const dli_part_t *part = &round->parts[i];
        votes[i] = part->wires[wire].is_pending ? unheard(part, wire) : part->vote;
    }
    dli_tally_count(&tally, votes, redlock->n, redlock->quorum);
    round->question->look(round, &tally, is_over);
}
