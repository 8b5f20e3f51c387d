/* command_terminal_test.c - what dlock shows on a terminal and not elsewhere, and what Ctrl-Z does. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command_screen.h"

TestSuite(command_terminal, .init = fixture_open, .fini = fixture_close);

/* ---- check ------------------------------------------------------------------------------------------ */

/* How much space is free changes all the time. */
static bool is_of_free_space(const char *text) {
    size_t digits = strspn(text, "0123456789");
    const char *after = text + digits;
    return digits > 0 && strncmp(after + strspn(after, " \n"), "MiB ", 4) == 0;
}

/* The words of a text, without the colours and that number. */
static void flatten(const char *text, char *words, size_t size) {
    size_t used = 0;
    for (; *text != '\0' && used + 1 < size; text++) {
        if (*text == '\033') {
            text = strchr(text, 'm');
        } else if (is_of_free_space(text)) {
            continue;
        } else if ((*text != ' ' && *text != '\n') || (used > 0 && words[used - 1] != ' ')) {
            words[used++] = *text == '\n' ? ' ' : *text;
        }
    }
    words[used] = '\0';
}

/* What does not fit although it was broken. */
static void expect_width(const char *text, int width) {
    for (const char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        int columns = 0;
        const char *last_blank = NULL;
        for (const char *at = line; at < end; at++) {
            if (*at == '\033') {
                at = strchr(at, 'm');
                continue;
            }
            last_blank = *at == ' ' ? at : last_blank;
            columns++;
        }
        /* A word alone may be longer than a line. */
        cr_assert(columns <= width || last_blank <= line + 9, "%d columns: %.*s", columns, (int)(end - line),
                  line);
    }
}

Test(command_terminal, check_breaks_lines_at_words_and_indents_what_follows) {
    program_t plain;
    char expected[16384], shown[16384];
    (void)dlock(&plain, "init", NULL);
    (void)dlock(&plain, "check", NULL);
    cr_assert_eq(plain.status, 0);
    flatten(plain.out_text, expected, sizeof expected);
    const unsigned short widths[] = {60, 80};
    for (size_t i = 0; i < 2; i++) {
        screen_t screen;
        screen_start(&screen, widths[i], "check", NULL);
        cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
        expect_width(screen.text, widths[i]);
        flatten(screen.text, shown, sizeof shown);
        cr_assert_str_eq(shown, expected);
        cr_assert_has(screen.text, "a reboot frees every");
        cr_assert_has(screen.text, "\n         "); /* under the text, behind the level */
    }
    /* COLUMNS counts for more than the terminal itself. */
    (void)setenv("COLUMNS", "40", 1);
    screen_t screen;
    screen_start(&screen, 200, "check", NULL);
    cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
    expect_width(screen.text, 40);
}

Test(command_terminal, check_colours_the_level_only_where_colours_are_wanted) {
    program_t program;
    screen_t screen;
    (void)dlock(&program, "init", NULL);
    cr_assert_eq(chmod(database_path, 0666), 0);
    screen_start(&screen, 80, "check", NULL);
    cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
    cr_assert_has(screen.text, "\n\033[32mok\033[0m       filesystem: ");
    cr_assert_has(screen.text, "\n\033[36mnote\033[0m     guarantee: ");
    cr_assert_has(screen.text, "\n\033[33mwarning\033[0m  file: ");
    static const char *const refusals[][2] = {{"NO_COLOR", "0"}, {"TERM", "dumb"}};
    for (size_t i = 0; i < 2; i++) {
        (void)setenv(refusals[i][0], refusals[i][1], 1);
        screen_start(&screen, 80, "check", NULL);
        cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
        cr_assert_null(strchr(screen.text, '\033'), "%s", screen.text);
        cr_assert_has(screen.text, "\nwarning  file: ");
        (void)setenv("NO_COLOR", "", 1); /* empty is as if it were not set */
        (void)setenv("TERM", "xterm", 1);
    }
    screen_start(&screen, 80, "check", NULL);
    (void)screen_end(&screen);
    cr_assert_not_null(strchr(screen.text, '\033'), "%s", screen.text);
    (void)dlock(&program, "check", NULL);
    cr_assert_null(strchr(program.out_text, '\033'), "%s", program.out_text);
}

