/* command_redis_test.c - dlock over a Redis server: what it prints, and that what it started ends in time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "command_screen.h"
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

/* One command to the server, as a line; the first line of its answer. */
static const char *ask(const char *line, char *answer, size_t size) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    (void)snprintf(place.sun_path, sizeof place.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&place, sizeof place), 0);
    cr_assert_eq(write(fd, line, strlen(line)), (ssize_t)strlen(line));
    ssize_t got = read(fd, answer, size - 1);
    cr_assert_gt(got, 0);
    answer[got] = '\0';
    answer[strcspn(answer, "\r\n")] = '\0';
    cr_assert_neq(answer[0], '-', "%s", answer);
    (void)close(fd);
    return answer;
}

static void tell(const char *line) {
    char answer[64];
    (void)ask(line, answer, sizeof answer);
}

Test(command_redis, a_key_without_expiry_and_what_is_not_known_are_said_so) {
    program_t program;
    tell("SET dlock:theirs something\r\n");
    (void)dlock(&program, "status", "theirs", NULL);
    cr_assert_str_eq(program.out_text,
                     "theirs: held by something, no known expiry: it may stay until somebody frees it\n");
    (void)dlock(&program, "status", "theirs", "--json", NULL);
    cr_assert_has(program.out_text, "\"token\": null, \"client\": null}");
    tell("PEXPIRE dlock:theirs 20000\r\n");
    (void)dlock(&program, "list", "--json", NULL);
    cr_assert_has(program.out_text, "\"token\": null, \"client\": null}]");
    (void)dlock(&program, "list", NULL);
    cr_assert_eq(strncmp(program.out_text, "theirs: held by something, lease ends in ", 41), 0, "%s",
                 program.out_text);
    cr_assert_null(strstr(program.out_text, "token"), "%s", program.out_text);
    /* 2^64 ns and 20 s: the longest time there is a number for is said, and not what is above it. */
    tell("PEXPIRE dlock:theirs 18446744093709\r\n");
    (void)dlock(&program, "status", "theirs", NULL);
    cr_assert_has(program.out_text, ", lease ends in 213504d\n");
    tell("SET dlock:theirs \"\"\r\n");
    (void)dlock(&program, "run", "theirs", "--wait", "0", "--", "true", NULL);
    cr_assert_has(program.err_text, "held by another owner, without an end\n");
}

Test(command_redis, force_says_who_can_free_what_is_no_lock_of_its_kind) {
    program_t program;
    tell("RPUSH dlock:queue job\r\n");
    (void)dlock(&program, "unlock", "--force", "queue", NULL);
    cr_assert_eq(program.status, 65, "%s", program.err_text);
    cr_assert_has(program.err_text,
                  "; --force frees only locks of its own backend: leave it to the program that made "
                  "it, or delete it with the server's own tools\n");
    (void)dlock(&program, "status", "queue", NULL);
    cr_assert_eq(program.status, 65, "%s", program.err_text);
    cr_assert_null(strstr(program.err_text, "--force"), "%s", program.err_text);
}

/* ---- who holds it -------------------------------------------------------------------------------------- */

#define LABELS "EVAL \"return #redis.call('keys','dlock_tokens:client:*')\" 0\r\n"

/* The server's answer is this line. */
static bool is_answer(const char *line, const char *wanted) {
    char answer[64];
    return strcmp(ask(line, answer, sizeof answer), wanted) == 0;
}

static void await_labels(const char *wanted) {
    uint64_t since_ns = now_boot_ns();
    while (!is_answer(LABELS, wanted)) {
        cr_assert_lt(now_boot_ns() - since_ns, (uint64_t)PATIENCE_MS * 1000000u, "%s", wanted);
        (void)usleep(1000);
    }
}

/* Whose host and process these commands name, or null. What is held is freed in the end, and who it was is
 * gone from the server. */
static void expect_holder(bool is_named) {
    program_t holder, program;
    char host[128], text[256];
    cr_assert_eq(gethostname(host, sizeof host), 0);
    start(&holder, "run", "x", "--", "sh", "-c", "echo child $$ >&9; read x", NULL);
    (void)read_pid(&holder, "child");
    (void)snprintf(text, sizeof text, " at %.40s:%d,", host, (int)holder.pid);
    (void)dlock(&program, "status", "x", NULL);
    cr_assert_eq(strstr(program.out_text, text) != NULL, is_named, "%s", program.out_text);
    cr_assert_eq(strstr(program.out_text, host) != NULL, is_named, "%s", program.out_text);
    (void)snprintf(text, sizeof text, is_named ? "\"client\": \"%.40s:%d\"" : "\"client\": null", host,
                   (int)holder.pid);
    (void)dlock(&program, "status", "x", "--json", NULL);
    cr_assert_has(program.out_text, text);
    (void)dlock(&program, "list", "--json", NULL);
    cr_assert_has(program.out_text, text);
    (void)finish(&holder);
    cr_assert_eq(holder.status, 1, "%s", holder.err_text); /* of read */
}

