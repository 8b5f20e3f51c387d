/* outages_cases.c - contract: a server that is away is waited for, but not for long. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

static int64_t forever_bound_ms(ct_t *ct) {
    return ct_call_timeout_ms(ct) + ct_tolerance_ms(ct);
}

static void holds_nothing(ct_t *ct, dl_lock_t *lock) {
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_EQ(dl_hold_count(lock), 0);
}

/* ---- giving up ------------------------------------------------------------------------------- */

CT_CASE(outages, an_unreachable_server_is_an_error_after_the_call_timeout) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    int fault = ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    int64_t start_ms = ct_now_ms(ct);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_EIO);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) * 3 / 4,
               ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    CT_BETWEEN(ct_fault_hits(ct, fault), 3, 100);
    holds_nothing(ct, lock);
    /* The same for a wait that would be longer. */
    start_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock_for(lock, 100000, DL_LEASE_AUTO, CT_ERR), DL_EIO);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    ct_fault_end(ct, -1);
    CT_OK(dl_lock(lock, CT_ERR));
}

CT_CASE(outages, a_silent_server_is_an_error_after_the_call_timeout) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    int64_t start_ms = ct_now_ms(ct);
    CT_EITHER(dl_lock(lock, CT_ERR), DL_EIO, DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, forever_bound_ms(ct));
    holds_nothing(ct, lock);
}

CT_CASE(outages, a_server_that_refuses_first_and_is_silent_then_gets_no_second_call_timeout) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    ct_fault_t refusal = {
        .op = CT_OP_TRY, .mode = CT_ANSWER, .status = DL_EIO, .delay_ms = ct_call_timeout_ms(ct) / 2};
    int refused = ct_fault_add(ct, &refusal);
    int silent = ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    int64_t start_ms = ct_now_ms(ct);
    CT_EITHER(dl_lock(lock, CT_ERR), DL_EIO, DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, forever_bound_ms(ct));
    CT_EQ(ct_fault_hits(ct, refused), 1);
    ct_call_t first = ct_call(ct, CT_OP_TRY, 0);
    int64_t took_ms = (int64_t)((first.end_ns - first.begin_ns) / 1000000u);
    CT_CHECK(ct_fault_hits(ct, silent) > 0 || took_ms > ct_call_timeout_ms(ct) * 3 / 4);
}

CT_CASE(outages, a_trylock_does_not_wait_for_a_dead_server) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 1);
    int64_t start_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO);
    CT_LE(ct_now_ms(ct) - start_ms, ct_tolerance_ms(ct));
    ct_fault(ct, CT_OP_TRY, CT_NEVER, 1);
    start_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    holds_nothing(ct, lock);
}

static void try_for_five_seconds(ct_t *ct, void *lock) {
    int64_t start_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, 5000 + ct_tolerance_ms(ct));
}

/* It is not late for that, and so nobody has its turn meanwhile. */
CT_CASE(outages, a_trylock_is_no_longer_for_a_sleep_of_the_machine, .traits = CT_VIRTUAL | CT_BLOCKING) {
    dl_client_t *client = ct_open(ct, "call_timeout: 5s");
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    caller_t other = CALLER(lock, 3000);
    int silent = ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    ct_thread_t *tries = ct_thread(ct, try_for_five_seconds, lock);
    CT_AWAIT_THAT(ct_fault_hits(ct, silent), ==, 1, 1000);
    start_caller(ct, &other);
    ct_await_waiting(ct, client, 1, 1000);
    ct_suspend_ms(ct, 2);
    ct_join(ct, tries);
    ct_join(ct, other.thread);
}

/* ---- many who ask ---------------------------------------------------------------------------- */

