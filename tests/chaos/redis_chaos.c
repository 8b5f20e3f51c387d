/* redis_chaos.c - processes lock through a server and a network that fail at random: is every promise kept? */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: redis_chaos [--seconds N] [--processes N] [--threads N] [--names N] [--seed N] [--lease-ms N]
 *                    [--only DISTURBANCE] [--no-wipes] [--no-stops] [--forks] [--verbose]
 *
 * A plain program, for sanitizers too. Half of the processes reach the server through a proxy. All names are
 * locked by both drivers' clients, every second name by each. Prints a line a violation, and what happened.
 * Ends with 0 only if nothing was violated.
 */
#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "chaos.h"
#include "support/ct.h"
#include "support/proxy.h"
#include "support/redis_server.h"

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

static ct_t *ct;
static redis_server_t *server;
static proxy_t *proxy;
static pid_t pids[CHAOS_PROCESSES_MAX];
static uint64_t random_state;

/* ---- small things ----------------------------------------------------------------------------------- */

uint64_t chaos_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void chaos_sleep_ms(int64_t ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

uint64_t chaos_draw(uint64_t *random, uint64_t bound) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return bound == 0 ? 0 : *random % bound;
}

static void say(const char *format, va_list args) {
    char line[600];
    int n = snprintf(line, sizeof line, "redis_chaos: [%llu] %d: ",
                     (unsigned long long)(chaos_now_ns() / CHAOS_NS_PER_MS), (int)getpid());
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    fprintf(stderr, "%s\n", line);
}

void chaos_violated(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    atomic_fetch_add(&shared->violations, 1);
}

void chaos_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    exit(2);
}

bool chaos_await_int(const atomic_int *number, int at_least, int64_t within_ms) {
    uint64_t until_ns = chaos_now_ns() + (uint64_t)within_ms * CHAOS_NS_PER_MS;
    while (atomic_load(number) < at_least) {
        if (chaos_now_ns() > until_ns) {
            return false;
        }
        chaos_sleep_ms(10);
    }
    return true;
}

static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)chaos_draw(&random_state, (uint64_t)(high - low));
}

static void pause_between(int64_t low, int64_t high) {
    chaos_sleep_ms(between(low, high));
}

/* ---- the network ------------------------------------------------------------------------------------ */

static void cut(void) {
    proxy_cut(ct, proxy);
}

static void reset(void) {
    proxy_reset(ct, proxy);
}

static void black_hole(void) {
    static const int ways[] = {PROXY_BOTH, PROXY_BOTH, PROXY_REQUESTS, PROXY_REPLIES};
    proxy_swallow(ct, proxy, ways[between(0, 4)]);
    pause_between(50, 1500);
    proxy_swallow(ct, proxy, 0);
}

static void delay(void) {
    proxy_delay(ct, proxy, PROXY_BOTH, between(5, 300));
    pause_between(50, 800);
    proxy_delay(ct, proxy, PROXY_BOTH, 0);
}

static void refuse(void) {
    proxy_refuse(ct, proxy, 1);
    proxy_cut(ct, proxy);
    pause_between(20, 900);
    proxy_refuse(ct, proxy, 0);
}

/* A request, or its reply, is cut off in the middle. */
static void truncate_one(void) {
    proxy_plan_t plan = {.request = "EVALSHA",
                         .way = between(0, 2) == 0 ? PROXY_REQUESTS : PROXY_REPLIES,
                         .after = (size_t)between(0, 40),
                         .act = between(0, 2) == 0 ? PROXY_CUT : PROXY_RESET};
    proxy_plan(ct, proxy, &plan);
    pause_between(5, 50);
}

/* Requests arrive long after everybody has given them up, perhaps a second time on a connection of their own. */
static void deliver_late(void) {
    proxy_plan_t plan = {.request = "EVALSHA", .way = PROXY_REQUESTS, .after = 0, .act = PROXY_HOLD};
    int64_t acts = proxy_counts(ct, proxy).acts;
    proxy_plan(ct, proxy, &plan);
    pause_between(50, 1200);
    if (proxy_counts(ct, proxy).acts > acts) {
        (void)proxy_deliver(ct, proxy, (int)between(0, 2));
    }
}

/* ---- the server ------------------------------------------------------------------------------------- */

static void kill_clients(void) {
    static const char *const types[] = {"normal", "pubsub"};
    (void)redis_try(server, "CLIENT KILL TYPE %s", types[between(0, 2)]);
}

static void pause_clients(void) {
    (void)redis_try(server, "CLIENT PAUSE %lld %s", (long long)between(50, 1500),
                    between(0, 2) == 0 ? "ALL" : "WRITE");
}

