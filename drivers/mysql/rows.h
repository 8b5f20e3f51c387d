/* rows.h - pieces of statements and verdicts that mysql-lease and mysql-optimistic share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_ROWS_H
#define DLI_MYSQL_ROWS_H

#include "lock.h"

/* Tokens and versions are below this. A row with a larger one, or none, is no lock of ours. A row has the
 * last of the tokens that a grant is of. */
#define DLI_MYSQL_TOKEN_END ((uint64_t)1 << 62)

/*
 * Why a row was not taken, as one number, so that it can come back as a statement's insert_id:
 *   bit 63        always
 *   bit 62        the holder is a client of this library
 *   bits 0 to 61  microseconds that the holder's lease lasts; or one of the two below
 */
#define DLI_MYSQL_REFUSED ((uint64_t)1 << 63)
#define DLI_MYSQL_BY_DLOCK ((uint64_t)1 << 62)
#define DLI_MYSQL_ENDLESS (DLI_MYSQL_TOKEN_END - 1) /* an owner without an expiry */
#define DLI_MYSQL_FOREIGN (DLI_MYSQL_TOKEN_END - 2) /* no lock */

/* The columns that both tables have, besides the name in front and the token behind. */
#define DLI_MYSQL_ROWS_COLUMNS                                                                \
    {"owner", "VARBINARY(95)", "NULL"}, {"hold_id", "BIGINT UNSIGNED", "NOT NULL DEFAULT 0"}, \
        {"client", "VARBINARY(255)", "NULL"}, {"acquired_at", "DATETIME(6)", "NULL"},         \
        {"released_at", "DATETIME(6)", "NULL"}, {                                             \
        "expires_at", "DATETIME(6)", "NULL"                                                   \
    }

/* The condition that the request may take the row: free, expired, or an older hold of the same owner's. */
void dli_mysql_rows_add_takeable(dli_mysql_sql_t *sql, const dli_mysql_t *mysql, const dl_request_t *request);
/* The verdict over a row that it may not take. */
void dli_mysql_rows_add_verdict(dli_mysql_sql_t *sql, const dli_mysql_t *mysql);

/* Which rows are held. */
extern const dli_mysql_view_t dli_mysql_rows_view;

/* Takes the row; version: only if it still has that one, NULL: whichever it has. Statuses of dli_mysql_run;
 * DL_EIO also where it had to wait for too long for a row that somebody keeps locked, so that this is no
 * unknown outcome. */
dl_status_t dli_mysql_rows_take(dli_mysql_t *mysql, const dl_request_t *request, const uint64_t *version,
                                dli_mysql_exchange_t *exchange, dl_error_t *err);
/* How a driver takes a row that is there: what comes back is that of dli_mysql_rows_take, or looks like it.
 */
typedef dl_status_t (*dli_mysql_take_t)(dli_mysql_t *mysql, const dl_request_t *request,
                                        dli_mysql_exchange_t *exchange, dl_error_t *err);
/* An attempt: where there is no row, or it goes meanwhile, it is made, and taken. */
dl_status_t dli_mysql_rows_acquire(dli_mysql_t *mysql, dli_mysql_take_t take, const dl_request_t *request,
                                   dl_grant_t *grant, dl_error_t *err);

/* The ops of both drivers but open, init and try_acquire. */
#define DLI_MYSQL_ROWS_OPS                                                                       \
    .close = dli_mysql_close, .release = dli_mysql_rows_release, .renew = dli_mysql_rows_renew,  \
    .inspect = dli_mysql_inspect, .force_release = dli_mysql_rows_force, .list = dli_mysql_list, \
    .describe = dli_mysql_describe, .check = dli_mysql_check

#endif
