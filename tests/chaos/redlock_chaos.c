/* redlock_chaos.c - five nodes are killed in rotation and come back empty: is every count exact? */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: redlock_chaos [--steps N] [--processes N] [--threads N] [--seed N] [--no-quarantine] [--verbose]
 *
 * Processes increment plain counters under locks. Every second process, a far one, reaches the nodes through
 * proxies. A step of the rotation takes the next node:
 *   - two others are out of reach for the far processes, so that one of them holds a lock on exactly a
 *     quorum, of which the node is one;
 *   - the node is killed and comes back empty, while that lock is held, and near processes try to get it;
 *   - the two are in reach again, and the step ends when the node has its vote back.
 * In the end: is every counter what was counted, do tokens rise, did nobody enter while the validity of
 * another, by its own arithmetic, was not over? Ends with 0 if all is well.
 *
 * --no-quarantine is the control, with the option `quarantine: false`: the same steps have to show a second
 * holder, or they prove nothing. Then it ends with 0 if they do.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redlock_chaos.h"
#include "support/ct.h"
#include "support/proxy.h"
#include "support/redlock_nodes.h"
#include "support/scratch.h"

#define PATIENCE_MS 20000

chaos_settings_t chaos = {.processes = 4, .threads = 2, .seed = 1};
chaos_shared_t *shared;
rotation_board_t *board;

static int steps = ROTATION_NODES;
static bool quarantine = true;
static redlock_nodes_t nodes;
static proxy_t *proxies[ROTATION_NODES];
static pid_t pids[CHAOS_PROCESSES_MAX];

/* ---- one step ------------------------------------------------------------------------------------ */

/* Two nodes are out of the far processes' reach, or in it again. */
static void refuse(int node, int refused) {
    for (int i = 1; i <= 2; i++) {
        proxy_t *proxy = proxies[(node + i) % ROTATION_NODES];
        proxy_refuse(ct_current(), proxy, refused);
        if (refused) {
            proxy_cut(ct_current(), proxy);
        }
    }
}

/* The processes, which come by all the time, found that it is another one, and its quarantine is over. */
static void await_vote(redis_server_t *node) {
    int64_t until_ms = ct_now_ms(ct_current()) + PATIENCE_MS;
    while (redis_number(node, "EXISTS dlock_tokens:node") == 0 ||
           redis_number(node, "EXISTS dlock_tokens:quarantine") != 0) {
        if (ct_now_ms(ct_current()) > until_ms) {
            chaos_die("a node did not get its vote back");
        }
        chaos_sleep_ms(5);
    }
}

static void take_step(int step) {
    int at = step % ROTATION_NODES;
    redis_server_t *node = nodes.at[at];
    refuse(at, 1);
    atomic_store(&board->asked, step + 1);
    if (!chaos_await_int(&board->held, step + 1, PATIENCE_MS)) {
        chaos_die("no far process had the lock");
    }
    redis_server_kill(node);
    redis_server_boot(node);
    if (!chaos_await_int(&board->ended, step + 1, PATIENCE_MS)) {
        chaos_die("a far process did not end");
    }
    refuse(at, 0);
    if (quarantine) {
        await_vote(node);
    }
    if (redis_number(node, "EXISTS dlock_tokens:node") != quarantine) {
        chaos_die("the node is %s", quarantine ? "not marked" : "marked");
    }
}

/* ---- the processes ------------------------------------------------------------------------------- */

static void list_nodes(char *text, size_t size, bool is_far) {
    size_t at = 0;
    for (int i = 0; i < ROTATION_NODES; i++) {
        at += (size_t)snprintf(text + at, size - at, "%s\"redis://127.0.0.1:%d/0\"", i == 0 ? "[" : ", ",
                               is_far ? proxy_port(proxies[i]) : nodes.at[i]->port);
    }
    snprintf(text + at, size - at, "]");
}

static void start_workers(void) {
    for (int i = 0; i < chaos.processes; i++) {
        bool is_far = i % 2 == 0;
        char list[400];
        list_nodes(list, sizeof list, is_far);
        fflush(NULL);
        pid_t parent = getpid();
        pids[i] = fork();
        if (pids[i] < 0) {
            chaos_die("fork: %s", strerror(errno));
        }
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(getppid() == parent ? rotation_work(i, is_far, list, quarantine) : 2);
        }
    }
}

