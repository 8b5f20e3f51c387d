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

#include "drivers/redis/link/hearing.h"
#include "redis_process.h"
#include "support/entries.h"

#define SECOND (1000 * MS)

/* ---- the environment -------------------------------------------------------------------------------- */

static atomic_ulong clock_ahead_ns; /* what the fake clock adds */
static atomic_int warnings, reconnects;
static char last_warning[256];

static uint64_t now_shifted(void) {
    return ran_ns() + atomic_load(&clock_ahead_ns);
}

/* In slices, so that a jump of the clock is noticed. */
static int poll_shifted(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        uint64_t now = now_shifted();
        uint64_t left_ns = deadline_ns > now ? deadline_ns - now : 0;
        int ready = poll_while_it_runs(fds, n, ran_ns() + (left_ns < 20 * MS ? left_ns : 20 * MS));
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

static dl_driver_env_t env;

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
        .database = -1, .tls_verify = true, .connect_timeout_ms = 2000};
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
    start_server(&server, port_keep());
    open_as("");
}

static void tear_down(void) {
    dli_subscriber_close(subscriber, false);
    dli_endpoint_free(&endpoint);
    end_server(&server);
}

/* ---- those who hear --------------------------------------------------------------------------------- */

typedef struct hearer {
    dli_watcher_t watcher; /* the first */
    bool hears;
    int told; /* how often it was, since somebody looked last */
} hearer_t;

static bool has_told; /* anybody, since somebody began to listen */

static inline void note_heard(dli_watcher_t *watcher, bool hears, const char *message) {
    hearer_t *hearer = (hearer_t *)watcher;
    cr_assert(hears || message == NULL);
    hearer->hears = hears;
    hearer->told++;
    has_told = true;
}

/* Listens as a caller of the core does, until the instant at the longest. Nothing that it calls may wait. */
static inline void listen_once(uint64_t until_ns) {
    struct pollfd fd;
    uint64_t due_ns, before_ns = now_shifted();
    has_told = false;
    dli_subscriber_fds(subscriber, &fd, &due_ns);
    cr_assert_lt(now_shifted() - before_ns, SECOND, "listening waited");
    until_ns = has_told ? 0 : due_ns < until_ns ? due_ns : until_ns; /* who is told looks at once */
    int ready = env.poll(&fd, 1, until_ns);
    before_ns = now_shifted();
    dli_subscriber_listen(subscriber, ready > 0 ? fd.revents : 0);
    cr_assert_lt(now_shifted() - before_ns, SECOND, "listening waited");
}

/* Listens until it is true. */
#define LISTEN_UNTIL(cond) AWAIT((listen_once(in_ms(2)), (cond)))

static inline dl_status_t watch(const char *channel, hearer_t *hearer) {
    *hearer = (hearer_t){.watcher.heard = note_heard};
    return dli_subscriber_watch(subscriber, channel, strlen(channel), &hearer->watcher, &err);
}

/* Until it is told, or the time is over. True: it was, and that is taken back. */
static inline bool wait_ms(hearer_t *hearer, uint64_t ms) {
    uint64_t until_ns = in_ms(ms);
    while (hearer->told == 0 && now_shifted() < until_ns) {
        listen_once(until_ns);
    }
    bool was_told = hearer->told > 0;
    hearer->told = 0;
    return was_told;
}

/* Until it hears, which it is told once. */
static inline void must_watch(const char *channel, hearer_t *hearer) {
    cr_assert_eq(watch(channel, hearer), DL_OK, "%s: %s", channel, err.message);
    cr_assert_eq(hearer->told, 0);
    cr_assert(wait_ms(hearer, 10000), "%s is not heard of", channel);
    cr_assert(hearer->hears, "%s is not heard of", channel);
}

static inline void must_wake(hearer_t *hearer) {
    cr_assert(wait_ms(hearer, 10000), "not woken");
    cr_assert(hearer->hears);
}

static inline void must_sleep(hearer_t *hearer) {
    cr_assert_not(wait_ms(hearer, 60), "woken for nothing");
}

/* It is told that nothing is heard. */
static inline void must_lose(hearer_t *hearer) {
    cr_assert(wait_ms(hearer, 10000), "not told of the loss");
    cr_assert_not(hearer->hears);
}

static inline void unwatch(hearer_t *hearer) {
    dli_subscriber_unwatch(subscriber, &hearer->watcher);
}

#endif
