/* round.c - asks several nodes at once, and waits no longer than its caller needs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS ((uint64_t)1000000)
/* An answer that is about to come is waited for, for half as long as the round took so far and no longer than
 * this: leaving it to another thread costs more. */
#define LINGER_NS (NS_PER_MS / 2)
#define WAIT_AGAIN_NS (1000 * NS_PER_MS)
#define WAIT_MAX_NS (50 * NS_PER_MS)

/* ---- memory ----------------------------------------------------------------------------------------- */

static size_t round_up(size_t size) {
    return (size + _Alignof(max_align_t) - 1) & ~(_Alignof(max_align_t) - 1);
}

dli_round_t *dli_round_new(dli_redlock_t *redlock, const dli_question_t *question, size_t data_size,
                           size_t replies_max) {
    size_t head = round_up(sizeof(dli_round_t) + redlock->n * sizeof(dli_part_t));
    size_t data = round_up(data_size);
    char *memory = calloc(1, head + data + redlock->n * replies_max * sizeof(redisReply *));
    if (memory == NULL) {
        return NULL;
    }
    dli_round_t *round = (dli_round_t *)memory;
    redisReply **replies = (redisReply **)(memory + head + data);
    round->redlock = redlock;
    round->question = question;
    round->data = memory + head;
    round->replies_max = replies_max;
    for (size_t i = 0; i < redlock->n; i++) {
        round->parts[i].round = round;
        round->parts[i].node = &redlock->nodes[i];
        round->parts[i].replies = replies + i * replies_max;
    }
    return round;
}

void dli_round_free(dli_round_t *round) {
    if (round == NULL) {
        return;
    }
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_free_replies(&round->parts[i]);
        dli_commands_free(&round->parts[i].commands);
    }
    free(round);
}

