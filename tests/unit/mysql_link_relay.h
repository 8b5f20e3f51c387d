/* mysql_link_relay.h - a way to a unix socket that a test makes deaf, or that makes newcomers wait. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_LINK_RELAY_H
#define MYSQL_LINK_RELAY_H

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/scratch.h"

#define RELAY_PAIRS 64

typedef struct relay {
    char folder[80], path[108], server_path[108];
    int listener;
    pthread_t thread;
    atomic_bool is_over;
    atomic_bool holds; /* new connections are accepted, and nothing comes to them as long as this is set */
    atomic_bool cuts;  /* new connections are closed at once */
    atomic_int deaf_below; /* the first so many pairs carry nothing any more, for good */
    atomic_uint looks;     /* rises once that is so */
    atomic_int pairs;      /* that ever were */
    int client[RELAY_PAIRS], server[RELAY_PAIRS]; /* -1: not connected so far, or not any more */
} relay_t;

static inline int relay_socket(const char *path, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    return fd;
}

static inline void relay_close(relay_t *relay, int i) {
    if (relay->client[i] >= 0) {
        close(relay->client[i]);
    }
    if (relay->server[i] >= 0) {
        close(relay->server[i]);
    }
    relay->client[i] = relay->server[i] = -1;
}

/* What has come, to the other side. */
static inline void relay_carry(relay_t *relay, int i, const struct pollfd *fd, int to) {
    char bytes[16384];
    if (fd->revents == 0 || relay->client[i] < 0) {
        return;
    }
    ssize_t n = read(fd->fd, bytes, sizeof bytes);
    if (n <= 0 || send(to, bytes, (size_t)n, MSG_NOSIGNAL) != n) {
        relay_close(relay, i);
    }
}

static inline void relay_meet(relay_t *relay, int i) {
    struct sockaddr_un address;
    relay->server[i] = relay_socket(relay->server_path, &address);
    if (connect(relay->server[i], (struct sockaddr *)&address, sizeof address) != 0) {
        relay_close(relay, i);
    }
}

static inline void *relay_run(void *arg) {
    relay_t *relay = arg;
    while (!atomic_load(&relay->is_over)) {
        struct pollfd fds[1 + 2 * RELAY_PAIRS];
        int n = atomic_load(&relay->pairs), deaf = atomic_load(&relay->deaf_below);
        atomic_fetch_add(&relay->looks, 1);
        fds[0] = (struct pollfd){.fd = n < RELAY_PAIRS ? relay->listener : -1, .events = POLLIN};
        for (int i = 0; i < n; i++) {
            if (relay->client[i] >= 0 && relay->server[i] < 0 && !atomic_load(&relay->holds)) {
                relay_meet(relay, i);
            }
            bool is_deaf = i < deaf || relay->server[i] < 0;
            fds[1 + 2 * i] = (struct pollfd){.fd = is_deaf ? -1 : relay->client[i], .events = POLLIN};
            fds[2 + 2 * i] = (struct pollfd){.fd = is_deaf ? -1 : relay->server[i], .events = POLLIN};
        }
        if (poll(fds, (nfds_t)(1 + 2 * n), 2) <= 0) {
            continue;
        }
        for (int i = 0; i < n; i++) {
            relay_carry(relay, i, &fds[1 + 2 * i], relay->server[i]);
            relay_carry(relay, i, &fds[2 + 2 * i], relay->client[i]);
        }
        if (fds[0].revents != 0) {
            relay->client[n] = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC);
            relay->server[n] = -1;
            if (atomic_load(&relay->cuts)) {
                relay_close(relay, n);
            }
            atomic_store(&relay->pairs, n + 1);
        }
    }
    return NULL;
}

static inline relay_t *relay_start(const char *server_path) {
    struct sockaddr_un address;
    relay_t *relay = calloc(1, sizeof *relay);
    cr_assert_not_null(relay);
    cr_assert(scratch_make("relay", relay->folder, sizeof relay->folder));
    snprintf(relay->path, sizeof relay->path, "%s/relay", relay->folder);
    snprintf(relay->server_path, sizeof relay->server_path, "%s", server_path);
    relay->listener = relay_socket(relay->path, &address);
    cr_assert_eq(bind(relay->listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(relay->listener, RELAY_PAIRS), 0);
    cr_assert_eq(pthread_create(&relay->thread, NULL, relay_run, relay), 0);
    return relay;
}

/* NULL is fine. */
static inline void relay_stop(relay_t *relay) {
    if (relay == NULL) {
        return;
    }
    atomic_store(&relay->is_over, true);
    pthread_join(relay->thread, NULL);
    for (int i = 0; i < relay->pairs; i++) {
        relay_close(relay, i);
    }
    close(relay->listener);
    unlink(relay->path);
    scratch_remove(relay->folder);
    free(relay);
}

#endif
