/* fake_lease.c - three drivers over one in-memory lease server: plain, with notification, with counts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_net.h"
#include "support/fake_news.h"
#include "support/fake_store.h"
#include "support/fakes.h"

static fake_store_t store = FAKE_STORE_INIT;

void fake_server_reset(void) {
    fake_store_reset(&store);
}

static dl_status_t open_lease(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                              uint64_t deadline_ns, dl_error_t *err) {
    (void)deadline_ns;
    (void)err;
    fake_client_open(state, options, env);
    return DL_OK;
}

static dl_status_t open_connected(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                                  uint64_t deadline_ns, dl_error_t *err) {
    fake_client_t *state = state_;
    state->connected = 1;
    return open_lease(state, options, env, deadline_ns, err);
}

static void close_lease(void *state, int forked) {
    (void)forked;
    fake_client_close(state);
}

/* The way of a request to the server. Whoever gives up here has sent something that may still arrive. */
static dl_status_t go(fake_client_t *state, uint64_t deadline_ns, const dl_stop_t *stop, dl_error_t *err) {
    if (fake_pass(state->env, state->half_way_ns, deadline_ns, stop) != DL_OK) {
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "no reply from the server");
    }
    return DL_OK;
}

/* And the way of the reply back. */
static dl_status_t come_back(fake_client_t *state, uint64_t deadline_ns, const dl_stop_t *stop,
                             dl_status_t reply, const char *name, dl_error_t *err) {
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
    fake_client_t *state = state_;
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

static dl_status_t release(void *state_, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    fake_client_t *state = state_;
    dl_status_t status = go(state, request->deadline_ns, &request->stop, err);
    if (status == DL_OK) {
        dl_status_t reply = fake_store_release(&store, request, state->env->now_ns());
        if (reply == DL_OK && request->level == 0) {
            fake_notify(request->name);
        }
        status = come_back(state, request->deadline_ns, &request->stop, reply, request->name, err);
    }
    return status;
}

static void renew(void *state_, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    fake_client_t *state = state_;
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

/* ---- administration ---------------------------------------------------------------------------------- */

static dl_status_t inspect(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                           dl_lock_info_t *info, dl_error_t *err) {
    (void)name_len;
    fake_client_t *state = state_;
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
    fake_client_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        dl_status_t reply = fake_store_force(&store, name, state->env->now_ns());
        if (reply == DL_OK) {
            fake_notify(name);
        }
        status = come_back(state, deadline_ns, NULL, reply, name, err);
    }
    return status;
}

static dl_status_t list(void *state_, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                        uint64_t deadline_ns, dl_error_t *err) {
    fake_client_t *state = state_;
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
    .abi = DL_DRIVER_ABI, .size = sizeof(dl_driver_t), .state_size = sizeof(fake_client_t),    \
    .options = fake_options, .close = close_lease, .try_acquire = acquire, .release = release, \
    .renew = renew
#define COMMON_OPS NEEDED_OPS, .inspect = inspect, .force_release = force, .list = list
#define NOTIFY_OPS \
    .watch = fake_watch, .listen = fake_listen, .unwatch = fake_unwatch, .listen_fds = fake_listen_fds

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
