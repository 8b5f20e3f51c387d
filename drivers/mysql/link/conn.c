/* conn.c - one connection: made, asked one statement at a time with a deadline, closed. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings.h"

/* A reply that has begun when the deadline is over gets this long for the rest. */
#define GRACE_NS (5 * (uint64_t)1000000)

/*
 * The libraries close their descriptor when a call fails, inside that call. Its number may be another's then,
 * so that nothing of ours uses it: we have one of our own for the same socket, to wait on, to shut down and
 * for others to watch, from the beginning to the end.
 */
struct dli_mysql_conn {
    MYSQL *mysql;
    int fd;
    bool is_broken;
    bool is_asking;
    int64_t patience_s;
    void *owner;
    dli_mysql_facts_t facts;
    char label[160];
    dli_mysql_hidden_t table;
};

/* ---- making and closing -------------------------------------------------------------------------------- */

static dl_status_t take_fd(dli_mysql_conn_t *conn, dl_error_t *err) {
    int theirs = dli_mysql_library_fd(conn->mysql);
    if (fcntl(theirs, F_SETFD, FD_CLOEXEC) == 0) {
        conn->fd = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
    }
    return conn->fd >= 0
               ? DL_OK
               : dl_driver_fail(err, DL_ELIMIT, errno, "%s: no descriptor: %s", conn->label, strerror(errno));
}

static dl_status_t make(dli_mysql_conn_t *conn, const dli_mysql_endpoint_t *endpoint, dli_mysql_role_t role,
                        int64_t wait_timeout_s, dl_error_t *err) {
    conn->mysql = dli_mysql_library_handle(endpoint, err);
    if (conn->mysql == NULL || !dli_mysql_library_connect(conn->mysql, endpoint, err)) {
        return err->status;
    }
    dl_status_t status = take_fd(conn, err);
    if (status == DL_OK) {
        status = dli_mysql_settings_apply(conn->mysql, conn->label, role, wait_timeout_s, &conn->facts, err);
    }
    return status;
}

dl_status_t dli_mysql_conn_make(const dli_mysql_endpoint_t *endpoint, dli_mysql_role_t role,
                                int64_t wait_timeout_s, dli_mysql_conn_t **conn, dl_error_t *err) {
    dli_mysql_conn_t *made = calloc(1, sizeof *made);
    *conn = NULL;
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    made->fd = -1;
    made->patience_s = wait_timeout_s;
    memcpy(made->label, endpoint->label, sizeof made->label);
    made->table = endpoint->table;
    dl_status_t status = make(made, endpoint, role, wait_timeout_s, err);
    if (status != DL_OK) {
        dli_mysql_conn_close(made);
        return status;
    }
    *conn = made;
    return DL_OK;
}

static void break_off(dli_mysql_conn_t *conn) {
    conn->is_broken = true;
    conn->is_asking = false;
    (void)shutdown(conn->fd, SHUT_RDWR);
}

void dli_mysql_conn_close(dli_mysql_conn_t *conn) {
    dli_mysql_quiet_t quiet;
    if (conn == NULL) {
        return;
    }
    if (conn->fd >= 0 && (conn->is_asking || dli_mysql_conn_is_broken(conn))) {
        break_off(conn); /* no goodbye: nothing that the library could wait for is left */
    }
    dli_mysql_quiet_begin(&quiet, conn->mysql, DLI_UNFORKED_OPENSSL);
    mysql_close(conn->mysql);
    dli_mysql_quiet_end(&quiet);
    if (conn->fd >= 0) {
        close(conn->fd);
    }
    free(conn);
}

