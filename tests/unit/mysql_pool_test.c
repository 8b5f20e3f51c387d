/* mysql_pool_test.c - the pool: places, the queue, idle connections, and those that are being made. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pool_fixture.h"

TestSuite(pool, .init = set_up_pool, .fini = tear_down_pool, .timeout = 120);

Test(pool, only_the_server_says_that_it_takes_no_more) {
    static const struct {
        int native;
        bool is_refusal;
    } cases[] = {{EMFILE, false}, {1040, true}, {1203, true}, {1226, true}, {2001, false}, {2004, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dl_error_t why = {.status = DL_ELIMIT, .native = cases[i].native};
        cr_expect_eq(dli_mysql_pool_is_refusal(&why), cases[i].is_refusal, "%d", cases[i].native);
    }
    const dl_error_t refused = {.status = DL_EAUTH, .native = 1045};
    cr_expect_not(dli_mysql_pool_is_refusal(&refused));
}

Test(pool, a_full_lane_keeps_its_caller_waiting_for_borrow_timeout_and_says_so) {
    options.borrow_timeout_ms = 100;
    open_pool(2);
    dli_mysql_member_t *one = take(), *two = take(), *three;
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(borrow(&three, 5000, NULL), DL_ETIMEDOUT);
    cr_assert_str_eq(strstr(err.message, "all "), "all 2 connections are in use (max_total)");
    cr_assert_geq(ms_since(began_ns), 100);
    cr_assert_lt(ms_since(began_ns), 100 + SLACK_MS);
    /* The wait counts from when the caller says that it began. */
    began_ns = env.now_ns();
    cr_assert_eq(dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, began_ns - 100 * MS, DL_NO_DEADLINE,
                                       in_ms(5000), NULL, &three, &err),
                 DL_ETIMEDOUT);
    cr_assert_lt(ms_since(began_ns), 100);
    give_back(one);
    give_back(two);
    assert_at_rest(2);
}

Test(pool, the_deadline_bounds_the_wait_for_a_free_connection) {
    open_pool(1);
    dli_mysql_member_t *one = take(), *two;
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(borrow(&two, 50, NULL), DL_ETIMEDOUT);
    cr_assert_geq(ms_since(began_ns), 50);
    cr_assert_lt(ms_since(began_ns), 50 + SLACK_MS);
    give_back(one);
    assert_at_rest(1);
}

/* The instant from which the caller is to come again is one of the queue only. */
Test(pool, who_is_to_come_again_hears_so_where_all_are_in_use) {
    options.test_on_borrow = true;
    open_pool(1);
    dli_mysql_member_t *one = take(), *two;
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, began_ns, began_ns + 50 * MS, in_ms(5000), NULL,
                                       &two, &err),
                 DL_EBUSY);
    cr_assert_geq(ms_since(began_ns), 50);
    cr_assert_str_eq(strstr(err.message, "all "), "all 1 connections are in use (max_total)");
    began_ns = env.now_ns();
    cr_assert_eq(dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, began_ns, began_ns + 50 * MS,
                                       began_ns + 50 * MS, NULL, &two, &err),
                 DL_EBUSY, "at the deadline too");
    give_back(one);
    hears_nothing_late = true;
    cr_assert_eq(
        dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, began_ns, began_ns, in_ms(5000), NULL, &two, &err),
        DL_OK, "%s", err.message);
    cr_assert_eq(two, one, "it was tested in peace");
    give_back(two);
    assert_at_rest(1);
}

Test(pool, borrow_timeout_is_for_calls_only) {
    options.borrow_timeout_ms = 1;
    open_pool(1);
    dli_mysql_member_t *tokens[8], *ninth;
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(borrow_at(DLI_MYSQL_TOKENS, &tokens[i], 5000, NULL), DL_OK, "%s", err.message);
    }
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(borrow_at(DLI_MYSQL_TOKENS, &ninth, 50, NULL), DL_ETIMEDOUT);
    cr_assert_geq(ms_since(began_ns), 50);
    for (int i = 0; i < 8; i++) {
        give_back(tokens[i]);
    }
}

