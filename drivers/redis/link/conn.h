/* conn.h - one connection to one server, from the name to the goodbye; never blocks. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CONN_H
#define DLI_REDIS_CONN_H

#include "command.h"
#include "endpoint.h"
#include "reply.h"

/*
 * A connection is a state machine: resolving (by a helper thread, since getaddrinfo cannot be bounded),
 * connecting, TLS, handshake (HELLO, SELECT, INFO, a script, HELLO), ready. Its owner polls what
 * dli_conn_want says and calls dli_conn_step. One owner at a time; no locking inside.
 */
typedef struct dli_conn dli_conn_t;

/* What the handshake learned. */
typedef struct dli_facts {
    char product[16]; /* "redis" or "valkey" */
    char version[32];
    int version_number; /* 7.0.15 is 70015 */
    char run_id[41];    /* "" when the user may not ask */
    bool is_cluster;
    int64_t client_id;    /* the server's number of this connection */
    uint64_t greeting_ns; /* how long the answer to the greeting took: a round trip and a little more */
    uint64_t made_ns;     /* and all until then */
} dli_facts_t;

/* Begins. The endpoint outlives the connection. After its connect_timeout it is a failure not to be ready,
 * unless the server holds back writes: then it takes as long as that. DL_OK, or what dli_conn_step returns:
 * what can be done without waiting is done here already. *conn is set before there is a descriptor, so that a
 * child that is forked meanwhile finds it. */
dl_status_t dli_conn_start(const dli_endpoint_t *endpoint, const dl_driver_env_t *env, dli_conn_t **conn,
                           dl_error_t *err);
/* What to poll for now. */
void dli_conn_want(const dli_conn_t *conn, struct pollfd *fd);
/* Step it by then, whatever comes: the next address is due, or it is too late. DL_NO_DEADLINE once ready. */
uint64_t dli_conn_until(const dli_conn_t *conn);
/* Does what can be done without blocking; revents 0 looks at the time only. DL_OK; otherwise it is broken and
 * can only be closed: DL_EIO (refused, hung up, too late, a replica, LOADING ...), DL_EAUTH (also: a
 * certificate is refused, by whichever side), DL_ENOTSUP (too old, a cluster, a sentinel), DL_ECONFIG (no
 * such database, a file of TLS), DL_EPROTO, DL_ELIMIT, DL_ENOMEM. */
dl_status_t dli_conn_step(dli_conn_t *conn, short revents, dl_error_t *err);
bool dli_conn_is_ready(const dli_conn_t *conn);
const dli_facts_t *dli_conn_facts(const dli_conn_t *conn);

/* Ready only. What is put there leaves with the next flush, as far as it can be written now, or when
 * dli_conn_step can write the rest. */
dli_commands_t *dli_conn_out(dli_conn_t *conn);
dl_status_t dli_conn_flush(dli_conn_t *conn, dl_error_t *err);
/* Bytes that were put there; those of them that surely did not leave this process. */
uint64_t dli_conn_queued(const dli_conn_t *conn);
size_t dli_conn_unsent(const dli_conn_t *conn);
/* DL_OK with the next reply, or NULL when there is none yet; otherwise broken. The reply is the caller's. */
dl_status_t dli_conn_next(dli_conn_t *conn, redisReply **reply, dl_error_t *err);
/* Idle and in step: nothing to read, no hang-up. One system call. */
bool dli_conn_is_quiet(dli_conn_t *conn);
/* forked: closes the descriptor and does nothing else. NULL is fine. */
void dli_conn_close(dli_conn_t *conn, bool forked);

#endif
