/* conn.h - one connection: made, pinned, asked one statement at a time with a deadline, closed. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_CONN_H
#define DLI_MYSQL_CONN_H

#include "answer.h"
#include "guard.h"
#include "library.h"

static inline uint64_t dli_mysql_earlier(uint64_t a_ns, uint64_t b_ns) {
    return a_ns < b_ns ? a_ns : b_ns;
}

/* What a session is for; each has its own settings. All: READ COMMITTED or what is said here, UTC, strict
 * mode without ANSI quirks, no statement time limit, innodb_lock_wait_timeout 1 s, completion_type
 * NO_CHAIN, and whatever else a server's globals could do to us. */
typedef enum dli_mysql_role {
    DLI_MYSQL_ROLE_PLAIN,      /* autocommit */
    DLI_MYSQL_ROLE_HOLDING,    /* autocommit off: the first statement opens a transaction */
    DLI_MYSQL_ROLE_OVERLOOKING /* autocommit, READ UNCOMMITTED: sees what open transactions have written */
} dli_mysql_role_t;

/* Why nothing can be killed. */
#define DLI_MYSQL_RENUMBERED "a proxy on the way numbers connections by itself, so that KILL would end others"

/* What a connection learned about its server when it was made. */
typedef struct dli_mysql_facts {
    uint64_t connection_id; /* as KILL takes it; 0: a proxy on the way numbers connections by itself */
    bool is_mariadb;
    unsigned version_number; /* 101119, 90704; 0: never connected */
    char version[64];
    /* When it was started; server_id, MySQL's server_uuid, host name, port, data folder. server: where the
     * second begins, which says which one it is, whatever its run. */
    char identity[320];
    size_t server;
    bool is_read_only; /* read_only or super_read_only */
} dli_mysql_facts_t;

typedef struct dli_mysql_conn dli_mysql_conn_t;

/*
 * Makes a connection: name lookup, connecting, TLS, login, settings. Blocks; for at most the endpoint's
 * connect_timeout, rounded up to whole seconds, for each of its steps (Oracle's library: except for the TLS
 * handshake, which lasts until the peer says something or is gone). Touches nothing but its arguments, so
 * that a thread left behind may finish it. The descriptor is closed on exec.
 * DL_OK; DL_EIO (cannot be reached, went away), DL_EAUTH, DL_ECONFIG (TLS, no such database), DL_ENOTSUP (too
 * old: MariaDB before 10.6, MySQL before 8.0; one of several servers that take writes), DL_ELIMIT (too many
 * connections), DL_EPROTO, DL_ENOMEM. wait_timeout_s: the server's patience with it while idle.
 */
dl_status_t dli_mysql_conn_make(const dli_mysql_endpoint_t *endpoint, dli_mysql_role_t role,
                                int64_t wait_timeout_s, dli_mysql_conn_t **conn, dl_error_t *err);
/* Says goodbye and closes; without a word if it is broken. NULL is fine. */
void dli_mysql_conn_close(dli_mysql_conn_t *conn);
/* In a forked child: closes the descriptor, and nothing else. */
void dli_mysql_conn_close_forked(dli_mysql_conn_t *conn);

const dli_mysql_facts_t *dli_mysql_conn_facts(const dli_mysql_conn_t *conn);
/* Whatever its maker keeps beside it. */
void *dli_mysql_conn_owner(const dli_mysql_conn_t *conn);
void dli_mysql_conn_set_owner(dli_mysql_conn_t *conn, void *owner);
int dli_mysql_conn_fd(const dli_mysql_conn_t *conn);
/* No I/O that waits: has the server hung up, or said something that nobody asked for? */
bool dli_mysql_conn_is_broken(const dli_mysql_conn_t *conn);
/* The server's patience while idle, in seconds, as set last; ask and note are the caller's. */
int64_t dli_mysql_conn_patience_s(const dli_mysql_conn_t *conn);
void dli_mysql_conn_note_patience(dli_mysql_conn_t *conn, int64_t seconds);

/* What a wait for an answer may be ended by. */
typedef struct dli_mysql_bounds {
    const dl_driver_env_t *env;
    dli_mysql_guard_t *guard;
    uint64_t deadline_ns;
    const dl_stop_t *stop; /* NULL: none */
} dli_mysql_bounds_t;

/*
 * One statement: sends it and waits for the whole answer.
 *   DL_OK        the answer is there: rows, counts, or an error of the server's (answer->error). The
 *                connection may be broken all the same: the guard may end it behind the answer
 *   DL_EIO       surely nothing left: the connection was broken before
 *   DL_EUNKNOWN  it left, or part of it, and the connection broke before the answer, or the guard had to
 *                end it at the deadline
 *   DL_EPROTO    the answer made no sense
 *   DL_ETIMEDOUT the deadline is over; DL_ECANCELED: stop. The statement is on its way and the connection is
 *                still in step: go on waiting with dli_mysql_conn_resume (perhaps after KILL QUERY), or give
 *                the connection up.
 * After DL_EIO, DL_EUNKNOWN and DL_EPROTO it is broken, and only closing is left. *sent_ns (may be NULL): the
 * instant before the first byte left. err is filled unless DL_OK. Several threads may not ask at once.
 */
dl_status_t dli_mysql_conn_ask(dli_mysql_conn_t *conn, const char *sql, size_t len,
                               const dli_mysql_bounds_t *bounds, uint64_t *sent_ns,
                               dli_mysql_answer_t *answer, dl_error_t *err);
/* Waits on for the answer of the statement that is on its way. */
dl_status_t dli_mysql_conn_resume(dli_mysql_conn_t *conn, const dli_mysql_bounds_t *bounds,
                                  dli_mysql_answer_t *answer, dl_error_t *err);
/* Is a statement on its way, that nobody has the answer of? */
bool dli_mysql_conn_is_asking(const dli_mysql_conn_t *conn);

#endif