Test(pool, connections_go_to_those_who_wait_in_their_order) {
    open_pool(1);
    dli_mysql_member_t *member = take();
    waiter_t waiters[4];
    for (int i = 0; i < 4; i++) {
        start_waiter(&waiters[i], 10000, NULL);
        AWAIT_THAT(queued(), ==, i + 1);
    }
    give_back(member);
    for (int i = 0; i < 4; i++) {
        AWAIT(atomic_load(&waiters[i].is_done));
        cr_assert_eq(waiters[i].status, DL_OK, "%s", waiters[i].err.message);
        for (int later = i + 1; later < 4; later++) {
            cr_assert_not(atomic_load(&waiters[later].is_done), "%d came before %d", later, i);
        }
        give_back(waiters[i].member);
    }
    join_waiters(waiters, 4);
    assert_at_rest(1);
}

Test(pool, the_place_of_a_dropped_connection_goes_to_who_waits) {
    open_pool(1);
    dli_mysql_member_t *member = take();
    waiter_t waiter;
    start_waiter(&waiter, 10000, NULL);
    AWAIT_THAT(queued(), ==, 1);
    dli_mysql_pool_drop(pool, member);
    join_waiters(&waiter, 1);
    cr_assert_eq(waiter.status, DL_OK, "%s", waiter.err.message);
    give_back(waiter.member);
    assert_at_rest(1);
    cr_assert_eq(reconnects, 1);
}

Test(pool, who_stops_waiting_leaves_the_queue_to_the_others) {
    int fds[2];
    dl_stop_t stop = make_stop(fds);
    open_pool(1);
    dli_mysql_member_t *member = take();
    waiter_t waiters[3];
    for (int i = 0; i < 3; i++) {
        start_waiter(&waiters[i], 10000, i == 1 ? &stop : NULL);
        AWAIT_THAT(queued(), ==, i + 1);
    }
    uint64_t began_ns = env.now_ns();
    trigger(fds);
    AWAIT(atomic_load(&waiters[1].is_done));
    cr_assert_eq(waiters[1].status, DL_ECANCELED);
    cr_assert_lt(ms_since(began_ns), SLACK_MS);
    give_back(member);
    AWAIT(atomic_load(&waiters[0].is_done));
    give_back(waiters[0].member);
    join_waiters(waiters, 3);
    cr_assert_eq(waiters[2].status, DL_OK, "%s", waiters[2].err.message);
    give_back(waiters[2].member);
    assert_at_rest(1);
}

/* Between the last look and the leaving: the connection, or the place for one, must go on to the next. */
static void quit_while_called(bool by_place) {
    int fds[2];
    dl_stop_t stop = make_stop(fds);
    env.now_ns = read_clock_at_last_moment;
    open_pool(1);
    dli_mysql_member_t *member = take();
    waiter_t waiters[2];
    start_waiter(&waiters[0], 10000, &stop);
    AWAIT_THAT(queued(), ==, 1);
    start_waiter(&waiters[1], 10000, NULL);
    AWAIT_THAT(queued(), ==, 2);
    arm_last_moment(member, by_place, waiters[0].thread);
    trigger(fds);
    join_waiters(waiters, 2);
    cr_assert(atomic_load(&last_moment_came));
    cr_assert_eq(waiters[0].status, DL_ECANCELED);
    cr_assert_eq(waiters[1].status, DL_OK, "%s", waiters[1].err.message);
    give_back(waiters[1].member);
    assert_at_rest(1);
}

Test(pool, who_quits_when_called_passes_the_connection_on) {
    quit_while_called(false);
}

Test(pool, who_quits_when_called_passes_the_place_on) {
    quit_while_called(true);
}

/* ---- making ----------------------------------------------------------------------------------------- */