static void end_workers(void) {
    atomic_store(&shared->is_over, true);
    for (int i = 0; i < chaos.processes; i++) {
        int status = 0;
        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0) {
            chaos_die("a worker ended with status 0x%x", (unsigned)status);
        }
    }
}

/* ---- the verdict --------------------------------------------------------------------------------- */

/* How many increments were lost. */
static long judge_counters(void) {
    long counted = 0, total = 0;
    for (int i = 0; i < ROTATION_NAMES; i++) {
        counted += atomic_load(&board->counted[i]);
        total += (long)atomic_load(&board->counters[i]);
    }
    printf("%ld increments: total %ld, lost updates %ld\n", counted, total, counted - total);
    return counted - total;
}

static void print_outcomes(chaos_op_t op, const char *name) {
    printf("%s:", name);
    for (int status = 0; status < CHAOS_STATUSES; status++) {
        unsigned long n = atomic_load(&shared->outcomes[op][status]);
        if (n > 0) {
            printf(" %s %lu", dl_status_name((dl_status_t)status), n);
        }
    }
    printf("\n");
}

static int judge(void) {
    long lost = judge_counters();
    int overlaps = atomic_load(&board->overlaps);
    chaos_judge_holds();
    print_outcomes(CHAOS_ACQUIRE, "lock");
    print_outcomes(CHAOS_UNLOCK, "unlock");
    unsigned long violations = atomic_load(&shared->violations);
    printf("quarantine %s: %d nodes killed, %d second holders, %ld lost updates, %lu violations\n",
           quarantine ? "on" : "off", steps, overlaps, lost, violations);
    if (quarantine) {
        return overlaps != 0 || lost != 0 || violations != 0;
    }
    return overlaps == 0 || violations == 0;
}

/* ---- main ---------------------------------------------------------------------------------------- */

static void read_arguments(int argc, char **argv) {
    static const struct option options[] = {{"steps", required_argument, NULL, 's'},
                                            {"processes", required_argument, NULL, 'p'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {"no-quarantine", no_argument, NULL, 'q'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            steps = chaos_number(optarg, 1, 100000);
            break;
        case 'p':
            chaos.processes = chaos_number(optarg, 2, CHAOS_PROCESSES_MAX);
            break;
        case 't':
            chaos.threads = chaos_number(optarg, 1, 32);
            break;
        case 'r':
            chaos.seed = (uint64_t)chaos_number(optarg, 0, 1000000000);
            break;
        case 'q':
            quarantine = false;
            break;
        case 'v':
            chaos.verbose = true;
            break;
        default:
            fprintf(stderr, "usage: redlock_chaos [--steps N] [--processes N] [--threads N] [--seed N]\n"
                            "  [--no-quarantine] [--verbose]\n");
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    char dir[CT_DIR_MAX];
    read_arguments(argc, argv);
    chaos.seconds = 4 * steps; /* room for the log of holds */
    chaos_make_dir(dir, sizeof dir);
    chaos_make_shared();
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        chaos_die("no shared memory");
    }
    redlock_nodes_start(&nodes, dir, ROTATION_NODES, 0);
    for (int i = 0; i < ROTATION_NODES; i++) {
        proxies[i] = proxy_start(ct_current(), nodes.at[i]->port);
        if (!quarantine) {
            (void)redis_ask(nodes.at[i], "DEL dlock_tokens:node");
        }
    }
    start_workers();
    if (!chaos_await_int(&shared->opened, chaos.processes, PATIENCE_MS)) {
        chaos_die("not all processes have opened their clients");
    }
    for (int step = 0; step < steps; step++) {
        take_step(step);
    }
    end_workers();
    int verdict = judge();
    for (int i = 0; i < ROTATION_NODES; i++) {
        proxy_stop(ct_current(), proxies[i]);
    }
    redlock_nodes_stop(&nodes);
    scratch_remove(dir);
    return verdict;
}
