/* statements_cases.c - faults of rows and tables that other transactions keep (rows 20 and 28). */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "faults/mysql_wire.h"

/* ---- row 20: somebody else's transaction is in the way ---------------------------------------------- */

/* While the server cannot do it, calls end in time; afterwards nothing of them stays. */
static void try_in_vain(ct_t *ct, dl_client_t *c, const char *name) {
    dl_lock_t *wanted = ct_lock(ct, c, name);
    watch_t watch = start_watch(ct);
    expect_refused(ct, dl_trylock_for(wanted, 50, 20 * ct_lease_ms(ct), NULL));
    IN_TIME(watch, 50);
    watch = start_watch(ct);
    expect_refused(ct, dl_trylock(wanted, NULL));
    IN_TIME(watch, ct_call_timeout_ms(ct));
    watch = start_watch(ct);
    expect_refused(ct, dl_trylock_for(wanted, 2 * ct_call_timeout_ms(ct), 20 * ct_lease_ms(ct), NULL));
    IN_TIME(watch, 2 * ct_call_timeout_ms(ct));
    CT_EQ(dl_hold_count(wanted), 0);
}

static void expect_nothing_stayed(ct_t *ct, dl_client_t *c, const char *name) {
    ct_expect_free(ct, name, ct_call_timeout_ms(ct) + FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    ct_expect_free(ct, name, 0);
    CT_EQ(ct_stats(ct, c).held_now, 0);
    expect_works(ct, c, name);
}

CT_CASE(faults, row20_row_kept_by_a_foreign_transaction, MYSQL) {
    introduce(ct, "row 20");
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *held = ct_lock(ct, c, "row 20 held");
    CT_OK(dl_lock(held, CT_ERR));
    mysql_hand_t *hand = lock_row(ct, "row 20");
    uint64_t renewed = ct_stats(ct, c).renewed;
    try_in_vain(ct, c, "row 20");
    CT_GE(ct_stats(ct, c).renewed, renewed + 3); /* the others' went on all the while */
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_OK(dl_unlock(held, CT_ERR));
    let_row_go(hand);
    expect_nothing_stayed(ct, c, "row 20");
}

static dl_status_t try_a_kept_row(ct_t *ct, dl_client_t *c, dl_error_t *err) {
    const char *name = fresh_name("row 20");
    introduce(ct, name);
    mysql_hand_t *hand = lock_row(ct, name);
    dl_status_t status = dl_trylock(ct_lock(ct, c, name), err);
    let_row_go(hand);
    return status;
}

/* Sooner than the server is tired of waiting; and it has ended there, so that nothing is left to be freed. */
CT_CASE(faults, row20_a_short_call_says_that_the_row_is_kept, MYSQL, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, "call_timeout: 800ms\nlease: 60s");
    dl_error_t err;
    expect_refused(ct, try_a_kept_row(ct, c, &err)); /* this one makes the connection that ends statements */
    dl_client_stats_t before;
    dl_status_t status;
    int64_t stood_ms;
    do { /* the end of a statement has the call's last 200 ms, in which the machine may have stood still */
        before = ct_stats(ct, c);
        stood_ms = ct_stood_ms(ct);
        status = try_a_kept_row(ct, c, &err);
    } while (status == DL_EUNKNOWN && ct_stood_ms(ct) > stood_ms);
    CT_STATUS(status, DL_EIO);
    CT_CHECKF(strstr(err.message, "another transaction keeps the row locked") != NULL, "it says: %s",
              err.message);
    CT_EQ(ct_stats(ct, c).unknown_outcomes, before.unknown_outcomes);
    CT_CHECK(before.unknown_outcomes > 0 || ct_stats(ct, c).background_frees == 0);
}

CT_CASE(faults, row20_waiter_behind_a_foreign_transaction, MYSQL) {
    introduce(ct, "row 20");
    /* Validity counts from before the statement that waits: much of it shall be left after that. */
    char options[48];
    snprintf(options, sizeof options, "lease: %lldms\n", (long long)(4 * ct_call_timeout_ms(ct)));
    dl_client_t *c = ct_open(ct, options);
    mysql_hand_t *hand = lock_row(ct, "row 20");
    caller_t caller = CALLER(ct_lock(ct, c, "row 20"), 10 * ct_call_timeout_ms(ct));
    start_caller(ct, &caller);
    ct_sleep_ms(ct, ct_call_timeout_ms(ct) / 2);
    let_row_go(hand);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &caller, DL_OK);
    CT_LE(caller.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 20", 0);
}

