/* unknown_cases.c - contract: requests whose reply was lost, and duplicates that arrive late. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "callers.h"

/* Was this hold, and no other, released after it was tried? */
static void check_freed(ct_t *ct, const ct_call_t *tried) {
    for (int i = 0; i < ct_calls(ct, CT_OP_RELEASE); i++) {
        ct_call_t release = ct_call(ct, CT_OP_RELEASE, i);
        if (release.hold_id == tried->hold_id) {
            CT_STR_EQ(release.owner, tried->owner);
            CT_STR_EQ(release.name, tried->name);
            CT_EQ(release.level, 0);
            return;
        }
    }
    CT_FAIL("no release of hold %llu", (unsigned long long)tried->hold_id);
}

CT_CASE(unknown, acquire_is_freed_in_the_background) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "reply lost");
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 1);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    ct_expect_free(ct, "reply lost", ct_tolerance_ms(ct));
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 0);
    check_freed(ct, &tried);
    CT_EQ(ct_stats(ct, c).unknown_outcomes, 1);
    CT_GE(ct_stats(ct, c).background_frees, 1);
    CT_EQ(ct_stats(ct, c).acquired, 0);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    ct_no_event(ct, c, 0, NULL, 0);
}

/* Two that the server is slow to free keep the workers of a driver that blocks. */
CT_CASE(unknown, a_free_behind_slow_ones_is_asked_although_its_lease_is_over) {
    dl_client_t *c = ct_open(ct, NULL);
    int64_t slow_ms = ct_call_timeout_ms(ct) * 3 / 4;
    CT_OK(dl_trylock_for(ct_lock(ct, c, "behind"), 0, slow_ms / 3, CT_ERR));
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 2);
    static const char *const slow[] = {"slow", "slow too"};
    for (size_t i = 0; i < 2; i++) {
        ct_fault_t late = {.op = CT_OP_RELEASE, .mode = CT_LATE, .delay_ms = slow_ms, .name = slow[i]};
        ct_fault_add(ct, &late);
        CT_STATUS(dl_trylock_for(ct_lock(ct, c, slow[i]), 0, 60000, CT_ERR), DL_EUNKNOWN);
    }
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_RELEASE, c, "behind"), >=, 1, 4 * slow_ms);
}

CT_CASE(unknown, acquire_is_tried_again_with_a_larger_hold_id) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "again");
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 2);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    /* Never busy with itself: there is nobody else to wait for. */
    CT_LE(ct_now_ms(ct) - before_ms, 1000 + ct_tolerance_ms(ct));
    CT_GE(ct_calls(ct, CT_OP_TRY), 3);
    for (int i = 1; i < ct_calls(ct, CT_OP_TRY); i++) {
        CT_GT(ct_call(ct, CT_OP_TRY, i).hold_id, ct_call(ct, CT_OP_TRY, i - 1).hold_id);
        CT_STR_EQ(ct_call(ct, CT_OP_TRY, i).owner, ct_call(ct, CT_OP_TRY, i - 1).owner);
    }
    /* The background frees of the first two must not touch the third. */
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    ct_expect_held(ct, "again");
    ct_call_t first = ct_call(ct, CT_OP_TRY, 0), second = ct_call(ct, CT_OP_TRY, 1);
    check_freed(ct, &first);
    check_freed(ct, &second);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "again", 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
}

CT_CASE(unknown, request_that_arrives_late_is_freed_too, .traits = CT_REPLAY) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "late");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REQUEST, 1);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    ct_sleep_ms(ct, lease_ms / 4);
    CT_AWAIT_THAT(ct_call(ct, CT_OP_RELEASE, -1).end_ns, !=, 0, ct_tolerance_ms(ct));
    /* What was sent arrives now, between two frees. The core cannot know, and so has to keep looking. */
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 0);
    int asked = ct_calls(ct, CT_OP_RELEASE);
    CT_GE(asked, 1);
    CT_EQ(ct_replay(ct, &tried), DL_OK);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), >, asked, 1000 + ct_tolerance_ms(ct));
    ct_expect_free(ct, "late", ct_tolerance_ms(ct));
    CT_EQ(dl_hold_count(lock), 0);
    /* Found and freed, it cannot come again: the looking ends. */
    asked = ct_calls(ct, CT_OP_RELEASE);
    ct_sleep_ms(ct, lease_ms / 2);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), asked);
}

