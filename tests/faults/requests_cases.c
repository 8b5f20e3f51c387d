/* requests_cases.c - faults: replies and notifications lost, duplicates, bad moments (rows 11 to 14). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/callers.h"

CT_CASE(faults, row11_replies_lost_after_the_server_did_it, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 11");
    for (int lost = 1; lost <= 4; lost++) {
        /* The releases never arrive either: nothing but the larger hold id can help. */
        int tries = ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, lost);
        ct_fault_t releases = {.op = CT_OP_RELEASE, .mode = CT_LOSE_REQUEST, .count = CT_ALWAYS};
        int fault = ct_fault_add(ct, &releases);
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_lock(lock, CT_ERR));
        CT_EQ(ct_fault_hits(ct, tries), lost);
        CT_LE(ct_now_ms(ct) - before_ms, 200 + ct_tolerance_ms(ct));
        ct_fault_end(ct, fault);
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_expect_free(ct, "row 11", 0);
    }
    CT_EQ(ct_stats(ct, c).contended, 0);
    CT_EQ(ct_stats(ct, c).unknown_outcomes >= 10, 1);
}

CT_CASE(faults, row12_late_duplicates_of_everything, .traits = CT_REPLAY | CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    for (int generation = 0; generation < 4; generation++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_extend(lock, ct_lease_ms(ct) + generation, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    take(ct, lock, 20 * ct_lease_ms(ct)); /* renewed by nobody */
    dl_lock_info_t before = ct_server_info(ct, "row 12");
    for (int round = 0; round < 2; round++) {
        for (int i = 3; i >= 0; i--) {
            ct_call_t tried = ct_call(ct, CT_OP_TRY, i), renewed = ct_call(ct, CT_OP_RENEW, i);
            ct_call_t released = ct_call(ct, CT_OP_RELEASE, i);
            CT_EQ(ct_replay(ct, &released), DL_ELOST);
            CT_EQ(ct_replay(ct, &tried), DL_EBUSY);
            CT_EQ(ct_replay(ct, &renewed), DL_ELOST);
        }
    }
    dl_lock_info_t after = ct_server_info(ct, "row 12");
    CT_CHECK(after.held);
    CT_EQ(after.hold_id, before.hold_id);
    CT_EQ(after.token, before.token);
    CT_LE(after.remaining_ms, before.remaining_ms);
    /* After the release they may take it; nobody acts on that, and the next hold replaces it at once. */
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 2);
    CT_EQ(ct_replay(ct, &tried), DL_OK);
    CT_EQ(dl_hold_count(lock), 0);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_EQ(ct_replay(ct, &tried), DL_EBUSY);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 12", 0);
}

/* A holder with a long lease, and one that waits for it. */
typedef struct uninformed {
    dl_client_t *client; /* the waiter's */
    dl_lock_t *held;
    caller_t waiter;
} uninformed_t;

static void start_waiter(ct_t *ct, uninformed_t *u) {
    u->held = ct_lock(ct, ct_open(ct, BRIEF), "row 13");
    take(ct, u->held, DL_LEASE_AUTO);
    u->client = ct_open(ct, NULL);
    u->waiter = (caller_t)CALLER(ct_lock(ct, u->client, "row 13"), DL_WAIT_FOREVER);
    start_caller(ct, &u->waiter);
}

static void free_without_news(ct_t *ct, uninformed_t *u, int64_t within_ms) {
    ct_sleep_ms(ct, 20);
    CT_OK(dl_unlock(u->held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &u->waiter, DL_OK);
    CT_LE(u->waiter.ended_ms - before_ms, within_ms + ct_tolerance_ms(ct));
}

CT_CASE(faults, row13_notification_connection_dies, .needs = DL_CAP_NOTIFY) {
    uninformed_t u;
    start_waiter(ct, &u);
    ct_await_hearing(ct, u.client, "row 13", 5000);
    ct_woken(ct, u.client, "row 13", 0);
    (void)ct_fault(ct, CT_OP_WOKEN, CT_LOSE_REPLY, CT_ALWAYS);
    free_without_news(ct, &u, 500);
}

CT_CASE(faults, row13_notification_connection_cannot_be_made, .needs = DL_CAP_NOTIFY) {
    uninformed_t u;
    int fault = ct_fault(ct, CT_OP_WATCH, CT_FAIL_BEFORE, CT_ALWAYS);
    start_waiter(ct, &u);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), >=, 1, 5000);
    free_without_news(ct, &u, 500);
    CT_EQ(ct_calls(ct, CT_OP_WOKEN), 0);
    if (!(ct_traits(ct) & CT_BACKEND)) { /* which listens for answers, too */
        CT_EQ(ct_calls(ct, CT_OP_LISTEN), 0);
    }
}

CT_CASE(faults, row13_notification_is_missed, .needs = DL_CAP_NOTIFY) {
    uninformed_t u;
    start_waiter(ct, &u);
    ct_await_hearing(ct, u.client, "row 13", 5000);
    int fault = ct_fault(ct, CT_OP_WOKEN, CT_LOSE_REPLY, CT_ALWAYS);
    free_without_news(ct, &u, BRIEF_MS);
    CT_GT(ct_fault_hits(ct, fault), 0);
}

static void unlock_in_the_gap(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)call;
    dl_lock_t *held = arg;
    if (dl_hold_count(held) > 0) {
        CT_OK(dl_unlock(held, CT_ERR));
    }
}

/* The holder releases at this instant of the subscription. */
static void release_in_the_gap(ct_t *ct, ct_when_t when) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock_owned(ct, a, "row 14", 1), *wanted = ct_lock(ct, b, "row 14");
    take(ct, held, 20 * ct_lease_ms(ct));
    ct_hook(ct, CT_OP_WATCH, when, "row 14", unlock_in_the_gap, held);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(wanted, CT_ERR));
    CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_WATCH), 1);
    CT_OK(dl_unlock(wanted, CT_ERR));
}

CT_CASE(faults, row14_release_just_before_the_subscription, .needs = DL_CAP_NOTIFY) {
    release_in_the_gap(ct, CT_BEFORE);
}

CT_CASE(faults, row14_release_just_after_the_subscription, .needs = DL_CAP_NOTIFY) {
    release_in_the_gap(ct, CT_AFTER);
}