/* The row of one held lock is kept: that one is lost in time, and no other. The statement that meets the row
 * takes half of the lease before the others are renewed without it; the machine may stand still in the rest.
 */
CT_CASE(faults, row20_held_row_kept_by_a_foreign_transaction, MYSQL, .needs = DL_CAP_LEASE) {
    const int64_t lease_ms = 2000;
    dl_client_t *c = ct_open(ct, "lease: 2s");
    dl_lock_t *kept = ct_lock(ct, c, "row 20 kept");
    CT_OK(dl_lock(kept, CT_ERR));
    for (int i = 0; i < 8; i++) {
        CT_OK(dl_lock(ct_lock(ct, c, fresh_name("row 20")), CT_ERR));
    }
    mysql_hand_t *hand = lock_row(ct, "row 20 kept");
    watch_t watch = start_watch(ct);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 20 kept", lease_ms + ct_tolerance_ms(ct));
    IN_TIME(watch, lease_ms);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, lease_ms);
    CT_EQ(ct_stats(ct, c).lost, 1);
    CT_STATUS(dl_unlock(kept, CT_ERR), DL_ELOST);
    let_row_go(hand);
    ct_expect_free(ct, "row 20 kept", FREE_MS + ct_tolerance_ms(ct));
}

#define EXTENDERS 24
#define LONG_MS 60000

/* Threads that extend locks whose rows are kept. */
typedef struct extenders {
    dl_client_t *client;
    ct_latch_t *ready, *go, *end;
    atomic_int begun;
} extenders_t;

static void extend_in_vain(ct_t *ct, void *arg) {
    extenders_t *e = arg;
    char name[32];
    snprintf(name, sizeof name, "row 20 kept %d", atomic_fetch_add(&e->begun, 1));
    dl_lock_t *lock = ct_lock(ct, e->client, name);
    take(ct, lock, LONG_MS);
    ct_latch_down(ct, e->ready);
    ct_latch_wait(ct, e->go, 5000);
    while (!ct_latch_open(ct, e->end)) {
        dl_status_t status = dl_extend(lock, LONG_MS, NULL);
        if (status != DL_OK) {
            expect_refused(ct, status);
        }
    }
}

CT_CASE(faults, row20_extensions_of_kept_rows_delay_no_renewal, MYSQL, .needs = DL_CAP_LEASE) {
    extenders_t e = {.client = ct_open(ct, "lease: 2s\ncall_timeout: 2s\nmax_total: 8"),
                     .ready = ct_latch(ct, EXTENDERS),
                     .go = ct_latch(ct, 1),
                     .end = ct_latch(ct, 1)};
    dl_lock_t *other = ct_lock(ct, e.client, "row 20 other");
    ct_thread_t *threads[EXTENDERS];
    for (int i = 0; i < EXTENDERS; i++) {
        threads[i] = ct_thread(ct, extend_in_vain, &e);
    }
    ct_latch_wait(ct, e.ready, 5000);
    CT_OK(dl_lock(other, CT_ERR));
    mysql_hand_t *hand = mysql_hand(ct_mysql(ct), NULL);
    (void)mysql_hand_ask(hand, "BEGIN");
    for (int i = 0; i < EXTENDERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "row 20 kept %d", i);
        touch_row(ct, hand, name, "FOR UPDATE");
    }
    ct_latch_down(ct, e.go);
    ct_no_event(ct, e.client, DL_EVENT_LOST, NULL, 4000);
    CT_EQ(ct_stats(ct, e.client).renewals_failed, 0);
    ct_latch_down(ct, e.end);
    let_row_go(hand);
    for (int i = 0; i < EXTENDERS; i++) {
        ct_join(ct, threads[i]);
    }
    CT_OK(dl_unlock(other, CT_ERR));
}

