/* stopped_cases.c - contract: threads that are stopped in a call, or leave it by a jump, hold up nobody. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "callers.h"
#include "core/core.h"

/* Far longer than any wait here: who does not hear of a release is found out. */
#define LONG_LEASE_MS 60000
#define NEVER_POLLS "backoff_min: 60s\nbackoff_max: 60s"
/* Longer than it takes to see that a thread sleeps. */
#define POLLS_SELDOM "backoff_min: 1s\nbackoff_max: 1s"
/* Somebody is late by a second, and is looked at a second later. */
#define SOON_MS 8000

/* ---- a thread that is stopped ----------------------------------------------------------------- */

static int stop_pipe[2];
static atomic_int stopped;

static void stand_still(void) {
    char go;
    atomic_store(&stopped, 1);
    while (read(stop_pipe[0], &go, 1) < 0) {}
}

/* The real table, but a signal finds out whether this thread sleeps in a call and does nothing but that: its
 * time may just have been over, and then it may have a mutex, or ask the server. */
static dli_sys_t marks;
static _Thread_local volatile sig_atomic_t sleeps_here;

static int poll_marked(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    sleeps_here = 1;
    int rc = dli_sys_real.poll(fds, n, deadline_ns);
    sleeps_here = 0;
    return rc;
}

static void wait_marked(atomic_uint *word, uint64_t deadline_ns) {
    sleeps_here = 1;
    dli_sys_real.word_wait(word, deadline_ns);
    sleeps_here = 0;
}

static int only_sleeps(void) {
    return sleeps_here && !asks_here;
}

static void stop_a_sleeper(int number) {
    (void)number;
    if (only_sleeps()) {
        stand_still();
    }
}

/* Threads of cases are started with all signals blocked. */
static void hear_signals(ct_t *ct) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CT_EQ(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
}

static void end_signals(void) {
    close(stop_pipe[0]);
    close(stop_pipe[1]);
}

/* Before clients are opened. */
static void on_signal(ct_t *ct, void (*handler)(int)) {
    marks = dli_sys_real;
    marks.poll = poll_marked;
    marks.word_wait = wait_marked;
    dli_sys = &marks;
    mark_asking(ct);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    CT_EQ(sigaction(SIGUSR2, &action, NULL), 0);
    CT_EQ(pipe(stop_pipe), 0);
}

/* A caller whose thread is known. */
typedef struct known {
    caller_t caller;
    pthread_t thread;
    pid_t tid;
    ct_latch_t *began;
} known_t;

static void run_known(ct_t *ct, void *arg) {
    known_t *k = arg;
    k->thread = pthread_self();
    k->tid = gettid();
    hear_signals(ct);
    ct_latch_down(ct, k->began);
    run_caller(ct, &k->caller);
}

static void start_known(ct_t *ct, known_t *k, dl_lock_t *lock) {
    *k = (known_t){.caller = CALLER(lock, DL_WAIT_FOREVER), .began = ct_latch(ct, 1)};
    k->caller.thread = ct_thread(ct, run_known, k);
    ct_latch_wait(ct, k->began, 5000);
}

/* How often this thread had slept before it fell asleep; negative: it is awake, be it without a processor. */
static long sleeps_of(ct_t *ct, pid_t tid) {
    char path[64], line[128], state = 0;
    long sleeps = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)tid);
    FILE *file = fopen(path, "re");
    CT_CHECKF(file != NULL, "no %s", path);
    while (sleeps < 0 && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "State: %c", &state);
        (void)sscanf(line, "voluntary_ctxt_switches: %ld", &sleeps);
    }
    fclose(file);
    return state == 'S' ? sleeps : -1;
}

/* Its call does nothing but sleep: the driver's own mutexes are nobody's. */
static void await_sleep(ct_t *ct, pid_t tid) {
    long slept;
    do {
        slept = sleeps_of(ct, tid);
        ct_sleep_ms(ct, 100);
    } while (slept < 0 || sleeps_of(ct, tid) != slept);
}

static void await_asleep(ct_t *ct, dl_client_t *client, const char *name, pid_t tid) {
    if (ct_caps(ct) & DL_CAP_NOTIFY) {
        ct_await_hearing(ct, client, name, 5000);
    }
    await_sleep(ct, tid);
}

static void stop_thread(ct_t *ct, const known_t *k) {
    for (int i = 0; !atomic_load(&stopped); i++) {
        CT_LT(i, 500);
        CT_EQ(pthread_kill(k->thread, SIGUSR2), 0);
        ct_sleep_ms(ct, 10);
    }
}

static void let_go(ct_t *ct) {
    CT_EQ(write(stop_pipe[1], "g", 1), 1);
}

