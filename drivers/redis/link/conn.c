/* conn.c - one connection to one server, from the name to the goodbye; never blocks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "handshake.h"
#include "resolve.h"
#include "stream.h"

#define NS_PER_MS 1000000u
#define LABEL_SHOWN 80 /* of a label, where the message has to hold more */
#define ADDRESS_SHOWN 112
#define FULL_RETRY_NS (5u * NS_PER_MS) /* a unix server's full queue cannot be polled */

typedef enum state { RESOLVING, CONNECTING, SECURING, GREETING, READY, BROKEN } state_t;

struct dli_conn {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;
    state_t state;
    uint64_t until_ns; /* to be ready by */
    uint64_t greeted_ns;
    uint64_t turn_ns; /* while connecting: when the next address is due, or another try */
    dli_resolve_t *resolve;
    const struct addrinfo *address; /* the one that is tried */
    struct addrinfo unix_address;
    struct sockaddr_un unix_place;
    dli_stream_t stream;
    dli_handshake_t handshake;
    dli_facts_t facts;
};

/* ---- sockets ----------------------------------------------------------------------------------------- */

/* A unix socket in the shape of the addresses that a name has. 0, or ENAMETOOLONG. */
static int fill_unix(const char *path, struct sockaddr_un *place, struct addrinfo *address) {
    size_t len = strlen(path);
    memset(place, 0, sizeof *place);
    if (len >= sizeof place->sun_path) {
        return ENAMETOOLONG;
    }
    place->sun_family = AF_UNIX;
    memcpy(place->sun_path, path, len + 1);
    *address = (struct addrinfo){.ai_family = AF_UNIX,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_addr = (struct sockaddr *)place,
                                 .ai_addrlen = sizeof *place};
    return 0;
}

static void set(int fd, int level, int name, int64_t value) {
    int number = value > INT32_MAX ? INT32_MAX : (int)value;
    /* They make failures seen sooner and nothing else, so it goes without them too. */
    (void)setsockopt(fd, level, name, &number, sizeof number);
}

static void tune(int fd, const dli_endpoint_t *endpoint, const dl_driver_env_t *env) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, env->call_timeout_ms);
    if (endpoint->keepalive_s > 0) {
        /* The kernel refuses longer ones. */
        int64_t idle_s = endpoint->keepalive_s < 32767 ? endpoint->keepalive_s : 32767;
        set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
        set(fd, IPPROTO_TCP, TCP_KEEPINTVL, idle_s >= 3 ? idle_s / 3 : 1);
        set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    }
}

/*
 * Where nobody listens on a port of this host that the kernel gives to clients, a socket may connect to
 * itself, and would keep the server from ever listening there.
 */
static bool is_own_echo(int fd) {
    struct sockaddr_storage here, there;
    socklen_t here_len = sizeof here, there_len = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here.ss_family != AF_UNIX &&
           here_len == there_len && memcmp(&here, &there, here_len) == 0;
}

/* 0: connected. EINPROGRESS: writable when it is decided. EAGAIN: the server's queue is full, try again
 * later. Otherwise the errno that it failed with. *fd is -1 unless it is 0 or EINPROGRESS. */
static int start_dial(const struct addrinfo *address, const dli_endpoint_t *endpoint,
                      const dl_driver_env_t *env, int *fd) {
    *fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        return errno;
    }
    if (address->ai_family != AF_UNIX) {
        tune(*fd, endpoint, env);
    }
    int rc = connect(*fd, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (rc == 0 && is_own_echo(*fd)) {
        rc = ECONNREFUSED;
    }
    if (rc == EINTR) {
        rc = EINPROGRESS; /* it goes on all the same */
    }
    if (rc != 0 && rc != EINPROGRESS) {
        int made = *fd;
        *fd = -1; /* first, as in dli_stream_hang_up */
        close(made);
    }
    return rc;
}

/* How it was decided: 0, the errno of the failure, or EINPROGRESS: it is not yet. */
static int finish_dial(int fd) {
    int rc = 0;
    socklen_t len = sizeof rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &rc, &len) != 0) {
        return errno;
    }
    if (rc != 0) {
        return rc;
    }
    struct sockaddr_storage there;
    len = sizeof there;
    if (getpeername(fd, (struct sockaddr *)&there, &len) != 0) {
        return errno == ENOTCONN ? EINPROGRESS : errno;
    }
    return is_own_echo(fd) ? ECONNREFUSED : 0;
}

