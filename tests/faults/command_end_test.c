/* command_end_test.c - dlock run when things fail: all that the command started ends in time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command_fixture.h"
#include "support/beat.h"

TestSuite(command_end, .init = fixture_open, .fini = fixture_close);

/* A command that ignores SIGTERM and has started a process that does so too, in the same group. */
static const char stubborn[] =
    "trap '' TERM\n"
    "sh -c 'trap \"\" TERM; echo grandchild $$ >&9; while :; do sleep 1000; done' &\n"
    "echo keeper $PPID >&9; echo child $$ >&9\n"
    "while :; do sleep 1000; done\n";

typedef struct family {
    pid_t keeper_pid;
    int keeper, child, grandchild;
    uint64_t child_end_ns, grandchild_end_ns;
} family_t;

/* The lines of the two shells come in any order. */
static void meet(program_t *program, family_t *family) {
    *family = (family_t){.keeper = -1, .child = -1, .grandchild = -1};
    while (family->keeper < 0 || family->child < 0 || family->grandchild < 0) {
        char line[64];
        read_line(program, line, sizeof line);
        char *space = strchr(line, ' ');
        cr_assert_not_null(space, "%s", line);
        *space = '\0';
        pid_t pid = (pid_t)atoi(space + 1);
        if (strcmp(line, "keeper") == 0) {
            family->keeper_pid = pid;
            family->keeper = watched(pid);
        } else if (strcmp(line, "child") == 0) {
            family->child = watched(pid);
        } else {
            family->grandchild = watched(pid);
        }
    }
}

static void await_family(family_t *family) {
    family->child_end_ns = await_end(family->child);
    family->grandchild_end_ns = await_end(family->grandchild);
}

static void expect_status(program_t *program, int expected) {
    cr_assert_eq(program->status, expected, "status %d instead of %d; err: %s", program->status, expected,
                 program->err_text);
}

/* Both ended before the last validity that dlock knew of, but for what the machine stood still; prints the
 * instants. */
static void expect_in_time(const program_t *program, const family_t *family) {
    double valid_ms = (double)last_instant_ms(program->err_text, "valid until ");
    double child_ms = (double)family->child_end_ns / 1e6;
    double grandchild_ms = (double)family->grandchild_end_ns / 1e6;
    cr_assert_gt(valid_ms, 0);
    (void)fprintf(
        stderr, "child ended at %.1f ms, grandchild at %.1f ms, validity at %.0f ms: %.1f ms to spare\n",
        child_ms, grandchild_ms, valid_ms, valid_ms - (child_ms > grandchild_ms ? child_ms : grandchild_ms));
    valid_ms += (double)beat_stood_ns(NULL) / 1e6;
    cr_assert_lt(child_ms, valid_ms, "the command outlived the lock");
    cr_assert_lt(grandchild_ms, valid_ms, "a process of its group outlived the lock");
}

static void expect_status_of(const char *name, int expected) {
    program_t status;
    (void)dlock(&status, "status", "--quiet", name, NULL);
    expect_status(&status, expected);
}

/* ---- the lock is being lost --------------------------------------------------------------------------- */

Test(command_end, all_end_before_validity_when_the_database_cannot_be_reached) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    void *held = hold_database();
    await_family(&family);
    (void)finish(&program);
    let_database_go(held);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
    cr_assert_has(program.err_text, "sent SIGKILL");
    if (beat_stood_ns(NULL) == 0) { /* else the lock may have been lost before anybody could act */
        cr_assert_has(program.err_text, "sent SIGTERM");
        cr_assert_has(
            program.err_text,
            "dlock: 'x': the lock could not be kept: it was not renewed in time, or dlock itself was "
            "stopped; the command was ended before another could get it\n");
    }
}

Test(command_end, a_command_may_take_longer_than_the_automatic_lease) {
    program_t program;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", "echo child $$ >&9; read x; exit 5", NULL);
    int child = watched(read_pid(&program, "child"));
    read_error_until(&program, "valid until ");
    uint64_t first_ms = last_instant_ms(program.err_text, "valid until ");
    while (last_instant_ms(program.err_text, "valid until ") < first_ms + LEASE_MS) {
        read_more_error(&program);
    }
    cr_assert(is_running(child));
    (void)finish(&program);
    expect_status(&program, 5);
}

