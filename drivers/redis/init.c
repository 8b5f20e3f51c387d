/* init.c - prepares a server for locks: nothing has to be created; says what a user of it needs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

/* Room for the rule: six patterns whose bytes may all be escaped, and the commands. */
#define RULE_MAX (12 * DLI_KEY_MAX + 1024)

typedef struct rule {
    char text[RULE_MAX];
    size_t len;
} rule_t;

static void append(rule_t *rule, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(rule_t *rule, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(rule->text + rule->len, sizeof rule->text - rule->len, format, args);
    va_end(args);
    size_t room = sizeof rule->text - 1 - rule->len;
    rule->len += (size_t)n < room ? (size_t)n : room;
}

/* Adds a pattern that matches these bytes and nothing else, where rules can say so. */
static void append_literally(rule_t *rule, const char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte <= ' ' || byte == 0x7f || byte == '"' || byte == '\'') {
            append(rule, "?"); /* rules cannot hold it; this matches any one byte */
        } else if (strchr("*?[]\\^", byte) != NULL) {
            append(rule, "\\%c", byte);
        } else {
            append(rule, "%c", byte);
        }
    }
}

/* How far two keys agree: where the name begins. */
static size_t common(const dli_key_t *a, const dli_key_t *b) {
    size_t i = 0;
    while (i < a->len && i < b->len && a->at[i] == b->at[i]) {
        i++;
    }
    return i;
}

typedef void (*naming_t)(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *key);

/* Keys ('~') or channels ('&') that are named like this. Names that hold a brace may have others, of another
 * form: so there are up to two patterns. */
static void append_patterns(rule_t *rule, const dli_redis_t *redis, char kind, naming_t name) {
    static const char *const names[2][2] = {{"{a", "{b"}, {"a", "b"}};
    dli_key_t first, second;
    char before[DLI_KEY_MAX];
    size_t before_len = 0;
    for (size_t i = 0; i < 2; i++) {
        name(redis, names[i][0], strlen(names[i][0]), &first);
        name(redis, names[i][1], strlen(names[i][1]), &second);
        if (first.len == 0) {
            return; /* there are none */
        }
        size_t len = common(&first, &second);
        len -= i == 0 && len > 0 ? 1 : 0; /* that brace is the name's own */
        if (i == 1 && len >= before_len && memcmp(first.at, before, before_len) == 0) {
            return; /* the first pattern covers it */
        }
        append(rule, " %c", kind);
        append_literally(rule, first.at, len);
        append(rule, "*");
        memcpy(before, first.at, len);
        before_len = len;
    }
}

/* What the connections, the scripts and the administrator's calls use. AUTH and HELLO need no right. */
static const char both_commands[] = " +select +ping +info +client|kill +eval +evalsha +scan +subscribe "
                                    "+unsubscribe +publish +time +pttl +pexpire"
                                    " +del +get +set";
static const char hash_commands[] = " +hlen +hset +hgetall +hmget +hdel +lrange";

static void make_rule(rule_t *rule, const dli_redis_t *redis, const char *username,
                      const char *const *more_keys) {
    bool hash = strcmp(redis->layout->redis_type, "hash") == 0;
    rule->len = 0;
    append(rule, "ACL SETUSER ");
    append(rule, "%s reset on >PASSWORD ~", username); /* a name, no pattern */
    append_literally(rule, redis->prefix, redis->prefix_len);
    append(rule, "*");
    if (redis->prefix_len > 0) { /* behind ~* the server takes no other pattern, and none is needed */
        append(rule, " ~");
        append_literally(rule, redis->token_key, strlen(redis->token_key));
        append(rule, " ~");
        append_literally(rule, redis->token_key, strlen(redis->token_key));
        append(rule, DLI_LABEL_INFIX "*");
        for (size_t i = 0; more_keys != NULL && more_keys[i] != NULL; i++) {
            append(rule, " ~");
            append_literally(rule, more_keys[i], strlen(more_keys[i]));
        }
    }
    if (hash && redis->prefix_len > 0) {
        append_patterns(rule, redis, '~', redis->layout->peers);
    }
    append_patterns(rule, redis, '&', redis->layout->channel);
    if (!hash) {
        append_patterns(rule, redis, '&', redis->layout->peers);
    }
    append(rule, "%s%s%s", both_commands, hash ? hash_commands : "", redis->min_replicas > 0 ? " +wait" : "");
}

void dli_redis_print_rule(const dli_redis_t *redis, const char *const *more_keys, dl_finding_fn fn,
                          void *arg) {
    rule_t rule;
    const char *username = redis->endpoint.username;
    bool is_in_url = username != NULL && redis->endpoint.username_shown == NULL; /* it may be the password */
    make_rule(&rule, redis, username == NULL ? "dlock" : is_in_url ? "USERNAME" : username, more_keys);
    fn(arg, DL_FINDING_NOTE, "access",
       "a server with access control needs a user with no more than this rule, to be given by its "
       "administrator; "
       "Redis 6.0 does not know the part with &");
    fn(arg, DL_FINDING_NOTE, "rule", rule.text);
    if (is_in_url) {
        fn(arg, DL_FINDING_NOTE, "configuration", "in place of USERNAME put the user of the url");
    }
    if (username == NULL) {
        fn(arg, DL_FINDING_NOTE, "configuration",
           "no user is set: with that rule the backend needs `username: dlock` beside the password");
    }
    if (redis->prefix_len == 0) {
        fn(arg, DL_FINDING_WARNING, "prefix",
           "it is empty, so that rule opens every key of the server; a prefix narrows it to the locks");
    }
}

static dl_status_t print_rule(const dli_layout_t *layout, const dl_option_value_t *options,
                              const dl_driver_env_t *env, dl_finding_fn fn, void *arg, dl_error_t *err) {
    dli_redis_t redis = {
        .env = env, .layout = layout, .min_replicas = options[DLI_REDIS_OPT_MIN_REPLICAS].number};
    const int names[] = {DLI_REDIS_OPT_PREFIX, DLI_REDIS_OPT_TOKEN_KEY, layout->also_publish};
    dl_status_t status = dli_redis_read_names(&redis, options, names, err);
    status = status == DL_OK ? dli_redis_make_endpoint(&redis, options, err) : status;
    if (status == DL_OK) {
        fn(arg, DL_FINDING_NOTE, "init", "nothing has to be created: the keys come with the first lock");
        dli_redis_print_rule(&redis, NULL, fn, arg);
    }
    dli_endpoint_free(&redis.endpoint);
    return status;
}

dl_status_t dli_redis_init(const dli_layout_t *layout, const dl_option_value_t *options,
                           const dl_driver_env_t *env, unsigned flags, dl_finding_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err) {
    if ((flags & DL_INIT_PRINT) != 0) {
        return print_rule(layout, options, env, fn, arg, err);
    }
    dli_redis_t *redis = calloc(1, sizeof *redis);
    if (redis == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dl_status_t status = dli_redis_open(redis, layout, options, env, deadline_ns, err);
    if (status == DL_OK) {
        char server[64] = "";
        char text[192];
        dli_redis_describe(redis, server, sizeof server);
        (void)snprintf(text, sizeof text, "%s can be used; nothing has to be created", server);
        fn(arg, DL_FINDING_OK, "init", text);
    }
    dli_redis_close(redis, 0);
    free(redis);
    return status;
}
