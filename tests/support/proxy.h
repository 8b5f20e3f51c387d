/* proxy.h - a TCP proxy that delays, cuts, resets, swallows, holds and invents bytes at a case's wish. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROXY_H
#define PROXY_H

#include <stddef.h>

#include "support/contract.h"

/*
 * A child process of the case, so that it goes on while the case is stopped and shares nothing with it. It
 * ends with the case. Each call returns when the proxy has done it; all fail the case when the proxy does
 * not answer. Start it before any client, and from the case's first thread; use it from one thread at a
 * time.
 */
typedef struct proxy proxy_t;

typedef enum proxy_way { PROXY_REQUESTS = 1, PROXY_REPLIES = 2, PROXY_BOTH = 3 } proxy_way_t;

/* To a port of 127.0.0.1. */
proxy_t *proxy_start(ct_t *ct, int port);
/* A case that started one ends with this. NULL is fine. */
void proxy_stop(ct_t *ct, proxy_t *proxy);
int proxy_port(const proxy_t *proxy);
/* url: "redis://127.0.0.1:PORT/0", for ct_open. */
const char *proxy_url(const proxy_t *proxy);

/* ---- all connections, those there and those to come, until told otherwise ------------------------- */

void proxy_delay(ct_t *ct, proxy_t *proxy, proxy_way_t way, int64_t ms); /* what comes in from now on */
/* Swallows what goes this way, hang-ups too, and tells nobody; 0: no more. A connection that has lost
 * bytes stays deaf that way for good, as TCP would have it. */
void proxy_swallow(ct_t *ct, proxy_t *proxy, int ways);
/* New connections are refused, by the kernel; 0: no more. */
void proxy_refuse(ct_t *ct, proxy_t *proxy, int refuse);

/* ---- the connections that are there ----------------------------------------------------------------- */

void proxy_cut(ct_t *ct, proxy_t *proxy);   /* hangs up on both sides */
void proxy_reset(ct_t *ct, proxy_t *proxy); /* the same by RST */
/* Bytes that the server never sent, to every client. */
void proxy_inject(ct_t *ct, proxy_t *proxy, const char *bytes, size_t len);

typedef struct proxy_counts {
    int64_t open, accepted;    /* connections that are there; that ever were */
    int64_t requests, replies; /* bytes that clients and the server have sent */
    int64_t acts, missed;      /* plans that have happened; whose connection ended before */
} proxy_counts_t;
proxy_counts_t proxy_counts(ct_t *ct, proxy_t *proxy);

/* ---- one connection, at one point of its conversation ------------------------------------------------ */

typedef enum proxy_act {
    PROXY_CUT = 1, /* hangs up on both sides */
    PROXY_RESET,   /* the same by RST */
    PROXY_SWALLOW, /* from here on nothing passes this way */
    PROXY_INSERT,  /* `bytes` are put in at this point */
    PROXY_HOLD     /* from here on it is kept, to be delivered later; the server is not told of a hang-up */
} proxy_act_t;

/*
 * One act on the first connection whose requests contain `request` (in one piece; NULL: whatever comes
 * first). It happens when `after` bytes more have passed that way: of requests counted from the beginning
 * of the piece that contains the text, of replies from the next one. A new plan takes the place of one that
 * has not happened.
 */
typedef struct proxy_plan {
    const char *request; /* at most 63 bytes */
    proxy_way_t way;     /* REQUESTS or REPLIES */
    size_t after;
    proxy_act_t act;
    const char *bytes; /* PROXY_INSERT: at most 255 */
    size_t len;
} proxy_plan_t;
void proxy_plan(ct_t *ct, proxy_t *proxy, const proxy_plan_t *plan);
void proxy_await_act(ct_t *ct, proxy_t *proxy, int n, int64_t within_ms);
/* Delivers the requests that were held, on their own connection or (afresh) on a new one. Returns how
 * many bytes the server answered, which nobody reads; 0: it had ended that connection. */
int64_t proxy_deliver(ct_t *ct, proxy_t *proxy, int afresh);

#endif
