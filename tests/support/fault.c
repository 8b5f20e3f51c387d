/* fault.c - the table that stands between the core and the driver under test. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fault.h"

#include <stdio.h>
#include <string.h>

#include "core/sys.h"
#include "support/alloc_fail.h"

const dl_driver_t *fault_inner;
static dl_driver_t table;
static _Thread_local int next_client = -1;
static pthread_mutex_t count_mutex = PTHREAD_MUTEX_INITIALIZER;
static int unnamed_clients = 1000; /* numbers of clients that the harness did not announce */

void fault_next_client(int number) {
    next_client = number;
}

void fault_reset(void) {
    fault_plan_reset();
}

void *fault_inner_state(fault_state_t *state) {
    return (char *)state + FAULT_ALIGN(sizeof *state);
}

void *fault_inner_hold(void *hold) {
    return hold == NULL ? NULL : (char *)hold + FAULT_ALIGN(sizeof(fault_hold_t));
}

/* ---- waiting as a slow network would ----------------------------------------------------------------- */

/* Until `delay_ms` after the call began, its deadline, or a stop, whichever is first. */
fault_waited_t fault_wait_ms(fault_run_t *run, int64_t delay_ms, const dl_stop_t *stop) {
    uint64_t until = delay_ms < 0 ? DL_NO_DEADLINE : run->call.begin_ns + (uint64_t)delay_ms * DLI_NS_PER_MS;
    uint64_t deadline_ns = run->call.deadline_ns;
    uint64_t end = until < deadline_ns ? until : deadline_ns;
    struct pollfd fds[2] = {{.fd = -1, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    if (stop != NULL) {
        fds[0].fd = stop->fd[0];
        fds[1].fd = stop->fd[1];
    }
    __atomic_store_n(&run->state->blocked, 1, __ATOMIC_RELAXED);
    if (run->state->env->poll(fds, 2, end) > 0) {
        return FAULT_STOPPED;
    }
    return until <= deadline_ns ? FAULT_ON_TIME : FAULT_AT_DEADLINE;
}

static dl_status_t no_reply(fault_run_t *run, dl_error_t *err) {
    /* Nobody can say of an open what it may have done: the server is just not there. */
    dl_status_t status = run->call.op == CT_OP_OPEN ? DL_EIO : DL_EUNKNOWN;
    return dl_driver_fail(err, status, 0, "injected: no reply");
}

typedef dl_status_t (*act_fn)(fault_run_t *run, void *op, dl_error_t *err);

static dl_status_t answer(fault_run_t *run, const dl_stop_t *stop, dl_error_t *err) {
    fault_waited_t end =
        run->fault.delay_ms > 0 ? fault_wait_ms(run, run->fault.delay_ms, stop) : FAULT_ON_TIME;
    if (end == FAULT_STOPPED) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "stopped");
    }
    if (end == FAULT_AT_DEADLINE) {
        return no_reply(run, err);
    }
    if (run->fault.status == DL_OK) {
        return DL_OK;
    }
    return dl_driver_fail(err, run->fault.status, 0, "injected: %s", dl_status_name(run->fault.status));
}

/* Carries the op out as its fault wants it. */
static dl_status_t carry_out(fault_run_t *run, act_fn act, void *op, const dl_stop_t *stop, dl_error_t *err) {
    dl_status_t status;
    switch (run->fault.mode) {
    case CT_FAIL_BEFORE:
        status = run->fault.status == DL_OK ? DL_EIO : run->fault.status;
        return dl_driver_fail(err, status, 0, "injected: the request never left");
    case CT_LOSE_REQUEST:
        return no_reply(run, err);
    case CT_LOSE_REPLY:
        (void)act(run, op, err);
        return no_reply(run, err);
    case CT_LATE:
        if (fault_wait_ms(run, run->fault.delay_ms, stop) != FAULT_ON_TIME) {
            return no_reply(run, err);
        }
        status = act(run, op, err);
        run->call.sent_ns = run->call.begin_ns;
        return status;
    case CT_LATE_REPLY:
        status = act(run, op, err);
        return fault_wait_ms(run, run->fault.delay_ms, stop) == FAULT_ON_TIME ? status : no_reply(run, err);
    case CT_NEVER:
        (void)fault_wait_ms(run, -1, stop);
        return no_reply(run, err);
    case CT_NEVER_ACTED:
        (void)act(run, op, err);
        (void)fault_wait_ms(run, -1, stop);
        return no_reply(run, err);
    case CT_ANSWER:
        return answer(run, stop, err);
    default:
        return act(run, op, err);
    }
}

