/* loss_cases.c - contract: how a lost lock is noticed, told, and left behind without harm to anybody. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "callers.h"

CT_CASE(loss, is_told_exactly_once_when_validity_ends) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "short");
    int64_t lease_ms = ct_lease_ms(ct) / 2, before_ms = ct_now_ms(ct);
    take(ct, lock, lease_ms);
    uint64_t token = dl_token(lock);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, NULL, lease_ms + ct_tolerance_ms(ct));
    CT_BETWEEN(ct_now_ms(ct) - before_ms, validity_of(lease_ms) - 1,
               validity_of(lease_ms) + ct_tolerance_ms(ct));
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 0);
    CT_STR_EQ(lost.name, "short");
    CT_STR_EQ(lost.owner, tried.owner);
    CT_EQ(lost.hold_id, tried.hold_id);
    CT_EQ(lost.token, token);
    CT_EQ(lost.status, DL_ETIMEDOUT);
    CT_EQ(lost.valid_ms, 0);
    CT_GT(lost.text[0], 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_EQ(dl_hold_count(lock), 1);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_no_event(ct, c, 0, NULL, 2 * lease_ms);
    CT_EQ(ct_stats(ct, c).lost, 1);
    CT_EQ(ct_stats(ct, c).held_now, 0);
}

CT_CASE(loss, by_validity_is_seen_by_arithmetic_before_any_event) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "arithmetic");
    int64_t lease_ms = ct_lease_ms(ct);
    take(ct, lock, lease_ms);
    int64_t granted_ms = (int64_t)(ct_call(ct, CT_OP_TRY, 0).sent_ns / 1000000u);
    int64_t valid_ms = dl_valid_ms(lock);
    CT_LE(valid_ms, validity_of(lease_ms));
    CT_GE(ct_now_ms(ct) + valid_ms, granted_ms + validity_of(lease_ms) - 2);
    ct_sleep_ms(ct, valid_ms / 2);
    CT_LE(dl_valid_ms(lock), valid_ms - valid_ms / 2 + 1);
    CT_GT(dl_valid_ms(lock), 0);
    ct_sleep_ms(ct, valid_ms - valid_ms / 2 + 1);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(loss, after_a_wipe_is_noticed_by_the_next_renewal, .traits = CT_CAN_FORCE) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "wiped");
    int64_t lease_ms = ct_lease_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_wipe(ct, "wiped");
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "wiped", LASTING_EVERY_MS + ct_tolerance_ms(ct));
    int renewals = renewals_of(ct, "wiped"); /* 1, or one more if it came before the wipe */
    CT_EQ(lost.status, DL_ELOST);
    CT_EQ(dl_valid_ms(lock), 0);
    /* Nothing brings it back. */
    for (int i = 0; i < 8; i++) {
        ct_expect_free(ct, "wiped", 0);
        ct_sleep_ms(ct, lease_ms / 4);
    }
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_EQ(renewals_of(ct, "wiped"), renewals);
    ct_no_event(ct, c, 0, NULL, 0);
    CT_OK(dl_trylock(lock, CT_ERR));
}

/* Every call of an owner that has lost a hold of `levels` levels and not unlocked any. */
static void check_lost_levels(ct_t *ct, dl_lock_t *lock, uint32_t levels) {
    for (uint32_t left = levels; left > 0; left--) {
        CT_EQ(dl_hold_count(lock), left);
        CT_EQ(dl_valid_ms(lock), 0);
        CT_EQ(dl_token(lock), 0);
        CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
        CT_HAS(ct_last_err()->message, left == 1 ? " with 1 level still entered; unlock it first"
                                                 : " levels still entered; unlock them first");
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_ELOST);
        CT_STATUS(dl_trylock_for(lock, 1000, DL_LEASE_MIN_MS, CT_ERR), DL_ELOST);
        CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_ELOST);
        CT_EQ(dl_hold_count(lock), left);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    }
    CT_EQ(dl_hold_count(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_ENOTOWNER);
}

CT_CASE(loss, has_to_be_unlocked_level_by_level_and_leaves_the_successor_alone, .traits = CT_CAN_FORCE) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, a, "levels"), *next = ct_lock(ct, b, "levels");
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
    }
    ct_wipe(ct, "levels");
    CT_OK(dl_trylock(next, CT_ERR));
    uint64_t token = dl_token(next);
    ct_expect_event(ct, a, DL_EVENT_LOST, "levels", LASTING_EVERY_MS + ct_tolerance_ms(ct));
    check_lost_levels(ct, lock, 3);
    CT_GT(dl_valid_ms(next), 0);
    CT_EQ(dl_token(next), token);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    ct_expect_held(ct, "levels");
    ct_no_event(ct, b, DL_EVENT_LOST, NULL, 4 * LASTING_EVERY_MS);
    CT_OK(dl_unlock(next, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_no_event(ct, a, 0, NULL, 0);
}

CT_CASE(loss, found_by_an_unlock_is_told_and_frees_the_gate, .traits = CT_CAN_FORCE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "found");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_wipe(ct, "found");
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_event(ct, c, DL_EVENT_LOST, "found", ct_tolerance_ms(ct));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).lost, 1);
}

