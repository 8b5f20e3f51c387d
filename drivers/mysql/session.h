/* session.h - mysql-pessimistic: a hold is a connection whose open transaction has locked the name's row. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_SESSION_H
#define DLI_MYSQL_SESSION_H

#include "lock.h"

/*
 * Order of an acquisition, each step on the server before the next is sent; what is left of older holds of
 * the owner, and of claims that were given up, ends before:
 *   1. idle timeouts of the session, so that a silent holder's lock ends with its lease
 *   2. the row lock
 *   3. the token, committed on another connection; the row lock orders the draws
 *   4. the marker, in the transaction that holds the row. It shows who holds the lock, it proves that the
 *      lock was not lost while the token was drawn, and validity counts from its sending.
 * Nothing of 2 and 4 is ever committed: freeing is ROLLBACK.
 */

/* What a renewal is doing with a hold. */
typedef enum dli_mysql_step {
    DLI_MYSQL_STEP_NONE,
    DLI_MYSQL_STEP_LOOK,     /* wants to be looked for from outside; nothing is on its way */
    DLI_MYSQL_STEP_EARLIER,  /* the answer to a statement of an earlier batch comes first */
    DLI_MYSQL_STEP_PATIENCE, /* other idle timeouts */
    DLI_MYSQL_STEP_PING,
    DLI_MYSQL_STEP_SHOW, /* the lease goes into the marker */
    DLI_MYSQL_STEP_END   /* the lease is over: ROLLBACK */
} dli_mysql_step_t;

/* A hold's memory. Zeroed: no connection. */
typedef struct dli_mysql_session {
    dli_mysql_conn_t *conn; /* holds the row; NULL: none. Guarded by the state's mutex while not in an op. */
    bool in_op;             /* guarded by the mutex: an op of this hold uses conn */
    struct dli_mysql_session *next, **link; /* in the list of those with a connection; guarded by the mutex */
    /* The core watches a descriptor until the hold is released or dropped, and the connection may have
     * passed to another hold before, or be closed, and its number another's. So this is one of the hold's
     * own for the same socket; has_watch: there is one. */
    bool has_watch;
    int watch_fd;
    struct dli_mysql_session *next_watched, **watched_link; /* with has_watch; guarded by the mutex */
    uint64_t short_since_ns; /* since when its call waits for one of a full pool; 0: it does not */
    uint64_t hold_id;        /* whose conn is, and in the marker */
    uint64_t ends_ns;        /* when the lease is over */
    int64_t shown_ms;        /* the lease in the marker */
    int64_t asked_s; /* the idle timeouts that conn was asked for, without an answer so far; 0: none */
    dli_mysql_step_t step;
    size_t name_len;
    char name[DL_NAME_MAX + 1], owner[DL_OWNER_MAX + 1];
} dli_mysql_session_t;

/* The state of a client. */
typedef struct dli_mysql_sessions {
    dli_mysql_t mysql; /* first, as the ops that all drivers share know only this */
    bool has_mutex;
    pthread_mutex_t mutex;
    dli_mysql_session_t *first;   /* those with a connection */
    dli_mysql_session_t *watched; /* those with a descriptor to watch: a forked child closes them */
} dli_mysql_sessions_t;

/* ---- session.c: which hold has which connection -------------------------------------------------------- */

void dli_mysql_session_begin(dli_mysql_sessions_t *state, dli_mysql_session_t *session);
void dli_mysql_session_end(dli_mysql_sessions_t *state, dli_mysql_session_t *session);
/* Inside an op: the connection holds the lock for this request from now on. */
void dli_mysql_session_keep(dli_mysql_sessions_t *state, dli_mysql_session_t *session, dli_mysql_conn_t *conn,
                            const dl_request_t *request, uint64_t ends_ns);
/* The hold's descriptor to watch: made anew for its connection; -1: none is to be had, and heartbeats alone
 * notice its end. */
int dli_mysql_session_watch(dli_mysql_sessions_t *state, dli_mysql_session_t *session);
void dli_mysql_session_unwatch(dli_mysql_sessions_t *state, dli_mysql_session_t *session);
/* In a forked child: the server would see the holder's socket open for as long as this process lives. */
void dli_mysql_sessions_close_forked(dli_mysql_sessions_t *state);
/* Inside an op: the connection is the caller's, and no longer the hold's. NULL: there is none. */
dli_mysql_conn_t *dli_mysql_session_take(dli_mysql_sessions_t *state, dli_mysql_session_t *session);
/* Ends what is left of older holds of the request's owner and name; true: there was one. */
bool dli_mysql_session_supersede(dli_mysql_sessions_t *state, const dli_mysql_session_t *session,
                                 const dl_request_t *request);
/* The driver's op. */
void dli_mysql_session_drop(void *state, void *hold);

/* Whole seconds that a session may be idle for, so that a lock with this lease does not end early. */
int64_t dli_mysql_patience_for(int64_t lease_ms);
void dli_mysql_patience_sql(dli_mysql_sql_t *sql, int64_t seconds);

/* ---- the ops, one file each ---------------------------------------------------------------------------- */

/* claiming.c; claim.c: what it says to the server */
dl_status_t dli_mysql_session_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                      dl_error_t *err);
/* pings.c */
void dli_mysql_session_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns);
/* freeing.c */
dl_status_t dli_mysql_session_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err);
/* Kills whatever connection the name's marker names. A connection may pass from the hold that was seen to
 * another one of the same client between the look and the KILL; then that other hold ends as LOST too. */
dl_status_t dli_mysql_session_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                    dl_error_t *err);
/* markers.c: for inspect and list */
extern const dli_mysql_view_t dli_mysql_markers_view;

/* ---- between them -------------------------------------------------------------------------------------- */

/* markers.c: the marker in a row, seen from outside the holder's transaction. */
typedef struct dli_mysql_marker {
    uint64_t connection_id;
    /* Or later, by the clock of this machine, which may have started since; INT64_MIN: the server's clock has
     * gone back. */
    int64_t written_ns;
    dl_lock_info_t info; /* held: somebody does. remaining_ms: as if it was never renewed */
} dli_mysql_marker_t;
/* Of the request counts the name, until when and what stops it. intent: DLI_MYSQL_READ, or DLI_MYSQL_FREE to
 * kill condemned connections before looking. kept (may be NULL): after DL_OK the connection that saw it,
 * which is the caller's as if it had borrowed it. */
dl_status_t dli_mysql_marker_look(dli_mysql_t *mysql, const dl_request_t *request, dli_mysql_intent_t intent,
                                  dli_mysql_conn_t **kept, dli_mysql_marker_t *marker, dl_error_t *err);
/* The statement that locks the row; limit_ms 0: it does not wait. */
void dli_mysql_row_lock_sql(dli_mysql_sql_t *sql, const dli_mysql_t *mysql, const char *name, size_t name_len,
                            uint64_t limit_ms);
/* Its answer has an owner: one that is committed. */
dl_status_t dli_mysql_row_foreign(const dli_mysql_t *mysql, dl_error_t *err);

/* tokens.c: on another connection, while the row is locked. Fills token and tokens of the grant. Statuses of
 * dli_mysql_run; DL_EIO also where the outcome is unknown, as a token that nobody got is no harm. */
dl_status_t dli_mysql_token_draw(dli_mysql_t *mysql, const dl_request_t *request, dl_grant_t *grant,
                                 dl_error_t *err);
/* Makes the row of a name that has none. */
dl_status_t dli_mysql_name_provide(dli_mysql_t *mysql, const dl_request_t *request, dl_error_t *err);

#endif
