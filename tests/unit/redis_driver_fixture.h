/* redis_driver_fixture.h - drives the tables of the Redis drivers directly, on a server of the test's own. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_DRIVER_FIXTURE_H
#define REDIS_DRIVER_FIXTURE_H

#include <stdatomic.h>

#include "drivers/redis/options.h"
#include "drivers/redis/redis.h"
#include "redis_scripts_fixture.h"
#include "support/drive.h"

static atomic_int warnings;
static char warned[512];
static atomic_ulong round_trips;

/* redis-string, redis-hash-reentrant */
static inline const dl_driver_t *const *both_drivers(void) {
    static const dl_driver_t *both[2];
    both[0] = drive_table(&dli_redis_string_backend);
    both[1] = drive_table(&dli_redis_hash_backend);
    return both;
}
#define drivers (both_drivers())

#define EACH_DRIVER(d) (const dl_driver_t *const *d = drivers; d < drivers + 2; d++)

/* A client: set the options, then open it. */
typedef struct client {
    const dl_driver_t *driver;
    dl_driver_env_t env;
    dl_option_value_t values[DLI_REDIS_OPT_COUNT];
    char url[128];
    void *state;
    dl_error_t err;
} client_t;

static inline void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    if (level >= DL_LOG_WARNING) {
        atomic_fetch_add(&warnings, 1);
        snprintf(warned, sizeof warned, "%s", text);
    }
}

static inline void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    if (what == DL_COUNT_ROUND_TRIP) {
        atomic_fetch_add(&round_trips, n);
    }
}

static inline uint64_t in_ms(uint64_t ms) {
    return ran_ns() + ms * MS;
}

static inline void set_number(client_t *c, int option, int64_t number) {
    c->values[option] = (dl_option_value_t){.is_set = 1, .number = number};
}

static inline void set_text(client_t *c, int option, const char *text) {
    c->values[option] = (dl_option_value_t){.is_set = 1, .string = text};
}

static inline void prepare(client_t *c, const dl_driver_t *driver, const char *uuid) {
    *c = (client_t){.driver = driver, .env = make_env(uuid, note_report, note_count)};
    snprintf(c->url, sizeof c->url, "unix://%s", server.path);
    set_text(c, DLI_REDIS_OPT_URL, c->url);
    set_text(c, DLI_REDIS_OPT_PREFIX, "dlock:");
    set_text(c, DLI_REDIS_OPT_TOKEN_KEY, TOKENS);
    set_number(c, DLI_REDIS_OPT_CONNECT_TIMEOUT, 1000);
    set_number(c, DLI_REDIS_OPT_CONNECTIONS, 1);
    set_number(c, DLI_REDIS_OPT_MAX_TOTAL, 8);
    set_number(c, DLI_REDIS_OPT_BORROW_TIMEOUT, 1000);
    set_number(c, DLI_REDIS_OPT_IDLE_TIMEOUT, 60000);
    set_number(c, DLI_REDIS_OPT_IDLE_CHECK, 30000);
    set_number(c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 500);
    set_text(c, DLI_REDIS_OPT_REPLICA_SHORTFALL, "refuse");
    set_number(c, DLI_REDIS_OPT_TLS_VERIFY, 1);
}

static inline dl_status_t open_prepared(client_t *c) {
    c->state = calloc(1, c->driver->state_size);
    cr_assert_not_null(c->state);
    return c->driver->open(c->state, c->values, &c->env, in_ms(2000), &c->err);
}

static inline void must_open(client_t *c, const dl_driver_t *driver, const char *uuid) {
    prepare(c, driver, uuid);
    cr_assert_eq(open_prepared(c), DL_OK, "open: %s", c->err.message);
}

static inline void shut(client_t *c) {
    c->driver->close(c->state, 0);
    free(c->state);
    c->state = NULL;
}

/* Opens, closes, and says what opening answered. */
static inline dl_status_t open_and_shut(client_t *c) {
    dl_status_t status = open_prepared(c);
    shut(c);
    return status;
}

static inline dl_request_t request(const char *name, const char *owner, uint64_t hold_id) {
    return make_request(name, owner, hold_id, in_ms(2000));
}

static inline dl_status_t lock_full(client_t *c, const dl_request_t *r, dl_grant_t *grant) {
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    c->err.message[0] = '\0';
    return c->driver->try_acquire(c->state, NULL, r, grant, &c->err);
}

static inline dl_status_t lock_name(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = request(name, owner, hold_id);
    dl_grant_t grant;
    return lock_full(c, &r, &grant);
}

static inline dl_status_t free_name(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = request(name, owner, hold_id);
    r.level = 0;
    return c->driver->release(c->state, NULL, &r, &c->err);
}

static inline dl_lock_info_t look(client_t *c, const char *name) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    cr_assert_eq(c->driver->inspect(c->state, name, strlen(name), in_ms(2000), &info, &c->err), DL_OK, "%s",
                 c->err.message);
    return info;
}

static inline dl_status_t force_name(client_t *c, const char *name) {
    return c->driver->force_release(c->state, name, strlen(name), in_ms(2000), &c->err);
}

#endif
