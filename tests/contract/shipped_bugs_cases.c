/* shipped_bugs_cases.c - contract: bugs that other lock libraries have shipped, each as a promise of ours. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "callers.h"

#define NS_PER_MS 1000000

CT_CASE(shipped_bugs, a_failed_renewal_is_scheduled_again) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "once");
    CT_OK(dl_lock(lock, CT_ERR));
    /* One failure of each kind, and renewals afterwards. */
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, 1);
    ct_fault(ct, CT_OP_RENEW, CT_LOSE_REQUEST, 1);
    ct_fault(ct, CT_OP_RENEW, CT_LOSE_REPLY, 1);
    CT_AWAIT_THAT(renewals_of(ct, "once"), >=, 3 + 5, 10000);
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(shipped_bugs, nothing_is_renewed_after_a_failed_unlock) {
    dl_client_t *c = ct_open(ct, "lease: 2s\nrenew_every: 200ms");
    dl_lock_t *lock = ct_lock(ct, c, "failed");
    int64_t lease_ms = 2000;
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "failed"), >=, 1, lease_ms);
    ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EIO);
    int renewals = renewals_of(ct, "failed");
    ct_expect_free(ct, "failed", lease_ms + ct_tolerance_ms(ct)); /* by its lease, as nobody renews it */
    CT_EQ(renewals_of(ct, "failed"), renewals);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 0);
}

CT_CASE(shipped_bugs, a_nested_acquire_starts_no_second_renewer) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "nested"), *again = ct_lock(ct, c, "nested");
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(again, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "nested"), >=, 4, 5000);
    CT_LE(renewals_of(ct, "nested"), renewals_since(ct, before_ms, LASTING_EVERY_MS));
    CT_OK(dl_unlock(again, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "nested"), >=, 8, 5000); /* still held by the first level */
    CT_LE(renewals_of(ct, "nested"), renewals_since(ct, before_ms, LASTING_EVERY_MS));
    CT_OK(dl_unlock(lock, CT_ERR));
    int before = renewals_of(ct, "nested");
    ct_sleep_ms(ct, 4 * LASTING_EVERY_MS);
    CT_EQ(renewals_of(ct, "nested"), before);
    ct_expect_free(ct, "nested", 0);
}

CT_CASE(shipped_bugs, a_resent_acquire_counts_once, .traits = CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "count");
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 1);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(ct_server_info(ct, "count").holds, 1);
    /* The second level, its reply lost too: the core's count decides. */
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_LOSE_REPLY, .level = 2};
    ct_fault_add(ct, &fault);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(dl_hold_count(lock), 2);
    CT_LE(ct_server_info(ct, "count").holds, 2);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(ct_server_info(ct, "count").holds, 1);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "count", 0);
}

CT_CASE(shipped_bugs, a_late_duplicate_of_a_level_does_not_keep_the_lock, .needs = DL_CAP_SERVER_COUNT,
        .traits = CT_REPLAY) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "levels");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(ct_server_info(ct, "levels").holds, 2);
    ct_call_t second = ct_call(ct, CT_OP_TRY, -1);
    CT_EQ(second.level, 2);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(ct_replay(ct, &second), DL_OK); /* the count of the server is wrong now */
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "levels", 0);
    CT_EQ(ct_replay(ct, &second), DL_ELOST); /* a level above 1 never creates */
    ct_expect_free(ct, "levels", 0);
}

CT_CASE(shipped_bugs, an_interrupted_waiter_leaves_nothing) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "interrupted");
    ct_fault(ct, CT_OP_TRY, CT_NEVER_ACTED, 1);
    caller_t caller = CALLER(lock, DL_WAIT_FOREVER);
    CT_OK(dl_cancel_new(&caller.opts.cancel, CT_ERR));
    start_caller(ct, &caller);
    ct_await_held(ct, "interrupted", 5000); /* the server has acted, and says nothing */
    dl_cancel_trigger(caller.opts.cancel);
    end_caller(ct, &caller, DL_ECANCELED);
    ct_expect_free(ct, "interrupted", ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    ct_expect_free(ct, "interrupted", 0);
    dl_cancel_free(caller.opts.cancel);
}

