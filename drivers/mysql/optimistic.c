/* optimistic.c - the driver mysql-optimistic: a row is read, and taken if its version is still the same. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "rows.h"

static const dl_option_t options[] = {
    DLI_MYSQL_OPTIONS("dlock_optimistic", "At most so many connections for calls; renewals have their own")};

/* The version is the last token that was drawn: each acquisition raises it, nothing else does. */
static const dli_mysql_column_t columns[] = {{"name", "VARBINARY(255)", "NOT NULL PRIMARY KEY"},
                                             DLI_MYSQL_ROWS_COLUMNS,
                                             {"version", "BIGINT UNSIGNED", "NOT NULL"},
                                             {.name = NULL}};

static const dli_mysql_table_t tables[] = {{.suffix = "", .columns = columns}, {.suffix = NULL}};

const dli_mysql_kind_t dli_mysql_optimistic_kind = {
    .driver = "mysql-optimistic",
    .calls = DLI_MYSQL_ROLE_PLAIN,
    .tables = tables,
    .view = &dli_mysql_rows_view,
    .token_column = "version",
    .has_state = false,
};

/* ---- taking ----------------------------------------------------------------------------------------- */

/* The row as it was read; zeroed: there is none. */
typedef struct look {
    bool is_takeable;
    uint64_t version;
    uint64_t verdict; /* of one that is not takeable (rows.h) */
} look_t;

/* A consistent read: it waits for nobody, and keeps nobody waiting. */
static dl_status_t read_row(dli_mysql_t *mysql, const dl_request_t *r, look_t *look, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "SELECT version,CASE WHEN ");
    dli_mysql_rows_add_takeable(&sql, mysql, r);
    dli_mysql_sql_add(&sql, " THEN 0 ELSE ");
    dli_mysql_rows_add_verdict(&sql, mysql);
    dli_mysql_sql_add(&sql, " END FROM $t WHERE name=$x", mysql->table, r->name, r->name_len);
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CALLS, .intent = DLI_MYSQL_READ, .deadline_ns = r->deadline_ns, .stop = &r->stop};
    dl_status_t status = dli_mysql_run(mysql, &exchange, &sql, "reading", r->name, err);
    if (status == DL_OK) {
        MYSQL_ROW row = dli_mysql_answer_row(&exchange.answer, NULL);
        if (row != NULL) {
            look->version = dli_mysql_number(row[0]);
            look->verdict = dli_mysql_number(row[1]);
            look->is_takeable = look->verdict == 0;
        }
        dli_mysql_answer_free(&exchange.answer);
    }
    return status;
}

/* Taken only if no one was faster. The row's lock is waited for only while another such statement ends. */
static dl_status_t take(dli_mysql_t *mysql, const dl_request_t *request, dli_mysql_exchange_t *exchange,
                        dl_error_t *err) {
    look_t look = {.is_takeable = false};
    dl_status_t status = read_row(mysql, request, &look, err);
    if (status == DL_OK && look.is_takeable) {
        return dli_mysql_rows_take(mysql, request, &look.version, exchange, err);
    }
    exchange->answer.insert_id = look.verdict; /* as that statement would say it, which is not sent */
    return status;
}

static dl_status_t try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                               dl_error_t *err) {
    (void)hold;
    return dli_mysql_rows_acquire(state, take, request, grant, err);
}

/* ---- the table -------------------------------------------------------------------------------------- */

static dl_status_t open_optimistic(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                                   uint64_t deadline_ns, dl_error_t *err) {
    return dli_mysql_open(state, &dli_mysql_optimistic_kind, values, env, deadline_ns, err);
}

static dl_status_t init_optimistic(const dl_option_value_t *values, const dl_driver_env_t *env,
                                   unsigned flags, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                                   dl_error_t *err) {
    return dli_mysql_init(&dli_mysql_optimistic_kind, values, env, flags, fn, arg, deadline_ns, err);
}

const dl_driver_t dli_mysql_optimistic_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "mysql-optimistic",
    .summary = "a row with a version on one MySQL or MariaDB server, read without locks and compared to take",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE,
    .state_size = sizeof(dli_mysql_t),
    .options = options,
    .open = open_optimistic,
    .init = init_optimistic,
    .try_acquire = try_acquire,
    DLI_MYSQL_ROWS_OPS,
};
