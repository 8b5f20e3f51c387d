/* mysql_conn_fixture.h - a server, what a connection to it is made from, and statements with a deadline. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_CONN_FIXTURE_H
#define MYSQL_CONN_FIXTURE_H

#include "driver_env.h"
#include "drivers/mysql/link/conn.h"
#include "support/mysql_server.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 20000 /* for what comes at once, on however busy a machine */
#define SLACK_MS 100      /* by which a call may be late */

static dl_driver_env_t env;
static dl_error_t err;
static dli_mysql_guard_t *guard;
static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX];
static dli_mysql_endpoint_parts_t parts; /* over TCP */
static dli_mysql_answer_t answer;        /* of the last statement */

static inline uint64_t now_ms(void) {
    return env.now_ns() / MS;
}

static bool hears_nothing;

static inline int poll_unless_deaf(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    return hears_nothing ? 0 : poll_while_it_runs(fds, n, deadline_ns);
}

static inline void set_up_env(void) {
    env = make_env("00000000-0000-4000-8000-000000000000", NULL, NULL);
    env.poll = poll_unless_deaf;
    cr_assert_eq(dli_mysql_guard_open(&env, &guard, &err), DL_OK, "%s", err.message);
}

static inline void tear_down_env(void) {
    dli_mysql_answer_free(&answer);
    dli_mysql_guard_close(guard, false);
}

static inline void use_server(mysql_server_t *which) {
    server = which;
    mysql_database(server, database);
    parts = (dli_mysql_endpoint_parts_t){.host = "127.0.0.1",
                                         .port = server->port,
                                         .user = MYSQL_USER,
                                         .password = MYSQL_SECRET,
                                         .database = database,
                                         .connect_timeout_ms = PATIENCE_MS};
}

static inline void set_up(void) {
    set_up_env();
    use_server(mysql_server_any());
}

static inline void tear_down(void) {
    tear_down_env();
    mysql_server_stop(server);
}

/* ---- connections ------------------------------------------------------------------------------------- */

static inline dl_status_t try_connect(dli_mysql_role_t role, int64_t patience_s, dli_mysql_conn_t **conn) {
    dli_mysql_endpoint_t *endpoint;
    *conn = NULL;
    dl_status_t status = dli_mysql_endpoint_new(&parts, &endpoint, &err);
    if (status == DL_OK) {
        status = dli_mysql_conn_make(endpoint, role, patience_s, conn, &err);
    }
    dli_mysql_endpoint_unref(endpoint);
    cr_assert_eq(status == DL_OK, *conn != NULL);
    if (status != DL_OK) {
        cr_assert_eq(err.status, status);
        cr_assert_neq(err.message[0], '\0');
    }
    return status;
}

static inline dli_mysql_conn_t *connect_as(dli_mysql_role_t role) {
    dli_mysql_conn_t *conn;
    cr_assert_eq(try_connect(role, 60, &conn), DL_OK, "%s", err.message);
    return conn;
}

static inline dli_mysql_conn_t *connect_plain(void) {
    return connect_as(DLI_MYSQL_ROLE_PLAIN);
}

static inline void expect_refusal(dl_status_t status, const char *words) {
    dli_mysql_conn_t *conn;
    cr_assert_eq(try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn), status, "%s", err.message);
    cr_assert_has(err.message, words, "'%s' is not in: %s", words, err.message);
    cr_assert_null(strstr(err.message, MYSQL_SECRET), "%s", err.message);
}

static inline bool is_socket(int fd) {
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

/* How many this process has open. */
static inline int count_sockets(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        n += is_socket(fd);
    }
    return n;
}

/* The name, where it is known. */
static inline const char *local_host(void) {
    struct addrinfo *found = NULL;
    if (getaddrinfo("localhost", NULL, NULL, &found) != 0) {
        return "127.0.0.1";
    }
    freeaddrinfo(found);
    return "localhost";
}

/* ---- statements -------------------------------------------------------------------------------------- */

static inline dli_mysql_bounds_t within(uint64_t ms, const dl_stop_t *stop) {
    return (dli_mysql_bounds_t){&env, guard, env.now_ns() + ms * MS, stop};
}

static inline dl_status_t ask_within(dli_mysql_conn_t *conn, const char *sql, uint64_t ms,
                                     const dl_stop_t *stop) {
    dli_mysql_bounds_t bounds = within(ms, stop);
    uint64_t sent_ns = 0, before_ns = env.now_ns();
    dli_mysql_answer_free(&answer);
    dl_status_t status = dli_mysql_conn_ask(conn, sql, strlen(sql), &bounds, &sent_ns, &answer, &err);
    if (sent_ns != 0) {
        cr_assert_geq(sent_ns, before_ns);
        cr_assert_leq(sent_ns, env.now_ns());
    }
    if (status != DL_OK) {
        cr_assert_eq(err.status, status);
        cr_assert_neq(err.message[0], '\0');
    }
    return status;
}

/* Sends it, however long that takes, and does not wait for the answer. */
static inline void send_only(dli_mysql_conn_t *conn, const char *sql) {
    hears_nothing = true;
    cr_assert_eq(ask_within(conn, sql, PATIENCE_MS, NULL), DL_ETIMEDOUT, "%s", err.message);
    hears_nothing = false;
}

static inline dl_status_t resume_within(dli_mysql_conn_t *conn, uint64_t ms, const dl_stop_t *stop) {
    dli_mysql_bounds_t bounds = within(ms, stop);
    dli_mysql_answer_free(&answer);
    return dli_mysql_conn_resume(conn, &bounds, &answer, &err);
}

/* Carried out by the server, without an error. */
static inline void must_ask(dli_mysql_conn_t *conn, const char *sql) {
    cr_assert_eq(ask_within(conn, sql, PATIENCE_MS, NULL), DL_OK, "%s: %s", sql, err.message);
    cr_assert_eq(answer.error, 0, "%s: %s", sql, answer.message);
}

/* The first column of the first row. */
static inline const char *value_of(dli_mysql_conn_t *conn, const char *sql) {
    must_ask(conn, sql);
    MYSQL_ROW row = dli_mysql_answer_row(&answer, NULL);
    return row != NULL && row[0] != NULL ? row[0] : "(none)";
}

static inline void expect_value(dli_mysql_conn_t *conn, const char *sql, const char *value) {
    const char *found = value_of(conn, sql);
    cr_assert_str_eq(found, value, "%s: %s, not %s", sql, found, value);
}

/* Of the newest connection that runs a statement with this text. */
static inline uint64_t find_statement(const char *text) {
    long long id;
    while ((id = mysql_number(
                server, "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE '%s%%' AND DB='%s'",
                text, database)) == 0) {}
    return (uint64_t)id;
}

static inline void await_broken(const dli_mysql_conn_t *conn) {
    for (uint64_t end = now_ms() + PATIENCE_MS; !dli_mysql_conn_is_broken(conn);) {
        cr_assert_lt(now_ms(), end, "the connection does not break");
        struct pollfd fd = {.fd = dli_mysql_conn_fd(conn), .events = POLLIN};
        (void)poll(&fd, 1, 100);
    }
}

#endif
