/* redis_link_test.c - the link to a Redis server: reuse, limits, the queue, idle connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_link_fixture.h"

TestSuite(redis_link, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- reuse ------------------------------------------------------------------------------------------ */

Test(redis_link, calls_one_after_the_other_share_one_connection) {
    open_link();
    long long before = info(&server, "stats", "total_connections_received:");
    for (int i = 0; i < 100; i++) {
        char line[32], answer[64];
        snprintf(line, sizeof line, "ECHO number-%d", i);
        cr_assert_eq(ask_full(line, DLI_PLAIN, 2000, answer, NULL), DL_OK);
        cr_assert_str_eq(answer, line + 5);
    }
    cr_assert_eq(info(&server, "stats", "total_connections_received:"), before + 1);
    cr_assert_eq(atomic_load(&round_trips), 100);
    cr_assert_eq(atomic_load(&reconnects), 0);
    dli_facts_t facts;
    dli_link_facts(link_, &facts);
    cr_assert_gt(facts.client_id, 0);
    cr_assert_neq(facts.run_id[0], '\0');
    cr_assert_eq(dli_link_endpoint(link_), &endpoint);
}

Test(redis_link, one_exchange_carries_several_commands_and_counts_from_before_it_was_sent) {
    open_link();
    call_t call;
    prepare(&call, "SET a 1", 2000);
    dli_commands_add_words(&call.commands, "INCR", "a", NULL);
    dli_commands_add_words(&call.commands, "NONSENSE", NULL);
    dli_commands_add_words(&call.commands, "GET", "a", NULL);
    uint64_t before_ns = env.now_ns();
    cr_assert_eq(run(&call), DL_OK, "%s", call.err.message);
    cr_assert_gt(call.x.sent_ns, before_ns);
    cr_assert_lt(call.x.sent_ns, env.now_ns());
    cr_assert_str_eq(call.replies[0]->str, "OK");
    cr_assert_eq(call.replies[1]->integer, 2);
    cr_assert_eq(call.replies[2]->type, REDIS_REPLY_ERROR);
    cr_assert_str_eq(call.replies[3]->str, "2");
    for (int i = 1; i < 4; i++) {
        freeReplyObject(call.replies[i]);
    }
    clear(&call);
}

Test(redis_link, the_connection_used_last_is_used_next) {
    open_link_over_relay();
    warm_up(3);
    atomic_store(&relay_held[0], 1);
    atomic_store(&relay_held[1], 1);
    for (int i = 0; i < 9; i++) {
        cr_assert_eq(ask("PING"), DL_OK);
    }
    cr_assert_eq(connections(), 3);
}

/* ---- limits and the queue --------------------------------------------------------------------------- */

static int is_ready(const call_t *call) {
    struct pollfd fd;
    uint64_t until_ns;
    dli_link_want(&call->x, &fd, &until_ns);
    return poll(&fd, 1, 0) > 0;
}

Test(redis_link, whoever_queues_first_gets_the_connection_first) {
    options.max_total = 1;
    open_link();
    call_t calls[4];
    begin_all(calls, 4, "PING", 2000);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK, "%s", calls[i].err.message);
        for (int j = i + 1; j < 4; j++) {
            cr_assert_eq(is_ready(&calls[j]), j == i + 1, "after %d: %d", i, j);
        }
        clear(&calls[i]);
    }
    cr_assert_eq(connections(), 1);
}

