/* connecting.c - threads that make the connections of a pool, and what each says about the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS ((uint64_t)1000000)
#define MS_PER_S 1000
/* The server's patience with what lies idle: ours is shorter, or it is kept awake. */
#define PATIENCE_MIN_S 60
/* So many threads may hang longer than anybody waits for them. */
#define OVERDUE_MAX 16

/* ---- with the mutex held ---------------------------------------------------------------------------- */

static void enlist(dli_mysql_lane_pool_t *lane, dli_mysql_maker_t *maker) {
    maker->next = lane->makers;
    atomic_signal_fence(memory_order_release);
    if (maker->next != NULL) {
        maker->next->before = maker;
    }
    lane->makers = maker;
}

static void delist(dli_mysql_lane_pool_t *lane, dli_mysql_maker_t *maker) {
    if (maker->before != NULL) {
        maker->before->next = maker->next;
    } else {
        lane->makers = maker->next;
    }
    if (maker->next != NULL) {
        maker->next->before = maker->before;
    }
}

static void blame(dli_mysql_pool_t *pool, const dli_mysql_maker_t *maker, const dl_error_t *reason) {
    if (dli_breaker_fail(&pool->breaker, &pool->env, maker->began_ns, maker->is_probe, reason)) {
        atomic_store(&pool->has_news, true);
    }
}

/* Who takes no new ones may have forgotten the old. */
static void suspect_all(dli_mysql_pool_t *pool) {
    uint64_t now_ns = pool->env.now_ns();
    pool->suspect_ns = now_ns > pool->suspect_ns ? now_ns : pool->suspect_ns;
}

/* Nobody waits for it any more. */
static void fail_ticket(dli_mysql_maker_t *maker, const dl_error_t *why) {
    if (maker->ticket != NULL) {
        maker->ticket->err = *why;
        dli_mysql_pool_call(maker->ticket, why->status, NULL);
        maker->ticket = NULL;
    }
}

void dli_mysql_pool_note_overdue(dli_mysql_pool_t *pool, dli_mysql_lane_t at) {
    dli_mysql_lane_pool_t *lane = &pool->lanes[at];
    uint64_t now_ns = pool->env.now_ns();
    uint64_t limit_ns = (uint64_t)pool->endpoint->connect_timeout_ms * NS_PER_MS;
    for (dli_mysql_maker_t *maker = lane->makers; maker != NULL; maker = maker->next) {
        if (maker->is_overdue || now_ns < maker->began_ns + limit_ns) {
            continue;
        }
        dl_error_t err;
        dl_driver_fail(&err, DL_EIO, 0, "connecting to %s takes longer than %s", pool->endpoint->label,
                       dl_driver_duration(pool->endpoint->connect_timeout_ms).text);
        maker->is_overdue = true;
        pool->overdue++;
        suspect_all(pool);
        blame(pool, maker, &err);
        fail_ticket(maker, &err);
        dli_mysql_pool_leave_locked(pool, lane);
    }
}

dli_mysql_maker_t *dli_mysql_pool_adopt(dli_mysql_pool_t *pool, dli_mysql_lane_t at) {
    uint64_t now_ns = pool->env.now_ns();
    uint64_t half_ns = (uint64_t)pool->endpoint->connect_timeout_ms * NS_PER_MS / 2;
    dli_mysql_maker_t *maker = pool->lanes[at].makers;
    while (maker != NULL &&
           (maker->ticket != NULL || maker->is_overdue || now_ns >= maker->began_ns + half_ns)) {
        maker = maker->next;
    }
    return maker;
}

/* Notes what the connection says about the server. */
static void meet(dli_mysql_pool_t *pool, dli_mysql_member_t *member, dli_mysql_member_t **doomed) {
    const dli_mysql_facts_t *facts = dli_mysql_conn_facts(member->conn);
    bool is_news = dli_breaker_mend(&pool->breaker, pool->env.now_ns());
    bool was_met = pool->facts.version_number != 0;
    bool is_other =
        was_met && strcmp(pool->facts.identity + pool->facts.server, facts->identity + facts->server) != 0;
    /* A proxy's number for a connection can be the server's by chance. */
    bool is_renumbered = was_met && !is_other && pool->facts.connection_id == 0;
    if (is_other) {
        dli_mysql_pool_begin_epoch(pool, doomed);
        pool->is_other = is_news = true;
    }
    pool->facts = *facts;
    if (is_renumbered) {
        pool->facts.connection_id = 0;
    }
    member->epoch = pool->epoch;
    if (pool->lost > 0) {
        pool->lost--;
        pool->reconnects++;
        is_news = true;
    }
    if (is_news) {
        atomic_store(&pool->has_news, true);
    }
}

