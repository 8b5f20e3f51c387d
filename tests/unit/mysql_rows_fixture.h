/* mysql_rows_fixture.h - drives mysql-lease and mysql-optimistic directly, in a database of the test's. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_ROWS_FIXTURE_H
#define MYSQL_ROWS_FIXTURE_H

#include <stdatomic.h>

#include "driver_env.h"
#include "drivers/mysql/mysql.h"
#include "drivers/mysql/options.h"
#include "support/mysql_server.h"

#define UUID_A "aaaaaaaa-0000-4000-8000-000000000001"
#define UUID_B "bbbbbbbb-0000-4000-8000-000000000002"
#define A UUID_A ":1"
#define B UUID_B ":1"

/* What the two differ in. */
typedef struct kind {
    const dl_driver_t *driver;
    const char *table, *token;
} kind_t;

static const kind_t kinds[] = {{&dli_mysql_lease_driver, "leases", "token"},
                               {&dli_mysql_optimistic_driver, "optimists", "version"}};

#define EACH_KIND(k) (const kind_t *k = kinds; k < kinds + 2; k++)

static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX];
static atomic_ulong round_trips;
/* Called after each round trip, if set. */
static void (*after_round_trip)(unsigned long n);

/* A client: set the options, then open it. */
typedef struct client {
    const kind_t *kind;
    const dl_driver_t *driver;
    dl_driver_env_t env;
    dl_option_value_t values[DLI_MYSQL_OPT_COUNT];
    void *state;
    dl_error_t err;
} client_t;

static inline void set_up(void) {
    server = mysql_server_any();
    mysql_database(server, database);
}

static inline void tear_down(void) {
    mysql_server_stop(server);
}

static inline void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    (void)text;
}

static inline void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    if (what == DL_COUNT_ROUND_TRIP) {
        unsigned long all = atomic_fetch_add(&round_trips, n) + n;
        if (after_round_trip != NULL) {
            after_round_trip(all);
        }
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

static inline void prepare(client_t *c, const kind_t *kind, const char *uuid) {
    *c = (client_t){.kind = kind, .driver = kind->driver, .env = make_env(uuid, note_report, note_count)};
    set_text(c, DLI_MYSQL_OPT_SOCKET, server->path);
    set_number(c, DLI_MYSQL_OPT_PORT, 3306);
    set_text(c, DLI_MYSQL_OPT_USER, MYSQL_USER);
    set_text(c, DLI_MYSQL_OPT_PASSWORD, MYSQL_SECRET);
    set_text(c, DLI_MYSQL_OPT_DATABASE, database);
    set_text(c, DLI_MYSQL_OPT_TABLE, kind->table);
    set_number(c, DLI_MYSQL_OPT_CREATE, 1);
    set_number(c, DLI_MYSQL_OPT_PURGE_AFTER, 0);
    set_number(c, DLI_MYSQL_OPT_CONNECT_TIMEOUT, 2000);
    set_number(c, DLI_MYSQL_OPT_MAX_TOTAL, 32);
    set_number(c, DLI_MYSQL_OPT_MIN_IDLE, 0);
    set_number(c, DLI_MYSQL_OPT_BORROW_TIMEOUT, 0);
    set_number(c, DLI_MYSQL_OPT_IDLE_TIMEOUT, 60000);
    set_number(c, DLI_MYSQL_OPT_IDLE_CHECK, 30000);
    set_text(c, DLI_MYSQL_OPT_TLS, "off");
}

static inline dl_status_t open_prepared(client_t *c) {
    c->state = calloc(1, c->driver->state_size);
    cr_assert_not_null(c->state);
    return c->driver->open(c->state, c->values, &c->env, in_ms(5000), &c->err);
}

static inline void must_open(client_t *c, const kind_t *kind, const char *uuid) {
    prepare(c, kind, uuid);
    cr_assert_eq(open_prepared(c), DL_OK, "open: %s", c->err.message);
}

static inline void shut(client_t *c) {
    c->driver->close(c->state, 0);
    free(c->state);
    c->state = NULL;
}

static inline dl_request_t request_of(const char *name, size_t len, const char *owner, uint64_t hold_id) {
    dl_request_t r = make_request(name, owner, hold_id, in_ms(5000));
    r.name_len = len;
    return r;
}

static inline dl_request_t request(const char *name, const char *owner, uint64_t hold_id) {
    return request_of(name, strlen(name), owner, hold_id);
}

static inline dl_status_t lock_full(client_t *c, const dl_request_t *r, dl_grant_t *grant) {
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -7, .busy_is_dlock = -7};
    c->err.message[0] = '\0';
    return c->driver->try_acquire(c->state, NULL, r, grant, &c->err);
}

static inline dl_status_t lock_name(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = request(name, owner, hold_id);
    dl_grant_t grant;
    return lock_full(c, &r, &grant);
}

/* Takes it, and says with which token. */
static inline uint64_t must_lock(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = request(name, owner, hold_id);
    dl_grant_t grant;
    cr_assert_eq(lock_full(c, &r, &grant), DL_OK, "%s: %s", name, c->err.message);
    return grant.token;
}

static inline dl_status_t free_name(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = request(name, owner, hold_id);
    r.level = 0;
    return c->driver->release(c->state, NULL, &r, &c->err);
}

static inline dl_lock_info_t look(client_t *c, const char *name) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    cr_assert_eq(c->driver->inspect(c->state, name, strlen(name), in_ms(5000), &info, &c->err), DL_OK, "%s",
                 c->err.message);
    return info;
}

static inline dl_status_t force_name(client_t *c, const char *name) {
    return c->driver->force_release(c->state, name, strlen(name), in_ms(5000), &c->err);
}

static inline dl_renewal_t renewal(const char *name, const char *owner, uint64_t hold_id, int64_t lease_ms) {
    return (dl_renewal_t){.name = name,
                          .name_len = strlen(name),
                          .owner = owner,
                          .hold_id = hold_id,
                          .lease_ms = lease_ms,
                          .status = DL_EPROTO};
}

static inline dl_status_t renew_name(client_t *c, const char *name, const char *owner, uint64_t hold_id,
                                     int64_t lease_ms) {
    dl_renewal_t r = renewal(name, owner, hold_id, lease_ms);
    c->driver->renew(c->state, &r, 1, in_ms(5000));
    return r.status;
}

/* Sets columns of a row, past the driver. */
static inline void set_row(const kind_t *kind, const char *name, const char *assignments) {
    mysql_ask(server, "UPDATE %s.%s SET %s WHERE name='%s'", database, kind->table, assignments, name);
}

/* Rows named stem0, stem1, ... that A holds for 100 s with hold ids from 1, past the driver, by one
 * statement. */
static inline void hold_rows(const kind_t *kind, const char *stem, unsigned n) {
    mysql_ask(server,
              "INSERT INTO %s.%s(name,owner,hold_id,expires_at,%s)"
              " WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<%u)"
              " SELECT CONCAT('%s',i),'" A "',i+1,UTC_TIMESTAMP(6)+INTERVAL 100 SECOND,1 FROM n",
              database, kind->table, kind->token, n - 1, stem);
}

/* A column of a row, as it is. */
static inline const char *cell(const kind_t *kind, const char *name, const char *column) {
    return mysql_ask(server, "SELECT %s FROM %s.%s WHERE name='%s'", column, database, kind->table, name);
}

#endif
