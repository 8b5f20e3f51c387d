/* pessimistic.c - the driver mysql-pessimistic: a lock is a row lock, and ends with its connection. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "session.h"

static const dl_option_t options[] = {DLI_MYSQL_OPTIONS(
    "dlock_pessimistic", "At most so many connections: each lock that is held or waited for needs one")};

/* Committed, all but the name are NULL for ever. */
static const dli_mysql_column_t row_columns[] = {{"name", "VARBINARY(255)", "NOT NULL PRIMARY KEY"},
                                                 {"owner", "VARBINARY(95)", "NULL"},
                                                 {"hold_id", "BIGINT UNSIGNED", "NULL"},
                                                 {"client", "VARBINARY(255)", "NULL"},
                                                 {"connection_id", "BIGINT UNSIGNED", "NULL"},
                                                 {"acquired_at", "DATETIME(6)", "NULL"},
                                                 {"lease_ms", "BIGINT UNSIGNED", "NULL"},
                                                 {.name = NULL}};

static const dli_mysql_column_t token_columns[] = {{"name", "VARBINARY(255)", "NOT NULL PRIMARY KEY"},
                                                   {"token", "BIGINT UNSIGNED", "NOT NULL"},
                                                   {"drawn_at", "DATETIME(6)", "NOT NULL"},
                                                   {.name = NULL}};

static const dli_mysql_table_t tables[] = {{.suffix = "", .columns = row_columns},
                                           {.suffix = "_tokens", .columns = token_columns},
                                           {.suffix = NULL}};

const dli_mysql_kind_t dli_mysql_pessimistic_kind = {
    .driver = "mysql-pessimistic",
    .calls = DLI_MYSQL_ROLE_HOLDING,
    .tables = tables,
    .view = &dli_mysql_markers_view,
    .token_column = "token",
};

static dl_status_t open_sessions(void *state_, const dl_option_value_t *values, const dl_driver_env_t *env,
                                 uint64_t deadline_ns, dl_error_t *err) {
    dli_mysql_sessions_t *state = state_;
    int failed = pthread_mutex_init(&state->mutex, NULL);
    if (failed != 0) {
        return dl_driver_fail(err, DL_ENOMEM, failed, "cannot make a mutex: %s", strerror(failed));
    }
    state->has_mutex = true;
    return dli_mysql_open(&state->mysql, &dli_mysql_pessimistic_kind, values, env, deadline_ns, err);
}

static void close_sessions(void *state_, int forked) {
    dli_mysql_sessions_t *state = state_;
    dli_mysql_close(&state->mysql, forked);
    if (forked) {
        dli_mysql_sessions_close_forked(state);
    } else if (state->has_mutex) {
        pthread_mutex_destroy(&state->mutex);
        state->has_mutex = false;
    }
}

static dl_status_t init_sessions(const dl_option_value_t *values, const dl_driver_env_t *env, unsigned flags,
                                 dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    return dli_mysql_init(&dli_mysql_pessimistic_kind, values, env, flags, fn, arg, deadline_ns, err);
}

const dl_driver_t dli_mysql_pessimistic_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "mysql-pessimistic",
    .summary = "a row lock on one MySQL or MariaDB server, held by an open transaction on its own connection",
    .caps = DL_CAP_SESSION | DL_CAP_FENCE | DL_CAP_NATIVE_WAIT,
    .state_size = sizeof(dli_mysql_sessions_t),
    .hold_size = sizeof(dli_mysql_session_t),
    .options = options,
    .open = open_sessions,
    .close = close_sessions,
    .try_acquire = dli_mysql_session_acquire,
    .release = dli_mysql_session_release,
    .renew = dli_mysql_session_renew,
    .inspect = dli_mysql_inspect,
    .force_release = dli_mysql_session_force,
    .list = dli_mysql_list,
    .drop = dli_mysql_session_drop,
    .describe = dli_mysql_describe,
    .check = dli_mysql_check,
    .init = init_sessions,
};
