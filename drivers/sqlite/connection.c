/* connection.c - one connection: set-up, SQL functions, patience with a busy file, errors in plain words. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

/* Pages of the write-ahead log that call for a checkpoint: 4 MiB, two syncs of the disk per 2000 short
 * holds. */
#define WAL_LIMIT 4000
/* The longest pause between two attempts on a busy file doubles from the first to the second; a write takes
 * about 10 us. Random, because a queue of equals would starve somebody. */
#define PAUSE_FIRST_NS (100 * (uint64_t)NS_PER_US)
#define PAUSE_MAX_NS (2 * (uint64_t)NS_PER_MS)

/* ---- SQL functions ---------------------------------------------------------------------------------- */

static uint64_t instant(dli_connection_t *c) {
    if (c->now_ns == 0) {
        c->now_ns = dli_store_now(c->store);
    }
    return c->now_ns;
}

static void sql_now(sqlite3_context *context, int n, sqlite3_value **values) {
    (void)n;
    (void)values;
    sqlite3_result_int64(context, (sqlite3_int64)instant(sqlite3_user_data(context)));
}

static void sql_tick(sqlite3_context *context, int n, sqlite3_value **values) {
    (void)n;
    (void)values;
    dli_connection_t *c = sqlite3_user_data(context);
    sqlite3_result_int64(context, (sqlite3_int64)dli_tokens_at(c->store, instant(c)));
}

static void sql_token(sqlite3_context *context, int n, sqlite3_value **values) {
    (void)n;
    dli_connection_t *c = sqlite3_user_data(context);
    uint64_t floor = (uint64_t)sqlite3_value_int64(values[0]);
    uint64_t previous = (uint64_t)sqlite3_value_int64(values[1]);
    uint64_t token = dli_tokens_at(c->store, instant(c));
    if (token <= floor) {
        token = floor + 1;
    }
    if (token <= previous) {
        token = previous + 1;
    }
    if (token >= c->store->token_ceiling) {
        c->ceiling_for = token;
        sqlite3_result_error(context, "the token reserve is used up", -1);
        return;
    }
    c->token = token;
    sqlite3_result_int64(context, (sqlite3_int64)token);
}

static void sql_busy(sqlite3_context *context, int n, sqlite3_value **values) {
    (void)n;
    dli_connection_t *c = sqlite3_user_data(context);
    c->busy_ns = sqlite3_value_int64(values[0]);
    sqlite3_result_int(context, 0);
}

static int add_functions(dli_connection_t *c) {
    static const struct {
        const char *name;
        int args;
        void (*fn)(sqlite3_context *, int, sqlite3_value **);
    } functions[] = {
        {"dl_now", 0, sql_now},
        {"dl_tick", 0, sql_tick},
        {"dl_token", 2, sql_token},
        {"dl_busy", 1, sql_busy},
    };
    int rc = SQLITE_OK;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && rc == SQLITE_OK; i++) {
        rc =
            sqlite3_create_function_v2(c->db, functions[i].name, functions[i].args,
                                       SQLITE_UTF8 | SQLITE_DIRECTONLY, c, functions[i].fn, NULL, NULL, NULL);
    }
    return rc;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

static int note_wal_frames(void *arg, sqlite3 *db, const char *schema, int frames) {
    (void)db;
    (void)schema;
    dli_store_t *store = arg;
    if (frames < WAL_LIMIT) {
        atomic_store(&store->wal_limit, WAL_LIMIT);
    }
    atomic_store(&store->wal_frames, frames);
    return SQLITE_OK;
}