Test(command_terminal, check_ends_with_the_number_of_errors_and_warnings) {
    static const struct {
        mode_t folder, file;
        const char *line, *json;
    } cases[] = {{0755, 0600, "\n0 errors, 0 warnings\n", ", \"errors\": 0, \"warnings\": 0}\n"},
                 {0755, 0666, "\n0 errors, 1 warning\n", ", \"errors\": 0, \"warnings\": 1}\n"},
                 {0777, 0666, "\n0 errors, 2 warnings\n", ", \"errors\": 0, \"warnings\": 2}\n"}};
    program_t program;
    (void)dlock(&program, "init", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(chmod(work_dir, cases[i].folder), 0);
        cr_assert_eq(chmod(database_path, cases[i].file), 0);
        (void)dlock(&program, "check", NULL);
        cr_assert_geq(program.out_len, strlen(cases[i].line));
        cr_assert_str_eq(program.out_text + program.out_len - strlen(cases[i].line), cases[i].line);
        (void)dlock(&program, "check", "--json", NULL);
        cr_assert_geq(program.out_len, strlen(cases[i].json));
        cr_assert_str_eq(program.out_text + program.out_len - strlen(cases[i].json), cases[i].json);
        (void)dlock(&program, "check", "--quiet", NULL);
        cr_assert_str_empty(program.out_text);
    }
}

/* ---- waiting for the lock --------------------------------------------------------------------------- */

static void hold_name(program_t *holder, const char *name) {
    char line[16];
    start(holder, "run", name, "--", "sh", "-c", "echo held >&9; cat", NULL);
    read_line(holder, line, sizeof line);
}

static void hold(program_t *holder) {
    hold_name(holder, "x");
}

/* What is said of a wait for this holder, up to what is left of the lease; returns how often it is said. */
static size_t count_lines(const screen_t *screen, const program_t *holder) {
    char words[96];
    size_t count = 0;
    (void)snprintf(words, sizeof words, ":%d, lease ends in ", (int)holder->pid);
    for (const char *at = screen->text; (at = strstr(at, words)) != NULL; at++) {
        count++;
    }
    return count;
}

Test(command_terminal, a_wait_says_after_a_second_who_holds_the_lock_and_when_that_changes) {
    program_t first, second;
    screen_t waiter;
    hold(&first);
    uint64_t began_ns = now_boot_ns();
    screen_start(&waiter, 80, "run", "x", "--", "echo", "mine", NULL);
    screen_read_until(&waiter, " unless renewed\n");
    cr_assert_geq(now_boot_ns() - began_ns, 1000000000u, "%s", waiter.text);
    cr_assert_eq(strncmp(waiter.text, "dlock: waiting for 'x', held by ", 32), 0, "%s", waiter.text);
    cr_assert_eq(count_lines(&waiter, &first), 1, "%s", waiter.text);
    /* It asks again after 2 s, and that is no news. */
    struct pollfd more = {.fd = waiter.fd, .events = POLLIN};
    cr_assert_eq(poll(&more, 1, 2500), 0, "it goes on talking");
    /* While it is stopped, another gets the lock. */
    cr_assert_eq(kill(waiter.pid, SIGSTOP), 0);
    cr_assert_eq(finish(&first), 0, "%s", first.err_text);
    hold(&second);
    cr_assert_eq(kill(waiter.pid, SIGCONT), 0);
    while (count_lines(&waiter, &second) == 0) {
        cr_assert(screen_read(&waiter), "%s", waiter.text);
    }
    cr_assert_eq(finish(&second), 0, "%s", second.err_text);
    cr_assert_eq(screen_end(&waiter), 0, "%s", waiter.text);
    cr_assert_eq(count_lines(&waiter, &first), 1, "%s", waiter.text);
    cr_assert_eq(count_lines(&waiter, &second), 1, "%s", waiter.text);
    cr_assert_has(waiter.text, "\nmine\n");
}

Test(command_terminal, a_wait_asks_for_the_name_as_it_is_and_shows_it_fit_for_a_terminal) {
    program_t holder;
    screen_t waiter;
    hold_name(&holder, "a\\b\tc");
    screen_start(&waiter, 80, "run", "a\\b\tc", "--", "true", NULL);
    screen_read_until(&waiter, "\n");
    cr_assert_has(waiter.text, "dlock: waiting for 'a\\\\b\\x09c', held by ");
    cr_assert_eq(finish(&holder), 0, "%s", holder.err_text);
    cr_assert_eq(screen_end(&waiter), 0, "%s", waiter.text);
}

Test(command_terminal, a_wait_says_nothing_where_nobody_reads_or_wants_it) {
    program_t holder, waiter;
    screen_t quiet;
    hold(&holder);
    (void)dlock(&waiter, "run", "x", "--wait", "1500ms", "--", "true", NULL);
    cr_assert_eq(waiter.status, 75, "%s", waiter.err_text);
    cr_assert_null(strstr(waiter.err_text, "waiting for"), "%s", waiter.err_text);
    screen_start(&quiet, 80, "run", "x", "--wait", "1500ms", "--quiet", "--", "true", NULL);
    cr_assert_eq(screen_end(&quiet), 75, "%s", quiet.text);
    cr_assert_str_empty(quiet.text);
    (void)finish(&holder);
}

/* ---- stopped from the terminal ----------------------------------------------------------------------- */