/* ---- open and close ---------------------------------------------------------------------------------- */

typedef struct open_op {
    const dl_option_value_t *options;
    uint64_t deadline_ns;
} open_op_t;

static dl_status_t act_open(fault_run_t *run, void *op, dl_error_t *err) {
    open_op_t *o = op;
    return fault_inner->open(fault_inner_state(run->state), o->options, &run->state->inner_env,
                             o->deadline_ns, err);
}

static dl_status_t fault_open(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                              uint64_t deadline_ns, dl_error_t *err) {
    fault_state_t *state = state_;
    state->env = env;
    fault_lend_env(state);
    state->client = next_client;
    next_client = -1;
    if (state->client < 0) {
        pthread_mutex_lock(&count_mutex);
        state->client = unnamed_clients++;
        pthread_mutex_unlock(&count_mutex);
    }
    state->opened = 1;
    fault_state_add(state);
    fault_run_t run;
    open_op_t op = {.options = options, .deadline_ns = deadline_ns};
    fault_begin(&run, state, CT_OP_OPEN, NULL, 0, deadline_ns);
    return fault_end(&run, carry_out(&run, act_open, &op, NULL, err));
}

static void fault_close(void *state_, int forked) {
    fault_state_t *state = state_;
    if (!state->opened) {
        fault_inner->close(fault_inner_state(state), forked);
        return;
    }
    if (forked) {
        /* A child may not even take a mutex that another thread held at the fork. */
        fault_inner->close(fault_inner_state(state), forked);
        return;
    }
    fault_twin_close(state);
    fault_run_t run;
    fault_begin(&run, state, CT_OP_CLOSE, NULL, 0, DL_NO_DEADLINE);
    fault_inner->close(fault_inner_state(state), forked);
    fault_end(&run, DL_OK);
    fault_check_close(state, forked);
    fault_state_remove(state);
}

/* ---- try_acquire and release --------------------------------------------------------------------------- */

typedef struct request_op {
    void *hold;
    const dl_request_t *request;
    dl_grant_t *grant;
} request_op_t;

static dl_status_t act_try(fault_run_t *run, void *op, dl_error_t *err) {
    request_op_t *o = op;
    dl_status_t status = fault_inner->try_acquire(fault_inner_state(run->state), fault_inner_hold(o->hold),
                                                  o->request, o->grant, err);
    run->call.token = status == DL_OK ? o->grant->token : 0;
    run->call.sent_ns = o->grant->sent_ns;
    return status;
}

dl_status_t fault_run_try(fault_run_t *run, void *hold, const dl_request_t *request, dl_grant_t *grant,
                          dl_error_t *err) {
    request_op_t op = {.hold = hold, .request = request, .grant = grant};
    dl_status_t status = carry_out(run, act_try, &op, &request->stop, err);
    if (run->fault.mode == CT_ANSWER) {
        *grant = (dl_grant_t){.token = request->token_floor + 1,
                              .sent_ns = run->call.begin_ns,
                              .session_fd = -1,
                              .busy_ms = run->fault.busy_ms,
                              .busy_is_dlock = run->fault.busy_is_dlock};
    } else if (run->fault.mode == CT_LATE && status == DL_OK) {
        /* The request left when the call began, however long it was on its way. */
        grant->sent_ns = run->call.begin_ns;
    } else if (status == DL_EUNKNOWN || status == DL_EIO) {
        *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    }
    status = fault_end(run, status);
    fault_check_hold_end(hold);
    return status;
}

static dl_status_t fault_try(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                             dl_error_t *err) {
    fault_run_t run;
    fault_check_hold_begin(state, hold);
    fault_note_request(&run, state, CT_OP_TRY, request);
    fault_enter(&run);
    return fault_run_try(&run, hold, request, grant, err);
}

static dl_status_t act_release(fault_run_t *run, void *op, dl_error_t *err) {
    request_op_t *o = op;
    return fault_inner->release(fault_inner_state(run->state), fault_inner_hold(o->hold), o->request, err);
}

