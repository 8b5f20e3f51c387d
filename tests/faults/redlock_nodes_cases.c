/* redlock_nodes_cases.c - redlock: nodes that lost a key, refuse, or are busy (rows 15 to 20). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/redlock_wire.h"

/* The same command at the first n nodes. */
#define EACH_NODE(n_, ...)                                 \
    do {                                                   \
        for (size_t i_ = 0; i_ < (n_); i_++) {             \
            (void)redis_ask(node_at(ct, i_), __VA_ARGS__); \
        }                                                  \
    } while (0)

static void take_and_free(ct_t *ct, dl_lock_t *lock) {
    watch_t watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    IN_TIME(watch, 0);
}

CT_CASE(faults, row24_a_lease_that_outlives_the_quarantine_is_refused_by_name, REDLOCK) {
    char options[64];
    int64_t max_lease_ms = scaled(ct, 1200), longer_ms = max_lease_ms + 1000;
    snprintf(options, sizeof options, "max_lease: %lldms", (long long)max_lease_ms);
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, options), "row 24");
    CT_STATUS(dl_trylock_for(lock, 0, longer_ms, CT_ERR), DL_EINVAL);
    SAYS("max_lease");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_STATUS(dl_extend(lock, longer_ms, CT_ERR), DL_EINVAL);
    SAYS("max_lease");
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- rows 15 and 16 ------------------------------------------------------------------------------ */

CT_CASE(faults, row15_majority_flushed, REDLOCK) {
    char options[64];
    int64_t max_lease_ms = scaled(ct, 1200);
    snprintf(options, sizeof options, "max_lease: %lldms", (long long)max_lease_ms);
    dl_client_t *c = ct_open(ct, options), *other = ct_open(ct, options);
    dl_lock_t *lock = ct_lock(ct, c, "row 15"), *next = ct_lock(ct, other, "row 15");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    EACH_NODE(quorum_of(ct), "FLUSHALL");
    watch_t watch = start_watch(ct);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "row 15", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ELOST); /* the nodes' word, not the end of validity */
    IN_TIME(watch, ct_lease_ms(ct) / 3);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_LE(votes_for(ct, "row 15"), spare_of(ct)); /* never made anew */
    CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
    CT_OK(dl_trylock_for(next, max_lease_ms + 1000, DL_LEASE_AUTO, CT_ERR));
    CT_GT(dl_token(next), token);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_expect_held(ct, "row 15");
    CT_OK(dl_unlock(next, CT_ERR));
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, 0);
}

#define KEY_16 "dlock:row 16"

CT_CASE(faults, row16_key_replaced_at_some_nodes, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 16");
    EACH_NODE(spare_of(ct), "RPUSH %s theirs", KEY_16);
    take_and_free(ct, lock);
    for (size_t i = 0; i < spare_of(ct); i++) {
        CT_STR_EQ(redis_ask(node_at(ct, i), "LRANGE %s 0 -1", KEY_16), "theirs");
    }
    /* Too many for a quorum of the others. */
    CT_EQ(redis_number(node_at(ct, spare_of(ct)), "RPUSH %s theirs", KEY_16), 1);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EFOREIGN);
    CT_AWAIT_THAT(votes_for(ct, "row 16"), ==, quorum_of(ct),
                  ct_tolerance_ms(ct)); /* the rest is freed meanwhile */
    CT_STATUS(dl_lock(lock, CT_ERR), DL_EFOREIGN);
    for (size_t i = 0; i < quorum_of(ct); i++) {
        CT_STR_EQ(redis_ask(node_at(ct, i), "LRANGE %s 0 -1", KEY_16), "theirs");
    }
}

CT_CASE(faults, row16_held_by_a_foreign_client_at_a_majority, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 16");
    EACH_NODE(quorum_of(ct), "SET %s theirs PX 60000", KEY_16);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    /* Nothing of the attempt stays at the others; a client that tells nobody is looked at now and then. */
    CT_AWAIT_THAT(votes_for(ct, "row 16"), ==, quorum_of(ct), ct_tolerance_ms(ct));
    caller_t waiter = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, c, 1, 5000);
    EACH_NODE(quorum_of(ct), "DEL %s", KEY_16);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, 1000 + ct_tolerance_ms(ct));
}

/* ---- rows 18 to 20 ------------------------------------------------------------------------------- */