CT_CASE(unknown, request_is_looked_for_no_longer_than_its_lease_could_last) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "gone");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REQUEST, 1);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    ct_sleep_ms(ct, lease_ms + ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    int asked = ct_calls(ct, CT_OP_RELEASE);
    CT_GE(asked, 3);
    ct_sleep_ms(ct, 2 * lease_ms);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), asked);
}

/* Many of a day's lease each would be all that a client does. */
CT_CASE(unknown, request_is_looked_for_ever_more_seldom, .traits = CT_VIRTUAL) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, LASTING), "long");
    const int64_t hour_ms = 3600000;
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REQUEST, 1);
    CT_STATUS(dl_trylock_for(lock, 0, hour_ms, CT_ERR), DL_EUNKNOWN);
    ct_sleep_ms(ct, hour_ms / 2);
    int asked = ct_calls(ct, CT_OP_RELEASE);
    CT_BETWEEN(asked, 10, 100);
    ct_sleep_ms(ct, hour_ms / 3);
    CT_BETWEEN(ct_calls(ct, CT_OP_RELEASE), asked + 1, asked + 10);
    ct_sleep_ms(ct, hour_ms / 4);
    asked = ct_calls(ct, CT_OP_RELEASE);
    ct_sleep_ms(ct, hour_ms);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), asked); /* its lease is over */
}

/* What is there is in others' way. */
CT_CASE(unknown, release_is_repeated_soon_after_a_long_outage, .traits = CT_VIRTUAL) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, LASTING), "long");
    const int64_t hour_ms = 3600000;
    CT_OK(dl_trylock_for(lock, 0, 2 * hour_ms, CT_ERR));
    int outage = ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, CT_ALWAYS);
    (void)CT_EITHER(dl_unlock(lock, CT_ERR), DL_EIO, DL_EUNKNOWN);
    ct_sleep_ms(ct, hour_ms);
    ct_fault_end(ct, outage);
    ct_expect_free(ct, "long", 1000 + ct_tolerance_ms(ct));
}

/* A server that stood still for longer carries out what was sent before, and only then its lease begins. */
CT_CASE(unknown, request_is_looked_for_while_the_server_is_silent, .traits = CT_REPLAY) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "still");
    int64_t lease_ms = ct_lease_ms(ct), timeout_ms = ct_call_timeout_ms(ct);
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REQUEST, 1);
    int silent = ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    ct_sleep_ms(ct, 2 * (lease_ms + timeout_ms));
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 0);
    int asked = ct_calls(ct, CT_OP_RELEASE);
    ct_fault_end(ct, silent);
    CT_EQ(ct_replay(ct, &tried), DL_OK);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), >, asked, 1000 + timeout_ms + ct_tolerance_ms(ct));
    ct_expect_free(ct, "still", ct_tolerance_ms(ct));
}

/* ---- late duplicates ------------------------------------------------------------------------- */

CT_CASE(unknown, late_duplicates_of_an_ended_hold_cannot_touch_a_newer_one,
        .traits = CT_REPLAY | CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "newer");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "newer"), >, 0, 5000);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    dl_lock_info_t before = ct_server_info(ct, "newer");
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 0), released = ct_call(ct, CT_OP_RELEASE, 0);
    ct_call_t renewed = ct_call(ct, CT_OP_RENEW, 0);
    CT_EQ(ct_replay(ct, &tried), DL_EBUSY);
    CT_EQ(ct_replay(ct, &renewed), DL_ELOST);
    CT_EQ(ct_replay(ct, &released), DL_ELOST);
    dl_lock_info_t after = ct_server_info(ct, "newer");
    CT_CHECK(after.held);
    CT_EQ(after.hold_id, before.hold_id);
    CT_EQ(after.token, before.token);
    CT_EQ(after.holds, before.holds);
    uint64_t before_now = ct_stats(ct, c).renewed;
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, before_now + 2, 5000);
    ct_no_event(ct, c, 0, NULL, 0);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "newer", 0);
}

