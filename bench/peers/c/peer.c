/* peer.c - the scenarios of bench/peers for programs in C. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM_NS 1000000000u /* what is done in the first second is not counted */
#define CLIENTS 8           /* of the scenario hot, and of a mixed one on both sides together */
#define HOLD_NS 1000000     /* in a mixed one */
#define SAMPLES_MAX (1u << 22)

uint64_t peer_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void peer_die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void *open_lock(const peer_t *peer, void *client, int port, const char *scenario, int number) {
    const char *other = peer_mixed(scenario);
    char name[64];
    (void)snprintf(name, sizeof name, "%s:%s/%d", other != NULL ? other : peer->name,
                   other != NULL ? "mixed" : scenario, number);
    return peer->open(client, port, name);
}

/* ---- pair ------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void run_pair(const peer_t *peer, int port, uint64_t ns) {
    static uint32_t samples[SAMPLES_MAX];
    size_t n = 0;
    void *lock = open_lock(peer, peer->connect(port, "pair"), port, "pair", 0);
    uint64_t begin = peer_now_ns() + WARM_NS, end = begin + ns, before = peer_now_ns();
    while (before < end && n < SAMPLES_MAX) {
        peer->lock(lock);
        peer->unlock(lock);
        uint64_t after = peer_now_ns();
        if (before >= begin) {
            samples[n++] = (uint32_t)(after - before);
        }
        before = after;
    }
    if (n == 0) {
        peer_die("pair", "nothing was measured");
    }
    qsort(samples, n, sizeof samples[0], by_size);
    printf("%s %s pair %.1f\n", peer->name, peer->version, samples[n / 2] / 1e3);
}

/* ---- many ------------------------------------------------------------------------------------------- */

typedef struct task {
    const peer_t *peer;
    void *lock;
    pthread_t thread;
    uint64_t begin, end, pairs;
} task_t;

static void *work(void *arg) {
    task_t *task = arg;
    for (uint64_t now = peer_now_ns(); now < task->end;) {
        uint64_t before = now;
        task->peer->lock(task->lock);
        task->peer->unlock(task->lock);
        now = peer_now_ns();
        task->pairs += before >= task->begin && now < task->end;
    }
    return NULL;
}

static void run_many(const peer_t *peer, int port, uint64_t ns) {
    static task_t tasks[PEER_TASKS];
    void *client = peer->connect(port, "many");
    uint64_t pairs = 0;
    for (int i = 0; i < PEER_TASKS; i++) {
        tasks[i].peer = peer;
        tasks[i].lock = open_lock(peer, client, port, "many", i);
    }
    uint64_t begin = peer_now_ns() + WARM_NS, end = begin + ns;
    for (int i = 0; i < PEER_TASKS; i++) {
        tasks[i].begin = begin;
        tasks[i].end = end;
        if (pthread_create(&tasks[i].thread, NULL, work, &tasks[i]) != 0) {
            peer_die("many", "no thread");
        }
    }
    for (int i = 0; i < PEER_TASKS; i++) {
        pthread_join(tasks[i].thread, NULL);
        pairs += tasks[i].pairs;
    }
    printf("%s %s many %.0f\n", peer->name, peer->version, (double)pairs * 1e9 / (double)ns);
    if (peer->queue != NULL) {
        begin = peer_now_ns() + WARM_NS;
        printf("%s-queue %s many %.0f\n", peer->name, peer->version, peer->queue(client, begin, begin + ns));
    }
}

/* ---- hot, and mixed-PEER ---------------------------------------------------------------------------- */

/* In memory that the processes share. */
typedef struct race {
    pthread_barrier_t ready;
    struct {
        uint64_t holds, longest_ns, violations;
    } clients[CLIENTS];
} race_t;

typedef struct client {
    const peer_t *peer;
    void *shared; /* by the threads of its process */
    int port;
    const char *scenario;
    uint64_t ns;
    race_t *race;
    int number;
    pthread_t thread;
} client_t;

const char *peer_mixed(const char *scenario) {
    return strncmp(scenario, "mixed-", 6) == 0 ? scenario + 6 : NULL;
}

/* A connection of the client's own, for what the clients of all libraries count. */
static int connect_counter(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
        peer_die("counter", "no connection");
    }
    return fd;
}

/* Adds to a counter on the server, and returns what it is then. */
static long add(int fd, const char *scenario, const char *what, int by) {
    char text[128];
    int n = snprintf(text, sizeof text, "INCRBY %s:mixed/%s %d\r\n", peer_mixed(scenario), what, by);
    if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n) {
        peer_die(what, "not sent");
    }
    for (n = 0; n == 0 || text[n - 1] != '\n';) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - (size_t)n, 0);
        if (got <= 0) {
            peer_die(what, "no answer");
        }
        n += (int)got;
    }
    text[n] = '\0';
    if (text[0] != ':') {
        peer_die(what, text);
    }
    return strtol(text + 1, NULL, 10);
}

static void pause_ns(long ns) {
    struct timespec t = {.tv_nsec = ns};
    (void)nanosleep(&t, NULL);
}

/* One holder of a mixed scenario, as the others' programs have it too: 1 if another is inside meanwhile. */
static int hold(int fd, const char *scenario) {
    int violation = add(fd, scenario, "inside", 1) != 1;
    pause_ns(HOLD_NS);
    (void)add(fd, scenario, "inside", -1);
    return violation;
}