CT_CASE(shipped_bugs, re_entry_does_not_reset_the_lease, .traits = CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "lease");
    int64_t lease_ms = ct_lease_ms(ct);
    take(ct, lock, 600000);
    int64_t until_ms = ends_from_ms(ct, lock);
    static const int64_t leases_ms[] = {DL_LEASE_MIN_MS, DL_LEASE_AUTO, 1000};
    for (int i = 0; i < 3; i++) {
        take(ct, lock, leases_ms[i]);
        CT_GE(ends_until_ms(ct, lock), until_ms - 1);
        CT_GT(ct_server_info(ct, "lease").remaining_ms, 540000);
    }
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_GE(ends_until_ms(ct, lock), until_ms - 1);
        CT_GT(ct_server_info(ct, "lease").remaining_ms, 540000);
    }
    /* And the next hold does not have the lease of the last. */
    CT_OK(dl_unlock(lock, CT_ERR));
    take(ct, lock, lease_ms);
    CT_LE(dl_valid_ms(lock), lease_ms);
    CT_LE(ct_server_info(ct, "lease").remaining_ms, lease_ms);
}

CT_CASE(shipped_bugs, a_missed_unlock_message_costs_time_and_not_the_lock, .needs = DL_CAP_NOTIFY) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "missed");
    int64_t lease_ms = ct_lease_ms(ct);
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(ct_lock(ct, b, "missed"), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_hearing(ct, b, "missed", 5000);
    int fault = ct_fault(ct, CT_OP_WOKEN, CT_LOSE_REPLY, CT_ALWAYS);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_GT(ct_fault_hits(ct, fault), 0);
    CT_LE(waiter.ended_ms - before_ms, lease_ms + ct_tolerance_ms(ct));
}

/* backoff_max, unless it is set. */
#define BACKOFF_MAX_MS 500

