/* command_redis_test.c - dlock over a Redis server: what it prints, and that what it started ends in time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "command_server.h"

static program_t server, more_servers[2];
static char socket_path[96];

/* ---- the server ---------------------------------------------------------------------------------------- */

static void write_config(const char *driver) {
    char text[512];
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: %dms, call_timeout: 300ms}\n"
                   "backends:\n  test: {driver: %s, url: \"unix://%s\"}\n",
                   LEASE_MS, driver, socket_path);
    write_file(config_path, text);
}

static void start_server(void) {
    start_redis(&server, socket_path);
}

/* The server and two more, all of them new: none has a vote. */
static void make_quorum(void) {
    char text[512], path[2][128];
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path[i], sizeof path[i], "%s/more%zu.sock", work_dir, i);
        start_redis(&more_servers[i], path[i]);
    }
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: %dms, call_timeout: 1s}\nbackends:\n"
                   "  test: {driver: redlock, nodes: [\"unix://%s\", \"unix://%s\", \"unix://%s\"]}\n",
                   LEASE_MS, socket_path, path[0], path[1]);
    write_file(config_path, text);
}

static void open_all(void) {
    fixture_open();
    if (system("command -v \"${DLOCK_REDIS_SERVER:-redis-server}\" >/dev/null") != 0) {
        cr_skip_test("redis-server is missing");
    }
    (void)snprintf(socket_path, sizeof socket_path, "%s/redis.sock", work_dir);
    write_config("redis-string");
    start_server();
}

static void close_all(void) {
    end_server(&server);
    end_server(&more_servers[0]);
    end_server(&more_servers[1]);
    fixture_close();
}

TestSuite(command_redis, .init = open_all, .fini = close_all);

/* ---- what people read ---------------------------------------------------------------------------------- */

/* One command to the server, as a line. */
static void tell(const char *line) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    char answer[64];
    (void)snprintf(place.sun_path, sizeof place.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&place, sizeof place), 0);
    cr_assert_eq(write(fd, line, strlen(line)), (ssize_t)strlen(line));
    ssize_t got = read(fd, answer, sizeof answer);
    cr_assert(got > 0 && answer[0] != '-', "%.*s", (int)got, answer);
    (void)close(fd);
}

Test(command_redis, a_key_without_expiry_and_what_is_not_known_are_said_so) {
    program_t program;
    tell("SET dlock:theirs something\r\n");
    (void)dlock(&program, "status", "theirs", NULL);
    cr_assert_str_eq(program.out_text,
                     "theirs: held by something, no expiry: it stays until somebody frees it\n");
    (void)dlock(&program, "status", "theirs", "--json", NULL);
    cr_assert_not_null(strstr(program.out_text, "\"token\": null, \"client\": null}"), "%s",
                       program.out_text);
    tell("PEXPIRE dlock:theirs 20000\r\n");
    (void)dlock(&program, "list", "--json", NULL);
    cr_assert_not_null(strstr(program.out_text, "\"token\": null, \"client\": null}]"), "%s",
                       program.out_text);
    (void)dlock(&program, "list", NULL);
    cr_assert_eq(strncmp(program.out_text, "theirs: held by something, 1", 28), 0, "%s", program.out_text);
    cr_assert_null(strstr(program.out_text, "token"), "%s", program.out_text);
}