CT_CASE(unknown, late_duplicate_after_the_release_is_nobodys_and_dies_by_itself, .traits = CT_REPLAY) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, a, "ghost"), *theirs = ct_lock(ct, b, "ghost");
    int64_t lease_ms = ct_lease_ms(ct);
    CT_OK(dl_lock(mine, CT_ERR));
    CT_OK(dl_unlock(mine, CT_ERR));
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 0);
    int64_t before_ms = ct_now_ms(ct);
    CT_EQ(ct_replay(ct, &tried), DL_OK);
    CT_EQ(dl_hold_count(mine), 0);
    CT_STATUS(dl_unlock(mine, CT_ERR), DL_ENOTOWNER);
    CT_STATUS(dl_trylock(theirs, CT_ERR), DL_EBUSY);
    /* Nobody renews it: another owner has it when the lease is over. */
    CT_OK(dl_trylock_for(theirs, 2 * lease_ms, DL_LEASE_AUTO, CT_ERR));
    CT_LE(ct_now_ms(ct) - before_ms, lease_ms + 500 + ct_tolerance_ms(ct));
    CT_EQ(ct_calls_of(ct, CT_OP_RENEW, a, "ghost"), 0);
    CT_OK(dl_unlock(theirs, CT_ERR));
    /* The owner itself does not wait for its own ghost. */
    CT_EQ(ct_replay(ct, &tried), DL_OK);
    CT_OK(dl_trylock(mine, CT_ERR));
    CT_OK(dl_unlock(mine, CT_ERR));
    ct_expect_free(ct, "ghost", 0);
}

/* ---- unlock ---------------------------------------------------------------------------------- */

/* An unlock whose request goes wrong like this; then the same thread locks again. */
static void lose_an_unlock(ct_t *ct, ct_mode_t mode, dl_status_t expected) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "unlock lost");
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t first_token = dl_token(lock);
    ct_fault(ct, CT_OP_RELEASE, mode, 1);
    CT_STATUS(dl_unlock(lock, CT_ERR), expected);
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct) + (ct_caps(ct) & DL_CAP_SESSION ? 500 : 0));
    if (ct_caps(ct) & DL_CAP_FENCE) {
        CT_GT(dl_token(lock), first_token);
    }
    /* The background free of the old hold must not free the new one. */
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 2 * ct_lease_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    ct_expect_held(ct, "unlock lost");
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "unlock lost", 0);
}

CT_CASE(unknown, unlock_whose_reply_is_lost_is_free_here_at_once) {
    lose_an_unlock(ct, CT_LOSE_REPLY, DL_EUNKNOWN);
}

CT_CASE(unknown, unlock_whose_request_is_lost_does_not_keep_its_own_thread_out) {
    lose_an_unlock(ct, CT_LOSE_REQUEST, DL_EUNKNOWN);
}

CT_CASE(unknown, unlock_that_never_left_does_not_keep_its_own_thread_out) {
    lose_an_unlock(ct, CT_FAIL_BEFORE, DL_EIO);
}

CT_CASE(unknown, unlock_is_repeated_in_the_background_until_it_is_heard) {
    dl_client_t *c = ct_open(ct, "lease: 60s");
    dl_lock_t *lock = ct_lock(ct, c, "unheard");
    CT_OK(dl_lock(lock, CT_ERR));
    int renewals = renewals_of(ct, "unheard");
    int fault = ct_fault(ct, CT_OP_RELEASE, CT_LOSE_REQUEST, 4);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), >=, 5, 1000 + ct_tolerance_ms(ct));
    ct_expect_free(ct, "unheard", ct_tolerance_ms(ct));
    CT_EQ(ct_fault_hits(ct, fault), 4);
    CT_EQ(ct_call(ct, CT_OP_RELEASE, 4).status, DL_OK);
    CT_EQ(ct_call(ct, CT_OP_RELEASE, 4).hold_id, ct_call(ct, CT_OP_TRY, 0).hold_id);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 5);
    CT_EQ(renewals_of(ct, "unheard"), renewals);
}

CT_CASE(unknown, extension_leaves_the_hold_as_long_as_before) {
    dl_client_t *c = ct_open(ct, "lease: 60s\nrenew_every: 2s"); /* the extensions come first */
    dl_lock_t *lock = ct_lock(ct, c, "extended");
    CT_OK(dl_lock(lock, CT_ERR));
    int64_t until_ms = ends_until_ms(ct, lock);
    ct_fault(ct, CT_OP_RENEW, CT_LOSE_REPLY, 1);
    CT_STATUS(dl_extend(lock, 600000, CT_ERR), DL_EUNKNOWN);
    CT_LE(ends_from_ms(ct, lock), until_ms + 1);
    CT_GT(dl_valid_ms(lock), 0);
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, 1);
    CT_STATUS(dl_extend(lock, 600000, CT_ERR), DL_EIO);
    CT_EQ(dl_hold_count(lock), 1);
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, 5000);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 0);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- servers that do not answer -------------------------------------------------------------- */

