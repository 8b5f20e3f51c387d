/* redlock_nodes_fixture.h - several Redis servers of a test's own, and the driver redlock on them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_NODES_FIXTURE_H
#define REDLOCK_NODES_FIXTURE_H

#include <stdatomic.h>

#include "drivers/redis/redis.h"
#include "drivers/redis/redlock/redlock.h"
#include "redis_process.h"
#include "support/drive.h"

#define UUID_A "aaaaaaaa-0000-4000-8000-000000000001"
#define UUID_B "bbbbbbbb-0000-4000-8000-000000000002"
#define A UUID_A ":1"
#define B UUID_B ":1"
#define SERVERS_MAX 5
#define URLS_MAX 16
#define NO_STOP ((dl_stop_t){{-1, -1}})

static server_t servers[SERVERS_MAX];
static size_t server_count;

static inline void start_servers(size_t n) {
    for (server_count = 0; server_count < n; server_count++) {
        start_server(&servers[server_count], port_keep());
    }
}

static inline void set_up(void) {
    start_servers(3);
}

static inline void end_servers(void) {
    for (size_t i = 0; i < server_count; i++) {
        end_server(&servers[i]);
    }
    server_count = 0;
}

/* ---- what is reported -------------------------------------------------------------------------------- */

typedef struct reports {
    pthread_mutex_t mutex;
    int warnings, notes;
    char text[8192]; /* all of them, a line each */
} reports_t;

static reports_t reports = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static inline void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    pthread_mutex_lock(&reports.mutex);
    reports.warnings += level <= DL_LOG_WARNING ? 1 : 0;
    reports.notes += level > DL_LOG_WARNING ? 1 : 0;
    size_t len = strlen(reports.text);
    snprintf(reports.text + len, sizeof reports.text - len, "%s\n", text);
    pthread_mutex_unlock(&reports.mutex);
}

/* How often was this said? */
static inline int times_said(const char *words) {
    int times = 0;
    pthread_mutex_lock(&reports.mutex);
    for (const char *at = reports.text; (at = strstr(at, words)) != NULL; at++) {
        times++;
    }
    pthread_mutex_unlock(&reports.mutex);
    return times;
}

static inline int warnings(void) {
    pthread_mutex_lock(&reports.mutex);
    int n = reports.warnings;
    pthread_mutex_unlock(&reports.mutex);
    return n;
}

static inline void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

/* ---- clients ------------------------------------------------------------------------------------------ */

typedef struct client {
    dl_driver_env_t env;
    dl_option_value_t values[DLI_REDLOCK_OPT_COUNT];
    char urls[URLS_MAX][128];
    const char *list[URLS_MAX];
    void *state;
    dl_error_t err;
} client_t;

static inline uint64_t in_ms(uint64_t ms) {
    return ran_ns() + ms * MS;
}

static inline void set_number(client_t *c, int option, int64_t number) {
    c->values[option] = (dl_option_value_t){.is_set = 1, .number = number};
}

static inline void set_text(client_t *c, int option, const char *text) {
    c->values[option] = (dl_option_value_t){.is_set = 1, .string = text};
}

