/* fake_session.c - a driver whose holds are connections, with native waiting. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/fake_net.h"
#include "support/fake_sessions.h"
#include "support/fakes.h"

typedef struct state {
    const dl_driver_env_t *env;
    uint64_t half_way_ns;
    pid_t pid;
    int holds; /* used and not dropped; atomic */
} state_t;

/* One connection. Zeroed: none yet. */
typedef struct hold {
    int used;        /* 1 from the first op to the drop, then 2; atomic */
    int ops;         /* running now; atomic */
    uint64_t number; /* of the connection; 0: none */
    int fd;
    int granted_fd;
} hold_t;

void fake_session_reset(void) {
    fake_sessions_reset();
}

int fake_session_kill(const char *name) {
    return fake_sessions_kill(name, dli_sys->now_ns());
}

static void broken(const char *what) {
    fprintf(stderr, "fake-session: the core %s\n", what);
    abort();
}

static void begin_op(state_t *state, hold_t *hold) {
    int expected = 0;
    if (__atomic_compare_exchange_n(&hold->used, &expected, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        __atomic_add_fetch(&state->holds, 1, __ATOMIC_SEQ_CST);
    } else if (expected == 2) {
        broken("used a hold after its drop");
    }
    if (__atomic_fetch_add(&hold->ops, 1, __ATOMIC_SEQ_CST) != 0) {
        broken("ran two ops at once on one connection");
    }
}

static void end_op(hold_t *hold) {
    __atomic_sub_fetch(&hold->ops, 1, __ATOMIC_SEQ_CST);
}

static dl_status_t open_session(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                                uint64_t deadline_ns, dl_error_t *err) {
    (void)deadline_ns;
    (void)err;
    state_t *state = state_;
    state->env = env;
    state->pid = getpid();
    state->half_way_ns = (uint64_t)options[FAKE_OPT_LATENCY].number * FAKE_NS_PER_MS / 2;
    return DL_OK;
}

static void close_session(void *state_, int forked) {
    state_t *state = state_;
    if (!forked && __atomic_load_n(&state->holds, __ATOMIC_SEQ_CST) != 0) {
        broken("closed without dropping every hold");
    }
}

static void disconnect(hold_t *hold) {
    if (hold->number != 0) {
        close(hold->fd);
        close(hold->granted_fd);
        hold->number = 0;
    }
}

static void drop(void *state_, void *hold_) {
    state_t *state = state_;
    hold_t *hold = hold_;
    if (__atomic_load_n(&hold->ops, __ATOMIC_SEQ_CST) != 0) {
        broken("dropped a hold while an op used it");
    }
    int was = __atomic_exchange_n(&hold->used, 2, __ATOMIC_SEQ_CST);
    if (was == 2) {
        broken("dropped a hold twice");
    }
    if (was == 1) {
        __atomic_sub_fetch(&state->holds, 1, __ATOMIC_SEQ_CST);
    }
    disconnect(hold);
    /* A real server would hear of the hang-up by itself. In a forked child there is no server. */
    if (state->pid == getpid()) {
        fake_sessions_notice(state->env->now_ns());
    }
}

/* ---- one exchange -------------------------------------------------------------------------------------- */

/* Half an exchange. Whoever gives up here has sent something that may be carried out. */
static dl_status_t go(state_t *state, uint64_t deadline_ns, const dl_stop_t *stop, dl_error_t *err) {
    if (fake_pass(state->env, state->half_way_ns, deadline_ns, stop) != DL_OK) {
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "no reply from the server");
    }
    return DL_OK;
}

static dl_status_t come_back(state_t *state, uint64_t deadline_ns, const dl_stop_t *stop, dl_status_t reply,
                             dl_error_t *err) {
    dl_status_t status = go(state, deadline_ns, stop, err);
    if (status != DL_OK) {
        return status;
    }
    state->env->count(state->env->core, DL_COUNT_ROUND_TRIP, 1);
    return reply == DL_OK ? DL_OK : dl_driver_fail(err, reply, 0, "%s", dl_status_text(reply));
}