/* A shell of jobs: dlock is one, so that there is somebody to continue it. */
static void start_job(screen_t *screen, const char *script) {
    struct winsize size = {.ws_row = 25, .ws_col = 200};
    *screen = (screen_t){.fd = -1};
    screen->pid = forkpty(&screen->fd, NULL, NULL, &size);
    if (screen->pid < 0) {
        cr_skip("no pseudo terminals here");
    }
    if (screen->pid == 0) {
        (void)execlp("sh", "sh", "-m", "-c", script, DLOCK_COMMAND, config_path, NULL);
        _exit(99);
    }
}

/* The number behind these words, once its line is complete. */
static pid_t screen_read_pid(screen_t *screen, const char *words) {
    screen_read_until(screen, words);
    const char *at = strstr(screen->text, words) + strlen(words);
    while (strchr(at, '\n') == NULL) {
        cr_assert(screen_read(screen), "%s", screen->text);
    }
    return (pid_t)atoi(at);
}

/* The keeper has ended the command by then, and the numbers of both may be others'. */
Test(command_terminal, a_run_that_was_stopped_beyond_its_lease_kills_nobody_when_continued) {
    screen_t screen;
    start_job(&screen, "\"$0\" --config \"$1\" run x -v --lease 1s -- "
                       "sh -c 'echo keeper $PPID; exec sleep 1000'; "
                       "echo stopped; read x; fg; echo status $?");
    int keeper = watched(screen_read_pid(&screen, "\nkeeper "));
    cr_assert_eq(write(screen.fd, "\x1a", 1), 1);
    screen_read_until(&screen, "stopped\n");
    (void)await_end(keeper);
    uint64_t late_ms = last_instant_ms(screen.text, "valid until ") + 200;
    while (now_boot_ns() / 1000000u < late_ms) {
        (void)usleep(1000);
    }
    cr_assert_eq(write(screen.fd, "\n", 1), 1);
    cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
    cr_assert_has(screen.text, "\nstatus 76\n");
    cr_assert_has(screen.text, "ms: everything has ended");
    cr_assert_null(strstr(screen.text, "in place of lock-keeper"), "%s", screen.text);
}

/* dlock in a shell without job control, which has the words behind it; the command's own are "$2". */
#define SCRIPT(behind) \
    "sh -c '\"$0\" --config \"$1\" run x -- sh -c \"$2\"; echo script $?' \"$0\" \"$1\" " behind

/* The terminal is the command's by then, so that it alone hears of Ctrl-Z. */
Test(command_terminal, ctrl_z_stops_the_script_around_dlock_too) {
    screen_t screen;
    start_job(&screen,
              SCRIPT("'read a; echo got-$a; read b; echo got-$b'; echo stopped; fg; echo status $?"));
    cr_assert_eq(write(screen.fd, "one\n", 4), 4);
    screen_read_until(&screen, "got-one\n");
    cr_assert_eq(write(screen.fd, "\x1a", 1), 1);
    screen_read_until(&screen, "stopped\n");
    cr_assert_eq(write(screen.fd, "two\n", 4), 4);
    cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
    cr_assert_has(screen.text, "got-two\nscript 0\nstatus 0\n");
}

Test(command_terminal, a_read_from_the_background_stops_the_script_around_dlock_too) {
    screen_t screen;
    start_job(&screen, SCRIPT("'read a </dev/tty; echo got-$a' & "
                              "until jobs >\"$1.jobs\"; grep -q Stopped \"$1.jobs\"; do :; done; "
                              "echo stopped; fg; echo status $?"));
    screen_read_until(&screen, "stopped\n");
    cr_assert_eq(write(screen.fd, "one\n", 4), 4);
    cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
    cr_assert_has(screen.text, "got-one\nscript 0\nstatus 0\n");
}

/* Its group has lost its parent before dlock begins, so nobody stops it: each continued read would stop
 * again. */
Test(command_terminal, a_read_from_the_background_that_nobody_can_stop_is_told_once_and_ends_with_the_lock) {
    static const char line[] =
        "dlock: 'x': the command wants the terminal from the background, and is stopped until SIGCONT\n";
    program_t unlock;
    screen_t screen;
    start_job(&screen, "sh -c '(while kill -0 $$ 2>/dev/null; do :; done; exec \"$0\" --config \"$1\" run x "
                       "-- sh -c \"read a </dev/tty\") &' \"$0\" \"$1\" & wait; read x");
    screen_read_until(&screen, line);
    (void)dlock(&unlock, "unlock", "--force", "x", NULL);
    cr_assert_eq(unlock.status, 0, "%s", unlock.err_text);
    screen_read_until(&screen, "dlock: 'x': the lock was lost");
    cr_assert_null(strstr(strstr(screen.text, line) + 1, line), "%s", screen.text);
    cr_assert_eq(write(screen.fd, "\n", 1), 1);
    cr_assert_eq(screen_end(&screen), 0, "%s", screen.text);
}