/* The connection is there: its place and who gets it. */
static void bring(dli_mysql_maker_t *maker, dli_mysql_member_t **doomed) {
    dli_mysql_pool_t *pool = maker->pool;
    dli_mysql_lane_pool_t *lane = &pool->lanes[maker->lane];
    dli_mysql_member_t *member = maker->member;
    maker->member = NULL;
    meet(pool, member, doomed);
    if (maker->is_overdue && lane->total >= lane->max_total) {
        member->older = *doomed;
        *doomed = member;
        return;
    }
    lane->total += maker->is_overdue;
    lane->was_used = true;
    dli_mysql_pool_enlist(pool, member);
    if (maker->ticket != NULL) {
        dli_mysql_pool_call(maker->ticket, DL_OK, member);
    } else {
        dli_mysql_pool_settle(pool, member, doomed);
    }
}

/* The server takes no more: may another connection of the lane do, now or later? */
static bool share(dli_mysql_maker_t *maker, dli_mysql_member_t **doomed) {
    dli_mysql_pool_t *pool = maker->pool;
    dli_mysql_lane_pool_t *lane = &pool->lanes[maker->lane];
    dli_mysql_member_t *member = dli_mysql_pool_take_idle(pool, maker->lane, doomed);
    if (member != NULL) {
        dli_mysql_pool_call(maker->ticket, DL_OK, member);
    } else if (lane->total > 1) {
        dli_mysql_pool_requeue(lane, maker->ticket);
    }
    return member != NULL || lane->total > 1;
}

/* What the machine here lacks says nothing about the server. */
static void fail(dli_mysql_maker_t *maker, bool blames_server, const dl_error_t *err,
                 dli_mysql_member_t **doomed) {
    dli_mysql_pool_t *pool = maker->pool;
    if (blames_server) {
        blame(pool, maker, err);
        if (err->status == DL_EIO) {
            suspect_all(pool);
        }
    } else {
        dli_breaker_give_up(&pool->breaker, maker->is_probe);
    }
    if (maker->ticket == NULL || !dli_mysql_pool_is_refusal(err) || !share(maker, doomed)) {
        fail_ticket(maker, err);
    }
    if (!maker->is_overdue) {
        dli_mysql_pool_leave_locked(pool, &pool->lanes[maker->lane]);
    }
}

/* ---- the thread ------------------------------------------------------------------------------------- */