void dli_round_drop(dli_round_t *round) {
    if (round != NULL && dli_stragglers_part_with(round->redlock->stragglers, round)) {
        dli_round_free(round);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------ */

uint32_t dli_round_mask(const dli_round_t *round, dli_part_state_t state) {
    uint32_t mask = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        mask |= round->parts[i].state == state ? 1u << i : 0;
    }
    return mask;
}

static uint64_t part_deadline(const dli_redlock_t *redlock, uint64_t now_ns, uint64_t deadline_ns) {
    uint64_t until_ns = now_ns + (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    return until_ns < deadline_ns ? until_ns : deadline_ns;
}

/* Has another node's answer of this round come from the same process? Addresses may be moved from server to
 * server at any time, and then two connections, each right when it was made, lead to one of them. */
static const dli_part_t *find_twin(const dli_part_t *part) {
    const dli_round_t *round = part->round;
    for (size_t i = 0; part->run_id[0] != '\0' && i < round->redlock->n; i++) {
        const dli_part_t *other = &round->parts[i];
        if (other != part && other->state == DLI_PART_ENDED && other->exchange.status == DL_OK &&
            strcmp(other->run_id, part->run_id) == 0) {
            return other;
        }
    }
    return NULL;
}

/* No process answers twice. */
void dli_part_end(dli_part_t *part) {
    const dli_part_t *twin = part->exchange.status == DL_OK ? find_twin(part) : NULL;
    part->state = DLI_PART_ENDED;
    if (twin != NULL) {
        dli_part_free_replies(part);
        part->exchange.status =
            dl_driver_fail(&part->err, DL_EUNKNOWN, 0, "nodes %zu and %zu are the same server",
                           part->node->index + 1, twin->node->index + 1);
    }
}

bool dli_node_lags_behind(const dli_node_t *node) {
    return atomic_load(&node->late_renewals) >= (size_t)dli_link_max_total(node->redis.link);
}

/* A claim that a slow node would hear of long after everybody else is no help, and has to be freed, too.
 * Renewals have connections without a limit, and a node that is silent would get another with each round. */
static bool is_overloaded(const dli_part_t *part) {
    const dli_question_t *question = part->round->question;
    const dli_node_t *node = part->node;
    if (question->intent == DLI_CLAIM) {
        return atomic_load(&node->backlog) >= (size_t)dli_link_max_total(node->redis.link);
    }
    return question->lane == DLI_LANE_RENEWALS && question->intent != DLI_FREE && dli_node_lags_behind(node);
}

/* It was never sent. */
static void leave(dli_part_t *part, const char *why) {
    part->exchange.status =
        dl_driver_fail(&part->err, DL_EIO, EAGAIN, "%s: %s", part->node->redis.endpoint.label, why);
    part->state = DLI_PART_ENDED;
    part->is_left = true;
}

/* Nobody waits for frees that have no connection yet, but they go on: what a node has heard of shall end. */
static uint64_t patience(const dli_round_t *round, uint64_t until_ns) {
    uint64_t call_ns = round->began_ns + dli_call_timeout_ns(round->redlock);
    return round->question->intent == DLI_FREE && !round->is_spare && call_ns > until_ns ? call_ns : until_ns;
}

/* Returns until when they are waited for. */
static uint64_t ask(dli_round_t *round, uint32_t nodes, uint64_t deadline_ns) {
    const dli_redlock_t *redlock = round->redlock;
    round->began_ns = redlock->env->now_ns();
    uint64_t until_ns = part_deadline(redlock, round->began_ns, deadline_ns);
    for (size_t i = 0; i < redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if ((nodes >> i & 1) == 0) {
            continue;
        }
        /* It may be this process that is behind, and not the node: then the node is no reason to do without
         * it. */
        if (is_overloaded(part)) {
            dli_stragglers_catch_up(redlock->stragglers, part, is_overloaded, until_ns);
        }
        if (is_overloaded(part)) {
            leave(part, "too many requests wait for it already");
            continue;
        }
        dli_part_begin(part, patience(round, until_ns));
        part->state = DLI_PART_ASKED;
        if (dli_part_has_ended(part)) {
            dli_part_end(part);
        }
    }
    return until_ns;
}

/* One sleep, at most until until_ns, and one step of what came. DL_OK; DL_ECANCELED, DL_EIO: give up. */
static dl_status_t sleep_and_step(dli_round_t *round, const dl_stop_t *stop, uint64_t until_ns) {
    const dli_redlock_t *redlock = round->redlock;
    struct pollfd fds[DLI_NODES_MAX + 2];
    for (size_t i = 0; i < redlock->n; i++) {
        fds[i] = (struct pollfd){.fd = -1};
        uint64_t part_ns = DL_NO_DEADLINE;
        if (round->parts[i].state == DLI_PART_ASKED) {
            dli_link_want(&round->parts[i].exchange, &fds[i], &part_ns);
        }
        until_ns = part_ns < until_ns ? part_ns : until_ns;
    }
    for (size_t i = 0; i < 2; i++) {
        fds[redlock->n + i] = (struct pollfd){.fd = stop != NULL ? stop->fd[i] : -1, .events = POLLIN};
    }
    if (redlock->env->poll(fds, redlock->n + 2, until_ns) < 0) {
        return DL_EIO;
    }
    for (size_t i = 0; i < redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if (part->state == DLI_PART_ASKED && dli_part_step(part, fds[i].revents)) {
            dli_part_end(part);
            atomic_store(&part->node->lags, false);
        }
    }
    return fds[redlock->n].revents != 0 || fds[redlock->n + 1].revents != 0 ? DL_ECANCELED : DL_OK;
}

static void end_all(dli_round_t *round, dl_status_t why) {
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if (part->state == DLI_PART_ASKED) {
            dli_link_abandon(part->node->redis.link, &part->exchange, why);
            part->sent_ns = part->sent_ns == 0 ? part->exchange.sent_ns : part->sent_ns;
            part->state = DLI_PART_ENDED;
        }
    }
}

/* Is an answer on its way that may come any moment? */
static bool is_worth_lingering(const dli_round_t *round) {
    for (size_t i = 0; i < round->redlock->n; i++) {
        if (round->parts[i].state == DLI_PART_ASKED && !atomic_load(&round->parts[i].node->lags)) {
            return true;
        }
    }
    return false;
}

uint64_t dli_round_moment_ns(const dli_round_t *round) {
    uint64_t half_ns = (round->redlock->env->now_ns() - round->began_ns) / 2;
    return !is_worth_lingering(round) ? 0 : half_ns < LINGER_NS ? half_ns : LINGER_NS;
}

uint64_t dli_round_patience_ns(const dli_redlock_t *redlock, atomic_uint_fast64_t *waited_ns) {
    uint64_t now_ns = redlock->env->now_ns(), then_ns = atomic_load(waited_ns);
    if (then_ns != 0 && now_ns - then_ns < WAIT_AGAIN_NS) {
        return 0;
    }
    atomic_store(waited_ns, now_ns);
    uint64_t tenth_ns = (uint64_t)redlock->node_timeout_ms * NS_PER_MS / 10;
    return tenth_ns < WAIT_MAX_NS ? tenth_ns : WAIT_MAX_NS;
}

static uint64_t linger_ns(const dli_round_t *round) {
    return round->question->linger_ns != NULL ? round->question->linger_ns(round)
                                              : dli_round_moment_ns(round);
}

/* Is it still worth sending? A free is, while there are not too many of them. */
static bool is_worth_sending(const dli_part_t *part) {
    return part->round->question->intent == DLI_FREE &&
           atomic_load(&part->node->backlog) < 2 * (size_t)dli_link_max_total(part->node->redis.link);
}

static void leave_the_rest(dli_round_t *round) {
    uint32_t late = 0;
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if (part->state != DLI_PART_ASKED) {
            continue;
        }
        atomic_store(&part->node->lags, true);
        /* One that is being connected will be there for the next, at the latest. */
        if (part->exchange.ticket != NULL && !is_worth_sending(part)) {
            dli_link_abandon(part->node->redis.link, &part->exchange, DL_EIO);
            leave(part, "nobody waits for it any more");
        } else {
            part->state = DLI_PART_LATE;
            late |= 1u << i;
        }
    }
    if (late != 0) {
        dli_stragglers_take(round->redlock->stragglers, round, late);
    }
}

