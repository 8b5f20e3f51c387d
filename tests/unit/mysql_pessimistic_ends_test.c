/* mysql_pessimistic_ends_test.c - mysql-pessimistic: how waits and holds end, and heartbeats on bad days. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pessimistic_fixture.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "drivers/mysql/session.h"
#include "mysql_relay.h"
#include "support/entries.h"

TestSuite(mysql_pessimistic_ends, .init = set_up, .fini = tear_down, .timeout = 120);
TestSuite(mysql_pessimistic_bad_days, .init = set_up_own, .fini = tear_down, .timeout = 120);

/* ---- waits ------------------------------------------------------------------------------------------- */

Test(mysql_pessimistic_ends, a_wait_lasts_as_long_as_it_may_and_no_longer) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    hold_t mine = must_lock(&a, "orders", A, 1, 30000), theirs = new_hold(&b, "orders", B, 1);
    for (int64_t wait_ms = 0; wait_ms < 1000; wait_ms = 5 * wait_ms + 20) {
        uint64_t before_ms = now_ms();
        cr_assert_eq(try_hold(&theirs, wait_ms), DL_EBUSY, "%s", theirs.err.message);
        uint64_t took_ms = now_ms() - before_ms;
        cr_assert_geq(took_ms + stood_ms(), (uint64_t)wait_ms, "%lu of %ld", (unsigned long)took_ms,
                      (long)wait_ms);
        cr_assert_lt(took_ms, (uint64_t)wait_ms + SLACK_MS, "%lu of %ld", (unsigned long)took_ms,
                     (long)wait_ms);
        cr_assert_geq(theirs.grant.busy_ms, 0);
        cr_assert_eq(theirs.grant.busy_is_dlock, 1);
    }
    must_free(&mine);
    cr_assert(is_row_free("orders"));
    drop_hold(&theirs);
    shut(&a);
    shut(&b);
}

/* Heartbeats write nothing, so the marker of one that is alive says for most of its time that it is over. */
Test(mysql_pessimistic_ends, a_holder_beyond_its_first_lease_is_not_about_to_end) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t mine = must_lock(&c, "orders", A, 1, 30000);
    must_free(&mine);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "BEGIN");
    for (int age_s = 10; age_s <= 40; age_s += 30) {
        (void)mysql_hand_ask(hand,
                             "UPDATE " TABLE " SET owner='" B "',hold_id=1,client='',lease_ms=30000,"
                             "acquired_at=UTC_TIMESTAMP(6)-INTERVAL %d SECOND,connection_id=CONNECTION_ID() "
                             "WHERE name='orders'",
                             age_s);
        mine = new_hold(&c, "orders", A, 2);
        for (int64_t wait_ms = 0; wait_ms <= 1; wait_ms++) { /* for one the server is not made to wait */
            cr_assert_eq(try_hold(&mine, wait_ms), DL_EBUSY, "%s", mine.err.message);
            cr_assert_gt(mine.grant.busy_ms, 0);
            if (age_s < 30) {
                cr_assert_leq(mine.grant.busy_ms, 20000);
            } else {
                cr_assert_eq(mine.grant.busy_ms, DL_LEASE_MAX_MS);
            }
        }
        drop_hold(&mine);
    }
    mysql_hand_close(hand);
    shut(&c);
}

