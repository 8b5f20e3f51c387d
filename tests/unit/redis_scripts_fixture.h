/* redis_scripts_fixture.h - a Redis server of the test's own, and the lock scripts on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_SCRIPTS_FIXTURE_H
#define REDIS_SCRIPTS_FIXTURE_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drivers/redis/scripts.h"

#define UUID_A "aaaaaaaa-0000-4000-8000-000000000001"
#define UUID_B "bbbbbbbb-0000-4000-8000-000000000002"
#define A UUID_A ":1"
#define B UUID_B ":1"
#define LOCK "dlock:orders"
#define TOKENS "dlock_tokens"
#define CHANNEL "told:orders"
#define WORDS_MAX 32

/* The scripts of one layout; tests of what both promise run over both. */
typedef struct layout {
    const char *name;
    const dli_script_t *acquire, *release, *renew, *inspect, *force;
} layout_t;

static const layout_t layouts[] = {
    {"string", &dli_script_string_acquire, &dli_script_string_release, &dli_script_string_renew,
     &dli_script_string_inspect, &dli_script_string_force},
    {"hash", &dli_script_hash_acquire, &dli_script_hash_release, &dli_script_hash_renew,
     &dli_script_hash_inspect, &dli_script_hash_force},
};

#define EACH_LAYOUT(l) (const layout_t *l = layouts; l < layouts + 2; l++)

static char folder[64], socket_path[96], port[8];
static pid_t server;
static redisContext *redis;

/* ---- the server ------------------------------------------------------------------------------------- */

/* For replicas, which cannot follow a unix socket. */
static inline void choose_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
              getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    close(fd);
    snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
}

static inline void become_server(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    const char *program = getenv("DLOCK_REDIS_SERVER");
    program = program != NULL ? program : "redis-server";
    execlp(program, program, "--port", port, "--bind", "127.0.0.1", "--unixsocket", socket_path, "--dir",
           folder, "--save", "", "--appendonly", "no", "--logfile", "server.log", (char *)NULL);
    _exit(127);
}

static inline redisContext *must_connect(void) {
    for (int i = 0; i < 1000; i++) {
        redisContext *c = redisConnectUnix(socket_path);
        cr_assert_not_null(c);
        if (c->err == 0) {
            return c;
        }
        redisFree(c);
        (void)poll(NULL, 0, 10); /* it tells nobody when it is ready */
    }
    cr_assert_fail("the server does not start");
    return NULL;
}

