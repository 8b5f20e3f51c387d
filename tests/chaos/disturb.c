/* disturb.c - what befalls the network, the server and the workers, at random. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"
#include "disturb.h"
#include "support/ct.h"
#include "support/scratch.h"

#define LINKS_FEW 64

static chaos_place_t *at;
static uint64_t random_state;

static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)chaos_draw(&random_state, (uint64_t)(high - low));
}

static void pause_between(int64_t low, int64_t high) {
    chaos_sleep_ms(between(low, high));
}

/* ---- the network ------------------------------------------------------------------------------------ */

static void cut(void) {
    proxy_cut(ct_current(), at->proxy);
}

static void reset(void) {
    proxy_reset(ct_current(), at->proxy);
}

static void black_hole(void) {
    static const int ways[] = {PROXY_BOTH, PROXY_BOTH, PROXY_REQUESTS, PROXY_REPLIES};
    proxy_swallow(ct_current(), at->proxy, ways[between(0, 4)]);
    pause_between(50, 1500);
    proxy_swallow(ct_current(), at->proxy, 0);
    /* The proxy keeps deaf connections for good, and has room for so many only. */
    if (proxy_counts(ct_current(), at->proxy).open > LINKS_FEW) {
        proxy_cut(ct_current(), at->proxy);
    }
}

static void delay(void) {
    proxy_delay(ct_current(), at->proxy, PROXY_BOTH, between(5, 300));
    pause_between(50, 800);
    proxy_delay(ct_current(), at->proxy, PROXY_BOTH, 0);
}

static void refuse(void) {
    proxy_refuse(ct_current(), at->proxy, 1);
    proxy_cut(ct_current(), at->proxy);
    pause_between(20, 900);
    proxy_refuse(ct_current(), at->proxy, 0);
}

/* A request, or its reply, is cut off in the middle. */
static void truncate_one(void) {
    proxy_plan_t plan = {.request = "EVALSHA",
                         .way = between(0, 2) == 0 ? PROXY_REQUESTS : PROXY_REPLIES,
                         .after = (size_t)between(0, 40),
                         .act = between(0, 2) == 0 ? PROXY_CUT : PROXY_RESET};
    proxy_plan(ct_current(), at->proxy, &plan);
    pause_between(5, 50);
}

/* Requests arrive long after everybody has given them up, perhaps a second time on a connection of
 * their own. */
static void deliver_late(void) {
    proxy_plan_t plan = {.request = "EVALSHA", .way = PROXY_REQUESTS, .after = 0, .act = PROXY_HOLD};
    int64_t acts = proxy_counts(ct_current(), at->proxy).acts;
    proxy_plan(ct_current(), at->proxy, &plan);
    pause_between(50, 1200);
    if (proxy_counts(ct_current(), at->proxy).acts > acts) {
        (void)proxy_deliver(ct_current(), at->proxy, (int)between(0, 2));
    }
}

/* ---- the server ------------------------------------------------------------------------------------- */

static void kill_clients(void) {
    static const char *const types[] = {"normal", "pubsub"};
    (void)redis_try(at->server, "CLIENT KILL TYPE %s", types[between(0, 2)]);
}

static void pause_clients(void) {
    (void)redis_try(at->server, "CLIENT PAUSE %lld %s", (long long)between(50, 1500),
                    between(0, 2) == 0 ? "ALL" : "WRITE");
}

static void forget_scripts(void) {
    (void)redis_try(at->server, "SCRIPT FLUSH");
}

static void freeze(void) {
    redis_server_freeze(at->server);
    chaos_sleep_ms(chaos.freeze_ms > 0 ? chaos.freeze_ms : between(20, 1500));
    redis_server_thaw(at->server);
}

/* It does nothing else while it writes its data, each key of which takes long. */
static void save(void) {
    (void)redis_try(at->server, "CONFIG SET rdb-key-save-delay %lld", (long long)between(1000, 50000));
    (void)redis_try(at->server, "SAVE");
    (void)redis_try(at->server, "CONFIG SET rdb-key-save-delay 0");
}

static void restart(void) {
    redis_server_kill(at->server);
    pause_between(0, 300);
    redis_server_boot(at->server);
}

static void remove_data(void) {
    char path[REDIS_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/appendonlydir", at->server->dir); /* from 7.0 on; before it is one file */
    scratch_remove(path);
    snprintf(path, sizeof path, "%s/appendonly.aof", at->server->dir);
    (void)unlink(path);
}

/* Comes back without what it knew, or forgets it at once: whoever holds a lock loses it, but no
 * token comes twice. */
static void wipe(void) {
    unsigned i = atomic_load(&shared->wipe_count);
    if (!chaos.wipes || i == CHAOS_WIPES_MAX) {
        return;
    }
    atomic_store(&shared->wipes[i].from_ns, chaos_now_ns());
    atomic_store(&shared->wipe_count, i + 1);
    if (between(0, 2) == 0) {
        (void)redis_ask(at->server, "FLUSHALL");
    } else {
        redis_server_kill(at->server);
        remove_data();
        redis_server_boot(at->server);
    }
    atomic_store(&shared->wipes[i].to_ns, chaos_now_ns());
}

/* ---- the workers ------------------------------------------------------------------------------------ */

static void stop_process(void) {
    if (chaos.stops) {
        pid_t pid = at->pids[between(0, chaos.processes)];
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
    {"save", save, 1, 0},
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
        if (waitpid(at->pids[i], NULL, WNOHANG) != 0) {
            at->pids[i] = -1;
            return true;
        }
    }
    return false;
}

void chaos_disturb(chaos_place_t *place) {
    at = place;
    random_state = (chaos.seed + 1) * 0x9e3779b97f4a7c15u;
    uint64_t until_ns = chaos_now_ns() + (uint64_t)chaos.seconds * 1000 * CHAOS_NS_PER_MS;
    pause_between(100, 300);
    while (chaos_now_ns() < until_ns) {
        disturbance_t *chosen = choose();
        if (chaos.verbose) {
            fprintf(stderr, "[%llu] %s\n", (unsigned long long)(chaos_now_ns() / CHAOS_NS_PER_MS),
                    chosen->name);
        }
        chosen->act();
        chosen->count++;
        pause_between(0, between(0, 4) == 0 ? 1200 : 200);
        if (is_child_gone()) {
            chaos_die("a worker has ended");
        }
    }
    proxy_plan(ct_current(), at->proxy,
               &(proxy_plan_t){.request = "nothing says this", .way = PROXY_REQUESTS});
}

bool chaos_only(const char *name) {
    static bool is_first = true;
    bool found = false;
    for (size_t i = 0; i < DISTURBANCES; i++) {
        bool same = strcmp(disturbances[i].name, name) == 0;
        disturbances[i].weight = same ? 1 : is_first ? 0 : disturbances[i].weight;
        found = found || same;
    }
    is_first = false;
    return found;
}

void chaos_print_disturbances(void) {
    printf("disturbed:");
    for (size_t i = 0; i < DISTURBANCES; i++) {
        printf(" %s %u", disturbances[i].name, disturbances[i].count);
    }
    printf("\n");
}
