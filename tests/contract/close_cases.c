/* close_cases.c - contract: the end of a client or of a handle, whatever is going on at that instant. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "callers.h"
#include "support/entries.h"

typedef struct closer {
    dl_client_t *client;
    int64_t began_ms, ended_ms;
} closer_t;

static void run_closer(ct_t *ct, void *arg) {
    closer_t *c = arg;
    c->began_ms = ct_now_ms(ct);
    dl_client_close(c->client);
    c->ended_ms = ct_now_ms(ct);
}

/* Closes on a thread of its own, so that the case can look on. */
static ct_thread_t *start_closer(ct_t *ct, closer_t *c, dl_client_t *client) {
    ct_forget(ct, client);
    c->client = client;
    return ct_thread(ct, run_closer, c);
}

/* How long the close took. */
static int64_t close_client(ct_t *ct, dl_client_t *client) {
    int64_t before_ms = ct_now_ms(ct);
    ct_close(ct, client);
    return ct_now_ms(ct) - before_ms;
}

/* A program may keep handles for as long as it lives. (The simulated machine keeps some of each client.) */
CT_CASE(close, leaves_no_descriptor_open_for_handles_that_stay, .traits = CT_REAL_TIME) {
    int before = open_descriptors();
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_close(ct, client);
    CT_EQ(open_descriptors(), before);
}

/* Every call on a handle of a closed client. */
static void check_closed(ct_t *ct, dl_lock_t *lock) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_trylock_for(lock, 1000, DL_LEASE_AUTO, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_inspect(lock, &info, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_force_unlock(lock, CT_ERR), DL_ECLOSED);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_EQ(dl_hold_count(lock), 0);
}

CT_CASE(close, frees_everything_that_is_held) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *locks[20];
    char name[32];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "held %d", i);
        locks[i] = i % 2 == 0 ? ct_lock(ct, c, name) : ct_lock_owned(ct, c, name, (uint64_t)i);
        for (int level = 0; level <= i % 3; level++) {
            take(ct, locks[i], i % 4 == 0 ? 10 * ct_lease_ms(ct) : DL_LEASE_AUTO);
        }
    }
    ct_close(ct, c);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "held %d", i);
        ct_expect_free(ct, name, 0);
        check_closed(ct, locks[i]);
    }
    int renewals = ct_calls(ct, CT_OP_RENEW);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_RENEW), renewals);
}

/* More than one at once has to go back, and the client has but one spare request. */
CT_CASE(close, gives_back_without_memory, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    char name[16];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "held %d", i);
        CT_OK(dl_lock(ct_lock(ct, c, name), CT_ERR));
    }
    ct_alloc_fail(ct, 1, 1);
    ct_close(ct, c);
    CT_GT(ct_alloc_failed(ct), 0);
    ct_alloc_fail(ct, 0, 0);
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "held %d", i);
        ct_expect_free(ct, name, 0);
    }
}

CT_CASE(close, ends_waits_wherever_they_are) {
    dl_client_t *holder = ct_open(ct, NULL), *c = ct_open(ct, NULL);
    CT_OK(dl_lock(ct_lock(ct, holder, "theirs"), CT_ERR));
    dl_lock_t *mine = ct_lock(ct, c, "mine"), *mute = ct_lock(ct, c, "mute"),
              *theirs = ct_lock(ct, c, "theirs");
    CT_OK(dl_lock(mine, CT_ERR));
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_NEVER, .count = CT_ALWAYS, .name = "mute"};
    ct_fault_add(ct, &fault);
    caller_t callers[5] = {CALLER(mine, DL_WAIT_FOREVER), CALLER(mine, 100000),
                           CALLER(theirs, DL_WAIT_FOREVER), CALLER(theirs, 100000),
                           CALLER(mute, DL_WAIT_FOREVER)};
    for (int i = 0; i < 5; i++) {
        start_caller(ct, &callers[i]);
    }
    ct_await_waiting(ct, c, 5, 5000);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, c, "mute"), ==, 1, 5000);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, c, "theirs"), >=, 1, 5000);
    int64_t before_ms = ct_now_ms(ct);
    /* The request to the mute server can no longer be freed there: that may take call_timeout. */
    CT_LE(close_client(ct, c), ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    for (int i = 0; i < 5; i++) {
        end_caller(ct, &callers[i], DL_ECLOSED);
        CT_LE(callers[i].ended_ms - before_ms, ct_tolerance_ms(ct));
    }
    ct_expect_free(ct, "mine", 0);
    ct_expect_free(ct, "mute", 0);
    ct_expect_held(ct, "theirs");
    CT_EQ(done_calls(ct, CT_OP_WATCH), ct_calls(ct, CT_OP_UNWATCH));
}

