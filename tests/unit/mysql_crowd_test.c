/* mysql_crowd_test.c - forks at any moment, and many threads while connections are killed. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pool_fixture.h"

TestSuite(crowd, .init = set_up_pool, .fini = tear_down_keeper, .timeout = 120);

/* ---- forks ------------------------------------------------------------------------------------------ */

static void *hold_one(void *arg) {
    (void)arg;
    dli_mysql_member_t *member = take();
    use(member);
    return member;
}

Test(crowd, a_forked_child_closes_descriptors_and_says_nothing) {
    open_kept_pool(8);
    warm_up(3);
    pthread_t thread;
    void *held;
    cr_assert_eq(pthread_create(&thread, NULL, hold_one, NULL), 0);
    cr_assert_eq(pthread_join(thread, &held), 0);
    int before = connections();
    cr_assert_eq(before, 3);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        int fds = open_descriptors();
        dli_mysql_keeper_stop(&keeper, true);
        dli_mysql_pool_close(pool, true);
        /* One of the keeper's and at least one of each connection. */
        _exit(fds - open_descriptors() >= 1 + before ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status), "status %x", (unsigned)status);
    cr_assert_eq(WEXITSTATUS(status), 0, "status %x", (unsigned)status);
    cr_assert_eq(connections(), before);
    use(held);
    give_back(held);
    warm_up(3);
    cr_assert_eq(reconnects, 0);
    assert_at_rest(3);
}

Test(crowd, a_child_forked_at_any_moment_can_close) {
    open_pool(4);
    waiter_t waiters[4];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++) {
            start_waiter(&waiters[i], 10000, NULL);
        }
        pid_t child = fork(); /* they are somewhere on their way */
        cr_assert_geq(child, 0);
        if (child == 0) {
            dli_mysql_pool_close(pool, true);
            _exit(0);
        }
        join_waiters(waiters, 4);
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFEXITED(status), "round %d: status %x", round, (unsigned)status);
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(waiters[i].status, DL_OK, "%s", waiters[i].err.message);
            if (round % 2 == 0) {
                dli_mysql_pool_drop(pool, waiters[i].member);
            } else {
                give_back(waiters[i].member);
            }
        }
    }
}

/* ---- all at once ------------------------------------------------------------------------------------ */

#define WORKERS 64

static atomic_bool is_enough;
static atomic_int served, unserved;

static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    while (!atomic_load(&is_enough)) {
        dli_mysql_member_t *member;
        dl_error_t why;
        uint64_t ms = rand_r(&seed) % 4 == 0 ? 1 : 5000;
        dl_status_t status = dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, env.now_ns(), DL_NO_DEADLINE,
                                                   in_ms(ms), NULL, &member, &why);
        if (status != DL_OK) {
            cr_assert(status == DL_ETIMEDOUT || status == DL_EIO, "%s", why.message);
            atomic_fetch_add(&unserved, 1);
            continue;
        }
        dli_mysql_bounds_t bounds = {&env, guard, in_ms(5000), NULL};
        dli_mysql_answer_t answer;
        status = dli_mysql_conn_ask(member->conn, "SELECT 1", 8, &bounds, NULL, &answer, &why);
        dli_mysql_answer_free(&answer);
        if (status == DL_OK) {
            give_back(member);
            atomic_fetch_add(&served, 1);
        } else {
            dli_mysql_pool_drop(pool, member);
        }
    }
    return NULL;
}

Test(crowd, sixty_four_threads_and_random_kills_end_with_right_counts) {
    options.idle_timeout_ms = 20;
    options.idle_check_ms = 10;
    options.min_idle = 2;
    options.test_while_idle = true;
    open_kept_pool(8);
    pthread_t threads[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    }
    for (int i = 0; i < 100; i++) {
        mysql_kill_connections(server, account);
    }
    AWAIT_THAT(atomic_load(&served), >, 1000);
    atomic_store(&is_enough, true);
    for (int i = 0; i < WORKERS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    dli_mysql_keeper_stop(&keeper, false);
    keeper.is_running = false;
    AWAIT_THAT(makers(), ==, 0);
    assert_at_rest(idle());
    cr_assert_leq(idle(), 8);
    AWAIT_THAT(connections(), ==, idle());
    cr_assert_eq(pool->overdue, 0);
}
