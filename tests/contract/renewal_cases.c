/* renewal_cases.c - contract: when the watchdog renews, what it renews, and what must never hold it up. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "callers.h"

#define MS(ns) ((int64_t)((ns) / 1000000u))

/* Renewals of the only lock: each a third of the lease, less a slice at most, after what it renews was sent.
 */
static void check_periods(ct_t *ct, int64_t every_ms, int64_t lease_ms) {
    uint64_t before_ns = ct_call(ct, CT_OP_TRY, 0).sent_ns;
    for (int i = 0; i < ct_calls(ct, CT_OP_RENEW); i++) {
        ct_call_t renewal = ct_call(ct, CT_OP_RENEW, i);
        int64_t slack_ms = ct_traits(ct) & CT_VIRTUAL ? 1 : ct_tolerance_ms(ct);
        CT_BETWEEN(MS(renewal.begin_ns - before_ns), every_ms - slice_ms(every_ms) - 1, every_ms + slack_ms);
        CT_EQ(renewal.lease_ms, lease_ms);
        before_ns = renewal.sent_ns;
    }
}

#define TOGETHER 40

CT_CASE(renewal, what_is_due_in_the_same_slice_goes_out_together, .traits = CT_VIRTUAL,
        .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *locks[TOGETHER];
    char name[32];
    for (int i = 0; i < TOGETHER; i++) {
        snprintf(name, sizeof name, "together %d", i);
        locks[i] = ct_lock(ct, c, name);
        CT_OK(dl_lock(locks[i], CT_ERR));
        ct_sleep_ms(ct, 1);
    }
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RENEW), >=, TOGETHER, ct_lease_ms(ct));
    int batches = 1;
    for (int i = 1; i < TOGETHER; i++) {
        batches += ct_call(ct, CT_OP_RENEW, i).begin_ns != ct_call(ct, CT_OP_RENEW, i - 1).begin_ns;
    }
    CT_LE(batches, TOGETHER / slice_ms(ct_lease_ms(ct) / 3) + 3);
    for (int i = 0; i < TOGETHER; i++) {
        CT_OK(dl_unlock(locks[i], CT_ERR));
    }
}

CT_CASE(renewal, comes_every_third_of_the_lease) {
    int is_virtual = (ct_traits(ct) & CT_VIRTUAL) != 0;
    dl_client_t *c =
        ct_open(ct, is_virtual ? NULL : "lease: 1200ms"); /* which outlasts a stop of the machine */
    dl_lock_t *lock = ct_lock(ct, c, "period");
    int64_t lease_ms = is_virtual ? ct_lease_ms(ct) : 1200, before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    for (int i = 0; i < 12; i++) {
        ct_sleep_ms(ct, lease_ms / 4);
        CT_GT(dl_valid_ms(lock), 0);
    }
    /* Not at the very instant of a renewal, which may have begun and not been counted yet. */
    ct_sleep_ms(ct, lease_ms / 50);
    CT_GE(renewals_of(ct, "period"), is_virtual ? 8 : 4);
    int renewals = renewals_of(ct, "period");
    CT_LE(renewals, renewals_since(ct, before_ms, lease_ms / 3));
    check_periods(ct, lease_ms / 3, lease_ms);
    /* One may be on its way: begun, and not counted yet. */
    CT_AWAIT_THAT((int)ct_stats(ct, c).renewed, ==, renewals_of(ct, "period"), ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).lost, 0);
    ct_expect_held(ct, "period");
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(renewal, comes_as_often_as_renew_every_says, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, "renew_every: 2s");
    dl_lock_t *lock = ct_lock(ct, c, "often");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_sleep_ms(ct, 21000);
    CT_EQ(renewals_of(ct, "often"), 10);
    check_periods(ct, 2000, ct_lease_ms(ct));
}

CT_CASE(renewal, of_many_locks_is_one_batch, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    char name[32];
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "batch %d", i);
        take(ct, ct_lock(ct, c, name), DL_LEASE_AUTO);
    }
    ct_sleep_ms(ct, ct_lease_ms(ct) / 2);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 50);
    CT_LE(ct_calls(ct, CT_OP_BATCH), 2);
    ct_sleep_ms(ct, ct_lease_ms(ct) / 3);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 100);
    CT_LE(ct_calls(ct, CT_OP_BATCH), 4);
}

