/* claim.h - mysql-pessimistic: one attempt to lock a name's row, and what it has to say to the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_CLAIM_H
#define DLI_MYSQL_CLAIM_H

#include "session.h"

typedef struct dli_mysql_claim {
    dli_mysql_sessions_t *state;
    dli_mysql_t *mysql;
    dli_mysql_session_t *session;
    const dl_request_t *request;
    dl_grant_t *grant;
    dl_error_t *err;        /* may be filled although a later step succeeds */
    dli_mysql_conn_t *conn; /* of this attempt; NULL: given back or dropped */
    uint64_t began_ns;
    bool has_spoken; /* the server has answered on it */
    bool was_stale;  /* it had died while idle */
    bool is_at_risk; /* it has been asked for the row, so it may hold it */
    bool is_locked;  /* it has said that it holds it */
} dli_mysql_claim_t;

/* Borrows one, and sets the request's idle timeouts. DL_EBUSY: all are in use, and the time for waiting is
 * over for now. Unless DL_OK there is none. */
dl_status_t dli_mysql_claim_connect(dli_mysql_claim_t *c);
/* One statement. DL_OK: the server answered, perhaps with an error. Otherwise the connection is done with,
 * and this is the outcome of the attempt. */
dl_status_t dli_mysql_claim_say(dli_mysql_claim_t *c, const dli_mysql_sql_t *sql, uint64_t *sent_ns,
                                dli_mysql_answer_t *answer);
/* Ends the transaction. Returns the status; or, without a connection from then on, DL_EUNKNOWN where
 * something may still be held. */
dl_status_t dli_mysql_claim_roll_back(dli_mysql_claim_t *c, dl_status_t status);
/* Gives the connection back with nothing held. Returns the status, or DL_EUNKNOWN where something may still
 * be held. */
dl_status_t dli_mysql_claim_leave(dli_mysql_claim_t *c, dl_status_t status);
/* The same where it is known that the row is not ours. */
dl_status_t dli_mysql_claim_leave_unlocked(dli_mysql_claim_t *c, dl_status_t status);

#endif
