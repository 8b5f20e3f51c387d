/* stage.h - the two demonstrations, and what their processes begin with. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDUCE_STOCK_STAGE_H
#define REDUCE_STOCK_STAGE_H

#include "ways.h"

#define PROCESSES_MAX 64
#define THREADS_MAX 64

/* Exit statuses. */
enum { KEPT = 0, FAILURE = 1, USAGE = 2, LOST = 4 };

typedef struct stage {
    const char *options; /* of the database */
    const char *config;  /* of the lock; NULL for the ways without */
    way_t way;
} stage_t;

/* Opens what the way needs of the library; client and lock stay NULL where it needs nothing. A process opens
 * its own: nothing of a client survives a fork. 0, or -1. */
int stage_open_lock(const stage_t *stage, dl_client_t **client, dl_lock_t **lock);
/* Fills the product up. 0, or -1. */
int stage_fill(const stage_t *stage, long stock);
/* Reads the stock. -1 after a failure. */
long stage_stock(const stage_t *stage);

/* Each answers KEPT (no update was lost), LOST or FAILURE. */
int race(const stage_t *stage, long stock, int processes, int threads);
int pauses(const stage_t *stage);

#endif
