/* mysql_floor.c - records what a driver says to the server, and says it again by the bare client library. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_floor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATEMENTS_MAX 16
#define CONNECTIONS_MAX 4

typedef struct statement {
    int connection;
    char *text;
    size_t len;
    /* Where the number of a row's version stands, if it does: each time another. */
    size_t version_at, version_len;
} statement_t;

typedef struct part {
    statement_t statements[STATEMENTS_MAX];
    int count;
} part_t;

struct script {
    unsigned long threads[CONNECTIONS_MAX]; /* the server's ids of the driver's connections */
    int connections;
    part_t settings, acquire, release;
    statement_t row; /* the first of acquire, without NOWAIT */
};

struct bare_lock {
    const script_t *script;
    MYSQL *connections[CONNECTIONS_MAX];
    char version[24]; /* the first column that was read last */
};

/* ---- saying ------------------------------------------------------------------------------------------ */

/* Keeps the first column in `version` (of 24 bytes), if not NULL; the number of rows found. */
static uint64_t say(MYSQL *mysql, const char *text, size_t len, char *version) {
    if (mysql_real_query(mysql, text, (unsigned long)len) != 0) {
        die(mysql_error(mysql), NULL);
    }
    MYSQL_RES *rows = mysql_store_result(mysql);
    if (rows == NULL) {
        if (mysql_errno(mysql) != 0) {
            die(mysql_error(mysql), NULL);
        }
        return mysql_affected_rows(mysql);
    }
    uint64_t found = mysql_num_rows(rows);
    MYSQL_ROW row = mysql_fetch_row(rows);
    if (row != NULL && row[0] != NULL && version != NULL) {
        (void)snprintf(version, 24, "%s", row[0]);
    }
    mysql_free_result(rows);
    return found;
}

static void say_again(bare_lock_t *bare, const statement_t *s) {
    char text[16384];
    const char *sent = s->text;
    size_t len = s->len;
    if (s->version_len > 0) {
        size_t rest_at = s->version_at + s->version_len, version_len = strlen(bare->version);
        len = s->len - s->version_len + version_len;
        if (len >= sizeof text) {
            die("a long statement", NULL);
        }
        memcpy(text, s->text, s->version_at);
        memcpy(text + s->version_at, bare->version, version_len);
        memcpy(text + s->version_at + version_len, s->text + rest_at, s->len - rest_at);
        sent = text;
    }
    uint64_t found = say(bare->connections[s->connection], sent, len, bare->version);
    if (found == 0 && strncmp(sent, "ROLLBACK", 8) != 0 && strncmp(sent, "COMMIT", 6) != 0) {
        die("a bare statement did not find its row", NULL);
    }
}

static void say_part(bare_lock_t *bare, const part_t *part) {
    for (int i = 0; i < part->count; i++) {
        say_again(bare, &part->statements[i]);
    }
}

/* ---- recording --------------------------------------------------------------------------------------- */

static statement_t copy(int connection, const char *text) {
    statement_t s = {.connection = connection, .text = strdup(text), .len = strlen(text)};
    if (s.text == NULL) {
        die("out of memory", NULL);
    }
    for (const char *at = s.text; s.version_len == 0 && (at = strstr(at, "version=")) != NULL;) {
        at += 8;
        s.version_at = (size_t)(at - s.text);
        s.version_len = strspn(at, "0123456789");
    }
    return s;
}

static int connection_of(script_t *script, unsigned long thread) {
    for (int i = 0; i < script->connections; i++) {
        if (script->threads[i] == thread) {
            return i;
        }
    }
    if (script->connections == CONNECTIONS_MAX) {
        die("the driver uses many connections", NULL);
    }
    script->threads[script->connections] = thread;
    return script->connections++;
}

/* Appends what the log has got since the row number `from`; only_settings: only SET statements of connections
 * that are known. Returns the row number after the last. */
