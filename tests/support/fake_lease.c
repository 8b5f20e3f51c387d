/* fake_lease.c - three drivers over one in-memory lease server: plain, with notification, with counts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "support/fake_net.h"
#include "support/fake_store.h"
#include "support/fakes.h"

/* One client. */
typedef struct state {
    const dl_driver_env_t *env;
    uint64_t half_way_ns; /* of an exchange */
    int connected;        /* news of watches has to be read; else the server calls us */
    int news_fd;          /* readable while there is some; -1: nobody watched yet */
} state_t;

/* A subscription of one client, known to the server: it is told of every release of the name. */
struct dl_watch {
    dl_watch_t *next;
    state_t *state;
    uint64_t confirmed_ns; /* when the client knows that the server has it; DL_NO_DEADLINE: it does */
    int news;              /* there was a release, and nobody has read of it */
    size_t name_len;
    char name[DL_NAME_MAX + 1];
};

static fake_store_t store = FAKE_STORE_INIT;
static dl_watch_t *watches; /* of all clients */
static pthread_mutex_t watches_mutex = PTHREAD_MUTEX_INITIALIZER;

void fake_server_reset(void) {
    fake_store_reset(&store);
}

static dl_status_t open_lease(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                              uint64_t deadline_ns, dl_error_t *err) {
    (void)deadline_ns;
    (void)err;
    state_t *state = state_;
    state->env = env;
    state->half_way_ns = (uint64_t)options[FAKE_OPT_LATENCY].number * FAKE_NS_PER_MS / 2;
    state->news_fd = -1;
    return DL_OK;
}

static dl_status_t open_connected(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                                  uint64_t deadline_ns, dl_error_t *err) {
    state_t *state = state_;
    state->connected = 1;
    return open_lease(state, options, env, deadline_ns, err);
}

static void close_lease(void *state_, int forked) {
    (void)forked;
    const state_t *state = state_;
    if (state->env != NULL && state->news_fd >= 0) {
        close(state->news_fd);
    }
}

/* The way of a request to the server. Whoever gives up here has sent something that may still arrive. */
static dl_status_t go(state_t *state, uint64_t deadline_ns, const dl_stop_t *stop, dl_error_t *err) {
    if (fake_pass(state->env, state->half_way_ns, deadline_ns, stop) != DL_OK) {
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "no reply from the server");
    }
    return DL_OK;
}

/* And the way of the reply back. */
static dl_status_t come_back(state_t *state, uint64_t deadline_ns, const dl_stop_t *stop, dl_status_t reply,
                             const char *name, dl_error_t *err) {
    dl_status_t status = go(state, deadline_ns, stop, err);
    if (status != DL_OK) {
        return status;
    }
    state->env->count(state->env->core, DL_COUNT_ROUND_TRIP, 1);
    return reply == DL_OK ? DL_OK : dl_driver_fail(err, reply, 0, "%s: %s", name, dl_status_text(reply));
}

static dl_status_t acquire(void *state_, void *hold, const dl_request_t *request, dl_grant_t *grant,
                           dl_error_t *err) {
    (void)hold;
    state_t *state = state_;
    grant->sent_ns = state->env->now_ns();
    grant->session_fd = -1;
    dl_status_t status = go(state, request->deadline_ns, &request->stop, err);
    if (status == DL_OK) {
        dl_status_t reply =
            fake_store_acquire(&store, request, state->env->client_label, state->env->now_ns(), grant);
        status = come_back(state, request->deadline_ns, &request->stop, reply, request->name, err);
    }
    return status;
}

static void notify(const char *name) {
    pthread_mutex_lock(&watches_mutex);
    for (dl_watch_t *w = watches; w != NULL; w = w->next) {
        if (strcmp(w->name, name) != 0) {
            continue;
        }
        if (!w->state->connected) {
            w->state->env->woken(w->state->env->core, w->name, w->name_len, 1);
        } else {
            uint64_t one = 1;
            ssize_t n = write(w->state->news_fd, &one, sizeof one);
            (void)n;
            w->news = 1;
        }
    }
    pthread_mutex_unlock(&watches_mutex);
}

static dl_status_t release(void *state_, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    state_t *state = state_;
    dl_status_t status = go(state, request->deadline_ns, &request->stop, err);
    if (status == DL_OK) {
        dl_status_t reply = fake_store_release(&store, request, state->env->now_ns());
        if (reply == DL_OK && request->level == 0) {
            notify(request->name);
        }
        status = come_back(state, request->deadline_ns, &request->stop, reply, request->name, err);
    }
    return status;
}

static void renew(void *state_, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    state_t *state = state_;
    dl_error_t err = {.status = DL_OK};
    uint64_t sent_ns = state->env->now_ns();
    dl_status_t arrived = go(state, deadline_ns, NULL, &err);
    for (size_t i = 0; i < n; i++) {
        dl_renewal_t *r = &renewals[i];
        r->sent_ns = sent_ns;
        r->status = arrived;
        if (arrived == DL_OK) {
            r->status =
                fake_store_renew(&store, r->name, r->owner, r->hold_id, r->lease_ms, state->env->now_ns());
        }
    }
    if (arrived == DL_OK && come_back(state, deadline_ns, NULL, DL_OK, "", &err) != DL_OK) {
        for (size_t i = 0; i < n; i++) {
            renewals[i].status = DL_EUNKNOWN;
        }
    }
}

/* ---- notification ---------------------------------------------------------------------------------- */

