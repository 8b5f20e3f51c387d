/* mysql_idle_test.c - idle connections: which are kept, which are closed, which are asked first. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pool_fixture.h"

static int idle_at(dli_mysql_lane_t lane) {
    pthread_mutex_lock(&pool->mutex);
    int n = (int)pool->lanes[lane].idle;
    pthread_mutex_unlock(&pool->mutex);
    return n;
}

TestSuite(idle, .init = set_up_pool, .fini = tear_down_keeper, .timeout = 120);

Test(idle, the_one_used_last_is_used_next) {
    open_pool(8);
    dli_mysql_member_t *one = take(), *two = take(), *three = take();
    give_back(two);
    give_back(three);
    give_back(one);
    dli_mysql_member_t *again = take();
    cr_assert_eq(again, one);
    give_back(again);
    assert_at_rest(3);
}

Test(idle, no_more_than_max_idle_are_kept) {
    options.max_idle = 2;
    open_pool(8);
    warm_up(5);
    assert_at_rest(2);
    AWAIT_THAT(connections(), ==, 2);
}

Test(idle, with_max_idle_0_none_is_kept) {
    options.max_idle = 0;
    open_pool(8);
    warm_up(2);
    assert_at_rest(0);
    AWAIT_THAT(connections(), ==, 0);
}

Test(idle, a_broken_idle_connection_never_surfaces) {
    open_pool(8);
    warm_up(6);
    cr_assert_eq(mysql_kill_connections(server, account), 6);
    AWAIT_THAT(connections(), ==, 0);
    for (int i = 0; i < 6; i++) {
        dli_mysql_member_t *member = take();
        use(member);
        give_back(member);
    }
    assert_at_rest(1);
    cr_assert_eq(reconnects, 1);
    cr_assert_eq(warnings, 0);
}

Test(idle, one_that_broke_before_its_first_use_does_not_surface_either) {
    open_pool(8);
    cr_assert(dli_mysql_pool_make_spare(pool, DLI_MYSQL_CALLS));
    AWAIT_THAT(idle(), ==, 1);
    cr_assert_eq(mysql_kill_connections(server, account), 1);
    AWAIT_THAT(connections(), ==, 0);
    dli_mysql_member_t *member = take();
    use(member);
    give_back(member);
    assert_at_rest(1);
}

Test(idle, who_finds_only_broken_ones_in_a_full_lane_keeps_its_place) {
    open_pool(2);
    dli_mysql_member_t *one = take(), *two = take();
    waiter_t waiters[2];
    for (int i = 0; i < 2; i++) {
        start_waiter(&waiters[i], 10000, NULL);
        AWAIT_THAT(queued(), ==, i + 1);
    }
    mysql_kill_connections(server, account);
    AWAIT_THAT(connections(), ==, 0);
    give_back(one);
    AWAIT(atomic_load(&waiters[0].is_done));
    cr_assert_eq(waiters[0].status, DL_OK, "%s", waiters[0].err.message);
    use(waiters[0].member);
    cr_assert_eq(queued(), 1);
    give_back(two);
    join_waiters(waiters, 2);
    use(waiters[1].member);
    give_back(waiters[0].member);
    give_back(waiters[1].member);
    assert_at_rest(2);
}

Test(idle, what_the_server_will_soon_close_is_not_used) {
    open_pool(8);
    dli_mysql_member_t *member = take();
    dli_mysql_conn_note_patience(member->conn, 4);
    give_back(member);
    atomic_fetch_add(&ahead_ns, 2500 * MS);
    cr_assert_eq(take(), member, "it has more than a quarter of its time left");
    give_back(member);
    uint64_t id = dli_mysql_conn_facts(member->conn)->connection_id;
    atomic_fetch_add(&ahead_ns, 3100 * MS);
    member = take();
    cr_assert_neq(dli_mysql_conn_facts(member->conn)->connection_id, id);
    give_back(member);
    assert_at_rest(1);
}

Test(idle, one_of_unknown_patience_is_closed_and_not_asked_again_and_again) {
    options.min_idle = 1;
    open_pool(8);
    dli_mysql_member_t *member = take();
    dli_mysql_conn_note_patience(member->conn, 0);
    give_back(member);
    atomic_fetch_add(&ahead_ns, 1 * MS);
    cr_assert_null(dli_mysql_pool_take_neglected(pool, DLI_MYSQL_CALLS, 0));
    dli_mysql_pool_close_old(pool);
    assert_at_rest(0);
}

Test(idle, test_on_borrow_asks_before_each_use) {
    options.test_on_borrow = true;
    make_relay(5000);
    open_pool(8);
    give_back(take());
    cr_assert_eq(round_trips, 0, "a new one has just answered");
    give_back(take());
    cr_assert_eq(round_trips, 1);
    give_back(take());
    cr_assert_eq(round_trips, 2);
    /* One that answers no more is replaced within the caller's time. */
    atomic_store(&relay->deaf_below, 1);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 10000, NULL), DL_OK, "%s", err.message);
    use(member);
    cr_assert_eq(relay->pairs, 2);
    give_back(member);
    assert_at_rest(1);
}

