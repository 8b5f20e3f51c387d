/* connecting.c - makes the connections of a pool, and notes what each says about the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1000000u

static void report(const dli_pool_t *pool, dl_log_level_t level, const char *who, const char *what) {
    char text[512];
    snprintf(text, sizeof text, "%s: %s", who, what);
    pool->env->report(pool->env->core, level, text);
}

/* What the machine here lacks says nothing about the server. */
static bool blames_server(dl_status_t status, bool had_begun) {
    return status != DL_ENOMEM && (had_begun || status != DL_ELIMIT);
}

/* The connection came to nothing. */
static void note_failure(dli_pool_t *pool, const dli_member_t *member, bool blame, const dl_error_t *err) {
    bool is_news = false;
    pthread_mutex_lock(&pool->mutex);
    if (blame) {
        is_news = dli_breaker_fail(&pool->breaker, pool->env, member->started_ns, member->is_probe, err);
    } else {
        dli_breaker_give_up(&pool->breaker, member->is_probe);
    }
    pthread_mutex_unlock(&pool->mutex);
    if (is_news && !pool->options.is_quiet) {
        report(pool, DL_LOG_WARNING, "the server cannot be used", err->message);
    }
}

/* Asks whether the server is worth it, and begins. */
static dl_status_t start(dli_pool_t *pool, dli_member_t *member, dl_error_t *err) {
    member->started_ns = pool->env->now_ns();
    pthread_mutex_lock(&pool->mutex);
    dl_status_t status = dli_breaker_ask(&pool->breaker, member->started_ns, &member->is_probe, err);
    pthread_mutex_unlock(&pool->mutex);
    if (status != DL_OK) {
        return status;
    }
    uint64_t until_ns = member->started_ns + (uint64_t)pool->endpoint->connect_timeout_ms * NS_PER_MS;
    status = dli_conn_start(pool->endpoint, pool->env, until_ns, &member->conn, err);
    if (status != DL_OK) {
        note_failure(pool, member, blames_server(status, false), err);
    }
    return status;
}

/* Has the greater part of its time left to become ready? */
static bool is_young(const dli_pool_t *pool, const dli_member_t *member) {
    uint64_t half_ns = (uint64_t)pool->endpoint->connect_timeout_ms * NS_PER_MS / 2;
    return pool->env->now_ns() - member->started_ns < half_ns;
}

/* The connection that somebody began and left; NULL: there is none that would do. */
static dli_member_t *take_begun(dli_pool_t *pool, dli_lane_t lane) {
    pthread_mutex_lock(&pool->mutex);
    dli_member_t *member = pool->lanes[lane].begun;
    pool->lanes[lane].begun = NULL;
    bool is_fine = member != NULL && is_young(pool, member);
    if (is_fine) {
        member->is_counted = member->was_left = true;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (member != NULL && !is_fine) {
        dli_pool_drop(pool, member, false);
    }
    return is_fine ? member : NULL;
}

dl_status_t dli_pool_connect(dli_pool_t *pool, dli_lane_t lane, bool is_counted, dli_member_t **member,
                             dl_error_t *err) {
    *member = is_counted ? take_begun(pool, lane) : NULL;
    if (*member != NULL) {
        return DL_OK;
    }
    dli_member_t *made = calloc(1, sizeof *made);
    if (made == NULL) {
        if (is_counted) {
            dli_pool_leave(pool, lane);
        }
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    made->lane = lane;
    made->is_counted = is_counted;
    /* Before there is a descriptor, so that a forked child knows of it. */
    pthread_mutex_lock(&pool->mutex);
    dli_pool_enlist(pool, made);
    pthread_mutex_unlock(&pool->mutex);
    dl_status_t status = start(pool, made, err);
    if (status != DL_OK) {
        dli_pool_drop(pool, made, false);
        return status;
    }
    *member = made;
    return DL_OK;
}

void dli_pool_connected(dli_pool_t *pool, dli_member_t *member) {
    const dli_facts_t *facts = dli_conn_facts(member->conn);
    dli_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    bool was_down = dli_breaker_mend(&pool->breaker);
    bool is_other = pool->facts.run_id[0] != '\0' && facts->run_id[0] != '\0' &&
                    strcmp(pool->facts.run_id, facts->run_id) != 0;
    if (is_other) {
        dli_pool_begin_epoch(pool, &doomed);
    }
    pool->facts = *facts;
    member->epoch = pool->epoch;
    bool is_again = pool->lost > 0;
    pool->lost -= is_again;
    pthread_mutex_unlock(&pool->mutex);
    dli_condemned_meet(&pool->condemned, facts);
    dli_pool_close_all(doomed);
    if (is_again) {
        pool->env->count(pool->env->core, DL_COUNT_RECONNECT, 1);
    }
    if (was_down && !pool->options.is_quiet) {
        report(pool, DL_LOG_INFO, pool->endpoint->label, "the server is back");
    }
    if (is_other) {
        report(pool, DL_LOG_WARNING, pool->endpoint->label,
               "the server was restarted or replaced; locks that it had may be gone");
    }
}

void dli_pool_connect_failed(dli_pool_t *pool, dli_member_t *member, dl_status_t status,
                             const dl_error_t *err) {
    note_failure(pool, member, blames_server(status, true), err);
    dli_pool_drop(pool, member, false);
}

void dli_pool_connect_cut(dli_pool_t *pool, dli_member_t *member) {
    dli_lane_t lane_of = member->lane;
    dli_lane_pool_t *lane = &pool->lanes[lane_of];
    pthread_mutex_lock(&pool->mutex);
    dli_breaker_give_up(&pool->breaker, member->is_probe);
    bool is_kept = member->is_counted && lane->begun == NULL && is_young(pool, member);
    if (is_kept) {
        lane->begun = member;
        member->is_counted = member->is_probe = false;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (is_kept) {
        dli_pool_leave(pool, lane_of);
    } else {
        dli_pool_drop(pool, member, false);
    }
}

void dli_pool_failed_over(dli_pool_t *pool, const dli_member_t *member) {
    dli_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (member->epoch == pool->epoch) {
        dli_pool_begin_epoch(pool, &doomed);
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_pool_close_all(doomed);
}
