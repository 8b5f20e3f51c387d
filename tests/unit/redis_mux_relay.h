/* redis_mux_relay.h - a relay before the server that can hold a connection back; for the fixture. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_MUX_RELAY_H
#define REDIS_MUX_RELAY_H

/* Stands between the client and the server. What the client sends on a held connection waits here, and so
 * does its hang-up: a slow network. */
#define PAIRS 32

static char relay_path[96];
static atomic_int relay_held[PAIRS], relay_open[PAIRS], relay_stop, relay_pairs;
static atomic_int relay_holds_new; /* connections, from now on */
static atomic_int relay_slow_ms;   /* new connections hear nothing for so long */
static uint64_t relay_until_ns[PAIRS];
static server_t *_Atomic leads_to; /* new connections; NULL: to the server */
static int relay_listener, relay_fds[PAIRS][2];
static pthread_t relay_thread;

static inline void relay_accept(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", (leads_to ? leads_to : &server)->path);
    int at = atomic_load(&relay_pairs);
    relay_fds[at][0] = accept4(relay_listener, NULL, NULL, SOCK_CLOEXEC);
    relay_fds[at][1] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(relay_fds[at][1], (struct sockaddr *)&address, sizeof address) == 0) {
        atomic_store(&relay_held[at], atomic_load(&relay_holds_new));
        relay_until_ns[at] = env.now_ns() + (uint64_t)atomic_load(&relay_slow_ms) * MS;
        atomic_store(&relay_open[at], 1);
    }
    atomic_store(&relay_pairs, at + 1);
}

static inline void relay_close(int at) {
    close(relay_fds[at][0]);
    close(relay_fds[at][1]);
    atomic_store(&relay_open[at], 0);
}

static inline void relay_pass(int at, int from) {
    char bytes[4096];
    ssize_t n = recv(relay_fds[at][from], bytes, sizeof bytes, 0);
    if (n <= 0 || send(relay_fds[at][!from], bytes, (size_t)n, MSG_NOSIGNAL) != n) {
        relay_close(at);
    }
}

/* Descriptor i: of the client, if even. */
static inline bool relay_holds(int i) {
    return i % 2 == 0 && (atomic_load(&relay_held[i / 2]) || env.now_ns() < relay_until_ns[i / 2]);
}

static void *relay(void *arg) {
    (void)arg;
    while (!atomic_load(&relay_stop)) {
        struct pollfd fds[1 + 2 * PAIRS] = {{.fd = relay_listener, .events = POLLIN}};
        int n = atomic_load(&relay_pairs);
        for (int i = 0; i < 2 * n; i++) {
            bool wanted = atomic_load(&relay_open[i / 2]) && !relay_holds(i);
            fds[1 + i] = (struct pollfd){.fd = wanted ? relay_fds[i / 2][i % 2] : -1, .events = POLLIN};
        }
        (void)poll(fds, 1 + 2 * (nfds_t)n, 1);
        for (int i = 0; i < 2 * n; i++) {
            /* perhaps it holds only now */
            if (fds[1 + i].revents != 0 && atomic_load(&relay_open[i / 2]) && !relay_holds(i)) {
                relay_pass(i / 2, i % 2);
            }
        }
        if (fds[0].revents != 0 && n < PAIRS) {
            relay_accept();
        }
    }
    return NULL;
}

#endif
