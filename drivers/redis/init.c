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

/* Adds a pattern that matches this text and nothing else, where rules can say so. */
static void append_literally(rule_t *rule, const char *text) {
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte <= ' ' || byte == 0x7f || byte == '"' || byte == '\'') {
            append(rule, "?"); /* rules cannot hold it; this matches any one byte */
        } else if (strchr("*?[]\\^", byte) != NULL) {
            append(rule, "\\%c", byte);
        } else {
            append(rule, "%c", byte);
        }
    }
}

/* Keys ('~') or channels ('&') that begin with this, or are this. */
static void append_pattern(rule_t *rule, char kind, const char *text, const char *rest) {
    append(rule, " %c", kind);
    append_literally(rule, text);
    append(rule, "%s", rest);
}

/* Those that are named after this and the lock's key. Where the layout has braces, they are around some names
 * and not around those that have one: so there are up to two patterns. */
static void append_named(rule_t *rule, const dli_redis_t *redis, char kind, const char *before) {
    bool braces = redis->layout->braces && redis->prefix_len > 0 && strchr(redis->prefix, '{') == NULL;
    for (int i = 0; i <= braces; i++) {
        append_pattern(rule, kind, before, i > 0 ? "{" : "");
        append_literally(rule, redis->prefix);
        append(rule, "*");
    }
}

/* What the connections, the scripts and the administrator's calls use. AUTH and HELLO need no right. */
static const char both_commands[] = " +select +ping +info +client|kill +eval +evalsha +scan +subscribe "
                                    "+unsubscribe +publish +time +pttl +pexpire"
                                    " +del +get +set";
static const char hash_commands[] = " +hlen +hset +hgetall +hmget +hdel +lrange";

static void make_rule(rule_t *rule, const dli_redis_t *redis, const char *username) {
    bool hash = strcmp(redis->layout->redis_type, "hash") == 0;
    rule->len = 0;
    append(rule, "ACL SETUSER %s reset on >PASSWORD", username); /* a name, no pattern */
    append_pattern(rule, '~', redis->prefix, "*");
    if (redis->prefix_len > 0) { /* behind ~* the server takes no other pattern, and none is needed */
        append_pattern(rule, '~', redis->token_key, "");
        append_pattern(rule, '~', redis->token_key, DLI_LABEL_INFIX "*");
        if (redis->voting != NULL) {
            append_pattern(rule, '~', redis->voting->marker_key, "");
            append_pattern(rule, '~', redis->voting->quarantine_key, "");
        }
        if (redis->layout->peers_before != NULL) {
            append_named(rule, redis, '~', redis->layout->peers_before);
        }
    }
    append_named(rule, redis, '&', redis->layout->channel_before);
    if (redis->also_publish[0] != '\0') {
        append_named(rule, redis, '&', redis->also_publish);
    }
    append(rule, "%s%s%s", both_commands, hash ? hash_commands : "", redis->min_replicas > 0 ? " +wait" : "");
}

void dli_redis_print_rule(const dli_redis_t *redis, dl_finding_fn fn, void *arg) {
    rule_t rule;
    const char *username = redis->endpoint.username;
    bool is_in_url = username != NULL && redis->endpoint.username_shown == NULL; /* it may be the password */
    make_rule(&rule, redis, username == NULL ? "dlock" : is_in_url ? "USERNAME" : username);
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

dl_status_t dli_redis_init(const dli_layout_t *layout, const dl_option_value_t *options,
                           const dl_driver_env_t *env, unsigned flags, dl_finding_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err) {
    dl_status_t status;
    dli_redis_t *redis = calloc(1, sizeof *redis);
    if (redis == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    if ((flags & DL_INIT_PRINT) != 0) {
        redis->env = env;
        redis->layout = layout;
        redis->min_replicas = options[DLI_REDIS_OPT_MIN_REPLICAS].number;
        status = dli_redis_configure(redis, options, err);
        if (status == DL_OK) {
            fn(arg, DL_FINDING_NOTE, "init", "nothing has to be created: the keys come with the first lock");
            dli_redis_print_rule(redis, fn, arg);
        }
    } else {
        status = dli_redis_open(redis, layout, options, env, deadline_ns, err);
        if (status == DL_OK) {
            char server[64] = "", text[192];
            dli_redis_describe(redis, server, sizeof server);
            (void)snprintf(text, sizeof text, "%s can be used; nothing has to be created", server);
            fn(arg, DL_FINDING_OK, "init", text);
        }
    }
    dli_redis_close(redis, 0);
    free(redis);
    return status;
}