/* More than are woken in one go. */
CT_CASE(close, ends_a_hundred_waits_at_once) {
    enum { WAITS = 100 };
    static caller_t callers[WAITS];
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, c, "mine");
    CT_OK(dl_lock(mine, CT_ERR));
    for (int i = 0; i < WAITS; i++) {
        callers[i] = (caller_t)CALLER(mine, DL_WAIT_FOREVER);
        start_caller(ct, &callers[i]);
    }
    ct_await_waiting(ct, c, WAITS, 5000);
    CT_LE(close_client(ct, c), ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    for (int i = 0; i < WAITS; i++) {
        end_caller(ct, &callers[i], DL_ECLOSED);
    }
    ct_expect_free(ct, "mine", 0);
}

/* The client is closed while the answer of a try is between the driver and the core. */
static void close_around_yes(ct_t *ct, ct_when_t when) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "yes");
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, when, c, "yes");
    caller_t caller = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &caller);
    ct_pause_await(ct, pause, 5000);
    closer_t closer;
    ct_thread_t *thread = start_closer(ct, &closer, c);
    CT_AWAIT(is_closing(c), 5000);
    CT_CHECK(!ct_thread_done(ct, thread)); /* a call is still inside */
    ct_pause_go(ct, pause);
    end_caller(ct, &caller, DL_ECLOSED);
    ct_join(ct, thread);
    ct_expect_free(ct, "yes", 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
}

CT_CASE(close, before_the_server_says_yes_keeps_nothing) {
    close_around_yes(ct, CT_BEFORE);
}

CT_CASE(close, just_after_the_server_said_yes_keeps_nothing) {
    close_around_yes(ct, CT_AFTER);
}

CT_CASE(close, at_the_same_time_as_an_unlock_is_harmless) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "unlocking");
    ct_pause_t *pause = ct_pause(ct, CT_OP_RELEASE, CT_BEFORE, c, "unlocking");
    caller_t caller = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &caller);
    ct_pause_await(ct, pause, 5000);
    closer_t closer;
    ct_thread_t *thread = start_closer(ct, &closer, c);
    CT_AWAIT(is_closing(c), 5000);
    ct_pause_go(ct, pause);
    end_caller(ct, &caller, DL_OK);
    ct_join(ct, thread);
    ct_expect_free(ct, "unlocking", 0);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 1);
}

/* Without a second try it would stay until its lease is over. A backend's are not known to be lost in time.
 */
CT_CASE(close, asks_again_when_a_release_was_lost, .needs_not = DL_CAP_SESSION, .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    CT_OK(dl_trylock_for(ct_lock(ct, c, "lost"), 0, 60000, CT_ERR));
    ct_fault(ct, CT_OP_RELEASE, CT_LOSE_REQUEST, 1);
    (void)close_client(ct, c);
    ct_expect_free(ct, "lost", 0);
}

CT_CASE(close, asks_again_when_a_release_failed, .needs_not = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, NULL);
    CT_OK(dl_trylock_for(ct_lock(ct, c, "failed"), 0, 60000, CT_ERR));
    ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, 1);
    (void)close_client(ct, c);
    ct_expect_free(ct, "failed", 0);
}

CT_CASE(close, with_a_dead_server_ends_in_time) {
    dl_client_t *c = ct_open(ct, NULL);
    char name[32];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "dead %d", i);
        CT_OK(dl_lock(ct_lock(ct, c, name), CT_ERR));
    }
    ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS);
    CT_LE(close_client(ct, c), ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    /* What could not be freed ends with its lease. */
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "dead %d", i);
        ct_expect_free(ct, name, ct_lease_ms(ct) + ct_tolerance_ms(ct));
    }
}

CT_CASE(close, with_a_dead_server_and_a_renewal_under_way_ends_in_time) {
    dl_client_t *c = ct_open(ct, LASTING);
    CT_OK(dl_lock(ct_lock(ct, c, "dead"), CT_ERR));
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, CT_ALWAYS);
    ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RENEW), ==, 1, ct_lease_ms(ct));
    CT_LE(close_client(ct, c), ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
}

