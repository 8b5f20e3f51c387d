/* stragglers.c - the thread that goes on with what slow nodes were asked, when nobody waits for it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "stragglers.h"

#define NS_PER_MS ((uint64_t)1000000)
/* A late answer that took no longer than this is no reason not to linger for the node's next one; and a node
 * that is asked for the next step of a late request, such as the request after the greeting, answers within
 * it. */
#define PROMPT_NS (2 * NS_PER_MS)

void dli_stragglers_poke(const dli_stragglers_t *s) {
    uint64_t one = 1;
    ssize_t n = write(s->fd, &one, sizeof one); /* fails only when it is readable already */
    (void)n;
}

/* ---- with the mutex held ------------------------------------------------------------------------------ */

static dli_round_t **list_of(dli_stragglers_t *s, const dli_round_t *round) {
    return &s->rounds[round->question->is_of != NULL ? 0 : 1];
}

void dli_stragglers_add(dli_stragglers_t *s, dli_part_t *part) {
    dli_round_t *round = part->round, **list = list_of(s, round);
    part->is_theirs = true;
    part->slot = DLI_NO_SLOT;
    part->leader = part->follower = NULL;
    atomic_fetch_add(&part->node->backlog, 1);
    atomic_fetch_add(&part->node->late_renewals, round->question->lane == DLI_LANE_RENEWALS);
    if (round->late++ > 0) {
        return;
    }
    round->before = NULL;
    round->next = *list;
    if (*list != NULL) {
        (*list)->before = round;
    }
    *list = round;
}

bool dli_stragglers_part_is_over(dli_stragglers_t *s, dli_part_t *part) {
    dli_round_t *round = part->round;
    part->is_theirs = false;
    atomic_fetch_sub(&part->node->backlog, 1);
    atomic_fetch_sub(&part->node->late_renewals, round->question->lane == DLI_LANE_RENEWALS);
    if (part->follower != NULL) {
        part->follower->leader = NULL;
        part->follower->is_busy = true; /* begun by the thread, by nobody else */
        part->follower->stepper = s->thread;
        part->follower->next_ready = s->due;
        s->due = part->follower;
        dli_stragglers_poke(s);
    }
    if (--round->late > 0) {
        return false;
    }
    *(round->before != NULL ? &round->before->next : list_of(s, round)) = round->next;
    if (round->next != NULL) {
        round->next->before = round->before;
    }
    bool is_dropped = round->is_dropped;
    if (is_dropped) {
        dli_round_free(round);
    }
    return is_dropped;
}

void dli_stragglers_end_part(dli_part_t *part) {
    dli_link_abandon(part->node->redis.link, &part->exchange, DL_EIO);
}

/* ---- taking over ------------------------------------------------------------------------------------ */

