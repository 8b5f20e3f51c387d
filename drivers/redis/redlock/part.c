/* part.c - one node's part of a round: sent, sent again where that is needed, heard. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "round.h"

#define NS_PER_MS ((uint64_t)1000000)
/* A free without an answer is sent so many times more. */
#define RESENT_MAX 2
/* One that could not be sent waits for so long, twice as long each time. Whoever is refused a connection is
 * refused at once, so that trying again at once is of no use. */
#define PAUSE_FIRST_NS (20 * NS_PER_MS)
#define PAUSE_MAX_NS (320 * NS_PER_MS)

void dli_part_free_replies(dli_part_t *part) {
    for (size_t i = 0; i < part->round->replies_max; i++) {
        freeReplyObject(part->replies[i]);
        part->replies[i] = NULL;
    }
}

/* The connection is there, and with it the process that answers. */
static dl_status_t prepare(dli_exchange_t *x, const dli_facts_t *facts, dl_error_t *err) {
    dli_part_t *part = x->arg;
    dl_status_t status = dli_node_meet(part->node, facts->run_id, err);
    if (status != DL_OK) {
        return status;
    }
    memcpy(part->run_id, facts->run_id, sizeof part->run_id);
    dli_commands_clear(&part->commands);
    part->round->question->encode(part->round, part->node, facts->run_id, part->with_source, &part->commands);
    if (part->commands.count == 0 && !part->commands.out_of_memory) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "there is nothing to say any more");
    }
    x->commands = &part->commands;
    return DL_OK;
}

static void send(dli_part_t *part) {
    const dli_question_t *question = part->round->question;
    part->exchange = (dli_exchange_t){.replies = part->replies,
                                      .prepare = prepare,
                                      .arg = part,
                                      .lane = question->lane,
                                      .intent = question->intent,
                                      .is_patient = question->intent == DLI_FREE,
                                      .deadline_ns = part->exchange.deadline_ns};
    dli_link_begin(part->node->redis.link, &part->exchange, &part->err);
}

/* The server does not know a script: then it surely did nothing of that. */
static bool is_forgotten(const dli_part_t *part) {
    for (size_t i = 0; !part->with_source && i < part->round->replies_max; i++) {
        if (part->replies[i] != NULL && dli_reply_is_error(part->replies[i], "NOSCRIPT")) {
            return true;
        }
    }
    return false;
}

/* There was no way to the node, or no room for another connection or the request, or it does not write now:
 * that may pass. */
static bool was_refused(const dli_part_t *part) {
    dl_status_t status = part->exchange.status;
    dl_error_t err;
    for (size_t i = 0; status == DL_OK && i < part->round->replies_max; i++) {
        const redisReply *reply = part->replies[i];
        status = reply != NULL && reply->type == REDIS_REPLY_ERROR ? dli_reply_fail(reply, &err) : DL_OK;
    }
    return status == DL_EIO || status == DL_ELIMIT || status == DL_ENOMEM;
}

bool dli_part_is_lost(const dli_part_t *part) {
    return part->exchange.status == DL_EUNKNOWN || was_refused(part);
}

/* It was not carried out, or may not have been: the node would keep its vote for a hold that has ended. While
 * a caller steps it, it is not sent again, for the second answer does not tell what the first did. */
static bool is_lost_free(const dli_part_t *part) {
    const dli_redlock_t *redlock = part->round->redlock;
    if (!part->is_theirs || part->round->question->intent != DLI_FREE) {
        return false;
    }
    if (was_refused(part)) {
        return redlock->env->now_ns() < part->began_ns + (RESENT_MAX + 1) * dli_call_timeout_ns(redlock);
    }
    return part->exchange.status == DL_EUNKNOWN && part->resent < RESENT_MAX;
}

/* Does it wait before it is tried again? */
static bool pauses(dli_part_t *part) {
    uint64_t now_ns = part->round->redlock->env->now_ns();
    if (part->is_paused) {
        part->is_paused = now_ns < part->exchange.deadline_ns;
    } else if (was_refused(part)) {
        part->is_paused = true;
        part->pause_ns = part->pause_ns == 0 ? PAUSE_FIRST_NS : 2 * part->pause_ns;
        part->pause_ns = part->pause_ns < PAUSE_MAX_NS ? part->pause_ns : PAUSE_MAX_NS;
        part->exchange.deadline_ns = now_ns + part->pause_ns;
    }
    return part->is_paused;
}

/* Every script here may be run again; its answer is then that of the last time. */
static bool send_again_if_needed(dli_part_t *part) {
    const dli_redlock_t *redlock = part->round->redlock;
    while (dli_link_is_done(&part->exchange)) {
        part->sent_ns = part->sent_ns == 0 ? part->exchange.sent_ns : part->sent_ns;
        if (part->is_paused || is_lost_free(part)) {
            if (pauses(part)) {
                return false;
            }
            part->resent += part->exchange.status == DL_EUNKNOWN;
            part->is_unsure |= part->exchange.status == DL_EUNKNOWN;
            part->exchange.deadline_ns = redlock->env->now_ns() + dli_call_timeout_ns(redlock);
        } else if (part->exchange.status == DL_OK && is_forgotten(part)) {
            part->with_source = true;
        } else {
            return true;
        }
        dli_part_free_replies(part);
        send(part);
    }
    return false;
}

/* What was sent has node_timeout from then on, however long it took to get a connection. */
static void limit(dli_part_t *part) {
    const dli_redlock_t *redlock = part->round->redlock;
    uint64_t until_ns = part->exchange.sent_ns + (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    if (part->exchange.sent_ns != 0 && !part->is_paused && until_ns < part->exchange.deadline_ns) {
        part->exchange.deadline_ns = until_ns;
    }
}

void dli_part_begin(dli_part_t *part, uint64_t deadline_ns) {
    part->exchange.deadline_ns = deadline_ns;
    part->began_ns = part->round->redlock->env->now_ns();
    send(part);
    (void)send_again_if_needed(part);
    limit(part);
}

bool dli_part_has_ended(const dli_part_t *part) {
    return dli_link_is_done(&part->exchange) && !part->is_paused;
}

bool dli_part_step(dli_part_t *part, short revents) {
    dli_link_t *link = part->node->redis.link;
    dli_link_step(link, &part->exchange, revents);
    if (!dli_link_is_done(&part->exchange) &&
        part->round->redlock->env->now_ns() >= part->exchange.deadline_ns) {
        dli_link_abandon(link, &part->exchange, DL_EIO);
    }
    bool has_ended = send_again_if_needed(part);
    limit(part);
    return has_ended;
}

const redisReply *dli_part_reply(const dli_part_t *part) {
    return part->state == DLI_PART_ENDED ? part->replies[0] : NULL;
}
