/* driver.c - the SQLite driver's table, and opening and closing a lock file. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST_SQLITE 3031000
/* Pages: read in a third of a millisecond. */
#define LOG_LEFT 256

static const dl_option_t options[] = {
    [DLI_SQLITE_OPT_PATH] = {.name = "path",
                             .type = DL_OPTION_STRING,
                             .help = "The lock file: an absolute path, on a filesystem of this host alone; "
                                     "unset: the user's own, "
                                     "$XDG_STATE_HOME/dlock/locks.db (root: /var/lib/dlock/locks.db)"},
    [DLI_SQLITE_OPT_CREATE] = {.name = "create",
                               .type = DL_OPTION_BOOL,
                               .default_text = "true",
                               .help = "Make the file when it is missing, for its owner alone (mode 0600)"},
    {.name = NULL},
};

/* A program may have set it to be without (SQLITE_CONFIG_SINGLETHREAD): all its mutexes are one then. */
static bool has_threads(void) {
    return sqlite3_threadsafe() != 0 &&
           sqlite3_mutex_alloc(SQLITE_MUTEX_STATIC_APP1) != sqlite3_mutex_alloc(SQLITE_MUTEX_STATIC_APP2);
}

/* What can be known before a database is touched. */
static dl_status_t prepare(dli_store_t *store, const dl_option_value_t *values, bool *made, dl_error_t *err) {
    if (sqlite3_libversion_number() < OLDEST_SQLITE || !has_threads()) {
        return dl_driver_fail(err, DL_ENOTSUP, 0,
                              "SQLite %s is too old, or was built, or set, to be without threads",
                              sqlite3_libversion());
    }
    dl_status_t status = dli_host_identify(store->boot, sizeof store->boot, &store->offset_ns, err);
    if (status == DL_OK) {
        status = dli_place_provide(store->env, values, &store->place, made, err);
    }
    if (status == DL_OK) {
        status = dli_wake_open(store, err);
    }
    return status;
}

