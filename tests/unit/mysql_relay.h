/* mysql_relay.h - a socket before the server's: makes connections deaf, cuts, renumbers, misquotes. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_RELAY_H
#define MYSQL_RELAY_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/scratch.h"

#define RELAY_PAIRS 32

enum { RELAY_NONE, RELAY_OPEN, RELAY_DEAF, RELAY_CUT };

typedef struct relay {
    char folder[80], path[108];
    const char *behind; /* path of the server's */
    int listener;
    int fds[RELAY_PAIRS][2]; /* the client's end, the server's */
    atomic_int states[RELAY_PAIRS];
    bool greeted[RELAY_PAIRS];
    atomic_int pairs, stop;
    atomic_bool renumbers;    /* from now on connections are greeted with another number than theirs */
    const char *asked;        /* a statement that begins so */
    const char *_Atomic told; /* goes to the server as this one; NULL: as it is */
    pthread_t thread;
} relay_t;

static inline void relay_accept(relay_t *relay) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", relay->behind);
    int at = atomic_load(&relay->pairs);
    relay->fds[at][0] = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC);
    relay->fds[at][1] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(relay->fds[at][1], (struct sockaddr *)&address, sizeof address) == 0) {
        atomic_store(&relay->states[at], RELAY_OPEN);
    }
    atomic_store(&relay->pairs, at + 1);
}

static inline void relay_close(relay_t *relay, int at) {
    close(relay->fds[at][0]);
    close(relay->fds[at][1]);
    atomic_store(&relay->states[at], RELAY_NONE);
}

/* Its number stands behind the length, the protocol and the text of the version. */
static inline void relay_renumber(char *greeting, size_t len) {
    const char *end = memchr(greeting + 5, '\0', len - 5);
    cr_assert_not_null(end);
    greeting[end + 1 - greeting] ^= 1;
}

/* One statement is on its way at a time. What stands before its text stays, but for the length. */
static inline size_t relay_retell(const relay_t *relay, char *bytes, size_t len, size_t room) {
    const char *told = atomic_load(&relay->told);
    char *text = told != NULL ? memmem(bytes, len, relay->asked, strlen(relay->asked)) : NULL;
    if (text == NULL) {
        return len;
    }
    size_t all = (size_t)(text - bytes) + strlen(told), payload = all - 4;
    cr_assert_leq(all, room);
    memcpy(text, told, strlen(told));
    bytes[0] = (char)payload;
    bytes[1] = (char)(payload >> 8);
    return all;
}

static inline void relay_pass(relay_t *relay, int at, int from) {
    char bytes[4096];
    ssize_t n = recv(relay->fds[at][from], bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 5 && from == 1 && !relay->greeted[at]) {
        relay->greeted[at] = true;
        if (atomic_load(&relay->renumbers)) {
            relay_renumber(bytes, (size_t)n);
        }
    }
    if (n > 5 && from == 0) {
        n = (ssize_t)relay_retell(relay, bytes, (size_t)n, sizeof bytes);
    }
    if (n == 0 || (n > 0 && send(relay->fds[at][!from], bytes, (size_t)n, MSG_NOSIGNAL) != n)) {
        relay_close(relay, at);
    }
}

static inline void *relay_run(void *arg) {
    relay_t *relay = arg;
    while (!atomic_load(&relay->stop)) {
        struct pollfd fds[1 + 2 * RELAY_PAIRS] = {{.fd = relay->listener, .events = POLLIN}};
        int n = atomic_load(&relay->pairs);
        for (int i = 0; i < n; i++) {
            if (atomic_load(&relay->states[i]) == RELAY_CUT) {
                relay_close(relay, i);
            }
            bool is_open = atomic_load(&relay->states[i]) == RELAY_OPEN;
            for (int j = 0; j < 2; j++) {
                fds[1 + 2 * i + j] = (struct pollfd){.fd = is_open ? relay->fds[i][j] : -1, .events = POLLIN};
            }
        }
        (void)poll(fds, 1 + 2 * (nfds_t)n, 2);
        for (int i = 0; i < 2 * n; i++) {
            if (fds[1 + i].revents != 0 && atomic_load(&relay->states[i / 2]) == RELAY_OPEN) {
                relay_pass(relay, i / 2, i % 2);
            }
        }
        if (fds[0].revents != 0 && n < RELAY_PAIRS) {
            relay_accept(relay);
        }
    }
    return NULL;
}

static inline void relay_start(relay_t *relay, const char *behind) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(relay, 0, sizeof *relay);
    relay->behind = behind;
    cr_assert(scratch_make("relay", relay->folder, sizeof relay->folder));
    snprintf(relay->path, sizeof relay->path, "%s/socket", relay->folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", relay->path);
    relay->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(relay->listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(relay->listener, 64), 0);
    cr_assert_eq(pthread_create(&relay->thread, NULL, relay_run, relay), 0);
}

static inline void relay_stop(relay_t *relay) {
    atomic_store(&relay->stop, 1);
    pthread_join(relay->thread, NULL);
    for (int i = 0; i < atomic_load(&relay->pairs); i++) {
        if (atomic_load(&relay->states[i]) != RELAY_NONE) {
            relay_close(relay, i);
        }
    }
    close(relay->listener);
    scratch_remove(relay->folder);
}

#endif
