/* kill_storm.c - holders killed, and stopped past their lease, many times, on the real clock and a file. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock/dlock.h"
#include "faults/talk.h"
#include "support/beat.h"
#include "support/scratch.h"

/*
 * Main starts lanes; a lane has a lock file of its own, a waiter for all its rounds, and a holder for each
 * round. Only waiters and holders are clients. They talk over socket pairs, in messages of 64 bits.
 */
#define LEASE_MS 1000
#define LANES_MAX 64

typedef enum storm { KILLED, STOPPED, STORMS } storm_t;

/* What a lane tells main of one round. */
typedef struct round_result {
    bool is_wrong;   /* a line was printed */
    int64_t took_us; /* from the kill, or the stop, to the waiter's DL_OK, as far as the machine ran */
} round_result_t;

static char folder[160];
static int64_t limit_us = (LEASE_MS + 100) * 1000; /* from the kill to the waiter's DL_OK */

/* Of a clock that stands as long as the machine does. */
static int64_t now_us(void) {
    uint64_t now_ns, stood_ns = beat_stood_ns(&now_ns);
    return (int64_t)((now_ns - stood_ns) / 1000);
}

static void sleep_ms(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

/* ---- clients --------------------------------------------------------------------------------- */

static dl_client_t *open_client(int lane) {
    char yaml[256];
    snprintf(yaml, sizeof yaml, "backends: {storm: {driver: sqlite, path: \"%s/%d.db\", lease: %dms}}\n",
             folder, lane, LEASE_MS);
    dl_client_t *client;
    dl_error_t err;
    if (dl_client_open_text(yaml, strlen(yaml), "storm", &client, &err) != DL_OK) {
        fprintf(stderr, "kill_storm: %s\n", err.message);
        exit(2);
    }
    return client;
}

static dl_lock_t *open_lock(dl_client_t *client) {
    dl_lock_t *lock;
    dl_error_t err;
    if (dl_lock_open(client, "the storm's lock", &lock, &err) != DL_OK) {
        fprintf(stderr, "kill_storm: %s\n", err.message);
        exit(2);
    }
    return lock;
}

static void expect(bool *is_wrong, bool truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "kill_storm: %s\n", what);
        *is_wrong = true;
    }
}

static void expect_status(bool *is_wrong, dl_status_t status, dl_status_t expected, const char *what) {
    if (status != expected) {
        fprintf(stderr, "kill_storm: %s is %s, expected %s\n", what, dl_status_name(status),
                dl_status_name(expected));
        *is_wrong = true;
    }
}

static uint64_t renewed(dl_client_t *client) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    (void)dl_client_stats(client, &stats);
    return stats.renewed;
}

/* What a holder finds that was stopped past its lease. */
static void look_back(dl_client_t *client, dl_lock_t *lock, bool *is_wrong) {
    expect(is_wrong, dl_valid_ms(lock) == 0, "the stopped holder still believes that it holds");
    expect_status(is_wrong, dl_unlock(lock, NULL), DL_ELOST, "the unlock of the stopped holder");
    expect_status(is_wrong, dl_unlock(lock, NULL), DL_ENOTOWNER, "its second unlock");
    int lost = 0;
    dl_event_t event = DL_EVENT_INIT;
    while (dl_event_next(client, &event) == DL_OK) {
        lost += event.kind == DL_EVENT_LOST;
    }
    expect(is_wrong, lost == 1, "not exactly one event of the loss");
}

/* Holds; is killed, or stopped past its lease and woken up. */
static void be_holder(int lane, int fd) {
    dl_client_t *client = open_client(lane);
    dl_lock_t *lock = open_lock(client);
    bool is_wrong = false;
    expect_status(&is_wrong, dl_lock(lock, NULL), DL_OK, "the holder's lock");
    uint64_t token = dl_token(lock);
    /* Right after a renewal it is not in the middle of a write, where a stopped process is in the way. */
    uint64_t before = renewed(client);
    for (int i = 0; i < 2 * LEASE_MS && renewed(client) == before; i++) {
        sleep_ms(1);
    }
    say(fd, (int64_t)token);
    (void)hear(fd); /* stopped or killed here */
    if (!is_wrong) {
        look_back(client, lock, &is_wrong);
    }
    say(fd, is_wrong);
    dl_lock_close(lock);
    dl_client_close(client);
    _exit(0);
}

