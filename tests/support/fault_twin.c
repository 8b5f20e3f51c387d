/* fault_twin.c - the same faults for a backend: a thread carries out what is planned and takes time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/alloc_fail.h"
#include "support/drive.h"
#include "support/fault.h"

typedef struct name_text {
    char name[DL_NAME_MAX + 1], owner[DL_OWNER_MAX + 1];
} name_text_t;

/* One request: a copy, since the core's may go while a thread is late. */
struct fault_job {
    dli_request_t inner; /* first */
    fault_job_t *next;   /* of those that are done */
    fault_state_t *state;
    dli_request_t *outer; /* NULL: it was withdrawn */
    name_text_t *texts;
    dl_grant_t grant;
    dl_lock_info_t info;
    dl_error_t err;
    fault_run_t run;
    fault_batch_t batch; /* RENEW: instead of it */
    int entered;         /* by a thread, and not withdrawn before */
    int stop_fd;         /* of a thread: it was withdrawn; -1: it has none */
    pthread_t thread;
    dl_status_t status;
};

static const dli_backend_t *backend; /* the inner one */
static dli_backend_t twin;
static void (*_Atomic core_settled)(void *core, void *hold); /* the same for every client */
static const dli_sys_t *sys; /* of the harness, also where a case puts another in place */

static void raise_fd(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n;
}

static int new_fd(void) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        perror("a fault needs a descriptor");
        abort();
    }
    return fd;
}

static void lock(fault_state_t *state) {
    state->twin.core.lock(state->twin.core.core);
}

static void unlock(fault_state_t *state) {
    state->twin.core.unlock(state->twin.core.core);
}

static void *backend_state(fault_state_t *state) {
    return drive_inner(fault_inner_state(state));
}

/* ---- jobs ---------------------------------------------------------------------------------------------- */

static void keep_text(name_text_t *text, const char **name, size_t name_len, const char **owner) {
    if (*name != NULL) {
        memcpy(text->name, *name, name_len);
        *name = text->name;
    }
    if (*owner != NULL) {
        snprintf(text->owner, sizeof text->owner, "%s", *owner);
        *owner = text->owner;
    }
}

static void direct_ended(dli_request_t *request, dl_status_t status);

static fault_job_t *new_job(fault_state_t *state, dli_request_t *outer) {
    fault_job_t *job = alloc_real(sizeof *job);
    job->state = state;
    job->outer = outer;
    job->stop_fd = -1;
    job->inner = *outer;
    job->inner.ended = direct_ended;
    job->inner.err = outer->err != NULL ? &job->err : NULL;
    job->inner.hold = fault_inner_hold(outer->hold);
    job->texts = alloc_real((outer->n + 1) * sizeof *job->texts);
    keep_text(&job->texts[outer->n], &job->inner.with.name, outer->with.name_len, &job->inner.with.owner);
    if (outer->n > 0) {
        job->inner.renewals = alloc_real(outer->n * sizeof *outer->renewals);
        memcpy(job->inner.renewals, outer->renewals, outer->n * sizeof *outer->renewals);
        for (size_t i = 0; i < outer->n; i++) {
            dl_renewal_t *r = &job->inner.renewals[i];
            keep_text(&job->texts[i], &r->name, r->name_len, &r->owner);
            r->hold = fault_inner_hold(r->hold);
        }
    }
    if (outer->grant != NULL) {
        job->grant = *outer->grant;
        job->inner.grant = &job->grant;
    }
    if (outer->info != NULL) {
        job->info = *outer->info;
        job->inner.info = &job->info;
    }
    return job;
}

static void free_job(fault_job_t *job) {
    if (job->stop_fd >= 0) {
        close(job->stop_fd);
    }
    if (job->inner.n > 0) {
        alloc_real_free(job->inner.renewals);
    }
    alloc_real_free(job->texts);
    alloc_real_free(job);
}

static void give_entry(const fault_job_t *job, size_t i) {
    dl_renewal_t *entry = &job->outer->renewals[i];
    entry->status = job->inner.renewals[i].status;
    entry->loss = job->inner.renewals[i].loss;
    entry->sent_ns = job->inner.renewals[i].sent_ns;
}

