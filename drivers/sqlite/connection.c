/* connection.c - one connection: set-up, SQL functions, patience with a busy file. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Pages of the write-ahead log that call for a checkpoint: 4 MiB, two syncs of the disk per 2000 short
 * holds. */
#define WAL_LIMIT 4000
/* The longest pause between two attempts on a busy file doubles from the first to the second; a write takes
 * about 10 us. Random, because a queue of equals would starve somebody. */
#define PAUSE_FIRST_NS (100 * (uint64_t)NS_PER_US)
#define PAUSE_MAX_NS (2 * (uint64_t)NS_PER_MS)
/* Of SQLite's virtual machine, some microseconds. */
#define STEPS_BETWEEN_LOOKS 200
/* Two changes of a folder closer than this may have one time: 2 s on vfat. Where times are not whole
 * milliseconds they are the kernel's ticks, of 10 ms at most. */
#define CHANGES_APART_NS (3000 * (uint64_t)NS_PER_MS)
#define TICKS_APART_NS (50 * (uint64_t)NS_PER_MS)
/* Bytes in a row, a text or a definition; ours have a few hundred. */
#define LONGEST 4096

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
    uint64_t count = (uint64_t)sqlite3_value_int64(values[2]);
    uint64_t token = dli_tokens_at(c->store, instant(c));
    if (token <= floor) {
        token = floor + 1;
    }
    if (token <= previous) {
        token = previous + 1;
    }
    uint64_t last = token + count - 1;
    if (last > DLI_TOKEN_MAX) {
        sqlite3_result_error(context, "a token out of all range", -1);
        return;
    }
    if (last >= c->store->token_ceiling) {
        c->ceiling_for = last;
        sqlite3_result_error(context, "the token reserve is used up", -1);
        return;
    }
    c->token = token;
    sqlite3_result_int64(context, (sqlite3_int64)last);
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
        {"dl_token", 3, sql_token},
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

/* Somebody else's statements never run in ours, whatever the file says. */
static int switch_off(sqlite3 *db) {
    static const int off[] = {SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW,
                              SQLITE_DBCONFIG_ENABLE_FKEY, SQLITE_DBCONFIG_TRUSTED_SCHEMA};
    int rc = SQLITE_OK;
    for (size_t i = 0; i < sizeof off / sizeof off[0] && rc == SQLITE_OK; i++) {
        rc = sqlite3_db_config(db, off[i], 0, NULL);
    }
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, LONGEST);
    sqlite3_limit(db, SQLITE_LIMIT_SQL_LENGTH, LONGEST);
    return rc == SQLITE_OK ? sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL) : rc;
}

/* SQLite compiles a statement anew, unasked, when the definitions in the file have changed. */
static int authorize(void *arg, int action, const char *a, const char *b, const char *schema,
                     const char *trigger) {
    (void)action;
    (void)a;
    (void)b;
    (void)schema;
    (void)trigger;
    dli_connection_t *c = arg;
    if (c->compiling || !c->looked) {
        return SQLITE_OK;
    }
    c->stale = true;
    return SQLITE_DENY;
}

/* What is committed or rolled back is so whatever the time. SQLite asks the guard once more when a statement
 * is done: it must not hear then that it was interrupted. */
static void set_ending(bool ending) {
    dli_guard_t *guard = dli_guard_here();
    if (guard != NULL) {
        guard->ending = ending;
    }
}

static int note_commit(void *unused) {
    (void)unused;
    set_ending(true);
    return 0;
}

int dli_connection_open(dli_connection_t *c, void *arg) {
    dli_store_t *store = c->store = arg;
    /* The turn stands for SQLite's own mutex. A cache that a program has its connections share (see
     * sqlite3_enable_shared_cache) would make calls and renewals one connection to the file. */
    int rc = sqlite3_open_v2(store->place.path, &c->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE,
                             dli_guard_vfs);
    if (rc == SQLITE_CANTOPEN && sqlite3_system_errno(c->db) == EACCES) {
        rc = SQLITE_PERM;
    }
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(c->db, 1);
        sqlite3_busy_timeout(c->db, 0);
        /* Closing leaves the log alone, above all that of a file which turns out not to be ours. */
        sqlite3_db_config(c->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        sqlite3_progress_handler(c->db, STEPS_BETWEEN_LOOKS, dli_guard_progress, NULL);
        sqlite3_commit_hook(c->db, note_commit, NULL);
        sqlite3_set_authorizer(c->db, authorize, c);
        /* Takes the place of SQLite's own checkpoints, see dli_checkpoint. */
        sqlite3_wal_hook(c->db, note_wal_frames, store);
        atomic_store(&store->wal_limit, WAL_LIMIT);
        rc = switch_off(c->db);
    }
    if (rc == SQLITE_OK) {
        rc = add_functions(c);
    }
    if (rc != SQLITE_OK) {
        dli_connection_close(c);
    }
    return rc;
}

