/* event_loop.c - a loop of its own: works under a lock in steps and watches for its loss. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: event_loop [STEPS [STEP_MS]]
 *
 * One poll() waits for the program's own timer and for the library's events. Should the lock be lost, the
 * loop stops before the next step, without asking a server: dl_valid_ms is local arithmetic.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "dlock/dlock.h"

/* A timer that fires every step_ms. */
static int open_timer(long step_ms) {
    struct timespec step = {step_ms / 1000, step_ms % 1000 * 1000000};
    struct itimerspec spec = {step, step};
    int fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);

    if (fd >= 0 && timerfd_settime(fd, 0, &spec, NULL) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Prints what happened; 1 if the lock is gone. */
static int read_events(dl_client_t *client) {
    dl_event_t event = DL_EVENT_INIT;
    int lost = 0;

    while (dl_event_next(client, &event) == DL_OK) {
        printf("event: %s: %s\n", event.name[0] ? event.name : "backend", event.text);
        lost |= event.kind == DL_EVENT_LOST;
    }
    return lost;
}

/* Works while the lock is held. The number of steps done, or -1 when the lock was lost. */
static int run_loop(dl_client_t *client, dl_lock_t *lock, int timer, int steps) {
    struct pollfd fds[2] = {{timer, POLLIN, 0}, {dl_event_fd(client), POLLIN, 0}};
    int done = 0;

    while (done < steps) {
        uint64_t ticks;
        if (poll(fds, 2, -1) < 0)
            continue; /* only EINTR is possible here */
        if ((fds[1].revents & POLLIN) && read_events(client))
            return -1;
        if (!(fds[0].revents & POLLIN) || read(timer, &ticks, sizeof ticks) != (ssize_t)sizeof ticks)
            continue;
        int64_t valid_ms = dl_valid_ms(lock);
        if (valid_ms == 0)
            return -1;
        done++;
        printf("step %d of %d, the lock is surely ours for %" PRId64 " ms more\n", done, steps, valid_ms);
    }
    return done;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 5;
    long step_ms = argc > 2 ? atol(argv[2]) : 100;
    int timer = open_timer(step_ms > 0 ? step_ms : 100);
    int done = -1;
    dl_error_t err;
    dl_client_t *client;
    dl_lock_t *lock = NULL;

    if (timer < 0) {
        perror("event_loop");
        return 1;
    }
    if (dl_client_open(NULL, "local", &client, &err) != DL_OK ||
        dl_lock_open(client, "event_loop", &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK) {
        fprintf(stderr, "event_loop: %s: %s\n", dl_status_name(err.status), err.message);
    } else {
        done = run_loop(client, lock, timer, steps);
        if (dl_unlock(lock, &err) != DL_OK)
            fprintf(stderr, "event_loop: the work may have overlapped with another's: %s\n", err.message);
    }
    dl_lock_close(lock);
    dl_client_close(client);
    close(timer);
    return done == steps ? 0 : 1;
}
