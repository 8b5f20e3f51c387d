/* backend.h - the inner table, for drivers that speak over sockets: a request begins, and ends later. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_BACKEND_H
#define DLI_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

#include "dlock/driver.h"

/*
 * A backend has a table of driver.h without the ops that ask the server for one lock; these are requests
 * here. Everything that begin, withdraw and ended touch is guarded by the client's mutex, so that it is clear
 * whether a request ended or was withdrawn first: nothing in a backend needs a mutex of its own.
 *
 *   core: begin    the mutex is held; the backend only queues, or says `ended` of what cannot be sent
 *   core: flush    what was begun is sent; the mutex is released for that
 *   core: listen_fds, poll, listen    without the mutex, one thread at a time: replies are read and decoded
 *   backend: ended, from begin, flush or listen, between env->lock and env->unlock
 */

typedef enum dli_ask_kind {
    DLI_ASK_TRY,
    DLI_ASK_LEVEL, /* SERVER_COUNT: one more level, with a longer lease */
    DLI_ASK_RENEW,
    DLI_ASK_RELEASE,
    DLI_ASK_WATCH, /* never begun: the driver's watch waits for nothing */
    DLI_ASK_INSPECT,
    DLI_ASK_FORCE
} dli_ask_kind_t;

/* Made by the core, before it begins; its memory stays until it has ended or was withdrawn. What each kind
 * means is said at the ops of dl_driver_t. A table that blocks is asked the same, by a worker (workers.c). */
#define DLI_REQUEST_ROOM 128 /* bytes of the backend's own in each */
typedef struct dli_park dli_park_t;
typedef struct dli_timer dli_timer_t;
typedef struct dli_request dli_request_t;
struct dli_request {
    dli_ask_kind_t kind;
    dl_request_t with; /* RENEW: the deadline only. INSPECT, FORCE: that and the name. `stop` is a table's. */
    void *hold;
    /* Where the answer goes; written with the mutex held. */
    dl_grant_t *grant;      /* TRY, LEVEL */
    dl_renewal_t *renewals; /* RENEW: an entry without an answer keeps DL_EIO */
    size_t n;
    dl_lock_info_t *info; /* INSPECT */
    dl_watch_t **watch;   /* WATCH */
    dl_error_t *err;      /* filled if the status is not DL_OK; NULL: nobody reads it */
    /* The backend says so once, unless the request was withdrawn. It only marks: it calls no op of the
     * backend. The request is the core's again. */
    void (*ended)(dli_request_t *request, dl_status_t status);
    bool leads; /* its caller asks lead_fds for it */
    /* Where processes stand in line. TRY: if it is busy, this one waits and hears. RELEASE: it waits. If not,
     * it gives up its place. */
    bool joins;
    /* TRY: it waits, has done so for a second, and cannot hear: it polls, as those who know no line. */
    bool polls;
    /* Answer to a TRY that joined and is busy: it has a place; to a RELEASE: the first in line has the lock.
     */
    bool in_line;
    /* Answer to a TRY that is busy: who has it tells nobody of its end, and may have it again at once. */
    bool unheard;
    /* Answer to a TRY that ends with DL_EIO: the server was asked and had to say no, as it would again. */
    bool refused;
    /* The core's (call.c) */
    bool (*start)(dli_request_t *request, dli_park_t *park);
    dli_timer_t *timer;
    bool pending; /* it has begun, and neither ended nor was withdrawn */
    bool in_lane; /* it waits for a worker */
    unsigned lane;
    /* The backend's, or the lane's, while it is pending */
    TAILQ_ENTRY(dli_request) turn;
    void *place;
    max_align_t room[DLI_REQUEST_ROOM / sizeof(max_align_t)]; /* not cleared */
};

/* What the core lends to a backend beside dl_driver_env_t. */
typedef struct dli_backend_env {
    void *core;
    void (*lock)(void *core);
    void (*unlock)(void *core);
    /* With the mutex. The caller of this request, which is pending and leads, asks lead_fds again. */
    void (*look_again)(void *core, dli_request_t *request);
    /* With the mutex; only with `owes`. Of this hold nothing is left any more that was when its last request
     * ended, and nothing will come. NULL: there is no core. */
    void (*settled)(void *core, void *hold);
    /* With the mutex: as dl_driver_env_t.report, which takes it. NULL: there is no core. */
    void (*report)(void *core, dl_log_level_t level, const char *text);
} dli_backend_env_t;

typedef struct dli_backend {
    /* The rest; try_acquire, release, renew, inspect and force_release are not called. listen and listen_fds
     * there must be; watch and unwatch with NOTIFY. SESSION and NATIVE_WAIT it cannot have. */
    const dl_driver_t *driver;
    /* Processes that wait for a lock get it in the order of their coming. A TRY that joins and is busy stands
     * in line then, until the next one, or a RELEASE that does not join; its busy_ms may be less than what is
     * left, when it is to ask again. */
    bool lines_up;
    /* Before open. env lives as long as the state. */
    void (*attach)(void *state, const dli_backend_env_t *env);
    /* With the mutex; no system call, and no failure: it is queued, or has ended before this returns. A flush
     * follows. */
    void (*begin)(void *state, dli_request_t *request);
    /* With the mutex; no system call. The core waits no longer: ended is not called any more, and the memory
     * of the request goes. True: it may have been sent, and the server may yet carry it out; false: it surely
     * was not, and will not be. */
    bool (*withdraw)(void *state, dli_request_t *request);
    /* With the mutex, which is released meanwhile; perhaps by several threads at once. Sends what was begun,
     * and waits for nothing. True: whoever listens is to ask listen_fds again. */
    bool (*flush)(void *state);
    /* Optional; with the mutex. Of a hold that was released or refused, while nothing is asked for it: may
     * the server still have something of it? The core then has it released again after a while, until its
     * lease must be over or `settled` says that nothing is left. DL_OK of a release without an err says so,
     * too. NULL: what a release answers says it all. */
    bool (*owes)(void *state, const void *hold);
    /*
     * Optional, all three: a caller reads what its own reply comes on, beside the one that listens. With the
     * mutex: what to poll, and until when at the longest; 0: another thread reads that, or look_again
     * follows; -1: whoever listens does. `late`: it should have come, so the other may have been stopped.
     * *term: 0, or what end_lead gave; then for what follows. If it changes, the core ends what it was.
     */
    int (*lead_fds)(void *state, dli_request_t *request, struct pollfd *fds, bool late, uint64_t *term,
                    uint64_t *until_ns);
    /* With the mutex, which is released meanwhile; after that poll, on the same thread: reads.
     * True: as of flush. */
    bool (*lead)(void *state, uint64_t term, const struct pollfd *fds, size_t n);
    /* With the mutex: it reads no more, or never will. A request that is still pending there; NULL: none, or
     * another reads. If its caller asks lead_fds, it is to, with this *next in *term: nobody else reads
     * before. */
    dli_request_t *(*end_lead)(void *state, uint64_t term, uint64_t *next);
} dli_backend_t;

/* The instant until which a lease keeps a lock that was asked for at sent_ns, by our arithmetic: less by what
 * clocks may differ meanwhile. */
uint64_t dli_valid_until(uint64_t sent_ns, int64_t lease_ms);

/* As dl_client_open_driver (open/open.c). */
dl_status_t dli_client_open_backend(const dli_backend_t *backend, const char *options, size_t len,
                                    dl_client_t **client, dl_error_t *err);

#endif
