/* stats_cases.c - contract: the counters of a client say what happened. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "callers.h"

static void time_out(ct_t *ct, void *lock) {
    CT_STATUS(dl_trylock_for(lock, 100, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
}

static void wait_and_unlock(ct_t *ct, void *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(stats, they_begin_at_zero) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.size, sizeof stats);
    CT_EQ(stats.acquired + stats.reentered + stats.contended + stats.busy + stats.timed_out + stats.released,
          0);
    CT_EQ(stats.lost + stats.renewed + stats.renewals_failed + stats.unknown_outcomes +
              stats.background_frees,
          0);
    CT_EQ(stats.held_now + stats.waiting_now + stats.events_dropped + stats.reconnects, 0);
    stats.size--;
    CT_EQ(dl_client_stats(client, &stats), DL_EINVAL);
    CT_EQ(dl_client_stats(client, NULL), DL_EINVAL);
    CT_EQ(dl_client_stats(NULL, &stats), DL_EINVAL);
}

CT_CASE(stats, each_kind_of_end_is_counted_once) {
    dl_client_t *client = ct_open(ct, "lease: 60s");
    dl_lock_t *lock = ct_lock(ct, client, "orders"), *other = ct_lock(ct, client, "bills");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_trylock(other, CT_ERR));
    CT_EQ(ct_stats(ct, client).held_now, 2);
    ct_join(ct, ct_thread(ct, time_out, lock));
    CT_STATUS(dl_trylock(ct_lock_owned(ct, client, "bills", 1), CT_ERR), DL_EBUSY);
    CT_STATUS(dl_unlock(ct_lock_owned(ct, client, "bills", 1), CT_ERR), DL_ENOTOWNER);
    CT_OK(dl_unlock(lock, CT_ERR));
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.acquired, 2);
    CT_EQ(stats.reentered, 1);
    CT_EQ(stats.contended, 0);
    CT_EQ(stats.busy, 1);
    CT_EQ(stats.timed_out, 1);
    CT_EQ(stats.released, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(other, CT_ERR));
    stats = ct_stats(ct, client);
    CT_EQ(stats.released, 2);
    CT_EQ(stats.held_now, 0);
    CT_EQ(stats.lost, 0);
}

CT_CASE(stats, a_loss_is_no_release) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    (void)lose_by_renewal(ct, "orders");
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_expect_event(ct, client, DL_EVENT_LOST, "orders", 5000);
    CT_EQ(ct_stats(ct, client).held_now, 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.acquired, 1);
    CT_EQ(stats.lost, 1);
    CT_EQ(stats.released, 0);
}

CT_CASE(stats, times_of_waiting_and_holding_are_measured) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "orders"), *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(held, CT_ERR));
    ct_thread_t *thread = ct_thread(ct, wait_and_unlock, lock);
    ct_await_waiting(ct, client, 1, 5000);
    ct_sleep_ms(ct, 200);
    CT_OK(dl_unlock(held, CT_ERR));
    ct_join(ct, thread);
    int64_t late_us = 1000 * (ct_tolerance_ms(ct) + 500); /* the longest pause of the backoff */
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.contended, 1);
    CT_BETWEEN(stats.wait_us_sum, 199000, 200000 + late_us);
    CT_EQ(stats.wait_us_max, stats.wait_us_sum);
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_sleep_ms(ct, 300);
    CT_OK(dl_unlock(lock, CT_ERR));
    stats = ct_stats(ct, client);
    CT_EQ(stats.contended, 1);
    CT_BETWEEN(stats.hold_us_max, 299000, 300000 + 1000 * ct_tolerance_ms(ct));
    CT_BETWEEN(stats.hold_us_sum, stats.hold_us_max, stats.hold_us_max + 1000 * ct_tolerance_ms(ct));
    CT_LE(stats.wait_us_max, stats.wait_us_sum);
}

CT_CASE(stats, a_hold_that_waited_inside_the_process_was_contended_too) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_thread_t *thread = ct_thread(ct, wait_and_unlock, lock);
    ct_await_waiting(ct, client, 1, 5000);
    CT_EQ(ct_stats(ct, client).waiting_now, 1);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_join(ct, thread);
    CT_EQ(ct_stats(ct, client).contended, 1);
    CT_EQ(ct_stats(ct, client).acquired, 2);
    CT_EQ(ct_stats(ct, client).waiting_now, 0);
}

CT_CASE(stats, lost_replies_and_their_mending_are_counted) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 1);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    CT_EQ(ct_stats(ct, client).unknown_outcomes, 1);
    CT_AWAIT_THAT(ct_stats(ct, client).background_frees, ==, 1, ct_tolerance_ms(ct));
    ct_expect_free(ct, "orders", ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, client).acquired, 0);
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_fault(ct, CT_OP_RELEASE, CT_LOSE_REQUEST, 1);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    ct_expect_free(ct, "orders", ct_tolerance_ms(ct));
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.unknown_outcomes, 2);
    CT_EQ(stats.background_frees, 2);
    CT_EQ(stats.released, 1);
}

CT_CASE(stats, renewals_are_counted_by_their_outcome) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, client).renewed, >=, 2, 5 * LASTING_EVERY_MS);
    CT_EQ(ct_stats(ct, client).renewals_failed, 0);
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, 1);
    CT_AWAIT_THAT(ct_stats(ct, client).renewals_failed, ==, 1, 5 * LASTING_EVERY_MS);
    uint64_t renewed = ct_stats(ct, client).renewed;
    CT_AWAIT_THAT(ct_stats(ct, client).renewed, >, renewed, 5 * LASTING_EVERY_MS);
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.renewals_failed, 1);
    CT_LE(stats.renewal_lateness_us_max, 1000 * ct_tolerance_ms(ct));
    CT_LE(stats.renewal_lateness_us_max, stats.renewal_lateness_us_sum);
    CT_OK(dl_unlock(lock, CT_ERR));
}
