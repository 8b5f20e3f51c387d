/* fixtures.c - the list of fixtures, and its comparison with the committed table of caps. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fixtures.h"

#include <stdio.h>
#include <string.h>

#include "drivers/registry.h"
#include "support/contract.h"
#include "support/drive.h"
#include "support/fakes.h"
#ifdef DLOCK_HAVE_MYSQL
#include "support/mysql_fixture.h"
#endif
#ifdef DLOCK_HAVE_REDIS
#include "support/redis_fixture.h"
#include "support/redlock_fixture.h"
#endif
#ifdef CT_WITH_EXAMPLE_DRIVER
#include "custom_driver.h"
#endif

/* ---- the fixtures -------------------------------------------------------------------------------- */

#ifdef DLOCK_HAVE_SQLITE
static const dl_driver_t *sqlite_driver(void) {
    return dli_registry_find("sqlite");
}
#endif

#if defined DLOCK_HAVE_SQLITE || defined CT_WITH_EXAMPLE_DRIVER
static void path_option(const char *dir, char *yaml, size_t size) {
    snprintf(yaml, size, "path: \"%s/locks.db\"\n", dir);
}
#endif

#define IN_MEMORY (CT_VIRTUAL | CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST | CT_ALLOC)
#define IN_A_FILE (CT_REAL_TIME | CT_PROCESSES | CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST | CT_ALLOC)

#define A_REDIS_SERVER                                                                                  \
    (CT_REAL_TIME | CT_PROCESSES | CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST | CT_REPLAY | CT_ALLOC | \
     CT_REDIS | CT_NETWORK)

#define REDLOCK_NODES                                                                                   \
    (CT_REAL_TIME | CT_PROCESSES | CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST | CT_REPLAY | CT_ALLOC | \
     CT_REDLOCK | CT_BACKEND)

#define A_MYSQL_SERVER                                                                                 \
    (CT_REAL_TIME | CT_PROCESSES | CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST | CT_ALLOC | CT_MYSQL | \
     CT_NETWORK)

static const fixture_t fixtures[] = {
    {"fake-lease", fake_lease_driver, IN_MEMORY | CT_REPLAY | CT_PLAIN_POLLING, NULL, fake_server_reset, NULL,
     NULL},
    {"fake-bare", fake_bare_driver, CT_VIRTUAL | CT_ALLOC | CT_REPLAY | CT_PLAIN_POLLING, NULL,
     fake_server_reset, NULL, NULL},
    {"fake-notify", fake_notify_driver, IN_MEMORY | CT_REPLAY, NULL, fake_server_reset, NULL, NULL},
    {"fake-count", fake_count_driver, IN_MEMORY | CT_REPLAY, NULL, fake_server_reset, NULL, NULL},
    {"fake-socket", fake_socket_driver, IN_MEMORY | CT_REPLAY | CT_BACKEND, NULL, fake_socket_reset, NULL,
     NULL},
    {"fake-session", fake_session_driver, IN_MEMORY, NULL, fake_session_reset, NULL, NULL},
    {"fake-quorum", fake_quorum_driver, IN_MEMORY | CT_REPLAY | CT_PLAIN_POLLING, NULL, fake_quorum_reset,
     NULL, NULL},
#ifdef DLOCK_HAVE_SQLITE
    {"sqlite", sqlite_driver, IN_A_FILE | CT_REPLAY, path_option, NULL, NULL, NULL},
#endif
#ifdef DLOCK_HAVE_REDIS
    {"redis-string", redis_string_driver, A_REDIS_SERVER | CT_BACKEND, redis_tcp_option, NULL,
     redis_fixture_start, redis_fixture_stop},
    {"redis-hash-reentrant", redis_hash_driver, A_REDIS_SERVER | CT_BACKEND, redis_unix_option, NULL,
     redis_fixture_start, redis_fixture_stop},
    {"redlock", redlock_driver, REDLOCK_NODES, redlock_options, NULL, redlock_start_three,
     redlock_fixture_stop},
    {"redlock-5", redlock_driver, REDLOCK_NODES, redlock_options, NULL, redlock_start_five,
     redlock_fixture_stop},
    {"redlock-minority", redlock_driver, REDLOCK_NODES | CT_DEAD_MINORITY, redlock_options, NULL,
     redlock_start_a_majority, redlock_fixture_stop},
#endif
#ifdef DLOCK_HAVE_MYSQL
    {"mysql-pessimistic", mysql_pessimistic_driver, A_MYSQL_SERVER | CT_WHOLE_SECONDS, mysql_unix_option,
     NULL, mysql_fixture_start, mysql_fixture_stop},
    {"mysql-lease", mysql_lease_driver, A_MYSQL_SERVER | CT_REPLAY | CT_PLAIN_POLLING, mysql_tcp_option, NULL,
     mysql_fixture_start, mysql_fixture_stop},
    {"mysql-optimistic", mysql_optimistic_driver, A_MYSQL_SERVER | CT_REPLAY | CT_PLAIN_POLLING,
     mysql_unix_option, NULL, mysql_fixture_start, mysql_fixture_stop},
#endif
#ifdef CT_WITH_EXAMPLE_DRIVER
    {"file-table", custom_driver, IN_A_FILE | CT_REPLAY | CT_PLAIN_POLLING, path_option, NULL, NULL, NULL},
#endif
};

