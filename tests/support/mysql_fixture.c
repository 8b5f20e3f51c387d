/* mysql_fixture.c - a fresh database for each running case of the MySQL drivers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/mysql_fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/registry.h"
#include "support/ct.h"

#define PATIENCE_S 20
#define LET_GO_S 10 /* for connections of processes that have just ended */

/* Of the case that this process runs; its children inherit the knowledge. */
static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX];

const dl_driver_t *mysql_pessimistic_driver(void) {
    return dli_registry_find("mysql-pessimistic");
}

const dl_driver_t *mysql_lease_driver(void) {
    return dli_registry_find("mysql-lease");
}

const dl_driver_t *mysql_optimistic_driver(void) {
    return dli_registry_find("mysql-optimistic");
}

static void fail_the_case(const char *text) {
    ct_t *ct = ct_current();
    CT_FAIL("%s", text);
}

static mysql_server_t *shared; /* that this process has started */

void mysql_fixture_share(void) {
    if (getenv("DLOCK_TEST_MYSQL") == NULL) {
        shared = mysql_server_start(NULL, NULL, NULL);
        mysql_server_share(shared);
    }
}

void mysql_fixture_unshare(void) {
    mysql_server_stop(shared);
    shared = NULL;
}

/* A fresh database with the driver's tables: the case's own clients shall not have to make them in their
 * time. */
static void make_database(ct_t *ct) {
    char yaml[512];
    dl_client_t *client;
    dl_error_t err;
    mysql_database(server, database);
    mysql_unix_option(ct->dir, yaml, sizeof yaml);
    size_t len = strlen(yaml);
    snprintf(yaml + len, sizeof yaml - len, "call_timeout: %ds\nconnect_timeout: %ds\n", PATIENCE_S,
             PATIENCE_S);
    dl_status_t status = dl_client_open_driver(ct->inner, yaml, strlen(yaml), &client, &err);
    CT_CHECKF(status == DL_OK, "cannot make the tables: %s", err.message);
    dl_client_close(client);
}

void mysql_fixture_start(const char *dir) {
    mysql_server_on_failure = fail_the_case;
    server = getenv("DLOCK_TEST_MYSQL") != NULL ? mysql_server_any() : mysql_server_start(dir, "mysql", NULL);
    make_database(ct_current());
}

/* What still holds a lock there keeps the database from being dropped. */
static void drop_database(void) {
    mysql_hand_t *hand = mysql_hand(server, NULL);
    (void)mysql_hand_ask(hand, "SET lock_wait_timeout=%d", LET_GO_S);
    (void)mysql_hand_ask(hand, "DROP DATABASE %s", database);
    mysql_hand_close(hand);
}

void mysql_fixture_stop(void) {
    if (server->is_shared) {
        drop_database();
    }
    mysql_server_stop(server);
    server = NULL;
}

mysql_server_t *ct_mysql(ct_t *ct) {
    CT_CHECKF(server != NULL, "ct_mysql needs the trait CT_MYSQL");
    return server;
}

const char *ct_mysql_database(ct_t *ct) {
    CT_CHECKF(server != NULL, "ct_mysql_database needs the trait CT_MYSQL");
    return database;
}

mysql_server_t *ct_mysql_own(ct_t *ct, ...) {
    CT_CHECKF(ct->client_count == 0, "ct_mysql_own has to come before the first client");
    if (ct_mysql(ct)->is_shared) {
        mysql_fixture_stop();
        server = mysql_server_start(ct->dir, "mysql", NULL);
        make_database(ct);
    }
    va_list args;
    va_start(args, ct);
    int more = 0;
    for (const char *word; (word = va_arg(args, const char *)) != NULL; more = 1) {
        mysql_server_arg(server, word);
    }
    va_end(args);
    if (more) {
        mysql_server_restart(server);
    }
    return server;
}

/* Some cases hold hundreds of locks, each by a connection. TLS has tests of its own; here its logins, which
 * take a tenth of a second of processor time, would only be in the way. */
static void put_options(char *yaml, size_t size, const char *place) {
    snprintf(yaml, size,
             "%suser: " MYSQL_USER "\npassword: " MYSQL_SECRET "\ndatabase: %s\ncreate: true\n"
             "max_total: 400\ntls: \"off\"\n",
             place, database);
}

void mysql_tcp_option(const char *dir, char *yaml, size_t size) {
    char place[64];
    (void)dir;
    snprintf(place, sizeof place, "host: 127.0.0.1\nport: %d\n", server->port);
    put_options(yaml, size, place);
}

void mysql_unix_option(const char *dir, char *yaml, size_t size) {
    char place[MYSQL_PATH_MAX + 16];
    (void)dir;
    snprintf(place, sizeof place, "socket: \"%s\"\n", server->path);
    put_options(yaml, size, place);
}
