/* timeouts_cases.c - contract: every call ends in time, whatever the server does. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

/* Shorter than call_timeout, so that the call's own deadline is the one that counts. */
static int64_t short_wait_ms(ct_t *ct) {
    return ct_call_timeout_ms(ct) / 4;
}

static void holds_nothing(ct_t *ct, dl_lock_t *lock) {
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_EQ(dl_hold_count(lock), 0);
}

/* ---- another holder -------------------------------------------------------------------------- */

static void wait_in_vain(ct_t *ct, void *lock) {
    int64_t wait_ms = short_wait_ms(ct), start_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, wait_ms, wait_ms + ct_tolerance_ms(ct));
    holds_nothing(ct, lock);
}

CT_CASE(timeouts, a_wait_for_another_client_ends_when_it_should) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "orders");
    CT_OK(dl_lock(held, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    wait_in_vain(ct, ct_lock(ct, client, "orders"));
    CT_EQ(ct_stats(ct, client).timed_out, 1);
    CT_EQ(ct_stats(ct, client).waiting_now, 0);
}

CT_CASE(timeouts, a_wait_for_another_thread_ends_when_it_should) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    int tries = ct_calls(ct, CT_OP_TRY);
    ct_join(ct, ct_thread(ct, wait_in_vain, lock));
    CT_EQ(ct_calls(ct, CT_OP_TRY), tries);
    CT_EQ(ct_stats(ct, client).timed_out, 1);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* A try at the end of a wait gets so long for its answer. */
#define LAST_TRY_MS 80

CT_CASE(timeouts, a_lock_that_became_free_during_the_last_pause_is_obtained) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "orders");
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    /* No pause of this client ends before its wait does. */
    dl_client_t *client = ct_open(ct, "backoff_min: 60s\nbackoff_max: 60s");
    int64_t wait_ms = 3 * ct_tolerance_ms(ct);
    caller_t caller = CALLER(ct_lock(ct, client, "orders"), wait_ms);
    caller.opts.lease_ms = 60000;
    start_caller(ct, &caller);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, client, NULL), >, 0, 5000);
    ct_sleep_ms(ct, short_wait_ms(ct) / 2);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t freed_ms = ct_now_ms(ct);
    ct_join(ct, caller.thread);
    int64_t end_ms = caller.began_ms + wait_ms;
    CT_LE(caller.ended_ms, end_ms + ct_tolerance_ms(ct));
    /* Unless its end came first, or the machine stood still at its end. */
    int in_vain = freed_ms >= end_ms || caller.ended_ms >= end_ms + LAST_TRY_MS;
    CT_CHECKF(caller.status == DL_OK || (in_vain && caller.status == DL_ETIMEDOUT), "it was %s",
              dl_status_name(caller.status));
    CT_EQ(caller.unlocked, DL_OK);
}

CT_CASE(timeouts, nothing_is_asked_or_left_after_a_wait_has_ended) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "orders");
    CT_OK(dl_lock(held, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    wait_in_vain(ct, lock);
    int tries = ct_calls(ct, CT_OP_TRY);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_UNWATCH), ==, ct_calls(ct, CT_OP_WATCH), 5000);
    CT_OK(dl_unlock(held, CT_ERR));
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_TRY), tries);
    ct_expect_free(ct, "orders", 0);
    CT_OK(dl_trylock(lock, CT_ERR));
}

/* Waits for its turn in this process, gets it left_ms before its wait is over, and from then on each try
 * fails after delay_ms. */
static void wait_and_fail(ct_t *ct, ct_mode_t mode, int64_t left_ms, int64_t delay_ms, dl_status_t expected) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, client, "orders");
    int64_t wait_ms = 2 * ct_tolerance_ms(ct);
    caller_t caller = CALLER(ct_lock(ct, client, "orders"), wait_ms);
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    start_caller(ct, &caller);
    ct_await_waiting(ct, client, 1, 5000);
    ct_sleep_ms(ct, wait_ms - left_ms);
    ct_fault_t fault = {
        .op = CT_OP_TRY, .mode = mode, .count = CT_ALWAYS, .status = DL_EIO, .delay_ms = delay_ms};
    ct_fault_add(ct, &fault);
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &caller, expected);
    CT_LE(caller.ended_ms - caller.began_ms, wait_ms + ct_tolerance_ms(ct));
    ct_fault_end(ct, -1);
}

