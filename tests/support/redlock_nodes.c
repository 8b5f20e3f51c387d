/* redlock_nodes.c - starts the nodes of redlock, marks them, and makes ports at which nobody answers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/redlock_nodes.h"

#include <stdio.h>
#include <string.h>

#include "support/alloc_fail.h"
#include "support/ct.h"
#include "support/port.h"

void redlock_node_mark(redis_server_t *node) {
    ct_t *ct = ct_current();
    char run_id[41] = "";
    const char *at = strstr(redis_ask(node, "INFO server"), "\nrun_id:");
    CT_CHECKF(at != NULL && sscanf(at, "\nrun_id:%40[0-9a-f]", run_id) == 1, "INFO has no run id");
    CT_STR_EQ(redis_ask(node, "SET dlock_tokens:node %s", run_id), "OK");
    (void)redis_ask(node, "DEL dlock_tokens:quarantine");
}

void redlock_nodes_start(redlock_nodes_t *nodes, const char *dir, size_t n, size_t dead) {
    ct_t *ct = ct_current();
    CT_LE(n, REDLOCK_NODES_MAX);
    CT_LT(dead, n);
    *nodes = (redlock_nodes_t){.n = n, .dead = dead};
    for (size_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "node%zu", i);
        if (i < n - dead) {
            nodes->at[i] = redis_server_new(dir, name);
            redis_server_launch(nodes->at[i]);
        } else {
            nodes->at[i] = alloc_real(sizeof *nodes->at[i]);
            nodes->at[i]->port = port_take(&nodes->at[i]->port_keeper);
            CT_GT(nodes->at[i]->port, 0);
        }
    }
    for (size_t i = 0; i < n - dead; i++) {
        redis_server_await(nodes->at[i]);
        redlock_node_mark(nodes->at[i]);
    }
}

void redlock_nodes_stop(redlock_nodes_t *nodes) {
    for (size_t i = 0; i < nodes->n; i++) {
        redis_server_stop(nodes->at[i]);
    }
    *nodes = (redlock_nodes_t){0};
}

void redlock_nodes_line(const redlock_nodes_t *nodes, char *line, size_t size) {
    size_t at = (size_t)snprintf(line, size, "nodes: [");
    for (size_t i = 0; i < nodes->n && at < size; i++) {
        at += (size_t)snprintf(line + at, size - at, "%s\"redis://127.0.0.1:%d/0\"", i == 0 ? "" : ", ",
                               nodes->at[i]->port);
    }
    if (at < size) {
        snprintf(line + at, size - at, "]\n");
    }
}