Test(pool, a_connection_that_hangs_costs_its_caller_connect_timeout_only) {
    make_relay(200);
    atomic_store(&relay->holds, true);
    open_pool(8);
    dli_mysql_member_t *member;
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(borrow(&member, 10000, NULL), DL_EIO);
    cr_assert_geq(ms_since(began_ns), 200, "%s", err.message);
    cr_assert_lt(ms_since(began_ns), 200 + SLACK_MS, "%s", err.message);
    cr_assert_has(err.message, "takes longer than 200ms");
    cr_assert_has(err.message, endpoint->label);
    cr_assert(was_reported("the server cannot be used: connecting to "));
    char twice[256];
    (void)snprintf(twice, sizeof twice, "%s: the server cannot", endpoint->label);
    cr_assert_not(was_reported(twice), "an event has no room for its reason behind the place, named twice");
    cr_assert_eq(total(), 0, "its place is free");
    /* When the network is back, what was begun comes after all, or is made anew. */
    atomic_store(&relay->holds, false);
    AWAIT_THAT(borrow(&member, 10000, NULL), ==, DL_OK);
    give_back(member);
    AWAIT_THAT(makers(), ==, 0);
    cr_assert(was_reported("the server is back"));
    assert_at_rest(idle());
}

Test(pool, close_waits_for_no_connection_that_hangs) {
    make_relay(60000);
    atomic_store(&relay->holds, true);
    open_pool(8);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 50, NULL), DL_EIO);
    cr_assert_eq(makers(), 1);
    uint64_t began_ns = env.now_ns();
    dli_mysql_pool_close(pool, false);
    pool = NULL;
    cr_assert_lt(ms_since(began_ns), SLACK_MS);
    /* The thread closes what it was making. */
    atomic_store(&relay->holds, false);
    AWAIT_THAT(atomic_load(&relay->pairs), ==, 1);
    AWAIT_THAT(threads_of_this_process(), ==, threads_before);
    AWAIT_THAT(connections(), ==, 0);
}

Test(pool, what_was_begun_is_there_for_the_next_caller) {
    make_relay(20000);
    atomic_store(&relay->holds, true);
    open_pool(8);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 50, NULL), DL_EIO);
    cr_assert_str_eq(strstr(err.message, "no connection"), "no connection in time");
    cr_assert_eq(borrow(&member, 50, NULL), DL_EIO);
    waiter_t waiter;
    start_waiter(&waiter, 10000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    atomic_store(&relay->holds, false);
    join_waiters(&waiter, 1);
    cr_assert_eq(waiter.status, DL_OK, "%s", waiter.err.message);
    cr_assert_eq(relay->pairs, 1, "one was enough");
    give_back(waiter.member);
    assert_at_rest(1);
}

Test(pool, what_comes_too_late_goes_to_the_idle_ones) {
    make_relay(20000);
    atomic_store(&relay->holds, true);
    open_pool(8);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 50, NULL), DL_EIO);
    atomic_store(&relay->holds, false);
    AWAIT_THAT(idle(), ==, 1);
    assert_at_rest(1);
    give_back(take());
    cr_assert_eq(relay->pairs, 1);
}

Test(pool, one_that_hangs_and_was_left_keeps_its_place_for_connect_timeout_only) {
    make_relay(400);
    atomic_store(&relay->holds, true);
    open_pool(1);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 50, NULL), DL_EIO);
    atomic_fetch_add(&ahead_ns, 200 * MS); /* too old for the next */
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(borrow(&member, 10000, NULL), DL_EIO);
    cr_assert_has(err.message, "takes longer than");
    cr_assert_lt(ms_since(began_ns), 400 + SLACK_MS);
    cr_assert_eq(total(), 0);
}

Test(pool, no_crowd_of_threads_hangs_while_the_server_is_down) {
    make_relay(10);
    atomic_store(&relay->holds, true);
    open_pool(8);
    int most = 0;
    for (int i = 0; i < 60; i++) {
        dli_mysql_member_t *member;
        cr_assert_eq(borrow(&member, 5000, NULL), DL_EIO);
        atomic_fetch_add(&ahead_ns, 300 * MS); /* it may be tried again */
        most = makers() > most ? makers() : most;
    }
    cr_assert_leq(most, 17);
    cr_assert_geq(most, 8, "one after the other, this test shows nothing");
}