Test(command_redis, a_holder_is_named_by_host_and_process_until_it_closes) {
    expect_holder(true);
    await_labels(":0");
    write_config("redis-hash-reentrant");
    expect_holder(true);
    await_labels(":0");
}

Test(command_redis, a_holder_on_several_servers_is_named_by_host_and_process) {
    program_t program;
    make_quorum();
    (void)dlock(&program, "init", NULL);
    cr_assert_eq(program.status, 0, "%s", program.err_text);
    expect_holder(true);
    await_labels(":0");
}

/* As it was printed before there were such keys. */
Test(command_redis, an_account_without_the_right_to_say_who_it_is_works_and_is_not_named) {
    program_t program;
    char text[512];
    tell("ACL SETUSER ann on >open-ann ~dlock:* ~dlock_tokens &dlock:released:dlock:* +select +ping +info "
         "+client|kill "
         "+eval +evalsha +scan +subscribe +unsubscribe +publish +time +pttl +pexpire +del +get +set\r\n");
    (void)snprintf(text, sizeof text,
                   "use: test\nbackends:\n  test: {driver: redis-string, url: \"unix://%s\", username: ann, "
                   "password: open-ann}\n",
                   socket_path);
    write_file(config_path, text);
    expect_holder(false);
    cr_assert(is_answer(LABELS, ":0"));
    (void)dlock(&program, "check", NULL);
    cr_assert_has(program.out_text, "note     GET: refused: dlock status and list do not show on which host");
}

/* Not even who only looks is written down. */
Test(command_redis, who_takes_no_lock_writes_nothing) {
    program_t program;
    (void)dlock(&program, "status", "x", NULL);
    (void)dlock(&program, "list", NULL);
    cr_assert(is_answer("DBSIZE\r\n", ":0"));
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
    cr_assert_not_null(end, "%s", program.out_text);
    cr_assert_eq(strncmp(end - 5, " +set", 5), 0, "%s", program.out_text);
    cr_assert_gt(end - at, 2 * 128 * 2);
}

/* ---- who the server lets in ---------------------------------------------------------------------------- */

/* Names beside the URL -> what a refused login says. No secret of these is in any message. */
typedef struct login {
    const char *options, *words;
} login_t;

static void expect_refusals(const login_t *logins, size_t n) {
    program_t program;
    char text[512], refusal[512];
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(text, sizeof text,
                       "use: test\nbackends:\n  test: {driver: redis-string, url: \"unix://%s\"%s}\n",
                       socket_path, logins[i].options);
        write_file(config_path, text);
        (void)snprintf(refusal, sizeof refusal, "dlock: unix://%s?db=0: %s\n", socket_path, logins[i].words);
        (void)dlock(&program, "check", NULL);
        cr_assert_str_eq(program.err_text, refusal, "with '%s'", logins[i].options);
        cr_assert_eq(program.status, 77, "%s", program.err_text);
    }
}

#define ASKS                                                                                           \
    "the server asks for a password: set password or password_file, and username where it is not the " \
    "default "                                                                                         \
    "user's"
#define LACKS " has a password, is unknown or turned off: set password or password_file (WRONGPASS)"
#define DEFAULT_USER                                                                                    \
    "the password is not that of user 'default', or that user is turned off: correct password, or set " \
    "username "                                                                                         \
    "too (WRONGPASS)"
#define NOT_THAT_OF "the password is not that of "
#define OTHER_USER ", or that user is unknown or turned off: correct username or password (WRONGPASS)"