/* However many ask for one name, and one after the other: each has one call_timeout. */
static void all_hear_of_it(ct_t *ct, ct_mode_t mode) {
    dl_client_t *client = ct_open(ct, NULL);
    ct_fault(ct, CT_OP_TRY, mode, CT_ALWAYS);
    caller_t callers[4];
    for (int i = 0; i < 4; i++) {
        callers[i] = (caller_t)CALLER(ct_lock(ct, client, "orders"), DL_WAIT_FOREVER);
        start_caller(ct, &callers[i]);
    }
    for (int i = 0; i < 4; i++) {
        ct_join(ct, callers[i].thread);
        CT_EITHER(callers[i].status, DL_EIO, DL_EUNKNOWN);
        CT_LE(callers[i].ended_ms - callers[i].began_ms, forever_bound_ms(ct));
        /* And of why, whoever has asked. */
        CT_CHECKF(strcmp(callers[i].err.message, dl_status_text(callers[i].status)) != 0,
                  "caller %d is told no more than: %s", i, callers[i].err.message);
    }
    ct_fault_end(ct, -1);
    CT_OK(dl_lock(callers[0].lock, CT_ERR)); /* that is over */
}

CT_CASE(outages, all_who_want_a_name_of_an_unreachable_server_hear_of_it_in_time) {
    all_hear_of_it(ct, CT_FAIL_BEFORE);
}

CT_CASE(outages, all_who_want_a_name_of_a_silent_server_hear_of_it_in_time) {
    all_hear_of_it(ct, CT_NEVER);
}

CT_CASE(outages, who_comes_later_has_a_call_timeout_of_its_own) {
    dl_client_t *client = ct_open(ct, NULL);
    int fault = ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    caller_t first = CALLER(ct_lock(ct, client, "orders"), DL_WAIT_FOREVER), second = first;
    start_caller(ct, &first);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), >, 0, 5000);
    ct_sleep_ms(ct, ct_call_timeout_ms(ct) / 2);
    start_caller(ct, &second);
    end_caller(ct, &first, DL_EIO);
    ct_fault_end(ct, fault);
    end_caller(ct, &second, DL_OK);
}

CT_CASE(outages, who_does_not_wait_for_long_is_not_told_that_another_has_it) {
    dl_client_t *client = ct_open(ct, NULL);
    int fault = ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    caller_t head = CALLER(ct_lock(ct, client, "orders"), DL_WAIT_FOREVER);
    dl_lock_t *lock = ct_lock_owned(ct, client, "orders", 7);
    start_caller(ct, &head);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), >, 0, 5000);
    ct_sleep_ms(ct, ct_tolerance_ms(ct)); /* a moment without an answer is no outage */
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO);
    CT_STATUS(dl_trylock_for(lock, 10, DL_LEASE_AUTO, CT_ERR), DL_EIO);
    end_caller(ct, &head, DL_EIO);
}

/* ---- coming back ----------------------------------------------------------------------------- */

static void come_back_in_time(ct_t *ct, ct_mode_t mode) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    int fault = ct_fault(ct, CT_OP_TRY, mode, 3);
    int64_t start_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(ct_fault_hits(ct, fault), 3);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct));
    for (int i = 1; i < ct_calls(ct, CT_OP_TRY); i++) {
        /* Each try is an attempt of its own: a late one can never be taken for a later one. */
        CT_GT(ct_call(ct, CT_OP_TRY, i).hold_id, ct_call(ct, CT_OP_TRY, i - 1).hold_id);
    }
    CT_GT(dl_valid_ms(lock), 0);
    ct_expect_held(ct, "orders");
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "orders", ct_call_timeout_ms(ct));
}

CT_CASE(outages, a_server_that_comes_back_in_time_is_no_error) {
    come_back_in_time(ct, CT_FAIL_BEFORE);
}

CT_CASE(outages, lost_requests_are_sent_again) {
    come_back_in_time(ct, CT_LOSE_REQUEST);
}

CT_CASE(outages, a_call_is_never_kept_waiting_by_its_own_lost_grant) {
    come_back_in_time(ct, CT_LOSE_REPLY);
}

/* Nobody waits for the server while the process is stopped or the machine sleeps. */
CT_CASE(outages, time_that_the_caller_was_away_is_none_of_the_patience, .traits_not = CT_BACKEND) {
    caller_t caller = CALLER(ct_lock(ct, ct_open(ct, NULL), "orders"), DL_WAIT_FOREVER);
    ct_pause_t *asking = ct_pause(ct, CT_OP_TRY, CT_BEFORE, NULL, NULL);
    int fault = ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 1);
    start_caller(ct, &caller);
    ct_pause_await(ct, asking, 5000);
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    ct_pause_go(ct, asking);
    end_caller(ct, &caller, DL_OK);
    CT_EQ(ct_fault_hits(ct, fault), 1);
}

