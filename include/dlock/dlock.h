/* dlock.h - the public interface of libdlock: distributed locks over exchangeable backends. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_DLOCK_H
#define DLOCK_DLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DL_VERSION_MAJOR 0
#define DL_VERSION_MINOR 2
#define DL_VERSION_PATCH 0
#define DL_VERSION_STRING "0.2.0"

#if defined(__GNUC__)
#define DL_API __attribute__((visibility("default")))
#define DL_MUST_CHECK __attribute__((warn_unused_result))
#else
#define DL_API
#define DL_MUST_CHECK
#endif

/*
 * Conventions of this header
 *
 * - Every fallible call returns a dl_status_t. `err`, where there is one, is the last argument, belongs to
 *   the caller and may be NULL; it is written on every outcome other than DL_OK and left alone on DL_OK.
 * - Times are milliseconds in int64_t. They are measured by CLOCK_BOOTTIME: a suspended machine counts.
 * - Objects come by out-parameter and belong to the caller, who ends them with the matching close or
 *   free. On failure the out-parameter is set to NULL. close(NULL) and free(NULL) do nothing.
 * - Every function may be called from any thread at any time, unless its comment says otherwise. The
 *   close or free of an object is the last call on it: waits that are under way end, others must be back.
 * - Names are C strings of 1 to 255 bytes and are compared byte by byte.
 * - After fork() the child owns nothing: calls on inherited objects return DL_EFORKED.
 * - No call is a cancellation point of pthread_cancel, nor is a callback while a call runs it; use
 *   dl_cancel_t.
 * - A struct with a `size` may become longer in a later release. `size`, set by the struct's _INIT, is how
 *   much of it the program was built with: as much is read and written, and the rest is as _INIT has it. A
 *   size that no release up to the library's had, such as that of a newer header, is DL_EINVAL.
 * - "Longest" is the longest time a call blocks. call_timeout is an option of the backend, 2 s unless
 *   configured. Every call named with call_timeout ends by call_timeout + 100 ms.
 * - Since 0.1 applies to everything here, unless its comment says otherwise.
 */

/* ---- statuses ---------------------------------------------------------------------------------- */

/* X(name, number, text): the one list that codes, names and texts come from. */
#define DL_STATUS_MAP(X)                                                          \
    X(OK, 0, "success")                                                           \
    X(EBUSY, 1, "the lock is held by another owner")                              \
    X(ETIMEDOUT, 2, "the time allowed for waiting is over")                       \
    X(ELOST, 3, "the lock was held and has been lost")                            \
    X(ENOTOWNER, 4, "the calling owner does not hold the lock")                   \
    X(ECANCELED, 5, "the wait was cancelled")                                     \
    X(ECLOSED, 6, "the client or the handle is closed")                           \
    X(EINVAL, 7, "an argument is out of range")                                   \
    X(ENOMEM, 8, "out of memory")                                                 \
    X(ELIMIT, 9, "a limit of this process, the library or the server is reached") \
    X(EIO, 10, "the server cannot be reached")                                    \
    X(EUNKNOWN, 11, "the request may or may not have been carried out")           \
    X(EAUTH, 12, "the server refused the credentials or the permission")          \
    X(EPROTO, 13, "the server sent something that is not understood")             \
    X(EFOREIGN, 14, "the name holds something that is not a lock of this kind")   \
    X(ECONFIG, 15, "the configuration is wrong")                                  \
    X(ENOTSUP, 16, "the backend cannot do this")                                  \
    X(EFORKED, 17, "the object was inherited over fork()")

typedef enum dl_status {
#define DL_STATUS_ENUM(name, number, text) DL_##name = number,
    DL_STATUS_MAP(DL_STATUS_ENUM)
#undef DL_STATUS_ENUM
        DL_STATUS_COUNT
} dl_status_t;

/* What went wrong, in the caller's own memory. The layout never changes. */
typedef struct dl_error {
    dl_status_t status;
    int native;        /* the backend's or errno's own code; 0 when there is none */
    char message[248]; /* one line of UTF-8 without secrets, always terminated */
} dl_error_t;

/* Names and texts of statuses, and the library's version. */

