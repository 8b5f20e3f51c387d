/* redlock_data_cases.c - redlock: nodes without their data, and twins of each other (rows 24 and 25). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/redlock_wire.h"

/* ---- row 24: a node without its data has no vote ------------------------------------------------- */

/* For how long. */
static int64_t quarantine_ms(ct_t *ct) {
    return scaled(ct, 1500);
}

static const char *short_quarantine(ct_t *ct, const char *extra) {
    static _Thread_local char lines[160];
    snprintf(lines, sizeof lines, "max_lease: %lldms\n%s", (long long)quarantine_ms(ct), extra);
    return lines;
}

/* Without the first node's vote there is no quorum. */
static void make_indispensable(ct_t *ct) {
    for (size_t i = 1; i <= spare_of(ct); i++) {
        redis_server_kill(node_at(ct, i));
    }
}

/* What happens to the first node. */
typedef void (*mishap_t)(ct_t *ct, redis_server_t *node);

/* Refused by a majority that was heard. That a connection is dead may only be noticed by using it, once. */
static void expect_refused(ct_t *ct, dl_lock_t *lock) {
    dl_status_t status;
    CT_AWAIT_THAT((status = dl_trylock(lock, NULL)), !=, DL_EIO, ct_tolerance_ms(ct));
    CT_EQ(status, DL_EBUSY);
}

