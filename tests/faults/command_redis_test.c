/* command_redis_test.c - dlock over a Redis server: what it prints, and that what it started ends in time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command_fixture.h"

static program_t server;
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
    char script[512];
    /* It ends with this process, however that ends; its log comes on the standard error. */
    (void)snprintf(script, sizeof script,
                   "exec setpriv --pdeathsig KILL \"${DLOCK_REDIS_SERVER:-redis-server}\" --port 0 "
                   "--unixsocket '%s' --save '' "
                   "--appendonly no --dir '%s' --logfile '' >&2",
                   socket_path, work_dir);
    start_plain(&server, "sh", "-c", script, NULL);
    (void)watched(server.pid);
    read_error_until(&server, "eady to accept connections");
}

static void stop_server(void) {
    siginfo_t info;
    (void)kill(server.pid, SIGSTOP);
    cr_assert_eq(waitid(P_PID, (id_t)server.pid, &info, WSTOPPED | WNOWAIT), 0);
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
    if (server.pid > 0) { /* 0 would be our own group */
        (void)kill(server.pid, SIGKILL);
        (void)finish(&server);
    }
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

/* ---- the command --------------------------------------------------------------------------------------- */

/* A command that ignores SIGTERM and has started a process that does so too. */
static const char stubborn[] =
    "trap '' TERM\n"
    "echo \"token $DLOCK_TOKEN\" >&9\n"
    "echo child $$ >&9\n"
    "sh -c 'trap \"\" TERM; echo grandchild $$ >&9; while :; do sleep 1000; done' &\n"
    "while :; do sleep 1000; done\n";

typedef struct family {
    int child, grandchild;
    uint64_t token;
} family_t;

static void meet(program_t *program, family_t *family) {
    char line[64];
    read_line(program, line, sizeof line);
    cr_assert_eq(sscanf(line, "token %" SCNu64, &family->token), 1, "%s", line);
    family->child = watched(read_pid(program, "child"));
    family->grandchild = watched(read_pid(program, "grandchild"));
}

static uint64_t await_family(const family_t *family) {
    uint64_t child_ns = await_end(family->child), grandchild_ns = await_end(family->grandchild);
    return child_ns > grandchild_ns ? child_ns : grandchild_ns;
}

static void expect_ended_in_time(program_t *program, uint64_t ended_ns) {
    double valid_ms = (double)last_instant_ms(program->err_text, "valid until ");
    double ended_ms = (double)ended_ns / 1e6;
    cr_assert_gt(valid_ms, 0);
    (void)fprintf(stderr, "the last process ended at %.1f ms, validity at %.0f ms: %.1f ms to spare\n",
                  ended_ms, valid_ms, valid_ms - ended_ms);
    cr_assert_lt(ended_ms, valid_ms, "something outlived the lock; err: %s", program->err_text);
    cr_assert_eq(program->status, 76, "status %d; err: %s", program->status, program->err_text);
}

/* Nobody holds it: it can be had, with a larger token, and is free afterwards. */
static void expect_no_ghost(uint64_t token) {
    program_t program;
    (void)dlock(&program, "run", "x", "--wait", "10s", "--", "sh", "-c", "echo $DLOCK_TOKEN", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    uint64_t later = strtoull(program.out_text, NULL, 10);
    cr_assert_gt(later, token, "the token %" PRIu64 " of the next holder does not rise over %" PRIu64, later,
                 token);
    (void)dlock(&program, "status", "--quiet", "x", NULL);
    cr_assert_eq(program.status, 1, "a lock is left behind; status %d", program.status);
}

static void stop_and_continue(const char *driver) {
    program_t program;
    family_t family;
    write_config(driver);
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    stop_server();
    uint64_t ended_ns = await_family(&family);
    (void)finish(&program);
    expect_ended_in_time(&program, ended_ns);
    /* What it finds in its sockets now are late renewals and a late release. */
    (void)kill(server.pid, SIGCONT);
    expect_no_ghost(family.token);
}

Test(command_redis, all_end_before_validity_when_the_server_is_stopped) {
    stop_and_continue("redis-string");
}

Test(command_redis, all_end_before_validity_when_the_server_is_stopped_with_hashes) {
    stop_and_continue("redis-hash-reentrant");
}

Test(command_redis, all_end_before_validity_when_the_server_is_killed) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(server.pid, SIGKILL);
    uint64_t ended_ns = await_family(&family);
    (void)finish(&program);
    expect_ended_in_time(&program, ended_ns);
    (void)finish(&server);
    start_server();
    expect_no_ghost(family.token);
}

Test(command_redis, a_short_stop_of_the_server_does_no_harm) {
    program_t program;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", "echo child $$ >&9; read x; exit 5", NULL);
    int child = watched(read_pid(&program, "child"));
    stop_server();
    read_error_until(&program, "renewal is failing");
    (void)kill(server.pid, SIGCONT);
    read_error_until(&program, "renewal works again");
    cr_assert(is_running(child));
    (void)finish(&program);
    cr_assert_eq(program.status, 5, "status %d; err: %s", program.status, program.err_text);
}

Test(command_redis, a_server_that_has_forgotten_the_lock_ends_the_command_at_once) {
    program_t program, unlock;
    family_t family;
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)dlock(&unlock, "unlock", "--force", "x", NULL);
    cr_assert_eq(unlock.status, 0, "%s", unlock.err_text);
    uint64_t freed_ns = now_boot_ns();
    uint64_t ended_ns = await_family(&family);
    (void)finish(&program);
    cr_assert_eq(program.status, 76, "status %d; err: %s", program.status, program.err_text);
    /* The next renewal, a third of the lease later at most, tells. */
    cr_assert_lt(ended_ns - freed_ns, (uint64_t)LEASE_MS * 1000000u * 2 / 3);
    expect_no_ghost(family.token);
}