/* So that these have their answers should the whole be withdrawn. */
static void give_entries(fault_batch_t *batch) {
    fault_job_t *job = (fault_job_t *)(void *)((char *)batch - offsetof(fault_job_t, batch));
    lock(job->state);
    for (size_t i = 0; job->outer != NULL && i < batch->n; i++) {
        if (batch->runs[i].fault.mode == 0) {
            give_entry(job, i);
        }
    }
    unlock(job->state);
}

/* With the core's mutex. */
static void give_answer(fault_job_t *job, dl_status_t status) {
    dli_request_t *outer = job->outer;
    if (outer == NULL) {
        return;
    }
    for (size_t i = 0; i < outer->n; i++) {
        give_entry(job, i);
    }
    outer->in_line = job->inner.in_line;
    outer->unheard = job->run.fault.mode == CT_ANSWER ? !job->grant.busy_is_dlock : job->inner.unheard;
    outer->refused = job->inner.refused;
    if (outer->grant != NULL) {
        *outer->grant = job->grant;
    }
    if (outer->info != NULL) {
        *outer->info = job->info;
    }
    if (outer->err != NULL && status != DL_OK) {
        *outer->err = job->err;
    }
    outer->ended(outer, status);
}

static void note_end(fault_job_t *job, dl_status_t status) {
    if (job->inner.kind == DLI_ASK_RENEW) {
        fault_batch_end(&job->batch, job->inner.renewals);
        return;
    }
    fault_check_hold_end(job->inner.hold);
    (void)fault_end(&job->run, status);
}

static void direct_ended(dli_request_t *request, dl_status_t status) {
    fault_job_t *job = (fault_job_t *)(void *)request;
    if (request->grant != NULL) {
        job->run.call.token = status == DL_OK ? job->grant.token : 0;
        job->run.call.sent_ns = job->grant.sent_ns;
    }
    note_end(job, status);
    give_answer(job, status);
    free_job(job);
}

/* ---- by a thread --------------------------------------------------------------------------------------- */

static dl_status_t carry_out(fault_job_t *job) {
    dli_request_t *r = &job->inner;
    switch (r->kind) {
    case DLI_ASK_TRY:
    case DLI_ASK_LEVEL:
        return fault_run_try(&job->run, r->hold, &r->with, &job->grant, &job->err);
    case DLI_ASK_RELEASE:
        return fault_run_release(&job->run, r->hold, &r->with, &job->err);
    case DLI_ASK_RENEW:
        fault_batch_run(&job->batch, r->renewals);
        return DL_OK;
    case DLI_ASK_INSPECT:
        return fault_run_inspect(&job->run, &r->with, &job->info, &job->err);
    default:
        return fault_run_force(&job->run, &r->with, &job->err);
    }
}

static void *job_main(void *arg) {
    fault_job_t *job = arg;
    fault_state_t *state = job->state;
    if (job->inner.kind != DLI_ASK_RENEW) {
        fault_enter(&job->run);
    }
    lock(state);
    job->entered = job->outer != NULL;
    unlock(state);
    if (job->entered) {
        job->status = carry_out(job);
    } else {
        note_end(job, DL_EIO);
    }
    lock(state);
    job->next = state->twin.done;
    state->twin.done = job;
    unlock(state);
    raise_fd(state->twin.fd);
    return NULL;
}

