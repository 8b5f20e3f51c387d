/* rows_cases.c - faults of the data in a MySQL server's tables (rows 29, 30): deleted, dropped, changed. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/mysql_wire.h"

static long long count_rows(ct_t *ct, const char *name) {
    return mysql_number(ct_mysql(ct), "SELECT COUNT(*) FROM %s WHERE name=x'%s'", table_of(ct),
                        name_of(ct, name));
}

/* ---- row 30: rows and tables go away ---------------------------------------------------------------- */

static void delete_row(ct_t *ct) {
    (void)mysql_ask(ct_mysql(ct), "DELETE FROM %s WHERE name=x'%s'", table_of(ct), name_of(ct, "row 30"));
}

static void truncate_table(ct_t *ct) {
    (void)mysql_ask(ct_mysql(ct), "TRUNCATE TABLE %s", table_of(ct));
}

static void lose_row(ct_t *ct, void (*happens)(ct_t *ct)) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 30"), *next = ct_lock(ct, other, "row 30");
    dl_lock_t *explicit_lock = ct_lock(ct, c, "row 30 explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, 20 * ct_lease_ms(ct));
    uint64_t token = dl_token(lock);
    happens(ct);
    watch_t watch = start_watch(ct);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "row 30", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ELOST);
    IN_TIME(watch, ct_lease_ms(ct) / 3);
    CT_EQ(dl_valid_ms(lock), 0);
    ct_no_event(ct, c, DL_EVENT_LOST, "row 30", ct_lease_ms(ct));
    CT_EQ(count_rows(ct, "row 30"), 0); /* never made anew */
    CT_OK(dl_trylock(next, CT_ERR));
    CT_GT(dl_token(next), token);
    token = dl_token(next);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_expect_held(ct, "row 30");
    CT_OK(dl_unlock(next, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
    CT_OK(dl_unlock(lock, CT_ERR));
    /* Nobody renews an explicit lease: its unlock finds out. */
    CT_STATUS(dl_unlock(explicit_lock, CT_ERR), count_rows(ct, "row 30 explicit") == 0 ? DL_ELOST : DL_OK);
}

CT_CASE(faults, row30_row_deleted, MYSQL, .needs = DL_CAP_LEASE) {
    lose_row(ct, delete_row);
}

CT_CASE(faults, row30_table_emptied, MYSQL, .needs = DL_CAP_LEASE) {
    lose_row(ct, truncate_table);
}

static void wait_to_delete_row(ct_t *ct, void *arg) {
    (void)arg;
    mysql_hand_t *hand = mysql_hand(ct_mysql(ct), ct_mysql_database(ct));
    (void)mysql_hand_ask(hand, "DELETE FROM %s WHERE name=x'%s'", table_of(ct), name_of(ct, "row 30"));
    mysql_hand_close(hand);
}

/* The server lets nobody delete a row that is locked; the waiter behind the holder meets no row at all. */
CT_CASE(faults, row30_row_deleted_while_held_and_waited_for, MYSQL, .needs = DL_CAP_SESSION) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, a, "row 30");
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        uint64_t token = dl_token(lock);
        ct_thread_t *deleter = ct_thread(ct, wait_to_delete_row, NULL);
        CT_AWAIT_THAT(waiting_connections(ct, NULL), >, 0, 5000);
        caller_t waiter = CALLER(ct_lock(ct, b, "row 30"), DL_WAIT_FOREVER);
        start_caller(ct, &waiter);
        CT_AWAIT_THAT(waiting_connections(ct, NULL), >=, 2, 5000);
        ct_no_event(ct, a, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
        CT_EQ(count_rows(ct, "row 30"), 1);
        CT_GT(dl_valid_ms(lock), 0);
        CT_OK(dl_unlock(lock, CT_ERR));
        int64_t before_ms = ct_now_ms(ct);
        ct_join(ct, deleter);
        end_caller(ct, &waiter, DL_OK);
        CT_LE(waiter.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
        CT_GT(waiter.token, token);
        ct_expect_free(ct, "row 30", 0);
    }
    CT_EQ(ct_stats(ct, a).lost, 0);
}

