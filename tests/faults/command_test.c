/* command_test.c - what dlock promises while nothing fails. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command_fixture.h"
#include "dlock/dlock.h"

TestSuite(command, .init = fixture_open, .fini = fixture_close);

static void expect_status(program_t *program, int expected) {
    cr_assert_eq(program->status, expected, "status %d instead of %d; out: %s err: %s", program->status,
                 expected, program->out_text, program->err_text);
}

static void expect_free(const char *name) {
    program_t status;
    (void)dlock(&status, "status", "--quiet", name, NULL);
    expect_status(&status, 1);
}

/* A holder that keeps the lock until let_go. */
static void hold(program_t *holder, const char *name) {
    start(holder, "run", name, "--", "sh", "-c", "echo held >&9; cat", NULL);
    char line[16];
    read_line(holder, line, sizeof line);
}

static void let_go(program_t *holder) {
    (void)finish(holder); /* closes its standard input */
    expect_status(holder, 0);
}

/* ---- run: exit statuses --------------------------------------------------------------------------- */

Test(command, the_exit_status_is_the_commands) {
    program_t program;
    (void)dlock(&program, "run", "x", "--", "true", NULL);
    expect_status(&program, 0);
    (void)dlock(&program, "run", "x", "--", "sh", "-c", "echo out; echo err >&2; exit 7", NULL);
    expect_status(&program, 7);
    cr_assert_str_eq(program.out_text, "out\n");
    cr_assert_str_eq(program.err_text, "err\n");
    (void)dlock(&program, "run", "x", "--", "sh", "-c", "kill -9 $$", NULL);
    expect_status(&program, 128 + SIGKILL);
    expect_free("x");
}

Test(command, a_command_that_is_not_there_is_127_and_one_that_cannot_run_126) {
    program_t program;
    (void)dlock(&program, "run", "x", "--", "there-is-no-such-command", NULL);
    expect_status(&program, 127);
    cr_assert_str_eq(program.err_text,
                     "dlock: cannot run 'there-is-no-such-command': No such file or directory\n");
    (void)dlock(&program, "run", "x", "--", config_path, NULL);
    expect_status(&program, 126);
    expect_free("x");
}

Test(command, a_lock_that_is_not_obtained_in_time_is_75_and_nothing_runs) {
    static const char late[] =
        "dlock: 'x': the lock was not obtained, and nothing was run: the time allowed for waiting is over; "
        "last: held by another owner for ";
    static const char busy[] =
        "dlock: 'x': the lock was not obtained, and nothing was run: held by another owner for ";
    char trace[128];
    (void)snprintf(trace, sizeof trace, "%s/ran", work_dir);
    program_t holder, other;
    hold(&holder, "x");
    uint64_t began_ns = now_boot_ns();
    (void)dlock(&other, "run", "x", "--wait", "200ms", "--", "touch", trace, NULL);
    expect_status(&other, 75);
    cr_assert_geq(other.ended_ns - began_ns, 200000000u, "it did not wait");
    cr_assert_eq(strncmp(other.err_text, late, sizeof late - 1), 0, "%s", other.err_text);
    (void)dlock(&other, "run", "x", "--wait=0", "--", "touch", trace, NULL);
    expect_status(&other, 75);
    cr_assert_eq(strncmp(other.err_text, busy, sizeof busy - 1), 0, "%s", other.err_text);
    (void)dlock(&other, "run", "x", "--wait", "0", "--quiet", "--", "touch", trace, NULL);
    expect_status(&other, 75);
    cr_assert_str_empty(other.err_text, "quiet, but: %s", other.err_text);
    cr_assert_neq(access(trace, F_OK), 0, "the command ran without the lock");
    let_go(&holder);
}

Test(command, a_waiter_runs_when_the_holder_is_done) {
    program_t holder, waiter;
    hold(&holder, "x");
    start(&waiter, "run", "x", "--wait", "15s", "--", "sh", "-c", "echo mine", NULL);
    let_go(&holder);
    (void)finish(&waiter);
    expect_status(&waiter, 0);
    cr_assert_str_eq(waiter.out_text, "mine\n");
}