/* One that falls due while a call keeps the close waiting has what is left of its time. */
CT_CASE(close, with_a_dead_server_and_a_renewal_that_comes_meanwhile_ends_in_time, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, "lease: 30s");
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CT_OK(dl_client_info(c, &info));
    caller_t caller = CALLER(ct_lock(ct, c, "unlocked"), 0);
    caller.keep = ct_latch(ct, 1);
    start_caller(ct, &caller);
    ct_await_held(ct, "unlocked", 5000);
    CT_OK(dl_lock(ct_lock(ct, c, "dead"), CT_ERR));
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, CT_ALWAYS);
    ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS);
    ct_sleep_ms(ct, info.renew_every_ms - ct_call_timeout_ms(ct) / 2);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    ct_latch_down(ct, caller.keep);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), ==, 1, 5000);
    CT_LE(close_client(ct, c), ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    ct_join(ct, caller.thread);
    CT_EQ(caller.unlocked, DL_EUNKNOWN);
    CT_GE(ct_calls(ct, CT_OP_RENEW), 1);
}

CT_CASE(close, with_a_dead_server_and_a_background_free_under_way_ends_in_time) {
    dl_client_t *c = ct_open(ct, NULL);
    CT_OK(dl_lock(ct_lock(ct, c, "dead"), CT_ERR));
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 1);
    ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS);
    CT_STATUS(dl_trylock(ct_lock(ct, c, "orphan"), CT_ERR), DL_EUNKNOWN);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), ==, 1, 5000);
    CT_LE(close_client(ct, c), ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
}

/* What hangs in a call has no share in the time for what is held. */
CT_CASE(close, frees_what_is_held_however_long_a_call_kept_it_waiting) {
    dl_client_t *c = ct_open(ct, NULL);
    CT_OK(dl_trylock_for(ct_lock(ct, c, "held"), 0, 60000, CT_ERR));
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, c, "hangs");
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 1);
    caller_t caller = CALLER(ct_lock(ct, c, "hangs"), DL_WAIT_FOREVER);
    start_caller(ct, &caller);
    ct_pause_await(ct, pause, 5000);
    closer_t closer;
    ct_thread_t *thread = start_closer(ct, &closer, c);
    CT_AWAIT(is_closing(c), 5000);
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct));
    ct_pause_go(ct, pause);
    end_caller(ct, &caller, DL_ECLOSED);
    ct_join(ct, thread);
    ct_expect_free(ct, "held", 0);
}

/* ---- inside a callback ----------------------------------------------------------------------- */

typedef struct suicide {
    ct_t *ct;
    dl_client_t *client;
    ct_latch_t *closed;
    ct_latch_t *began, *go_on; /* NULL: at once */
} suicide_t;

static void close_inside(void *arg, const dl_event_t *event) {
    suicide_t *s = arg;
    ct_t *ct = s->ct;
    CT_EQ(event->kind, DL_EVENT_LOST);
    if (s->began != NULL) {
        ct_latch_down(ct, s->began);
        ct_latch_wait(ct, s->go_on, KEEP_MS);
    }
    dl_client_close(s->client);
    CT_STR_EQ(event->name, "lost"); /* the event outlives the client for as long as the callback runs */
    ct_latch_down(ct, s->closed);
}

CT_CASE(close, inside_a_callback_is_a_close) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lost = ct_lock(ct, c, "lost"), *kept = ct_lock(ct, c, "kept");
    CT_OK(dl_lock(kept, CT_ERR));
    caller_t waiter = CALLER(kept, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, c, 1, 5000);
    suicide_t s = {.ct = ct, .client = c, .closed = ct_latch(ct, 1)};
    CT_EQ(dl_client_on_event(c, close_inside, &s), DL_OK);
    ct_forget(ct, c);
    (void)lose_by_renewal(ct, "lost");
    take(ct, lost, DL_LEASE_AUTO);
    ct_latch_wait(ct, s.closed, 5000);
    end_caller(ct, &waiter, DL_ECLOSED);
    ct_expect_free(ct, "kept", 0);
    check_closed(ct, kept);
    check_closed(ct, lost);
}

static void run_long(void *arg, const dl_event_t *event) {
    suicide_t *s = arg;
    (void)event;
    ct_latch_down(s->ct, s->began);
    ct_latch_wait(s->ct, s->go_on, KEEP_MS);
}

