/* pool.h - the connections of a link: who has which, which are idle, who queues, who is making one. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_POOL_H
#define DLI_MYSQL_POOL_H

#include <stdatomic.h>

#include "drivers/breaker.h"
#include "link.h"

/* No answer for so long, and what lies idle is not trusted either. Those who wait for less time say nothing
 * about the others' connections. */
#define DLI_MYSQL_SILENCE_NS ((uint64_t)20000000)

/* One connection. Of whoever borrowed it; of the pool while it is idle. Each has a place in its lane. Where a
 * connection goes out without it, it is the connection's owner. */
typedef struct dli_mysql_member {
    dli_mysql_conn_t *conn;
    dli_mysql_lane_t lane;
    bool is_fresh;     /* nobody has used it yet */
    bool is_suspect;   /* to be asked for a sign of life before it is used */
    unsigned epoch;    /* the pool's when it became ready */
    uint64_t began_ns; /* when the making of it began */
    uint64_t ready_ns; /* when it was made */
    uint64_t used_ns;
    uint64_t touched_ns; /* when the server last spoke on it: by use, or by a sign of life */
    struct dli_mysql_member *newer, *older; /* idle ones, or those to be closed */
    struct dli_mysql_member *next, *before; /* all connections */
} dli_mysql_member_t;

/* A wait for a connection: in the queue for a free one, or for one that is being made. */
typedef struct dli_mysql_ticket {
    int fd;          /* an eventfd: called, or in the queue again */
    uint64_t number; /* rises with each */
    bool is_called;
    /* Once called: not DL_OK: why there is none. DL_OK without a member: has a place, and may make one. */
    dl_status_t status;
    dl_error_t err;
    dli_mysql_member_t *member;
    struct dli_mysql_maker *maker;          /* not called yet: who makes one for it; NULL: it queues */
    struct dli_mysql_ticket *behind;        /* the next in the queue */
    struct dli_mysql_ticket *next, *before; /* all tickets */
} dli_mysql_ticket_t;

/* A thread that makes a connection. */
typedef struct dli_mysql_maker {
    struct dli_mysql_pool *pool;
    dli_mysql_lane_t lane;
    dli_mysql_member_t *member; /* to be; without a connection so far */
    dli_mysql_ticket_t *ticket; /* of who waits for it; NULL: it goes to the idle ones */
    bool is_probe;              /* of a server that was down */
    bool is_overdue; /* took longer than connect_timeout: has no place any more, and nobody waits for it */
    uint64_t began_ns;
    struct dli_mysql_maker *next, *before; /* of the lane */
} dli_mysql_maker_t;

/* One lane's share. */
typedef struct dli_mysql_lane_pool {
    dli_mysql_role_t role;
    int64_t max_total, max_idle;
    int64_t keep;        /* so many idle ones are kept although idle_timeout is over */
    int64_t total, idle; /* total: in use, being made, and idle */
    int64_t made;        /* connections that are there */
    bool was_used;
    dli_mysql_member_t *newest, *oldest;
    dli_mysql_maker_t *makers;
    dli_mysql_ticket_t *first, *last; /* the queue */
} dli_mysql_lane_pool_t;

/*
 * Counted: its link's reference, and one for each thread that makes a connection and may be left behind. Such
 * a thread uses the pool's own copies only: env.core and the guard are for those whom the link knows of.
 */
typedef struct dli_mysql_pool {
    dli_mysql_endpoint_t *endpoint;
    dl_driver_env_t env;
    dli_mysql_guard_t *guard;
    dli_mysql_pool_options_t options;
    atomic_int refs;
    atomic_bool has_news;  /* for dli_mysql_pool_tell */
    pthread_mutex_t mutex; /* guards everything below; never held during I/O with a server */
    bool is_closed;
    dli_mysql_lane_pool_t lanes[DLI_MYSQL_LANES];
    /* Changed so that a forked child can walk them at any time. */
    dli_mysql_member_t *members;
    dli_mysql_ticket_t *tickets;
    uint64_t last_number;
    dli_breaker_t breaker;
    dli_mysql_facts_t facts; /* of the last connection; its id: 0 once one to the same server had none */
    unsigned epoch;      /* connections of an older one are to another server, or to one that only reads */
    int64_t overdue;     /* how many makers are */
    uint64_t suspect_ns; /* idle ones that were not touched since are suspect */
    uint64_t lost;       /* connections that broke and have not been made anew */
    uint64_t reconnects; /* made anew; not told yet */
    bool was_told_down, is_other; /* is_other: the server is another one; not told yet */
} dli_mysql_pool_t;