Test(pool, a_full_lane_of_calls_is_nothing_to_the_others) {
    open_pool(1);
    dli_mysql_member_t *calls = take(), *other;
    for (dli_mysql_lane_t lane = DLI_MYSQL_RENEWALS; lane < DLI_MYSQL_LANES; lane++) {
        cr_assert_eq(borrow_at(lane, &other, 15000, NULL), DL_OK, "%s", err.message);
        use(other);
        give_back(other);
    }
    give_back(calls);
}

Test(pool, stop_ends_the_wait_for_a_connection_that_hangs) {
    int fds[2];
    dl_stop_t stop = make_stop(fds);
    make_relay(20000);
    atomic_store(&relay->holds, true);
    open_pool(8);
    waiter_t waiter;
    start_waiter(&waiter, 10000, &stop);
    AWAIT_THAT(awaited_makers(), ==, 1);
    uint64_t began_ns = env.now_ns();
    trigger(fds);
    join_waiters(&waiter, 1);
    cr_assert_eq(waiter.status, DL_ECANCELED);
    cr_assert_lt(ms_since(began_ns), SLACK_MS);
    atomic_store(&relay->holds, false);
    AWAIT_THAT(idle(), ==, 1);
}

Test(pool, a_server_that_is_down_fails_calls_at_once_and_is_tried_now_and_then) {
    char nowhere[128];
    snprintf(nowhere, sizeof nowhere, "%s.not", server->path);
    make_endpoint(nowhere, 1000);
    open_pool(8);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 5000, NULL), DL_EIO);
    char reason[sizeof err.message];
    memcpy(reason, err.message, sizeof reason);
    for (int i = 0; i < 200; i++) {
        uint64_t began_ns = env.now_ns();
        cr_assert_eq(borrow(&member, 5000, NULL), DL_EIO);
        cr_assert_str_eq(err.message, reason);
        cr_assert_lt(ms_since(began_ns), SLACK_MS);
    }
    cr_assert_lt(threads_started, 50, "it was tried now and then, not each time");
    cr_assert_eq(warnings, 1, "it is said once");
    assert_at_rest(0);
}

/* As if the server hung up on it. */
static void cut(int pair) {
    cr_assert_eq(shutdown(relay->client[pair], SHUT_RDWR), 0);
}

static atomic_uint_fast64_t standing_ns;

static uint64_t read_standing_clock(void) {
    return atomic_load(&standing_ns);
}

/* The relay has refused somebody: the server counts as down, and may be tried. Time stands still. */
static void go_down(int max_total) {
    dli_mysql_member_t *member;
    atomic_store(&standing_ns, env.now_ns());
    env.now_ns = read_standing_clock;
    make_relay(20000);
    atomic_store(&relay->cuts, true);
    open_pool(max_total);
    cr_assert_eq(borrow(&member, 5000, NULL), DL_EIO);
    atomic_fetch_add(&standing_ns, 300 * MS);
    atomic_store(&relay->cuts, false);
    atomic_store(&relay->holds, true);
}

Test(pool, who_comes_while_another_tries_a_server_waits_for_that_one) {
    enum { N = 5 };
    waiter_t waiters[N];
    go_down(8);
    start_waiter(&waiters[0], 15000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    for (int i = 1; i < N; i++) {
        start_waiter(&waiters[i], 15000, NULL);
    }
    AWAIT_THAT(queued(), ==, N - 1);
    cr_assert_eq(makers(), 1, "one tries it");
    atomic_store(&relay->holds, false);
    join_waiters(waiters, N);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(waiters[i].status, DL_OK, "%d", i);
        give_back(waiters[i].member);
    }
    assert_at_rest(N);
}

