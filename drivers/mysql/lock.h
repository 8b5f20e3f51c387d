/* lock.h - what the three drivers share: state, tables, ops. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_LOCK_H
#define DLI_MYSQL_LOCK_H

#include <stdatomic.h>

#include "link/link.h"
#include "mysql.h"
#include "options.h"
#include "sql.h"

#define DLI_MYSQL_TABLE_MAX 48
#define DLI_NS_PER_MS 1000000u
/* Server time in microseconds since 1970, as an unsigned number; the start of every token. The session's time
 * zone is UTC. Fixed at the start of its statement. */
#define DLI_MYSQL_MICROS "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"
/* 0, or error 1690 where the server has become read-only: that stops no account with the right to write all
 * the same, and others have their locks from its successor by now. Some servers say OFF for 0. */
#define DLI_MYSQL_WRITABLE "(CAST(0 AS UNSIGNED)-(CONCAT(@@GLOBAL.read_only) NOT IN ('0','OFF')))"
/* Behind the table in a statement about the rows of a list of names. Without it a server may go through the
 * whole table where it thinks that quicker, and lock or wait for rows that nobody has named. It still may
 * where the statement is about names only, since the index has all of these; so each is about another column
 * too. */
#define DLI_MYSQL_BY_NAME "FORCE INDEX(PRIMARY)"

/* What a table has to look like. Checked at open, printed and applied by `dlock init`. */
typedef struct dli_mysql_column {
    const char *name;
    const char *type; /* as information_schema.COLUMNS.COLUMN_TYPE says it, in whatever case */
    const char *rest; /* of its definition */
} dli_mysql_column_t;

typedef struct dli_mysql_table {
    const char *suffix;                /* after the configured name; "" for the first */
    const dli_mysql_column_t *columns; /* ended by a NULL name */
} dli_mysql_table_t;

/* The first columns of what a view selects: of a lock that is held. */
enum {
    DLI_MYSQL_HELD_NAME,
    DLI_MYSQL_HELD_OWNER,
    DLI_MYSQL_HELD_ID,
    DLI_MYSQL_HELD_CLIENT,
    DLI_MYSQL_HELD_TOKEN,
    DLI_MYSQL_HELD_LEFT_MS, /* of the lease; NULL: it has none */
    DLI_MYSQL_HELD_COLUMNS
};

struct dli_mysql;

/* How others see which locks are held. */
typedef struct dli_mysql_view {
    dli_mysql_lane_t lane;
    const char *name; /* the column of the names, as the statement calls it */
    uint64_t page;    /* so many locks in one answer */
    /* Up to the WHERE, which more conditions may follow. */
    void (*add_select)(dli_mysql_sql_t *sql, const struct dli_mysql *mysql);
    /* NULL: nothing. Asks what else is to be known of these locks, as far as it can be had; and what it says
     * of one of them, with `more` NULL where it says nothing. */
    void (*ask_more)(struct dli_mysql *mysql, MYSQL_RES *locks, uint64_t deadline_ns,
                     dli_mysql_answer_t *more);
    void (*refine)(MYSQL_ROW lock, MYSQL_RES *more, dl_lock_info_t *info);
} dli_mysql_view_t;

/*
 * What the drivers differ in.
 *
 * mysql-lease and mysql-optimistic: a row is free when owner IS NULL or expires_at <= now (UTC). `client` is
 * client_label, for people. The row with the empty name is no lock: its token is the highest of all rows that
 * were ever purged, and new rows begin above it.
 *
 * mysql-pessimistic: committed, all of a row but the name are NULL for ever: the holder writes them in the
 * transaction that holds the row lock, and rolls back to unlock. READ UNCOMMITTED shows them for exactly as
 * long as the lock is held. The tokens have a table of their own, committed on a connection of the lane
 * TOKENS while the row lock is held.
 */
typedef struct dli_mysql_kind {
    const char *driver; /* its name */
    dli_mysql_role_t calls;
    const dli_mysql_table_t *tables; /* ended by a NULL suffix */
    const dli_mysql_view_t *view;
    const char *token_column; /* "token" or "version" */
    bool has_state;           /* of the lease kinds: a column `state` */
} dli_mysql_kind_t;