CT_CASE(renewal, that_fails_and_recovers_is_told_once_each) {
    dl_client_t *c = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, c, "shaky");
    CT_OK(dl_lock(lock, CT_ERR));
    int64_t lease_ms = BRIEF_MS;
    int fault = ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, 3);
    dl_event_t failing = ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "shaky", lease_ms);
    CT_EQ(failing.status, DL_EIO);
    CT_GT(failing.valid_ms, 0);
    CT_LT(failing.valid_ms, validity_of(lease_ms));
    CT_EQ(failing.hold_id, ct_call(ct, CT_OP_TRY, 0).hold_id);
    CT_STR_EQ(failing.owner, ct_call(ct, CT_OP_TRY, 0).owner);
    CT_GT(failing.text[0], 0);
    dl_event_t recovered = ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "shaky", lease_ms);
    CT_GT(recovered.valid_ms, 0);
    CT_EQ(ct_fault_hits(ct, fault), 3);
    CT_EQ(ct_stats(ct, c).renewals_failed, 3);
    ct_no_event(ct, c, 0, NULL, lease_ms / 3);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(renewal, with_an_unknown_outcome_counts_as_none) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "maybe");
    CT_OK(dl_lock(lock, CT_ERR));
    int64_t lease_ms = ct_lease_ms(ct), before_ms = ct_now_ms(ct);
    /* The server extends, but nobody hears of it: only what was confirmed counts. */
    ct_fault(ct, CT_OP_RENEW, CT_LOSE_REPLY, CT_ALWAYS);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "maybe", lease_ms + ct_tolerance_ms(ct));
    CT_BETWEEN(ct_now_ms(ct) - before_ms, validity_of(lease_ms) - ct_tolerance_ms(ct),
               validity_of(lease_ms) + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ETIMEDOUT);
    CT_EQ(dl_valid_ms(lock), 0);
    /* Extended on the server until long after: freed in the background instead. */
    ct_expect_free(ct, "maybe", ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(renewal, is_tried_again_until_validity_ends) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "doomed");
    int64_t lease_ms = ct_lease_ms(ct), before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, CT_ALWAYS);
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "doomed", lease_ms / 3 + ct_tolerance_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "doomed", lease_ms);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, validity_of(lease_ms) - 1,
               validity_of(lease_ms) + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ETIMEDOUT);
    int tried = renewals_of(ct, "doomed");
    CT_GE(tried, ct_traits(ct) & CT_VIRTUAL ? 15 : 3);
    ct_no_event(ct, c, 0, NULL, lease_ms);
    CT_EQ(renewals_of(ct, "doomed"), tried);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(renewal, answered_yes_too_late_revives_nothing, .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "late");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_AFTER, c, "late");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, lease_ms);
    /* The server has said yes; the thread that should hear it is stopped until validity is over. */
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "late", lease_ms + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ETIMEDOUT);
    CT_EQ(dl_valid_ms(lock), 0);
    if (ct_caps(ct) & DL_CAP_LEASE) {
        ct_expect_free(ct, "late", ct_tolerance_ms(ct));
    }
    ct_pause_go(ct, pause);
    ct_expect_free(ct, "late", 1000 + ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, 2 * lease_ms);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(renewals_of(ct, "late"), 1);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(renewal, that_arrives_after_the_loss_creates_nothing, .needs = DL_CAP_LEASE,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "gone");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "gone");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, lease_ms);
    ct_expect_event(ct, c, DL_EVENT_LOST, "gone", lease_ms + ct_tolerance_ms(ct));
    ct_expect_free(ct, "gone", lease_ms);
    ct_pause_go(ct, pause);
    CT_AWAIT_THAT(ct_call(ct, CT_OP_RENEW, 0).end_ns, >, 0, 5000);
    CT_NE(ct_call(ct, CT_OP_RENEW, 0).status, DL_OK);
    ct_expect_free(ct, "gone", 0);
    CT_EQ(dl_valid_ms(lock), 0);
}

CT_CASE(renewal, never_shortens_an_extension, .traits = CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, c, "long");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_extend(lock, 2 * BRIEF_MS, CT_ERR));
    int64_t until_ms = ends_from_ms(ct, lock);
    for (int i = 0; i < 5; i++) {
        ct_sleep_ms(ct, 100);
        CT_GE(ends_until_ms(ct, lock), until_ms - 1);
        int64_t remaining_ms = ct_server_info(ct, "long").remaining_ms;
        CT_GE(ct_now_ms(ct) + remaining_ms, until_ms - 1);
    }
    /* And renewals are there again before the extension runs out. */
    int renewals = renewals_of(ct, "long");
    CT_AWAIT_THAT(renewals_of(ct, "long"), >=, renewals + 3, 2 * BRIEF_MS);
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(renewal, is_done_by_an_extension_that_asks_for_less) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, "lease: 60s"), "modest");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_extend(lock, DL_LEASE_MIN_MS, CT_ERR));
    CT_EQ(ct_call(ct, CT_OP_RENEW, -1).lease_ms, 60000);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* A step of a program asks for what it needs, again and again, and all are confirmed. */
