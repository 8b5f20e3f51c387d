/* redis_link_fixture.h - a server, a relay that can hold a connection back, a link, and short calls on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_LINK_FIXTURE_H
#define REDIS_LINK_FIXTURE_H

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

#include "drivers/redis/link/link.h"
#include "redis_process.h"

static server_t server; /* on its unix socket only, until a test wants a port */

/* Connections of the link. */
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

static inline uint64_t now_ms(void) {
    return env.now_ns() / MS;
}

static inline int listen_at(const char *path, int backlog) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, backlog), 0);
    return fd;
}

#include "redis_link_relay.h"

/* ---- the link --------------------------------------------------------------------------------------- */

static dli_endpoint_t endpoint;
static dli_pool_options_t options;
static dli_link_t *link_;

static inline void open_link_at(const char *url, const char *username, const char *password) {
    dl_error_t err;
    dli_endpoint_extras_t extras = {.username = username,
                                    .password = password,
                                    .database = -1,
                                    .connect_timeout_ms = 1000,
                                    .keepalive_ms = -1};
    cr_assert_eq(dli_endpoint_make(&endpoint, url, &extras, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dli_link_open(&endpoint, &options, &env, &link_, &err), DL_OK, "%s", err.message);
}

static inline void open_link_as(const char *path, const char *username, const char *password) {
    char url[128];
    snprintf(url, sizeof url, "unix://%s", path);
    open_link_at(url, username, password);
}

static inline void open_link(void) {
    open_link_as(server.path, NULL, NULL);
}

/* A server of its own, since a port may be somebody else's by the time it starts. */
static inline void open_link_over_tcp(void) {
    char url[64];
    kill_server(&server);
    server.port = free_port();
    boot_server(&server);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", server.port);
    open_link_at(url, NULL, NULL);
}

static inline void open_link_over_relay(void) {
    relay_listener = listen_at(relay_path, PAIRS);
    cr_assert_eq(pthread_create(&relay_thread, NULL, relay, NULL), 0);
    open_link_as(relay_path, NULL, NULL);
}

static inline void close_link(void) {
    dli_link_close(link_, false);
    dli_endpoint_free(&endpoint);
    link_ = NULL;
}

static inline void set_up(void) {
    start_server(&server, 0);
    snprintf(relay_path, sizeof relay_path, "%s/relay", server.folder);
    env = make_env("aaaaaaaa-0000-0000-0000-000000000001", note_report, note_count);
    options = (dli_pool_options_t){.max_total = 8,
                                   .max_idle = 8,
                                   .borrow_timeout_ms = 1000,
                                   .idle_timeout_ms = 60000,
                                   .idle_check_ms = 50};
}

static inline void tear_down(void) {
    close_link();
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

/* ---- calls ------------------------------------------------------------------------------------------ */

typedef struct call {
    dli_exchange_t x;
    dli_commands_t commands;
    redisReply *replies[4];
    dl_error_t err;
} call_t;

/* Prepares a call of one command, a line of words. */
static inline void prepare(call_t *call, const char *line, uint64_t ms) {
    dli_slice_t argv[16];
    char copy[256];
    size_t argc = 0;
    *call = (call_t){.x = {.lane = DLI_LANE_CALLS, .deadline_ns = env.now_ns() + ms * MS}};
    snprintf(copy, sizeof copy, "%s", line);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL && argc < 16;) {
        argv[argc++] = dli_slice(word);
    }
    dli_commands_add(&call->commands, argc, argv);
    call->x.commands = &call->commands;
    call->x.replies = call->replies;
}

static inline void begin(call_t *call) {
    dli_link_begin(link_, &call->x, &call->err);
}

/* n calls at once, each of this line. */
static inline void begin_all(call_t *calls, int n, const char *line, uint64_t ms) {
    for (int i = 0; i < n; i++) {
        prepare(&calls[i], line, ms);
        begin(&calls[i]);
    }
}

/* Drives a call that has begun; gives up at its deadline. */
static inline dl_status_t drive(call_t *call) {
    while (!dli_link_is_done(&call->x)) {
        struct pollfd fd;
        uint64_t until_ns;
        dli_link_want(&call->x, &fd, &until_ns);
        (void)env.poll(&fd, 1, until_ns);
        dli_link_step(link_, &call->x, fd.revents);
        if (!dli_link_is_done(&call->x) && env.now_ns() >= call->x.deadline_ns) {
            dli_link_abandon(link_, &call->x, DL_EIO);
        }
    }
    return call->x.status;
}

static inline dl_status_t run(call_t *call) {
    return dli_link_run(link_, &call->x, &call->err);
}

static inline void clear(call_t *call) {
    freeReplyObject(call->replies[0]);
    dli_commands_free(&call->commands);
    call->replies[0] = NULL;
}

/* One call from its beginning to its end; the text of its answer goes to `answer`, 64 bytes, unless that
 * is NULL. */
static inline dl_status_t ask_full(const char *line, dli_intent_t intent, uint64_t ms, char *answer,
                                   dl_error_t *err) {
    call_t call;
    prepare(&call, line, ms);
    call.x.intent = intent;
    dl_status_t status = run(&call);
    if (status == DL_OK && answer != NULL) {
        snprintf(answer, 64, "%s", call.replies[0]->str != NULL ? call.replies[0]->str : "");
    }
    if (err != NULL) {
        *err = call.err;
    }
    clear(&call);
    return status;
}

static inline dl_status_t ask(const char *line) {
    dl_error_t err;
    dl_status_t status = ask_full(line, DLI_PLAIN, 2000, NULL, &err);
    cr_assert(status == DL_OK || err.message[0] != '\0');
    return status;
}

/* Makes n connections, which lie idle then. */
static inline void warm_up(int n) {
    call_t calls[16];
    cr_assert_leq(n, 16);
    begin_all(calls, n, "PING", 2000);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK, "%s", calls[i].err.message);
        clear(&calls[i]);
    }
}

#endif
