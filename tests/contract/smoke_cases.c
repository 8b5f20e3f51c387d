/* smoke_cases.c - few cases that prove the harness itself: every driver, time, faults, processes. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "callers.h"

CT_CASE(smoke, a_lock_excludes_another_client) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, a, "orders"), *theirs = ct_lock(ct, b, "orders");
    CT_OK(dl_lock(mine, CT_ERR));
    ct_expect_held(ct, "orders");
    CT_STATUS(dl_trylock(theirs, CT_ERR), DL_EBUSY);
    CT_STATUS(dl_unlock(theirs, CT_ERR), DL_ENOTOWNER);
    CT_OK(dl_unlock(mine, CT_ERR));
    ct_expect_free(ct, "orders", 0);
    CT_OK(dl_trylock(theirs, CT_ERR));
    CT_OK(dl_unlock(theirs, CT_ERR));
}

static void wait_for_lock(ct_t *ct, void *arg) {
    dl_lock_t *lock = arg;
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(smoke, a_waiter_of_another_client_gets_the_lock_after_the_unlock) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, a, "orders"), *theirs = ct_lock(ct, b, "orders");
    CT_OK(dl_lock(mine, CT_ERR));
    ct_thread_t *waiter = ct_thread(ct, wait_for_lock, theirs);
    ct_await_waiting(ct, b, 1, 1000);
    ct_sleep_ms(ct, ct_lease_ms(ct) * 2); /* the watchdog keeps it meanwhile */
    CT_CHECK(!ct_thread_done(ct, waiter));
    CT_GT(dl_valid_ms(mine), 0);
    CT_GE(ct_calls(ct, CT_OP_RENEW), 4);
    CT_OK(dl_unlock(mine, CT_ERR));
    ct_join(ct, waiter);
    CT_EQ(ct_stats(ct, b).acquired, 1);
}

CT_CASE(smoke, renewals_without_an_answer_end_in_one_loss) {
    dl_client_t *a = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, a, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    int64_t start = ct_now_ms(ct);
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, CT_ALWAYS);
    ct_expect_event(ct, a, DL_EVENT_RENEWAL_FAILING, "orders", BRIEF_MS);
    ct_expect_event(ct, a, DL_EVENT_LOST, "orders", BRIEF_MS + ct_tolerance_ms(ct));
    CT_BETWEEN(ct_now_ms(ct) - start, 1, BRIEF_MS + ct_tolerance_ms(ct));
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_no_event(ct, a, DL_EVENT_LOST, "orders", ct_lease_ms(ct));
}

CT_CASE(smoke, a_wiped_lock_is_lost_at_the_next_renewal, .traits = CT_CAN_FORCE) {
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, a, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_wipe(ct, "orders");
    ct_expect_event(ct, a, DL_EVENT_LOST, "orders", ct_lease_ms(ct) / 2 + ct_tolerance_ms(ct));
    ct_expect_free(ct, "orders", 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(smoke, a_lost_reply_is_unknown_and_freed_in_the_background) {
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, a, "orders");
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 1);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    ct_expect_free(ct, "orders", ct_lease_ms(ct) / 2);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

static void lock_in_thread(ct_t *ct, void *arg) {
    CT_OK(dl_trylock(arg, CT_ERR));
}

CT_CASE(smoke, a_call_can_be_stopped_between_the_reply_and_its_return) {
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, a, "orders", 7);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_AFTER, a, "orders");
    ct_thread_t *thread = ct_thread(ct, lock_in_thread, lock);
    ct_pause_await(ct, pause, 1000);
    ct_expect_held(ct, "orders");
    CT_EQ(dl_hold_count(lock), 0);
    ct_pause_go(ct, pause);
    ct_join(ct, thread);
    CT_EQ(dl_hold_count(lock), 1);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(smoke, a_late_duplicate_can_be_replayed, .traits = CT_REPLAY) {
    dl_client_t *a = ct_open(ct, "lease: 1s");
    dl_lock_t *lock = ct_lock(ct, a, "orders");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_call_t late = ct_call(ct, CT_OP_TRY, -1);
    CT_EQ(late.lease_ms, 1000);
    CT_EQ(ct_replay(ct, &late), DL_OK);
    ct_expect_held(ct, "orders");
    ct_expect_free(ct, "orders", 1000 + ct_tolerance_ms(ct));
}

static void hold_and_report(ct_t *ct, void *arg) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), arg);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_send(ct, NULL, dl_valid_ms(lock));
    (void)ct_recv(ct, NULL);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(smoke, a_killed_process_leaves_the_lock_to_the_next, .traits = CT_PROCESSES) {
    char name[] = "orders";
    ct_process_t *victim = ct_process(ct, hold_and_report, name);
    CT_BETWEEN(ct_recv(ct, victim), 1, ct_lease_ms(ct));
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), name);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    ct_process_kill(ct, victim);
    CT_OK(dl_trylock_for(lock, ct_lease_ms(ct) + ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

static void call_inherited(ct_t *ct, void *arg) {
    CT_STATUS(dl_unlock(arg, CT_ERR), DL_EFORKED);
}

CT_CASE(smoke, a_child_may_not_use_what_it_inherited) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_process_wait(ct, ct_fork(ct, call_inherited, lock));
    CT_OK(dl_unlock(lock, CT_ERR));
}
