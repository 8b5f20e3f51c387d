/* claiming.c - mysql-pessimistic: taking a lock: the row, the token, the marker. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "claim.h"

/* How long a try that must not wait does so while the lock passes from one to another: a killed session frees
 * its row in about 1 ms, and who has just locked it shows itself two round trips later. A purge shows
 * nothing: so it looks again a few times, for longer than a purge keeps a row (100 ms). */
#define HAND_OVER_MS 50u
#define HAND_OVERS_MAX 4
/* What an exhausted wait leaves of the deadline for its ROLLBACK. */
#define LEAVING_MS 20u
/* A shorter limit may end the statement although it waits for nobody. */
#define SHORTEST_MS 5u
/* How long an attempt may be kept by sessions that were given up before it. */
#define SETTLING_MS ((uint64_t)100)
#define STALE_CONNECTIONS_MAX 3
#define DEADLOCKS_MAX 3
#define MISSING_MAX 3

/* ---- the row ------------------------------------------------------------------------------------------- */

/* May the row be ours all the same? Such an end may cross the grant, and then the transaction keeps the row.
 */
static bool may_cross_grant(unsigned error) {
    return error == DLI_MYSQL_STATEMENT_TIME || error == DLI_MYSQL_QUERY_TIMEOUT ||
           error == DLI_MYSQL_INTERRUPTED;
}

/* What the locked row says. An owner that somebody has committed is no hold, and nothing of ours; it would be
 * shown as a holder for ever. */
static dl_status_t judge_row(dli_mysql_claim_t *c, dli_mysql_answer_t *answer, bool *is_missing) {
    MYSQL_ROW row = dli_mysql_answer_row(answer, NULL);
    *is_missing = row == NULL;
    c->is_locked = row != NULL;
    bool is_foreign = row != NULL && row[0] != NULL;
    dli_mysql_answer_free(answer);
    if (is_foreign) {
        return dli_mysql_claim_leave(c, dli_mysql_row_foreign(c->mysql, c->err));
    }
    return DL_OK;
}

