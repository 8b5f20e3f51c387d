/* driver.h - the contract between the core and a driver; for authors of drivers only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_DRIVER_H
#define DLOCK_DRIVER_H

#include <poll.h>
#include <pthread.h>

#include "dlock/dlock.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rules for every op
 *
 * - A driver claims, renews and frees one name on one kind of server. It never calls up into the core
 *   (except through dl_driver_env_t), never retries on its own, never sleeps without being asked to
 *   wait, never counts levels.
 * - Ops of different names run at once on several threads. For one name there may be a try_acquire,
 *   an inspect and a release of an older hold at once. Batches of renewals come from one thread and must
 *   not queue behind slow acquires. Callers that extend a hold use renew too, with one entry and deadlines
 *   of their own, perhaps short ones: these must not condemn the connection that the batches use. For one
 *   hold of a SESSION driver the core never runs two ops at once; for LEASE drivers a renewal may cross a
 *   release, and a second release one whose thread does not go on.
 * - An op returns by `deadline_ns` (CLOCK_BOOTTIME, as env->now_ns counts) whatever the server does, and
 *   soon after one of the `stop` descriptors becomes readable. A request that was sent and has no
 *   reply by then is DL_EUNKNOWN; one that surely never left is DL_EIO.
 * - `sent_ns` is the instant before the request that counted was sent.
 * - err is never NULL. A status other than DL_OK comes with err filled through dl_driver_fail.
 */

/* 1 in release 0.1.0, whose watch and wait blocked. A table of that release is taken where pointers have 64
 * bits, and its waits poll; elsewhere dl_renewal_t has become longer. */
#define DL_DRIVER_ABI 3u
#define DL_NO_DEADLINE UINT64_MAX
#define DL_LISTEN_MAX 64 /* descriptors that a driver may listen to */

/* ---- options ----------------------------------------------------------------------------------- */

typedef enum dl_option_type {
    DL_OPTION_STRING = 1,
    DL_OPTION_INT = 2,
    DL_OPTION_BOOL = 3,
    DL_OPTION_DURATION = 4, /* text with a unit (ms, s, m, h, d), value in ms */
    DL_OPTION_SIZE = 5,     /* text with a unit (B, KiB, MiB, GiB), value in bytes */
    DL_OPTION_LIST = 6,     /* a list of strings */
    DL_OPTION_SECRET = 7    /* a string never printed; NAME_file names a file that holds it */
} dl_option_type_t;

/* One thing the configuration may say. A table of them ends with name == NULL. */
typedef struct dl_option {
    const char *name; /* lower case, digits, underscore */
    dl_option_type_t type;
    int required;             /* 1: must be given */
    const char *default_text; /* as one would write it in YAML; NULL: unset */
    int64_t min, max;         /* of int, duration and size; for a list: how many. Both 0: no bound */
    const char *choices;      /* for strings: "one|two|three"; NULL: any */
    const char *help;         /* one line for the reference page */
} dl_option_t;

/* The value of the option with the same index in the table. Owned by the core, valid during open/init. */
typedef struct dl_option_value {
    int is_set;              /* 0: not given and no default */
    const char *string;      /* string and secret */
    int64_t number;          /* int, bool (0/1), duration (ms), size (bytes) */
    const char *const *list; /* list */
    size_t list_len;
} dl_option_value_t;

/* ---- what the core lends to a driver ------------------------------------------------------------- */

typedef enum dl_count { DL_COUNT_ROUND_TRIP = 1, DL_COUNT_RECONNECT = 2 } dl_count_t;

