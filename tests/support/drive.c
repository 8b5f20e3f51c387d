/* drive.c - one request after the other through a backend, from begin to ended or withdraw. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct report {
    struct report *next;
    dl_log_level_t level;
    char text[];
};

/* In front of the backend's state. */
typedef struct drive {
    const dli_backend_t *backend;
    const dl_driver_env_t *env;
    dli_backend_env_t core; /* lent, or this very struct */
    pthread_mutex_t mutex;  /* of the latter */
    struct report *reports; /* that were made with it held */
    void (*look_again)(void *arg);
    void *arg;
} drive_t;

#define DRIVE_SIZE ((sizeof(drive_t) + 15u) & ~(size_t)15u)

/* One call. */
typedef struct call {
    dli_request_t request;
    int fd; /* readable once it has ended; -1: alone */
    dl_status_t status;
} call_t;

/* Open has to know whose it is. */
#define TABLES_MAX 4
static struct {
    const dli_backend_t *backend;
    dl_driver_t driver;
} tables[TABLES_MAX];

void *drive_inner(void *state) {
    return (char *)state + DRIVE_SIZE;
}

static int is_alone(const drive_t *drive) {
    return drive->core.core == drive;
}

static void lock_alone(void *core) {
    drive_t *drive = core;
    pthread_mutex_lock(&drive->mutex);
}

/* The core may call the table meanwhile. */
static void unlock_alone(void *core) {
    drive_t *drive = core;
    struct report *reports = drive->reports;
    drive->reports = NULL;
    pthread_mutex_unlock(&drive->mutex);
    while (reports != NULL) {
        struct report *report = reports;
        reports = report->next;
        drive->env->report(drive->env->core, report->level, report->text);
        free(report);
    }
}

static void report_alone(void *core, dl_log_level_t level, const char *text) {
    drive_t *drive = core;
    struct report **at = &drive->reports, *report = malloc(sizeof *report + strlen(text) + 1);
    if (report != NULL) {
        report->next = NULL;
        report->level = level;
        strcpy(report->text, text);
        while (*at != NULL) {
            at = &(*at)->next;
        }
        *at = report;
    }
}

void drive_lend(void *state, const dli_backend_env_t *env, void (*look_again)(void *arg), void *arg) {
    drive_t *drive = state;
    drive->core = *env;
    drive->look_again = look_again;
    drive->arg = arg;
}

/* ---- a call ------------------------------------------------------------------------------------------ */

static void ended(dli_request_t *request, dl_status_t status) {
    call_t *call = (call_t *)(void *)request;
    request->pending = false;
    call->status = status;
    if (call->fd >= 0) {
        uint64_t one = 1;
        ssize_t n = write(call->fd, &one, sizeof one);
        (void)n;
    }
}

static void flush(drive_t *drive) {
    drive->core.lock(drive->core.core);
    bool look_again = drive->backend->flush(drive_inner(drive));
    drive->core.unlock(drive->core.core);
    if (look_again && !is_alone(drive)) {
        drive->look_again(drive->arg);
    }
}

/* 0: the end, or a stop. */
static int wait_alone(drive_t *drive, const dl_stop_t *stop, uint64_t until_ns) {
    struct pollfd fds[2 + DL_LISTEN_MAX] = {{.fd = stop->fd[0], .events = POLLIN},
                                            {.fd = stop->fd[1], .events = POLLIN}};
    uint64_t due_ns;
    size_t n = drive->backend->driver->listen_fds(drive_inner(drive), fds + 2, DL_LISTEN_MAX, &due_ns);
    (void)drive->env->poll(fds, 2 + n, due_ns < until_ns ? due_ns : until_ns);
    drive->backend->driver->listen(drive_inner(drive), fds + 2, n);
    return fds[0].revents == 0 && fds[1].revents == 0 && drive->env->now_ns() < until_ns;
}

static int wait_for_core(drive_t *drive, const call_t *call, const dl_stop_t *stop, uint64_t until_ns) {
    struct pollfd fds[3] = {{.fd = call->fd, .events = POLLIN},
                            {.fd = stop->fd[0], .events = POLLIN},
                            {.fd = stop->fd[1], .events = POLLIN}};
    return drive->env->poll(fds, 3, until_ns) > 0 && fds[0].revents != 0;
}

static int is_pending(drive_t *drive, call_t *call) {
    drive->core.lock(drive->core.core);
    int pending = call->request.pending;
    drive->core.unlock(drive->core.core);
    return pending;
}

