/* redlock_claims_fixture.h - five Redis servers with traps before them, and a client of them made by hand. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_CLAIMS_FIXTURE_H
#define REDLOCK_CLAIMS_FIXTURE_H

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "drivers/redis/redlock/round.h"
#include "redis_process.h"

#define NODES 5
#define PAIRS 16
#define OWNER "aaaaaaaa-0000-4000-8000-000000000001:1"
#define TOKENS "dlock_tokens"
#define MARKER "dlock_tokens:node"
#define QUARANTINE "dlock_tokens:quarantine"

/* ---- the environment: its clock can jump and then stands still ------------------------------------ */

static atomic_ulong stopped_ns; /* what the clock shows; 0: it runs */
static atomic_int warnings;

static uint64_t show_ns(void) {
    uint64_t now_ns = atomic_load(&stopped_ns);
    return now_ns != 0 ? now_ns : dli_sys_real.now_ns();
}

/* In slices, so that a jump of the clock is noticed. */
static int poll_in_slices(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        uint64_t now_ns = show_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        uint64_t slice_ns = left_ns < 5 * MS ? left_ns : 5 * MS;
        int ready = dli_sys_real.poll(fds, n, dli_sys_real.now_ns() + slice_ns);
        if (ready != 0 || show_ns() >= deadline_ns) {
            return ready;
        }
    }
}

static inline uint64_t in_ms(uint64_t ms) {
    return show_ns() + ms * MS;
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

/* ---- a relay before each server ------------------------------------------------------------------- */

enum { REQUESTS, REPLIES, JUMP };

/* What goes a way that is held waits in the relay, hang-ups too: a slow network. */
typedef struct relay {
    char path[96];
    int listener, fds[PAIRS][2];
    atomic_int pairs, open[PAIRS], held[PAIRS][2], stop;
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
    atomic_store(&r->open[at], 1);
    if (connect(r->fds[at][REPLIES], (struct sockaddr *)&address, sizeof address) != 0) {
        close(r->fds[at][REQUESTS]);
        close(r->fds[at][REPLIES]);
        atomic_store(&r->open[at], 0);
    }
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
    if (n <= 0 || recv(from, bytes, (size_t)n, 0) != n || send(to, bytes, (size_t)n, MSG_NOSIGNAL) != n) {
        close(from);
        close(to);
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

/* ---- the nodes ------------------------------------------------------------------------------------ */

static server_t servers[NODES];
static relay_t relays[NODES];
static dli_redlock_t client;
static dl_driver_env_t env;
static dl_error_t err;

static inline void open_node(size_t i) {
    static const dli_pool_options_t pool = {.max_total = 8,
                                            .max_idle = 8,
                                            .borrow_timeout_ms = 1000,
                                            .idle_timeout_ms = 60000,
                                            .idle_check_ms = 1000};
    dli_node_t *node = &client.nodes[i];
    char url[128];
    dli_endpoint_extras_t extras = {.database = -1, .connect_timeout_ms = 1000, .keepalive_ms = -1};
    snprintf(url, sizeof url, "unix://%s", relays[i].path);
    node->redlock = &client;
    node->index = i;
    node->redis.env = &env;
    node->redis.layout = &dli_redis_string_layout;
    node->redis.prefix_len = 6;
    memcpy(node->redis.prefix, "dlock:", 7);
    memcpy(node->redis.token_key, TOKENS, sizeof TOKENS);
    cr_assert_eq(dli_endpoint_make(&node->redis.endpoint, url, &extras, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dli_link_open(&node->redis.endpoint, &pool, &env, &node->redis.link, &err), DL_OK);
}

/* n of the servers are its nodes; with tokens, without quarantine. */
static inline void open_client(size_t n) {
    client.env = &env;
    client.n = n;
    client.quorum = n / 2 + 1;
    client.node_timeout_ms = 500;
    client.max_lease_ms = 60000;
    client.fences = true;
    memcpy(client.marker_key, MARKER, sizeof MARKER);
    memcpy(client.quarantine_key, QUARANTINE, sizeof QUARANTINE);
    pthread_mutex_init(&client.mutex, NULL);
    for (size_t i = 0; i < n; i++) {
        open_node(i);
    }
    cr_assert_eq(dli_stragglers_open(&client, &client.stragglers, &err), DL_OK, "%s", err.message);
}

static inline void close_client(void) {
    dli_stragglers_close(client.stragglers, false);
    dli_round_free(client.spare);
    dli_round_free(client.renewal_spare);
    for (size_t i = 0; i < client.n; i++) {
        dli_link_close(client.nodes[i].redis.link, false);
        dli_endpoint_free(&client.nodes[i].redis.endpoint);
    }
    pthread_mutex_destroy(&client.mutex);
    memset(&client, 0, sizeof client);
}

/* The counters differ: the last node has the highest. */
static inline void spread_counters(long long from) {
    for (size_t i = 0; i < NODES; i++) {
        tell(&servers[i], "SET " TOKENS " %lld", from + 1000 * (long long)i);
    }
}

static inline void start_nodes(void) {
    env = make_env("aaaaaaaa-0000-4000-8000-000000000001", note_report, note_count);
    env.now_ns = show_ns;
    env.poll = poll_in_slices;
    for (size_t i = 0; i < NODES; i++) {
        start_server(&servers[i], 0);
        start_relay(&relays[i], &servers[i]);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_redlock_acquire.source);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_redlock_raise.source);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_redlock_release.source);
    }
    spread_counters(8000000000000000);
}

static inline void end_nodes(void) {
    atomic_store(&stopped_ns, 0);
    close_client();
    for (size_t i = 0; i < NODES; i++) {
        end_relay(&relays[i]);
        end_server(&servers[i]);
    }
}

static inline void freeze(size_t i) {
    cr_assert_eq(kill(servers[i].pid, SIGSTOP), 0);
}

static inline void thaw(size_t i) {
    cr_assert_eq(kill(servers[i].pid, SIGCONT), 0);
}

#endif
