/* mysql_pessimistic_fixture.h - drives the table of mysql-pessimistic directly, in a database of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_PESSIMISTIC_FIXTURE_H
#define MYSQL_PESSIMISTIC_FIXTURE_H

#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "driver_env.h"
#include "drivers/mysql/mysql.h"
#include "drivers/mysql/options.h"
#include "support/mysql_server.h"

#define UUID_A "aaaaaaaa-0000-4000-8000-000000000001"
#define UUID_B "bbbbbbbb-0000-4000-8000-000000000002"
#define A UUID_A ":1"
#define B UUID_B ":1"
#define TABLE "pessimists"
/* A machine that is busy with other tests. Nothing here that has to happen takes so long. */
#define SLACK_MS 400

static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX];
static atomic_ulong round_trips;

static const dl_driver_t *const driver = &dli_mysql_pessimistic_driver;
static const dl_stop_t no_stop = {{-1, -1}};

/* A client: set the options, then open it. */
typedef struct client {
    dl_driver_env_t env;
    dl_option_value_t values[DLI_MYSQL_OPT_COUNT];
    void *state;
    dl_error_t err;
} client_t;

/* One hold and what belongs to it. */
typedef struct hold {
    client_t *client;
    void *memory;
    dl_request_t request;
    dl_grant_t grant;
    dl_error_t err;
} hold_t;

static inline void set_up(void) {
    server = mysql_server_any();
    mysql_database(server, database);
}

/* With a server of its own, that it may freeze and lock. */
static inline void set_up_own(void) {
    server = mysql_server_start(NULL, NULL, "--innodb-rollback-on-timeout=ON", NULL);
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
        atomic_fetch_add(&round_trips, n);
    }
}

