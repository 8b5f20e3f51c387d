/* fault_plan.c - which fault applies to which call, the record of calls, hooks and pauses. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "core/owner.h"
#include "core/sys.h"
#include "support/alloc_fail.h"
#include "support/ct.h"
#include "support/fault.h"

/* More calls than any case looks at; beyond it they are only counted. */
#define RECORD_MAX 65536u
#define HOOKS_MAX 32

typedef struct planned {
    ct_fault_t fault;
    char name[DL_NAME_MAX + 1];
    int client; /* FAULT_ANY_CLIENT */
    int seen, hits, ended;
} planned_t;

typedef struct hook {
    ct_op_t op;
    ct_when_t when;
    char name[DL_NAME_MAX + 1]; /* "": all */
    ct_hook_fn fn;
    void *arg;
    ct_t *ct;
} hook_t;

struct ct_pause {
    ct_pause_t *next;
    ct_op_t op;
    ct_when_t when;
    int client;
    char name[DL_NAME_MAX + 1];
    bool of_caller; /* it catches only a thread that calls */
    int arrived, gone;
};

/* Guards everything below. Never held during an op, a hook or a wait (but `changed`). */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* a pause was reached or let go */
static int changed_ready;
static planned_t *faults;
static int fault_count, fault_room;
static hook_t hooks[HOOKS_MAX];
static int hook_count, hooks_running;
static _Thread_local fault_state_t *hooked; /* whose hooks run on this thread */
static _Thread_local int hooks_here;
static ct_pause_t *pauses;
static ct_call_t *records;
static size_t record_count, record_room;
static int op_counts[CT_OP_COUNT];
static fault_state_t *states;
static int (*number_of)(const dl_client_t *client);

void fault_set_client_numbers(int (*fn)(const dl_client_t *client)) {
    number_of = fn;
}

int fault_number_of(const dl_client_t *client) {
    return client == NULL || number_of == NULL ? FAULT_ANY_CLIENT : number_of(client);
}

static void set_text(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from == NULL ? "" : from);
}

/* With the mutex held. */
static void make_cond(void) {
    if (!changed_ready) {
        dli_sys->cond_init(&changed);
        changed_ready = 1;
    }
}

void fault_plan_reset(void) {
    pthread_mutex_lock(&mutex);
    hook_count = 0;
    fault_count = fault_room = 0;
    alloc_real_free(faults);
    faults = NULL;
    record_count = record_room = 0;
    alloc_real_free(records);
    records = NULL;
    while (pauses != NULL) {
        ct_pause_t *next = pauses->next;
        alloc_real_free(pauses);
        pauses = next;
    }
    memset(op_counts, 0, sizeof op_counts);
    if (changed_ready) {
        pthread_cond_destroy(&changed);
        changed_ready = 0;
    }
    pthread_mutex_unlock(&mutex);
}

/* ---- states ---------------------------------------------------------------------------------------- */

void fault_state_add(fault_state_t *state) {
    pthread_mutex_lock(&mutex);
    state->next = states;
    states = state;
    pthread_mutex_unlock(&mutex);
}

