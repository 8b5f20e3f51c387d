/* pools_cases.c - faults of a pool of connections to a MySQL server (row 32): all of them are in use. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/queues.h"
#include "faults/mysql_wire.h"

#define THREADS 8
#define NAMES 20
#define ROUNDS 10
#define MORE_THAN_WORKERS 12

/* Every connection of the pool is busy: with a holder, or with a call that the server does not answer. */
CT_CASE(faults, row32_pool_exhausted, MYSQL) {
    static const char *const kept[] = {"row 32 kept", "row 32 kept too"};
    introduce(ct, kept[0]);
    introduce(ct, kept[1]);
    introduce(ct, "row 32");
    dl_client_t *c = ct_open(ct, "max_total: 2\ncall_timeout: 5s");
    dl_lock_t *held = ct_lock(ct, c, "row 32 held"), *wanted = ct_lock(ct, c, "row 32");
    CT_OK(dl_lock(held, CT_ERR));
    mysql_hand_t *hand = lock_row(ct, kept[0]);
    touch_row(ct, hand, kept[1], "FOR UPDATE");
    caller_t callers[2];
    int busy = is_session(ct) ? 1 : 2; /* a holder of a row lock has the other */
    for (int i = 0; i < busy; i++) {
        callers[i] = (caller_t)CALLER(ct_lock(ct, c, kept[i]), 4000);
        start_caller(ct, &callers[i]);
    }
    CT_AWAIT_THAT(waiting_connections(ct, NULL), >=, busy, 3000);
    uint64_t renewed = ct_stats(ct, c).renewed;
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock_for(wanted, 200, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    CT_GE(ct_now_ms(ct) - watch.began_ms, 200 - 1);
    IN_TIME(watch, 200);
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >, renewed, ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    let_row_go(hand);
    for (int i = 0; i < busy; i++) {
        end_caller(ct, &callers[i], DL_OK);
    }
    ct_expect_free(ct, "row 32", 0);
    CT_OK(dl_trylock_for(wanted, RETRY_MS, DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(wanted, CT_ERR));
    CT_OK(dl_unlock(held, CT_ERR));
}

/* Row locks need a connection each for as long as they are held. */
CT_CASE(faults, row32_pool_full_of_holders, MYSQL, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, "max_total: 2");
    dl_lock_t *one = ct_lock(ct, c, "row 32 one"), *two = ct_lock(ct, c, "row 32 two");
    dl_lock_t *three = ct_lock(ct, c, "row 32 three");
    CT_OK(dl_lock(one, CT_ERR));
    CT_OK(dl_lock(two, CT_ERR));
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock_for(three, 200, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    CT_GE(ct_now_ms(ct) - watch.began_ms, 200 - 1);
    IN_TIME(watch, 200);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    caller_t waiter = CALLER(three, DL_WAIT_FOREVER);
    int fault = ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, 1);
    start_caller(ct, &waiter);
    ct_sleep_ms(ct, 2 * ct_call_timeout_ms(ct)); /* that outage is over, and the pool is full all the while */
    CT_EQ(ct_fault_hits(ct, fault), 1);
    CT_EQ(ct_stats(ct, c).waiting_now, 1);
    CT_OK(dl_unlock(one, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    CT_OK(dl_unlock(two, CT_ERR));
}

CT_CASE(faults, row32_pool_full_for_longer_than_borrow_timeout, MYSQL, .needs = DL_CAP_SESSION) {
    dl_client_t *c = ct_open(ct, "max_total: 1\nborrow_timeout: 150ms");
    dl_lock_t *one = ct_lock(ct, c, "row 32 one"), *two = ct_lock(ct, c, "row 32 two");
    CT_OK(dl_lock(one, CT_ERR));
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(two, CT_ERR), DL_ETIMEDOUT);
    CT_GE(ct_now_ms(ct) - watch.began_ms, 150 - 1);
    IN_TIME(watch, 150);
    CT_EQ(ct_stats(ct, c).lost, 0);
    CT_OK(dl_unlock(one, CT_ERR));
    CT_OK(dl_trylock(two, CT_ERR));
    CT_OK(dl_unlock(two, CT_ERR));
}

/* More operations than a client has threads for: those that must not keep one wait just as long. */
static void fill_pool(ct_t *ct, const char *options, dl_status_t status) {
    dl_client_t *c = ct_open(ct, options);
    dl_lock_t *held = ct_lock(ct, c, "row 32 held");
    dl_queue_t *queue = new_queue(ct);
    CT_OK(dl_lock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    for (int i = 0; i < MORE_THAN_WORKERS; i++) {
        (void)begin_lock(ct, queue, ct_lock_owned(ct, c, fresh_name("row 32"), 1));
    }
    if (status == DL_OK) {
        CT_CHECK(!ct_await_readable(ct, dl_queue_fd(queue), 3 * ct_call_timeout_ms(ct) / 2));
        CT_OK(dl_unlock(held, CT_ERR));
    }
    for (int left = status == DL_OK ? 2 * MORE_THAN_WORKERS : MORE_THAN_WORKERS; left > 0; left--) {
        dl_completion_t done = take_next(ct, queue, SOON_MS);
        CT_CHECKF(done.status == status, "it is %s: %s", dl_status_name(done.status), done.err.message);
        if (status == DL_OK && done.kind == DL_OP_ACQUIRE) {
            (void)begin_unlock(ct, queue, done.lock);
        }
    }
    CT_GE(ct_now_ms(ct) - before_ms, 150 - 1);
    CT_EQ(ct_stats(ct, c).lost, 0);
    dl_queue_free(queue);
}

CT_CASE(faults, row32_pool_full_for_more_operations_than_threads, MYSQL, .needs = DL_CAP_SESSION) {
    fill_pool(ct, "max_total: 1", DL_OK);
    fill_pool(ct, "max_total: 1\nborrow_timeout: 150ms", DL_ETIMEDOUT);
}

typedef struct worker {
    dl_client_t *client;
    dl_lock_t **locks;
    int number;
    _Atomic int *inside; /* one for each name */
    int done;
} worker_t;

static void work(ct_t *ct, void *arg) {
    worker_t *w = arg;
    for (int i = 0; i < ROUNDS; i++) {
        int which = (w->number * 7 + i * 3) % NAMES;
        CT_OK(dl_trylock_for(w->locks[which], 20000, DL_LEASE_AUTO, CT_ERR));
        CT_EQ(w->inside[which]++, 0);
        ct_sleep_ms(ct, 2);
        CT_EQ(--w->inside[which], 0);
        CT_OK(dl_unlock(w->locks[which], CT_ERR));
        w->done++;
    }
}

CT_CASE(faults, row32_two_connections_for_eight_threads_and_twenty_names, MYSQL) {
    char options[64];
    snprintf(options, sizeof options, "max_total: 2\ncall_timeout: %lldms",
             (long long)(5 * ct_call_timeout_ms(ct)));
    dl_client_t *c = ct_open(ct, options);
    dl_lock_t *locks[NAMES];
    _Atomic int inside[NAMES] = {0};
    worker_t workers[THREADS];
    ct_thread_t *threads[THREADS];
    for (int i = 0; i < NAMES; i++) {
        locks[i] = ct_lock(ct, c, fresh_name("row 32"));
    }
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker_t){c, locks, i, inside, 0};
        threads[i] = ct_thread(ct, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        ct_join(ct, threads[i]);
        CT_EQ(workers[i].done, ROUNDS);
    }
    CT_EQ(ct_stats(ct, c).held_now, 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
}
