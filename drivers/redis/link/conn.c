/* conn.c - one connection to one server, from the name to the goodbye; never blocks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "conn.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dial.h"
#include "handshake.h"
#include "tls.h"

#define LABEL_SHOWN 80                 /* of a label, where the message has to hold more */
#define FULL_RETRY_NS (5u * NS_PER_MS) /* a unix server's full queue cannot be polled */
#define KEPT_BYTES ((size_t)64 * 1024) /* so much memory is kept for what is sent next */
#define READS_MAX 16                   /* in a row, so that a flood keeps nobody from looking at the time */

typedef enum state { RESOLVING, CONNECTING, SECURING, GREETING, READY, BROKEN } state_t;

struct dli_conn {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;
    state_t state;
    uint64_t began_ns, until_ns; /* to be ready by */
    uint64_t greeted_ns;
    uint64_t turn_ns; /* while connecting: when the next address is due, or another try */
    dli_resolve_t *resolve;
    const struct addrinfo *address; /* the one that is tried */
    dli_handshake_t handshake;
    dli_facts_t facts;
    int fd; /* its own; -1: none */
    dli_tls_t *tls;
    bool is_secured; /* by TLS; true from the start where there is none */
    dli_decoder_t decoder;
    dli_commands_t out; /* queued bytes, of which `left` have left or are in a record of TLS */
    size_t left;
    size_t in_record; /* bytes in the last record while nothing of it has left */
    uint64_t gone;    /* bytes that have left, and made room */
    bool cannot_send; /* what the server said before may still be there to read */
    bool hung_up;     /* nothing comes any more */
    int reason;       /* of either: an errno; 0: a goodbye */
};

/* ---- failures ---------------------------------------------------------------------------------------- */

