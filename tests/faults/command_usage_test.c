/* command_usage_test.c - what dlock says to wrong input, to a long configuration, and to no output. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command_fixture.h"

TestSuite(command_usage, .init = fixture_open, .fini = fixture_close);

static void expect_status(program_t *program, int expected) {
    cr_assert_eq(program->status, expected, "status %d instead of %d; out: %s err: %s", program->status,
                 expected, program->out_text, program->err_text);
}

/* `words` are those behind dlock, and where its output goes. */
static void run_by_shell(program_t *program, const char *words) {
    char script[256];
    (void)snprintf(script, sizeof script, "exec \"$0\" --config \"$1\" %s", words);
    start_plain(program, "sh", "-c", script, DLOCK_COMMAND, config_path, NULL);
    (void)finish(program);
}

/* ---- wrong input ------------------------------------------------------------------------------ */

Test(command_usage, wrong_usage_is_64_and_one_line_that_helps) {
    static const struct {
        const char *words[6];
        const char *line;
    } cases[] = {
        {{NULL}, "a command is missing; see 'dlock help'"},
        {{"rnu"}, "unknown command 'rnu'; did you mean run?"},
        {{"frobnicate"}, "unknown command 'frobnicate'; see 'dlock help'"},
        {{"run"}, "a lock name is missing: dlock run NAME [options] -- command [argument ...]"},
        {{"run", "x"},
         "the command to run must follow '--': dlock run NAME [options] -- command [argument ...]"},
        {{"run", "x", "--"},
         "the command to run must follow '--': dlock run NAME [options] -- command [argument ...]"},
        {{"run", "x", "--wiat", "3s"}, "unknown option '--wiat'; did you mean --wait?"},
        {{"run", "x", "--wait"}, "--wait needs a value: DURATION"},
        {{"run", "x", "--wait", "3"},
         "--wait: '3' has no unit, expected a duration such as 30s (units: ms, s, m, h, d), or forever"},
        {{"run", "x", "--wait", "-3s"},
         "--wait: '-3s' is negative, expected a duration such as 30s (units: ms, s, m, h, d), or forever"},
        {{"run", "x", "--wait", "99999999999999999999d"},
         "--wait: 99999999999999999999d is out of range: 0 to 365d"},
        {{"run", "x", "--wait", "366d"}, "--wait: 366d is out of range: 0 to 365d"},
        {{"run", "x", "--wait", "99999999999999999999"},
         "--wait: '99999999999999999999' has no unit, expected a duration such as 30s (units: ms, s, m, h, "
         "d), or "
         "forever"},
        {{"run", "x", "--wait", "1.s"},
         "--wait: '1.s' has the wrong form, expected a duration such as 30s (units: ms, s, m, h, d), or "
         "forever"},
        {{"run", "x", "--wait", "1.0005s"},
         "--wait: '1.0005s' is too fine, expected whole milliseconds, or forever"},
        {{"run", "x", "--lease", "99ms"}, "--lease: 99ms is out of range: 100ms to 365d"},
        {{"run", "x", "--lease", "1\n"},
         "--lease: '1\\x0a' has an unknown unit, expected a duration such as 30s (units: ms, s, m, h, d), or "
         "auto"},
        {{"run", "x", "true"},
         "the command to run must follow '--': dlock run NAME [options] -- command [argument ...]"},
        {{"status", "x", "y"}, "'y' is one word too many: dlock status NAME"},
        {{"check", "x"}, "'x' is one word too many: dlock check; name a backend with -b"},
        {{"run", "x", "--json", "--", "true"}, "'dlock run' has no option --json; see 'dlock help run'"},
        {{"help", "--json"}, "'dlock help' has no option --json; see 'dlock help help'"},
        {{"help", "--quiet"}, "'dlock help' has no option --quiet; see 'dlock help help'"},
        {{"backends", "-b", "test"}, "'dlock backends' has no option --backend; see 'dlock help backends'"},
        {{"version", "x"}, "'x' is one word too many: dlock version"},
        {{"status", "x", "--wait", "3s"}, "'dlock status' has no option --wait; see 'dlock help status'"},
        {{"unlock", "x"},
         "'dlock unlock' takes the lock from whoever holds it, who may go on working as if it had it; say "
         "--force if "
         "you mean that"},
        {{"status", "x", "--json=yes"}, "--json takes no value"},
        {{"status", "x", "--local", "--backend", "y"}, "--local uses no configuration; leave out --config"},
        {{"help", "nothing"}, "there is no command 'nothing'; see 'dlock help'"},
        {{"status", ""}, "a lock's name has 1 to 255 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const *words = cases[i].words;
        program_t program;
        (void)dlock(&program, words[0], words[1], words[2], words[3], words[4], NULL);
        expect_status(&program, 64);
        char line[256];
        (void)snprintf(line, sizeof line, "dlock: %s\n", cases[i].line);
        cr_assert_str_eq(program.err_text, line);
        cr_assert_str_empty(program.out_text);
    }
}

Test(command_usage, a_grace_time_that_does_not_fit_the_lease_is_refused) {
    program_t program;
    (void)dlock(&program, "run", "x", "--grace", "1500ms", "--", "true", NULL);
    expect_status(&program, 64);
    cr_assert_str_eq(program.err_text,
                     "dlock: --grace: 1.5s is too long for a lease of 2.4s: at most 1.36s\n");
    (void)dlock(&program, "run", "x", "--grace", "1.36s", "--", "true", NULL);
    expect_status(&program, 0);
}

Test(command_usage, a_wrong_configuration_is_78_and_an_unreachable_server_69) {
    program_t program;
    (void)dlock(&program, "status", "x", "--backend", "tset", NULL);
    expect_status(&program, 78);
    cr_assert_has(program.err_text, "tset");
    (void)dlock(&program, "init", NULL);
    void *held = hold_database();
    (void)dlock(&program, "run", "x", "--wait", "200ms", "--", "true", NULL);
    let_database_go(held);
    expect_status(&program, 69);
    write_file(config_path, "use: test\nbackends:\n  test: {drivr: sqlite}\n");
    (void)dlock(&program, "run", "x", "--", "true", NULL);
    expect_status(&program, 78);
    cr_assert_has(program.err_text, "dlock.yaml:3:");
    cr_assert_eq(strchr(program.err_text, '\n'), program.err_text + strlen(program.err_text) - 1,
                 "not one line");
}

Test(command_usage, without_a_configuration_it_says_what_to_write_and_that_works) {
    static const char *const commands[] = {"run x -- true",    "status x", "list",
                                           "unlock --force x", "check",    "init",
                                           "init --sql",       "backends", "compare"};
    if (access("/etc/dlock/dlock.yaml", F_OK) == 0) {
        cr_skip("this machine has a configuration");
    }
    char head[256], path[128];
    (void)snprintf(head, sizeof head,
                   "dlock: no configuration: use --local for locks of this host, or write\n"
                   "%s/dlock/dlock.yaml, such as:\n",
                   work_dir);
    (void)snprintf(path, sizeof path, "%s/dlock/dlock.yaml", work_dir);
    (void)setenv("XDG_CONFIG_HOME", work_dir, 1);
    (void)setenv("XDG_STATE_HOME", work_dir, 1);
    program_t program;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char script[128];
        (void)snprintf(script, sizeof script, "exec \"$0\" %s", commands[i]);
        start_plain(&program, "sh", "-c", script, DLOCK_COMMAND, NULL);
        (void)finish(&program);
        expect_status(&program, 78);
        cr_assert_eq(strncmp(program.err_text, head, strlen(head)), 0, "%s", program.err_text);
    }
    const char *yaml = program.err_text + strlen(head);
    cr_assert_str_eq(yaml, "use: local\nbackends: {local: {driver: sqlite}}\n");
    /* A file that is named, and a link that leads nowhere, are other mistakes. */
    (void)setenv("DLOCK_CONFIG", path, 1);
    start_plain(&program, DLOCK_COMMAND, "backends", NULL);
    (void)finish(&program);
    expect_status(&program, 78);
    cr_assert_has(program.err_text, "$DLOCK_CONFIG names this file, which does not exist");
    (void)unsetenv("DLOCK_CONFIG");
    (void)snprintf(path, sizeof path, "%s/dlock", work_dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/dlock/dlock.yaml", work_dir);
    cr_assert_eq(symlink("nowhere", path), 0);
    start_plain(&program, DLOCK_COMMAND, "backends", NULL);
    (void)finish(&program);
    cr_assert_has(program.err_text, "dlock.yaml: ");
    cr_assert_eq(unlink(path), 0);
    /* What it says works as it stands. */
    write_file(path, "use: local\nbackends: {local: {driver: sqlite}}\n");
    start_plain(&program, DLOCK_COMMAND, "backends", NULL);
    (void)finish(&program);
    expect_status(&program, 0);
    cr_assert_has(program.out_text, "\n* local: driver sqlite\n");
}

Test(command_usage, what_is_wrong_when_a_backend_is_opened_names_the_backend) {
    static const char *const commands[] = {"status x", "init"};
    static const char named[] = "dlock: backend 'test': the path of the lock file names ";
    char text[512];
    program_t program;
    (void)snprintf(text, sizeof text, "use: test\nbackends:\n  test: {driver: sqlite, path: \"%s\"}\n",
                   work_dir);
    write_file(config_path, text);
    for (size_t i = 0; i < 2; i++) {
        run_by_shell(&program, commands[i]);
        expect_status(&program, 78);
        cr_assert_eq(strncmp(program.err_text, named, sizeof named - 1), 0, "%s", program.err_text);
    }
    (void)snprintf(
        text, sizeof text,
        "use: test\nbackends:\n  test: {driver: sqlite, path: \"%s\", lease: 3s, renew_every: %s}\n",
        database_path, "1600ms");
    write_file(config_path, text);
    (void)dlock(&program, "status", "x", NULL);
    expect_status(&program, 78);
    cr_assert_str_eq(
        program.err_text,
        "dlock: backend 'test': renew_every is 1.6s; it must be at most half of the lease of 3s\n");
}

Test(command_usage, a_driver_that_begins_as_several_do_is_answered_by_their_names) {
    program_t program;
    write_file(config_path, "use: test\nbackends:\n  test: {driver: mysql, user: u}\n");
    (void)dlock(&program, "status", "x", NULL);
    expect_status(&program, 78);
    cr_assert_has(
        program.err_text,
        ": unknown driver 'mysql', expected one of mysql-pessimistic, mysql-lease, mysql-optimistic\n");
}

/* ---- long configurations ------------------------------------------------------------------------ */

enum { BACKENDS_MOST = 1000 }; /* of a configuration */

Test(command_usage, all_backends_of_the_longest_configuration_are_shown) {
    FILE *file = fopen(config_path, "w");
    cr_assert_not_null(file);
    (void)fputs("use: b999\nbackends:\n", file);
    for (int i = 0; i < BACKENDS_MOST; i++) {
        (void)fprintf(file, "  b%d: {driver: sqlite, path: \"%s\"}\n", i, database_path);
    }
    cr_assert_eq(fclose(file), 0);
    program_t program;
    start_plain(&program, "sh", "-c", "\"$0\" backends --config \"$1\" | sed -n '1001,$p'", DLOCK_COMMAND,
                config_path, NULL);
    (void)finish(&program);
    cr_assert_str_eq(program.out_text, "* b999: driver sqlite\n");
    cr_assert_str_empty(program.err_text);
    start_plain(&program, "sh", "-c", "\"$0\" backends --json --config \"$1\" | grep -o '{' | wc -l",
                DLOCK_COMMAND, config_path, NULL);
    (void)finish(&program);
    cr_assert_eq(atoi(program.out_text), 1 + BACKENDS_MOST, "%s", program.out_text);
}

/* ---- output -------------------------------------------------------------------------------------- */

Test(command_usage, output_that_cannot_be_written_is_74) {
    static const char *const full[] = {"version >/dev/full", "compare --duration 1m >/dev/full",
                                       "compare --duration 1m --json >/dev/full"};
    static const char *const closed[] = {"version >&-",
                                         "help >&-",
                                         "run --help >&-",
                                         "--version >&-",
                                         "status x >&-",
                                         "check >&-",
                                         "list --json >&-",
                                         "init --print >&-",
                                         "backends >&-",
                                         "version <&- >&-",
                                         "compare --duration 1m >&-",
                                         "compare --duration 1m --json >&-"};
    program_t program;
    for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) {
        run_by_shell(&program, full[i]);
        expect_status(&program, 74);
        cr_assert_str_eq(program.err_text, "dlock: cannot write the output: No space left on device\n");
    }
    for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
        run_by_shell(&program, closed[i]);
        cr_assert_eq(program.status, 74, "%s: status %d", closed[i], program.status);
        cr_assert_str_eq(program.err_text, "dlock: cannot write the output: Bad file descriptor\n");
    }
}

