/* redis_subscriber_fixture.h - a Redis server of a test's own, and a subscriber to it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_SUBSCRIBER_FIXTURE_H
#define REDIS_SUBSCRIBER_FIXTURE_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sys.h"
#include "drivers/redis/subscriber.h"

#define MS ((uint64_t)1000000)
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

static void make_env(void) {
    env = (dl_driver_env_t){.size = sizeof env,
                            .client_uuid = "aaaaaaaa-0000-0000-0000-000000000001",
                            .client_label = "host:1",
                            .call_timeout_ms = 2000,
                            .lease_ms = 30000,
                            .now_ns = now_shifted,
                            .poll = poll_shifted,
                            .random = dli_sys_real.random,
                            .thread_start = start_thread,
                            .thread_join = dli_sys_real.thread_join,
                            .cond_init = dli_sys_real.cond_init,
                            .cond_wait = dli_sys_real.cond_wait,
                            .cond_broadcast = dli_sys_real.cond_broadcast,
                            .report = note_report,
                            .count = note_count};
}

static inline uint64_t in_ms(uint64_t ms) {
    return now_shifted() + ms * MS;
}

/* Looks every few milliseconds whether something has become true that tells nobody. */
#define AWAIT(condition)                                                                \
    do {                                                                                \
        for (uint64_t until_ns_ = dli_sys_real.now_ns() + 15 * SECOND; !(condition);) { \
            cr_assert_lt(dli_sys_real.now_ns(), until_ns_, "never: " #condition);       \
            (void)poll(NULL, 0, 2);                                                     \
        }                                                                               \
    } while (0)

/* ---- the server ------------------------------------------------------------------------------------- */

static struct {
    pid_t pid;
    int port;
    char folder[48];
    redisContext *admin;
} server;

static void start_server(void) {
    char port[8];
    snprintf(port, sizeof port, "%d", server.port);
    server.pid = fork();
    if (server.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        const char *program = getenv("DLOCK_REDIS_SERVER");
        program = program != NULL ? program : "redis-server";
        execlp(program, program, "--port", port, "--bind", "127.0.0.1", "--dir", server.folder, "--save", "",
               "--appendonly", "no", "--logfile", "server.log", (char *)NULL);
        _exit(127);
    }
    AWAIT((server.admin = redisConnect("127.0.0.1", server.port)) != NULL &&
          (server.admin->err == 0 || (redisFree(server.admin), false)));
}

static void kill_server(void) {
    redisFree(server.admin);
    server.admin = NULL;
    kill(server.pid, SIGKILL);
    cr_assert_eq(waitpid(server.pid, NULL, 0), server.pid);
}

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
              getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* One command; the number that is its answer, or the length of it. */
static long long tell(const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *reply = redisvCommand(server.admin, format, args);
    va_end(args);
    cr_assert_not_null(reply, "%s: %s", format, server.admin->errstr);
    cr_assert_neq(reply->type, REDIS_REPLY_ERROR, "%s: %s", format, reply->str);
    long long number = reply->type == REDIS_REPLY_INTEGER ? reply->integer : (long long)reply->elements;
    freeReplyObject(reply);
    return number;
}

/* How many commands of this kind the server has carried out. */
static inline long long calls_of(const char *command) {
    char start[48];
    snprintf(start, sizeof start, "cmdstat_%s:calls=", command);
    redisReply *reply = redisCommand(server.admin, "INFO commandstats");
    cr_assert_not_null(reply);
    const char *at = strstr(reply->str, start);
    long long calls = at == NULL ? 0 : atoll(at + strlen(start));
    freeReplyObject(reply);
    return calls;
}

static inline long long subscribed_channels(void) {
    return tell("PUBSUB CHANNELS");
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
    make_env();
    strcpy(server.folder, "/tmp/dlock-subscriber-XXXXXX");
    cr_assert_not_null(mkdtemp(server.folder));
    server.port = free_port();
    start_server();
    open_as("");
}

static void tear_down(void) {
    char command[80];
    dli_subscriber_close(subscriber, false);
    dli_endpoint_free(&endpoint);
    if (server.admin != NULL) {
        kill_server();
    }
    snprintf(command, sizeof command, "rm -rf '%s'", server.folder);
    cr_assert_eq(system(command), 0);
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

static inline int open_descriptors(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

#endif
