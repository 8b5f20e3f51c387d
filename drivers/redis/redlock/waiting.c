/* waiting.c - hearing of a release at all nodes at once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "redlock.h"

/* Once a node has told, the others are waited for no longer than this: perhaps they cannot be reached. It is
 * also how long after a majority has told the rest may still tell of the same release. */
#define GRACE_NS ((uint64_t)10 * 1000000)

/* What the core sees as a dl_watch_t. Bit i is node i. */
typedef struct wide_watch {
    dl_watch_t *watches[DLI_NODES_MAX]; /* NULL: the node is left out */
    uint32_t live;                      /* nodes that tell of every release */
    uint32_t told;                      /* nodes that have, since it was made or last woken */
    uint64_t told_ns;                   /* when the first of them did */
    uint32_t owing;                     /* nodes that had yet to tell of the release that woke it last ... */
    uint64_t owing_until_ns;            /* ... and are expected to until then */
    dl_status_t failed;                 /* of the nodes that are left out: DL_EIO where they differ */
    dl_error_t why;                     /* of the first */
} wide_watch_t;

static void note_failure(wide_watch_t *w, dl_status_t status, const dl_error_t *err) {
    if (w->failed == DL_OK) {
        w->failed = status;
        w->why = *err;
    } else if (w->failed != status) {
        w->failed = DL_EIO;
    }
}

/* A release is told of by a majority of the nodes, so among so many there is one that tells. */
static size_t needed(const dli_redlock_t *redlock) {
    return redlock->n - redlock->quorum + 1;
}

static uint32_t watched(const dli_redlock_t *redlock, const wide_watch_t *w) {
    uint32_t nodes = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        nodes |= w->watches[i] != NULL ? 1u << i : 0;
    }
    return nodes;
}

/* Looks which nodes hear; leaves those out that cannot any more. Returns the nodes that did hear and do not
 * now. */
static uint32_t look(dli_redlock_t *redlock, wide_watch_t *w) {
    uint32_t live = 0, before = w->live;
    for (size_t i = 0; i < redlock->n; i++) {
        dl_error_t err;
        if (w->watches[i] == NULL) {
            continue;
        }
        dli_subscriber_t *subscriber = redlock->nodes[i].redis.subscriber;
        dl_status_t status = dli_subscriber_state(subscriber, w->watches[i], &err);
        if (status == DL_OK) {
            live |= 1u << i;
        } else if (status != DL_ETIMEDOUT) {
            note_failure(w, status, &err);
            dli_subscriber_unwatch(subscriber, w->watches[i]);
            w->watches[i] = NULL;
        }
    }
    w->live = live;
    return before & ~live;
}

static dl_status_t fail(const dli_redlock_t *redlock, const wide_watch_t *w, dl_error_t *err) {
    return dl_driver_fail(err, w->failed != DL_OK ? w->failed : DL_EIO, 0,
                          "%zu of %zu nodes tell of releases, too few%s%s", dli_nodes_count(w->live),
                          redlock->n, w->failed != DL_OK ? ": " : "", w->why.message);
}

/* ---- sleeping --------------------------------------------------------------------------------------- */

/* What to poll: of node i the entries 2i and 2i + 1; the stops behind them all. */
typedef struct bed {
    struct pollfd fds[2 * DLI_NODES_MAX + 2];
    uint32_t nodes;
} bed_t;

static void lie_down(dli_redlock_t *redlock, const wide_watch_t *w, uint32_t nodes, const dl_stop_t *stop,
                     bed_t *bed) {
    bed->nodes = nodes;
    for (size_t i = 0; i < redlock->n; i++) {
        struct pollfd *fds = &bed->fds[2 * i];
        fds[0] = fds[1] = (struct pollfd){.fd = -1};
        if ((nodes >> i & 1) != 0) {
            dli_subscriber_sleep(redlock->nodes[i].redis.subscriber, w->watches[i], fds);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        bed->fds[2 * redlock->n + i] = (struct pollfd){.fd = stop->fd[i], .events = POLLIN};
    }
}

/* Returns the nodes whose watches were woken. */
static uint32_t get_up(dli_redlock_t *redlock, const wide_watch_t *w, const bed_t *bed) {
    uint32_t woken = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        if ((bed->nodes >> i & 1) != 0 &&
            dli_subscriber_rise(redlock->nodes[i].redis.subscriber, w->watches[i], &bed->fds[2 * i])) {
            woken |= 1u << i;
        }
    }
    return woken;
}