/* Its turn comes by an unlock that passes the lock on; and as it does not come for it, the next one has it.
 */
CT_CASE(stopped, a_lock_that_is_passed_to_it_goes_on_to_the_next, .traits = CT_REAL_TIME | CT_BLOCKING) {
    on_signal(ct, stop_a_sleeper);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, "lease: 30s");
    dl_lock_t *held = ct_lock(ct, a, "passed"), *wanted = ct_lock(ct, b, "passed");
    take(ct, held, LONG_LEASE_MS);
    caller_t first = CALLER(wanted, DL_WAIT_FOREVER), third = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &first);
    ct_await_waiting(ct, b, 1, 5000);
    known_t second;
    start_known(ct, &second, wanted);
    ct_await_waiting(ct, b, 2, 5000);
    start_caller(ct, &third);
    ct_await_waiting(ct, b, 3, 5000);
    stop_thread(ct, &second);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT(ct_thread_done(ct, third.thread), SOON_MS);
    end_caller(ct, &first, DL_OK);
    end_caller(ct, &third, DL_OK);
    let_go(ct);
    end_caller(ct, &second.caller, DL_OK);
    ct_expect_free(ct, "passed", ct_tolerance_ms(ct));
    end_signals();
}

CT_CASE(stopped, a_lock_that_is_passed_to_it_is_freed_where_nobody_else_is,
        .traits = CT_REAL_TIME | CT_BLOCKING) {
    on_signal(ct, stop_a_sleeper);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, "lease: 30s");
    dl_lock_t *held = ct_lock(ct, a, "passed"), *wanted = ct_lock(ct, b, "passed");
    take(ct, held, LONG_LEASE_MS);
    caller_t first = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &first);
    ct_await_waiting(ct, b, 1, 5000);
    known_t second;
    start_known(ct, &second, wanted);
    ct_await_waiting(ct, b, 2, 5000);
    stop_thread(ct, &second);
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &first, DL_OK);
    CT_OK(dl_trylock_for(held, SOON_MS, DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(held, CT_ERR));
    let_go(ct);
    end_caller(ct, &second.caller, DL_OK);
    ct_expect_free(ct, "passed", ct_tolerance_ms(ct));
    end_signals();
}

CT_CASE(stopped, who_listens_is_replaced, .needs = DL_CAP_NOTIFY, .traits = CT_REAL_TIME | CT_BLOCKING) {
    on_signal(ct, stop_a_sleeper);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NEVER_POLLS);
    dl_lock_t *first = ct_lock(ct, a, "first"), *second = ct_lock(ct, a, "second");
    take(ct, first, LONG_LEASE_MS);
    take(ct, second, LONG_LEASE_MS);
    known_t listener;
    start_known(ct, &listener, ct_lock(ct, b, "first"));
    await_asleep(ct, b, "first", listener.tid);
    stop_thread(ct, &listener);
    caller_t other = CALLER(ct_lock(ct, b, "second"), DL_WAIT_FOREVER);
    start_caller(ct, &other);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_WATCH, b, "second"), ==, 1, 5000);
    CT_OK(dl_unlock(second, CT_ERR));
    CT_AWAIT(ct_thread_done(ct, other.thread), SOON_MS);
    end_caller(ct, &other, DL_OK);
    let_go(ct);
    CT_OK(dl_unlock(first, CT_ERR));
    end_caller(ct, &listener.caller, DL_OK);
    end_signals();
}

/* What is left unread is the answer to a renewal, and nobody else waits. The lease is over before whoever
 * only listens counts as late. */
static void keep_a_hold(ct_t *ct, int listens) {
    on_signal(ct, stop_a_sleeper);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NEVER_POLLS "\nlease: 900ms");
    dl_lock_t *first = ct_lock(ct, a, "first"), *second = ct_lock(ct, a, "second"),
              *kept = ct_lock(ct, b, "kept");
    take(ct, first, LONG_LEASE_MS);
    take(ct, second, LONG_LEASE_MS);
    caller_t listener = CALLER(ct_lock(ct, b, "second"), DL_WAIT_FOREVER);
    if (!listens) { /* another does, and leaves it to the one that is stopped */
        start_caller(ct, &listener);
        ct_await_waiting(ct, b, 1, 5000);
        ct_await_hearing(ct, b, "second", 5000);
    }
    CT_OK(dl_lock(kept, CT_ERR));
    known_t stands;
    start_known(ct, &stands, ct_lock(ct, b, "first"));
    await_asleep(ct, b, "first", stands.tid);
    stop_thread(ct, &stands);
    CT_OK(dl_unlock(second, CT_ERR));
    if (!listens) {
        end_caller(ct, &listener, DL_OK);
    }
    uint64_t renewed = ct_stats(ct, b).renewed;
    CT_AWAIT(ct_stats(ct, b).renewed > renewed + 4 || dl_valid_ms(kept) == 0, SOON_MS);
    CT_GT(dl_valid_ms(kept), 0);
    CT_OK(dl_unlock(kept, CT_ERR));
    let_go(ct);
    CT_OK(dl_unlock(first, CT_ERR));
    end_caller(ct, &stands.caller, DL_OK);
    end_signals();
}

