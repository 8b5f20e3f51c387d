/* mysql_setup_fixture.h - a database for a case, clients and `init` on it, and what they find. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_SETUP_FIXTURE_H
#define MYSQL_SETUP_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "drivers/registry.h"
#include "support/mysql_server.h"

static mysql_server_t *server;
static char database[MYSQL_DATABASE_MAX];

static const char *const drivers[] = {"mysql-lease", "mysql-optimistic", "mysql-pessimistic"};
#define DRIVERS 3
static const char *const tables[] = {"dlock_lease", "dlock_optimistic", "dlock_pessimistic"};

static inline void set_up(void) {
    server = mysql_server_any();
    mysql_database(server, database);
}

static inline void tear_down(void) {
    mysql_try(server, "DROP DATABASE `%s`", database);
    mysql_server_stop(server);
}

/* ---- findings ------------------------------------------------------------------------------------- */

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
    cr_assert_null(strstr(text, MYSQL_SECRET "!"), "a secret is printed: %s", text);
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

/* The highest level of all findings on the subject. -1: none. */
static inline int level_of(const findings_t *found, const char *subject) {
    int level = -1;
    for (size_t i = 0; i < found->n; i++) {
        if (strcmp(found->at[i].subject, subject) == 0 && (int)found->at[i].level > level) {
            level = (int)found->at[i].level;
        }
    }
    return level;
}

/* Anything amiss, but for what the servers of tests save by not syncing? */
static inline const char *complaint(const findings_t *found) {
    for (size_t i = 0; i < found->n; i++) {
        if (found->at[i].level >= DL_FINDING_WARNING && strcmp(found->at[i].subject, "durability") != 0) {
            return found->at[i].text;
        }
    }
    return NULL;
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

/* ---- clients -------------------------------------------------------------------------------------- */

/* Who the clients of a case are, and how long they wait for a busy machine. */
static const char *user = MYSQL_USER, *patience = "20s";

static inline void write_yaml(char *yaml, size_t size, const char *driver, const char *more) {
    snprintf(yaml, size,
             "use: b\ndefaults: {call_timeout: %s}\nbackends:\n  b: {driver: %s, host: 127.0.0.1, port: %d, "
             "user: %s, password: \"%s\", database: %s, connect_timeout: %s%s}\n",
             patience, driver, server->port, user, MYSQL_SECRET, database, patience, more);
}

static inline dl_status_t open_with(const char *driver, const char *more, dl_client_t **client,
                                    dl_error_t *err) {
    char yaml[1024];
    write_yaml(yaml, sizeof yaml, driver, more);
    return dl_client_open_text(yaml, strlen(yaml), NULL, client, err);
}

/* What opening says to these options; the client is closed again. */
static inline dl_status_t try_open(const char *driver, const char *more, dl_error_t *err) {
    dl_client_t *client = NULL;
    memset(err, 0, sizeof *err);
    dl_status_t status = open_with(driver, more, &client, err);
    if (status == DL_OK) {
        dl_client_close(client);
    }
    return status;
}

static inline void check_with(const char *driver, const char *more, findings_t *found) {
    dl_client_t *client;
    dl_error_t err;
    memset(found, 0, sizeof *found);
    cr_assert_eq(open_with(driver, more, &client, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_client_check(client, keep, found, &err), DL_OK, "%s", err.message);
    dl_client_close(client);
}

/* dl_backend_init reads a file; this one has no name. */
static inline dl_status_t init_with(const char *driver, const char *more, unsigned flags, findings_t *found,
                                    dl_error_t *err) {
    char yaml[1024], path[64];
    memset(found, 0, sizeof *found);
    write_yaml(yaml, sizeof yaml, driver, more);
    int fd = memfd_create("yaml", MFD_CLOEXEC);
    cr_assert_eq(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    dl_status_t status = dl_backend_init(path, NULL, flags, keep, found, err);
    close(fd);
    return status;
}

static inline void make_tables(const char *driver, const char *more) {
    findings_t found;
    dl_error_t err;
    cr_assert_eq(init_with(driver, more, 0, &found, &err), DL_OK, "%s", err.message);
}

#define EXPECT_REFUSED(status_, expected, err, words)                                                    \
    do {                                                                                                 \
        dl_status_t got_ = (status_);                                                                    \
        cr_expect_eq(got_, expected, "%s: %s", dl_status_name(got_), (err).message);                     \
        cr_expect_not_null(strstr((err).message, words), "does not say '%s': %s", words, (err).message); \
    } while (0)

#endif