/* Takes a reference to the endpoint. DL_OK, DL_ENOMEM. */
dl_status_t dli_mysql_pool_new(dli_mysql_endpoint_t *endpoint, const dli_mysql_pool_options_t *options,
                               const dl_driver_env_t *env, dli_mysql_guard_t *guard, dli_mysql_pool_t **pool,
                               dl_error_t *err);
/* Nobody has a connection or waits for one. Closes what is idle; what is being made is closed by who makes
 * it. forked: closes descriptors and frees memory only; others may have vanished with theirs. */
void dli_mysql_pool_close(dli_mysql_pool_t *pool, bool forked);

/* ---- borrowing.c ------------------------------------------------------------------------------------ */

/* A connection that works, as far as can be known, or the statuses of dli_mysql_link_borrow. */
dl_status_t dli_mysql_pool_borrow(dli_mysql_pool_t *pool, dli_mysql_lane_t lane, uint64_t began_ns,
                                  uint64_t busy_from_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                                  dli_mysql_member_t **member, dl_error_t *err);
/* Asks for a sign of life. DL_OK, or it is of no use; DL_ECANCELED. */
dl_status_t dli_mysql_pool_test(dli_mysql_pool_t *pool, dli_mysql_member_t *member, uint64_t deadline_ns,
                                const dl_stop_t *stop);

/* ---- pool.c ----------------------------------------------------------------------------------------- */

/* The connection is in step and goes to the next in the queue, or to the idle ones. */
void dli_mysql_pool_give_back(dli_mysql_pool_t *pool, dli_mysql_member_t *member);
/* Closes it. The next one made takes its place. */
void dli_mysql_pool_drop(dli_mysql_pool_t *pool, dli_mysql_member_t *member);
/* The same, but its place in the lane stays with the caller. */
void dli_mysql_pool_discard(dli_mysql_pool_t *pool, dli_mysql_member_t *member);
/* Gives a place to the next in the queue. */
void dli_mysql_pool_leave(dli_mysql_pool_t *pool, dli_mysql_lane_t lane);
/* Nothing was heard from the server since since_ns: what made that connection deaf may have been on the way
 * of all of them. Idle ones that were not touched since are tested before they are used. */
void dli_mysql_pool_distrust(dli_mysql_pool_t *pool, uint64_t since_ns);
/* The suspect ones that lie idle are closed: one of them was deaf, and a lock that needs several is to find
 * that out once. */
void dli_mysql_pool_close_suspects(dli_mysql_pool_t *pool);
/* This connection's server only reads: no connection of its time is used again, so that the name is looked up
 * anew. */
void dli_mysql_pool_fail_over(dli_mysql_pool_t *pool, const dli_mysql_member_t *member);
void dli_mysql_pool_facts(dli_mysql_pool_t *pool, dli_mysql_facts_t *facts);
/* Logs and counts what makers have learned. Only while the link is open. */
void dli_mysql_pool_tell(dli_mysql_pool_t *pool);

/* For the keeper: closes idle connections that have lain for too long. */
void dli_mysql_pool_close_old(dli_mysql_pool_t *pool);
/* Has the lane fewer idle connections than are to be kept, and room for one more? */
bool dli_mysql_pool_is_short(dli_mysql_pool_t *pool, dli_mysql_lane_t lane);
/* An idle connection that should be asked for a sign of life, the longest idle one first: with
 * test_while_idle one not touched since since_ns, else one that is kept and would be closed by the server
 * some day. NULL: none is left but those that dli_mysql_pool_close_old closes. dli_mysql_pool_put_back
 * puts it where it was. */
