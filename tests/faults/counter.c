/* counter.c - processes and threads increment one plain number under a lock: is any update lost? */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: counter [--processes N] [--threads N] [--total N] [--name NAME] [--no-control] CONFIG
 *
 * The backend is what `use:` in CONFIG (or $DLOCK_BACKEND) says, and nothing else. The number lies in a file.
 * An increment reads it, gives the processor away, and writes it back: nothing but the lock keeps two of
 * them apart. The control does the same without a lock and must lose updates, or the test would prove
 * nothing. Prints one line a run; ends with 0 only if the lock lost none and the control some.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock/dlock.h"

enum { PROCESSES_MAX = 64, THREADS_MAX = 64, CONTROL_TRIES = 5 };

typedef struct plan {
    const char *config; /* NULL: without a lock */
    const char *name;
    int processes, threads;
    long total;
} plan_t;

typedef struct worker {
    pthread_t thread;
    dl_client_t *client; /* NULL: without a lock */
    const char *name;
    long count; /* increments to make */
    int failed;
} worker_t;

static int number_fd;
static atomic_long *made; /* increments, by all processes: one that fails makes fewer than planned */

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

static int complain(const char *what, const char *why) {
    fprintf(stderr, "counter: %s: %s\n", what, why);
    return -1;
}

/* ---- the number -------------------------------------------------------------------------------- */

/* The file: the number, and the token of the last holder. */
enum { NUMBER_AT = 0, TOKEN_AT = sizeof(int64_t) };

static int64_t read_at(off_t at) {
    int64_t value;
    if (pread(number_fd, &value, sizeof value, at) != (ssize_t)sizeof value) {
        die("read");
    }
    return value;
}

static void write_at(off_t at, int64_t value) {
    if (pwrite(number_fd, &value, sizeof value, at) != (ssize_t)sizeof value) {
        die("write");
    }
}

static void increment(void) {
    int64_t number = read_at(NUMBER_AT);
    sched_yield();
    write_at(NUMBER_AT, number + 1);
    atomic_fetch_add(made, 1);
}

/* ---- the work ---------------------------------------------------------------------------------- */

/* One increment under the lock. */
static int increment_locked(dl_lock_t *lock) {
    dl_error_t err;
    int failed = 0;
    if (dl_lock(lock, &err) != DL_OK) {
        return complain("lock", err.message);
    }
    int64_t token = (int64_t)dl_token(lock);
    if (token <= read_at(TOKEN_AT)) {
        failed = complain("token", "it is not larger than that of the holder before");
    }
    write_at(TOKEN_AT, token);
    increment();
    if (dl_unlock(lock, &err) != DL_OK) {
        return complain("unlock", err.message);
    }
    return failed;
}

static void *work(void *arg) {
    worker_t *worker = arg;
    dl_lock_t *lock = NULL;
    dl_error_t err;
    if (worker->client != NULL && dl_lock_open(worker->client, worker->name, &lock, &err) != DL_OK) {
        worker->failed = complain("open", err.message);
        return NULL;
    }
    for (long i = 0; i < worker->count && !worker->failed; i++) {
        if (lock == NULL) {
            increment();
        } else {
            worker->failed = increment_locked(lock);
        }
    }
    dl_lock_close(lock);
    return NULL;
}

/* `start` ends when all may begin. */
static int run_process(const plan_t *plan, int self, int start) {
    worker_t workers[THREADS_MAX];
    dl_client_t *client = NULL;
    dl_error_t err;
    char byte;
    int failed = 0, slots = plan->processes * plan->threads;
    if (plan->config != NULL && dl_client_open(plan->config, NULL, &client, &err) != DL_OK) {
        return complain("open", err.message);
    }
    while (read(start, &byte, 1) < 0 && errno == EINTR) {}
    for (int i = 0; i < plan->threads; i++) {
        int slot = self * plan->threads + i;
        workers[i] = (worker_t){.client = client,
                                .name = plan->name,
                                .count = plan->total / slots + (slot < plan->total % slots)};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            die("thread");
        }
    }
    for (int i = 0; i < plan->threads; i++) {
        pthread_join(workers[i].thread, NULL);
        failed |= workers[i].failed;
    }
    dl_client_close(client);
    return failed;
}

