/* core.h - the core's own structures, and which lock guards what. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CORE_H
#define DLI_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "dlock/driver.h"
#include "error.h"
#include "layout.h"
#include "owner.h"
#include "sys.h"

/*
 * Locks, in the order in which they may be taken:
 *   hooks_mutex (owner.c)  ->  dl_client.mutex  ->  dl_client.log_lock
 * client->mutex guards everything in this file that is not marked otherwise. It is never held during an op of
 * the driver, a callback or a wait; only log_lock may be taken inside it. A hold whose last reference goes
 * is put aside and given to the driver's drop when the mutex is released (dli_unlock_client); so are lines
 * for the log.
 *
 * The way of a call: lock.c (arguments, re-entry) -> gate.c (my turn in this process) -> acquire.c (try,
 * wait, deadline) -> call.c (the only caller of the driver's claiming, renewing and freeing) -> driver.
 */

/* A call may go on this long after its own end to hear the last answer; half of the 100 ms promised. */
#define DLI_GRACE_NS (50u * (uint64_t)DLI_NS_PER_MS)
#define DLI_LAST_TRY_NS (80u * (uint64_t)DLI_NS_PER_MS)
/* How many renewals are one batch. MySQL locked whole tables with ten times as many in one statement. */
#define DLI_RENEW_BATCH 1000u

typedef struct dli_gate dli_gate_t;
typedef struct dli_log_line dli_log_line_t;
typedef struct dli_hold dli_hold_t;
typedef struct dli_park dli_park_t;
typedef struct dli_turn dli_turn_t;

/* Holds by their next instant (heap.c). A hold is in one heap at most. */
typedef struct dli_heap {
    dli_hold_t **at;
    size_t len, cap;
} dli_heap_t;

/* ---- waiting (park.c) -------------------------------------------------------------------------- */

/* Where one waiting call sleeps: an eventfd that makes it look up. Kept in a pool of the client. */
struct dli_park {
    int fd;
    atomic_bool woken;       /* set after the write, so that a quiet descriptor costs no read */
    const dl_lock_t *lock;   /* the handle of the call */
    dli_park_t *next, *prev; /* in client->parks_used or client->parks_free */
};

/* ---- events (events.c) ------------------------------------------------------------------------- */

typedef struct dli_event {
    struct dli_event *next;
    bool embedded; /* in a hold: the hold is referenced while it is queued; else malloc'ed */
    dl_event_kind_t kind;
    dl_status_t status;
    int64_t valid_ms;
    const char *text; /* static, or `own_text` */
    dli_hold_t *hold; /* NULL: about the backend */
    char own_text[160];
} dli_event_t;

/* ---- holds (hold.c) ---------------------------------------------------------------------------- */

typedef enum dli_hold_state {
    DLI_HOLD_TRYING,    /* belongs to the call that tries to acquire it */
    DLI_HOLD_LIVE,      /* held: gate->current */
    DLI_HOLD_RELEASING, /* being freed on the server: still gate->current, so that nobody overtakes */
    DLI_HOLD_LOST,      /* lost, with levels that were not unlocked yet: in gate->lost */
    DLI_HOLD_ENDED      /* nobody's any more; it may still be an orphan that is freed in the background */
} dli_hold_state_t;

/* One acquisition, from its first try to the end of all that may be left of it on the server. */
struct dli_hold {
    /* Fixed once the try has begun */
    dl_client_t *client;
    dli_gate_t *gate;  /* a reference */
    dli_owner_t owner; /* a reference on owner.thread */
    char owner_text[DL_OWNER_MAX + 1];
    void *driver_hold; /* the driver's; NULL if hold_size is 0 */
    uint64_t hold_id;  /* changes only while DLI_HOLD_TRYING */
    /* Guarded by client->mutex */
    unsigned refs;
    dli_hold_t *next_dead; /* in client->dead */
    dli_hold_state_t state;
    uint32_t levels;     /* entered and not left */
    uint32_t auto_level; /* the lowest level with an automatic lease; 0: none */
    uint64_t token;
    uint64_t valid_until_ns;
    uint64_t acquired_ns;
    uint64_t max_hold_until_ns; /* DLI_NEVER: no bound */
    int64_t lease_ms;           /* the longest lease asked for, what the server may keep it for */
    int session_fd;
    bool op_running; /* SESSION: an op uses driver_hold */
    bool attempted;  /* an op has seen driver_hold: the driver drops it */
    bool renew_failing;
    bool hung_up;       /* SESSION: its descriptor has hung up since the last ping began */
    bool renew_counted; /* in client->renewed_holds */
    bool renew_queued;  /* in the renewal queue, or its batch is under way */
    uint64_t renew_due_ns;
    dli_heap_t *heap; /* the one it is in, or NULL */
    size_t heap_index;
    uint64_t heap_key_ns;
    dli_hold_t *next_renewal; /* in client->renewals */
    dli_hold_t *next_lost;    /* in gate->lost */
    bool orphan;              /* in client->orphans, or being freed */
    bool orphan_may_appear;   /* the request that would create it may still be on its way */
    uint64_t orphan_until_ns;
    uint64_t orphan_pause_ns;
    dli_event_t lost_event; /* so that the news of a loss needs no memory */
};

