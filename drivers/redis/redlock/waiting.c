/* waiting.c - hearing of a release at all nodes at once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "redlock.h"

/* Once a node has told, the others are waited for no longer than this: perhaps they cannot be reached. It is
 * also how long after a majority has told the rest may still tell of the same release. */
#define GRACE_NS ((uint64_t)10 * 1000000)
/* Whose claims have met wake within this, each at an instant of its own, or they would meet again: what one
 * takes back wakes the other and itself. */
#define APART_NS ((uint64_t)100 * 1000000)

/* Bit i is node i. All but the ears with the core's mutex held. */
struct dl_watch {
    dli_redlock_t *redlock;
    dli_watcher_t ears[DLI_NODES_MAX];
    uint32_t live;           /* nodes that tell of every release */
    uint32_t told;           /* nodes that have, since it was last woken */
    uint32_t owing;          /* nodes that had yet to tell of the release that woke it last ... */
    uint64_t owing_until_ns; /* ... and are expected to until then */
    uint64_t due_ns; /* something was told, which wakes it then; 0: nothing, and it is not on `telling` */
    TAILQ_ENTRY(dl_watch) at;
    size_t name_len;
    char name[];
};

/* A release is told of by a majority of the nodes, so among so many there is one that tells. */
static bool hears(const dl_watch_t *w) {
    return dli_nodes_count(w->live) >= w->redlock->n - w->redlock->quorum + 1;
}

/* ---- being told: the mutex is held ------------------------------------------------------------------ */

static void forget_told(dl_watch_t *w) {
    w->told = 0;
    if (w->due_ns != 0) {
        w->due_ns = 0;
        TAILQ_REMOVE(&w->redlock->telling, w, at);
    }
}

/* It is woken then at the latest. */
static void put_due(dl_watch_t *w, uint64_t due_ns) {
    dl_watch_t *before;
    if (w->due_ns != 0 && w->due_ns <= due_ns) {
        return;
    }
    if (w->due_ns != 0) {
        TAILQ_REMOVE(&w->redlock->telling, w, at);
    }
    w->due_ns = due_ns;
    TAILQ_FOREACH_REVERSE(before, &w->redlock->telling, dli_watches, at) {
        if (before->due_ns <= due_ns) {
            TAILQ_INSERT_AFTER(&w->redlock->telling, before, w, at);
            return;
        }
    }
    TAILQ_INSERT_HEAD(&w->redlock->telling, w, at);
}

/* It is about to be woken. The rest of a majority that has told will tell of the same release. That is not
 * news: of a later one at least one of the nodes tells that have told of this one. */
static void note_woken(dl_watch_t *w) {
    if (dli_nodes_count(w->told) >= w->redlock->quorum) {
        w->owing = w->live & ~w->told;
        w->owing_until_ns = w->redlock->env->now_ns() + GRACE_NS;
    }
    forget_told(w);
}

/* A node has told. Is that enough? */
static bool note_told(dl_watch_t *w, uint32_t node, bool was_claim) {
    uint64_t draw = 0, now_ns = w->redlock->env->now_ns();
    if (was_claim) {
        if (w->due_ns == 0) {
            (void)w->redlock->env->random(&draw, sizeof draw);
            put_due(w, now_ns + 1 + draw % APART_NS);
        }
        return false;
    }
    bool is_belated = now_ns < w->owing_until_ns && (w->owing & node) != 0;
    w->owing &= ~node;
    if (is_belated) {
        return false;
    }
    put_due(w, now_ns + GRACE_NS);
    w->told |= node;
    return dli_nodes_count(w->told) >= w->redlock->quorum;
}

/* A node begins to tell, or ceases to. Has it become able to hear, or is not any more and may have missed
 * something? */
static bool note_change(dl_watch_t *w, uint32_t node) {
    bool heard = hears(w), was_live = (w->live & node) != 0;
    w->live ^= node;
    return was_live ? heard : hears(w) != heard;
}

