/* plain_runner.c - runs contract cases without a test framework: for sanitizers, valgrind and debuggers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/ct.h"

typedef struct choice {
    const char *driver; /* NULL: all */
    const char *text;   /* in "driver/suite__name"; NULL: all */
    const char *caps_file;
    int list, no_fork;
    ct_run_options_t run;
} choice_t;

typedef struct counts {
    int passed, failed, not_applicable;
} counts_t;

static const char usage[] =
    "usage: %s [option]...\n"
    "  --list            print the names of the cases that would run\n"
    "  --driver NAME     only this fixture\n"
    "  --case TEXT       only cases whose \"driver/suite__name\" contains TEXT\n"
    "  --no-fork         run them in this process, one after the other; the first failure ends it\n"
    "  --real-time       the fakes too run on the machine's clock\n"
    "  --serial          simulated time: one thread at a time, in an order that the seed gives\n"
    "  --seed N          for --serial and for the simulated randomness (1)\n"
    "  --caps-file FILE  compare with this table instead of tests/contract/caps.txt\n"
    "  --caps            print the lines that tests/contract/caps.txt should have\n";

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Waits for the case's process; 1: it did not end and was killed. The case has a limit of its own (SIGALRM),
 * this one is for a process that cannot even say so. */
static int wait_for_end(pid_t pid, int limit_s, int *status) {
    double until = now_s() + limit_s;
    for (;;) {
        pid_t rc = waitpid(pid, status, WNOHANG);
        if (rc == pid) {
            return 0;
        }
        if (now_s() > until) {
            kill(pid, SIGKILL);
            (void)waitpid(pid, status, 0);
            return 1;
        }
        struct timespec pause = {.tv_nsec = 2000000};
        sigset_t child;
        sigemptyset(&child);
        sigaddset(&child, SIGCHLD);
        (void)sigtimedwait(&child, NULL,
                           &pause); /* blocked in main: returns at once when the case has ended */
    }
}

static void run_in_child(const ct_case_t *test, const fixture_t *fixture, const ct_run_options_t *options,
                         pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    ct_run(test, fixture, options);
    exit(0); /* so that leak checkers have their say */
}

/* 1: passed. */
static int run_forked(const ct_case_t *test, const fixture_t *fixture, const choice_t *choice, char *why,
                      size_t size) {
    ct_run_options_t options = choice->run;
    char dir[CT_DIR_MAX];
    ct_make_dir(dir);
    options.dir = dir;
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(2);
    }
    if (pid == 0) {
        run_in_child(test, fixture, &options, parent);
    }
    int status = 0;
    int killed = wait_for_end(pid, ct_timeout_s(test) + 10, &status);
    ct_remove_dir(dir);
    if (killed || (WIFEXITED(status) && WEXITSTATUS(status) == CT_EXIT_TIMEOUT)) {
        snprintf(why, size, "not done after %d s", ct_timeout_s(test));
    } else if (WIFSIGNALED(status)) {
        snprintf(why, size, "died of signal %d", WTERMSIG(status));
    } else if (WEXITSTATUS(status) == CT_EXIT_FAILED) {
        snprintf(why, size, "see the line above");
    } else if (WEXITSTATUS(status) != 0) {
        snprintf(why, size, "exit status %d", WEXITSTATUS(status));
    } else {
        return 1;
    }
    return 0;
}

static void run_one(const ct_case_t *test, const fixture_t *fixture, const choice_t *choice,
                    counts_t *counts) {
    char name[300], why[64] = "";
    ct_full_name(test, fixture, name, sizeof name);
    if (choice->list) {
        puts(name);
        return;
    }
    double start = now_s();
    int passed = 1;
    if (choice->no_fork) {
        ct_run(test, fixture, &choice->run);
    } else {
        passed = run_forked(test, fixture, choice, why, sizeof why);
    }
    if (passed) {
        printf("ok   %s (%.0f ms)\n", name, (now_s() - start) * 1e3);
        counts->passed++;
    } else {
        printf("FAIL %s: %s\n", name, why);
        counts->failed++;
    }
    fflush(stdout);
}

static void run_fixture(const fixture_t *fixture, const choice_t *choice, counts_t *counts) {
    for (const ct_case_t *test = ct_first_case(); test != NULL; test = test->next) {
        char name[300];
        ct_full_name(test, fixture, name, sizeof name);
        if (choice->text != NULL && strstr(name, choice->text) == NULL) {
            continue;
        }
        if (ct_applies(test, fixture, choice->run.real_time)) {
            run_one(test, fixture, choice, counts);
        } else {
            counts->not_applicable++;
        }
    }
}

static void read_options(int argc, char **argv, choice_t *choice) {
    enum { LIST = 1, DRIVER, CASE, NO_FORK, REAL_TIME, SERIAL, SEED, CAPS, CAPS_FILE };
    static const struct option options[] = {
        {"list", no_argument, NULL, LIST},
        {"driver", required_argument, NULL, DRIVER},
        {"case", required_argument, NULL, CASE},
        {"no-fork", no_argument, NULL, NO_FORK},
        {"serial", no_argument, NULL, SERIAL},
        {"real-time", no_argument, NULL, REAL_TIME},
        {"seed", required_argument, NULL, SEED},
        {"caps", no_argument, NULL, CAPS},
        {"caps-file", required_argument, NULL, CAPS_FILE},
        {NULL, 0, NULL, 0},
    };
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        char line[512];
        switch (option) {
        case LIST:
            choice->list = 1;
            break;
        case DRIVER:
            choice->driver = optarg;
            break;
        case CASE:
            choice->text = optarg;
            break;
        case NO_FORK:
            choice->no_fork = 1;
            break;
        case REAL_TIME:
            choice->run.real_time = 1;
            break;
        case SERIAL:
            choice->run.serial = 1;
            break;
        case SEED:
            choice->run.seed = strtoull(optarg, NULL, 0);
            break;
        case CAPS_FILE:
            choice->caps_file = optarg;
            break;
        case CAPS:
            for (size_t i = 0; fixture_at(i) != NULL; i++) {
                fixture_describe(fixture_at(i), line, sizeof line);
                puts(line);
            }
            exit(0);
        default:
            fprintf(stderr, usage, argv[0]);
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    choice_t choice = {.caps_file = CT_CAPS_FILE, .run = {.seed = 1}};
    counts_t counts = {0, 0, 0};
    read_options(argc, argv, &choice);
    if (choice.driver != NULL && fixture_find(choice.driver) == NULL) {
        fprintf(stderr, "there is no fixture '%s'\n", choice.driver);
        return 2;
    }
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    const fixture_t *only = choice.driver == NULL ? NULL : fixture_find(choice.driver);
    if (!choice.list && fixtures_compare(choice.caps_file, only) != 0) {
        puts("FAIL caps: the caps of a driver are not those of the committed table");
        counts.failed++;
    }
    for (size_t i = 0; fixture_at(i) != NULL; i++) {
        if (only == NULL || fixture_at(i) == only) {
            run_fixture(fixture_at(i), &choice, &counts);
        }
    }
    if (!choice.list) {
        printf("%d passed, %d failed, %d not applicable\n", counts.passed, counts.failed,
               counts.not_applicable);
    }
    return counts.failed == 0 ? 0 : 1;
}
