/* mysql_link_test.c - statements on any connection: outcomes, giving up, broken connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_run_fixture.h"
#include "mysql_standing.h"

TestSuite(link, .init = set_up, .fini = tear_down, .timeout = 120);

/* ---- outcomes --------------------------------------------------------------------------------------- */

Test(link, a_statement_costs_one_round_trip) {
    open_link();
    dli_mysql_facts_t facts;
    dli_mysql_link_facts(link_, &facts);
    cr_assert_eq(facts.version_number, 0);
    cr_assert_eq(ask_number("SELECT 42"), 42);
    cr_assert_eq(ask_number("SELECT 43"), 43);
    cr_assert_eq(round_trips, 2);
    dli_mysql_link_facts(link_, &facts);
    cr_assert_neq(facts.version_number, 0);
    cr_assert_eq(facts.is_mariadb, mysql_is_mariadb());
}

Test(link, a_servers_error_is_an_answer) {
    open_link();
    unsigned error;
    cr_assert_eq(run_full("SELECT * FROM nothing", DLI_MYSQL_PLAIN, 15000, NULL, NULL, &error), DL_OK);
    cr_assert_eq(error, DLI_MYSQL_NO_SUCH_TABLE);
    cr_assert_eq(ask_number("SELECT 1"), 1);
    cr_assert_eq(connections(), 1, "the connection is kept");
}

Test(link, a_deadlock_is_sent_again_three_times) {
    open_link();
    unsigned error;
    cr_assert_eq(run_full("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213", DLI_MYSQL_PLAIN, 15000, NULL,
                          NULL, &error),
                 DL_OK);
    cr_assert_eq(error, DLI_MYSQL_DEADLOCK);
    cr_assert_eq(round_trips, 4);
}

Test(link, no_connection_to_a_server_that_only_reads_is_used_again) {
    open_link();
    uint64_t id = ask_number("SELECT CONNECTION_ID()");
    unsigned error;
    cr_assert_eq(run_full("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290", DLI_MYSQL_PLAIN, 15000, NULL,
                          NULL, &error),
                 DL_OK);
    cr_assert_eq(error, 1290);
    cr_assert_neq(ask_number("SELECT CONNECTION_ID()"), id);
}

Test(link, without_time_nothing_is_sent) {
    open_link();
    run_well("DO 1");
    cr_assert_eq(run("DO 1", DLI_MYSQL_CLAIM, 0), DL_EIO);
    cr_assert_eq(round_trips, 1);
}

Test(link, giving_up_is_unknown_unless_it_only_reads) {
    open_link();
    give_up("SELECT SLEEP(20)", DLI_MYSQL_PLAIN, DL_EUNKNOWN);
    give_up("SELECT SLEEP(20)", DLI_MYSQL_CLAIM, DL_EUNKNOWN);
    give_up("SELECT SLEEP(20)", DLI_MYSQL_READ, DL_EIO);
    cr_assert_eq(ask_number("SELECT 7"), 7, "no answer is read out of step");
}

Test(link, stop_ends_a_wait_for_an_answer) {
    int fds[2];
    dl_stop_t stop = make_stop(fds);
    open_link();
    run_well("DO 1");
    trigger(fds);
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(run_full("SELECT SLEEP(20)", DLI_MYSQL_READ, 15000, &stop, NULL, NULL), DL_ECANCELED);
    cr_assert_lt(ms_since(began_ns), SLACK_MS);
    cr_assert_eq(run_full("SELECT SLEEP(20)", DLI_MYSQL_PLAIN, 15000, &stop, NULL, NULL), DL_ECANCELED,
                 "there was no connection, and nothing was sent");
    AWAIT_THAT(run("DO 1", DLI_MYSQL_READ, 15000), ==, DL_OK);
    cr_assert_eq(run_full("SELECT SLEEP(20)", DLI_MYSQL_PLAIN, 15000, &stop, NULL, NULL), DL_EUNKNOWN);
}

Test(link, an_answer_that_comes_at_once_is_taken_although_stopped) {
    int fds[2];
    dl_stop_t stop = make_stop(fds);
    open_link();
    run_well("CREATE TABLE t (n INT)");
    trigger(fds);
    for (int i = 0; i < 20; i++) {
        uint64_t number;
        cr_assert_eq(run_full("SELECT 5", DLI_MYSQL_CLAIM, 15000, &stop, &number, NULL), DL_OK, "%s",
                     err.message);
        cr_assert_eq(number, 5);
    }
    cr_assert_eq(round_trips, 21);
}