CT_CASE(stopped, who_listens_costs_no_hold, .needs = DL_CAP_NOTIFY, .traits = CT_REAL_TIME | CT_BLOCKING) {
    keep_a_hold(ct, 1);
}

CT_CASE(stopped, who_is_to_listen_next_costs_no_hold, .needs = DL_CAP_NOTIFY,
        .traits = CT_REAL_TIME | CT_BLOCKING) {
    keep_a_hold(ct, 0);
}

CT_CASE(stopped, while_it_waits_it_passes_its_turn, .needs_not = DL_CAP_NATIVE_WAIT,
        .traits = CT_REAL_TIME | CT_BLOCKING) {
    on_signal(ct, stop_a_sleeper);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, POLLS_SELDOM);
    dl_lock_t *held = ct_lock(ct, a, "wanted");
    take(ct, held, LONG_LEASE_MS);
    known_t head;
    start_known(ct, &head, ct_lock(ct, b, "wanted"));
    await_asleep(ct, b, "wanted", head.tid);
    stop_thread(ct, &head);
    caller_t next = CALLER(ct_lock(ct, b, "wanted"), DL_WAIT_FOREVER);
    next.keep = ct_latch(ct, 1);
    start_caller(ct, &next);
    ct_await_waiting(ct, b, 2, 5000);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, b).acquired, ==, 1, SOON_MS);
    let_go(ct); /* it queues anew */
    ct_await_waiting(ct, b, 1, 5000);
    ct_latch_down(ct, next.keep);
    end_caller(ct, &next, DL_OK);
    end_caller(ct, &head.caller, DL_OK);
    end_signals();
}

/* ---- one that is stopped while it asks the server ---------------------------------------------- */

/* It is stopped at its try; then another of its BRIEF client has the lock, and keeps it. */
static ct_pause_t *overtake(ct_t *ct, dl_client_t *c, caller_t *head, caller_t *next, ct_when_t when) {
    *head = (caller_t)CALLER(ct_lock(ct, c, "asked"), DL_WAIT_FOREVER);
    *next = (caller_t)CALLER(ct_lock(ct, c, "asked"), DL_WAIT_FOREVER);
    next->keep = ct_latch(ct, 1);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, when, c, "asked");
    start_caller(ct, head);
    ct_pause_await(ct, pause, 5000);
    start_caller(ct, next);
    int64_t lease_ms = when == CT_AFTER ? ct_server_lease_ms(ct, BRIEF_MS) : 0;
    CT_AWAIT_THAT(ct_stats(ct, c).acquired, ==, 1, ct_call_timeout_ms(ct) + lease_ms + SOON_MS);
    return pause;
}

/* The others look after the lock by themselves meanwhile, and by that watch once it is there. */
CT_CASE(stopped, while_it_begins_to_watch_it_passes_its_turn, .needs = DL_CAP_NOTIFY, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, NULL), *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "watched");
    caller_t head = CALLER(ct_lock(ct, c, "watched"), DL_WAIT_FOREVER), next = head, third = head;
    take(ct, held, LONG_LEASE_MS);
    ct_pause_t *pause = ct_pause(ct, CT_OP_WATCH, CT_BEFORE, c, "watched");
    start_caller(ct, &head);
    ct_pause_await(ct, pause, 5000);
    start_caller(ct, &next);
    ct_await_waiting(ct, c, 2, 5000);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT(ct_thread_done(ct, next.thread), ct_call_timeout_ms(ct) + SOON_MS);
    end_caller(ct, &next, DL_OK);
    take(ct, held, LONG_LEASE_MS);
    start_caller(ct, &third);
    ct_await_waiting(ct, c, 2, 5000);
    ct_pause_go(ct, pause);
    ct_await_hearing(ct, c, "watched", 5000);
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &head, DL_OK);
    end_caller(ct, &third, DL_OK);
    CT_EQ(ct_calls_of(ct, CT_OP_WATCH, c, "watched"), 1);
}

/* The late yes is nobody's, and the one who has it keeps it. */
static void end_overtaken(ct_t *ct, dl_client_t *c, caller_t *head, caller_t *next, ct_pause_t *pause) {
    ct_pause_go(ct, pause);
    CT_AWAIT_THAT(ct_stats(ct, c).waiting_now, ==, 1, 5000);
    ct_sleep_ms(ct, ct_call_timeout_ms(ct));
    CT_EQ(ct_stats(ct, c).held_now, 1);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_EQ(head->ended_ms, 0);
    ct_latch_down(ct, next->keep);
    end_caller(ct, next, DL_OK);
    end_caller(ct, head, DL_OK);
}

