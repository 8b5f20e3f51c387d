/* pool.c - who has which connection, which are idle, and who queues. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_S ((uint64_t)1000000000)
#define RENEWALS_MAX 4
#define TOKENS_MAX 8
#define CONTROL_MAX 4
/* Smaller numbers are the operating system's. */
#define FIRST_OF_SERVER 1000

static void set_lane(dli_mysql_pool_t *pool, dli_mysql_lane_t at, dli_mysql_role_t role, int64_t max_total,
                     int64_t max_idle, int64_t keep) {
    dli_mysql_lane_pool_t *lane = &pool->lanes[at];
    lane->role = role;
    lane->max_total = max_total;
    lane->max_idle = max_idle;
    lane->keep = keep;
}

dl_status_t dli_mysql_pool_new(dli_mysql_endpoint_t *endpoint, const dli_mysql_pool_options_t *options,
                               const dl_driver_env_t *env, dli_mysql_guard_t *guard, dli_mysql_pool_t **pool,
                               dl_error_t *err) {
    dli_mysql_pool_t *new_pool = calloc(1, sizeof *new_pool);
    if (new_pool == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    new_pool->endpoint = dli_mysql_endpoint_ref(endpoint);
    new_pool->env = *env;
    new_pool->guard = guard;
    new_pool->options = *options;
    atomic_init(&new_pool->refs, 1);
    pthread_mutex_init(&new_pool->mutex, NULL);
    int64_t keep = options->min_idle < options->max_idle ? options->min_idle : options->max_idle;
    set_lane(new_pool, DLI_MYSQL_CALLS, options->calls, options->max_total, options->max_idle, keep);
    set_lane(new_pool, DLI_MYSQL_RENEWALS, DLI_MYSQL_ROLE_PLAIN, RENEWALS_MAX, RENEWALS_MAX, 1);
    set_lane(new_pool, DLI_MYSQL_TOKENS, DLI_MYSQL_ROLE_PLAIN, TOKENS_MAX, TOKENS_MAX, 1);
    set_lane(new_pool, DLI_MYSQL_CONTROL, DLI_MYSQL_ROLE_OVERLOOKING, CONTROL_MAX, CONTROL_MAX, 1);
    *pool = new_pool;
    return DL_OK;
}

static void free_pool(dli_mysql_pool_t *pool) {
    dli_mysql_endpoint_unref(pool->endpoint);
    free(pool);
}

void dli_mysql_pool_unref(dli_mysql_pool_t *pool) {
    if (atomic_fetch_sub(&pool->refs, 1) == 1) {
        pthread_mutex_destroy(&pool->mutex);
        free_pool(pool);
    }
}

/* In a forked child nothing is locked: whoever had the mutex is not there. */
static void close_forked(dli_mysql_pool_t *pool) {
    for (dli_mysql_member_t *member = pool->members, *next; member != NULL; member = next) {
        next = member->next;
        dli_mysql_conn_close_forked(member->conn);
        free(member);
    }
    for (dli_mysql_ticket_t *ticket = pool->tickets, *next; ticket != NULL; ticket = next) {
        next = ticket->next;
        close(ticket->fd);
        free(ticket);
    }
    for (int i = 0; i < DLI_MYSQL_LANES; i++) {
        for (dli_mysql_maker_t *maker = pool->lanes[i].makers, *next; maker != NULL; maker = next) {
            next = maker->next;
            free(maker->member);
            free(maker);
        }
    }
    free_pool(pool);
}

void dli_mysql_pool_close(dli_mysql_pool_t *pool, bool forked) {
    if (forked) {
        close_forked(pool);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->is_closed = true;
    dli_mysql_member_t *members = pool->members;
    pool->members = NULL;
    pthread_mutex_unlock(&pool->mutex);
    for (dli_mysql_member_t *next; members != NULL; members = next) {
        next = members->next;
        dli_mysql_conn_close(members->conn);
        free(members);
    }
    dli_mysql_pool_unref(pool);
}

/* ---- with the mutex held ---------------------------------------------------------------------------- */

void dli_mysql_pool_enlist(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    member->next = pool->members;
    /* A child forked right now by another thread walks `next` from `members`. */
    atomic_signal_fence(memory_order_release);
    if (member->next != NULL) {
        member->next->before = member;
    }
    pool->members = member;
    pool->lanes[member->lane].made++;
}

static void delist(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    if (member->before != NULL) {
        member->before->next = member->next;
    } else {
        pool->members = member->next;
    }
    if (member->next != NULL) {
        member->next->before = member->before;
    }
    pool->lanes[member->lane].made--;
}

/* Puts it between the idle ones, which are ordered by their last use. */
static void lay_down(dli_mysql_lane_pool_t *lane, dli_mysql_member_t *member) {
    dli_mysql_member_t *newer = NULL, *older = lane->newest;
    while (older != NULL && older->used_ns > member->used_ns) {
        newer = older;
        older = older->older;
    }
    member->newer = newer;
    member->older = older;
    member->is_fresh = false;
    *(newer != NULL ? &newer->older : &lane->newest) = member;
    *(older != NULL ? &older->newer : &lane->oldest) = member;
    lane->idle++;
}

static void pick_up(dli_mysql_lane_pool_t *lane, dli_mysql_member_t *member) {
    *(member->newer != NULL ? &member->newer->older : &lane->newest) = member->older;
    *(member->older != NULL ? &member->older->newer : &lane->oldest) = member->newer;
    member->newer = member->older = NULL;
    lane->idle--;
}

static void wake(dli_mysql_ticket_t *ticket) {
    uint64_t one = 1;
    ssize_t n = write(ticket->fd, &one, sizeof one); /* cannot fail */
    (void)n;
}

void dli_mysql_pool_call(dli_mysql_ticket_t *ticket, dl_status_t status, dli_mysql_member_t *member) {
    ticket->status = status;
    ticket->member = member;
    ticket->maker = NULL;
    ticket->is_called = true;
    wake(ticket);
}

void dli_mysql_pool_join_queue(dli_mysql_lane_pool_t *lane, dli_mysql_ticket_t *ticket) {
    dli_mysql_ticket_t **at = &lane->first;
    if (lane->last != NULL && lane->last->number < ticket->number) {
        at = &lane->last->behind;
    }
    while (*at != NULL && (*at)->number < ticket->number) {
        at = &(*at)->behind;
    }
    ticket->behind = *at;
    *at = ticket;
    lane->last = ticket->behind == NULL ? ticket : lane->last;
}

void dli_mysql_pool_requeue(dli_mysql_lane_pool_t *lane, dli_mysql_ticket_t *ticket) {
    ticket->maker = NULL;
    dli_mysql_pool_join_queue(lane, ticket);
    wake(ticket);
}

/* The first in the queue gets the connection, or without one the place for one. */
static void call_next(dli_mysql_lane_pool_t *lane, dli_mysql_member_t *member) {
    dli_mysql_ticket_t *ticket = lane->first;
    lane->first = ticket->behind;
    if (lane->first == NULL) {
        lane->last = NULL;
    }
    dli_mysql_pool_call(ticket, DL_OK, member);
}

bool dli_mysql_pool_is_refusal(const dl_error_t *err) {
    return err->status == DL_ELIMIT && err->native >= FIRST_OF_SERVER &&
           !dli_mysql_is_library_error((unsigned)err->native);
}

/* The server takes no more, and the lane has more than so many places: one is there, or being made. */
static bool is_full(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane, int64_t places) {
    return pool->breaker.is_down && dli_mysql_pool_is_refusal(&pool->breaker.reason) && lane->total > places;
}

int64_t dli_mysql_pool_crowd(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane) {
    return lane->made >= lane->max_total || is_full(pool, lane, 0) ? lane->made : 0;
}

uint64_t dli_mysql_pool_held_off_until(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane,
                                       int64_t places, uint64_t now_ns) {
    uint64_t tried_ns = dli_breaker_tried_until(&pool->breaker, now_ns);
    uint64_t closed_ns = is_full(pool, lane, places) ? pool->breaker.closed_until_ns : 0;
    return tried_ns > 0 ? tried_ns : now_ns < closed_ns ? closed_ns : 0;
}

bool dli_mysql_pool_has_room(const dli_mysql_pool_t *pool, const dli_mysql_lane_pool_t *lane) {
    return lane->total < lane->max_total &&
           dli_mysql_pool_held_off_until(pool, lane, 0, pool->env.now_ns()) == 0;
}

void dli_mysql_pool_let_in(dli_mysql_pool_t *pool, dli_mysql_lane_pool_t *lane) {
    while (lane->first != NULL && dli_mysql_pool_has_room(pool, lane)) {
        lane->total++;
        call_next(lane, NULL);
    }
}

void dli_mysql_pool_leave_locked(dli_mysql_pool_t *pool, dli_mysql_lane_pool_t *lane) {
    lane->total--;
    dli_mysql_pool_let_in(pool, lane);
}

/* It belongs to nobody any more, and is chained for close_all. Its place stays. */
static void doom(dli_mysql_pool_t *pool, dli_mysql_member_t *member, dli_mysql_member_t **doomed) {
    delist(pool, member);
    member->older = *doomed;
    *doomed = member;
}

static void doom_idle(dli_mysql_pool_t *pool, dli_mysql_lane_pool_t *lane, dli_mysql_member_t *member,
                      dli_mysql_member_t **doomed) {
    pick_up(lane, member);
    doom(pool, member, doomed);
    dli_mysql_pool_leave_locked(pool, lane);
}

void dli_mysql_pool_begin_epoch(dli_mysql_pool_t *pool, dli_mysql_member_t **doomed) {
    pool->epoch++;
    for (int i = 0; i < DLI_MYSQL_LANES; i++) {
        dli_mysql_lane_pool_t *lane = &pool->lanes[i];
        while (lane->newest != NULL) {
            pool->lost++;
            doom_idle(pool, lane, lane->newest, doomed);
        }
    }
}

/* A connection in step that its user does not need any more. */
void dli_mysql_pool_settle(dli_mysql_pool_t *pool, dli_mysql_member_t *member, dli_mysql_member_t **doomed) {
    dli_mysql_lane_pool_t *lane = &pool->lanes[member->lane];
    if (member->epoch != pool->epoch) {
        pool->lost++;
        doom(pool, member, doomed);
        dli_mysql_pool_leave_locked(pool, lane);
    } else if (lane->first != NULL) {
        call_next(lane, member);
    } else {
        lay_down(lane, member);
        if (lane->idle > lane->max_idle) {
            doom_idle(pool, lane, lane->oldest, doomed);
        }
    }
}

static uint64_t age_ns(uint64_t since_ns, uint64_t now_ns) {
    return now_ns > since_ns ? now_ns - since_ns : 0;
}

/* Will the server have enough of it soon? */
static bool is_worn(const dli_mysql_member_t *member, uint64_t now_ns) {
    uint64_t patience_ns = (uint64_t)dli_mysql_conn_patience_s(member->conn) * NS_PER_S;
    return age_ns(member->touched_ns, now_ns) > patience_ns / 4 * 3;
}

static bool is_old(const dli_mysql_pool_t *pool, uint64_t since_ns, uint64_t now_ns) {
    return age_ns(since_ns, now_ns) > (uint64_t)pool->options.idle_timeout_ms * NS_PER_MS;
}

/* The one used last, so that the others can grow old. */
dli_mysql_member_t *dli_mysql_pool_take_idle(dli_mysql_pool_t *pool, dli_mysql_lane_t at,
                                             dli_mysql_member_t **doomed) {
    dli_mysql_lane_pool_t *lane = &pool->lanes[at];
    uint64_t now_ns = pool->env.now_ns();
    while (lane->newest != NULL) {
        dli_mysql_member_t *member = lane->newest;
        bool is_stale = is_old(pool, member->touched_ns, now_ns);
        if (!is_worn(member, now_ns) && (!is_stale || lane->idle <= lane->keep)) {
            pick_up(lane, member);
            member->is_suspect = is_stale || member->touched_ns < pool->suspect_ns;
            return member;
        }
        doom_idle(pool, lane, member, doomed);
    }
    return NULL;
}

/* ---- without the mutex ------------------------------------------------------------------------------ */

void dli_mysql_pool_close_all(dli_mysql_member_t *doomed) {
    while (doomed != NULL) {
        dli_mysql_member_t *next = doomed->older;
        dli_mysql_conn_close(doomed->conn);
        free(doomed);
        doomed = next;
    }
}

void dli_mysql_pool_leave(dli_mysql_pool_t *pool, dli_mysql_lane_t lane) {
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_pool_leave_locked(pool, &pool->lanes[lane]);
    pthread_mutex_unlock(&pool->mutex);
}

void dli_mysql_pool_put_back(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_pool_settle(pool, member, &doomed);
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

void dli_mysql_pool_give_back(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    member->used_ns = member->touched_ns = pool->env.now_ns();
    member->is_fresh = false;
    dli_mysql_pool_put_back(pool, member);
}

void dli_mysql_pool_discard(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    pool->lost++;
    doom(pool, member, &doomed);
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

void dli_mysql_pool_drop(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    dli_mysql_lane_t lane = member->lane;
    dli_mysql_pool_discard(pool, member);
    dli_mysql_pool_leave(pool, lane);
}

void dli_mysql_pool_distrust(dli_mysql_pool_t *pool, uint64_t since_ns) {
    pthread_mutex_lock(&pool->mutex);
    pool->suspect_ns = pool->suspect_ns > since_ns ? pool->suspect_ns : since_ns;
    pthread_mutex_unlock(&pool->mutex);
}

void dli_mysql_pool_close_suspects(dli_mysql_pool_t *pool) {
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    for (dli_mysql_lane_pool_t *lane = pool->lanes; lane < pool->lanes + DLI_MYSQL_LANES; lane++) {
        for (dli_mysql_member_t *member = lane->newest, *older; member != NULL; member = older) {
            older = member->older;
            if (member->touched_ns < pool->suspect_ns) {
                pool->lost++;
                doom_idle(pool, lane, member, &doomed);
            }
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

void dli_mysql_pool_fail_over(dli_mysql_pool_t *pool, const dli_mysql_member_t *member) {
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (member->epoch == pool->epoch) {
        dli_mysql_pool_begin_epoch(pool, &doomed);
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

void dli_mysql_pool_facts(dli_mysql_pool_t *pool, dli_mysql_facts_t *facts) {
    pthread_mutex_lock(&pool->mutex);
    *facts = pool->facts;
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- the keeper's ----------------------------------------------------------------------------------- */

void dli_mysql_pool_close_old(dli_mysql_pool_t *pool) {
    dli_mysql_member_t *doomed = NULL;
    uint64_t now_ns = pool->env.now_ns();
    pthread_mutex_lock(&pool->mutex);
    for (dli_mysql_lane_t at = 0; at < DLI_MYSQL_LANES; at++) {
        dli_mysql_lane_pool_t *lane = &pool->lanes[at];
        dli_mysql_pool_note_overdue(pool, at);
        for (dli_mysql_member_t *member = lane->oldest, *newer; member != NULL; member = newer) {
            newer = member->newer;
            if (is_worn(member, now_ns) ||
                (lane->idle > lane->keep && is_old(pool, member->used_ns, now_ns))) {
                doom_idle(pool, lane, member, &doomed);
            }
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

bool dli_mysql_pool_is_short(dli_mysql_pool_t *pool, dli_mysql_lane_t at) {
    const dli_mysql_lane_pool_t *lane = &pool->lanes[at];
    pthread_mutex_lock(&pool->mutex);
    int64_t coming = 0;
    for (const dli_mysql_maker_t *maker = lane->makers; maker != NULL; maker = maker->next) {
        coming += maker->ticket == NULL && !maker->is_overdue;
    }
    /* In the lanes of few, one that is in use is one that will be idle. */
    int64_t ready = at == DLI_MYSQL_CALLS ? lane->idle + coming : lane->total;
    bool is_short =
        (at == DLI_MYSQL_CALLS || lane->was_used) && ready < lane->keep && lane->total < lane->max_total;
    pthread_mutex_unlock(&pool->mutex);
    return is_short;
}

dli_mysql_member_t *dli_mysql_pool_take_neglected(dli_mysql_pool_t *pool, dli_mysql_lane_t at,
                                                  uint64_t since_ns) {
    dli_mysql_lane_pool_t *lane = &pool->lanes[at];
    uint64_t now_ns = pool->env.now_ns();
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_member_t *member = lane->oldest;
    for (; member != NULL; member = member->newer) {
        uint64_t patience_ns = (uint64_t)dli_mysql_conn_patience_s(member->conn) * NS_PER_S;
        /* A worn one is to be closed; one of unknown patience would be neglected again at once, for ever. */
        if (!is_worn(member, now_ns) &&
            ((pool->options.test_while_idle && member->touched_ns < since_ns) ||
             (lane->idle <= lane->keep && age_ns(member->touched_ns, now_ns) > patience_ns / 3))) {
            pick_up(lane, member);
            break;
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return member;
}