CT_CASE(close, frees_what_is_held_while_a_callback_runs) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lost = ct_lock(ct, c, "lost");
    CT_OK(dl_lock(ct_lock(ct, c, "held"), CT_ERR));
    suicide_t s = {.ct = ct, .began = ct_latch(ct, 1), .go_on = ct_latch(ct, 1)};
    CT_EQ(dl_client_on_event(c, run_long, &s), DL_OK);
    (void)lose_by_renewal(ct, "lost");
    take(ct, lost, DL_LEASE_AUTO);
    ct_latch_wait(ct, s.began, 5000);
    closer_t closer;
    ct_thread_t *thread = start_closer(ct, &closer, c);
    ct_expect_free(ct, "held", 5000);
    CT_CHECK(!ct_thread_done(ct, thread));
    ct_latch_down(ct, s.go_on);
    ct_join(ct, thread);
}

static void remove_callback(ct_t *ct, void *client) {
    CT_EQ(dl_client_on_event(client, NULL, NULL), DL_ECLOSED);
}

CT_CASE(close, inside_a_callback_ends_a_wait_for_the_end_of_that_callback) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lost = ct_lock(ct, c, "lost");
    suicide_t s = {.ct = ct, .client = c, .closed = ct_latch(ct, 1)};
    s.began = ct_latch(ct, 1);
    s.go_on = ct_latch(ct, 1);
    CT_EQ(dl_client_on_event(c, close_inside, &s), DL_OK);
    ct_forget(ct, c);
    (void)lose_by_renewal(ct, "lost");
    take(ct, lost, DL_LEASE_AUTO);
    ct_latch_wait(ct, s.began, 5000);
    ct_thread_t *remover = ct_thread(ct, remove_callback, c);
    ct_sleep_ms(ct, 50); /* it waits */
    ct_latch_down(ct, s.go_on);
    ct_join(ct, remover);
    ct_latch_wait(ct, s.closed, 5000);
}

/* ---- handles --------------------------------------------------------------------------------- */

CT_CASE(close, of_a_handle_does_not_release) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *first = ct_lock(ct, c, "handles"), *second = ct_lock(ct, c, "handles");
    CT_OK(dl_lock(first, CT_ERR));
    CT_EQ(dl_hold_count(second), 1); /* several handles on one name are the same lock */
    ct_lock_close(ct, first);
    CT_AWAIT_THAT(renewals_of(ct, "handles"), >=, 3, 5000);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 0);
    ct_expect_held(ct, "handles");
    CT_GT(dl_valid_ms(second), 0);
    CT_OK(dl_unlock(second, CT_ERR));
    ct_expect_free(ct, "handles", 0);
}

CT_CASE(close, of_the_last_handle_does_not_release_either) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *only = ct_lock(ct, c, "no handle");
    CT_OK(dl_lock(only, CT_ERR));
    ct_lock_close(ct, only);
    CT_AWAIT_THAT(renewals_of(ct, "no handle"), >=, 3, 5000);
    ct_expect_held(ct, "no handle");
    dl_lock_t *later = ct_lock(ct, c, "no handle");
    CT_EQ(dl_hold_count(later), 1);
    CT_OK(dl_unlock(later, CT_ERR));
    ct_expect_free(ct, "no handle", 0);
}

CT_CASE(close, of_a_handle_ends_its_waits_and_no_others) {
    dl_client_t *holder = ct_open(ct, NULL), *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, holder, "closing");
    CT_OK(dl_lock(held, CT_ERR));
    dl_lock_t *closing = ct_lock(ct, c, "closing"), *staying = ct_lock(ct, c, "closing");
    caller_t at_server = CALLER(closing, DL_WAIT_FOREVER), queued = CALLER(closing, DL_WAIT_FOREVER);
    caller_t other = CALLER(staying, DL_WAIT_FOREVER);
    start_caller(ct, &at_server);
    ct_await_waiting(ct, c, 1, 5000);
    start_caller(ct, &other);
    ct_await_waiting(ct, c, 2, 5000);
    start_caller(ct, &queued);
    ct_await_waiting(ct, c, 3, 5000);
    int64_t before_ms = ct_now_ms(ct);
    ct_lock_close(ct, closing);
    ct_join(ct, at_server.thread);
    ct_join(ct, queued.thread);
    CT_EQ(at_server.status, DL_ECLOSED);
    CT_EQ(queued.status, DL_ECLOSED);
    CT_LE(at_server.ended_ms - before_ms, ct_tolerance_ms(ct));
    CT_LE(queued.ended_ms - before_ms, ct_tolerance_ms(ct));
    ct_sleep_ms(ct, 20);
    CT_CHECK(!ct_thread_done(ct, other.thread));
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &other, DL_OK);
}
