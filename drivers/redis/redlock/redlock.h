/* redlock.h - the state of a client of several independent servers, and what its parts offer each other. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_H
#define DLI_REDLOCK_H

#include <sys/queue.h>

#include "drivers/redis/lock.h"

#define DLI_NODES_MIN 3
#define DLI_NODES_MAX 15
/* What to do about nodes without a vote, in every message that tells of some. */
#define DLI_NEW_NODES "new nodes: run `dlock init`"

typedef struct dli_redlock dli_redlock_t;
typedef struct dli_round dli_round_t;

/* In the core's memory of each attempt and hold. */
typedef struct dli_redlock_hold {
    dli_round_t *round; /* NULL: nothing was asked for it */
} dli_redlock_hold_t;

/* One server. `redis` has its connections, subscriber and names, and the layout of redis-string. */
typedef struct dli_node {
    dli_redis_t redis;
    dli_redlock_t *redlock;
    size_t index;
    size_t polled; /* descriptors, by whoever listens */
    /* With the core's mutex held. */
    char run_id[41]; /* of the process that its last connection found; "": none yet, or not known */
    bool is_twin;    /* it was the same process as another node's; has been reported */
    bool is_down;    /* not reachable, as reported last */
    uint64_t excluded_until_ns; /* it has no vote (quarantine), as it was heard of last; 0: it has one */
    bool lags;                  /* it answered late last time: nobody waits long for it ... */
    uint64_t waited_ns;         /* ... when somebody did in vain, since it last was in time; 0: nobody */
} dli_node_t;

struct dli_redlock {
    const dl_driver_env_t *env; /* NULL: never opened */
    const dli_backend_env_t *core;
    dli_layout_t layout; /* of redis-string, under this driver's name */
    size_t n, quorum;    /* quorum = n / 2 + 1 */
    int64_t node_timeout_ms;
    bool fences;
    dli_voting_t voting;
    /* What is above is fixed once it is open. */
    dli_node_t nodes[DLI_NODES_MAX];
    /* With the core's mutex held */
    LIST_HEAD(, dli_round) rounds; /* that are asked */
    LIST_HEAD(, dli_round) all;    /* also those that only late answers belong to */
    dli_redlock_hold_t spare;      /* for renewals when there is no memory */
    bool has_begun;                /* some are to be sent */
    uint64_t due_ns;               /* the first round's end is no sooner */
    dl_error_t unread;             /* for requests that want no error */
    uint64_t polled_to_ns;         /* until when whoever listens does, at the longest */
    uint64_t polled_ns, read_ns;   /* since when; what had come by then was read */
    /* waiting.c: some nodes have told; which is due first is first */
    TAILQ_HEAD(dli_watches, dl_watch) telling;
};

/* ---- settings.c: what the configuration may say ------------------------------------------------------ */

/* In place of the first of options.h. */
enum {
    DLI_REDLOCK_OPT_NODES,
    DLI_REDLOCK_OPT_NODE_TIMEOUT,
    DLI_REDLOCK_OPT_MAX_LEASE,
    DLI_REDLOCK_OPT_FENCING,
    DLI_REDLOCK_OPT_QUARANTINE,
    DLI_REDLOCK_OPT_DURABLE,
    DLI_REDLOCK_OPT_OWN,
    DLI_REDLOCK_OPT_COUNT = DLI_REDIS_OPT_ALSO_PUBLISH
};

extern const dl_option_t dli_redlock_options[];

/* What init needs of the options: names, numbers and endpoints. Close can follow, whatever the status. No
 * I/O. */
dl_status_t dli_redlock_configure(dli_redlock_t *redlock, const dl_option_value_t *values,
                                  const dl_driver_env_t *env, dl_error_t *err);

/* ---- nodes.c: who the nodes are --------------------------------------------------------------------- */

/* As `meets` of the multiplexer. A connection to the node found this server. DL_OK; DL_ECONFIG: another
 * node's connection found the same one, so this node has no vote. DL_EAUTH: the server keeps its run id
 * secret (INFO is refused), and without it neither that nor a restart can be noticed. err is filled. */
dl_status_t dli_node_meet(void *node, const dli_facts_t *facts, dl_error_t *err);
/* Remembers how the last exchange with the node ended, and reports a change as a warning (down: why;
 * excluded: for how long) or as a note (back again). */
void dli_node_tell(dli_node_t *node, dl_status_t status, const dl_error_t *why);
void dli_node_tell_excluded(dli_node_t *node, int64_t left_ms);
/* As dli_redis_open_alone: a connection that meets the node. It is used without the mutex. */
dl_status_t dli_node_open_alone(dli_node_t *node, dli_redis_t **alone, dl_error_t *err);
/* Masks of nodes: bit i is node i. */
static inline uint32_t dli_nodes_all(const dli_redlock_t *redlock) {
    return (1u << redlock->n) - 1;
}
static inline size_t dli_nodes_count(uint32_t mask) {
    return (size_t)__builtin_popcount(mask);
}
/* For ops that need a majority of all nodes: what each said, by its status. DL_OK: a majority is good.
 * Otherwise as dli_tally_reasons, of those that are not. */
dl_status_t dli_nodes_need_majority(const dli_redlock_t *redlock, const dl_error_t said[], dl_error_t *err);

/* ---- rounds (round.c) ------------------------------------------------------------------------------- */

/* Those whose time was over when it was read last come to an end. */
void dli_rounds_expire(dli_redlock_t *redlock);
/* The client closes: no answer comes any more. */
void dli_rounds_abandon(dli_redlock_t *redlock);

/* ---- backend.c: what the core calls ----------------------------------------------------------------- */

void dli_redlock_begin(void *state, dli_request_t *request);
bool dli_redlock_withdraw(void *state, dli_request_t *request);
bool dli_redlock_flush(void *state);

/* ---- waiting.c, listing.c, check.c, init.c: the ops of the driver ------------------------------------- */

dl_status_t dli_redlock_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                              dl_error_t *err);
void dli_redlock_unwatch(void *state, dl_watch_t *watch);
size_t dli_redlock_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns);
void dli_redlock_listen(void *state, const struct pollfd *fds, size_t n);
dl_status_t dli_redlock_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                             uint64_t deadline_ns, dl_error_t *err);
dl_status_t dli_redlock_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                              dl_error_t *err);
dl_status_t dli_redlock_init(const dl_option_value_t *options, const dl_driver_env_t *env, unsigned flags,
                             dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);

/* ---- driver.c ------------------------------------------------------------------------------------------ */

dl_status_t dli_redlock_open(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                             uint64_t deadline_ns, dl_error_t *err);
void dli_redlock_close(void *state, int forked);
void dli_redlock_drop(void *state, void *driver_hold);
/* The connections of all nodes, and memory for renewals; no I/O. */
dl_status_t dli_redlock_connect(dli_redlock_t *redlock, dli_mux_options_t options, dl_error_t *err);

#endif
