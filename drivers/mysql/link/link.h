/* link.h - the one way to a server: statements with a deadline, on connections from pools. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_LINK_H
#define DLI_MYSQL_LINK_H

#include "conn.h"

/*
 * Each lane has a pool of its own, so that a full pool of calls delays no renewal and no token. Connections
 * are made by threads of their own: a caller waits for one no longer than its deadline and its stop allow,
 * and one that comes too late goes to the idle ones. An idle connection is looked at before it is used; a
 * broken one is closed and never surfaces. While the server is known to be down (connecting failed), callers
 * fail at once with the reason, except for one that tries again when a backoff with jitter is over. If it
 * only takes no more connections, they wait for one of the lane's that are in use, if there is one.
 *
 * A statement that was given up may still be carried out: if it was a claim, its connection is condemned, and
 * every exchange that frees first KILLs the condemned connections, on the control lane. A connection is
 * killed only where the server is known to be the one that it was made to (same identity, and up since
 * before).
 *
 * Any thread may use a link; a borrowed connection belongs to one thread at a time.
 */
typedef struct dli_mysql_link dli_mysql_link_t;

typedef enum dli_mysql_lane {
    DLI_MYSQL_CALLS,    /* the pool that max_total bounds */
    DLI_MYSQL_RENEWALS, /* at most 4 */
    DLI_MYSQL_TOKENS,   /* at most 8: what a holder of a row lock needs besides its own connection */
    DLI_MYSQL_CONTROL,  /* at most 4, READ UNCOMMITTED: kills, and sees who holds a row lock */
    DLI_MYSQL_LANES
} dli_mysql_lane_t;

typedef struct dli_mysql_pool_options {
    dli_mysql_role_t calls; /* role of the lane CALLS */
    int64_t max_total, max_idle, min_idle;
    bool test_on_borrow;       /* DO 1 before each use */
    bool test_while_idle;      /* DO 1 on those that lie idle, every idle_check */
    int64_t borrow_timeout_ms; /* how long a caller waits for a connection of CALLS; 0: until its deadline */
    int64_t idle_timeout_ms, idle_check_ms;
} dli_mysql_pool_options_t;

/* No I/O: the first exchange connects. Takes a reference to the endpoint. */
dl_status_t dli_mysql_link_open(dli_mysql_endpoint_t *endpoint, const dli_mysql_pool_options_t *options,
                                const dl_driver_env_t *env, dli_mysql_link_t **link, dl_error_t *err);
/* Nothing is running or borrowed. Waits for no connection that is being made. NULL is fine. forked: closes
 * descriptors only. */
void dli_mysql_link_close(dli_mysql_link_t *link, bool forked);
/* What the last connection learned; all zero before the first. connection_id: 0 as soon as one to the same
 * server had none, and then nothing is to be killed. */
void dli_mysql_link_facts(dli_mysql_link_t *link, dli_mysql_facts_t *facts);
/* For bounds of statements on borrowed connections. */
dli_mysql_guard_t *dli_mysql_link_guard(dli_mysql_link_t *link);

/* An answer that is wanted no more is waited for a little longer: it normally comes at once, and then no
 * outcome is unknown and no connection lost. */
#define DLI_MYSQL_LAST_WORD_NS ((uint64_t)20000000)
/* After a stop: ending the statement on the server, which may take a new connection, and leaving in step. A
 * cancelled call has 100 ms in all. */
#define DLI_MYSQL_CALLING_OFF_NS ((uint64_t)70000000)

/* ---- one statement on any connection ----------------------------------------------------------------- */

typedef enum dli_mysql_intent {
    DLI_MYSQL_PLAIN,
    DLI_MYSQL_READ,  /* changes nothing: giving it up is DL_EIO, no outcome is unknown */
    DLI_MYSQL_CLAIM, /* if given up after it was sent, its connection is condemned */
    DLI_MYSQL_FREE   /* goes behind the killing of condemned connections */
} dli_mysql_intent_t;

typedef struct dli_mysql_exchange {
    /* by the caller */
    const char *sql;
    size_t len;
    dli_mysql_lane_t lane; /* one whose connections are of autocommit */
    dli_mysql_intent_t intent;
    uint64_t deadline_ns;
    const dl_stop_t *stop; /* NULL: none */
    bool may_be_ended; /* with no answer shortly before the deadline, or after stop, KILL QUERY, so that its
                              outcome is known */
    dli_mysql_conn_t **kept; /* NULL, or where to put the connection that answered: the caller's, as if it had
                                borrowed it; NULL in it: there is none */
    /* by the link */
    bool was_ended;            /* so: it waited for something on the server; answer.error is there */
    uint64_t sent_ns;          /* the instant before the first byte left */
    dli_mysql_answer_t answer; /* after DL_OK; the caller frees it */
} dli_mysql_exchange_t;

