/* mysql_settings_test.c - sessions on servers whose settings are hostile, and servers that are refused. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_conn_fixture.h"

TestSuite(mysql_settings, .init = set_up_env, .fini = tear_down, .timeout = 120);

#define STRICT "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"

/* As many as there are, and last those that hinder whoever sets them. */
static void set_globals(void) {
    static const char *const both[] = {
        "SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
        "SET GLOBAL autocommit=0",
        "SET GLOBAL time_zone='+05:30'",
        "SET GLOBAL innodb_lock_wait_timeout=1000",
        "SET GLOBAL lock_wait_timeout=1000",
        "SET GLOBAL wait_timeout=11, GLOBAL interactive_timeout=11",
        "SET GLOBAL net_read_timeout=1, GLOBAL net_write_timeout=1",
        "SET GLOBAL completion_type=CHAIN",
        "SET GLOBAL sql_safe_updates=1",
        "SET GLOBAL sql_auto_is_null=1",
        "SET GLOBAL character_set_client=latin1, GLOBAL character_set_results=latin1",
        "SET GLOBAL sql_big_selects=0, GLOBAL max_join_size=1",
    };
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        mysql_ask(server, "%s", both[i]);
    }
    if (mysql_is_mariadb()) {
        mysql_ask(server, "SET GLOBAL idle_transaction_timeout=1, GLOBAL idle_write_transaction_timeout=1, "
                          "GLOBAL idle_readonly_transaction_timeout=1");
        mysql_ask(server, "SET GLOBAL sql_mode='ORACLE,SIMULTANEOUS_ASSIGNMENT,EMPTY_STRING_IS_NULL,"
                          "NO_BACKSLASH_ESCAPES,IGNORE_SPACE'");
    } else {
        mysql_ask(server, "SET GLOBAL sql_mode='ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'");
    }
    mysql_ask(server, mysql_is_mariadb() ? "SET GLOBAL sql_select_limit=0, GLOBAL max_statement_time=0.000001"
                                         : "SET GLOBAL sql_select_limit=0, GLOBAL max_execution_time=1");
}

static void expect_pinned(dli_mysql_conn_t *conn, const char *isolation, const char *autocommit) {
    bool mariadb = mysql_is_mariadb();
    const char *const pins[][2] = {
        {mariadb ? "@@tx_isolation" : "@@transaction_isolation", isolation},
        {mariadb ? "@@tx_read_only" : "@@transaction_read_only", "0"},
        {"@@autocommit", autocommit},
        {"@@sql_mode", STRICT},
        {"@@time_zone", "+00:00"},
        {"@@innodb_lock_wait_timeout", "1"},
        {"@@lock_wait_timeout", "1"},
        {"@@wait_timeout", "60"},
        {"@@interactive_timeout", "60"},
        {"@@net_read_timeout", "30"},
        {"@@net_write_timeout", "60"},
        {"@@completion_type", "NO_CHAIN"},
        {"@@sql_safe_updates", "0"},
        {"@@sql_big_selects", "1"},
        {"@@sql_auto_is_null", "0"},
        {"@@sql_select_limit", "18446744073709551615"},
        {"@@character_set_client", "utf8mb4"},
        {"@@character_set_connection", "utf8mb4"},
        {"@@character_set_results", "utf8mb4"},
        {mariadb ? "@@max_statement_time=0" : "@@max_execution_time=0", "1"},
        {mariadb ? "@@idle_transaction_timeout+@@idle_write_transaction_timeout+"
                   "@@idle_readonly_transaction_timeout"
                 : "0",
         "0"},
        {"ABS(TIMESTAMPDIFF(SECOND,UTC_TIMESTAMP(),SYSDATE()))<60", "1"},
    };
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        char sql[256];
        snprintf(sql, sizeof sql, "SELECT %s", pins[i][0]);
        expect_value(conn, sql, pins[i][1]);
    }
}

