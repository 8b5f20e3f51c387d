/* redlock_fixture.c - fresh nodes for each running case of redlock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/redlock_fixture.h"

#include <stdio.h>

#include "drivers/registry.h"
#include "support/ct.h"
#include "support/drive.h"
#include "support/redlock_nodes.h"

#define NODE_TIMEOUT_MS 250 /* call_timeout of the cases is 800 */

static redlock_nodes_t nodes; /* of the case that this process runs; its children inherit the knowledge */

const dl_driver_t *redlock_driver(void) {
    return drive_table(dli_registry_backend("redlock"));
}

void redlock_start_three(const char *dir) {
    redlock_nodes_start(&nodes, dir, 3, 0);
}

void redlock_start_five(const char *dir) {
    redlock_nodes_start(&nodes, dir, 5, 0);
}

void redlock_start_a_majority(const char *dir) {
    redlock_nodes_start(&nodes, dir, 5, CT_DEAD_NODES);
}

void redlock_fixture_stop(void) {
    redlock_nodes_stop(&nodes);
}

void redlock_options(const char *dir, char *yaml, size_t size) {
    (void)dir;
    int n = snprintf(yaml, size, "node_timeout: %dms\nmax_lease: 365d\n", NODE_TIMEOUT_MS * ct_time_scale());
    redlock_nodes_line(&nodes, yaml + n, size - (size_t)n);
}

redlock_nodes_t *ct_redlock(ct_t *ct) {
    CT_CHECKF(nodes.n > 0, "ct_redlock needs the trait CT_REDLOCK");
    return &nodes;
}