Test(command_redis, a_refused_login_says_what_to_set) {
    static const login_t with_default[] = {
        {"", ASKS},
        {", password: barley", DEFAULT_USER},
        {", password: open-ann", DEFAULT_USER}, /* ann's, and she is not named */
        {", username: default", "user 'default'" LACKS},
        {", username: default, password: barley", NOT_THAT_OF "user 'default'" OTHER_USER},
        {", username: ann", "user 'ann'" LACKS},
        {", username: ann, password: barley", NOT_THAT_OF "user 'ann'" OTHER_USER},
        {", username: bob, password: sesame", NOT_THAT_OF "user 'bob'" OTHER_USER},
        {", username: off, password: open-off", NOT_THAT_OF "user 'off'" OTHER_USER},
    };
    static const login_t without_default[] = {{"", ASKS}, {", password: sesame", DEFAULT_USER}};
    tell("ACL SETUSER ann on >open-ann ~* &* +@all\r\n");
    tell("ACL SETUSER off >open-off ~* &* +@all\r\n");
    tell("CONFIG SET requirepass sesame\r\n");
    expect_refusals(with_default, sizeof with_default / sizeof with_default[0]);
    tell("HELLO 2 AUTH ann open-ann\r\nACL SETUSER default off\r\n");
    expect_refusals(without_default, sizeof without_default / sizeof without_default[0]);
}

/* With no user set, the rule makes one that the configuration has to name. */
Test(command_redis, the_rule_is_for_the_user_that_logs_in) {
    program_t program;
    (void)dlock(&program, "init", "--print", NULL);
    cr_assert_has(program.out_text, "ACL SETUSER dlock reset on >PASSWORD ");
    cr_assert_has(program.out_text, "needs `username: dlock` beside the password\n");
    write_file(config_path,
               "use: test\nbackends:\n  test: {driver: redis-string, url: \"redis://ann:x@127.0.0.1:1\"}\n");
    (void)dlock(&program, "init", "--print", NULL);
    cr_assert_has(program.out_text,
                  "ACL SETUSER USERNAME reset on >PASSWORD "); /* "ann" may be the password */
    cr_assert_has(program.out_text, "in place of USERNAME put the user of the url\n");
    cr_assert_null(strstr(program.out_text, "username"), "%s", program.out_text);
    cr_assert_null(strstr(program.out_text, "ann"), "%s", program.out_text);
    write_file(config_path,
               "use: test\nbackends:\n  test: {driver: redis-string, url: \"redis://127.0.0.1:1\","
               " username: ann, password: x}\n");
    (void)dlock(&program, "init", "--print", NULL);
    cr_assert_has(program.out_text, "ACL SETUSER ann reset on >PASSWORD ");
}

Test(command_redis, a_backend_without_sql_says_so) {
    program_t program;
    (void)dlock(&program, "init", "--sql", NULL);
    cr_assert_eq(program.status, 64);
    cr_assert_str_empty(program.out_text);
    cr_assert_str_eq(program.err_text, "dlock: this backend has no SQL; see 'dlock init --print'\n");
}

/* ---- nodes that have no vote -------------------------------------------------------------------------- */

static void expect_error(const program_t *program, const char *words) {
    cr_assert_has(program->err_text, words, "no '%s': %s", words, program->err_text);
}

/* Nobody holds it, so that nothing may say so. */
Test(command_redis, a_quarantine_is_what_a_lock_waits_for_and_that_is_told_while_it_waits) {
    static const char why[] =
        " nodes have no vote yet, and are needed; new nodes: run `dlock init`, of others "
        "`dlock check` says why\n";
    static const char event[] = "s, as it may have forgotten locks; new nodes: run `dlock init`\n";
    program_t program;
    make_quorum();
    start(&program, "run", "x", "--", "true", NULL);
    read_error_until(&program, " has no vote for ");
    cr_assert(is_running(program.pidfd));
    (void)kill(program.pid, SIGTERM);
    cr_assert_eq(finish(&program), 128 + SIGTERM);
    (void)dlock(&program, "run", "x", "--wait", "300ms", "--", "true", NULL);
    cr_assert_eq(program.status, 75, "%s", program.err_text);
    expect_error(&program, event);
    expect_error(
        &program,
        "'x': the lock was not obtained, and nothing was run: the time allowed for waiting is over; last: ");
    expect_error(&program, why);
    (void)dlock(&program, "run", "x", "--wait", "0", "--", "true", NULL);
    cr_assert_eq(program.status, 75, "%s", program.err_text);
    expect_error(&program, event);
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
    cr_assert_has(program.out_text, " nodes have no vote yet, and are needed; new nodes: run ");
}

Test(command_redis, an_init_that_refuses_says_so) {
    program_t program;
    make_quorum();
    tell("SET dlock_tokens 1\r\n");
    (void)dlock(&program, "init", "--json", NULL);
    cr_assert_eq(program.status, 1, "%s", program.err_text);
    cr_assert_has(program.out_text, "\"text\": \"not marked: ");
    cr_assert_has(program.out_text, "}], \"done\": false}\n");
    (void)dlock(&program, "init", "--quiet", NULL);
    cr_assert_eq(program.status, 1);
    cr_assert_str_empty(program.out_text);
    expect_error(&program, "dlock: node 2: not marked: ");
}

