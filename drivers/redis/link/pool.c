/* pool.c - the connections of a link: who has which, which are idle, who queues, and what the server is. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_MS 1000000u
/* Renewals come from one thread, and now and then from callers that extend. */
#define RENEWALS_IDLE 2

void dli_pool_init(dli_pool_t *pool, const dli_endpoint_t *endpoint, const dli_pool_options_t *options,
                   const dl_driver_env_t *env) {
    memset(pool, 0, sizeof *pool);
    pool->endpoint = endpoint;
    pool->options = *options;
    pool->env = env;
    pool->lanes[DLI_LANE_CALLS].max_total = options->max_total;
    pool->lanes[DLI_LANE_CALLS].max_idle = options->max_idle;
    pool->lanes[DLI_LANE_RENEWALS].max_total = INT64_MAX;
    pool->lanes[DLI_LANE_RENEWALS].max_idle = RENEWALS_IDLE;
    pthread_mutex_init(&pool->mutex, NULL);
    dli_condemned_init(&pool->condemned);
    dli_label_init(&pool->label, options->label_key, env->client_label);
}

void dli_pool_free(dli_pool_t *pool, bool forked) {
    for (dli_member_t *member = pool->members, *next; member != NULL; member = next) {
        next = member->next;
        dli_conn_close(member->conn, forked);
        free(member);
    }
    for (int i = 0; i < DLI_LANES; i++) {
        for (dli_ticket_t *ticket = pool->lanes[i].first, *next; ticket != NULL; ticket = next) {
            next = ticket->next;
            close(ticket->fd);
            free(ticket);
        }
    }
    if (!forked) {
        dli_condemned_free(&pool->condemned);
        pthread_mutex_destroy(&pool->mutex);
    }
}

/* ---- with the mutex held ---------------------------------------------------------------------------- */

void dli_pool_enlist(dli_pool_t *pool, dli_member_t *member) {
    member->next = pool->members;
    /* A child forked right now by another thread walks `next` from `members`. */
    atomic_signal_fence(memory_order_release);
    if (member->next != NULL) {
        member->next->before = member;
    }
    pool->members = member;
}

static void delist(dli_pool_t *pool, dli_member_t *member) {
    if (member->before != NULL) {
        member->before->next = member->next;
    } else {
        pool->members = member->next;
    }
    if (member->next != NULL) {
        member->next->before = member->before;
    }
}

/* Puts it between the idle ones, which are ordered by their last use. */
static void lay_down(dli_lane_pool_t *lane, dli_member_t *member) {
    dli_member_t *newer = NULL, *older = lane->newest;
    while (older != NULL && older->used_ns > member->used_ns) {
        newer = older;
        older = older->older;
    }
    member->newer = newer;
    member->older = older;
    *(newer != NULL ? &newer->older : &lane->newest) = member;
    *(older != NULL ? &older->newer : &lane->oldest) = member;
    lane->idle++;
}

static void pick_up(dli_lane_pool_t *lane, dli_member_t *member) {
    *(member->newer != NULL ? &member->newer->older : &lane->newest) = member->older;
    *(member->older != NULL ? &member->older->newer : &lane->oldest) = member->newer;
    member->newer = member->older = NULL;
    lane->idle--;
}

/* The first in the queue gets the connection, or without one the place for one. */
static void call_next(dli_lane_pool_t *lane, dli_member_t *member) {
    dli_ticket_t *ticket = lane->first;
    lane->first = ticket->next;
    if (lane->first == NULL) {
        lane->last = NULL;
    }
    ticket->member = member;
    ticket->is_called = true;
    uint64_t one = 1;
    ssize_t n = write(ticket->fd, &one, sizeof one); /* cannot fail: nobody wrote before */
    (void)n;
}

static void leave(dli_lane_pool_t *lane) {
    if (lane->first != NULL) {
        call_next(lane, NULL);
    } else {
        lane->total--;
    }
}

/* It belongs to nobody any more, and is chained for close_all. */
static void doom(dli_pool_t *pool, dli_member_t *member, dli_member_t **doomed) {
    delist(pool, member);
    member->older = *doomed;
    *doomed = member;
    if (member->is_counted) {
        leave(&pool->lanes[member->lane]);
    }
}

static void doom_idle(dli_pool_t *pool, dli_lane_pool_t *lane, dli_member_t *member, dli_member_t **doomed) {
    pick_up(lane, member);
    doom(pool, member, doomed);
}