CT_CASE(stopped, before_its_request_it_passes_its_turn, .needs = DL_CAP_LEASE, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, BRIEF);
    caller_t head, next;
    ct_pause_t *pause = overtake(ct, c, &head, &next, CT_BEFORE);
    end_overtaken(ct, c, &head, &next, pause);
}

CT_CASE(stopped, after_the_yes_it_passes_its_turn, .needs = DL_CAP_LEASE, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, BRIEF);
    caller_t head, next;
    ct_pause_t *pause = overtake(ct, c, &head, &next, CT_AFTER);
    end_overtaken(ct, c, &head, &next, pause);
}

CT_CASE(stopped, its_late_yes_is_nobodys, .needs = DL_CAP_LEASE, .traits = CT_VIRTUAL | CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, BRIEF);
    caller_t head, next, third = CALLER(ct_lock(ct, c, "asked"), DL_WAIT_FOREVER);
    ct_pause_t *late = overtake(ct, c, &head, &next, CT_BEFORE);
    ct_latch_down(ct, next.keep);
    end_caller(ct, &next, DL_OK);
    ct_pause_t *active = ct_pause(ct, CT_OP_TRY, CT_BEFORE, c, "asked");
    start_caller(ct, &third);
    ct_pause_await(ct, active, 5000);
    /* A real driver would not send what is so late. */
    int freed = ct_calls(ct, CT_OP_RELEASE);
    ct_pause_go(ct, late);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), >, freed, ct_call_timeout_ms(ct) + 5000);
    CT_EQ(ct_stats(ct, c).acquired, 1);
    ct_pause_go(ct, active);
    end_caller(ct, &third, DL_OK);
    end_caller(ct, &head, DL_OK);
}

CT_CASE(stopped, in_its_unlock_it_is_waited_for_no_longer_than_its_lease, .needs = DL_CAP_LEASE,
        .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    caller_t head = CALLER(ct_lock(ct, c, "left"), DL_WAIT_FOREVER);
    caller_t next = CALLER(ct_lock(ct, c, "left"), DL_WAIT_FOREVER);
    next.keep = ct_latch(ct, 1);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RELEASE, CT_BEFORE, c, "left");
    start_caller(ct, &head);
    ct_pause_await(ct, pause, 5000);
    start_caller(ct, &next);
    CT_AWAIT_THAT(ct_stats(ct, c).acquired, ==, 2, ct_server_lease_ms(ct, ct_lease_ms(ct)) + SOON_MS);
    ct_pause_go(ct, pause);
    ct_join(ct, head.thread);
    CT_EQ(head.status, DL_OK);
    CT_CHECKF(head.unlocked != DL_OK, "what it has not freed any more was unlocked");
    ct_expect_held(ct, "left");
    CT_EQ(ct_stats(ct, c).held_now, 1);
    ct_latch_down(ct, next.keep);
    end_caller(ct, &next, DL_OK);
}

CT_CASE(stopped, its_turn_passes_to_those_who_only_try, .needs = DL_CAP_LEASE, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    static const struct {
        ct_op_t op;
        const char *name;
    } where[] = {{CT_OP_TRY, "tried"}, {CT_OP_RELEASE, "tried too"}};
    dl_client_t *c = ct_open(ct, NULL);
    for (size_t i = 0; i < sizeof where / sizeof where[0]; i++) {
        dl_lock_t *lock = ct_lock(ct, c, where[i].name);
        caller_t head = CALLER(ct_lock(ct, c, where[i].name), DL_WAIT_FOREVER);
        ct_pause_t *pause = ct_pause(ct, where[i].op, CT_BEFORE, c, where[i].name);
        start_caller(ct, &head);
        ct_pause_await(ct, pause, 5000);
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
        CT_AWAIT_THAT(dl_trylock(lock, NULL), ==, DL_OK,
                      ct_call_timeout_ms(ct) + ct_server_lease_ms(ct, ct_lease_ms(ct)) + SOON_MS);
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_pause_go(ct, pause);
        ct_join(ct, head.thread);
        CT_EQ(head.status, DL_OK);
    }
}

