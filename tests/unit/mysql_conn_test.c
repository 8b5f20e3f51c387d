/* mysql_conn_test.c - one connection to a real server: made, and asked one statement after another. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_conn_fixture.h"

#include <sys/resource.h>

TestSuite(mysql_conn, .init = set_up, .fini = tear_down, .timeout = 120);
TestSuite(mysql_conn_own, .init = set_up_env, .fini = tear_down, .timeout = 120);

/* ---- making ------------------------------------------------------------------------------------------- */

Test(mysql_conn, learns_what_the_server_is) {
    int before = count_sockets();
    dli_mysql_conn_t *conn = connect_plain();
    const dli_mysql_facts_t *facts = dli_mysql_conn_facts(conn);
    char text[400];
    expect_value(conn, "SELECT VERSION()", facts->version);
    snprintf(text, sizeof text, "%llu", (unsigned long long)facts->connection_id);
    expect_value(conn, "SELECT CONNECTION_ID()", text);
    expect_value(conn,
                 mysql_is_mariadb()
                     ? "SELECT CONCAT_WS(':',@@server_id,@@hostname,@@port,@@datadir)"
                     : "SELECT CONCAT_WS(':',@@server_id,@@server_uuid,@@hostname,@@port,@@datadir)",
                 facts->identity + facts->server);
    cr_assert_eq(facts->is_mariadb, mysql_is_mariadb());
    cr_assert_geq(facts->version_number, facts->is_mariadb ? 100600u : 80000u);
    snprintf(text, sizeof text, "%u.%u.%u", facts->version_number / 10000, facts->version_number / 100 % 100,
             facts->version_number % 100);
    cr_assert_eq(strncmp(facts->version, text, strlen(text)), 0, "%s, %s", facts->version, text);
    cr_assert_not(facts->is_read_only);
    dli_mysql_conn_close(conn);
    dli_mysql_conn_close(NULL);
    cr_assert_eq(count_sockets(), before);
}

Test(mysql_conn, over_tcp_by_any_name_and_over_a_unix_socket) {
    const char *const hosts[] = {"127.0.0.1", local_host()};
    for (size_t i = 0; i < 2; i++) {
        parts.host = hosts[i];
        dli_mysql_conn_t *conn = connect_plain();
        struct sockaddr_storage there;
        socklen_t len = sizeof there;
        cr_assert_eq(getpeername(dli_mysql_conn_fd(conn), (struct sockaddr *)&there, &len), 0);
        cr_assert_neq(there.ss_family, AF_UNIX);
        dli_mysql_conn_close(conn);
    }
    parts.socket = server->path;
    parts.host = "nowhere.invalid";
    parts.port = 1;
    dli_mysql_conn_t *conn = connect_plain();
    expect_value(conn, "SELECT DATABASE()", database);
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, without_a_database) {
    parts.database = NULL;
    dli_mysql_conn_t *conn = connect_plain();
    expect_value(conn, "SELECT DATABASE()", "(none)");
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, refusals_have_a_status) {
    int before = count_sockets();
    parts.password = "wrong";
    expect_refusal(DL_EAUTH, "1045");
    parts.password = NULL;
    expect_refusal(DL_EAUTH, "1045");
    parts.password = MYSQL_SECRET;
    parts.database = "dlock_no_such";
    expect_refusal(DL_ECONFIG, "dlock init");
    parts.database = "mysql";
    expect_refusal(DL_EAUTH, "1044");
    parts.database = database;
    parts.socket = "/nowhere/mysqld.sock";
    expect_refusal(DL_EIO, "/nowhere/mysqld.sock");
    parts.socket = NULL;
    parts.host = "nowhere.invalid";
    expect_refusal(DL_EIO, "nowhere.invalid");
    cr_assert_eq(count_sockets(), before);
}

Test(mysql_conn, nothing_is_taken_from_the_environment) {
    setenv("MYSQL_PWD", MYSQL_SECRET, 1);
    setenv("MYSQL_HOST", "nowhere.invalid", 1);
    setenv("MYSQL_TCP_PORT", "1", 1);
    setenv("MYSQL_UNIX_PORT", "/nowhere/mysqld.sock", 1);
    dli_mysql_conn_close(connect_plain());
    parts.password = NULL;
    expect_refusal(DL_EAUTH, "1045");
}

Test(mysql_conn_own, nobody_listens_or_too_many_do) {
    dli_mysql_conn_t *conns[3];
    use_server(mysql_server_start(NULL, NULL, "--max-user-connections=2", NULL));
    for (int i = 0; i < 2; i++) {
        conns[i] = connect_plain();
    }
    expect_refusal(DL_ELIMIT, "max_user_connections");
    for (int i = 0; i < 2; i++) {
        dli_mysql_conn_close(conns[i]);
    }
    mysql_server_kill(server);
    expect_refusal(DL_EIO, "127.0.0.1");
}