dl_status_t fault_run_release(fault_run_t *run, void *hold, const dl_request_t *request, dl_error_t *err) {
    request_op_t op = {.hold = hold, .request = request};
    dl_status_t status = fault_end(run, carry_out(run, act_release, &op, &request->stop, err));
    fault_check_hold_end(hold);
    return status;
}

static dl_status_t fault_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    fault_run_t run;
    fault_check_hold_begin(state, hold);
    fault_note_request(&run, state, CT_OP_RELEASE, request);
    fault_enter(&run);
    return fault_run_release(&run, hold, request, err);
}

static void fault_drop(void *state, void *hold) {
    fault_check_drop(state, hold);
    fault_run_t run;
    fault_begin(&run, state, CT_OP_DROP, NULL, 0, DL_NO_DEADLINE);
    fault_inner->drop(fault_inner_state(state), fault_inner_hold(hold));
    fault_end(&run, DL_OK);
}

/* ---- watch, listen, unwatch ---------------------------------------------------------------------------- */

static dl_status_t fault_watch(void *state_, const char *name, size_t name_len, dl_watch_t **watch,
                               dl_error_t *err) {
    fault_state_t *state = state_;
    fault_run_t run;
    dl_watch_t *inner = NULL;
    dl_status_t status = DL_OK;
    *watch = NULL;
    fault_begin(&run, state, CT_OP_WATCH, name, name_len, DL_NO_DEADLINE);
    if (run.fault.mode == CT_FAIL_BEFORE) {
        status = run.fault.status == DL_OK ? DL_EIO : run.fault.status;
        status = dl_driver_fail(err, status, 0, "injected: no watch");
    } else if (run.fault.mode != CT_NEVER) {
        status = fault_inner->watch(fault_inner_state(state), name, name_len, &inner, err);
    }
    if (status == DL_OK) {
        dl_watch_t *w = alloc_real(sizeof *w);
        w->inner = inner;
        w->name_len = name_len;
        memcpy(w->name, name, name_len);
        fault_check_watch(state, w);
        *watch = w;
    }
    return fault_end(&run, status);
}

static void fault_unwatch(void *state, dl_watch_t *watch) {
    fault_run_t run;
    fault_begin(&run, state, CT_OP_UNWATCH, watch->name, watch->name_len, DL_NO_DEADLINE);
    if (watch->inner != NULL) {
        fault_inner->unwatch(fault_inner_state(state), watch->inner);
    }
    fault_check_unwatch(state, watch);
    alloc_real_free(watch);
    fault_end(&run, DL_OK);
}

_Thread_local int fault_inside;

static size_t fault_listen_fds(void *state_, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    fault_state_t *state = state_;
    fault_check_listen(state, max);
    fault_begin(&state->listening, state, CT_OP_LISTEN, NULL, 0, DL_NO_DEADLINE);
    size_t own = fault_twin_fds(state, fds);
    return own + fault_inner->listen_fds(fault_inner_state(state), fds + own, max - own, until_ns);
}

static void fault_listen(void *state_, const struct pollfd *fds, size_t n) {
    fault_state_t *state = state_;
    size_t own = fault_twin_listen(state);
    fault_inside++;
    fault_inner->listen(fault_inner_state(state), fds + own, n - own);
    fault_inside--;
    fault_run_t run = state->listening; /* the next thread may begin as soon as this one has ended */
    fault_check_listened(state);
    fault_end(&run, DL_OK);
}

/* ---- the optional ops ---------------------------------------------------------------------------------- */

typedef struct ask_op {
    const char *name;
    size_t name_len;
    uint64_t deadline_ns;
    dl_lock_info_t *info;
    dl_list_fn list_fn;
    void *list_arg;
} ask_op_t;

static dl_status_t act_inspect(fault_run_t *run, void *op, dl_error_t *err) {
    ask_op_t *o = op;
    return fault_inner->inspect(fault_inner_state(run->state), o->name, o->name_len, o->deadline_ns, o->info,
                                err);
}

dl_status_t fault_run_inspect(fault_run_t *run, const dl_request_t *request, dl_lock_info_t *info,
                              dl_error_t *err) {
    ask_op_t op = {.name = request->name,
                   .name_len = request->name_len,
                   .deadline_ns = request->deadline_ns,
                   .info = info};
    return fault_end(run, carry_out(run, act_inspect, &op, &request->stop, err));
}