Test(mysql_pessimistic_ends, a_stop_ends_a_wait_at_once_and_leaves_nothing_on_the_server) {
    client_t a, b;
    waiter_t w;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    hold_t before = must_lock(&b, "orders", B, 99, 30000);
    long long connection = holder_of("orders");
    must_free(&before);
    hold_t mine = must_lock(&a, "orders", A, 1, 30000);
    for (uint64_t i = 1; i <= 10; i++) {
        int stop_fd = eventfd(0, EFD_CLOEXEC);
        start_waiter(&w, &b, B, i, stop_fd);
        AWAIT(is_waited_for(), 3000);
        uint64_t stopped_ms = now_ms(), one = 1;
        cr_assert_eq(write(stop_fd, &one, sizeof one), sizeof one);
        dl_status_t status = end_waiter(&w);
        cr_assert_eq(status, DL_ECANCELED, "%d: %s", status, w.hold.err.message);
        cr_assert_leq(w.ended_ms - stopped_ms, 100);
        cr_assert(!is_waited_for());
        drop_hold(&w.hold);
        close(stop_fd);
    }
    must_free(&mine);
    cr_assert(is_row_free("orders"), "nobody is left in the queue");
    hold_t after = must_lock(&b, "orders", B, 100, 30000);
    cr_assert_eq(holder_of("orders"), connection, "and the connection was kept");
    must_free(&after);
    shut(&a);
    shut(&b);
}

/* ---- when a hold counts from --------------------------------------------------------------------------- */

static _Thread_local uint64_t last_poll_ns; /* when this thread last began to wait */

static int poll_noted(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    last_poll_ns = ran_ns();
    return poll_while_it_runs(fds, n, deadline_ns);
}

Test(mysql_pessimistic_ends, a_hold_counts_from_after_its_wait_and_from_before_the_answer) {
    client_t c;
    waiter_t w;
    prepare(&c, UUID_A);
    c.env.poll = poll_noted;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    cr_assert_leq(h.grant.sent_ns, last_poll_ns);
    uint64_t before_ns = ran_ns();
    dl_renewal_t r = renewal(&h, 30000);
    driver->renew(c.state, &r, 1, in_ms(5000));
    cr_assert_eq(r.status, DL_OK);
    cr_assert_geq(r.sent_ns, before_ns);
    cr_assert_leq(r.sent_ns, last_poll_ns);
    start_waiter(&w, &c, UUID_A ":2", 2, -1);
    AWAIT(is_waited_for(), 3000);
    uint64_t freed_ns = ran_ns();
    must_free(&h);
    cr_assert_eq(end_waiter(&w), DL_OK, "%s", w.hold.err.message);
    cr_assert_geq(w.hold.grant.sent_ns, freed_ns);
    must_free(&w.hold);
    shut(&c);
}

/* ---- holds ------------------------------------------------------------------------------------------- */

Test(mysql_pessimistic_ends,
     a_killed_holder_learns_of_it_at_its_next_heartbeat_and_the_waiter_gets_the_lock) {
    for (int extends = 0; extends <= 1; extends++) {
        client_t a, b;
        waiter_t w;
        must_open(&a, UUID_A);
        must_open(&b, UUID_B);
        hold_t mine = must_lock(&a, "orders", A, 1, 30000);
        start_waiter(&w, &b, B, 1, -1);
        AWAIT(is_waited_for(), 3000);
        (void)mysql_ask(server, "KILL %lld", holder_of("orders"));
        struct pollfd fd = {.fd = mine.grant.session_fd, .events = POLLIN | POLLRDHUP};
        cr_assert_eq(poll(&fd, 1, 2000), 1, "the session's descriptor tells");
        cr_assert_eq(must_lose(&mine, extends ? 30000 : 0), DL_LOSS_HANG_UP);
        cr_assert_eq(end_waiter(&w), DL_OK, "%s", w.hold.err.message);
        cr_assert_gt(w.hold.grant.token, mine.grant.token);
        cr_assert_eq(must_lose(&mine, extends ? 30000 : 0), DL_LOSS_HANG_UP);
        cr_assert_eq(free_hold(&mine), DL_ELOST);
        cr_assert_eq(renew_hold(&w.hold, 30000), DL_OK, "the successor is untouched");
        drop_hold(&mine);
        must_free(&w.hold);
        shut(&a);
        shut(&b);
    }
}

