/* redis_scripts_fixture.h - a Redis server of the test's own, and the lock scripts on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_SCRIPTS_FIXTURE_H
#define REDIS_SCRIPTS_FIXTURE_H

#include <criterion/criterion.h>
#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/scripts.h"
#include "redis_process.h"

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
    const dli_script_t *acquire, *release, *inspect;
} layout_t;

static const layout_t layouts[] = {
    {"string", &dli_script_string_acquire, &dli_script_string_release, &dli_script_string_inspect},
    {"hash", &dli_script_hash_acquire, &dli_script_hash_release, &dli_script_hash_inspect},
};

#define EACH_LAYOUT(l) (const layout_t *l = layouts; l < layouts + 2; l++)

static server_t server; /* on a port too: replicas cannot follow a unix socket */

static inline redisContext *must_connect(void) {
    redisContext *c = dial(&server);
    cr_assert_not_null(c);
    return c;
}

static inline void set_up(void) {
    start_server(&server, port_keep());
}

static inline void tear_down(void) {
    end_server(&server);
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
    return send_words(server.admin, argc, argv);
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
    const char *channel = strcmp(level, "1") == 0 ? NULL : CHANNEL;
    return run_on(server.admin, l->acquire, "2", LOCK, TOKENS, owner, hold_id, level, lease_ms, floor,
                  channel, "", NULL);
}

static inline const char *take_block(const layout_t *l, const char *owner, const char *hold_id,
                                     const char *floor, const char *tokens) {
    return run_on(server.admin, l->acquire, "2", LOCK, TOKENS, owner, hold_id, "1", "30000", floor, tokens,
                  NULL);
}

static inline const char *take(const layout_t *l, const char *owner, const char *hold_id) {
    return take_at(l, owner, hold_id, "1", "30000", "0");
}

static inline const char *drop(const layout_t *l, const char *owner, const char *hold_id, const char *level) {
    return run_on(server.admin, l->release, "1", LOCK, owner, hold_id, level, CHANNEL, "", NULL);
}

static inline const char *renew(const layout_t *l, const char *owner, const char *hold_id,
                                const char *lease_ms) {
    return run_on(server.admin, l->acquire, "2", LOCK, TOKENS, owner, hold_id, "0", lease_ms, "", CHANNEL, "",
                  NULL);
}

static inline const char *inspect(const layout_t *l) {
    return run_on(server.admin, l->inspect, "1", LOCK, NULL);
}

/* By force, what was seen. */
static inline const char *force_seen(redisContext *c, const layout_t *l, const char *seen) {
    return run_on(c, l->release, "1", LOCK, seen, "", "0", CHANNEL, "", "queue:" LOCK, "1", NULL);
}

/* Looks, and frees that. Without a holder, what the look answered. */
static inline const char *force_on(redisContext *c, const layout_t *l) {
    const char *text = inspect(l), *value = strchr(text, ',');
    char seen[200] = "";
    if (text[0] != '[') {
        return text;
    }
    memcpy(seen, value + 1, strcspn(value + 1, ","));
    return force_seen(c, l, seen);
}

static inline const char *force(const layout_t *l) {
    return force_on(server.admin, l);
}

/* The lock is kept for a client for 20 s. */
static inline void reserve_for(const layout_t *l, const char *uuid) {
    char owner[64], hold[64];
    snprintf(owner, sizeof owner, "%s:0", uuid);
    snprintf(hold, sizeof hold, "%s:0:%s", uuid, l == &layouts[0] ? "0" : "h");
    ask("DEL", LOCK, NULL);
    if (l == &layouts[0]) {
        ask("SET", LOCK, hold, NULL);
    } else {
        ask("HSET", LOCK, owner, "1", hold, "0", NULL);
    }
    ask("PEXPIRE", LOCK, "20000", NULL);
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

/* A connection of a user who may do everything but the one command. */
static inline redisContext *connect_without(const char *command) {
    const char *login[] = {"AUTH", "narrow", "secret"};
    ask("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "~*", "+@all", command, NULL);
    if (begins(ask("ACL", "SETUSER", "narrow", "&*", NULL), "-")) {
        cr_log_info("this server knows no permissions of channels");
    }
    redisContext *c = must_connect();
    cr_assert_str_eq(send_words(c, 3, login), "OK");
    return c;
}

#endif
