/* command_server.c - dlock run over a server that is frozen, killed or forgetful: all ends in time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "command_server.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

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

void start_redis(program_t *server, const char *socket_path) {
    char script[512];
    (void)snprintf(script, sizeof script,
                   "exec setpriv --pdeathsig KILL \"${DLOCK_REDIS_SERVER:-redis-server}\" --port 0 "
                   "--unixsocket '%s' --save '' --appendonly no --dir '%s' --logfile '' >&2",
                   socket_path, work_dir);
    start_plain(server, "sh", "-c", script, NULL);
    (void)watched(server->pid);
    read_error_until(server, "eady to accept connections");
}

void end_server(program_t *server) {
    if (server->pid > 0) { /* 0 would be our own group */
        (void)kill(server->pid, SIGKILL);
        (void)finish(server);
    }
}

void list_compared(program_t *list, const char *backend) {
    (void)dlock(list, "list", "dlock.compare.", "--backend", backend, "--json", NULL);
    cr_assert_eq(list->status, 0, "%s", list->err_text);
}

void await_long_hold(const char *backend) {
    uint64_t since_ns = now_boot_ns();
    uint64_t seen = 0, again = 0;
    while (seen == 0 || seen != again) {
        cr_assert_lt(now_boot_ns() - since_ns, (uint64_t)PATIENCE_MS * 1000000u, "nothing is held");
        program_t list;
        list_compared(&list, backend);
        static const char key[] = "\"hold_id\": ";
        const char *at = strstr(list.out_text, key);
        seen = again;
        again = at != NULL ? strtoull(at + sizeof key - 1, NULL, 10) : 0;
    }
}

void freeze_server(pid_t server) {
    siginfo_t info;
    (void)kill(server, SIGSTOP);
    cr_assert_eq(waitid(P_PID, (id_t)server, &info, WSTOPPED | WNOWAIT), 0);
}

void end_in_time_when_frozen(pid_t server) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    freeze_server(server);
    uint64_t ended_ns = await_family(&family);
    (void)finish(&program);
    expect_ended_in_time(&program, ended_ns);
    /* What it finds in its sockets now are late renewals and a late release. */
    (void)kill(server, SIGCONT);
    expect_no_ghost(family.token);
}

void end_in_time_when_killed(void (*kill_it)(void), void (*start_it_again)(void)) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    kill_it();
    uint64_t ended_ns = await_family(&family);
    (void)finish(&program);
    expect_ended_in_time(&program, ended_ns);
    start_it_again();
    expect_no_ghost(family.token);
}

void survive_a_short_freeze(pid_t server) {
    program_t program;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", "echo child $$ >&9; read x; exit 5", NULL);
    int child = watched(read_pid(&program, "child"));
    freeze_server(server);
    read_error_until(&program, "renewal is failing");
    (void)kill(server, SIGCONT);
    read_error_until(&program, "renewal works again");
    cr_assert(is_running(child));
    (void)finish(&program);
    cr_assert_eq(program.status, 5, "status %d; err: %s", program.status, program.err_text);
}

void end_at_once_when_forgotten(void) {
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