CT_CASE(timeouts, no_answer_at_the_end_of_a_wait_is_no_news_of_the_server) {
    wait_and_fail(ct, CT_ANSWER, 30, 40, DL_ETIMEDOUT);
    wait_and_fail(ct, CT_NEVER, 30, 40, DL_ETIMEDOUT);
}

CT_CASE(timeouts, a_refusal_in_time_is_news_of_the_server, .traits = CT_VIRTUAL) {
    wait_and_fail(ct, CT_ANSWER, 80, 0, DL_EIO);
    wait_and_fail(ct, CT_ANSWER, 40, 0, DL_ETIMEDOUT);
}

CT_CASE(timeouts, who_had_it_to_the_end_of_a_wait_leaves_no_doubt, .traits = CT_VIRTUAL) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    for (int had_it = 0; had_it < 2; had_it++) {
        int frees = ct_calls(ct, CT_OP_RELEASE);
        ct_fault_t fault = {.op = CT_OP_TRY,
                            .mode = CT_ANSWER,
                            .count = CT_ALWAYS,
                            .status = DL_EUNKNOWN,
                            .busy_is_dlock = had_it,
                            .delay_ms = short_wait_ms(ct) + 10};
        ct_fault_add(ct, &fault);
        CT_STATUS(dl_trylock_for(lock, short_wait_ms(ct), DL_LEASE_AUTO, CT_ERR),
                  had_it ? DL_ETIMEDOUT : DL_EUNKNOWN);
        CT_STATUS(dl_trylock(lock, CT_ERR), had_it ? DL_EBUSY : DL_EUNKNOWN);
        ct_fault_end(ct, -1);
        CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), >=, frees + 2, 5000); /* what may be there all the same */
    }
}

CT_CASE(timeouts, a_wait_of_zero_is_a_single_try) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "orders");
    CT_OK(dl_lock(held, CT_ERR));
    int tries = ct_calls(ct, CT_OP_TRY);
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_STATUS(dl_trylock_for(lock, 0, DL_LEASE_AUTO, CT_ERR), DL_EBUSY);
    CT_EQ(ct_calls(ct, CT_OP_TRY), tries + 1);
    CT_EQ(ct_calls(ct, CT_OP_WATCH), 0);
    int fault = ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO);
    CT_EQ(ct_fault_hits(ct, fault), 1);
}

CT_CASE(timeouts, waits_out_of_range_are_refused_and_nothing_is_sent) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    int64_t bad[] = {-2, -1000, INT64_MIN, DL_WAIT_MAX_MS + 1, INT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CT_STATUS(dl_trylock_for(lock, bad[i], DL_LEASE_AUTO, CT_ERR), DL_EINVAL);
    }
    CT_STATUS(dl_acquire(lock, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_lock(NULL, CT_ERR), DL_EINVAL);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.size = sizeof opts - 1;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 0);
    CT_OK(dl_trylock_for(lock, DL_WAIT_MAX_MS, DL_LEASE_AUTO, CT_ERR)); /* the longest is no overflow */
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- a server that does not answer: a call with a deadline ----------------------------------- */

