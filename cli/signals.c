/* signals.c - which signals are passed on to the command, and how they were when dlock was started. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "signals.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int all_passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP};
static const int all_ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static bool is_ignored(int number) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* nohup and the shells' background jobs ignore some signals; reading them here would undo that. */
static void add_unless_ignored(sigset_t *set, const int *numbers, size_t count) {
    (void)sigemptyset(set);
    for (size_t i = 0; i < count; i++) {
        if (!is_ignored(numbers[i])) {
            (void)sigaddset(set, numbers[i]);
        }
    }
}

void signals_begin(signals_t *signals) {
    add_unless_ignored(&signals->passed_on, all_passed_on, sizeof all_passed_on / sizeof all_passed_on[0]);
    add_unless_ignored(&signals->ending, all_ending, sizeof all_ending / sizeof all_ending[0]);
    (void)sigaddset(&signals->passed_on, SIGCONT); /* who ignores it is continued all the same */
    sigset_t blocked = signals->passed_on;
    /* In the background of a terminal we still hand it over and write our lines; no other thread is to take
     * the signal by which we stop. */
    (void)sigaddset(&blocked, SIGTTOU);
    (void)sigaddset(&blocked, SIGTTIN);
    (void)sigprocmask(SIG_BLOCK, &blocked, &signals->inherited_mask);
    /* With SIGCHLD ignored the kernel would throw exit statuses away. */
    struct sigaction child = {.sa_handler = SIG_DFL};
    (void)sigaction(SIGCHLD, &child, &signals->inherited_child);
}

void signals_restore(const signals_t *signals) {
    (void)sigaction(SIGCHLD, &signals->inherited_child, NULL);
    (void)sigprocmask(SIG_SETMASK, &signals->inherited_mask, NULL);
}

bool stop_ourselves(int number, bool whole_group) {
    sigset_t stop;
    sigset_t before;
    sigset_t pending;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, number);
    (void)kill(whole_group ? 0 : getpid(), number); /* waits, blocked; the whole process stops with us */
    (void)pthread_sigmask(SIG_UNBLOCK, &stop, &before);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return sigpending(&pending) == 0 && sigismember(&pending, SIGCONT) == 1;
}

signal_name_t signal_name(int number) {
    signal_name_t name;
    const char *short_name = sigabbrev_np(number);
    if (short_name != NULL) {
        (void)snprintf(name.text, sizeof name.text, "SIG%s", short_name);
    } else {
        (void)snprintf(name.text, sizeof name.text, "signal %d", number);
    }
    return name;
}
