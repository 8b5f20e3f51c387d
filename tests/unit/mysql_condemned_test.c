/* mysql_condemned_test.c - what was given up is killed, and nobody else is. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_run_fixture.h"

#include <sys/stat.h>

#include "drivers/mysql/link/condemned.h"

TestSuite(condemned, .init = set_up, .fini = tear_down, .timeout = 120);

Test(condemned, a_claim_that_was_given_up_is_killed_before_anything_is_freed) {
    open_link();
    mysql_server_await_uptime(server, 4);
    give_up("SELECT SLEEP(25)", DLI_MYSQL_CLAIM, DL_EUNKNOWN);
    give_up("SELECT SLEEP(25), 2", DLI_MYSQL_PLAIN, DL_EUNKNOWN);
    AWAIT_THAT(running("SELECT SLEEP(25)"), ==, 1);
    cr_assert_eq(run("DO 1", DLI_MYSQL_FREE, 15000), DL_OK, "%s", err.message);
    cr_assert_eq(running("SELECT SLEEP(25)"), 0);
    cr_assert_eq(running("SELECT SLEEP(25), 2"), 1, "that was no claim");
    /* Once is enough. */
    int before = round_trips;
    run("DO 1", DLI_MYSQL_FREE, 15000);
    cr_assert_eq(round_trips, before + 1);
}

Test(condemned, many_condemned_ones_are_killed_at_once) {
    options.max_total = 16;
    open_link();
    mysql_server_await_uptime(server, 4);
    dli_mysql_conn_t *conns[16];
    unsigned error;
    for (int i = 0; i < 16; i++) {
        conns[i] = lend(DLI_MYSQL_CALLS);
        hears_nothing = true;
        cr_assert_eq(ask_on(conns[i], "SELECT SLEEP(25)", 15000, &error), DL_ETIMEDOUT, "%s", err.message);
        hears_nothing = false;
    }
    for (int i = 0; i < 16; i++) {
        dli_mysql_link_drop(link_, conns[i], true);
    }
    AWAIT_THAT(running("SELECT SLEEP%%"), ==, 16); /* all have come there */
    dli_mysql_link_settle(link_, in_ms(15000), NULL);
    cr_assert_eq(running("SELECT SLEEP%%"), 0);
}

Test(condemned, killing_takes_no_more_than_half_of_the_time) {
    make_relay(5000);
    open_link();
    mysql_server_await_uptime(server, 4);
    dli_mysql_conn_t *control = lend(DLI_MYSQL_CONTROL);
    cr_assert_eq(relay->pairs, 1);
    give_up("SELECT SLEEP(25)", DLI_MYSQL_CLAIM, DL_EUNKNOWN);
    dli_mysql_link_give_back(link_, control); /* heard of since, and trusted */
    atomic_store(&relay->deaf_below, 1);
    uint64_t began_ns = env.now_ns();
    cr_assert_eq(run("DO 1", DLI_MYSQL_FREE, 2000), DL_OK, "%s", err.message);
    cr_assert_geq(ms_since(began_ns), 1000);
    cr_assert_lt(ms_since(began_ns), 2000);
    cr_assert_eq(run("DO 1", DLI_MYSQL_FREE, 2000), DL_OK, "%s", err.message);
    cr_assert_eq(running("SELECT SLEEP%%"), 0, "it stayed on the list");
}

typedef struct killing {
    dli_mysql_condemned_t condemned;
    dli_mysql_guard_t *guard;
    dli_mysql_conn_t *conn;
    uint64_t ready_ns;
} killing_t;

static void begin_killing(killing_t *killing) {
    cr_assert_eq(dli_mysql_library_start(&err), DL_OK);
    cr_assert_eq(dli_mysql_condemned_init(&killing->condemned, &err), DL_OK);
    cr_assert_eq(dli_mysql_guard_open(&env, &killing->guard, &err), DL_OK);
    cr_assert_eq(dli_mysql_conn_make(endpoint, DLI_MYSQL_ROLE_PLAIN, 600, &killing->conn, &err), DL_OK, "%s",
                 err.message);
    killing->ready_ns = env.now_ns();
}

static void end_killing(killing_t *killing) {
    dli_mysql_conn_close(killing->conn);
    dli_mysql_guard_close(killing->guard, false);
    dli_mysql_condemned_free(&killing->condemned, false);
}