/* Ends what threads have done. 0: one is still at work. */
static int end_done(fault_state_t *state) {
    lock(state);
    fault_job_t *job = state->twin.done;
    state->twin.done = NULL;
    for (fault_job_t *j = job; j != NULL; j = j->next) {
        give_answer(j, j->status);
        j->outer = NULL;
        state->twin.threads--;
    }
    int none = state->twin.threads == 0;
    unlock(state);
    while (job != NULL) {
        fault_job_t *next = job->next;
        sys->thread_join(job->thread);
        free_job(job);
        job = next;
    }
    return none;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static void raise_done(void *arg) {
    fault_state_t *state = arg;
    raise_fd(state->twin.fd);
}

/* The core knows the outer request. */
static void look_again(void *core, dli_request_t *request) {
    const fault_job_t *job = (fault_job_t *)(void *)request;
    job->state->twin.core.look_again(core, job->outer);
}

static void settled(void *core, void *hold) {
    atomic_load (&core_settled)(core, (char *)hold - FAULT_ALIGN(sizeof(fault_hold_t)));
}

static void attach(void *state_, const dli_backend_env_t *env) {
    fault_state_t *state = state_;
    dli_backend_env_t lent = *env;
    atomic_store(&core_settled, env->settled);
    lent.look_again = look_again;
    lent.settled = settled;
    state->twin.core = *env;
    state->twin.fd = -1;
    drive_lend(fault_inner_state(state), &lent, raise_done, state);
}

static bool withdraw(void *state_, dli_request_t *request) {
    fault_state_t *state = state_;
    fault_job_t *job = request->place;
    job->outer = NULL;
    if (job->stop_fd >= 0) {
        raise_fd(job->stop_fd);
        return job->entered && job->run.fault.mode != CT_ANSWER && job->run.fault.mode != CT_FAIL_BEFORE;
    }
    bool sent = backend->withdraw(backend_state(state), &job->inner);
    note_end(job, sent ? DL_EUNKNOWN : DL_EIO);
    free_job(job);
    return sent;
}

static ct_op_t op_of(dli_ask_kind_t kind) {
    return kind == DLI_ASK_RELEASE   ? CT_OP_RELEASE
           : kind == DLI_ASK_INSPECT ? CT_OP_INSPECT
           : kind == DLI_ASK_FORCE   ? CT_OP_FORCE
                                     : CT_OP_TRY;
}

typedef enum planned {
    PLAIN,   /* nothing */
    REFUSED, /* it ends as it begins */
    TIMED
} planned_t;

/* With the core's mutex: what is planned for it. */
static planned_t note(fault_job_t *job) {
    const dl_request_t *with = &job->inner.with;
    dli_ask_kind_t kind = job->inner.kind;
    if (kind == DLI_ASK_RENEW) {
        job->batch.answered = give_entries;
        fault_batch_note(&job->batch, job->state, job->inner.renewals, job->inner.n, with->deadline_ns);
        return job->batch.is_plain ? PLAIN : TIMED;
    }
    if (kind == DLI_ASK_INSPECT || kind == DLI_ASK_FORCE) {
        fault_note(&job->run, job->state, op_of(kind), with->name, with->name_len, with->deadline_ns);
    } else {
        fault_check_hold_begin(job->state, job->inner.hold);
        fault_note_request(&job->run, job->state, op_of(kind), with);
    }
    return fault_is_hooked(&job->run)              ? TIMED
           : job->run.fault.mode == 0              ? PLAIN
           : job->run.fault.mode == CT_FAIL_BEFORE ? REFUSED
                                                   : TIMED;
}

/* The hold may go while the thread is late. */
static void forget_holds(fault_job_t *job) {
    job->inner.hold = NULL;
    for (size_t i = 0; i < job->inner.n; i++) {
        job->inner.renewals[i].hold = NULL;
    }
}

static void start(fault_job_t *job) {
    forget_holds(job);
    if (job->state->twin.fd < 0) {
        job->state->twin.fd = new_fd();
    }
    job->stop_fd = new_fd();
    job->inner.with.stop = (dl_stop_t){{job->stop_fd, -1}};
    job->state->twin.threads++;
    int rc = sys->thread_start(&job->thread, job_main, job);
    if (rc != 0) {
        fprintf(stderr, "no thread for a fault: %s\n", strerror(rc));
        abort();
    }
}

static void begin(void *state_, dli_request_t *request) {
    fault_state_t *state = state_;
    fault_job_t *job = new_job(state, request);
    request->place = job;
    switch (note(job)) {
    case PLAIN:
        backend->begin(backend_state(state), &job->inner); /* it may have ended, and be gone */
        return;
    case REFUSED:
        give_answer(job, carry_out(job));
        free_job(job);
        return;
    default:
        start(job);
        state->twin.is_new = 1;
    }
}

static bool flush(void *state_) {
    fault_state_t *state = state_;
    bool looks_again = state->twin.is_new != 0;
    state->twin.is_new = 0;
    fault_inside++;
    looks_again |= backend->flush(backend_state(state));
    fault_inside--;
    return looks_again;
}

static bool owes(void *state, const void *hold) {
    return backend->owes(backend_state(state), (const char *)hold + FAULT_ALIGN(sizeof(fault_hold_t)));
}

/* With the core's mutex, as end_lead. A thread's job is for whoever listens. */
static int lead_fds(void *state_, dli_request_t *request, struct pollfd *fds, bool late, uint64_t *term,
                    uint64_t *until_ns) {
    fault_state_t *state = state_;
    fault_job_t *job = request->place;
    return job->stop_fd < 0 ? backend->lead_fds(backend_state(state), &job->inner, fds, late, term, until_ns)
                            : -1;
}

static bool lead(void *state_, uint64_t term, const struct pollfd *fds, size_t n) {
    fault_state_t *state = state_;
    fault_run_t run;
    unlock(state);
    fault_begin(&run, state, CT_OP_LISTEN, NULL, 0, DL_NO_DEADLINE);
    lock(state);
    fault_inside++;
    bool looks_again = backend->lead(backend_state(state), term, fds, n);
    fault_inside--;
    unlock(state);
    fault_end(&run, DL_OK);
    lock(state);
    return looks_again;
}

static dli_request_t *end_lead(void *state_, uint64_t term, uint64_t *next) {
    fault_state_t *state = state_;
    dli_request_t *heir = backend->end_lead(backend_state(state), term, next);
    return heir == NULL || !heir->leads ? heir : ((fault_job_t *)(void *)heir)->outer;
}

size_t fault_twin_fds(fault_state_t *state, struct pollfd *fds) {
    if (state->twin.core.core == NULL) {
        return 0;
    }
    lock(state);
    fds[0] = (struct pollfd){.fd = state->twin.fd, .events = POLLIN};
    state->twin.shown = state->twin.threads > 0;
    unlock(state);
    return (size_t)state->twin.shown;
}

size_t fault_twin_listen(fault_state_t *state) {
    if (state->twin.core.core == NULL) {
        return 0;
    }
    if (state->twin.shown) {
        uint64_t count;
        ssize_t n = read(state->twin.fd, &count, sizeof count); /* fails if nothing was done */
        (void)n;
    }
    (void)end_done(state);
    return (size_t)state->twin.shown;
}

void fault_twin_close(fault_state_t *state) {
    if (state->twin.core.core == NULL || state->twin.fd < 0) {
        return;
    }
    while (!end_done(state)) {
        struct pollfd fds;
        size_t n = fault_twin_fds(state, &fds);
        (void)sys->poll(&fds, n, DLI_NEVER);
        (void)fault_twin_listen(state);
    }
    close(state->twin.fd);
}

void fault_twin_wrap(const dl_driver_t *table) {
    sys = dli_sys;
    backend = drive_backend_of(fault_inner);
    if (backend == NULL) {
        return;
    }
    twin = *backend;
    twin.driver = table;
    twin.attach = attach;
    twin.begin = begin;
    twin.withdraw = withdraw;
    twin.flush = flush;
    twin.owes = backend->owes != NULL ? owes : NULL;
    twin.lines_up = backend->lines_up;
    twin.lead_fds = backend->lead_fds != NULL ? lead_fds : NULL;
    twin.lead = lead;
    twin.end_lead = end_lead;
}

dl_status_t fault_open_client(const dl_driver_t *driver, const char *yaml, dl_client_t **client,
                              dl_error_t *err) {
    const dli_backend_t *own = backend != NULL && driver == twin.driver ? &twin : drive_backend_of(driver);
    return own != NULL ? dli_client_open_backend(own, yaml, strlen(yaml), client, err)
                       : dl_client_open_driver(driver, yaml, strlen(yaml), client, err);
}
