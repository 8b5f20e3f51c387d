/* mysql_conn_ends_test.c - how a connection ends: killed, silent, its server gone, its process forked. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_conn_fixture.h"

TestSuite(mysql_conn_ends, .init = set_up, .fini = tear_down, .timeout = 120);
TestSuite(mysql_conn_ends_own, .init = set_up_env, .fini = tear_down, .timeout = 120);

/* ---- breaking ----------------------------------------------------------------------------------------- */

static void expect_dead(dli_mysql_conn_t *conn) {
    cr_assert(dli_mysql_conn_is_broken(conn));
    cr_assert_not(dli_mysql_conn_is_asking(conn));
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_EIO);
    cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_EUNKNOWN);
    struct pollfd fd = {.fd = dli_mysql_conn_fd(conn), .events = POLLIN};
    cr_assert_eq(poll(&fd, 1, 0), 1, "who watches the descriptor is not told");
    dli_mysql_conn_close(conn);
}

Test(mysql_conn_ends, killed_while_idle_nothing_leaves) {
    dli_mysql_conn_t *conn = connect_plain();
    mysql_ask(server, "KILL %llu", (unsigned long long)dli_mysql_conn_facts(conn)->connection_id);
    await_broken(conn);
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_EIO);
    expect_dead(conn);
}

Test(mysql_conn_ends, killed_while_asking_nobody_knows) {
    dli_mysql_conn_t *conn = connect_plain();
    send_only(conn, "SELECT SLEEP(100)");
    mysql_ask(server, "KILL %llu", (unsigned long long)find_statement("SELECT SLEEP(100)"));
    cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_EUNKNOWN);
    expect_dead(conn);
}

Test(mysql_conn_ends_own, the_server_dies) {
    use_server(mysql_server_start(NULL, NULL, NULL));
    dli_mysql_conn_t *idle = connect_plain(), *asking = connect_plain();
    struct sigaction action = {.sa_handler = SIG_DFL};
    cr_assert_eq(sigaction(SIGPIPE, &action, NULL), 0);
    send_only(asking, "SELECT SLEEP(100)");
    mysql_server_kill(server);
    await_broken(asking);
    cr_assert_eq(resume_within(asking, PATIENCE_MS, NULL), DL_EUNKNOWN);
    expect_dead(asking);
    await_broken(idle);
    expect_dead(idle);
}

Test(mysql_conn_ends_own, a_silent_server_costs_the_deadline) {
    use_server(mysql_server_start(NULL, NULL, NULL));
    dli_mysql_conn_t *conn = connect_plain();
    struct sigaction action = {.sa_handler = SIG_DFL};
    cr_assert_eq(sigaction(SIGPIPE, &action, NULL), 0);
    enum { LEN = 14 * 1024 * 1024 }; /* more than the kernel takes for it */
    char *sql = malloc(LEN);
    memset(sql, ' ', LEN - 1);
    sql[LEN - 1] = '\0';
    mysql_server_freeze(server);
    uint64_t before = now_ms();
    cr_assert_eq(ask_within(conn, "DO 1", 200, NULL), DL_ETIMEDOUT);
    cr_assert_lt(now_ms() - before, 200 + SLACK_MS);
    before = now_ms();
    dli_mysql_conn_close(conn); /* with its answer outstanding */
    cr_assert_lt(now_ms() - before, SLACK_MS);
    mysql_server_thaw(server);
    conn = connect_plain();
    mysql_server_freeze(server);
    before = now_ms();
    cr_assert_eq(ask_within(conn, sql, 200, NULL), DL_EUNKNOWN);
    cr_assert_lt(now_ms() - before, 200 + SLACK_MS);
    expect_dead(conn);
    mysql_server_thaw(server);
    conn = connect_plain();
    mysql_server_freeze(server);
    before = now_ms();
    dli_mysql_conn_close(conn); /* says goodbye, and waits for nothing */
    cr_assert_lt(now_ms() - before, SLACK_MS);
    mysql_server_thaw(server);
    free(sql);
}

Test(mysql_conn_ends_own, a_silent_server_at_connecting) {
    use_server(mysql_server_start(NULL, NULL, NULL));
    mysql_server_freeze(server);
    parts.connect_timeout_ms = 10; /* one second, for the libraries */
    uint64_t before = now_ms();
    expect_refusal(DL_EIO, "127.0.0.1");
    uint64_t took = now_ms() - before;
    cr_assert_geq(took + stood_ms(), 900, "%d ms", (int)took);
    cr_assert_lt(took, 2000 + SLACK_MS, "%d ms", (int)took);
    mysql_server_thaw(server);
}

/* ---- fork --------------------------------------------------------------------------------------------- */

Test(mysql_conn_ends, a_forked_child_says_nothing) {
    int before = count_sockets();
    dli_mysql_conn_t *idle = connect_plain(), *asking = connect_plain(), *broken = connect_plain();
    must_ask(idle, "CREATE TABLE t (a INT) ENGINE=InnoDB");
    send_only(asking, "SELECT SLEEP(1), 'whole'");
    mysql_ask(server, "KILL %llu", (unsigned long long)dli_mysql_conn_facts(broken)->connection_id);
    await_broken(broken);
    cr_assert_eq(ask_within(broken, "DO 1", PATIENCE_MS, NULL), DL_EIO);
    pid_t child = fork();
    if (child == 0) {
        dli_mysql_conn_close_forked(idle);
        dli_mysql_conn_close_forked(asking);
        dli_mysql_conn_close_forked(broken);
        dli_mysql_conn_close_forked(NULL);
        dli_mysql_guard_close(guard, true);
        _exit(count_sockets() == before ? 0 : 1); /* the libraries' own descriptors are closed too */
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status), "%d", status);
    cr_assert_eq(WEXITSTATUS(status), 0, "%d", status);
    cr_assert_eq(resume_within(asking, PATIENCE_MS, NULL), DL_OK, "%s", err.message);
    MYSQL_ROW row = dli_mysql_answer_row(&answer, NULL);
    cr_assert_not_null(row);
    cr_assert_str_eq(row[1], "whole");
    expect_value(idle, "SELECT COUNT(*) FROM t", "0");
    dli_mysql_conn_close(idle);
    dli_mysql_conn_close(asking);
    dli_mysql_conn_close(broken);
}