/* ---- gates (gate.c) ---------------------------------------------------------------------------- */

/* One call that waits for, or has, its turn at a gate. On the caller's stack. */
struct dli_turn {
    dli_turn_t *next;
    dli_owner_t owner;
    dli_park_t *park; /* NULL until the call has to wait */
    bool queued;
    bool granted;    /* gate->active is this one */
    bool look_again; /* the owner's standing at this gate has changed; it keeps its place in the queue */
};

/* One name in this process: at most one holder, one call that talks to the server, the others in a queue. */
struct dli_gate {
    dli_gate_t *next_in_bucket;
    uint64_t hash;
    unsigned refs; /* handles, holds, turns */
    dli_turn_t *first, *last;
    dli_turn_t *active;
    dli_hold_t *current; /* LIVE or RELEASING */
    dli_hold_t *lost;
    size_t name_len;
    char name[];
};

/* ---- client ------------------------------------------------------------------------------------ */

struct dl_lock_handle {
    dl_client_t *client; /* a reference */
    dli_gate_t *gate;    /* a reference */
    bool owned;
    uint64_t owner_number;
    unsigned refs; /* the handle, and each call that may outlive its close */
    bool closed;
};

struct dl_cancel {
    pid_t pid; /* a forked child shares the descriptor, and must not trigger it */
    int fd;    /* readable once triggered */
    atomic_bool triggered;
};

struct dl_client {
    /* Fixed after open */
    pid_t pid; /* with the generation: of the process that opened it */
    unsigned fork_generation;
    const dl_driver_t *driver; /* the table below */
    dl_driver_t table;         /* a whole one, however short the author's was */
    void *state;
    dl_driver_env_t env;
    char uuid[37];
    char label[64];
    char backend[64];
    int64_t lease_ms, renew_every_ms, max_hold_ms, call_timeout_ms, backoff_min_ms, backoff_max_ms;
    bool session;
    int event_fd; /* readable while events wait */
    int wake_fd;  /* the watchdog's */
    int session_epoll_fd;
    int resume_fd;
    dli_exit_hook_t exit_hook;
    bool hooked;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* calls == 0; op_running ended; a callback returned */
    unsigned refs;          /* the client handle, its locks, its threads */
    bool closing;           /* no new call starts, waits end */
    bool closed;            /* nothing is held any more, the driver is closed */
    bool stop_threads;
    unsigned calls; /* calls in progress */

    /* gates, by name */
    dli_gate_t **buckets;
    size_t bucket_count; /* a power of two */
    size_t gate_count;

    dli_park_t *parks_used, *parks_free;
    size_t parks_free_count;

    atomic_uint_fast64_t last_hold_id;
    atomic_uint_fast64_t token_floor;
    dli_hold_t *dead;                    /* without references, to be dropped outside the mutex */
    unsigned busy_outside;               /* threads that do so, or hand out log lines, now */
    atomic_uint_fast64_t last_answer_ns; /* when the server was last heard of */
    uint32_t level_limit;                /* DL_LEVEL_MAX; tests lower it */

    /* watchdog.c: the next instant of each hold */
    dli_heap_t due;
    size_t hold_count; /* holds that exist; both heaps have room for all of them */
    uint64_t watchdog_sleeps_to_ns;
    pthread_t watchdog_thread;

