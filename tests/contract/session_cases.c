/* session_cases.c - contract: holds that end with a connection, where one op at a time may use it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

CT_CASE(session, hang_up_is_a_loss_at_once, .needs = DL_CAP_SESSION, .traits = CT_CAN_FORCE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "hang up"), *explicit_lock = ct_lock(ct, c, "explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, 10 * ct_lease_ms(ct));
    ct_sleep_ms(ct, 100);
    ct_wipe(ct, "hang up");
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "hang up", ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ELOST);
    CT_CHECKF(strstr(lost.text, "connection") != NULL, "it says: %s", lost.text);
    CT_EQ(dl_valid_ms(lock), 0);
    ct_wipe(ct, "explicit");
    ct_expect_event(ct, c, DL_EVENT_LOST, "explicit", ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(explicit_lock, CT_ERR), DL_ELOST);
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_wipe(ct, "hang up");
    ct_expect_event(ct, c, DL_EVENT_LOST, "hang up", ct_tolerance_ms(ct));
}

CT_CASE(session, hang_up_after_an_answered_ping_is_a_loss_at_once, .needs = DL_CAP_SESSION,
        .traits = CT_CAN_FORCE) {
    dl_client_t *c = ct_open(ct, LASTING);
    CT_OK(dl_lock(ct_lock(ct, c, "pinged"), CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "pinged"), >=, 2, 5000);
    ct_wipe(ct, "pinged");
    ct_expect_event(ct, c, DL_EVENT_LOST, "pinged", ct_tolerance_ms(ct));
}

CT_CASE(session, hang_up_while_a_yes_is_on_its_way_is_a_loss_at_once, .needs = DL_CAP_SESSION,
        .traits = CT_CAN_FORCE) {
    dl_client_t *c = ct_open(ct, LASTING);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_AFTER, c, "crossed");
    CT_OK(dl_lock(ct_lock(ct, c, "crossed"), CT_ERR));
    ct_pause_await(ct, pause, 5000);
    ct_wipe(ct, "crossed");
    ct_sleep_ms(ct, 20);
    ct_pause_go(ct, pause);
    /* The yes is from before the hang-up: the session has to be asked again. */
    ct_expect_event(ct, c, DL_EVENT_LOST, "crossed", ct_tolerance_ms(ct));
}

CT_CASE(session, explicit_lease_is_pinged_and_not_extended, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, c, "pinged");
    int64_t lease_ms = BRIEF_MS, before_ms = ct_now_ms(ct);
    take(ct, lock, lease_ms);
    ct_expect_event(ct, c, DL_EVENT_LOST, "pinged", 2 * lease_ms);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, validity_of(lease_ms) - 1,
               validity_of(lease_ms) + ct_tolerance_ms(ct));
    CT_GE(renewals_of(ct, "pinged"), 2);
    for (int i = 0; i < renewals_of(ct, "pinged"); i++) {
        CT_EQ(ct_call(ct, CT_OP_RENEW, i).lease_ms, 0);
    }
    ct_expect_free(ct, "pinged", ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

static void let_come_back(ct_t *ct, void *pause) {
    ct_sleep_ms(ct, ct_call_timeout_ms(ct) / 4);
    ct_pause_go(ct, pause);
}

CT_CASE(session, unlock_waits_for_a_ping_that_comes_back, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "slow ping");
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_AFTER, c, "slow ping");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, 5000);
    ct_thread_t *thread = ct_thread(ct, let_come_back, pause);
    CT_OK(dl_unlock(lock, CT_ERR)); /* before its budget is over */
    ct_join(ct, thread);
    CT_GE(ct_call(ct, CT_OP_RELEASE, 0).begin_ns, ct_call(ct, CT_OP_RENEW, 0).end_ns);
    CT_EQ(renewals_of(ct, "slow ping"), 1);
    ct_expect_free(ct, "slow ping", 0);
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
}