Test(redis_link, who_leaves_the_queue_passes_on_what_it_was_called_to) {
    options.max_total = 1;
    open_link();
    call_t calls[4];
    begin_all(calls, 4, "PING", 2000);
    dli_link_abandon(link_, &calls[2].x, DL_ECANCELED); /* from the middle */
    cr_assert_eq(calls[2].x.status, DL_ECANCELED);
    cr_assert_eq(drive(&calls[0]), DL_OK);
    cr_assert(is_ready(&calls[1]));
    dli_link_abandon(link_, &calls[1].x, DL_EIO); /* called, and did not come */
    cr_assert_eq(calls[1].x.status, DL_EIO);
    cr_assert_eq(drive(&calls[3]), DL_OK);
    cr_assert_eq(connections(), 1);
    /* A place for a connection is passed on as well. */
    clear(&calls[1]);
    clear(&calls[2]);
    prepare(&calls[1], "PING", 2000);
    prepare(&calls[2], "PING", 2000);
    begin(&calls[1]);
    begin(&calls[2]);
    dli_link_abandon(link_, &calls[1].x, DL_EIO);
    cr_assert_eq(calls[1].x.status, DL_EUNKNOWN);
    cr_assert_eq(drive(&calls[2]), DL_OK);
    for (int i = 0; i < 4; i++) {
        clear(&calls[i]);
    }
}

Test(redis_link, a_full_pool_refuses_after_the_borrow_timeout_or_the_deadline) {
    options.max_total = 2;
    options.borrow_timeout_ms = 80;
    open_link();
    call_t busy[2];
    begin_all(busy, 2, "PING", 2000);
    dl_error_t err;
    uint64_t begun = now_ms();
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 2000, NULL, &err), DL_EIO);
    uint64_t took = now_ms() - begun;
    cr_assert_geq(took, 80, "%d", (int)took);
    cr_assert_lt(took, 300, "%d", (int)took);
    cr_assert_has(err.message, "all 2 connections are in use");
    begun = now_ms();
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 20, NULL, &err), DL_EIO);
    took = now_ms() - begun;
    cr_assert_geq(took, 19, "%d", (int)took);
    cr_assert_lt(took, 75, "%d", (int)took);
    cr_assert_has(err.message, "all 2 connections are in use");
    /* Who is patient waits for as long as the call may take. */
    call_t patient;
    prepare(&patient, "PING", 200);
    patient.x.is_patient = true;
    begun = now_ms();
    cr_assert_eq(run(&patient), DL_EIO);
    took = now_ms() - begun;
    cr_assert_geq(took, 199, "%d", (int)took);
    clear(&patient);
    /* Renewals have connections of their own. */
    call_t renewal;
    prepare(&renewal, "PING", 2000);
    renewal.x.lane = DLI_LANE_RENEWALS;
    cr_assert_eq(run(&renewal), DL_OK);
    clear(&renewal);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(drive(&busy[i]), DL_OK);
        clear(&busy[i]);
    }
}

/* ---- idle connections ------------------------------------------------------------------------------- */

Test(redis_link, no_more_than_max_idle_connections_are_kept) {
    options.max_idle = 2;
    open_link();
    warm_up(5);
    AWAIT_THAT(connections(), ==, 2);
    call_t calls[4];
    for (int i = 0; i < 4; i++) {
        prepare(&calls[i], "PING", 2000);
        calls[i].x.lane = DLI_LANE_RENEWALS;
        begin(&calls[i]);
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK);
        clear(&calls[i]);
    }
    AWAIT_THAT(connections(), ==, 4); /* two for calls, two for renewals */
}

Test(redis_link, connections_idle_for_too_long_are_closed_not_used) {
    options.idle_timeout_ms = 60;
    open_link();
    warm_up(3);
    cr_assert_eq(connections(), 3);
    uint64_t since = now_ms();
    AWAIT_THAT(now_ms() - since, >, 70);
    long long before = info(&server, "stats", "total_connections_received:");
    cr_assert_eq(ask("PING"), DL_OK);
    AWAIT_THAT(connections(), ==, 1);
    cr_assert_eq(info(&server, "stats", "total_connections_received:"), before + 1);
}