/* Condemns the hand's connection, as if it had been made at began_ns, and kills. */
static dl_status_t kill_hand(killing_t *killing, mysql_hand_t *hand, uint64_t began_ns) {
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(killing->conn);
    dli_mysql_bounds_t bounds = {&env, killing->guard, in_ms(15000), NULL};
    facts.connection_id = mysql_hand_id(hand);
    dli_mysql_condemned_add(&killing->condemned, &facts, began_ns);
    return dli_mysql_condemned_kill(&killing->condemned, killing->conn, killing->ready_ns, &bounds, &err);
}

static mysql_hand_t *make_hand(const char *user) {
    char refusal[256];
    mysql_hand_t *hand = mysql_hand_as(server, user, MYSQL_SECRET, NULL, refusal, sizeof refusal);
    cr_assert_not_null(hand, "%s", refusal);
    return hand;
}

Test(condemned, after_killing_without_an_answer_the_others_are_not_trusted) {
    make_relay(5000);
    open_link();
    mysql_server_await_uptime(server, 4);
    dli_mysql_conn_t *control = lend(DLI_MYSQL_CONTROL), *other = lend(DLI_MYSQL_TOKENS);
    give_up("SELECT SLEEP(25)", DLI_MYSQL_CLAIM, DL_EUNKNOWN);
    dli_mysql_link_give_back(link_, control); /* both heard of since, and trusted */
    dli_mysql_link_give_back(link_, other);
    atomic_store(&relay->deaf_below, 1);
    dli_mysql_link_settle(link_, in_ms(200), NULL);
    int before = round_trips;
    dli_mysql_link_give_back(link_, lend(DLI_MYSQL_TOKENS));
    cr_assert_eq(round_trips, before + 1, "it is asked for a sign of life");
    dli_mysql_link_give_back(link_, lend(DLI_MYSQL_TOKENS));
    cr_assert_eq(round_trips, before + 1);
}

TestSuite(condemned_alone, .init = set_up_alone, .fini = tear_down, .timeout = 120);

Test(condemned_alone, nobody_is_killed_for_a_connection_to_an_earlier_run_of_the_server) {
    uint64_t before_ns = dli_sys_real.now_ns(); /* the server's uptime counts what the machine stood still */
    mysql_server_restart(server);
    mysql_server_await_uptime(server, 4);
    killing_t killing;
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(account);
    cr_assert_eq(kill_hand(&killing, hand, before_ns - stood_ms() * MS), DL_OK, "%s", err.message);
    cr_assert_str_eq(mysql_hand_ask(hand, "SELECT 'alive'"), "alive");
    cr_assert_eq(killing.condemned.count, 0);
    /* One of this run, by its uptime. */
    cr_assert_eq(kill_hand(&killing, hand, killing.ready_ns - 100 * MS), DL_OK, "%s", err.message);
    cr_assert_eq(mysql_hand_try(hand, "SELECT 'alive'")[0], '-');
    cr_assert_eq(killing.condemned.count, 0);
    mysql_hand_close(hand);
    end_killing(&killing);
}

static void set_its_clock(const killing_t *killing, const char *to) {
    dli_mysql_bounds_t bounds = {&env, killing->guard, in_ms(15000), NULL};
    dli_mysql_answer_t answer = {0};
    char sql[64];
    int len = snprintf(sql, sizeof sql, "SET timestamp=%s", to);
    cr_assert_eq(dli_mysql_conn_ask(killing->conn, sql, (size_t)len, &bounds, NULL, &answer, &err), DL_OK,
                 "%s", err.message);
    unsigned error = answer.error;
    dli_mysql_answer_free(&answer);
    cr_assert_eq(error, 0);
}

/* The uptime is an hour too long. A session's own clock stands for the server's. */
Test(condemned_alone, nor_after_its_clock_was_set_forward) {
    killing_t before, killing;
    begin_killing(&before);
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(before.conn);
    mysql_server_await_uptime(server, 2); /* of starts the second is known */
    mysql_server_restart(server);
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(account);
    dli_mysql_bounds_t bounds = {&env, killing.guard, in_ms(15000), NULL};
    set_its_clock(&killing, "UNIX_TIMESTAMP()+3600");
    facts.connection_id = mysql_hand_id(hand);
    dli_mysql_condemned_add(&killing.condemned, &facts, before.ready_ns);
    cr_assert_eq(dli_mysql_condemned_kill(&killing.condemned, killing.conn, killing.ready_ns, &bounds, &err),
                 DL_OK);
    cr_assert_str_eq(mysql_hand_ask(hand, "SELECT 'alive'"), "alive");
    cr_assert_eq(killing.condemned.count, 0);
    mysql_hand_close(hand);
    end_killing(&killing);
    end_killing(&before);
}

