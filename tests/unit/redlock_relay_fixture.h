/* redlock_relay_fixture.h - three Redis servers behind relays, and a client of them made by hand. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_RELAY_FIXTURE_H
#define REDLOCK_RELAY_FIXTURE_H

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "drivers/redis/redlock/round.h"
#include "redis_process.h"

#define NODES 3
#define PAIRS 16
#define OWNER "aaaaaaaa-0000-0000-0000-000000000001:1"
#define LEASE_MS 30000

/* ---- the environment: its clock can be stopped -------------------------------------------------------- */

static atomic_ulong stopped_ns; /* what the clock shows; 0: it runs */
static atomic_int warnings;

static uint64_t now_or_stopped(void) {
    uint64_t now_ns = atomic_load(&stopped_ns);
    return now_ns != 0 ? now_ns : dli_sys_real.now_ns();
}

/* In slices, so that a change of the clock is noticed. */
static int poll_or_stopped(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        uint64_t now_ns = now_or_stopped(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        uint64_t slice_ns = left_ns < 5 * MS ? left_ns : 5 * MS;
        int ready = dli_sys_real.poll(fds, n, dli_sys_real.now_ns() + slice_ns);
        if (ready != 0 || now_or_stopped() >= deadline_ns) {
            return ready;
        }
    }
}

static inline void stop_clock(void) {
    atomic_store(&stopped_ns, dli_sys_real.now_ns());
}

static inline uint64_t in_ms(uint64_t ms) {
    return now_or_stopped() + ms * MS;
}

static void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)text;
    atomic_fetch_add(&warnings, level <= DL_LOG_WARNING);
}

static void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

/* ---- a relay before each server ----------------------------------------------------------------------- */

enum { REQUESTS, REPLIES };

/* What goes a way that is held waits in the relay, hang-ups too: a slow network. */
typedef struct relay {
    char path[96];
    int listener, fds[PAIRS][2];
    atomic_int pairs, open[PAIRS], held[PAIRS][2], turns, stop;
    const server_t *server;
    pthread_t thread;
} relay_t;

static inline void relay_accept(relay_t *r) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int at = atomic_load(&r->pairs);
    memcpy(address.sun_path, r->server->path, sizeof r->server->path);
    r->fds[at][REQUESTS] = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    r->fds[at][REPLIES] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    atomic_store(&r->open[at], 1);
    if (connect(r->fds[at][REPLIES], (struct sockaddr *)&address, sizeof address) != 0) {
        close(r->fds[at][REQUESTS]);
        close(r->fds[at][REPLIES]);
        atomic_store(&r->open[at], 0);
    }
    atomic_store(&r->pairs, at + 1);
}

static inline void relay_pass(relay_t *r, int at, int way) {
    char bytes[65536];
    ssize_t n = recv(r->fds[at][way], bytes, sizeof bytes, 0);
    if (n <= 0 || send(r->fds[at][!way], bytes, (size_t)n, MSG_NOSIGNAL) != n) {
        close(r->fds[at][REQUESTS]);
        close(r->fds[at][REPLIES]);
        atomic_store(&r->open[at], 0);
    }
}

static void *relay_main(void *arg) {
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
    cr_assert(r->listener >= 0 && bind(r->listener, (struct sockaddr *)&address, sizeof address) == 0 &&
              listen(r->listener, PAIRS) == 0);
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

/* What was written to a connection before has reached the server, and it has acted on it. */
static inline void await_relay(relay_t *r, server_t *server) {
    int before = atomic_load(&r->turns);
    AWAIT(atomic_load(&r->turns) - before >= 2);
    tell(server, "PING");
    tell(server, "PING"); /* the first may be in one turn of the server with what the relay has sent */
}

/* ---- the nodes ---------------------------------------------------------------------------------------- */

static server_t servers[NODES];
static relay_t relays[NODES];
static dli_redlock_t client;
static dl_driver_env_t env;
static dl_error_t err;
static const dl_stop_t no_stop = {{-1, -1}};
static const dli_pool_options_t pool_options = {.max_total = 8,
                                                .max_idle = 8,
                                                .borrow_timeout_ms = 1000,
                                                .idle_timeout_ms = 60000,
                                                .idle_check_ms = 1000};

static inline void open_node(size_t i, const char *username) {
    dli_node_t *node = &client.nodes[i];
    char url[128];
    dli_endpoint_extras_t extras = {.username = username,
                                    .password = username,
                                    .database = -1,
                                    .connect_timeout_ms = 1000,
                                    .keepalive_ms = -1};
    snprintf(url, sizeof url, "unix://%s", relays[i].path);
    node->redlock = &client;
    node->index = i;
    node->redis.env = &env;
    node->redis.layout = &dli_redis_string_layout;
    node->redis.prefix_len = 6;
    memcpy(node->redis.prefix, "dlock:", 7);
    memcpy(node->redis.token_key, "dlock_tokens", 13);
    cr_assert_eq(dli_endpoint_make(&node->redis.endpoint, url, &extras, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dli_link_open(&node->redis.endpoint, &pool_options, &env, &node->redis.link, &err), DL_OK);
    cr_assert_eq(dli_subscriber_open(&node->redis.endpoint, &env, &node->redis.subscriber, &err), DL_OK);
}

static inline void open_client_as(const char *username) {
    client.env = &env;
    client.n = NODES;
    client.quorum = NODES / 2 + 1;
    client.node_timeout_ms = 500;
    client.max_lease_ms = 60000;
    pthread_mutex_init(&client.mutex, NULL);
    for (size_t i = 0; i < NODES; i++) {
        open_node(i, username);
    }
    cr_assert_eq(dli_stragglers_open(&client, &client.stragglers, &err), DL_OK, "%s", err.message);
}

static inline void close_client(void) {
    dli_stragglers_close(client.stragglers, false);
    dli_round_free(client.spare);
    dli_round_free(client.renewal_spare);
    for (size_t i = 0; i < NODES; i++) {
        dli_link_close(client.nodes[i].redis.link, false);
        dli_subscriber_close(client.nodes[i].redis.subscriber, false);
        dli_endpoint_free(&client.nodes[i].redis.endpoint);
    }
    pthread_mutex_destroy(&client.mutex);
    memset(&client, 0, sizeof client);
}

static inline void set_up(void) {
    env = make_env("aaaaaaaa-0000-0000-0000-000000000001", note_report, note_count);
    env.now_ns = now_or_stopped;
    env.poll = poll_or_stopped;
    for (size_t i = 0; i < NODES; i++) {
        start_server(&servers[i], 0);
        start_relay(&relays[i], &servers[i]);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_string_renew.source);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_redlock_fill.source);
    }
    open_client_as(NULL);
}

static inline void tear_down(void) {
    atomic_store(&stopped_ns, 0);
    close_client();
    for (size_t i = 0; i < NODES; i++) {
        end_relay(&relays[i]);
        end_server(&servers[i]);
    }
}

static inline void await_relays(void) {
    for (size_t i = 0; i < NODES; i++) {
        await_relay(&relays[i], &servers[i]);
    }
}

static inline void freeze(size_t i) {
    cr_assert_eq(kill(servers[i].pid, SIGSTOP), 0);
    cr_assert_eq(waitpid(servers[i].pid, NULL, WUNTRACED), servers[i].pid);
}

static inline void thaw(size_t i) {
    cr_assert_eq(kill(servers[i].pid, SIGCONT), 0);
}

#endif