Test(command_end, a_short_trouble_with_the_database_does_no_harm) {
    program_t program;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", "echo child $$ >&9; read x; exit 5", NULL);
    int child = watched(read_pid(&program, "child"));
    void *held = hold_database();
    /* A first renewal fails (it is due after 500 ms and given up after 300), a later one does not. */
    read_error_until(&program,
                     "dlock: 'x': renewal is failing: the server cannot be reached; trying again, the lock "
                     "is valid for ");
    let_database_go(held);
    read_error_until(&program, "renewal works again");
    cr_assert(is_running(child));
    (void)finish(&program);
    expect_status(&program, 5);
}

Test(command_end, a_command_that_obeys_sigterm_has_the_grace_time_to_tidy_up) {
    program_t program;
    (void)dlock(&program, "run", "x", "--lease", "2s", "--grace", "1s", "--", "sh", "-c",
                "trap 'sleep 0.6; echo tidied; exit 0' TERM; sleep 1000 & wait", NULL);
    expect_status(&program, 76);
    cr_assert_str_eq(program.out_text, "tidied\n"); /* the default would have been a third of a second */
}

Test(command_end, a_stopped_command_is_continued_to_hear_sigterm) {
    program_t program;
    (void)dlock(&program, "run", "x", "--lease", "1s", "--grace", "500ms", "--", "sh", "-c",
                "trap 'echo tidied; exit 0' TERM; kill -STOP $$; sleep 1000 & wait", NULL);
    expect_status(&program, 76);
    cr_assert_str_eq(program.out_text, "tidied\n");
}

Test(command_end, an_explicit_lease_is_the_time_limit) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--lease", "1600ms", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    await_family(&family);
    (void)finish(&program);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
    cr_assert_has(program.err_text, "its lease (--lease) is over");
    expect_status_of("x", 1);
}

Test(command_end, the_longest_hold_is_a_time_limit) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--max-hold", "1600ms", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    await_family(&family);
    (void)finish(&program);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
    cr_assert_has(program.err_text, "the lock could not be kept: --max-hold is over; ");
    expect_status_of("x", 1);
}

Test(command_end, a_lock_that_is_taken_away_ends_the_command_at_once) {
    program_t program, unlock;
    family_t family;
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)dlock(&unlock, "unlock", "--force", "x", NULL);
    expect_status(&unlock, 0);
    uint64_t freed_ns = now_boot_ns();
    await_family(&family);
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_has(program.err_text, "dlock: 'x': the lock was lost: ");
    /* The next renewal, a third of the lease later at most, tells. */
    cr_assert_lt(family.grandchild_end_ns - freed_ns,
                 (uint64_t)LEASE_MS * 1000000u * 2 / 3 + beat_stood_ns(NULL));
}

Test(command_end, a_lock_that_was_lost_makes_76_of_a_success) {
    program_t program;
    char script[512];
    (void)snprintf(script, sizeof script, "'%s' --config '%s' unlock --force x", DLOCK_COMMAND, config_path);
    (void)dlock(&program, "run", "x", "--", "sh", "-c", script, NULL);
    expect_status(&program, 76);
    cr_assert_has(program.err_text, "lost");
}

/* ---- dlock or its keeper fail -------------------------------------------------------------------- */

Test(command_end, killing_dlock_ends_everything_at_once) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--lease", "10m", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    uint64_t killed_ns = now_boot_ns();
    (void)kill(program.pid, SIGKILL);
    await_family(&family);
    (void)await_end(family.keeper);
    (void)finish(&program);
    expect_status(&program, 1000 + SIGKILL);
    cr_assert_lt(family.grandchild_end_ns - killed_ns, 2000000000u + beat_stood_ns(NULL));
    expect_status_of("x", 0); /* nobody has freed it: it ends with its lease */
}

/* The kernel continues it by itself only where nobody of its session becomes its parent. */
Test(command_end, killing_dlock_ends_everything_though_the_keeper_is_stopped) {
    program_t program;
    family_t family;
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(family.keeper_pid, SIGSTOP);
    await_state(family.keeper_pid, 'T');
    (void)kill(program.pid, SIGKILL);
    await_family(&family);
}

