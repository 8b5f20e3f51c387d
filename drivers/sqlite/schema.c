/* schema.c - what is in the file: refuses what is not ours, fills what is empty. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <string.h>

/* The first bytes of an SQLite file, by its published format. */
#define HEADER_SIZE 100
#define HEADER_VERSION_AT 60
#define HEADER_APPLICATION_AT 68

static uint32_t big_endian(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static dl_status_t foreign(const dli_store_t *store, const char *what, dl_error_t *err) {
    return dl_driver_fail(err, DL_ECONFIG, 0, "%s; it was left as it is, choose another path: %s", what,
                          dli_place_text(&store->place));
}

/*
 * Looks at the header through SQLite's own descriptor, before SQLite itself looks at anything: that would
 * recover or checkpoint what may be another program's database. (Opening the file by other means could drop
 * the POSIX locks of a connection that this program has on it.) *empty: it has no byte.
 */
static dl_status_t look_at_header(dli_store_t *store, bool *empty, dl_error_t *err) {
    sqlite3_file *file = NULL;
    struct stat now; /* SQLite itself takes a file of one byte for an empty one */
    unsigned char header[HEADER_SIZE] = {0};
    int rc = sqlite3_file_control(store->calls.db, "main", SQLITE_FCNTL_FILE_POINTER, &file);
    /* One that somebody began to fill may be empty again meanwhile, and filled by others. */
    *empty = false;
    for (off_t before = -1; rc == SQLITE_OK; before = now.st_size) {
        if (!dli_store_stat(store, DLI_MAIN, &now)) {
            rc = DLI_RC_MOVED;
            break;
        }
        *empty = now.st_size == 0;
        rc = *empty ? SQLITE_OK : file->pMethods->xRead(file, header, sizeof header, 0);
        if (rc != SQLITE_IOERR_SHORT_READ) {
            break;
        }
        rc = SQLITE_OK;
        if (now.st_size == before) {
            break; /* it is as short as that */
        }
    }
    if (rc != SQLITE_OK) {
        return dli_connection_fail(store, rc, false, err);
    }
    if (*empty) {
        return DL_OK;
    }
    if (memcmp(header, "SQLite format 3", 16) != 0) {
        return foreign(store, "the file is not an SQLite database", err);
    }
    if (big_endian(header + HEADER_APPLICATION_AT) != DLI_APPLICATION_ID) {
        return foreign(store, "the file is another program's database", err);
    }
    uint32_t version = big_endian(header + HEADER_VERSION_AT);
    if (version != DLI_SCHEMA_VERSION) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "the lock file has format %u, this version of the library knows format %d: %s",
                              (unsigned)version, DLI_SCHEMA_VERSION, dli_place_text(&store->place));
    }
    return DL_OK;
}

/* ---- definitions ------------------------------------------------------------------------------------ */

/* Inside a transaction. */
static int compare(dli_connection_t *c) {
    sqlite3_stmt *s = NULL;
    int rc = dli_connection_prepare(c, dli_sql_definitions, &s);
    int verdict = SQLITE_OK;
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(s, 1, dli_sql_locks, -1, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, dli_sql_meta, -1, SQLITE_STATIC);
        if (sqlite3_step(s) == SQLITE_ROW) {
            int all = sqlite3_column_int(s, 0), locks = sqlite3_column_int(s, 1),
                meta = sqlite3_column_int(s, 2);
            if (all != 2 || locks != 1 || meta != 1) {
                verdict = all < 2 ? SQLITE_CORRUPT : DLI_RC_FOREIGN;
            }
        }
    }
    int end = sqlite3_finalize(s);
    rc = rc != SQLITE_OK ? rc : end;
    return rc != SQLITE_OK ? rc : verdict;
}

int dli_schema_look(dli_connection_t *c) {
    dli_connection_forget(c);
    int rc = dli_connection_exec(c, dli_sql_settings);
    if (rc == SQLITE_OK) {
        rc = dli_connection_exec(c, dli_sql_snapshot);
    }
    if (rc == SQLITE_OK) {
        rc = compare(c);
    }
    /* What ends a transaction must not fail for want of memory, and what begins one comes before it. */
    static const dli_sql_t early[] = {DLI_SQL_ROLLBACK, DLI_SQL_COMMIT, DLI_SQL_BEGIN};
    for (size_t i = 0; i < sizeof early / sizeof early[0] && rc == SQLITE_OK; i++) {
        sqlite3_stmt *unused;
        rc = dli_connection_statement(c, early[i], &unused);
    }
    if (sqlite3_get_autocommit(c->db) == 0) {
        int end = dli_connection_do(c, DLI_SQL_ROLLBACK);
        rc = rc != SQLITE_OK ? rc : end;
    }
    c->looked = rc == SQLITE_OK;
    return rc;
}

/* ---- filling an empty file -------------------------------------------------------------------------- */

/* The log makes commits cheap, and it stays on for good. */
static int use_wal(dli_connection_t *c) {
    char mode[8] = "";
    int rc = dli_connection_ask(c, "PRAGMA journal_mode = WAL", NULL, mode, sizeof mode);
    return rc == SQLITE_OK && strcmp(mode, "wal") != 0 ? SQLITE_BUSY : rc;
}

static int fill_once(dli_connection_t *c, bool *made) {
    int rc = dli_connection_exec(c, dli_sql_schema);
    if (rc == SQLITE_OK) {
        *made = true;
        return SQLITE_OK;
    }
    if (sqlite3_get_autocommit(c->db) == 0) {
        (void)dli_connection_do(c, DLI_SQL_ROLLBACK);
    }
    /* Somebody else was faster: there are tables. */
    return rc == SQLITE_ERROR ? SQLITE_BUSY : rc;
}

typedef struct provision {
    dl_status_t status; /* what the header is refused by, with `err` */
    dl_error_t *err;
    bool *made;
} provision_t;

static int provide_once(dli_connection_t *c, void *arg) {
    provision_t *p = arg;
    struct stat now;
    bool empty = false;
    p->status = look_at_header(c->store, &empty, p->err);
    if (p->status != DL_OK) {
        return SQLITE_OK;
    }
    int rc = empty ? fill_once(c, p->made) : SQLITE_OK;
    if (rc == SQLITE_OK) {
        rc = dli_schema_look(c);
    }
    if (rc == SQLITE_CORRUPT && dli_store_stat(c->store, DLI_MAIN, &now) && now.st_size == 0) {
        return SQLITE_BUSY; /* it was half made, and SQLite has just rolled it back */
    }
    return rc == SQLITE_OK ? use_wal(c) : rc;
}

dl_status_t dli_schema_provide(dli_store_t *store, dli_limits_t limits, bool *made, dl_error_t *err) {
    provision_t p = {.err = err, .made = made};
    dl_status_t status = dli_connection_retry(&store->calls, provide_once, &p, limits, err);
    return status == DL_OK ? p.status : status;
}