/* ---- acquiring ----------------------------------------------------------------------------------------- */

static dl_status_t connect_hold(hold_t *hold, dl_error_t *err) {
    int failed = fake_sessions_connect(&hold->number, &hold->fd, &hold->granted_fd);
    if (failed != 0) {
        hold->number = 0;
        return dl_driver_fail(err, DL_ELIMIT, failed, "cannot connect: %s", strerror(failed));
    }
    return DL_OK;
}

/* Waits in the server's queue. DL_OK: granted; DL_EBUSY: not in time; DL_ECANCELED. In the last two cases the
 * connection neither holds nor waits any more. */
static dl_status_t wait_in_queue(state_t *state, hold_t *hold, const dl_request_t *request) {
    const dl_driver_env_t *env = state->env;
    uint64_t end = env->now_ns() + (uint64_t)request->wait_ms * FAKE_NS_PER_MS;
    end = end < request->deadline_ns ? end : request->deadline_ns;
    for (;;) {
        /* When the holder falls silent, somebody has to make the server look. */
        uint64_t look = fake_sessions_busy_until(request->name, env->now_ns());
        dl_status_t heard = fake_await(env, hold->granted_fd, look < end ? look : end, &request->stop);
        uint64_t now = env->now_ns();
        if (heard == DL_OK) {
            uint64_t count;
            ssize_t n = read(hold->granted_fd, &count, sizeof count);
            (void)n;
            return DL_OK;
        }
        if (heard == DL_ECANCELED || now >= end) {
            if (!fake_sessions_leave_queue(hold->number, now)) {
                return heard == DL_ECANCELED ? DL_ECANCELED : DL_EBUSY;
            }
            if (heard == DL_ECANCELED) { /* granted at the last moment: give it back */
                (void)fake_sessions_end_hold(request->name, request->owner, request->hold_id, now);
                return DL_ECANCELED;
            }
            return DL_OK;
        }
    }
}

/* Validity may only count from a statement that was sent while the lock was held already. */
static dl_status_t confirm(state_t *state, hold_t *hold, const dl_request_t *request, dl_grant_t *grant,
                           dl_error_t *err) {
    grant->sent_ns = state->env->now_ns();
    grant->session_fd = hold->fd;
    dl_status_t status = go(state, request->deadline_ns, &request->stop, err);
    if (status != DL_OK) {
        return status;
    }
    dl_status_t reply = fake_sessions_ping(hold->number, request->lease_ms, state->env->now_ns(), grant);
    return come_back(state, request->deadline_ns, &request->stop, reply, err);
}

/* Did the server end the connection? It says so before anything is sent, so a new one does no harm. */
static int has_hung_up(const hold_t *hold) {
    struct pollfd fd = {.fd = hold->fd, .events = POLLIN};
    return hold->number != 0 && poll(&fd, 1, 0) != 0;
}

static dl_status_t try_hold(state_t *state, hold_t *hold, const dl_request_t *request, dl_grant_t *grant,
                            dl_error_t *err) {
    grant->session_fd = -1;
    grant->sent_ns = state->env->now_ns();
    if (has_hung_up(hold)) {
        disconnect(hold);
    }
    dl_status_t status = hold->number == 0 ? connect_hold(hold, err) : DL_OK;
    if (status == DL_OK) {
        status = go(state, request->deadline_ns, &request->stop, err);
    }
    if (status != DL_OK) {
        return status;
    }
    dl_status_t reply = fake_sessions_lock(hold->number, request, state->env->client_label,
                                           request->wait_ms > 0, state->env->now_ns(), grant);
    if (reply == DL_ELOST) {
        /* The server ended the connection while the request was on its way. Nothing was held on it. */
        disconnect(hold);
        return dl_driver_fail(err, DL_EIO, 0, "the server closed the connection");
    }
    if (reply == DL_EBUSY && request->wait_ms > 0) {
        reply = wait_in_queue(state, hold, request);
        if (reply == DL_ECANCELED) {
            return dl_driver_fail(err, reply, 0, "stopped while waiting");
        }
        if (reply == DL_OK) {
            return confirm(state, hold, request, grant, err);
        }
    }
    grant->session_fd = reply == DL_OK ? hold->fd : -1;
    return come_back(state, request->deadline_ns, &request->stop, reply, err);
}