static dl_status_t withdraw(drive_t *drive, call_t *call) {
    drive->core.lock(drive->core.core);
    dl_status_t status = call->status;
    int withdrawn = call->request.pending;
    if (withdrawn) {
        status = drive->backend->withdraw(drive_inner(drive), &call->request) ? DL_EUNKNOWN : DL_EIO;
    }
    drive->core.unlock(drive->core.core);
    if (withdrawn && call->request.err != NULL) {
        (void)dl_driver_fail(call->request.err, status, 0, "no reply from the server");
    }
    return status;
}

/* Looked at with the mutex held, so that no request is sent behind one that was begun since the stop. */
static bool is_stopped(const dl_stop_t *stop) {
    struct pollfd fds[2] = {{.fd = stop->fd[0], .events = POLLIN}, {.fd = stop->fd[1], .events = POLLIN}};
    return poll(fds, 2, 0) > 0;
}

static dl_status_t carry_out(drive_t *drive, call_t *call) {
    dl_stop_t stop = call->request.with.stop;
    uint64_t until_ns = call->request.with.deadline_ns;
    call->request.ended = ended;
    call->fd = is_alone(drive) ? -1 : eventfd(0, EFD_CLOEXEC);
    if (call->fd < 0 && !is_alone(drive)) {
        perror("eventfd");
        abort();
    }
    drive->core.lock(drive->core.core);
    bool begins = call->request.pending = !is_stopped(&stop);
    if (begins) {
        drive->backend->begin(drive_inner(drive), &call->request);
    }
    drive->core.unlock(drive->core.core);
    if (begins) {
        flush(drive);
    } else {
        call->status = dl_driver_fail(call->request.err, DL_ECANCELED, 0, "stopped before it was sent");
    }
    while (is_pending(drive, call) && (is_alone(drive) ? wait_alone(drive, &stop, until_ns)
                                                       : wait_for_core(drive, call, &stop, until_ns))) {}
    dl_status_t status = withdraw(drive, call);
    if (call->fd >= 0) {
        close(call->fd);
    }
    return status;
}

/* ---- the ops ------------------------------------------------------------------------------------------- */

static dl_status_t open_of(size_t i, void *state, const dl_option_value_t *options,
                           const dl_driver_env_t *env, uint64_t deadline_ns, dl_error_t *err) {
    drive_t *drive = state;
    drive->backend = tables[i].backend;
    drive->env = env;
    if (drive->core.core == NULL) {
        pthread_mutex_init(&drive->mutex, NULL);
        drive->core = (dli_backend_env_t){
            .core = drive, .lock = lock_alone, .unlock = unlock_alone, .report = report_alone};
    }
    drive->backend->attach(drive_inner(drive), &drive->core);
    return drive->backend->driver->open(drive_inner(drive), options, env, deadline_ns, err);
}

static dl_status_t open_first(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                              uint64_t deadline_ns, dl_error_t *err) {
    return open_of(0, state, options, env, deadline_ns, err);
}

static dl_status_t open_second(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                               uint64_t deadline_ns, dl_error_t *err) {
    return open_of(1, state, options, env, deadline_ns, err);
}

static dl_status_t open_third(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                              uint64_t deadline_ns, dl_error_t *err) {
    return open_of(2, state, options, env, deadline_ns, err);
}

static dl_status_t open_fourth(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                               uint64_t deadline_ns, dl_error_t *err) {
    return open_of(3, state, options, env, deadline_ns, err);
}

static const dl_driver_t *driver_of(const void *state) {
    return ((const drive_t *)state)->backend->driver;
}

static void drive_close(void *state, int forked) {
    if (((const drive_t *)state)->backend == NULL) {
        return; /* it was never opened */
    }
    driver_of(state)->close(drive_inner(state), forked);
}

static dl_status_t drive_try(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                             dl_error_t *err) {
    call_t call = {.request = {.kind = request->level > 1 ? DLI_ASK_LEVEL : DLI_ASK_TRY,
                               .with = *request,
                               .hold = hold,
                               .grant = grant,
                               .err = err}};
    return carry_out(state, &call);
}

static dl_status_t drive_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    call_t call = {.request = {.kind = DLI_ASK_RELEASE, .with = *request, .hold = hold, .err = err}};
    return carry_out(state, &call);
}