/* The address for people. */
static void name_address(const struct addrinfo *address, char name[ADDRESS_SHOWN]) {
    char host[80] = "?", port[8] = "?";
    if (address->ai_family == AF_UNIX) {
        const struct sockaddr_un *place = (const struct sockaddr_un *)(const void *)address->ai_addr;
        snprintf(name, ADDRESS_SHOWN, "%s", place->sun_path);
        return;
    }
    (void)getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(name, ADDRESS_SHOWN, address->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

static dl_status_t fail_memory(dl_error_t *err) {
    return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

static bool is_own_limit(int reason) {
    return reason == EMFILE || reason == ENFILE || reason == ENOBUFS || reason == ENOMEM;
}

static dl_status_t fail_connect(const dli_conn_t *conn, int reason, dl_error_t *err) {
    char name[ADDRESS_SHOWN];
    dl_status_t status = DL_EIO;
    if (is_own_limit(reason)) {
        status = reason == ENOMEM ? DL_ENOMEM : DL_ELIMIT;
    }
    name_address(conn->address, name);
    return dl_driver_fail(err, status, reason, "%.*s: connecting to %s: %s", LABEL_SHOWN,
                          conn->endpoint->label, name, strerror(reason));
}

static dl_status_t fail_late(const dli_conn_t *conn, dl_error_t *err) {
    static const char *const what[] = {[RESOLVING] = "the name of the server was not found in time",
                                       [SECURING] = "no answer to the TLS handshake in time (does the "
                                                    "server speak TLS on this port?)",
                                       [GREETING] = "no answer to the handshake in time"};
    if (conn->state == CONNECTING) {
        return fail_connect(conn, conn->stream.fd < 0 ? EAGAIN : ETIMEDOUT, err);
    }
    return dl_driver_fail(err, DL_EIO, ETIMEDOUT, "%s: %s", conn->endpoint->label, what[conn->state]);
}

/* A server that expects TLS hangs up at other words, or answers with an alert (record 0x15). */
static bool may_want_tls(const dli_conn_t *conn, dl_status_t status, const dl_error_t *err) {
    return (conn->state == SECURING || conn->state == GREETING) && conn->handshake == DLI_HANDSHAKE_HELLO &&
           conn->endpoint->host != NULL && !conn->endpoint->tls &&
           (strstr(err->message, "\"\\x15\"") != NULL || (status == DL_EIO && conn->stream.hung_up));
}

/* Makes the failure name the server, whoever below has met it. */
static void name_server(const dli_conn_t *conn, dl_status_t status, dl_error_t *err) {
    const char *label = conn->endpoint->label;
    const char *hint = may_want_tls(conn, status, err) ? " (perhaps it wants rediss://)" : "";
    size_t len = strlen(label) < LABEL_SHOWN ? strlen(label) : LABEL_SHOWN;
    bool is_named = strncmp(err->message, label, len) == 0;
    if (status != DL_ENOMEM && (!is_named || hint[0] != '\0')) {
        dl_error_t why = *err;
        (void)dl_driver_fail(err, status, why.native, "%.*s%s%s%s", is_named ? 0 : LABEL_SHOWN, label,
                             is_named ? "" : ": ", why.message, hint);
    }
}

static dl_status_t settle(dli_conn_t *conn, dl_status_t status, dl_error_t *err) {
    if (status != DL_OK && conn->state != BROKEN) {
        name_server(conn, status, err);
        conn->state = BROKEN;
    }
    return status;
}

/* ---- handshake --------------------------------------------------------------------------------------- */

static void become_ready(dli_conn_t *conn) {
    conn->state = READY;
    conn->facts.greeting_ns = conn->env->now_ns() - conn->greeted_ns;
    dli_stream_wipe(&conn->stream); /* the password was in it */
    dli_resolve_close(conn->resolve, false);
    conn->resolve = NULL;
    conn->address = NULL;
}

/* Reads the handshake as far as it is there. */
static dl_status_t greet(dli_conn_t *conn, dl_error_t *err) {
    while (conn->handshake != DLI_HANDSHAKE_DONE) {
        redisReply *reply;
        dl_status_t status = dli_stream_next(&conn->stream, &reply, err);
        if (status != DL_OK || reply == NULL) {
            return status;
        }
        status = dli_handshake_read(&conn->handshake, conn->endpoint, reply, &conn->facts, err);
        freeReplyObject(reply);
        if (status != DL_OK) {
            return status;
        }
    }
    if (!dli_decoder_is_empty(&conn->stream.decoder) || dli_stream_unsent(&conn->stream) > 0) {
        return dl_driver_fail(err, DL_EPROTO, 0, "%s: the server says more than it was asked",
                              conn->endpoint->label);
    }
    if (dli_stream_is_broken(&conn->stream)) {
        return dli_stream_fail(&conn->stream, err);
    }
    become_ready(conn);
    return DL_OK;
}

/* Everything that a connected socket can do now. */
static dl_status_t exchange(dli_conn_t *conn, dl_error_t *err) {
    dl_status_t status = dli_stream_flush(&conn->stream, err);
    if (status == DL_OK) {
        status = dli_stream_receive(&conn->stream, err);
    }
    if (status == DL_OK && conn->stream.tls != NULL) {
        status = dli_stream_flush(&conn->stream, err); /* its answers, and what had to wait for it */
    }
    if (status == DL_OK && conn->state == SECURING && conn->stream.is_secured) {
        conn->state = GREETING;
        conn->greeted_ns = conn->env->now_ns();
    }
    return status == DL_OK && conn->state == GREETING ? greet(conn, err) : status;
}

static dl_status_t queue_greeting(dli_conn_t *conn, dl_error_t *err) {
    dli_commands_t commands = {0};
    dl_status_t status;
    dli_handshake_write(conn->endpoint, conn->env->client_label, &commands);
    if (commands.out_of_memory) {
        status = fail_memory(err);
    } else {
        status = dli_stream_queue(&conn->stream, commands.bytes, commands.len, err);
    }
    dli_commands_free(&commands);
    return status;
}

static dl_status_t connected(dli_conn_t *conn, dl_error_t *err) {
    conn->state = SECURING;
    dl_status_t status = dli_stream_begin(&conn->stream, err);
    if (status == DL_OK) {
        status = queue_greeting(conn, err);
    }
    return status == DL_OK ? exchange(conn, err) : status;
}

/* ---- connecting -------------------------------------------------------------------------------------- */

/* Each address has an equal share of the time that is left. */
static uint64_t share_of(const dli_conn_t *conn) {
    uint64_t now = conn->env->now_ns(), count = 0;
    for (const struct addrinfo *at = conn->address; at != NULL; at = at->ai_next) {
        count++;
    }
    return now < conn->until_ns ? now + (conn->until_ns - now) / count : conn->until_ns;
}

/* Tries the addresses, from the present one on, until one does not fail at once. */
static dl_status_t dial(dli_conn_t *conn, dl_error_t *err) {
    for (;;) {
        conn->state = CONNECTING;
        int reason = start_dial(conn->address, conn->endpoint, conn->env, &conn->stream.fd);
        if (reason == 0) {
            return connected(conn, err);
        }
        if (reason == EINPROGRESS) {
            conn->turn_ns = share_of(conn);
            return DL_OK;
        }
        if (reason == EAGAIN) {
            conn->turn_ns = conn->env->now_ns() + FULL_RETRY_NS;
            return DL_OK;
        }
        if (conn->address->ai_next == NULL || is_own_limit(reason)) {
            return fail_connect(conn, reason, err);
        }
        conn->address = conn->address->ai_next;
    }
}

/* The present address is of no use. */
static dl_status_t dial_next(dli_conn_t *conn, int reason, dl_error_t *err) {
    dli_stream_hang_up(&conn->stream);
    if (conn->address->ai_next == NULL) {
        return fail_connect(conn, reason, err);
    }
    conn->address = conn->address->ai_next;
    return dial(conn, err);
}

static dl_status_t resolved(dli_conn_t *conn, dl_error_t *err) {
    dl_status_t status = dli_resolve_take(conn->resolve, &conn->address, err);
    return status == DL_OK && conn->address != NULL ? dial(conn, err) : status;
}

static dl_status_t dialled(dli_conn_t *conn, dl_error_t *err) {
    int reason = conn->stream.fd < 0 ? EINPROGRESS : finish_dial(conn->stream.fd);
    if (reason == 0) {
        return connected(conn, err);
    }
    return reason == EINPROGRESS ? DL_OK : dial_next(conn, reason, err);
}

/* ---- the owner's calls ------------------------------------------------------------------------------- */

static dl_status_t begin(dli_conn_t *conn, dl_error_t *err) {
    const dli_endpoint_t *endpoint = conn->endpoint;
    if (endpoint->host == NULL) {
        int reason = fill_unix(endpoint->path, &conn->unix_place, &conn->unix_address);
        if (reason != 0) {
            return dl_driver_fail(err, DL_ECONFIG, reason, "%s: %s", endpoint->label, strerror(reason));
        }
        conn->address = &conn->unix_address;
        return dial(conn, err);
    }
    dl_status_t status = dli_resolve_start(endpoint->host, endpoint->port, conn->env, &conn->resolve, err);
    return status == DL_OK ? resolved(conn, err) : status;
}

dl_status_t dli_conn_start(const dli_endpoint_t *endpoint, const dl_driver_env_t *env, uint64_t until_ns,
                           dli_conn_t **out, dl_error_t *err) {
    dli_conn_t *conn = calloc(1, sizeof *conn);
    *out = NULL;
    if (conn == NULL) {
        return fail_memory(err);
    }
    conn->endpoint = endpoint;
    conn->env = env;
    conn->until_ns = until_ns;
    if (endpoint->connect_timeout_ms > 0) {
        uint64_t own_ns = env->now_ns() + (uint64_t)endpoint->connect_timeout_ms * NS_PER_MS;
        conn->until_ns = own_ns < until_ns ? own_ns : until_ns;
    }
    dl_status_t status = dli_stream_init(&conn->stream, endpoint, err);
    atomic_signal_fence(memory_order_release);
    *out = conn;
    status = settle(conn, status == DL_OK ? begin(conn, err) : status, err);
    if (status != DL_OK) {
        *out = NULL;
        dli_conn_close(conn, false);
    }
    return status;
}

void dli_conn_want(const dli_conn_t *conn, struct pollfd *fd) {
    *fd = (struct pollfd){.fd = conn->stream.fd, .events = POLLIN};
    if (conn->state == RESOLVING) {
        fd->fd = dli_resolve_fd(conn->resolve);
    } else if (conn->state == CONNECTING) {
        fd->events = POLLOUT;
    } else if (dli_stream_wants_out(&conn->stream)) {
        fd->events = POLLIN | POLLOUT;
    }
}

uint64_t dli_conn_until(const dli_conn_t *conn) {
    if (conn->state == READY) {
        return DL_NO_DEADLINE;
    }
    return conn->state == CONNECTING && conn->turn_ns < conn->until_ns ? conn->turn_ns : conn->until_ns;
}

static dl_status_t fail_unready(const dli_conn_t *conn, dl_error_t *err) {
    return dl_driver_fail(err, DL_EIO, 0, "%s: the connection is %s", conn->endpoint->label,
                          conn->state == BROKEN ? "broken" : "not ready");
}

static dl_status_t step(dli_conn_t *conn, dl_error_t *err) {
    switch (conn->state) {
    case RESOLVING:
        return resolved(conn, err);
    case CONNECTING:
        return dialled(conn, err);
    case SECURING:
    case GREETING:
    case READY:
        return exchange(conn, err);
    case BROKEN:
        break;
    }
    return fail_unready(conn, err);
}

/* The time is over, or this address has had its share of it. */
static dl_status_t step_late(dli_conn_t *conn, dl_error_t *err) {
    uint64_t now = conn->env->now_ns();
    if (now >= conn->until_ns) {
        return fail_late(conn, err);
    }
    if (conn->state != CONNECTING || now < conn->turn_ns) {
        return DL_OK;
    }
    return conn->stream.fd < 0 ? dial(conn, err) : dial_next(conn, ETIMEDOUT, err);
}

dl_status_t dli_conn_step(dli_conn_t *conn, short revents, dl_error_t *err) {
    dl_status_t status = revents != 0 || conn->state == BROKEN ? step(conn, err) : DL_OK;
    if (status == DL_OK && conn->state != READY) {
        status = step_late(conn, err);
    }
    return settle(conn, status, err);
}

bool dli_conn_is_ready(const dli_conn_t *conn) {
    return conn->state == READY;
}

const dli_facts_t *dli_conn_facts(const dli_conn_t *conn) {
    return &conn->facts;
}

dl_status_t dli_conn_send(dli_conn_t *conn, const char *bytes, size_t len, dl_error_t *err) {
    if (conn->state != READY) {
        return fail_unready(conn, err);
    }
    dl_status_t status = dli_stream_queue(&conn->stream, bytes, len, err);
    if (status == DL_OK) {
        status = dli_stream_flush(&conn->stream, err);
    }
    if (status == DL_OK && dli_stream_is_broken(&conn->stream)) {
        status = dli_stream_fail(&conn->stream, err);
    }
    return settle(conn, status, err);
}

size_t dli_conn_unsent(const dli_conn_t *conn) {
    return dli_stream_unsent(&conn->stream);
}

dl_status_t dli_conn_next(dli_conn_t *conn, redisReply **reply, dl_error_t *err) {
    *reply = NULL;
    if (conn->state != READY) {
        return fail_unready(conn, err);
    }
    return settle(conn, dli_stream_next(&conn->stream, reply, err), err);
}

bool dli_conn_is_quiet(dli_conn_t *conn) {
    return conn->state == READY && dli_stream_is_quiet(&conn->stream);
}

void dli_conn_close(dli_conn_t *conn, bool forked) {
    if (conn == NULL) {
        return;
    }
    dli_stream_free(&conn->stream, forked);
    dli_resolve_close(conn->resolve, forked);
    if (!forked) {
        free(conn);
    }
}