static dl_status_t acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                           dl_error_t *err) {
    begin_op(state, hold);
    dl_status_t status = try_hold(state, hold, request, grant, err);
    end_op(hold);
    return status;
}

/* ---- the other ops ------------------------------------------------------------------------------------- */

static dl_status_t release(void *state_, void *hold, const dl_request_t *request, dl_error_t *err) {
    state_t *state = state_;
    begin_op(state, hold);
    dl_status_t status = go(state, request->deadline_ns, &request->stop, err);
    if (status == DL_OK) {
        /* By owner and hold id, as the connection that got the lock may not be the one of `hold`. */
        dl_status_t reply =
            fake_sessions_end_hold(request->name, request->owner, request->hold_id, state->env->now_ns());
        status = come_back(state, request->deadline_ns, &request->stop, reply, err);
    }
    end_op(hold);
    return status;
}

/* The pings of a batch leave together and return together. */
static void renew(void *state_, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    state_t *state = state_;
    dl_error_t err = {.status = DL_OK};
    dl_grant_t grant;
    uint64_t sent_ns = state->env->now_ns();
    for (size_t i = 0; i < n; i++) {
        begin_op(state, renewals[i].hold);
    }
    dl_status_t arrived = go(state, deadline_ns, NULL, &err);
    for (size_t i = 0; i < n; i++) {
        const hold_t *hold = renewals[i].hold;
        renewals[i].sent_ns = sent_ns;
        renewals[i].status = arrived;
        if (arrived == DL_OK) {
            renewals[i].status =
                fake_sessions_ping(hold->number, renewals[i].lease_ms, state->env->now_ns(), &grant);
            renewals[i].loss = DL_LOSS_HANG_UP; /* a hold ends with its connection, and in no other way */
        }
    }
    dl_status_t back = arrived == DL_OK ? come_back(state, deadline_ns, NULL, DL_OK, &err) : DL_EUNKNOWN;
    for (size_t i = 0; i < n; i++) {
        renewals[i].status = back == DL_OK ? renewals[i].status : DL_EUNKNOWN;
        end_op(renewals[i].hold);
    }
}

static dl_status_t inspect(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                           dl_lock_info_t *info, dl_error_t *err) {
    (void)name_len;
    state_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        (void)fake_sessions_inspect(name, state->env->now_ns(), info);
        status = come_back(state, deadline_ns, NULL, DL_OK, err);
    }
    return status;
}

static dl_status_t force(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                         dl_error_t *err) {
    (void)name_len;
    state_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        dl_status_t reply = fake_sessions_kill(name, state->env->now_ns()) ? DL_OK : DL_ENOTOWNER;
        status = come_back(state, deadline_ns, NULL, reply, err);
    }
    return status;
}

static dl_status_t list(void *state_, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                        uint64_t deadline_ns, dl_error_t *err) {
    state_t *state = state_;
    dl_status_t status = go(state, deadline_ns, NULL, err);
    if (status == DL_OK) {
        status = come_back(state, deadline_ns, NULL, DL_OK, err);
    }
    if (status == DL_OK) {
        fake_sessions_list(prefix, prefix_len, state->env->now_ns(), fn, arg);
    }
    return status;
}

static const dl_driver_t table = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "fake-session",
    .summary = "An in-memory server whose locks end with a connection.",
    .caps = DL_CAP_SESSION | DL_CAP_FENCE | DL_CAP_NATIVE_WAIT,
    .state_size = sizeof(state_t),
    .hold_size = sizeof(hold_t),
    .options = fake_options,
    .open = open_session,
    .close = close_session,
    .try_acquire = acquire,
    .release = release,
    .renew = renew,
    .inspect = inspect,
    .force_release = force,
    .list = list,
    .drop = drop,
};

const dl_driver_t *fake_session_driver(void) {
    return &table;
}
