/* store.h - what the files of the SQLite driver share: one opened file with its two connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_SQLITE_STORE_H
#define DLI_SQLITE_STORE_H

#include <limits.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "dlock/driver.h"
#include "sqlite.h"
#include "statements.h"

/* SQLite takes 512 bytes and adds endings to the name. */
#define DLI_PATH_LIMIT 480

/*
 * The locks of this driver, in the order in which they are taken:
 *   forks.c's list   ->   turn of the calls   ->   turn of the renewals   ->   a turn's own mutex
 * wake.c's mutex stands alone. Of the functions of the environment that lead into the core, woken is called
 * with that one held; report and count with none of them.
 */

#define NS_PER_MS 1000000
#define NS_PER_US 1000

/* ---- turn.c: a lock with a deadline ----------------------------------------------------------------- */

typedef struct dli_waiter {
    pthread_cond_t cond;
    bool queued; /* false: it came too late for its turn, and has to queue again */
    uint64_t since_ns;
    struct dli_waiter *next;
} dli_waiter_t;

typedef struct dli_turn {
    pthread_mutex_t mutex;
    bool taken;
    uint64_t kept_until_ns; /* a free turn is the first waiter's, if there is one, until then; 0: anybody's */
    dli_waiter_t *first, *last;
} dli_turn_t;

void dli_turn_init(dli_turn_t *turn);
/* DL_OK, DL_ETIMEDOUT, or DL_ECANCELED when a descriptor of `stop` (may be NULL) is readable. A free turn is
 * taken even after the deadline. */
dl_status_t dli_turn_take(dli_turn_t *turn, const dl_driver_env_t *env, uint64_t deadline_ns,
                          const dl_stop_t *stop);
/* Takes it if it is free, and kept for nobody. */
bool dli_turn_try(dli_turn_t *turn);
void dli_turn_give(dli_turn_t *turn, const dl_driver_env_t *env);

/* ---- connection.c: one connection to the file ------------------------------------------------------- */

struct dli_store;

/* What is known of the names in a folder from the last look at them. */
typedef struct dli_seen {
    struct timespec changed; /* when the folder was changed last */
    uint64_t changed_ns;     /* when that was seen first */
    bool settled;            /* any further change has another time */
} dli_seen_t;

/* True: nothing has changed since the look that settled it. Otherwise whoever asks looks now, and clears
 * `settled` again if it may not rely on what it finds. */
bool dli_seen_is_same(dli_seen_t *seen, const struct stat *folder, const dl_driver_env_t *env);

/* Everything but `turn` belongs to whoever has the turn. */
typedef struct dli_connection {
    dli_turn_t turn;
    sqlite3 *db;
    sqlite3_stmt *statements[DLI_SQL_COUNT];
    struct dli_store *store;
    bool looked;    /* the definitions in the file are ours; nothing is compiled unasked from here on */
    bool compiling; /* asked */
    bool stale;     /* there was something to compile: the definitions have changed */
    /* What the SQL functions leave behind; cleared before every step. */
    uint64_t now_ns;      /* the statement's one instant; 0: not read yet */
    uint64_t token;       /* drawn by dl_token: the first */
    uint64_t ceiling_for; /* dl_token failed because this token would pass the ceiling; 0: it did not */
    int64_t busy_ns;      /* noted by dl_busy: when the holder's lease ends */
    dli_seen_t seen;      /* the file, and what SQLite keeps beside it */
} dli_connection_t;

/* ---- place.c: where the file is --------------------------------------------------------------------- */

typedef struct dli_place {
    char *path;       /* resolved, absolute; NULL: none yet, and no descriptor */
    const char *name; /* in it: the file's own */
    int folder;       /* the folder, opened with O_PATH: what else is opened or made is named from here */
    char *written;    /* the option, where it has variables in it; else NULL */
} dli_place_t;

/* The path for messages, which show no variable's value. */
static inline const char *dli_place_text(const dli_place_t *place) {
    return place->written != NULL ? place->written : place->path;
}

/* ---- driver.c: the state ---------------------------------------------------------------------------- */

/* The file, and what SQLite keeps beside it for as long as somebody has it open. */
typedef enum dli_part { DLI_MAIN, DLI_LOG, DLI_INDEX, DLI_PARTS } dli_part_t;

typedef struct dli_file_id {
    dev_t dev;
    ino_t ino;
} dli_file_id_t;

static inline bool dli_file_id_is(dli_file_id_t one, dli_file_id_t other) {
    return one.dev == other.dev && one.ino == other.ino;
}

static inline dli_file_id_t dli_file_id(const struct stat *file) {
    return (dli_file_id_t){.dev = file->st_dev, .ino = file->st_ino};
}

