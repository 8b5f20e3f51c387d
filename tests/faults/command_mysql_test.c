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

static void write_config(const char *driver) {
    char text[768];
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: %dms, call_timeout: 300ms}\n"
                   "backends:\n  test: {driver: %s, socket: \"%s\", user: %s, password: %s, database: %s}\n",
                   LEASE_MS, driver, server->path, MYSQL_USER, MYSQL_SECRET, database);
    write_file(config_path, text);
}

/* Its table is there, so that only the lock counts. */
static void use_driver(const char *driver) {
    program_t program;
    write_config(driver);
    (void)dlock(&program, "init", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
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
    use_driver("mysql-pessimistic");
    end_at_once_when_forgotten();
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
    cr_assert_not_null(strstr(program.err_text, "141"), "%s", program.err_text);
}

Test(command_mysql, the_command_has_its_pipe_signal_with_leases) {
    expect_signals_as_they_were("mysql-lease");
}

Test(command_mysql, the_command_has_its_pipe_signal_with_row_locks) {
    expect_signals_as_they_were("mysql-pessimistic");
}
