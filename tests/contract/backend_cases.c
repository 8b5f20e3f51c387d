/* backend_cases.c - backends: many requests at once, few threads, answers that come too late. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>

#include "contract/queues.h"
#include "support/entries.h"

/* These look at requests and queues themselves, so the second door would add nothing. */
#define HERE .traits = CT_BACKEND | CT_BLOCKING | CT_VIRTUAL

#define MANY 1000
#define LATENCY_MS 40

typedef struct many {
    dl_client_t *client;
    dl_queue_t *queue;
    dl_lock_t *locks[MANY];
} many_t;

static void open_many(ct_t *ct, many_t *m, const char *prefix) {
    for (int i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s %d", prefix, i);
        m->locks[i] = ct_lock_owned(ct, m->client, name, 1);
    }
}

static void begin_many(ct_t *ct, many_t *m) {
    for (int i = 0; i < MANY; i++) {
        (void)begin_lock(ct, m->queue, m->locks[i]);
    }
}

static void take_many(ct_t *ct, const many_t *m) {
    for (int i = 0; i < MANY; i++) {
        dl_completion_t done = take_next(ct, m->queue, SOON_MS);
        CT_CHECKF(done.status == DL_OK, "number %d: %s", i, done.err.message);
    }
}

CT_CASE(backend, a_thousand_requests_are_on_their_way_at_once, HERE) {
    many_t m = {.client = ct_open(ct, "latency: 40ms"), .queue = new_queue(ct)};
    int threads = running_threads();
    open_many(ct, &m, "many");
    int64_t before_ms = ct_now_ms(ct);
    begin_many(ct, &m);
    take_many(ct, &m);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, LATENCY_MS, LATENCY_MS + 1);
    for (int i = 0; i < MANY; i++) {
        (void)begin_unlock(ct, m.queue, m.locks[i]);
    }
    take_many(ct, &m);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, 2 * LATENCY_MS, 2 * (LATENCY_MS + 1));
    CT_EQ(running_threads(), threads + 1); /* the client's own */
    dl_queue_free(m.queue);
}

/* An answer is to come, and the client's own thread sleeps: it has nothing to do before half of that time. */
CT_CASE(backend, what_begins_while_the_client_sleeps_goes_out_at_once, HERE) {
    dl_client_t *c = ct_open(ct, "latency: 40ms");
    dl_queue_t *queue = new_queue(ct);
    int64_t before_ms = ct_now_ms(ct);
    uint64_t first = begin_lock(ct, queue, ct_lock_owned(ct, c, "first", 1));
    ct_sleep_ms(ct, LATENCY_MS / 4);
    uint64_t second = begin_lock(ct, queue, ct_lock_owned(ct, c, "second", 1));
    (void)take_of(ct, queue, first, DL_OK, SOON_MS);
    (void)take_of(ct, queue, second, DL_OK, SOON_MS);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, LATENCY_MS * 5 / 4, LATENCY_MS * 5 / 4 + 1);
    dl_queue_free(queue);
}

CT_CASE(backend, a_thousand_holds_are_renewed_beside_a_thousand_requests_by_one_thread, HERE) {
    static many_t held, asked;
    held = (many_t){.client = ct_open(ct, "latency: 1500ms"), .queue = new_queue(ct)};
    asked = (many_t){.client = held.client, .queue = new_queue(ct)};
    int threads = running_threads();
    open_many(ct, &held, "held");
    open_many(ct, &asked, "asked");
    begin_many(ct, &held);
    take_many(ct, &held);
    ct_sleep_ms(ct, ct_lease_ms(ct) / 3 - 2000); /* so that both are on their way together */
    begin_many(ct, &asked);
    ct_sleep_ms(ct, 1000);
    CT_GE(renewals_of(ct, "held 0"), 1);
    CT_EQ(ct_stats(ct, held.client).renewed, 0);
    expect_nothing(ct, asked.queue);
    CT_EQ(running_threads(), threads + 1);
    take_many(ct, &asked);
    CT_AWAIT_THAT(ct_stats(ct, held.client).renewed, ==, MANY, SOON_MS);
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct));
    for (int i = 0; i < MANY; i++) {
        CT_GT(dl_valid_ms(held.locks[i]), 0);
        CT_GT(dl_valid_ms(asked.locks[i]), 0);
    }
    CT_EQ(ct_stats(ct, held.client).lost, 0);
    dl_queue_free(held.queue);
    dl_queue_free(asked.queue);
}

CT_CASE(backend, a_client_that_closes_frees_all_its_holds_at_once, HERE) {
    many_t m = {.client = ct_open(ct, "latency: 40ms"), .queue = new_queue(ct)};
    open_many(ct, &m, "many");
    begin_many(ct, &m);
    take_many(ct, &m);
    int64_t before_ms = ct_now_ms(ct);
    ct_close(ct, m.client);
    CT_LE(ct_now_ms(ct) - before_ms, LATENCY_MS + 1);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), MANY);
    ct_expect_free(ct, "many 0", 0);
    ct_expect_free(ct, "many 999", 0);
    dl_queue_free(m.queue);
}