static bool is_stopped(const dli_redlock_t *redlock, const bed_t *bed) {
    return bed->fds[2 * redlock->n].revents != 0 || bed->fds[2 * redlock->n + 1].revents != 0;
}

/* Reads what has come to the connections. true: something had; poll again, which shows whom it was for. */
static bool hear(dli_redlock_t *redlock, bed_t *bed, uint64_t until_ns) {
    bool any = false, is_over = is_stopped(redlock, bed) || redlock->env->now_ns() >= until_ns;
    for (size_t i = 0; i < redlock->n; i++) {
        struct pollfd *fds = &bed->fds[2 * i];
        is_over = is_over || fds[0].revents != 0;
        if (fds[1].revents != 0) {
            dli_subscriber_hear(redlock->nodes[i].redis.subscriber, fds);
            any = true;
        }
    }
    for (size_t i = 0; is_over && i < redlock->n; i++) {
        bed->fds[2 * i + 1].fd = -1; /* a flood of messages for others does not put off the end */
    }
    return any;
}

/* Until a watch of these nodes is woken: DL_OK and the nodes. DL_ETIMEDOUT, DL_ECANCELED, DL_EIO. */
static dl_status_t sleep_on(dli_redlock_t *redlock, const wide_watch_t *w, uint32_t nodes, uint64_t until_ns,
                            const dl_stop_t *stop, uint32_t *woken, dl_error_t *err) {
    bed_t bed;
    int ready, reason;
    lie_down(redlock, w, nodes, stop, &bed);
    do {
        ready = redlock->env->poll(bed.fds, 2 * redlock->n + 2, until_ns);
        reason = errno;
    } while (ready > 0 && hear(redlock, &bed, until_ns));
    for (size_t i = 0; ready < 0 && i < redlock->n; i++) {
        bed.fds[2 * i].revents = 0;
    }
    *woken = get_up(redlock, w, &bed);
    if (ready < 0) {
        return dl_driver_fail(err, DL_EIO, reason, "cannot wait: %s", strerror(reason));
    }
    if (*woken != 0) {
        return DL_OK;
    }
    return ready > 0 && is_stopped(redlock, &bed)
               ? dl_driver_fail(err, DL_ECANCELED, 0, "the wait was cancelled")
               : dl_driver_fail(err, DL_ETIMEDOUT, 0, "the wait is over");
}

/* ---- watch and unwatch ------------------------------------------------------------------------------ */

static void ask_all(dli_redlock_t *redlock, wide_watch_t *w, const char *name, size_t name_len) {
    const dli_redis_t *any = &redlock->nodes[0].redis;
    dli_key_t channel;
    any->layout->channel(any, name, name_len, &channel);
    for (size_t i = 0; i < redlock->n; i++) {
        dl_error_t err;
        dl_status_t status = dli_subscriber_ask(redlock->nodes[i].redis.subscriber, channel.at, channel.len,
                                                &w->watches[i], &err);
        if (status != DL_OK) {
            note_failure(w, status, &err);
        }
    }
}

static dl_status_t fail_late(dli_redlock_t *redlock, wide_watch_t *w, dl_error_t *err) {
    uint32_t missing = watched(redlock, w) & ~w->live;
    for (size_t i = 0; i < redlock->n; i++) {
        if ((missing >> i & 1) != 0) {
            dl_error_t why;
            note_failure(w, dli_subscriber_fail_late(redlock->nodes[i].redis.subscriber, &why), &why);
        }
    }
    return fail(redlock, w, err);
}

