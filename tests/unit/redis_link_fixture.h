/* redis_link_fixture.h - a server, a relay that can hold a connection back, a link, and short calls on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_LINK_FIXTURE_H
#define REDIS_LINK_FIXTURE_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sys.h"
#include "drivers/redis/link.h"

#define MS ((uint64_t)1000000)

/* Looks until it is true; nobody tells when. */
#define AWAIT(cond)                                                  \
    do {                                                             \
        for (int tries_ = 0; !(cond); tries_++) {                    \
            cr_assert(tries_ < 5000, "%s did not come true", #cond); \
            (void)poll(NULL, 0, 1);                                  \
        }                                                            \
    } while (0)

/* ---- the server ------------------------------------------------------------------------------------- */

static char folder[64], server_path[96];
static pid_t server_pid;
static int server_port; /* 0: the unix socket only */
static redisContext *admin;

static inline int try_admin(void) {
    admin = redisConnectUnix(server_path);
    if (admin != NULL && admin->err == 0) {
        return 1;
    }
    redisFree(admin);
    admin = NULL;
    return 0;
}

static inline void start_server(void) {
    const char *program = getenv("DLOCK_REDIS_SERVER");
    program = program != NULL ? program : "redis-server";
    char port[8];
    snprintf(port, sizeof port, "%d", server_port);
    fflush(NULL);
    server_pid = fork();
    if (server_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        execlp(program, program, "--port", port, "--bind", "127.0.0.1", "--unixsocket", server_path, "--dir",
               folder, "--save", "", "--appendonly", "no", "--logfile", "server.log", (char *)NULL);
        _exit(127);
    }
    AWAIT(try_admin());
}

static inline void stop_server(void) {
    redisFree(admin);
    admin = NULL;
    kill(server_pid, SIGKILL);
    waitpid(server_pid, NULL, 0);
    unlink(server_path);
}

/* The answer of the server as a number; an error fails the test. */
static inline long long tell(const char *line) {
    const char *argv[16];
    char copy[256];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL && argc < 16;) {
        argv[argc++] = word;
    }
    redisReply *reply = redisCommandArgv(admin, argc, argv, NULL);
    cr_assert_not_null(reply);
    cr_assert_neq(reply->type, REDIS_REPLY_ERROR, "%s: %s", line, reply->str);
    long long number = reply->integer;
    freeReplyObject(reply);
    return number;
}

/* The number behind `key` in an INFO section; -1: not there. */
static inline long long info(const char *section, const char *key) {
    redisReply *reply = redisCommand(admin, "INFO %s", section);
    cr_assert_not_null(reply);
    const char *at = strstr(reply->str, key);
    long long number = at == NULL ? -1 : atoll(at + strlen(key));
    freeReplyObject(reply);
    return number;
}

/* Connections of the link. */
static inline int connections(void) {
    return (int)info("clients", "connected_clients:") - 1;
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
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
              listen(fd, backlog) == 0);
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
    open_link_as(server_path, NULL, NULL);
}

/* A server of its own, since a port may be somebody else's by the time it starts. */
static inline void open_link_over_tcp(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    char url[64];
    stop_server();
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
              getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    server_port = ntohs(address.sin_port);
    start_server();
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", server_port);
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
    snprintf(folder, sizeof folder, "/tmp/dlock-link-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(server_path, sizeof server_path, "%s/server", folder);
    snprintf(relay_path, sizeof relay_path, "%s/relay", folder);
    env = (dl_driver_env_t){.size = sizeof env,
                            .client_uuid = "aaaaaaaa-0000-0000-0000-000000000001",
                            .client_label = "host:1",
                            .call_timeout_ms = 2000,
                            .lease_ms = 30000,
                            .now_ns = dli_sys_real.now_ns,
                            .poll = dli_sys_real.poll,
                            .random = dli_sys_real.random,
                            .thread_start = dli_sys_real.thread_start,
                            .thread_join = dli_sys_real.thread_join,
                            .cond_init = dli_sys_real.cond_init,
                            .cond_wait = dli_sys_real.cond_wait,
                            .cond_broadcast = dli_sys_real.cond_broadcast,
                            .report = note_report,
                            .count = note_count};
    options = (dli_pool_options_t){.max_total = 8,
                                   .max_idle = 8,
                                   .borrow_timeout_ms = 1000,
                                   .idle_timeout_ms = 60000,
                                   .idle_check_ms = 50};
    start_server();
}

static inline void tear_down(void) {
    char command[128];
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
    stop_server();
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
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
    cr_assert(n <= 16);
    for (int i = 0; i < n; i++) {
        prepare(&calls[i], "PING", 2000);
        begin(&calls[i]);
    }
    for (int i = 0; i < n; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK, "%s", calls[i].err.message);
        clear(&calls[i]);
    }
}

#endif