/* Renewals whose answers are lost make the server keep it for longer than the client knows. */
CT_CASE(stopped, what_its_unlock_did_not_free_is_freed, .needs = DL_CAP_LEASE,
        .traits = CT_VIRTUAL | CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "left");
    caller_t head = CALLER(lock, DL_WAIT_FOREVER), next = CALLER(ct_lock(ct, c, "left"), DL_WAIT_FOREVER);
    head.keep = ct_latch(ct, 1);
    next.keep = ct_latch(ct, 1);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RELEASE, CT_BEFORE, c, "left");
    ct_fault(ct, CT_OP_RENEW, CT_LOSE_REPLY, -1);
    start_caller(ct, &head);
    ct_sleep_ms(ct, ct_lease_ms(ct) * 9 / 10);
    ct_latch_down(ct, head.keep);
    ct_pause_await(ct, pause, 5000);
    start_caller(ct, &next);
    CT_AWAIT_THAT(ct_stats(ct, c).acquired, ==, 2, ct_lease_ms(ct) / 10 + SOON_MS);
    ct_pause_go(ct, pause);
    ct_join(ct, head.thread);
    ct_latch_down(ct, next.keep);
    end_caller(ct, &next, DL_OK);
    ct_expect_free(ct, "left", ct_tolerance_ms(ct));
}

/* Of handles, claims and holds. */
static unsigned references(dl_client_t *client, const char *name) {
    dli_lock_client(client);
    unsigned refs = dli_gate_find_name(client, name, strlen(name))->refs;
    dli_unlock_client(client);
    return refs;
}

/* Its claim and its hold go, and it is one level more. */
CT_CASE(stopped, late_it_enters_what_its_owner_has_meanwhile, .needs = DL_CAP_LEASE, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    caller_t head = CALLER(ct_lock_owned(ct, c, "shared", 7), DL_WAIT_FOREVER);
    caller_t next = CALLER(ct_lock_owned(ct, c, "shared", 7), DL_WAIT_FOREVER);
    head.keep = ct_latch(ct, 1);
    next.keep = ct_latch(ct, 1);
    unsigned refs = references(c, "shared");
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, c, "shared");
    start_caller(ct, &head);
    ct_pause_await(ct, pause, 5000);
    start_caller(ct, &next);
    CT_AWAIT_THAT(ct_stats(ct, c).acquired, ==, 1, ct_call_timeout_ms(ct) + SOON_MS);
    ct_pause_go(ct, pause);
    CT_AWAIT_THAT(ct_stats(ct, c).reentered, ==, 1, ct_call_timeout_ms(ct) + SOON_MS);
    CT_EQ(dl_hold_count(head.lock), 2);
    ct_latch_down(ct, head.keep);
    ct_latch_down(ct, next.keep);
    end_caller(ct, &head, DL_OK);
    end_caller(ct, &next, DL_OK);
    CT_EQ(ct_stats(ct, c).held_now, 0);
    ct_expect_free(ct, "shared", ct_tolerance_ms(ct));
    CT_AWAIT_THAT(references(c, "shared"), ==, refs, 5000);
}

CT_CASE(stopped, its_patience_begins_anew, .needs = DL_CAP_LEASE, .traits = CT_BLOCKING | CT_VIRTUAL,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, "pass: false");
    caller_t head = CALLER(ct_lock(ct, c, "asked"), DL_WAIT_FOREVER);
    caller_t next = CALLER(ct_lock(ct, c, "asked"), DL_WAIT_FOREVER);
    next.keep = ct_latch(ct, 1);
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 1);
    ct_pause_t *failed = ct_pause(ct, CT_OP_TRY, CT_AFTER, c, "asked");
    start_caller(ct, &head);
    ct_pause_await(ct, failed, 5000);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, c, "asked");
    ct_pause_go(ct, failed);
    ct_pause_await(ct, pause, 5000);
    start_caller(ct, &next);
    CT_AWAIT_THAT(ct_stats(ct, c).acquired, ==, 1, ct_call_timeout_ms(ct) + SOON_MS);
    ct_pause_t *late = ct_pause(ct, CT_OP_TRY, CT_AFTER, c, "asked");
    ct_pause_go(ct, pause);
    ct_pause_await(ct, late, 5000);
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 1); /* which is new trouble, and worth another try */
    ct_pause_go(ct, late);
    ct_latch_down(ct, next.keep);
    end_caller(ct, &next, DL_OK);
    end_caller(ct, &head, DL_OK);
}

/* ---- one that is stopped as it wakes others ----------------------------------------------------- */

static dli_sys_t stalls; /* the real one, but for this thread's next wake */
static _Thread_local int stalls_here;

static void wake_late(atomic_uint *word) {
    if (stalls_here) {
        stalls_here = 0;
        stand_still();
    }
    dli_sys_real.word_wake(word);
}

typedef struct stopped_unlock {
    dl_lock_t *lock;
    ct_latch_t *held, *go;
} stopped_unlock_t;

