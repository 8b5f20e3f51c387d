/* plain_runner.c - runs contract cases without a test framework: for sanitizers, valgrind and debuggers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/beat.h"
#include "support/ct.h"
#include "support/scratch.h"
#include "support/ticks.h"

#define JOBS_MAX 64
/* Cases on real time mostly wait, so many run at once, and more and fewer of them as the machine has time to
 * spare: one that does not get its turn would look like a failure. Those on simulated time compute. */
#define MOST_JOBS 12
#define LEAST_JOBS 4
#define PACE_S 0.2
#define PLENTY_PERCENT 50
#define SCARCE_PERCENT 30

typedef struct choice {
    const char *driver; /* NULL: all */
    const char *text;   /* in "driver/suite__name"; NULL: all */
    const char *caps_file;
    int list, no_fork;
    int jobs; /* how many cases run at once; 0: as the machine allows */
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
    "  --door NAME       queue: lock calls go through a completion queue instead of blocking\n"
    "  --no-fork         run them in this process, one after the other; the first failure ends it\n"
    "  --jobs N          how many processes at once (up to 12, as the machine has time to spare)\n"
    "  --real-time       the fakes too run on the machine's clock\n"
    "  --serial          simulated time: one thread at a time, in an order that the seed gives\n"
    "  --seed N          for --serial, for the simulated randomness and for random walks (1)\n"
    "  --caps-file FILE  compare with this table instead of tests/contract/caps.txt\n"
    "  --caps            print the lines that tests/contract/caps.txt should have\n";

/* Since the boot, as in /proc/uptime: who reads a failure may have looked at the machine meanwhile. */
static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What failed, said once more at the end. */
static FILE *failures;
static char *failures_text;
static size_t failures_len;

static void report(const char *name, double start_s, const char *why, counts_t *counts) {
    if (why == NULL) {
        printf("ok   %s (%.0f ms)\n", name, (now_s() - start_s) * 1e3);
        counts->passed++;
    } else {
        printf("FAIL %s: %s (from %.2f s to %.2f s)\n", name, why, start_s, now_s());
        const char *door = strstr(name, "-queue/") != NULL ? "--door queue " : "";
        fprintf(failures, "  %s: %s\n    again: %s %s--case %s\n", name, why, program_invocation_name, door,
                name);
        counts->failed++;
    }
    fflush(stdout);
}

/* ---- the pace ------------------------------------------------------------------------------------------ */

typedef struct pace {
    int most, least, now; /* cases at once */
    double looked_s;
    ticks_t then;
} pace_t;

static pace_t pace;

static void set_pace(const fixture_t *fixture, const choice_t *choice) {
    int is_virtual = (ct_traits_of(fixture, &choice->run) & CT_VIRTUAL) != 0;
    pace.least = pace.now = choice->jobs != 0 ? choice->jobs : is_virtual ? 1 : LEAST_JOBS;
    pace.most = choice->jobs != 0 ? choice->jobs : MOST_JOBS;
}

/* How many cases may run now. Time in which the machine waits for its disk or its host is not to spare. */
static int keep_pace(void) {
    ticks_t now;
    double now_is = now_s();
    if (pace.most == pace.least || now_is - pace.looked_s < PACE_S || !ticks_read(&now)) {
        return pace.now;
    }
    if (pace.then.total != 0 && now.total > pace.then.total) {
        unsigned long long percent = (now.idle - pace.then.idle) * 100 / (now.total - pace.then.total);
        pace.now += percent >= PLENTY_PERCENT && pace.now < pace.most;
        pace.now -= percent < SCARCE_PERCENT && pace.now > pace.least;
    }
    pace.looked_s = now_is;
    pace.then = now;
    return pace.now;
}

/* ---- a process for each case ------------------------------------------------------------------------- */

/* One case that is running. */
typedef struct job {
    pid_t pid; /* 0: none */
    char name[300];
    char dir[CT_DIR_MAX];
    char *reason; /* shared with its processes, and kept for the next job */
    double start_s, until_s;
    int timeout_s;
} job_t;

static job_t jobs[JOBS_MAX];

static char *share_reason(job_t *job) {
    if (job->reason == NULL) {
        job->reason = mmap(NULL, CT_REASON_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (job->reason == MAP_FAILED) {
            perror("mmap");
            exit(2);
        }
    }
    job->reason[0] = 0;
    return job->reason;
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

static void start_job(job_t *job, const ct_case_t *test, const fixture_t *fixture, const choice_t *choice) {
    ct_run_options_t options = choice->run;
    ct_full_name(test, fixture, choice->run.door, job->name, sizeof job->name);
    ct_make_dir(job->dir);
    options.dir = job->dir;
    job->timeout_s = ct_timeout_s(test);
    job->start_s = now_s();
    /* The case has a limit of its own (SIGALRM); this one is for a process that cannot even say so. */
    job->until_s = job->start_s + job->timeout_s + 10;
    ct_reason = share_reason(job);
    fflush(NULL);
    pid_t parent = getpid();
    job->pid = fork();
    if (job->pid < 0) {
        perror("fork");
        exit(2);
    }
    if (job->pid == 0) {
        run_in_child(test, fixture, &options, parent);
    }
}

/* In one line. NULL: passed. */
static const char *why_failed(const job_t *job, int status, int killed, char *text, size_t size) {
    if (killed || (WIFEXITED(status) && WEXITSTATUS(status) == CT_EXIT_TIMEOUT)) {
        snprintf(text, size, "not done after %d s", job->timeout_s);
    } else if (WIFSIGNALED(status)) {
        snprintf(text, size, "died of signal %d", WTERMSIG(status));
    } else if (WEXITSTATUS(status) == CT_EXIT_FAILED) {
        snprintf(text, size, "%s", job->reason[0] != 0 ? job->reason : "it did not say why");
        for (char *end; (end = strchr(text, '\n')) != NULL;) {
            *end = ' ';
        }
    } else if (WEXITSTATUS(status) != 0) {
        snprintf(text, size, "exit status %d", WEXITSTATUS(status));
    } else {
        return NULL;
    }
    return text;
}

/* Reports the job if it has ended or has to be ended. */
static void look_at_job(job_t *job, counts_t *counts) {
    int status = 0, killed = 0;
    char text[CT_REASON_MAX];
    if (waitpid(job->pid, &status, WNOHANG) != job->pid) {
        if (now_s() < job->until_s) {
            return;
        }
        kill(job->pid, SIGKILL);
        (void)waitpid(job->pid, &status, 0);
        killed = 1;
    }
    job->pid = 0;
    scratch_remove(job->dir);
    report(job->name, job->start_s, why_failed(job, status, killed, text, sizeof text), counts);
}

/* Waits until another may start, or until all have ended. */
static void wait_for_jobs(int all, counts_t *counts) {
    for (;;) {
        int left = 0;
        for (int i = 0; i < JOBS_MAX; i++) {
            if (jobs[i].pid != 0) {
                look_at_job(&jobs[i], counts);
            }
            left += jobs[i].pid != 0;
        }
        if (left < (all ? 1 : keep_pace())) {
            return;
        }
        /* SIGCHLD is blocked: the wait ends at once when a case does. */
        struct timespec pause = {.tv_nsec = 100000000};
        sigset_t child;
        sigemptyset(&child);
        sigaddset(&child, SIGCHLD);
        (void)sigtimedwait(&child, NULL, &pause);
    }
}

static void run_forked(const ct_case_t *test, const fixture_t *fixture, const choice_t *choice,
                       counts_t *counts) {
    wait_for_jobs(0, counts);
    job_t *job = jobs;
    while (job->pid != 0) {
        job++;
    }
    start_job(job, test, fixture, choice);
}

/* ---- the run ------------------------------------------------------------------------------------------ */

static void run_one(const ct_case_t *test, const fixture_t *fixture, const choice_t *choice,
                    counts_t *counts) {
    char name[300];
    ct_full_name(test, fixture, choice->run.door, name, sizeof name);
    if (choice->list) {
        puts(name);
    } else if (choice->no_fork) {
        double start_s = now_s();
        ct_run(test, fixture, &choice->run);
        report(name, start_s, NULL, counts);
    } else {
        run_forked(test, fixture, choice, counts);
    }
}

static void run_fixture(const fixture_t *fixture, const choice_t *choice, counts_t *counts) {
    set_pace(fixture, choice);
    for (const ct_case_t *test = ct_first_case(); test != NULL; test = test->next) {
        char name[300];
        ct_full_name(test, fixture, choice->run.door, name, sizeof name);
        if (choice->text != NULL && strstr(name, choice->text) == NULL) {
            continue;
        }
        if (ct_applies(test, fixture, &choice->run)) {
            run_one(test, fixture, choice, counts);
        } else {
            counts->not_applicable++;
        }
    }
}

static ct_door_t door_called(const char *name) {
    if (strcmp(name, "queue") != 0 && strcmp(name, "blocking") != 0) {
        fprintf(stderr, "there is no door '%s'\n", name);
        exit(2);
    }
    return strcmp(name, "queue") == 0 ? CT_DOOR_QUEUE : CT_DOOR_BLOCKING;
}

static void read_options(int argc, char **argv, choice_t *choice) {
    enum { LIST = 1, DRIVER, CASE, DOOR, NO_FORK, REAL_TIME, SERIAL, SEED, CAPS, CAPS_FILE, JOBS };
    static const struct option options[] = {
        {"list", no_argument, NULL, LIST},
        {"driver", required_argument, NULL, DRIVER},
        {"case", required_argument, NULL, CASE},
        {"door", required_argument, NULL, DOOR},
        {"no-fork", no_argument, NULL, NO_FORK},
        {"serial", no_argument, NULL, SERIAL},
        {"real-time", no_argument, NULL, REAL_TIME},
        {"seed", required_argument, NULL, SEED},
        {"caps", no_argument, NULL, CAPS},
        {"jobs", required_argument, NULL, JOBS},
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
        case DOOR:
            choice->run.door = door_called(optarg);
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
        case JOBS:
            choice->jobs = atoi(optarg);
            choice->jobs = choice->jobs < 1 ? 1 : choice->jobs > JOBS_MAX ? JOBS_MAX : choice->jobs;
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
    failures = open_memstream(&failures_text, &failures_len);
    if (failures == NULL) {
        perror("open_memstream");
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
    if (!choice.list) {
        beat_begin();
        fixtures_begin(only);
    }
    if (only != NULL) {
        run_fixture(only, &choice, &counts);
    }
    for (size_t i = 0; only == NULL && fixture_at(i) != NULL; i++) {
        run_fixture(fixture_at(i), &choice, &counts);
    }
    wait_for_jobs(1, &counts);
    fixtures_end();
    fclose(failures);
    if (!choice.list) {
        printf("%s", failures_text);
        printf("%d passed, %d failed, %d not applicable\n", counts.passed, counts.failed,
               counts.not_applicable);
    }
    free(failures_text);
    return counts.failed == 0 ? 0 : 1;
}
