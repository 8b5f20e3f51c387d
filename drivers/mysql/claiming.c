/* claiming.c - mysql-pessimistic: one attempt to lock a name's row, and what has to happen when it ends early. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "session.h"

/* After a stop: ending the wait on the server and leaving in step. A cancelled call has 100 ms in all. */
#define CALLING_OFF_NS (70u * (uint64_t)DLI_NS_PER_MS)
/* How long a try that must not wait does so while the lock passes from one to another: a killed session frees
 * its row in about 1 ms, and who has just locked it shows itself two round trips later. */
#define HAND_OVER_MS 50u
/* What an exhausted wait leaves of the deadline for its ROLLBACK. */
#define LEAVING_MS 20u
/* How long an attempt may be kept by sessions that were given up before it. */
#define SETTLING_MS ((uint64_t)100)
#define STALE_CONNECTIONS_MAX 3
#define DEADLOCKS_MAX 3
#define MISSING_MAX 3

typedef struct claim {
    dli_mysql_sessions_t *state;
    dli_mysql_t *mysql;
    dli_mysql_session_t *session;
    const dl_request_t *request;
    dl_grant_t *grant;
    dl_error_t *err;
    dli_mysql_conn_t *conn; /* of this attempt; NULL: given back or dropped */
    uint64_t began_ns;
    bool is_again;   /* the hold had this connection already */
    bool has_spoken; /* the server has answered on it */
    bool was_stale;  /* it had died while idle */
    bool is_at_risk; /* it has been asked for the row, so it may hold it */
} claim_t;

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- leaving ------------------------------------------------------------------------------------------ */

static void drop(claim_t *c) {
    dli_mysql_link_drop(c->mysql->link, c->conn, c->is_at_risk);
    c->conn = NULL;
}

/* false: nobody knows whether it is done. A stop makes it hurry. */
static bool roll_back(claim_t *c) {
    dli_mysql_link_t *link = c->mysql->link;
    dli_mysql_answer_t answer = {.rows = NULL};
    dl_error_t err;
    dl_status_t status = dli_mysql_link_ask(link, c->conn, "ROLLBACK", 8, c->request->deadline_ns,
                                            &c->request->stop, NULL, &answer, &err);
    if (status == DL_ECANCELED) {
        uint64_t until_ns = c->mysql->env->now_ns() + CALLING_OFF_NS;
        dli_mysql_bounds_t bounds = {.env = c->mysql->env,
                                     .guard = dli_mysql_link_guard(link),
                                     .deadline_ns = earlier(until_ns, c->request->deadline_ns)};
        status = dli_mysql_conn_resume(c->conn, &bounds, &answer, &err);
    }
    bool done = status == DL_OK && answer.error == 0;
    dli_mysql_answer_free(&answer);
    return done;
}

/* Gives the connection back with nothing held. The status, or DL_EUNKNOWN where something may still be. */
static dl_status_t leave(claim_t *c, dl_status_t status) {
    if (roll_back(c)) {
        dli_mysql_link_give_back(c->mysql->link, c->conn);
        c->conn = NULL;
        return status;
    }
    bool may_hold = c->is_at_risk;
    drop(c);
    return may_hold ? dl_driver_fail(c->err, DL_EUNKNOWN, 0, "no answer to ROLLBACK: the row may be locked")
                    : status;
}

/* The same where it is known that the row is not ours. */
static dl_status_t leave_unlocked(claim_t *c, dl_status_t status) {
    c->is_at_risk = false;
    return leave(c, status);
}