/* DL_OK: the row is locked, or there is none. DL_EBUSY: another has it, and the connection is still here. */
static dl_status_t lock_row(dli_mysql_claim_t *c, uint64_t limit_ms, bool *is_missing) {
    const dl_request_t *r = c->request;
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dli_mysql_row_lock_sql(&sql, c->mysql, r->name, r->name_len, limit_ms);
    c->grant->busy_is_dlock = 0;
    for (int deadlocks = 0;; deadlocks++) {
        c->is_at_risk = true;
        dl_status_t status = dli_mysql_claim_say(c, &sql, NULL, &answer);
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
    if (dli_mysql_is_wait_over(answer.error)) {
        c->is_at_risk = may_cross_grant(answer.error);
        c->grant->busy_is_dlock = 1;
        (void)dl_driver_fail(c->err, DL_EBUSY, (int)answer.error, "held by another owner");
    } else {
        status = dli_mysql_refused(answer.error, answer.message, "locking a row", c->err);
        status = dli_mysql_claim_leave_unlocked(c, status);
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* The same, with a row made for a new name. */
static dl_status_t get_row(dli_mysql_claim_t *c, uint64_t limit_ms) {
    for (int i = 0; i < MISSING_MAX; i++) {
        bool is_missing = false;
        dl_status_t status = lock_row(c, limit_ms, &is_missing);
        if (status != DL_OK || !is_missing) {
            return status;
        }
        /* A row that was deleted while we waited for it may stay locked by us until the transaction ends:
         * nobody could make it anew, and that includes us, on another connection. */
        status = dli_mysql_claim_roll_back(c, DL_OK);
        if (status != DL_OK) {
            return status;
        }
        status = dli_mysql_name_provide(c->mysql, c->request, c->err);
        if (status != DL_OK) {
            return dli_mysql_claim_leave_unlocked(c, status);
        }
    }
    return dli_mysql_claim_leave_unlocked(c, dl_driver_fail(c->err, DL_EIO, 0,
                                                            "its row in table '%s' vanishes again and again",
                                                            c->mysql->table_shown));
}

/* A wait for so long, if the deadline leaves time for what has to follow. */
static uint64_t capped_ms(const dli_mysql_claim_t *c, uint64_t wait_ms) {
    uint64_t now = c->mysql->env->now_ns();
    uint64_t left_ms = c->request->deadline_ns > now ? (c->request->deadline_ns - now) / DLI_NS_PER_MS : 0;
    return dli_mysql_earlier(wait_ms, left_ms > LEAVING_MS ? left_ms - LEAVING_MS : 0);
}

/* How long the server may let this attempt wait for the row. 0: not at all. */
static uint64_t limit_ms(const dli_mysql_claim_t *c, bool has_superseded) {
    uint64_t now = c->mysql->env->now_ns();
    uint64_t end_ns = c->began_ns + (uint64_t)c->request->wait_ms * DLI_NS_PER_MS;
    uint64_t limit = end_ns > now ? (end_ns - now + DLI_NS_PER_MS - 1) / DLI_NS_PER_MS : 0;
    limit = limit >= SHORTEST_MS ? limit : 0;
    return capped_ms(c, has_superseded && limit < HAND_OVER_MS ? HAND_OVER_MS : limit);
}

/* false: somebody holds it, or there is no telling, and it is busy as was seen. */
static bool is_unheld(dli_mysql_claim_t *c) {
    dl_request_t look = *c->request;
    dli_mysql_marker_t marker;
    dl_error_t err;
    look.deadline_ns -= LEAVING_MS * (uint64_t)DLI_NS_PER_MS;
    if (capped_ms(c, 1) == 0 ||
        dli_mysql_marker_look(c->mysql, &look, DLI_MYSQL_READ, NULL, &marker, &err) != DL_OK) {
        return false;
    }
    if (marker.info.held && marker.info.remaining_ms > 0) {
        c->grant->busy_ms = marker.info.remaining_ms; /* heartbeats move it no further */
    }
    return !marker.info.held;
}

/* Without waiting it was busy: until when? And is the lock just passing from one to another? */
static dl_status_t look_at_holder(dli_mysql_claim_t *c) {
    dl_status_t status = DL_EBUSY;
    for (int i = 0; status == DL_EBUSY && i < HAND_OVERS_MAX && is_unheld(c); i++) {
        uint64_t wait_ms = capped_ms(c, HAND_OVER_MS);
        status = wait_ms > 0 ? get_row(c, wait_ms) : DL_EBUSY;
    }
    return status;
}

/* ---- the token and the marker -------------------------------------------------------------------------- */

static dl_status_t mark(dli_mysql_claim_t *c, uint64_t *sent_ns) {
    const dl_request_t *r = c->request;
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dli_mysql_sql_add(&sql,
                      "UPDATE $t SET owner=$s,hold_id=$u,client=$s,connection_id=CONNECTION_ID(),"
                      "acquired_at=UTC_TIMESTAMP(6),lease_ms=$i WHERE name=$x"
                      " AND " DLI_MYSQL_WRITABLE "=0",
                      c->mysql->table, r->owner, r->hold_id, c->mysql->env->client_label, r->lease_ms,
                      r->name, r->name_len);
    dl_status_t status = dli_mysql_claim_say(c, &sql, sent_ns, &answer);
    if (status != DL_OK) {
        return status;
    }
    if (answer.error != 0) {
        status = dli_mysql_refused(answer.error, answer.message, "marking a locked row", c->err);
    } else if (answer.affected != 1) {
        status = dl_driver_fail(c->err, DL_EIO, 0, "the locked row is not there any more");
    } else if (dli_mysql_conn_is_broken(c->conn)) {
        /* Our guard may have ended it behind a whole answer, and with it the lock. */
        status = dl_driver_fail(c->err, DL_EUNKNOWN, 0, "the connection ended behind the answer");
    }
    dli_mysql_answer_free(&answer);
    return status == DL_OK ? DL_OK : dli_mysql_claim_leave(c, status);
}

static dl_status_t confirm(dli_mysql_claim_t *c) {
    uint64_t sent_ns = 0;
    dl_grant_t drawn;
    dl_status_t status = dli_mysql_token_draw(c->mysql, c->request, &drawn, c->err);
    if (status != DL_OK) {
        return dli_mysql_claim_leave(c, status);
    }
    status = mark(c, &sent_ns);
    if (status != DL_OK) {
        return status;
    }
    dli_mysql_session_keep(c->state, c->session, c->conn, c->request,
                           sent_ns + (uint64_t)c->request->lease_ms * DLI_NS_PER_MS);
    c->grant->token = drawn.token;
    c->grant->tokens = drawn.tokens;
    c->grant->sent_ns = sent_ns;
    c->grant->session_fd = dli_mysql_session_watch(c->state, c->session);
    return DL_OK;
}

/* ---- the op -------------------------------------------------------------------------------------------- */

static dl_status_t attempt(dli_mysql_claim_t *c, bool has_superseded) {
    dl_status_t status = dli_mysql_claim_connect(c);
    if (status != DL_OK) {
        return status;
    }
    uint64_t limit = limit_ms(c, has_superseded);
    status = get_row(c, limit);
    if (status == DL_EBUSY && limit == 0) {
        status = look_at_holder(c);
    }
    if (status == DL_EBUSY) {
        return dli_mysql_claim_leave(c, status);
    }
    return status == DL_OK ? confirm(c) : status;
}

/* Before anything is sent, there is nothing to call off. */
static bool is_stopped(const dli_mysql_claim_t *c) {
    struct pollfd fds[2] = {{.fd = c->request->stop.fd[0], .events = POLLIN},
                            {.fd = c->request->stop.fd[1], .events = POLLIN}};
    return (fds[0].fd >= 0 || fds[1].fd >= 0) && c->mysql->env->poll(fds, 2, c->began_ns) > 0;
}

static dl_status_t claim(dli_mysql_claim_t *c) {
    const dl_request_t *r = c->request;
    if (is_stopped(c)) {
        return dl_driver_fail(c->err, DL_ECANCELED, 0, "stopped before it began");
    }
    bool has_superseded = dli_mysql_session_supersede(c->state, c->session, r);
    /* A session that was given up has mostly ended by itself; this must not take the time of a try. */
    dli_mysql_link_settle(c->mysql->link,
                          dli_mysql_earlier(c->began_ns + SETTLING_MS * DLI_NS_PER_MS, r->deadline_ns),
                          &r->stop);
    dl_status_t status;
    int stale = 0;
    do {
        c->is_at_risk = c->is_locked = c->was_stale = false;
        status = attempt(c, has_superseded);
    } while (c->was_stale && ++stale < STALE_CONNECTIONS_MAX);
    return status;
}

dl_status_t dli_mysql_session_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                      dl_error_t *err) {
    dli_mysql_sessions_t *sessions = state;
    dl_error_t inner = *err;
    dli_mysql_claim_t c = {
        .state = sessions,
        .mysql = &sessions->mysql,
        .session = hold,
        .request = request,
        .grant = grant,
        .err = &inner,
        .began_ns = sessions->mysql.env->now_ns(),
    };
    grant->session_fd = -1;
    grant->busy_ms = DL_LEASE_MAX_MS;    /* not known */
    dli_mysql_session_drop(state, hold); /* that was granted: the core never asks for it; it begins anew */
    dli_mysql_session_begin(sessions, c.session);
    dl_status_t status = claim(&c);
    dli_mysql_session_end(sessions, c.session);
    if (status != DL_OK) {
        *err = inner;
    }
    return status;
}
