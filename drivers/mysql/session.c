/* session.c - which hold has which connection, and what becomes of those that a hold leaves behind. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Both servers take no longer idle timeout: a year. */
#define PATIENCE_MAX_S 31536000

void dli_mysql_session_begin(dli_mysql_sessions_t *state, dli_mysql_session_t *session) {
    pthread_mutex_lock(&state->mutex);
    session->in_op = true;
    pthread_mutex_unlock(&state->mutex);
}

void dli_mysql_session_end(dli_mysql_sessions_t *state, dli_mysql_session_t *session) {
    pthread_mutex_lock(&state->mutex);
    session->in_op = false;
    pthread_mutex_unlock(&state->mutex);
}

/* With the mutex held. */
static dli_mysql_conn_t *detach(dli_mysql_session_t *session) {
    dli_mysql_conn_t *conn = session->conn;
    if (conn != NULL) {
        *session->link = session->next;
        if (session->next != NULL) {
            session->next->link = session->link;
        }
        session->conn = NULL;
    }
    return conn;
}

void dli_mysql_session_keep(dli_mysql_sessions_t *state, dli_mysql_session_t *session, dli_mysql_conn_t *conn,
                            const dl_request_t *request, uint64_t ends_ns) {
    pthread_mutex_lock(&state->mutex);
    session->conn = conn;
    session->hold_id = request->hold_id;
    session->ends_ns = ends_ns;
    session->shown_ms = request->lease_ms;
    session->asked_s = 0;
    session->step = DLI_MYSQL_STEP_NONE;
    session->name_len = request->name_len;
    memcpy(session->name, request->name, request->name_len);
    memcpy(session->owner, request->owner, strlen(request->owner) + 1);
    session->next = state->first;
    session->link = &state->first;
    if (session->next != NULL) {
        session->next->link = &session->next;
    }
    state->first = session;
    pthread_mutex_unlock(&state->mutex);
}

int dli_mysql_session_watch(dli_mysql_sessions_t *state, dli_mysql_session_t *session) {
    dli_mysql_session_unwatch(state, session);
    int fd = fcntl(dli_mysql_conn_fd(session->conn), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    pthread_mutex_lock(&state->mutex);
    session->watch_fd = fd;
    session->has_watch = true;
    session->next_watched = state->watched;
    session->watched_link = &state->watched;
    if (session->next_watched != NULL) {
        session->next_watched->watched_link = &session->next_watched;
    }
    /* A child forked right now by another thread walks from `watched`. */
    atomic_signal_fence(memory_order_release);
    state->watched = session;
    pthread_mutex_unlock(&state->mutex);
    return fd;
}

void dli_mysql_session_unwatch(dli_mysql_sessions_t *state, dli_mysql_session_t *session) {
    pthread_mutex_lock(&state->mutex);
    bool had_watch = session->has_watch;
    if (had_watch) {
        *session->watched_link = session->next_watched;
        if (session->next_watched != NULL) {
            session->next_watched->watched_link = session->watched_link;
        }
        session->has_watch = false;
    }
    pthread_mutex_unlock(&state->mutex);
    if (had_watch) {
        close(session->watch_fd);
    }
}

void dli_mysql_sessions_close_forked(dli_mysql_sessions_t *state) {
    for (dli_mysql_session_t *session = state->watched; session != NULL; session = session->next_watched) {
        close(session->watch_fd);
    }
    state->watched = NULL;
}

dli_mysql_conn_t *dli_mysql_session_take(dli_mysql_sessions_t *state, dli_mysql_session_t *session) {
    pthread_mutex_lock(&state->mutex);
    dli_mysql_conn_t *conn = detach(session);
    pthread_mutex_unlock(&state->mutex);
    return conn;
}

static bool is_older(const dli_mysql_session_t *session, const dl_request_t *request) {
    return session->hold_id < request->hold_id && session->name_len == request->name_len &&
           memcmp(session->name, request->name, request->name_len) == 0 &&
           strcmp(session->owner, request->owner) == 0;
}

bool dli_mysql_session_supersede(dli_mysql_sessions_t *state, const dli_mysql_session_t *session,
                                 const dl_request_t *request) {
    dli_mysql_conn_t *conn = NULL;
    bool found = false;
    pthread_mutex_lock(&state->mutex);
    for (dli_mysql_session_t *s = state->first; s != NULL; s = s->next) {
        if (s != session && is_older(s, request)) {
            found = true;
            if (s->in_op) { /* a renewal, for one, may wait for its answer for longer than this can */
                dli_mysql_link_break(state->mysql.link, s->conn);
            } else {
                conn = detach(s);
            }
            break; /* there is one row lock */
        }
    }
    pthread_mutex_unlock(&state->mutex);
    if (conn != NULL) {
        dli_mysql_link_drop(state->mysql.link, conn, true);
    }
    return found;
}

void dli_mysql_session_drop(void *state_, void *hold) {
    dli_mysql_sessions_t *state = state_;
    dli_mysql_session_unwatch(state, hold);
    dli_mysql_conn_t *conn = dli_mysql_session_take(state, hold);
    if (conn != NULL) {
        dli_mysql_link_drop(state->mysql.link, conn, true);
    }
}

int64_t dli_mysql_patience_for(int64_t lease_ms) {
    int64_t seconds = lease_ms / 1000 + (lease_ms % 1000 != 0);
    return seconds < 1 ? 1 : seconds < PATIENCE_MAX_S ? seconds : PATIENCE_MAX_S;
}

void dli_mysql_patience_sql(dli_mysql_sql_t *sql, int64_t seconds) {
    /* MariaDB's timeouts of idle transactions win over wait_timeout where they are set. */
    dli_mysql_sql_add(sql,
                      "SET SESSION wait_timeout=$i/*M!,idle_transaction_timeout=$i"
                      ",idle_write_transaction_timeout=$i,idle_readonly_transaction_timeout=$i*/",
                      seconds, seconds, seconds, seconds);
}