/* A place in which somebody connects is not in use: it says nothing to those who wait for a holder. */
Test(pool, who_waits_while_another_connects_does_not_hear_that_all_are_in_use) {
    waiter_t one;
    dli_mysql_member_t *two;
    make_relay(20000);
    atomic_store(&relay->holds, true);
    options.borrow_timeout_ms = 1;
    open_pool(1);
    start_waiter(&one, 15000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    uint64_t now_ns = env.now_ns();
    cr_assert_eq(
        dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, now_ns, now_ns, now_ns + 50 * MS, NULL, &two, &err),
        DL_EIO, "%s", err.message);
    cr_assert_str_eq(strstr(err.message, "no connection"), "no connection in time");
    atomic_store(&relay->holds, false);
    join_waiters(&one, 1);
    cr_assert_eq(one.status, DL_OK, "%s", one.err.message);
    give_back(one.member);
    assert_at_rest(1);
}

Test(pool, who_waited_while_another_connected_hears_soon_that_all_are_in_use) {
    waiter_t waiters[2];
    make_relay(60000);
    atomic_store(&relay->holds, true);
    options.borrow_timeout_ms = 1;
    open_pool(1);
    start_waiter(&waiters[0], 60000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    start_waiter(&waiters[1], 60000, NULL);
    AWAIT_THAT(queued(), ==, 1);
    atomic_store(&relay->holds, false);
    AWAIT(atomic_load(&waiters[1].is_done));
    cr_assert_eq(waiters[1].status, DL_ETIMEDOUT, "%s", waiters[1].err.message);
    join_waiters(waiters, 2);
    give_back(waiters[0].member);
    assert_at_rest(1);
}

/* One tries the server, and the other waits for what comes of that. */
static void try_and_queue(waiter_t waiters[2]) {
    go_down(8);
    start_waiter(&waiters[0], 15000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    start_waiter(&waiters[1], 15000, NULL);
    AWAIT_THAT(queued(), ==, 1);
}

Test(pool, who_waits_for_another_to_try_a_server_learns_why_that_failed) {
    waiter_t waiters[2];
    try_and_queue(waiters);
    AWAIT_THAT(atomic_load(&relay->pairs), ==, 2);
    atomic_store(&relay->cuts, true);
    cut(1);
    join_waiters(waiters, 2);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(waiters[i].status, DL_EIO, "%d", i);
    }
    assert_at_rest(0);
}

Test(pool, who_tries_a_server_for_long_keeps_nobody_out) {
    waiter_t waiters[2];
    try_and_queue(waiters);
    atomic_fetch_add(&standing_ns, 250 * MS);
    AWAIT_THAT(awaited_makers(), ==, 2);
    atomic_store(&relay->holds, false);
    join_waiters(waiters, 2);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(waiters[i].status, DL_OK, "%d", i);
        give_back(waiters[i].member);
    }
}

/* ---- a server that takes no more -------------------------------------------------------------------- */

/* Of connections of this account; before the first of them. */
static void let_connect(int n) {
    mysql_ask(server, "ALTER USER '%s' WITH MAX_USER_CONNECTIONS %d", account, n);
    mysql_ask(server, "FLUSH PRIVILEGES"); /* or a server may go on with what it has counted by */
}

