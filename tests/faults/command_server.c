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

#include "support/beat.h"

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
    valid_ms += (double)beat_stood_ns(NULL) / 1e6;
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

/* One hold of a list in JSON, of the first lock there. */
typedef struct seen_hold {
    char owner[64];
    unsigned long long id;
    long long remaining_ms;
} seen_hold_t;

static bool read_hold(const char *json, seen_hold_t *hold) {
    const char *at = strstr(json, "\"owner\": \"");
    return at != NULL && sscanf(at, "\"owner\": \"%63[^\"]\", \"hold_id\": %llu, \"remaining_ms\": %lld",
                                hold->owner, &hold->id, &hold->remaining_ms) == 3;
}

/* Before it measures, each thread takes and frees a lock, and numbers of holds are each client's own. One
 * hold that was renewed is none of these: it has more time left than before. */
void await_long_hold(const char *backend) {
    uint64_t since_ns = now_boot_ns();
    seen_hold_t seen = {.id = 0}, again = {.id = 0};
    do {
        program_t list;
        cr_assert_lt(now_boot_ns() - since_ns, (uint64_t)PATIENCE_MS * 1000000u, "nothing is held for long");
        list_compared(&list, backend);
        seen = again;
        if (!read_hold(list.out_text, &again)) {
            again = (seen_hold_t){.id = 0};
        }
    } while (again.id == 0 || again.id != seen.id || strcmp(again.owner, seen.owner) != 0 ||
             again.remaining_ms <= seen.remaining_ms);
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