/* Notes which file it is that the connection has opened. */
static int identify(dli_store_t *store) {
    struct stat root, folder, file;
    int moved = 1;
    if (stat("/", &root) != 0 || !dli_store_stat_folder(store, &folder) ||
        !dli_store_stat(store, DLI_MAIN, &file)) {
        return DLI_RC_MOVED;
    }
    store->root = dli_file_id(&root);
    store->folder = dli_file_id(&folder);
    store->parts[DLI_MAIN] = dli_file_id(&file);
    store->user = file.st_uid;
    store->group = file.st_gid;
    /* Last: had another one come to the path by now, it could be the one that was looked at. */
    int rc = sqlite3_file_control(store->calls.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    return rc == SQLITE_OK && moved ? DLI_RC_MOVED : rc;
}

/* And which index of the log; files.c has noted the rest. Where the program itself has the file open by
 * SQLite, that has opened the index for all of the process. */
static int identify_index(dli_store_t *store) {
    struct stat file;
    if (!dli_store_stat(store, DLI_INDEX, &file)) {
        return DLI_RC_MOVED;
    }
    dli_file_id_t noted = dli_files_index(store->parts[DLI_MAIN]);
    store->parts[DLI_INDEX] = noted.ino != 0 ? noted : dli_file_id(&file);
    return dli_file_is(&file, store->parts[DLI_INDEX]) ? SQLITE_OK : DLI_RC_MOVED;
}

static int look_once(dli_connection_t *c, void *unused) {
    (void)unused;
    int rc = dli_schema_look(c);
    return rc == SQLITE_OK ? identify_index(c->store) : rc;
}

/* With both turns held. */
static dl_status_t open_both(dli_store_t *store, dli_limits_t limits, bool *made, dl_error_t *err) {
    dl_status_t status = dli_connection_retry(&store->calls, dli_connection_open, store, limits, err);
    if (status != DL_OK) {
        return status;
    }
    int rc = identify(store);
    if (rc == SQLITE_OK && sqlite3_db_readonly(store->calls.db, "main") != 0) {
        rc = SQLITE_READONLY;
    }
    if (rc != SQLITE_OK) {
        return dli_connection_fail(store, rc, false, err);
    }
    status = dli_schema_provide(store, limits, made, err);
    if (status == DL_OK) {
        status = dli_connection_retry(&store->renewals, dli_connection_open, store, limits, err);
    }
    if (status == DL_OK) {
        status = dli_connection_retry(&store->renewals, look_once, NULL, limits, err);
    }
    return status == DL_OK ? dli_tokens_adopt(store, limits, err) : status;
}

/* Opens the file; `made` says whether it or its tables had to be made. */
static dl_status_t open_store(dli_store_t *store, const dl_option_value_t *values, const dl_driver_env_t *env,
                              uint64_t deadline_ns, bool *made, dl_error_t *err) {
    store->env = env;
    dli_turn_init(&store->calls.turn);
    dli_turn_init(&store->renewals.turn);
    atomic_flag_clear(&store->sweeping);
    unsigned random = 0;
    (void)env->random(&random, sizeof random);
    atomic_store(&store->acquired, random); /* clients that take one lock each sweep too */
    dl_status_t status = prepare(store, values, made, err);
    if (status == DL_OK) {
        status = dli_forks_enter(store, err);
    }
    if (status == DL_OK) {
        dli_limits_t limits = {.deadline_ns = deadline_ns};
        dli_guard_t guard;
        dli_guard_enter(&guard, store, limits);
        status = dli_guard_install(err);
        if (status == DL_OK) {
            status = open_both(store, limits, made, err);
        }
        dli_guard_leave();
        dli_forks_opened(store);
    }
    return status;
}

static dl_status_t open_file(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                             uint64_t deadline_ns, dl_error_t *err) {
    bool made;
    return open_store(state, values, env, deadline_ns, &made, err);
}

static void close_both(dli_store_t *store) {
    dli_guard_t guard;
    uint64_t deadline_ns = store->env->now_ns() + (uint64_t)store->env->call_timeout_ms * NS_PER_MS;
    dli_guard_enter(&guard, store, (dli_limits_t){.deadline_ns = deadline_ns});
    /* The last one to close a file copies its log, which takes two syncs, and otherwise leaves the log
     * to the next one to open it, which has to read it. A short log is read faster. A log that nobody else
     * sees is not copied over what they have written since. */
    if (atomic_load(&store->wal_frames) >= LOG_LEFT && dli_store_look(store) == SQLITE_OK) {
        sqlite3_db_config(store->calls.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    }
    dli_connection_close(&store->renewals);
    dli_connection_close(&store->calls);
    dli_guard_leave();
}

static void close_file(void *state, int forked) {
    dli_store_t *store = state;
    if (store->env == NULL) {
        return;
    }
    dli_wake_close(store, forked);
    dli_forks_leave(store, forked, close_both);
    dli_folder_close(&store->place);
    store->env = NULL;
}

static void describe(void *state, char *text, size_t size) {
    const dli_store_t *store = state;
    snprintf(text, size, "SQLite %s, %s", sqlite3_libversion(),
             store->place.path != NULL ? dli_place_text(&store->place) : "not open");
}

static dl_status_t print_plan(const dl_option_value_t *values, const dl_driver_env_t *env, dl_finding_fn fn,
                              void *arg, dl_error_t *err) {
    char path[PATH_MAX], text[1024];
    const char *name;
    dl_status_t status = dli_place_name(env, values, path, sizeof path, &name, err);
    if (status != DL_OK) {
        return status;
    }
    snprintf(text, sizeof text, "would make %.900s (mode 0600) unless it is there, and fill it by", name);
    fn(arg, DL_FINDING_NOTE, "file", text);
    for (const char *line = dli_sql_schema; *line != '\0'; line += strcspn(line, "\n") + 1) {
        snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
        fn(arg, DL_FINDING_NOTE, "sql", text);
    }
    fn(arg, DL_FINDING_NOTE, "sql", "PRAGMA journal_mode = WAL;");
    return DL_OK;
}

static dl_status_t init(const dl_option_value_t *values, const dl_driver_env_t *env, unsigned flags,
                        dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    if ((flags & DL_INIT_PRINT) != 0) {
        return print_plan(values, env, fn, arg, err);
    }
    dli_store_t *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dl_option_value_t always[] = {
        [DLI_SQLITE_OPT_PATH] = values[DLI_SQLITE_OPT_PATH],
        [DLI_SQLITE_OPT_CREATE] = {.is_set = 1, .number = 1},
    };
    char text[1024];
    bool made = false;
    dl_status_t status = open_store(store, always, env, deadline_ns, &made, err);
    if (status == DL_OK) {
        snprintf(text, sizeof text, "%s %.900s", made ? "made the lock file" : "nothing to do: ready is",
                 dli_place_text(&store->place));
        fn(arg, DL_FINDING_OK, "file", text);
        /* Closing leaves nothing beside the file: what it has for a mode and a group, it may be given now. */
        atomic_store(&store->wal_frames, LOG_LEFT);
    }
    close_file(store, 0);
    free(store);
    return status;
}

const dl_driver_t dli_sqlite_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "sqlite",
    .summary = "a file on this host, no server: locks between the processes of one machine",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY,
    .state_size = sizeof(dli_store_t),
    .options = options,
    .open = open_file,
    .close = close_file,
    .try_acquire = dli_sqlite_try_acquire,
    .release = dli_sqlite_release,
    .renew = dli_sqlite_renew,
    .watch = dli_sqlite_watch,
    .listen = dli_sqlite_listen,
    .unwatch = dli_sqlite_unwatch,
    .listen_fds = dli_sqlite_listen_fds,
    .inspect = dli_sqlite_inspect,
    .force_release = dli_sqlite_force_release,
    .list = dli_sqlite_list,
    .describe = describe,
    .check = dli_sqlite_check,
    .init = init,
};
