/* freeing.c - mysql-pessimistic: ends holds: on their own connection, or by killing it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "session.h"

/* How long one wait for a killed session's row lasts; the row is free in about 1 ms, and then perhaps
 * another's. */
#define LOOK_AGAIN_MS 100u

static dl_status_t lost(dl_error_t *err) {
    return dl_driver_fail(err, DL_ELOST, 0, "the lock was lost: nothing of this hold is there any more");
}

/* ---- by what the marker says --------------------------------------------------------------------------- */

static bool is_hold(const dli_mysql_marker_t *marker, const char *owner, uint64_t hold_id) {
    return marker->info.held && marker->info.hold_id == hold_id && strcmp(marker->info.owner, owner) == 0;
}

/* Ends the hold that the marker shows. The server frees the row a moment after KILL: this waits for the row
 * itself, and as another may have got it first, looks at the marker. conn: that saw it. After a crash a
 * server shows for a moment what transactions of its earlier run had written, and rolls them back;
 * connections are numbered anew by then. is_ending: it ends by itself, if nobody can kill it. */
static dl_status_t end_marked(dli_mysql_t *mysql, const dl_request_t *r, dli_mysql_conn_t *conn,
                              const dli_mysql_marker_t *marker, bool is_ending, dl_error_t *err) {
    bool is_of_this_run;
    dl_status_t status =
        dli_mysql_link_kill_there(mysql->link, conn, marker->connection_id, marker->written_ns,
                                  r->deadline_ns, &r->stop, &is_of_this_run, err);
    if (!is_of_this_run || (status == DL_ENOTSUP && is_ending)) {
        status = DL_OK;
    }
    DLI_MYSQL_SQL(sql);
    dli_mysql_row_lock_sql(&sql, mysql, r->name, r->name_len, LOOK_AGAIN_MS);
    while (status == DL_OK) {
        dli_mysql_marker_t now;
        dli_mysql_exchange_t exchange = {.sql = sql.at,
                                         .len = sql.len,
                                         .lane = DLI_MYSQL_CONTROL,
                                         .intent = DLI_MYSQL_READ,
                                         .deadline_ns = r->deadline_ns,
                                         .stop = &r->stop};
        status = dli_mysql_link_run(mysql->link, &exchange, err);
        bool is_foreign = false;
        unsigned error = status == DL_OK ? exchange.answer.error : 0;
        if (error != 0 && !dli_mysql_is_wait_over(error)) {
            status = dli_mysql_refused(error, exchange.answer.message, "waiting for a row", err);
            dli_mysql_answer_free(&exchange.answer);
        } else if (status == DL_OK) {
            MYSQL_ROW row = dli_mysql_answer_row(&exchange.answer, NULL);
            is_foreign = row != NULL && row[0] != NULL;
            dli_mysql_answer_free(&exchange.answer);
        }
        if (is_foreign) {
            return dli_mysql_row_foreign(mysql, err);
        }
        if (status == DL_OK) {
            status = dli_mysql_marker_look(mysql, r, DLI_MYSQL_READ, NULL, &now, err);
        }
        if (status == DL_OK && !is_hold(&now, marker->info.owner, marker->info.hold_id)) {
            return DL_OK;
        }
    }
    if (status == DL_EIO && !is_of_this_run) {
        const dl_error_t why = *err;
        return dl_driver_fail(
            err, DL_EIO, 0,
            "its holder may be of an earlier run of the server, and so is not killed; it is locked still: %s",
            why.message);
    }
    if (status == DL_EIO) {
        err->status = status = DL_EUNKNOWN; /* the kill is under way */
    }
    return status;
}

/* The hold's connection is gone from here. Whatever the server still has of it is condemned, or shown by its
 * marker. */
static dl_status_t free_marked(dli_mysql_t *mysql, const dl_request_t *r, dl_error_t *err) {
    dli_mysql_conn_t *conn = NULL;
    dli_mysql_marker_t marker;
    dl_status_t status = dli_mysql_marker_look(mysql, r, DLI_MYSQL_FREE, &conn, &marker, err);
    if (status != DL_OK) {
        return status;
    }
    if (is_hold(&marker, r->owner, r->hold_id)) {
        return end_marked(mysql, r, conn, &marker, true, err);
    }
    dli_mysql_link_give_back(mysql->link, conn);
    return lost(err);
}