void fault_state_remove(fault_state_t *state) {
    pthread_mutex_lock(&mutex);
    for (fault_state_t **at = &states; *at != NULL; at = &(*at)->next) {
        if (*at == state) {
            *at = state->next;
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
}

fault_state_t *fault_state_of(int client) {
    pthread_mutex_lock(&mutex);
    fault_state_t *found = states;
    while (found != NULL && found->client != client) {
        found = found->next;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

/* ---- one call -------------------------------------------------------------------------------------- */

/* With the mutex held. */
static int fault_matches(const planned_t *p, const ct_call_t *call) {
    return !p->ended && p->fault.op == call->op &&
           (p->client == FAULT_ANY_CLIENT || p->client == call->client) &&
           (p->fault.name == NULL || strcmp(p->name, call->name) == 0) &&
           (p->fault.level == 0 || p->fault.level == call->level);
}

/* With the mutex held. */
static void choose_fault(fault_run_t *run) {
    for (int i = 0; i < fault_count; i++) {
        planned_t *p = &faults[i];
        if (!fault_matches(p, &run->call)) {
            continue;
        }
        int turn = p->seen++ - p->fault.skip;
        if (turn >= 0 && (p->fault.count == CT_ALWAYS || turn < p->fault.count)) {
            p->hits++;
            run->fault = p->fault;
            run->call.applied = (int)p->fault.mode;
            return;
        }
    }
}

/* With the mutex held. */
static void keep_record(fault_run_t *run) {
    op_counts[run->call.op]++;
    run->record = SIZE_MAX;
    if (record_count == RECORD_MAX) {
        return;
    }
    if (record_count == record_room) {
        record_room = record_room == 0 ? 64 : record_room * 2;
        records = alloc_real_again(records, record_room * sizeof *records);
    }
    run->record = record_count++;
    records[run->record] = run->call;
}

static int call_matches(const ct_call_t *call, int client, const char *name) {
    return (client == FAULT_ANY_CLIENT || client == call->client) &&
           (name[0] == 0 || strcmp(name, call->name) == 0);
}

static void end_hooks(int n) {
    pthread_mutex_lock(&mutex);
    hooks_running -= n;
    make_cond();
    dli_sys->cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void run_hooks(const fault_run_t *run, ct_when_t when) {
    const ct_call_t *call = &run->call;
    hook_t due[HOOKS_MAX];
    int n = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < hook_count; i++) {
        const hook_t *h = &hooks[i];
        if (h->op == call->op && h->when == when && call_matches(call, FAULT_ANY_CLIENT, h->name)) {
            due[n++] = *h;
        }
    }
    hooks_running += n;
    pthread_mutex_unlock(&mutex);
    hooked = run->state;
    hooks_here = n;
    for (int i = 0; i < n; i++) {
        due[i].fn(due[i].ct, call, due[i].arg);
    }
    if (n > 0) {
        end_hooks(n);
    }
}

static void stand_at_pauses(const ct_call_t *call, ct_when_t when) {
    bool is_caller = dli_thread_known() != NULL; /* the client's own thread makes no calls */
    pthread_mutex_lock(&mutex);
    for (ct_pause_t *p = pauses; p != NULL; p = p->next) {
        if (p->op != call->op || p->when != when || p->arrived || (p->of_caller && !is_caller) ||
            !call_matches(call, p->client, p->name)) {
            continue;
        }
        p->arrived = 1;
        dli_sys->cond_broadcast(&changed);
        while (!p->gone) {
            dli_sys->cond_wait(&changed, &mutex, DLI_NEVER);
        }
        break;
    }
    pthread_mutex_unlock(&mutex);
}

static void record(fault_run_t *run) {
    run->call.begin_ns = dli_sys->now_ns();
    pthread_mutex_lock(&mutex);
    choose_fault(run);
    keep_record(run);
    pthread_mutex_unlock(&mutex);
}

void fault_enter(fault_run_t *run) {
    run_hooks(run, CT_BEFORE);
    stand_at_pauses(&run->call, CT_BEFORE);
}

static void fill(fault_run_t *run, fault_state_t *state, ct_op_t op, const char *name, size_t name_len,
                 uint64_t deadline_ns) {
    memset(run, 0, sizeof *run);
    run->state = state;
    run->call.op = op;
    run->call.client = state->client;
    run->call.deadline_ns = deadline_ns;
    if (name != NULL) {
        memcpy(run->call.name, name, name_len < DL_NAME_MAX ? name_len : DL_NAME_MAX);
    }
}

void fault_note(fault_run_t *run, fault_state_t *state, ct_op_t op, const char *name, size_t name_len,
                uint64_t deadline_ns) {
    fill(run, state, op, name, name_len, deadline_ns);
    fault_check_op(state, 1);
    record(run);
}

void fault_begin(fault_run_t *run, fault_state_t *state, ct_op_t op, const char *name, size_t name_len,
                 uint64_t deadline_ns) {
    fault_note(run, state, op, name, name_len, deadline_ns);
    fault_enter(run);
}

int fault_is_hooked(const fault_run_t *run) {
    int found = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < hook_count && !found; i++) {
        found = hooks[i].op == run->call.op && call_matches(&run->call, FAULT_ANY_CLIENT, hooks[i].name);
    }
    for (const ct_pause_t *p = pauses; p != NULL && !found; p = p->next) {
        found = !p->arrived && p->op == run->call.op && call_matches(&run->call, p->client, p->name);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

int fault_is_plain(const fault_run_t *run) {
    return run->fault.mode == 0 && !fault_is_hooked(run);
}

void fault_note_request(fault_run_t *run, fault_state_t *state, ct_op_t op, const dl_request_t *request) {
    fill(run, state, op, request->name, request->name_len, request->deadline_ns);
    set_text(run->call.owner, sizeof run->call.owner, request->owner);
    run->call.hold_id = request->hold_id;
    run->call.level = request->level;
    run->call.lease_ms = request->lease_ms;
    run->call.token_floor = request->token_floor;
    run->call.tokens = request->tokens;
    run->call.wait_ms = request->wait_ms;
    fault_check_op(state, 1);
    fault_check_request(run, request);
    record(run);
}

dl_status_t fault_end(fault_run_t *run, dl_status_t status) {
    run->call.status = status;
    run->call.end_ns = dli_sys->now_ns();
    pthread_mutex_lock(&mutex);
    if (run->record != SIZE_MAX && run->record < record_count) {
        records[run->record] = run->call;
    }
    pthread_mutex_unlock(&mutex);
    run_hooks(run, CT_AFTER);
    stand_at_pauses(&run->call, CT_AFTER);
    fault_check_op(run->state, 0);
    return status;
}

ct_mode_t fault_note_woken(fault_state_t *state, const char *name, size_t name_len, int hears) {
    fault_run_t run;
    fill(&run, state, CT_OP_WOKEN, name, name_len, DL_NO_DEADLINE);
    run.call.begin_ns = run.call.end_ns = dli_sys->now_ns();
    pthread_mutex_lock(&mutex);
    choose_fault(&run);
    run.call.status = hears != 0 && run.fault.mode != CT_FAIL_BEFORE ? DL_OK : DL_EIO;
    keep_record(&run);
    pthread_mutex_unlock(&mutex);
    return run.fault.mode;
}

void fault_each_record(int (*fn)(const ct_call_t *call, void *arg), void *arg) {
    pthread_mutex_lock(&mutex);
    for (size_t i = record_count; i > 0 && fn(&records[i - 1], arg) == 0; i--) {}
    pthread_mutex_unlock(&mutex);
}

/* ---- what cases call -------------------------------------------------------------------------------- */

static int fits(ct_op_t op, ct_mode_t mode) {
    return op == CT_OP_WATCH   ? mode == CT_FAIL_BEFORE || mode == CT_NEVER
           : op == CT_OP_WOKEN ? mode == CT_FAIL_BEFORE || mode == CT_LOSE_REPLY
                               : op != CT_OP_LISTEN;
}

int ct_fault_add(ct_t *ct, const ct_fault_t *fault) {
    CT_CHECKF(fits(fault->op, fault->mode), "no fault %d of op %d", (int)fault->mode, (int)fault->op);
    pthread_mutex_lock(&mutex);
    if (fault_count == fault_room) {
        fault_room = fault_room == 0 ? 16 : fault_room * 2;
        faults = alloc_real_again(faults, (size_t)fault_room * sizeof *faults);
    }
    int index = fault_count++;
    planned_t *p = &faults[index];
    memset(p, 0, sizeof *p);
    p->fault = *fault;
    p->fault.count = fault->count == 0 ? 1 : fault->count;
    set_text(p->name, sizeof p->name, fault->name);
    p->client = fault_number_of(fault->client);
    pthread_mutex_unlock(&mutex);
    return index;
}

int ct_fault(ct_t *ct, ct_op_t op, ct_mode_t mode, int count) {
    CT_CHECKF(mode != CT_ANSWER && mode != CT_LATE && mode != CT_LATE_REPLY, "this mode needs ct_fault_add");
    ct_fault_t fault = {.op = op, .mode = mode, .count = count};
    return ct_fault_add(ct, &fault);
}

void ct_fault_end(ct_t *ct, int fault) {
    (void)ct;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < fault_count; i++) {
        if (fault == -1 || fault == i) {
            faults[i].ended = 1;
        }
    }
    pthread_mutex_unlock(&mutex);
}

int ct_fault_hits(ct_t *ct, int fault) {
    pthread_mutex_lock(&mutex);
    int hits = fault >= 0 && fault < fault_count ? faults[fault].hits : -1;
    pthread_mutex_unlock(&mutex);
    CT_GE(hits, 0);
    return hits;
}

int ct_calls_of(ct_t *ct, ct_op_t op, dl_client_t *client, const char *name) {
    int wanted = fault_number_of(client);
    const char *text = name == NULL ? "" : name;
    pthread_mutex_lock(&mutex);
    int count = wanted == FAULT_ANY_CLIENT && text[0] == 0 ? op_counts[op] : 0;
    int scan = count == 0, full = record_count == RECORD_MAX;
    for (size_t i = 0; scan && i < record_count; i++) {
        count += records[i].op == op && call_matches(&records[i], wanted, text);
    }
    pthread_mutex_unlock(&mutex);
    CT_CHECKF(!scan || !full, "more calls than the record keeps");
    return count;
}

int ct_calls(ct_t *ct, ct_op_t op) {
    return ct_calls_of(ct, op, NULL, NULL);
}

ct_call_t ct_call(ct_t *ct, ct_op_t op, int n) {
    pthread_mutex_lock(&mutex);
    int left = n >= 0 ? n : op_counts[op] + n;
    int found = 0;
    ct_call_t call;
    memset(&call, 0, sizeof call);
    for (size_t i = 0; i < record_count && left >= 0 && !found; i++) {
        if (records[i].op == op && left-- == 0) {
            call = records[i];
            found = 1;
        }
    }
    pthread_mutex_unlock(&mutex);
    CT_CHECKF(found, "call %d of op %d was not made, or is not kept", n, (int)op);
    return call;
}

void ct_hook(ct_t *ct, ct_op_t op, ct_when_t when, const char *name, ct_hook_fn fn, void *arg) {
    pthread_mutex_lock(&mutex);
    int full = fn != NULL && hook_count == HOOKS_MAX;
    if (fn == NULL) {
        int kept = 0;
        for (int i = 0; i < hook_count; i++) {
            if (hooks[i].op != op || hooks[i].when != when) {
                hooks[kept++] = hooks[i];
            }
        }
        hook_count = kept;
    } else if (!full) {
        hook_t *h = &hooks[hook_count++];
        *h = (hook_t){.op = op, .when = when, .fn = fn, .arg = arg, .ct = ct};
        set_text(h->name, sizeof h->name, name);
    }
    pthread_mutex_unlock(&mutex);
    CT_CHECKF(!full, "more than %d hooks in one case", HOOKS_MAX);
}

void ct_listener_leaves(ct_t *ct, dl_client_t *client) {
    (void)ct;
    fault_check_left(fault_state_of(fault_number_of(client)));
}

void ct_hook_leaves(ct_t *ct) {
    (void)ct;
    end_hooks(hooks_here);
    fault_check_op(hooked, 0);
}

void ct_hooks_end(ct_t *ct) {
    (void)ct;
    pthread_mutex_lock(&mutex);
    make_cond();
    hook_count = 0;
    while (hooks_running > 0) {
        dli_sys->cond_wait(&changed, &mutex, DLI_NEVER);
    }
    pthread_mutex_unlock(&mutex);
}

ct_pause_t *ct_pause(ct_t *ct, ct_op_t op, ct_when_t when, dl_client_t *client, const char *name) {
    ct_pause_t *p = alloc_real(sizeof *p);
    p->op = op;
    p->when = when;
    p->client = fault_number_of(client);
    p->of_caller = op == CT_OP_LISTEN && ct->door == CT_DOOR_BLOCKING;
    set_text(p->name, sizeof p->name, name);
    pthread_mutex_lock(&mutex);
    make_cond();
    p->next = pauses;
    pauses = p;
    pthread_mutex_unlock(&mutex);
    return p;
}

void ct_pause_await(ct_t *ct, ct_pause_t *pause, int64_t within_ms) {
    int64_t until_ms = ct_ran_ms(ct) + within_ms, left_ms;
    pthread_mutex_lock(&mutex);
    while (!pause->arrived && (left_ms = until_ms - ct_ran_ms(ct)) > 0) {
        dli_sys->cond_wait(&changed, &mutex, dli_sys->now_ns() + (uint64_t)left_ms * DLI_NS_PER_MS);
    }
    int arrived = pause->arrived;
    pthread_mutex_unlock(&mutex);
    CT_CHECKF(arrived, "no call came to the pause (op %d) within %lld ms", (int)pause->op,
              (long long)within_ms);
}

void ct_pause_go(ct_t *ct, ct_pause_t *pause) {
    (void)ct;
    pthread_mutex_lock(&mutex);
    pause->gone = 1;
    pause->arrived = 1; /* one that nobody reached catches nobody any more */
    dli_sys->cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}