/* ---- connections that break ------------------------------------------------------------------------- */

Test(link, broken_idle_connections_are_no_matter) {
    open_link();
    for (int i = 0; i < 20; i++) {
        run_well("DO 1");
        mysql_kill_connections(server, account);
    }
    run_well("DO 1");
    cr_assert_leq(reconnects, 20);
    cr_assert_geq(reconnects, 19);
}

typedef struct call {
    pthread_t thread;
    const char *sql;
    dli_mysql_intent_t intent;
    dl_status_t status;
} call_t;

static void *run_call(void *arg) {
    call_t *call = arg;
    dl_error_t why;
    dli_mysql_exchange_t x = {.sql = call->sql,
                              .len = strlen(call->sql),
                              .lane = DLI_MYSQL_CALLS,
                              .intent = call->intent,
                              .deadline_ns = in_ms(30000)};
    call->status = dli_mysql_link_run(link_, &x, &why);
    dli_mysql_answer_free(&x.answer);
    return NULL;
}

static void start_call(call_t *call, const char *sql, dli_mysql_intent_t intent) {
    *call = (call_t){.sql = sql, .intent = intent};
    cr_assert_eq(pthread_create(&call->thread, NULL, run_call, call), 0);
}

Test(link, a_connection_that_breaks_with_a_statement_on_its_way_leaves_it_unknown) {
    open_link();
    run_well("DO 1");
    call_t call;
    start_call(&call, "SELECT SLEEP(25)", DLI_MYSQL_PLAIN);
    AWAIT_THAT(running("SELECT SLEEP%%"), ==, 1);
    mysql_kill_connections(server, account);
    cr_assert_eq(pthread_join(call.thread, NULL), 0);
    cr_assert_eq(call.status, DL_EUNKNOWN);
    run_well("DO 1");
}

Test(link, what_only_reads_is_asked_again_when_an_idle_connection_broke) {
    open_link();
    run_well("DO 1");
    call_t call;
    start_call(&call, "SELECT SLEEP(3)", DLI_MYSQL_READ);
    AWAIT_THAT(running("SELECT SLEEP%%"), ==, 1);
    mysql_kill_connections(server, account);
    cr_assert_eq(pthread_join(call.thread, NULL), 0);
    cr_assert_eq(call.status, DL_OK);
    cr_assert_eq(reconnects, 1);
}

/* Two lie idle. */
static void have_two(void) {
    dli_mysql_conn_t *one = lend(DLI_MYSQL_CALLS), *two = lend(DLI_MYSQL_CALLS);
    dli_mysql_link_give_back(link_, one);
    dli_mysql_link_give_back(link_, two);
}

/* The one that is left is asked for a sign of life, once. */
static void assert_distrust(void) {
    int before = round_trips;
    run_well("DO 1");
    cr_assert_eq(round_trips, before + 2);
    run_well("DO 1");
    cr_assert_eq(round_trips, before + 3);
}

Test(link, after_a_statement_without_an_answer_the_others_are_not_trusted) {
    open_link();
    have_two();
    cr_assert_eq(run("SELECT SLEEP(20)", DLI_MYSQL_PLAIN, 100), DL_EUNKNOWN);
    assert_distrust();
}

Test(link, after_a_connection_broke_in_use_the_others_are_not_trusted) {
    open_link();
    have_two();
    call_t call;
    start_call(&call, "SELECT SLEEP(25)", DLI_MYSQL_PLAIN);
    AWAIT_THAT(running("SELECT SLEEP%%"), ==, 1);
    long long id = mysql_number(server,
                                "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '%s' AND INFO "
                                "LIKE 'SELECT SLEEP%%'",
                                account);
    mysql_ask(server, "KILL %lld", id);
    cr_assert_eq(pthread_join(call.thread, NULL), 0);
    assert_distrust();
}

Test(link, a_short_wait_says_nothing_about_the_others) {
    open_link();
    uint64_t began_ns;
    do { /* a busy machine may make it a long one */
        have_two();
        run_well("DO 1");
        began_ns = env.now_ns();
        dl_status_t status = run("SELECT SLEEP(20)", DLI_MYSQL_PLAIN, 10);
        cr_assert(status == DL_EUNKNOWN || status == DL_EIO, "%s", err.message);
    } while (env.now_ns() - began_ns >= DLI_MYSQL_SILENCE_NS);
    int before = round_trips;
    run_well("DO 1");
    cr_assert_eq(round_trips, before + 1);
}

