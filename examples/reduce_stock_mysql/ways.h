/* ways.h - four ways to reduce a stock: read it, think, write it back. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDUCE_STOCK_WAYS_H
#define REDUCE_STOCK_WAYS_H

#include "dlock/dlock.h"
#include "shop.h"

typedef enum way {
    WAY_UNSAFE,  /* nothing keeps the reading and the writing together */
    WAY_LOCK,    /* a lock does, for as long as its holder runs */
    WAY_VERSION, /* the write counts only if nobody wrote since the reading */
    WAY_FENCED,  /* a lock, and the table refuses a holder that is not the latest */
    WAYS
} way_t;

typedef enum sale { SOLD, SOLD_OUT, FAILED } sale_t;

/* One thread that sells. */
typedef struct seller {
    way_t way;
    shop_t *shop;
    dl_lock_t *lock;  /* of the ways that lock */
    int64_t lease_ms; /* DL_LEASE_AUTO, or an explicit one */
    const char *name; /* tells what it does, under this name; NULL: silent */
    int is_to_pause;  /* stops its own process once, right before it writes */
    long again;       /* how often it had to begin anew */
} seller_t;

/* WAYS: there is no such way. */
way_t way_named(const char *name);
const char *way_name(way_t way);
int way_locks(way_t way);

sale_t sell(seller_t *seller, long quantity);

#endif