Test(idle, after_silence_the_others_are_asked_before_they_are_used) {
    make_relay(5000);
    open_pool(8);
    warm_up(4);
    atomic_store(&relay->deaf_below, 4);
    uint64_t now_ns = env.now_ns();
    dli_mysql_pool_distrust(pool, now_ns);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow(&member, 10000, NULL), DL_OK, "%s", err.message);
    use(member);
    cr_assert_lt(ms_since(now_ns), 250 + SLACK_MS);
    cr_assert_eq(round_trips, 1, "one of them was waited for, not each");
    cr_assert_eq(relay->pairs, 5);
    give_back(member);
    assert_at_rest(1);
    /* One that answered since is trusted. */
    int before = round_trips;
    give_back(take());
    cr_assert_eq(round_trips, before);
}

Test(idle, after_silence_one_that_answers_is_kept) {
    open_pool(8);
    warm_up(3);
    dli_mysql_pool_distrust(pool, env.now_ns());
    warm_up(3);
    cr_assert_eq(round_trips, 3);
    assert_at_rest(3);
    cr_assert_eq(reconnects, 0);
}

/* Whatever ended it, and whether its own limit or the library's was over first. */
Test(idle, after_a_connection_that_could_not_be_made_the_idle_ones_are_asked) {
    make_relay(5000);
    open_pool(8);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow_at(DLI_MYSQL_TOKENS, &member, 15000, NULL), DL_OK, "%s", err.message);
    give_back(member);
    atomic_store(&relay->cuts, true);
    cr_assert_eq(borrow(&member, 15000, NULL), DL_EIO);
    atomic_store(&relay->cuts, false);
    cr_assert_eq(round_trips, 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(borrow_at(DLI_MYSQL_TOKENS, &member, 15000, NULL), DL_OK, "%s", err.message);
        cr_assert_eq(round_trips, 1, "once");
        give_back(member);
    }
    cr_assert_eq(relay->pairs, 2);
}

Test(idle, another_server_at_the_same_address_ends_all_connections_to_the_first) {
    open_pool(8);
    warm_up(3);
    dli_mysql_member_t *used = take();
    pthread_mutex_lock(&pool->mutex);
    snprintf(pool->facts.identity, sizeof pool->facts.identity, "what it was before");
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_member_t *more[3] = {take(), take(), take()}; /* the last one is made anew */
    give_back(more[2]);
    cr_assert_eq(idle(), 1);
    give_back(used);
    give_back(more[0]);
    give_back(more[1]);
    assert_at_rest(1);
    dli_mysql_pool_tell(pool);
    cr_assert(was_reported("another server than before"));
}

/* ---- the keeper's ----------------------------------------------------------------------------------- */

Test(idle, idle_timeout_closes_what_nobody_uses) {
    options.idle_timeout_ms = 100;
    open_kept_pool(8);
    warm_up(4);
    AWAIT_THAT(idle(), ==, 0);
    AWAIT_THAT(connections(), ==, 0);
    assert_at_rest(0);
}

Test(idle, min_idle_are_made_and_kept_ready) {
    options.min_idle = 3;
    options.idle_timeout_ms = 100;
    open_kept_pool(8);
    AWAIT_THAT(idle(), ==, 3);
    warm_up(6);
    AWAIT_THAT(idle(), ==, 3);
    mysql_kill_connections(server, account);
    dli_mysql_member_t *member = take();
    use(member);
    AWAIT_THAT(idle(), >=, 3);
    give_back(member);
}

Test(idle, without_threads_each_turn_tries_min_idle_times_only) {
    options.min_idle = 3;
    open_pool(8);
    cr_assert_eq(dli_mysql_keeper_start(&keeper, pool, &err), DL_OK, "%s", err.message);
    atomic_store(&no_threads, true);
    int before = atomic_load(&threads_started);
    uint64_t began_ns = env.now_ns();
    dli_mysql_keeper_wake(&keeper);
    AWAIT_THAT(atomic_load(&threads_started), >, before + 6);
    cr_assert_geq(ms_since(began_ns), 90, "two turns of 50 ms have gone by");
    atomic_store(&no_threads, false);
    AWAIT_THAT(idle(), ==, 3);
}

