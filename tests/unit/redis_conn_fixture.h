/* redis_conn_fixture.h - connections driven by poll, and a server that the test plays itself. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_CONN_FIXTURE_H
#define REDIS_CONN_FIXTURE_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_env.h"
#include "drivers/redis/link/conn.h"

#define SLACK_MS 500      /* by which a busy machine may be late */
#define PATIENCE_MS 10000 /* of what must come; a test that reaches it has failed */

static dl_driver_env_t env;
static dl_error_t err;
static char folder[64];

static inline uint64_t now_ms(void) {
    return ran_ns() / MS;
}

static inline void note_nothing(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    (void)text;
}

static inline void count_nothing(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

static inline void set_up(void) {
    env = make_env("aaaaaaaa-0000-0000-0000-000000000001", note_nothing, count_nothing);
    env.client_label = "my host:17";
    make_folder(folder, sizeof folder);
}

static inline void remove_folder(void) {
    delete_folder(folder);
}

/* ---- the connection ---------------------------------------------------------------------------------- */

/* One poll and one step. */
static inline dl_status_t turn(dli_conn_t *conn, int wait_ms) {
    struct pollfd fd;
    uint64_t until = ran_ns() + (uint64_t)wait_ms * MS;
    dli_conn_want(conn, &fd);
    until = dli_conn_until(conn) < until ? dli_conn_until(conn) : until;
    cr_assert_geq(env.poll(&fd, 1, until), 0);
    memset(&err, 0, sizeof err);
    dl_status_t status = dli_conn_step(conn, fd.fd < 0 ? 0 : fd.revents, &err);
    cr_assert_eq(err.status, status, "the status is %s, but err says %s", dl_status_name(status),
                 err.message);
    cr_assert(status == DL_OK || err.message[0] != '\0');
    return status;
}

/* Until it is ready or fails. */
static inline dl_status_t drive(dli_conn_t *conn) {
    dl_status_t status = DL_OK;
    uint64_t end = now_ms() + PATIENCE_MS;
    while (status == DL_OK && !dli_conn_is_ready(conn)) {
        cr_assert_lt(now_ms(), end, "neither ready nor failed");
        status = turn(conn, 1000);
    }
    return status;
}

static inline dl_status_t begin(const dli_endpoint_t *endpoint, dli_conn_t **conn) {
    memset(&err, 0, sizeof err);
    dl_status_t status = dli_conn_start(endpoint, &env, conn, &err);
    cr_assert_eq(err.status, status);
    cr_assert_eq(*conn == NULL, status != DL_OK);
    return status;
}

/* Starts and drives; NULL when that failed, with the status in *status. */
static inline dli_conn_t *connect_to(const dli_endpoint_t *endpoint, dl_status_t *status) {
    dli_conn_t *conn;
    *status = begin(endpoint, &conn);
    if (*status == DL_OK) {
        *status = drive(conn);
    }
    if (*status != DL_OK) {
        dli_conn_close(conn, false);
        conn = NULL;
    }
    return conn;
}

static inline dli_conn_t *must_connect(const dli_endpoint_t *endpoint) {
    dl_status_t status;
    dli_conn_t *conn = connect_to(endpoint, &status);
    cr_assert_eq(status, DL_OK, "%s: %s", dl_status_name(status), err.message);
    return conn;
}

static inline void must_fail(const dli_endpoint_t *endpoint, dl_status_t wanted, const char *words) {
    dl_status_t status;
    dli_conn_t *conn = connect_to(endpoint, &status);
    cr_assert_null(conn);
    cr_assert_eq(status, wanted, "%s, not %s: %s", dl_status_name(status), dl_status_name(wanted),
                 err.message);
    cr_assert_has(err.message, words, "'%s' is not in '%s'", words, err.message);
}

/* The next reply. */
static inline redisReply *await_reply(dli_conn_t *conn) {
    redisReply *reply = NULL;
    uint64_t end = now_ms() + PATIENCE_MS;
    for (;;) {
        cr_assert_eq(dli_conn_next(conn, &reply, &err), DL_OK, "%s", err.message);
        if (reply != NULL) {
            return reply;
        }
        cr_assert_lt(now_ms(), end, "no reply");
        cr_assert_eq(turn(conn, 1000), DL_OK, "%s", err.message);
    }
}

static inline dl_status_t send_bytes(dli_conn_t *conn, const char *bytes, size_t len) {
    dli_commands_append_bytes(dli_conn_out(conn), bytes, len);
    return dli_conn_flush(conn, &err);
}

/* One command of words, and its reply. */
static inline redisReply *ask(dli_conn_t *conn, const char *command, const char *first, const char *second) {
    dli_commands_add_words(dli_conn_out(conn), command, first, second, NULL);
    cr_assert_eq(dli_conn_flush(conn, &err), DL_OK, "%s", err.message);
    return await_reply(conn);
}

/* ---- a server of our own ----------------------------------------------------------------------------- */

#define HELLO_IS(version, mode, role)                                  \
    "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n+" version \
    "\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n"                            \
    ":42\r\n$4\r\nmode\r\n+" mode "\r\n$4\r\nrole\r\n+" role "\r\n$7\r\nmodules\r\n*0\r\n"
#define HELLO HELLO_IS("7.0.15", "standalone", "master")
#define SERVER_INFO "$22\r\n# Server\r\nrun_id:abc\r\n\r\n:0\r\n" HELLO
#define REQUESTS_END "return 0\r\n$1\r\n0\r\n*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n"

static int listener = -1, peer = -1;
static dli_endpoint_t place; /* of the listener */
static char place_host[64], place_path[100];

static inline int listen_tcp(const char *address, int backlog, int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t len = sizeof at;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(inet_pton(AF_INET, address, &at.sin_addr), 1);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0, "%s", strerror(errno));
    if (backlog >= 0) {
        cr_assert_eq(listen(fd, backlog), 0);
    }
    getsockname(fd, (struct sockaddr *)&at, &len);
    *port = ntohs(at.sin_port);
    return fd;
}

