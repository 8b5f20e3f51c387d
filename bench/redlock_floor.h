/* redlock_floor.h - the requests of a redlock pair by bare sockets. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_REDLOCK_FLOOR_H
#define DLOCK_BENCH_REDLOCK_FLOOR_H

/* One connection to each node, and one lock of a client with the lease that redlock_pair.c gives. */
typedef struct bare_nodes bare_nodes_t;

/* Waits until nodes that have had a first claim have their vote. `name`: as long as the lock's that it is
 * compared with. */
bare_nodes_t *bare_nodes_open(const int *ports, int n, int fences, const char *name);
/* Both end as the driver does: at a majority; what comes later is read at the next use. */
void bare_nodes_acquire(bare_nodes_t *bare);
void bare_nodes_release(bare_nodes_t *bare);
/* How many requests were sent by the two. */
unsigned long long bare_nodes_sent(const bare_nodes_t *bare);
void bare_nodes_close(bare_nodes_t *bare);

#endif