/* With the mutex held. Tells of the watches that have been confirmed by now, or of which there is news. */
static void tell(const state_t *state) {
    uint64_t now_ns = state->env->now_ns();
    for (dl_watch_t *w = watches; w != NULL; w = w->next) {
        if (w->state == state && (w->confirmed_ns <= now_ns || w->news)) {
            w->confirmed_ns = w->confirmed_ns <= now_ns ? DL_NO_DEADLINE : w->confirmed_ns;
            w->news = 0;
            state->env->woken(state->env->core, w->name, w->name_len, 1);
        }
    }
}

static dl_status_t watch_name(void *state_, const char *name, size_t name_len, dl_watch_t **watch,
                              dl_error_t *err) {
    state_t *state = state_;
    dl_watch_t *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "no memory for a watch");
    }
    w->state = state;
    w->confirmed_ns = state->env->now_ns() + 2 * state->half_way_ns;
    w->name_len = name_len;
    memcpy(w->name, name, name_len);
    pthread_mutex_lock(&watches_mutex);
    if (state->connected && state->news_fd < 0) {
        state->news_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    if (state->connected && state->news_fd < 0) {
        pthread_mutex_unlock(&watches_mutex);
        free(w);
        return dl_driver_fail(err, DL_ELIMIT, 0, "no descriptor for the news");
    }
    *watch = w;
    w->next = watches;
    watches = w;
    tell(state);
    pthread_mutex_unlock(&watches_mutex);
    return DL_OK;
}

static void unwatch(void *state, dl_watch_t *watch) {
    (void)state;
    pthread_mutex_lock(&watches_mutex);
    dl_watch_t **at = &watches;
    while (*at != watch) {
        at = &(*at)->next;
    }
    *at = watch->next;
    pthread_mutex_unlock(&watches_mutex);
    free(watch);
}

static size_t listen_fds(void *state_, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    (void)max;
    const state_t *state = state_;
    size_t n = 0;
    *until_ns = DL_NO_DEADLINE;
    pthread_mutex_lock(&watches_mutex);
    for (const dl_watch_t *w = watches; w != NULL; w = w->next) {
        if (w->state == state) {
            n = (size_t)state->connected;
            *until_ns = w->confirmed_ns < *until_ns ? w->confirmed_ns : *until_ns;
        }
    }
    fds[0] = (struct pollfd){.fd = state->news_fd, .events = POLLIN};
    pthread_mutex_unlock(&watches_mutex);
    return n;
}

static void listen_to_news(void *state_, const struct pollfd *fds, size_t n) {
    const state_t *state = state_;
    pthread_mutex_lock(&watches_mutex);
    if (n > 0 && fds[0].revents != 0) {
        uint64_t count;
        ssize_t got = read(state->news_fd, &count, sizeof count); /* fails if it was read before */
        (void)got;
    }
    tell(state);
    pthread_mutex_unlock(&watches_mutex);
}

/* ---- administration ---------------------------------------------------------------------------------- */

static dl_status_t inspect(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                           dl_lock_info_t *info, dl_error_t *err) {
    (void)name_len;
    state_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        fake_store_inspect(&store, name, state->env->now_ns(), info);
        status = come_back(state, deadline_ns, NULL, DL_OK, name, err);
    }
    return status;
}

static dl_status_t force(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                         dl_error_t *err) {
    (void)name_len;
    state_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        dl_status_t reply = fake_store_force(&store, name, state->env->now_ns());
        if (reply == DL_OK) {
            notify(name);
        }
        status = come_back(state, deadline_ns, NULL, reply, name, err);
    }
    return status;
}

static dl_status_t list(void *state_, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                        uint64_t deadline_ns, dl_error_t *err) {
    state_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        status = come_back(state, deadline_ns, NULL, DL_OK, "", err);
    }
    if (status == DL_OK) {
        fake_store_list(&store, prefix, prefix_len, state->env->now_ns(), fn, arg);
    }
    return status;
}

/* ---- the tables --------------------------------------------------------------------------------------- */

#define NEEDED_OPS                                                                             \
    .abi = DL_DRIVER_ABI, .size = sizeof(dl_driver_t), .state_size = sizeof(state_t),          \
    .options = fake_options, .close = close_lease, .try_acquire = acquire, .release = release, \
    .renew = renew
#define COMMON_OPS NEEDED_OPS, .inspect = inspect, .force_release = force, .list = list
#define NOTIFY_OPS .watch = watch_name, .listen = listen_to_news, .unwatch = unwatch, .listen_fds = listen_fds

static const dl_driver_t lease_table = {
    .name = "fake-lease",
    .summary = "An in-memory lease server without notification.",
    .open = open_lease,
    .caps = DL_CAP_LEASE | DL_CAP_FENCE,
    COMMON_OPS,
};
static const dl_driver_t bare_table = {
    .name = "fake-bare",
    .summary = "An in-memory lease server of a driver without optional ops.",
    .open = open_lease,
    .caps = DL_CAP_LEASE | DL_CAP_FENCE,
    NEEDED_OPS,
};
static const dl_driver_t notify_table = {
    .name = "fake-notify",
    .summary = "An in-memory lease server that wakes waiters.",
    .open = open_connected,
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY,
    COMMON_OPS,
    NOTIFY_OPS,
};
static const dl_driver_t count_table = {
    .name = "fake-count",
    .summary = "An in-memory lease server that shows counts.",
    .open = open_lease,
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_SERVER_COUNT | DL_CAP_NOTIFY,
    COMMON_OPS,
    NOTIFY_OPS,
};

const dl_driver_t *fake_lease_driver(void) {
    return &lease_table;
}

const dl_driver_t *fake_bare_driver(void) {
    return &bare_table;
}

const dl_driver_t *fake_notify_driver(void) {
    return &notify_table;
}

const dl_driver_t *fake_count_driver(void) {
    return &count_table;
}