static inline void set_place(const char *host, int port) {
    snprintf(place_host, sizeof place_host, "%s", host);
    place = (dli_endpoint_t){
        .host = place_host, .tls_verify = true, .connect_timeout_ms = PATIENCE_MS / 2, .keepalive_s = 60};
    snprintf(place.port, sizeof place.port, "%d", port);
    snprintf(place.label, sizeof place.label, "redis://%s:%d/0", host, port);
}

static inline void serve_tcp(void) {
    int port = 0;
    listener = listen_tcp("127.0.0.1", 16, &port);
    set_place("127.0.0.1", port);
}

static inline void serve_unix(int backlog) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(place_path, sizeof place_path, "%s/socket", folder);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", place_path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(listener, backlog), 0);
    place = (dli_endpoint_t){.path = place_path, .connect_timeout_ms = PATIENCE_MS / 2};
    snprintf(place.label, sizeof place.label, "unix://%s", place_path);
}

/* Awaits the whole of the handshake's requests, while the connection goes on. */
static inline void accept_peer(dli_conn_t *conn, char *requests, size_t size) {
    size_t len = 0;
    uint64_t end = now_ms() + PATIENCE_MS;
    struct pollfd fd = {.fd = listener, .events = POLLIN};
    while (poll(&fd, 1, 10) == 0) {
        cr_assert_lt(now_ms(), end, "nobody connects");
        cr_assert_eq(turn(conn, 0), DL_OK, "%s", err.message);
    }
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(peer, 0);
    while (len < strlen(REQUESTS_END) || strcmp(requests + len - strlen(REQUESTS_END), REQUESTS_END) != 0) {
        ssize_t n = recv(peer, requests + len, size - 1 - len, MSG_DONTWAIT);
        len += n > 0 ? (size_t)n : 0;
        requests[len] = '\0';
        cr_assert_lt(now_ms(), end, "no handshake: %s", requests);
        cr_assert_lt(len, size - 1, "no handshake: %s", requests);
        if (n < 0) {
            cr_assert_eq(turn(conn, 1), DL_OK, "%s", err.message);
        }
    }
}

static inline void say_bytes(const char *bytes, size_t len) {
    cr_assert_eq(send(peer, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
}

static inline void say(const char *text) {
    say_bytes(text, strlen(text));
}

static inline dli_conn_t *begin_with_peer(char *requests, size_t size) {
    dli_conn_t *conn;
    cr_assert_eq(begin(&place, &conn), DL_OK, "%s", err.message);
    accept_peer(conn, requests, size);
    return conn;
}

static inline dli_conn_t *ready_with_peer(void) {
    char requests[1024];
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    say(HELLO SERVER_INFO);
    cr_assert_eq(drive(conn), DL_OK, "%s", err.message);
    return conn;
}

static inline void stop_serving(void) {
    if (listener >= 0) {
        close(listener);
    }
    if (peer >= 0) {
        close(peer);
    }
    listener = peer = -1;
}

static inline void tear_down(void) {
    stop_serving();
    remove_folder();
}

#endif
