/* lost_cases.c - faults of the network that lose replies and requests (rows 11 and 12). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

/* ---- row 11: the server did it, and nobody heard ------------------------------------------------------ */

CT_CASE(faults, row11_reply_to_a_lock_lost, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    for (int i = 0; i < 6; i++) {
        const char *name = fresh_name("row 11");
        dl_lock_t *lock = ct_lock(ct, c, name);
        introduce(ct, name);
        lose_reply(ct, proxy, claim_of(ct, name), i % 2 == 0 ? PROXY_CUT : PROXY_RESET);
        watch_t watch = start_watch(ct);
        CT_OK(dl_trylock_for(lock, 10 * ct_lease_ms(ct), 20 * ct_lease_ms(ct), CT_ERR));
        IN_TIME(watch, 100); /* it does not wait for the lease of the hold that it knows nothing of */
        CT_EQ(proxy_counts(ct, proxy).acts, i + 1);
        CT_EQ(ct_server_info(ct, name).hold_id, ct_call(ct, CT_OP_TRY, -1).hold_id);
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_expect_free(ct, name, 0);
    }
    if (!is_session(ct)) { /* it may have waited until its own old session was over */
        CT_EQ(ct_stats(ct, c).contended, 0);
    }
    CT_EQ(ct_stats(ct, c).unknown_outcomes, 6);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row11_reply_to_a_lock_swallowed, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 11"), *another = ct_lock(ct, c, "row 11 again");
    introduce(ct, "row 11");
    introduce(ct, "row 11 again");
    lose_reply(ct, proxy, claim_of(ct, "row 11"), PROXY_SWALLOW);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock_for(lock, 0, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR)); /* not busy with itself */
    IN_TIME(watch, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    /* And when it is not asked for again, it is given back. */
    lose_reply(ct, proxy, claim_of(ct, "row 11 again"), PROXY_SWALLOW);
    CT_STATUS(dl_trylock_for(another, 0, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    ct_expect_free(ct, "row 11 again", FREE_MS + ct_tolerance_ms(ct));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row11_reply_to_an_unlock_lost, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    for (int i = 0; i < 4; i++) {
        const char *name = fresh_name("row 11");
        dl_lock_t *lock = ct_lock(ct, c, name), *next = ct_lock(ct, other, name);
        take(ct, lock, 20 * ct_lease_ms(ct)); /* no renewal meets the proxy's plan */
        lose_reply(ct, proxy, unlock_of(ct, name), i % 2 == 0 ? PROXY_CUT : PROXY_RESET);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
        CT_OK(dl_trylock(next, CT_ERR));
        uint64_t hold_id = ct_server_info(ct, name).hold_id;
        CT_AWAIT_THAT(ct_stats(ct, c).background_frees, >=, (uint64_t)i + 1, FREE_MS + ct_tolerance_ms(ct));
        CT_EQ(ct_server_info(ct, name).hold_id, hold_id); /* the free of the first harms nobody */
        CT_OK(dl_unlock(next, CT_ERR));
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row11_reply_to_a_renewal_lost, WIRE, .needs = DL_CAP_LEASE) {
    proxy_t *proxy = start_proxy(ct);
    /* A renewal does not come between the last plan and the extension. */
    dl_client_t *c = open_behind_with(ct, proxy, "lease: 60s\nrenew_every: 1s");
    dl_lock_t *lock = ct_lock(ct, c, "row 11");
    CT_OK(dl_lock(lock, CT_ERR));
    for (int i = 0; i < 2; i++) {
        lose_reply(ct, proxy, name_of(ct, "row 11"), PROXY_CUT);
        ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 11", 5000);
        ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "row 11", 5000);
    }
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    lose_reply(ct, proxy, name_of(ct, "row 11"), PROXY_CUT);
    CT_STATUS(dl_extend(lock, 600000, CT_ERR), DL_EUNKNOWN);
    CT_LE(dl_valid_ms(lock), 60000); /* only a yes extends */
    CT_GT(ct_server_info(ct, "row 11").remaining_ms, 540000);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 11", 0);
    proxy_stop(ct, proxy);
}

/* ---- row 12: a request arrives when nobody waits for it any more --------------------------------------- */

/* ":" and a token, which is a time in microseconds, and the line's end. */
#define TOKEN_BYTES 19

/* A lock call whose request is held back on its way, and which gives up. */
static void lock_without_arriving(ct_t *ct, proxy_t *proxy, dl_lock_t *lock) {
    proxy_plan_t plan = {.request = claim_of(ct, "row 12"), .way = PROXY_REQUESTS, .act = PROXY_HOLD};
    int64_t acts = proxy_counts(ct, proxy).acts;
    introduce(ct, "row 12");
    proxy_plan(ct, proxy, &plan);
    CT_STATUS(dl_trylock_for(lock, 0, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    CT_EQ(proxy_counts(ct, proxy).acts, acts + 1);
}

CT_CASE(faults, row12_late_request_after_the_background_free, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_AWAIT_THAT(ct_stats(ct, c).background_frees, >=, 1, FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_tolerance_ms(ct)); /* it has had its answer */
    /* The connection that carries it was killed before: it is never carried out. */
    CT_EQ(proxy_deliver(ct, proxy, 0), 0);
    ct_expect_free(ct, "row 12", 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row12_late_request_replaces_and_frees_no_newer_hold, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_OK(dl_trylock(lock, CT_ERR));
    dl_lock_info_t before = ct_server_info(ct, "row 12");
    CT_GT(proxy_deliver(ct, proxy, 1),
          TOKEN_BYTES); /* busy; on another connection, as a proxy that tries again would */
    dl_lock_info_t after = ct_server_info(ct, "row 12");
    CT_CHECK(after.held);
    CT_EQ(after.hold_id, before.hold_id);
    CT_LE(after.remaining_ms, ct_lease_ms(ct));
    CT_OK(dl_extend(lock, ct_lease_ms(ct), CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 12", 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row12_late_request_takes_the_lock_for_nobody, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 12"), *theirs = ct_lock(ct, other, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(proxy_deliver(ct, proxy, 1), TOKEN_BYTES); /* it was given the lock */
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(ct_stats(ct, c).held_now, 0);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    /* Its client's next hold replaces it at once; for others it is freed in the background. */
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_trylock_for(theirs, FREE_MS, DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(theirs, CT_ERR));
    proxy_stop(ct, proxy);
}

/* The request that frees, as it alone names the queue. */
CT_CASE(faults, row12_late_force_frees_no_newer_hold, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    dl_lock_t *seen = ct_lock(ct, other, "row 12");
    proxy_plan_t plan = {.request = ":client:queue:", .way = PROXY_REQUESTS, .act = PROXY_HOLD};
    take(ct, seen, 20 * ct_lease_ms(ct));
    proxy_plan(ct, proxy, &plan);
    CT_STATUS(dl_force_unlock(ct_lock(ct, c, "row 12"), CT_ERR), DL_EUNKNOWN);
    CT_OK(dl_unlock(seen, CT_ERR));
    take(ct, seen, 20 * ct_lease_ms(ct));
    CT_GT(proxy_deliver(ct, proxy, 1), 0);
    ct_expect_held(ct, "row 12");
    CT_OK(dl_unlock(seen, CT_ERR));
    proxy_stop(ct, proxy);
}

/* ---- row 12 on a server where a request belongs to a connection that has logged in ------------------ */

CT_CASE(faults, row12_late_request_on_its_own_connection, MYSQL) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_OK(dl_trylock(lock, CT_ERR));
    dl_lock_info_t before = ct_server_info(ct, "row 12");
    (void)proxy_deliver(ct, proxy, 0);
    dl_lock_info_t after = ct_server_info(ct, "row 12");
    CT_CHECK(after.held);
    CT_EQ(after.hold_id, before.hold_id);
    CT_LE(after.remaining_ms, ct_lease_ms(ct));
    CT_OK(dl_extend(lock, ct_lease_ms(ct), CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 12", 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row12_late_request_after_the_unlock_of_a_newer_hold, MYSQL) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    /* Before anything is freed the connection that carries the old request is killed. */
    CT_AWAIT_THAT(ct_stats(ct, c).background_frees, >=, 1, FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_tolerance_ms(ct));
    CT_EQ(proxy_deliver(ct, proxy, 0), 0);
    ct_expect_free(ct, "row 12", 0);
    CT_EQ(ct_stats(ct, c).held_now, 0);
    proxy_stop(ct, proxy);
}

/* ---- holds that end with a connection --------------------------------------------------------------- */

CT_CASE(faults, row11_reply_to_a_heartbeat_lost, WIRE, .needs = DL_CAP_SESSION) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 11"), *next = ct_lock(ct, other, "row 11");
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    lose_reply(ct, proxy, NULL, PROXY_CUT); /* the next that anyone says is the heartbeat */
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 11", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    CT_OK(dl_trylock_for(next, ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
    CT_GT(dl_token(next), token);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
    ct_expect_held(ct, "row 11");
    CT_OK(dl_unlock(next, CT_ERR));
    proxy_stop(ct, proxy);
}