/* A statement is on its way and the caller wants to go. */
static dl_status_t call_off(claim_t *c) {
    const dl_driver_env_t *env = c->mysql->env;
    dli_mysql_bounds_t bounds = {
        .env = env,
        .guard = dli_mysql_link_guard(c->mysql->link),
        .deadline_ns = earlier(env->now_ns() + CALLING_OFF_NS, c->request->deadline_ns),
    };
    dli_mysql_answer_t answer = {.rows = NULL};
    dl_error_t err;
    bool in_step = dli_mysql_link_kill_query(c->mysql->link, c->conn, bounds.deadline_ns, &err) == DL_OK &&
                   dli_mysql_conn_resume(c->conn, &bounds, &answer, &err) == DL_OK;
    dli_mysql_answer_free(&answer);
    if (in_step) {
        in_step = dli_mysql_link_ask(c->mysql->link, c->conn, "ROLLBACK", 8, bounds.deadline_ns, NULL, NULL,
                                     &answer, &err) == DL_OK &&
                  answer.error == 0;
        dli_mysql_answer_free(&answer);
    }
    if (in_step) {
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

/* DL_OK: the server answered, perhaps with an error. Otherwise the connection is done with, and this is the
 * outcome of the attempt. */
static dl_status_t say(claim_t *c, const dli_mysql_sql_t *sql, uint64_t *sent_ns,
                       dli_mysql_answer_t *answer) {
    *answer = (dli_mysql_answer_t){.rows = NULL};
    if (sql->is_cut) {
        return leave(c, dl_driver_fail(c->err, DL_ELIMIT, 0, "the statement is too long"));
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
        c->is_at_risk = false; /* a session that has ended holds nothing */
        c->was_stale = !c->has_spoken;
    }
    bool may_hold = c->is_at_risk;
    drop(c);
    if (status == DL_ETIMEDOUT || status == DL_EUNKNOWN || (status == DL_EPROTO && may_hold)) {
        c->err->status = status = may_hold ? DL_EUNKNOWN : DL_EIO;
    }
    return status;
}

/* ---- a connection -------------------------------------------------------------------------------------- */

static dl_status_t borrow(claim_t *c) {
    const dl_request_t *r = c->request;
    const dl_driver_env_t *env = c->mysql->env;
    uint64_t until_ns = r->deadline_ns;
    if (r->wait_ms > 0) {
        until_ns = earlier(until_ns, c->began_ns + (uint64_t)r->wait_ms * DLI_NS_PER_MS);
    }
    if (c->session->short_since_ns == 0) {
        c->session->short_since_ns = env->now_ns();
    }
    dl_status_t status = dli_mysql_link_borrow(c->mysql->link, DLI_MYSQL_CALLS, c->session->short_since_ns,
                                               until_ns, &r->stop, &c->conn, c->err);
    if (status == DL_OK) {
        c->session->short_since_ns = 0;
    } else if (status == DL_ETIMEDOUT && r->wait_ms > 0 && env->now_ns() >= until_ns) {
        /* The core comes again, and borrow_timeout goes on counting. */
        status = dl_driver_fail(c->err, DL_EBUSY, 0, "every connection is in use");
    }
    return status;
}

/* Must stand before the row is locked. */
static dl_status_t set_patience(claim_t *c) {
    int64_t seconds = dli_mysql_patience_for(c->request->lease_ms);
    int64_t now_s = dli_mysql_conn_patience_s(c->conn);
    if (now_s == seconds || (c->is_again && now_s > seconds)) {
        return DL_OK;
    }
    char room[512];
    dli_mysql_sql_t sql = dli_mysql_sql_in(room, sizeof room);
    dli_mysql_answer_t answer;
    dli_mysql_patience_sql(&sql, seconds);
    dl_status_t status = say(c, &sql, NULL, &answer);
    if (status != DL_OK) {
        return status;
    }
    if (answer.error != 0) {
        return leave(c, dli_mysql_refused(answer.error, answer.message, "setting idle timeouts", c->err));
    }
    dli_mysql_answer_free(&answer);
    dli_mysql_conn_note_patience(c->conn, seconds);
    return DL_OK;
}

static dl_status_t get_connection(claim_t *c) {
    c->conn = dli_mysql_session_take(c->state, c->session);
    if (c->conn != NULL) {
        c->is_again = c->is_at_risk = true;
        bool is_usable = c->session->name_len == c->request->name_len &&
                         memcmp(c->session->name, c->request->name, c->request->name_len) == 0 &&
                         !dli_mysql_conn_is_asking(c->conn) && !dli_mysql_conn_is_broken(c->conn);
        if (!is_usable) {
            drop(c);
            c->is_again = c->is_at_risk = false;
        }
    }
    dl_status_t status = c->conn == NULL ? borrow(c) : DL_OK;
    return status == DL_OK ? set_patience(c) : status;
}

/* ---- the row ------------------------------------------------------------------------------------------- */

/* Was the wait over before the row was free? */
static bool is_wait_over(unsigned error) {
    return error == DLI_MYSQL_LOCK_WAIT_TIMEOUT || error == DLI_MYSQL_LOCK_NOWAIT ||
           error == DLI_MYSQL_STATEMENT_TIME || error == DLI_MYSQL_QUERY_TIMEOUT ||
           error == DLI_MYSQL_INTERRUPTED || error == DLI_MYSQL_DEADLOCK;
}

/* What the locked row says. An owner that somebody has committed is no hold, and nothing of ours; it would be
 * shown as a holder for ever. */
static dl_status_t judge_row(claim_t *c, dli_mysql_answer_t *answer, bool *is_missing) {
    MYSQL_ROW row = dli_mysql_answer_row(answer, NULL);
    *is_missing = row == NULL;
    bool is_foreign = row != NULL && row[0] != NULL && !c->is_again;
    dli_mysql_answer_free(answer);
    if (is_foreign) {
        return leave(c, dl_driver_fail(c->err, DL_EFOREIGN, 0,
                                       "its row in table '%s' has a committed owner, which no lock of this "
                                       "kind has; set the owner to NULL",
                                       c->mysql->table));
    }
    return DL_OK;
}

/* DL_OK: the row is locked, or there is none. DL_EBUSY: another has it, and the connection is still here. */
static dl_status_t lock_row(claim_t *c, uint64_t limit_ms, bool *is_missing) {
    const dl_request_t *r = c->request;
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dli_mysql_row_lock_sql(&sql, c->mysql, r->name, r->name_len, limit_ms);
    for (int deadlocks = 0;; deadlocks++) {
        c->is_at_risk = true;
        dl_status_t status = say(c, &sql, NULL, &answer);
        if (status != DL_OK) {
            return status;
        }
        if (answer.error == 0) {
            return judge_row(c, &answer, is_missing);
        }
        if (answer.error != DLI_MYSQL_DEADLOCK || deadlocks == DEADLOCKS_MAX ||
            c->mysql->env->now_ns() >= r->deadline_ns) {
            break;
        }
        dli_mysql_answer_free(&answer);
    }
    dl_status_t status = DL_EBUSY;
    if (is_wait_over(answer.error)) {
        (void)dl_driver_fail(c->err, DL_EBUSY, (int)answer.error, "held by another owner");
    } else {
        status = dli_mysql_refused(answer.error, answer.message, "locking a row", c->err);
        status = leave_unlocked(c, status);
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* The same, with a row made for a new name. */
static dl_status_t get_row(claim_t *c, uint64_t limit_ms) {
    for (int i = 0; i < MISSING_MAX; i++) {
        bool is_missing = false;
        dl_status_t status = lock_row(c, limit_ms, &is_missing);
        if (status != DL_OK || !is_missing) {
            return status;
        }
        status = dli_mysql_name_provide(c->mysql, c->request, c->err);
        if (status != DL_OK) {
            return leave_unlocked(c, status);
        }
    }
    return leave_unlocked(
        c,
        dl_driver_fail(c->err, DL_EIO, 0, "its row in table '%s' vanishes again and again", c->mysql->table));
}

/* Without waiting it was busy: until when? And is the lock just passing from one to another? */
static dl_status_t look_at_holder(claim_t *c) {
    const dl_request_t *r = c->request;
    dli_mysql_marker_t marker;
    dl_error_t err;
    dl_status_t status = dli_mysql_marker_look(c->mysql, r->name, r->name_len, DLI_MYSQL_READ, r->deadline_ns,
                                               &r->stop, &marker, &err);
    if (status == DL_OK && marker.info.held) {
        c->grant->busy_ms = marker.info.remaining_ms;
    } else if (status == DL_OK) {
        return get_row(c, HAND_OVER_MS);
    }
    return DL_EBUSY; /* as was seen, whatever became of the look */
}

/* How long the server may let this attempt wait for the row. 0: not at all. */
static uint64_t limit_ms(const claim_t *c, bool has_superseded) {
    uint64_t now = c->mysql->env->now_ns();
    uint64_t end_ns = c->began_ns + (uint64_t)c->request->wait_ms * DLI_NS_PER_MS;
    uint64_t limit = end_ns > now ? (end_ns - now + DLI_NS_PER_MS - 1) / DLI_NS_PER_MS : 0;
    if (has_superseded && limit < HAND_OVER_MS) {
        limit = HAND_OVER_MS;
    }
    uint64_t left_ms = c->request->deadline_ns > now ? (c->request->deadline_ns - now) / DLI_NS_PER_MS : 0;
    return earlier(limit, left_ms > LEAVING_MS ? left_ms - LEAVING_MS : 0);
}

/* ---- the token and the marker -------------------------------------------------------------------------- */

static dl_status_t mark(claim_t *c, uint64_t *sent_ns) {
    const dl_request_t *r = c->request;
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dli_mysql_sql_add(&sql,
                      "UPDATE $t SET owner=$s,hold_id=$u,client=$s,connection_id=CONNECTION_ID(),"
                      "acquired_at=UTC_TIMESTAMP(6),lease_ms=$i WHERE name=$x",
                      c->mysql->table, r->owner, r->hold_id, c->mysql->env->client_label, r->lease_ms,
                      r->name, r->name_len);
    dl_status_t status = say(c, &sql, sent_ns, &answer);
    if (status != DL_OK) {
        return status;
    }
    if (answer.error != 0) {
        status = dli_mysql_refused(answer.error, answer.message, "marking a locked row", c->err);
    } else if (answer.affected != 1) {
        status = dl_driver_fail(c->err, DL_EIO, 0, "the locked row is not there any more");
    }
    dli_mysql_answer_free(&answer);
    return status == DL_OK ? DL_OK : leave(c, status);
}

static dl_status_t confirm(claim_t *c) {
    uint64_t token = 0, sent_ns = 0;
    dl_status_t status = dli_mysql_token_draw(c->mysql, c->request, &token, c->err);
    if (status != DL_OK) {
        return leave(c, status);
    }
    status = mark(c, &sent_ns);
    if (status != DL_OK) {
        return status;
    }
    dli_mysql_session_keep(c->state, c->session, c->conn, c->request,
                           sent_ns + (uint64_t)c->request->lease_ms * DLI_NS_PER_MS);
    c->grant->token = token;
    c->grant->sent_ns = sent_ns;
    c->grant->session_fd = dli_mysql_conn_fd(c->conn);
    return DL_OK;
}

/* ---- the op -------------------------------------------------------------------------------------------- */

static dl_status_t attempt(claim_t *c, bool has_superseded) {
    dl_status_t status = get_connection(c);
    if (status != DL_OK) {
        return status;
    }
    uint64_t limit = limit_ms(c, has_superseded);
    status = get_row(c, limit);
    if (status == DL_EBUSY && limit == 0) {
        status = look_at_holder(c);
    }
    if (status == DL_EBUSY) {
        return leave_unlocked(c, status);
    }
    return status == DL_OK ? confirm(c) : status;
}

dl_status_t dli_mysql_session_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                      dl_error_t *err) {
    dli_mysql_sessions_t *sessions = state;
    claim_t c = {
        .state = sessions,
        .mysql = &sessions->mysql,
        .session = hold,
        .request = request,
        .grant = grant,
        .err = err,
        .began_ns = sessions->mysql.env->now_ns(),
    };
    grant->session_fd = -1;
    grant->busy_ms = 0;
    grant->busy_is_dlock = 1;
    dli_mysql_session_begin(sessions, c.session);
    bool has_superseded = dli_mysql_session_supersede(sessions, c.session, request);
    /* A session that was given up has mostly ended by itself; this must not take the time of a try. */
    dli_mysql_link_settle(c.mysql->link,
                          earlier(c.began_ns + SETTLING_MS * DLI_NS_PER_MS, request->deadline_ns),
                          &request->stop);
    dl_status_t status;
    int stale = 0;
    do {
        c.is_again = c.is_at_risk = c.was_stale = false;
        status = attempt(&c, has_superseded);
    } while (c.was_stale && ++stale < STALE_CONNECTIONS_MAX);
    dli_mysql_session_end(sessions, c.session);
    return status;
}