int dli_connection_open(dli_connection_t *c, dli_store_t *store) {
    c->store = store;
    /* The turn stands for SQLite's own mutex. The plain "unix" VFS, because forks.c knows that one. */
    int rc = sqlite3_open_v2(store->path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, "unix");
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(c->db, 1);
        sqlite3_busy_timeout(c->db, 0);
        /* Closing leaves the log alone, above all that of a file which turns out not to be ours. */
        sqlite3_db_config(c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        sqlite3_db_config(c->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        /* Takes the place of SQLite's own checkpoints, see dli_checkpoint. */
        sqlite3_wal_hook(c->db, note_wal_frames, store);
        atomic_store(&store->wal_limit, WAL_LIMIT);
        rc = add_functions(c);
    }
    /* What ends a transaction must not fail for want of memory, and what begins one comes before it. */
    static const dli_sql_t early[] = {DLI_SQL_ROLLBACK, DLI_SQL_COMMIT, DLI_SQL_BEGIN};
    for (size_t i = 0; i < sizeof early / sizeof early[0] && rc == SQLITE_OK; i++) {
        sqlite3_stmt *unused;
        rc = dli_connection_statement(c, early[i], &unused);
    }
    return rc;
}

void dli_connection_close(dli_connection_t *c) {
    for (int i = 0; i < DLI_SQL_COUNT; i++) {
        sqlite3_finalize(c->statements[i]);
        c->statements[i] = NULL;
    }
    /* Cannot be refused: no statement is left. */
    sqlite3_close(c->db);
    c->db = NULL;
}

/* ---- statements ------------------------------------------------------------------------------------- */

int dli_connection_statement(dli_connection_t *c, dli_sql_t which, sqlite3_stmt **statement) {
    int rc = SQLITE_OK;
    if (c->statements[which] == NULL) {
        rc = sqlite3_prepare_v3(c->db, dli_sql[which], -1, SQLITE_PREPARE_PERSISTENT, &c->statements[which],
                                NULL);
    }
    c->now_ns = 0;
    c->token = 0;
    c->ceiling_for = 0;
    c->busy_ns = 0;
    *statement = c->statements[which];
    return rc;
}

int dli_connection_step(dli_connection_t *c, sqlite3_stmt *statement) {
    (void)c;
    int rc = sqlite3_step(statement);
    while (rc == SQLITE_ROW) { /* some pragmas answer with a row */
        rc = sqlite3_step(statement);
    }
    /* The reset repeats the error of the step, if there was one. */
    int reset = sqlite3_reset(statement);
    return rc == SQLITE_DONE ? reset : rc;
}

int dli_connection_do(dli_connection_t *c, dli_sql_t which) {
    sqlite3_stmt *statement;
    int rc = dli_connection_statement(c, which, &statement);
    return rc == SQLITE_OK ? dli_connection_step(c, statement) : rc;
}

/* Ends a transaction whose own end failed: it would keep every other process out, and what came after it in
 * this one would never be committed. SQLite's result. */
static int end_left_over(dli_connection_t *c) {
    return sqlite3_get_autocommit(c->db) != 0 ? SQLITE_OK : dli_connection_do(c, DLI_SQL_ROLLBACK);
}

/* ---- a busy file ------------------------------------------------------------------------------------ */

static dl_status_t pause_briefly(const dl_driver_env_t *env, unsigned tries, dli_limits_t limits) {
    uint64_t longest_ns = PAUSE_FIRST_NS;
    while (tries-- > 0 && longest_ns < PAUSE_MAX_NS) {
        longest_ns *= 2;
    }
    uint32_t random = 0;
    (void)env->random(&random, sizeof random);
    uint64_t now_ns = env->now_ns();
    if (now_ns >= limits.deadline_ns) {
        return DL_ETIMEDOUT;
    }
    uint64_t until_ns = now_ns + longest_ns * (random % 1024 + 1) / 1024;
    if (until_ns > limits.deadline_ns) {
        until_ns = limits.deadline_ns;
    }
    struct pollfd fds[2] = {{.fd = -1}, {.fd = -1}};
    if (limits.stop != NULL) {
        fds[0] = (struct pollfd){.fd = limits.stop->fd[0], .events = POLLIN};
        fds[1] = (struct pollfd){.fd = limits.stop->fd[1], .events = POLLIN};
    }
    return env->poll(fds, 2, until_ns) > 0 ? DL_ECANCELED : DL_OK;
}

static dl_status_t gave_up(const dli_store_t *store, dl_status_t status, bool file_busy, dl_error_t *err) {
    if (status == DL_ECANCELED) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "cancelled while the lock file was busy");
    }
    if (!file_busy) {
        return dl_driver_fail(err, DL_EIO, SQLITE_BUSY, "this process is too busy with the lock file %s",
                              store->path);
    }
    return dl_driver_fail(err, DL_EIO, SQLITE_BUSY,
                          "another process keeps the lock file busy (dlock check names it): %s", store->path);
}