static inline bool dli_file_is(const struct stat *file, dli_file_id_t id) {
    return file->st_dev == id.dev && file->st_ino == id.ino;
}

typedef struct dli_wake dli_wake_t;
typedef struct dli_fork_node dli_fork_node_t;

typedef struct dli_store {
    const dl_driver_env_t *env; /* NULL: never opened */
    dli_place_t place;
    dli_file_id_t root, folder, parts[DLI_PARTS]; /* what was opened; ino 0: not known yet */
    uid_t user;
    gid_t group;
    char boot[64];          /* which boot of the host this is */
    int64_t offset_ns;      /* this time namespace's CLOCK_BOOTTIME minus the host's */
    int64_t token_base_us;  /* token = base + microseconds since boot */
    uint64_t token_ceiling; /* no token reaches it; belongs to the turn of the calls */
    dli_connection_t calls, renewals;
    atomic_int wal_frames; /* length of the write-ahead log after the last commit */
    atomic_int wal_limit;  /* checkpoint when it is longer */
    dli_wake_t *wake;
    dli_fork_node_t *fork_node;
    atomic_uint acquired; /* counts towards the next sweep */
    atomic_flag sweeping;
    bool swept;        /* the cursor is set */
    size_t cursor_len; /* where the next sweep begins; belongs to who set `sweeping` */
    unsigned char cursor[DL_NAME_MAX + 1];
} dli_store_t;

/* The host's CLOCK_BOOTTIME, the same in every time namespace. */
static inline uint64_t dli_store_now(const dli_store_t *store) {
    return store->env->now_ns() - (uint64_t)store->offset_ns;
}

/* What is left of a lease in ms, rounded up; -1 for what no lease can be: then nobody knows. */
static inline int64_t dli_store_ms(int64_t left_ns) {
    return left_ns < 0 ? -1 : left_ns / NS_PER_MS + (left_ns % NS_PER_MS != 0);
}

/* ---- connection.c ----------------------------------------------------------------------------------- */

/* More result codes of an attempt, outside SQLite's range. */
#define DLI_RC_MOVED (-1)   /* the file, or what is beside it, is not at its path any more */
#define DLI_RC_HIDDEN (-3)  /* nobody lets us look whether it is */
#define DLI_RC_FOREIGN (-2) /* the file has definitions that are not ours */

/* One attempt with the turn held. SQLITE_BUSY means that nothing was done, and it is made again. */
typedef int (*dli_attempt_fn)(dli_connection_t *c, void *arg);

/* How far an attempt may go, and how long. */
typedef struct dli_limits {
    uint64_t deadline_ns;
    const dl_stop_t *stop; /* may be NULL */
    bool frees;            /* a hold, which is in the folder that is open, wherever that is by now */
} dli_limits_t;

/* An attempt to open and set up, for this store; the file exists. */
int dli_connection_open(dli_connection_t *c, void *store);
void dli_connection_close(dli_connection_t *c);
/* Drops what is compiled: the definitions are looked at again before the next use. */
void dli_connection_forget(dli_connection_t *c);

/* Makes one, with the turn held and a guard entered. Its result, or that of what comes before it:
 * DLI_RC_MOVED where the file is not at its path any more, or others have another log by now; or
 * DLI_RC_HIDDEN. */
int dli_connection_attempt(dli_connection_t *c, dli_attempt_fn attempt, void *arg, bool frees);
/* Runs `attempt` until the file is not busy. DL_OK: it ended with *rc. Otherwise nothing was done: DL_EIO
 * at the deadline, DL_ECANCELED; err is filled. */
dl_status_t dli_connection_run(dli_connection_t *c, dli_attempt_fn attempt, void *arg, dli_limits_t limits,
                               int *rc, dl_error_t *err);
/* The same with the turn held and a guard entered, and nothing before the attempt; another result is a
 * failure. */
dl_status_t dli_connection_retry(dli_connection_t *c, dli_attempt_fn attempt, void *arg, dli_limits_t limits,
                                 dl_error_t *err);
/* Compiles and runs a text without parameters, or compiles a statement, to be finalized. SQLite's result. */
int dli_connection_exec(dli_connection_t *c, const char *text);
int dli_connection_prepare(dli_connection_t *c, const char *text, sqlite3_stmt **statement);
/* What the first row of a statement without parameters has first, as a number or a text; either may be NULL.
 * SQLite's result. */