TestSuite(link_alone, .init = set_up_alone, .fini = tear_down, .timeout = 120);

Test(link_alone, a_restart_of_the_server_is_survived) {
    open_link();
    for (int i = 0; i < 3; i++) {
        run_well("DO 1");
        mysql_server_kill(server);
        dl_status_t status = run("DO 1", DLI_MYSQL_PLAIN, 2000);
        cr_assert_eq(status, DL_EIO, "%d: %s", (int)status, err.message);
        uint64_t began_ns = env.now_ns();
        cr_assert_eq(run("DO 1", DLI_MYSQL_PLAIN, 2000), DL_EIO);
        cr_assert_lt(ms_since(began_ns), SLACK_MS);
        mysql_server_boot(server);
        AWAIT_THAT(run("DO 1", DLI_MYSQL_PLAIN, 2000), ==, DL_OK);
    }
    cr_assert_eq(reconnects, 3);
    cr_assert_eq(warnings, 3);
    cr_assert(was_reported("the server is back"));
}

/* The first loses its statement, the second gives no sign of life, and nobody waits for the third's. */
Test(link_alone, one_that_gives_no_sign_of_life_tells_of_all_that_lie_idle) {
    open_link();
    have_two();
    dli_mysql_conn_t *third = lend(DLI_MYSQL_TOKENS);
    uint64_t id = dli_mysql_conn_facts(third)->connection_id;
    dli_mysql_link_give_back(link_, third);
    mysql_server_freeze(server);
    cr_assert_eq(run("DO 1", DLI_MYSQL_PLAIN, 300), DL_EUNKNOWN);
    cr_assert_eq(run("DO 1", DLI_MYSQL_PLAIN, 300), DL_EIO);
    mysql_server_thaw(server);
    AWAIT_THAT(run("DO 1", DLI_MYSQL_PLAIN, 2000), ==, DL_OK);
    third = lend(DLI_MYSQL_TOKENS);
    cr_assert_neq(dli_mysql_conn_facts(third)->connection_id, id);
    dli_mysql_link_give_back(link_, third);
}

static void *sleep_by_hand(void *hand) {
    (void)mysql_hand_try(hand, "SELECT SLEEP(25), 'namesake'");
    return NULL;
}

static long long asleep(uint64_t id) {
    return mysql_number(
        server,
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%%namesake%%' AND ID=%llu",
        (unsigned long long)id);
}

/* Numbers begin anew with each start of a server, and its clients may not learn of its end. */
Test(link_alone, kill_query_spares_who_has_the_number_in_the_next_run_of_the_server) {
    pthread_t thread;
    unsigned error;
    mysql_hand_t *hands[RELAY_PAIRS] = {NULL}, *namesake = NULL;
    make_relay(5000);
    for (int i = 0; i < RELAY_PAIRS / 2; i++) {
        (void)mysql_ask(server, "DO 1"); /* the first numbers go to those who wait for its start */
    }
    open_link();
    dli_mysql_conn_t *conn = lend(DLI_MYSQL_CALLS);
    uint64_t id = dli_mysql_conn_facts(conn)->connection_id;
    cr_assert_eq(ask_on(conn, "SELECT SLEEP(25)", 100, &error), DL_ETIMEDOUT, "%s", err.message);
    atomic_store(&relay->deaf_below, 1);
    mysql_server_restart(server);
    for (int i = 0; namesake == NULL; i++) {
        cr_assert_lt(i, RELAY_PAIRS);
        hands[i] = mysql_hand(server, NULL);
        cr_assert_leq(mysql_hand_id(hands[i]), id);
        namesake = mysql_hand_id(hands[i]) == id ? hands[i] : NULL;
    }
    mysql_server_await_uptime(server, 4);
    cr_assert_eq(pthread_create(&thread, NULL, sleep_by_hand, namesake), 0);
    AWAIT_THAT(asleep(id), ==, 1);
    cr_assert_eq(dli_mysql_link_kill_query(link_, conn, in_ms(15000), &err), DL_EIO, "%s", err.message);
    cr_assert_has(err.message, "earlier run");
    cr_assert_eq(asleep(id), 1);
    (void)mysql_ask(server, "KILL QUERY %llu", (unsigned long long)id);
    pthread_join(thread, NULL);
    for (int i = 0; i < RELAY_PAIRS; i++) {
        mysql_hand_close(hands[i]);
    }
    dli_mysql_link_drop(link_, conn, false);
}