Test(command_end, killing_the_keeper_ends_everything_and_frees_the_lock) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(family.keeper_pid, SIGKILL);
    await_family(&family);
    (void)finish(&program);
    expect_status(&program, 128 + SIGKILL);
    cr_assert_str_eq(program.err_text,
                     "dlock: 'x': the process that watches the command (lock-keeper) was killed, and the "
                     "command with it\n");
    expect_status_of("x", 1);
}

Test(command_end, killing_the_keeper_ends_the_command_even_while_dlock_is_stopped) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(program.pid, SIGSTOP);
    (void)kill(family.keeper_pid, SIGKILL);
    (void)await_end(family.child); /* by the kernel */
    (void)kill(program.pid, SIGCONT);
    (void)await_end(family.grandchild); /* by dlock */
    (void)finish(&program);
    cr_assert(program.status == 128 + SIGKILL || program.status == 76, "status %d", program.status);
}

/* A shell has started something, and then becomes dlock. */
static void start_beside(program_t *program, int others[2], const char *lease) {
    start_plain(program, "sh", "-c",
                "sh -c 'sleep 1000 & echo other $! >&9; echo other $$ >&9; wait' & exec \"$@\"", "sh",
                DLOCK_COMMAND, "--config", config_path, "run", "x", "--verbose", "--lease", lease, "--", "sh",
                "-c", "read go; sleep 1000 & echo keeper $PPID >&9; echo rest $! >&9; wait", NULL);
    others[0] = watched(read_pid(program, "other"));
    others[1] = watched(read_pid(program, "other"));
    cr_assert_eq(write(program->in, "\n", 1), 1);
}

static void expect_only_the_others(program_t *program, const int others[2], int rest, int status) {
    (void)finish(program);
    expect_status(program, status);
    cr_assert_null(strstr(program->err_text, "could not be ended"), "%s", program->err_text);
    cr_assert_not(is_running(rest));
    cr_assert(is_running(others[0]) && is_running(others[1]), "killed with the command");
}

Test(command_end, killing_the_keeper_spares_what_was_started_before_dlock) {
    program_t program;
    int others[2];
    start_beside(&program, others, "10m");
    pid_t keeper = read_pid(&program, "keeper");
    int rest = watched(read_pid(&program, "rest"));
    (void)kill(keeper, SIGKILL);
    expect_only_the_others(&program, others, rest, 128 + SIGKILL);
}

Test(command_end, replacing_the_keeper_spares_what_was_started_before_dlock) {
    program_t program;
    int others[2];
    start_beside(&program, others, "2s");
    pid_t keeper = read_pid(&program, "keeper");
    int rest = watched(read_pid(&program, "rest"));
    (void)kill(keeper, SIGSTOP);
    expect_only_the_others(&program, others, rest, 76);
    cr_assert_has(program.err_text, "sent SIGKILL in place of");
}

static bool is_named_dlock(pid_t pid) {
    char path[32], name[32];
    (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    cr_assert(file != NULL && fgets(name, sizeof name, file) != NULL, "no process %d", (int)pid);
    (void)fclose(file);
    return strstr(name, "dlock") != NULL;
}

/* As by `pkill dlock`, which takes whatever has that in its name. */
Test(command_end, killing_what_is_named_dlock_ends_everything_at_once) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--lease", "10m", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    /* Neither acts in between: dlock is stopped, and while it lives its keeper has no cause. */
    pid_t both[] = {family.keeper_pid, program.pid};
    bool named[] = {is_named_dlock(both[0]), is_named_dlock(both[1])};
    (void)kill(program.pid, SIGSTOP);
    for (size_t i = 0; i < 2; i++) {
        (void)(named[i] ? kill(both[i], SIGKILL) : 0);
    }
    await_family(&family);
    (void)finish(&program);
    expect_status(&program, 1000 + SIGKILL);
}