Test(mysql_pessimistic_ends, a_session_whose_transaction_has_ended_holds_nothing) {
    client_t c;
    must_open(&c, UUID_A);
    for (int64_t lease_ms = 0; lease_ms <= 30000; lease_ms += 30000) {
        hold_t h = must_lock(&c, "orders", A, 1 + (uint64_t)lease_ms, 30000);
        const dli_mysql_session_t *session = h.memory;
        dli_mysql_sessions_t *state = c.state;
        dli_mysql_answer_t answer;
        cr_assert_eq(dli_mysql_link_ask(state->mysql.link, session->conn, "ROLLBACK", 8, in_ms(5000), NULL,
                                        NULL, &answer, &c.err),
                     DL_OK, "%s", c.err.message);
        dli_mysql_answer_free(&answer);
        cr_assert(is_row_free("orders"));
        cr_assert_eq(must_lose(&h, lease_ms), DL_LOSS_NOT_OURS);
        cr_assert_eq(free_hold(&h), DL_ELOST);
        drop_hold(&h);
    }
    shut(&c);
}

/* When the row can be locked, counted from the grant. */
static uint64_t freed_after_ms(const hold_t *h) {
    AWAIT(is_row_free(h->request.name), 5000);
    return now_ms() - h->grant.sent_ns / MS;
}

Test(mysql_pessimistic_ends, a_silent_holder_is_freed_by_the_server_when_its_lease_is_over) {
    client_t c;
    must_open(&c, UUID_A);
    /* In whole seconds, rounded up. */
    static const struct {
        int64_t lease_ms;
        uint64_t freed_ms;
    } cases[] = {{100, 1000}, {1000, 1000}, {1001, 2000}, {2000, 2000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hold_t h = must_lock(&c, "orders", A, i + 1, cases[i].lease_ms);
        uint64_t freed_ms = freed_after_ms(&h);
        cr_assert_geq(freed_ms + stood_ms(), cases[i].freed_ms, "%lu", (unsigned long)freed_ms);
        cr_assert_lt(freed_ms, cases[i].freed_ms + SLACK_MS, "%lu", (unsigned long)freed_ms);
        cr_assert_eq(renew_hold(&h, 30000), DL_ELOST);
        cr_assert_eq(free_hold(&h), DL_ELOST);
        drop_hold(&h);
    }
    shut(&c);
}

Test(mysql_pessimistic_ends, a_heartbeat_extends_only_where_it_is_asked_to) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t looked_at = must_lock(&c, "orders", A, 1, 3000), extended = must_lock(&c, "stock", A, 2, 3000);
    do {
        (void)poll(NULL, 0, 200);
        cr_assert_eq(renew_hold(&looked_at, 0), DL_OK);
        cr_assert_eq(renew_hold(&extended, 3000), DL_OK);
    } while (now_ms() < looked_at.grant.sent_ns / MS + 1500);
    cr_assert_geq(look(&c, "stock").remaining_ms, 1900);
    cr_assert_leq(look(&c, "orders").remaining_ms, 2000);
    uint64_t freed_ms = freed_after_ms(&looked_at);
    cr_assert_geq(freed_ms + stood_ms(), 3000, "%lu", (unsigned long)freed_ms);
    cr_assert_lt(freed_ms, 3000 + SLACK_MS, "%lu", (unsigned long)freed_ms);
    cr_assert_eq(renew_hold(&looked_at, 0), DL_ELOST);
    cr_assert_eq(renew_hold(&extended, 3000), DL_OK);
    drop_hold(&looked_at);
    must_free(&extended);
    shut(&c);
}

Test(mysql_pessimistic_ends,
     an_extension_outlasts_the_idle_timeout_that_it_began_with_and_nothing_shortens_it) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 1000);
    cr_assert_eq(renew_hold(&h, 3000), DL_OK);
    cr_assert_eq(renew_hold(&h, 100), DL_OK);
    uint64_t extended_ms = now_ms();
    int64_t remaining_ms = look(&c, "orders").remaining_ms;
    cr_assert_gt(remaining_ms, 1900, "%ld", (long)remaining_ms);
    cr_assert_leq(remaining_ms, 3000, "%ld", (long)remaining_ms);
    AWAIT(is_row_free("orders"), 10000);
    uint64_t freed_ms = now_ms() - extended_ms;
    cr_assert_geq(freed_ms + stood_ms(), 2990, "%lu", (unsigned long)freed_ms);
    cr_assert_lt(freed_ms, 3000 + SLACK_MS, "%lu", (unsigned long)freed_ms);
    cr_assert_eq(renew_hold(&h, 3000), DL_ELOST);
    drop_hold(&h);
    shut(&c);
}