Test(link_alone, a_frozen_server_costs_each_call_its_time_and_no_more) {
    open_link();
    run_well("DO 1");
    mysql_server_freeze(server);
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(run("DO 1", DLI_MYSQL_READ, 200), DL_EIO);
    cr_assert_eq(run("DO 1", DLI_MYSQL_CLAIM, 200), DL_EIO, "it could not connect: nothing has left");
    cr_assert_lt(ms_since(began_ns), 400 + SLACK_MS);
    began_ns = env.now_ns();
    dli_mysql_link_close(link_, false);
    link_ = NULL;
    cr_assert_lt(ms_since(began_ns), SLACK_MS);
    mysql_server_thaw(server);
}

/* ---- borrowed ones ---------------------------------------------------------------------------------- */

Test(link, connections_are_borrowed_and_given_back) {
    options.calls = DLI_MYSQL_ROLE_HOLDING;
    options.max_total = options.max_idle = 600;
    open_link();
    dli_mysql_conn_t *conns[40];
    unsigned error;
    for (int i = 0; i < 40; i++) {
        conns[i] = lend(DLI_MYSQL_CALLS);
        for (int before = 0; before < i; before++) {
            cr_assert_neq(conns[i], conns[before]);
        }
    }
    for (int i = 0; i < 40; i++) {
        cr_assert_eq(ask_on(conns[i], "SELECT 1", 15000, &error), DL_OK, "%s", err.message);
    }
    cr_assert_eq(round_trips, 40);
    for (int i = 0; i < 40; i += 2) {
        dli_mysql_link_drop(link_, conns[i], false);
        dli_mysql_link_give_back(link_, conns[i + 1]);
    }
    AWAIT_THAT(connections(), ==, 20);
}

/* ---- statements that are ended on the server ----------------------------------------------------------- */

static dl_status_t run_endable(const char *sql, uint64_t ms, const dl_stop_t *stop, dli_mysql_exchange_t *x) {
    *x = (dli_mysql_exchange_t){.sql = sql,
                                .len = strlen(sql),
                                .lane = DLI_MYSQL_CALLS,
                                .intent = DLI_MYSQL_CLAIM,
                                .deadline_ns = in_ms(ms),
                                .stop = stop,
                                .may_be_ended = true};
    return dli_mysql_link_run(link_, x, &err);
}

static mysql_hand_t *lock_a_row(void) {
    mysql_hand_t *hand = mysql_hand(server, database);
    mysql_hand_ask(hand, "CREATE TABLE t (i INT PRIMARY KEY, n INT) ENGINE=InnoDB");
    mysql_hand_ask(hand, "INSERT INTO t VALUES (1,0)");
    mysql_hand_ask(hand, "BEGIN");
    mysql_hand_ask(hand, "SELECT n FROM t WHERE i=1 FOR UPDATE");
    return hand;
}

#define LOCKED_UPDATE "UPDATE t SET n=n+1 WHERE i=1"

static bool is_update_running(void) {
    return running(LOCKED_UPDATE) == 1;
}

/* Returns after how many ms of the client's time. */
static uint64_t expect_ended(const dl_stop_t *stop) {
    dli_mysql_exchange_t x;
    stand_until_due(is_update_running);
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(run_endable(LOCKED_UPDATE, 900, stop, &x), DL_OK, "%s", err.message);
    cr_assert(x.was_ended, "%u", x.answer.error);
    cr_assert_eq(x.answer.error, DLI_MYSQL_INTERRUPTED, "%u", x.answer.error);
    dli_mysql_answer_free(&x.answer);
    return (go_on() - began_ns) / MS;
}

Test(link, a_statement_behind_a_locked_row_is_ended_and_its_outcome_known) {
    let_stand(&env);
    mysql_server_await_uptime(server, 4);
    open_link();
    mysql_hand_t *hand = lock_a_row();
    uint64_t id = ask_number("SELECT CONNECTION_ID()");
    cr_assert_eq(expect_ended(NULL), 700, "and 200 ms are left for that");
    cr_assert_eq(ask_number("SELECT CONNECTION_ID()"), id, "its connection can be used");
    int fds[2];
    dl_stop_t stop = make_stop(fds);
    trigger(fds);
    cr_assert_eq(expect_ended(&stop), 20, "a stop ends it sooner");
    mysql_hand_close(hand);
    cr_assert_eq(mysql_number(server, "SELECT n FROM %s.t", database), 0);
}

static mysql_hand_t *keeps_back; /* a lock, from the statement of this test's thread */
static pthread_t asker;
static int asks_on; /* the descriptor of its connection; -1: it does not ask so far */