/* Lives as long as the driver's state. All functions may be called from any thread. */
typedef struct dl_driver_env {
    size_t size;
    void *core;               /* first argument of report and count */
    const char *client_uuid;  /* 36 characters */
    const char *client_label; /* "host:pid", for people */
    int64_t call_timeout_ms;  /* bound of one exchange */
    int64_t lease_ms;         /* the client's automatic lease */
    uint64_t (*now_ns)(void);
    /* poll(2) with an absolute end; negative descriptors are ignored, signals are no end. The number of
     * ready entries, 0 at the end, -1 with errno. */
    int (*poll)(struct pollfd *fds, nfds_t n, uint64_t deadline_ns);
    int (*random)(void *buf, size_t len);                                   /* 0, or -1 with errno */
    int (*thread_start)(pthread_t *thread, void *(*fn)(void *), void *arg); /* 0 or an errno */
    void (*thread_join)(pthread_t thread);
    /* Waits on cond with mutex held; may wake for nothing. 0, or ETIMEDOUT. Signal only by cond_broadcast. */
    int (*cond_wait)(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);
    void (*cond_init)(pthread_cond_t *cond);
    void (*cond_broadcast)(pthread_cond_t *cond);
    /* A line for the log; from DL_LOG_WARNING on it is an event too. It calls the program's log function, so
     * not with a mutex of the driver's held: what that calls may come here again. */
    void (*report)(void *core, dl_log_level_t level, const char *text);
    void (*count)(void *core, dl_count_t what, uint64_t n);
    /* The values of the options as the configuration has them, ${VARIABLES} not replaced, in the order of the
     * table: what messages show, since nobody knows what a variable holds. NULL: not set, a secret or a list.
     * Owned by the core, valid during open and init. Since 0.2. */
    const char *const *written;
    /* NOTIFY: whoever waits for this name is to try again. Said when a release was heard, when one may have
     * been missed, and once a watch is able to hear. hears 0: releases are not heard now, or never again, and
     * the core polls until this is called with 1. From any op or thread, also with the driver's own mutexes
     * held; of a name without a watch it means nothing. Since 0.2. */
    void (*woken)(void *core, const char *name, size_t name_len, int hears);
} dl_driver_env_t;

/* Readable means: give up and return DL_ECANCELED (or DL_EUNKNOWN when a request is on its way). Entries
 * may be -1; put both into poll. Never read from them. */
typedef struct dl_stop {
    int fd[2];
} dl_stop_t;

/* ---- requests ------------------------------------------------------------------------------------ */

typedef struct dl_request {
    const char *name; /* 1 to 255 bytes, any but NUL */
    size_t name_len;
    const char *owner; /* the client's UUID, ':' and more, not to be taken apart; at most
                           DL_OWNER_MAX bytes of [0-9a-z:-] */
    uint64_t hold_id;  /* rises with each attempt of this client; never 0 */
    uint32_t level;    /* try_acquire: the level being entered, 1 = a new hold. release: the level
                              that stays, 0 = free. Others than 1 and 0 only come to SERVER_COUNT. */
    int64_t lease_ms;
    uint64_t token_floor; /* a new token must be larger */
    int64_t wait_ms;      /* how long a NATIVE_WAIT driver may block on the server; 0 = not at all */
    uint64_t deadline_ns;
    dl_stop_t stop;
    uint64_t tokens; /* try_acquire, level 1: how many tokens it may use; at least 1. Since 0.2. */
} dl_request_t;

typedef struct dl_grant {
    uint64_t token;    /* DL_OK: the fencing token; 0 without DL_CAP_FENCE */
    uint64_t sent_ns;  /* DL_OK: the instant validity counts from */
    int session_fd;    /* DL_OK, SESSION: hang-up on it means the session is over; -1: nothing to watch.
                          It stays open until the hold is released or dropped. */
    int64_t busy_ms;   /* DL_EBUSY: what is left of the holder's lease at most; -1: no end is known */
    int busy_is_dlock; /* DL_EBUSY: 1: the holder is a client of this library and will notify. DL_EUNKNOWN: 1:
                          one held it until this wait for it was over; what is unknown is how the wait ended
                        */
    uint64_t tokens;   /* DL_OK: how many there are, from `token` on, that nobody else is ever given: the
                          request's, or fewer; 0 is 1. Tokens of later grants are above all of them. The core
                          passes the hold on within its process with these. Since 0.2. */
} dl_grant_t;

