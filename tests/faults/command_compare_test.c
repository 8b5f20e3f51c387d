/* command_compare_test.c - dlock compare over real backends: its rows, its ends, what it finds. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <criterion/criterion.h>
#include <inttypes.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command_server.h"

static program_t server;
static char socket_path[96];

/* ---- the server --------------------------------------------------------------------------------- */

static void write_config(int call_timeout_ms) {
    char text[1024];
    (void)snprintf(text, sizeof text,
                   "use: embedded\ndefaults: {lease: %dms, call_timeout: %dms}\nbackends:\n"
                   "  embedded: {driver: sqlite, path: \"%s\"}\n"
                   "  gone: {driver: redis-string, url: \"unix://%s/nothing.sock\"}\n"
                   "  strings: {driver: redis-string, url: \"unix://%s\"}\n",
                   LEASE_MS, call_timeout_ms, database_path, work_dir, socket_path);
    write_file(config_path, text);
}

static void open_all(void) {
    fixture_open();
    if (system("command -v \"${DLOCK_REDIS_SERVER:-redis-server}\" >/dev/null") != 0) {
        cr_skip_test("redis-server is missing");
    }
    (void)snprintf(socket_path, sizeof socket_path, "%s/redis.sock", work_dir);
    write_config(1000);
    start_redis(&server, socket_path);
}

static void close_all(void) {
    end_server(&server);
    fixture_close();
}

TestSuite(command_compare, .init = open_all, .fini = close_all);

/* ---- what is read from it ----------------------------------------------------------------------- */

static void expect_status(const program_t *program, int expected) {
    cr_assert_eq(program->status, expected, "status %d instead of %d; out: %s err: %s", program->status,
                 expected, program->out_text, program->err_text);
}

static const char *expect_text(const program_t *program, const char *text) {
    const char *at = strstr(program->out_text, text);
    cr_assert_not_null(at, "'%s' is missing; out: %s err: %s", text, program->out_text, program->err_text);
    return at;
}

/* The member behind the row's name. */
static double member(const program_t *program, const char *backend, const char *key) {
    char text[96];
    (void)snprintf(text, sizeof text, "{\"backend\": \"%s\"", backend);
    const char *row = expect_text(program, text);
    (void)snprintf(text, sizeof text, "\"%s\": ", key);
    const char *at = strstr(row, text);
    cr_assert_not_null(at, "%s has no %s: %s", backend, key, program->out_text);
    return strtod(at + strlen(text), NULL);
}

static void expect_no_locks(const char *backend) {
    program_t list;
    list_compared(&list, backend);
    cr_assert_str_eq(list.out_text, "[]\n");
}

enum { WORKERS = 4 }; /* unless --processes says otherwise */

/* The worker processes of a command that measures. */
static void find_workers(const program_t *program, pid_t workers[WORKERS]) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)program->pid, (int)program->pid);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    for (size_t i = 0; i < WORKERS; i++) {
        cr_assert_eq(fscanf(file, "%d", &workers[i]), 1, "only %zu worker processes", i);
    }
    (void)fclose(file);
}

static void watch(const pid_t workers[WORKERS], int watches[WORKERS]) {
    for (size_t i = 0; i < WORKERS; i++) {
        watches[i] = watched(workers[i]);
    }
}

/* ---- what it prints ----------------------------------------------------------------------------- */

Test(command_compare, every_backend_of_the_file_has_a_row_and_one_that_cannot_be_reached_says_why) {
    program_t program;
    (void)dlock(&program, "compare", "--duration", "500ms", NULL);
    expect_status(&program, 1);
    cr_assert_str_empty(program.err_text, "%s", program.err_text);
    (void)expect_text(&program,
                      "processes: 4, threads each: 2, names: 4, hold: 1ms, duration: 500ms a backend");
    const char *const measured[] = {"\nembedded  sqlite      ", "\nstrings   redis-string"};
    for (size_t i = 0; i < 2; i++) {
        double rate = 0;
        const char *row = expect_text(&program, measured[i]);
        cr_assert_eq(sscanf(row + strlen(measured[i]), "%lf", &rate), 1, "%s", program.out_text);
        cr_assert_gt(rate, 0, "%s", program.out_text);
        const char *end = strchr(row + 1, '\n');
        cr_assert_not_null(end, "%s", program.out_text);
        cr_assert_eq(strncmp(end - 8, "       0", 8), 0, "%s", program.out_text);
        cr_assert_leq(end - row - 1, 100 + 8, "wider than 100 columns (a \xc2\xb5 has two bytes): %s", row);
    }
    const char *gone = expect_text(&program, "\ngone      redis-string  not measured: unix://");
    cr_assert_has(gone, "No such file or directory\n", "%s", program.out_text);
    cr_assert_lt(gone, strstr(program.out_text, measured[1]), "not in the file's order");
}

