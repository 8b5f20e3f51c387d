/* leases_cases.c - contract: how long a hold may be acted on, and who makes it longer. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

#define NS_PER_MS 1000000

/* What dl_valid_ms may say now of a hold whose request was sent then. */
static void expect_valid(ct_t *ct, dl_lock_t *lock, uint64_t sent_ns, int64_t lease_ms) {
    uint64_t lease_ns = (uint64_t)lease_ms * NS_PER_MS;
    uint64_t until_ns = sent_ns + lease_ns - lease_ns / 100 - 2 * NS_PER_MS;
    int64_t most_ms = (int64_t)(until_ns - ct_now_ns(ct)) / NS_PER_MS;
    int64_t valid_ms = dl_valid_ms(lock);
    int64_t least_ms = (int64_t)(until_ns - ct_now_ns(ct)) / NS_PER_MS;
    CT_BETWEEN(valid_ms, least_ms, most_ms);
}

/* ---- the arithmetic -------------------------------------------------------------------------- */

CT_CASE(leases, validity_is_the_lease_less_one_percent_and_two_ms) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    int64_t leases[] = {30000, 30099, 60000, 3600000, 86400001, DL_LEASE_MAX_MS};
    for (size_t i = 0; i < sizeof leases / sizeof leases[0]; i++) {
        CT_OK(dl_trylock_for(lock, 0, leases[i], CT_ERR));
        ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
        CT_EQ(call.lease_ms, leases[i]);
        expect_valid(ct, lock, call.sent_ns, leases[i]);
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

CT_CASE(leases, the_shortest_lease_has_exactly_its_validity, .traits = CT_VIRTUAL) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, DL_LEASE_MIN_MS, CT_ERR));
    CT_EQ(dl_valid_ms(lock), 97);
    ct_sleep_ms(ct, 96);
    CT_EQ(dl_valid_ms(lock), 1);
    CT_NE(dl_hold_count(lock), 0);
    ct_sleep_ms(ct, 1);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
}

CT_CASE(leases, validity_counts_from_before_the_request_was_sent) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    static const ct_mode_t modes[] = {CT_LATE, CT_LATE_REPLY};
    for (size_t i = 0; i < 2; i++) {
        ct_fault_t slow = {.op = CT_OP_TRY, .mode = modes[i], .delay_ms = ct_call_timeout_ms(ct) / 2};
        ct_fault_add(ct, &slow);
        CT_OK(dl_trylock_for(lock, 0, 30000, CT_ERR));
        ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
        CT_GE(call.end_ns - call.begin_ns, (uint64_t)slow.delay_ms * NS_PER_MS);
        /* The delay counts from the beginning of the call, which is a little before it is sent. */
        int64_t unsent_ms = (int64_t)((call.sent_ns - call.begin_ns + NS_PER_MS - 1) / NS_PER_MS);
        CT_LT(unsent_ms, slow.delay_ms);
        CT_LE(dl_valid_ms(lock), validity_of(30000) - slow.delay_ms + unsent_ms);
        CT_GE(dl_valid_ms(lock), validity_of(30000) - slow.delay_ms - ct_tolerance_ms(ct));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

CT_CASE(leases, a_yes_without_validity_left_is_no_yes) {
    dl_client_t *client = ct_open(ct, "call_timeout: 10s");
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    static const ct_mode_t modes[] = {CT_LATE, CT_LATE_REPLY};
    for (size_t i = 0; i < 2; i++) {
        int64_t delay_ms = ct_call_timeout_ms(ct) * 3 / 4;
        ct_fault_t slow = {.op = CT_OP_TRY, .mode = modes[i], .delay_ms = delay_ms};
        ct_fault_add(ct, &slow);
        /* Shorter than the delay, since some drivers ask several times before the request that counts. */
        CT_STATUS(dl_trylock_for(lock, 0, delay_ms * 2 / 3, CT_ERR), DL_ELOST);
        CT_EQ(dl_valid_ms(lock), 0);
        CT_EQ(dl_hold_count(lock), 0);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
        /* One that arrived late has its whole lease before it on the server; it is freed long before that. */
        ct_expect_free(ct, "orders", ct_tolerance_ms(ct));
    }
    CT_EQ(ct_stats(ct, client).acquired, 0);
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0); /* it was never held */
    CT_OK(dl_trylock(lock, CT_ERR));
}