static void lose_vote(ct_t *ct, mishap_t happens) {
    dl_client_t *c = ct_open(ct, short_quarantine(ct, ""));
    dl_lock_t *lock = ct_lock(ct, c, "row 24");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    make_indispensable(ct);
    happens(ct, node_at(ct, 0));
    ct_sleep_ms(ct, TRUST_MS);
    watch_t watch = start_watch(ct);
    expect_refused(ct, lock);
    CT_STATUS(dl_trylock_for(lock, quarantine_ms(ct) / 3, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    CT_AWAIT_THAT(votes_for(ct, "row 24"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
    dl_client_t *fresh = ct_open(ct, short_quarantine(ct, "")); /* it is the node that keeps count */
    dl_lock_t *next = ct_lock(ct, fresh, "row 24");
    CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
    CT_OK(dl_trylock_for(next, quarantine_ms(ct) + 1000, DL_LEASE_AUTO, CT_ERR));
    CT_GE(ct_now_ms(ct) - watch.began_ms, quarantine_ms(ct));
    IN_TIME(watch, quarantine_ms(ct) + quarantine_ms(ct) / 100 + 2);
    CT_EQ(votes_for(ct, "row 24"), quorum_of(ct));
    CT_OK(dl_unlock(next, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

static void restart_empty(ct_t *ct, redis_server_t *node) {
    redis_server_restart(node);
    CT_EQ(redis_number(node, "EXISTS dlock_tokens"),
          0); /* who has been there since may have said who it is */
}

static void flush(ct_t *ct, redis_server_t *node) {
    CT_STR_EQ(redis_ask(node, "FLUSHALL"), "OK");
}

/* A replica, which has all its data, comes to be where it was. */
static void promote_replica(ct_t *ct, redis_server_t *node) {
    redis_server_t *replica = redis_server_start(node->dir, "replica", NULL);
    char port[16];
    snprintf(port, sizeof port, "%d", node->port);
    (void)redis_ask(node, "CONFIG SET repl-diskless-sync-delay 0");
    (void)redis_ask(replica, "REPLICAOF 127.0.0.1 %s", port);
    CT_AWAIT_THAT(redis_number(replica, "EXISTS dlock_tokens:node"), ==, 1, 10000);
    (void)redis_ask(replica, "REPLICAOF NO ONE");
    redis_server_kill(node);
    CT_STR_EQ(redis_ask(replica, "CONFIG SET port %s", port), "OK");
    CT_AWAIT(strstr(redis_ask(replica, "INFO server"), port) != NULL, 1000);
    /* From here on it is the node. */
    redis_server_t old = *node;
    *node = *replica;
    node->port = old.port;
    node->port_keeper = old.port_keeper;
    old.port_keeper = replica->port_keeper;
    *replica = old;
    redis_server_stop(replica);
}

static void restart_with_data(ct_t *ct, redis_server_t *node) {
    redis_server_restart(node);
    CT_AWAIT_THAT(redis_try(node, "EXISTS dlock_tokens:node")[0], !=, '-', 10000); /* it has loaded it */
    CT_EQ(redis_number(node, "EXISTS dlock_tokens:node"), 1);
}

/* From now on it writes everything to disk before it answers. */
static void make_durable(ct_t *ct, redis_server_t *node) {
    static const char *const words[] = {"--appendonly", "yes", "--appendfsync", "always"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        redis_server_arg(node, words[i]);
    }
    redis_server_restart(node);
    CT_AWAIT_THAT(redis_try(node, "EXISTS dlock_tokens:node")[0], !=, '-', 10000);
    redlock_node_mark(node);
}

CT_CASE(faults, row24_restarted_empty_node_has_no_vote, REDLOCK) {
    lose_vote(ct, restart_empty);
}

CT_CASE(faults, row24_flushed_node_has_no_vote, REDLOCK) {
    lose_vote(ct, flush);
}

CT_CASE(faults, row24_promoted_replica_has_no_vote, REDLOCK) {
    lose_vote(ct, promote_replica);
}

CT_CASE(faults, row24_restarted_node_with_its_data_has_no_vote, REDLOCK) {
    make_durable(ct, node_at(ct, 0));
    lose_vote(ct, restart_with_data); /* nobody said that it loses nothing */
}

CT_CASE(faults, row24_durable_node_votes_at_once, REDLOCK) {
    make_durable(ct, node_at(ct, 0));
    dl_client_t *c = ct_open(ct, short_quarantine(ct, "durable: true"));
    dl_lock_t *lock = ct_lock(ct, c, "row 24");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    make_indispensable(ct);
    for (int i = 0; i < 2; i++) {
        restart_with_data(ct, node_at(ct, 0));
        ct_sleep_ms(ct, TRUST_MS);
        CT_OK(dl_trylock_for(lock, ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
        CT_EQ(votes_for(ct, "row 24"), quorum_of(ct));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    /* One without its data is none of those. */
    flush(ct, node_at(ct, 0));
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
}

/* ---- ... and is filled in by renewals ------------------------------------------------------------ */

static void delete_votes(ct_t *ct, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        CT_EQ(redis_number(node_at(ct, i), "DEL dlock:%s", name), 1);
    }
}

/* A majority forgets the lock at once. A renewal that crosses the deletions fills in what was deleted
 * first; then they are made again. Returns whether it is lost, by the next renewal. */
static int forget_at_once(ct_t *ct, dl_client_t *c, int64_t soon_ms) {
    delete_votes(ct, quorum_of(ct), "row 24");
    CT_AWAIT(ct_stats(ct, c).lost == 1 || votes_for(ct, "row 24") == node_count(ct), soon_ms);
    return ct_stats(ct, c).lost == 1;
}

CT_CASE(faults, row24_renewal_fills_in_a_node_that_lost_the_key, REDLOCK) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 24");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "row 24"), ==, node_count(ct), ct_tolerance_ms(ct));
    int64_t soon_ms = ct_lease_ms(ct) / 3 + ct_tolerance_ms(ct);
    delete_votes(ct, spare_of(ct), "row 24");
    CT_AWAIT_THAT(votes_for(ct, "row 24"), ==, node_count(ct), soon_ms);
    for (size_t i = 0; i < spare_of(ct); i++) {
        char value[160];
        snprintf(value, sizeof value, "%s",
                 redis_ask(node_at(ct, node_count(ct) - 1), "GET %s", "dlock:row 24"));
        CT_STR_EQ(redis_ask(node_at(ct, i), "GET %s", "dlock:row 24"), value);
        CT_BETWEEN(redis_number(node_at(ct, i), "PTTL %s", "dlock:row 24"), 1, ct_lease_ms(ct));
    }
    CT_EQ(ct_stats(ct, c).lost, 0);
    /* What is filled in is no vote by itself: a hold that a majority has forgotten is lost. */
    CT_CHECK(forget_at_once(ct, c, soon_ms) || forget_at_once(ct, c, soon_ms));
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 24", ct_tolerance_ms(ct));
    CT_LE(votes_for(ct, "row 24"), spare_of(ct));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(votes_for(ct, "row 24"), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(faults, row24_unlocked_while_a_node_is_filled_in, REDLOCK) {
    front_t front = start_front(ct, quorum_of(ct));
    dl_client_t *c = ct_open(ct, through(ct, &front, times(ct, 1000, 4000, 1500)));
    dl_lock_t *lock = ct_lock(ct, c, "row 24");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "row 24"), ==, node_count(ct), ct_tolerance_ms(ct));
    for (size_t i = quorum_of(ct); i < node_count(ct); i++) {
        CT_EQ(redis_number(node_at(ct, i), "DEL %s", "dlock:row 24"), 1);
    }
    /* The majority's "own" is heard when the lock has been freed: nothing may be filled in any more. */
    int64_t slow_ms = scaled(ct, 150);
    EACH_PROXY(front, proxy_delay(ct, proxy, PROXY_REPLIES, slow_ms));
    int batches = ct_calls(ct, CT_OP_BATCH);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_BATCH), >, batches, scaled(ct, 1500));
    ct_sleep_ms(ct, slow_ms / 2);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_AWAIT_THAT(votes_for(ct, "row 24"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, slow_ms);
    CT_AWAIT_THAT(votes_for(ct, "row 24"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).lost, 0);
    stop_front(ct, &front);
}

/* ---- ... since it would make a second holder ----------------------------------------------------- */

/* A holds on exactly a quorum, as the others were out of its reach. One node of that quorum is emptied; the
 * others come back for B. Returns how B's call ended. */
static dl_status_t contend(ct_t *ct, const char *name, const char *quarantine) {
    front_t front = start_front(ct, spare_of(ct));
    EACH_PROXY(front, proxy_refuse(ct, proxy, 1));
    dl_client_t *a = ct_open(ct, through(ct, &front, quarantine));
    dl_lock_t *first = ct_lock(ct, a, name);
    CT_OK(dl_trylock_for(first, 0, scaled(ct, 10000), CT_ERR));
    CT_EQ(votes_for(ct, name), quorum_of(ct));
    restart_empty(ct, node_at(ct, node_count(ct) - 1));
    dl_client_t *b = ct_open(ct, quarantine);
    dl_lock_t *second = ct_lock(ct, b, name);
    dl_status_t status = CT_EITHER(dl_trylock(second, CT_ERR), DL_OK, DL_EBUSY);
    CT_GT(dl_valid_ms(first), scaled(ct, 5000)); /* A may still act */
    if (status == DL_OK) {
        CT_GT(dl_valid_ms(second), 0);
        CT_GT(dl_token(second), dl_token(first)); /* by which A's writes could be told from B's */
        CT_OK(dl_unlock(second, CT_ERR));
    }
    ct_close(ct, a);
    stop_front(ct, &front);
    return status;
}

CT_CASE(faults, row24_without_quarantine_two_holders, REDLOCK) {
    CT_EQ(contend(ct, "row 24 without", "quarantine: false"), DL_OK);
    redlock_node_mark(node_at(ct, node_count(ct) - 1));
    CT_EQ(contend(ct, "row 24 with", "quarantine: true"), DL_EBUSY);
}

/* ---- row 25: nodes that are none of their own ---------------------------------------------------- */

static void open_nodes(ct_t *ct, const int *ports, size_t n, dl_status_t expected, dl_client_t **client) {
    char lines[512];
    size_t at = (size_t)snprintf(lines, sizeof lines, "nodes: [");
    for (size_t i = 0; i < n; i++) {
        at += (size_t)snprintf(lines + at, sizeof lines - at, "%s\"redis://127.0.0.1:%d/0\"",
                               i == 0 ? "" : ", ", ports[i]);
    }
    snprintf(lines + at, sizeof lines - at, "]");
    CT_STATUS(ct_try_open(ct, lines, client, CT_ERR), expected);
}

CT_CASE(faults, row25_same_server_twice, REDLOCK) {
    dl_client_t *c;
    proxy_t *proxy = proxy_start(ct, node_at(ct, 0)->port);
    int one = node_at(ct, 0)->port, two = node_at(ct, 1)->port, three = node_at(ct, 2)->port;
    open_nodes(ct, (int[]){one, two, one}, 3, DL_ECONFIG, &c);
    /* By another address too: the server itself says which one it is. */
    int twin = proxy_port(proxy);
    open_nodes(ct, (int[]){one, two, twin}, 3, DL_ECONFIG, &c);
    SAYS("1 and 3");
    SAYS("same");
    /* And when that is found out later, it has no vote. */
    proxy_refuse(ct, proxy, 1);
    open_nodes(ct, (int[]){one, two, twin}, 3, DL_OK, &c);
    proxy_refuse(ct, proxy, 0);
    ct_sleep_ms(ct, RETRY_MS);
    dl_lock_t *lock = ct_lock(ct, c, "row 25");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    redis_server_kill(node_at(ct, 1));
    ct_sleep_ms(ct, TRUST_MS);
    for (int i = 0; i < 3; i++) {
        dl_status_t status = dl_trylock(lock, NULL);
        CT_CHECKF(status != DL_OK, "one server gave two votes");
        CT_AWAIT_THAT(has_vote(ct, 0, "row 25"), ==, 0, FREE_MS + ct_tolerance_ms(ct));
    }
    ct_close(ct, c);
    redis_server_boot(node_at(ct, 1));
    redlock_node_mark(node_at(ct, 1));
    open_nodes(ct, (int[]){one, two, three}, 3, DL_OK, &c);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row25_even_count_is_warned_about, REDLOCK) {
    dl_client_t *c;
    redis_server_t *fourth = redis_server_start(node_at(ct, 0)->dir, "fourth", NULL);
    redlock_node_mark(fourth);
    int ports[] = {node_at(ct, 0)->port, node_at(ct, 1)->port, node_at(ct, 2)->port, fourth->port};
    open_nodes(ct, ports, 3, DL_OK, &c);
    ct_no_event(ct, c, DL_EVENT_WARNING, NULL, 0);
    open_nodes(ct, ports, 4, DL_OK, &c);
    dl_event_t warning = ct_expect_event(ct, c, DL_EVENT_WARNING, NULL, ct_tolerance_ms(ct));
    CT_CHECKF(strstr(warning.text, "even") != NULL, "not about the even number: %s", warning.text);
    /* Three of four are a quorum; two are none. */
    dl_lock_t *lock = ct_lock(ct, c, "row 25");
    redis_server_kill(fourth);
    ct_sleep_ms(ct, TRUST_MS);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    redis_server_kill(node_at(ct, 0));
    ct_sleep_ms(ct, TRUST_MS);
    CT_EITHER(dl_trylock(lock, CT_ERR), DL_EIO, DL_EUNKNOWN);
    redis_server_stop(fourth);
}
