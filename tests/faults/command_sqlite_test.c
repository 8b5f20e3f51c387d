/* command_sqlite_test.c - the command on a lock file that others keep busy, or that is made never to end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
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