Test(mysql_conn, without_descriptors) {
    enum { MAX = 256 };
    int taken[MAX], n = 0, before = count_sockets();
    struct rlimit limit = {MAX, MAX};
    dli_mysql_conn_t *conn;
    parts.tls = "off";
    dli_mysql_conn_close(connect_plain()); /* what is loaded once is loaded */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while ((taken[n] = dup(0)) >= 0) {
        n++;
    }
    for (int i = 0; i < 2; i++) { /* it needs two */
        cr_assert_eq(try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn), DL_ELIMIT, "%s", err.message);
        close(taken[--n]);
    }
    dli_mysql_conn_close(connect_plain());
    parts.socket = server->path;
    dli_mysql_conn_close(connect_plain());
    cr_assert_geq(dup(0), 0);
    cr_assert_eq(try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn), DL_ELIMIT, "%s", err.message);
    cr_assert_eq(count_sockets(), before);
}

Test(mysql_conn, descriptors_do_not_survive_exec) {
    bool was_there[1024];
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        was_there[fd] = is_socket(fd);
    }
    dli_mysql_conn_t *conn = connect_plain();
    for (int fd = 0; fd < 1024; fd++) {
        if (!was_there[fd] && is_socket(fd)) {
            cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC, "%d", fd);
            n++;
        }
    }
    cr_assert_eq(n, 2, "ours and the library's");
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, sigpipe_keeps_its_disposition) {
    struct sigaction action = {.sa_handler = SIG_DFL}, found;
    cr_assert_eq(sigaction(SIGPIPE, &action, NULL), 0);
    for (int i = 0; i < 2; i++) {
        dli_mysql_conn_t *conn = connect_plain();
        must_ask(conn, "DO 1");
        dli_mysql_conn_close(conn);
        cr_assert_eq(sigaction(SIGPIPE, NULL, &found), 0);
        cr_assert_eq(found.sa_handler, SIG_DFL);
    }
}

Test(mysql_conn, roles) {
    dli_mysql_conn_t *holding = connect_as(DLI_MYSQL_ROLE_HOLDING), *plain = connect_plain(),
                     *overlooking = connect_as(DLI_MYSQL_ROLE_OVERLOOKING);
    must_ask(plain, "CREATE TABLE t (a INT) ENGINE=InnoDB");
    must_ask(holding, "INSERT INTO t VALUES (1)");
    cr_assert_eq(answer.affected, 1);
    expect_value(plain, "SELECT COUNT(*) FROM t", "0");
    expect_value(overlooking, "SELECT COUNT(*) FROM t", "1");
    must_ask(holding, "COMMIT");
    expect_value(plain, "SELECT COUNT(*) FROM t", "1");
    dli_mysql_conn_close(holding);
    dli_mysql_conn_close(plain);
    dli_mysql_conn_close(overlooking);
}

Test(mysql_conn, patience_is_the_servers) {
    dli_mysql_conn_t *conn;
    cr_assert_eq(try_connect(DLI_MYSQL_ROLE_PLAIN, 1, &conn), DL_OK);
    cr_assert_eq(dli_mysql_conn_patience_s(conn), 1);
    dli_mysql_conn_note_patience(conn, 7);
    cr_assert_eq(dli_mysql_conn_patience_s(conn), 7);
    expect_value(conn, "SELECT @@wait_timeout", "1");
    await_broken(conn);
    /* It had not read this: surely nothing was done. */
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_EIO);
    dli_mysql_conn_close(conn);
    cr_assert_eq(try_connect(DLI_MYSQL_ROLE_PLAIN, INT64_MAX, &conn), DL_OK, "%s", err.message);
    dli_mysql_conn_close(conn);
}

/* ---- asking ------------------------------------------------------------------------------------------- */

Test(mysql_conn, answers) {
    dli_mysql_conn_t *conn = connect_plain();
    unsigned long *lengths;
    must_ask(conn, "CREATE TABLE t (a INT PRIMARY KEY, b BIGINT UNSIGNED) ENGINE=InnoDB");
    must_ask(conn, "INSERT INTO t VALUES (1,1),(2,2)");
    cr_assert_eq(answer.affected, 2);
    must_ask(conn, "UPDATE t SET b=1");
    cr_assert_eq(answer.affected, 2, "rows found count, changed or not");
    must_ask(conn, "UPDATE t SET b=LAST_INSERT_ID(18446744073709551614) WHERE a=1");
    cr_assert_eq(answer.insert_id, UINT64_MAX - 1);
    must_ask(conn, "SELECT x'610062', NULL");
    cr_assert_eq(answer.insert_id, 0, "of the statement before");
    cr_assert_eq(answer.affected, 0, "of the statement before");
    MYSQL_ROW row = dli_mysql_answer_row(&answer, &lengths);
    cr_assert_eq(lengths[0], 3);
    cr_assert_eq(memcmp(row[0], "a\0b", 3), 0);
    cr_assert_null(row[1]);
    cr_assert_null(dli_mysql_answer_row(&answer, &lengths));
    cr_assert_null(lengths);
    cr_assert_eq(ask_within(conn, "INSERT INTO t VALUES (1,1)", PATIENCE_MS, NULL), DL_OK);
    cr_assert_eq(answer.error, 1062);
    cr_assert_has(answer.message, "Duplicate");
    /* Found out only while the rows are sent. */
    cr_assert_eq(ask_within(conn, "SELECT a, (SELECT b FROM t) FROM t", PATIENCE_MS, NULL), DL_OK);
    cr_assert_eq(answer.error, 1242);
    cr_assert_null(answer.rows);
    cr_assert_eq(ask_within(conn, "SELECT 1; DROP TABLE t", PATIENCE_MS, NULL), DL_OK);
    cr_assert_eq(answer.error, 1064, "more than one statement in one");
    expect_value(conn, "SELECT COUNT(*) FROM t", "2");
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, large_statements_and_answers) {
    enum { LEN = 3000000 };
    dli_mysql_conn_t *conn = connect_plain();
    char *sql = malloc(LEN + 32);
    int n = sprintf(sql, "SELECT '");
    memset(sql + n, 'v', LEN);
    strcpy(sql + n + LEN, "'");
    must_ask(conn, sql);
    unsigned long *lengths;
    cr_assert_not_null(dli_mysql_answer_row(&answer, &lengths));
    cr_assert_eq(lengths[0], LEN);
    must_ask(conn, "DO 1");
    dli_mysql_conn_close(conn);
    free(sql);
}