/* Until enough nodes have confirmed it. */
static dl_status_t await(dli_redlock_t *redlock, wide_watch_t *w, uint64_t deadline_ns, const dl_stop_t *stop,
                         dl_error_t *err) {
    for (;;) {
        uint32_t woken;
        (void)look(redlock, w);
        if (dli_nodes_count(w->live) >= needed(redlock)) {
            return DL_OK;
        }
        uint32_t nodes = watched(redlock, w);
        if (dli_nodes_count(nodes) < needed(redlock)) {
            return fail(redlock, w, err);
        }
        dl_status_t status = sleep_on(redlock, w, nodes & ~w->live, deadline_ns, stop, &woken, err);
        if (status != DL_OK) {
            return status == DL_ETIMEDOUT ? fail_late(redlock, w, err) : status;
        }
    }
}

dl_status_t dli_redlock_watch(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                              const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    *watch = NULL;
    wide_watch_t *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    ask_all(redlock, w, name, name_len);
    dl_status_t status = await(redlock, w, deadline_ns, stop, err);
    if (status != DL_OK) {
        dli_redlock_unwatch(redlock, (dl_watch_t *)w);
        return status;
    }
    *watch = (dl_watch_t *)w;
    return DL_OK;
}

void dli_redlock_unwatch(void *state, dl_watch_t *watch) {
    dli_redlock_t *redlock = state;
    wide_watch_t *w = (wide_watch_t *)watch;
    for (size_t i = 0; i < redlock->n; i++) {
        if (w->watches[i] != NULL) {
            dli_subscriber_unwatch(redlock->nodes[i].redis.subscriber, w->watches[i]);
        }
    }
    free(w);
}

/* ---- wait ------------------------------------------------------------------------------------------- */

/* These nodes have something to say. Those that did not hear until now have only become able to. */
static void listen_to(const dli_redlock_t *redlock, wide_watch_t *w, uint32_t woken) {
    uint64_t now_ns = redlock->env->now_ns();
    uint32_t telling = woken & w->live;
    uint32_t belated = now_ns < w->owing_until_ns ? telling & w->owing : 0;
    w->owing &= ~telling;
    telling &= ~belated;
    if (w->told == 0 && telling != 0) {
        w->told_ns = now_ns;
    }
    w->told |= telling;
}

static bool is_released(const dli_redlock_t *redlock, const wide_watch_t *w) {
    return dli_nodes_count(w->told) >= redlock->quorum ||
           (w->told != 0 && redlock->env->now_ns() >= w->told_ns + GRACE_NS);
}

/* The rest of a majority that has told is about to tell of the same release. That is not news: of a later one
 * at least one of the nodes tells that have told of this one. */
static void wake(const dli_redlock_t *redlock, wide_watch_t *w) {
    w->owing = dli_nodes_count(w->told) >= redlock->quorum ? w->live & ~w->told : 0;
    w->owing_until_ns = redlock->env->now_ns() + GRACE_NS;
    w->told = 0;
}

dl_status_t dli_redlock_wait(void *state, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                             dl_error_t *err) {
    dli_redlock_t *redlock = state;
    wide_watch_t *w = (wide_watch_t *)watch;
    for (;;) {
        uint32_t woken = 0, deaf = look(redlock, w);
        if (dli_nodes_count(w->live) < needed(redlock)) {
            return fail(redlock, w, err);
        }
        if (deaf != 0 || is_released(redlock, w)) {
            wake(redlock, w); /* who cannot hear any more may have missed it */
            return DL_OK;
        }
        uint64_t grace_ns = w->told != 0 ? w->told_ns + GRACE_NS : DL_NO_DEADLINE;
        uint64_t until_ns = grace_ns < deadline_ns ? grace_ns : deadline_ns;
        dl_status_t status =
            sleep_on(redlock, w, watched(redlock, w) & ~w->told, until_ns, stop, &woken, err);
        if (status == DL_ETIMEDOUT && until_ns == deadline_ns) {
            return status;
        }
        if (status != DL_OK && status != DL_ETIMEDOUT) {
            return status;
        }
        listen_to(redlock, w, woken);
    }
}