/* What the table may name although this build has no such fixture. */
static const char *const left_out[] = {
#ifndef DLOCK_HAVE_SQLITE
    "sqlite",
#endif
#ifndef DLOCK_HAVE_REDIS
    "redis-string",
    "redis-hash-reentrant",
    "redlock",
    "redlock-5",
    "redlock-minority",
#endif
#ifndef DLOCK_HAVE_MYSQL
    "mysql-pessimistic",
    "mysql-lease",
    "mysql-optimistic",
#endif
#ifndef CT_WITH_EXAMPLE_DRIVER
    "file-table",
#endif
    NULL,
};

const fixture_t *fixture_at(size_t i) {
    return i < sizeof fixtures / sizeof fixtures[0] ? &fixtures[i] : NULL;
}

const fixture_t *fixture_find(const char *name) {
    for (size_t i = 0; fixture_at(i) != NULL; i++) {
        if (strcmp(fixture_at(i)->name, name) == 0) {
            return fixture_at(i);
        }
    }
    return NULL;
}

void fixtures_begin(const fixture_t *only) {
#ifdef DLOCK_HAVE_MYSQL
    if (only == NULL || (only->traits & CT_MYSQL)) {
        mysql_fixture_share();
    }
#else
    (void)only;
#endif
}

void fixtures_end(void) {
#ifdef DLOCK_HAVE_MYSQL
    mysql_fixture_unshare();
#endif
}

/* ---- the table ------------------------------------------------------------------------------------ */

typedef struct word {
    uint32_t bit;
    const char *text;
} word_t;

static const word_t cap_words[] = {{DL_CAP_LEASE, "LEASE"},
                                   {DL_CAP_SESSION, "SESSION"},
                                   {DL_CAP_FENCE, "FENCE"},
                                   {DL_CAP_SERVER_COUNT, "SERVER_COUNT"},
                                   {DL_CAP_NATIVE_WAIT, "NATIVE_WAIT"},
                                   {DL_CAP_NOTIFY, "NOTIFY"},
                                   {0, NULL}};
static const word_t trait_words[] = {{CT_REAL_TIME, "REAL_TIME"},
                                     {CT_VIRTUAL, "VIRTUAL"},
                                     {CT_PROCESSES, "PROCESSES"},
                                     {CT_CAN_INSPECT, "CAN_INSPECT"},
                                     {CT_CAN_FORCE, "CAN_FORCE"},
                                     {CT_CAN_LIST, "CAN_LIST"},
                                     {CT_REPLAY, "REPLAY"},
                                     {CT_ALLOC, "ALLOC"},
                                     {CT_PLAIN_POLLING, "PLAIN_POLLING"},
                                     {CT_REDIS, "REDIS"},
                                     {CT_MYSQL, "MYSQL"},
                                     {CT_WHOLE_SECONDS, "WHOLE_SECONDS"},
                                     {CT_NETWORK, "NETWORK"},
                                     {CT_REDLOCK, "REDLOCK"},
                                     {CT_DEAD_MINORITY, "DEAD_MINORITY"},
                                     {CT_BACKEND, "BACKEND"},
                                     {0, NULL}};

static size_t put_words(char *text, size_t size, size_t at, uint32_t bits, const word_t *words) {
    const char *comma = "";
    for (; words->text != NULL; words++) {
        if (bits & words->bit) {
            int n = snprintf(text + at, size - at, "%s%s", comma, words->text);
            at += n > 0 && (size_t)n < size - at ? (size_t)n : 0;
            comma = ",";
        }
    }
    return at;
}