/* One client. A wait that the end interrupts is counted as long as it really was. */
static void *contend(void *arg) {
    client_t *client = arg;
    const peer_t *peer = client->peer;
    race_t *race = client->race;
    int i = client->number, fd = peer_mixed(client->scenario) != NULL ? connect_counter(client->port) : -1;
    void *lock = open_lock(peer, client->shared, client->port, client->scenario, 0);
    peer->lock(lock);
    peer->unlock(lock);
    if (fd < 0) {
        (void)pthread_barrier_wait(&race->ready);
    } else {
        for (long n = add(fd, client->scenario, "ready", 1); n < CLIENTS;
             n = add(fd, client->scenario, "ready", 0)) {
            pause_ns(10000000);
        }
    }
    uint64_t now = peer_now_ns(), begin = now + WARM_NS, end = begin + client->ns;
    while (now < end) {
        uint64_t asked = now;
        peer->lock(lock);
        uint64_t got = peer_now_ns();
        if (fd >= 0) {
            race->clients[i].violations += hold(fd, client->scenario);
        }
        peer->unlock(lock);
        now = peer_now_ns();
        race->clients[i].holds += got >= begin && got < end;
        if (got >= begin && got - asked > race->clients[i].longest_ns) {
            race->clients[i].longest_ns = got - asked;
        }
    }
    return NULL;
}

/* The clients of one process, the first of which is client's. */
static void contend_all(client_t client, int threads) {
    client_t clients[CLIENTS];
    client.shared = client.peer->connect(client.port, client.scenario);
    for (int i = 0; i < threads; i++, client.number++) {
        clients[i] = client;
        if (pthread_create(&clients[i].thread, NULL, contend, &clients[i]) != 0) {
            peer_die(client.scenario, "no thread");
        }
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(clients[i].thread, NULL);
    }
}

static void print_race(const peer_t *peer, const char *scenario, uint64_t ns, const race_t *race,
                       int clients) {
    double sum = 0, squares = 0, longest = 0, fewest = 0, seconds = (double)ns / 1e9;
    uint64_t violations = 0;
    for (int i = 0; i < clients; i++) {
        double holds = (double)race->clients[i].holds, ms = (double)race->clients[i].longest_ns / 1e6;
        sum += holds;
        squares += holds * holds;
        fewest = i == 0 || holds < fewest ? holds : fewest;
        longest = ms > longest ? ms : longest;
        violations += race->clients[i].violations;
    }
    printf("%s %s %s %.0f", peer->name, peer->version, scenario, sum / seconds);
    if (peer_mixed(scenario) != NULL) {
        printf(" %.2f %.1f %llu\n", fewest / seconds, longest, (unsigned long long)violations);
    } else {
        printf(" %.1f %.3f\n", longest, squares > 0 ? sum * sum / (clients * squares) : 0);
    }
}

static void run_race(const peer_t *peer, int port, const char *scenario, uint64_t ns, int processes,
                     int threads) {
    race_t *race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    if (race == MAP_FAILED || pthread_barrierattr_init(&shared) != 0 ||
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_barrier_init(&race->ready, &shared, CLIENTS) != 0) {
        peer_die(scenario, "no shared memory");
    }
    client_t client = {.peer = peer, .port = port, .scenario = scenario, .ns = ns, .race = race};
    pid_t parent = getpid();
    for (int i = 0; i < processes; i++, client.number += threads) {
        pid_t pid = fork();
        if (pid < 0) {
            peer_die(scenario, "no process");
        }
        if (pid == 0) {
            /* If one fails, those that wait for it at the barrier end with the parent. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent) {
                contend_all(client, threads);
                _exit(0);
            }
            _exit(1);
        }
    }
    for (int i = 0, status; i < processes; i++) {
        if (wait(&status) < 0 || status != 0) {
            peer_die(scenario, "a process failed");
        }
    }
    print_race(peer, scenario, ns, race, processes * threads);
}

int peer_main(const peer_t *peer, int argc, char **argv) {
    long port = argc == 4 ? strtol(argv[1], NULL, 10) : 0;
    long seconds = argc == 4 ? strtol(argv[3], NULL, 10) : 0;
    uint64_t ns = (uint64_t)seconds * 1000000000u;
    if (port <= 0 || port > 65535 || seconds <= 0) {
        fprintf(stderr, "usage: %s PORT pair|many|hot|mixed-PEER SECONDS\n", peer->name);
        return 64;
    }
    if (strcmp(argv[2], "pair") == 0) {
        run_pair(peer, (int)port, ns);
    } else if (strcmp(argv[2], "many") == 0) {
        run_many(peer, (int)port, ns);
    } else if (strcmp(argv[2], "hot") == 0 && peer->waits) {
        run_race(peer, (int)port, argv[2], ns, CLIENTS, 1);
    } else if (peer_mixed(argv[2]) != NULL && peer->processes > 0) {
        run_race(peer, (int)port, argv[2], ns, peer->processes, peer->threads);
    } else {
        fprintf(stderr, "%s: no scenario %s\n", peer->name, argv[2]);
        return 64;
    }
    return 0;
}