CT_CASE(leases, a_yes_counts_until_the_last_instant_of_validity, .traits = CT_VIRTUAL) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    ct_fault_t just = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = validity_of(1000) - 1};
    ct_fault_add(ct, &just);
    CT_OK(dl_trylock_for(lock, 0, 1000, CT_ERR));
    CT_EQ(dl_valid_ms(lock), 1);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_fault_t late = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = validity_of(1000)};
    ct_fault_add(ct, &late);
    CT_STATUS(dl_trylock_for(lock, 0, 1000, CT_ERR), DL_ELOST);
}

CT_CASE(leases, a_wait_tries_again_after_a_yes_that_came_too_late) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    ct_fault_t slow = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = ct_call_timeout_ms(ct) / 2};
    int fault = ct_fault_add(ct, &slow);
    int64_t lease_ms = ct_call_timeout_ms(ct) / 3;
    CT_OK(dl_trylock_for(lock, 20000, lease_ms, CT_ERR));
    CT_EQ(ct_fault_hits(ct, fault), 1);
    CT_BETWEEN(dl_valid_ms(lock), 1, validity_of(lease_ms));
}

/* ---- explicit leases ------------------------------------------------------------------------- */

CT_CASE(leases, an_explicit_lease_is_not_renewed_and_ends_as_lost) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    int64_t lease_ms = ct_lease_ms(ct) * 2;
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_trylock_for(lock, 0, lease_ms, CT_ERR));
    uint64_t token = dl_token(lock);
    int64_t after_ms = ct_now_ms(ct);
    dl_event_t event = ct_expect_event(ct, client, DL_EVENT_LOST, "orders", lease_ms + ct_tolerance_ms(ct));
    /* The request left some time between the two. */
    CT_BETWEEN(ct_now_ms(ct), before_ms + validity_of(lease_ms) - 10,
               after_ms + validity_of(lease_ms) + ct_tolerance_ms(ct));
    CT_EQ(event.status, DL_ETIMEDOUT);
    CT_EQ(event.valid_ms, 0);
    CT_EQ(event.token, token);
    CT_EQ(event.hold_id, ct_call(ct, CT_OP_TRY, 0).hold_id);
    CT_EQ(dl_valid_ms(lock), 0);
    for (int i = 0; i < ct_calls(ct, CT_OP_RENEW); i++) {
        CT_CHECK(ct_caps(ct) & DL_CAP_SESSION);
        CT_EQ(ct_call(ct, CT_OP_RENEW, i).lease_ms, 0); /* a session's heartbeat asks for no time */
    }
    ct_expect_free(ct, "orders", ct_tolerance_ms(ct));
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, ct_tolerance_ms(ct));
    CT_OK(dl_trylock(lock, CT_ERR));
}

static void no_validity(ct_t *ct, const ct_call_t *call, void *lock) {
    (void)call;
    CT_EQ(dl_valid_ms(lock), 0);
}

CT_CASE(leases, validity_has_ended_before_another_can_be_granted, .traits = CT_VIRTUAL) {
    dl_lock_t *lock = ct_lock_owned(ct, ct_open(ct, NULL), "orders", 1);
    dl_client_t *other = ct_open(ct, NULL);
    dl_lock_t *wanted = ct_lock(ct, other, "orders");
    CT_OK(dl_trylock_for(lock, 0, 5000, CT_ERR));
    while (dl_trylock(wanted, NULL) == DL_EBUSY) {
        ct_sleep_ms(ct, 1);
    }
    no_validity(ct, NULL, lock);
    CT_GT(dl_valid_ms(wanted), 0);
}

