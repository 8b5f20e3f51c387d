/* bench.h - what the measurements share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_H
#define DLOCK_BENCH_H

#include <dlock/dlock.h>
#include <stddef.h>
#include <stdint.h>

/* A row of samples in nanoseconds. */
typedef struct samples {
    uint64_t *ns;
    size_t len, cap;
} samples_t;

void samples_add(samples_t *samples, uint64_t ns);
/* p from 0 to 100; sorts. */
uint64_t samples_percentile(samples_t *samples, double p);
void samples_free(samples_t *samples);

uint64_t now_ns(void);
/* Says why and ends the program. */
void die(const char *what, const dl_error_t *err) __attribute__((noreturn));
/* A client of an SQLite file in `folder`; `more` is further options of the backend, such as ", lease: 3s". */
dl_client_t *open_client(const char *folder, const char *more);

/* A way to hand a lock from one process to another; `place` is what open is given. */
typedef struct way {
    const char *name;
    void *(*open)(const void *place);
    void (*await)(void *user); /* returns when this process has the lock */
    void (*give)(void *user);
    void (*close)(void *user);
} way_t;

/* Prints how long a hand-over takes by both ways, in alternating rounds. */
void compare_ways(const char *title, const way_t *floor, const way_t *ours, const void *place,
                  unsigned scale);

/* A client of the library as such a user, with one lock. */
typedef struct user user_t;
user_t *user_open(dl_client_t *client);
void user_await(void *user);
void user_give(void *user);
void user_close(void *user);

/* Takes so many locks with a client that has this lease, and prints how it renews them for three leases.
 * `what`: for the line. `disturb` (may be NULL): called when all are held, with the name of one that it may
 * do harm to; the others are what counts then. Closes the client. */
void hold_many(dl_client_t *client, unsigned count, unsigned lease_ms, const char *what,
               void (*disturb)(const char *name));

/* Pairs a second of a bare connection with so many requests outstanding. */
#define QUEUE_PAIRS_MAX 256
typedef uint64_t (*bare_pairs_fn)(int outstanding, uint64_t for_ns);

/* Prints how often one thread locks and unlocks by a queue, with 1, 16 and 256 operations outstanding, beside
 * threads that block, and a bare connection (NULL: none). Closes the client, as the next one does. */
void queue_pairs(dl_client_t *client, bare_pairs_fn bare, unsigned scale);
/* Prints what 10,000 acquires of one thread cost the client while it renews 1,000 locks. */
void queue_scale(dl_client_t *client, unsigned scale);

/* Each prints one line a figure. `scale` multiplies how much is measured; 1 takes a few seconds. */
void bench_pair(const char *folder, unsigned scale);
void bench_handoff(const char *folder, unsigned scale);
void bench_crowd(const char *folder, unsigned scale);
void bench_crowd_passing(const char *folder, unsigned scale);
void bench_many(const char *folder, unsigned scale);
void bench_queue_pair(const char *folder, unsigned scale);
void bench_queue_scale(const char *folder, unsigned scale);

#endif