Test(command, a_signal_ends_the_wait_and_nothing_runs) {
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    char trace[128];
    (void)snprintf(trace, sizeof trace, "%s/ran", work_dir);
    program_t holder, waiter;
    hold(&holder, "x");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        start(&waiter, "run", "x", "--", "touch", trace, NULL);
        uint64_t sent_ns = now_boot_ns();
        (void)kill(waiter.pid, numbers[i]); /* wherever it is by now */
        (void)finish(&waiter);
        if (waiter.status != 1000 + numbers[i]) { /* before dlock had begun, the signal simply ends it */
            expect_status(&waiter, 128 + numbers[i]);
        }
        cr_assert_lt(waiter.ended_ns - sent_ns, 2000000000u);
    }
    /* One that surely waits. */
    start(&waiter, "run", "x", "--verbose", "--", "touch", trace, NULL);
    read_error_until(&waiter, "waiting for 'x'");
    (void)kill(waiter.pid, SIGINT);
    (void)finish(&waiter);
    expect_status(&waiter, 128 + SIGINT);
    cr_assert_has(waiter.err_text, "dlock: 'x': the wait for the lock was ended by SIGINT\n");
    /* nohup: what was ignored does not end the wait either. */
    ignore_signal(SIGHUP);
    start(&waiter, "run", "x", "--verbose", "--", "touch", trace, NULL);
    read_error_until(&waiter, "waiting for 'x'");
    (void)kill(waiter.pid, SIGHUP);
    (void)kill(waiter.pid, SIGTERM);
    (void)finish(&waiter);
    expect_status(&waiter, 128 + SIGTERM);
    let_go(&holder);
    cr_assert_neq(access(trace, F_OK), 0, "the command ran without the lock");
    expect_free("x");
}

/* Where it were, it would come before what is sent to the command. */
Test(command, what_is_sent_to_one_that_waits_is_not_for_the_command) {
    const int numbers[] = {SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};
    program_t holder, waiter;
    hold(&holder, "x");
    start(&waiter, "run", "x", "--verbose", "--", "sh", "-c",
          "trap 'echo got it' USR1; trap 'exit 0' USR2; echo runs >&2; while :; do :; done", NULL);
    read_error_until(&waiter, "waiting for 'x'");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        (void)kill(waiter.pid, numbers[i]);
    }
    let_go(&holder);
    read_error_until(&waiter, "runs");
    cr_assert_eq(kill(waiter.pid, SIGUSR2), 0);
    (void)finish(&waiter);
    expect_status(&waiter, 0);
    cr_assert_str_empty(waiter.out_text);
}

/* ---- run: what the command finds -------------------------------------------------------------------- */

Test(command, the_command_finds_the_name_and_a_rising_token) {
    unsigned long long last = 0;
    for (int i = 0; i < 3; i++) {
        program_t program;
        (void)dlock(&program, "run", "a name", "--", "sh", "-c", "echo \"$DLOCK_NAME:$DLOCK_TOKEN\"", NULL);
        expect_status(&program, 0);
        cr_assert_eq(strncmp(program.out_text, "a name:", 7), 0, "%s", program.out_text);
        unsigned long long token = strtoull(program.out_text + 7, NULL, 10);
        cr_assert_gt(token, last);
        last = token;
    }
}

Test(command, the_command_gets_the_callers_descriptors_and_no_others) {
    static const char list[] = "for f in /proc/$$/fd/*; do echo ${f##*/}; done";
    program_t without, with;
    int extra = open("/dev/null", O_RDONLY); /* without CLOEXEC: the caller means to hand it down */
    start_plain(&without, "sh", "-c", list, NULL);
    (void)finish(&without);
    (void)dlock(&with, "run", "x", "--", "sh", "-c", list, NULL);
    expect_status(&with, 0);
    char number[16];
    (void)snprintf(number, sizeof number, "%d\n", extra);
    cr_assert_has(with.out_text, number, "the caller's own descriptor is missing: %s", with.out_text);
    cr_assert_str_eq(with.out_text, without.out_text, "not the same descriptors");
}

Test(command, the_command_gets_the_callers_signal_mask_and_dispositions) {
    static const char *const words[] = {"grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"};
    block_signal(SIGUSR1);
    block_signal(SIGTERM);
    ignore_signal(SIGHUP);
    ignore_signal(SIGCHLD);
    program_t without, with;
    start_plain(&without, words[0], words[1], words[2], words[3], NULL);
    (void)finish(&without);
    start(&with, "run", "x", "--", words[0], words[1], words[2], words[3], NULL);
    (void)finish(&with);
    expect_status(&with, 0);
    cr_assert_has(without.out_text, "SigIgn:\t0000000000010001");
    cr_assert_str_eq(with.out_text, without.out_text);
}