/* What was seen of a hold that is lost; the event of its loss says it. */
typedef enum dl_loss {
    DL_LOSS_NOT_OURS = 0, /* the server says that another holds it, or nobody */
    DL_LOSS_HANG_UP = 1,  /* SESSION: its connection has ended, and nobody said why */
    DL_LOSS_KILLED = 2,   /* SESSION: the server says that it has ended its connection */
    DL_LOSS_EXPIRED = 3   /* its lease was over before it was renewed */
} dl_loss_t;

/* One entry of a batch. The driver fills status and sent_ns of every entry, whatever happens. */
typedef struct dl_renewal {
    const char *name;
    size_t name_len;
    const char *owner;
    uint64_t hold_id;
    uint64_t token;   /* as granted */
    int64_t lease_ms; /* remaining = max(remaining, lease_ms); 0 (SESSION only): is it alive? */
    void *hold;
    dl_status_t status; /* DL_OK, DL_ELOST (the server says it is not this hold), DL_EUNKNOWN, DL_EIO, ... */
    dl_loss_t loss;     /* with DL_ELOST; DL_LOSS_NOT_OURS unless the driver changes it */
    int by_caller;      /* a caller extends it; 0: the core renews it, and must not wait for callers */
    uint64_t sent_ns;
} dl_renewal_t;

typedef struct dl_watch dl_watch_t; /* the driver's own; it defines the struct */

/* ---- the table ----------------------------------------------------------------------------------- */

typedef struct dl_driver {
    uint32_t abi;               /* DL_DRIVER_ABI */
    size_t size;                /* sizeof(dl_driver_t); later releases have ops more, which are NULL then */
    const char *name;           /* lower case, digits, '-'; at most 31 bytes */
    const char *summary;        /* one line */
    uint32_t caps;              /* DL_CAP_...: exactly one of LEASE and SESSION */
    size_t state_size;          /* the core allocates it zeroed; at least 1 */
    size_t hold_size;           /* per attempt, zeroed; 0: none, and `hold` is NULL */
    const dl_option_t *options; /* NULL: none */

    /* Connects and verifies the server. Creates what is missing only if an option asks for it. May block
     * until deadline_ns. After a failure close is called too. */
    dl_status_t (*open)(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                        uint64_t deadline_ns, dl_error_t *err);
    /* No op is running. Safe after a failed open and on a zeroed state. forked: this is a child process;
     * close descriptors, touch no library handle, write no byte anywhere. */
    void (*close)(void *state, int forked);
    /*
     * One attempt for request->level.
     *   level 1: nobody holds it, or this owner with a smaller hold id (or this very hold, when the
     *   driver had to send twice): take it with the full lease and a fresh token. DL_OK.
     *   level > 1: write the count of this very hold and extend only; never create. DL_OK or DL_ELOST.
     *   held by another, or by this owner with a larger hold id: DL_EBUSY with grant->busy_*.
     *   something else under that name: DL_EFOREIGN; nothing is changed.
     * After DL_OK or DL_EUNKNOWN a release of this hold follows. `hold` keeps its content between the
     * attempts of one call, and drop ends it.
     */
    dl_status_t (*try_acquire)(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                               dl_error_t *err);
    /* Frees this owner's hold with this hold id only (level 0), or writes its count (level > 0). Idempotent.
     * DL_OK: done by this call. DL_ELOST: it was not there. */
    dl_status_t (*release)(void *state, void *hold, const dl_request_t *request, dl_error_t *err);
    /* A batch; entries are of different names. Extends only, never creates, never revives an expired hold.
     * SESSION: a liveness ping. One dead connection must not keep the other entries from an answer by
     * deadline_ns. */
    void (*renew)(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns);

    /* NOTIFY: watch, listen, unwatch and, at the end of the table, listen_fds: all four or none. The core
     * goes try, busy, watch, try, wait, try ... unwatch. None of the four waits for anything. */
    /* Begins to hear of releases of `name`: env->woken is called for it from now on, for the first time
     * perhaps before this returns, until unwatch. The core has one watch of a name at a time. Anything but
     * DL_OK: the core polls; DL_ENOTSUP: it will not try again for this call. */
    dl_status_t (*watch)(void *state, const char *name, size_t name_len, dl_watch_t **watch, dl_error_t *err);
    /* After a poll of what listen_fds gave, on the same thread, also when nothing is ready: reads what has
     * come, says woken, and does what is due by time. */
    void (*listen)(void *state, const struct pollfd *fds, size_t n);
    void (*unwatch)(void *state, dl_watch_t *watch);

    /* Optional; NULL is DL_ENOTSUP. `size` of info is set by the core. */
    dl_status_t (*inspect)(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                           dl_lock_info_t *info, dl_error_t *err);
    /* DL_OK: freed. DL_ENOTOWNER: nobody held it. */
    dl_status_t (*force_release)(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 dl_error_t *err);
    dl_status_t (*list)(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                        uint64_t deadline_ns, dl_error_t *err);
    /* Needed if hold_size is not 0. Ends a hold locally without I/O to the server (closing a descriptor is
     * allowed). The last call on every hold that an op has seen, whatever that op answered. */
    void (*drop)(void *state, void *hold);
    /* Optional: may this name be used? DL_OK or DL_EINVAL. No I/O. NULL: every name. */
    dl_status_t (*check_name)(void *state, const char *name, size_t name_len, dl_error_t *err);
    /* Optional: what the server is, for dl_client_info_t.server. No I/O, no secret. */
    void (*describe)(void *state, char *text, size_t size);
    /* Optional: what of `caps` this state's settings take away, for dl_client_info_t.caps; FENCE or nothing.
     * No I/O. NULL: nothing. */
    uint32_t (*caps_off)(void *state);
    /* Optional: dl_client_check and dl_backend_init. After check the core tries a lock of a name of its own,
     * unless one of the findings was on "locking". init runs without open and without a state. */
    dl_status_t (*check)(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);
    dl_status_t (*init)(const dl_option_value_t *options, const dl_driver_env_t *env, unsigned flags,
                        dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);
    /* NOTIFY: what is to be polled so that releases are heard of, at most `max` entries (DL_LISTEN_MAX or
     * more), and until when at the longest; returns how many. One thread at a time is between listen_fds and
     * listen; if it does not come back from its poll, another asks anew, and its listen does not follow. The
     * core asks again after each watch, so that what that left to be said goes out. *until_ns DL_NO_DEADLINE
     * and no entries: there is nothing to be done until the next watch. */
    size_t (*listen_fds)(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns);
} dl_driver_t;