CT_CASE(faults, row30_tokens_deleted, MYSQL, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 30");
    uint64_t token = 0;
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_GT(dl_token(lock), token);
        token = dl_token(lock);
        (void)mysql_ask(ct_mysql(ct), "DELETE FROM %s_tokens", table_of(ct));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    /* A client that has not seen them cannot issue them again either. */
    dl_lock_t *later = ct_lock(ct, ct_open(ct, NULL), "row 30");
    CT_OK(dl_lock(later, CT_ERR));
    CT_GT(dl_token(later), token);
}

CT_CASE(faults, row30_table_dropped, MYSQL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 30"), *more = ct_lock(ct, c, "row 30 more");
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    if (is_session(ct)) { /* the server waits for its end */
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    (void)mysql_ask(ct_mysql(ct), "DROP TABLE %s", table_of(ct));
    watch_t watch = start_watch(ct);
    if (!is_session(ct)) {
        ct_expect_event(ct, c, DL_EVENT_LOST, "row 30", ct_lease_ms(ct) + ct_tolerance_ms(ct));
        IN_TIME(watch, ct_lease_ms(ct));
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    }
    watch = start_watch(ct);
    CT_STATUS(dl_lock(more, CT_ERR), DL_ECONFIG); /* waiting would not help */
    IN_TIME(watch, 0);
    SAYS("dlock init");
    SAYS(bare_table_of(ct));
    CT_EQ(mysql_number(
              ct_mysql(ct),
              "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA='%s' AND TABLE_NAME='%s'",
              ct_mysql_database(ct), bare_table_of(ct)),
          0);
    dl_client_t *maker = ct_open(ct, "create: true");
    dl_lock_t *again = ct_lock(ct, maker, "row 30");
    CT_OK(dl_lock(again, CT_ERR));
    CT_GT(dl_token(again), token);
    CT_OK(dl_unlock(again, CT_ERR));
    expect_works(ct, c, "row 30");
}

/* ---- row 29: what is there is not what is needed ---------------------------------------------------- */

static void expect_no_open(ct_t *ct, const char *extra, const char *word) {
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, extra, &c, CT_ERR), DL_ECONFIG);
    IN_TIME(watch, 0);
    SAYS("dlock init");
    SAYS(word);
}

CT_CASE(faults, row29_table_missing, MYSQL) {
    make_tables(ct);
    (void)mysql_ask(ct_mysql(ct), "DROP TABLE %s", table_of(ct));
    expect_no_open(ct, "create: false", bare_table_of(ct));
    CT_EQ(mysql_number(
              ct_mysql(ct),
              "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA='%s' AND TABLE_NAME='%s'",
              ct_mysql_database(ct), bare_table_of(ct)),
          0);
    expect_works(ct, ct_open(ct, "create: true"), "row 29");
    expect_works(ct, ct_open(ct, "create: false"), "row 29");
}

CT_CASE(faults, row29_wrong_columns, MYSQL) {
    static const char *const changes[] = {
        "DROP COLUMN client",
        "DROP COLUMN owner, ADD COLUMN renamed VARBINARY(80)",
        "MODIFY name VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL",
        "ENGINE=MyISAM",
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        make_tables(ct);
        (void)mysql_ask(ct_mysql(ct), "ALTER TABLE %s %s", table_of(ct), changes[i]);
        expect_no_open(ct, "create: false", bare_table_of(ct));
        expect_no_open(ct, "create: true", bare_table_of(ct)); /* it never changes what is there */
        (void)mysql_ask(ct_mysql(ct), "DROP TABLE %s", table_of(ct));
    }
    expect_works(ct, ct_open(ct, "create: true"), "row 29");
}
