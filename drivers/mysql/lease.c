/* lease.c - the driver mysql-lease: a lock is a row with an owner and an expiry, taken by one statement. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

static const dl_option_t options[] = {
    DLI_MYSQL_OPTIONS("dlock_lease", "At most so many connections for calls; renewals have their own")};

/* A row is free when it has no owner or its expiry is over; state is for people. */
static const dli_mysql_column_t columns[] = {
    {"name", "VARBINARY(255)", "NOT NULL PRIMARY KEY"},
    {"state", "ENUM('free','held')", "CHARACTER SET ascii NOT NULL DEFAULT 'free'"},
    DLI_MYSQL_ROWS_COLUMNS,
    {"token", "BIGINT UNSIGNED", "NOT NULL"},
    {.name = NULL}};

static const dli_mysql_table_t tables[] = {{.suffix = "", .columns = columns}, {.suffix = NULL}};

const dli_mysql_kind_t dli_mysql_lease_kind = {
    .driver = "mysql-lease",
    .calls = DLI_MYSQL_ROLE_PLAIN,
    .tables = tables,
    .view = &dli_mysql_rows_view,
    .token_column = "token",
    .has_state = true,
};

/* ---- taking ----------------------------------------------------------------------------------------- */

/*
 * One statement. Its WHERE takes the row, or says why not, so that the assignments depend on nothing but the
 * row's token, in whatever order or however often they are evaluated. Rows found and insert_id:
 *   1, token      taken; the last of its tokens
 *   0, a verdict  busy or foreign (rows.h)
 *   0, 0          there is no row
 * The time is that of the statement's start. When it has to wait for the row, it errs on the safe side: an
 * expiry meanwhile is judged busy, and our own lease ends no later than counted from the start.
 */
static dl_status_t take(dli_mysql_t *mysql, const dl_request_t *r, dli_mysql_exchange_t *exchange,
                        dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "UPDATE $t SET ", mysql->table);
    dli_mysql_rows_add_hold(&sql, mysql, r);
    dli_mysql_sql_add(&sql, " WHERE name=$x AND CASE WHEN ", r->name, r->name_len);
    dli_mysql_rows_add_takeable(&sql, mysql, r);
    dli_mysql_sql_add(&sql, " THEN 1 ELSE LAST_INSERT_ID(");
    dli_mysql_rows_add_verdict(&sql, mysql);
    dli_mysql_sql_add(&sql, ")=0 END");
    return dli_mysql_rows_claim(mysql, r, &sql, exchange, err);
}

static dl_status_t try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                               dl_error_t *err) {
    (void)hold;
    dli_mysql_t *mysql = state;
    dli_mysql_exchange_t exchange;
    dl_status_t status = dli_mysql_rows_check(request, err);
    if (status == DL_OK) {
        status = take(mysql, request, &exchange, err);
    }
    if (status == DL_OK && exchange.answer.affected == 0 && exchange.answer.insert_id == 0) {
        status = dli_mysql_rows_provide(mysql, request, err);
        if (status == DL_OK) {
            status = take(mysql, request, &exchange, err);
        }
    }
    return status == DL_OK ? dli_mysql_rows_judge(mysql, request, &exchange, grant, err) : status;
}

/* ---- the table -------------------------------------------------------------------------------------- */

static dl_status_t open_lease(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                              uint64_t deadline_ns, dl_error_t *err) {
    return dli_mysql_open(state, &dli_mysql_lease_kind, values, env, deadline_ns, err);
}

static dl_status_t init_lease(const dl_option_value_t *values, const dl_driver_env_t *env, unsigned flags,
                              dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    return dli_mysql_init(&dli_mysql_lease_kind, values, env, flags, fn, arg, deadline_ns, err);
}

const dl_driver_t dli_mysql_lease_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "mysql-lease",
    .summary = "a row with an expiry in a table on one MySQL or MariaDB server, taken by one statement",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE,
    .state_size = sizeof(dli_mysql_t),
    .options = options,
    .open = open_lease,
    .init = init_lease,
    .try_acquire = try_acquire,
    DLI_MYSQL_ROWS_OPS,
};