static dl_status_t fail_memory(dl_error_t *err) {
    return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

static dl_status_t fail_hung_up(const dli_conn_t *conn, dl_error_t *err) {
    const char *when = conn->is_secured ? "" : " during the TLS handshake";
    const char *label = conn->endpoint->label;
    int reason = conn->reason;
    if (reason == 0 || reason == ECONNRESET || reason == EPIPE) {
        return dl_driver_fail(err, DL_EIO, reason, "%s: the server closed the connection%s", label, when);
    }
    return dl_driver_fail(err, DL_EIO, reason, "%s: the connection broke%s: %s", label, when,
                          strerror(reason));
}

static bool is_own_limit(int reason) {
    return reason == EMFILE || reason == ENFILE || reason == ENOBUFS || reason == ENOMEM;
}

static dl_status_t fail_connect(const dli_conn_t *conn, int reason, dl_error_t *err) {
    char name[DLI_ADDRESS_SHOWN];
    dl_status_t status = DL_EIO;
    if (is_own_limit(reason)) {
        status = reason == ENOMEM ? DL_ENOMEM : DL_ELIMIT;
    }
    dli_address_show(conn->address, name);
    return dl_driver_fail(err, status, reason, "%.*s: connecting to %s: %s", LABEL_SHOWN,
                          conn->endpoint->label, name, strerror(reason));
}

static dl_status_t fail_late(const dli_conn_t *conn, dl_error_t *err) {
    static const char *const what[] = {[RESOLVING] = "the name of the server was not found in time",
                                       [SECURING] = "no answer to the TLS handshake in time (does the "
                                                    "server speak TLS on this port?)",
                                       [GREETING] = "no answer to the handshake in time"};
    if (conn->state == CONNECTING) {
        return fail_connect(conn, conn->fd < 0 ? EAGAIN : ETIMEDOUT, err);
    }
    return dl_driver_fail(err, DL_EIO, ETIMEDOUT, "%s: %s", conn->endpoint->label, what[conn->state]);
}

/* A server that expects TLS hangs up at other words, or answers with an alert (record 0x15). */
static bool may_want_tls(const dli_conn_t *conn, dl_status_t status, const dl_error_t *err) {
    return (conn->state == SECURING || conn->state == GREETING) && conn->handshake == DLI_HANDSHAKE_HELLO &&
           conn->endpoint->host != NULL && !conn->endpoint->tls &&
           (strstr(err->message, "\"\\x15\"") != NULL || (status == DL_EIO && conn->hung_up));
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

/* ---- in ---------------------------------------------------------------------------------------------- */

/* Decrypts what was fed. *fed grows by what came out. */
static dl_status_t decrypt(dli_conn_t *conn, char bytes[DLI_TLS_RECORD_MAX], size_t *fed, dl_error_t *err) {
    dl_status_t status = DL_OK;
    size_t got = 1;
    bool is_over = false;
    while (status == DL_OK && got > 0) {
        status = dli_tls_read(conn->tls, bytes, &got, &is_over, err);
        if (status == DL_OK && got > 0) {
            *fed += got;
            status = dli_decoder_feed(&conn->decoder, bytes, got, err);
        }
    }
    if (status == DL_OK && is_over) {
        conn->hung_up = true;
        conn->reason = 0;
    }
    return status;
}

static dl_status_t take_in(dli_conn_t *conn, char bytes[DLI_TLS_RECORD_MAX], size_t len, size_t *fed,
                           dl_error_t *err) {
    if (!conn->endpoint->tls) {
        *fed += len;
        return dli_decoder_feed(&conn->decoder, bytes, len, err);
    }
    dl_status_t status = dli_tls_feed(conn->tls, bytes, len, err);
    if (status == DL_OK && !conn->is_secured) {
        *fed += len;
        status = dli_tls_shake(conn->tls, &conn->is_secured, err);
    }
    return status == DL_OK && conn->is_secured ? decrypt(conn, bytes, fed, err) : status;
}

static dl_status_t receive(dli_conn_t *conn, dl_error_t *err) {
    char bytes[DLI_TLS_RECORD_MAX];
    size_t fed = 0;
    dl_status_t status = DL_OK;
    for (int reads = 0; reads < READS_MAX && status == DL_OK; reads++) {
        ssize_t n = recv(conn->fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n <= 0) {
            conn->reason = n < 0 ? errno : conn->reason;
            conn->hung_up = true;
            break;
        }
        status = take_in(conn, bytes, (size_t)n, &fed, err);
        if ((size_t)n < sizeof bytes) {
            break; /* that was all */
        }
    }
    return status == DL_OK && conn->hung_up && fed == 0 ? fail_hung_up(conn, err) : status;
}

/* As dli_conn_next, whatever the state. */
static dl_status_t next_reply(dli_conn_t *conn, redisReply **reply, dl_error_t *err) {
    *reply = NULL;
    dl_status_t status = dli_decoder_next(&conn->decoder, reply, err);
    return status == DL_OK && *reply == NULL && conn->hung_up ? fail_hung_up(conn, err) : status;
}

/* ---- out --------------------------------------------------------------------------------------------- */

/* What can be sent now: the queue itself, or records of it. *len is 0 when there is nothing. */
static dl_status_t next_bytes(dli_conn_t *conn, const char **at, size_t *len, dl_error_t *err) {
    size_t queued = conn->out.len - conn->left;
    if (!conn->endpoint->tls) {
        *at = queued > 0 ? conn->out.bytes + conn->left : "";
        *len = queued;
        return DL_OK;
    }
    *at = dli_tls_pending(conn->tls, len);
    if (*len > 0 || queued == 0 || !conn->is_secured) {
        return DL_OK;
    }
    size_t part = queued < DLI_TLS_RECORD_MAX ? queued : DLI_TLS_RECORD_MAX;
    dl_status_t status = dli_tls_write(conn->tls, conn->out.bytes + conn->left, part, err);
    if (status == DL_OK) {
        conn->left += part;
        conn->in_record = part;
        *at = dli_tls_pending(conn->tls, len);
    }
    return status;
}

/* What has left makes room once it is the greater part: a line may never have sent all. */
static void note_sent(dli_conn_t *conn, size_t n) {
    if (conn->endpoint->tls) {
        dli_tls_sent(conn->tls, n);
        conn->in_record = 0;
    } else {
        conn->left += n;
    }
    size_t queued = conn->out.len - conn->left;
    if (conn->left > queued) {
        memmove(conn->out.bytes, conn->out.bytes + conn->left, queued);
        conn->gone += conn->left;
        conn->out.len = queued;
        conn->left = 0;
    }
    if (conn->out.len == 0 && conn->out.cap > KEPT_BYTES) {
        dli_commands_free(&conn->out);
    }
}

static dl_status_t flush(dli_conn_t *conn, dl_error_t *err) {
    while (!conn->cannot_send && !conn->hung_up) {
        const char *at;
        size_t len;
        dl_status_t status = next_bytes(conn, &at, &len, err);
        if (status != DL_OK || len == 0) {
            return status;
        }
        ssize_t n = send(conn->fd, at, len, MSG_NOSIGNAL);
        if (n >= 0) {
            note_sent(conn, (size_t)n);
        } else if (errno == EAGAIN) {
            return DL_OK;
        } else if (errno != EINTR) {
            conn->cannot_send = true;
            conn->reason = errno;
        }
    }
    return DL_OK;
}

static bool is_broken(const dli_conn_t *conn) {
    return conn->cannot_send || conn->hung_up;
}

static bool wants_out(const dli_conn_t *conn) {
    size_t records = 0;
    if (conn->tls != NULL) {
        (void)dli_tls_pending(conn->tls, &records);
    }
    return !is_broken(conn) && (records > 0 || (conn->is_secured && conn->left < conn->out.len));
}

/* ---- handshake --------------------------------------------------------------------------------------- */

static void become_ready(dli_conn_t *conn) {
    conn->state = READY;
    dli_commands_free(&conn->out); /* wiped: the password was in it */
    dli_resolve_close(conn->resolve, false);
    conn->resolve = NULL;
    conn->address = NULL;
}

/* The server is there and answers, and may hold back writes: for that it has all the time that it wants. */
static bool is_held_back(const dli_conn_t *conn) {
    return conn->state == GREETING && conn->handshake >= DLI_HANDSHAKE_SCRIPT;
}

/* Reads the handshake as far as it is there. */
static dl_status_t greet(dli_conn_t *conn, dl_error_t *err) {
    while (conn->handshake != DLI_HANDSHAKE_DONE) {
        redisReply *reply;
        dl_status_t status = next_reply(conn, &reply, err);
        if (status != DL_OK || reply == NULL) {
            return status;
        }
        status = dli_handshake_read(&conn->handshake, conn->endpoint, reply, &conn->facts, err);
        freeReplyObject(reply);
        if (status != DL_OK) {
            return status;
        }
        if (conn->handshake == DLI_HANDSHAKE_SCRIPT) {
            uint64_t now_ns = conn->env->now_ns();
            conn->facts.greeting_ns = now_ns - conn->greeted_ns;
            conn->facts.made_ns = now_ns - conn->began_ns;
        }
    }
    if (!dli_decoder_is_empty(&conn->decoder) || dli_conn_unsent(conn) > 0) {
        return dl_driver_fail(err, DL_EPROTO, 0, "%s: the server says more than it was asked",
                              conn->endpoint->label);
    }
    if (is_broken(conn)) {
        return fail_hung_up(conn, err);
    }
    become_ready(conn);
    return DL_OK;
}

/* Everything that a connected socket can do now. */
static dl_status_t exchange(dli_conn_t *conn, dl_error_t *err) {
    dl_status_t status = flush(conn, err);
    if (status == DL_OK) {
        status = receive(conn, err);
    }
    if (status == DL_OK && conn->tls != NULL) {
        status = flush(conn, err); /* its answers, and what had to wait for it */
    }
    if (status == DL_OK && conn->state == SECURING && conn->is_secured) {
        conn->state = GREETING;
        conn->greeted_ns = conn->env->now_ns();
    }
    return status == DL_OK && conn->state == GREETING ? greet(conn, err) : status;
}

static dl_status_t connected(dli_conn_t *conn, dl_error_t *err) {
    dl_status_t status = DL_OK;
    conn->state = SECURING;
    conn->is_secured = !conn->endpoint->tls;
    if (!conn->is_secured) {
        status = dli_tls_open(conn->endpoint, &conn->tls, err);
        status = status == DL_OK ? dli_tls_shake(conn->tls, &conn->is_secured, err) : status;
    }
    dli_handshake_write(conn->endpoint, conn->env->client_label, &conn->out);
    status = status == DL_OK && conn->out.out_of_memory ? fail_memory(err) : status;
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
        int reason = dli_dial(conn->address, conn->endpoint, conn->env, &conn->fd);
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

static void hang_up(dli_conn_t *conn) {
    int fd = conn->fd;
    conn->fd = -1; /* first, lest a child that is forked here closes a number that is somebody else's */
    if (fd >= 0) {
        close(fd);
    }
}

/* The present address is of no use. */
static dl_status_t dial_next(dli_conn_t *conn, int reason, dl_error_t *err) {
    hang_up(conn);
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
    int reason = conn->fd < 0 ? EINPROGRESS : dli_dialled(conn->fd);
    if (reason == 0) {
        return connected(conn, err);
    }
    return reason == EINPROGRESS ? DL_OK : dial_next(conn, reason, err);
}

/* ---- the owner's calls ------------------------------------------------------------------------------- */

dl_status_t dli_conn_start(const dli_endpoint_t *endpoint, const dl_driver_env_t *env, dli_conn_t **out,
                           dl_error_t *err) {
    dli_conn_t *conn = calloc(1, sizeof *conn);
    *out = NULL;
    if (conn == NULL) {
        return fail_memory(err);
    }
    conn->endpoint = endpoint;
    conn->env = env;
    conn->began_ns = env->now_ns();
    conn->until_ns = conn->began_ns + (uint64_t)endpoint->connect_timeout_ms * NS_PER_MS;
    conn->fd = -1;
    dl_status_t status = dli_decoder_init(&conn->decoder) ? DL_OK : fail_memory(err);
    atomic_signal_fence(memory_order_release);
    *out = conn;
    status = status == DL_OK ? dli_resolve_start(endpoint, env, &conn->resolve, err) : status;
    status = settle(conn, status == DL_OK ? resolved(conn, err) : status, err);
    if (status != DL_OK) {
        *out = NULL;
        dli_conn_close(conn, false);
    }
    return status;
}

void dli_conn_want(const dli_conn_t *conn, struct pollfd *fd) {
    *fd = (struct pollfd){.fd = conn->fd, .events = POLLIN};
    if (conn->state == RESOLVING) {
        fd->fd = dli_resolve_fd(conn->resolve);
    } else if (conn->state == CONNECTING) {
        fd->events = POLLOUT;
    } else if (wants_out(conn)) {
        fd->events = POLLIN | POLLOUT;
    }
}

uint64_t dli_conn_until(const dli_conn_t *conn) {
    if (conn->state == READY || is_held_back(conn)) {
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
    if (now >= conn->until_ns && !is_held_back(conn)) {
        return fail_late(conn, err);
    }
    if (conn->state != CONNECTING || now < conn->turn_ns) {
        return DL_OK;
    }
    return conn->fd < 0 ? dial(conn, err) : dial_next(conn, ETIMEDOUT, err);
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

dli_commands_t *dli_conn_out(dli_conn_t *conn) {
    return &conn->out;
}

dl_status_t dli_conn_flush(dli_conn_t *conn, dl_error_t *err) {
    if (conn->state != READY) {
        return fail_unready(conn, err);
    }
    dl_status_t status = conn->out.out_of_memory ? fail_memory(err) : flush(conn, err);
    if (status == DL_OK && is_broken(conn)) {
        status = fail_hung_up(conn, err);
    }
    return settle(conn, status, err);
}

uint64_t dli_conn_queued(const dli_conn_t *conn) {
    return conn->gone + conn->out.len;
}

size_t dli_conn_unsent(const dli_conn_t *conn) {
    return conn->out.len - conn->left + conn->in_record;
}

dl_status_t dli_conn_next(dli_conn_t *conn, redisReply **reply, dl_error_t *err) {
    *reply = NULL;
    if (conn->state != READY) {
        return fail_unready(conn, err);
    }
    return settle(conn, next_reply(conn, reply, err), err);
}

bool dli_conn_is_quiet(dli_conn_t *conn) {
    char byte;
    if (conn->state != READY || is_broken(conn) || wants_out(conn) || !dli_decoder_is_empty(&conn->decoder)) {
        return false;
    }
    return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

void dli_conn_close(dli_conn_t *conn, bool forked) {
    if (conn == NULL) {
        return;
    }
    hang_up(conn);
    dli_resolve_close(conn->resolve, forked);
    if (!forked) {
        dli_tls_close(conn->tls);
        dli_decoder_free(&conn->decoder);
        dli_commands_free(&conn->out);
        free(conn);
    }
}