Test(command, signals_are_passed_on_to_the_command) {
    static const struct {
        int number;
        const char *name;
    } signals[] = {{SIGINT, "INT"},   {SIGTERM, "TERM"}, {SIGHUP, "HUP"},    {SIGQUIT, "QUIT"},
                   {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGWINCH, "WINCH"}};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        char script[160];
        (void)snprintf(script, sizeof script,
                       "trap 'echo got; exit 40' %s; echo ready >&9; while :; do read x; done",
                       signals[i].name);
        program_t program;
        start(&program, "run", "x", "--", "sh", "-c", script, NULL);
        char line[16];
        read_line(&program, line, sizeof line);
        (void)kill(program.pid, signals[i].number);
        await_output(&program); /* before the end of the standard input lets the loop spin */
        (void)finish(&program);
        expect_status(&program, 40);
    }
}

Test(command, a_signal_that_comes_as_the_command_ends_does_not_change_its_status) {
    for (int i = 0; i < 20; i++) {
        program_t program;
        /* With a daemon about, the keeper looks longer for what is left. */
        start(&program, "run", "x", "--", "sh", "-c",
              "setsid sh -c 'echo daemon $$ >&9; exec sleep 1000' >/dev/null 2>&1 & read x; exit 3", NULL);
        (void)watched(read_pid(&program, "daemon"));
        (void)close(program.in);
        program.in = -1;
        while (is_running(program.pidfd)) {
            (void)kill(program.pid, SIGWINCH); /* ignored by whoever does not want it */
        }
        (void)finish(&program);
        expect_status(&program, 3);
    }
}

Test(command, in_a_terminal_the_command_reads_and_ctrl_c_ends_it) {
    int terminal;
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    if (pid < 0) {
        cr_skip("no pseudo terminals here"); /* a bare chroot without /dev/pts */
    }
    if (pid == 0) {
        (void)execl(DLOCK_COMMAND, "dlock", "--config", config_path, "run", "x", "--", "sh", "-c",
                    "read word; echo got $word; read word; echo then $word; exec sleep 1000", NULL);
        _exit(99);
    }
    cr_assert_eq(write(terminal, "hello\n", 6), 6);
    char text[512] = "";
    size_t len = 0;
    bool stopped = false;
    while (strstr(text, "then there") == NULL) {
        if (!stopped && strstr(text, "got hello") != NULL) {
            stopped = true; /* nobody could continue dlock: the command goes on */
            cr_assert_eq(write(terminal, "\x1athere\n", 7), 7);
        }
        struct pollfd ready = {.fd = terminal, .events = POLLIN};
        cr_assert_eq(poll(&ready, 1, PATIENCE_MS), 1, "the command cannot read: %s", text);
        ssize_t got = read(terminal, text + len, sizeof text - 1 - len);
        cr_assert_gt(got, 0, "ended early: %s", text);
        len += (size_t)got;
        text[len] = '\0';
    }
    cr_assert_eq(write(terminal, "\x03", 1), 1);
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 128 + SIGINT);
    (void)close(terminal);
    expect_free("x");
}

/* ---- the other subcommands ---------------------------------------------------------------------------- */

Test(command, status_list_and_unlock_tell_who_holds_what) {
    program_t holder, program;
    (void)dlock(&program, "status", "jobs/1", NULL);
    expect_status(&program, 0);
    cr_assert_str_eq(program.out_text, "jobs/1: free\n");
    (void)dlock(&program, "list", "--json", NULL);
    cr_assert_str_eq(program.out_text, "[]\n");
    (void)dlock(&program, "unlock", "--force", "jobs/1", NULL);
    expect_status(&program, 1);
    cr_assert_str_eq(program.err_text, "dlock: nobody holds 'jobs/1'\n");

    hold(&holder, "jobs/1");
    (void)dlock(&program, "status", "jobs/1", "--quiet", NULL);
    expect_status(&program, 0);
    cr_assert_str_empty(program.out_text);
    (void)dlock(&program, "--json", "status", "jobs/1", NULL);
    cr_assert_eq(strncmp(program.out_text, "{\"name\": \"jobs/1\", \"held\": true, \"owner\": \"", 43), 0,
                 "%s", program.out_text);
    char client[64];
    (void)snprintf(client, sizeof client, ":%d\"}\n", (int)holder.pid);
    cr_assert_has(program.out_text, client, "the holder's process is missing: %s", program.out_text);
    (void)dlock(&program, "list", "jobs/", NULL);
    cr_assert_eq(strncmp(program.out_text, "jobs/1: held by ", 16), 0, "%s", program.out_text);
    cr_assert_has(program.out_text, ", lease ends in ");
    (void)dlock(&program, "list", "other/", "-q", NULL);
    expect_status(&program, 1);
    (void)dlock(&program, "unlock", "jobs/1", NULL);
    expect_status(&program, 64);
    (void)dlock(&program, "unlock", "--force", "jobs/1", "--json", NULL);
    expect_status(&program, 0);
    cr_assert_str_eq(program.out_text, "{\"name\": \"jobs/1\", \"freed\": true}\n");
    expect_free("jobs/1");
    (void)finish(&holder);
}