void dli_connection_forget(dli_connection_t *c) {
    for (int i = 0; i < DLI_SQL_COUNT; i++) {
        sqlite3_finalize(c->statements[i]);
        c->statements[i] = NULL;
    }
    c->looked = c->stale = false;
}

void dli_connection_close(dli_connection_t *c) {
    dli_connection_forget(c);
    /* Cannot be refused: no statement is left. */
    sqlite3_close(c->db);
    c->db = NULL;
}

/* ---- statements ------------------------------------------------------------------------------------- */

static int compile(dli_connection_t *c, const char *text, unsigned flags, sqlite3_stmt **statement) {
    c->compiling = true;
    int rc = sqlite3_prepare_v3(c->db, text, -1, flags, statement, NULL);
    c->compiling = false;
    return rc;
}

int dli_connection_prepare(dli_connection_t *c, const char *text, sqlite3_stmt **statement) {
    c->now_ns = 0;
    return compile(c, text, 0, statement);
}

int dli_connection_ask(dli_connection_t *c, const char *sql, int64_t *number, char *text, size_t size) {
    sqlite3_stmt *s = NULL;
    int rc = dli_connection_prepare(c, sql, &s);
    if (rc != SQLITE_OK) {
        return rc;
    }
    if (sqlite3_step(s) == SQLITE_ROW) {
        const char *found = text != NULL ? (const char *)sqlite3_column_text(s, 0) : NULL;
        if (found != NULL) {
            snprintf(text, size, "%s", found);
        }
        if (number != NULL) {
            *number = sqlite3_column_int64(s, 0);
        }
    }
    return sqlite3_finalize(s);
}

int dli_connection_exec(dli_connection_t *c, const char *text) {
    c->compiling = true;
    int rc = sqlite3_exec(c->db, text, NULL, NULL, NULL);
    c->compiling = false;
    set_ending(false);
    return rc;
}

int dli_connection_statement(dli_connection_t *c, dli_sql_t which, sqlite3_stmt **statement) {
    int rc = SQLITE_OK;
    if (c->statements[which] == NULL) {
        rc = compile(c, dli_sql[which], SQLITE_PREPARE_PERSISTENT, &c->statements[which]);
    }
    c->now_ns = 0;
    c->token = 0;
    c->ceiling_for = 0;
    c->busy_ns = 0;
    *statement = c->statements[which];
    return rc;
}

int dli_connection_step(sqlite3_stmt *statement) {
    int rc = sqlite3_step(statement);
    while (rc == SQLITE_ROW) { /* some pragmas answer with a row */
        rc = sqlite3_step(statement);
    }
    /* The reset repeats the error of the step, if there was one. */
    int reset = sqlite3_reset(statement);
    set_ending(false);
    return rc == SQLITE_DONE ? reset : rc;
}

int dli_connection_do(dli_connection_t *c, dli_sql_t which) {
    sqlite3_stmt *statement;
    int rc = dli_connection_statement(c, which, &statement);
    set_ending(which == DLI_SQL_ROLLBACK);
    return rc == SQLITE_OK ? dli_connection_step(statement) : rc;
}

/* Ends a transaction whose own end failed, or whose beginning was interrupted: it would keep every other
 * process out, and what came after it in this one would never be committed. SQLite's result. */
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
    return dli_stop_wait(env, limits.stop, until_ns) ? DL_ECANCELED : DL_OK;
}

static const char too_busy[] = "this process is too busy with the lock file";
static const char kept_busy[] = "another process keeps the lock file busy (dlock check names it):";
static const char too_slow[] = "what is in the lock file takes longer than there was time for:";

static dl_status_t gave_up(const dli_store_t *store, dl_status_t status, const char *why, dl_error_t *err) {
    if (status == DL_ECANCELED) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "cancelled while the lock file was busy");
    }
    return dl_driver_fail(err, DL_EIO, SQLITE_BUSY, "%s %s", why, dli_place_text(&store->place));
}