int dli_connection_ask(dli_connection_t *c, const char *sql, int64_t *number, char *text, size_t size);
/* The statement, prepared at its first use, reset, the notes cleared, ready for binding. SQLite's result. */
int dli_connection_statement(dli_connection_t *c, dli_sql_t which, sqlite3_stmt **statement);
/* Steps a statement without rows to its end and resets it. SQLITE_OK, or what went wrong. */
int dli_connection_step(sqlite3_stmt *statement);
/* The same for a statement without parameters. */
int dli_connection_do(dli_connection_t *c, dli_sql_t which);
/* Copies the log into the file once it is `times` as long as wanted. Best effort; no turn is held. */
void dli_checkpoint(dli_store_t *store, int times, dli_limits_t limits);
/* false: it is not there. */
bool dli_store_stat(const dli_store_t *store, dli_part_t part, struct stat *file);
bool dli_store_stat_folder(const dli_store_t *store, struct stat *folder);
/* SQLITE_OK: the file at the path is the one that was opened, with the log that it was opened with;
 * DLI_RC_MOVED, DLI_RC_HIDDEN. */
int dli_store_look(const dli_store_t *store);

/* ---- guard.c: what SQLite does for us ends in time ---------------------------------------------------- */

/* The name of our variant of SQLite's "unix" VFS. */
extern const char dli_guard_vfs[];

/* While one is entered, SQLite in this thread works for us: no longer than the limits say, and only on the
 * files of this store. On the stack of whoever uses a connection; one a thread. */
typedef struct dli_guard {
    dli_store_t *store;
    dli_limits_t limits;
    uint64_t until_ns, look_ns;
    bool over;     /* the time was up, or somebody stopped it */
    bool stopped;  /* the latter */
    bool ending;   /* a transaction is being committed or rolled back, which is done whatever the time */
    bool leased;   /* an owner has a lease (fcntl) on what was to be opened; until the next try */
    bool replaced; /* another file is where one was to be opened that the process has open; it was not */
    int made;      /* files.c: the file that was made last; -1: none */
} dli_guard_t;

/* Once a process. */
dl_status_t dli_guard_install(dl_error_t *err);
void dli_guard_enter(dli_guard_t *guard, dli_store_t *store, dli_limits_t limits);
void dli_guard_leave(void);
/* This thread's, or NULL. */
dli_guard_t *dli_guard_here(void);
/* The time is up, or somebody stopped it. */
bool dli_guard_ended(dli_guard_t *guard);
/* Waits until then, or until somebody stops it (NULL: nobody can), which is true. */
bool dli_stop_wait(const dl_driver_env_t *env, const dl_stop_t *stop, uint64_t until_ns);
/* For sqlite3_progress_handler. */
int dli_guard_progress(void *unused);

/* ---- files.c: which files SQLite may open and delete for us ------------------------------------------- */

/* Puts ours in the place of SQLite's system calls; false: this SQLite cannot have that. */
bool dli_files_install(sqlite3_vfs *unix_vfs);
/* The index that this process uses with the file; ino 0: none. Any thread. */
dli_file_id_t dli_files_index(dli_file_id_t file);
/* Around fork(): last before it, first after it. */
void dli_files_before_fork(void);
void dli_files_after_fork(bool in_child);

/* ---- folder.c: the folder of the file ----------------------------------------------------------------- */

/* Opens the folder of `path` and finds out the file's resolved path; the file may be missing. To be closed.
 * `text` is the path for messages. */
dl_status_t dli_folder_open(const char *path, const char *text, dli_place_t *place, dl_error_t *err);
void dli_folder_close(dli_place_t *place);

/* ---- place.c ---------------------------------------------------------------------------------------- */

/* The path that the option means (none or "": the user's own), not yet resolved, in `path`; *text is the one
 * for messages. */
dl_status_t dli_place_name(const dl_driver_env_t *env, const dl_option_value_t *values, char *path,
                           size_t size, const char **text, dl_error_t *err);
/* Makes sure that there is a file, on a filesystem of this host: makes an empty one, mode 0600, if the
 * options say so, which *made says. What it finds is to be closed, also after a failure. */
dl_status_t dli_place_provide(const dl_driver_env_t *env, const dl_option_value_t *values, dli_place_t *place,
                              bool *made, dl_error_t *err);
/* DL_ENOTSUP when the filesystem is not one of this host alone. `type` receives its name. */
dl_status_t dli_place_local(const dli_place_t *place, char *type, size_t size, dl_error_t *err);
/* Can what lies beside the lock file be this user's? Not of a stranger who may not write the lock file. */
bool dli_place_may_own(const dli_place_t *place, uid_t user);
/* Why a filesystem with this magic number and mount type is not accepted; NULL: it is. */
const char *dli_place_refused(unsigned long magic, const char *mount_type);

/* ---- errors.c --------------------------------------------------------------------------------------- */

/* The status for a result code other than SQLITE_OK, with err filled. `maybe_done`: the request may have
 * been carried out all the same. */