CT_CASE(renewal, is_not_put_off_by_what_lengthens_nothing, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "modest");
    int64_t lease_ms = ct_lease_ms(ct);
    for (int enters = 0; enters < 2; enters++) {
        CT_OK(dl_lock(lock, CT_ERR));
        for (int i = 0; i < 30; i++) {
            ct_sleep_ms(ct, lease_ms / 10);
            if (enters) {
                take(ct, lock, DL_LEASE_MIN_MS);
                CT_OK(dl_unlock(lock, CT_ERR));
            } else {
                CT_OK(dl_extend(lock, DL_LEASE_MIN_MS, CT_ERR));
            }
            CT_GT(dl_valid_ms(lock), lease_ms / 3);
        }
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    CT_EQ(ct_stats(ct, c).lost, 0);
}

/* An automatic level inside an explicit one, and the server is slow to answer. */
CT_CASE(renewal, begins_a_period_after_the_level_was_sent, .traits = CT_VIRTUAL) {
    char options[96];
    int64_t every_ms = ct_call_timeout_ms(ct) * 3 / 4;
    snprintf(options, sizeof options, "lease: %lldms\nrenew_every: %lldms", 2 * (long long)every_ms,
             (long long)every_ms);
    dl_client_t *c = ct_open(ct, options);
    dl_lock_t *lock = ct_lock(ct, c, "deeper");
    take(ct, lock, 3 * every_ms / 2);
    ct_fault_t slow = {.mode = CT_LATE_REPLY, .delay_ms = every_ms * 6 / 5, .count = 1};
    slow.op = ct_caps(ct) & DL_CAP_SERVER_COUNT ? CT_OP_TRY : CT_OP_RENEW;
    ct_fault_add(ct, &slow);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_sleep_ms(ct, 4 * every_ms);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(renewal, works_again_with_an_extension, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "shaky");
    ct_fault_t once = {.op = CT_OP_RENEW, .mode = CT_FAIL_BEFORE, .count = 1};
    ct_fault_add(ct, &once);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "shaky", ct_lease_ms(ct));
    CT_OK(dl_extend(lock, 10 * ct_lease_ms(ct), CT_ERR));
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "shaky", 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(renewal, that_arrives_after_an_extension_does_not_shorten, .traits = CT_REPLAY | CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "crossed");
    int64_t lease_ms = ct_lease_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "crossed"), >, 0, lease_ms);
    CT_OK(dl_extend(lock, 10 * lease_ms, CT_ERR));
    ct_call_t renewal = ct_call(ct, CT_OP_RENEW, 0);
    CT_EQ(renewal.lease_ms, lease_ms);
    CT_EQ(ct_replay(ct, &renewal), DL_OK);
    CT_GT(ct_server_info(ct, "crossed").remaining_ms, 9 * lease_ms);
}

CT_CASE(renewal, of_an_explicit_lease_does_not_happen, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "explicit");
    int64_t lease_ms = ct_lease_ms(ct), before_ms = ct_now_ms(ct);
    take(ct, lock, lease_ms);
    ct_expect_event(ct, c, DL_EVENT_LOST, "explicit", 2 * lease_ms);
    CT_BETWEEN(ct_now_ms(ct) - before_ms, validity_of(lease_ms) - 1,
               validity_of(lease_ms) + ct_tolerance_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    ct_expect_free(ct, "explicit", ct_tolerance_ms(ct));
}

/* ---- what must not hold it up ---------------------------------------------------------------- */

/* The lock of a LASTING client is renewed again and again whatever is stuck, and by simulated time none is
 * late. */
static void check_undisturbed(ct_t *ct, dl_client_t *c, dl_lock_t *lock) {
    uint64_t renewed = ct_stats(ct, c).renewed;
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 5, 5000);
    CT_GT(dl_valid_ms(lock), 0);
    if (ct_traits(ct) & CT_VIRTUAL) {
        CT_LE(ct_stats(ct, c).renewal_lateness_us_max, ct_tolerance_ms(ct) * 1000);
    }
}

CT_CASE(renewal, does_not_wait_for_a_stuck_acquire) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "mine");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, c, "stuck");
    caller_t other = CALLER(ct_lock(ct, c, "stuck"), 0);
    start_caller(ct, &other);
    ct_pause_await(ct, pause, 5000);
    check_undisturbed(ct, c, lock);
    ct_pause_go(ct, pause);
    ct_join(ct, other.thread);
    /* On the real clock it may come back to life after its deadline, and then asks nobody. */
    CT_CHECK(other.status == DL_OK ||
             (other.status == DL_EIO && ct_traits(ct) & (CT_REAL_TIME | CT_BACKEND)));
}

