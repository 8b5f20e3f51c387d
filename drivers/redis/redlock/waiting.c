/* waiting.c - hearing of a release at all nodes at once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "redlock.h"

/* Once a node has told, the others are waited for no longer than this: perhaps they cannot be reached. It is
 * also how long after a majority has told the rest may still tell of the same release. */
#define GRACE_NS ((uint64_t)10 * 1000000)

/* One node's part of a watch. */
typedef struct ear {
    dli_watcher_t watcher; /* the first: what is heard, is heard by the whole */
    dl_watch_t *watch;
} ear_t;

/* Bit i is node i. All but the ears with the client's mutex held. */
struct dl_watch {
    dli_redlock_t *redlock;
    ear_t ears[DLI_NODES_MAX];
    uint32_t live;    /* nodes that tell of every release */
    uint32_t told;    /* nodes that have, since it was last woken; if any, it is on the list `telling` */
    uint64_t told_ns; /* when the first of them did */
    uint32_t owing;   /* nodes that had yet to tell of the release that woke it last ... */
    uint64_t owing_until_ns; /* ... and are expected to until then */
    dl_watch_t *prev, *next; /* of that list */
    size_t name_len;
    char name[];
};

/* A release is told of by a majority of the nodes, so among so many there is one that tells. */
static bool hears(const dl_watch_t *w) {
    return dli_nodes_count(w->live) >= w->redlock->n - w->redlock->quorum + 1;
}

/* ---- the list of those that some nodes have told: the mutex is held --------------------------------- */

static void put_on(dl_watch_t *w) {
    dli_redlock_t *redlock = w->redlock;
    w->prev = redlock->telling_last;
    w->next = NULL;
    *(w->prev != NULL ? &w->prev->next : &redlock->telling) = w;
    redlock->telling_last = w;
}

static void take_off(dl_watch_t *w) {
    dli_redlock_t *redlock = w->redlock;
    *(w->prev != NULL ? &w->prev->next : &redlock->telling) = w->next;
    *(w->next != NULL ? &w->next->prev : &redlock->telling_last) = w->prev;
}

static void forget_told(dl_watch_t *w) {
    if (w->told != 0) {
        w->told = 0;
        take_off(w);
    }
}

/* ---- being told: the mutex is held ------------------------------------------------------------------ */

/* The rest of a majority that has told is about to tell of the same release. That is not news: of a later one
 * at least one of the nodes tells that have told of this one. */
static void wake(dl_watch_t *w) {
    const dl_driver_env_t *env = w->redlock->env;
    w->owing = dli_nodes_count(w->told) >= w->redlock->quorum ? w->live & ~w->told : 0;
    w->owing_until_ns = env->now_ns() + GRACE_NS;
    forget_told(w);
    env->woken(env->core, w->name, w->name_len, hears(w));
}

static void note_told(dl_watch_t *w, uint32_t node) {
    uint64_t now_ns = w->redlock->env->now_ns();
    bool is_belated = now_ns < w->owing_until_ns && (w->owing & node) != 0;
    w->owing &= ~node;
    if (is_belated) {
        return;
    }
    if (w->told == 0) {
        w->told_ns = now_ns;
        put_on(w);
    }
    w->told |= node;
    if (dli_nodes_count(w->told) >= w->redlock->quorum) {
        wake(w);
    }
}

/* It has become able to hear, or is not any more and may have missed something. */
static void note_change(dl_watch_t *w, uint32_t node) {
    bool heard = hears(w), was_live = (w->live & node) != 0;
    w->live ^= node;
    if (was_live ? heard : hears(w) != heard) {
        wake(w);
    }
}

static void hear(dli_watcher_t *watcher, bool node_hears) {
    ear_t *ear = (ear_t *)watcher;
    dl_watch_t *w = ear->watch;
    uint32_t node = 1u << (ear - w->ears);
    pthread_mutex_lock(&w->redlock->mutex);
    if (node_hears != ((w->live & node) != 0)) {
        note_change(w, node);
    } else if (node_hears) {
        note_told(w, node);
    }
    pthread_mutex_unlock(&w->redlock->mutex);
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

dl_status_t dli_redlock_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                              dl_error_t *err) {
    dli_redlock_t *redlock = state;
    const dli_redis_t *any = &redlock->nodes[0].redis;
    dli_key_t channel;
    dl_watch_t *w = calloc(1, sizeof *w + name_len);
    *watch = NULL;
    if (w == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    w->redlock = redlock;
    w->name_len = name_len;
    memcpy(w->name, name, name_len);
    any->layout->channel(any, name, name_len, &channel);
    dl_status_t status = DL_OK;
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        w->ears[i] = (ear_t){.watcher.heard = hear, .watch = w};
        status = dli_subscriber_watch(redlock->nodes[i].redis.subscriber, channel.at, channel.len,
                                      &w->ears[i].watcher, err);
    }
    if (status != DL_OK) {
        dli_redlock_unwatch(redlock, w);
        return status;
    }
    *watch = w;
    return DL_OK;
}

void dli_redlock_unwatch(void *state, dl_watch_t *watch) {
    dli_redlock_t *redlock = state;
    for (size_t i = 0; i < redlock->n; i++) {
        dli_subscriber_unwatch(redlock->nodes[i].redis.subscriber, &watch->ears[i].watcher);
    }
    pthread_mutex_lock(&redlock->mutex);
    forget_told(watch);
    pthread_mutex_unlock(&redlock->mutex);
    free(watch);
}

/* The entry i is node i's. */
size_t dli_redlock_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    dli_redlock_t *redlock = state;
    bool any = false;
    (void)max;
    *until_ns = DL_NO_DEADLINE;
    for (size_t i = 0; i < redlock->n; i++) {
        uint64_t node_ns;
        dli_subscriber_fds(redlock->nodes[i].redis.subscriber, &fds[i], &node_ns);
        *until_ns = node_ns < *until_ns ? node_ns : *until_ns;
        any = any || fds[i].fd >= 0;
    }
    pthread_mutex_lock(&redlock->mutex);
    if (redlock->telling != NULL) {
        uint64_t grace_ns = redlock->telling->told_ns + GRACE_NS;
        *until_ns = grace_ns < *until_ns ? grace_ns : *until_ns;
    }
    pthread_mutex_unlock(&redlock->mutex);
    return any ? redlock->n : 0;
}

void dli_redlock_listen(void *state, const struct pollfd *fds, size_t n) {
    dli_redlock_t *redlock = state;
    for (size_t i = 0; i < redlock->n; i++) {
        dli_subscriber_listen(redlock->nodes[i].redis.subscriber, i < n ? fds[i].revents : 0);
    }
    uint64_t now_ns = redlock->env->now_ns();
    pthread_mutex_lock(&redlock->mutex);
    while (redlock->telling != NULL && redlock->telling->told_ns + GRACE_NS <= now_ns) {
        wake(redlock->telling);
    }
    pthread_mutex_unlock(&redlock->mutex);
}
