/* redis_check_fixture.h - a Redis server, and the findings of a check on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_CHECK_FIXTURE_H
#define REDIS_CHECK_FIXTURE_H

#include <criterion/criterion.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "drivers/registry.h"
#include "redis_process.h"

/* ---- the server ------------------------------------------------------------------------------------- */

/* Redis 6.0 has no rules about channels, and takes no part of a command away. */
static inline bool is_old(server_t *server) {
    redisReply *reply = redisCommand(server->admin, "INFO server");
    bool old = strstr(reply->str, "redis_version:6.0.") != NULL;
    freeReplyObject(reply);
    return old;
}

/* A line of commands as an administrator would type it. */
static inline void type_in(server_t *server, const char *line) {
    const char *argv[64];
    char copy[4096];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    bool old = is_old(server);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL && argc < 64;) {
        if (!old || word[0] != '&') {
            argv[argc++] = word;
        }
    }
    redisReply *reply = redisCommandArgv(server->admin, argc, argv, NULL);
    cr_assert_not_null(reply);
    cr_assert_neq(reply->type, REDIS_REPLY_ERROR, "%s: %s", line, reply->str);
    freeReplyObject(reply);
}

static server_t server;

static inline void set_up(void) {
    start_server(&server, port_keep());
}

static inline void tear_down(void) {
    end_server(&server);
}

/* ---- findings --------------------------------------------------------------------------------------- */

#define FINDINGS_MAX 64

typedef struct findings {
    struct {
        dl_finding_level_t level;
        char subject[48], text[2048];
    } at[FINDINGS_MAX];
    size_t n;
} findings_t;

static inline void keep(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    findings_t *found = arg;
    cr_assert_lt(found->n, FINDINGS_MAX, "too long: %s", text);
    cr_assert_lt(strlen(subject), 48, "too long: %s", text);
    cr_assert_lt(strlen(text), 1500, "too long: %s", text);
    cr_assert_null(strchr(text, '\n'));
    cr_assert_null(strstr(text, "opensesame"), "a secret is printed: %s", text);
    found->at[found->n].level = level;
    snprintf(found->at[found->n].subject, sizeof found->at[0].subject, "%s", subject);
    snprintf(found->at[found->n++].text, sizeof found->at[0].text, "%s", text);
}

static inline const char *text_of(const findings_t *found, const char *subject) {
    for (size_t i = 0; i < found->n; i++) {
        if (strcmp(found->at[i].subject, subject) == 0) {
            return found->at[i].text;
        }
    }
    return NULL;
}

/* Every finding on the subject, at the highest level. -1: none. */
static inline int level_of(const findings_t *found, const char *subject) {
    int level = -1;
    for (size_t i = 0; i < found->n; i++) {
        if (strcmp(found->at[i].subject, subject) == 0 && (int)found->at[i].level > level) {
            level = (int)found->at[i].level;
        }
    }
    return level;
}

static inline int worst(const findings_t *found) {
    int level = -1;
    for (size_t i = 0; i < found->n; i++) {
        level = (int)found->at[i].level > level ? (int)found->at[i].level : level;
    }
    return level;
}

/* Does one of the findings on the subject say so? */
static inline bool is_said(const findings_t *found, const char *subject, const char *words) {
    for (size_t i = 0; i < found->n; i++) {
        if (strcmp(found->at[i].subject, subject) == 0 && strstr(found->at[i].text, words) != NULL) {
            return true;
        }
    }
    return false;
}

#define EXPECT(found, subject, expected, words)                                                       \
    do {                                                                                              \
        const char *text_ = text_of(found, subject);                                                  \
        text_ = text_ != NULL ? text_ : "not there";                                                  \
        cr_expect_eq(level_of(found, subject), (int)(expected), "%s is level %d: %s", subject,        \
                     level_of(found, subject), text_);                                                \
        cr_expect(is_said(found, subject, words), "%s does not say '%s': %s", subject, words, text_); \
    } while (0)

/* ---- clients ---------------------------------------------------------------------------------------- */

static inline void write_yaml(char *yaml, size_t size, const char *driver, const char *more) {
    snprintf(yaml, size,
             "use: b\nbackends:\n  b: {driver: %s, url: \"redis://127.0.0.1:%d/1\", prefix: \"app:\"%s}\n",
             driver, server.port, more);
}

static inline dl_status_t open_with(const char *driver, const char *more, dl_client_t **client,
                                    dl_error_t *err) {
    char yaml[1024];
    write_yaml(yaml, sizeof yaml, driver, more);
    return dl_client_open_text(yaml, strlen(yaml), NULL, client, err);
}

static inline void check_with(const char *driver, const char *more, findings_t *found) {
    dl_client_t *client;
    dl_error_t err;
    memset(found, 0, sizeof *found);
    cr_assert_eq(open_with(driver, more, &client, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_client_check(client, keep, found, &err), DL_OK, "%s", err.message);
    dl_client_close(client);
}

static const char *const drivers[] = {"redis-string", "redis-hash-reentrant"};

#endif
