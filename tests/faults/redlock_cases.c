/* redlock_cases.c - nodes of redlock that are down, silent or slow (rows 21 to 23). */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "faults/redlock_wire.h"

/* ---- row 21: a minority -------------------------------------------------------------------------- */

#define PAIRS 41

static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Takes and frees the lock many times: not one call waits for a node that needs so long, and few for
 * anything. */
static void expect_quorum_speed(ct_t *ct, dl_lock_t *lock, int64_t slow_ms) {
    int64_t ms[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        int64_t began_ms = ct_now_ms(ct);
        CT_OK(dl_trylock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        ms[i] = ct_now_ms(ct) - began_ms;
    }
    qsort(ms, PAIRS, sizeof ms[0], compare_times);
    CT_LT(ms[PAIRS / 2], slow_ms / 10);
    CT_LT(ms[PAIRS - 1], slow_ms);
}

CT_CASE(faults, row21_minority_black_holed_at_quorum_speed, REDLOCK) {
    front_t front = start_front(ct, spare_of(ct));
    int64_t timeout_ms = scaled(ct, 1000);
    dl_client_t *c = ct_open(ct, through(ct, &front, times(ct, 1000, 4000, 10000)));
    dl_lock_t *lock = ct_lock(ct, c, "row 21");
    expect_quorum_speed(ct, lock, timeout_ms);
    EACH_PROXY(front, proxy_swallow(ct, proxy, PROXY_BOTH));
    expect_quorum_speed(ct, lock, timeout_ms);
    EACH_PROXY(front, proxy_swallow(ct, proxy, 0));
    expect_quorum_speed(ct, lock, timeout_ms);
    CT_EQ(ct_stats(ct, c).unknown_outcomes, 0);
    CT_AWAIT_THAT(votes_for(ct, "row 21"), ==, 0, timeout_ms + FREE_MS + ct_tolerance_ms(ct));
    stop_front(ct, &front);
}

CT_CASE(faults, row21_minority_slow, REDLOCK) {
    front_t front = start_front(ct, spare_of(ct));
    int64_t slow_ms = scaled(ct, 300), timeout_ms = scaled(ct, 1000);
    dl_client_t *c = ct_open(ct, through(ct, &front, times(ct, 1000, 4000, 10000)));
    dl_lock_t *lock = ct_lock(ct, c, "row 21"), *held = ct_lock(ct, c, "row 21 held");
    EACH_PROXY(front, proxy_delay(ct, proxy, PROXY_BOTH, slow_ms));
    expect_quorum_speed(ct, lock, slow_ms);
    /* So many in a row are more than the slow ones have connections for. One alone they hear late, and keep
     * nothing of it. */
    ct_sleep_ms(ct, 2 * timeout_ms);
    CT_OK(dl_trylock(held, CT_ERR));
    watch_t watch = start_watch(ct);
    CT_OK(dl_extend(held, scaled(ct, 20000), CT_ERR));
    CT_LT(ct_now_ms(ct) - watch.began_ms, slow_ms);
    CT_OK(dl_unlock(held, CT_ERR));
    for (size_t i = front.n; i < node_count(ct); i++) { /* they are the majority */
        CT_EQ(has_vote(ct, i, "row 21 held"), 0);
    }
    /* Then no claim is on its way any more; where one was given up, its free needs a connection of its own.
     */
    ct_sleep_ms(ct, timeout_ms + slow_ms);
    CT_AWAIT_THAT(votes_for(ct, "row 21 held"), ==, 0, 3 * slow_ms + ct_tolerance_ms(ct));
    stop_front(ct, &front);
}

CT_CASE(faults, row21_minority_down_at_open_and_later, REDLOCK) {
    size_t spare = spare_of(ct);
    for (size_t i = 0; i < spare; i++) {
        redis_server_kill(node_at(ct, i));
    }
    watch_t watch = start_watch(ct);
    dl_client_t *c = ct_open(ct, NULL);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    for (size_t i = 0; i < spare; i++) {
        char address[32];
        dl_event_t warning = ct_expect_event(ct, c, DL_EVENT_WARNING, NULL, ct_tolerance_ms(ct));
        snprintf(address, sizeof address, "127.0.0.1:%d", node_at(ct, i)->port);
        CT_CHECKF(strstr(warning.text, address) != NULL, "not about %s: %s", address, warning.text);
    }
    dl_lock_t *held = ct_lock(ct, c, "row 21 held"), *lock = ct_lock(ct, c, "row 21");
    watch = start_watch(ct);
    CT_OK(dl_trylock(held, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    IN_TIME(watch, 0);
    for (size_t i = 0; i < spare; i++) {
        redis_server_boot(node_at(ct, i));
        redlock_node_mark(node_at(ct, i));
    }
    /* Renewals fill them in; so they may take the place of others. */
    CT_AWAIT_THAT(votes_for(ct, "row 21 held"), ==, node_count(ct),
                  RETRY_MS + ct_lease_ms(ct) / 3 + 2 * ct_tolerance_ms(ct));
    for (size_t i = spare; i < 2 * spare; i++) {
        redis_server_kill(node_at(ct, i));
    }
    uint64_t renewed = ct_stats(ct, c).renewed;
    watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR));
    IN_TIME(watch, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 4, 2 * ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_GT(dl_valid_ms(held), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "row 21") + votes_for(ct, "row 21 held"), ==, 0, ct_tolerance_ms(ct));
}

/* ---- row 22: a majority -------------------------------------------------------------------------- */

static void kill_node(redis_server_t *node) {
    redis_server_kill(node);
}

/* The majority goes away like this while a lock is held. */
static void lose_majority(ct_t *ct, void (*happens)(redis_server_t *node)) {
    dl_client_t *c = ct_open(ct, NULL), *late;
    dl_lock_t *held = ct_lock(ct, c, "row 22 held"), *wanted = ct_lock(ct, c, "row 22");
    int64_t timeout_ms = ct_call_timeout_ms(ct);
    CT_OK(dl_lock(held, CT_ERR));
    for (size_t i = 0; i < quorum_of(ct); i++) {
        happens(node_at(ct, i));
    }
    watch_t watch = start_watch(ct);
    CT_EITHER(dl_trylock_for(wanted, 150, DL_LEASE_AUTO, CT_ERR), DL_EIO, DL_EUNKNOWN);
    IN_TIME(watch, 150);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 22 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(watch, ct_lease_ms(ct));
    CT_EQ(dl_valid_ms(held), 0);
    watch = start_watch(ct);
    CT_EITHER(dl_trylock(wanted, CT_ERR), DL_EIO, DL_EUNKNOWN);
    IN_TIME(watch, timeout_ms);
    watch = start_watch(ct);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    IN_TIME(watch, timeout_ms);
    watch = start_watch(ct);
    CT_EITHER(dl_lock(wanted, CT_ERR), DL_EIO, DL_EUNKNOWN);
    IN_TIME(watch, timeout_ms);
    CT_EQ(dl_hold_count(wanted), 0);
    CT_EITHER(dl_trylock(wanted, CT_ERR), DL_EIO, DL_EUNKNOWN);
    char count[48];
    snprintf(count, sizeof count, " of %zu nodes", node_count(ct));
    SAYS(count);
    SAYS("127.0.0.1:");
    watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_EIO);
    IN_TIME(watch, timeout_ms);
    CT_EQ(ct_stats(ct, c).lost, 1);
}