/* What the settings are for. */
static void expect_sane(dli_mysql_conn_t *conn) {
    must_ask(conn, "INSERT INTO t VALUES (1,1,1)");
    must_ask(conn, "UPDATE t SET b=b+1,c=b");
    must_ask(conn, "COMMIT");
    expect_value(conn, "SELECT c FROM t", "2");
    expect_value(conn, "SELECT \"a\\\\b\"", "a\\b");
    cr_assert_eq(ask_within(conn, "INSERT INTO t VALUES (2,'x',0)", PATIENCE_MS, NULL), DL_OK);
    cr_assert_neq(answer.error, 0, "not strict");
    must_ask(conn, "DELETE FROM t");
    must_ask(conn, "COMMIT");
    if (mysql_is_mariadb()) {
        expect_value(conn, "SELECT @@in_transaction", "0");
    }
}

static void expect_all_roles_pinned(void) {
    static const struct {
        dli_mysql_role_t role;
        const char *isolation, *autocommit;
    } roles[] = {{DLI_MYSQL_ROLE_PLAIN, "READ-COMMITTED", "1"},
                 {DLI_MYSQL_ROLE_HOLDING, "READ-COMMITTED", "0"},
                 {DLI_MYSQL_ROLE_OVERLOOKING, "READ-UNCOMMITTED", "1"}};
    for (size_t i = 0; i < 3; i++) {
        dli_mysql_conn_t *conn = connect_as(roles[i].role);
        expect_pinned(conn, roles[i].isolation, roles[i].autocommit);
        expect_sane(conn);
        dli_mysql_conn_close(conn);
    }
}

static void start(const char *argument) {
    use_server(mysql_server_start(NULL, NULL, argument, NULL));
    mysql_ask(server, "CREATE TABLE %s.t (a INT PRIMARY KEY, b INT, c INT) ENGINE=InnoDB", database);
}

/* FAULTS 31. */
Test(mysql_settings, hostile_globals_have_no_effect) {
    start("--loose-skip-character-set-client-handshake");
    set_globals();
    expect_all_roles_pinned();
}

Test(mysql_settings, neither_has_init_connect) {
    start(NULL);
    mysql_ask(server, "SET GLOBAL init_connect='SET autocommit=0, sql_mode=ANSI, time_zone=SYSTEM, "
                      "timestamp=1000000000, sql_select_limit=0; SET NAMES latin1; "
                      "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION READ ONLY'");
    expect_all_roles_pinned();
}

Test(mysql_settings, a_clock_that_nobody_may_set_has_not_to_be_set) {
    start("--loose-secure-timestamp=YES");
    expect_all_roles_pinned();
}

Test(mysql_settings, facts_that_decide) {
    start(NULL);
    dli_mysql_conn_t *conn = connect_plain();
    cr_assert_not(dli_mysql_conn_facts(conn)->is_read_only);
    dli_mysql_conn_close(conn);
    mysql_ask(server, "SET GLOBAL read_only=1");
    conn = connect_plain();
    cr_assert(dli_mysql_conn_facts(conn)->is_read_only);
    dli_mysql_conn_close(conn);
}

Test(mysql_settings, servers_that_are_too_old) {
    static const struct {
        const char *argument;
        dl_status_t status;
    } versions[] = {{"--version=10.5.29-MariaDB", DL_ENOTSUP},
                    {"--version=5.7.44-log", DL_ENOTSUP},
                    {"--version=nonsense", DL_ENOTSUP},
                    {"--version=10.6.0-MariaDB-1", DL_OK}};
    if (!mysql_is_mariadb()) {
        cr_skip_test("MySQL says what it is and nothing else");
    }
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        dli_mysql_conn_t *conn;
        mysql_server_t *one = mysql_server_start(NULL, NULL, versions[i].argument, NULL);
        use_server(one);
        dl_status_t status = try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn);
        cr_assert_eq(status, versions[i].status, "%s: %s", versions[i].argument, err.message);
        cr_assert(status == DL_OK || strstr(err.message, versions[i].argument + 10) != NULL, "%s",
                  err.message);
        cr_assert(status != DL_OK || dli_mysql_conn_facts(conn)->version_number == 100600);
        dli_mysql_conn_close(conn);
        mysql_server_stop(one);
    }
    server = NULL;
}
