/* command_sqlite_test.c - the command on a lock file that others keep busy, or that is made never to end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#include "command_fixture.h"

/* finish() gives nobody more than PATIENCE_MS: much longer than the configured call_timeout, and no time at
 * all for what never ends. */
TestSuite(command_sqlite, .init = fixture_open, .fini = fixture_close);

#define NEVER_ENDS                               \
    " ON dlock_locks BEGIN SELECT count(*) FROM" \
    " (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c); END;"

/* A holder that keeps the lock until its input ends. */
static void hold(program_t *holder) {
    char line[16];
    start(holder, "run", "x", "--lease", "1h", "--", "sh", "-c", "echo held >&9; cat", NULL);
    read_line(holder, line, sizeof line);
}

static void expect_end(program_t *program, const char *wait, int status, const char *why) {
    (void)dlock(program, "run", "x", "--wait", wait, "--", "sh", "-c", "echo ran", NULL);
    cr_assert_eq(program->status, status, "--wait %s: status %d; err: %s", wait, program->status,
                 program->err_text);
    cr_assert_has(program->err_text, why);
    cr_assert_str_empty(program->out_text, "the command ran without the lock");
}

/* One that waits for the holder, while something is done to the file. */
static void start_waiter(program_t *waiter) {
    start(waiter, "run", "x", "--verbose", "--", "sh", "-c", "echo ran", NULL);
    read_error_until(waiter, "waiting for 'x'");
}

static void end_by_signal(program_t *waiter) {
    (void)kill(waiter->pid, SIGTERM);
    (void)finish(waiter);
    /* It may have seen the file's state before the signal, and ended by itself. */
    cr_assert(waiter->status == 128 + SIGTERM || waiter->status == 69, "status %d; err: %s", waiter->status,
              waiter->err_text);
    cr_assert_str_empty(waiter->out_text, "the command ran without the lock");
}

Test(command_sqlite, triggers_that_never_end_keep_no_wait_and_no_signal) {
    static const char why[] = "definitions that are not dlock's";
    sqlite3 *db;
    program_t program, holder, waiter;
    hold(&holder);
    start_waiter(&waiter);
    cr_assert_eq(sqlite3_open(database_path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, PATIENCE_MS);
    cr_assert_eq(sqlite3_exec(db,
                              "CREATE TRIGGER i BEFORE INSERT" NEVER_ENDS
                              "CREATE TRIGGER u BEFORE UPDATE" NEVER_ENDS
                              "CREATE TRIGGER d BEFORE DELETE" NEVER_ENDS,
                              NULL, NULL, NULL),
                 SQLITE_OK);
    (void)sqlite3_close(db);
    end_by_signal(&waiter);
    expect_end(&program, "0", 69, why);
    expect_end(&program, "300ms", 69, why);
    (void)finish(&holder);
    cr_assert_eq(holder.status, 0, "status %d; err: %s", holder.status, holder.err_text);
    cr_assert_has(holder.err_text, why);
    (void)dlock(&program, "check", NULL);
    cr_assert_has(program.err_text, why);
}

Test(command_sqlite, a_file_that_is_kept_busy_keeps_no_wait_and_no_signal) {
    program_t program, holder, waiter;
    hold(&holder);
    start_waiter(&waiter);
    void *held = hold_database();
    expect_end(&program, "0", 69, "busy");
    expect_end(&program, "300ms", 69, "busy");
    end_by_signal(&waiter);
    let_database_go(held);
    (void)finish(&holder);
    cr_assert_eq(holder.status, 0, "status %d; err: %s", holder.status, holder.err_text);
}

static void make_many_of_one(const char *count) {
    char text[512];
    sqlite3 *db;
    (void)snprintf(text, sizeof text,
                   "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %s) "
                   "INSERT INTO dlock_locks SELECT CAST('y' || n AS BLOB), owner, hold_id, client, "
                   "acquired_ns, expires_ns, token FROM dlock_locks, c",
                   count);
    cr_assert_eq(sqlite3_open(database_path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, PATIENCE_MS);
    cr_assert_eq(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    (void)sqlite3_close(db);
}

/* More than a pipe has room for, and than is read at once. */
Test(command_sqlite, who_reads_a_list_slowly_gets_all_of_it) {
    program_t holder, list;
    hold(&holder);
    make_many_of_one("3000");
    start_plain(&list, "bash", "-c",
                "exec 3<&0; \"$@\" | { read -r _; echo begun $? >&9; read go <&3; wc -l; }; "
                "echo ${PIPESTATUS[0]}",
                "bash", DLOCK_COMMAND, "--config", config_path, "list", "y", NULL);
    cr_assert_eq(read_pid(&list, "begun"), 0);
    struct pollfd end = {.fd = list.pidfd, .events = POLLIN};
    cr_assert_eq(poll(&end, 1, 2 * 300), 0, "nothing was left to read"); /* longer than call_timeout */
    (void)finish(&list);
    cr_assert_str_eq(list.out_text, "2999\n0\n", "%s%s", list.out_text, list.err_text);
    (void)finish(&holder);
}
