/* mysql_link_fixture.h - a server with an account of the test's own, an environment, and the way to both. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_LINK_FIXTURE_H
#define MYSQL_LINK_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_env.h"
#include "drivers/mysql/link/pool.h"
#include "mysql_link_relay.h"
#include "support/mysql_server.h"

#define SLACK_MS 1000 /* by which a busy machine may be late */

/* Looks until it is true; nobody tells when. */
#define AWAIT(cond)                                                      \
    do {                                                                 \
        for (uint64_t end_ = ran_ns() + 20000 * MS; !(cond);) {          \
            cr_assert_lt(ran_ns(), end_, "%s did not come true", #cond); \
            (void)poll(NULL, 0, 1);                                      \
        }                                                                \
    } while (0)

#define AWAIT_THAT(a, op, b) VALUES_AWAIT(a, op, b, 20000)

/* ---- the environment -------------------------------------------------------------------------------- */

static dl_driver_env_t env;
static atomic_int round_trips, reconnects, warnings, polls;
static pthread_mutex_t reported_mutex = PTHREAD_MUTEX_INITIALIZER;
static char reported[4096];
static atomic_int threads_started;
static atomic_bool no_threads;        /* none can be started */
static atomic_uint_fast64_t ahead_ns; /* the clock goes so much ahead of the real one */

static inline void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    atomic_fetch_add(&warnings, level <= DL_LOG_WARNING);
    pthread_mutex_lock(&reported_mutex);
    size_t len = strlen(reported);
    snprintf(reported + len, sizeof reported - len, "%s\n", text);
    pthread_mutex_unlock(&reported_mutex);
}

static inline bool was_reported(const char *words) {
    pthread_mutex_lock(&reported_mutex);
    bool found = strstr(reported, words) != NULL;
    pthread_mutex_unlock(&reported_mutex);
    return found;
}

static inline void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    atomic_fetch_add(what == DL_COUNT_ROUND_TRIP ? &round_trips : &reconnects, (int)n);
}

static inline int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg) {
    atomic_fetch_add(&threads_started, 1);
    return atomic_load(&no_threads) ? EAGAIN : dli_sys_real.thread_start(thread, fn, arg);
}

static inline uint64_t read_clock(void) {
    return ran_ns() + atomic_load(&ahead_ns);
}

/* This thread; in no time. */
static _Thread_local bool hears_nothing, hears_nothing_late;

static inline int poll_until(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    uint64_t by_ns = atomic_load(&ahead_ns);
    atomic_fetch_add(&polls, 1);
    if (hears_nothing || (hears_nothing_late && deadline_ns <= read_clock())) {
        return 0;
    }
    return poll_while_it_runs(fds, n, deadline_ns == DL_NO_DEADLINE ? deadline_ns : deadline_ns - by_ns);
}

static inline uint64_t in_ms(uint64_t ms) {
    return env.now_ns() + ms * MS;
}

static inline uint64_t ms_since(uint64_t began_ns) {
    return (env.now_ns() - began_ns) / MS;
}

/* ---- the server ------------------------------------------------------------------------------------- */

static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX], account[MYSQL_DATABASE_MAX];
static dli_mysql_endpoint_t *endpoint;
static dli_mysql_pool_options_t options;
static relay_t *relay;

static inline void make_endpoint(const char *path, int64_t connect_timeout_ms) {
    dl_error_t err;
    dli_mysql_endpoint_parts_t parts = {.socket = path,
                                        .user = account,
                                        .password = MYSQL_SECRET,
                                        .database = database,
                                        .tls = "off",
                                        .connect_timeout_ms = connect_timeout_ms};
    dli_mysql_endpoint_unref(endpoint);
    cr_assert_eq(dli_mysql_endpoint_new(&parts, &endpoint, &err), DL_OK, "%s", err.message);
}

/* From now on the way to the server goes over a relay. */
static inline void make_relay(int64_t connect_timeout_ms) {
    relay = relay_start(server->path);
    make_endpoint(relay->path, connect_timeout_ms);
}

static inline int connections(void) {
    return mysql_connections(server, account);
}

static inline void set_up_on(mysql_server_t *on) {
    server = on;
    mysql_database(server, database);
    snprintf(account, sizeof account, "u%s", database + 5);
    char where[MYSQL_DATABASE_MAX + 8];
    snprintf(where, sizeof where, "`%s`.*", database);
    mysql_user(server, account, "SELECT, INSERT, UPDATE, DELETE, CREATE", where);
    env = make_env("aaaaaaaa-0000-0000-0000-000000000001", note_report, note_count);
    env.thread_start = start_thread;
    env.now_ns = read_clock;
    env.poll = poll_until;
    options = (dli_mysql_pool_options_t){.calls = DLI_MYSQL_ROLE_PLAIN,
                                         .max_total = 8,
                                         .max_idle = 8,
                                         .idle_timeout_ms = 60000,
                                         .idle_check_ms = 50};
    make_endpoint(server->path, 5000);
}

static inline void set_up(void) {
    set_up_on(mysql_server_any());
}

static inline void set_up_alone(void) {
    set_up_on(mysql_server_start(NULL, NULL, NULL));
}

static inline void tear_down_rest(void) {
    dli_mysql_endpoint_unref(endpoint);
    relay_stop(relay);
    mysql_try(server, "DROP DATABASE `%s`", database);
    mysql_try(server, "DROP USER '%s'", account);
    mysql_server_stop(server);
}

/* ---- stop ------------------------------------------------------------------------------------------- */

static inline dl_stop_t make_stop(int fds[2]) {
    cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
    return (dl_stop_t){{-1, fds[0]}};
}

static inline void trigger(const int fds[2]) {
    cr_assert_eq(write(fds[1], "x", 1), 1);
}

#endif
