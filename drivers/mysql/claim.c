/* claim.c - mysql-pessimistic: the conversation of a claim, with an early end at every point. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "claim.h"

/* ---- leaving ------------------------------------------------------------------------------------------ */

static void drop(dli_mysql_claim_t *c) {
    dli_mysql_link_drop(c->mysql->link, c->conn, c->is_at_risk);
    c->conn = NULL;
}

dl_status_t dli_mysql_claim_roll_back(dli_mysql_claim_t *c, dl_status_t status) {
    dl_error_t err;
    if (dli_mysql_link_roll_back(c->mysql->link, c->conn, c->request->deadline_ns, &c->request->stop, &err) ==
        DL_OK) {
        return status;
    }
    bool may_hold = c->is_at_risk;
    drop(c);
    return may_hold ? dl_driver_fail(c->err, DL_EUNKNOWN, 0, "no answer to ROLLBACK: the row may be locked")
                    : status;
}

dl_status_t dli_mysql_claim_leave(dli_mysql_claim_t *c, dl_status_t status) {
    status = dli_mysql_claim_roll_back(c, status);
    if (c->conn != NULL) {
        dli_mysql_link_give_back(c->mysql->link, c->conn);
        c->conn = NULL;
    }
    return status;
}

dl_status_t dli_mysql_claim_leave_unlocked(dli_mysql_claim_t *c, dl_status_t status) {
    c->is_at_risk = c->is_locked = false;
    return dli_mysql_claim_leave(c, status);
}

/* A statement is on its way and the caller wants to go. */
static dl_status_t call_off(dli_mysql_claim_t *c) {
    const uint64_t now = c->mysql->env->now_ns();
    const uint64_t until_ns = dli_mysql_earlier(now + DLI_MYSQL_CALLING_OFF_NS, c->request->deadline_ns);
    const uint64_t hear_ns = dli_mysql_earlier(now + DLI_MYSQL_LAST_WORD_NS, until_ns);
    bool is_waiting = c->is_at_risk && !c->is_locked, is_in_doubt;
    dli_mysql_answer_t answer = {.rows = NULL};
    dl_error_t err;
    bool in_step = dli_mysql_link_call_off(c->mysql->link, c->conn, is_waiting ? 0 : hear_ns, until_ns,
                                           &answer, &is_in_doubt);
    dli_mysql_answer_free(&answer);
    if (in_step && !is_in_doubt &&
        dli_mysql_link_roll_back(c->mysql->link, c->conn, until_ns, NULL, &err) == DL_OK) {
        dli_mysql_link_give_back(c->mysql->link, c->conn);
        c->conn = NULL;
        return dl_driver_fail(c->err, DL_ECANCELED, 0, "stopped while waiting for the row lock");
    }
    bool may_hold = c->is_at_risk;
    drop(c);
    return dl_driver_fail(c->err, may_hold ? DL_EUNKNOWN : DL_ECANCELED, 0,
                          "stopped; the connection was given up");
}

/* ---- asking -------------------------------------------------------------------------------------------- */

dl_status_t dli_mysql_claim_say(dli_mysql_claim_t *c, const dli_mysql_sql_t *sql, uint64_t *sent_ns,
                                dli_mysql_answer_t *answer) {
    *answer = (dli_mysql_answer_t){.rows = NULL};
    if (sql->is_cut) {
        return dli_mysql_claim_leave(c, dl_driver_fail(c->err, DL_ELIMIT, 0, "the statement is too long"));
    }
    dl_status_t status =
        dli_mysql_link_ask(c->mysql->link, c->conn, sql->at, sql->len, c->request->deadline_ns,
                           &c->request->stop, sent_ns, answer, c->err);
    if (status == DL_OK) {
        c->has_spoken = true;
        return DL_OK;
    }
    if (status == DL_ECANCELED) {
        return call_off(c);
    }
    if (status == DL_EIO) {
        /* This was not sent. What was locked before is the session's until the server, too, sees its end. */
        c->is_at_risk = c->is_locked;
        c->was_stale = !c->has_spoken && !c->is_locked;
    }
    bool may_hold = c->is_at_risk;
    drop(c);
    if (status == DL_ETIMEDOUT || status == DL_EUNKNOWN || may_hold) {
        c->err->status = status = may_hold ? DL_EUNKNOWN : DL_EIO;
    }
    return status;
}

/* ---- a connection -------------------------------------------------------------------------------------- */

/* Where the call may wait and all are in use, the core comes again, and borrow_timeout goes on counting. */
static dl_status_t borrow(dli_mysql_claim_t *c) {
    const dl_request_t *r = c->request;
    uint64_t slice_ends_ns =
        r->wait_ms > 0 ? dli_mysql_earlier(c->began_ns + (uint64_t)r->wait_ms * DLI_NS_PER_MS, r->deadline_ns)
                       : DL_NO_DEADLINE;
    if (c->session->short_since_ns == 0) {
        c->session->short_since_ns = c->mysql->env->now_ns();
    }
    dl_status_t status = dli_mysql_link_borrow(c->mysql->link, DLI_MYSQL_CALLS, c->session->short_since_ns,
                                               slice_ends_ns, r->deadline_ns, &r->stop, &c->conn, c->err);
    if (status != DL_EBUSY) {
        c->session->short_since_ns = 0;
    }
    return status;
}

/* Must stand before the row is locked. */
static dl_status_t set_patience(dli_mysql_claim_t *c) {
    int64_t seconds = dli_mysql_patience_for(c->request->lease_ms);
    if (seconds == dli_mysql_conn_patience_s(c->conn)) {
        return DL_OK;
    }
    char room[512];
    dli_mysql_sql_t sql = dli_mysql_sql_in(room, sizeof room);
    dli_mysql_answer_t answer;
    dli_mysql_patience_sql(&sql, seconds);
    /* Unless it is answered, nobody knows which of the two it has. */
    dli_mysql_conn_note_patience(c->conn, 0);
    dl_status_t status = dli_mysql_claim_say(c, &sql, NULL, &answer);
    if (status != DL_OK) {
        return status;
    }
    if (answer.error != 0) {
        return dli_mysql_claim_leave(
            c, dli_mysql_refused(answer.error, answer.message, "setting idle timeouts", c->err));
    }
    dli_mysql_answer_free(&answer);
    dli_mysql_conn_note_patience(c->conn, seconds);
    return DL_OK;
}

dl_status_t dli_mysql_claim_connect(dli_mysql_claim_t *c) {
    dl_status_t status = borrow(c);
    return status == DL_OK ? set_patience(c) : status;
}