static void forget_scripts(void) {
    (void)redis_try(server, "SCRIPT FLUSH");
}

static void freeze(void) {
    redis_server_freeze(server);
    pause_between(20, 1500);
    redis_server_thaw(server);
}

static void restart(void) {
    redis_server_kill(server);
    pause_between(0, 300);
    redis_server_boot(server);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static void remove_data(void) {
    char path[REDIS_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/appendonlydir", server->dir); /* from 7.0 on; before it is one file */
    (void)nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    snprintf(path, sizeof path, "%s/appendonly.aof", server->dir);
    (void)unlink(path);
}

/* Comes back without what it knew, or forgets it at once: whoever holds a lock loses it, but no token comes twice. */
static void wipe(void) {
    unsigned at = atomic_load(&shared->wipe_count);
    if (!chaos.wipes || at == CHAOS_WIPES_MAX) {
        return;
    }
    atomic_store(&shared->wipes[at].from_ns, chaos_now_ns());
    atomic_store(&shared->wipe_count, at + 1);
    if (between(0, 2) == 0) {
        (void)redis_ask(server, "FLUSHALL");
    } else {
        redis_server_kill(server);
        remove_data();
        redis_server_boot(server);
    }
    atomic_store(&shared->wipes[at].to_ns, chaos_now_ns());
}

/* ---- the workers ------------------------------------------------------------------------------------ */

static void stop_process(void) {
    if (chaos.stops) {
        pid_t pid = pids[between(0, chaos.processes)];
        (void)kill(pid, SIGSTOP);
        pause_between(50, 2 * CHAOS_LONGEST_LEASE_MS);
        (void)kill(pid, SIGCONT);
    }
}

/* ---- the chaos -------------------------------------------------------------------------------------- */

typedef struct disturbance {
    const char *name;
    void (*act)(void);
    unsigned weight;
    unsigned count;
} disturbance_t;

static disturbance_t disturbances[] = {
    {"cut", cut, 3, 0},
    {"reset", reset, 3, 0},
    {"black-hole", black_hole, 4, 0},
    {"delay", delay, 3, 0},
    {"refuse", refuse, 2, 0},
    {"truncate", truncate_one, 5, 0},
    {"deliver-late", deliver_late, 4, 0},
    {"client-kill", kill_clients, 3, 0},
    {"client-pause", pause_clients, 3, 0},
    {"script-flush", forget_scripts, 3, 0},
    {"freeze", freeze, 3, 0},
    {"restart", restart, 3, 0},
    {"wipe", wipe, 1, 0},
    {"stop", stop_process, 2, 0},
};
#define DISTURBANCES (sizeof disturbances / sizeof disturbances[0])

static disturbance_t *choose(void) {
    unsigned total = 0;
    for (size_t i = 0; i < DISTURBANCES; i++) {
        total += disturbances[i].weight;
    }
    unsigned draw = (unsigned)between(0, total);
    size_t i = 0;
    while (draw >= disturbances[i].weight) {
        draw -= disturbances[i++].weight;
    }
    return &disturbances[i];
}

static bool is_child_gone(void) {
    for (int i = 0; i < chaos.processes; i++) {
        if (waitpid(pids[i], NULL, WNOHANG) != 0) {
            pids[i] = -1;
            return true;
        }
    }
    return false;
}

static void disturb(void) {
    uint64_t until_ns = chaos_now_ns() + (uint64_t)chaos.seconds * 1000 * CHAOS_NS_PER_MS;
    pause_between(100, 300);
    while (chaos_now_ns() < until_ns) {
        disturbance_t *chosen = choose();
        if (chaos.verbose) {
            fprintf(stderr, "[%llu] %s\n", (unsigned long long)(chaos_now_ns() / CHAOS_NS_PER_MS), chosen->name);
        }
        chosen->act();
        chosen->count++;
        pause_between(0, between(0, 4) == 0 ? 1200 : 200);
        if (is_child_gone()) {
            chaos_die("a worker has ended");
        }
    }
    proxy_plan(ct, proxy, &(proxy_plan_t){.request = "nothing says this", .way = PROXY_REQUESTS});
}

/* ---- the end ---------------------------------------------------------------------------------------- */

static void await_all(const atomic_int *number, int64_t within_ms, const char *what) {
    if (!chaos_await_int(number, chaos.processes, within_ms)) {
        chaos_die("only %d of %d processes %s", atomic_load(number), chaos.processes, what);
    }
}

/* No key of a lock is left behind. */
static void look_at_keys(void) {
    for (int i = 0; i < chaos.names; i++) {
        if (redis_number(server, "EXISTS %schaos/%d", i % 2 == 0 ? "dlock:" : "", i) != 0) {
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
    printf("disturbed:");
    for (size_t i = 0; i < DISTURBANCES; i++) {
        printf(" %s %u", disturbances[i].name, disturbances[i].count);
    }
    printf("\nlost %lu, unknown %lu, freed in the background %lu times, connected again %lu times; longest call "
           "%.1f ms past its end\n",
           atomic_load(&shared->losses), atomic_load(&shared->unknown), atomic_load(&shared->frees),
           atomic_load(&shared->reconnects), (double)atomic_load(&shared->longest_over_ns) / 1e6);
}

static void start_workers(void) {
    for (int i = 0; i < chaos.processes; i++) {
        char url[160];
        if (i % 2 == 0) {
            snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", proxy_port(proxy));
        } else {
            snprintf(url, sizeof url, "unix://%s", server->path);
        }
        fflush(NULL);
        pid_t parent = getpid();
        pids[i] = fork();
        if (pids[i] < 0) {
            chaos_die("fork: %s", strerror(errno));
        }
        if (pids[i] == 0) {
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
        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0) {
            chaos_violated("a worker ended with status 0x%x", (unsigned)status);
        }
    }
}

static int number(const char *text, int min, int max) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < min || value > max) {
        fprintf(stderr, "redis_chaos: '%s' is not a number from %d to %d\n", text, min, max);
        exit(2);
    }
    return (int)value;
}

/* Only this one, and others of the same command line. */
static void only(const char *name) {
    static bool is_first = true;
    bool found = false;
    for (size_t i = 0; i < DISTURBANCES; i++) {
        bool same = strcmp(disturbances[i].name, name) == 0;
        disturbances[i].weight = same ? 1 : is_first ? 0 : disturbances[i].weight;
        found = found || same;
    }
    is_first = false;
    if (!found) {
        fprintf(stderr, "redis_chaos: no disturbance is called '%s'\n", name);
        exit(2);
    }
}

static void read_arguments(int argc, char **argv) {
    static const struct option options[] = {
        {"seconds", required_argument, NULL, 's'},  {"processes", required_argument, NULL, 'p'},
        {"threads", required_argument, NULL, 't'},  {"names", required_argument, NULL, 'n'},
        {"seed", required_argument, NULL, 'r'},     {"only", required_argument, NULL, 'o'},
        {"lease-ms", required_argument, NULL, 'l'}, {"no-wipes", no_argument, NULL, 'w'},
        {"no-stops", no_argument, NULL, 'z'},       {"forks", no_argument, NULL, 'f'},
        {"verbose", no_argument, NULL, 'v'},        {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            chaos.seconds = number(optarg, 1, 86400);
            break;
        case 'p':
            chaos.processes = number(optarg, 1, CHAOS_PROCESSES_MAX);
            break;
        case 't':
            chaos.threads = number(optarg, 1, 32);
            break;
        case 'n':
            chaos.names = number(optarg, 1, 64);
            break;
        case 'r':
            chaos.seed = (uint64_t)number(optarg, 0, 1000000000);
            break;
        case 'l':
            chaos.lease_ms = number(optarg, 300, CHAOS_LONGEST_LEASE_MS);
            break;
        case 'o':
            only(optarg);
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
            fprintf(stderr, "usage: see the head of redis_chaos.c\n");
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    char dir[CT_DIR_MAX];
    const char *base = getenv("DLOCK_TEST_DIR") != NULL ? getenv("DLOCK_TEST_DIR") : getenv("TMPDIR");
    read_arguments(argc, argv);
    snprintf(dir, sizeof dir, "%s/dlock-chaos-XXXXXX", base == NULL ? "/tmp" : base);
    if (mkdtemp(dir) == NULL) {
        chaos_die("no folder %s: %s", dir, strerror(errno));
    }
    random_state = (chaos.seed + 1) * 0x9e3779b97f4a7c15u;
    ct = ct_current();
    chaos_make_shared();
    server = redis_server_start(dir, NULL, "--appendonly", "yes", "--appendfsync", "always",
                                "--auto-aof-rewrite-percentage", "0", NULL);
    proxy = proxy_start(ct, server->port);
    start_workers();
    disturb();
    end_workers();
    chaos_judge_holds();
    print_outcomes();
    unsigned long violations = atomic_load(&shared->violations);
    printf("%d s, seed %llu: %lu violations\n", chaos.seconds, (unsigned long long)chaos.seed, violations);
    proxy_stop(ct, proxy);
    redis_server_stop(server);
    (void)nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return violations > 0;
}