/*
 * Runs the exchange to its end. A deadlock (1213: rolled back, nothing was done) is sent again at once, at
 * most three times. DL_OK: the server answered, perhaps with an error (answer.error). DL_EIO: surely nothing
 * was done: the server is down or cannot be reached in time; or the answer to what only reads is missing.
 * DL_ECANCELED: the same because of stop. DL_ETIMEDOUT: no connection of the lane became free within
 * borrow_timeout or the deadline. DL_EUNKNOWN: it left and has no answer that makes sense. DL_EPROTO: the
 * same of what only reads. DL_EAUTH, DL_ECONFIG, DL_ENOTSUP, DL_ELIMIT, DL_ENOMEM: could not connect; nothing
 * left. err is filled.
 */
dl_status_t dli_mysql_link_run(dli_mysql_link_t *link, dli_mysql_exchange_t *exchange, dl_error_t *err);

/* ---- a connection for a while -------------------------------------------------------------------------- */

/* One of the lane that works as far as can be known. began_ns: since when the caller waits for one, which
 * borrow_timeout counts from. The statuses of dli_mysql_link_run for a connection that could not be had; and
 * DL_EBUSY from busy_from_ns on, at the deadline too, where all are in use and borrow_timeout is not over. */
dl_status_t dli_mysql_link_borrow(dli_mysql_link_t *link, dli_mysql_lane_t lane, uint64_t began_ns,
                                  uint64_t busy_from_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                                  dli_mysql_conn_t **conn, dl_error_t *err);
/* It is in step and has no transaction open. */
void dli_mysql_link_give_back(dli_mysql_link_t *link, dli_mysql_conn_t *conn);
/* Closes it at once, whatever it is doing. is_condemned: what it was sent may still take effect. */
void dli_mysql_link_drop(dli_mysql_link_t *link, dli_mysql_conn_t *conn, bool is_condemned);
/* From another thread than the one that uses it, which cannot give it up meanwhile: it is condemned, and its
 * user finds it broken. */
void dli_mysql_link_break(dli_mysql_link_t *link, dli_mysql_conn_t *conn);
/* One statement on it. As dli_mysql_conn_ask, and counts the round trip. */
dl_status_t dli_mysql_link_ask(dli_mysql_link_t *link, dli_mysql_conn_t *conn, const char *sql, size_t len,
                               uint64_t deadline_ns, const dl_stop_t *stop, uint64_t *sent_ns,
                               dli_mysql_answer_t *answer, dl_error_t *err);

/* ROLLBACK on it; a stop makes it hurry. DL_OK: done. DL_EIO: it had ended before. Otherwise nobody knows. */
dl_status_t dli_mysql_link_roll_back(dli_mysql_link_t *link, dli_mysql_conn_t *conn, uint64_t deadline_ns,
                                     const dl_stop_t *stop, dl_error_t *err);
/* Ends the statement that the connection is running, if any (KILL QUERY), on the control lane. DL_OK: the
 * server has done so. DL_ENOTSUP: behind this proxy nobody can. DL_EIO: nothing was sent, as the server is
 * not known to be the one that it was made to, in the same run; or nothing can be sent. DL_EUNKNOWN: it may
 * still come. */
dl_status_t dli_mysql_link_kill_query(dli_mysql_link_t *link, const dli_mysql_conn_t *conn,
                                      uint64_t deadline_ns, dl_error_t *err);
/* For the statement on its way that is wanted no more: its answer is waited for until hear_until_ns (0: not
 * at all, as it surely waits for something), and then it is ended on the server until end_until_ns (0: not),
 * where it may wait for a row that somebody keeps locked. true: the answer is there. *is_in_doubt: a KILL
 * QUERY may be still to come, which would end the connection's next statement. */
bool dli_mysql_link_call_off(dli_mysql_link_t *link, dli_mysql_conn_t *conn, uint64_t hear_until_ns,
                             uint64_t end_until_ns, dli_mysql_answer_t *answer, bool *is_in_doubt);
/* Kills the connection that had this number at began_ns, by one of the control lane that is the caller's
 * until then. As above; *is_same false: DL_EIO, since that may have been in an earlier run. DL_EAUTH: it is
 * another account's. */
dl_status_t dli_mysql_link_kill_there(dli_mysql_link_t *link, dli_mysql_conn_t *conn, uint64_t id,
                                      int64_t began_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                                      bool *is_same, dl_error_t *err);
/* Kills every condemned connection that this server has; best effort, in time. */
void dli_mysql_link_settle(dli_mysql_link_t *link, uint64_t deadline_ns, const dl_stop_t *stop);

#endif