Test(redis_link, min_idle_connections_are_made_ahead_and_again) {
    options.min_idle = 3;
    open_link();
    cr_assert_eq(connections(), 0, "opening connects");
    cr_assert_eq(ask("PING"), DL_OK);
    AWAIT_THAT(connections(), ==, 3);
    uint64_t since = now_ms();
    AWAIT_THAT(now_ms() - since, >, 2); /* so that they are looked at */
    tell(&server, "CLIENT KILL TYPE normal SKIPME yes");
    cr_assert_eq(ask("PING"), DL_OK);
    AWAIT_THAT(connections(), ==, 3);
    cr_assert_geq(atomic_load(&reconnects), 1);
}

Test(redis_link, idle_connections_are_tested_and_dead_ones_closed) {
    options.test_while_idle = true;
    options.idle_timeout_ms = 0;
    open_link();
    warm_up(2);
    AWAIT_THAT(info(&server, "commandstats", "cmdstat_ping:calls="), >=, 2 + 4);
    cr_assert_eq(connections(), 2);
    tell(&server, "CLIENT KILL TYPE normal SKIPME yes");
    cr_assert_eq(ask("PING"), DL_OK);
    AWAIT_THAT(atomic_load(&reconnects), >=, 1);
}

Test(redis_link, a_call_may_take_a_connection_whose_test_is_not_answered_yet) {
    options.test_while_idle = true;
    options.max_total = 1;
    open_link();
    call_t call;
    warm_up(1);
    long long before = info(&server, "stats", "total_connections_received:");
    for (int i = 0; i < 10; i++) {
        char answer[64];
        kill(server.pid, SIGSTOP);
        uint64_t since = now_ms();
        AWAIT_THAT(now_ms() - since, >, 70); /* longer than idle_check: PING was sent */
        prepare(&call, "ECHO mine", 2000);
        begin(&call);
        kill(server.pid, SIGCONT);
        cr_assert_eq(drive(&call), DL_OK, "%s", call.err.message);
        cr_assert_str_eq(call.replies[0]->str, "mine");
        clear(&call);
        cr_assert_eq(ask_full("ECHO next", DLI_PLAIN, 2000, answer, NULL), DL_OK);
        cr_assert_str_eq(answer, "next");
    }
    cr_assert_eq(info(&server, "stats", "total_connections_received:"), before);
}

Test(redis_link, a_connection_that_does_not_answer_its_test_is_closed) {
    options.test_while_idle = true;
    env.call_timeout_ms = 150;
    open_link_over_relay();
    warm_up(2);
    atomic_store(&relay_held[0], 1);
    long long before = info(&server, "stats", "total_connections_received:");
    AWAIT_THAT(info(&server, "commandstats", "cmdstat_ping:calls="), >=, 6);
    uint64_t since = now_ms();
    AWAIT_THAT(now_ms() - since, >, 300);
    char answer[64];
    call_t calls[2];
    begin_all(calls, 2, "ECHO x", 1000);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK, "%s", calls[i].err.message);
        clear(&calls[i]);
    }
    cr_assert_eq(info(&server, "stats", "total_connections_received:"), before + 1);
    cr_assert_eq(ask_full("ECHO y", DLI_PLAIN, 1000, answer, NULL), DL_OK);
    cr_assert_str_eq(answer, "y");
}

Test(redis_link, test_on_borrow_replaces_dead_connections_before_anything_is_sent) {
    options.test_on_borrow = true;
    open_link();
    warm_up(3);
    for (int i = 0; i < 50; i++) {
        /* At once after a use, where nobody looks otherwise. */
        cr_assert_eq(ask("PING"), DL_OK);
        tell(&server, "CLIENT KILL TYPE normal SKIPME yes");
        cr_assert_eq(ask("SET a 1"), DL_OK);
    }
    cr_assert_geq(atomic_load(&reconnects), 50);
    long long before = info(&server, "commandstats", "cmdstat_ping:calls=");
    cr_assert_eq(ask("GET a"), DL_OK);
    cr_assert_eq(info(&server, "commandstats", "cmdstat_ping:calls="), before + 1);
}