CT_CASE(session, unlock_behind_a_stuck_ping_is_unknown_after_its_budget, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "stuck ping");
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "stuck ping");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, ct_lease_ms(ct));
    int64_t before_ms = ct_now_ms(ct), timeout_ms = ct_call_timeout_ms(ct);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, timeout_ms - 1, timeout_ms + ct_tolerance_ms(ct));
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 0); /* never two ops at once on one connection */
    ct_pause_go(ct, pause);
    ct_expect_free(ct, "stuck ping", 1000 + ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

static void trigger_late(ct_t *ct, void *cancel) {
    ct_sleep_ms(ct, 50);
    dl_cancel_trigger(cancel);
}

CT_CASE(session, an_entry_behind_a_stuck_ping_hears_a_cancel, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, "lease: 60s\nrenew_every: 200ms");
    dl_lock_t *lock = ct_lock(ct, c, "stuck ping");
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "stuck ping");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, 5000);
    dl_acquire_opts_t opts = {sizeof opts, DL_WAIT_FOREVER, 600000, 0, cancel};
    ct_thread_t *thread = ct_thread(ct, trigger_late, cancel);
    int64_t before_ms = ct_now_ms(ct);
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_ECANCELED);
    CT_LE(ct_now_ms(ct) - before_ms, 50 + ct_tolerance_ms(ct));
    ct_join(ct, thread);
    CT_EQ(dl_hold_count(lock), 1);
    ct_pause_go(ct, pause);
    CT_OK(dl_unlock(lock, CT_ERR));
    dl_cancel_free(cancel);
}

CT_CASE(session, extension_behind_a_stuck_ping_changes_nothing, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, "lease: 60s\nrenew_every: 200ms");
    dl_lock_t *lock = ct_lock(ct, c, "stuck ping");
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "stuck ping");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, 5000);
    int64_t before_ms = ct_now_ms(ct), timeout_ms = ct_call_timeout_ms(ct);
    int64_t from_ms = ends_from_ms(ct, lock), until_ms = ends_until_ms(ct, lock);
    CT_STATUS(dl_extend(lock, 600000, CT_ERR), DL_EUNKNOWN);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    CT_GE(ends_until_ms(ct, lock), from_ms - 5);
    CT_LE(ends_from_ms(ct, lock), until_ms + 5);
    ct_pause_go(ct, pause);
    ct_sleep_ms(ct, 20);
    CT_OK(dl_extend(lock, 600000, CT_ERR));
    CT_GT(dl_valid_ms(lock), 500000);
    CT_OK(dl_unlock(lock, CT_ERR));
}

typedef struct closing {
    dl_client_t *client;
} closing_t;

static void close_it(ct_t *ct, void *arg) {
    (void)ct;
    closing_t *closing = arg;
    dl_client_close(closing->client);
}

CT_CASE(session, close_waits_for_a_hold_that_is_being_dropped, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "dropped");
    ct_pause_t *pause = ct_pause(ct, CT_OP_DROP, CT_BEFORE, c, NULL);
    caller_t caller = CALLER(lock, 0);
    start_caller(ct, &caller);
    ct_pause_await(ct, pause, 5000);
    ct_forget(ct, c);
    closing_t closing = {c};
    ct_thread_t *thread = ct_thread(ct, close_it, &closing);
    ct_sleep_ms(ct, 50);
    CT_EQ(ct_calls(ct, CT_OP_CLOSE), 0); /* the driver is still in use */
    ct_pause_go(ct, pause);
    ct_join(ct, thread);
    end_caller(ct, &caller, DL_OK);
    CT_EQ(ct_calls(ct, CT_OP_CLOSE), 1);
}

CT_CASE(session, connections_of_lost_holds_are_dropped, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "dropped");
    for (int i = 0; i < 3; i++) {
        take(ct, lock, ct_lease_ms(ct));
        ct_expect_event(ct, c, DL_EVENT_LOST, "dropped", ct_lease_ms(ct) + ct_tolerance_ms(ct));
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
        ct_expect_free(ct, "dropped", ct_tolerance_ms(ct));
    }
    /* With nobody calling: whoever had the last use of it ends it. */
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_DROP), ==, 3, ct_tolerance_ms(ct));
}
