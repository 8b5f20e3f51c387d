/* pool.h - the connections of a link: who has which, which are idle, who queues, and what the server is. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_POOL_H
#define DLI_REDIS_POOL_H

#include "drivers/breaker.h"
#include "condemned.h"
#include "label.h"
#include "link.h"

#define DLI_LANES 2

/* One connection. Of whoever borrowed it; of the pool while it is idle. */
typedef struct dli_member {
    dli_conn_t *conn;
    dli_lane_t lane;
    bool is_counted; /* has a place in the lane; those that the keeper makes have none yet */
    bool is_probe;   /* of a server that was down */
    bool was_left;   /* while it was being made, by who began it */
    unsigned epoch;  /* the pool's when it became ready */
    unsigned owed;   /* answers to PING that are still to come */
    uint64_t started_ns, used_ns;
    uint64_t looked_ns, tested_ns;    /* when the keeper looked at it, and when it sent the last PING */
    struct dli_member *newer, *older; /* idle ones, or those to be closed */
    struct dli_member *next, *before; /* all connections */
} dli_member_t;

/* A place in the queue for a connection. */
typedef struct dli_ticket {
    int fd; /* an eventfd */
    bool is_called;
    dli_member_t *member; /* once called; NULL: may make a connection */
    struct dli_ticket *next;
} dli_ticket_t;

/* One lane's share. */
typedef struct dli_lane_pool {
    int64_t max_total, max_idle;
    int64_t total, idle; /* total: in use, being made, and idle */
    dli_member_t *newest, *oldest;
    dli_member_t *begun; /* a connection whose user had no time left, for the next who makes one */
    dli_ticket_t *first, *last;
} dli_lane_pool_t;

typedef struct dli_pool {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;
    dli_pool_options_t options;
    dli_condemned_t condemned;
    dli_label_t label;
    pthread_mutex_t mutex; /* guards everything below; never held during I/O */
    dli_lane_pool_t lanes[DLI_LANES];
    dli_member_t *members; /* all; changed so that a forked child can walk it at any time */
    dli_breaker_t breaker;
    dli_facts_t facts; /* of the last connection */
    unsigned epoch; /* connections of an older one are to another server, or to what is no master any more */
    uint64_t lost;  /* connections that broke and have not been made anew */
} dli_pool_t;

void dli_pool_init(dli_pool_t *pool, const dli_endpoint_t *endpoint, const dli_pool_options_t *options,
                   const dl_driver_env_t *env);
/* Nobody has a connection or a ticket. forked: closes descriptors only; others may have vanished with
 * theirs. */
void dli_pool_free(dli_pool_t *pool, bool forked);

/*
 * One of three: *member is an idle connection; *ticket is a place in the queue; neither, and the caller has a
 * place in the lane, which dli_pool_connect or dli_pool_leave takes. DL_OK; DL_ENOMEM, DL_ELIMIT.
 */
dl_status_t dli_pool_borrow(dli_pool_t *pool, dli_lane_t lane, uint64_t now_ns, dli_member_t **member,
                            dli_ticket_t **ticket, dl_error_t *err);
/* true: the ticket was called, is gone, and it is as if dli_pool_borrow had answered. */
bool dli_pool_collect(dli_pool_t *pool, dli_ticket_t **ticket, dli_member_t **member);
/* The ticket is gone; what it was called to goes to the next. */
void dli_pool_quit(dli_pool_t *pool, dli_lane_t lane, dli_ticket_t **ticket);
/* Gives the place in the lane to the next. */
void dli_pool_leave(dli_pool_t *pool, dli_lane_t lane);

/* The connection is in step and goes back to the idle ones, or to the next in the queue. */
void dli_pool_give_back(dli_pool_t *pool, dli_member_t *member);
/* Closes it. was_lost: it broke, or had to be given up; the next one made takes its place. */
void dli_pool_drop(dli_pool_t *pool, dli_member_t *member, bool was_lost);
/* A request sent at since_ns had no answer for long: closes the idle connections that were not used since,
 * for what made that one deaf may have been on the way of all of them, and each would cost a call. */
void dli_pool_distrust(dli_pool_t *pool, uint64_t since_ns);
/* Closes idle connections that have lain for too long. */
void dli_pool_close_old(dli_pool_t *pool);
/* Are there fewer idle connections for calls than min_idle wants, and is there room for one more? */
bool dli_pool_is_short(dli_pool_t *pool);
/* An idle connection that was not used or looked at since since_ns, the longest idle one first; NULL: none
 * is left. dli_pool_put_back puts it where it was. */
dli_member_t *dli_pool_take_neglected(dli_pool_t *pool, dli_lane_t lane, uint64_t since_ns);
void dli_pool_put_back(dli_pool_t *pool, dli_member_t *member);

/* ---- connecting.c: making them ---------------------------------------------------------------------- */

/* Begins a connection in the place that the caller has (is_counted), or in none. A failure gives the place
 * back. */
dl_status_t dli_pool_connect(dli_pool_t *pool, dli_lane_t lane, bool is_counted, dli_member_t **member,
                             dl_error_t *err);
/* It is ready. */
void dli_pool_connected(dli_pool_t *pool, dli_member_t *member);
/* It failed: closes it, and the server counts as down. */
void dli_pool_connect_failed(dli_pool_t *pool, dli_member_t *member, dl_status_t status,
                             const dl_error_t *err);
/* Its user has no time left, and nothing is said about the server. A young one is kept for the next user:
 * where making a connection takes longer than anybody's call, there would never be one. */
void dli_pool_connect_cut(dli_pool_t *pool, dli_member_t *member);
/* This connection found out that its server is no master any more: no connection of its time is used
 * again. */
void dli_pool_failed_over(dli_pool_t *pool, const dli_member_t *member);

/* ---- from pool.c for connecting.c -------------------------------------------------------------------- */

/* The first two with the mutex held. */
void dli_pool_enlist(dli_pool_t *pool, dli_member_t *member);
/* Every connection of today is history: the idle ones are chained to *doomed. */
void dli_pool_begin_epoch(dli_pool_t *pool, dli_member_t **doomed);
void dli_pool_close_all(dli_member_t *doomed);

#endif