dl_status_t dli_connection_fail(const dli_store_t *store, int rc, bool maybe_done, dl_error_t *err);

/* ---- host.c: which boot, which clock ---------------------------------------------------------------- */

dl_status_t dli_host_identify(char *boot, size_t size, int64_t *offset_ns, dl_error_t *err);
/* Somebody has put a boot id of its own over the kernel's, as some containers are given one. */
bool dli_host_own_boot(void);
/* The process that holds the write lock of the database at `path` right now; 0: none that can be seen.
 * Expensive for the whole host. */
long dli_host_writer(const char *path);

/* ---- schema.c: what is in the file ------------------------------------------------------------------ */

/* Refuses what is not ours without changing it; fills an empty file. */
dl_status_t dli_schema_provide(dli_store_t *store, dli_limits_t limits, bool *made, dl_error_t *err);
/* Sets the connection up and looks at the definitions that its statements will be compiled by. SQLITE_OK:
 * they are ours, and whatever SQLite would compile by others from here on fails, and sets `stale`. SQLite's
 * result, or DLI_RC_FOREIGN. */
int dli_schema_look(dli_connection_t *c);

/* ---- tokens.c: where fencing tokens come from ------------------------------------------------------- */

/* A larger one is nothing that this driver has drawn. */
#define DLI_TOKEN_MAX ((uint64_t)INT64_MAX / 2)

/* Makes this boot the file's boot: everything that was held is free. */
dl_status_t dli_tokens_adopt(dli_store_t *store, dli_limits_t limits, dl_error_t *err);
/* Raises the ceiling above `token`, durably. With the turn held. SQLite's result. */
int dli_tokens_raise(dli_connection_t *c, uint64_t token);
/* The smallest token that a holder at this instant would get. */
uint64_t dli_tokens_at(const dli_store_t *store, uint64_t host_ns);

/* ---- wake.c: waking waiters ------------------------------------------------------------------------- */

dl_status_t dli_wake_open(dli_store_t *store, dl_error_t *err);
void dli_wake_close(dli_store_t *store, int forked);
/* Wakes everybody who waits for `name`, in any process. */
void dli_wake_all(dli_store_t *store, const char *name, size_t name_len);
dl_status_t dli_sqlite_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                             dl_error_t *err);
void dli_sqlite_listen(void *state, const struct pollfd *fds, size_t n);
void dli_sqlite_unwatch(void *state, dl_watch_t *watch);
size_t dli_sqlite_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns);

/* ---- wake_files.c: the files that waiters watch; one call at a time --------------------------------- */

typedef struct dli_wake_files {
    char *name;         /* of their folder, in that of the lock file */
    int folder;         /* O_PATH; -1: not opened yet */
    struct stat at;     /* which folder that is */
    dli_seen_t without; /* it is not there */
} dli_wake_files_t;

/* false: no memory. */
bool dli_wake_files_open(dli_wake_files_t *wake, const dli_store_t *store);
void dli_wake_files_close(dli_wake_files_t *wake);
/* Makes the bucket's file unless it is there, and says by which path it can be watched until the next call.
 * 0, or -1 with errno. */
int dli_wake_files_provide(dli_wake_files_t *wake, const dli_store_t *store, unsigned bucket, char *path,
                           size_t size);
/* Sets the times of the bucket's file. 0, or -1 with errno; ENOENT: nobody ever waited. */
int dli_wake_files_touch(dli_wake_files_t *wake, const dli_store_t *store, unsigned bucket);

/* ---- forks.c: fork() while connections are open ----------------------------------------------------- */

/* Notes that the store is about to open, with both turns held from here on. */
dl_status_t dli_forks_enter(dli_store_t *store, dl_error_t *err);
/* It is open, or could not be opened. Gives the turns. */
void dli_forks_opened(dli_store_t *store);
/* Closes what was entered; not in a child, where nothing of it is touched. */
void dli_forks_leave(dli_store_t *store, int forked, void (*close)(dli_store_t *store));

/* ---- the ops ---------------------------------------------------------------------------------------- */

dl_status_t dli_sqlite_try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                   dl_error_t *err);
dl_status_t dli_sqlite_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err);
void dli_sqlite_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns);
dl_status_t dli_sqlite_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                               dl_lock_info_t *info, dl_error_t *err);
dl_status_t dli_sqlite_force_release(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                     dl_error_t *err);
dl_status_t dli_sqlite_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                            uint64_t deadline_ns, dl_error_t *err);
dl_status_t dli_sqlite_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);

/* Indices into the driver's option table. */
enum { DLI_SQLITE_OPT_PATH, DLI_SQLITE_OPT_CREATE };

#endif