    /* renew.c */
    dli_hold_t *renewals, *renewals_last; /* due, oldest first */
    pthread_cond_t renewals_changed;
    int64_t shortest_renew_ms; /* of all renewed holds since the last time there was none */
    size_t renewed_holds;
    dl_renewal_t *batch; /* DLI_RENEW_BATCH entries; used by the renewal thread only */
    dli_hold_t **batch_holds;
    pthread_t renewal_thread;

    /* housekeeping.c */
    dli_heap_t orphans;
    bool threads_exited;
    pthread_cond_t housekeeping_changed;
    pthread_t housekeeping_thread;

    /* events.c */
    dli_event_t *events, *events_last;
    size_t event_count;
    dl_event_fn event_fn;
    void *event_arg;
    pthread_cond_t callbacks_changed;
    pthread_t callback_thread;
    bool callbacks_started;
    bool callback_running;
    unsigned callback_changers; /* calls that wait for the one that runs */

    dl_client_stats_t stats;
    atomic_uint_fast64_t round_trips, reconnects;

    dli_log_line_t *log_lines, *log_lines_last; /* to be handed out without the mutex */
    atomic_bool logging;
    pthread_rwlock_t log_lock; /* read while log_fn runs, written to change it */
    dl_log_fn log_fn;
    void *log_arg;
};

/* The current instant, and ms as ns without overflow (a wait of 365 days is far below the limit). */
static inline uint64_t dli_now(void) {
    return dli_sys->now_ns();
}
static inline uint64_t dli_ms(int64_t ms) {
    return ms > 0 ? (uint64_t)ms * DLI_NS_PER_MS : 0;
}
static inline uint64_t dli_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t dli_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* mutex.c */
void dli_lock_client(dl_client_t *client);
/* Unlocks, then drops the holds that lost their last reference meanwhile, and hands out log lines. */
void dli_unlock_client(dl_client_t *client);
/* The same, and locks again: before a wait with the mutex, and before a call is counted out. */
void dli_tidy(dl_client_t *client);
/* The calling thread must never be late: its unlocks leave those chores to the housekeeping thread. */
void dli_thread_is_punctual(void);

/* lock.c: drops a reference on a handle, and releases the mutex */
void dli_lock_unref_and_unlock(dl_lock_t *lock);

/* client.c and close.c: every function with the mutex held unless it says so */
bool dli_forked(const dl_client_t *client); /* needs no mutex */
/* Counts a call in; DL_ECLOSED once the client is closing. Every DL_OK needs a dli_call_leave. */
dl_status_t dli_call_enter(dl_client_t *client);
void dli_call_leave(dl_client_t *client);
/* The same without the mutex, for calls that a closing client still answers. */
void dli_call_enter_always(dl_client_t *client);
void dli_call_leave_always(dl_client_t *client);
/* Drops a reference; frees the memory with the last. Unlocks the mutex in any case. */
void dli_client_unref_and_unlock(dl_client_t *client);
/* Closes descriptors and frees memory of a client whose threads never started. Without the mutex. */
void dli_client_free(dl_client_t *client);

/* park.c */
/* NULL with errno: no descriptor or no memory. */
dli_park_t *dli_park_get(const dl_lock_t *lock);
void dli_park_put(dl_client_t *client, dli_park_t *park);
void dli_park_wake(dli_park_t *park);
/* All calls of the client, or those on one handle (NULL: all). */
void dli_park_wake_all(dl_client_t *client, const dl_lock_t *lock);
bool dli_park_drain(dli_park_t *park); /* true: it had been woken */
void dli_park_free_all(dl_client_t *client);

/* gate.c */
uint64_t dli_hash(const char *bytes, size_t len);
dli_gate_t *dli_gate_get(dl_client_t *client, const char *name,
                         size_t len); /* a new reference; NULL: no memory */
void dli_gate_unref(dl_client_t *client, dli_gate_t *gate);
/* The owner's hold at this gate, live or lost; NULL: none. A hold whose validity is over is lost first. */
dli_hold_t *dli_gate_find(dl_client_t *client, dli_gate_t *gate, const dli_owner_t *owner);
bool dli_gate_is_free(const dli_gate_t *gate);
/* Waits until the turn is granted or the owner's standing changed. The mutex is released meanwhile. DL_OK:
 * look at turn->granted; DL_ETIMEDOUT, DL_ECANCELED, DL_ECLOSED, DL_ELIMIT. dli_gate_leave has to follow in
 * any case. */