static void get_it(ct_t *ct, void *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(outages, an_outage_during_a_wait_is_survived, .needs_not = DL_CAP_NATIVE_WAIT) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    ct_fault_t outage = {.op = CT_OP_TRY, .mode = CT_FAIL_BEFORE, .skip = 1, .count = 3, .client = client};
    int fault = ct_fault_add(ct, &outage);
    ct_thread_t *thread = ct_thread(ct, get_it, ct_lock(ct, client, "orders"));
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), ==, 3, 5000);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t start_ms = ct_now_ms(ct);
    ct_join(ct, thread);
    CT_LE(ct_now_ms(ct) - start_ms, 500 + ct_tolerance_ms(ct)); /* the longest pause of the backoff */
}

CT_CASE(outages, a_later_outage_has_a_patience_of_its_own, .needs_not = DL_CAP_NATIVE_WAIT) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    ct_fault_t outage = {.op = CT_OP_TRY, .mode = CT_FAIL_BEFORE, .count = 1, .client = client};
    ct_fault_add(ct, &outage);
    ct_thread_t *thread = ct_thread(ct, get_it, ct_lock(ct, client, "orders"));
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct)); /* busy answers all the while */
    outage.count = 2;
    int fault = ct_fault_add(ct, &outage);
    CT_AWAIT_THAT(ct_call(ct, CT_OP_TRY, -1).end_ns, >, 0, 5000); /* none that began before is on its way */
    CT_OK(dl_unlock(held, CT_ERR));
    ct_join(ct, thread);
    CT_EQ(ct_fault_hits(ct, fault), 2);
}

CT_CASE(outages, one_that_is_over_is_none_of_who_stands_behind, .needs_not = DL_CAP_NATIVE_WAIT) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    ct_fault_t outage = {.op = CT_OP_TRY, .mode = CT_FAIL_BEFORE, .count = 1, .client = client};
    int fault = ct_fault_add(ct, &outage);
    caller_t first = CALLER(ct_lock(ct, client, "orders"), DL_WAIT_FOREVER), second = first;
    start_caller(ct, &first);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), ==, 1, 5000);
    start_caller(ct, &second);
    ct_await_waiting(ct, client, 2, 5000);
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct)); /* busy answers all the while */
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &first, DL_OK);
    end_caller(ct, &second, DL_OK);
}

/* Nobody else has the lock, so the first answer is a yes. */
CT_CASE(outages, one_that_ends_with_a_yes_is_none_of_who_stands_behind) {
    dl_client_t *client = ct_open(ct, "lease: 60s");
    ct_fault_t outage = {.op = CT_OP_TRY, .mode = CT_FAIL_BEFORE, .count = 1, .client = client};
    int fault = ct_fault_add(ct, &outage);
    caller_t first = CALLER(ct_lock(ct, client, "orders"), DL_WAIT_FOREVER), second = first;
    first.keep = ct_latch(ct, 1);
    start_caller(ct, &first);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), ==, 1, 5000);
    start_caller(ct, &second);
    CT_AWAIT_THAT(first.ended_ms, !=, 0, 5000);
    ct_await_waiting(ct, client, 1, 5000);
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct));
    CT_STATUS(dl_trylock(second.lock, CT_ERR), DL_EBUSY);
    CT_STATUS(dl_trylock_for(second.lock, 20, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    ct_latch_down(ct, first.keep);
    end_caller(ct, &first, DL_OK);
    end_caller(ct, &second, DL_OK);
}

CT_CASE(outages, nothing_is_unknown_about_a_client_that_could_not_be_opened) {
    ct_fault_t fault = {.op = CT_OP_OPEN, .mode = CT_ANSWER, .status = DL_EUNKNOWN};
    ct_fault_add(ct, &fault);
    dl_client_t *client = NULL;
    CT_STATUS(ct_try_open(ct, NULL, &client, CT_ERR), DL_EIO);
}
