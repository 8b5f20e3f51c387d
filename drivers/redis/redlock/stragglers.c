/* stragglers.c - the thread that goes on with what slow nodes were asked, when nobody waits for it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "round.h"

#define NS_PER_MS ((uint64_t)1000000)
/* A late answer that took no longer than this is no reason not to linger for the node's next one. */
#define PROMPT_NS (2 * NS_PER_MS)
#define NO_SLOT SIZE_MAX

/*
 * A part is stepped without the mutex, for a step may report, and who hears of it may call us. Meanwhile it
 * is marked busy; who wants to end it waits for that, unless it is called from within that very step.
 */
struct dli_stragglers {
    const dl_driver_env_t *env;
    uint64_t node_timeout_ns;
    int fd; /* eventfd: there is something new */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest; held for moments only */
    pthread_cond_t changed;
    dli_round_t *rounds;
    dli_intention_t *intentions;
    dli_freeing_t *freeings;
    bool is_closing;
    uint64_t end_ns;    /* closing: nothing goes on beyond this */
    struct pollfd *fds; /* the thread's own */
    size_t cap;
};

static void poke(const dli_stragglers_t *s) {
    uint64_t one = 1;
    ssize_t n = write(s->fd, &one, sizeof one); /* fails only when it is readable already */
    (void)n;
}

/* ---- with the mutex held ------------------------------------------------------------------------------ */

static void enlist(dli_stragglers_t *s, dli_round_t *round) {
    round->before = NULL;
    round->next = s->rounds;
    if (s->rounds != NULL) {
        s->rounds->before = round;
    }
    s->rounds = round;
}

/* The part has ended. true: the round was freed. */
static bool part_is_over(dli_stragglers_t *s, dli_part_t *part) {
    dli_round_t *round = part->round;
    part->is_theirs = false;
    if (--round->late > 0) {
        return false;
    }
    *(round->before != NULL ? &round->before->next : &s->rounds) = round->next;
    if (round->next != NULL) {
        round->next->before = round->before;
    }
    bool is_dropped = round->is_dropped;
    if (is_dropped) {
        dli_round_free(round);
    }
    return is_dropped;
}

static void end_part(dli_part_t *part) {
    dli_link_abandon(part->node->redis.link, &part->exchange, DL_EIO);
}

/* ---- taking over ------------------------------------------------------------------------------------ */

void dli_stragglers_take(dli_stragglers_t *s, dli_round_t *round) {
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < round->redlock->n; i++) {
        if (round->parts[i].state == DLI_PART_LATE) {
            round->parts[i].is_theirs = true;
            round->parts[i].slot = NO_SLOT;
            round->late++;
        }
    }
    enlist(s, round);
    pthread_mutex_unlock(&s->mutex);
    poke(s);
}

void dli_stragglers_begin(dli_stragglers_t *s, dli_round_t *round, uint32_t nodes, uint64_t deadline_ns) {
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        part->is_theirs = part->is_busy = (nodes >> i & 1) != 0;
        part->stepper = pthread_self();
        part->state = part->is_theirs ? DLI_PART_LATE : part->state;
        part->slot = NO_SLOT;
        round->late += part->is_theirs;
    }
    if (round->late > 0) {
        enlist(s, round);
    }
    pthread_mutex_unlock(&s->mutex);
    for (size_t i = 0; i < round->redlock->n; i++) {
        if ((nodes >> i & 1) != 0) {
            dli_part_begin(&round->parts[i], deadline_ns);
        }
    }
    /* Only now: until here the round had to last. It is dropped later, by its caller. */
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        part->is_busy = false;
        if (part->is_theirs && dli_part_has_ended(part)) {
            (void)part_is_over(s, part);
        }
    }
    s->env->cond_broadcast(&s->changed);
    bool any = round->late > 0;
    pthread_mutex_unlock(&s->mutex);
    if (any) {
        poke(s);
    }
}