static void hear(dli_watcher_t *watcher, bool node_hears, const char *message) {
    dl_watch_t *w = watcher->owner;
    const dl_driver_env_t *env = w->redlock->env;
    const dli_backend_env_t *core = w->redlock->core;
    uint32_t node = 1u << (watcher - w->ears);
    core->lock(core->core);
    bool has_changed = node_hears != ((w->live & node) != 0);
    bool was_claim = message != NULL && strcmp(message, "1") == 0;
    bool is_news = has_changed ? note_change(w, node) : node_hears && note_told(w, node, was_claim);
    if (is_news) {
        note_woken(w);
    }
    bool can_hear = hears(w);
    core->unlock(core->core);
    if (is_news) {
        env->woken(env->core, w->name, w->name_len, can_hear);
    }
}

/* The first of those that some nodes have told, if the others have had their time. Others may be about to end
 * the watch. */
static bool wake_first(dli_redlock_t *redlock, uint64_t now_ns) {
    const dli_backend_env_t *core = redlock->core;
    char name[DL_NAME_MAX];
    size_t name_len = 0;
    core->lock(core->core);
    dl_watch_t *w = TAILQ_FIRST(&redlock->telling);
    bool is_due = w != NULL && w->due_ns <= now_ns, can_hear = is_due && hears(w);
    if (is_due) {
        name_len = w->name_len;
        memcpy(name, w->name, name_len);
        note_woken(w);
    }
    core->unlock(core->core);
    if (is_due) {
        redlock->env->woken(redlock->env->core, name, name_len, can_hear);
    }
    return is_due;
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
    dli_redis_channel(any, name, name_len, &channel);
    dl_status_t status = DL_OK;
    for (size_t i = 0; i < redlock->n && status == DL_OK; i++) {
        w->ears[i] = (dli_watcher_t){.heard = hear, .owner = w};
        status = dli_subscriber_watch(redlock->nodes[i].redis.subscriber, channel.at, channel.len,
                                      &w->ears[i], err);
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
        dli_subscriber_unwatch(redlock->nodes[i].redis.subscriber, &watch->ears[i]);
    }
    redlock->core->lock(redlock->core->core);
    forget_told(watch);
    redlock->core->unlock(redlock->core->core);
    free(watch);
}

/* Those of each node, one behind the other. */
size_t dli_redlock_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    dli_redlock_t *redlock = state;
    const dli_backend_env_t *core = redlock->core;
    uint64_t first_ns = DL_NO_DEADLINE, began_ns = redlock->env->now_ns();
    size_t n = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        dli_node_t *node = &redlock->nodes[i];
        uint64_t node_ns;
        node->polled = dli_redis_listen_fds(&node->redis, &fds[n], max - n, &node_ns);
        n += node->polled;
        first_ns = node_ns < first_ns ? node_ns : first_ns;
    }
    core->lock(core->core);
    const dl_watch_t *w = TAILQ_FIRST(&redlock->telling);
    first_ns = w != NULL && w->due_ns < first_ns ? w->due_ns : first_ns;
    first_ns = !LIST_EMPTY(&redlock->rounds) && redlock->due_ns < first_ns ? redlock->due_ns : first_ns;
    redlock->polled_ns = began_ns;
    redlock->polled_to_ns = *until_ns = first_ns;
    core->unlock(core->core);
    return n;
}

void dli_redlock_listen(void *state, const struct pollfd *fds, size_t n) {
    dli_redlock_t *redlock = state;
    const dli_backend_env_t *core = redlock->core;
    (void)n; /* as many as were given out */
    for (size_t i = 0; i < redlock->n; i++) {
        dli_node_t *node = &redlock->nodes[i];
        dli_redis_listen(&node->redis, fds, node->polled);
        fds += node->polled;
    }
    core->lock(core->core);
    redlock->read_ns = redlock->polled_ns;
    (void)dli_redlock_flush(redlock);
    core->unlock(core->core);
    uint64_t now_ns = redlock->env->now_ns();
    while (wake_first(redlock, now_ns)) {}
}