static dl_status_t fault_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 dl_lock_info_t *info, dl_error_t *err) {
    fault_run_t run;
    dl_request_t request = {
        .name = name, .name_len = name_len, .deadline_ns = deadline_ns, .stop = {{-1, -1}}};
    fault_note(&run, state, CT_OP_INSPECT, name, name_len, deadline_ns);
    fault_enter(&run);
    return fault_run_inspect(&run, &request, info, err);
}

static dl_status_t act_force(fault_run_t *run, void *op, dl_error_t *err) {
    ask_op_t *o = op;
    return fault_inner->force_release(fault_inner_state(run->state), o->name, o->name_len, o->deadline_ns,
                                      err);
}

dl_status_t fault_run_force(fault_run_t *run, const dl_request_t *request, dl_error_t *err) {
    ask_op_t op = {.name = request->name, .name_len = request->name_len, .deadline_ns = request->deadline_ns};
    return fault_end(run, carry_out(run, act_force, &op, &request->stop, err));
}

static dl_status_t fault_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                               dl_error_t *err) {
    fault_run_t run;
    dl_request_t request = {
        .name = name, .name_len = name_len, .deadline_ns = deadline_ns, .stop = {{-1, -1}}};
    fault_note(&run, state, CT_OP_FORCE, name, name_len, deadline_ns);
    fault_enter(&run);
    return fault_run_force(&run, &request, err);
}

static dl_status_t act_list(fault_run_t *run, void *op, dl_error_t *err) {
    ask_op_t *o = op;
    return fault_inner->list(fault_inner_state(run->state), o->name, o->name_len, o->list_fn, o->list_arg,
                             o->deadline_ns, err);
}

static dl_status_t fault_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                              uint64_t deadline_ns, dl_error_t *err) {
    fault_run_t run;
    ask_op_t op = {
        .name = prefix, .name_len = prefix_len, .deadline_ns = deadline_ns, .list_fn = fn, .list_arg = arg};
    fault_begin(&run, state, CT_OP_LIST, prefix, prefix_len, deadline_ns);
    return fault_end(&run, carry_out(&run, act_list, &op, NULL, err));
}

static dl_status_t fault_check_name(void *state, const char *name, size_t name_len, dl_error_t *err) {
    return fault_inner->check_name(fault_inner_state(state), name, name_len, err);
}

static uint32_t fault_caps_off(void *state) {
    return fault_inner->caps_off(fault_inner_state(state));
}

static void fault_describe(void *state, char *text, size_t size) {
    fault_inner->describe(fault_inner_state(state), text, size);
}

static dl_status_t fault_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                               dl_error_t *err) {
    return fault_inner->check(fault_inner_state(state), fn, arg, deadline_ns, err);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

const dl_driver_t *fault_wrap(const dl_driver_t *inner) {
    fault_inner = inner;
    table = *inner; /* name, caps, options, summary and init are the inner driver's own */
    table.state_size = FAULT_ALIGN(sizeof(fault_state_t)) + inner->state_size;
    table.hold_size = inner->hold_size == 0 ? 0 : FAULT_ALIGN(sizeof(fault_hold_t)) + inner->hold_size;
    table.open = fault_open;
    table.close = fault_close;
    table.try_acquire = fault_try;
    table.release = fault_release;
    table.renew = fault_renew;
    table.watch = inner->watch == NULL ? NULL : fault_watch;
    table.listen = inner->listen == NULL ? NULL : fault_listen;
    table.unwatch = inner->unwatch == NULL ? NULL : fault_unwatch;
    table.listen_fds = inner->listen_fds == NULL ? NULL : fault_listen_fds;
    table.inspect = inner->inspect == NULL ? NULL : fault_inspect;
    table.force_release = inner->force_release == NULL ? NULL : fault_force;
    table.list = inner->list == NULL ? NULL : fault_list;
    table.drop = inner->hold_size == 0 ? NULL : fault_drop;
    table.check_name = inner->check_name == NULL ? NULL : fault_check_name;
    table.describe = inner->describe == NULL ? NULL : fault_describe;
    table.caps_off = inner->caps_off == NULL ? NULL : fault_caps_off;
    table.check = inner->check == NULL ? NULL : fault_check;
    fault_twin_wrap(&table);
    return &table;
}
