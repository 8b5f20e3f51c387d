/* redlock.h - the state of a client of several independent servers, and what its parts offer each other. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_H
#define DLI_REDLOCK_H

#include "drivers/redis/lock.h"

#define DLI_NODES_MIN 3
#define DLI_NODES_MAX 15
/* What to do about nodes without a vote, in every message that tells of some. */
#define DLI_NEW_NODES "new nodes: run `dlock init`"

typedef struct dli_redlock dli_redlock_t;
typedef struct dli_stragglers dli_stragglers_t;

/* One server. `redis` has its link, subscriber and names, and the layout of redis-string, so that the ops of
 * a single server work on it. */
typedef struct dli_node {
    dli_redis_t redis;
    dli_redlock_t *redlock;
    size_t index;
    /* With the client's mutex held. */
    char run_id[41];           /* of the process that its last connection found; "": none yet, or not known */
    bool is_twin;              /* it was the same process as another node's; has been reported */
    bool is_down, is_excluded; /* as reported last: not reachable; has no vote (quarantine) */
    uint64_t excluded_until_ns; /* of that quarantine, as it was heard of last */
    /* Parts of it that the stragglers have; those of them that are for renewals. */
    atomic_size_t backlog, late_renewals;
    atomic_bool lags; /* it answered late last time: nobody lingers for it */
} dli_node_t;

struct dli_redlock {
    const dl_driver_env_t *env; /* NULL: never opened */
    dli_node_t nodes[DLI_NODES_MAX];
    dli_layout_t layout; /* of redis-string, under this driver's name */
    size_t n, quorum;    /* quorum = n / 2 + 1 */
    int64_t node_timeout_ms, max_lease_ms;
    bool fences, quarantines, durable;
    /* token_key with ":node" and ":quarantine" behind it, the same on every node. */
    char marker_key[DLI_PREFIX_MAX + 16], quarantine_key[DLI_PREFIX_MAX + 16];
    pthread_mutex_t mutex;
    dli_stragglers_t *stragglers;
    /* When renewals, and claims, last waited for a late node in vain; 0: they did not. */
    atomic_uint_fast64_t waited_ns, claims_waited_ns;
    /* With the mutex held: for a free and for a renewal without memory; NULL: none. */
    struct dli_round *spare, *renewal_spare;
    dl_watch_t *telling, *telling_last; /* waiting.c, the same: some nodes have told, which first is first */
};

static inline uint64_t dli_call_timeout_ns(const dli_redlock_t *redlock) {
    return (uint64_t)redlock->env->call_timeout_ms * 1000000;
}

/* ---- nodes.c: who the nodes are --------------------------------------------------------------------- */

/* A connection to the node found a server with this run id. DL_OK; DL_ECONFIG: another node's connection
 * found the same one, so this node has no vote. DL_EAUTH: the server keeps its run id secret (INFO is
 * refused), and without it neither that nor a restart can be noticed. err is filled. */
dl_status_t dli_node_meet(dli_node_t *node, const char *run_id, dl_error_t *err);
/* Remembers how the last exchange with the node ended, and reports a change as a warning (down: why;
 * excluded: for how long) or as a note (back again). */
void dli_node_tell(dli_node_t *node, dl_status_t status, const dl_error_t *why);
void dli_node_tell_excluded(dli_node_t *node, int64_t left_ms);
/* Masks of nodes: bit i is node i. */
static inline uint32_t dli_nodes_all(const dli_redlock_t *redlock) {
    return (1u << redlock->n) - 1;
}
size_t dli_nodes_count(uint32_t mask);
/* What each of all nodes said, for ops that need a majority of them. */
typedef struct dli_verdicts {
    uint32_t good; /* the nodes that answered */
    dl_status_t statuses[DLI_NODES_MAX];
    dl_error_t errors[DLI_NODES_MAX];
} dli_verdicts_t;
/* DL_OK: a majority is good. Otherwise what the others have in common, or DL_EIO, with the first reason. */
dl_status_t dli_nodes_need_majority(const dli_redlock_t *redlock, const dli_verdicts_t *verdicts,
                                    dl_error_t *err);

/* ---- acquire.c, release.c, renewals.c, waiting.c, admin.c, check.c, init.c: the ops of the driver ------ */

dl_status_t dli_redlock_try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                    dl_error_t *err);
dl_status_t dli_redlock_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err);
/* release.c, for acquire.c: frees what an attempt that failed may have got at these nodes, and tells nobody.
 * Waits until all but a minority of all nodes surely has nothing of this hold, or until the end that the
 * request and node_timeout set. How many nodes may still have it afterwards. */
size_t dli_redlock_give_back(dli_redlock_t *redlock, const dl_request_t *request, uint32_t nodes);
/* release.c, for acquire.c: the next hold can be freed without memory. false: out of memory. */
bool dli_redlock_keep_spare(dli_redlock_t *redlock);
/* renewals.c, for acquire.c: the same for renewals. */
bool dli_redlock_keep_renewal_spare(dli_redlock_t *redlock);
void dli_redlock_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns);
dl_status_t dli_redlock_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                              dl_error_t *err);
void dli_redlock_unwatch(void *state, dl_watch_t *watch);
size_t dli_redlock_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns);
void dli_redlock_listen(void *state, const struct pollfd *fds, size_t n);
dl_status_t dli_redlock_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                dl_lock_info_t *info, dl_error_t *err);
dl_status_t dli_redlock_force_release(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                      dl_error_t *err);
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

#endif
