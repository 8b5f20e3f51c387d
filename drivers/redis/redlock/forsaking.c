/* forsaking.c - what is on its way of a hold that is freed: claims are followed or ended, fills forgotten. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "stragglers.h"

/* ---- ending claims ---------------------------------------------------------------------------------- */

static bool is_mine(const dli_part_t *part) {
    return part->is_busy && pthread_equal(part->stepper, pthread_self()) != 0;
}

/* Can this round's free follow a claim at that node? `following`: at these nodes it does already. */
static bool can_follow(const dli_round_t *round, uint32_t following, const dli_node_t *node) {
    return round != NULL && !round->is_spare && (following >> node->index & 1) == 0 &&
           dli_nodes_count(following) < round->redlock->n - round->redlock->quorum;
}

/* A part of a claim of this hold that they still have and that nothing follows; NULL: none is left. What this
 * very thread is stepping, or about to, farther down in its stack, can be followed but not ended here. */
static dli_part_t *find_claim(const dli_stragglers_t *s, const dl_request_t *hold, const dli_round_t *frees,
                              uint32_t following) {
    for (dli_round_t *round = s->rounds[0]; round != NULL; round = round->next) {
        if (!round->question->is_of(round, hold)) {
            continue;
        }
        for (size_t i = 0; i < round->redlock->n; i++) {
            dli_part_t *part = &round->parts[i];
            if (part->is_theirs && part->follower == NULL &&
                (!is_mine(part) || can_follow(frees, following, part->node))) {
                return part;
            }
        }
    }
    return NULL;
}

static void end_claim(dli_stragglers_t *s, dli_part_t *part) {
    part->is_busy = true;
    part->stepper = pthread_self();
    pthread_mutex_unlock(&s->mutex);
    dli_stragglers_end_part(part);
    pthread_mutex_lock(&s->mutex);
    part->is_busy = false;
    (void)dli_stragglers_part_is_over(s, part);
    s->env->cond_broadcast(&s->changed);
}

/* The free goes to that node when the claim has ended. */
static void follow(dli_stragglers_t *s, dli_part_t *claim, dli_part_t *free_part) {
    dli_stragglers_add(s, free_part);
    free_part->state = DLI_PART_LATE;
    free_part->leader = claim;
    claim->follower = free_part;
}

uint32_t dli_stragglers_forsake(dli_stragglers_t *s, dli_freeing_t *freeing, dli_round_t *round) {
    const dl_request_t *hold = freeing->hold;
    uint32_t following = 0;
    bool is_over = false;
    dli_part_t *claim;
    pthread_mutex_lock(&s->mutex);
    freeing->before = NULL;
    freeing->next = s->freeings;
    if (s->freeings != NULL) {
        s->freeings->before = freeing;
    }
    s->freeings = freeing;
    for (dli_intention_t *intention = s->intentions; intention != NULL; intention = intention->next) {
        intention->forget(intention->arg, hold);
    }
    while ((claim = find_claim(s, hold, round, following)) != NULL) {
        if (can_follow(round, following, claim->node)) {
            follow(s, claim, &round->parts[claim->node->index]);
            following |= 1u << claim->node->index;
        } else if (!claim->is_busy && (is_over || round == NULL || !round->is_spare)) {
            end_claim(s, claim);
        } else if (is_over) {
            break; /* the free goes all the same; what is left of the claim ends by its lease */
        } else {
            /* For another's step; or because the killing of a connection takes memory, and there is none. */
            is_over = s->env->cond_wait(&s->changed, &s->mutex, hold->deadline_ns) == ETIMEDOUT;
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return following;
}

/* ---- waiting for what follows ----------------------------------------------------------------------- */

/* So long nobody looks whether it was stopped. */
#define LOOK_NS ((uint64_t)10 * 1000000)

static void take_back(dli_round_t *round) {
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if (part->state == DLI_PART_LATE && !part->is_theirs) {
            dli_part_end(part);
        }
    }
}

static bool is_stopped(const dli_stragglers_t *s, const dl_stop_t *stop) {
    struct pollfd fds[2] = {{.fd = stop->fd[0], .events = POLLIN}, {.fd = stop->fd[1], .events = POLLIN}};
    return s->env->poll(fds, 2, 0) > 0;
}

void dli_stragglers_await(dli_stragglers_t *s, dli_round_t *round, uint64_t until_ns, const dl_stop_t *stop,
                          bool (*is_settled)(const dli_round_t *round, const void *arg)) {
    bool can_wait = pthread_equal(s->thread, pthread_self()) == 0;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        take_back(round);
        uint64_t now_ns = s->env->now_ns();
        if (!can_wait || now_ns >= until_ns || dli_round_mask(round, DLI_PART_LATE) == 0 ||
            is_settled(round, NULL) || is_stopped(s, stop)) {
            break;
        }
        uint64_t look_ns = now_ns + LOOK_NS;
        (void)s->env->cond_wait(&s->changed, &s->mutex, look_ns < until_ns ? look_ns : until_ns);
    }
    pthread_mutex_unlock(&s->mutex);
}

void dli_stragglers_freed(dli_stragglers_t *s, dli_freeing_t *freeing) {
    pthread_mutex_lock(&s->mutex);
    *(freeing->before != NULL ? &freeing->before->next : &s->freeings) = freeing->next;
    if (freeing->next != NULL) {
        freeing->next->before = freeing->before;
    }
    pthread_mutex_unlock(&s->mutex);
}

void dli_stragglers_announce(dli_stragglers_t *s, dli_intention_t *intention) {
    pthread_mutex_lock(&s->mutex);
    intention->before = NULL;
    intention->next = s->intentions;
    if (s->intentions != NULL) {
        s->intentions->before = intention;
    }
    s->intentions = intention;
    for (const dli_freeing_t *freeing = s->freeings; freeing != NULL; freeing = freeing->next) {
        intention->forget(intention->arg, freeing->hold);
    }
    pthread_mutex_unlock(&s->mutex);
}

void dli_stragglers_retire(dli_stragglers_t *s, dli_intention_t *intention) {
    pthread_mutex_lock(&s->mutex);
    *(intention->before != NULL ? &intention->before->next : &s->intentions) = intention->next;
    if (intention->next != NULL) {
        intention->next->before = intention->before;
    }
    pthread_mutex_unlock(&s->mutex);
}