/* Waits with this fault in the way; the call must end by its deadline, whatever it says. */
static void end_by_deadline(ct_t *ct, const ct_fault_t *fault, int hold_elsewhere) {
    dl_client_t *holder = ct_open(ct, LASTING), *client = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, holder, "orders"), *lock = ct_lock(ct, client, "orders");
    if (hold_elsewhere) {
        CT_OK(dl_lock(held, CT_ERR));
    }
    ct_fault_t mine = *fault;
    mine.client = client;
    mine.count = CT_ALWAYS;
    int number = ct_fault_add(ct, &mine);
    int64_t wait_ms = short_wait_ms(ct), start_ms = ct_now_ms(ct);
    dl_status_t status = dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, NULL);
    CT_LE(ct_now_ms(ct) - start_ms, wait_ms + ct_tolerance_ms(ct));
    CT_CHECKF(status == DL_EIO || status == DL_EUNKNOWN || status == DL_ETIMEDOUT, "it ended with %s",
              dl_status_name(status));
    CT_GT(ct_fault_hits(ct, number), 0);
    holds_nothing(ct, lock);
    ct_fault_end(ct, -1);
    if (hold_elsewhere) {
        CT_OK(dl_unlock(held, CT_ERR));
    }
    ct_expect_free(ct, "orders",
                   ct_call_timeout_ms(ct)); /* freed in the background, long before its lease ends */
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_no_try_is_answered) {
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_NEVER};
    end_by_deadline(ct, &fault, 0);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_tries_are_carried_out_in_silence) {
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_NEVER_ACTED};
    end_by_deadline(ct, &fault, 0);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_tries_arrive_too_late) {
    ct_fault_t fault = {
        .op = CT_OP_TRY, .mode = CT_LATE, .delay_ms = short_wait_ms(ct) + ct_call_timeout_ms(ct)};
    end_by_deadline(ct, &fault, 0);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_every_reply_is_lost) {
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_LOSE_REPLY};
    end_by_deadline(ct, &fault, 0);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_busy_answers_are_slow) {
    ct_fault_t fault = {.op = CT_OP_TRY,
                        .mode = CT_ANSWER,
                        .status = DL_EBUSY,
                        .busy_ms = 100000,
                        .busy_is_dlock = 1,
                        .delay_ms = short_wait_ms(ct) * 2 / 3};
    end_by_deadline(ct, &fault, 0);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_no_watch_is_answered, .needs = DL_CAP_NOTIFY) {
    ct_fault_t fault = {.op = CT_OP_WATCH, .mode = CT_NEVER};
    end_by_deadline(ct, &fault, 1);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_nothing_is_heard, .needs = DL_CAP_NOTIFY) {
    ct_fault_t fault = {.op = CT_OP_WOKEN, .mode = CT_LOSE_REPLY};
    end_by_deadline(ct, &fault, 1);
}

CT_CASE(timeouts, a_call_ends_by_its_deadline_when_the_server_goes_silent_in_the_middle,
        .needs = DL_CAP_NOTIFY) {
    ct_fault_t later = {.op = CT_OP_TRY, .mode = CT_NEVER, .skip = 1, .count = CT_ALWAYS};
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "orders");
    CT_OK(dl_lock(held, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    later.client = client;
    ct_fault_add(ct, &later);
    ct_fault_t watch = {.op = CT_OP_WATCH, .mode = CT_NEVER, .count = CT_ALWAYS, .client = client};
    ct_fault_add(ct, &watch);
    int64_t wait_ms = short_wait_ms(ct), start_ms = ct_now_ms(ct);
    CT_NE(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, NULL), DL_OK);
    CT_LE(ct_now_ms(ct) - start_ms, wait_ms + ct_tolerance_ms(ct));
}

/* ---- the other calls ------------------------------------------------------------------------- */

CT_CASE(timeouts, an_unlock_ends_in_time_and_is_an_unlock_whatever_the_server_does) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    static const ct_mode_t modes[] = {CT_FAIL_BEFORE, CT_LOSE_REQUEST, CT_LOSE_REPLY, CT_NEVER,
                                      CT_NEVER_ACTED};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        int fault = ct_fault(ct, CT_OP_RELEASE, modes[i], CT_ALWAYS);
        int64_t start_ms = ct_now_ms(ct);
        CT_STATUS(dl_unlock(lock, CT_ERR), modes[i] == CT_FAIL_BEFORE ? DL_EIO : DL_EUNKNOWN);
        CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
        holds_nothing(ct, lock);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
        ct_fault_end(ct, fault);
        /* Long before its lease is over; a background free may still wait for its own answer. */
        ct_expect_free(ct, "orders", ct_call_timeout_ms(ct) + 1000 + ct_tolerance_ms(ct));
    }
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0);
}