static void unlock_and_stall(ct_t *ct, void *arg) {
    stopped_unlock_t *u = arg;
    CT_OK(dl_lock(u->lock, CT_ERR));
    ct_latch_down(ct, u->held);
    ct_latch_wait(ct, u->go, KEEP_MS);
    stalls_here = 1;
    CT_OK(dl_unlock(u->lock, CT_ERR));
}

/* Its unlock tells the next that it is its turn, and it stops between the mutex and the wake. */
static void stop_before_the_wake(ct_t *ct, int waiters) {
    stalls = dli_sys_real;
    stalls.word_wake = wake_late;
    dli_sys = &stalls;
    CT_EQ(pipe(stop_pipe), 0);
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "woken");
    stopped_unlock_t u = {.lock = lock, .held = ct_latch(ct, 1), .go = ct_latch(ct, 1)};
    ct_thread_t *thread = ct_thread(ct, unlock_and_stall, &u);
    ct_latch_wait(ct, u.held, 5000);
    known_t known[2];
    for (int i = 0; i < waiters; i++) {
        start_known(ct, &known[i], lock);
        ct_await_waiting(ct, c, i + 1, 5000);
    }
    for (int i = 0; i < waiters; i++) {
        await_sleep(ct, known[i].tid);
    }
    ct_latch_down(ct, u.go);
    CT_AWAIT(atomic_load(&stopped), 5000);
    CT_AWAIT(ct_thread_done(ct, known[0].caller.thread), SOON_MS);
    for (int i = 0; i < waiters; i++) {
        end_caller(ct, &known[i].caller, DL_OK);
    }
    let_go(ct);
    ct_join(ct, thread);
    ct_expect_free(ct, "woken", ct_tolerance_ms(ct));
    end_signals();
}

CT_CASE(stopped, before_it_wakes_another_it_costs_nobody_the_wake, .traits = CT_REAL_TIME | CT_BLOCKING) {
    stop_before_the_wake(ct, 2);
}

CT_CASE(stopped, before_it_wakes_the_last_it_does_not_cost_him_the_wake,
        .traits = CT_REAL_TIME | CT_BLOCKING) {
    stop_before_the_wake(ct, 1);
}

/* ---- one that jumps --------------------------------------------------------------------------- */

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t may_jump;

static void jump(int number) {
    if (may_jump && only_sleeps()) {
        may_jump = 0;
        sleeps_here = 0;
        siglongjmp(back, number);
    }
}

typedef enum then { CALLS_AGAIN, ENDS, STAYS_AWAY } then_t;

typedef struct jumper {
    dl_client_t *client;
    dl_lock_t *lock, *other;
    pthread_t thread;
    pid_t tid;
    ct_latch_t *began, *left, *jumped, *may_end; /* left: the call; jumped: and done what it does at once */
    then_t then;
} jumper_t;

/* Its jump leaves a wait for ever. */
static void wait_and_jump(ct_t *ct, void *arg) {
    jumper_t *j = arg;
    j->thread = pthread_self();
    j->tid = gettid();
    hear_signals(ct);
    if (sigsetjmp(back, 1) == 0) {
        ct_latch_down(ct, j->began);
        may_jump = 1;
        CT_OK(dl_lock(j->lock, CT_ERR));
        CT_CHECKF(0, "the lock was had before the jump");
    }
    ct_listener_leaves(ct, j->client);
    ct_latch_down(ct, j->left);
    if (j->then == CALLS_AGAIN) {
        CT_OK(dl_lock(j->other, CT_ERR));
        CT_OK(dl_unlock(j->other, CT_ERR));
    }
    ct_latch_down(ct, j->jumped);
    if (j->then != ENDS) {
        ct_latch_wait(ct, j->may_end, KEEP_MS);
    }
    if (j->then == CALLS_AGAIN) {
        CT_OK(dl_lock(j->lock, CT_ERR));
        CT_OK(dl_unlock(j->lock, CT_ERR));
    }
}

static void let_jump(ct_t *ct, const jumper_t *j) {
    for (int i = 0; !ct_latch_open(ct, j->left); i++) {
        CT_LT(i, 500);
        CT_EQ(pthread_kill(j->thread, SIGUSR2), 0);
        ct_sleep_ms(ct, 10);
    }
    ct_latch_wait(ct, j->jumped, 10000);
}