Test(command_usage, a_closed_pipe_ends_it_by_its_signal_and_is_74_where_that_is_ignored) {
    static const int statuses[] = {1000 + SIGPIPE, 74};
    static const char *const lines[] = {"", "dlock: cannot write the output: Broken pipe\n"};
    for (size_t i = 0; i < 2; i++) {
        program_t program;
        start_plain(&program, "sh", "-c", "read x; exec \"$0\" version", DLOCK_COMMAND, NULL);
        (void)close(program.out);
        program.out = -1;
        (void)finish(&program); /* lets it read the end of its input, and write */
        expect_status(&program, statuses[i]);
        cr_assert_str_eq(program.err_text, lines[i]);
        ignore_signal(SIGPIPE);
    }
}

Test(command_usage, without_output_what_prints_none_works) {
    program_t program;
    run_by_shell(&program, "status --quiet x >&-");
    expect_status(&program, 1);
    run_by_shell(&program, "compare --quiet --duration 100ms >&-");
    expect_status(&program, 0);
    cr_assert_str_empty(program.err_text);
    /* What is run has all three descriptors, and may write. */
    run_by_shell(
        &program,
        "run x -- sh -c 'a=$(readlink /proc/$$/fd/0 /proc/$$/fd/1); echo $a >&2; echo gone' <&- >&-");
    expect_status(&program, 0);
    cr_assert_str_eq(program.err_text, "/dev/null /dev/null\n");
}