static inline void add_url(client_t *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline void add_url(client_t *c, const char *format, ...) {
    dl_option_value_t *nodes = &c->values[DLI_REDLOCK_OPT_NODES];
    va_list args;
    va_start(args, format);
    vsnprintf(c->urls[nodes->list_len], sizeof c->urls[0], format, args);
    va_end(args);
    c->list[nodes->list_len] = c->urls[nodes->list_len];
    nodes->list = c->list;
    nodes->list_len++;
}

/* All defaults, and no nodes yet. */
static inline void prepare_none(client_t *c, const char *uuid) {
    *c = (client_t){.env = make_env(uuid, note_report, note_count)};
    c->values[DLI_REDLOCK_OPT_NODES].is_set = 1;
    set_text(c, DLI_REDIS_OPT_PREFIX, "dlock:");
    set_text(c, DLI_REDIS_OPT_TOKEN_KEY, "dlock_tokens");
    set_number(c, DLI_REDLOCK_OPT_NODE_TIMEOUT, 500);
    set_number(c, DLI_REDLOCK_OPT_MAX_LEASE, 60000);
    set_number(c, DLI_REDLOCK_OPT_FENCING, 1);
    set_number(c, DLI_REDLOCK_OPT_QUARANTINE, 1);
    set_number(c, DLI_REDLOCK_OPT_DURABLE, 0);
    set_number(c, DLI_REDIS_OPT_CONNECT_TIMEOUT, 1000);
    set_number(c, DLI_REDIS_OPT_MAX_TOTAL, 8);
    set_number(c, DLI_REDIS_OPT_BORROW_TIMEOUT, 1000);
    set_number(c, DLI_REDIS_OPT_IDLE_TIMEOUT, 60000);
    set_number(c, DLI_REDIS_OPT_IDLE_CHECK, 30000);
    set_number(c, DLI_REDIS_OPT_TLS_VERIFY, 1);
}

/* On all servers, by their unix sockets. */
static inline void prepare(client_t *c, const char *uuid) {
    prepare_none(c, uuid);
    for (size_t i = 0; i < server_count; i++) {
        add_url(c, "unix://%s", servers[i].path);
    }
}

/* The driver behind a blocking table. */
static inline const dl_driver_t *table(void) {
    return drive_table(&dli_redlock_backend);
}

static inline dli_redlock_t *redlock_of(client_t *c) {
    return drive_inner(c->state);
}

static inline dl_status_t open_prepared(client_t *c) {
    c->state = calloc(1, table()->state_size);
    cr_assert_not_null(c->state);
    c->err.message[0] = '\0';
    return table()->open(c->state, c->values, &c->env, in_ms(2000), &c->err);
}

static inline void must_open(client_t *c) {
    cr_assert_eq(open_prepared(c), DL_OK, "%s", c->err.message);
}

static inline void shut(client_t *c) {
    table()->close(c->state, 0);
    free(c->state);
    c->state = NULL;
}

static inline dl_status_t open_and_shut(client_t *c) {
    dl_status_t status = open_prepared(c);
    shut(c);
    return status;
}

/* ---- what clients do ---------------------------------------------------------------------------------- */

static inline dl_status_t lock_name(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = make_request(name, owner, hold_id, in_ms(2000));
    dl_grant_t grant = {.session_fd = -1, .busy_ms = -1};
    return table()->try_acquire(c->state, NULL, &r, &grant, &c->err);
}

static inline dl_status_t free_name(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = make_request(name, owner, hold_id, in_ms(2000));
    r.level = 0;
    return table()->release(c->state, NULL, &r, &c->err);
}

static inline dl_status_t inspect_name(client_t *c, const char *name, dl_lock_info_t *info) {
    *info = (dl_lock_info_t)DL_LOCK_INFO_INIT;
    return table()->inspect(c->state, name, strlen(name), in_ms(2000), info, &c->err);
}

static inline dl_lock_info_t look(client_t *c, const char *name) {
    dl_lock_info_t info;
    cr_assert_eq(inspect_name(c, name, &info), DL_OK, "%s", c->err.message);
    return info;
}

static inline dl_status_t force_name(client_t *c, const char *name) {
    return table()->force_release(c->state, name, strlen(name), in_ms(2000), &c->err);
}

/* Puts a hold on one server, past all clients. */
static inline void plant(size_t server, const char *name, const char *value, long long ms) {
    tell(&servers[server], "SET dlock:%s %s PX %lld", name, value, ms);
}

/* As `dlock init` leaves a server that is new. */
static inline void mark_all(void) {
    for (size_t i = 0; i < server_count; i++) {
        redisReply *reply = redisCommand(servers[i].admin, "INFO server");
        char run_id[41] = "";
        const char *at = strstr(reply->str, "run_id:");
        cr_assert_not_null(at);
        snprintf(run_id, sizeof run_id, "%.40s", at + 7);
        freeReplyObject(reply);
        tell(&servers[i], "SET dlock_tokens:node %s", run_id);
    }
}

#endif