CT_CASE(faults, row18_script_flush_at_all_nodes, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 18");
    for (int i = 0; i < 2; i++) {
        EACH_NODE(node_count(ct), "SCRIPT FLUSH");
        CT_OK(dl_trylock(lock, CT_ERR));
        EACH_NODE(node_count(ct), "SCRIPT FLUSH");
        CT_OK(dl_extend(lock, 2 * ct_lease_ms(ct), CT_ERR));
        EACH_NODE(node_count(ct), "SCRIPT FLUSH");
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_AWAIT_THAT(votes_for(ct, "row 18"), ==, 0, ct_tolerance_ms(ct));
    }
    CT_OK(dl_lock(lock, CT_ERR));
    for (int i = 1; i <= 3; i++) {
        uint64_t renewed = ct_stats(ct, c).renewed;
        EACH_NODE(node_count(ct), "SCRIPT FLUSH");
        CT_AWAIT_THAT(ct_stats(ct, c).renewed, >, renewed, ct_lease_ms(ct) / 3 + ct_tolerance_ms(ct));
    }
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(faults, row18_nodes_out_of_memory, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *wanted = ct_lock(ct, c, "row 18");
    CT_OK(dl_lock(held, CT_ERR));
    EACH_NODE(spare_of(ct), "CONFIG SET maxmemory 1");
    take_and_free(ct, wanted);
    EACH_NODE(quorum_of(ct), "CONFIG SET maxmemory 1");
    CT_STATUS(dl_lock(wanted, CT_ERR), DL_ELIMIT);
    SAYS("memory");
    CT_AWAIT_THAT(votes_for(ct, "row 18"), ==, 0, ct_tolerance_ms(ct));
    /* What is there goes on, and can be freed. */
    uint64_t renewed = ct_stats(ct, c).renewed;
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 4, 2 * ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "row 18 held"), ==, 0, ct_tolerance_ms(ct));
    EACH_NODE(quorum_of(ct), "CONFIG SET maxmemory 0");
    take_and_free(ct, wanted);
}

CT_CASE(faults, row18_nodes_with_another_password, REDLOCK) {
    dl_client_t *c;
    for (size_t i = 0; i < spare_of(ct); i++) {
        (void)redis_ask(node_at(ct, i), "CONFIG SET requirepass open-sesame");
        snprintf(node_at(ct, i)->password, sizeof node_at(ct, i)->password, "open-sesame");
    }
    c = ct_open(ct, NULL);
    dl_event_t warning = ct_expect_event(ct, c, DL_EVENT_WARNING, NULL, ct_tolerance_ms(ct));
    CT_CHECKF(strstr(warning.text, "NOAUTH") != NULL || strstr(warning.text, "uthent") != NULL ||
                  strstr(warning.text, "password") != NULL,
              "not about the password: %s", warning.text);
    take_and_free(ct, ct_lock(ct, c, "row 18"));
    redis_server_t *one_more = node_at(ct, spare_of(ct));
    (void)redis_ask(one_more, "CONFIG SET requirepass open-sesame");
    snprintf(one_more->password, sizeof one_more->password, "open-sesame");
    CT_STATUS(ct_try_open(ct, NULL, &c, CT_ERR), DL_EAUTH);
    CT_STATUS(ct_try_open(ct, "password: \"open-barley\"", &c, CT_ERR), DL_EAUTH);
    CT_CHECK(strstr(ct_last_err()->message, "barley") == NULL);
}

CT_CASE(faults, row18_nodes_that_became_replicas, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL), *late;
    dl_lock_t *lock = ct_lock(ct, c, "row 18");
    EACH_NODE(spare_of(ct), "REPLICAOF 127.0.0.1 1");
    take_and_free(ct, lock);
    late = ct_open(ct, NULL);
    take_and_free(ct, ct_lock(ct, late, "row 18 late"));
    EACH_NODE(quorum_of(ct), "REPLICAOF 127.0.0.1 1");
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO);
    SAYS("replica");
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_EIO);
    SAYS("replica");
    EACH_NODE(quorum_of(ct), "REPLICAOF NO ONE");
    expect_back(ct, lock);
}

CT_CASE(faults, row19_eviction_configured_at_a_node, REDLOCK) {
    redis_server_t *node = node_at(ct, node_count(ct) - 1);
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", node->port);
    (void)redis_ask(node, "CONFIG SET maxmemory 100mb");
    (void)redis_ask(node, "CONFIG SET maxmemory-policy allkeys-lru");
    dl_client_t *c = ct_open(ct, NULL);
    dl_event_t warning = ct_expect_event(ct, c, DL_EVENT_WARNING, NULL, ct_tolerance_ms(ct));
    CT_CHECKF(strstr(warning.text, "allkeys-lru") != NULL, "does not name the policy: %s", warning.text);
    CT_CHECKF(strstr(warning.text, address) != NULL, "does not name the node: %s", warning.text);
    ct_no_event(ct, c, DL_EVENT_WARNING, NULL, 20);
}

CT_CASE(faults, row20_nodes_paused_for_longer_than_the_call, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 20 held"), *wanted = ct_lock(ct, c, "row 20");
    int64_t timeout_ms = ct_call_timeout_ms(ct), pause_ms = 2 * timeout_ms;
    CT_OK(dl_lock(held, CT_ERR));
    EACH_NODE(spare_of(ct), "CLIENT PAUSE %d", (int)pause_ms);
    take_and_free(ct, wanted);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_GT(dl_valid_ms(held), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    (void)redis_ask(node_at(ct, spare_of(ct)), "CLIENT PAUSE %d", (int)pause_ms);
    watch_t paused = start_watch(ct), watch = start_watch(ct);
    CT_EITHER(dl_trylock_for(wanted, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, 50);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 20 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(paused, ct_lease_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    /* What was given up is carried out when the pause ends; then nothing of it stays. */
    int64_t left_ms = paused.began_ms + pause_ms - ct_now_ms(ct);
    CT_GT(left_ms, 0);
    ct_sleep_ms(ct, left_ms);
    CT_AWAIT_THAT(votes_for(ct, "row 20"), ==, 0, timeout_ms + FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(votes_for(ct, "row 20") + votes_for(ct, "row 20 held"), 0);
    expect_works(ct, c, "row 20");
}