/* Nobody can write there. */
static void stop_writes(ct_t *ct, int everywhere) {
    (void)ct_mysql_own(ct, NULL);
    introduce(ct, "row 20");
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 20 held");
    mysql_hand_t *hand = mysql_hand(ct_mysql(ct), NULL);
    int holds = everywhere || !is_session(ct); /* the lock of a table waits for those of its rows */
    if (holds) {
        CT_OK(dl_lock(held, CT_ERR));
    }
    if (everywhere) {
        (void)mysql_hand_ask(hand, "FLUSH TABLES WITH READ LOCK");
    } else {
        (void)mysql_hand_ask(hand, "LOCK TABLES %s WRITE", table_of(ct));
    }
    try_in_vain(ct, c, "row 20");
    if (!is_session(ct)) { /* no renewal could be written */
        ct_expect_event(ct, c, DL_EVENT_LOST, "row 20 held", ct_lease_ms(ct));
        CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
        CT_EQ(ct_stats(ct, c).lost, 1);
    } else if (holds) { /* a session needs to write nothing */
        CT_EQ(ct_stats(ct, c).lost, 0);
        CT_OK(dl_unlock(held, CT_ERR));
    }
    (void)mysql_hand_ask(hand, "UNLOCK TABLES");
    mysql_hand_close(hand);
    expect_nothing_stayed(ct, c, "row 20");
    ct_expect_free(ct, "row 20 held", FREE_MS + ct_tolerance_ms(ct));
}

CT_CASE(faults, row20_table_locked, MYSQL) {
    stop_writes(ct, 0);
}

CT_CASE(faults, row20_all_tables_locked_for_reading, MYSQL) {
    stop_writes(ct, 1);
}

/* ---- row 28: deadlocks, and waits for rows that last too long --------------------------------------- */

/* A transaction that is heavier than any of ours, so that a deadlock ends ours. */
static mysql_hand_t *open_heavy(ct_t *ct) {
    mysql_hand_t *hand = mysql_hand(ct_mysql(ct), ct_mysql_database(ct));
    (void)mysql_hand_ask(hand, "CREATE TABLE IF NOT EXISTS heavy (i INT PRIMARY KEY AUTO_INCREMENT, t INT)");
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "INSERT INTO heavy (t) VALUES (1),(2),(3),(4),(5),(6),(7),(8)");
    for (int i = 0; i < 5; i++) {
        (void)mysql_hand_ask(hand, "INSERT INTO heavy (t) SELECT t FROM heavy");
    }
    return hand;
}

CT_CASE(faults, row28_deadlock_while_taking, MYSQL) {
    introduce(ct, "row 28");
    dl_client_t *c = ct_open(ct, NULL);
    for (int i = 0; i < 3; i++) {
        mysql_hand_t *hand = open_heavy(ct);
        touch_row(ct, hand, "row 28", "LOCK IN SHARE MODE");
        caller_t caller = CALLER(ct_lock(ct, c, "row 28"), 4 * ct_call_timeout_ms(ct));
        start_caller(ct, &caller);
        CT_AWAIT_THAT(waiting_connections(ct, NULL), >, 0, 5000);
        /* It waits for us; now we wait for it, which is the lighter of the two. */
        touch_row(ct, hand, "row 28", "FOR UPDATE");
        let_row_go(hand);
        int64_t before_ms = ct_now_ms(ct);
        end_caller(ct, &caller, DL_OK);
        CT_LE(caller.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    }
    ct_expect_free(ct, "row 28", 0);
    expect_works(ct, c, "row 28");
}

CT_CASE(faults, row28_deadlock_while_renewing, MYSQL, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, "lease: 3s");
    CT_OK(dl_lock(ct_lock(ct, c, "row 28 a"), CT_ERR));
    CT_OK(dl_lock(ct_lock(ct, c, "row 28 b"), CT_ERR));
    for (int i = 0; i < 2; i++) {
        mysql_hand_t *hand = open_heavy(ct);
        touch_row(ct, hand, i == 0 ? "row 28 b" : "row 28 a", "FOR UPDATE");
        int batches = ct_calls(ct, CT_OP_BATCH);
        CT_AWAIT_THAT(ct_calls(ct, CT_OP_BATCH), >, batches, 1500);
        ct_sleep_ms(ct, 50);
        touch_row(ct, hand, i == 0 ? "row 28 a" : "row 28 b", "FOR UPDATE");
        let_row_go(hand);
        uint64_t renewed = ct_stats(ct, c).renewed;
        CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 2, 3000);
    }
    CT_EQ(ct_stats(ct, c).lost, 0);
}

CT_CASE(faults, row28_lock_wait_timeout, MYSQL) {
    introduce(ct, "row 28");
    dl_client_t *c = ct_open(ct, "call_timeout: 4s");
    mysql_hand_t *hand = lock_row(ct, "row 28");
    caller_t caller = CALLER(ct_lock(ct, c, "row 28"), 10000);
    start_caller(ct, &caller);
    ct_sleep_ms(ct, 1600); /* the server ends the wait of a statement after one second */
    let_row_go(hand);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &caller, DL_OK);
    CT_LE(caller.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 28", 0);
}
