/* redis_mux_fixture.h - a server, a relay that can hold a connection back, and lines on a mux. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_MUX_FIXTURE_H
#define REDIS_MUX_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drivers/redis/link/mux.h"
#include "redis_process.h"

static server_t server; /* on its unix socket only, until a test wants a port */

/* Connections of the client. */
static inline int connections(void) {
    return (int)info(&server, "clients", "connected_clients:") - 1;
}

/* ---- the environment -------------------------------------------------------------------------------- */

static atomic_int round_trips, reconnects, warnings, notices;
static pthread_mutex_t reported_mutex = PTHREAD_MUTEX_INITIALIZER;
static char reported[2048];

static void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    atomic_fetch_add(level <= DL_LOG_WARNING ? &warnings : &notices, 1);
    pthread_mutex_lock(&reported_mutex);
    size_t len = strlen(reported);
    snprintf(reported + len, sizeof reported - len, "%s\n", text);
    pthread_mutex_unlock(&reported_mutex);
}

static inline int was_reported(const char *words) {
    pthread_mutex_lock(&reported_mutex);
    int found = strstr(reported, words) != NULL;
    pthread_mutex_unlock(&reported_mutex);
    return found;
}

static void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    atomic_fetch_add(what == DL_COUNT_ROUND_TRIP ? &round_trips : &reconnects, (int)n);
}

static dl_driver_env_t env;

static inline int listen_at(const char *path, int backlog) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, backlog), 0);
    return fd;
}

#include "redis_mux_relay.h"

/* ---- lines on a multiplexer ------------------------------------------------------------------------ */

static dli_endpoint_t endpoint;
static dli_mux_options_t options;
static dli_mux_t mux;
static pthread_mutex_t core_mutex = PTHREAD_MUTEX_INITIALIZER;
static dli_backend_env_t core;
static const dli_request_t *told_to_look; /* the last */

static inline void note_look(void *arg, dli_request_t *asked) {
    (void)arg;
    told_to_look = asked;
}

static void (*meanwhile)(void); /* before this thread has the mutex again, once */

static inline void lock_core(void *arg) {
    void (*fn)(void) = meanwhile;
    pthread_mutex_lock(arg);
    meanwhile = NULL;
    if (fn != NULL) {
        fn();
    }
}

static inline void unlock_core(void *arg) {
    pthread_mutex_unlock(arg);
}

/* A line of words, and the answer. */
typedef struct line {
    dli_redis_request_t wire; /* first */
    dli_request_t asked;      /* of one that leads */
    const char *words, *source;
    char answer[64];
    bool over;
    dl_status_t status;
    dl_error_t err;
} line_t;

static inline void encode_line(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    const line_t *line = (const line_t *)(const void *)wire;
    dli_slice_t argv[16];
    char copy[256];
    size_t argc = 0;
    snprintf(copy, sizeof copy, "%s", line->words);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL && argc < 16;) {
        argv[argc++] = dli_slice(word);
    }
    if (with_source) {
        argv[0] = dli_slice("EVAL");
        argv[1] = dli_slice(line->source);
    }
    dli_commands_add(commands, argc, argv);
}

static inline bool line_replied(dli_redis_request_t *wire, const redisReply *reply) {
    line_t *line = (line_t *)(void *)wire;
    if (reply->str != NULL) {
        snprintf(line->answer, sizeof line->answer, "%s", reply->str);
    } else {
        snprintf(line->answer, sizeof line->answer, "%lld", reply->integer);
    }
    return true;
}

static inline void line_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    line_t *line = (line_t *)(void *)wire;
    line->status = status;
    line->over = true;
    line->asked.pending = false;
    if (why != NULL) {
        line->err = *why;
    }
}

#define KIND(intent_) .intent = (intent_), .encode = encode_line, .replied = line_replied, .ended = line_ended
static const dli_redis_kind_t plain = {KIND(DLI_PLAIN)}, claim = {KIND(DLI_CLAIM), .says_label = true},
                              release = {KIND(DLI_FREE)}, renewal = {KIND(DLI_PLAIN), .says_label = true};

static inline line_t line_of(const dli_redis_kind_t *kind, const char *words) {
    return (line_t){.wire = {.kind = kind, .count = 1, .claim = 7}, .words = words};
}

static inline void begin_line(line_t *line) {
    lock_core(&core_mutex);
    dli_mux_begin(&mux, &line->wire);
    (void)dli_mux_flush(&mux);
    unlock_core(&core_mutex);
}

static inline bool withdraw_line(line_t *line) {
    lock_core(&core_mutex);
    bool was_sent = dli_mux_withdraw(&mux, &line->wire);
    unlock_core(&core_mutex);
    return was_sent;
}

static inline void listen_once(uint64_t until_ns) {
    struct pollfd fds[2 * DLI_PIPES_MAX];
    uint64_t due_ns;
    size_t n = dli_mux_listen_fds(&mux, fds, &due_ns);
    (void)env.poll(fds, n, due_ns < until_ns ? due_ns : until_ns);
    dli_mux_listen(&mux, fds, n);
}

static inline void await_line(const line_t *line) {
    uint64_t until_ns = env.now_ns() + 5000 * MS;
    while (!line->over) {
        cr_assert_lt(env.now_ns(), until_ns);
        listen_once(until_ns);
    }
}

static inline void run_line(line_t *line) {
    begin_line(line);
    await_line(line);
}

static inline void open_mux_as(const char *path, const char *username, const char *password) {
    char url[128];
    dl_error_t err;
    dli_endpoint_extras_t extras = {.username = username,
                                    .password = password,
                                    .database = -1,
                                    .connect_timeout_ms = 1000,
                                    .keepalive_ms = -1};
    snprintf(url, sizeof url, "unix://%s", path);
    cr_assert_eq(dli_endpoint_make(&endpoint, url, &extras, &err), DL_OK, "%s", err.message);
    core = (dli_backend_env_t){.core = &core_mutex,
                               .lock = lock_core,
                               .unlock = unlock_core,
                               .report = note_report,
                               .look_again = note_look};
    cr_assert_eq(dli_mux_open(&mux, &endpoint, &env, &core, &options, 2, &err), DL_OK, "%s", err.message);
}

static inline void open_mux(const char *path) {
    open_mux_as(path, NULL, NULL);
}

static inline void open_mux_over_relay(void) {
    relay_listener = listen_at(relay_path, PAIRS);
    cr_assert_eq(pthread_create(&relay_thread, NULL, relay, NULL), 0);
    open_mux(relay_path);
}

static inline void set_up(void) {
    start_server(&server, 0);
    snprintf(relay_path, sizeof relay_path, "%s/relay", server.folder);
    env = make_env("aaaaaaaa-0000-0000-0000-000000000001", note_report, note_count);
    options = (dli_mux_options_t){.idle_timeout_ms = 60000, .idle_check_ms = 50};
}

static inline void tear_down(void) {
    dli_mux_close(&mux, false);
    dli_endpoint_free(&endpoint);
    if (relay_listener > 0) {
        atomic_store(&relay_stop, 1);
        pthread_join(relay_thread, NULL);
        for (int i = 0; i < atomic_load(&relay_pairs); i++) {
            if (atomic_load(&relay_open[i])) {
                relay_close(i);
            }
        }
        close(relay_listener);
    }
    end_server(&server);
}

#endif