static bool is_busy(int rc) {
    /* SQLITE_PROTOCOL is a busy file too: the race for its shared memory was lost too often. */
    return (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_PROTOCOL;
}

dl_status_t dli_connection_again(const dli_store_t *store, int rc, unsigned tries, dli_limits_t limits,
                                 dl_error_t *err) {
    if (!is_busy(rc)) {
        return dli_connection_fail(store, rc, false, err);
    }
    dl_status_t status = pause_briefly(store->env, tries, limits);
    return status == DL_OK ? DL_OK : gave_up(store, status, true, err);
}

dl_status_t dli_connection_run(dli_connection_t *c, dli_attempt_fn attempt, void *arg, dli_limits_t limits,
                               int *rc, dl_error_t *err) {
    const dl_driver_env_t *env = c->store->env;
    for (unsigned tries = 0;; tries++) {
        dl_status_t status = dli_turn_take(&c->turn, env, limits.deadline_ns, limits.stop);
        if (status != DL_OK) {
            return gave_up(c->store, status, false, err);
        }
        *rc = end_left_over(c);
        if (*rc == SQLITE_OK) {
            *rc = attempt(c, arg);
        }
        dli_turn_give(&c->turn, env);
        env->count(env->core, DL_COUNT_ROUND_TRIP, 1);
        if (!is_busy(*rc)) {
            return DL_OK;
        }
        status = pause_briefly(env, tries, limits);
        if (status != DL_OK) {
            return gave_up(c->store, status, true, err);
        }
    }
}

/* ---- errors ----------------------------------------------------------------------------------------- */

dl_status_t dli_connection_fail(const dli_store_t *store, int rc, bool maybe_done, dl_error_t *err) {
    const char *path = store->path;
    switch (rc & 0xff) {
    case DLI_RC_MOVED & 0xff:
        return dl_driver_fail(err, DL_EIO, 0,
                              "the lock file was moved, replaced or deleted while in use;"
                              " close the client and open it again: %s",
                              path);
    case SQLITE_FULL:
        return dl_driver_fail(err, DL_EIO, rc, "no space left for the lock file %s", path);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return dl_driver_fail(err, DL_EAUTH, rc, "no permission to read and write the lock file %s", path);
    case SQLITE_CANTOPEN:
        return dl_driver_fail(err, DL_EIO, rc, "cannot open the lock file or a file beside it: %s", path);
    case SQLITE_NOMEM:
        return dl_driver_fail(err, DL_ENOMEM, rc, "out of memory");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return dl_driver_fail(err, DL_EPROTO, rc, "the lock file is damaged: %s", path);
    case SQLITE_IOERR:
        if ((rc >> 8) == (SQLITE_IOERR_NOMEM >> 8)) {
            return dl_driver_fail(err, DL_ENOMEM, rc, "out of memory");
        }
        /* A failed write may still be found in the log when the file is next recovered. */
        return dl_driver_fail(
            err, maybe_done ? DL_EUNKNOWN : DL_EIO, rc,
            "the disk failed under the lock file, or the file was replaced while it was in use: %s", path);
    default:
        return dl_driver_fail(err, DL_EPROTO, rc, "the lock file gave an unexpected answer (%s): %s",
                              sqlite3_errstr(rc), path);
    }
}

/* ---- the write-ahead log ---------------------------------------------------------------------------- */

/*
 * The log is copied into the file while we hold the write lock, by the other connection. SQLite before
 * 3.51.3 can lose pages when a writer begins the log anew at the very moment another connection starts a
 * checkpoint; with the write lock held nobody can.
 */
void dli_checkpoint(dli_store_t *store, int times) {
    if (atomic_load(&store->wal_frames) < atomic_load(&store->wal_limit) * times) {
        return;
    }
    if (!dli_turn_try(&store->calls.turn)) {
        return;
    }
    if (dli_turn_try(&store->renewals.turn)) {
        if (end_left_over(&store->calls) == SQLITE_OK &&
            dli_connection_do(&store->calls, DLI_SQL_BEGIN) == SQLITE_OK) {
            sqlite3_stmt *unused;
            /* A connection that has read nothing yet knows of no log; preparing reads the schema. */
            if (dli_connection_statement(&store->renewals, DLI_SQL_RENEW, &unused) == SQLITE_OK) {
                (void)sqlite3_wal_checkpoint_v2(store->renewals.db, "main", SQLITE_CHECKPOINT_PASSIVE, NULL,
                                                NULL);
            }
            /* The next writer begins the log anew, unless a reader is in the way; then not again at once. */
            atomic_store(&store->wal_limit, atomic_load(&store->wal_frames) + WAL_LIMIT);
            (void)dli_connection_do(&store->calls, DLI_SQL_ROLLBACK);
        }
        dli_turn_give(&store->renewals.turn, store->env);
    }
    dli_turn_give(&store->calls.turn, store->env);
}

bool dli_store_moved(const dli_store_t *store) {
    struct stat now;
    return stat(store->path, &now) != 0 || now.st_dev != store->dev || now.st_ino != store->ino;
}