/* It waits for something else than its answer, for a connection or for one's sign of life: now its answer
 * comes, and behind that sign none to KILL QUERY. */
static int let_go_then_poll(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (!pthread_equal(pthread_self(), asker) || keeps_back == NULL || fds[0].fd == asks_on || asks_on < 0) {
        asks_on = keeps_back != NULL && asks_on < 0 ? fds[0].fd : asks_on;
        return poll_while_it_runs(fds, n, deadline_ns);
    }
    mysql_hand_ask(keeps_back, "DO RELEASE_LOCK(DATABASE())");
    mysql_hand_close(keeps_back);
    keeps_back = NULL;
    int ready = poll_while_it_runs(fds, n, deadline_ns);
    if (relay != NULL) {
        atomic_store(&relay->deaf_below, 1);
        unsigned looks = atomic_load(&relay->looks);
        AWAIT_THAT(atomic_load(&relay->looks), >, looks);
    }
    return ready;
}

static void let_go_once_it_is_ended(void) {
    asker = pthread_self();
    asks_on = -1;
    env.poll = let_go_then_poll;
}

/* A statement that has its answer, though nobody could end it. */
static void expect_heard(void) {
    dli_mysql_exchange_t x;
    mysql_hand_t *hand = mysql_hand(server, database);
    mysql_hand_ask(hand, "DO GET_LOCK(DATABASE(),0)");
    keeps_back = hand;
    cr_assert_eq(run_endable("SELECT GET_LOCK(DATABASE(),60)", 1000, NULL, &x), DL_OK, "%s", err.message);
    cr_assert_null(keeps_back);
    cr_assert(!x.was_ended, "%u", x.answer.error);
    cr_assert_eq(x.answer.error, 0);
    dli_mysql_answer_free(&x.answer);
}

/* All connections that could carry the KILL QUERY are in use. */
Test(link, an_answer_that_comes_while_its_statement_cannot_be_ended_is_heard) {
    dli_mysql_conn_t *busy[4];
    let_go_once_it_is_ended();
    open_link();
    uint64_t id = ask_number("SELECT CONNECTION_ID()");
    for (int i = 0; i < 4; i++) {
        busy[i] = lend(DLI_MYSQL_CONTROL);
    }
    expect_heard();
    cr_assert_eq(ask_number("SELECT CONNECTION_ID()"), id, "nothing is on its way to it");
    for (int i = 0; i < 4; i++) {
        dli_mysql_link_give_back(link_, busy[i]);
    }
}

Test(link_alone, an_answer_beside_a_kill_query_that_has_none_is_the_connections_last) {
    let_go_once_it_is_ended();
    make_relay(5000);
    open_link();
    dli_mysql_link_give_back(link_, lend(DLI_MYSQL_CONTROL));
    uint64_t id = ask_number("SELECT CONNECTION_ID()");
    expect_heard();
    cr_assert_neq(ask_number("SELECT CONNECTION_ID()"), id, "a KILL QUERY may still be on its way to it");
}

Test(link, kill_query_ends_what_a_connection_is_running_and_not_the_connection) {
    mysql_server_await_uptime(server, 4);
    open_link();
    dli_mysql_conn_t *conn = lend(DLI_MYSQL_CALLS);
    unsigned error;
    cr_assert_eq(dli_mysql_link_kill_query(link_, conn, in_ms(15000), &err), DL_OK, "%s", err.message);
    cr_assert_eq(ask_on(conn, "SELECT SLEEP(25)", 100, &error), DL_ETIMEDOUT);
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(dli_mysql_link_kill_query(link_, conn, in_ms(15000), &err), DL_OK, "%s", err.message);
    dli_mysql_bounds_t bounds = {&env, dli_mysql_link_guard(link_), in_ms(15000), NULL};
    dli_mysql_answer_t answer;
    cr_assert_eq(dli_mysql_conn_resume(conn, &bounds, &answer, &err), DL_OK, "%s", err.message);
    dli_mysql_answer_free(&answer);
    cr_assert_lt(ms_since(began_ns), 5000);
    cr_assert_eq(ask_on(conn, "SELECT 1", 15000, &error), DL_OK, "%s", err.message);
    mysql_kill_connections(server, account);
    AWAIT_THAT(connections(), ==, 0);
    cr_assert_eq(dli_mysql_link_kill_query(link_, conn, in_ms(15000), &err), DL_OK, "%s: it is gone anyway",
                 err.message);
    dli_mysql_link_drop(link_, conn, false);
}