Test(command_compare, json_has_the_numbers_of_those_that_are_named) {
    program_t program;
    (void)dlock(&program, "compare", "strings", "embedded", "--json", "--duration=400ms", "--processes", "3",
                "--threads=1", "--names", "2", "--hold", "0", NULL);
    expect_status(&program, 0);
    static const char head[] = "{\"processes\": 3, \"threads\": 1, \"names\": 2, \"hold_ms\": 0, "
                               "\"duration_ms\": 400, \"backends\": [{\"backend\": \"strings\", "
                               "\"driver\": \"redis-string\", \"measured\": true, \"error\": null, ";
    cr_assert_eq(strncmp(program.out_text, head, sizeof head - 1), 0, "%s", program.out_text);
    cr_assert_null(strstr(program.out_text, "gone"));
    const char *const names[] = {"strings", "embedded"};
    for (size_t i = 0; i < 2; i++) {
        double acquisitions = member(&program, names[i], "acquisitions");
        cr_assert_gt(acquisitions, 0);
        cr_assert_float_eq(member(&program, names[i], "acquisitions_per_s"), acquisitions / 0.4, 0.01);
        cr_assert_eq(member(&program, names[i], "wait\": {\"count"), acquisitions);
        cr_assert_gt(member(&program, names[i], "p50_us"), 0);
        cr_assert_leq(member(&program, names[i], "p50_us"), member(&program, names[i], "p99_us"));
        cr_assert_leq(member(&program, names[i], "p99_us"), member(&program, names[i], "max_us"));
        cr_assert_gt(member(&program, names[i], "fairness_jain"), 1.0 / 3);
        cr_assert_leq(member(&program, names[i], "fairness_jain"), 1);
        cr_assert_geq(member(&program, names[i], "round_trips_per_pair"), 1);
        cr_assert_eq(member(&program, names[i], "violations"), 0);
        cr_assert_eq(member(&program, names[i], "lost"), 0);
    }
    cr_assert_eq(strcmp(program.out_text + program.out_len - 22, "}], \"ended_by\": null}\n"), 0, "%s",
                 program.out_text);
    expect_no_locks("strings");
    expect_no_locks("embedded");
}

Test(command_compare, a_waiter_is_handed_the_lock) {
    program_t program;
    (void)dlock(&program, "compare", "strings", "--json", "--duration", "500ms", "--names", "1", NULL);
    expect_status(&program, 0);
    double handoffs = member(&program, "strings", "handoff\": {\"count");
    cr_assert_gt(handoffs, 0);
    cr_assert_leq(handoffs, member(&program, "strings", "acquisitions"));
}

Test(command_compare, quiet_prints_nothing_and_backends_may_be_named_by_the_option) {
    program_t program;
    (void)dlock(&program, "compare", "--quiet", "--duration", "100ms", "--backend", "embedded", NULL);
    expect_status(&program, 0);
    cr_assert_eq(program.out_len, 0, "%s%s", program.out_text, program.err_text);
    cr_assert_eq(program.err_len, 0, "%s%s", program.out_text, program.err_text);
    (void)dlock(&program, "compare", "--quiet", "--duration", "100ms", "--backend", "gone", "--json", NULL);
    expect_status(&program, 1);
    cr_assert_eq(program.out_len, 0, "%s%s", program.out_text, program.err_text);
    cr_assert_eq(program.err_len, 0, "%s%s", program.out_text, program.err_text);
}

Test(command_compare, progress_is_shown_on_a_terminal_only) {
    int terminal;
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    cr_assert_geq(pid, 0, "no terminal (is /dev/pts mounted?): %s", strerror(errno));
    if (pid == 0) {
        (void)execl(DLOCK_COMMAND, DLOCK_COMMAND, "--config", config_path, "compare", "embedded",
                    "--duration", "900ms", NULL);
        _exit(99);
    }
    char text[16384];
    size_t len = 0;
    ssize_t got;
    while (len < sizeof text - 1 && (got = read(terminal, text + len, sizeof text - 1 - len)) > 0) {
        len += (size_t)got;
    }
    text[len] = '\0';
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid, "%s", text);
    cr_assert_eq(status, 0, "%s", text);
    cr_assert_has(text, "\r\033[K1/1 embedded: measuring, ");
    cr_assert_has(text, " acquisitions\r\033[K");
    cr_assert_has(text, "\r\033[Kembedded  sqlite", "the line is not cleared for the row: %s", text);
    (void)close(terminal);
}