/* ---- who reads --------------------------------------------------------------------------------- */

typedef struct readers {
    pthread_t caller;
    int by_caller, by_others;
} readers_t;

static void note_reader(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)ct;
    (void)call;
    readers_t *r = arg;
    __atomic_add_fetch(pthread_equal(pthread_self(), r->caller) ? &r->by_caller : &r->by_others, 1,
                       __ATOMIC_SEQ_CST);
}

CT_CASE(backend, a_blocking_caller_reads_its_own_answers, HERE) {
    readers_t r = {.caller = pthread_self()};
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, "latency: 40ms"), "own");
    CT_OK(dl_lock(lock, CT_ERR)); /* the client's thread has started */
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_hook(ct, CT_OP_LISTEN, CT_BEFORE, NULL, note_reader, &r);
    for (int i = 0; i < 5; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    ct_hook(ct, CT_OP_LISTEN, CT_BEFORE, NULL, NULL, NULL);
    CT_GE(r.by_caller, 10);
    CT_EQ(r.by_others, 0);
}

CT_CASE(backend, one_caller_reads_for_all, HERE) {
    dl_client_t *c = ct_open(ct, NULL);
    ct_fault_t late = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .name = "late", .delay_ms = 500};
    ct_fault_add(ct, &late);
    caller_t first = CALLER(ct_lock(ct, c, "late"), DL_WAIT_FOREVER);
    start_caller(ct, &first);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_LISTEN), >=, 1, SOON_MS);
    int64_t before_ms = ct_now_ms(ct);
    dl_lock_t *second = ct_lock(ct, c, "soon");
    CT_OK(dl_lock(second, CT_ERR)); /* read by the first, whose own answer comes later */
    CT_OK(dl_unlock(second, CT_ERR));
    CT_LE(ct_now_ms(ct) - before_ms, 1);
    CT_EQ(first.ended_ms, 0);
    end_caller(ct, &first, DL_OK);
    CT_BETWEEN(first.ended_ms - first.began_ms, 500, 501);
}

/* Behind the first answer, and before the second caller would look for itself whether anybody reads. */
#define SOON_BEHIND_MS 120

CT_CASE(backend, who_has_its_answer_has_another_read, HERE) {
    dl_client_t *c = ct_open(ct, NULL);
    caller_t callers[2] = {CALLER(ct_lock(ct, c, "first"), DL_WAIT_FOREVER),
                           CALLER(ct_lock(ct, c, "second"), DL_WAIT_FOREVER)};
    for (int i = 0; i < 2; i++) {
        ct_fault_t late = {.op = CT_OP_TRY,
                           .mode = CT_LATE_REPLY,
                           .name = i == 0 ? "first" : "second",
                           .delay_ms = i == 0 ? 100 : SOON_BEHIND_MS};
        ct_fault_add(ct, &late);
        start_caller(ct, &callers[i]);
        ct_sleep_ms(ct, 10);
    }
    for (int i = 0; i < 2; i++) {
        end_caller(ct, &callers[i], DL_OK);
    }
    CT_BETWEEN(callers[0].ended_ms - callers[0].began_ms, 100, 101);
    CT_BETWEEN(callers[1].ended_ms - callers[1].began_ms, SOON_BEHIND_MS, SOON_BEHIND_MS + 1);
}

CT_CASE(backend, answers_find_their_requests_in_any_order, HERE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    enum { N = 8 };
    uint64_t ids[N];
    dl_lock_t *locks[N];
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "turn %d", i);
        ct_fault_t late = {
            .op = CT_OP_TRY, .mode = CT_LATE_REPLY, .name = name, .delay_ms = (int64_t)(N - i) * 10};
        ct_fault_add(ct, &late);
        locks[i] = ct_lock_owned(ct, c, name, 1);
    }
    for (int i = 0; i < N; i++) {
        ids[i] = begin_lock(ct, queue, locks[i]);
    }
    for (int i = N; i-- > 0;) {
        (void)take_of(ct, queue, ids[i], DL_OK, SOON_MS);
        CT_EQ(dl_token(locks[i]), ct_server_info(ct, ct_call(ct, CT_OP_TRY, i).name).token);
    }
    dl_queue_free(queue);
}

/* ---- withdrawn --------------------------------------------------------------------------------- */

CT_CASE(backend, the_yes_to_a_cancelled_request_is_freed_behind_it, HERE) {
    dl_client_t *c = ct_open(ct, "latency: 200ms");
    dl_queue_t *queue = new_queue(ct);
    uint64_t id = begin_lock(ct, queue, ct_lock_owned(ct, c, "late", 1));
    ct_sleep_ms(ct, 50); /* it is on its way */
    CT_EQ(dl_op_cancel(queue, id), DL_OK);
    (void)take_of(ct, queue, id, DL_ECANCELED, 0);
    CT_AWAIT_THAT(done_calls(ct, CT_OP_RELEASE), ==, 1, 250); /* it overtook nothing */
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 1);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 1);
    ct_expect_free(ct, "late", 0);
    CT_EQ(ct_stats(ct, c).acquired, 0);
    CT_EQ(ct_stats(ct, c).background_frees, 1);
    dl_queue_free(queue);
}