CT_CASE(renewal, does_not_wait_for_a_stuck_release) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "mine");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_t *pause = ct_pause(ct, CT_OP_RELEASE, CT_BEFORE, c, "stuck");
    caller_t other = CALLER(ct_lock(ct, c, "stuck"), 0);
    start_caller(ct, &other);
    ct_pause_await(ct, pause, 5000);
    check_undisturbed(ct, c, lock);
    ct_pause_go(ct, pause);
    ct_join(ct, other.thread);
}

typedef struct stuck_callback {
    ct_t *ct;
    ct_latch_t *entered, *leave;
} stuck_callback_t;

static void be_stuck(void *arg, const dl_event_t *event) {
    stuck_callback_t *s = arg;
    ct_t *ct = s->ct;
    if (event->kind != DL_EVENT_LOST) {
        return; /* the answer may have come too late at first */
    }
    ct_latch_down(ct, s->entered);
    ct_latch_wait(ct, s->leave, KEEP_MS);
}

CT_CASE(renewal, does_not_wait_for_a_stuck_callback) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "mine");
    CT_OK(dl_lock(lock, CT_ERR));
    stuck_callback_t s = {ct, ct_latch(ct, 1), ct_latch(ct, 1)};
    CT_EQ(dl_client_on_event(c, be_stuck, &s), DL_OK);
    (void)lose_by_renewal(ct, "short");
    take(ct, ct_lock(ct, c, "short"), DL_LEASE_AUTO);
    ct_latch_wait(ct, s.entered, 5000);
    check_undisturbed(ct, c, lock);
    ct_latch_down(ct, s.leave);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(renewal, of_one_lock_does_not_suffer_from_anothers_dead_connection) {
    dl_client_t *c = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, c, "mine");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(ct_lock(ct, c, "dead"), CT_ERR));
    ct_fault_t dead = {.op = CT_OP_RENEW, .mode = CT_NEVER, .count = CT_ALWAYS, .name = "dead"};
    ct_fault_add(ct, &dead);
    ct_expect_event(ct, c, DL_EVENT_LOST, "dead", BRIEF_MS + ct_tolerance_ms(ct));
    int renewals = renewals_of(ct, "mine");
    CT_AWAIT_THAT(renewals_of(ct, "mine"), >=, renewals + 3, BRIEF_MS);
    CT_GT(dl_valid_ms(lock), 0);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- its end --------------------------------------------------------------------------------- */

CT_CASE(renewal, wakes_no_thread_for_each_short_hold, .traits = CT_BLOCKING | CT_VIRTUAL) {
    (void)ct_sleeps(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "orders");
    int before = 0;
    for (int i = 0; i < 20; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_sleep_ms(ct, 1);
        before = i == 0 ? ct_sleeps(ct) : before;
    }
    CT_LE(ct_sleeps(ct), before + 2);
}

CT_CASE(renewal, ends_with_the_unlock) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "ended");
    int64_t lease_ms = ct_lease_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(renewals_of(ct, "ended"), >, 0, lease_ms);
    CT_OK(dl_unlock(lock, CT_ERR));
    int before = renewals_of(ct, "ended");
    ct_sleep_ms(ct, 2 * lease_ms);
    CT_EQ(renewals_of(ct, "ended"), before);
    ct_expect_free(ct, "ended", 0);
    ct_no_event(ct, c, 0, NULL, 0);
}

/* An unlock while a renewal is stopped at this point: it is not held up, and nothing comes back to life. */
static void cross(ct_t *ct, ct_when_t when) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "crossing");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, when, c, "crossing");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, lease_ms);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
    ct_expect_free(ct, "crossing", 0);
    ct_pause_go(ct, pause);
    ct_no_event(ct, c, 0, NULL, lease_ms / 10);
    ct_expect_free(ct, "crossing", 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    /* The next hold is none of the old answer's business. */
    CT_OK(dl_lock(lock, CT_ERR));
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(ct_stats(ct, c).lost, 0);
}

CT_CASE(renewal, stopped_before_the_server_is_harmless_after_an_unlock, .needs = DL_CAP_LEASE) {
    cross(ct, CT_BEFORE);
}

CT_CASE(renewal, stopped_after_the_server_is_harmless_after_an_unlock, .needs = DL_CAP_LEASE) {
    cross(ct, CT_AFTER);
}

CT_CASE(renewal, of_the_last_hold_says_nothing_about_the_next, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "generations");
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, c, "generations");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, 5000);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    /* The server will say "not yours" to the old renewal while the new hold lives. */
    ct_pause_go(ct, pause);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 2 * ct_lease_ms(ct));
    CT_EQ(ct_call(ct, CT_OP_RENEW, 0).status, DL_ELOST);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}
