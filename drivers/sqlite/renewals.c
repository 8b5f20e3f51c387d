/* renewals.c - renewing many holds at once, on a connection of their own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Holds renewed in one transaction: the write lock is kept for about a millisecond. */
#define CHUNK 512

typedef struct batch {
    dl_renewal_t *entries;
    size_t n;
} batch_t;

static void settle(batch_t *b, dl_status_t status, bool keep_lost) {
    for (size_t i = 0; i < b->n; i++) {
        if (!keep_lost || b->entries[i].status != DL_ELOST) {
            b->entries[i].status = status;
        }
    }
}

/* ---- a file that is not at its path any more -------------------------------------------------------- */

/* Does the database have this hold still? SQLite's result of the step: a row, done, or a failure. */
static int look_for(dli_connection_t *c, const dl_renewal_t *r) {
    sqlite3_stmt *s = NULL;
    int rc = dli_connection_prepare(
        c,
        "SELECT 1 FROM dlock_locks WHERE name = ?1 AND owner = ?2 AND hold_id = ?3 AND expires_ns > dl_now()",
        &s);
    if (rc == SQLITE_OK) {
        sqlite3_bind_blob(s, 1, r->name, (int)r->name_len, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, r->owner, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 3, (sqlite3_int64)r->hold_id);
        rc = sqlite3_step(s);
    }
    sqlite3_finalize(s);
    return rc;
}

/* is_alone: without what is beside it. That may be our own log and its index still. Of this process's locks
 * SQLite sees none; it would take that index for left over, and cut it under our mapping. */
static void put_uri(char *uri, const char *path, bool is_alone) {
    uri += sprintf(uri, "file:");
    for (; *path != '\0'; path++) {
        uri += sprintf(uri, strchr("?#%", *path) != NULL ? "%%%02X" : "%c", (unsigned char)*path);
    }
    strcpy(uri, is_alone ? "?immutable=1" : "");
}

/* Looks into the file that is at our path now. */
static void look_there(dli_store_t *there, bool is_alone, batch_t *b, dli_limits_t limits) {
    char uri[3 * DLI_PATH_LIMIT + 32];
    dli_guard_t guard;
    dli_connection_t c = {.db = NULL};
    put_uri(uri, there->place.path, is_alone);
    dli_guard_enter(&guard, there, limits);
    if (dli_connection_open(&c, there, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI) == SQLITE_OK) {
        for (size_t i = 0; i < b->n && !guard.over; i++) {
            int rc = look_for(&c, &b->entries[i]);
            if (rc == SQLITE_DONE || (rc & 0xff) == SQLITE_ERROR) { /* without our tables, too */
                b->entries[i].status = DL_ELOST;
            }
        }
    }
    dli_connection_close(&c);
    dli_guard_leave(&guard);
}

/* With the turn, so that no fork() finds this thread inside SQLite. */
static void look_in_turn(dli_store_t *store, dli_store_t *there, batch_t *b, dli_limits_t limits) {
    bool is_alone = !dli_forks_has_log(there);
    if (dli_turn_take(&store->renewals.turn, store->env, limits.deadline_ns, NULL) == DL_OK) {
        look_there(there, is_alone, b, limits);
        dli_turn_give(&store->renewals.turn, store->env);
    }
}

/*
 * Nobody else will look at our file again. Where there is no file at the path now, or one without the hold,
 * the hold is lost, and its holder should know at once. A copy that still has it protects it until its
 * lease ends, though it cannot be renewed any more. No other file is written.
 */
static void judge_moved(dli_store_t *store, batch_t *b, dli_limits_t limits) {
    struct stat now;
    dl_error_t err;
    settle(b, DL_EIO, false);
    int rc = stat(store->place.path, &now);
    if (rc != 0 ? errno == ENOENT || errno == ENOTDIR : !S_ISREG(now.st_mode)) {
        settle(b, DL_ELOST, false);
        return;
    }
    if (rc == 0 && dli_file_is(&now, store->parts[DLI_MAIN])) { /* others have another log */
        settle(b, dli_store_look(store) == DLI_RC_MOVED ? DL_ELOST : DL_EIO, false);
        return;
    }
    dli_store_t *there = calloc(1, sizeof *there);
    if (there == NULL) {
        return;
    }
    there->env = store->env;
    there->offset_ns = store->offset_ns;
    if (dli_folder_open(store->place.path, store->place.path, &there->place, &err) == DL_OK) {
        look_in_turn(store, there, b, limits);
    }
    dli_folder_close(&there->place);
    free(there);
    if (dli_store_look(store) ==
        SQLITE_OK) { /* any more: it was our own file, and its log was not looked at */
        settle(b, DL_EIO, false);
    }
}

/* ---- a batch --------------------------------------------------------------------------------------- */

static int renew_one(dli_connection_t *c, dl_renewal_t *r) {
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, DLI_SQL_RENEW, &s);
    if (rc == SQLITE_OK) {
        sqlite3_bind_blob(s, 1, r->name, (int)r->name_len, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, r->owner, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 3, (sqlite3_int64)r->hold_id);
        sqlite3_bind_int64(s, 4, r->lease_ms * NS_PER_MS);
        rc = dli_connection_step(s);
    }
    if (rc == SQLITE_OK) {
        r->status = sqlite3_changes(c->db) > 0 ? DL_OK : DL_ELOST;
    }
    return rc;
}

static int renew_once(dli_connection_t *c, void *arg) {
    batch_t *b = arg;
    uint64_t sent_ns = c->store->env->now_ns();
    for (size_t i = 0; i < b->n; i++) {
        b->entries[i].sent_ns = sent_ns;
        b->entries[i].status = DL_EIO;
    }
    if (b->n == 1) {
        return renew_one(c, b->entries); /* a transaction of its own */
    }
    int rc = dli_connection_do(c, DLI_SQL_BEGIN);
    if (rc != SQLITE_OK) {
        return rc;
    }
    for (size_t i = 0; i < b->n && rc == SQLITE_OK; i++) {
        rc = renew_one(c, &b->entries[i]);
    }
    return rc == SQLITE_OK ? dli_connection_do(c, DLI_SQL_COMMIT) : rc;
}

/* ---- the op ----------------------------------------------------------------------------------------- */

static void renew_chunk(dli_store_t *store, batch_t *b, uint64_t deadline_ns) {
    dl_error_t err;
    int rc;
    dli_limits_t limits = {.deadline_ns = deadline_ns, .stop = NULL};
    dl_status_t status = dli_connection_run(&store->renewals, renew_once, b, limits, &rc, &err);
    if (status != DL_OK) {
        settle(b, DL_EIO, false);
        return;
    }
    if (rc == DLI_RC_MOVED) {
        judge_moved(store, b, limits);
    } else if (rc != SQLITE_OK) {
        /* What the file said before it failed stays true for those that were not there. */
        settle(b, dli_connection_fail(store, rc, true, &err), true);
    }
}

void dli_sqlite_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    dli_store_t *store = state;
    for (size_t at = 0; at < n; at += CHUNK) {
        batch_t b = {.entries = renewals + at, .n = n - at < CHUNK ? n - at : CHUNK};
        for (size_t i = 0; i < b.n; i++) {
            b.entries[i].sent_ns = store->env->now_ns();
        }
        renew_chunk(store, &b, deadline_ns);
    }
    /* A client that only renews has to do it once in a while. */
    dli_checkpoint(store, 4, (dli_limits_t){.deadline_ns = deadline_ns});
}