Test(mysql_pessimistic_ends, a_lease_that_is_over_is_not_revived_though_the_server_has_not_ended_it) {
    client_t c;
    must_open(&c, UUID_A);
    for (int64_t lease_ms = 0; lease_ms <= 5000; lease_ms += 5000) {
        hold_t h = must_lock(&c, "orders", A, 1 + (uint64_t)lease_ms, 100);
        (void)poll(NULL, 0, 120);
        cr_assert_eq(must_lose(&h, lease_ms), DL_LOSS_EXPIRED);
        cr_assert(is_row_free("orders"));
        cr_assert_eq(free_hold(&h), DL_ELOST);
        drop_hold(&h);
    }
    shut(&c);
}

/* ---- heartbeats on bad days ---------------------------------------------------------------------------- */

Test(mysql_pessimistic_bad_days, one_deaf_connection_keeps_no_other_hold_from_its_heartbeat) {
    static relay_t relay;
    client_t c;
    relay_start(&relay, server->path);
    prepare(&c, UUID_A);
    set_text(&c, DLI_MYSQL_OPT_SOCKET, relay.path);
    open_prepared(&c);
    hold_t holds[3] = {must_lock(&c, "one", A, 1, 30000)};
    int deaf = atomic_load(&relay.pairs);
    holds[1] = must_lock(&c, "two", A, 2, 30000);
    cr_assert_eq(atomic_load(&relay.pairs), deaf + 1);
    holds[2] = must_lock(&c, "three", A, 3, 30000);
    atomic_store(&relay.states[deaf], RELAY_DEAF);
    for (int round = 0; round < 2; round++) { /* the second one finds the first's statement on its way */
        dl_renewal_t batch[3];
        for (int i = 0; i < 3; i++) {
            batch[i] = renewal(&holds[i], 40000 + round);
        }
        uint64_t before_ns = ran_ns();
        driver->renew(c.state, batch, 3, in_ms(300));
        cr_assert_leq(now_ms() - before_ns / MS, 400);
        cr_assert_eq(batch[0].status, DL_OK);
        cr_assert_eq(batch[1].status, DL_EUNKNOWN);
        cr_assert_eq(batch[2].status, DL_OK);
        cr_assert_geq(batch[0].sent_ns, before_ns);
        cr_assert_leq(batch[0].sent_ns, before_ns + 100 * MS);
    }
    atomic_store(&relay.states[deaf], RELAY_OPEN);
    cr_assert_eq(renew_hold(&holds[1], 40000), DL_OK, "the network is back");
    atomic_store(&relay.states[deaf], RELAY_DEAF);
    cr_assert_eq(renew_hold(&holds[1], 0), DL_OK, "looked for by another way");
    holds[1].request.deadline_ns = in_ms(200);
    holds[1].request.level = 0;
    cr_assert_eq(driver->release(c.state, holds[1].memory, &holds[1].request, &c.err), DL_EUNKNOWN);
    cr_assert_eq(free_hold(&holds[1]), DL_ELOST, "its session was killed before this looked");
    AWAIT(is_row_free("two"), 1000);
    drop_hold(&holds[1]);
    must_free(&holds[0]);
    must_free(&holds[2]);
    shut(&c);
    relay_stop(&relay);
}