CT_CASE(shipped_bugs, a_holder_without_a_lease_is_looked_at_by_the_backoff, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    ct_fault_t busy = {.op = CT_OP_TRY, .mode = CT_ANSWER, .count = 20, .status = DL_EBUSY, .busy_ms = -1};
    int fault = ct_fault_add(ct, &busy);
    caller_t waiter = CALLER(ct_lock(ct, c, "no end"), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    end_caller(ct, &waiter, DL_OK);
    CT_EQ(ct_fault_hits(ct, fault), 20);
    CT_LE(waiter.ended_ms - waiter.began_ms, 20 * (BACKOFF_MAX_MS + ct_tolerance_ms(ct)));
    for (int i = 1; i < ct_calls(ct, CT_OP_TRY); i++) {
        uint64_t pause_ns = ct_call(ct, CT_OP_TRY, i).begin_ns - ct_call(ct, CT_OP_TRY, i - 1).begin_ns;
        CT_LE(pause_ns / 1000000u, BACKOFF_MAX_MS + ct_tolerance_ms(ct));
    }
}

CT_CASE(shipped_bugs, a_holder_of_another_kind_is_looked_at_by_the_backoff, .needs = DL_CAP_NOTIFY,
        .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    /* It will not notify, and has an hour left. */
    ct_fault_t busy = {
        .op = CT_OP_TRY, .mode = CT_ANSWER, .count = 60, .status = DL_EBUSY, .busy_ms = 3600000};
    ct_fault_add(ct, &busy);
    caller_t waiter = CALLER(ct_lock(ct, c, "foreign"), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    end_caller(ct, &waiter, DL_OK);
    CT_BETWEEN(waiter.ended_ms - waiter.began_ms, 100, 60 * (BACKOFF_MAX_MS + ct_tolerance_ms(ct)));
}

CT_CASE(shipped_bugs, a_renewal_never_takes_the_lock_from_its_successor,
        .traits = CT_CAN_FORCE | CT_CAN_INSPECT, .needs = DL_CAP_LEASE) {
    dl_client_t *a = ct_open(ct, LASTING "\ncall_timeout: 10s"),
                *b = ct_open(ct, LASTING "\ncall_timeout: 10s");
    dl_lock_t *old = ct_lock(ct, a, "taken"), *new = ct_lock(ct, b, "taken");
    CT_OK(dl_lock(old, CT_ERR));
    /* Between the core's decision to renew and the server, the lock changes hands. */
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, a, "taken");
    ct_pause_await(ct, pause, 5000);
    ct_wipe(ct, "taken");
    CT_OK(dl_trylock(new, CT_ERR));
    dl_lock_info_t before = ct_server_info(ct, "taken");
    ct_pause_go(ct, pause);
    dl_event_t lost = ct_expect_event(ct, a, DL_EVENT_LOST, "taken", ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ELOST);
    dl_lock_info_t after = ct_server_info(ct, "taken");
    CT_STR_EQ(after.owner, before.owner);
    CT_EQ(after.hold_id, before.hold_id);
    CT_AWAIT_THAT(ct_stats(ct, b).renewed, >=, 2, 5000);
    ct_no_event(ct, b, 0, NULL, 0);
    CT_GT(dl_valid_ms(new), 0);
    CT_STATUS(dl_unlock(old, CT_ERR), DL_ELOST);
    CT_OK(dl_unlock(new, CT_ERR));
}

CT_CASE(shipped_bugs, validity_does_not_count_from_the_reply) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "slow");
    int64_t lease_ms = ct_lease_ms(ct), delay_ms = lease_ms / 20;
    ct_fault_t slow = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = delay_ms};
    ct_fault_add(ct, &slow);
    CT_OK(dl_trylock_for(lock, 0, lease_ms, CT_ERR));
    ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
    CT_GE(call.end_ns - call.begin_ns, delay_ms * NS_PER_MS);
    CT_LE(ends_from_ms(ct, lock), (int64_t)call.sent_ns / NS_PER_MS + 1 + validity_of(lease_ms) + 1);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(shipped_bugs, releasing_an_expired_lock_returns_at_once) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "expired");
    take(ct, lock, DL_LEASE_MIN_MS);
    ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS); /* and does not need the server */
    ct_sleep_ms(ct, DL_LEASE_MIN_MS + 10);
    int64_t before_ms = ct_now_ms(ct);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_LE(ct_now_ms(ct) - before_ms, ct_traits(ct) & CT_VIRTUAL ? 0 : ct_tolerance_ms(ct) / 2);
    ct_fault_end(ct, -1);
}

CT_CASE(shipped_bugs, expiry_reopens_the_gate_in_the_process) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "expired", 1), *next = ct_lock_owned(ct, c, "expired", 2);
    take(ct, lock, DL_LEASE_MIN_MS);
    CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
    ct_sleep_ms(ct, 2 * DL_LEASE_MIN_MS);
    CT_OK(dl_trylock(next, CT_ERR)); /* although the first was never unlocked */
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_GT(dl_valid_ms(next), 0);
    CT_OK(dl_unlock(next, CT_ERR));
}

#define BUSY_NAMES 24
#define FREE_NAMES 200

CT_CASE(shipped_bugs, busy_names_never_hold_up_free_ones) {
    dl_client_t *holder = ct_open(ct, NULL), *c = ct_open(ct, NULL);
    caller_t waiters[BUSY_NAMES];
    char name[32];
    for (int i = 0; i < BUSY_NAMES; i++) {
        snprintf(name, sizeof name, "busy-%d", i);
        CT_OK(dl_lock(ct_lock(ct, holder, name), CT_ERR));
        waiters[i] = (caller_t)CALLER(ct_lock(ct, c, name), DL_WAIT_FOREVER);
        start_caller(ct, &waiters[i]);
    }
    ct_await_waiting(ct, c, BUSY_NAMES, 5000);
    for (int i = 0; i < FREE_NAMES; i++) {
        snprintf(name, sizeof name, "free-%d", i);
        dl_lock_t *lock = ct_lock(ct, c, name);
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
    }
    ct_close(ct, holder);
    for (int i = 0; i < BUSY_NAMES; i++) {
        end_caller(ct, &waiters[i], DL_OK);
    }
}
