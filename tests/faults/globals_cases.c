/* globals_cases.c - faults of a MySQL server's settings (row 31): hostile defaults must have no effect. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/mysql_wire.h"

/* All that a lock is for, in short. */
static void expect_sane(ct_t *ct) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, a, "row 31"), *theirs = ct_lock(ct, b, "row 31");
    CT_OK(dl_lock(mine, CT_ERR));
    uint64_t token = dl_token(mine);
    CT_STATUS(dl_trylock(theirs, CT_ERR), DL_EBUSY);
    CT_STATUS(dl_trylock_for(theirs, 100, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    int64_t asked_ms = ct_now_ms(ct);
    dl_lock_info_t info = ct_server_info(ct, "row 31");
    CT_CHECK(info.held);
    /* Between the statement's clock and what it reads there may be a renewal, no later than now. */
    CT_LE(info.remaining_ms, LASTING_MS + ct_now_ms(ct) - asked_ms + 1);
    CT_AWAIT_THAT(ct_stats(ct, a).renewed, >=, 2, 5 * LASTING_EVERY_MS);
    CT_OK(dl_extend(mine, 3 * ct_lease_ms(ct), CT_ERR));
    caller_t waiter = CALLER(theirs, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, b, 1, 5000);
    CT_OK(dl_unlock(mine, CT_ERR));
    end_caller(ct, &waiter, DL_OK);
    CT_GT(waiter.token, token);
    ct_expect_free(ct, "row 31", 0);
    /* A lease that nobody renews ends, and not before. */
    take(ct, mine, ct_lease_ms(ct));
    CT_STATUS(dl_trylock(theirs, CT_ERR), DL_EBUSY);
    CT_OK(dl_trylock_for(theirs, 3 * ct_lease_ms(ct), DL_LEASE_AUTO, CT_ERR));
    CT_GT(dl_token(theirs), waiter.token);
    CT_OK(dl_unlock(theirs, CT_ERR));
    CT_STATUS(dl_unlock(mine, CT_ERR), DL_ELOST);
    ct_close(ct, a);
    ct_close(ct, b);
}

/* Of each pair one may be unknown to this server. */
static void under(ct_t *ct, const char *setting, const char *or_setting) {
    const char *answer = mysql_try(ct_mysql(ct), "SET GLOBAL %s", setting);
    if (answer[0] == '-' && or_setting != NULL) {
        answer = mysql_ask(ct_mysql(ct), "SET GLOBAL %s", or_setting);
    }
    CT_CHECKF(answer[0] != '-', "SET GLOBAL %s: %s", setting, answer);
    expect_sane(ct);
}

CT_CASE(faults, row31_hostile_isolation, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    under(ct, "transaction_isolation='SERIALIZABLE'", "tx_isolation='SERIALIZABLE'");
    under(ct, "transaction_isolation='READ-UNCOMMITTED'", "tx_isolation='READ-UNCOMMITTED'");
    under(ct, "transaction_isolation='REPEATABLE-READ'", "tx_isolation='REPEATABLE-READ'");
}

CT_CASE(faults, row31_hostile_transactions, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    under(ct, "autocommit=0", NULL);
    under(ct, "completion_type=2", NULL); /* RELEASE: a commit ends the connection */
    under(ct, "completion_type=1", NULL); /* CHAIN: it begins the next transaction */
}

CT_CASE(faults, row31_hostile_sql_mode, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    under(ct, "sql_mode='ANSI,ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE'", NULL);
    under(ct, "sql_mode=''", NULL); /* not strict: what does not fit is cut */
    under(ct, "sql_mode='NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE'", NULL);
    under(ct, "sql_mode='SIMULTANEOUS_ASSIGNMENT,EMPTY_STRING_IS_NULL'",
          "sql_mode='TRADITIONAL,TIME_TRUNCATE_FRACTIONAL'");
    under(ct, "sql_mode='TIME_ROUND_FRACTIONAL'", "sql_mode='NO_ZERO_DATE,NO_ZERO_IN_DATE'");
}

CT_CASE(faults, row31_hostile_limits, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    under(ct, "sql_select_limit=0", NULL);
    under(ct, "sql_safe_updates=1", NULL);
    under(ct, "max_statement_time=0.000001", "max_execution_time=1");
    under(ct, "innodb_lock_wait_timeout=1", NULL);
    under(ct, "lock_wait_timeout=1", NULL);
    under(ct, "max_join_size=1", NULL);
}

CT_CASE(faults, row31_hostile_characters, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    under(ct, "character_set_server='utf16'", NULL);
    under(ct, "collation_connection='utf8mb4_bin'", NULL);
    under(ct, "character_set_results='latin1'", NULL);
}

CT_CASE(faults, row31_hostile_init_connect, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    (void)mysql_ask(ct_mysql(ct),
                    "SET GLOBAL init_connect='SET autocommit=0, time_zone=\"+11:00\", sql_mode=\"ANSI\", "
                    "sql_select_limit=0, completion_type=2, timestamp=1'");
    expect_sane(ct);
}

static const char *const zones[] = {"+05:30", "-12:59", "+13:00", "SYSTEM"};

CT_CASE(faults, row31_hostile_time_zones, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    for (size_t i = 0; i < sizeof zones / sizeof zones[0]; i++) {
        char setting[32];
        snprintf(setting, sizeof setting, "time_zone='%s'", zones[i]);
        under(ct, setting, NULL);
    }
}

/* The clock on the wall changes while a lock is held: new sessions see another local time. */
CT_CASE(faults, row31_time_zone_changes_during_a_hold, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, c, "row 31"), *explicit_lock = ct_lock(ct, c, "row 31 explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, 20 * BRIEF_MS);
    uint64_t token = dl_token(lock);
    for (size_t i = 0; i < sizeof zones / sizeof zones[0]; i++) {
        (void)mysql_ask(ct_mysql(ct), "SET GLOBAL time_zone='%s'", zones[i]);
        if (!is_session(ct)) {
            (void)mysql_kill_connections(ct_mysql(ct),
                                         MYSQL_USER); /* its next ones are as new as the others' */
        }
        dl_client_t *later = ct_open(ct, NULL);
        CT_STATUS(dl_trylock(ct_lock(ct, later, "row 31"), CT_ERR), DL_EBUSY);
        CT_STATUS(dl_trylock(ct_lock(ct, later, "row 31 explicit"), CT_ERR), DL_EBUSY);
        CT_BETWEEN(ct_server_info(ct, "row 31 explicit").remaining_ms, 1, 20 * BRIEF_MS);
        uint64_t renewed = ct_stats(ct, c).renewed;
        CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 2, BRIEF_MS);
        CT_BETWEEN(ct_server_info(ct, "row 31").remaining_ms, 1, BRIEF_MS);
    }
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
}