CT_CASE(leases, leases_out_of_range_are_refused_and_nothing_is_sent) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    int64_t bad[] = {
        -1, 1, 50, DL_LEASE_MIN_MS - 1, DL_LEASE_MAX_MS + 1, INT64_MAX, INT64_MIN, INT64_MAX / 1000000 + 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CT_STATUS(dl_trylock_for(lock, 0, bad[i], CT_ERR), DL_EINVAL);
    }
    CT_EQ(ct_calls(ct, CT_OP_TRY), 0);
    CT_OK(dl_trylock_for(lock, 0, DL_LEASE_MAX_MS, CT_ERR));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CT_STATUS(dl_trylock_for(lock, 0, bad[i], CT_ERR), DL_EINVAL);
        CT_STATUS(dl_extend(lock, bad[i], CT_ERR), DL_EINVAL);
    }
    CT_EQ(dl_hold_count(lock), 1);
    CT_GT(dl_valid_ms(lock), DL_LEASE_MAX_MS / 2);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.max_hold_ms = -1;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    opts.max_hold_ms = DL_LEASE_MAX_MS + 1;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(leases, an_automatic_lease_is_the_clients_and_is_renewed) {
    int is_virtual = (ct_traits(ct) & CT_VIRTUAL) != 0;
    int64_t lease_ms = is_virtual ? ct_lease_ms(ct) : 60000,
            every_ms = is_virtual ? lease_ms / 3 : LASTING_EVERY_MS;
    dl_client_t *client = ct_open(ct, is_virtual ? NULL : LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CT_OK(dl_client_info(client, &info));
    CT_EQ(info.lease_ms, lease_ms);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(ct_call(ct, CT_OP_TRY, -1).lease_ms, info.lease_ms);
    for (int i = 0; i < 40; i++) {
        ct_sleep_ms(ct, every_ms * 3 / 10);
        CT_GT(dl_valid_ms(lock), info.lease_ms / 4);
    }
    uint64_t renewed = ct_stats(ct, client).renewed;
    CT_BETWEEN(renewed, 6, renewals_since(ct, before_ms, every_ms));
    CT_EQ(ct_call(ct, CT_OP_RENEW, -1).lease_ms, info.lease_ms);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- extending ------------------------------------------------------------------------------- */

CT_CASE(leases, an_extension_makes_the_hold_last_longer) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    int64_t lease_ms = 2 * ct_tolerance_ms(ct);
    CT_OK(dl_trylock_for(lock, 0, lease_ms, CT_ERR));
    CT_OK(dl_extend(lock, 20000, CT_ERR));
    ct_call_t call = ct_call(ct, CT_OP_RENEW, -1);
    CT_EQ(call.lease_ms, 20000);
    CT_EQ(call.hold_id, ct_call(ct, CT_OP_TRY, -1).hold_id);
    expect_valid(ct, lock, call.sent_ns, 20000);
    ct_sleep_ms(ct, 2 * lease_ms);
    CT_GT(dl_valid_ms(lock), 10000);
    ct_expect_held(ct, "orders");
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(leases, an_extension_never_shortens) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
    CT_OK(dl_extend(lock, DL_LEASE_MIN_MS, CT_ERR));
    expect_valid(ct, lock, call.sent_ns, 60000);
    CT_OK(dl_extend(lock, 1000, CT_ERR));
    expect_valid(ct, lock, call.sent_ns, 60000);
    if ((ct_traits(ct) & CT_CAN_INSPECT) && (ct_caps(ct) & DL_CAP_LEASE)) {
        CT_GT(ct_server_info(ct, "orders").remaining_ms, 60000 - 3 * ct_tolerance_ms(ct));
    }
    ct_sleep_ms(ct, 400);
    CT_GT(dl_valid_ms(lock), 50000);
    ct_expect_held(ct, "orders");
}

CT_CASE(leases, an_automatic_extension_is_the_clients_lease) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, "lease: 40s"), "orders");
    CT_OK(dl_trylock_for(lock, 0, 10000, CT_ERR));
    CT_OK(dl_extend(lock, DL_LEASE_AUTO, CT_ERR));
    expect_valid(ct, lock, ct_call(ct, CT_OP_RENEW, -1).sent_ns, 40000);
}

