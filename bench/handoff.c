/* handoff.c - from the unlock in one process to the lock in another, by notification and by 10 ms polling. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void lock_by_polling(dl_lock_t *lock) {
    dl_error_t err;
    dl_status_t status;
    while ((status = dl_trylock(lock, &err)) == DL_EBUSY) {
        (void)poll(NULL, 0, POLL_MS); /* the way of the scripts that this is compared with */
    }
    if (status != DL_OK) {
        die("trylock", &err);
    }
}

static dl_lock_t *open_lock(dl_client_t *client) {
    dl_lock_t *lock;
    dl_error_t err;
    if (dl_lock_open(client, "handed", &lock, &err) != DL_OK) {
        die("open", &err);
    }
    return lock;
}

/* The waiter: says that it begins to wait, waits, says what it measured. */
static void wait_for_it(const char *folder, const shared_t *shared, int in, int out, int total, int polling) {
    dl_client_t *client = open_client(folder, "");
    dl_lock_t *lock = open_lock(client);
    dl_error_t err;
    for (int i = 0; i < total; i++) {
        hear(in);
        say(out);
        if (polling) {
            lock_by_polling(lock);
        } else if (dl_lock(lock, &err) != DL_OK) {
            die("lock", &err);
        }
        uint64_t took = now_ns() - shared->unlocked_ns;
        if (dl_unlock(lock, &err) != DL_OK || write(out, &took, sizeof took) != (ssize_t)sizeof took) {
            die("unlock", &err);
        }
    }
    dl_lock_close(lock);
    dl_client_close(client);
}

static void hand_over(const char *folder, samples_t *samples, int total, int polling) {
    int down[2], up[2];
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(down) != 0 || pipe(up) != 0) {
        die("pipe", NULL);
    }
    pid_t pid = fork();
    if (pid == 0) {
        wait_for_it(folder, shared, down[0], up[1], total, polling);
        exit(0);
    }
    dl_client_t *client = open_client(folder, "");
    dl_lock_t *lock = open_lock(client);
    dl_error_t err;
    unsigned seed = 1;
    for (int i = 0; i < total; i++) {
        if (dl_lock(lock, &err) != DL_OK) {
            die("lock", &err);
        }
        say(down[1]);
        hear(up[0]);
        /* Long enough that the waiter really waits, and of no fixed length against the polling. */
        seed = seed * 1103515245u + 12345u;
        (void)poll(NULL, 0, (int)(15 + (seed >> 16) % 10));
        shared->unlocked_ns = now_ns();
        uint64_t took;
        if (dl_unlock(lock, &err) != DL_OK || read(up[0], &took, sizeof took) != (ssize_t)sizeof took) {
            die("unlock", &err);
        }
        samples_add(samples, took);
    }
    waitpid(pid, NULL, 0);
    dl_lock_close(lock);
    dl_client_close(client);
    close(down[0]);
    close(down[1]);
    close(up[0]);
    close(up[1]);
    munmap(shared, sizeof *shared);
}

void bench_handoff(const char *folder, unsigned scale) {
    samples_t polled = {0}, woken = {0};
    for (int round = 0; round < ROUNDS; round++) {
        hand_over(folder, &polled, (int)(HANDOFFS * scale), 1);
        hand_over(folder, &woken, (int)(HANDOFFS * scale), 0);
    }
    uint64_t p = samples_percentile(&polled, 50), w = samples_percentile(&woken, 50);
    printf("hand-off between processes: polling every %d ms p50 %.0f us p99 %.0f us, dl_lock p50 %.0f us p99 "
           "%.0f us, "
           "ratio of medians %.4f\n",
           POLL_MS, (double)p / 1e3, (double)samples_percentile(&polled, 99) / 1e3, (double)w / 1e3,
           (double)samples_percentile(&woken, 99) / 1e3, (double)w / (double)p);
    samples_free(&polled);
    samples_free(&woken);
}