dl_status_t dli_mysql_session_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                    dl_error_t *err) {
    dli_mysql_sessions_t *sessions = state;
    dl_request_t r = {.name = name, .name_len = name_len, .deadline_ns = deadline_ns, .stop = {{-1, -1}}};
    dli_mysql_conn_t *conn = NULL;
    dli_mysql_marker_t marker;
    dl_status_t status = dli_mysql_marker_look(&sessions->mysql, &r, DLI_MYSQL_READ, &conn, &marker, err);
    if (status != DL_OK) {
        return status;
    }
    if (!marker.info.held) {
        dli_mysql_link_give_back(sessions->mysql.link, conn);
        return dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody holds it");
    }
    return end_marked(&sessions->mysql, &r, conn, &marker, false, err);
}

/* ---- on the hold's own connection ---------------------------------------------------------------------- */

/* Waits for the answer to a ping that was left on its way. false: the connection is of no use. */
static bool catch_up(dli_mysql_t *mysql, dli_mysql_conn_t *conn, const dl_request_t *r, bool *is_late) {
    *is_late = false;
    if (!dli_mysql_conn_is_asking(conn)) {
        return true;
    }
    dli_mysql_bounds_t bounds = {.env = mysql->env,
                                 .guard = dli_mysql_link_guard(mysql->link),
                                 .deadline_ns = r->deadline_ns,
                                 .stop = &r->stop};
    dli_mysql_answer_t answer;
    dl_error_t err;
    dl_status_t status = dli_mysql_conn_resume(conn, &bounds, &answer, &err);
    dli_mysql_answer_free(&answer);
    dli_mysql_conn_note_patience(conn, 0); /* it may have been about that */
    *is_late = status == DL_ETIMEDOUT || status == DL_ECANCELED;
    return status == DL_OK;
}

/* The transaction is over; the connection goes on to others. */
static void give_back(dli_mysql_t *mysql, dli_mysql_conn_t *conn, const dl_request_t *r) {
    atomic_fetch_add(&mysql->acquired, 1);
    if (dli_mysql_purge(mysql, conn, r)) {
        dli_mysql_link_give_back(mysql->link, conn);
    } else {
        dli_mysql_link_drop(mysql->link, conn, true);
    }
}

/* Ends the connection, whatever it is doing. The KILL comes with the next statement that frees. */
static dl_status_t unknown(dli_mysql_t *mysql, dli_mysql_conn_t *conn, dl_error_t *err) {
    dli_mysql_link_drop(mysql->link, conn, true);
    return dl_driver_fail(err, DL_EUNKNOWN, 0, "no answer to the release; the connection was closed");
}

static dl_status_t free_on(dli_mysql_t *mysql, dli_mysql_conn_t *conn, const dl_request_t *r,
                           dl_error_t *err) {
    bool is_late;
    dl_status_t status = DL_EIO;
    if (catch_up(mysql, conn, r, &is_late)) {
        status = dli_mysql_link_roll_back(mysql->link, conn, r->deadline_ns, &r->stop, err);
    } else if (is_late) {
        return unknown(mysql, conn, err);
    }
    if (status == DL_EIO) {
        /* It had ended before. Only the server knows whether its end of it has, too. */
        dli_mysql_link_drop(mysql->link, conn, true);
        return free_marked(mysql, r, err);
    }
    if (status != DL_OK) {
        return unknown(mysql, conn, err);
    }
    give_back(mysql, conn, r);
    return DL_OK;
}

dl_status_t dli_mysql_session_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    dli_mysql_sessions_t *sessions = state;
    dli_mysql_session_t *session = hold;
    dl_status_t status;
    dli_mysql_session_begin(sessions, session);
    dli_mysql_session_unwatch(sessions, session);
    bool is_same = session->hold_id == request->hold_id;
    dli_mysql_conn_t *conn = is_same ? dli_mysql_session_take(sessions, session) : NULL;
    if (conn != NULL) {
        status = free_on(&sessions->mysql, conn, request, err);
    } else {
        status = free_marked(&sessions->mysql, request, err);
    }
    dli_mysql_session_end(sessions, session);
    return status;
}