static void drive_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    call_t call = {.request = {.kind = DLI_ASK_RENEW,
                               .with = {.deadline_ns = deadline_ns, .stop = {{-1, -1}}},
                               .renewals = renewals,
                               .n = n}};
    for (size_t i = 0; i < n; i++) {
        renewals[i].status = DL_EIO;
    }
    dl_status_t status = carry_out(state, &call);
    for (size_t i = 0; i < n && status == DL_EUNKNOWN; i++) {
        renewals[i].status = renewals[i].status == DL_EIO ? status : renewals[i].status;
    }
}

static dl_status_t ask_of(void *state, dli_ask_kind_t kind, const char *name, size_t name_len,
                          uint64_t deadline_ns, dl_lock_info_t *info, dl_error_t *err) {
    call_t call = {
        .request = {
            .kind = kind,
            .with = {.name = name, .name_len = name_len, .deadline_ns = deadline_ns, .stop = {{-1, -1}}},
            .info = info,
            .err = err}};
    return carry_out(state, &call);
}

static dl_status_t drive_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 dl_lock_info_t *info, dl_error_t *err) {
    return ask_of(state, DLI_ASK_INSPECT, name, name_len, deadline_ns, info, err);
}

static dl_status_t drive_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                               dl_error_t *err) {
    return ask_of(state, DLI_ASK_FORCE, name, name_len, deadline_ns, NULL, err);
}

static dl_status_t drive_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                              uint64_t deadline_ns, dl_error_t *err) {
    return driver_of(state)->list(drive_inner(state), prefix, prefix_len, fn, arg, deadline_ns, err);
}

static dl_status_t drive_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                               dl_error_t *err) {
    return driver_of(state)->check(drive_inner(state), fn, arg, deadline_ns, err);
}

static dl_status_t drive_check_name(void *state, const char *name, size_t name_len, dl_error_t *err) {
    return driver_of(state)->check_name(drive_inner(state), name, name_len, err);
}

static void drive_describe(void *state, char *text, size_t size) {
    driver_of(state)->describe(drive_inner(state), text, size);
}

static dl_status_t drive_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                               dl_error_t *err) {
    return driver_of(state)->watch(drive_inner(state), name, name_len, watch, err);
}

static void drive_unwatch(void *state, dl_watch_t *watch) {
    driver_of(state)->unwatch(drive_inner(state), watch);
}

static size_t drive_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    return driver_of(state)->listen_fds(drive_inner(state), fds, max, until_ns);
}

static void drive_listen(void *state, const struct pollfd *fds, size_t n) {
    driver_of(state)->listen(drive_inner(state), fds, n);
}

static void drive_drop(void *state, void *hold) {
    driver_of(state)->drop(drive_inner(state), hold);
}

static uint32_t drive_caps_off(void *state) {
    return driver_of(state)->caps_off(drive_inner(state));
}

static void make_table(dl_driver_t *table, const dli_backend_t *backend) {
    *table = *backend->driver;
    table->state_size = DRIVE_SIZE + backend->driver->state_size;
    table->close = drive_close;
    table->try_acquire = drive_try;
    table->release = drive_release;
    table->renew = drive_renew;
    table->caps_off = backend->driver->caps_off != NULL ? drive_caps_off : NULL;
    table->drop = backend->driver->drop != NULL ? drive_drop : NULL;
    table->watch = drive_watch;
    table->unwatch = drive_unwatch;
    table->listen = drive_listen;
    table->listen_fds = drive_listen_fds;
    table->list = drive_list;
    table->check = backend->driver->check != NULL ? drive_check : NULL;
    table->check_name = backend->driver->check_name != NULL ? drive_check_name : NULL;
    table->describe = backend->driver->describe != NULL ? drive_describe : NULL;
    table->inspect = drive_inspect;
    table->force_release = drive_force;
}

const dl_driver_t *drive_table(const dli_backend_t *backend) {
    size_t i = 0;
    while (tables[i].backend != NULL && tables[i].backend != backend) {
        if (++i == TABLES_MAX) {
            fprintf(stderr, "more than %d backends\n", TABLES_MAX);
            abort();
        }
    }
    tables[i].backend = backend;
    make_table(&tables[i].driver, backend);
    static dl_status_t (*const opens[TABLES_MAX])(void *, const dl_option_value_t *, const dl_driver_env_t *,
                                                  uint64_t, dl_error_t *) = {open_first, open_second,
                                                                             open_third, open_fourth};
    tables[i].driver.open = opens[i];
    return &tables[i].driver;
}

const dli_backend_t *drive_backend_of(const dl_driver_t *table) {
    for (size_t i = 0; i < TABLES_MAX; i++) {
        if (table == &tables[i].driver) {
            return tables[i].backend;
        }
    }
    return NULL;
}
