/* link.h - the one way to a server: commands with a deadline; each gets a reply or is unknown. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_LINK_H
#define DLI_REDIS_LINK_H

#include "conn.h"

/*
 * Behind it stands a pool: each exchange in flight has a connection to itself. An exchange that gives up
 * closes its connection, so that no reply is ever read out of step. What it had sent may still be carried
 * out: if it was a claim, the connection is condemned, and every exchange that frees first sends CLIENT KILL
 * ID for all condemned connections, on its own connection, until the server has confirmed them. A condemned
 * connection is known by its id and the server's run id; without a run id (INFO refused) or the right to
 * kill, nobody is killed.
 *
 * While the server is known to be down (connecting or the handshake failed), exchanges fail at once with the
 * reason, except for one that tries again when a backoff with jitter (at most 250 ms) is over.
 *
 * Any thread may use a link; one exchange belongs to one thread at a time.
 */
typedef struct dli_link dli_link_t;

typedef struct dli_pool_options {
    int64_t max_total, max_idle, min_idle;
    bool test_on_borrow;  /* PING before each use */
    bool test_while_idle; /* PING those that lie idle, every idle_check */
    int64_t borrow_timeout_ms, idle_timeout_ms, idle_check_ms;
    bool is_quiet;         /* whoever has the link tells when the server goes and comes */
    const char *label_key; /* where the server keeps who this client is (label.h); NULL: nowhere */
} dli_pool_options_t;

/* Each lane has a pool of its own: a full pool of calls delays no renewal. Renewals are not limited in
 * number. */
typedef enum dli_lane { DLI_LANE_CALLS, DLI_LANE_RENEWALS } dli_lane_t;
typedef enum dli_intent {
    DLI_PLAIN,
    DLI_READ,  /* changes nothing: giving it up is DL_EIO, no outcome is unknown */
    DLI_CLAIM, /* if given up after it was sent, its connection is condemned */
    DLI_FREE   /* goes behind the killing of condemned connections */
} dli_intent_t;

/* One round trip of one or more commands. */
typedef struct dli_exchange {
    /* by the caller */
    const dli_commands_t *commands; /* NULL: prepare makes them */
    redisReply *
        *replies; /* room for commands->count; filled with replies, NULL where none came; the caller frees */
    /* Optional. The connection is known, and nothing was sent yet: sets `commands` for a server of which
     * these facts are true. Called once more when the connection turns out to be dead before a byte has left.
     * DL_OK; otherwise the exchange ends with this status, and prepare has filled `err`. */
    dl_status_t (*prepare)(struct dli_exchange *exchange, const dli_facts_t *facts, dl_error_t *err);
    void *arg; /* for prepare */
    dli_lane_t lane;
    dli_intent_t intent;
    bool is_patient; /* queues for a connection until the deadline, not for borrow_timeout only */
    uint64_t deadline_ns;
    const dl_stop_t *stop; /* NULL: none */
    /* by the link */
    uint64_t sent_ns; /* the instant before the first byte left */
    /* The link's own. */
    dl_status_t status;
    dl_error_t *err;
    struct dli_member *member; /* its connection */
    struct dli_ticket *ticket; /* its place in the queue for one */
    struct dli_kills *kills;   /* what goes in front of its own commands */
    bool says_label;           /* so does the label, whose answer is still to come */
    size_t got;                /* replies that are there */
    unsigned step;
    bool is_fresh; /* the connection was made for this exchange */
    uint64_t borrow_until_ns;
    uint64_t asked_ns; /* when its connection was last spoken to first; 0: not yet */
} dli_exchange_t;

/* No I/O: the first exchange connects. The endpoint outlives the link. */
dl_status_t dli_link_open(const dli_endpoint_t *endpoint, const dli_pool_options_t *options,
                          const dl_driver_env_t *env, dli_link_t **link, dl_error_t *err);
/* No exchange is running. NULL is fine. forked: closes descriptors only. */
void dli_link_close(dli_link_t *link, bool forked);

/*
 * Runs the exchange to its end. DL_OK: every reply is there (each may be an error reply). DL_EIO: surely
 * nothing left (the server is down, cannot be reached in time, or no connection is free), or replies to what
 * only reads are missing. DL_ECANCELED: the same because of stop. DL_EUNKNOWN: it left, or part of it, and
 * replies are missing. DL_EPROTO: a reply made no sense; those missing are unknown. DL_EAUTH, DL_ENOTSUP,
 * DL_ELIMIT, DL_ENOMEM: could not connect; nothing left. err is filled.
 */
dl_status_t dli_link_run(dli_link_t *link, dli_exchange_t *exchange, dl_error_t *err);

/*
 * The same in steps, for callers that drive several links at once: begin; then while not done: poll what want
 * says until at most *until_ns, step; or abandon. After done or abandon, `status` says how it ended.
 */
void dli_link_begin(dli_link_t *link, dli_exchange_t *exchange, dl_error_t *err);
bool dli_link_is_done(const dli_exchange_t *exchange);
void dli_link_want(const dli_exchange_t *exchange, struct pollfd *fd, uint64_t *until_ns);
void dli_link_step(dli_link_t *link, dli_exchange_t *exchange, short revents);
/* `why`: DL_EIO at the deadline, DL_ECANCELED; becomes DL_EUNKNOWN where something had left. */
void dli_link_abandon(dli_link_t *link, dli_exchange_t *exchange, dl_status_t why);

/* An answer made no sense, as if it were to another question: no connection that lies idle is used again. */
void dli_link_distrust(dli_link_t *link);

/* What the last handshake learned; all zero before the first. */
void dli_link_facts(dli_link_t *link, dli_facts_t *facts);
const dli_endpoint_t *dli_link_endpoint(const dli_link_t *link);
/* At most so many connections for calls. */
int64_t dli_link_max_total(const dli_link_t *link);

#endif