void dli_pool_begin_epoch(dli_pool_t *pool, dli_member_t **doomed) {
    pool->epoch++;
    dli_label_lost(&pool->label);
    for (int i = 0; i < DLI_LANES; i++) {
        dli_lane_pool_t *lane = &pool->lanes[i];
        while (lane->newest != NULL) {
            pool->lost++;
            doom_idle(pool, lane, lane->newest, doomed);
        }
    }
}

static bool is_old(const dli_pool_t *pool, const dli_member_t *member, uint64_t now_ns) {
    uint64_t timeout_ns = (uint64_t)pool->options.idle_timeout_ms * NS_PER_MS;
    return timeout_ns > 0 && now_ns > member->used_ns && now_ns - member->used_ns > timeout_ns;
}

/* A connection in step that its user does not need any more. */
static void settle(dli_pool_t *pool, dli_member_t *member, dli_member_t **doomed) {
    dli_lane_pool_t *lane = &pool->lanes[member->lane];
    if (!member->is_counted && lane->total < lane->max_total) {
        lane->total++;
        member->is_counted = true;
    }
    if (!member->is_counted || member->epoch != pool->epoch) {
        pool->lost += member->is_counted;
        doom(pool, member, doomed);
    } else if (lane->first != NULL) {
        call_next(lane, member);
    } else {
        lay_down(lane, member);
        if (lane->idle > lane->max_idle) {
            doom_idle(pool, lane, lane->oldest, doomed);
        }
    }
}

/* ---- without the mutex ------------------------------------------------------------------------------ */

void dli_pool_close_all(dli_member_t *doomed) {
    while (doomed != NULL) {
        dli_member_t *next = doomed->older;
        dli_conn_close(doomed->conn, false);
        free(doomed);
        doomed = next;
    }
}

/* ---- borrowing -------------------------------------------------------------------------------------- */

/* With the mutex held. The one used last, so that the others can grow old. */
static dli_member_t *take_idle(dli_pool_t *pool, dli_lane_pool_t *lane, uint64_t now_ns,
                               dli_member_t **doomed) {
    dli_member_t *member = lane->newest;
    if (member == NULL) {
        return NULL;
    }
    if (!is_old(pool, member, now_ns)) {
        pick_up(lane, member);
        return member;
    }
    while (lane->newest != NULL) {
        doom_idle(pool, lane, lane->newest, doomed);
    }
    return NULL;
}

