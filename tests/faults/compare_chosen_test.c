/* compare_chosen_test.c - dlock compare: which backends it measures, what their kinds make of its rows. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_server.h"

enum { NODES = 3, MANY = 300 };

static program_t servers[NODES];
static char socket_paths[NODES][128];

/* ---- the servers -------------------------------------------------------------------------------- */

static void start_servers(int count) {
    if (system("command -v \"${DLOCK_REDIS_SERVER:-redis-server}\" >/dev/null") != 0) {
        cr_skip_test("redis-server is missing");
    }
    for (int i = 0; i < count; i++) {
        (void)snprintf(socket_paths[i], sizeof socket_paths[i], "%s/redis%d.sock", work_dir, i);
        start_redis(&servers[i], socket_paths[i]);
    }
}

static void close_all(void) {
    for (int i = 0; i < NODES; i++) {
        end_server(&servers[i]);
    }
    fixture_close();
}

TestSuite(compare_chosen, .init = fixture_open, .fini = close_all);

static void expect(const program_t *program, int status, const char *text) {
    cr_assert_eq(program->status, status, "status %d instead of %d, or no '%s'; out: %s err: %s",
                 program->status, status, text, program->out_text, program->err_text);
    cr_assert_has(program->out_text, text, "status %d instead of %d, or no '%s'; out: %s err: %s",
                  program->status, status, text, program->out_text, program->err_text);
}

/* ---- which backends ----------------------------------------------------------------------------- */

static void write_many_backends(void) {
    FILE *file = fopen(config_path, "w");
    cr_assert_not_null(file);
    (void)fputs("use: b0\nbackends:\n", file);
    for (int i = 0; i < MANY; i++) {
        (void)fprintf(file, "  b%d: {driver: sqlite, path: \"%s/nowhere/locks.db\"}\n", i, work_dir);
    }
    cr_assert_eq(fclose(file), 0);
}

Test(compare_chosen, many_backends_are_all_found) {
    program_t program;
    write_many_backends();
    (void)dlock(&program, "compare", "b299", "--processes", "1", NULL);
    expect(&program, 1, "\nb299     sqlite  not measured: ");
    (void)dlock(&program, "compare", "b300", NULL);
    cr_assert_eq(program.status, 78);
    cr_assert_has(program.err_text, " has no backend 'b300'; did you mean b30?");
    start_plain(&program, "sh", "-c",
                "\"$0\" compare --config \"$1\" --processes 1 | grep -c '^b[0-9]* *sqlite  not measured: '",
                DLOCK_COMMAND, config_path, NULL);
    (void)finish(&program);
    cr_assert_eq(atoi(program.out_text), MANY, "%s", program.out_text);
}

/* Where no descriptor is left for the workers none of them opens the built-in backend, whose file is not
 * ours. */
Test(compare_chosen, the_built_in_backend_is_measured_where_none_is_configured) {
    static const char *const words[] = {"", "local"};
    write_file(config_path, "use: local\n");
    for (size_t i = 0; i < 2; i++) {
        program_t program;
        start_plain(&program, "sh", "-c", "ulimit -n 4; exec \"$0\" compare --config \"$1\" $2",
                    DLOCK_COMMAND, config_path, words[i], NULL);
        (void)finish(&program);
        expect(&program, 1, "\nlocal    sqlite  not measured: no memory or descriptors to share");
    }
}

/* ---- what their kinds make of the rows ---------------------------------------------------------- */

/* The driver can have tokens either way. */
Test(compare_chosen, where_there_are_no_tokens_none_were_checked) {
    static const char *const told[] = {"\"tokens_checked\": false", "\"tokens_checked\": true"};
    start_servers(NODES);
    for (size_t i = 0; i < 2; i++) {
        char text[1024];
        (void)snprintf(text, sizeof text,
                       "use: quorum\ndefaults: {lease: %dms, call_timeout: 1s}\nbackends:\n"
                       "  quorum: {driver: redlock, fencing: %s, nodes: [\"unix://%s\", \"unix://%s\", "
                       "\"unix://%s\"]}\n",
                       LEASE_MS, i == 1 ? "true" : "false", socket_paths[0], socket_paths[1],
                       socket_paths[2]);
        write_file(config_path, text);
        program_t program;
        (void)dlock(&program, "init", NULL);
        (void)dlock(&program, "compare", "--json", "--duration", "200ms", NULL);
        expect(&program, 0, told[i]);
        expect(&program, 0, "\"violations\": 0, ");
    }
}

/* From the last lock on nobody gets one; no call fails before the end, which cuts all of them off. */
Test(compare_chosen, calls_that_the_end_cuts_off_are_told) {
    static const char note[] = "\nstrings: ";
    char text[512];
    start_servers(1);
    (void)snprintf(text, sizeof text,
                   "use: strings\ndefaults: {lease: 1m, renew_every: 200ms, call_timeout: 2500ms}\n"
                   "backends: {strings: {driver: redis-string, url: \"unix://%s\"}}\n",
                   socket_paths[0]);
    write_file(config_path, text);
    program_t program;
    start(&program, "compare", "--names", "1", "--hold", "30s", "--duration", "2s", NULL);
    await_long_hold("strings");
    freeze_server(servers[0].pid);
    (void)finish(&program);
    (void)kill(servers[0].pid, SIGCONT);
    unsigned long calls = 0;
    const char *at = strstr(program.out_text, note);
    cr_assert_not_null(at, "%s%s", program.out_text, program.err_text);
    cr_assert_eq(sscanf(at + sizeof note - 1, "%lu call", &calls), 1, "%s%s", program.out_text,
                 program.err_text);
    cr_assert_gt(calls, 0, "%s%s", program.out_text, program.err_text);
    expect(&program, 0, " cut off at the end, the longest after ");
}