/* People copy the rule from the terminal. */
Test(command_redis, the_rule_is_printed_as_it_is_meant_and_whole) {
    program_t program;
    char text[1024], stars[129];
    memset(stars, '*', sizeof stars - 1);
    stars[sizeof stars - 1] = '\0';
    (void)snprintf(text, sizeof text,
                   "use: test\nbackends:\n  test: {driver: redis-string, url: \"unix://%s\", prefix: '%s'}\n",
                   socket_path, stars);
    write_file(config_path, text);
    (void)dlock(&program, "init", "--print", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    const char *at = strstr(program.out_text, "~\\*\\*");
    cr_assert_not_null(at, "%s", program.out_text);
    cr_assert_null(strstr(program.out_text, "\\\\"), "%s", program.out_text);
    const char *end = strchr(at, '\n');
    cr_assert(end != NULL && strncmp(end - 5, " +set", 5) == 0, "%s", program.out_text);
    cr_assert_gt(end - at, 2 * 128 * 2);
}

/* ---- nodes that have no vote -------------------------------------------------------------------------- */

static void expect_error(const program_t *program, const char *words) {
    cr_assert_not_null(strstr(program->err_text, words), "no '%s': %s", words, program->err_text);
}

/* Nobody holds it, so that nothing may say so. */
Test(command_redis, a_quarantine_is_what_a_lock_waits_for_and_that_is_told_while_it_waits) {
    static const char why[] = " nodes have no vote yet, and are needed: dlock check says why\n";
    program_t program;
    make_quorum();
    start(&program, "run", "x", "--", "true", NULL);
    read_error_until(&program, " has no vote for ");
    cr_assert(is_running(program.pidfd));
    (void)kill(program.pid, SIGTERM);
    cr_assert_eq(finish(&program), 128 + SIGTERM);
    (void)dlock(&program, "run", "x", "--wait", "300ms", "--", "true", NULL);
    cr_assert_eq(program.status, 75, "%s", program.err_text);
    expect_error(&program, " has no vote for ");
    expect_error(&program, "'x': the lock was not obtained: the time allowed for waiting is over; last: ");
    expect_error(&program, why);
    (void)dlock(&program, "run", "x", "--wait", "0", "--", "true", NULL);
    cr_assert_eq(program.status, 75, "%s", program.err_text);
    expect_error(&program, " has no vote for ");
    expect_error(&program, why);
    cr_assert_null(strstr(program.err_text, "another owner"), "%s", program.err_text);
}

Test(command_redis, compare_does_not_wait_for_the_end_of_a_quarantine) {
    program_t program;
    make_quorum();
    uint64_t began_ns = now_boot_ns();
    (void)dlock(&program, "compare", "--duration", "100ms", NULL);
    cr_assert_lt(program.ended_ns - began_ns, 15000000000u);
    cr_assert_eq(program.status, 1, "%s", program.err_text);
    cr_assert_not_null(strstr(program.out_text, " nodes have no vote yet, and are needed: dlock check says "),
                       "%s", program.out_text);
}

Test(command_redis, an_init_that_refuses_says_so) {
    program_t program;
    make_quorum();
    tell("SET dlock_tokens 1\r\n");
    (void)dlock(&program, "init", "--json", NULL);
    cr_assert_eq(program.status, 1, "%s", program.err_text);
    cr_assert_not_null(strstr(program.out_text, "\"text\": \"not marked: "), "%s", program.out_text);
    cr_assert_not_null(strstr(program.out_text, "}], \"done\": false}\n"), "%s", program.out_text);
    (void)dlock(&program, "init", "--quiet", NULL);
    cr_assert_eq(program.status, 1);
    cr_assert_str_empty(program.out_text);
    expect_error(&program, "dlock: node 2: not marked: ");
}

/* ---- the command --------------------------------------------------------------------------------------- */

Test(command_redis, all_end_before_validity_when_the_server_is_stopped) {
    end_in_time_when_frozen(server.pid);
}

Test(command_redis, all_end_before_validity_when_the_server_is_stopped_with_hashes) {
    write_config("redis-hash-reentrant");
    end_in_time_when_frozen(server.pid);
}

static void kill_server(void) {
    (void)kill(server.pid, SIGKILL);
}

static void start_server_again(void) {
    (void)finish(&server);
    start_server();
}

Test(command_redis, all_end_before_validity_when_the_server_is_killed) {
    end_in_time_when_killed(kill_server, start_server_again);
}

Test(command_redis, a_short_stop_of_the_server_does_no_harm) {
    survive_a_short_freeze(server.pid);
}

Test(command_redis, a_server_that_has_forgotten_the_lock_ends_the_command_at_once) {
    end_at_once_when_forgotten();
}
