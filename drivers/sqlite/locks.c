/* locks.c - taking and freeing a lock, and clearing away what dead holders left. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "drivers/block.h"
#include "store.h"

/* Each SWEEP_EVERY holds of a client, it looks at SWEEP_ROWS rows. A hold leaves one row at most, so that
 * looking at more rows than holds keeps the file in proportion to the locks that are alive. */
#define SWEEP_EVERY 128
#define SWEEP_ROWS 256

/* ---- taking ----------------------------------------------------------------------------------------- */

typedef struct acquisition {
    const dl_request_t *request;
    uint64_t sent_ns;
    bool taken;
    uint64_t token;
    int64_t busy_ns; /* how long the present hold lasts */
} acquisition_t;

static int step_acquire(dli_connection_t *c, const dl_request_t *r) {
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, DLI_SQL_ACQUIRE, &s);
    if (rc != SQLITE_OK) {
        return rc;
    }
    sqlite3_bind_blob(s, 1, r->name, (int)r->name_len, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, r->owner, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, (sqlite3_int64)r->hold_id);
    sqlite3_bind_text(s, 4, c->store->env->client_label, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 5, r->lease_ms * NS_PER_MS);
    sqlite3_bind_int64(s, 6, (sqlite3_int64)r->token_floor);
    sqlite3_bind_int64(s, 7, (sqlite3_int64)dli_block(r, DLI_TOKEN_MAX));
    return dli_connection_step(s);
}

static int acquire_once(dli_connection_t *c, void *arg) {
    acquisition_t *a = arg;
    /* Twice at most: the second time the ceiling is high enough for minutes. */
    for (int i = 0; i < 2; i++) {
        a->sent_ns = c->store->env->now_ns();
        int rc = step_acquire(c, a->request);
        if (rc == SQLITE_OK) {
            a->taken = sqlite3_changes(c->db) > 0;
            a->token = c->token;
            a->busy_ns = c->busy_ns > 0 ? c->busy_ns - (int64_t)c->now_ns : -1;
            return SQLITE_OK;
        }
        if (c->ceiling_for == 0) {
            return rc;
        }
        rc = dli_tokens_raise(c, c->ceiling_for);
        if (rc != SQLITE_OK) {
            return rc;
        }
    }
    return SQLITE_BUSY; /* stopped for minutes between the two: once more */
}

/* ---- sweeping --------------------------------------------------------------------------------------- */

typedef struct sweep {
    unsigned char last[DL_NAME_MAX + 1];
    size_t last_len;
    int rows, stale;
} sweep_t;

static int sweep_once(dli_connection_t *c, void *arg) {
    dli_store_t *store = c->store;
    sweep_t *sweep = arg;
    sqlite3_stmt *s;
    sweep->rows = sweep->stale = 0;
    int rc = dli_connection_statement(c, DLI_SQL_SWEEP_LOOK, &s);
    if (rc != SQLITE_OK) {
        return rc;
    }
    sqlite3_bind_blob(s, 1, store->cursor, (int)store->cursor_len, SQLITE_STATIC);
    sqlite3_bind_int(s, 2, SWEEP_ROWS);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        int len = sqlite3_column_bytes(s, 0);
        sweep->last_len = len <= DL_NAME_MAX ? (size_t)len : DL_NAME_MAX;
        if (sweep->last_len > 0) {
            memcpy(sweep->last, sqlite3_column_blob(s, 0), sweep->last_len);
        }
        sweep->rows++;
        sweep->stale += sqlite3_column_int(s, 1);
    }
    int reset = sqlite3_reset(s);
    if (rc != SQLITE_DONE || reset != SQLITE_OK || sweep->stale == 0) {
        return SQLITE_OK;
    }
    rc = dli_connection_statement(c, DLI_SQL_SWEEP, &s);
    if (rc == SQLITE_OK) {
        sqlite3_bind_blob(s, 1, store->cursor, (int)store->cursor_len, SQLITE_STATIC);
        sqlite3_bind_blob(s, 2, sweep->last, (int)sweep->last_len, SQLITE_STATIC);
        (void)dli_connection_step(s); /* if it is busy now, it is not next time */
    }
    return SQLITE_OK;
}

/* From time to time, after a hold began. The first look is near its own name, so that clients which live
 * for one hold look everywhere in the end. */