static inline uint64_t now_ms(void) {
    return ran_ns() / MS;
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

static inline void prepare(client_t *c, const char *uuid) {
    *c = (client_t){.env = make_env(uuid, note_report, note_count)};
    set_text(c, DLI_MYSQL_OPT_SOCKET, server->path);
    set_number(c, DLI_MYSQL_OPT_PORT, 3306);
    set_text(c, DLI_MYSQL_OPT_USER, MYSQL_USER);
    set_text(c, DLI_MYSQL_OPT_PASSWORD, MYSQL_SECRET);
    set_text(c, DLI_MYSQL_OPT_DATABASE, database);
    set_text(c, DLI_MYSQL_OPT_TABLE, TABLE);
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

static inline void open_prepared(client_t *c) {
    c->state = calloc(1, driver->state_size);
    cr_assert_not_null(c->state);
    cr_assert_eq(driver->open(c->state, c->values, &c->env, in_ms(10000), &c->err), DL_OK, "open: %s",
                 c->err.message);
}

static inline void must_open(client_t *c, const char *uuid) {
    prepare(c, uuid);
    open_prepared(c);
}

static inline void shut(client_t *c) {
    driver->close(c->state, 0);
    free(c->state);
    c->state = NULL;
}

static inline hold_t new_hold(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    hold_t h = {.client = c, .memory = calloc(1, driver->hold_size)};
    cr_assert_not_null(h.memory);
    h.request = make_request(name, owner, hold_id, 0);
    return h;
}

/* wait_ms 0: without waiting. */
static inline dl_status_t try_hold(hold_t *h, int64_t wait_ms) {
    h->grant = (dl_grant_t){.session_fd = -1, .busy_ms = -7, .busy_is_dlock = -7};
    h->err.message[0] = '\0';
    h->request.level = 1;
    h->request.wait_ms = wait_ms;
    h->request.deadline_ns = in_ms((uint64_t)wait_ms + 5000);
    return driver->try_acquire(h->client->state, h->memory, &h->request, &h->grant, &h->err);
}

static inline dl_status_t free_hold(hold_t *h) {
    h->request.level = 0;
    h->request.deadline_ns = in_ms(5000);
    h->request.stop = no_stop;
    h->err.message[0] = '\0';
    return driver->release(h->client->state, h->memory, &h->request, &h->err);
}

static inline void drop_hold(hold_t *h) {
    driver->drop(h->client->state, h->memory);
    free(h->memory);
    h->memory = NULL;
}

static inline hold_t must_lock(client_t *c, const char *name, const char *owner, uint64_t hold_id,
                               int64_t lease_ms) {
    hold_t h = new_hold(c, name, owner, hold_id);
    h.request.lease_ms = lease_ms;
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s: %s", name, h.err.message);
    return h;
}

static inline void must_free(hold_t *h) {
    cr_assert_eq(free_hold(h), DL_OK, "%s", h->err.message);
    drop_hold(h);
}

static inline dl_renewal_t renewal(const hold_t *h, int64_t lease_ms) {
    return (dl_renewal_t){.name = h->request.name,
                          .name_len = h->request.name_len,
                          .owner = h->request.owner,
                          .hold_id = h->request.hold_id,
                          .token = h->grant.token,
                          .lease_ms = lease_ms,
                          .hold = h->memory,
                          .status = DL_EPROTO};
}

static inline dl_status_t renew_hold(hold_t *h, int64_t lease_ms) {
    dl_renewal_t r = renewal(h, lease_ms);
    driver->renew(h->client->state, &r, 1, in_ms(5000));
    return r.status;
}

/* It is lost: what was seen? */
static inline dl_loss_t must_lose(hold_t *h, int64_t lease_ms) {
    dl_renewal_t r = renewal(h, lease_ms);
    driver->renew(h->client->state, &r, 1, in_ms(5000));
    cr_assert_eq(r.status, DL_ELOST, "%d", r.status);
    return r.loss;
}

static inline dl_lock_info_t look(client_t *c, const char *name) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    cr_assert_eq(driver->inspect(c->state, name, strlen(name), in_ms(5000), &info, &c->err), DL_OK, "%s",
                 c->err.message);
    return info;
}

static inline dl_status_t force_name(client_t *c, const char *name) {
    return driver->force_release(c->state, name, strlen(name), in_ms(5000), &c->err);
}

/* The connection that the marker names. */
static inline long long holder_of(const char *name) {
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED");
    long long id = atoll(
        mysql_hand_ask(hand, "SELECT COALESCE(MAX(connection_id),0) FROM " TABLE " WHERE name='%s'", name));
    mysql_hand_close(hand);
    return id;
}

/* Nobody holds the row or waits for it: it can be locked without waiting. */
static inline bool is_row_free(const char *name) {
    mysql_hand_t *hand = mysql_hand(server, database);
    bool is_free =
        mysql_hand_try(hand, "SELECT 1 FROM " TABLE " WHERE name='%s' FOR UPDATE NOWAIT", name)[0] == '1';
    mysql_hand_close(hand);
    return is_free;
}

/* Waits until cond is true. */
#define AWAIT(cond, within_ms)                                                          \
    do {                                                                                \
        uint64_t await_until = now_ms() + (within_ms);                                  \
        while (!(cond)) {                                                               \
            cr_assert_lt(now_ms(), await_until, "%s did not come true in time", #cond); \
            (void)poll(NULL, 0, 2);                                                     \
        }                                                                               \
    } while (0)

#define AWAIT_THAT(a, op, b, within_ms) VALUES_AWAIT(a, op, b, within_ms)

/* A statement of some client waits for a row lock of this table. */
static inline bool is_waited_for(void) {
    return mysql_number(
               server,
               "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB='%s' AND COMMAND='Query'"
               " AND INFO LIKE '%%FOR UPDATE%%'",
               database) > 0;
}

/* A try of the name "orders" on a thread of its own, that may wait for ten seconds. */
typedef struct waiter {
    hold_t hold;
    uint64_t ended_ms;
    dl_status_t status;
    pthread_t thread;
} waiter_t;

static inline void *wait_for_it(void *arg) {
    waiter_t *w = arg;
    w->status = try_hold(&w->hold, 10000);
    w->ended_ms = now_ms();
    return NULL;
}

static inline void start_waiter(waiter_t *w, client_t *c, const char *owner, uint64_t hold_id, int stop_fd) {
    w->hold = new_hold(c, "orders", owner, hold_id);
    w->hold.request.stop.fd[0] = stop_fd;
    cr_assert_eq(pthread_create(&w->thread, NULL, wait_for_it, w), 0);
}

static inline dl_status_t end_waiter(waiter_t *w) {
    pthread_join(w->thread, NULL);
    return w->status;
}

#endif
