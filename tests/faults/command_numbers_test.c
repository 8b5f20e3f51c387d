/* command_numbers_test.c - dlock run kills by no number that may be another's by now. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command_fixture.h"

TestSuite(command_numbers, .init = fixture_open, .fini = fixture_close);

/* In a namespace of processes, whose next number can be chosen. Its first process starts dlock, tells how
 * that ended, and keeps the namespace until it is let go. */
static const char first_process[] = "\"$@\"; echo status $? >&9; read x";

/* The command goes on, beside a process that ignores SIGTERM in a group of its own. */
static const char command[] =
    "timeout 1000 sh -c 'trap \"\" TERM; echo left $$ >&9; while :; do sleep 1000; done' & exec sleep 1000";

static void start_in_namespace(program_t *program, const char *lease) {
    if (system(
            "unshare --pid --fork --mount-proc sh -c 'echo 100 >/proc/sys/kernel/ns_last_pid' 2>/dev/null") !=
        0) {
        cr_skip_test("numbers of processes cannot be chosen here");
    }
    /* Not --kill-child, which needs a pidfd itself from util-linux 2.41 on. */
    start_plain(program, "unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--pdeathsig", "KILL", "sh",
                "-c", first_process, "sh", DLOCK_COMMAND, "--config", config_path, "run", "x", "--verbose",
                "--grace", "1s", "--lease", lease, "--", "sh", "-c", command, NULL);
}

/* Its number where it lives, not here. */
static int inner_number(pid_t pid) {
    char path[32], line[128];
    int outer, inner = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "no process %d", (int)pid);
    while (inner == 0 && fgets(line, sizeof line, file) != NULL) {
        inner = sscanf(line, "NSpid: %d %d", &outer, &inner) == 2 ? inner : 0;
    }
    (void)fclose(file);
    cr_assert_gt(inner, 0);
    return inner;
}

/* It has been reaped. */
static void await_no_process(pid_t pid) {
    for (uint64_t end_ns = now_boot_ns() + PATIENCE_MS * UINT64_C(1000000); kill(pid, 0) == 0;) {
        cr_assert_lt(now_boot_ns(), end_ns, "process %d is still there", (int)pid);
        (void)usleep(1000);
    }
}

/* Somebody's process, the first of a session and a group of its own, gets the number after this one, or the
 * next that is free. It answers a line. */
static pid_t start_stranger(program_t *stranger, pid_t first, int before) {
    char target[16], last[16];
    (void)snprintf(target, sizeof target, "%d", (int)first);
    (void)snprintf(last, sizeof last, "%d", before);
    start_plain(stranger, "nsenter", "-t", target, "-p", "-m", "sh", "-c",
                "exec 3<&0\n"
                "echo $1 >/proc/sys/kernel/ns_last_pid\n"
                "setsid sh -c 'echo stranger $$ >&9; read x <&3; echo alive $$ >&9' & wait",
                "sh", last, NULL);
    return read_pid(stranger, "stranger");
}

/* A number is not free yet at the instant when nobody is found by it any more. */
static void give_number_away(program_t *stranger, pid_t first, int number) {
    uint64_t end_ns = now_boot_ns() + PATIENCE_MS * UINT64_C(1000000);
    while (start_stranger(stranger, first, number - 1) != number) {
        cr_assert_lt(now_boot_ns(), end_ns, "number %d does not become free", number);
        (void)finish(stranger);
    }
}

typedef struct cast {
    program_t program, stranger;
    pid_t first, dlock, keeper;
    int left;
} cast_t;

/* The command has ended, and its number is a stranger's now; the keeper, which has another process to end,
 * is stopped. Of the command's end dlock hears, or it is stopped, and there is no room for that news. */
static void give_the_groups_number_away(cast_t *cast, const char *lease, bool dlock_hears) {
    start_in_namespace(&cast->program, lease);
    (void)read_pid(&cast->program, "left");
    cast->first = child_of(cast->program.pid);
    cast->dlock = child_of(cast->first);
    cast->keeper = child_of(cast->dlock);
    pid_t leader = child_of(cast->keeper);
    int number = inner_number(leader);
    cast->left = watched(child_of(child_of(leader))); /* of timeout, which may end at SIGTERM */
    if (!dlock_hears) {
        (void)kill(cast->dlock, SIGSTOP);
        stop_more_often_than_there_is_room_for(leader, cast->keeper);
    }
    (void)kill(leader, SIGKILL);
    await_no_process(leader);
    (void)kill(cast->keeper, SIGSTOP);
    cr_assert(is_running(cast->left), "all has ended within the grace time");
    give_number_away(&cast->stranger, cast->first, number);
}