Test(command, names_of_any_bytes_come_out_of_json_without_loss) {
    static const char name[] = "q\"b\\n\nt\x01u\xc3\xa4x\xff"
                               "o\xc0\x80s\xed\xa0\x80.";
    static const char expected[] = "{\"name\": \"q\\\"b\\\\n\\u000at\\u0001u\xc3\xa4x\\ufffdo\\ufffd\\ufffds"
                                   "\\ufffd\\ufffd\\ufffd.\", \"name_hex\": "
                                   "\"7122625c6e0a740175c3a478ff6fc08073eda0802e\", \"held\": ";
    program_t holder, program;
    hold(&holder, name);
    (void)dlock(&program, "status", name, "--json", NULL);
    cr_assert_eq(strncmp(program.out_text, expected, sizeof expected - 1), 0, "%s", program.out_text);
    (void)dlock(&program, "list", "--json", NULL);
    cr_assert_eq(strncmp(program.out_text + 1, expected, sizeof expected - 1), 0, "%s", program.out_text);
    (void)dlock(&program, "list", NULL);
    static const char text[] = "q\"b\\\\n\\x0at\\x01u\xc3\xa4x\\xffo\\xc0\\x80s\\xed\\xa0\\x80.: held by ";
    cr_assert_eq(strncmp(program.out_text, text, sizeof text - 1), 0, "%s", program.out_text);
    let_go(&holder);
}

Test(command, init_check_backends_and_version_report) {
    program_t program;
    (void)dlock(&program, "init", "--print", NULL);
    expect_status(&program, 0);
    cr_assert_neq(access(database_path, F_OK), 0, "--print has made the file");
    (void)dlock(&program, "init", NULL);
    expect_status(&program, 0);
    cr_assert_eq(access(database_path, F_OK), 0);
    (void)dlock(&program, "init", "--json", NULL);
    expect_status(&program, 0);
    cr_assert_eq(strncmp(program.out_text, "{\"steps\": [{", 12), 0, "%s", program.out_text);
    cr_assert_has(program.out_text, "}], \"done\": true}\n");
    (void)dlock(&program, "check", NULL);
    expect_status(&program, 0);
    cr_assert_has(program.out_text, "backend 'test', driver sqlite");
    cr_assert_has(program.out_text, "guarantee");
    (void)dlock(&program, "check", "--json", NULL);
    cr_assert_eq(strncmp(program.out_text, "{\"backend\": \"test\", \"driver\": \"sqlite\", ", 40), 0, "%s",
                 program.out_text);
    (void)dlock(&program, "backends", NULL);
    expect_status(&program, 0);
    cr_assert_has(program.out_text, "\n* test: driver sqlite\n");
    (void)dlock(&program, "version", "--json", NULL);
    expect_status(&program, 0);
    cr_assert_has(program.out_text, "{\"version\": \"" DL_VERSION_STRING "\", ");
    cr_assert_has(program.out_text, "{\"name\": \"sqlite\", ");
    (void)dlock(&program, "help", "run", NULL);
    expect_status(&program, 0);
    cr_assert_has(program.out_text, "--max-hold DURATION");
}

Test(command, local_reads_no_configuration) {
    program_t program;
    write_file(config_path, "this: is not a configuration\n");
    (void)setenv("DLOCK_CONFIG", config_path, 1);
    start_plain(&program, DLOCK_COMMAND, "backends", "--local", NULL);
    (void)finish(&program);
    expect_status(&program, 0);
    cr_assert_str_eq(program.out_text, "configuration: none\n* local: driver sqlite\n");
    start_plain(&program, DLOCK_COMMAND, "init", "--local", "--print", NULL);
    (void)finish(&program);
    expect_status(&program, 0);
    start_plain(&program, DLOCK_COMMAND, "backends", NULL);
    (void)finish(&program);
    expect_status(&program, 78);
}