bool dli_stragglers_part_with(dli_stragglers_t *s, dli_round_t *round) {
    pthread_mutex_lock(&s->mutex);
    round->is_dropped = true;
    bool is_over = round->late == 0;
    pthread_mutex_unlock(&s->mutex);
    return is_over;
}

/* ---- ending claims ---------------------------------------------------------------------------------- */

static bool is_mine(const dli_part_t *part) {
    return part->is_busy && pthread_equal(part->stepper, pthread_self()) != 0;
}

/* A part of a claim of this hold that they still have; NULL: none is left that could be ended here. What this
 * very thread is stepping, farther down in its stack, cannot. */
static dli_part_t *find_claim(const dli_stragglers_t *s, const dl_request_t *hold) {
    for (dli_round_t *round = s->rounds; round != NULL; round = round->next) {
        if (round->question->is_of == NULL || !round->question->is_of(round, hold)) {
            continue;
        }
        for (size_t i = 0; i < round->redlock->n; i++) {
            if (round->parts[i].is_theirs && !is_mine(&round->parts[i])) {
                return &round->parts[i];
            }
        }
    }
    return NULL;
}

void dli_stragglers_forsake(dli_stragglers_t *s, dli_freeing_t *freeing) {
    const dl_request_t *hold = freeing->hold;
    dli_part_t *part;
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
    while ((part = find_claim(s, hold)) != NULL) {
        if (part->is_busy) {
            (void)s->env->cond_wait(&s->changed, &s->mutex, DL_NO_DEADLINE);
        } else {
            part->is_busy = true;
            part->stepper = pthread_self();
            pthread_mutex_unlock(&s->mutex);
            end_part(part);
            pthread_mutex_lock(&s->mutex);
            part->is_busy = false;
            (void)part_is_over(s, part);
            s->env->cond_broadcast(&s->changed);
        }
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

/* ---- the thread ------------------------------------------------------------------------------------- */

/* A place among what is polled; false: out of memory. */
static bool make_room(dli_stragglers_t *s, size_t n) {
    if (n <= s->cap) {
        return true;
    }
    size_t cap = 2 * n;
    struct pollfd *fds = realloc(s->fds, cap * sizeof *fds);
    if (fds == NULL) {
        return false;
    }
    s->fds = fds;
    s->cap = cap;
    return true;
}

/* Lists what to poll, the eventfd first. How many entries; *until_ns: no later than this. */
static size_t collect(dli_stragglers_t *s, uint64_t *until_ns) {
    size_t n = 1;
    *until_ns = s->is_closing ? s->end_ns : DL_NO_DEADLINE;
    s->fds[0] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    for (dli_round_t *round = s->rounds; round != NULL; round = round->next) {
        for (size_t i = 0; i < round->redlock->n; i++) {
            dli_part_t *part = &round->parts[i];
            part->slot = NO_SLOT;
            if (!part->is_theirs || part->is_busy) {
                continue;
            }
            uint64_t part_ns;
            struct pollfd fd;
            dli_link_want(&part->exchange, &fd, &part_ns);
            if (make_room(s, n + 1)) {
                part->slot = n;
                s->fds[n++] = fd;
            } else {
                part_ns = s->env->now_ns() + NS_PER_MS; /* cannot be polled: looked at now and then */
            }
            *until_ns = part_ns < *until_ns ? part_ns : *until_ns;
        }
    }
    return n;
}

/* While closing, only what frees a lock still goes on, and not for long. */
static bool is_wanted(const dli_stragglers_t *s, const dli_part_t *part, uint64_t now_ns) {
    return !s->is_closing || (part->round->question->intent == DLI_FREE && now_ns < s->end_ns);
}

/* One step of one part, with the mutex let go meanwhile. true: the list has changed. */
static bool step(dli_stragglers_t *s, dli_part_t *part) {
    short revents = part->slot != NO_SLOT ? s->fds[part->slot].revents : 0;
    bool ends = !is_wanted(s, part, s->env->now_ns());
    part->slot = NO_SLOT;
    part->is_busy = true;
    part->stepper = pthread_self();
    pthread_mutex_unlock(&s->mutex);
    if (ends) {
        end_part(part);
    }
    bool is_over = ends || dli_part_step(part, revents);
    if (is_over && part->exchange.status == DL_OK && s->env->now_ns() - part->round->began_ns < PROMPT_NS) {
        atomic_store(&part->node->lags, false);
    }
    pthread_mutex_lock(&s->mutex);
    part->is_busy = false;
    s->env->cond_broadcast(&s->changed);
    if (is_over) {
        (void)part_is_over(s, part);
    }
    return is_over;
}

/* The next part that has something to do; NULL: none. */
static dli_part_t *find_ready(const dli_stragglers_t *s, uint64_t now_ns) {
    for (dli_round_t *round = s->rounds; round != NULL; round = round->next) {
        for (size_t i = 0; i < round->redlock->n; i++) {
            dli_part_t *part = &round->parts[i];
            if (!part->is_theirs || part->is_busy) {
                continue;
            }
            struct pollfd fd;
            uint64_t until_ns;
            dli_link_want(&part->exchange, &fd, &until_ns);
            if ((part->slot != NO_SLOT && s->fds[part->slot].revents != 0) || now_ns >= until_ns ||
                !is_wanted(s, part, now_ns)) {
                return part;
            }
        }
    }
    return NULL;
}

static void drain(const dli_stragglers_t *s) {
    uint64_t count;
    ssize_t n = read(s->fd, &count, sizeof count);
    (void)n;
}

static void *go_on(void *arg) {
    dli_stragglers_t *s = arg;
    uint64_t until_ns;
    pthread_mutex_lock(&s->mutex);
    while (!s->is_closing || s->rounds != NULL) {
        size_t n = collect(s, &until_ns);
        pthread_mutex_unlock(&s->mutex);
        int ready = s->env->poll(s->fds, n, until_ns);
        if (ready > 0 && s->fds[0].revents != 0) {
            drain(s);
        }
        pthread_mutex_lock(&s->mutex);
        for (size_t i = 0; ready < 0 && i < n; i++) {
            s->fds[i].revents = 0;
        }
        uint64_t now_ns = s->env->now_ns();
        dli_part_t *part;
        while ((part = find_ready(s, now_ns)) != NULL) {
            (void)step(s, part);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

dl_status_t dli_stragglers_open(dli_redlock_t *redlock, dli_stragglers_t **stragglers, dl_error_t *err) {
    *stragglers = NULL;
    dli_stragglers_t *s = calloc(1, sizeof *s);
    if (s == NULL || !make_room(s, 2 * DLI_NODES_MAX)) {
        free(s);
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    s->env = redlock->env;
    s->node_timeout_ns = (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    s->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = s->fd < 0 ? errno : 0;
    pthread_mutex_init(&s->mutex, NULL);
    s->env->cond_init(&s->changed);
    if (error == 0) {
        error = s->env->thread_start(&s->thread, go_on, s);
    }
    if (error == 0) {
        *stragglers = s;
        return DL_OK;
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s->fds);
    free(s);
    return dl_driver_fail(err, DL_ELIMIT, error, "no thread for what slow nodes answer: %s", strerror(error));
}

void dli_stragglers_close(dli_stragglers_t *s, bool forked) {
    if (s == NULL) {
        return;
    }
    if (forked) {
        close(s->fd); /* other threads may have been anywhere: nothing else is touched */
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->is_closing = true;
    s->end_ns = s->env->now_ns() + s->node_timeout_ns;
    pthread_mutex_unlock(&s->mutex);
    poke(s);
    s->env->thread_join(s->thread);
    close(s->fd);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s->fds);
    free(s);
}