/* ---- wrong input -------------------------------------------------------------------------------- */

Test(command_compare, wrong_usage_is_64_and_a_wrong_configuration_78) {
    static const struct {
        const char *words[3];
        int status;
        const char *line;
    } cases[] = {
        {{"--processes", "0"}, 64, "--processes: 0 is out of range: 1 to 64"},
        {{"--processes", "65"}, 64, "--processes: 65 is out of range: 1 to 64"},
        {{"--threads", "99999999999999999999"},
         64,
         "--threads: 99999999999999999999 is out of range: 1 to 64"},
        {{"--threads", "-1"}, 64, "--threads: '-1' is not a whole number"},
        {{"--names", "4x"}, 64, "--names: '4x' is not a whole number"},
        {{"--names", ""}, 64, "--names: '' is not a whole number"},
        {{"--names"}, 64, "--names needs a value: N"},
        {{"--hold", "2"},
         64,
         "--hold: '2' has no unit, expected a duration such as 30s (units: ms, s, m, h, d)"},
        {{"--duration", "99ms"}, 64, "--duration: 99ms is out of range: 100ms to 1h"},
        {{"--duration", "99999999999999999999s"},
         64,
         "--duration: 99999999999999999999s is out of range: 100ms to 1h"},
        {{"--hold", "61m"}, 64, "--hold: 61m is out of range: 0 to 1h"},
        {{"--wait", "1s"}, 64, "'dlock compare' has no option --wait; see 'dlock help compare'"},
        {{"embeded"}, 78, " has no backend 'embeded'; did you mean embedded?"},
        {{"embedded", "other"}, 78, " has no backend 'other'; see 'dlock backends'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program_t program;
        (void)dlock(&program, "compare", cases[i].words[0], cases[i].words[1], NULL);
        expect_status(&program, cases[i].status);
        char line[256];
        (void)snprintf(line, sizeof line, "dlock: %s%s\n", cases[i].status == 78 ? config_path : "",
                       cases[i].line);
        cr_assert_str_eq(program.err_text, line);
        cr_assert_str_empty(program.out_text);
    }
    program_t program;
    write_file(config_path, "use: nothing\n");
    (void)dlock(&program, "compare", NULL);
    expect_status(&program, 78);
    cr_assert_str_empty(program.out_text);
}

/* ---- violations --------------------------------------------------------------------------------- */

/* Takes the lock from whoever holds it, as an administrator may; the holder does not know. */
static bool take_away(void) {
    static const char before[] = "[{\"name\": \"";
    program_t list, unlock;
    list_compared(&list, "strings");
    char *end = strchr(list.out_text + (sizeof before - 1), '"');
    if (strncmp(list.out_text, before, sizeof before - 1) != 0 || end == NULL) {
        return false; /* between two holds */
    }
    *end = '\0';
    (void)dlock(&unlock, "unlock", "--force", list.out_text + (sizeof before - 1), "--backend", "strings",
                NULL);
    return unlock.status == 0;
}

/* Also with a long hold, which knows at its next renewal. */
Test(command_compare, holders_from_whom_the_server_takes_the_lock_are_found_out) {
    program_t program;
    start(&program, "compare", "strings", "--names", "1", "--hold", "30s", "--duration", "1m", NULL);
    await_long_hold("strings");
    for (int taken = 0; taken < 3;) {
        taken += take_away();
        cr_assert(is_running(program.pidfd));
    }
    (void)kill(program.pid, SIGTERM);
    (void)finish(&program);
    expect_status(&program, 1);
    unsigned long overlaps = 0;
    static const char note[] = "\nstrings: violations: ";
    const char *at = expect_text(&program, note);
    cr_assert_eq(sscanf(at + sizeof note - 1, "%lu overlapping holds, ", &overlaps), 1, "%s",
                 program.out_text);
    cr_assert_gt(overlaps, 0, "%s", program.out_text);
    (void)expect_text(&program, " lost, and reported so\n");
    (void)expect_text(&program, "\nstrings: measured for ");
}

/* ---- early ends --------------------------------------------------------------------------------- */

static void expect_end_within_a_second(program_t *program, int signal) {
    uint64_t sent_ns = now_boot_ns();
    (void)kill(program->pid, signal);
    (void)finish(program);
    expect_status(program, 128 + signal);
    cr_assert_lt(program->ended_ns - sent_ns, 1000000000u, "it took %" PRIu64 " ms",
                 (program->ended_ns - sent_ns) / 1000000u);
}

Test(command_compare, a_signal_ends_it_at_once_and_frees_the_locks) {
    const int numbers[] = {SIGTERM, SIGINT};
    const char *const backends[] = {"strings", "embedded"};
    for (size_t i = 0; i < 2; i++) {
        program_t program;
        start(&program, "compare", backends[i], "gone", "--json", "--duration", "1m", "--hold", "30s", NULL);
        await_long_hold(backends[i]);
        expect_end_within_a_second(&program, numbers[i]);
        expect_no_locks(backends[i]);
        (void)expect_text(&program, numbers[i] == SIGINT ? "], \"ended_by\": \"SIGINT\"}\n"
                                                         : "], \"ended_by\": \"SIGTERM\"}\n");
        char rest[160];
        (void)snprintf(rest, sizeof rest,
                       "{\"backend\": \"gone\", \"driver\": \"redis-string\", \"measured\": false, "
                       "\"error\": \"ended by %s before it began\"}]",
                       numbers[i] == SIGINT ? "SIGINT" : "SIGTERM");
        (void)expect_text(&program, rest);
        cr_assert_has(program.err_text, "; what was measured until then is shown\n");
    }
}

Test(command_compare, a_signal_ends_it_while_a_server_does_not_answer) {
    write_config(15000);
    freeze_server(server.pid);
    program_t program;
    start(&program, "compare", "strings", NULL);
    await_output(&program); /* the head of the table: from now on signals are read */
    expect_end_within_a_second(&program, SIGTERM);
    (void)expect_text(&program, "not measured: ended by SIGTERM before it began\n");
    (void)kill(server.pid, SIGCONT);
}

Test(command_compare, workers_that_are_killed_are_noticed) {
    program_t program;
    start(&program, "compare", "embedded", "--duration", "1m", "--hold", "30s", NULL);
    await_long_hold("embedded");
    pid_t workers[WORKERS];
    find_workers(&program, workers);
    int first = watched(workers[0]);
    (void)kill(workers[0], SIGKILL);
    (void)await_end(first);
    cr_assert(is_running(program.pidfd), "the others do not go on");
    /* It has no reason to go on when all of them are dead. */
    for (size_t i = 1; i < WORKERS; i++) {
        (void)kill(workers[i], SIGKILL);
    }
    (void)finish(&program);
    expect_status(&program, 1);
    (void)expect_text(&program, "\nembedded: measured for ");
    (void)expect_text(&program, "embedded: worker process 1 of 4 was ended by SIGKILL\n");
}

Test(command_compare, a_worker_that_is_stopped_does_not_stop_the_command) {
    program_t program;
    start(&program, "compare", "embedded", "--duration", "1m", "--hold", "30s", NULL);
    await_long_hold("embedded");
    pid_t workers[WORKERS];
    find_workers(&program, workers);
    int worker = watched(workers[0]);
    (void)kill(workers[0], SIGSTOP);
    (void)kill(program.pid, SIGTERM);
    (void)finish(&program);
    expect_status(&program, 128 + SIGTERM);
    (void)expect_text(&program, "embedded: 1 of 4 worker processes did not end in time and were killed\n");
    cr_assert(!is_running(worker));
}

Test(command_compare, a_signal_at_its_end_changes_nothing_of_what_was_measured) {
    program_t program;
    start(&program, "compare", "embedded", "--json", "--duration", "3s", "--hold", "30s", NULL);
    await_long_hold("embedded");
    pid_t workers[WORKERS];
    find_workers(&program, workers);
    int all[WORKERS];
    watch(workers, all);
    (void)kill(workers[0], SIGSTOP);
    for (size_t i = 1; i < WORKERS; i++) {
        (void)await_end(all[i]);
    }
    (void)kill(program.pid, SIGINT); /* it waits for the one that is stopped */
    (void)finish(&program);
    expect_status(&program, 128 + SIGINT);
    cr_assert_eq(member(&program, "embedded", "measured_ms"), 3000);
}

Test(command_compare, the_workers_die_with_the_command) {
    program_t program;
    start(&program, "compare", "strings", "--duration", "1m", "--hold", "30s", NULL);
    await_long_hold("strings");
    pid_t workers[WORKERS];
    find_workers(&program, workers);
    int all[WORKERS];
    watch(workers, all);
    (void)kill(program.pid, SIGKILL);
    for (size_t i = 0; i < WORKERS; i++) {
        (void)await_end(all[i]);
    }
    (void)finish(&program);
    expect_status(&program, 1000 + SIGKILL);
}