dl_status_t dli_round_run(dli_round_t *round, uint32_t nodes, uint64_t deadline_ns, const dl_stop_t *stop,
                          bool (*is_settled)(const dli_round_t *round, const void *arg), const void *arg) {
    const dl_driver_env_t *env = round->redlock->env;
    uint64_t linger_until_ns = 0, wait_until_ns = ask(round, nodes, deadline_ns);
    while (dli_round_mask(round, DLI_PART_ASKED) != 0) {
        uint64_t now_ns = env->now_ns(), until_ns = wait_until_ns;
        if (!round->is_spare && is_settled(round, arg)) {
            if (linger_until_ns == 0) {
                linger_until_ns = now_ns + linger_ns(round);
            }
            until_ns = linger_until_ns < until_ns ? linger_until_ns : until_ns;
        }
        if (now_ns >= until_ns && (until_ns == linger_until_ns || patience(round, until_ns) > until_ns)) {
            leave_the_rest(round);
            return DL_OK;
        }
        dl_status_t status = sleep_and_step(round, stop, until_ns);
        if (status != DL_OK) {
            end_all(round, status);
            return status == DL_ECANCELED ? status : DL_OK;
        }
    }
    return DL_OK;
}

void dli_round_send_lost(dli_round_t *round) {
    const dli_redlock_t *redlock = round->redlock;
    uint32_t nodes = 0;
    for (size_t i = 0; !round->is_spare && i < redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        bool is_again = part->state == DLI_PART_ENDED && !part->is_left && dli_part_is_lost(part) &&
                        is_worth_sending(part);
        if (is_again) {
            dli_part_free_replies(part);
            nodes |= 1u << i;
        }
    }
    if (nodes != 0) {
        dli_stragglers_begin(redlock->stragglers, round, nodes,
                             redlock->env->now_ns() + dli_call_timeout_ns(redlock));
    }
}

void dli_round_send(dli_round_t *round, uint32_t nodes, uint64_t deadline_ns) {
    const dli_redlock_t *redlock = round->redlock;
    round->began_ns = redlock->env->now_ns();
    dli_stragglers_begin(redlock->stragglers, round, nodes,
                         patience(round, part_deadline(redlock, round->began_ns, deadline_ns)));
}
