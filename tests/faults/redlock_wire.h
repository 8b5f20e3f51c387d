/* redlock_wire.h - what the faults of redlock share: proxies before some nodes, and the votes on all. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_WIRE_H
#define REDLOCK_WIRE_H

#include "faults/wire.h"
#include "support/redlock_nodes.h"

/* Cases in which nodes fail: it takes some that work. */
#define REDLOCK .traits = CT_REDLOCK, .traits_not = CT_DEAD_MINORITY

static inline size_t node_count(ct_t *ct) {
    return ct_redlock(ct)->n;
}

static inline size_t quorum_of(ct_t *ct) {
    return node_count(ct) / 2 + 1;
}

/* How many may fail: one of three, two of five. */
static inline size_t spare_of(ct_t *ct) {
    return node_count(ct) - quorum_of(ct);
}

static inline redis_server_t *node_at(ct_t *ct, size_t i) {
    return ct_redlock(ct)->at[i];
}

/* ---- votes ------------------------------------------------------------------------------------------- */

static inline int has_vote(ct_t *ct, size_t node, const char *name) {
    return (int)redis_number(node_at(ct, node), "EXISTS dlock:%s", name);
}

/* At how many of the nodes that run somebody has the name. */
static inline size_t votes_for(ct_t *ct, const char *name) {
    size_t votes = 0;
    for (size_t i = 0; i < node_count(ct); i++) {
        votes += node_at(ct, i)->pid > 0 && has_vote(ct, i, name);
    }
    return votes;
}

/* ---- proxies before the first nodes -------------------------------------------------------------------- */

typedef struct front {
    size_t n;
    proxy_t *at[REDLOCK_NODES_MAX];
} front_t;

static inline front_t start_front(ct_t *ct, size_t n) {
    front_t front = {.n = n};
    for (size_t i = 0; i < n; i++) {
        front.at[i] = proxy_start(ct, node_at(ct, i)->port);
    }
    return front;
}

static inline void stop_front(ct_t *ct, front_t *front) {
    for (size_t i = 0; i < front->n; i++) {
        proxy_stop(ct, front->at[i]);
    }
}

#define EACH_PROXY(front_, call_)                    \
    do {                                             \
        for (size_t i_ = 0; i_ < (front_).n; i_++) { \
            proxy_t *proxy = (front_).at[i_];        \
            call_;                                   \
        }                                            \
    } while (0)

/* Lines for ct_open: the nodes, the first ones through the proxies, and `extra`. The thread's own. */
static inline const char *through(ct_t *ct, const front_t *front, const char *extra) {
    static _Thread_local char lines[1200];
    size_t at = (size_t)snprintf(lines, sizeof lines, "nodes: [");
    for (size_t i = 0; i < node_count(ct); i++) {
        int port = i < front->n ? proxy_port(front->at[i]) : node_at(ct, i)->port;
        at += (size_t)snprintf(lines + at, sizeof lines - at, "%s\"redis://127.0.0.1:%d/0\"",
                               i == 0 ? "" : ", ", port);
    }
    snprintf(lines + at, sizeof lines - at, "]\n%s", extra == NULL ? "" : extra);
    return lines;
}

/* Lines that set times, in units of which the sanitizers need more. The thread's own. */
static inline int64_t scaled(ct_t *ct, int64_t ms) {
    return ms * ct_lease_ms(ct) / 400;
}

static inline const char *times(ct_t *ct, int64_t node_timeout_ms, int64_t call_timeout_ms,
                                int64_t lease_ms) {
    static _Thread_local char lines[128];
    snprintf(lines, sizeof lines, "node_timeout: %lldms\ncall_timeout: %lldms\nlease: %lldms",
             (long long)scaled(ct, node_timeout_ms), (long long)scaled(ct, call_timeout_ms),
             (long long)scaled(ct, lease_ms));
    return lines;
}

#endif
