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
                          store->path);
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
    if (rc == SQLITE_OK && stat(store->path, &now) != 0) {
        rc = DLI_RC_MOVED;
    }
    *empty = rc == SQLITE_OK && now.st_size == 0;
    if (rc == SQLITE_OK && !*empty) {
        rc = file->pMethods->xRead(file, header, sizeof header, 0);
        rc = rc == SQLITE_IOERR_SHORT_READ ? SQLITE_OK : rc;
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
                              (unsigned)version, DLI_SCHEMA_VERSION, store->path);
    }
    return DL_OK;
}

static int number(dli_connection_t *c, const char *sql, int64_t *value) {
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(c->db, sql, -1, &s, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(s);
        if (rc == SQLITE_ROW) {
            *value = sqlite3_column_int64(s, 0);
        }
    }
    int end = sqlite3_finalize(s);
    return rc == SQLITE_ROW ? SQLITE_OK : end;
}

/* The log makes commits cheap, and it stays on for good. */
static int use_wal(dli_connection_t *c) {
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(c->db, "PRAGMA journal_mode = WAL", -1, &s, NULL);
    bool on = false;
    if (rc == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW) {
        on = strcmp((const char *)sqlite3_column_text(s, 0), "wal") == 0;
    }
    int end = sqlite3_finalize(s);
    if (rc == SQLITE_OK) {
        rc = end;
    }
    return rc == SQLITE_OK && !on ? SQLITE_BUSY : rc;
}

/* Fills the file unless somebody else was faster. */
static int fill_once(dli_connection_t *c, bool *made) {
    int64_t tables = 0;
    int rc = number(c, "SELECT count(*) FROM sqlite_master", &tables);
    if (rc != SQLITE_OK || tables > 0) {
        return rc;
    }
    rc = sqlite3_exec(c->db, dli_sql_schema, NULL, NULL, NULL);
    if (rc == SQLITE_OK) {
        *made = true;
        return SQLITE_OK;
    }
    (void)sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
    /* The tables are there after all: made between our look and our BEGIN. */
    return rc == SQLITE_ERROR ? SQLITE_BUSY : rc;
}

static int settle_once(dli_connection_t *c, bool empty, bool *made) {
    int rc = SQLITE_OK;
    if (empty) {
        rc = fill_once(c, made);
    }
    if (rc == SQLITE_OK) {
        rc = use_wal(c);
    }
    int64_t tables = 0;
    if (rc == SQLITE_OK) {
        rc = number(c, "SELECT count(*) FROM sqlite_master WHERE name IN ('dlock_locks', 'dlock_meta')",
                    &tables);
    }
    /* Not empty, our mark, but not our tables. */
    return rc == SQLITE_OK && tables != 2 ? SQLITE_CORRUPT : rc;
}

dl_status_t dli_schema_provide(dli_store_t *store, dli_limits_t limits, bool *made, dl_error_t *err) {
    for (unsigned tries = 0;; tries++) {
        bool empty = false;
        dl_status_t status = look_at_header(store, &empty, err);
        if (status != DL_OK) {
            return status;
        }
        int rc = settle_once(&store->calls, empty, made);
        if (rc == SQLITE_OK) {
            return DL_OK;
        }
        if (rc == SQLITE_CORRUPT && tries == 0) {
            continue; /* perhaps a half-made file that SQLite has just rolled back to an empty one */
        }
        status = dli_connection_again(store, rc, tries, limits, err);
        if (status != DL_OK) {
            return status;
        }
    }
}