Test(mysql_conn, a_deadline_leaves_the_connection_in_step) {
    dli_mysql_conn_t *conn = connect_plain();
    dli_mysql_answer_t none;
    dli_mysql_bounds_t bounds = within(1000, NULL);
    uint64_t before = now_ms();
    cr_assert_eq(ask_within(conn, "SELECT SLEEP(1.5), 'late'", 200, NULL), DL_ETIMEDOUT);
    uint64_t took = now_ms() - before;
    cr_assert_geq(took, 200, "%d ms", (int)took);
    cr_assert_lt(took, 200 + SLACK_MS, "%d ms", (int)took);
    cr_assert(dli_mysql_conn_is_asking(conn) && !dli_mysql_conn_is_broken(conn));
    cr_assert_eq(dli_mysql_conn_ask(conn, "DO 1", 4, &bounds, NULL, &none, &err), DL_EPROTO);
    cr_assert_eq(resume_within(conn, 10, NULL), DL_ETIMEDOUT);
    cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_OK, "%s", err.message);
    MYSQL_ROW row = dli_mysql_answer_row(&answer, NULL);
    cr_assert_not_null(row);
    cr_assert_str_eq(row[1], "late");
    cr_assert_not(dli_mysql_conn_is_asking(conn));
    expect_value(conn, "SELECT 7", "7");
    cr_assert_eq(resume_within(conn, 10, NULL), DL_EPROTO);
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, a_deadline_that_is_over_already) {
    dli_mysql_conn_t *conn = connect_plain();
    cr_assert_eq(ask_within(conn, "SELECT SLEEP(0.1), 'sent'", 0, NULL), DL_ETIMEDOUT);
    cr_assert(dli_mysql_conn_is_asking(conn) && !dli_mysql_conn_is_broken(conn));
    struct pollfd fd = {.fd = dli_mysql_conn_fd(conn), .events = POLLIN};
    cr_assert_eq(poll(&fd, 1, PATIENCE_MS), 1);
    cr_assert_not(dli_mysql_conn_is_broken(conn), "its own answer has come");
    cr_assert_eq(resume_within(conn, 0, NULL), DL_OK, "%s", err.message); /* it is there */
    expect_value(conn, "SELECT 8", "8");
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, stop_ends_a_wait) {
    dli_mysql_conn_t *conn = connect_plain();
    for (int i = 0; i < 2; i++) {
        dl_stop_t stop = {{-1, -1}};
        int fds[2];
        cr_assert_eq(pipe(fds), 0);
        stop.fd[i] = fds[0];
        send_only(conn, "SELECT SLEEP(100)");
        cr_assert_eq(write(fds[1], "x", 1), 1);
        cr_assert_eq(resume_within(conn, PATIENCE_MS, &stop), DL_ECANCELED);
        cr_assert(dli_mysql_conn_is_asking(conn) && !dli_mysql_conn_is_broken(conn));
        mysql_ask(server, "KILL QUERY %llu", (unsigned long long)find_statement("SELECT SLEEP(100)"));
        cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_OK, "%s", err.message);
        close(fds[0]);
        close(fds[1]);
    }
    expect_value(conn, "SELECT 9", "9");
    dli_mysql_conn_close(conn);
}

Test(mysql_conn, kill_query_brings_the_answer) {
    dli_mysql_conn_t *conn = connect_plain();
    must_ask(conn, "CREATE TABLE t (a INT) ENGINE=InnoDB");
    must_ask(conn, "INSERT INTO t VALUES (1)");
    send_only(conn, "SELECT SLEEP(100) FROM t WHERE a=1 FOR UPDATE");
    uint64_t id = find_statement("SELECT SLEEP(100)");
    cr_assert_eq(id, dli_mysql_conn_facts(conn)->connection_id);
    mysql_ask(server, "KILL QUERY %llu", (unsigned long long)id);
    cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_OK, "%s", err.message);
    cr_assert_eq(answer.error, 1317, "%s", answer.message);
    expect_value(conn, "SELECT 10", "10");
    dli_mysql_conn_close(conn);
}