CT_CASE(leases, an_extension_counts_from_before_it_was_sent) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 20000, CT_ERR));
    ct_fault_t slow = {.op = CT_OP_RENEW, .mode = CT_LATE_REPLY, .delay_ms = ct_call_timeout_ms(ct) / 2};
    ct_fault_add(ct, &slow);
    CT_OK(dl_extend(lock, 60000, CT_ERR));
    CT_LE(dl_valid_ms(lock), validity_of(60000) - slow.delay_ms + (ct_traits(ct) & CT_VIRTUAL ? 0 : 20));
    CT_GE(dl_valid_ms(lock), validity_of(60000) - slow.delay_ms - ct_tolerance_ms(ct));
}

static void fail_to_extend(ct_t *ct, void *lock) {
    CT_STATUS(dl_extend(lock, 100000, CT_ERR), DL_ENOTOWNER);
}

CT_CASE(leases, only_the_owner_extends) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    fail_to_extend(ct, lock);
    CT_OK(dl_trylock_for(lock, 0, 20000, CT_ERR));
    fail_to_extend(ct, ct_lock(ct, ct_open(ct, NULL), "orders"));
    fail_to_extend(ct, ct_lock_owned(ct, client, "orders", 1));
    ct_join(ct, ct_thread(ct, fail_to_extend, lock));
    CT_LE(dl_valid_ms(lock), validity_of(20000));
    CT_OK(dl_unlock(lock, CT_ERR));
    fail_to_extend(ct, lock);
    for (int i = 0; i < ct_calls(ct, CT_OP_RENEW); i++) {
        CT_EQ(ct_call(ct, CT_OP_RENEW, i).lease_ms, 0); /* looks after a session, and extends nothing */
    }
    CT_STATUS(dl_extend(NULL, 1000, CT_ERR), DL_EINVAL);
}

CT_CASE(leases, an_extension_of_a_hold_that_is_gone_reports_the_loss_and_creates_nothing,
        .traits = CT_CAN_FORCE) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    ct_wipe(ct, "orders");
    CT_STATUS(dl_extend(lock, 100000, CT_ERR), DL_ELOST);
    ct_expect_free(ct, "orders", 0);
    CT_EQ(dl_valid_ms(lock), 0);
    ct_expect_event(ct, client, DL_EVENT_LOST, "orders", ct_tolerance_ms(ct));
    CT_STATUS(dl_extend(lock, 100000, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0);
    CT_STATUS(dl_extend(lock, 100000, CT_ERR), DL_ENOTOWNER);
}

static void extend_far(ct_t *ct, void *lock) {
    CT_OK(dl_extend(lock, 300000, CT_ERR));
}

CT_CASE(leases, a_renewal_that_arrives_after_an_extension_shortens_nothing, .needs = DL_CAP_LEASE,
        .traits = CT_VIRTUAL | CT_CAN_INSPECT) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, client, "orders", 1);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, client, "orders");
    ct_pause_await(ct, pause, ct_lease_ms(ct));
    ct_join(ct, ct_thread(ct, extend_far, lock)); /* overtakes the renewal */
    ct_pause_go(ct, pause);
    CT_AWAIT_THAT(ct_stats(ct, client).renewed, ==, 1, 5000);
    CT_GE(dl_valid_ms(lock), validity_of(300000) - 10);
    CT_GE(ct_server_info(ct, "orders").remaining_ms, 300000 - 10);
    ct_sleep_ms(ct, 100000); /* and so do the later ones */
    CT_GE(ct_server_info(ct, "orders").remaining_ms, 200000 - 10);
    CT_GE(dl_valid_ms(lock), validity_of(300000) - 100010);
}

CT_CASE(leases, an_unknown_extension_is_freed_as_long_as_it_may_last, .needs = DL_CAP_LEASE,
        .traits = CT_VIRTUAL) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 5000, CT_ERR));
    ct_fault(ct, CT_OP_RENEW, CT_LOSE_REPLY, 1);
    CT_STATUS(dl_extend(lock, 300000, CT_ERR), DL_EUNKNOWN); /* the server did it */
    int fault = ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EIO);
    ct_sleep_ms(ct, 20000);
    ct_fault_end(ct, fault);
    ct_expect_free(ct, "orders", 5000);
}
