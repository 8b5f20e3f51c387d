/* mysql_pool_fixture.h - a pool with its insides to be looked at, and callers that wait in threads. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_POOL_FIXTURE_H
#define MYSQL_POOL_FIXTURE_H

#include "mysql_link_fixture.h"

#include "drivers/mysql/link/keeper.h"
#include "support/entries.h"

static dli_mysql_pool_t *pool;
static dli_mysql_guard_t *guard;
static dl_error_t err;
static dli_mysql_keeper_t keeper;
static int threads_before; /* of this process, without those that make connections */

static inline int threads_of_this_process(void) {
    return count_entries("/proc/self/task");
}

static inline void set_up_pool(void) {
    set_up();
}

static inline void open_pool(int max_total) {
    options.max_total = max_total;
    cr_assert_eq(dli_mysql_library_start(&err), DL_OK);
    cr_assert_eq(dli_mysql_guard_open(&env, &guard, &err), DL_OK);
    cr_assert_eq(dli_mysql_pool_new(endpoint, &options, &env, guard, &pool, &err), DL_OK);
    threads_before = threads_of_this_process();
}

static inline void tear_down_pool(void) {
    if (pool != NULL) {
        dli_mysql_pool_close(pool, false);
    }
    dli_mysql_guard_close(guard, false);
    tear_down_rest();
}

static inline void open_kept_pool(int max_total) {
    open_pool(max_total);
    cr_assert_eq(dli_mysql_keeper_start(&keeper, pool, &err), DL_OK, "%s", err.message);
    dli_mysql_keeper_wake(&keeper);
}

static inline void tear_down_keeper(void) {
    dli_mysql_keeper_stop(&keeper, false);
    tear_down_pool();
}

/* ---- borrowing -------------------------------------------------------------------------------------- */

static inline dl_status_t borrow_at(dli_mysql_lane_t lane, dli_mysql_member_t **member, uint64_t ms,
                                    const dl_stop_t *stop) {
    return dli_mysql_pool_borrow(pool, lane, env.now_ns(), DL_NO_DEADLINE, in_ms(ms), stop, member, &err);
}

static inline dl_status_t borrow(dli_mysql_member_t **member, uint64_t ms, const dl_stop_t *stop) {
    return borrow_at(DLI_MYSQL_CALLS, member, ms, stop);
}

static inline dli_mysql_member_t *take(void) {
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 15000, NULL), DL_OK, "%s", err.message);
    return member;
}

static inline void give_back(dli_mysql_member_t *member) {
    dli_mysql_pool_give_back(pool, member);
}

/* So many connections, which lie idle then. */
static inline void warm_up(int n) {
    dli_mysql_member_t *members[64];
    for (int i = 0; i < n; i++) {
        members[i] = take();
    }
    for (int i = 0; i < n; i++) {
        give_back(members[i]);
    }
}

/* One statement on it, which is answered. */
static inline void use(dli_mysql_member_t *member) {
    dli_mysql_bounds_t bounds = {&env, guard, in_ms(15000), NULL};
    dli_mysql_answer_t answer;
    dl_error_t why;
    cr_assert_eq(dli_mysql_conn_ask(member->conn, "SELECT 1", 8, &bounds, NULL, &answer, &why), DL_OK, "%s",
                 why.message);
    cr_assert_eq(answer.error, 0);
    dli_mysql_answer_free(&answer);
}

/* ---- looking ---------------------------------------------------------------------------------------- */

/* What `expression` says of the lane CALLS. */
#define LOOK(expression)                                                    \
    ({                                                                      \
        pthread_mutex_lock(&pool->mutex);                                   \
        const dli_mysql_lane_pool_t *lane_ = &pool->lanes[DLI_MYSQL_CALLS]; \
        int found_ = (int)(expression);                                     \
        pthread_mutex_unlock(&pool->mutex);                                 \
        found_;                                                             \
    })