/* `pidof dlock` and busybox's killall go by the first word of the command line. */
Test(command_end, the_keepers_command_line_begins_with_another_name_than_dlocks) {
    program_t program;
    char path[32], line[256] = "";
    start(&program, "run", "x", "--", "sh", "-c", "echo keeper $PPID >&9; read x; exit 0", NULL);
    (void)snprintf(path, sizeof path, "/proc/%d/cmdline", (int)read_pid(&program, "keeper"));
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file);
    size_t len = fread(line, 1, sizeof line - 1, file);
    (void)fclose(file);
    cr_assert_null(strstr(line, "dlock"), "%s", line);
    cr_assert_not_null(memmem(line, len, "\0run\0x\0--\0sh", 12), "what it keeps is no longer said");
    (void)finish(&program);
    expect_status(&program, 0);
}

Test(command_end, a_stopped_dlock_does_not_let_the_command_outlive_the_lock) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(program.pid, SIGSTOP);
    await_family(&family); /* while dlock is still stopped */
    (void)kill(program.pid, SIGCONT);
    (void)finish(&program);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
}

/* While it is stopped it reads no notes, and there is room for so many only. */
Test(command_end, a_dlock_that_was_stopped_returns_the_commands_status_whatever_else_has_happened) {
    program_t program;
    start(&program, "run", "x", "--lease", "60s", "--", "sh", "-c",
          "echo keeper $PPID >&9; echo child $$ >&9; read x; exit 7", NULL);
    pid_t keeper = read_pid(&program, "keeper"), child = read_pid(&program, "child");
    int end = watched(child);
    (void)kill(program.pid, SIGSTOP);
    stop_more_often_than_there_is_room_for(child, keeper);
    (void)close(program.in);
    program.in = -1;
    (void)await_end(end); /* while dlock is still stopped */
    while (kill(child, 0) == 0) {
        (void)usleep(1000); /* until the keeper has reaped it */
    }
    await_state(keeper, 'S'); /* it has something to say, for which there is no room */
    (void)kill(program.pid, SIGCONT);
    (void)finish(&program);
    expect_status(&program, 7);
}

/* This program, run as a command that asks its parent to trace it, as some do to hide from debuggers. */
__attribute__((constructor)) static void be_traced(void) {
    if (getenv("DLOCK_TEST_TRACED") != NULL) {
        (void)dprintf(9, "keeper %d\nchild %d\n", (int)getppid(), (int)getpid());
        (void)getchar();
        (void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        (void)raise(SIGCONT);
        _exit(0);
    }
}

Test(command_end, a_command_that_has_its_parent_trace_it_has_not_ended_when_it_stops) {
    program_t program;
    char self[4096] = "";
    cr_assert_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    start(&program, "run", "x", "--lease", "60s", "--", "env", "DLOCK_TEST_TRACED=1", self, NULL);
    pid_t keeper = read_pid(&program, "keeper"), child = read_pid(&program, "child");
    (void)close(program.in);
    program.in = -1;
    await_state(child, 't');
    await_state(keeper, 'S');
    (void)kill(child, SIGKILL);
    (void)finish(&program);
    expect_status(&program, 128 + SIGKILL);
}

/* The renewal that was overdue comes through while the command tidies up: the lease is a whole one again. */
Test(command_end, a_lock_renewed_after_sigterm_is_freed_at_the_end) {
    program_t program;
    char line[16], text[512];
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: 6s, renew_every: 2s, call_timeout: 300ms}\n"
                   "backends:\n  test: {driver: sqlite, path: \"%s\"}\n",
                   database_path);
    write_file(config_path, text);
    start(&program, "run", "x", "--grace", "1s", "--", "sh", "-c",
          "trap 'echo t >&9; sleep 0.5; exit' TERM; echo r >&9; while :; do sleep 0.05; done", NULL);
    read_line(&program, line, sizeof line);
    (void)kill(program.pid, SIGSTOP);
    read_line(&program, line, sizeof line);
    (void)kill(program.pid, SIGCONT);
    (void)finish(&program);
    expect_status(&program, 76);
    if (beat_stood_ns(NULL) == 0) {
        expect_status_of("x", 1);
    }
}

