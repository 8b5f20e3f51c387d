/* redis_subscriber_fixture.h - a Redis server of a test's own, and a subscriber to it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_SUBSCRIBER_FIXTURE_H
#define REDIS_SUBSCRIBER_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drivers/redis/link/subscriber.h"
#include "redis_process.h"
#include "support/entries.h"

#define SECOND (1000 * MS)

/* ---- the environment -------------------------------------------------------------------------------- */

static atomic_ulong clock_ahead_ns; /* what the fake clock adds */
static atomic_int warnings, reconnects, threads;
static char last_warning[256];

static uint64_t now_shifted(void) {
    return dli_sys_real.now_ns() + atomic_load(&clock_ahead_ns);
}

/* In slices, so that a jump of the clock is noticed. */
static int poll_shifted(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        uint64_t now = now_shifted();
        uint64_t left_ns = deadline_ns > now ? deadline_ns - now : 0;
        int ready =
            dli_sys_real.poll(fds, n, dli_sys_real.now_ns() + (left_ns < 20 * MS ? left_ns : 20 * MS));
        if (ready != 0 || now_shifted() >= deadline_ns) {
            return ready;
        }
    }
}

static void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    if (level <= DL_LOG_WARNING) {
        snprintf(last_warning, sizeof last_warning, "%s", text);
        atomic_fetch_add(&warnings, 1);
    }
}

static void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    if (what == DL_COUNT_RECONNECT) {
        atomic_fetch_add(&reconnects, (int)n);
    }
}

static int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg) {
    atomic_fetch_add(&threads, 1);
    return dli_sys_real.thread_start(thread, fn, arg);
}

static dl_driver_env_t env;
static const dl_stop_t no_stop = {{-1, -1}};

static inline uint64_t in_ms(uint64_t ms) {
    return now_shifted() + ms * MS;
}

/* ---- the server ------------------------------------------------------------------------------------- */

static server_t server;

/* How many commands of this kind the server has carried out. */
static inline long long calls_of(const char *command) {
    char start[48];
    snprintf(start, sizeof start, "cmdstat_%s:calls=", command);
    long long calls = info(&server, "commandstats", start);
    return calls < 0 ? 0 : calls;
}

static inline long long subscribed_channels(void) {
    return tell(&server, "PUBSUB CHANNELS");
}

/* ---- the subscriber --------------------------------------------------------------------------------- */

static dli_endpoint_t endpoint;
static dli_subscriber_t *subscriber;
static dl_error_t err;

static inline void endpoint_of(const char *user, int port) {
    char url[96];
    static const dli_endpoint_extras_t nothing = {
        .database = -1, .tls_verify = true, .connect_timeout_ms = -1, .keepalive_ms = -1};
    snprintf(url, sizeof url, "redis://%s127.0.0.1:%d", user, port);
    dli_endpoint_free(&endpoint);
    cr_assert_eq(dli_endpoint_make(&endpoint, url, &nothing, &err), DL_OK, "%s", err.message);
}

static inline void open_as(const char *user) {
    endpoint_of(user, server.port);
    cr_assert_eq(dli_subscriber_open(&endpoint, &env, &subscriber, &err), DL_OK);
}

static void set_up(void) {
    struct rlimit files;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    env = make_env("aaaaaaaa-0000-0000-0000-000000000001", note_report, note_count);
    env.now_ns = now_shifted;
    env.poll = poll_shifted;
    env.thread_start = start_thread;
    start_server(&server, free_port());
    open_as("");
}

static void tear_down(void) {
    dli_subscriber_close(subscriber, false);
    dli_endpoint_free(&endpoint);
    end_server(&server);
}

static inline dl_status_t watch(const char *channel, uint64_t ms, dl_watch_t **made) {
    return dli_subscriber_watch(subscriber, channel, strlen(channel), in_ms(ms), &no_stop, made, &err);
}

static inline dl_watch_t *must_watch(const char *channel) {
    dl_watch_t *made;
    cr_assert_eq(watch(channel, 5000, &made), DL_OK, "%s: %s", channel, err.message);
    return made;
}

static inline dl_status_t wait_ms(dl_watch_t *made, uint64_t ms) {
    return dli_subscriber_wait(subscriber, made, in_ms(ms), &no_stop, &err);
}

static inline void must_wake(dl_watch_t *made) {
    cr_assert_eq(wait_ms(made, 10000), DL_OK, "%s", err.message);
}

static inline void must_sleep(dl_watch_t *made) {
    cr_assert_eq(wait_ms(made, 60), DL_ETIMEDOUT);
}

static inline void unwatch(dl_watch_t *made) {
    dli_subscriber_unwatch(subscriber, made);
}

#endif