static uint64_t read_log(MYSQL *admin, script_t *script, part_t *part, uint64_t from, int only_settings) {
    static const char query[] = "SELECT thread_id, argument FROM mysql.general_log"
                                " WHERE command_type = 'Query' AND thread_id <> CONNECTION_ID()";
    if (mysql_query(admin, query) != 0) {
        die(mysql_error(admin), NULL);
    }
    MYSQL_RES *rows = mysql_store_result(admin);
    if (rows == NULL) {
        die(mysql_error(admin), NULL);
    }
    uint64_t count = mysql_num_rows(rows);
    mysql_data_seek(rows, from);
    for (MYSQL_ROW row; part != NULL && (row = mysql_fetch_row(rows)) != NULL;) {
        unsigned long thread = strtoul(row[0], NULL, 10);
        int known = 0;
        for (int i = 0; i < script->connections; i++) {
            known |= script->threads[i] == thread;
        }
        if (only_settings && (!known || strncmp(row[1], "SET ", 4) != 0)) {
            continue;
        }
        if (part->count == STATEMENTS_MAX) {
            die("the driver says much", NULL);
        }
        part->statements[part->count++] = copy(connection_of(script, thread), row[1]);
    }
    mysql_free_result(rows);
    return count;
}

static void switch_log(MYSQL *admin, int on) {
    static const char *const texts[] = {"SET GLOBAL general_log = OFF", "TRUNCATE TABLE mysql.general_log",
                                        "SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON"};
    for (int i = 0; i < (on ? 4 : 1); i++) {
        (void)say(admin, texts[i], strlen(texts[i]), NULL);
    }
}

script_t *script_record(const char *driver, const char *name) {
    script_t *script = calloc(1, sizeof *script);
    MYSQL *admin = mysql_open();
    dl_lock_t *lock;
    dl_error_t err;
    if (script == NULL) {
        die("out of memory", NULL);
    }
    switch_log(admin, 1);
    /* What a purge says, which may be due at any release, is no part of a pair. */
    dl_client_t *client = mysql_open_client(driver, ", purge_after: 0s");
    /* Once unrecorded: it makes the row, and the connections that are missing. */
    if (dl_lock_open(client, name, &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK ||
        dl_unlock(lock, &err) != DL_OK) {
        die("pair", &err);
    }
    uint64_t at = read_log(admin, script, NULL, 0, 0);
    if (dl_lock(lock, &err) != DL_OK) {
        die("lock", &err);
    }
    at = read_log(admin, script, &script->acquire, at, 0);
    if (dl_unlock(lock, &err) != DL_OK) {
        die("unlock", &err);
    }
    (void)read_log(admin, script, &script->release, at, 0);
    (void)read_log(admin, script, &script->settings, 0, 1);
    switch_log(admin, 0);
    dl_lock_close(lock);
    dl_client_close(client);
    mysql_close(admin);
    if (script->acquire.count == 0 || script->release.count == 0) {
        die("the server's log is empty", NULL);
    }
    script->row = script->acquire.statements[0];
    const char *nowait = strstr(script->row.text, " NOWAIT");
    if (nowait != NULL) {
        char *text = strndup(script->row.text, (size_t)(nowait - script->row.text));
        if (text == NULL) {
            die("out of memory", NULL);
        }
        script->row = copy(script->row.connection, text);
        free(text);
    }
    return script;
}

/* ---- a user ------------------------------------------------------------------------------------------ */

bare_lock_t *bare_lock_open(const script_t *script) {
    bare_lock_t *bare = calloc(1, sizeof *bare);
    if (bare == NULL) {
        die("out of memory", NULL);
    }
    bare->script = script;
    for (int i = 0; i < script->connections; i++) {
        bare->connections[i] = mysql_open();
    }
    for (int i = 0; i < script->settings.count; i++) {
        const statement_t *s = &script->settings.statements[i];
        (void)say(bare->connections[s->connection], s->text, s->len, NULL);
    }
    return bare;
}

void bare_lock_close(bare_lock_t *bare) {
    for (int i = 0; i < bare->script->connections; i++) {
        mysql_close(bare->connections[i]);
    }
    free(bare);
}

void bare_lock_acquire(bare_lock_t *bare) {
    say_part(bare, &bare->script->acquire);
}

void bare_lock_release(bare_lock_t *bare) {
    say_part(bare, &bare->script->release);
}

void bare_lock_await_row(bare_lock_t *bare) {
    say_again(bare, &bare->script->row);
}

void bare_lock_await(bare_lock_t *bare) {
    bare_lock_await_row(bare);
    for (int i = 1; i < bare->script->acquire.count; i++) {
        say_again(bare, &bare->script->acquire.statements[i]);
    }
}

void bare_lock_release_row(bare_lock_t *bare) {
    say_again(bare, &bare->script->release.statements[bare->script->release.count - 1]);
}