static bool is_same_file(int one, int other) {
    struct stat a, b;
    return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void dli_mysql_conn_close_forked(dli_mysql_conn_t *conn) {
    if (conn == NULL) {
        return;
    }
    int theirs = dli_mysql_library_fd(conn->mysql);
    /* The library may have been about to close its own when the process forked. */
    if (is_same_file(theirs, conn->fd)) {
        close(theirs);
    }
    close(conn->fd);
    free(conn); /* the library's handle would say goodbye for the parent: it is left alone */
}

/* ---- what it is ---------------------------------------------------------------------------------------- */

const dli_mysql_facts_t *dli_mysql_conn_facts(const dli_mysql_conn_t *conn) {
    return &conn->facts;
}

void *dli_mysql_conn_owner(const dli_mysql_conn_t *conn) {
    return conn->owner;
}

void dli_mysql_conn_set_owner(dli_mysql_conn_t *conn, void *owner) {
    conn->owner = owner;
}

int dli_mysql_conn_fd(const dli_mysql_conn_t *conn) {
    return conn->fd;
}

bool dli_mysql_conn_is_broken(const dli_mysql_conn_t *conn) {
    char byte;
    if (conn->is_broken) {
        return true;
    }
    ssize_t n = recv(conn->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) {
        return !conn->is_asking;
    }
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

int64_t dli_mysql_conn_patience_s(const dli_mysql_conn_t *conn) {
    return conn->patience_s;
}

void dli_mysql_conn_note_patience(dli_mysql_conn_t *conn, int64_t seconds) {
    conn->patience_s = seconds;
}

bool dli_mysql_conn_is_asking(const dli_mysql_conn_t *conn) {
    return conn->is_asking;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static dl_status_t lose(dli_mysql_conn_t *conn, dl_status_t status, const char *why, dl_error_t *err) {
    int error = (int)mysql_errno(conn->mysql);
    break_off(conn);
    return dl_driver_fail(err, status, error, "%s: %s", conn->label, why);
}

/* Calls into the library are made between these two. A fork() of another thread may keep the first waiting,
 * which is not the server's time. */
static void enter(const dli_mysql_conn_t *conn, const dli_mysql_bounds_t *bounds, dli_mysql_guarded_t *call,
                  dli_mysql_quiet_t *quiet) {
    dli_mysql_quiet_begin(quiet, conn->mysql, DLI_UNFORKED_OPENSSL);
    uint64_t least_ns = bounds->env->now_ns() + GRACE_NS;
    *call = (dli_mysql_guarded_t){
        .fd = conn->fd, .deadline_ns = bounds->deadline_ns > least_ns ? bounds->deadline_ns : least_ns};
    dli_mysql_guard_arm(bounds->guard, call);
}

static bool leave(const dli_mysql_bounds_t *bounds, dli_mysql_guarded_t *call, dli_mysql_quiet_t *quiet) {
    bool is_over = dli_mysql_guard_disarm(bounds->guard, call);
    dli_mysql_quiet_end(quiet);
    return is_over;
}

/* The whole answer of one statement. 0, or the error's number. */
static unsigned read_whole(MYSQL *mysql, dli_mysql_answer_t *answer) {
    unsigned error = 0;
    if (mysql_read_query_result(mysql) != 0) {
        error = mysql_errno(mysql);
        return error != 0 ? error : DLI_MYSQL_MALFORMED;
    }
    answer->rows = mysql_store_result(mysql);
    error = mysql_errno(mysql);
    if (error != 0) {
        return error;
    }
    /* With more than one answer there, nobody can tell which is ours. */
    if ((answer->rows == NULL && mysql_field_count(mysql) != 0) || mysql_more_results(mysql) ||
        dli_mysql_library_has_more(mysql)) {
        return DLI_MYSQL_MALFORMED;
    }
    if (answer->rows == NULL) { /* after a SELECT the libraries still have those of the statement before */
        answer->affected = mysql_affected_rows(mysql);
        answer->insert_id = mysql_insert_id(mysql);
    }
    return 0;
}

/* What came in place of an answer; `ended`: by the guard. */
static dl_status_t settle(dli_mysql_conn_t *conn, unsigned error, bool ended, dli_mysql_answer_t *answer,
                          dl_error_t *err) {
    char message[sizeof answer->message];
    dli_mysql_hide(&conn->table,
                   error == mysql_errno(conn->mysql) ? mysql_error(conn->mysql) : "the answer makes no sense",
                   message, sizeof message);
    dli_mysql_answer_free(answer);
    switch (error) {
    case DLI_MYSQL_IDLE_TOO_LONG:
        /* The server was tired of waiting for a statement: it has read none. */
        return lose(conn, DL_EIO, message, err);
    case DLI_MYSQL_KILLED:
    case 1053: /* shutting down */
    case 3169: /* killed, as MySQL says it */
        /* The connection is gone; these may come in the middle of a statement, or after it. */
    case DLI_MYSQL_GONE:
    case DLI_MYSQL_LOST:
    case DLI_MYSQL_NO_MEMORY:
    case DLI_MYSQL_TLS_FAILED:
        return lose(conn, DL_EUNKNOWN, ended ? "the answer began and did not end in time" : message, err);
    default:
        break;
    }
    if (dli_mysql_is_library_error(error)) {
        return lose(conn, ended ? DL_EUNKNOWN : DL_EPROTO, message, err);
    }
    answer->error = error;
    memcpy(answer->message, message, sizeof message);
    return DL_OK;
}

static dl_status_t read_answer(dli_mysql_conn_t *conn, const dli_mysql_bounds_t *bounds,
                               dli_mysql_answer_t *answer, dl_error_t *err) {
    dli_mysql_guarded_t call;
    dli_mysql_quiet_t quiet;
    enter(conn, bounds, &call, &quiet);
    unsigned error = read_whole(conn->mysql, answer);
    bool ended = leave(bounds, &call, &quiet);
    conn->is_asking = false;
    if (ended) {
        break_off(conn);
    }
    return error == 0 ? DL_OK : settle(conn, error, ended, answer, err);
}

dl_status_t dli_mysql_conn_resume(dli_mysql_conn_t *conn, const dli_mysql_bounds_t *bounds,
                                  dli_mysql_answer_t *answer, dl_error_t *err) {
    memset(answer, 0, sizeof *answer);
    if (conn->is_broken) {
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "%s: the connection is broken", conn->label);
    }
    if (!conn->is_asking) {
        return dl_driver_fail(err, DL_EPROTO, 0, "%s: no statement is on its way", conn->label);
    }
    struct pollfd fds[] = {
        {.fd = conn->fd, .events = POLLIN},
        {.fd = bounds->stop != NULL ? bounds->stop->fd[0] : -1, .events = POLLIN},
        {.fd = bounds->stop != NULL ? bounds->stop->fd[1] : -1, .events = POLLIN},
    };
    int ready = bounds->env->poll(fds, 3, bounds->deadline_ns);
    if (ready < 0) {
        return lose(conn, DL_EUNKNOWN, strerror(errno), err);
    }
    if (ready == 0) {
        return dl_driver_fail(err, DL_ETIMEDOUT, 0, "%s: no answer in time", conn->label);
    }
    if (fds[0].revents == 0) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "%s: the wait for an answer was ended", conn->label);
    }
    return read_answer(conn, bounds, answer, err);
}