/* The status' name, such as "DL_EBUSY"; "DL_UNKNOWN_STATUS" for a number that is none. Static text. */
DL_API const char *dl_status_name(dl_status_t status);
/* One line that says what the status means. Static text. */
DL_API const char *dl_status_text(dl_status_t status);
/* The version of the library at run time, such as "0.2.0". Static text. */
DL_API const char *dl_version(void);

/* ---- client ------------------------------------------------------------------------------------ */

/* One opened backend: connections, background threads, and the uuid that owners are named after. */
typedef struct dl_client dl_client_t;

/* Opens and closes backends. */

/*
 * Opens the backend named `backend` of the configuration file at `path`.
 *
 * path     NULL: the file named by $DLOCK_CONFIG, which must exist; without that variable the first there is
 *          of $XDG_CONFIG_HOME/dlock/dlock.yaml (or ~/.config/dlock/dlock.yaml) and /etc/dlock/dlock.yaml.
 * backend  NULL: $DLOCK_BACKEND, else the file's `use:`. The name "local" is built in: where the
 *          configuration does not define it, it is an SQLite file of the calling user (root's is under
 *          /var/lib/dlock, whatever HOME and XDG_STATE_HOME say), and needs no configuration file, unless
 *          $DLOCK_CONFIG names one.
 *
 * Returns DL_OK; DL_ECONFIG (no file, bad file, unknown backend or driver), DL_EIO, DL_EAUTH, DL_EPROTO,
 * DL_ENOTSUP (the server is too old, the filesystem is not local), DL_ELIMIT, DL_ENOMEM. A message about a
 * place in the file is `file:line:column: what, and what was expected`; other mistakes of the configuration
 * begin with `backend 'NAME':`, or name the file that is missing. Longest: call_timeout.
 */
DL_API DL_MUST_CHECK dl_status_t dl_client_open(const char *path, const char *backend, dl_client_t **client,
                                                dl_error_t *err);
/* The same from `len` bytes of YAML in memory; errors call the text "<text>". */
DL_API DL_MUST_CHECK dl_status_t dl_client_open_text(const char *yaml, size_t len, const char *backend,
                                                     dl_client_t **client, dl_error_t *err);
/*
 * Closes: ends every wait with DL_ECLOSED, frees what is held on the server, stops and joins the
 * background threads, and closes descriptors. Lock handles stay valid memory and answer DL_ECLOSED until they
 * are closed. Inside an event callback it may be called too; the callback's thread then ends after the
 * callback. In a forked child it closes descriptors only. The last call on the client. Longest: call_timeout
 * from this call, or from the server's last answer if that is later; but it waits for a callback or log
 * function of the program that runs. Where a call of another thread hangs for so long, 50 ms more.
 */
DL_API void dl_client_close(dl_client_t *client);

/* What a driver promises. Values of dl_client_info_t.caps. */
#define DL_CAP_LEASE 0x01u        /* a hold ends when its lease runs out on the server */
#define DL_CAP_SESSION 0x02u      /* a hold ends with a connection, or with its idle timeout */
#define DL_CAP_FENCE 0x04u        /* grants carry a fencing token */
#define DL_CAP_SERVER_COUNT 0x08u /* the server shows how often the owner entered */
#define DL_CAP_NATIVE_WAIT 0x10u  /* the server itself can block a waiter */
#define DL_CAP_NOTIFY 0x20u       /* a release wakes waiters */

/* The tag is not the function's name, which C++ would have it hide; nor is that of the statistics. */
typedef struct dl_client_info_data {
    size_t size;             /* set by DL_CLIENT_INFO_INIT */
    char backend[64];        /* the name in the configuration */
    char driver[32];         /* the driver's name */
    char uuid[37];           /* this client's own */
    uint32_t caps;           /* DL_CAP_... */
    int64_t lease_ms;        /* the automatic lease */
    int64_t renew_every_ms;  /* how often the watchdog renews it */
    int64_t max_hold_ms;     /* 0 = unlimited */
    int64_t call_timeout_ms; /* bound of every exchange with the server */
    char server[128];        /* where and what the server is, without secrets; "" when not known */
} dl_client_info_t;
#define DL_CLIENT_INFO_INIT \
    { sizeof(dl_client_info_t), "", "", "", 0, 0, 0, 0, 0, "" }