/* Runs the plan; prints its line. Returns how many updates were lost, or -1 when a process failed. */
static long run(const plan_t *plan, const char *label) {
    int start[2], failed = 0, status;
    pid_t parent = getpid();
    write_at(NUMBER_AT, 0);
    write_at(TOKEN_AT, 0);
    atomic_store(made, 0);
    if (pipe2(start, O_CLOEXEC) != 0) {
        die("pipe");
    }
    fflush(NULL);
    for (int i = 0; i < plan->processes; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            die("fork");
        }
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(start[1]);
            _exit(getppid() != parent || run_process(plan, i, start[0]) != 0);
        }
    }
    close(start[0]);
    int64_t began_us = now_us();
    close(start[1]);
    while (wait(&status) > 0) {
        failed |= status != 0;
    }
    double seconds = (double)(now_us() - began_us) / 1e6;
    long done = atomic_load(made), lost = done - (long)read_at(NUMBER_AT);
    printf(
        "%-24s %d processes x %d threads, %ld increments in %.3f s (%.0f/s): total %ld, lost updates %ld\n",
        label, plan->processes, plan->threads, done, seconds, seconds > 0 ? (double)done / seconds : 0,
        done - lost, lost);
    return failed ? -1 : lost;
}

/* ---- main -------------------------------------------------------------------------------------- */

static int keep_selected(void *arg, const char *backend, const char *driver, int compiled_in, int selected) {
    (void)backend;
    (void)compiled_in;
    if (selected) {
        snprintf(arg, 32, "%s", driver);
    }
    return selected;
}

static long number(const char *text, long max) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < 1 || value > max) {
        fprintf(stderr, "counter: '%s' is not a number from 1 to %ld\n", text, max);
        exit(2);
    }
    return value;
}

static int take_options(int argc, char **argv, plan_t *plan, int *control) {
    static const struct option options[] = {
        {"processes", required_argument, NULL, 'p'}, {"threads", required_argument, NULL, 't'},
        {"total", required_argument, NULL, 'n'},     {"name", required_argument, NULL, 'l'},
        {"no-control", no_argument, NULL, 'c'},      {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'p':
            plan->processes = (int)number(optarg, PROCESSES_MAX);
            break;
        case 't':
            plan->threads = (int)number(optarg, THREADS_MAX);
            break;
        case 'n':
            plan->total = number(optarg, 100000000);
            break;
        case 'l':
            plan->name = optarg;
            break;
        case 'c':
            *control = 0;
            break;
        default:
            return -1;
        }
    }
    if (optind != argc - 1) {
        return -1;
    }
    plan->config = argv[optind];
    return 0;
}

int main(int argc, char **argv) {
    plan_t plan = {.name = "the counter's lock", .processes = 8, .threads = 4, .total = 20000};
    char driver[32] = "", folder[] = "/tmp/dlock-counter-XXXXXX", path[64];
    int control = 1;
    long lost = 0;
    dl_error_t err;
    if (take_options(argc, argv, &plan, &control) != 0) {
        fprintf(stderr,
                "usage: %s [--processes N] [--threads N] [--total N] [--name NAME] [--no-control] CONFIG\n",
                argv[0]);
        return 2;
    }
    if (dl_backends(plan.config, NULL, 0, keep_selected, driver, &err) != DL_OK) {
        return complain(plan.config, err.message), 2;
    }
    if (mkdtemp(folder) == NULL) {
        die(folder);
    }
    snprintf(path, sizeof path, "%s/number", folder);
    number_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (number_fd < 0) {
        die(path);
    }
    /* Open is enough: nothing is left behind, whatever happens. */
    unlink(path);
    rmdir(folder);

    made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        die("memory");
    }
    int failed = run(&plan, driver) != 0;
    plan.config = NULL;
    for (int i = 0; control && lost == 0 && i < CONTROL_TRIES; i++) {
        lost = run(&plan, "no lock");
    }
    return failed || (control && lost <= 0);
}