Test(idle, min_idle_makes_no_more_than_there_are_places) {
    options.min_idle = 5;
    options.max_idle = 8;
    open_kept_pool(3);
    AWAIT_THAT(idle(), ==, 3);
    dli_mysql_member_t *members[3] = {take(), take(), take()};
    cr_assert_eq(total(), 3);
    for (int i = 0; i < 3; i++) {
        give_back(members[i]);
    }
}

Test(idle, the_last_of_the_other_lanes_is_kept_for_ever) {
    options.idle_timeout_ms = 100;
    open_kept_pool(8);
    dli_mysql_lane_t lanes[] = {DLI_MYSQL_RENEWALS, DLI_MYSQL_TOKENS, DLI_MYSQL_CONTROL};
    uint64_t ids[3];
    for (int i = 0; i < 3; i++) {
        dli_mysql_member_t *one, *two;
        cr_assert_eq(borrow_at(lanes[i], &one, 10000, NULL), DL_OK, "%s", err.message);
        cr_assert_eq(borrow_at(lanes[i], &two, 10000, NULL), DL_OK, "%s", err.message);
        ids[i] = dli_mysql_conn_facts(two->conn)->connection_id;
        give_back(one);
        give_back(two);
    }
    AWAIT_THAT(connections(), ==, 3);
    /* The server's patience is a minute: by looking at it now and then it never ends. */
    for (int turn = 0; turn < 4; turn++) {
        atomic_fetch_add(&ahead_ns, 30000 * MS);
        int before = round_trips;
        AWAIT_THAT(atomic_load(&round_trips), >=, before + 3);
    }
    for (int i = 0; i < 3; i++) {
        dli_mysql_member_t *member;
        AWAIT_THAT(idle_at(lanes[i]), ==, 1);
        cr_assert_eq(borrow_at(lanes[i], &member, 10000, NULL), DL_OK, "%s", err.message);
        cr_assert_eq(dli_mysql_conn_facts(member->conn)->connection_id, ids[i]);
        give_back(member);
    }
}

Test(idle, the_last_of_the_other_lanes_is_made_anew_when_it_breaks) {
    options.test_while_idle = true;
    open_kept_pool(8);
    dli_mysql_member_t *member;
    cr_assert_eq(borrow_at(DLI_MYSQL_RENEWALS, &member, 10000, NULL), DL_OK, "%s", err.message);
    give_back(member);
    uint64_t id = dli_mysql_conn_facts(member->conn)->connection_id;
    mysql_kill_connections(server, account);
    AWAIT(idle_at(DLI_MYSQL_RENEWALS) == 1 && connections() == 1);
    cr_assert_eq(borrow_at(DLI_MYSQL_RENEWALS, &member, 10000, NULL), DL_OK, "%s", err.message);
    cr_assert_neq(dli_mysql_conn_facts(member->conn)->connection_id, id);
    give_back(member);
}

Test(idle, test_while_idle_finds_the_broken_ones) {
    options.test_while_idle = true;
    open_kept_pool(8);
    warm_up(4);
    AWAIT_THAT(atomic_load(&round_trips), >=, 8);
    cr_assert_eq(total(), 4);
    mysql_kill_connections(server, account);
    AWAIT_THAT(total(), ==, 0); /* those that are being asked are not idle either */
    assert_at_rest(0);
}

Test(idle, without_it_nothing_is_asked) {
    open_kept_pool(8);
    warm_up(4);
    int before = atomic_load(&polls);
    AWAIT_THAT(atomic_load(&polls), >=, before + 5); /* the keeper's turns */
    cr_assert_eq(round_trips, 0);
}

Test(idle, the_keeper_ends_at_once_while_it_waits_for_an_answer) {
    options.test_while_idle = true;
    env.call_timeout_ms = 60000;
    make_relay(5000);
    open_kept_pool(8);
    give_back(take());
    atomic_store(&relay->deaf_below, 1);
    AWAIT_THAT(idle(), ==, 0); /* it is in the keeper's hands */
    uint64_t began_ns = env.now_ns();
    dli_mysql_keeper_stop(&keeper, false);
    keeper.is_running = false;
    cr_assert_lt(ms_since(began_ns), SLACK_MS);
}
