/* command_mysql_test.c - dlock over a MySQL server: what it started ends in time, its signals as usual. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_server.h"
#include "mysql_server.h"

static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX];
static const char *account = MYSQL_USER;

static void write_config(const char *driver, const char *call_timeout) {
    char text[768];
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: %dms, call_timeout: %s}\n"
                   "backends:\n  test: {driver: %s, socket: \"%s\", user: %s, password: %s, database: %s}\n",
                   LEASE_MS, call_timeout, driver, server->path, account, MYSQL_SECRET, database);
    write_file(config_path, text);
}

/* Its table is there, so that only the lock counts. */
static void use_driver(const char *driver) {
    program_t program;
    write_config(driver, "10s"); /* making tables may take the disk long */
    (void)dlock(&program, "init", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    write_config(driver, "300ms");
}

static void open_all(void) {
    fixture_open();
    server = mysql_server_start(NULL, NULL, NULL);
    mysql_database(server, database);
}

static void close_all(void) {
    mysql_server_stop(server);
    fixture_close();
}

TestSuite(command_mysql, .init = open_all, .fini = close_all);

/* ---- the server fails ------------------------------------------------------------------------------- */

Test(command_mysql, all_end_before_validity_when_the_server_is_stopped) {
    use_driver("mysql-lease");
    end_in_time_when_frozen(server->pid);
}

Test(command_mysql, all_end_before_validity_when_the_server_is_stopped_with_row_locks) {
    use_driver("mysql-pessimistic");
    end_in_time_when_frozen(server->pid);
}

Test(command_mysql, all_end_before_validity_when_the_server_is_stopped_with_versions) {
    use_driver("mysql-optimistic");
    end_in_time_when_frozen(server->pid);
}

static void kill_server(void) {
    mysql_server_kill(server);
}

static void start_server_again(void) {
    mysql_server_boot(server);
}

Test(command_mysql, all_end_before_validity_when_the_server_is_killed) {
    use_driver("mysql-lease");
    end_in_time_when_killed(kill_server, start_server_again);
}

Test(command_mysql, a_short_stop_of_the_server_does_no_harm) {
    use_driver("mysql-lease");
    survive_a_short_freeze(server->pid);
}

Test(command_mysql, a_lock_that_was_freed_by_force_ends_the_command_at_once) {
    use_driver("mysql-lease");
    end_at_once_when_forgotten();
}

Test(command_mysql, a_row_lock_that_was_freed_by_force_ends_the_command_at_once) {
    mysql_server_await_uptime(server, 4); /* a holder is killed only in the run that it got the lock in */
    use_driver("mysql-pessimistic");
    end_at_once_when_forgotten();
}

/* Whose server knows of no lease: the lock would be free as soon as the connection is closed. */
Test(command_mysql, a_row_lock_is_kept_for_what_cannot_be_ended_until_it_ends) {
    program_t program;
    use_driver("mysql-pessimistic");
    refuse_kill();
    pid_t rest = start_with_a_rest(&program, "1m");
    (void)close(program.in);
    program.in = -1;
    expect_kept_for_the_rest(&program, rest, 3);
}

/* ---- somebody keeps the row locked -------------------------------------------------------------------- */

/* With what it could not know, it would try for all of call_timeout to free it. */
static void expect_short_wait(const char *driver, const char *table) {
    program_t program;
    mysql_server_await_uptime(server, 4); /* a statement is ended only in the run that it was made in */
    use_driver(driver);
    (void)dlock(&program, "run", "x", "--", "true", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    mysql_hand_t *hand = mysql_hand(server, database);
    mysql_hand_ask(hand, "BEGIN");
    mysql_hand_ask(hand, "SELECT 1 FROM %s WHERE name='x' FOR UPDATE", table);
    write_config(driver, "10s");
    uint64_t began_ns = now_boot_ns();
    (void)dlock(&program, "run", "x", "--wait", "2s", "--", "true", NULL);
    double took_ms = (double)(now_boot_ns() - began_ns) / 1e6;
    cr_assert_eq(program.status, 69, "status %d; err: %s", program.status, program.err_text);
    cr_assert_has(program.err_text, "another transaction keeps the row locked");
    cr_assert_lt(took_ms, 10000, "%.0f ms", took_ms);
    mysql_hand_close(hand);
}

Test(command_mysql, a_short_wait_for_a_row_that_is_kept_ends_and_says_so) {
    expect_short_wait("mysql-lease", "dlock_lease");
    expect_short_wait("mysql-optimistic", "dlock_optimistic");
}

/* ---- SQL for an administrator ------------------------------------------------------------------------- */

static void need_client(void) {
    if (system("command -v mariadb >/dev/null || command -v mysql >/dev/null") != 0) {
        cr_skip_test("neither mariadb nor mysql, the clients, is there");
    }
}

/* A pipe of the shell, with dlock as $0 and the configuration as $1, into a client as root. */
static int pipe_sql(program_t *program, const char *filter) {
    char line[512];
    (void)snprintf(line, sizeof line,
                   "set -o pipefail; \"$0\" init --sql --config \"$1\" | %s "
                   "\"$(command -v mariadb || command -v mysql)\" --no-defaults --loose-skip-ssl -S '%s' "
                   "-u root %s",
                   filter, server->path, database);
    start_plain(program, "bash", "-c", line, DLOCK_COMMAND, config_path, NULL);
    (void)finish(program);
    cr_assert_str_empty(program->out_text);
    return program->status;
}

static void expect_no_complaint(const char *driver) {
    program_t program;
    (void)dlock(&program, "check", NULL);
    const char *complaint = strstr(program.out_text, "\nwarning ");
    cr_assert_eq(program.status, 0, "%s: %s%s", driver, complaint != NULL ? complaint : program.out_text,
                 program.err_text);
    cr_assert_has(program.out_text, "the account may do all that locks need");
    cr_assert_null(strstr(program.out_text, "\nerror "), "%s: %s", driver, program.out_text);
}

/* The first account is there and may nothing; the second is made by the same SQL, with the password put in.
 */
static const char put_password[] =
    "sed \"s/^-- CREATE USER/CREATE USER/; s/'PASSWORD'/'" MYSQL_SECRET "'/\" |";

Test(command_mysql, the_sql_for_an_administrator_makes_all_that_an_account_needs) {
    static const char *const drivers[] = {"mysql-lease", "mysql-optimistic", "mysql-pessimistic"};
    program_t program;
    need_client();
    mysql_ask(server, "CREATE USER there@'%%' IDENTIFIED BY '%s'", MYSQL_SECRET);
    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++) {
        account = "there";
        write_config(drivers[i], "300ms");
        cr_assert_eq(pipe_sql(&program, ""), 0, "%s", program.err_text);
        expect_no_complaint(drivers[i]);
        mysql_ask(server, "DROP USER IF EXISTS fresh@'%%'");
        account = "fresh";
        write_config(drivers[i], "300ms");
        cr_assert_eq(pipe_sql(&program, put_password), 0, "%s", program.err_text);
        expect_no_complaint(drivers[i]);
    }
}

/* Whose password would be known to everybody, or which would have none. */
Test(command_mysql, the_sql_as_it_is_makes_no_account) {
    program_t program;
    need_client();
    mysql_ask(server, "SET GLOBAL sql_mode = ''");
    account = "fresh";
    write_config("mysql-lease", "300ms");
    cr_assert_eq(pipe_sql(&program, ""), 1, "%s", program.err_text);
    cr_assert_has(program.err_text, "ERROR ");
    cr_assert_eq(mysql_number(server, "SELECT COUNT(*) FROM mysql.user WHERE User = 'fresh'"), 0);
}

Test(command_mysql, the_sql_is_nothing_but_sql_and_has_no_secret) {
    program_t program;
    account = "fresh";
    write_config("mysql-lease", "300ms");
    (void)dlock(&program, "init", "--sql", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    cr_assert_has(program.out_text, "\n-- CREATE USER IF NOT EXISTS 'fresh'@'%' IDENTIFIED BY 'PASSWORD';\n");
    cr_assert_null(strstr(program.out_text, MYSQL_SECRET), "%s", program.out_text);
    for (const char *line = program.out_text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        bool is_comment = strncmp(line, "-- ", 3) == 0;
        cr_assert(is_comment || line[strcspn(line, "\n") - 1] == ';', "no SQL: %s", line);
    }
    (void)dlock(&program, "init", "--sql", "--quiet", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    cr_assert_str_empty(program.out_text);
    (void)dlock(&program, "init", "--sql", "--json", NULL);
    cr_assert_eq(program.status, 64);
    cr_assert_str_eq(program.err_text, "dlock: --sql prints SQL; leave out --json\n");
}

/* ---- what the command inherits ---------------------------------------------------------------------- */

/* Both client libraries ignore SIGPIPE for the whole process, and what is ignored is inherited. */
static void expect_signals_as_they_were(const char *driver) {
    program_t program;
    use_driver(driver);
    (void)dlock(&program, "run", "x", "--", "sh", "-c", "grep ^SigIgn: /proc/self/status", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    unsigned long long ignored = strtoull(program.out_text + sizeof "SigIgn:", NULL, 16);
    cr_assert_eq(strncmp(program.out_text, "SigIgn:", 7), 0, "%s", program.out_text);
    cr_assert_eq(ignored >> (SIGPIPE - 1) & 1, 0, "the command ignores SIGPIPE: %s", program.out_text);
    /* A writer whose reader has gone ends by the signal, and not by an error. */
    (void)dlock(&program, "run", "x", "--", "sh", "-c", "(yes; echo $? >&2) | head -n 1; wait", NULL);
    cr_assert_has(program.err_text, "141");
}

Test(command_mysql, the_command_has_its_pipe_signal_with_leases) {
    expect_signals_as_they_were("mysql-lease");
}

Test(command_mysql, the_command_has_its_pipe_signal_with_row_locks) {
    expect_signals_as_they_were("mysql-pessimistic");
}