/* ---- waiting on a terminal ------------------------------------------------------------------------------
 */

Test(command_redis, a_server_that_does_not_say_who_holds_the_lock_keeps_no_signal) {
    char text[256], line[16];
    program_t holder;
    screen_t waiter;
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {call_timeout: 10s}\n"
                   "backends:\n  test: {driver: redis-string, url: \"unix://%s\"}\n",
                   socket_path);
    write_file(config_path, text);
    /* Without the queue a waiter need not claim again each second: a claim in doubt is waited for. */
    tell("ACL SETUSER default resetkeys ~dlock:x ~dlock_tokens\r\n");
    start(&holder, "run", "x", "--", "sh", "-c", "echo held >&9; cat", NULL);
    read_line(&holder, line, sizeof line);
    screen_start(&waiter, 80, "run", "x", "--", "true", NULL);
    screen_read_until(&waiter, "dlock: waiting for 'x', held by ");
    freeze_server(server.pid);
    (void)poll(NULL, 0, 2500); /* it asks again after 2 s, of which nothing is seen from outside */
    uint64_t sent_ns = now_boot_ns();
    (void)kill(waiter.pid, SIGTERM);
    cr_assert_eq(screen_end(&waiter), 128 + SIGTERM, "%s", waiter.text);
    uint64_t took_ns = now_boot_ns() - sent_ns;
    (void)kill(server.pid, SIGCONT);
    cr_assert_lt(took_ns, 3000000000u, "%s", waiter.text);
    cr_assert_has(waiter.text, "dlock: 'x': the wait for the lock was ended by SIGTERM\n");
    cr_assert_eq(finish(&holder), 0, "%s", holder.err_text);
}

/* The server carries out the claim after the signal: nobody would free the lock until its lease is over. */
Test(command_redis, what_is_given_up_on_a_terminal_is_freed) {
    char answer[128], text[256];
    screen_t waiter;
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {call_timeout: 10s}\n"
                   "backends:\n  test: {driver: redis-string, url: \"unix://%s\"}\n",
                   socket_path);
    write_file(config_path, text);
    tell("SET dlock:x foreign PX 2000\r\n");
    screen_start(&waiter, 80, "run", "x", "--", "true", NULL);
    screen_read_until(&waiter, "dlock: waiting for 'x', held by ");
    freeze_server(server.pid);
    (void)poll(NULL, 0,
               3000); /* until the claim and the question are on their way, and the other's lock is over */
    (void)kill(waiter.pid, SIGTERM);
    (void)poll(NULL, 0, 300); /* the end is under way */
    (void)kill(server.pid, SIGCONT);
    cr_assert_eq(screen_end(&waiter), 128 + SIGTERM, "%s", waiter.text);
    cr_assert_str_eq(ask("EVAL \"return {ok = tostring(redis.call('get', KEYS[1])) .. ' for ' .. "
                         "redis.call('pttl', KEYS[1])}\" 1 dlock:x\r\n",
                         answer, sizeof answer),
                     "+false for -2");
}

/* ---- a server that does not answer -------------------------------------------------------------------- */

Test(command_redis, a_signal_ends_it_while_the_server_is_still_silent) {
    char text[256], path[96];
    (void)snprintf(path, sizeof path, "%s/silent.sock", work_dir);
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {call_timeout: 10s}\n"
                   "backends:\n  test: {driver: redis-string, connect_timeout: 10s, url: \"unix://%s\"}\n",
                   path);
    write_file(config_path, text);
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    (void)snprintf(place.sun_path, sizeof place.sun_path, "%s", path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&place, sizeof place), 0);
    cr_assert_eq(listen(listener, 1), 0);
    program_t program;
    start(&program, "run", "x", "--", "true", NULL);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* now it waits for an answer */
    cr_assert_geq(fd, 0);
    uint64_t sent_ns = now_boot_ns();
    (void)kill(program.pid, SIGTERM);
    (void)finish(&program);
    cr_assert_eq(program.status, 128 + SIGTERM, "status %d; err: %s", program.status, program.err_text);
    cr_assert_lt(program.ended_ns - sent_ns, 3000000000u);
    cr_assert_str_eq(program.err_text, "dlock: 'x': the wait for the lock was ended by SIGTERM\n");
    (void)close(fd);
    (void)close(listener);
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
