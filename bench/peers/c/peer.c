/* peer.c - the scenarios of bench/peers for programs in C. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM_NS 1000000000u /* what is done in the first second is not counted */
#define CLIENTS 8           /* of the scenario hot */
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
    char name[64];
    (void)snprintf(name, sizeof name, "%s:%s/%d", peer->name, scenario, number);
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
    void *lock = open_lock(peer, peer->connect(port), port, "pair", 0);
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
    void *client = peer->connect(port);
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

/* ---- hot -------------------------------------------------------------------------------------------- */

/* In memory that the processes share. */
typedef struct race {
    pthread_barrier_t ready;
    struct {
        uint64_t holds, longest_ns;
    } clients[CLIENTS];
} race_t;

/* One process. A wait that the end interrupts is counted as long as it really was. */
static void contend(const peer_t *peer, int port, uint64_t ns, race_t *race, int number) {
    void *lock = open_lock(peer, peer->connect(port), port, "hot", 0);
    peer->lock(lock);
    peer->unlock(lock);
    (void)pthread_barrier_wait(&race->ready);
    uint64_t now = peer_now_ns(), begin = now + WARM_NS, end = begin + ns;
    while (now < end) {
        uint64_t asked = now;
        peer->lock(lock);
        uint64_t got = peer_now_ns();
        peer->unlock(lock);
        now = peer_now_ns();
        race->clients[number].holds += got >= begin && got < end;
        if (got >= begin && got - asked > race->clients[number].longest_ns) {
            race->clients[number].longest_ns = got - asked;
        }
    }
}

static void run_hot(const peer_t *peer, int port, uint64_t ns) {
    race_t *race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    if (race == MAP_FAILED || pthread_barrierattr_init(&shared) != 0 ||
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_barrier_init(&race->ready, &shared, CLIENTS) != 0) {
        peer_die("hot", "no shared memory");
    }
    pid_t parent = getpid();
    for (int i = 0; i < CLIENTS; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            peer_die("hot", "no process");
        }
        if (pid == 0) {
            /* If one fails, those that wait for it at the barrier end with the parent. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent) {
                contend(peer, port, ns, race, i);
                _exit(0);
            }
            _exit(1);
        }
    }
    double sum = 0, squares = 0, longest = 0;
    for (int i = 0, status; i < CLIENTS; i++) {
        if (wait(&status) < 0 || status != 0) {
            peer_die("hot", "a process failed");
        }
    }
    for (int i = 0; i < CLIENTS; i++) {
        double holds = (double)race->clients[i].holds, ms = (double)race->clients[i].longest_ns / 1e6;
        sum += holds;
        squares += holds * holds;
        longest = ms > longest ? ms : longest;
    }
    printf("%s %s hot %.0f %.1f %.3f\n", peer->name, peer->version, sum * 1e9 / (double)ns, longest,
           squares > 0 ? sum * sum / (CLIENTS * squares) : 0);
}

int peer_main(const peer_t *peer, int argc, char **argv) {
    long port = argc == 4 ? strtol(argv[1], NULL, 10) : 0;
    long seconds = argc == 4 ? strtol(argv[3], NULL, 10) : 0;
    uint64_t ns = (uint64_t)seconds * 1000000000u;
    if (port <= 0 || port > 65535 || seconds <= 0) {
        fprintf(stderr, "usage: %s PORT pair|many|hot SECONDS\n", peer->name);
        return 64;
    }
    if (strcmp(argv[2], "pair") == 0) {
        run_pair(peer, (int)port, ns);
    } else if (strcmp(argv[2], "many") == 0) {
        run_many(peer, (int)port, ns);
    } else if (strcmp(argv[2], "hot") == 0 && peer->waits) {
        run_hot(peer, (int)port, ns);
    } else {
        fprintf(stderr, "%s: no scenario %s\n", peer->name, argv[2]);
        return 64;
    }
    return 0;
}