/* MariaDB says so once its clock was set back behind its start; or to who has a clock of its own. */
Test(condemned_alone, an_uptime_of_less_than_nothing_proves_nothing) {
    killing_t killing;
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(account);
    set_its_clock(&killing, "1000000000");
    cr_assert_eq(kill_hand(&killing, hand, killing.ready_ns - 100 * MS), DL_OK, "%s", err.message);
    cr_assert_str_eq(mysql_hand_ask(hand, "SELECT 'alive'"), "alive");
    mysql_hand_close(hand);
    end_killing(&killing);
}

Test(condemned_alone, a_connection_that_is_older_proves_the_run_without_asking) {
    killing_t killing;
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(account);
    cr_assert_eq(kill_hand(&killing, hand, env.now_ns()), DL_OK, "%s", err.message);
    cr_assert_eq(mysql_hand_try(hand, "SELECT 'alive'")[0], '-');
    mysql_hand_close(hand);
    end_killing(&killing);
}

/* A replica that took over may have the other's host name, port and data folder, but never its server_id. */
Test(condemned_alone, a_twins_connections_are_not_killed) {
    killing_t killing;
    begin_killing(&killing);
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(killing.conn);
    mysql_hand_t *hand = make_hand(account);
    facts.connection_id = mysql_hand_id(hand);
    dli_mysql_condemned_add(&killing.condemned, &facts, env.now_ns());
    (void)mysql_ask(server, "SET GLOBAL server_id=@@GLOBAL.server_id+1");
    dli_mysql_conn_close(killing.conn);
    cr_assert_eq(dli_mysql_conn_make(endpoint, DLI_MYSQL_ROLE_PLAIN, 600, &killing.conn, &err), DL_OK, "%s",
                 err.message);
    dli_mysql_bounds_t bounds = {&env, killing.guard, in_ms(15000), NULL};
    cr_assert_eq(dli_mysql_condemned_kill(&killing.condemned, killing.conn, killing.ready_ns, &bounds, &err),
                 DL_OK, "%s", err.message);
    cr_assert_str_eq(mysql_hand_ask(hand, "SELECT 'alive'"), "alive");
    cr_assert_eq(killing.condemned.count, 0);
    mysql_hand_close(hand);
    end_killing(&killing);
}

Test(condemned, another_servers_connections_are_not_killed_here) {
    killing_t killing;
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(account);
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(killing.conn);
    dli_mysql_bounds_t bounds = {&env, killing.guard, in_ms(15000), NULL};
    facts.connection_id = mysql_hand_id(hand);
    facts.identity[0] ^= 1;
    dli_mysql_condemned_add(&killing.condemned, &facts, env.now_ns());
    cr_assert_eq(dli_mysql_condemned_kill(&killing.condemned, killing.conn, killing.ready_ns, &bounds, &err),
                 DL_OK);
    cr_assert_str_eq(mysql_hand_ask(hand, "SELECT 'alive'"), "alive");
    cr_assert_eq(round_trips, 0);
    cr_assert_eq(killing.condemned.count, 0);
    mysql_hand_close(hand);
    end_killing(&killing);
}

Test(condemned, an_account_that_may_not_kill_is_told_once) {
    char other[MYSQL_DATABASE_MAX + 2];
    snprintf(other, sizeof other, "x%s", account + 1);
    mysql_user(server, other, "SELECT", "`none`.*");
    killing_t killing;
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(other);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kill_hand(&killing, hand, env.now_ns()), DL_OK, "%s", err.message);
        cr_assert_eq(killing.condemned.count, 0);
    }
    cr_assert_eq(warnings, 1);
    cr_assert(was_reported("may not kill"));
    cr_assert_str_eq(mysql_hand_ask(hand, "SELECT 'alive'"), "alive");
    mysql_hand_close(hand);
    mysql_try(server, "DROP USER '%s'", other);
    end_killing(&killing);
}

Test(condemned, the_oldest_condemned_ones_are_forgotten) {
    killing_t killing;
    begin_killing(&killing);
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(killing.conn);
    dli_mysql_bounds_t bounds = {&env, killing.guard, in_ms(15000), NULL};
    for (uint64_t i = 0; i < DLI_MYSQL_CONDEMNED_MAX + 10; i++) {
        facts.connection_id = 1000000000 + i; /* nobody's */
        dli_mysql_condemned_add(&killing.condemned, &facts, env.now_ns());
    }
    cr_assert_eq(killing.condemned.count, DLI_MYSQL_CONDEMNED_MAX);
    cr_assert_eq(killing.condemned.doomed[0].id, 1000000010);
    cr_assert_eq(dli_mysql_condemned_kill(&killing.condemned, killing.conn, killing.ready_ns, &bounds, &err),
                 DL_OK, "%s", err.message);
    cr_assert_eq(killing.condemned.count, 0);
    end_killing(&killing);
}