Test(mysql_pessimistic_bad_days, a_connection_that_breaks_under_a_hold_is_a_loss_and_its_session_ends) {
    static relay_t relay;
    client_t c;
    relay_start(&relay, server->path);
    prepare(&c, UUID_A);
    set_text(&c, DLI_MYSQL_OPT_SOCKET, relay.path);
    open_prepared(&c);
    hold_t first = must_lock(&c, "one", A, 1, 30000);
    for (uint64_t i = 0; i < 3; i++) {
        int at = atomic_load(&relay.pairs);
        hold_t h = must_lock(&c, "two", A, 2 + i, 30000);
        cr_assert_eq(atomic_load(&relay.pairs), at + 1);
        atomic_store(&relay.states[at], RELAY_CUT);
        AWAIT_THAT(atomic_load(&relay.states[at]), ==, RELAY_NONE, 1000);
        cr_assert_eq(i == 2 ? free_hold(&h) : renew_hold(&h, i == 0 ? 0 : 30000), DL_ELOST);
        AWAIT(is_row_free("two"), 1000);
        drop_hold(&h);
    }
    cr_assert_eq(renew_hold(&first, 30000), DL_OK);
    must_free(&first);
    shut(&c);
    relay_stop(&relay);
}

Test(mysql_pessimistic_bad_days, a_frozen_server_leaves_holds_unknown_and_they_go_on_when_it_does) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t one = must_lock(&c, "one", A, 1, 30000), two = must_lock(&c, "two", A, 2, 30000);
    mysql_server_freeze(server);
    dl_renewal_t batch[2] = {renewal(&one, 30000), renewal(&two, 0)};
    uint64_t before_ms = now_ms();
    driver->renew(c.state, batch, 2, in_ms(300));
    cr_assert_leq(now_ms() - before_ms, 400);
    cr_assert_eq(batch[0].status, DL_EUNKNOWN);
    cr_assert_neq(batch[1].status, DL_OK);
    cr_assert_neq(batch[1].status, DL_ELOST);
    mysql_server_thaw(server);
    cr_assert_eq(renew_hold(&two, 0), DL_OK);
    cr_assert_eq(free_hold(&one), DL_OK, "behind the ping that was on its way: %s", one.err.message);
    drop_hold(&one);
    must_free(&two);
    shut(&c);
}

Test(mysql_pessimistic_bad_days, heartbeats_and_releases_need_to_write_nothing) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    mysql_hand_t *hand = mysql_hand(server, NULL);
    (void)mysql_hand_ask(hand, "FLUSH TABLES WITH READ LOCK");
    uint64_t before_ms = now_ms();
    cr_assert_eq(renew_hold(&h, 30000), DL_OK);
    cr_assert_eq(renew_hold(&h, 0), DL_OK);
    must_free(&h);
    cr_assert_lt(now_ms() - before_ms, SLACK_MS);
    mysql_hand_close(hand);
    shut(&c);
}

Test(mysql_pessimistic_bad_days, the_end_of_a_query_harms_no_hold) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    (void)mysql_ask(server, "KILL QUERY %lld", holder_of("orders"));
    cr_assert_eq(renew_hold(&h, 30000), DL_OK);
    cr_assert(!is_row_free("orders"));
    must_free(&h);
    shut(&c);
}

/* ---- fork --------------------------------------------------------------------------------------------- */

/* Or the server would not hear that the parent has died. */
Test(mysql_pessimistic_ends, a_forked_child_that_closes_keeps_no_socket_of_its_parents_holds) {
    client_t c;
    hold_t holds[4];
    static const char *const names[] = {"one", "two", "three", "four"};
    int before = open_descriptors(), status = 0;
    must_open(&c, UUID_A);
    for (size_t i = 0; i < 4; i++) {
        holds[i] = must_lock(&c, names[i], A, i + 1, 30000);
    }
    must_free(&holds[3]); /* the first, the last, and one between */
    must_free(&holds[0]);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        driver->close(c.state, 1);
        _exit(open_descriptors() - before);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status), "%d are open", WEXITSTATUS(status));
    cr_assert_eq(WEXITSTATUS(status), 0, "%d are open", WEXITSTATUS(status));
    must_free(&holds[1]);
    must_free(&holds[2]);
    shut(&c);
}