void fixture_describe(const fixture_t *fixture, char *text, size_t size) {
    const dl_driver_t *driver = fixture->driver();
    size_t at = (size_t)snprintf(text, size, "%s ", fixture->name);
    at = put_words(text, size, at, driver == NULL ? 0 : driver->caps, cap_words);
    at += (size_t)snprintf(text + at, size - at, " ");
    put_words(text, size, at, fixture->traits, trait_words);
}

static int complain(const fixture_t *fixture, const char *what) {
    fprintf(stderr, "caps: %s: %s\n", fixture->name, what);
    return 1;
}

/* The traits must say what the table of the driver says. */
static int compare_with_driver(const fixture_t *fixture) {
    const dl_driver_t *d = fixture->driver();
    if (d == NULL) {
        return complain(fixture, "the driver is not in this build");
    }
    uint32_t have = (d->inspect != NULL ? CT_CAN_INSPECT : 0) |
                    (d->force_release != NULL ? CT_CAN_FORCE : 0) | (d->list != NULL ? CT_CAN_LIST : 0) |
                    (d->caps & DL_CAP_LEASE ? CT_REPLAY : 0) |
                    (d->caps & (DL_CAP_NOTIFY | DL_CAP_NATIVE_WAIT) ? 0 : CT_PLAIN_POLLING) |
                    (drive_backend_of(d) != NULL ? CT_BACKEND : 0);
    uint32_t derived =
        CT_CAN_INSPECT | CT_CAN_FORCE | CT_CAN_LIST | CT_REPLAY | CT_PLAIN_POLLING | CT_BACKEND;
    /* "redlock-5" is redlock in another setting. */
    size_t len = strlen(d->name);
    int is_named =
        strncmp(fixture->name, d->name, len) == 0 && (fixture->name[len] == 0 || fixture->name[len] == '-');
    int wrong = !is_named && complain(fixture, "the driver has another name");
    if ((fixture->traits & derived) != have) {
        wrong += complain(fixture, "its traits are not what the driver's table has");
    }
    return wrong;
}

/* Finds the line of `name` (the first word), with single blanks and without the newline. */
static int find_line(FILE *file, const char *name, char *line, size_t size) {
    char raw[512];
    rewind(file);
    while (fgets(raw, sizeof raw, file) != NULL) {
        char one[32], two[128], three[256];
        if (raw[0] != '#' && sscanf(raw, "%31s %127s %255s", one, two, three) == 3 &&
            strcmp(one, name) == 0) {
            snprintf(line, size, "%s %s %s", one, two, three);
            return 1;
        }
    }
    return 0;
}

static int compare_one(FILE *table, const fixture_t *fixture) {
    char expected[512], actual[512];
    fixture_describe(fixture, actual, sizeof actual);
    if (!find_line(table, fixture->name, expected, sizeof expected)) {
        fprintf(stderr, "caps: the table has no line\n  %s\n", actual);
        return 1;
    }
    if (strcmp(expected, actual) != 0) {
        fprintf(stderr, "caps: the table says\n  %s\nbut it is\n  %s\n", expected, actual);
        return 1;
    }
    return compare_with_driver(fixture);
}

/* A line without a fixture: somebody took the fixture away. */
static int find_orphans(FILE *table) {
    int wrong = 0;
    char raw[512], name[32];
    rewind(table);
    while (fgets(raw, sizeof raw, table) != NULL) {
        if (raw[0] == '#' || sscanf(raw, "%31s", name) != 1 || fixture_find(name) != NULL) {
            continue;
        }
        int allowed = 0;
        for (size_t i = 0; left_out[i] != NULL; i++) {
            allowed = allowed || strcmp(left_out[i], name) == 0;
        }
        if (!allowed) {
            fprintf(stderr, "caps: the table names '%s', which is no fixture\n", name);
            wrong++;
        }
    }
    return wrong;
}

int fixtures_compare(const char *table_path, const fixture_t *only) {
    FILE *table = fopen(table_path, "r");
    if (table == NULL) {
        fprintf(stderr, "caps: cannot read %s\n", table_path);
        return 1;
    }
    int wrong = only == NULL ? find_orphans(table) : 0;
    for (size_t i = 0; fixture_at(i) != NULL; i++) {
        if (only == NULL || fixture_at(i) == only) {
            wrong += compare_one(table, fixture_at(i));
        }
    }
    fclose(table);
    return wrong;
}
