/* redis_chaos.c - processes lock while server and network fail at random: is every promise kept? */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: redis_chaos [--seconds N] [--processes N] [--threads N] [--names N] [--seed N] [--lease-ms N]
 *                    [--freeze-ms N] [--only DISTURBANCE]... [--no-wipes] [--no-stops] [--forks] [--verbose]
 *
 * A plain program, for sanitizers too; --forks is not for ThreadSanitizer. Every second process reaches the
 * server through a proxy; every second name is locked through redis-string, the others through
 * redis-hash-reentrant. The server writes everything to disk before it answers, so a restart loses nothing
 * unless the data is removed (a wipe). Prints a line a violation, and in the end what happened:
 *   - nobody enters while the validity of another, by its own arithmetic, is not over (wipes excepted);
 *   - tokens rise with each holder, wipes or not; nobody loses a lock before its validity is over;
 *   - every call ends in time, what the machine took from the process not counted;
 *   - afterwards every lock can be had within a lease, nothing is renewed, freed in the background, left on
 *     the server or open.
 * Ends with 0 only if nothing was violated. The same seed draws the same disturbances, not the same races.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"
#include "disturb.h"
#include "support/ct.h"
#include "support/scratch.h"

chaos_settings_t chaos = {.seconds = 8,
                          .processes = 4,
                          .threads = 3,
                          .names = 6,
                          .seed = 1,
                          .wipes = true,
                          .stops = true,
                          .lease_ms = 1500,
                          .call_timeout_ms = 600};
chaos_shared_t *shared;

static chaos_place_t place;

/* ---- the end ---------------------------------------------------------------------------------------- */

static void await_all(const atomic_int *number, int64_t within_ms, const char *what) {
    if (!chaos_await_int(number, chaos.processes, within_ms)) {
        chaos_die("only %d of %d processes %s", atomic_load(number), chaos.processes, what);
    }
}

/* No key of a lock is left behind. */
static void look_at_keys(void) {
    for (int i = 0; i < chaos.names; i++) {
        if (redis_number(place.server, "EXISTS %schaos/%d", i % 2 == 0 ? "dlock:" : "", i) != 0) {
            chaos_violated("lock %d is still there when nobody holds it", i);
        }
    }
}

static void print_outcomes(void) {
    static const char *const names[CHAOS_OPS] = {"lock", "lock again", "extend", "unlock"};
    for (int op = 0; op < CHAOS_OPS; op++) {
        printf("%s:", names[op]);
        for (int status = 0; status < CHAOS_STATUSES; status++) {
            unsigned long n = atomic_load(&shared->outcomes[op][status]);
            if (n > 0) {
                printf(" %s %lu", dl_status_name((dl_status_t)status), n);
            }
        }
        printf("\n");
    }
    chaos_print_disturbances();
    printf(
        "lost %lu, unknown %lu, freed in the background %lu times, connected again %lu times; longest call "
        "%.1f ms past its end\n",
        atomic_load(&shared->losses), atomic_load(&shared->unknown), atomic_load(&shared->frees),
        atomic_load(&shared->reconnects), (double)atomic_load(&shared->longest_over_ns) / 1e6);
}

static void start_workers(void) {
    for (int i = 0; i < chaos.processes; i++) {
        char url[160];
        if (i % 2 == 0) {
            snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", proxy_port(place.proxy));
        } else {
            snprintf(url, sizeof url, "unix://%s", place.server->path);
        }
        fflush(NULL);
        pid_t parent = getpid();
        place.pids[i] = fork();
        if (place.pids[i] < 0) {
            chaos_die("fork: %s", strerror(errno));
        }
        if (place.pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(getppid() == parent ? chaos_work(i, url) : 2);
        }
    }
}

static void end_workers(void) {
    atomic_store(&shared->is_over, true);
    await_all(&shared->looped, 60000, "have come to an end");
    atomic_store(&shared->may_inspect, true);
    await_all(&shared->idle, 120000, "have had every lock");
    look_at_keys();
    atomic_store(&shared->may_close, true);
    for (int i = 0; i < chaos.processes; i++) {
        int status = 0;
        if (waitpid(place.pids[i], &status, 0) != place.pids[i] || status != 0) {
            chaos_violated("a worker ended with status 0x%x", (unsigned)status);
        }
    }
}

static void read_arguments(int argc, char **argv) {
    static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                            {"processes", required_argument, NULL, 'p'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"names", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"lease-ms", required_argument, NULL, 'l'},
                                            {"no-wipes", no_argument, NULL, 'w'},
                                            {"freeze-ms", required_argument, NULL, 'e'},
                                            {"no-stops", no_argument, NULL, 'z'},
                                            {"forks", no_argument, NULL, 'f'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            chaos.seconds = chaos_number(optarg, 1, 86400);
            break;
        case 'p':
            chaos.processes = chaos_number(optarg, 1, CHAOS_PROCESSES_MAX);
            break;
        case 't':
            chaos.threads = chaos_number(optarg, 1, CHAOS_THREADS_MAX);
            break;
        case 'n':
            chaos.names = chaos_number(optarg, 1, CHAOS_NAMES_MAX);
            break;
        case 'r':
            chaos.seed = (uint64_t)chaos_number(optarg, 0, 1000000000);
            break;
        case 'l':
            chaos.lease_ms = chaos_number(optarg, 300, CHAOS_LONGEST_LEASE_MS);
            break;
        case 'e':
            chaos.freeze_ms = chaos_number(optarg, 1, 60000);
            break;
        case 'o':
            if (!chaos_only(optarg)) {
                fprintf(stderr, "redis_chaos: no disturbance is called '%s'\n", optarg);
                exit(2);
            }
            break;
        case 'w':
            chaos.wipes = false;
            break;
        case 'z':
            chaos.stops = false;
            break;
        case 'f':
            chaos.forks = true;
            break;
        case 'v':
            chaos.verbose = true;
            break;
        default:
            fprintf(stderr,
                    "usage: redis_chaos [--seconds N] [--processes N] [--threads N] [--names N] [--seed N]\n"
                    "  [--lease-ms N] [--freeze-ms N] [--only DISTURBANCE]... [--no-wipes] [--no-stops] "
                    "[--forks] [--verbose]\n");
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    char dir[CT_DIR_MAX];
    read_arguments(argc, argv);
    chaos_make_dir(dir, sizeof dir);
    chaos_make_shared();
    place.server = redis_server_start(dir, NULL, "--appendonly", "yes", "--appendfsync", "always",
                                      "--auto-aof-rewrite-percentage", "0", NULL);
    place.proxy = proxy_start(ct_current(), place.server->port);
    start_workers();
    await_all(&shared->opened, 30000, "have opened their clients");
    chaos_disturb(&place);
    end_workers();
    chaos_judge_holds();
    print_outcomes();
    unsigned long violations = atomic_load(&shared->violations);
    printf("%d s, seed %llu: %lu violations\n", chaos.seconds, (unsigned long long)chaos.seed, violations);
    proxy_stop(ct_current(), place.proxy);
    redis_server_stop(place.server);
    scratch_remove(dir);
    return violations > 0;
}
