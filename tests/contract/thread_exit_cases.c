/* thread_exit_cases.c - contract: what a thread leaves behind when it ends holding. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

typedef struct leaver {
    dl_lock_t *lock;
    int levels;
    int64_t lease_ms;
    int64_t stays_ms;
    ct_latch_t *stays_for; /* NULL: for stays_ms only */
    char owner[DL_OWNER_MAX + 1];
} leaver_t;

/* Takes the lock and ends without a word. */
static void leave_holding(ct_t *ct, void *arg) {
    leaver_t *l = arg;
    for (int i = 0; i < l->levels; i++) {
        take(ct, l->lock, l->lease_ms);
    }
    CT_EQ(dl_hold_count(l->lock), l->levels);
    ct_sleep_ms(ct, l->stays_ms);
    if (l->stays_for != NULL) {
        ct_latch_wait(ct, l->stays_for, 5000);
    }
}

static void run_leaver(ct_t *ct, leaver_t *l) {
    ct_join(ct, ct_thread(ct, leave_holding, l));
}

/* A thread left with this many levels: freed, told once, and open to others. */
static void check_left(ct_t *ct, int levels, int64_t lease_ms) {
    dl_client_t *c = ct_open(ct, LASTING), *other = ct_open(ct, LASTING);
    leaver_t leaver = {.lock = ct_lock(ct, c, "left"), .levels = levels, .lease_ms = lease_ms};
    run_leaver(ct, &leaver);
    ct_expect_free(ct, "left", ct_tolerance_ms(ct));
    dl_event_t event = ct_expect_event(ct, c, DL_EVENT_THREAD_EXITED, "left", ct_tolerance_ms(ct));
    CT_STR_EQ(event.owner, ct_call(ct, CT_OP_TRY, 0).owner);
    CT_EQ(event.hold_id, ct_call(ct, CT_OP_TRY, 0).hold_id);
    CT_GT(event.text[0], 0);
    CT_EQ(dl_hold_count(leaver.lock), 0);
    CT_STATUS(dl_unlock(leaver.lock, CT_ERR), DL_ENOTOWNER);
    CT_OK(dl_trylock(leaver.lock, CT_ERR));
    CT_OK(dl_unlock(leaver.lock, CT_ERR));
    dl_lock_t *theirs = ct_lock(ct, other, "left");
    CT_OK(dl_trylock(theirs, CT_ERR));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    CT_GT(dl_valid_ms(theirs), 0);
    CT_EQ(ct_stats(ct, c).released, 2);
    CT_EQ(ct_stats(ct, c).lost, 0);
}

CT_CASE(thread_exit, releases_and_reports_a_hold, .traits = CT_BLOCKING) {
    check_left(ct, 1, DL_LEASE_AUTO);
}

CT_CASE(thread_exit, releases_all_levels_of_a_hold_at_once, .traits = CT_BLOCKING) {
    check_left(ct, 4, DL_LEASE_AUTO);
}

CT_CASE(thread_exit, releases_an_explicit_lease_too, .traits = CT_BLOCKING) {
    check_left(ct, 1, 120000);
}

CT_CASE(thread_exit, lets_the_next_thread_in, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    leaver_t leaver = {.lock = ct_lock(ct, c, "next"), .levels = 2, .stays_for = ct_latch(ct, 1)};
    ct_thread_t *thread = ct_thread(ct, leave_holding, &leaver);
    CT_AWAIT_THAT(ct_stats(ct, c).held_now, ==, 1, 5000);
    caller_t waiter = CALLER(leaver.lock, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, c, 1, 5000);
    ct_latch_down(ct, leaver.stays_for);
    ct_join(ct, thread);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_tolerance_ms(ct));
    ct_expect_event(ct, c, DL_EVENT_THREAD_EXITED, "next", ct_tolerance_ms(ct));
}

CT_CASE(thread_exit, with_a_lost_hold_reports_no_second_time, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    leaver_t leaver = {
        .lock = ct_lock(ct, c, "lost"), .levels = 3, .lease_ms = DL_LEASE_MIN_MS, .stays_ms = 150};
    run_leaver(ct, &leaver);
    ct_expect_event(ct, c, DL_EVENT_LOST, "lost", ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct) / 2);
    CT_OK(dl_trylock(leaver.lock, CT_ERR));
    CT_EQ(ct_stats(ct, c).held_now, 1);
    if (ct_caps(ct) & DL_CAP_SESSION) { /* and nothing is kept of it */
        CT_AWAIT_THAT(ct_calls(ct, CT_OP_DROP), ==, 1, ct_tolerance_ms(ct));
    }
    CT_OK(dl_unlock(leaver.lock, CT_ERR));
}