CT_CASE(loss, opens_the_gate_to_the_next_thread_of_the_process) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "gate");
    int64_t lease_ms = ct_lease_ms(ct), before_ms = ct_now_ms(ct);
    take(ct, lock, lease_ms);
    caller_t next = CALLER(lock, DL_WAIT_FOREVER);
    next.keep = ct_latch(ct, 1);
    start_caller(ct, &next);
    ct_await_waiting(ct, c, 1, 5000);
    CT_AWAIT_THAT(next.ended_ms, !=, 0, 2 * lease_ms);
    CT_EQ(next.status, DL_OK);
    CT_BETWEEN(next.ended_ms - before_ms, validity_of(lease_ms) - 1, lease_ms + 500 + ct_tolerance_ms(ct));
    /* The loser's levels are its own business, and its unlock frees nothing of the successor's. */
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    ct_expect_held(ct, "gate");
    ct_latch_down(ct, next.keep);
    end_caller(ct, &next, DL_OK);
    CT_EQ(ct_stats(ct, c).lost, 1);
}

/* ---- max_hold -------------------------------------------------------------------------------- */

/* The lock was just taken, not before asked_ms, and may be held for max_ms. */
static void check_max_hold(ct_t *ct, dl_client_t *c, dl_lock_t *lock, int64_t asked_ms, int64_t max_ms) {
    int64_t before_ms = ct_now_ms(ct);
    CT_LE(dl_valid_ms(lock), max_ms);
    ct_sleep_ms(ct, max_ms - ct_lease_ms(ct) / 8);
    int64_t looked_ms = ct_now_ms(ct), valid_ms = dl_valid_ms(lock);
    CT_CHECK(valid_ms == 0 || valid_ms <= max_ms - (looked_ms - before_ms) + 1);
    CT_CHECKF(valid_ms > 0 || ct_now_ms(ct) - asked_ms >= max_ms - ct_tolerance_ms(ct) / 2,
              "over %lld ms after it was asked for", (long long)(ct_now_ms(ct) - asked_ms));
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "bounded", max_ms);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, max_ms - ct_tolerance_ms(ct) / 2, max_ms + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ETIMEDOUT);
    CT_EQ(dl_valid_ms(lock), 0);
    int renewed = renewals_of(ct, "bounded");
    ct_expect_free(ct, "bounded", ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    CT_EQ(renewals_of(ct, "bounded"), renewed);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(loss, ends_a_hold_at_the_max_hold_of_the_call) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "bounded");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.max_hold_ms = 2 * ct_lease_ms(ct) + ct_lease_ms(ct) / 2;
    int64_t asked_ms = ct_now_ms(ct);
    CT_OK(dl_acquire(lock, &opts, CT_ERR));
    check_max_hold(ct, c, lock, asked_ms, opts.max_hold_ms);
    CT_GE(ct_stats(ct, c).renewed, 3);
}

CT_CASE(loss, ends_a_hold_at_the_max_hold_of_the_client) {
    dl_client_t *c = ct_open(ct, ct_traits(ct) & CT_VIRTUAL ? "max_hold: 15s" : "max_hold: 200ms");
    dl_lock_t *lock = ct_lock(ct, c, "bounded");
    int64_t asked_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    check_max_hold(ct, c, lock, asked_ms, ct_traits(ct) & CT_VIRTUAL ? 15000 : 200);
}

/* ---- a suspended machine --------------------------------------------------------------------- */

CT_CASE(loss, by_a_suspend_is_seen_by_the_very_next_question, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "suspended");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_suspend_ms(ct, 2 * ct_lease_ms(ct));
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    int64_t before_ms = ct_now_ms(ct);
    ct_expect_event(ct, c, DL_EVENT_LOST, "suspended", ct_tolerance_ms(ct));
    CT_LE(ct_now_ms(ct) - before_ms, 1);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
}

CT_CASE(loss, by_a_suspend_is_told_at_once_without_any_call, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    CT_OK(dl_lock(ct_lock(ct, c, "suspended"), CT_ERR));
    ct_sleep_ms(ct, 1);
    ct_suspend_ms(ct, 2 * ct_lease_ms(ct));
    int64_t before_ms = ct_now_ms(ct);
    ct_expect_event(ct, c, DL_EVENT_LOST, "suspended", ct_tolerance_ms(ct));
    CT_LE(ct_now_ms(ct) - before_ms, 1);
}

/* The machine says so as it says that it has slept. */
CT_CASE(loss, of_a_request_is_none_of_a_wall_clock_that_is_set, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "set");
    ct_fault_t late = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .count = 1, .delay_ms = 100};
    int fault = ct_fault_add(ct, &late);
    caller_t caller = CALLER(lock, 1000);
    start_caller(ct, &caller);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), ==, 1, 1000);
    ct_suspend_ms(ct, 0);
    end_caller(ct, &caller, DL_OK);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 1);
    CT_EQ(ct_stats(ct, c).unknown_outcomes, 0);
}

CT_CASE(loss, is_no_matter_of_a_suspend_shorter_than_the_lease, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "nap");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_sleep_ms(ct, 1);
    ct_suspend_ms(ct, ct_lease_ms(ct) * 8 / 10);
    CT_GT(dl_valid_ms(lock), 0);
    ct_sleep_ms(ct, 10);
    /* The renewal that came due meanwhile was made as soon as the machine was back. */
    CT_EQ(renewals_of(ct, "nap"), 1);
    CT_GT(dl_valid_ms(lock), ct_lease_ms(ct) * 9 / 10);
    ct_no_event(ct, c, 0, NULL, 2 * ct_lease_ms(ct));
    CT_OK(dl_unlock(lock, CT_ERR));
}
