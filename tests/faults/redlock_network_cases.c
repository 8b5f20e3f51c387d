/* redlock_network_cases.c - the network between a client of redlock and its nodes (rows 10 to 14). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/redlock_wire.h"

/* The first nodes are behind proxies, and the client has made connections to all. */
static dl_client_t *open_warm(ct_t *ct, front_t *front) {
    dl_client_t *c = ct_open(ct, through(ct, front, NULL));
    dl_lock_t *lock = ct_lock(ct, c, "warm");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "warm"), ==, 0, ct_tolerance_ms(ct));
    return c;
}

/* Nothing of the name is left on any node. */
static void expect_no_votes(ct_t *ct, const char *name) {
    CT_AWAIT_THAT(votes_for(ct, name), ==, 0, 2 * FREE_MS + ct_tolerance_ms(ct));
}

/* ---- row 10 -------------------------------------------------------------------------------------- */

/* A node whose connection has just ended has no part in a lock that the others decide sooner; and the plan
 * may have been for that connection, which the client gave up because of the one before. */
static void lock_until_it_acted(ct_t *ct, dl_lock_t *lock, proxy_t *proxy, const proxy_plan_t *plan, int n) {
    int64_t until_ms = ct_now_ms(ct) + 4 * ct_tolerance_ms(ct), missed = 0;
    proxy_counts_t counts;
    while ((counts = proxy_counts(ct, proxy)).acts < n) {
        CT_LT(ct_now_ms(ct), until_ms);
        if (counts.missed > missed) {
            missed = counts.missed;
            proxy_plan(ct, proxy, plan);
        }
        CT_OK(dl_trylock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

CT_CASE(faults, row10_nodes_that_say_nonsense, REDLOCK) {
    static const char *const nonsense[] = {"HTTP/1.1 400 Bad Request\r\n", "*-7\r\n", ":7\r\n",
                                           "\x15\x03\x01"};
    front_t front = start_front(ct, spare_of(ct));
    dl_client_t *c = open_warm(ct, &front);
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        const char *name = fresh_name("row 10");
        dl_lock_t *lock = ct_lock(ct, c, name);
        proxy_plan_t plan = {.request = name,
                             .way = PROXY_REPLIES,
                             .act = PROXY_INSERT,
                             .bytes = nonsense[i],
                             .len = strlen(nonsense[i])};
        EACH_PROXY(front, proxy_plan(ct, proxy, &plan));
        watch_t watch = start_watch(ct);
        CT_OK(dl_trylock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        IN_TIME(watch, 0);
        EACH_PROXY(front, lock_until_it_acted(ct, lock, proxy, &plan, (int)i + 1));
        expect_no_votes(ct, name);
    }
    stop_front(ct, &front);
}

CT_CASE(faults, row10_answers_of_all_nodes_that_nobody_asked_for, REDLOCK) {
    front_t front = start_front(ct, node_count(ct));
    dl_client_t *c = open_warm(ct, &front), *direct = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 10"), *held = ct_lock(ct, direct, "row 10");
    CT_OK(dl_lock(held, CT_ERR));
    uint64_t token = dl_token(held);
    for (int i = 0; i < 3; i++) {
        ct_sleep_ms(ct, TRUST_MS);
        EACH_PROXY(front, proxy_inject(ct, proxy, ":7\r\n", 4));
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    }
    CT_OK(dl_unlock(held, CT_ERR));
    ct_sleep_ms(ct, TRUST_MS);
    EACH_PROXY(front, proxy_inject(ct, proxy, ":7\r\n", 4));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
    CT_OK(dl_unlock(lock, CT_ERR));
    expect_no_votes(ct, "row 10");
    stop_front(ct, &front);
}

CT_CASE(faults, row10_majority_falls_silent_and_speaks_again, REDLOCK) {
    front_t front = start_front(ct, quorum_of(ct));
    dl_client_t *c = open_warm(ct, &front);
    dl_lock_t *held = ct_lock(ct, c, "row 10 held"), *wanted = ct_lock(ct, c, "row 10");
    CT_OK(dl_lock(held, CT_ERR));
    EACH_PROXY(front, proxy_swallow(ct, proxy, PROXY_REPLIES));
    watch_t lost = start_watch(ct), watch = start_watch(ct);
    CT_EITHER(dl_trylock_for(wanted, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, 50);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 10 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(lost, ct_lease_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    watch = start_watch(ct);
    CT_EITHER(dl_lock(wanted, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    EACH_PROXY(front, proxy_swallow(ct, proxy, 0));
    expect_no_votes(ct, "row 10");
    expect_back(ct, wanted);
    stop_front(ct, &front);
}

CT_CASE(faults, row10_half_open_connections_to_all_nodes, REDLOCK) {
    front_t front = start_front(ct, node_count(ct));
    dl_client_t *c = open_warm(ct, &front);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    EACH_PROXY(front, proxy_swallow(ct, proxy, PROXY_BOTH));
    EACH_PROXY(front, proxy_swallow(ct, proxy, 0));
    watch_t watch = start_watch(ct);
    CT_EITHER(dl_trylock(lock, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR)); /* no dead connection is used again */
    IN_TIME(watch, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    expect_no_votes(ct, "row 10");
    stop_front(ct, &front);
}

/* ---- rows 11 and 12 ------------------------------------------------------------------------------ */

CT_CASE(faults, row11_replies_of_a_majority_lost, REDLOCK) {
    front_t front = start_front(ct, quorum_of(ct));
    dl_client_t *c = open_warm(ct, &front);
    for (int i = 0; i < 4; i++) {
        const char *name = fresh_name("row 11");
        dl_lock_t *lock = ct_lock(ct, c, name);
        EACH_PROXY(front, lose_reply(ct, proxy, name, i % 2 == 0 ? PROXY_CUT : PROXY_RESET));
        watch_t watch = start_watch(ct);
        CT_OK(dl_trylock_for(lock, 10 * ct_lease_ms(ct), 20 * ct_lease_ms(ct), CT_ERR));
        IN_TIME(watch, 100); /* it is not busy with itself */
        EACH_PROXY(front, proxy_await_act(ct, proxy, i + 1, 1000));
        CT_GE(votes_for(ct, name), quorum_of(ct));
        CT_OK(dl_unlock(lock, CT_ERR));
        expect_no_votes(ct, name);
    }
    stop_front(ct, &front);
}

CT_CASE(faults, row11_replies_of_a_majority_to_an_unlock_lost, REDLOCK) {
    front_t front = start_front(ct, quorum_of(ct));
    dl_client_t *c = open_warm(ct, &front), *other = ct_open(ct, NULL);
    for (int i = 0; i < 4; i++) {
        const char *name = fresh_name("row 11");
        dl_lock_t *lock = ct_lock(ct, c, name), *next = ct_lock(ct, other, name);
        take(ct, lock, 20 * ct_lease_ms(ct)); /* no renewal meets the proxies' plans */
        /* No claim is on its way any more. */
        CT_AWAIT_THAT(votes_for(ct, name), ==, node_count(ct), ct_tolerance_ms(ct));
        EACH_PROXY(front, lose_reply(ct, proxy, name, i % 2 == 0 ? PROXY_CUT : PROXY_RESET));
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
        CT_OK(dl_trylock(next, CT_ERR));
        uint64_t hold_id = ct_server_info(ct, name).hold_id;
        CT_AWAIT_THAT(ct_stats(ct, c).background_frees, >=, (uint64_t)i + 1, FREE_MS + ct_tolerance_ms(ct));
        CT_EQ(ct_server_info(ct, name).hold_id, hold_id); /* the free of the first harms nobody */
        CT_OK(dl_unlock(next, CT_ERR));
        expect_no_votes(ct, name);
    }
    stop_front(ct, &front);
}

/* Requests for a lock that n nodes get when they like. */
static void hold_claims(ct_t *ct, front_t *front, const char *name) {
    proxy_plan_t plan = {.request = name, .way = PROXY_REQUESTS, .act = PROXY_HOLD};
    EACH_PROXY(*front, proxy_plan(ct, proxy, &plan));
}

CT_CASE(faults, row12_claim_that_reaches_a_node_after_the_unlock, REDLOCK) {
    front_t front = start_front(ct, spare_of(ct));
    dl_client_t *c = open_warm(ct, &front);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    hold_claims(ct, &front, "row 12");
    CT_OK(dl_trylock_for(lock, 0, 60 * ct_lease_ms(ct), CT_ERR));
    EACH_PROXY(front, proxy_await_act(ct, proxy, 1, 1000));
    CT_EQ(votes_for(ct, "row 12"), quorum_of(ct));
    CT_OK(dl_unlock(lock, CT_ERR));
    /* What was still on its way has come to its end: given up after node_timeout, its connection killed by
     * the free that follows it. */
    ct_sleep_ms(ct, scaled(ct, 250) + ct_tolerance_ms(ct));
    EACH_PROXY(front, CT_EQ(proxy_deliver(ct, proxy, 0), 0));
    CT_EQ(votes_for(ct, "row 12"), 0);
    stop_front(ct, &front);
}

CT_CASE(faults, row12_claims_that_reach_a_majority_after_they_were_given_up, REDLOCK) {
    front_t front = start_front(ct, quorum_of(ct));
    dl_client_t *c = open_warm(ct, &front), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 12"), *theirs = ct_lock(ct, other, "row 12");
    hold_claims(ct, &front, "row 12");
    CT_EITHER(dl_trylock_for(lock, 50, 60 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
    CT_OK(dl_trylock_for(theirs, FREE_MS, DL_LEASE_AUTO, CT_ERR));
    uint64_t hold_id = ct_server_info(ct, "row 12").hold_id;
    EACH_PROXY(front, (void)proxy_deliver(ct, proxy, 1)); /* as a proxy that tries again would */
    CT_EQ(ct_server_info(ct, "row 12").hold_id, hold_id);
    CT_OK(dl_extend(theirs, 2 * ct_lease_ms(ct), CT_ERR));
    CT_OK(dl_unlock(theirs, CT_ERR));
    CT_EQ(dl_hold_count(lock), 0);
    expect_no_votes(ct, "row 12");
    stop_front(ct, &front);
}

CT_CASE(faults, row12_claim_that_all_nodes_have_refused_is_not_freed_again, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 12"), *theirs = ct_lock(ct, other, "row 12");
    CT_OK(dl_trylock_for(theirs, 0, 60 * ct_lease_ms(ct), CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "row 12"), ==, node_count(ct), ct_tolerance_ms(ct));
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    for (size_t i = 0; i < node_count(ct); i++) {
        redis_server_freeze(node_at(ct, i));
    }
    CT_EITHER(dl_trylock_for(lock, 50, 60 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
    for (size_t i = 0; i < node_count(ct); i++) {
        redis_server_thaw(node_at(ct, i));
    }
    /* Each has said that it had nothing of it. */
    ct_sleep_ms(ct, FREE_MS + RETRY_MS + ct_tolerance_ms(ct));
    uint64_t frees = ct_stats(ct, c).background_frees;
    CT_GE(frees, 1);
    ct_sleep_ms(ct, 2500);
    CT_EQ(ct_stats(ct, c).background_frees, frees);
    CT_OK(dl_unlock(theirs, CT_ERR));
    expect_no_votes(ct, "row 12");
}

/* ---- row 13 -------------------------------------------------------------------------------------- */

static void start_waiter(ct_t *ct, caller_t *waiter) {
    start_caller(ct, waiter);
    ct_await_hearing(ct, NULL, "row 13", 5000);
}

/* Of n nodes the connections die on which a waiter hears of releases. */
static void lose_subscriptions(ct_t *ct, size_t n, int64_t within_ms) {
    front_t front = start_front(ct, n);
    dl_client_t *a = ct_open(ct, NULL), *b = open_warm(ct, &front);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    for (int i = 0; i < 3; i++) {
        take(ct, held, 20 * ct_lease_ms(ct));
        caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
        start_waiter(ct, &waiter);
        EACH_PROXY(front, i % 2 == 0 ? proxy_cut(ct, proxy) : proxy_reset(ct, proxy));
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_unlock(held, CT_ERR));
        end_caller(ct, &waiter, DL_OK);
        CT_LE(waiter.ended_ms - before_ms, within_ms + ct_tolerance_ms(ct));
    }
    stop_front(ct, &front);
}

CT_CASE(faults, row13_subscriptions_at_a_minority_die, REDLOCK) {
    lose_subscriptions(ct, spare_of(ct), 0);
}

CT_CASE(faults, row13_subscriptions_at_all_nodes_die, REDLOCK) {
    lose_subscriptions(ct, node_count(ct), RETRY_MS);
}

CT_CASE(faults, row13_news_of_a_minority_is_missed, REDLOCK) {
    front_t front = start_front(ct, spare_of(ct));
    dl_client_t *a = ct_open(ct, NULL), *b = open_warm(ct, &front);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    take(ct, held, 20 * ct_lease_ms(ct));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_waiter(ct, &waiter);
    EACH_PROXY(front, proxy_swallow(ct, proxy, PROXY_BOTH));
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_tolerance_ms(ct));
    stop_front(ct, &front);
}