/* Another of its client stands behind it, and gets the lock once that is free. */
static void jump_out_of_a_wait(ct_t *ct, then_t then) {
    on_signal(ct, jump);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, POLLS_SELDOM);
    dl_lock_t *held = ct_lock(ct, a, "left");
    take(ct, held, LONG_LEASE_MS);
    jumper_t j = {
        .client = b, .lock = ct_lock(ct, b, "left"), .other = ct_lock(ct, b, "other"), .then = then};
    j.began = ct_latch(ct, 1);
    j.left = ct_latch(ct, 1);
    j.jumped = ct_latch(ct, 1);
    j.may_end = ct_latch(ct, 1);
    ct_thread_t *thread = ct_thread(ct, wait_and_jump, &j);
    ct_latch_wait(ct, j.began, 5000);
    ct_await_waiting(ct, b, 1, 5000);
    caller_t next = CALLER(ct_lock(ct, b, "left"), DL_WAIT_FOREVER);
    start_caller(ct, &next);
    ct_await_waiting(ct, b, 2, 5000);
    await_asleep(ct, b, "left", j.tid);
    let_jump(ct, &j);
    if (then == ENDS) {
        ct_join(ct, thread);
    }
    if (then != STAYS_AWAY) {
        CT_EQ(ct_stats(ct, b).waiting_now, 1);
    }
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT(ct_thread_done(ct, next.thread), SOON_MS);
    end_caller(ct, &next, DL_OK);
    ct_latch_down(ct, j.may_end);
    if (then != ENDS) {
        ct_join(ct, thread);
    }
    CT_EQ(ct_stats(ct, b).waiting_now, 0);
    ct_expect_free(ct, "left", ct_tolerance_ms(ct));
    end_signals();
}

#define JUMPS .needs_not = DL_CAP_NATIVE_WAIT, .traits = CT_REAL_TIME | CT_BLOCKING

CT_CASE(stopped, one_that_left_by_a_jump_calls_again, JUMPS) {
    jump_out_of_a_wait(ct, CALLS_AGAIN);
}

CT_CASE(stopped, one_that_left_by_a_jump_ends, JUMPS) {
    jump_out_of_a_wait(ct, ENDS);
}

CT_CASE(stopped, one_that_left_by_a_jump_stays_away, JUMPS) {
    jump_out_of_a_wait(ct, STAYS_AWAY);
}

/* Its jump leaves an unlock that stands behind a ping. What that leaves undone, its next call does not do. */
static void unlock_and_jump(ct_t *ct, void *arg) {
    jumper_t *j = arg;
    j->thread = pthread_self();
    hear_signals(ct);
    CT_OK(dl_lock(j->lock, CT_ERR));
    ct_latch_down(ct, j->began);
    ct_latch_wait(ct, j->jumped, KEEP_MS);
    if (sigsetjmp(back, 1) == 0) {
        may_jump = 1;
        (void)dl_unlock(j->lock, CT_ERR);
        CT_CHECKF(0, "the unlock had ended before the jump");
    }
    ct_latch_down(ct, j->left);
    ct_latch_wait(ct, j->may_end, KEEP_MS);
    CT_OK(dl_lock(j->other, CT_ERR));
    CT_OK(dl_unlock(j->other, CT_ERR));
}

static int has_idle_claim(dl_client_t *client, const char *name) {
    dli_lock_client(client);
    int is_idle = !dli_gate_find_name(client, name, strlen(name))->current->claim->busy;
    dli_unlock_client(client);
    return is_idle;
}

CT_CASE(stopped, one_that_left_an_unlock_behind_a_ping_by_a_jump_calls_again, .needs = DL_CAP_SESSION,
        .traits = CT_REAL_TIME | CT_BLOCKING) {
    on_signal(ct, jump);
    dl_client_t *c = ct_open(ct, LASTING);
    jumper_t j = {.client = c, .lock = ct_lock(ct, c, "left"), .other = ct_lock(ct, c, "other")};
    j.began = ct_latch(ct, 1);
    j.left = ct_latch(ct, 1);
    j.jumped = ct_latch(ct, 1);
    j.may_end = ct_latch(ct, 1);
    ct_pause_t *ping = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "left");
    ct_pause_t *release = ct_pause(ct, CT_OP_RELEASE, CT_BEFORE, c, "left");
    ct_thread_t *thread = ct_thread(ct, unlock_and_jump, &j);
    ct_latch_wait(ct, j.began, 5000);
    ct_pause_await(ct, ping, 5000);
    ct_latch_down(ct, j.jumped);
    let_jump(ct, &j);
    ct_pause_go(ct, ping);
    CT_AWAIT(has_idle_claim(c, "left"), 5000);
    ct_latch_down(ct, j.may_end);
    ct_pause_await(ct, release, 5000);
    CT_AWAIT(ct_thread_done(ct, thread), SOON_MS);
    ct_pause_go(ct, release);
    ct_join(ct, thread);
    ct_expect_free(ct, "left", SOON_MS);
    ct_close(ct, c);
    end_signals();
}

static void jump_here(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)call;
    ct_hook_leaves(ct);
    siglongjmp(*(sigjmp_buf *)arg, 1);
}