CT_CASE(thread_exit, finds_a_wiped_hold_lost, .traits = CT_BLOCKING | CT_CAN_FORCE, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, LASTING);
    leaver_t leaver = {.lock = ct_lock(ct, c, "wiped"), .levels = 1, .stays_for = ct_latch(ct, 1)};
    ct_thread_t *thread = ct_thread(ct, leave_holding, &leaver);
    CT_AWAIT_THAT(ct_stats(ct, c).held_now, ==, 1, 5000);
    ct_wipe(ct, "wiped");
    dl_lock_t *successor = ct_lock(ct, other, "wiped");
    CT_OK(dl_trylock(successor, CT_ERR));
    ct_latch_down(ct, leaver.stays_for);
    ct_join(ct, thread);
    ct_expect_event(ct, c, DL_EVENT_LOST, "wiped", ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    CT_GT(dl_valid_ms(successor), 0);
    CT_OK(dl_unlock(successor, CT_ERR));
}

/* Another waits for it, and goes on once its lease is over: before the server has answered. */
CT_CASE(thread_exit, reports_a_hold_that_runs_out_at_its_release, .traits = CT_BLOCKING,
        .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, LASTING "\ncall_timeout: 4s");
    leaver_t leaver = {
        .lock = ct_lock(ct, c, "silent"), .levels = 1, .lease_ms = 1000, .stays_for = ct_latch(ct, 1)};
    ct_fault(ct, CT_OP_RELEASE, CT_NEVER, 1);
    ct_thread_t *thread = ct_thread(ct, leave_holding, &leaver);
    CT_AWAIT_THAT(ct_stats(ct, c).held_now, ==, 1, 5000);
    caller_t waiter = CALLER(leaver.lock, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, c, 1, 5000);
    ct_latch_down(ct, leaver.stays_for);
    ct_join(ct, thread);
    ct_expect_event(ct, c, DL_EVENT_THREAD_EXITED, "silent", 4000 + ct_tolerance_ms(ct));
    end_caller(ct, &waiter, DL_OK);
    ct_no_event(ct, c, 0, NULL, 0);
}

static void lock_owned(ct_t *ct, void *arg) {
    CT_OK(dl_lock(arg, CT_ERR));
}

static void unlock_owned(ct_t *ct, void *arg) {
    CT_GT(dl_valid_ms(arg), 0);
    CT_OK(dl_unlock(arg, CT_ERR));
}

CT_CASE(thread_exit, does_not_matter_to_owned_handles, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock_owned(ct, c, "owned", 42);
    ct_join(ct, ct_thread(ct, lock_owned, lock));
    CT_AWAIT_THAT(renewals_of(ct, "owned"), >=, 3, 5000);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 0);
    ct_no_event(ct, c, DL_EVENT_THREAD_EXITED, NULL, 0);
    ct_expect_held(ct, "owned");
    CT_EQ(dl_hold_count(lock), 1);
    ct_join(ct, ct_thread(ct, unlock_owned, lock));
    ct_expect_free(ct, "owned", 0);
}

static void lock_and_report_owner(ct_t *ct, void *arg) {
    leaver_t *l = arg;
    CT_OK(dl_lock(l->lock, CT_ERR));
    strcpy(l->owner, ct_call(ct, CT_OP_TRY, -1).owner);
    CT_OK(dl_unlock(l->lock, CT_ERR));
}

CT_CASE(thread_exit, never_gives_its_owner_name_to_a_later_thread, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    leaver_t leavers[8];
    for (int i = 0; i < 8; i++) {
        leavers[i].lock = ct_lock(ct, c, "names");
        ct_join(ct, ct_thread(ct, lock_and_report_owner, &leavers[i]));
        for (int k = 0; k < i; k++) {
            CT_NE(strcmp(leavers[i].owner, leavers[k].owner), 0);
        }
    }
}

CT_CASE(thread_exit, is_freed_in_the_background_when_the_server_is_away, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    leaver_t leaver = {.lock = ct_lock(ct, c, "away"), .levels = 2};
    ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, 3);
    run_leaver(ct, &leaver);
    dl_event_t event = ct_expect_event(ct, c, DL_EVENT_THREAD_EXITED, "away", ct_tolerance_ms(ct));
    CT_EQ(event.status, DL_EIO);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RELEASE), >=, 4, 1000 + ct_tolerance_ms(ct));
    ct_expect_free(ct, "away", ct_tolerance_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 4);
}