CT_CASE(backend, a_reply_after_the_deadline_is_dropped, HERE) {
    dl_client_t *c = ct_open(ct, "latency: 300ms\ncall_timeout: 200ms");
    dl_lock_t *lock = ct_lock(ct, c, "late");
    int64_t before_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    CT_EQ(ct_now_ms(ct) - before_ms, 200);
    CT_EQ(dl_hold_count(lock), 0);
    ct_await_held(ct, "late", 200); /* the server says yes all the same */
    ct_expect_free(ct, "late", 300);
    ct_sleep_ms(ct, 1000); /* all replies have come */
    CT_EQ(ct_stats(ct, c).acquired, 0);
    CT_EQ(dl_hold_count(lock), 0);
}

CT_CASE(backend, a_request_that_was_not_sent_is_never_carried_out, HERE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, c, "unsent");
    uint64_t id = begin_acquire(ct, queue, ct_lock_owned(ct, c, "unsent", 1), 0, DL_LEASE_AUTO);
    ct_pause_await(ct, pause, SOON_MS);
    (void)take_of(ct, queue, id, DL_EIO, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    ct_pause_go(ct, pause);
    ct_sleep_ms(ct, 100);
    ct_expect_free(ct, "unsent", 0);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 0);
    dl_queue_free(queue);
}

CT_CASE(backend, a_batch_without_an_answer_is_followed_by_another, HERE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "kept");
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "kept");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, ct_lease_ms(ct));
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "kept", ct_call_timeout_ms(ct) + 1);
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "kept", ct_lease_ms(ct) / 3);
    CT_GE(dl_valid_ms(lock), validity_of(ct_lease_ms(ct)) - 1);
    ct_pause_go(ct, pause);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- what cannot be ended early ---------------------------------------------------------------- */

static void cancel_soon(ct_t *ct, void *arg) {
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), ==, 2, SOON_MS);
    dl_cancel_trigger(arg);
}

CT_CASE(backend, a_cancel_that_ends_nothing_wakes_nobody, HERE) {
    dl_client_t *c = ct_open(ct, "latency: 40ms");
    dl_lock_t *lock = ct_lock(ct, c, "longer");
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    take(ct, lock, ct_lease_ms(ct) / 2);
    ct_fault(ct, CT_OP_TRY, CT_NEVER, 1); /* the second level is one with this server */
    ct_thread_t *thread = ct_thread(ct, cancel_soon, cancel);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.lease_ms = ct_lease_ms(ct);
    opts.cancel = cancel;
    int64_t before_ms = ct_now_ms(ct);
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EUNKNOWN);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, ct_call_timeout_ms(ct), ct_call_timeout_ms(ct) + 100);
    ct_join(ct, thread);
    CT_OK(dl_unlock(lock, CT_ERR));
    dl_cancel_free(cancel);
}

typedef struct listener {
    readers_t *readers;
    caller_t caller;
} listener_t;

static void wait_listening(ct_t *ct, void *arg) {
    listener_t *l = arg;
    l->readers->caller = pthread_self();
    run_caller(ct, &l->caller);
}

CT_CASE(backend, a_watch_of_a_queue_needs_no_caller, HERE) {
    readers_t r = {.by_caller = 0};
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    dl_lock_t *held = ct_lock(ct, a, "held"), *other = ct_lock(ct, a, "other");
    CT_OK(dl_lock(held, CT_ERR));
    CT_OK(dl_lock(other, CT_ERR));
    listener_t l = {.readers = &r, .caller = CALLER(ct_lock(ct, b, "other"), DL_WAIT_FOREVER)};
    ct_thread_t *thread = ct_thread(ct, wait_listening, &l);
    ct_await_hearing(ct, b, "other", SOON_MS);
    ct_hook(ct, CT_OP_WATCH, CT_BEFORE, "held", note_reader, &r);
    uint64_t id =
        begin_lock(ct, queue, ct_lock_owned(ct, b, "held", 1)); /* the answer is read by the caller */
    ct_await_hearing(ct, b, "held", SOON_MS);
    ct_hook(ct, CT_OP_WATCH, CT_BEFORE, NULL, NULL, NULL);
    CT_EQ(r.by_caller, 0);
    CT_EQ(r.by_others, 1);
    CT_OK(dl_unlock(held, CT_ERR));
    (void)take_of(ct, queue, id, DL_OK, SOON_MS);
    CT_OK(dl_unlock(other, CT_ERR));
    ct_join(ct, thread);
    CT_EQ(l.caller.unlocked, DL_OK);
    dl_queue_free(queue);
}