/* The run has ended so, with all that the command had started, but not the stranger. */
static void expect_stranger_alive(cast_t *cast, int status) {
    cr_assert_eq(read_pid(&cast->program, "status"), status, "%s", cast->program.err_text);
    (void)await_end(cast->left);
    cr_assert_eq(write(cast->stranger.in, "\n", 1), 1);
    (void)read_pid(&cast->stranger, "alive"); /* no line: it was killed */
    (void)finish(&cast->program);
    (void)finish(&cast->stranger);
    cr_assert_null(strstr(cast->program.err_text, "could not be ended"), "%s", cast->program.err_text);
}

Test(command_numbers, the_keeper_kills_no_group_that_has_the_number_of_one_that_is_gone) {
    cast_t cast;
    give_the_groups_number_away(&cast, "10m", true);
    (void)kill(cast.keeper, SIGCONT);
    expect_stranger_alive(&cast, 128 + SIGKILL);
}

Test(command_numbers, in_place_of_its_keeper_dlock_kills_no_group_that_has_the_number_of_one_that_is_gone) {
    cast_t cast;
    give_the_groups_number_away(&cast, "3s", true);
    expect_stranger_alive(&cast, 76);
    cr_assert_has(cast.program.err_text, "sent SIGKILL in place of");
}

/* However long that takes, the lease is longer; the lock is taken away, and a renewal tells so. */
Test(command_numbers, nor_where_it_did_not_hear_that_the_command_has_ended) {
    cast_t cast;
    program_t unlock;
    char text[256];
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: 10m, renew_every: 1s}\n"
                   "backends:\n  test: {driver: sqlite, path: \"%s\"}\n",
                   database_path);
    write_file(config_path, text);
    give_the_groups_number_away(&cast, "auto", false);
    (void)dlock(&unlock, "unlock", "--force", "x", NULL);
    cr_assert_eq(unlock.status, 0, "%s", unlock.err_text);
    (void)kill(cast.dlock, SIGCONT);
    expect_stranger_alive(&cast, 76);
    cr_assert_has(cast.program.err_text, "sent SIGKILL in place of");
    cr_assert_null(strstr(cast.program.err_text, "the command has ended"), "%s", cast.program.err_text);
}

/* It asks for the lock, for which its client has a thread, beside that which looks after signals: from then
 * on one that has come ends the wait, and not dlock at once. */
static void await_asking(pid_t pid) {
    char path[32], line[128];
    int threads = 0;
    uint64_t end_ns = now_boot_ns() + PATIENCE_MS * UINT64_C(1000000);
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    while (threads < 3) {
        FILE *file = fopen(path, "re");
        cr_assert_not_null(file, "no process %d", (int)pid);
        while (fgets(line, sizeof line, file) != NULL && sscanf(line, "Threads: %d", &threads) != 1) {}
        (void)fclose(file);
        cr_assert_lt(now_boot_ns(), end_ns, "it has %d threads", threads);
    }
}

/* Where no descriptor of it can be had, dlock sees by their socket that it has ended. */
Test(command_numbers, dlock_kills_no_process_that_has_the_number_of_a_keeper_that_is_gone) {
    program_t holder;
    cast_t cast;
    start(&holder, "run", "x", "--", "sh", "-c", "echo held 1 >&9; read x", NULL);
    (void)read_pid(&holder, "held");
    refuse_pidfd();
    start_in_namespace(&cast.program, "10m");
    allow_pidfd();
    read_error_until(&cast.program, "waiting for 'x'");
    cast.first = child_of(cast.program.pid);
    cast.dlock = child_of(cast.first);
    cast.keeper = child_of(cast.dlock);
    await_asking(cast.dlock);
    cast.left = watched(cast.keeper);
    int number = inner_number(cast.keeper);
    (void)kill(cast.dlock, SIGSTOP); /* else it ends with its keeper */
    (void)kill(cast.keeper, SIGKILL);
    give_number_away(&cast.stranger, cast.first, number);
    (void)kill(cast.dlock, SIGCONT);
    expect_stranger_alive(&cast, 128 + SIGKILL);
    (void)finish(&holder);
}
