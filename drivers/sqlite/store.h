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

/*
 * The locks of this driver, in the order in which they are taken:
 *   forks.c's list   ->   turn of the calls   ->   turn of the renewals   ->   a turn's own mutex
 * wake.c's mutex stands alone. No function of the environment that leads into the core (report, count) is
 * called with any of them held.
 */

#define NS_PER_MS 1000000
#define NS_PER_US 1000

/* ---- turn.c: a lock with a deadline ----------------------------------------------------------------- */

typedef struct dli_waiter {
    pthread_cond_t cond;
    bool granted; /* the turn was handed over */
    uint64_t since_ns;
    struct dli_waiter *next;
} dli_waiter_t;

typedef struct dli_turn {
    pthread_mutex_t mutex;
    bool taken;
    dli_waiter_t *first, *last;
} dli_turn_t;

void dli_turn_init(dli_turn_t *turn);
/* DL_OK, DL_ETIMEDOUT, or DL_ECANCELED when a descriptor of `stop` (may be NULL) is readable. A free turn is
 * taken even after the deadline. */
dl_status_t dli_turn_take(dli_turn_t *turn, const dl_driver_env_t *env, uint64_t deadline_ns,
                          const dl_stop_t *stop);
/* Takes it if it is free. */
bool dli_turn_try(dli_turn_t *turn);
void dli_turn_give(dli_turn_t *turn, const dl_driver_env_t *env);

/* ---- connection.c: one connection to the file ------------------------------------------------------- */

struct dli_store;

/* Everything but `turn` belongs to whoever has the turn. */
typedef struct dli_connection {
    dli_turn_t turn;
    sqlite3 *db;
    sqlite3_stmt *statements[DLI_SQL_COUNT];
    struct dli_store *store;
    /* What the SQL functions leave behind; cleared before every step. */
    uint64_t now_ns;      /* the statement's one instant; 0: not read yet */
    uint64_t token;       /* drawn by dl_token */
    uint64_t ceiling_for; /* dl_token failed because this token would pass the ceiling; 0: it did not */
    int64_t busy_ns;      /* noted by dl_busy: when the holder's lease ends */
} dli_connection_t;

/* ---- driver.c: the state ---------------------------------------------------------------------------- */

typedef struct dli_wake dli_wake_t;
typedef struct dli_fork_node dli_fork_node_t;

typedef struct dli_store {
    const dl_driver_env_t *env; /* NULL: never opened */
    char *path;                 /* resolved, absolute */
    dev_t dev;                  /* the file at `path` when it was opened */
    ino_t ino;
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

/* ---- connection.c ----------------------------------------------------------------------------------- */

/* More result codes of an attempt, outside SQLite's range. */
#define DLI_RC_MOVED (-1) /* the file is not at its path any more */

/* One attempt with the turn held. SQLITE_BUSY means that nothing was done, and it is made again. */
typedef int (*dli_attempt_fn)(dli_connection_t *c, void *arg);

/* How far an attempt may go, and how long. */
typedef struct dli_limits {
    uint64_t deadline_ns;
    const dl_stop_t *stop; /* may be NULL */
} dli_limits_t;

/* Opens and sets up; the file exists. SQLite's result. */
int dli_connection_open(dli_connection_t *c, dli_store_t *store);
void dli_connection_close(dli_connection_t *c);

/* Runs `attempt` until the file is not busy. DL_OK: it ended with *rc. Otherwise nothing was done: DL_EIO
 * at the deadline, DL_ECANCELED; err is filled. */
dl_status_t dli_connection_run(dli_connection_t *c, dli_attempt_fn attempt, void *arg, dli_limits_t limits,
                               int *rc, dl_error_t *err);
/* The statement, prepared at its first use, reset, the notes cleared, ready for binding. SQLite's result. */
int dli_connection_statement(dli_connection_t *c, dli_sql_t which, sqlite3_stmt **statement);
/* Steps a statement without rows to its end and resets it. SQLITE_OK, or what went wrong. */
int dli_connection_step(dli_connection_t *c, sqlite3_stmt *statement);
/* The same for a statement without parameters. */
int dli_connection_do(dli_connection_t *c, dli_sql_t which);
/* The status for a result code other than SQLITE_OK, with err filled. `maybe_done`: the request may have
 * been carried out all the same. */
dl_status_t dli_connection_fail(const dli_store_t *store, int rc, bool maybe_done, dl_error_t *err);
/* Copies the log into the file once it is `times` as long as wanted. Best effort; no turn is held. */
void dli_checkpoint(dli_store_t *store, int times);
/* The file at the path is not the one that was opened. */
bool dli_store_moved(const dli_store_t *store);
/* For loops that have the turn already: DL_OK after a pause if `rc` says busy, otherwise the failure. */
dl_status_t dli_connection_again(const dli_store_t *store, int rc, unsigned tries, dli_limits_t limits,
                                 dl_error_t *err);

/* ---- place.c: where the file is --------------------------------------------------------------------- */

/* The path that the option means (NULL or "": the user's own), not yet resolved, in `path`. */
dl_status_t dli_place_name(const char *option, char *path, size_t size, dl_error_t *err);
/* Makes sure that there is a file, on a filesystem of this host: makes an empty one, mode 0600, if `create`,
 * which *made says. *path is the resolved path, to be freed. */
dl_status_t dli_place_provide(const char *option, bool create, char **path, bool *made, dl_error_t *err);
/* DL_ENOTSUP when the filesystem under `path` is not one of this host alone. `type` receives its name. */
dl_status_t dli_place_local(const char *path, char *type, size_t size, dl_error_t *err);
/* Why a filesystem with this magic number and mount type is not accepted; NULL: it is. */
const char *dli_place_refused(unsigned long magic, const char *mount_type);

/* ---- host.c: which boot, which clock ---------------------------------------------------------------- */

dl_status_t dli_host_identify(char *boot, size_t size, int64_t *offset_ns, dl_error_t *err);
/* The process that holds the write lock of the database at `path` right now; 0: none that can be seen.
 * Expensive for the whole host. */
long dli_host_writer(const char *path);

/* ---- schema.c: what is in the file ------------------------------------------------------------------ */

/* Refuses what is not ours without changing it; fills an empty file. */
dl_status_t dli_schema_provide(dli_store_t *store, dli_limits_t limits, bool *made, dl_error_t *err);

/* ---- tokens.c: where fencing tokens come from ------------------------------------------------------- */

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
dl_status_t dli_sqlite_watch(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                             const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err);
dl_status_t dli_sqlite_wait(void *state, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                            dl_error_t *err);
void dli_sqlite_unwatch(void *state, dl_watch_t *watch);

/* ---- forks.c: fork() while connections are open ----------------------------------------------------- */

/* Notes that the store is about to open, with both turns held from here on. */
dl_status_t dli_forks_enter(dli_store_t *store, dl_error_t *err);
void dli_forks_opened(dli_store_t *store);
void dli_forks_leave(dli_store_t *store, int forked);

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
dl_status_t dli_sqlite_init(const dl_option_value_t *options, const dl_driver_env_t *env, unsigned flags,
                            dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);
dl_status_t dli_sqlite_open(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                            uint64_t deadline_ns, dl_error_t *err);
void dli_sqlite_close(void *state, int forked);

/* Indices into the driver's option table. */
enum { DLI_SQLITE_OPT_PATH, DLI_SQLITE_OPT_CREATE };

#endif
