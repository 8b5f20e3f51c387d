/* redlock_relays.h - a clock that can stop and jump, and relays before Redis servers: a slow network. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_RELAYS_H
#define REDLOCK_RELAYS_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "redis_process.h"

/* What is there once in a program, not once in each of its files: a suite can have tests in several. */
#define SHARED __attribute__((weak, visibility("hidden")))

/* ---- the clock ------------------------------------------------------------------------------------ */

SHARED atomic_ulong stopped_ns; /* what it shows; 0: it runs */

static inline uint64_t show_ns(void) {
    uint64_t now_ns = atomic_load(&stopped_ns);
    return now_ns != 0 ? now_ns : ran_ns();
}

/* In slices, so that a jump of the clock is noticed. */
static inline int poll_in_slices(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        uint64_t now_ns = show_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        uint64_t slice_ns = left_ns < 5 * MS ? left_ns : 5 * MS;
        int ready = poll_while_it_runs(fds, n, ran_ns() + slice_ns);
        if (ready != 0 || show_ns() >= deadline_ns) {
            return ready;
        }
    }
}

static inline void stop_clock(void) {
    atomic_store(&stopped_ns, ran_ns());
}

/* Of a clock that is stopped. */
static inline void jump(uint64_t ms) {
    atomic_fetch_add(&stopped_ns, ms * MS);
}

static inline uint64_t in_ms(uint64_t ms) {
    return show_ns() + ms * MS;
}

/* ---- a relay before a server ---------------------------------------------------------------------- */

#define PAIRS 16

enum { REQUESTS, REPLIES, JUMP };

/* What goes a way that is held waits in the relay, hang-ups too: a slow network. */
typedef struct relay {
    char path[96];
    int listener, fds[PAIRS][2];
    atomic_int pairs, open[PAIRS], held[PAIRS][2], turns, stop;
    /* The first request that contains the text: from then on its connection is held one way, that request
     * included, or the clock jumps. */
    _Atomic(const char *) trap;
    atomic_int trap_way, sprung; /* sprung: the connection's number and 1 */
    atomic_ulong jump_ms;
    const server_t *server;
    pthread_t thread;
} relay_t;

static inline void relay_accept(relay_t *r) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int at = atomic_load(&r->pairs);
    memcpy(address.sun_path, r->server->path, sizeof r->server->path);
    r->fds[at][REQUESTS] = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    r->fds[at][REPLIES] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(r->fds[at][REPLIES], (struct sockaddr *)&address, sizeof address) != 0) {
        close(r->fds[at][REQUESTS]);
        close(r->fds[at][REPLIES]);
        return; /* its server is down: no pair, however often that is tried */
    }
    atomic_store(&r->open[at], 1);
    atomic_store(&r->pairs, at + 1);
}

/* Looks at requests that are about to pass. true: they stay. */
static inline bool relay_traps(relay_t *r, int at, const char *bytes, size_t len) {
    const char *text = atomic_load(&r->trap);
    if (text == NULL || memmem(bytes, len, text, strlen(text)) == NULL) {
        return false;
    }
    int way = atomic_load(&r->trap_way);
    atomic_store(&r->trap, NULL);
    if (way == JUMP) {
        atomic_store(&stopped_ns, show_ns() + atomic_load(&r->jump_ms) * MS);
    } else {
        atomic_store(&r->held[at][way], 1);
    }
    atomic_store(&r->sprung, at + 1);
    return way == REQUESTS;
}

static inline void relay_pass(relay_t *r, int at, int way) {
    char bytes[65536];
    int from = r->fds[at][way], to = r->fds[at][!way];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_PEEK);
    if (n > 0 && way == REQUESTS && relay_traps(r, at, bytes, (size_t)n)) {
        return;
    }
    bool has_passed =
        n > 0 && recv(from, bytes, (size_t)n, 0) == n && send(to, bytes, (size_t)n, MSG_NOSIGNAL) == n;
    if (n > 0 && !has_passed && way == REQUESTS) {
        return; /* the server has hung up; what it said last is still to be passed, and then its end */
    }
    if (!has_passed) {
        close(from);
        close(to);
        atomic_store(&r->open[at], 0);
    }
}

static inline void *relay_main(void *arg) {
    relay_t *r = arg;
    while (!atomic_load(&r->stop)) {
        struct pollfd fds[1 + 2 * PAIRS] = {{.fd = r->listener, .events = POLLIN}};
        int n = atomic_load(&r->pairs);
        for (int i = 0; i < 2 * n; i++) {
            bool wanted = atomic_load(&r->open[i / 2]) && !atomic_load(&r->held[i / 2][i % 2]);
            fds[1 + i] = (struct pollfd){.fd = wanted ? r->fds[i / 2][i % 2] : -1, .events = POLLIN};
        }
        (void)poll(fds, 1 + 2 * (nfds_t)n, 1);
        for (int i = 0; i < 2 * n; i++) {
            if (fds[1 + i].revents != 0 && atomic_load(&r->open[i / 2]) &&
                !atomic_load(&r->held[i / 2][i % 2])) {
                relay_pass(r, i / 2, i % 2);
            }
        }
        if (fds[0].revents != 0 && n < PAIRS) {
            relay_accept(r);
        }
        atomic_fetch_add(&r->turns, 1);
    }
    return NULL;
}

static inline void start_relay(relay_t *r, const server_t *server) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    r->server = server;
    snprintf(r->path, sizeof r->path, "%s/relay", server->folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/relay", server->folder);
    r->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(r->listener, 0);
    cr_assert_eq(bind(r->listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(r->listener, PAIRS), 0);
    cr_assert_eq(pthread_create(&r->thread, NULL, relay_main, r), 0);
}

static inline void end_relay(relay_t *r) {
    atomic_store(&r->stop, 1);
    pthread_join(r->thread, NULL);
    close(r->listener);
}

/* Holds what goes this way on the connections that are there; how = 0: no more. */
static inline void hold(relay_t *r, int way, int how) {
    for (int i = 0; i < atomic_load(&r->pairs); i++) {
        atomic_store(&r->held[i][way], how);
    }
}

static inline void cut(relay_t *r, int at) {
    if (atomic_load(&r->open[at]) != 0) {
        cr_assert_eq(shutdown(r->fds[at][REQUESTS], SHUT_RDWR), 0);
        AWAIT_THAT(atomic_load(&r->open[at]), ==, 0);
    }
}

/* All connections, one that was caught last: so what was caught has ended, and what follows it has no way. */
static inline void cut_all(relay_t *r) {
    int caught = atomic_load(&r->sprung) - 1; /* -1: none was */
    for (int i = 0; i < atomic_load(&r->pairs); i++) {
        if (i != caught) {
            cut(r, i);
        }
    }
    if (caught >= 0) {
        cut(r, caught);
    }
}

/* What was written to a connection before has reached the server, and it has acted on it. */
static inline void await_relay(relay_t *r, server_t *server) {
    int before = atomic_load(&r->turns);
    AWAIT_THAT(atomic_load(&r->turns) - before, >=, 2);
    tell(server, "PING");
    tell(server, "PING"); /* the first may be in one turn of the server with what the relay has sent */
}

#endif