/* For each message: waits for the lock, says when it got it and its token; told to go on, checks that it
 * still has it, and gives it back. */
static void be_waiter(int lane, int fd) {
    dl_client_t *client = open_client(lane);
    dl_lock_t *lock = open_lock(client);
    while (hear(fd) != 0) {
        bool is_wrong = false;
        expect_status(&is_wrong, dl_lock(lock, NULL), DL_OK, "the waiter's lock");
        say(fd, now_us());
        uint64_t token = dl_token(lock);
        say(fd, (int64_t)token);
        (void)hear(fd);
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        dl_status_t inspected = dl_inspect(lock, &info, NULL);
        expect_status(&is_wrong, inspected, DL_OK, "inspect");
        int valid = dl_valid_ms(lock) > 0 && dl_token(lock) == token;
        expect(&is_wrong, valid, "the successor has lost its lock");
        expect(&is_wrong, !valid || inspected != DL_OK || (info.held && info.ours && info.token == token),
               "the server holds it for somebody else");
        expect_status(&is_wrong, dl_unlock(lock, NULL), DL_OK, "the successor's unlock");
        say(fd, is_wrong);
    }
    dl_lock_close(lock);
    dl_client_close(client);
    _exit(0);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void kill_and_reap(pid_t pid, bool *is_wrong) {
    int status = 0;
    if (kill(pid, SIGKILL) != 0 || waitpid(pid, &status, 0) != pid) {
        die("kill");
    }
    expect(is_wrong, WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
           "the holder was not there to be killed");
}

static void stop_and_wait(pid_t pid) {
    int status = 0;
    if (kill(pid, SIGSTOP) != 0 || waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) {
        die("stop");
    }
}

static round_result_t run_round(int lane, storm_t storm, int waiter) {
    round_result_t result = {.is_wrong = false};
    int holder_fd, status = 0;
    pid_t holder = start(&holder_fd);
    if (holder == 0) {
        close(waiter);
        be_holder(lane, holder_fd);
    }
    int64_t token = hear(holder_fd), struck_us;
    if (storm == KILLED) {
        say(waiter, 1);
        sleep_ms(20 + rand() % (LEASE_MS / 3)); /* anywhere between two renewals; the waiter waits by now */
        struck_us = now_us();
        kill_and_reap(holder, &result.is_wrong);
    } else {
        stop_and_wait(holder);
        struck_us = now_us();
        say(waiter, 1);
    }
    result.took_us = hear(waiter) - struck_us;
    if (result.took_us > limit_us) {
        fprintf(stderr, "kill_storm: the lock came after %.3f s\n", (double)result.took_us / 1e6);
        result.is_wrong = true;
    }
    int64_t successor = hear(waiter);
    expect(&result.is_wrong, token != 0 && successor != 0, "a lock was lost at once");
    expect(&result.is_wrong, successor == 0 || successor > token, "the successor's token is not larger");
    if (storm == STOPPED) {
        say(holder_fd, 1);
        kill(holder, SIGCONT);
        result.is_wrong |= hear(holder_fd) != 0;
        expect(&result.is_wrong, waitpid(holder, &status, 0) == holder && status == 0,
               "the holder did not end well");
    }
    say(waiter, 1);
    result.is_wrong |= hear(waiter) != 0;
    close(holder_fd);
    return result;
}

static void run_lane(int lane, int rounds, storm_t storm, int report) {
    int waiter_fd, status = 0;
    pid_t waiter = start(&waiter_fd);
    if (waiter == 0) {
        be_waiter(lane, waiter_fd);
    }
    srand((unsigned)lane + 1);
    for (int i = 0; i < rounds; i++) {
        round_result_t result = run_round(lane, storm, waiter_fd);
        if (write(report, &result, sizeof result) != (ssize_t)sizeof result) {
            die("report");
        }
    }
    say(waiter_fd, 0);
    if (waitpid(waiter, &status, 0) != waiter || status != 0) {
        fprintf(stderr, "kill_storm: a waiter did not end well\n");
        exit(2);
    }
    exit(0);
}

/* ---- main ------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Runs one storm over all lanes. Fills times (sorted); returns how many rounds were wrong or missing. */
static int run_storm(storm_t storm, int count, int lanes, int64_t *times_us) {
    int report[2], done = 0, wrong = 0;
    pid_t pids[LANES_MAX];
    if (pipe(report) != 0) {
        die("pipe");
    }
    for (int lane = 0; lane < lanes; lane++) {
        int unused;
        pids[lane] = start(&unused);
        if (pids[lane] == 0) {
            close(report[0]);
            run_lane(lane, count / lanes + (lane < count % lanes), storm, report[1]);
        }
        close(unused);
    }
    close(report[1]);
    round_result_t result;
    while (done < count && read(report[0], &result, sizeof result) == (ssize_t)sizeof result) {
        times_us[done++] = result.took_us;
        wrong += result.is_wrong;
    }
    close(report[0]);
    for (int lane = 0; lane < lanes; lane++) {
        int status = 0;
        wrong += waitpid(pids[lane], &status, 0) != pids[lane] || status != 0;
    }
    qsort(times_us, (size_t)done, sizeof *times_us, compare);
    return wrong + (count - done);
}

static void print(storm_t storm, int count, int wrong, const int64_t *times_us) {
    const char *what = storm == KILLED ? "holder killed with -9" : "holder stopped past its lease";
    printf("%s, lease %.1f s, %d times: ", what, LEASE_MS / 1000.0, count);
    if (wrong > 0) {
        printf("%d rounds were wrong or did not end\n", wrong);
        return;
    }
    if (storm == STOPPED) {
        printf("DL_ELOST and a successor untouched each time; ");
    }
    printf("longest time from the %s to the waiter's OK %.3f s (median %.3f s, limit %.3f s)\n",
           storm == KILLED ? "kill" : "stop", (double)times_us[count - 1] / 1e6,
           (double)times_us[count / 2] / 1e6, (double)limit_us / 1e6);
}

static int number(const char *text, int min, int max) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < min || value > max) {
        fprintf(stderr, "kill_storm: '%s' is not a number from %d to %d\n", text, min, max);
        exit(2);
    }
    return (int)value;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"count", required_argument, NULL, 'c'},
                                            {"lanes", required_argument, NULL, 'l'},
                                            {"limit-ms", required_argument, NULL, 'm'},
                                            {NULL, 0, NULL, 0}};
    int count = 50, lanes = 10, c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'c') {
            count = number(optarg, 1, 1000000);
        } else if (c == 'l') {
            lanes = number(optarg, 1, LANES_MAX);
        } else if (c == 'm') {
            limit_us = (int64_t)number(optarg, 1, 1000000) * 1000;
        } else {
            fprintf(stderr, "usage: %s [--count N] [--lanes N] [--limit-ms N]\n", argv[0]);
            return 2;
        }
    }
    lanes = lanes > count ? count : lanes;
    int64_t *times_us = calloc((size_t)count, sizeof *times_us);
    if (times_us == NULL) {
        die("kill_storm");
    }
    if (!scratch_make("kill-storm", folder, sizeof folder)) {
        die("a folder for the lock files");
    }
    beat_begin();
    int failed = 0;
    for (storm_t storm = KILLED; storm < STORMS; storm++) {
        int wrong = run_storm(storm, count, lanes, times_us);
        print(storm, count, wrong, times_us);
        failed = failed || wrong > 0;
    }
    scratch_remove(folder);
    free(times_us);
    return failed;
}
