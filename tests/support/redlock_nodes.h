/* redlock_nodes.h - several independent Redis servers, started side by side, as the nodes of redlock. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_NODES_H
#define REDLOCK_NODES_H

#include <stddef.h>

#include "support/redis_server.h"

#define REDLOCK_NODES_MAX 9

typedef struct redlock_nodes {
    size_t n, dead; /* of all n the last `dead` have a port and nothing else */
    redis_server_t *at[REDLOCK_NODES_MAX];
} redlock_nodes_t;

/* The nodes of the running case (trait CT_REDLOCK), which its clients use. */
redlock_nodes_t *ct_redlock(ct_t *ct);

/* Each in a folder of its own in `dir`, ready and marked. The dead ones refuse connections. (One that stays
 * silent costs every open its node_timeout, which the leases of the cases have no time for; see row 21.) */
void redlock_nodes_start(redlock_nodes_t *nodes, const char *dir, size_t n, size_t dead);
void redlock_nodes_stop(redlock_nodes_t *nodes);
/* A line of YAML that names them all. */
void redlock_nodes_line(const redlock_nodes_t *nodes, char *line, size_t size);

/* What `dlock init` does to a fresh node: it has a vote at once. The default of token_key. */
void redlock_node_mark(redis_server_t *node);

#endif