void dli_stragglers_take(dli_stragglers_t *s, dli_round_t *round, uint32_t nodes) {
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < round->redlock->n; i++) {
        if ((nodes >> i & 1) != 0) {
            dli_stragglers_add(s, &round->parts[i]);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    dli_stragglers_poke(s);
}

/* Begins a part that is theirs, with the mutex let go meanwhile. */
static void begin_part(dli_stragglers_t *s, dli_part_t *part, uint64_t deadline_ns) {
    part->is_busy = true;
    part->stepper = pthread_self();
    pthread_mutex_unlock(&s->mutex);
    dli_part_begin(part, deadline_ns);
    pthread_mutex_lock(&s->mutex);
    part->is_busy = false;
    s->env->cond_broadcast(&s->changed);
    if (dli_part_has_ended(part)) {
        (void)dli_stragglers_part_is_over(s, part);
    }
}

void dli_stragglers_begin(dli_stragglers_t *s, dli_round_t *round, uint32_t nodes, uint64_t deadline_ns) {
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        if ((nodes >> i & 1) != 0) {
            dli_stragglers_add(s, part);
            part->state = DLI_PART_LATE;
            part->is_busy = true; /* all of them are there before the first byte leaves */
            part->stepper = pthread_self();
        }
    }
    for (size_t i = 0; i < round->redlock->n; i++) {
        if ((nodes >> i & 1) != 0) {
            begin_part(s, &round->parts[i], deadline_ns);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    dli_stragglers_poke(s);
}

bool dli_stragglers_part_with(dli_stragglers_t *s, dli_round_t *round) {
    pthread_mutex_lock(&s->mutex);
    round->is_dropped = true;
    bool is_over = round->late == 0;
    pthread_mutex_unlock(&s->mutex);
    return is_over;
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

/* Waits for the end of another part, or is in other hands. */
static bool is_idle(const dli_part_t *part) {
    return !part->is_theirs || part->is_busy || part->leader != NULL;
}

/* Has the server said something that nobody has read yet? */
static bool has_unread(const dli_stragglers_t *s, const dli_node_t *node) {
    for (size_t i = 0; i < 2; i++) {
        for (const dli_round_t *round = s->rounds[i]; round != NULL; round = round->next) {
            const dli_part_t *part = &round->parts[node->index];
            struct pollfd fd = {.fd = -1};
            uint64_t until_ns;
            if (!is_idle(part)) {
                dli_link_want(&part->exchange, &fd, &until_ns);
            }
            if (fd.fd >= 0 && s->env->poll(&fd, 1, 0) > 0) {
                return true;
            }
        }
    }
    return false;
}

void dli_stragglers_catch_up(dli_stragglers_t *s, const dli_part_t *part,
                             bool (*is_behind)(const dli_part_t *part), uint64_t until_ns) {
    bool can_wait = pthread_equal(s->thread, pthread_self()) == 0;
    uint64_t now_ns, next_ns = 0;
    pthread_mutex_lock(&s->mutex);
    while (can_wait && (now_ns = s->env->now_ns()) < until_ns && is_behind(part)) {
        bool is_unread = has_unread(s, part->node);
        next_ns = is_unread ? now_ns + PROMPT_NS : next_ns;
        if (!is_unread && now_ns >= next_ns) {
            break; /* what was read last had no answer at once */
        }
        (void)s->env->cond_wait(&s->changed, &s->mutex, is_unread || next_ns > until_ns ? until_ns : next_ns);
    }
    pthread_mutex_unlock(&s->mutex);
}

/* While closing, only what frees a lock still goes on, unless it was just refused, and no longer than whoever
 * closes has time. */
static uint64_t end_ns(const dli_stragglers_t *s, const dli_part_t *part) {
    if (!s->is_closing) {
        return DL_NO_DEADLINE;
    }
    /* No call runs any more that might change it. */
    const dli_round_t *round = part->round;
    uint64_t closing_ns =
        round->closing_ns != 0 ? round->closing_ns : round->began_ns + dli_call_timeout_ns(round->redlock);
    if (round->question->intent != DLI_FREE || part->is_paused) {
        return 0;
    }
    return closing_ns < s->end_ns ? closing_ns : s->end_ns;
}

/* Lists what to poll, the eventfd first. How many entries; *until_ns: no later than this. */
static size_t collect(dli_stragglers_t *s, uint64_t *until_ns) {
    size_t n = 1;
    *until_ns = s->is_closing ? s->end_ns : DL_NO_DEADLINE;
    s->fds[0] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    for (size_t i = 0; i < 2; i++) {
        for (dli_round_t *round = s->rounds[i]; round != NULL; round = round->next) {
            for (size_t k = 0; k < round->redlock->n; k++) {
                dli_part_t *part = &round->parts[k];
                part->slot = DLI_NO_SLOT;
                if (is_idle(part)) {
                    continue;
                }
                struct pollfd fd;
                dli_link_want(&part->exchange, &fd, &part->until_ns);
                part->slot = DLI_UNPOLLED;
                if (fd.fd >= 0 && make_room(s, n + 1)) {
                    part->slot = n;
                    s->fds[n++] = fd;
                } else if (fd.fd >= 0) { /* looked at now and then */
                    uint64_t soon_ns = s->env->now_ns() + NS_PER_MS;
                    part->until_ns = soon_ns < part->until_ns ? soon_ns : part->until_ns;
                }
                uint64_t end = end_ns(s, part);
                part->until_ns = end < part->until_ns ? end : part->until_ns;
                *until_ns = part->until_ns < *until_ns ? part->until_ns : *until_ns;
            }
        }
    }
    return n;
}

/* What has come to a part; of one that was not polled, if it is to be looked at. */
static short what_came(const dli_stragglers_t *s, const dli_part_t *part, uint64_t now_ns) {
    struct pollfd fd;
    uint64_t until_ns;
    if (part->slot < s->cap) {
        return s->fds[part->slot].revents;
    }
    if (part->slot == DLI_NO_SLOT || now_ns < part->until_ns) {
        return 0;
    }
    dli_link_want(&part->exchange, &fd, &until_ns);
    return fd.fd >= 0 && s->env->poll(&fd, 1, 0) > 0 ? fd.revents : 0;
}

/* Takes those that have something to do into these hands, so that they stay. */
static dli_part_t *take_ready(dli_stragglers_t *s, uint64_t now_ns) {
    dli_part_t *first = NULL;
    for (size_t i = 0; i < 2; i++) {
        for (dli_round_t *round = s->rounds[i]; round != NULL; round = round->next) {
            for (size_t k = 0; k < round->redlock->n; k++) {
                dli_part_t *part = &round->parts[k];
                bool is_new = part->slot == DLI_NO_SLOT; /* since the poll began: looked at by the next one */
                if (is_idle(part) || (is_new && now_ns < end_ns(s, part))) {
                    continue;
                }
                part->revents = what_came(s, part, now_ns);
                if (part->revents != 0 || now_ns >= part->until_ns || now_ns >= end_ns(s, part)) {
                    part->is_busy = true;
                    part->stepper = pthread_self();
                    part->next_ready = first;
                    first = part;
                }
            }
        }
    }
    return first;
}

/* One step of one part, with the mutex let go meanwhile. */
static void step(dli_stragglers_t *s, dli_part_t *part, uint64_t now_ns) {
    bool ends = now_ns >= end_ns(s, part);
    pthread_mutex_unlock(&s->mutex);
    if (ends) {
        dli_stragglers_end_part(part);
    }
    bool is_over = ends || dli_part_step(part, part->revents);
    if (is_over && part->exchange.status == DL_OK && s->env->now_ns() - part->began_ns < PROMPT_NS) {
        atomic_store(&part->node->lags, false);
    }
    pthread_mutex_lock(&s->mutex);
    part->is_busy = false;
    s->env->cond_broadcast(&s->changed);
    if (is_over) {
        (void)dli_stragglers_part_is_over(s, part);
    }
}

/* Frees whose claims have ended. */
static void begin_followers(dli_stragglers_t *s) {
    dli_part_t *part;
    while ((part = s->due) != NULL) {
        s->due = part->next_ready;
        const dli_redlock_t *redlock = part->round->redlock;
        begin_part(s, part, s->env->now_ns() + (uint64_t)redlock->env->call_timeout_ms * NS_PER_MS);
    }
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
    while (!s->is_closing || s->rounds[0] != NULL || s->rounds[1] != NULL) {
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
        for (dli_part_t *part = take_ready(s, now_ns), *next; part != NULL; part = next) {
            next = part->next_ready;
            step(s, part, now_ns);
        }
        begin_followers(s);
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
    dli_stragglers_poke(s);
    s->env->thread_join(s->thread);
    close(s->fd);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s->fds);
    free(s);
}