static inline int queue_length(const dli_mysql_lane_pool_t *lane) {
    int n = 0;
    for (const dli_mysql_ticket_t *ticket = lane->first; ticket != NULL; ticket = ticket->behind) {
        n++;
    }
    return n;
}

static inline int count_makers(const dli_mysql_lane_pool_t *lane, bool awaited) {
    int n = 0;
    for (const dli_mysql_maker_t *maker = lane->makers; maker != NULL; maker = maker->next) {
        n += !awaited || maker->ticket != NULL;
    }
    return n;
}

static inline int queued(void) {
    return LOOK(queue_length(lane_));
}

static inline int makers(void) {
    return LOOK(count_makers(lane_, false));
}

static inline int awaited_makers(void) {
    return LOOK(count_makers(lane_, true));
}

static inline int idle(void) {
    return LOOK(lane_->idle);
}

static inline int total(void) {
    return LOOK(lane_->total);
}

/* Nobody has one, waits for one, or makes one, and so many lie idle. */
static inline void assert_at_rest(int n) {
    cr_assert_eq(queued(), 0);
    cr_assert_eq(makers(), 0);
    cr_assert_eq(idle(), n, "%d lie idle, not %d", idle(), n);
    cr_assert_eq(total(), n, "%d places are taken, not %d", total(), n);
    cr_assert_null(pool->tickets);
}

/* ---- callers in threads ----------------------------------------------------------------------------- */

typedef struct waiter {
    pthread_t thread;
    uint64_t deadline_ns;
    const dl_stop_t *stop;
    dli_mysql_member_t *member;
    dl_status_t status;
    dl_error_t err;
    atomic_bool is_done;
} waiter_t;

static inline void *wait_for_one(void *arg) {
    waiter_t *waiter = arg;
    waiter->status = dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, env.now_ns(), DL_NO_DEADLINE,
                                           waiter->deadline_ns, waiter->stop, &waiter->member, &waiter->err);
    atomic_store(&waiter->is_done, true);
    return NULL;
}

static inline void start_waiter(waiter_t *waiter, uint64_t ms, const dl_stop_t *stop) {
    memset(waiter, 0, sizeof *waiter);
    waiter->deadline_ns = in_ms(ms);
    waiter->stop = stop;
    cr_assert_eq(pthread_create(&waiter->thread, NULL, wait_for_one, waiter), 0);
}

static inline void join_waiters(waiter_t *waiters, int n) {
    for (int i = 0; i < n; i++) {
        cr_assert_eq(pthread_join(waiters[i].thread, NULL), 0);
    }
}

/* ---- the last moment of a wait ---------------------------------------------------------------------- */

static dli_mysql_member_t *last_moment_member;
static bool last_moment_by_place;
static pthread_t last_moment_thread;
static atomic_bool last_moment_armed, last_moment_came;

/* A waiter looks at the clock without the mutex when it gives up, and before it leaves the queue. */
static inline uint64_t read_clock_at_last_moment(void) {
    if (atomic_load(&last_moment_armed) && pthread_equal(pthread_self(), last_moment_thread) &&
        pthread_mutex_trylock(&pool->mutex) == 0) {
        pthread_mutex_unlock(&pool->mutex);
        atomic_store(&last_moment_armed, false);
        atomic_store(&last_moment_came, true);
        if (last_moment_by_place) {
            dli_mysql_pool_drop(pool, last_moment_member);
        } else {
            dli_mysql_pool_give_back(pool, last_moment_member);
        }
    }
    return read_clock();
}

/* At the last moment of this thread's wait, in a pool with the clock above, the member is given back, or its
 * place. */
static inline void arm_last_moment(dli_mysql_member_t *member, bool by_place, pthread_t thread) {
    last_moment_member = member;
    last_moment_by_place = by_place;
    last_moment_thread = thread;
    atomic_store(&last_moment_armed, true);
}

#endif