/* What the server has done is made up for. */
CT_CASE(stopped, one_that_left_a_request_by_a_jump_calls_again, .needs = DL_CAP_LEASE, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "left"), *other = ct_lock(ct, c, "other");
    sigjmp_buf here;
    ct_hook(ct, CT_OP_TRY, CT_AFTER, "left", jump_here, &here);
    if (sigsetjmp(here, 1) == 0) {
        (void)dl_lock(lock, CT_ERR);
        CT_CHECKF(0, "no jump");
    }
    ct_hook(ct, CT_OP_TRY, CT_AFTER, NULL, NULL, NULL);
    ct_expect_held(ct, "left");
    CT_OK(dl_lock(other, CT_ERR));
    ct_expect_free(ct, "left", ct_tolerance_ms(ct));
    ct_hook(ct, CT_OP_RELEASE, CT_BEFORE, "other", jump_here, &here);
    if (sigsetjmp(here, 1) == 0) {
        (void)dl_unlock(other, CT_ERR);
        CT_CHECKF(0, "no jump");
    }
    ct_hook(ct, CT_OP_RELEASE, CT_BEFORE, NULL, NULL, NULL);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(dl_hold_count(other), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "other", ct_tolerance_ms(ct));
}

/* In whatever order it left its calls to two clients. */
CT_CASE(stopped, one_that_left_two_clients_by_jumps_calls_and_closes_the_first, .needs = DL_CAP_LEASE,
        .traits = CT_BLOCKING, .traits_not = CT_BACKEND) {
    dl_client_t *clients[2] = {ct_open(ct, NULL), ct_open(ct, NULL)};
    sigjmp_buf here;
    ct_hook(ct, CT_OP_TRY, CT_AFTER, "left", jump_here, &here);
    for (volatile int i = 0; i < 2; i++) {
        dl_lock_t *lock = ct_lock(ct, clients[i], i == 0 ? "left" : "left too");
        if (i == 1) {
            ct_hook(ct, CT_OP_TRY, CT_AFTER, "left too", jump_here, &here);
        }
        if (sigsetjmp(here, 1) == 0) {
            (void)dl_lock(lock, CT_ERR);
            CT_CHECKF(0, "no jump");
        }
    }
    ct_hook(ct, CT_OP_TRY, CT_AFTER, NULL, NULL, NULL);
    dl_lock_t *again = ct_lock(ct, clients[0], "left");
    CT_OK(dl_lock(again, CT_ERR));
    CT_OK(dl_unlock(again, CT_ERR));
    ct_close(ct, clients[0]);
    ct_close(ct, clients[1]);
    ct_expect_free(ct, "left too", ct_tolerance_ms(ct));
}

typedef struct canceller {
    jumper_t jumper;
    dl_cancel_t *cancel;
} canceller_t;

static void wait_with_cancel_and_jump(ct_t *ct, void *arg) {
    canceller_t *c = arg;
    jumper_t *j = &c->jumper;
    j->thread = pthread_self();
    j->tid = gettid();
    hear_signals(ct);
    CT_OK(dl_cancel_new(&c->cancel, CT_ERR));
    if (sigsetjmp(back, 1) == 0) {
        dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
        opts.cancel = c->cancel;
        ct_latch_down(ct, j->began);
        may_jump = 1;
        CT_OK(dl_acquire(j->lock, &opts, CT_ERR));
        CT_CHECKF(0, "the lock was had before the jump");
    }
    ct_latch_down(ct, j->left);
    dl_cancel_free(c->cancel);
    ct_latch_down(ct, j->jumped);
    ct_latch_wait(ct, j->may_end, KEEP_MS);
}

CT_CASE(stopped, a_cancel_object_of_a_call_that_was_left_is_nobody_elses, JUMPS) {
    on_signal(ct, jump);
    dl_client_t *client = ct_open(ct, POLLS_SELDOM);
    dl_lock_t *lock = ct_lock(ct, client, "left");
    canceller_t c = {.jumper = {.client = client,
                                .lock = lock,
                                .began = ct_latch(ct, 1),
                                .left = ct_latch(ct, 1),
                                .jumped = ct_latch(ct, 1),
                                .may_end = ct_latch(ct, 1)}};
    take(ct, lock, LONG_LEASE_MS);
    ct_thread_t *thread = ct_thread(ct, wait_with_cancel_and_jump, &c);
    ct_latch_wait(ct, c.jumper.began, 5000);
    ct_await_waiting(ct, client, 1, 5000);
    await_sleep(ct, c.jumper.tid);
    let_jump(ct, &c.jumper);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_latch_down(ct, c.jumper.may_end);
    ct_join(ct, thread);
    end_signals();
}