CT_CASE(faults, row22_majority_down_fails_in_time, REDLOCK) {
    lose_majority(ct, kill_node);
    /* The votes of the others were given back. */
    CT_AWAIT_THAT(votes_for(ct, "row 22"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
    CT_AWAIT_THAT(votes_for(ct, "row 22 held"), ==, 0, ct_lease_ms(ct) + ct_tolerance_ms(ct));
}

CT_CASE(faults, row22_majority_silent_fails_in_time, REDLOCK) {
    lose_majority(ct, redis_server_freeze);
    for (size_t i = quorum_of(ct); i < node_count(ct); i++) {
        CT_AWAIT_THAT(has_vote(ct, i, "row 22"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
    }
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_thaw(node_at(ct, i));
    }
}

/* As long as a call may take altogether, whatever a node may take for one request. */
CT_CASE(faults, row22_close_while_the_majority_is_silent, REDLOCK) {
    dl_client_t *c = ct_open(ct, times(ct, 800, 1000, 10000));
    CT_OK(dl_lock(ct_lock(ct, c, "row 22"), CT_ERR));
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_freeze(node_at(ct, i));
    }
    watch_t watch = start_watch(ct);
    ct_close(ct, c);
    IN_TIME(watch, scaled(ct, 1000));
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_thaw(node_at(ct, i));
    }
}

/* Its lease is over long before that of its request, and another of its process waits for its turn. */
CT_CASE(faults, row22_unlock_that_is_asked_for_longer_than_its_lease, REDLOCK) {
    dl_client_t *c = ct_open(ct, times(ct, 3000, 4000, 10000));
    dl_lock_t *lock = ct_lock(ct, c, "row 22");
    CT_OK(dl_trylock_for(lock, 0, scaled(ct, 1000), CT_ERR));
    caller_t next = CALLER(ct_lock(ct, c, "row 22"), DL_WAIT_FOREVER);
    start_caller(ct, &next);
    ct_await_waiting(ct, c, 1, 5000);
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_freeze(node_at(ct, i));
    }
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_thaw(node_at(ct, i));
    }
    end_caller(ct, &next, DL_OK);
    CT_AWAIT_THAT(votes_for(ct, "row 22"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
}

#define NAMES 6

CT_CASE(faults, row22_nothing_stays_locked_after_the_majority_is_back, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    char names[NAMES][16];
    dl_lock_t *locks[NAMES];
    for (int i = 0; i < NAMES; i++) {
        snprintf(names[i], sizeof names[i], "row 22 %d", i);
        locks[i] = ct_lock(ct, c, names[i]);
    }
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_freeze(node_at(ct, i));
    }
    /* What is in the sockets of the silent ones is carried out when they go on. */
    for (int i = 0; i < NAMES; i++) {
        watch_t watch = start_watch(ct);
        CT_EITHER(dl_trylock_for(locks[i], 50, 60 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
        IN_TIME(watch, 50);
    }
    for (size_t i = 0; i < quorum_of(ct); i++) {
        redis_server_thaw(node_at(ct, i));
    }
    watch_t watch = start_watch(ct);
    for (int i = 0; i < NAMES; i++) {
        CT_AWAIT_THAT(votes_for(ct, names[i]), ==, 0, RETRY_MS + 2 * FREE_MS + ct_tolerance_ms(ct));
    }
    IN_TIME(watch, RETRY_MS + 2 * FREE_MS);
    for (int i = 0; i < NAMES; i++) {
        dl_lock_t *lock = ct_lock(ct, other, names[i]);
        CT_OK(dl_trylock_for(lock, ct_lease_ms(ct), DL_LEASE_AUTO, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    for (int i = 0; i < NAMES; i++) { /* and they stay gone */
        CT_AWAIT_THAT(votes_for(ct, names[i]), ==, 0, ct_tolerance_ms(ct));
    }
}

/* ---- row 23: too late ---------------------------------------------------------------------------- */

/* All answers take so long. */
static dl_client_t *open_far_away(ct_t *ct, front_t *front, const char *extra) {
    char more[256];
    snprintf(more, sizeof more, "%s\n%s", times(ct, 3000, 8000, 20000), extra);
    dl_client_t *c = ct_open(ct, through(ct, front, more));
    dl_lock_t *lock = ct_lock(ct, c, "warm");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    return c;
}

static uint32_t caps_of(ct_t *ct, dl_client_t *c) {
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CT_OK(dl_client_info(c, &info));
    return info.caps;
}

CT_CASE(faults, row23_majority_reached_after_validity, REDLOCK) {
    front_t front = start_front(ct, node_count(ct));
    dl_client_t *c = open_far_away(ct, &front, "fencing: true");
    dl_client_t *plain = open_far_away(ct, &front, "fencing: false");
    CT_EQ(caps_of(ct, c) & DL_CAP_FENCE, DL_CAP_FENCE);
    CT_EQ(caps_of(ct, plain) & DL_CAP_FENCE, 0);
    dl_lock_t *lock = ct_lock(ct, c, "row 23"), *unfenced = ct_lock(ct, plain, "row 23");
    int64_t lease_ms = scaled(ct, 1500);
    EACH_PROXY(front, proxy_delay(ct, proxy, PROXY_REPLIES, lease_ms + 20));
    /* The votes themselves come too late. */
    CT_STATUS(dl_trylock_for(unfenced, 0, lease_ms, CT_ERR), DL_ELOST);
    CT_AWAIT_THAT(votes_for(ct, "row 23"), ==, 0, ct_tolerance_ms(ct));
    CT_STATUS(dl_trylock_for(lock, 0, lease_ms, CT_ERR), DL_ELOST);
    CT_AWAIT_THAT(votes_for(ct, "row 23"), ==, 0, ct_tolerance_ms(ct));
    CT_EQ(dl_hold_count(lock) + dl_hold_count(unfenced), 0);
    /* Nodes that drew the same token, in the same microsecond, would need nothing written back. */
    for (size_t i = 0; i < node_count(ct); i++) {
        CT_STR_EQ(redis_ask(node_at(ct, i), "SET dlock_tokens 800000000000000%d", (int)i), "OK");
    }
    /* The votes come in time, and what was written back does not. */
    EACH_PROXY(front, proxy_delay(ct, proxy, PROXY_REPLIES, lease_ms * 6 / 10));
    CT_STATUS(dl_trylock_for(lock, 0, lease_ms, CT_ERR), DL_ELOST);
    CT_AWAIT_THAT(votes_for(ct, "row 23"), ==, 0, ct_tolerance_ms(ct));
    CT_OK(dl_trylock_for(unfenced, 0, lease_ms, CT_ERR)); /* nothing to write back */
    CT_EQ(dl_token(unfenced), 0);
    CT_LE(dl_valid_ms(unfenced), lease_ms * 4 / 10);
    CT_OK(dl_unlock(unfenced, CT_ERR));
    EACH_PROXY(front, proxy_delay(ct, proxy, PROXY_REPLIES, 0));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    stop_front(ct, &front);
}