Test(condemned, what_has_no_number_is_not_killed_and_that_is_told_once) {
    killing_t killing;
    begin_killing(&killing);
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(killing.conn);
    facts.connection_id = 0;
    for (int i = 0; i < 2; i++) {
        dli_mysql_condemned_add(&killing.condemned, &facts, env.now_ns());
        dli_mysql_condemned_tell(&killing.condemned, &env);
    }
    cr_assert_eq(killing.condemned.count, 0);
    cr_assert_eq(warnings, 1);
    cr_assert(was_reported("numbers connections by itself"));
    end_killing(&killing);
}

static void set_up_with_files(void) {
    set_up_on(mysql_server_start(NULL, NULL, "--secure-file-priv=", NULL));
}

TestSuite(condemned_files, .init = set_up_with_files, .fini = tear_down, .timeout = 120);

static char fifo[128];

/* The server waits for the file's other end, and no KILL ends that. */
static void *load_fifo(void *hand) {
    (void)mysql_hand_try(hand, "LOAD DATA INFILE '%s' INTO TABLE `%s`.t", fifo, database);
    return NULL;
}

#define CALL_MS 60000

static atomic_bool is_waited_out;

/* One that is waited for although its time is over is waited for to the end of the call, which comes, too. */
static void *jump_when_killed(void *arg) {
    (void)arg;
    AWAIT_THAT(mysql_number(server,
                            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '%s' AND "
                            "COMMAND = 'Killed'",
                            account),
               ==, 1);
    int before = round_trips;
    AWAIT_THAT(round_trips, >, before + 1); /* it has heard of the first, from which on it waits */
    atomic_fetch_add(&ahead_ns, DLI_MYSQL_DYING_NS);
    before = round_trips;
    AWAIT(atomic_load(&is_waited_out) || round_trips > before + 2);
    atomic_fetch_add(&ahead_ns, atomic_load(&is_waited_out) ? 0 : CALL_MS * MS);
    return NULL;
}

Test(condemned_files, what_is_killed_and_does_not_end_is_not_waited_for_for_ever) {
    char folder[80];
    killing_t killing;
    pthread_t loader, jumper;
    cr_assert(scratch_make("fifo", folder, sizeof folder));
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    cr_assert_eq(mkfifo(fifo, 0666), 0);
    cr_assert_eq(chmod(folder, 0755), 0);
    (void)mysql_ask(server, "CREATE TABLE `%s`.t(a INT)", database);
    (void)mysql_ask(server, "GRANT FILE ON *.* TO '%s'", account);
    begin_killing(&killing);
    mysql_hand_t *hand = make_hand(account);
    dli_mysql_facts_t facts = *dli_mysql_conn_facts(killing.conn);
    facts.connection_id = mysql_hand_id(hand);
    dli_mysql_condemned_add(&killing.condemned, &facts, env.now_ns());
    cr_assert_eq(pthread_create(&loader, NULL, load_fifo, hand), 0);
    AWAIT_THAT(running("LOAD DATA%%"), ==, 1);
    uint64_t began_ns = env.now_ns();
    dli_mysql_bounds_t bounds = {&env, killing.guard, in_ms(CALL_MS), NULL};
    cr_assert_eq(pthread_create(&jumper, NULL, jump_when_killed, NULL), 0);
    dl_status_t status =
        dli_mysql_condemned_kill(&killing.condemned, killing.conn, killing.ready_ns, &bounds, &err);
    uint64_t took_ns = env.now_ns() - began_ns;
    long long left = running("LOAD DATA%%");
    atomic_store(&is_waited_out, true);
    pthread_join(jumper, NULL);
    int fd = open(fifo, O_RDWR | O_CLOEXEC); /* that ends it, whatever was seen */
    pthread_join(loader, NULL);
    close(fd);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    cr_assert_geq(took_ns, DLI_MYSQL_DYING_NS);
    cr_assert_eq(killing.condemned.count, 0);
    cr_assert_eq(left, 1, "it is still there");
    mysql_hand_close(hand);
    unlink(fifo);
    scratch_remove(folder);
    end_killing(&killing);
}