/* How long the call took; it must not have got the lock. */
static int64_t fail_to_lock(ct_t *ct, dl_lock_t *lock, int64_t wait_ms) {
    int64_t before_ms = ct_now_ms(ct);
    CT_EITHER(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, CT_ERR), DL_EIO, DL_EUNKNOWN);
    CT_EQ(dl_hold_count(lock), 0);
    return ct_now_ms(ct) - before_ms;
}

CT_CASE(unknown, server_that_never_answers_ends_every_call_in_time) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "mute");
    int64_t timeout_ms = ct_call_timeout_ms(ct);
    ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    CT_BETWEEN(fail_to_lock(ct, lock, 0), timeout_ms - 1, timeout_ms + ct_tolerance_ms(ct));
    CT_BETWEEN(fail_to_lock(ct, lock, timeout_ms / 4), timeout_ms / 4 - 1,
               timeout_ms / 4 + ct_tolerance_ms(ct));
    /* A server that blocks its waiters may do so for a second before its silence means anything. */
    int64_t blocked_ms = ct_caps(ct) & DL_CAP_NATIVE_WAIT ? 1000 : 0;
    CT_BETWEEN(fail_to_lock(ct, lock, 10 * timeout_ms), timeout_ms - 1,
               timeout_ms + blocked_ms + ct_tolerance_ms(ct));
    CT_BETWEEN(fail_to_lock(ct, lock, DL_WAIT_FOREVER), timeout_ms - 1,
               timeout_ms + blocked_ms + ct_tolerance_ms(ct));
}

CT_CASE(unknown, server_that_cannot_be_reached_is_tried_for_call_timeout) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "refused");
    int64_t timeout_ms = ct_call_timeout_ms(ct);
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 1);
    int64_t before_ms = ct_now_ms(ct);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_EIO);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, timeout_ms / 2, timeout_ms + ct_tolerance_ms(ct));
    CT_GE(ct_calls(ct, CT_OP_TRY), 4);
    CT_BETWEEN(fail_to_lock(ct, lock, timeout_ms / 2), timeout_ms / 4, timeout_ms / 2 + ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).unknown_outcomes, 0);
}

CT_CASE(unknown, server_that_comes_back_in_time_is_no_failure) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "back");
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 3);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(ct_calls(ct, CT_OP_TRY), 4);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(unknown, trouble_that_begins_while_waiting_is_survived) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, a, "trouble"), *theirs = ct_lock(ct, b, "trouble");
    CT_OK(dl_lock(mine, CT_ERR));
    caller_t waiter = CALLER(theirs, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, b, 1, 5000);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, b, NULL), >=, 1, 5000);
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_LOSE_REPLY, .count = 2, .client = b};
    ct_fault_add(ct, &fault);
    CT_OK(dl_unlock(mine, CT_ERR));
    end_caller(ct, &waiter, DL_OK);
    ct_expect_free(ct, "trouble", 500 + ct_tolerance_ms(ct));
}

CT_CASE(unknown, yes_that_comes_after_its_validity_is_no_yes) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "too late");
    int64_t lease_ms = ct_traits(ct) & CT_VIRTUAL ? 500 : DL_LEASE_MIN_MS;
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 3 * lease_ms};
    ct_fault_add(ct, &fault);
    CT_STATUS(dl_trylock_for(lock, 0, lease_ms, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(ct_stats(ct, c).acquired, 0);
    ct_expect_free(ct, "too late", ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, 0);
    CT_OK(dl_trylock(lock, CT_ERR));
}

/* The status of a call that had no memory itself, and changed nothing. */
CT_CASE(unknown, no_memory_of_a_backend_for_an_unlock_is_a_failure_of_the_backend) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    ct_fault_t fault = {.op = CT_OP_RELEASE, .mode = CT_FAIL_BEFORE, .status = DL_ENOMEM, .count = 1};
    ct_fault_add(ct, &fault);
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EIO);
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_free(ct, "orders", 5000);
}
