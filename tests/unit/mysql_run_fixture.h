/* mysql_run_fixture.h - a link, and statements on it at one go. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_RUN_FIXTURE_H
#define MYSQL_RUN_FIXTURE_H

#include "mysql_link_fixture.h"

static dli_mysql_link_t *link_;
static dl_error_t err;

static inline void open_link(void) {
    cr_assert_eq(dli_mysql_link_open(endpoint, &options, &env, &link_, &err), DL_OK, "%s", err.message);
}

static inline void tear_down(void) {
    dli_mysql_link_close(link_, false);
    tear_down_rest();
}

/* One statement; the first column of its first row, if it has one, goes to `number`. */
static inline dl_status_t run_full(const char *sql, dli_mysql_intent_t intent, uint64_t ms,
                                   const dl_stop_t *stop, uint64_t *number, unsigned *error) {
    dli_mysql_exchange_t x = {.sql = sql,
                              .len = strlen(sql),
                              .lane = DLI_MYSQL_CALLS,
                              .intent = intent,
                              .deadline_ns = in_ms(ms),
                              .stop = stop};
    err.message[0] = '\0';
    dl_status_t status = dli_mysql_link_run(link_, &x, &err);
    cr_assert(status == DL_OK || err.message[0] != '\0');
    if (status != DL_OK) {
        cr_assert_eq(status, err.status);
    }
    MYSQL_ROW row = status == DL_OK ? dli_mysql_answer_row(&x.answer, NULL) : NULL;
    if (number != NULL) {
        *number = row != NULL ? dli_mysql_number(row[0]) : 0;
    }
    if (error != NULL) {
        *error = x.answer.error;
    }
    cr_assert(error != NULL || x.answer.error == 0, "%s", x.answer.message);
    dli_mysql_answer_free(&x.answer);
    return status;
}

static inline dl_status_t run(const char *sql, dli_mysql_intent_t intent, uint64_t ms) {
    return run_full(sql, intent, ms, NULL, NULL, NULL);
}

static inline void run_well(const char *sql) {
    cr_assert_eq(run(sql, DLI_MYSQL_PLAIN, 15000), DL_OK, "%s", err.message);
}

static inline uint64_t ask_number(const char *sql) {
    uint64_t number;
    cr_assert_eq(run_full(sql, DLI_MYSQL_READ, 15000, NULL, &number, NULL), DL_OK, "%s", err.message);
    return number;
}

/* A statement that takes longer than its caller has time for, on a connection that is there. */
static inline void give_up(const char *sql, dli_mysql_intent_t intent, dl_status_t status) {
    run_well("DO 1");
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(run(sql, intent, 100), status, "%s", err.message);
    cr_assert_geq(ms_since(began_ns), 100);
    cr_assert_lt(ms_since(began_ns), 100 + SLACK_MS);
}

/* How many of the account's connections run something like this. */
static inline int running(const char *like) {
    return (int)mysql_number(server,
                             "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '%s' AND "
                             "COMMAND IN ('Query', 'Killed') AND INFO LIKE '%s'",
                             account, like);
}

static inline dli_mysql_conn_t *lend(dli_mysql_lane_t lane) {
    dli_mysql_conn_t *conn;
    cr_assert_eq(
        dli_mysql_link_borrow(link_, lane, env.now_ns(), DL_NO_DEADLINE, in_ms(15000), NULL, &conn, &err),
        DL_OK, "%s", err.message);
    return conn;
}

static inline dl_status_t ask_on(dli_mysql_conn_t *conn, const char *sql, uint64_t ms, unsigned *error) {
    dli_mysql_answer_t answer;
    dl_status_t status =
        dli_mysql_link_ask(link_, conn, sql, strlen(sql), in_ms(ms), NULL, NULL, &answer, &err);
    *error = answer.error;
    dli_mysql_answer_free(&answer);
    return status;
}

#endif