dl_status_t dli_mysql_conn_ask(dli_mysql_conn_t *conn, const char *sql, size_t len,
                               const dli_mysql_bounds_t *bounds, uint64_t *sent_ns,
                               dli_mysql_answer_t *answer, dl_error_t *err) {
    dli_mysql_guarded_t call;
    dli_mysql_quiet_t quiet;
    memset(answer, 0, sizeof *answer);
    if (conn->is_asking) {
        return dl_driver_fail(err, DL_EPROTO, 0, "%s: another statement is on its way", conn->label);
    }
    if (dli_mysql_conn_is_broken(conn)) {
        break_off(conn);
        return dl_driver_fail(err, DL_EIO, 0, "%s: the connection is broken", conn->label);
    }
    if (sent_ns != NULL) {
        *sent_ns = bounds->env->now_ns();
    }
    enter(conn, bounds, &call, &quiet);
    int rc = mysql_send_query(conn->mysql, sql, (unsigned long)len);
    if (leave(bounds, &call, &quiet) || rc != 0) {
        return lose(conn, DL_EUNKNOWN, rc != 0 ? mysql_error(conn->mysql) : "it could not be sent in time",
                    err);
    }
    conn->is_asking = true;
    return dli_mysql_conn_resume(conn, bounds, answer, err);
}
