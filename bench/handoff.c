/* handoff.c - from the unlock in one process to the lock in another, by two ways that are compared. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define ROUNDS 5
#define HANDOFFS 60
#define POLL_MS 10

/* Shared by both processes. CLOCK_MONOTONIC is one clock on one machine. */
typedef struct shared {
    uint64_t unlocked_ns; /* just before the unlock */
} shared_t;

static void say(int fd) {
    char c = 'x';
    if (write(fd, &c, 1) != 1) {
        die("pipe", NULL);
    }
}

static void hear(int fd) {
    char c;
    if (read(fd, &c, 1) != 1) {
        die("the other process has ended", NULL);
    }
}

/* The waiter: says that it begins to wait, waits, says what it measured. */
static void wait_for_it(const way_t *way, const void *place, const shared_t *shared, int in, int out,
                        int total) {
    void *user = way->open(place);
    for (int i = 0; i < total; i++) {
        hear(in);
        say(out);
        way->await(user);
        uint64_t took = now_ns() - shared->unlocked_ns;
        way->give(user);
        if (write(out, &took, sizeof took) != (ssize_t)sizeof took) {
            die("pipe", NULL);
        }
    }
    way->close(user);
}

static void hand_over(const way_t *way, const void *place, samples_t *samples, int total) {
    int down[2], up[2];
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(down) != 0 || pipe(up) != 0) {
        die("pipe", NULL);
    }
    pid_t pid = fork();
    if (pid == 0) {
        wait_for_it(way, place, shared, down[0], up[1], total);
        _exit(0); /* what ends the server belongs to the first process */
    }
    void *user = way->open(place);
    unsigned seed = 1;
    for (int i = 0; i < total; i++) {
        way->await(user);
        say(down[1]);
        hear(up[0]);
        /* Long enough that the waiter really waits, and of no fixed length against the polling. */
        seed = seed * 1103515245u + 12345u;
        (void)poll(NULL, 0, (int)(15 + (seed >> 16) % 10));
        shared->unlocked_ns = now_ns();
        uint64_t took;
        way->give(user);
        if (read(up[0], &took, sizeof took) != (ssize_t)sizeof took) {
            die("pipe", NULL);
        }
        samples_add(samples, took);
    }
    waitpid(pid, NULL, 0);
    way->close(user);
    close(down[0]);
    close(down[1]);
    close(up[0]);
    close(up[1]);
    munmap(shared, sizeof *shared);
}

void compare_ways(const char *title, const way_t *floor, const way_t *ours, const void *place,
                  unsigned scale) {
    samples_t a = {0}, b = {0};
    for (int round = 0; round < ROUNDS; round++) {
        hand_over(floor, place, &a, (int)(HANDOFFS * scale));
        hand_over(ours, place, &b, (int)(HANDOFFS * scale));
    }
    uint64_t am = samples_percentile(&a, 50), bm = samples_percentile(&b, 50);
    printf("%s: %s p50 %.0f us p99 %.0f us, %s p50 %.0f us p99 %.0f us, ratio of medians %.4f\n", title,
           floor->name, (double)am / 1e3, (double)samples_percentile(&a, 99) / 1e3, ours->name,
           (double)bm / 1e3, (double)samples_percentile(&b, 99) / 1e3, (double)bm / (double)am);
    samples_free(&a);
    samples_free(&b);
}

/* ---- a user of the library --------------------------------------------------------------------------- */

struct user {
    dl_client_t *client;
    dl_lock_t *lock;
};

user_t *user_open(dl_client_t *client) {
    user_t *user = calloc(1, sizeof *user);
    dl_error_t err;
    if (user == NULL) {
        die("out of memory", NULL);
    }
    user->client = client;
    if (dl_lock_open(client, "handed", &user->lock, &err) != DL_OK) {
        die("open", &err);
    }
    return user;
}

void user_await(void *user) {
    dl_error_t err;
    if (dl_lock(((user_t *)user)->lock, &err) != DL_OK) {
        die("lock", &err);
    }
}

void user_give(void *user) {
    dl_error_t err;
    if (dl_unlock(((user_t *)user)->lock, &err) != DL_OK) {
        die("unlock", &err);
    }
}

void user_close(void *user) {
    dl_lock_close(((user_t *)user)->lock);
    dl_client_close(((user_t *)user)->client);
    free(user);
}

/* ---- on SQLite: dl_lock against a loop of dl_trylock ------------------------------------------------- */

static void *open_on_file(const void *folder) {
    return user_open(open_client(folder, ""));
}

static void await_by_polling(void *user) {
    dl_lock_t *lock = ((user_t *)user)->lock;
    dl_error_t err;
    dl_status_t status;
    while ((status = dl_trylock(lock, &err)) == DL_EBUSY) {
        (void)poll(NULL, 0, POLL_MS); /* the way of the scripts that this is compared with */
    }
    if (status != DL_OK) {
        die("trylock", &err);
    }
}

void bench_handoff(const char *folder, unsigned scale) {
    static const way_t polling = {"polling every 10 ms", open_on_file, await_by_polling, user_give,
                                  user_close};
    static const way_t waiting = {"dl_lock", open_on_file, user_await, user_give, user_close};
    compare_ways("hand-off between processes", &polling, &waiting, folder, scale);
}