/* Fills err with a status, a native code and a formatted line (newlines become spaces); returns status. */
DL_API dl_status_t dl_driver_fail(dl_error_t *err, dl_status_t status, int native, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

/* The string option at this place of the table, for messages: as env->written has it, or its value where that
 * says nothing (a secret, a list, a test without a core); "" when it is not set. Valid during open and init.
 * Since 0.2. */
DL_API const char *dl_driver_shown(const dl_driver_env_t *env, const dl_option_value_t *values,
                                   size_t option);

/* Times as people and YAML write them, for messages. Both are pure and need nothing. Since 0.2. */
typedef struct dl_duration_text {
    char text[24];
} dl_duration_text_t;
/* A setting, to the millisecond, so that it can be given again: 250ms, 28.5s, 90m, 0. */
DL_API dl_duration_text_t dl_driver_duration(int64_t ms);
/* A time that was measured, by its first three digits: 250ms, 28.5s, 1.50h. */
DL_API dl_duration_text_t dl_driver_measured(uint64_t ns);

/*
 * Opens a client on a driver from outside the library. `options` is the YAML mapping that would stand
 * under the backend's name, without `driver:` (NULL or "": all defaults); errors call it "<options>".
 * The table goes through the same checks as the built-in ones; what it points to must outlive the client.
 * DL_EINVAL: the table breaks the contract (the message says where). Otherwise as dl_client_open.
 */
DL_API DL_MUST_CHECK dl_status_t dl_client_open_driver(const dl_driver_t *driver, const char *options,
                                                       size_t len, dl_client_t **client, dl_error_t *err);

#ifdef __cplusplus
}
#endif
#endif