static bool is_busy(dli_guard_t *guard, int rc) {
    bool leased = guard->leased;
    guard->leased = false;
    /* SQLITE_PROTOCOL is a busy file too: the race for its shared memory was lost too often. After
     * SQLITE_AUTH the definitions are looked at again. */
    return (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_PROTOCOL || rc == SQLITE_AUTH ||
           (leased && (rc & 0xff) == SQLITE_CANTOPEN);
}

/* The guard has ended it, and nothing was done. */
static bool was_ended(const dli_guard_t *guard, int rc) {
    return guard->over && ((rc & 0xff) == SQLITE_INTERRUPT || rc == SQLITE_IOERR_READ);
}

dl_status_t dli_connection_retry(dli_connection_t *c, dli_attempt_fn attempt, void *arg, dli_limits_t limits,
                                 dl_error_t *err) {
    dli_guard_t *guard = dli_guard_here();
    for (unsigned tries = 0;; tries++) {
        int rc = attempt(c, arg);
        if (rc == SQLITE_OK) {
            return DL_OK;
        }
        if (was_ended(guard, rc)) {
            return gave_up(c->store, DL_EIO, too_slow, err);
        }
        if (guard->replaced || !is_busy(guard, rc)) {
            return dli_connection_fail(c->store, guard->replaced ? DLI_RC_MOVED : rc, false, err);
        }
        dl_status_t status = pause_briefly(c->store->env, tries, limits);
        if (status != DL_OK) {
            return gave_up(c->store, status, kept_busy, err);
        }
    }
}

/* ---- is it all still there? ------------------------------------------------------------------------- */

bool dli_store_stat(const dli_store_t *store, dli_part_t part, struct stat *file) {
    static const char *const endings[] = {[DLI_MAIN] = "", [DLI_LOG] = "-wal", [DLI_INDEX] = "-shm"};
    char name[DLI_PATH_LIMIT + 8];
    snprintf(name, sizeof name, "%s%s", store->place.name, endings[part]);
    return fstatat(store->place.folder, name, file, AT_SYMLINK_NOFOLLOW) == 0;
}

bool dli_store_stat_folder(const dli_store_t *store, struct stat *folder) {
    char path[DLI_PATH_LIMIT + 1];
    size_t len = (size_t)(store->place.name - store->place.path);
    memcpy(path, store->place.path, len);
    path[len] = '\0';
    return stat(path, folder) == 0;
}

/* With errno, if it is not there. In another root directory the path means nothing. */
static int compare(const dli_store_t *store, bool is_there, const struct stat *now, dli_file_id_t id) {
    struct stat root;
    if (is_there && dli_file_is(now, id)) {
        return SQLITE_OK;
    }
    if (!is_there && errno != ENOENT && errno != ENOTDIR) {
        return DLI_RC_HIDDEN;
    }
    return stat("/", &root) == 0 && dli_file_is(&root, store->root) ? DLI_RC_MOVED : DLI_RC_HIDDEN;
}

static int look_at_folder(const dli_store_t *store, struct stat *now) {
    return compare(store, dli_store_stat_folder(store, now), now, store->folder);
}

static int look_at_parts(const dli_store_t *store) {
    struct stat now;
    int rc = SQLITE_OK;
    for (dli_part_t part = DLI_MAIN; part < DLI_PARTS && rc == SQLITE_OK; part++) {
        rc = compare(store, dli_store_stat(store, part, &now), &now, store->parts[part]);
    }
    return rc;
}

int dli_store_look(const dli_store_t *store) {
    struct stat now;
    int rc = look_at_folder(store, &now);
    return rc == SQLITE_OK ? look_at_parts(store) : rc;
}

/* No name in a folder changes without the time of its change. */
bool dli_seen_is_same(dli_seen_t *seen, const struct stat *folder, const dl_driver_env_t *env) {
    const struct timespec *changed = &folder->st_ctim;
    bool same = changed->tv_sec == seen->changed.tv_sec && changed->tv_nsec == seen->changed.tv_nsec;
    if (same && seen->settled) {
        return true;
    }
    uint64_t now_ns = env->now_ns();
    if (!same) {
        seen->changed = *changed;
        seen->changed_ns = now_ns;
    }
    uint64_t apart_ns = changed->tv_nsec % NS_PER_MS != 0 ? TICKS_APART_NS : CHANGES_APART_NS;
    seen->settled = same && now_ns - seen->changed_ns >= apart_ns;
    return false;
}

/* The same at the price of one look, at the folder. Who frees looks at the one that is open. */
static int look_again(dli_connection_t *c, bool frees) {
    struct stat now;
    bool is_open = frees && fstat(c->store->place.folder, &now) == 0;
    int rc = is_open ? SQLITE_OK : look_at_folder(c->store, &now);
    if (rc != SQLITE_OK) {
        return rc;
    }
    if (dli_seen_is_same(&c->seen, &now, c->store->env)) {
        return SQLITE_OK;
    }
    rc = look_at_parts(c->store);
    c->seen.settled &= rc == SQLITE_OK;
    return rc;
}

/* ---- an attempt ------------------------------------------------------------------------------------- */

int dli_connection_attempt(dli_connection_t *c, dli_attempt_fn attempt, void *arg, bool frees) {
    int rc = end_left_over(c);
    if (rc == SQLITE_OK) {
        rc = look_again(c, frees);
        if (rc != SQLITE_OK) {
            return rc;
        }
    }
    if (rc == SQLITE_OK && (!c->looked || c->stale)) {
        rc = dli_schema_look(c);
    }
    if (rc == SQLITE_OK) {
        rc = attempt(c, arg);
    }
    if (rc != SQLITE_OK) {
        (void)end_left_over(c);
    }
    return rc != SQLITE_OK && c->stale ? SQLITE_AUTH : rc;
}

dl_status_t dli_connection_run(dli_connection_t *c, dli_attempt_fn attempt, void *arg, dli_limits_t limits,
                               int *rc, dl_error_t *err) {
    const dl_driver_env_t *env = c->store->env;
    for (unsigned tries = 0;; tries++) {
        dl_status_t status = dli_turn_take(&c->turn, env, limits.deadline_ns, limits.stop);
        if (status != DL_OK) {
            return gave_up(c->store, status, too_busy, err);
        }
        dli_guard_t guard;
        dli_guard_enter(&guard, c->store, limits);
        *rc = dli_connection_attempt(c, attempt, arg, limits.frees);
        dli_guard_leave();
        dli_turn_give(&c->turn, env);
        env->count(env->core, DL_COUNT_ROUND_TRIP, 1);
        if (was_ended(&guard, *rc)) {
            return gave_up(c->store, guard.stopped ? DL_ECANCELED : DL_EIO, too_slow, err);
        }
        if (!is_busy(&guard, *rc)) {
            return DL_OK;
        }
        status = pause_briefly(env, tries, limits);
        if (status != DL_OK) {
            return gave_up(c->store, status, kept_busy, err);
        }
    }
}

/* ---- the write-ahead log ---------------------------------------------------------------------------- */

/*
 * The log is copied into the file while we hold the write lock, by the other connection. SQLite before
 * 3.51.3 can lose pages when a writer begins the log anew at the very moment another connection starts a
 * checkpoint; with the write lock held nobody can.
 */
static void checkpoint(dli_store_t *store) {
    sqlite3_stmt *unused;
    if (!store->calls.looked || !store->renewals.looked || end_left_over(&store->calls) != SQLITE_OK ||
        dli_store_look(store) != SQLITE_OK) {
        return;
    }
    if (dli_connection_do(&store->calls, DLI_SQL_BEGIN) != SQLITE_OK) {
        (void)end_left_over(&store->calls);
        return;
    }
    /* A connection that has read nothing yet knows of no log; preparing reads the schema. */
    if (dli_connection_statement(&store->renewals, DLI_SQL_RENEW, &unused) == SQLITE_OK) {
        (void)sqlite3_wal_checkpoint_v2(store->renewals.db, "main", SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    }
    /* The next writer begins the log anew, unless a reader is in the way; then not again at once. */
    atomic_store(&store->wal_limit, atomic_load(&store->wal_frames) + WAL_LIMIT);
    (void)dli_connection_do(&store->calls, DLI_SQL_ROLLBACK);
}

void dli_checkpoint(dli_store_t *store, int times, dli_limits_t limits) {
    if (atomic_load(&store->wal_frames) < atomic_load(&store->wal_limit) * times) {
        return;
    }
    if (!dli_turn_try(&store->calls.turn)) {
        return;
    }
    if (dli_turn_try(&store->renewals.turn)) {
        dli_guard_t guard;
        dli_guard_enter(&guard, store, limits);
        checkpoint(store);
        dli_guard_leave();
        dli_turn_give(&store->renewals.turn, store->env);
    }
    dli_turn_give(&store->calls.turn, store->env);
}
