/* peer.h - what a C program of bench/peers says about the lock that it measures. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_PEER_H
#define DLOCK_BENCH_PEER_H

#include <stdint.h>

#define PEER_TASKS 64   /* of the scenario many */
#define PEER_LEASE "5s" /* of every client in a scenario mixed-PEER */

/* What the threads of a process share, and what one thread locks by. */
typedef struct peer {
    const char *name, *version;
    int waits;              /* lock waits for another holder, so that the scenario hot can be measured */
    int processes, threads; /* of its side of a scenario mixed-PEER, each thread a client; 0: it is in none */
    void *(*connect)(int port, const char *scenario);
    void *(*open)(void *client, int port, const char *name);
    void (*lock)(void *lock);
    void (*unlock)(void *lock);
    /* Pairs of one thread with PEER_TASKS operations outstanding, in a second; NULL: no such way. */
    double (*queue)(void *client, uint64_t begin_ns, uint64_t end_ns);
} peer_t;

/* main of such a program: PORT SCENARIO SECONDS. Prints one line, `name version scenario figure...`. */
int peer_main(const peer_t *peer, int argc, char **argv);

/* Whether it is mixed-PEER: that peer's name, or NULL. */
const char *peer_mixed(const char *scenario);

uint64_t peer_now_ns(void);
void peer_die(const char *what, const char *why) __attribute__((noreturn));

#endif