dl_status_t dli_gate_wait(dl_lock_t *lock, dli_turn_t *turn, uint64_t deadline_ns, const dl_cancel_t *cancel);
void dli_gate_take(dli_gate_t *gate, dli_turn_t *turn);
void dli_gate_leave(dl_client_t *client, dli_gate_t *gate, dli_turn_t *turn);
/* Lets the next one in if nobody holds and nobody tries. */
void dli_gate_next(dl_client_t *client, dli_gate_t *gate);
/* Wakes the queued turns of this owner: its standing has changed. */
void dli_gate_look_again(dli_gate_t *gate, const dli_owner_t *owner);

/* hold.c */
dli_hold_t *dli_hold_new(dl_client_t *client, dli_gate_t *gate,
                         const dli_owner_t *owner); /* NULL: no memory */
void dli_hold_ref(dli_hold_t *hold);
void dli_hold_unref(dli_hold_t *hold);
/* TRYING -> LIVE. False: no validity is left, and it stays TRYING. */
bool dli_hold_begin(dli_hold_t *hold, const dl_grant_t *grant, int64_t lease_ms, bool automatic,
                    uint64_t max_hold_until_ns, uint64_t now);
/* The instant at which it ends, unless it is renewed; and the loss, once that has come. */
static inline uint64_t dli_hold_ends_ns(const dli_hold_t *hold) {
    return dli_min(hold->valid_until_ns, hold->max_hold_until_ns);
}
/* LIVE and over by now: lost. True: it is lost. */
bool dli_hold_expire(dli_hold_t *hold, uint64_t now);
/* The instant until which a request sent at sent_ns keeps a lock, by our arithmetic. */
uint64_t dli_valid_until(uint64_t sent_ns, int64_t lease_ms);
/* LIVE -> LOST: one event, the gate opens. Unless the server itself said so, it is freed there too. */
void dli_hold_lose(dli_hold_t *hold, dl_status_t why, const char *text);
/* The same, with DL_ELOST and the words for what was seen. */
void dli_hold_lose_as(dli_hold_t *hold, dl_loss_t loss);
/* LIVE or LOST -> ENDED (LIVE: through RELEASING); takes it from its gate and drops the gate's reference. */
void dli_hold_end(dli_hold_t *hold);
/* LIVE -> RELEASING: nothing is renewed any more. */
void dli_hold_disarm(dli_hold_t *hold);
/* A confirmed renewal or extension. */
void dli_hold_extended(dli_hold_t *hold, uint64_t sent_ns, int64_t lease_ms, uint64_t now);
void dli_hold_enter_auto(dli_hold_t *hold, uint32_t level, uint64_t now);
void dli_hold_left_level(dli_hold_t *hold, uint64_t now);

/* release.c: with the mutex; released meanwhile. The hold is LIVE, and ENDED afterwards whatever is
 * answered. */
dl_status_t dli_release(dli_hold_t *hold, uint64_t deadline_ns, dl_error_t *err);

/* call.c: without the mutex */
dl_status_t dli_call_try(dli_hold_t *hold, uint32_t level, int64_t lease_ms, int64_t wait_ms,
                         uint64_t deadline_ns, const dl_stop_t *stop, dl_grant_t *grant, dl_error_t *err);
dl_status_t dli_call_release(dli_hold_t *hold, uint32_t level, uint64_t deadline_ns, dl_error_t *err);
dl_status_t dli_call_renew_one(dli_hold_t *hold, int64_t lease_ms, uint64_t deadline_ns,
                               dl_renewal_t *renewal);
void dli_call_renew_batch(dl_client_t *client, size_t n, uint64_t deadline_ns);
dl_status_t dli_call_watch(dl_client_t *client, const dli_gate_t *gate, uint64_t deadline_ns,
                           const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err);
dl_status_t dli_call_wait(dl_client_t *client, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                          dl_error_t *err);
void dli_call_unwatch(dl_client_t *client, dl_watch_t *watch);
/* SESSION: waits until no op uses the hold and marks it used. False at the deadline. With the mutex. */
bool dli_op_begin(dli_hold_t *hold, uint64_t deadline_ns);
void dli_op_end(dli_hold_t *hold); /* with the mutex */
uint64_t dli_call_deadline(const dl_client_t *client);