dli_mysql_member_t *dli_mysql_pool_take_neglected(dli_mysql_pool_t *pool, dli_mysql_lane_t lane,
                                                  uint64_t since_ns);
void dli_mysql_pool_put_back(dli_mysql_pool_t *pool, dli_mysql_member_t *member);

/* With the mutex held. */
dli_mysql_member_t *dli_mysql_pool_take_idle(dli_mysql_pool_t *pool, dli_mysql_lane_t lane,
                                             dli_mysql_member_t **doomed);
void dli_mysql_pool_enlist(dli_mysql_pool_t *pool, dli_mysql_member_t *member);
void dli_mysql_pool_settle(dli_mysql_pool_t *pool, dli_mysql_member_t *member, dli_mysql_member_t **doomed);
/* Connecting failed for the server takes no more connections; not for want of descriptors here. */
bool dli_mysql_pool_is_refusal(const dl_error_t *err);
/* In the order of their numbers. */
void dli_mysql_pool_join_queue(dli_mysql_lane_pool_t *lane, dli_mysql_ticket_t *ticket);
/* What was being made for it came to nothing, and it waits for others'. */
void dli_mysql_pool_requeue(dli_mysql_lane_pool_t *lane, dli_mysql_ticket_t *ticket);
/* So many connections are all that there can be, and in use: max_total, or fewer where the server takes no
 * more; 0: there may be more. A place in which somebody connects may be no news of use, but of a server that
 * does not answer. */
int64_t dli_mysql_pool_crowd(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane);
/* Until when none is made in it: another tries a server that was down; or the server takes no more, is left
 * alone for a moment, and the lane has more than so many places, which are the caller's. 0: one may be made.
 */
uint64_t dli_mysql_pool_held_off_until(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane,
                                       int64_t places, uint64_t now_ns);
/* May a connection be made in it now? */
bool dli_mysql_pool_has_room(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane);
/* Gives what room there is to the queue. */
void dli_mysql_pool_let_in(dli_mysql_pool_t *pool, dli_mysql_lane_pool_t *lane);
void dli_mysql_pool_leave_locked(dli_mysql_pool_t *pool, dli_mysql_lane_pool_t *lane);
void dli_mysql_pool_call(dli_mysql_ticket_t *ticket, dl_status_t status, dli_mysql_member_t *member);
void dli_mysql_pool_begin_epoch(dli_mysql_pool_t *pool, dli_mysql_member_t **doomed);
/* Without it. */
void dli_mysql_pool_close_all(dli_mysql_member_t *doomed);

/* ---- connecting.c ----------------------------------------------------------------------------------- */

/* Starts a thread that makes a connection in the caller's place in the lane. ticket: called when it is there
 * or came to nothing; NULL: it goes to the idle ones. Unless DL_OK, the place is given to the next. DL_EBUSY:
 * none is made for now (dli_mysql_pool_held_off_until); for a ticket only. */
dl_status_t dli_mysql_pool_make(dli_mysql_pool_t *pool, dli_mysql_lane_t lane, dli_mysql_ticket_t *ticket,
                                dl_error_t *err);
/* The keeper's: makes one for the idle ones, if there is a place. true: one is being made. */
bool dli_mysql_pool_make_spare(dli_mysql_pool_t *pool, dli_mysql_lane_t lane);
/* With the mutex held: those that make a connection for longer than connect_timeout lose their places and
 * those who wait for them, and the server counts as down. */
void dli_mysql_pool_note_overdue(dli_mysql_pool_t *pool, dli_mysql_lane_t lane);
/* With the mutex held: one that its caller left, and that has the greater part of its time left; NULL:
 * none. */
dli_mysql_maker_t *dli_mysql_pool_adopt(dli_mysql_pool_t *pool, dli_mysql_lane_t lane);
void dli_mysql_pool_unref(dli_mysql_pool_t *pool);

#endif