extern const dli_mysql_kind_t dli_mysql_pessimistic_kind, dli_mysql_lease_kind, dli_mysql_optimistic_kind;

/* The state of a client. */
typedef struct dli_mysql {
    const dl_driver_env_t *env; /* NULL: never opened */
    const dli_mysql_kind_t *kind;
    dli_mysql_endpoint_t *endpoint;
    dli_mysql_link_t *link;
    char table[DLI_MYSQL_TABLE_MAX + 1];      /* the first */
    char tokens[DLI_MYSQL_TABLE_MAX + 1 + 8]; /* mysql-pessimistic: of the tokens */
    char table_shown[96];                     /* the first, as messages have it */
    int64_t purge_after_ms;                   /* 0: never */
    int64_t max_total;                        /* as configured; for check */
    atomic_uint_fast64_t acquired;            /* how many; every so many a client purges */
    atomic_flag purging;                      /* set by the one that purges; it guards the rest */
    uint64_t purge_at;                        /* once so many were acquired; 0: not yet chosen */
    char purged[DL_NAME_MAX];                 /* the name behind which the next purge looks */
    size_t purged_len;
    atomic_uint_fast64_t wary_until_ns; /* renewals expect rows that others keep locked */
    atomic_int extending;               /* so many callers extend a hold just now */
} dli_mysql_t;

/* ---- client.c: opening and closing ------------------------------------------------------------------- */

/* Reads the options, opens the link, connects and verifies: version, no replica or read-only server, no
 * Galera, tables (made if `create` says so). */
dl_status_t dli_mysql_open(dli_mysql_t *mysql, const dli_mysql_kind_t *kind, const dl_option_value_t *options,
                           const dl_driver_env_t *env, uint64_t deadline_ns, dl_error_t *err);
void dli_mysql_close(void *state, int forked);
void dli_mysql_describe(void *state, char *text, size_t size);
/* As far as a link, with nothing connected or verified: for init. */
dl_status_t dli_mysql_prepare(dli_mysql_t *mysql, const dli_mysql_kind_t *kind,
                              const dl_option_value_t *options, const dl_driver_env_t *env, dl_error_t *err);

/* ---- check*.c, init.c ------------------------------------------------------------------------ */

dl_status_t dli_mysql_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);
/* The driver's op with the kind in front. */
dl_status_t dli_mysql_init(const dli_mysql_kind_t *kind, const dl_option_value_t *options,
                           const dl_driver_env_t *env, unsigned flags, dl_finding_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err);

/* ---- admin.c: what all three do alike ----------------------------------------------------------------- */

dl_status_t dli_mysql_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                              dl_lock_info_t *info, dl_error_t *err);
dl_status_t dli_mysql_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err);
/* What the first columns say of a lock. */
void dli_mysql_held_read(MYSQL_ROW row, dl_lock_info_t *info);

/* ---- rows.c, renewals.c: what mysql-lease and mysql-optimistic do alike ---------------------- */

dl_status_t dli_mysql_rows_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err);
void dli_mysql_rows_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns);
dl_status_t dli_mysql_rows_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 dl_error_t *err);
/* ---- for all three ----------------------------------------------------------------------------------- */

/* purge.c: now and then, after the request's release, deletes some names that nobody has locked for long;
 * takes a moment at most. mysql-pessimistic: on a connection of role HOLDING without an open transaction;
 * false: it is not in that state any more, and can only be dropped. The others: conn is NULL. */
bool dli_mysql_purge(dli_mysql_t *mysql, dli_mysql_conn_t *conn, const dl_request_t *request);

/* One statement about one name on the lane CALLS (or another), with the answer's error mapped: DL_OK only if
 * the server carried it out. `doing`: "taking", "freeing"; for the message. */
dl_status_t dli_mysql_run(dli_mysql_t *mysql, dli_mysql_exchange_t *exchange, const dli_mysql_sql_t *sql,
                          const char *doing, const char *name, dl_error_t *err);

#endif