static void sweep(dli_store_t *store, const dl_request_t *request, dli_limits_t limits) {
    if (atomic_fetch_add(&store->acquired, 1) % SWEEP_EVERY != SWEEP_EVERY - 1 ||
        atomic_flag_test_and_set(&store->sweeping)) {
        return;
    }
    sweep_t sweep = {.rows = 0};
    if (dli_turn_try(&store->calls.turn)) {
        if (!store->swept) {
            store->swept = true;
            memcpy(store->cursor, request->name, request->name_len);
            store->cursor_len = request->name_len;
        }
        dli_guard_t guard;
        dli_guard_enter(&guard, store, limits);
        (void)dli_connection_attempt(&store->calls, sweep_once, &sweep, false);
        dli_guard_leave();
        dli_turn_give(&store->calls.turn, store->env);
        store->cursor_len = 0; /* from the beginning again */
        if (sweep.rows == SWEEP_ROWS) {
            memcpy(store->cursor, sweep.last, sweep.last_len);
            store->cursor_len = sweep.last_len;
        }
    }
    atomic_flag_clear(&store->sweeping);
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

dl_status_t dli_sqlite_try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                   dl_error_t *err) {
    (void)hold;
    dli_store_t *store = state;
    if (request->token_floor >= DLI_TOKEN_MAX) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "the token floor is larger than this driver's tokens");
    }
    acquisition_t a = {.request = request};
    dli_limits_t limits = {.deadline_ns = request->deadline_ns, .stop = &request->stop};
    int rc;
    dl_status_t status = dli_connection_run(&store->calls, acquire_once, &a, limits, &rc, err);
    if (status != DL_OK) {
        return status;
    }
    if (rc != SQLITE_OK) {
        return dli_connection_fail(store, rc, true, err);
    }
    if (!a.taken) {
        grant->busy_ms = dli_store_ms(a.busy_ns);
        grant->busy_is_dlock = 1;
        return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner for %s more",
                              dl_driver_duration(grant->busy_ms).text);
    }
    grant->token = a.token;
    grant->tokens = dli_block(request, DLI_TOKEN_MAX);
    grant->sent_ns = a.sent_ns;
    grant->session_fd = -1;
    sweep(store, request, limits);
    dli_checkpoint(store, 2, limits); /* rather by a release, which nobody waits for */
    return DL_OK;
}

typedef struct freeing {
    const char *name;
    size_t name_len;
    const char *owner; /* NULL: whoever holds it */
    uint64_t hold_id;
    bool done;
} freeing_t;

static int release_by(dli_connection_t *c, dli_sql_t which, freeing_t *f) {
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, which, &s);
    if (rc == SQLITE_OK) {
        sqlite3_bind_blob(s, 1, f->name, (int)f->name_len, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, f->owner, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 3, (sqlite3_int64)f->hold_id);
        rc = dli_connection_step(s);
    }
    f->done = rc == SQLITE_OK && sqlite3_changes(c->db) > 0;
    return rc;
}

static int release_once(dli_connection_t *c, void *arg) {
    freeing_t *f = arg;
    int rc = release_by(c, DLI_SQL_RELEASE, f);
    if (rc == SQLITE_OK && !f->done) {
        rc = release_by(c, DLI_SQL_RELEASE_KEEPING_TOKEN, f);
    }
    return rc;
}

/* DL_OK: f->done says whether there was such a hold. */
static dl_status_t release(dli_store_t *store, freeing_t *f, dli_limits_t limits, dl_error_t *err) {
    int rc;
    dl_status_t status = dli_connection_run(&store->calls, release_once, f, limits, &rc, err);
    if (status != DL_OK) {
        return status;
    }
    if (rc != SQLITE_OK) {
        return dli_connection_fail(store, rc, true, err);
    }
    if (f->done) {
        dli_wake_all(store, f->name, f->name_len);
    }
    dli_checkpoint(store, 1, limits);
    return DL_OK;
}

dl_status_t dli_sqlite_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    freeing_t f = {.name = request->name,
                   .name_len = request->name_len,
                   .owner = request->owner,
                   .hold_id = request->hold_id};
    dli_limits_t limits = {.deadline_ns = request->deadline_ns, .stop = &request->stop, .frees = true};
    dl_status_t status = release(state, &f, limits, err);
    return status != DL_OK || f.done
               ? status
               : dl_driver_fail(err, DL_ELOST, 0,
                                "the lock was lost: this hold is no longer in the lock file");
}

dl_status_t dli_sqlite_force_release(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                     dl_error_t *err) {
    freeing_t f = {.name = name, .name_len = name_len};
    dl_status_t status = release(state, &f, (dli_limits_t){.deadline_ns = deadline_ns}, err);
    return status != DL_OK || f.done ? status : dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
}