CT_CASE(timeouts, an_extension_ends_in_time_and_leaves_the_hold_as_it_was) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 30000, CT_ERR));
    int64_t from_ms = ends_from_ms(ct, lock), until_ms = ends_until_ms(ct, lock);
    static const ct_mode_t modes[] = {CT_FAIL_BEFORE, CT_LOSE_REQUEST, CT_LOSE_REPLY, CT_NEVER,
                                      CT_NEVER_ACTED};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        int fault = ct_fault(ct, CT_OP_RENEW, modes[i], CT_ALWAYS);
        int64_t start_ms = ct_now_ms(ct);
        CT_STATUS(dl_extend(lock, 60000, CT_ERR), modes[i] == CT_FAIL_BEFORE ? DL_EIO : DL_EUNKNOWN);
        CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
        CT_GE(ends_until_ms(ct, lock), from_ms - 2);
        CT_LE(ends_from_ms(ct, lock), until_ms + 2);
        ct_fault_end(ct, fault);
    }
    CT_OK(dl_extend(lock, 60000, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(timeouts, a_re_entry_that_asks_the_server_ends_in_time) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 30000, CT_ERR));
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, CT_ALWAYS);
    ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    int64_t wait_ms = short_wait_ms(ct), start_ms = ct_now_ms(ct);
    CT_EITHER(dl_trylock_for(lock, wait_ms, 60000, CT_ERR), DL_EUNKNOWN, DL_EIO);
    CT_LE(ct_now_ms(ct) - start_ms, wait_ms + ct_tolerance_ms(ct));
    start_ms = ct_now_ms(ct);
    CT_EITHER(dl_trylock_for(lock, DL_WAIT_FOREVER, 60000, CT_ERR), DL_EUNKNOWN, DL_EIO);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(dl_hold_count(lock), 1);
    ct_fault_end(ct, -1);
    CT_OK(dl_unlock(lock, CT_ERR));
}

static int count_one(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    (void)info;
    (*(int *)arg)++;
    return 0;
}

CT_CASE(timeouts, questions_of_an_administrator_end_in_time,
        .traits = CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    ct_fault(ct, CT_OP_INSPECT, CT_NEVER, CT_ALWAYS);
    ct_fault(ct, CT_OP_FORCE, CT_NEVER, CT_ALWAYS);
    ct_fault(ct, CT_OP_LIST, CT_NEVER, CT_ALWAYS);
    int64_t start_ms = ct_now_ms(ct);
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    CT_EITHER(dl_inspect(lock, &info, CT_ERR), DL_EIO, DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    start_ms = ct_now_ms(ct);
    CT_EITHER(dl_force_unlock(lock, CT_ERR), DL_EIO, DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    start_ms = ct_now_ms(ct);
    int listed = 0;
    CT_EITHER(dl_list(client, NULL, count_one, &listed, CT_ERR), DL_EIO, DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(listed, 0);
}

CT_CASE(timeouts, opening_ends_in_time_when_the_server_is_silent) {
    static const ct_mode_t modes[] = {CT_NEVER, CT_NEVER_ACTED, CT_FAIL_BEFORE, CT_LOSE_REPLY};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        int fault = ct_fault(ct, CT_OP_OPEN, modes[i], 1);
        int64_t start_ms = ct_now_ms(ct);
        dl_client_t *client;
        CT_STATUS(ct_try_open(ct, NULL, &client, CT_ERR), DL_EIO);
        CT_CHECK(client == NULL);
        CT_LE(ct_now_ms(ct) - start_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
        CT_EQ(ct_fault_hits(ct, fault), 1);
    }
    (void)ct_open(ct, NULL);
}