/* Fills `info` with what was opened: backend, driver, times. DL_EINVAL, DL_EFORKED. No I/O. */
DL_API dl_status_t dl_client_info(dl_client_t *client, dl_client_info_t *info);

/* Counters since the client was opened. Times are in microseconds: _sum all together, _max the longest. */
typedef struct dl_client_stats_data {
    size_t size;                      /* set by DL_CLIENT_STATS_INIT */
    uint64_t acquired;                /* holds that began */
    uint64_t reentered;               /* further levels entered */
    uint64_t contended;               /* holds that had to wait for another holder; where the server itself
                                         waits (mysql-pessimistic): that took it backoff_min or longer */
    uint64_t busy;                    /* calls that ended with DL_EBUSY */
    uint64_t timed_out;               /* calls that ended with DL_ETIMEDOUT */
    uint64_t released;                /* holds that ended by unlock, close or thread exit */
    uint64_t lost;                    /* holds that ended as lost */
    uint64_t renewed;                 /* renewals that the server confirmed */
    uint64_t renewals_failed;         /* renewals without a clear yes */
    uint64_t renewal_lateness_us_max; /* the latest start of a renewal against its due time */
    uint64_t renewal_lateness_us_sum;
    uint64_t wait_us_sum; /* from the call to the hold, for all holds */
    uint64_t wait_us_max;
    uint64_t hold_us_sum; /* from the hold to its end, for ended holds */
    uint64_t hold_us_max;
    uint64_t unknown_outcomes; /* requests whose reply was lost */
    uint64_t background_frees; /* requests sent to free what such requests, or waits, may have left */
    uint64_t round_trips;      /* exchanges with the server that the driver counted */
    uint64_t reconnects;       /* connections opened after the first */
    uint64_t events_dropped;   /* events thrown away because nobody read them */
    uint64_t held_now;         /* holds at this moment */
    uint64_t waiting_now;      /* calls waiting at this moment */
    uint64_t passed;           /* holds that another of this process passed on, without the server */
} dl_client_stats_t;
#define DL_CLIENT_STATS_INIT \
    { sizeof(dl_client_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Fills `stats` with the counters of one instant; round_trips and reconnects may be ahead of the rest.
 * DL_EINVAL, DL_EFORKED. No I/O. */
DL_API dl_status_t dl_client_stats(dl_client_t *client, dl_client_stats_t *stats);

typedef enum dl_log_level {
    DL_LOG_ERROR = 0,
    DL_LOG_WARNING = 1,
    DL_LOG_INFO = 2,
    DL_LOG_DEBUG = 3
} dl_log_level_t;
/* Called from any thread, several at once; `line` has no newline and no secret and ends with the call.
 * It must not call back into the library. */
typedef void (*dl_log_fn)(void *arg, dl_log_level_t level, const char *line);
/* Sets (NULL: removes) where this client's diagnostics go. Returns once no call of the old function is
 * running any more. DL_EINVAL, DL_EFORKED. */
DL_API dl_status_t dl_client_set_log(dl_client_t *client, dl_log_fn fn, void *arg);

/* ---- locks ------------------------------------------------------------------------------------- */

/* A handle on one named lock. Like a pthread_mutex_t, any thread may use it; the thread is the owner. */
typedef struct dl_lock_handle dl_lock_t; /* a tag of its own: C++ knows dl_lock as the function */

#define DL_LEASE_AUTO 0             /* the client's lease, renewed by the watchdog until unlock */
#define DL_LEASE_MIN_MS 100         /* the shortest explicit lease */
#define DL_LEASE_MAX_MS 31536000000 /* the longest: 365 days */
#define DL_WAIT_FOREVER (-1)
#define DL_WAIT_MAX_MS 31536000000 /* the longest bounded wait: 365 days */
#define DL_NAME_MAX 255            /* bytes in a name */
#define DL_LEVEL_MAX 1000000000u   /* how often one owner may enter one lock */
#define DL_OWNER_MAX 95            /* bytes in an owner's text */

/* Makes and ends handles on locks. */

/*
 * Makes a handle on the lock `name`; several handles on one name are the same lock. No I/O.
 * DL_EINVAL (name empty, longer than 255 bytes, or one that the driver keeps for itself), DL_ENOMEM,
 * DL_ECLOSED, DL_EFORKED.
 */
DL_API DL_MUST_CHECK dl_status_t dl_lock_open(dl_client_t *client, const char *name, dl_lock_t **lock,
                                              dl_error_t *err);
/*
 * The same, but every call on this handle, from any thread, acts for the owner `owner`: a number the
 * program chooses, for tasks, coroutines and thread pools. Numbers never meet the threads' own.
 */
DL_API DL_MUST_CHECK dl_status_t dl_lock_open_owned(dl_client_t *client, const char *name, uint64_t owner,
                                                    dl_lock_t **lock, dl_error_t *err);
/*
 * Ends the handle. A hold is not released by it: another handle of the same name can still unlock it,
 * and the watchdog keeps it. Waits in progress on this handle end with DL_ECLOSED.
 */
DL_API void dl_lock_close(dl_lock_t *lock);

/* Ends waits from another thread. */

/* One object may serve many calls at once. */
typedef struct dl_cancel dl_cancel_t;
/* Makes one. DL_ENOMEM, DL_ELIMIT (no descriptor). */
DL_API DL_MUST_CHECK dl_status_t dl_cancel_new(dl_cancel_t **cancel, dl_error_t *err);
/* Ends every wait that uses `cancel`, now and later, with DL_ECANCELED. For good; async-signal-safe. */
DL_API void dl_cancel_trigger(dl_cancel_t *cancel);
/* A descriptor that is readable once triggered. Belongs to `cancel`; only poll it. -1 after fork. */
DL_API int dl_cancel_fd(const dl_cancel_t *cancel);
/* No call may be using it any more. */
DL_API void dl_cancel_free(dl_cancel_t *cancel);

typedef struct dl_acquire_opts {
    size_t size;         /* set by DL_ACQUIRE_OPTS_INIT */
    int64_t wait_ms;     /* DL_WAIT_FOREVER, 0 = one try, or up to DL_WAIT_MAX_MS */
    int64_t lease_ms;    /* DL_LEASE_AUTO or DL_LEASE_MIN_MS to DL_LEASE_MAX_MS */
    int64_t max_hold_ms; /* of a new hold: 0 = the client's, or up to DL_LEASE_MAX_MS; after it renewal
                            stops and the hold ends as lost */
    dl_cancel_t *cancel; /* NULL: none */
} dl_acquire_opts_t;
#define DL_ACQUIRE_OPTS_INIT \
    { sizeof(dl_acquire_opts_t), DL_WAIT_FOREVER, DL_LEASE_AUTO, 0, NULL }

/* Acquires, unlocks and extends locks. */

/*
 * Enters the lock for the calling owner. When the owner already holds it, this is one level more:
 * nothing is waited for, and the lease is only ever made longer. `opts` must not be NULL.
 *
 * Returns
 *   DL_OK         held, with validity left
 *   DL_EBUSY      wait_ms is 0 and another owner holds it, or asks for it just now
 *                 (or, on redlock, too few nodes could vote)
 *   DL_ETIMEDOUT  wait_ms is over, with the same causes; on MySQL also, whatever wait_ms is: all max_total
 *                 connections are in use, for borrow_timeout or for as long as this call may take
 *   DL_ELOST      this owner held it, lost it, and has not unlocked every level yet; or the server
 *                 answered so late that no validity was left
 *   DL_ECANCELED, DL_ECLOSED, DL_EINVAL, DL_ENOMEM, DL_ELIMIT, DL_EFORKED
 *   DL_EIO        the server could not be reached for call_timeout, or until wait_ms was over; or too few of
 *                 its replicas had the lock (min_replicas), and no time was left to ask again
 *   DL_EUNKNOWN   the reply was lost; should the lock be taken, it is freed in the background
 *                 (An owner that holds it already and needs a longer lease asks once: DL_EIO and
 *                 DL_EUNKNOWN then leave its hold as it was, without the new level.)
 *   DL_EAUTH, DL_EPROTO, DL_EFOREIGN, DL_ECONFIG  as the server or the file answered
 *   DL_ENOTSUP    the server has become read-only, or part of a cluster
 * After anything but DL_OK this call holds nothing. Longest: wait_ms + 100 ms; with DL_WAIT_FOREVER, as
 * long as another holder keeps the lock; with 0, call_timeout.
 */
DL_API DL_MUST_CHECK dl_status_t dl_acquire(dl_lock_t *lock, const dl_acquire_opts_t *opts, dl_error_t *err);
/* dl_acquire, waiting for ever, automatic lease. */
DL_API DL_MUST_CHECK dl_status_t dl_lock(dl_lock_t *lock, dl_error_t *err);
/* dl_acquire, one try, automatic lease. */
DL_API DL_MUST_CHECK dl_status_t dl_trylock(dl_lock_t *lock, dl_error_t *err);
/* dl_acquire with this wait and this lease. */
DL_API DL_MUST_CHECK dl_status_t dl_trylock_for(dl_lock_t *lock, int64_t wait_ms, int64_t lease_ms,
                                                dl_error_t *err);
/*
 * Leaves one level; the last one frees the lock on the server, or passes it on to the next who waits in this
 * process, without asking the server (the option `pass`): then DL_OK says nothing of what the server has.
 *
 * Returns DL_OK; DL_ENOTOWNER (nothing changed); DL_ELOST (the hold was lost: this level is gone, the
 * successor is untouched); DL_EUNKNOWN (free for this process; the server's reply was lost and the
 * lock is freed in the background, or too few servers of several can say whether it was held to the
 * end); DL_EIO (the same, and the request never left); DL_ECLOSED, DL_EFORKED. Any other status that the
 * backend answers, such as DL_ETIMEDOUT (MySQL: all max_total connections are in use) or DL_EAUTH: as
 * DL_EIO, free for this process and freed in the background. But DL_ENOMEM: nothing changed, call again; only
 * the first call of a thread needs memory for this, or its first after a jump out of one. Longest:
 * call_timeout.
 */
DL_API dl_status_t dl_unlock(dl_lock_t *lock, dl_error_t *err);
/*
 * Makes the lease last at least `lease_ms` from now (DL_LEASE_AUTO: the client's lease), and an automatic one
 * at least as long as a renewal would. Never shortens.
 * DL_OK, DL_ENOTOWNER, DL_ELOST, DL_EINVAL, DL_ECLOSED, DL_EFORKED; DL_EIO, DL_EUNKNOWN, or whatever else
 * the backend answers (still held, as long as before). Longest: call_timeout.
 */
DL_API DL_MUST_CHECK dl_status_t dl_extend(dl_lock_t *lock, int64_t lease_ms, dl_error_t *err);

/* What the calling owner holds, and for how long yet. */

/* How long the calling owner may still act as the holder, in ms rounded down; 0: not held or lost.
 * Local arithmetic, no I/O. Ask again before every step that matters. */
DL_API int64_t dl_valid_ms(dl_lock_t *lock);
/* The fencing token of the calling owner's hold; 0: not held, or the backend has none. No I/O. */
DL_API uint64_t dl_token(dl_lock_t *lock);
/* How many levels the calling owner has entered and not left, lost ones included. No I/O. */
DL_API uint32_t dl_hold_count(dl_lock_t *lock);

/* ---- administration ---------------------------------------------------------------------------- */

typedef struct dl_lock_info {
    size_t size;                  /* set by DL_LOCK_INFO_INIT */
    int held;                     /* 1: somebody holds it on the server */
    int ours;                     /* 1: an owner of this client holds it */
    char owner[DL_OWNER_MAX + 1]; /* foreign clients' values may be cut. Another process' lock that was
                                     passed on there is shown with its first owner */
    uint64_t hold_id;             /* 0: not known */
    int64_t remaining_ms;         /* of the lease on the server; -1: it has no end or is not known */
    uint32_t holds;               /* levels, where the server counts them; otherwise 1 when held */
    uint64_t token;               /* 0: not known; of several drawn at once, perhaps the last */
    char client[64];              /* where the holder runs, "host:pid"; "": not known */
} dl_lock_info_t;
#define DL_LOCK_INFO_INIT \
    { sizeof(dl_lock_info_t), 0, 0, "", 0, -1, 0, 0, "" }

/* Shows who holds locks on the server, and frees them by force. */

/* Asks the server who holds the lock. DL_OK also when nobody does. DL_ENOTSUP, DL_EIO, ... Longest:
 * call_timeout. */
DL_API dl_status_t dl_inspect(dl_lock_t *lock, dl_lock_info_t *info, dl_error_t *err);
/* Called once a lock, on the caller's thread; both pointers end with the call. Non-zero stops. Neither this
 * nor a dl_finding_fn may close the client. */
typedef int (*dl_list_fn)(void *arg, const char *name, const dl_lock_info_t *info);
/* Reports the locks held on the server whose name begins with `prefix` (NULL or "": all). DL_OK: fn was given
 * all, or stopped it. DL_ENOTSUP, DL_EIO, ...: perhaps after a part. Longest: call_timeout, and what fn
 * takes: that counts, so the server is not asked for more after it. */
DL_API dl_status_t dl_list(dl_client_t *client, const char *prefix, dl_list_fn fn, void *arg,
                           dl_error_t *err);
/* An administrator's tool: frees the lock whoever holds it. The holder learns of it as a loss: with an
 * automatic lease at its next renewal; with an explicit one when it unlocks or extends, or when its validity
 * ends; on mysql-pessimistic at once. DL_OK (freed), DL_ENOTOWNER (nobody held it, or who did has freed it
 * meanwhile), DL_ENOTSUP, DL_EIO, ... On redlock, while nodes do not answer, a holder that renews it in the
 * same instant may keep it after DL_OK. Longest: call_timeout. */
DL_API dl_status_t dl_force_unlock(dl_lock_t *lock, dl_error_t *err);

typedef enum dl_finding_level {
    DL_FINDING_OK = 0,
    DL_FINDING_NOTE = 1,
    DL_FINDING_WARNING = 2,
    DL_FINDING_ERROR = 3
} dl_finding_level_t;
/* One line of a report, on the caller's thread: what was looked at, and its consequence in plain words. */
typedef void (*dl_finding_fn)(void *arg, dl_finding_level_t level, const char *subject, const char *text);
/* Says which guarantee the opened backend gives and which settings weaken it, and tries a lock of a name of
 * its own (dlock-check-...), of which neither events nor the statistics of holds tell. DL_OK: the report is
 * complete, also where findings are errors. DL_ENOTSUP, DL_EIO, ... Longest: call_timeout an exchange. */
DL_API dl_status_t dl_client_check(dl_client_t *client, dl_finding_fn fn, void *arg, dl_error_t *err);

#define DL_INIT_PRINT 0x1u /* report what would be done, and do nothing */
/* Creates what the backend needs on its server (file, schema, markers) and reports each step. Doing it
 * again changes nothing. path and backend as in dl_client_open. DL_OK: the report is complete; a finding that
 * is an error says what was refused or failed. DL_ENOTSUP: it needs nothing. DL_EINVAL: no fn, or an unknown
 * flag. Else as dl_client_open. */
DL_API dl_status_t dl_backend_init(const char *path, const char *backend, unsigned flags, dl_finding_fn fn,
                                   void *arg, dl_error_t *err);

/* Reports the library's drivers and a configuration's backends. */

/* Called once a driver; the strings are static. Non-zero stops. */
typedef int (*dl_driver_fn)(void *arg, const char *name, uint32_t caps, const char *summary);
/* Reports the drivers that this library was built with. */
DL_API void dl_drivers(dl_driver_fn fn, void *arg);
/* Called once a backend; `compiled_in` 0: its driver is not in this build; `selected` 1: `use` or
 * $DLOCK_BACKEND names it. Non-zero stops. */
typedef int (*dl_backend_fn)(void *arg, const char *backend, const char *driver, int compiled_in,
                             int selected);
/* Reports the backends of a configuration after checking the whole of it. path as in dl_client_open.
 * `source`, when not NULL, receives the file's path, also where the file is wrong; "" where there is none;
 * cut where source_size is too small. DL_ECONFIG, DL_EINVAL (no fn), DL_ELIMIT, DL_ENOMEM. */
DL_API dl_status_t dl_backends(const char *path, char *source, size_t source_size, dl_backend_fn fn,
                               void *arg, dl_error_t *err);

/* ---- events ------------------------------------------------------------------------------------ */

typedef enum dl_event_kind {
    DL_EVENT_LOST = 1,            /* a hold was lost; exactly once a lost hold */
    DL_EVENT_RENEWAL_FAILING = 2, /* still valid, but a renewal had no clear yes */
    DL_EVENT_RENEWAL_RECOVERED = 3,
    DL_EVENT_WARNING = 4,      /* something an operator should know */
    DL_EVENT_THREAD_EXITED = 5 /* a thread ended holding; its hold was released */
} dl_event_kind_t;

typedef struct dl_event {
    size_t size; /* set by DL_EVENT_INIT */
    dl_event_kind_t kind;
    dl_status_t status;         /* why: DL_ELOST (the server said so), DL_ETIMEDOUT (validity or max_hold
                                     ended), DL_EIO, ... */
    char name[DL_NAME_MAX + 1]; /* the lock; "" for a warning about the backend */
    char owner[DL_OWNER_MAX + 1];
    uint64_t hold_id;
    uint64_t token;
    int64_t valid_ms; /* left when the event was made */
    char text[160];   /* one line for a person */
} dl_event_t;
#define DL_EVENT_INIT \
    { sizeof(dl_event_t), (dl_event_kind_t)0, DL_OK, "", "", 0, 0, 0, "" }

/* Takes a client's events, or has a callback get them. */

/* A descriptor that is readable while events wait. Belongs to the client; only poll it. -1 after fork. */
DL_API int dl_event_fd(dl_client_t *client);
/* Takes the oldest event. DL_OK; DL_ETIMEDOUT when none waits (it never blocks), also while a callback or a
 * queue gets them; DL_EINVAL, DL_EFORKED. */
DL_API dl_status_t dl_event_next(dl_client_t *client, dl_event_t *event);
/* Called on a thread of the client that does nothing else, one event at a time; `event` ends with the call.
 * Any call of this header is allowed inside, dl_client_close included. All signals are blocked there but
 * those of the thread's own faults. */
typedef void (*dl_event_fn)(void *arg, const dl_event_t *event);
/* Sets (NULL: removes) a callback; events then go to it and no longer to dl_event_next or a queue. Returns
 * once no call of the old function is running any more, except when called by it. DL_EINVAL, DL_ECLOSED (then
 * one may still run that closes the client), DL_EFORKED, DL_ELIMIT (no thread). */
DL_API dl_status_t dl_client_on_event(dl_client_t *client, dl_event_fn fn, void *arg);

/* ---- queues: the same operations without blocking ------------------------------------------------- */

/*
 * Operations that are begun on a queue go on by themselves, on threads of the client; their completions wait
 * in the queue, whose descriptor an event loop polls beside its own. A queue may serve several clients and
 * outlive them. Each operation that was begun completes exactly once. Only handles of dl_lock_open_owned can
 * be used: an operation belongs to a task, not to a thread. A handle may be closed while its operations are
 * under way; they end as its waits do. Since 0.2.
 */
typedef struct dl_queue dl_queue_t;

/* Makes and frees queues of completions. */

/* Makes an empty queue. DL_ENOMEM, DL_ELIMIT (no descriptor). */
DL_API DL_MUST_CHECK dl_status_t dl_queue_new(dl_queue_t **queue, dl_error_t *err);
/*
 * Cancels what is under way, without waiting for it: its tags never come back. What was acquired and not
 * taken is freed in the background. Events that were not taken come again where the client's events go now,
 * in most cases dl_event_next. The last call on the queue; in a forked child it closes the descriptor only.
 */
DL_API void dl_queue_free(dl_queue_t *queue);
/* A descriptor that is readable while something waits to be taken. Belongs to the queue; only poll it. -1
 * after fork. */
DL_API int dl_queue_fd(const dl_queue_t *queue);

/* How many operations of one queue may be under way or wait to be taken. */
#define DL_QUEUE_MAX 262144u

typedef enum dl_op_kind {
    DL_OP_ACQUIRE = 1,
    DL_OP_UNLOCK = 2,
    DL_OP_EXTEND = 3,
    DL_OP_INSPECT = 4,
    DL_OP_FORCE = 5, /* of dl_force_unlock; not of queues */
    DL_OP_EVENT = 6  /* an event of a client, see dl_queue_events */
} dl_op_kind_t;

/* What dl_queue_take gives. */
typedef struct dl_completion {
    dl_op_kind_t kind;
    dl_status_t status; /* as the blocking call would return it; of an event: the event's */
    void *tag;          /* as given when it was begun; of an event NULL */
    uint64_t id;        /* of the operation; 0 for an event */
    dl_lock_t *lock;    /* the handle, which may be closed by now; of an event NULL */
    dl_client_t *client;
    uint64_t hold_id; /* ACQUIRE: the hold's, as events have it; 0: nothing was acquired */
    uint64_t token;   /* ACQUIRE, DL_OK: the fencing token, or 0 */
    int64_t valid_ms; /* ACQUIRE and EXTEND, DL_OK: as dl_valid_ms, when it was taken */
    dl_error_t err;   /* with a status other than DL_OK; not of events */
    union {
        dl_lock_info_t info; /* INSPECT */
        dl_event_t event;    /* EVENT */
        char room[768];      /* for these to grow */
    } with;
} dl_completion_t;

/*
 * Moves up to `max` completions into `array`, oldest first, and returns how many. `size` is sizeof *array: a
 * program that was built with an earlier release gets what that has, and of one built with a later release
 * the rest is zeroed. It never blocks. Whether an acquired lock is valid is decided here: if its validity is
 * over by now, or its owner has unlocked it meanwhile, the completion says DL_ELOST, and nothing is held. 0
 * also for bad arguments and in a forked child.
 */
DL_API size_t dl_queue_take(dl_queue_t *queue, dl_completion_t *array, size_t size, size_t max);

/* Begins operations whose completions come by a queue, and cancels them. */

/*
 * Begin as dl_acquire, dl_unlock, dl_extend and dl_inspect do, and do not wait. `id`, when not NULL, receives
 * a number for dl_op_cancel. opts->cancel must be NULL. Validity, times and results are those of the blocking
 * calls; wait_ms counts from now.
 * DL_OK: a completion will follow. DL_EINVAL (no queue, a handle of threads, options), DL_ENOMEM, DL_ELIMIT
 * (DL_QUEUE_MAX, or no thread could be had), DL_ECLOSED, DL_EFORKED: nothing was begun.
 */
DL_API DL_MUST_CHECK dl_status_t dl_acquire_begin(dl_lock_t *lock, const dl_acquire_opts_t *opts,
                                                  dl_queue_t *queue, void *tag, uint64_t *id,
                                                  dl_error_t *err);
DL_API DL_MUST_CHECK dl_status_t dl_unlock_begin(dl_lock_t *lock, dl_queue_t *queue, void *tag, uint64_t *id,
                                                 dl_error_t *err);
DL_API DL_MUST_CHECK dl_status_t dl_extend_begin(dl_lock_t *lock, int64_t lease_ms, dl_queue_t *queue,
                                                 void *tag, uint64_t *id, dl_error_t *err);
DL_API DL_MUST_CHECK dl_status_t dl_inspect_begin(dl_lock_t *lock, dl_queue_t *queue, void *tag, uint64_t *id,
                                                  dl_error_t *err);
/*
 * Ends an operation early; its completion still comes, in most cases at once and with DL_ECANCELED. DL_OK: it
 * will end as soon as it can. DL_EBUSY: too late, it completes as if nothing had been said (unlocks always
 * do, extensions and inspections once the server is asked). DL_EINVAL: no such operation, or it was taken.
 * DL_EFORKED.
 */
DL_API dl_status_t dl_op_cancel(dl_queue_t *queue, uint64_t id);

/*
 * Has the client's events come out of this queue. They come in one order with its completions: the loss of a
 * lock never before the completion that it was acquired by. NULL: dl_event_next gives them again. A callback
 * is taken away, but one that runs is not waited for. Events that wait for dl_event_next go along; those that
 * wait in another queue stay there, to be taken. Those that wait when the client closes are dropped.
 * DL_EINVAL, DL_ECLOSED, DL_EFORKED.
 */
DL_API dl_status_t dl_queue_events(dl_queue_t *queue, dl_client_t *client);

#ifdef __cplusplus
}
#endif
#endif