static dl_status_t make_ticket(dli_ticket_t **ticket, dl_error_t *err) {
    dli_ticket_t *new_ticket = calloc(1, sizeof *new_ticket);
    if (new_ticket == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    new_ticket->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (new_ticket->fd < 0) {
        int error = errno;
        free(new_ticket);
        return dl_driver_fail(err, DL_ELIMIT, error, "no descriptor to wait for a connection: %s",
                              strerror(error));
    }
    *ticket = new_ticket;
    return DL_OK;
}

static void free_ticket(dli_ticket_t **ticket) {
    close((*ticket)->fd);
    free(*ticket);
    *ticket = NULL;
}

/* With the mutex held. true: got a connection or a place. */
static bool try_borrow(dli_pool_t *pool, dli_lane_pool_t *lane, uint64_t now_ns, dli_member_t **member,
                       dli_member_t **doomed) {
    *member = take_idle(pool, lane, now_ns, doomed);
    if (*member != NULL) {
        return true;
    }
    bool has_place = lane->total < lane->max_total;
    lane->total += has_place;
    return has_place;
}

dl_status_t dli_pool_borrow(dli_pool_t *pool, dli_lane_t at, uint64_t now_ns, dli_member_t **member,
                            dli_ticket_t **ticket, dl_error_t *err) {
    dli_lane_pool_t *lane = &pool->lanes[at];
    dli_member_t *doomed = NULL;
    dli_ticket_t *new_ticket = NULL;
    pthread_mutex_lock(&pool->mutex);
    bool done = try_borrow(pool, lane, now_ns, member, &doomed);
    pthread_mutex_unlock(&pool->mutex);
    if (!done) {
        dl_status_t status = make_ticket(&new_ticket, err);
        if (status != DL_OK) {
            dli_pool_close_all(doomed);
            return status;
        }
        pthread_mutex_lock(&pool->mutex);
        done = try_borrow(pool, lane, now_ns, member, &doomed);
        if (!done) {
            *(lane->last != NULL ? &lane->last->next : &lane->first) = new_ticket;
            lane->last = new_ticket;
            *ticket = new_ticket;
        }
        pthread_mutex_unlock(&pool->mutex);
        if (done) {
            free_ticket(&new_ticket);
        }
    }
    dli_pool_close_all(doomed);
    return DL_OK;
}

bool dli_pool_collect(dli_pool_t *pool, dli_ticket_t **ticket, dli_member_t **member) {
    pthread_mutex_lock(&pool->mutex);
    bool is_called = (*ticket)->is_called;
    *member = (*ticket)->member;
    pthread_mutex_unlock(&pool->mutex);
    if (is_called) {
        free_ticket(ticket);
    }
    return is_called;
}

void dli_pool_quit(dli_pool_t *pool, dli_lane_t at, dli_ticket_t **ticket) {
    dli_lane_pool_t *lane = &pool->lanes[at];
    dli_member_t *doomed = NULL;
    dli_ticket_t *mine = *ticket, *ahead = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (mine->member != NULL) {
        settle(pool, mine->member, &doomed);
    } else if (mine->is_called) {
        leave(lane);
    } else {
        for (dli_ticket_t *t = lane->first; t != mine; t = t->next) {
            ahead = t;
        }
        *(ahead != NULL ? &ahead->next : &lane->first) = mine->next;
        lane->last = lane->last == mine ? ahead : lane->last;
    }
    pthread_mutex_unlock(&pool->mutex);
    free_ticket(ticket);
    dli_pool_close_all(doomed);
}

void dli_pool_leave(dli_pool_t *pool, dli_lane_t lane) {
    pthread_mutex_lock(&pool->mutex);
    leave(&pool->lanes[lane]);
    pthread_mutex_unlock(&pool->mutex);
}

void dli_pool_give_back(dli_pool_t *pool, dli_member_t *member) {
    dli_lane_pool_t *lane = &pool->lanes[member->lane];
    dli_member_t *doomed = NULL;
    member->used_ns = pool->env->now_ns();
    uint64_t now_ns = member->used_ns;
    pthread_mutex_lock(&pool->mutex);
    settle(pool, member, &doomed);
    if (lane->oldest != NULL && is_old(pool, lane->oldest, now_ns)) {
        doom_idle(pool, lane, lane->oldest, &doomed);
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_pool_close_all(doomed);
}

void dli_pool_drop(dli_pool_t *pool, dli_member_t *member, bool was_lost) {
    dli_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    pool->lost += was_lost;
    doom(pool, member, &doomed);
    pthread_mutex_unlock(&pool->mutex);
    dli_pool_close_all(doomed);
}

void dli_pool_distrust(dli_pool_t *pool, uint64_t since_ns) {
    dli_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    for (int i = 0; i < DLI_LANES; i++) {
        dli_lane_pool_t *lane = &pool->lanes[i];
        while (lane->oldest != NULL && lane->oldest->used_ns < since_ns) {
            pool->lost++;
            doom_idle(pool, lane, lane->oldest, &doomed);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_pool_close_all(doomed);
}

/* ---- the keeper's ----------------------------------------------------------------------------------- */

void dli_pool_close_old(dli_pool_t *pool) {
    dli_member_t *doomed = NULL;
    uint64_t now_ns = pool->env->now_ns();
    pthread_mutex_lock(&pool->mutex);
    for (int i = 0; i < DLI_LANES; i++) {
        dli_lane_pool_t *lane = &pool->lanes[i];
        while (lane->oldest != NULL && is_old(pool, lane->oldest, now_ns)) {
            doom_idle(pool, lane, lane->oldest, &doomed);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_pool_close_all(doomed);
}

bool dli_pool_is_short(dli_pool_t *pool) {
    const dli_lane_pool_t *lane = &pool->lanes[DLI_LANE_CALLS];
    pthread_mutex_lock(&pool->mutex);
    bool is_short =
        lane->idle < pool->options.min_idle && lane->idle < lane->max_idle && lane->total < lane->max_total;
    pthread_mutex_unlock(&pool->mutex);
    return is_short;
}

dli_member_t *dli_pool_take_neglected(dli_pool_t *pool, dli_lane_t at, uint64_t since_ns) {
    dli_lane_pool_t *lane = &pool->lanes[at];
    pthread_mutex_lock(&pool->mutex);
    dli_member_t *member = lane->oldest;
    while (member != NULL && (member->looked_ns > since_ns || member->used_ns > since_ns)) {
        member = member->newer;
    }
    if (member != NULL) {
        pick_up(lane, member);
    }
    pthread_mutex_unlock(&pool->mutex);
    return member;
}

void dli_pool_put_back(dli_pool_t *pool, dli_member_t *member) {
    dli_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    settle(pool, member, &doomed);
    pthread_mutex_unlock(&pool->mutex);
    dli_pool_close_all(doomed);
}