static inline void set_up(void) {
    snprintf(folder, sizeof folder, "/tmp/dlock-scripts-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(socket_path, sizeof socket_path, "%s/socket", folder);
    choose_port();
    server = fork();
    if (server == 0) {
        become_server();
    }
    redis = must_connect();
}

static inline void tear_down(void) {
    char command[96];
    redisFree(redis);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

/* ---- asking it -------------------------------------------------------------------------------------- */

static inline size_t put(char *text, size_t size, const redisReply *reply) {
    size_t at = 0;
    switch (reply->type) {
    case REDIS_REPLY_INTEGER:
        return (size_t)snprintf(text, size, "%lld", reply->integer);
    case REDIS_REPLY_NIL:
        return (size_t)snprintf(text, size, "nil");
    case REDIS_REPLY_ERROR:
        return (size_t)snprintf(text, size, "-%s", reply->str);
    case REDIS_REPLY_ARRAY:
        for (size_t i = 0; i < reply->elements; i++) {
            at += (size_t)snprintf(text + at, size - at, i > 0 ? "," : "[");
            at += put(text + at, size - at, reply->element[i]);
        }
        return at + (size_t)snprintf(text + at, size - at, "]");
    default:
        return (size_t)snprintf(text, size, "%s", reply->str);
    }
}

/* The answer as text: 7, nil, some text, -SOME error, [1,2]. It lasts for the next few. */
static inline const char *send_words(redisContext *c, int argc, const char **argv) {
    static char texts[8][1024];
    static unsigned next;
    char *text = texts[next++ % 8];
    redisReply *reply = redisCommandArgv(c, argc, argv, NULL);
    cr_assert_not_null(reply, "%s", c->errstr);
    put(text, sizeof texts[0], reply);
    freeReplyObject(reply);
    return text;
}

static inline int gather(const char **argv, int argc, va_list args) {
    const char *word;
    while ((word = va_arg(args, const char *)) != NULL) {
        argv[argc++] = word;
    }
    return argc;
}

/* One command. */
static inline const char *__attribute__((sentinel)) ask(const char *first, ...) {
    const char *argv[WORDS_MAX] = {first};
    va_list args;
    va_start(args, first);
    int argc = gather(argv, 1, args);
    va_end(args);
    return send_words(redis, argc, argv);
}

/* One script, on a connection: keys and arguments, ended by NULL. */
static inline const char *__attribute__((sentinel))
run_on(redisContext *c, const dli_script_t *script, const char *keys, ...) {
    const char *argv[WORDS_MAX] = {"EVAL", script->source, keys};
    va_list args;
    va_start(args, keys);
    int argc = gather(argv, 3, args);
    va_end(args);
    return send_words(c, argc, argv);
}

static inline const char *take_at(const layout_t *l, const char *owner, const char *hold_id,
                                  const char *level, const char *lease_ms, const char *floor) {
    return run_on(redis, l->acquire, "2", LOCK, TOKENS, owner, hold_id, level, lease_ms, floor, NULL);
}

static inline const char *take(const layout_t *l, const char *owner, const char *hold_id) {
    return take_at(l, owner, hold_id, "1", "30000", "0");
}

static inline const char *drop(const layout_t *l, const char *owner, const char *hold_id, const char *level) {
    return run_on(redis, l->release, "1", LOCK, owner, hold_id, level, CHANNEL, NULL);
}

static inline const char *renew(const layout_t *l, const char *owner, const char *hold_id,
                                const char *lease_ms) {
    return run_on(redis, l->renew, "1", LOCK, owner, hold_id, lease_ms, NULL);
}

static inline const char *inspect(const layout_t *l) {
    return run_on(redis, l->inspect, "1", LOCK, NULL);
}

static inline const char *force(const layout_t *l) {
    return run_on(redis, l->force, "1", LOCK, CHANNEL, NULL);
}

/* ---- judging ---------------------------------------------------------------------------------------- */

static inline bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Is it an error with this code, be it wrapped as Redis 6.0 wraps those of scripts? */
static inline bool is_error(const char *text, const char *code) {
    return text[0] == '-' && strstr(text, code) != NULL;
}

static inline long long left_ms(void) {
    return atoll(ask("PTTL", LOCK, NULL));
}

/* A token is an integer at least as large as the server's clock was in 2020. */
static inline bool is_token(const char *text) {
    return text[0] != '-' && atoll(text) > 1577836800000000LL && text[strspn(text, "0123456789")] == '\0';
}

/* The answer "busy": "[left,REST" with left between the two. */
static inline bool is_busy(const char *text, long long from_ms, long long to_ms, const char *rest) {
    char *end;
    if (text[0] != '[') {
        return false;
    }
    long long left = strtoll(text + 1, &end, 10);
    return left >= from_ms && left <= to_ms && *end == ',' && strcmp(end + 1, rest) == 0;
}

/* What stands at a key, to compare it before and after. It lasts for the next few. */
static inline const char *content(const char *key) {
    static char texts[8][2048];
    static unsigned next;
    char *text = texts[next++ % 8];
    const char *type = ask("TYPE", key, NULL);
    const char *value = strcmp(type, "string") == 0 ? ask("GET", key, NULL)
                        : strcmp(type, "hash") == 0 ? ask("HGETALL", key, NULL)
                        : strcmp(type, "list") == 0 ? ask("LRANGE", key, "0", "-1", NULL)
                                                    : "-";
    snprintf(text, sizeof texts[0], "%s %s %s", type, value, ask("PEXPIRETIME", key, NULL));
    return text;
}

#endif