/* acquire.c */
/* One call of dl_acquire, from its arguments on. */
typedef struct dli_asked {
    const dl_acquire_opts_t *opts;
    int64_t lease_ms; /* never 0: the automatic lease is the client's */
    bool automatic;
    bool queued; /* it had to wait for its turn in this process */
    uint64_t started_ns;
    uint64_t deadline_ns; /* DLI_NEVER: it waits for ever */
    dli_owner_t owner;
} dli_asked_t;
/* The turn is ours. With the mutex; released meanwhile. DL_OK: the hold is LIVE at the gate. */
dl_status_t dli_acquire(dl_lock_t *lock, const dli_asked_t *asked, dl_error_t *err);
/* What one exchange of this call may take: call_timeout, and never much more than the call has. */
uint64_t dli_exchange_deadline(const dl_client_t *client, const dli_asked_t *asked);
/* DL_OK, or why the wait has to end: DL_ECLOSED, DL_ECANCELED. With the mutex. */
dl_status_t dli_stop_reason(const dl_lock_t *lock, const dl_cancel_t *cancel);
/* A pause drawn at random below min(max, min << tries). */
uint64_t dli_backoff(const dl_client_t *client, unsigned tries);

/* watchdog.c, heap.c */
void *dli_watchdog_main(void *client);
void dli_watchdog_wake(dl_client_t *client);
/* Puts, moves or removes the hold so that its place fits its state and its instants. */
void dli_watch_hold(dli_hold_t *hold);
bool dli_heap_room(dli_heap_t *heap, size_t count); /* false: no memory */
void dli_heap_put(dli_heap_t *heap, dli_hold_t *hold, uint64_t key_ns);
void dli_heap_remove(dli_heap_t *heap, dli_hold_t *hold);
bool dli_heap_is_sound(const dli_heap_t *heap);

/* renew.c */
void *dli_renewal_main(void *client);
void dli_renewal_queue(dli_hold_t *hold);
int64_t dli_renew_every(const dl_client_t *client, const dli_hold_t *hold);

/* orphan.c */
/* The hold's request may have been, or may yet be (may_appear), carried out: free it in the background,
 * until it must have run out on the server. */
void dli_orphan_add(dli_hold_t *hold, bool may_appear, uint64_t until_ns);
/* Tries to free the first orphan. The mutex is released meanwhile. DL_OK: it is done with, or will be tried
 * again. */
dl_status_t dli_orphan_try_first(dl_client_t *client, uint64_t deadline_ns);
/* Gives it up; no harm if it is none any more. */
void dli_orphan_forget(dli_hold_t *hold);

/* housekeeping.c */
void *dli_housekeeping_main(void *client);
void dli_hear_thread_exit(dli_exit_hook_t *hook); /* without the mutex */

/* events.c */
void dli_event_lost(dli_hold_t *hold, dl_status_t why, const char *text);
void dli_event_hold(dl_client_t *client, dli_hold_t *hold, dl_event_kind_t kind, dl_status_t status,
                    const char *text);
void dli_event_warning(dl_client_t *client, const char *text);
bool dli_event_take(dl_client_t *client, dl_event_t *event);
void dli_events_free(dl_client_t *client);
/* event_fn was changed: what waits goes to the new reader. */
void dli_events_reader_changed(dl_client_t *client);

/* callbacks.c */
bool dli_in_callback(const dl_client_t *client); /* is this the thread of a running callback? */

/* log.c */
void dli_log(dl_client_t *client, dl_log_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void dli_log_emit(dl_client_t *client, dli_log_line_t *lines); /* without the mutex; frees them */
/* Without the mutex. */
void dli_env_report(void *client, dl_log_level_t level, const char *text); /* dl_driver_env_t.report */
void dli_env_count(void *client, dl_count_t what, uint64_t n);             /* dl_driver_env_t.count */

/* driver_check.c: copies the author's table into a whole one and checks it. */
dl_status_t dli_driver_take(const dl_driver_t *given, dl_driver_t *table, dl_error_t *err);

#endif
