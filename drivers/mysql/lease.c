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

static dl_status_t take(dli_mysql_t *mysql, const dl_request_t *request, dli_mysql_exchange_t *exchange,
                        dl_error_t *err) {
    return dli_mysql_rows_take(mysql, request, NULL, exchange, err);
}

static dl_status_t try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                               dl_error_t *err) {
    (void)hold;
    return dli_mysql_rows_acquire(state, take, request, grant, err);
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