/* Whoever is refused is not behind those who came later. Time stands still, so that none tries it again. */
Test(pool, where_the_server_takes_no_more_callers_wait_for_connections_of_ours) {
    enum { N = 3 };
    waiter_t waiters[N];
    atomic_store(&standing_ns, env.now_ns());
    env.now_ns = read_standing_clock;
    make_relay(20000);
    let_connect(1);
    open_pool(2);
    dli_mysql_member_t *member = take();
    atomic_store(&relay->holds, true);
    start_waiter(&waiters[0], 15000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    for (int i = 1; i < N; i++) {
        start_waiter(&waiters[i], 15000, NULL);
        AWAIT_THAT(queued(), ==, i);
    }
    atomic_store(&relay->holds, false);
    AWAIT_THAT(queued(), ==, N);
    give_back(member);
    for (int i = 0; i < N; i++) {
        AWAIT(atomic_load(&waiters[i].is_done));
        cr_assert_eq(waiters[i].status, DL_OK, "%s", waiters[i].err.message);
        give_back(waiters[i].member);
    }
    join_waiters(waiters, N);
    assert_at_rest(1);
}

/* Those who are refused have begun before it is known here that others succeeded. */
Test(pool, where_the_server_takes_few_none_of_a_crowd_is_refused) {
    enum { N = 8 };
    waiter_t waiters[N];
    let_connect(2);
    open_pool(N);
    for (int i = 0; i < N; i++) {
        start_waiter(&waiters[i], 15000, NULL);
    }
    for (int done = 0; done < N;) {
        for (int i = 0; i < N; i++) {
            if (waiters[i].deadline_ns != 0 && atomic_load(&waiters[i].is_done)) {
                cr_assert_eq(waiters[i].status, DL_OK, "%s", waiters[i].err.message);
                waiters[i].deadline_ns = 0;
                give_back(waiters[i].member);
                done++;
            }
        }
        (void)poll(NULL, 0, 1);
    }
    join_waiters(waiters, N);
}

Test(pool, where_the_server_takes_one_more_again_it_goes_to_who_waits) {
    waiter_t waiter;
    let_connect(1);
    open_pool(8);
    dli_mysql_member_t *member = take();
    start_waiter(&waiter, 15000, NULL);
    AWAIT_THAT(queued(), ==, 1);
    let_connect(2);
    join_waiters(&waiter, 1);
    cr_assert_eq(waiter.status, DL_OK, "%s", waiter.err.message);
    give_back(waiter.member);
    give_back(member);
    assert_at_rest(2);
}

Test(pool, where_the_server_takes_no_more_borrow_timeout_counts_and_none_in_use_is_a_refusal) {
    dli_mysql_member_t *two;
    options.borrow_timeout_ms = 100;
    let_connect(1);
    open_pool(8);
    dli_mysql_member_t *one = take();
    cr_assert_eq(borrow(&two, 15000, NULL), DL_ETIMEDOUT, "%s", err.message);
    cr_assert_str_eq(strstr(err.message, "all "), "all 1 connections are in use (the server takes no more)");
    cr_assert_eq(borrow_at(DLI_MYSQL_RENEWALS, &two, 15000, NULL), DL_ELIMIT, "%s", err.message);
    give_back(one);
    give_back(take());
}

Test(pool, a_failure_that_is_older_than_a_success_says_nothing) {
    dli_mysql_member_t *member;
    make_relay(20000);
    atomic_store(&relay->holds, true);
    open_pool(8);
    waiter_t late;
    start_waiter(&late, 15000, NULL);
    AWAIT_THAT(awaited_makers(), ==, 1);
    AWAIT_THAT(atomic_load(&relay->pairs), ==, 1);
    atomic_store(&relay->deaf_below, 1);
    atomic_store(&relay->holds, false);
    give_back(take());
    cut(0);
    join_waiters(&late, 1);
    cr_assert_eq(late.status, DL_EIO);
    cr_assert_eq(borrow(&member, 5000, NULL), DL_OK, "%s", err.message);
    give_back(member);
    cr_assert_eq(warnings, 0, "the server was not down");
}

Test(pool, without_threads_nothing_is_leaked) {
    open_pool(1);
    atomic_store(&no_threads, true);
    dli_mysql_member_t *member;
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(borrow(&member, 5000, NULL), DL_ELIMIT);
        cr_assert_has(err.message, "cannot start a thread that connects to ");
        assert_at_rest(0);
    }
    cr_assert_eq(warnings, 0, "that says nothing about the server");
    atomic_store(&no_threads, false);
    give_back(take());
    /* What is there needs no thread. */
    atomic_store(&no_threads, true);
    give_back(take());
    assert_at_rest(1);
}

Test(pool, an_idle_connection_needs_no_descriptor) {
    open_pool(8);
    give_back(take());
    struct rlimit before, none;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    dli_mysql_member_t *one, *two;
    dl_status_t first = borrow(&one, 5000, NULL), second = borrow(&two, 5000, NULL);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(first, DL_OK, "%s", err.message);
    cr_assert_eq(second, DL_ELIMIT);
    cr_assert_has(err.message, "no descriptor");
    give_back(one);
    assert_at_rest(1);
}