Test(command_end, a_stopped_keeper_does_not_let_the_command_outlive_the_lock) {
    program_t program;
    family_t family;
    start(&program, "run", "x", "--verbose", "--lease", "2s", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(family.keeper_pid, SIGSTOP);
    await_family(&family);
    (void)finish(&program);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
    cr_assert_has(program.err_text, "sent SIGKILL in place of lock-keeper");
}

Test(command_end, dlock_and_keeper_stopped_beyond_the_lease_kill_at_once_when_continued) {
    program_t program, other;
    family_t family;
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(family.keeper_pid, SIGSTOP);
    (void)kill(program.pid, SIGSTOP);
    /* The lease is over when another gets the lock. */
    (void)dlock(&other, "run", "x", "--wait", "10s", "--", "true", NULL);
    expect_status(&other, 0);
    uint64_t continued_ns = now_boot_ns();
    (void)kill(program.pid, SIGCONT);
    (void)kill(family.keeper_pid, SIGCONT);
    await_family(&family);
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_lt(family.grandchild_end_ns - continued_ns, 500000000u + beat_stood_ns(NULL));
}

Test(command_end, a_keeper_that_was_late_does_not_say_that_it_ended_the_command_in_time) {
    program_t program, other;
    family_t family;
    start(&program, "run", "x", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    (void)kill(program.pid, SIGSTOP);
    (void)kill(family.keeper_pid, SIGSTOP);
    (void)dlock(&other, "run", "x", "--wait", "10s", "--", "true", NULL); /* while the command goes on */
    expect_status(&other, 0);
    cr_assert(is_running(family.child));
    (void)kill(family.keeper_pid, SIGCONT);
    (void)await_end(family.keeper); /* before dlock can tell it that the lock is lost */
    (void)kill(program.pid, SIGCONT);
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_str_eq(program.err_text, "dlock: 'x': the lock was lost: its validity is over; the command was "
                                       "killed, but another may have had the lock by then\n");
}

static void hold(program_t *holder) {
    start(holder, "run", "x", "--", "sh", "-c", "echo held 1 >&9; read x", NULL);
    (void)read_pid(holder, "held");
}

/* One that waits for the holder gets the lock, but its keeper, returned, does not run. */
static pid_t get_with_stopped_keeper(program_t *program, program_t *holder) {
    read_error_until(program, "waiting for 'x'");
    pid_t keeper = child_of(program->pid);
    (void)kill(keeper, SIGSTOP);
    (void)finish(holder);
    read_error_until(program, "holding 'x'");
    return keeper;
}

Test(command_end, a_stopped_keeper_keeps_no_run_that_does_not_get_the_lock) {
    program_t holder, program;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--wait", "500ms", "--", "echo", "ran", NULL);
    read_error_until(&program, "waiting for 'x'");
    (void)watched(child_of(program.pid));
    (void)kill(child_of(program.pid), SIGSTOP);
    (void)finish(&program);
    expect_status(&program, 75);
    (void)finish(&holder);
}

Test(command_end, a_killed_keeper_ends_the_wait_for_the_lock) {
    program_t holder, program;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--", "echo", "ran", NULL);
    read_error_until(&program, "waiting for 'x'");
    (void)kill(child_of(program.pid), SIGKILL);
    (void)finish(&program); /* while the lock is held */
    expect_status(&program, 128 + SIGKILL);
    cr_assert_has(program.err_text, "dlock: 'x': the process that is to watch the command (lock-keeper) was "
                                    "killed; nothing was run\n");
    (void)finish(&holder);
}

/* Its first thread waits for something. */
static void await_sleep(pid_t pid) {
    char name[32], state = 'R';
    (void)snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    while (state != 'S') {
        FILE *file = fopen(name, "re");
        cr_assert(file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1, "it is gone");
        (void)fclose(file);
    }
}

Test(command_end, both_stopped_before_the_command_begins_do_not_begin_it_beyond_the_lease) {
    program_t holder, program, other;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--lease", "1s", "--", "echo", "ran", NULL);
    pid_t keeper = get_with_stopped_keeper(&program, &holder);
    await_sleep(program.pid); /* the keeper has been told to begin */
    (void)kill(program.pid, SIGSTOP);
    (void)dlock(&other, "run", "x", "--wait", "10s", "--", "true", NULL);
    expect_status(&other, 0);
    int keeper_end = watched(keeper);
    (void)kill(keeper, SIGCONT);
    (void)await_end(keeper_end);
    (void)kill(program.pid, SIGCONT);
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_str_empty(program.out_text, "the command ran without the lock");
    cr_assert_null(strstr(program.err_text, "started process"), "%s", program.err_text);
    cr_assert_has(program.err_text, "the lock was lost before the command was started; nothing was run");
}

/* As long as the lock is renewed, the keeper only hears of the lease that it began with too late. */
Test(command_end, a_keeper_stopped_before_the_command_begins_begins_it_while_the_lock_is_renewed) {
    program_t holder, program;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--", "echo", "ran", NULL);
    pid_t keeper = get_with_stopped_keeper(&program, &holder);
    uint64_t first_ms = last_instant_ms(program.err_text, "valid until ");
    while (now_boot_ns() / 1000000u < first_ms) {
        read_more_error(&program);
    }
    (void)kill(keeper, SIGCONT);
    (void)finish(&program);
    expect_status(&program, 0);
    cr_assert_str_eq(program.out_text, "ran\n");
}

Test(command_end, a_keeper_stopped_before_the_command_begins_does_not_begin_it_without_the_lock) {
    program_t holder, program, unlock;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--", "echo", "ran", NULL);
    pid_t keeper = get_with_stopped_keeper(&program, &holder);
    (void)dlock(&unlock, "unlock", "--force", "x", NULL);
    read_error_until(&program, "the lock is lost");
    (void)kill(keeper, SIGCONT); /* within 100 ms; else dlock has replaced it, and starts nothing either */
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_str_empty(program.out_text, "the command ran without the lock");
    cr_assert_null(strstr(program.err_text, "started process"), "%s", program.err_text);
}

/* The signal is not to begin it either, though it comes before the loss. */
Test(command_end, a_signal_before_the_command_begins_does_not_begin_it_without_the_lock) {
    program_t holder, program, unlock;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--", "echo", "ran", NULL);
    pid_t keeper = get_with_stopped_keeper(&program, &holder);
    (void)kill(program.pid, SIGTERM);
    (void)dlock(&unlock, "unlock", "--force", "x", NULL);
    read_error_until(&program, "the lock is lost");
    (void)kill(keeper, SIGCONT); /* within 100 ms; else dlock has replaced it, and starts nothing either */
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_str_empty(program.out_text, "the command ran without the lock");
    cr_assert_null(strstr(program.err_text, "started process"), "%s", program.err_text);
}

Test(command_end, a_signal_before_the_command_begins_reaches_it) {
    program_t holder, program;
    hold(&holder);
    start(&program, "run", "x", "--verbose", "--", "sleep", "1000", NULL);
    pid_t keeper = get_with_stopped_keeper(&program, &holder);
    await_sleep(program.pid); /* it does not wait for the lock any more */
    (void)kill(program.pid, SIGINT);
    await_sleep(program.pid);
    (void)kill(keeper, SIGCONT);
    read_error_until(&program, "started process");
    (void)kill(program.pid, SIGTERM); /* goes behind it, and is the first where it was lost */
    (void)finish(&program);
    expect_status(&program, 128 + SIGINT);
}

/* ---- nobody reads ---------------------------------------------------------------------------------- */

/* A pipe that takes nothing more; returns the reading end. */
static int make_full_pipe(char *path, size_t size) {
    static const char filling[4096] = "";
    (void)snprintf(path, size, "%s/full", work_dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    while (write(fd, filling, sizeof filling) > 0) {}
    return fd;
}

/* The lines of --verbose keep neither the command from beginning nor the lock, and the last line does not
 * keep the lock. */
Test(command_end, the_lock_waits_for_nobody_who_reads_the_lines) {
    char path[96], text[65536];
    int full = make_full_pipe(path, sizeof path);
    program_t program, other;
    start_plain(&program, "sh", "-c", "full=$1; shift; exec \"$@\" 2>\"$full\"", "sh", path, DLOCK_COMMAND,
                "--config", config_path, "run", "x", "-v", "--", "sh", "-c", "echo held 1 >&9; kill -9 $PPID",
                NULL);
    (void)read_pid(&program, "held");
    (void)dlock(&other, "run", "x", "--wait", "10s", "--", "true", NULL);
    expect_status(&other, 0);
    /* That line comes as soon as somebody reads. */
    struct pollfd ready = {.fd = full, .events = POLLIN};
    ssize_t got = 0;
    while (memmem(text, (size_t)got, "(lock-keeper) was killed", 24) == NULL) {
        cr_assert_eq(poll(&ready, 1, PATIENCE_MS), 1, "the last line does not come");
        got = read(full, text, sizeof text);
        cr_assert_gt(got, 0);
    }
    (void)close(full);
    (void)finish(&program);
    expect_status(&program, 128 + SIGKILL);
}

/* ---- what the command leaves behind -------------------------------------------------------------- */

Test(command_end, what_the_command_leaves_behind_ends_before_the_lock_is_free) {
    program_t program, waiter;
    start(&program, "run", "x", "--grace", "300ms", "--", "sh", "-c",
          "sh -c 'trap \"\" TERM; echo leftover $$ >&9; while :; do sleep 1000; done' & read x; exit 3",
          NULL);
    int leftover = watched(read_pid(&program, "leftover"));
    start(&waiter, "run", "x", "--", "date", "+%s%N", NULL);
    (void)finish(&program);
    cr_assert_not(is_running(leftover), "a process of the group goes on without the lock");
    expect_status(&program, 3);
    (void)finish(&waiter);
    expect_status(&waiter, 0);
}

static void let_the_command_end(program_t *program) {
    (void)close(program->in);
    program->in = -1;
}

Test(command_end, the_lock_is_kept_for_what_cannot_be_ended_until_it_ends) {
    program_t program;
    refuse_kill();
    pid_t rest = start_with_a_rest(&program, "1m");
    let_the_command_end(&program);
    expect_kept_for_the_rest(&program, rest, 3);
}

Test(command_end, without_the_keeper_the_lock_is_kept_for_what_cannot_be_ended_too) {
    program_t program;
    refuse_kill();
    pid_t rest = start_with_a_rest(&program, "1m");
    (void)kill(child_of(program.pid), SIGKILL);
    expect_kept_for_the_rest(&program, rest, 128 + SIGKILL);
}

/* Stopped between its SIGKILL and its word of what that ended. */
Test(command_end, a_keeper_stopped_once_it_has_killed_keeps_the_lock_for_seconds_only) {
    program_t program, other;
    refuse_kill();
    pid_t rest = start_with_a_rest(&program, "auto");
    pid_t keeper = child_of(program.pid);
    let_the_command_end(&program);
    read_error_until(&program, "sent SIGKILL");
    (void)kill(keeper, SIGSTOP);
    await_state(keeper, 'T');
    allow_kill();
    cr_assert_eq(kill(rest, SIGKILL), 0);
    (void)finish(&program);
    expect_status(&program, 128 + SIGKILL);
    cr_assert_has(program.err_text, "sent SIGKILL in place of lock-keeper");
    (void)dlock(&other, "status", "--quiet", "x", NULL);
    expect_status(&other, 1);
}

Test(command_end, the_lock_is_kept_for_what_cannot_be_ended_for_one_lease_at_most) {
    program_t program, other;
    refuse_kill();
    int rest = watched(start_with_a_rest(&program, "auto"));
    let_the_command_end(&program);
    read_error_until(&program, "1 process of the command could not be ended; the lock is kept until it ends");
    uint64_t begun_ns = now_boot_ns();
    allow_kill();
    (void)finish(&program);
    expect_status(&program, 70);
    cr_assert_has(program.err_text, "could not be ended; the lock is not kept any longer\n");
    cr_assert(is_running(rest));
    cr_assert_lt(program.ended_ns - begun_ns, 2 * (uint64_t)LEASE_MS * 1000000u + beat_stood_ns(NULL));
    (void)dlock(&other, "run", "x", "--wait", "10s", "--", "true", NULL);
    expect_status(&other, 0);
}

Test(command_end, a_process_that_made_a_group_of_its_own_ends_too) {
    program_t program;
    start(&program, "run", "x", "--verbose", "--lease", "1600ms", "--", "sh", "-c",
          "echo child $$ >&9; timeout 1000 sh -c 'trap \"\" TERM; echo inner $$ >&9; while :; do sleep 1000; "
          "done'",
          NULL);
    family_t family = {.child = watched(read_pid(&program, "child"))};
    family.grandchild = watched(read_pid(&program, "inner"));
    await_family(&family);
    (void)finish(&program);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
}

Test(command_end, a_process_that_made_a_group_of_its_own_ends_where_no_descriptor_of_it_can_be_had) {
    program_t program;
    refuse_pidfd();
    start(&program, "run", "x", "--lease", "1600ms", "--", "sh", "-c",
          "timeout 1000 sh -c 'trap \"\" TERM; echo inner $$ >&9; while :; do sleep 1000; done'", NULL);
    int inner = watched(read_pid(&program, "inner"));
    (void)finish(&program);
    expect_status(&program, 76);
    cr_assert_not(is_running(inner), "it goes on without the lock");
}

Test(command_end, a_daemon_in_a_session_of_its_own_is_left_alone) {
    program_t program;
    start(&program, "run", "x", "--", "sh", "-c",
          "setsid sh -c 'echo daemon $$ >&9; exec sleep 1000 >/dev/null 2>&1' & read x; exit 0", NULL);
    int daemon = watched(read_pid(&program, "daemon"));
    (void)finish(&program);
    expect_status(&program, 0);
    cr_assert(is_running(daemon), "setsid is the way out, and was not");
}

Test(command_end, a_nested_run_ends_with_the_outer_one) {
    program_t program;
    family_t family;
    start(&program, "run", "outer", "--lease", "1600ms", "--verbose", "--", DLOCK_COMMAND, "--config",
          config_path, "run", "inner", "--", "sh", "-c", stubborn, NULL);
    meet(&program, &family);
    await_family(&family);
    (void)finish(&program);
    expect_in_time(&program, &family);
    expect_status(&program, 76);
}

/* ---- as the first process of a container -------------------------------------------------------------- */

/* Processes that enter a container are nobody's children there. What they leave behind comes to its first
 * process, which has to reap it, whatever it waits for. */
static void expect_orphans_reaped(pid_t first, int others) {
    char command[200];
    int children[CHILDREN], count = 0;
    (void)snprintf(command, sizeof command,
                   "nsenter -t %d -p -m sh -c 'for i in 1 2 3; do sh -c \"sleep 1000 &\"; done'", (int)first);
    cr_assert_eq(system(command), 0);
    count = children_of(first, children);
    cr_assert_eq(count, others + 3, "they did not come to it");
    for (int i = others; i < count; i++) { /* the last that came to it */
        cr_assert_eq(kill(children[i], SIGKILL), 0);
    }
    for (uint64_t end_ns = now_boot_ns() + PATIENCE_MS * UINT64_C(1000000); count > others;) {
        count = children_of(first, children);
        cr_assert_lt(now_boot_ns(), end_ns, "%d children of the first process, %d of them its own", count,
                     others);
        (void)usleep(1000);
    }
}

Test(command_end, the_first_process_of_a_container_reaps_what_others_leave_behind) {
    program_t program, holder;
    if (system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0) {
        cr_skip_test("namespaces of processes cannot be had here");
    }
    start(&holder, "run", "x", "--", "sh", "-c", "echo command $$ >&9; exec sleep 1000", NULL);
    (void)read_pid(&holder, "command");
    start_plain(&program, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", DLOCK_COMMAND,
                "--config", config_path, "run", "--verbose", "x", "--", "sh", "-c",
                "echo command $$ >&9; exec sleep 1000", NULL);
    read_error_until(&program, "waiting for 'x'");
    pid_t first = child_of(program.pid);
    (void)watched(first);
    expect_orphans_reaped(first, 1); /* beside the keeper */
    cr_assert_eq(kill(holder.pid, SIGTERM), 0);
    (void)finish(&holder);
    (void)read_pid(&program, "command");
    expect_orphans_reaped(first, 1);
    cr_assert_eq(kill(first, SIGTERM), 0);
    (void)finish(&program);
    expect_status(&program, 128 + SIGTERM);
}