/* err: why there is no connection. Frees the maker, and its reference to the pool. */
static void finish(dli_mysql_maker_t *maker, bool blames_server, const dl_error_t *err) {
    dli_mysql_pool_t *pool = maker->pool;
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    delist(&pool->lanes[maker->lane], maker);
    pool->overdue -= maker->is_overdue;
    if (pool->is_closed) {
        /* Only closing is left. */
    } else if (maker->member->conn != NULL) {
        bring(maker, &doomed);
    } else {
        fail(maker, blames_server, err, &doomed);
    }
    for (int i = 0; i < DLI_MYSQL_LANES; i++) {
        dli_mysql_pool_let_in(pool, &pool->lanes[i]);
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
    if (maker->member != NULL) {
        dli_mysql_conn_close(maker->member->conn);
        free(maker->member);
    }
    free(maker);
    dli_mysql_pool_unref(pool);
}

static void *make(void *arg) {
    dli_mysql_maker_t *maker = arg;
    dli_mysql_pool_t *pool = maker->pool;
    dli_mysql_member_t *member = maker->member;
    dl_error_t err;
    int64_t patience_s = 2 * pool->options.idle_timeout_ms / MS_PER_S + PATIENCE_MIN_S;
    dl_status_t status =
        dli_mysql_conn_make(pool->endpoint, pool->lanes[maker->lane].role, patience_s, &member->conn, &err);
    if (status == DL_OK) {
        dli_mysql_conn_set_owner(member->conn, member);
        member->ready_ns = member->used_ns = member->touched_ns = pool->env.now_ns();
    }
    finish(maker, status != DL_ENOMEM, &err);
    dli_mysql_library_thread_end();
    return NULL;
}

/* ---- starting it ------------------------------------------------------------------------------------ */

/* With the mutex held: is the server worth it? */
static dl_status_t ask(dli_mysql_pool_t *pool, dli_mysql_maker_t *maker, dl_error_t *err) {
    if (pool->breaker.is_down && pool->overdue >= OVERDUE_MAX) {
        return dl_driver_fail(err, pool->breaker.reason.status, pool->breaker.reason.native, "%s",
                              pool->breaker.reason.message);
    }
    return dli_breaker_ask(&pool->breaker, maker->began_ns, &maker->is_probe, err);
}

/* On failure the maker is the caller's. DL_EBUSY: whoever waits is to queue. */
static dl_status_t begin(dli_mysql_maker_t *maker, dli_mysql_ticket_t *ticket, dl_error_t *err) {
    dli_mysql_pool_t *pool = maker->pool;
    pthread_mutex_lock(&pool->mutex);
    bool is_held_off = dli_mysql_pool_held_off_until(pool, &pool->lanes[maker->lane], 1, maker->began_ns) > 0;
    dl_status_t status = is_held_off && ticket != NULL ? DL_EBUSY : ask(pool, maker, err);
    if (status == DL_OK) {
        enlist(&pool->lanes[maker->lane], maker);
        maker->ticket = ticket;
        if (ticket != NULL) {
            ticket->maker = maker;
        }
        atomic_fetch_add(&pool->refs, 1);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (status != DL_OK) {
        return status;
    }
    pthread_t thread;
    int error = pool->env.thread_start(&thread, make, maker);
    if (error != 0) {
        dl_error_t why;
        dl_driver_fail(&why, DL_ELIMIT, error, "cannot start a thread that connects to %s: %s",
                       pool->endpoint->label, strerror(error));
        finish(maker, false, &why); /* whoever waits for it learns why */
    } else {
        pthread_detach(thread);
    }
    return DL_OK;
}

dl_status_t dli_mysql_pool_make(dli_mysql_pool_t *pool, dli_mysql_lane_t lane, dli_mysql_ticket_t *ticket,
                                dl_error_t *err) {
    dl_status_t status = DL_ENOMEM;
    dli_mysql_maker_t *maker = calloc(1, sizeof *maker);
    dli_mysql_member_t *member = calloc(1, sizeof *member);
    if (maker != NULL && member != NULL) {
        maker->pool = pool;
        maker->lane = member->lane = lane;
        maker->member = member;
        maker->began_ns = member->began_ns = pool->env.now_ns();
        member->is_fresh = true;
        status = begin(maker, ticket, err);
    } else {
        dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    if (status != DL_OK) {
        free(maker);
        free(member);
        dli_mysql_pool_leave(pool, lane);
    }
    return status;
}

bool dli_mysql_pool_make_spare(dli_mysql_pool_t *pool, dli_mysql_lane_t at) {
    dli_mysql_lane_pool_t *lane = &pool->lanes[at];
    dl_error_t err;
    pthread_mutex_lock(&pool->mutex);
    bool has_place = lane->total < lane->max_total;
    lane->total += has_place;
    pthread_mutex_unlock(&pool->mutex);
    return has_place && dli_mysql_pool_make(pool, at, NULL, &err) == DL_OK;
}

/* ---- what they learned ------------------------------------------------------------------------------ */

static void report(const dli_mysql_pool_t *pool, dl_log_level_t level, const char *what, const char *more) {
    char text[640];
    snprintf(text, sizeof text, "%s: %s", what, more);
    pool->env.report(pool->env.core, level, text);
}

void dli_mysql_pool_tell(dli_mysql_pool_t *pool) {
    char why[sizeof pool->breaker.reason.message];
    if (!atomic_load(&pool->has_news) || !atomic_exchange(&pool->has_news, false)) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    bool is_down = pool->breaker.is_down, was_down = pool->was_told_down, is_other = pool->is_other;
    uint64_t reconnects = pool->reconnects;
    memcpy(why, pool->breaker.reason.message, sizeof why);
    pool->was_told_down = is_down;
    pool->is_other = false;
    pool->reconnects = 0;
    pthread_mutex_unlock(&pool->mutex);
    if (reconnects > 0) {
        pool->env.count(pool->env.core, DL_COUNT_RECONNECT, reconnects);
    }
    if (is_down && !was_down) {
        report(pool, DL_LOG_WARNING, "the server cannot be used",
               why); /* which names it: an event is short */
    } else if (was_down && !is_down) {
        report(pool, DL_LOG_INFO, pool->endpoint->label, "the server is back");
    }
    if (is_other) {
        report(pool, DL_LOG_WARNING, pool->endpoint->label,
               "this is another server than before; locks that the other had are not known to it");
    }
}
