/* core.h - the core's own structures, and which lock guards what. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CORE_H
#define DLI_CORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "backend.h"
#include "dlock/driver.h"
#include "error.h"
#include "layout.h"
#include "owner.h"
#include "sys.h"

/*
 * A client is a monitor: its state changes under its one mutex, in steps that wait for nothing. Locks, in the
 * order in which they may be taken:
 *   hooks_mutex (owner.c)  ->  a driver's own  ->  dl_client.mutex  ->  dl_queue.mutex, dl_client.log_lock
 * client->mutex guards everything in this file that is not marked otherwise. It is never held during an op of
 * the driver, a callback or a wait. What has to be done without it (a driver's drop, lines for the log) is
 * put aside until it is released (dli_unlock_client).
 *
 * docs/design.md tells the way of a call.
 */

/* A call may go on this long after its own end to hear the last answer; half of the 100 ms promised. */
#define DLI_GRACE_NS (50u * (uint64_t)DLI_NS_PER_MS)
#define DLI_LAST_TRY_NS (80u * (uint64_t)DLI_NS_PER_MS)
/* How many renewals are one batch. MySQL locked whole tables with ten times as many in one statement. */
#define DLI_RENEW_BATCH 1000u
/* A claim is passed on so often at most, and for so long (pass.c). */
#define DLI_PASS_MAX 32u
#define DLI_PASS_NS (10u * (uint64_t)DLI_NS_PER_MS)
/* How many threads claim for queues at once (workers.c); of the other lanes there are fewer. */
#define DLI_CLAIM_WORKERS 8u
/* A native wait that is not to last: the driver is only to know that the call goes on. */
#define DLI_BRIEF_WAIT_MS 1

typedef struct dli_claim dli_claim_t;
typedef struct dli_free dli_free_t;
typedef struct dli_gate dli_gate_t;
typedef struct dli_hold dli_hold_t;
typedef struct dli_log_line dli_log_line_t;
typedef struct dli_op dli_op_t;
typedef struct dli_worker dli_worker_t;

/* ---- what is found by a number (tree.c) ---------------------------------------------------------- */

/* In one tree, whose root is a pointer to one. Adding cannot fail. */
typedef struct dli_node {
    struct dli_node *up, *left, *right;
    uint64_t key;
} dli_node_t;

struct dli_timer {
    dli_node_t node; /* by its instant; 0: it is not set */
    void (*fire)(dli_timer_t *timer, uint64_t now);
};

/* What a pointer to a member belongs to; NULL stays NULL. */
#define DLI_CONTAINER_OF(type, member, at) ((type *)dli_container_of((at), offsetof(type, member)))
static inline void *dli_container_of(void *member, size_t offset) {
    return member != NULL ? (char *)member - offset : NULL;
}

/* ---- waiting (park.c) -------------------------------------------------------------------------- */

/* Where one thread sleeps, until it is woken. Kept in a pool of the client. */
struct dli_park {
    int fd;                      /* an eventfd, for who polls other descriptors too */
    atomic_uint woken;           /* since it was drained: 1 */
    bool raised;                 /* and by the eventfd */
    bool sleeps;                 /* its thread waits for the word; or is about to, and has the mutex */
    LIST_ENTRY(dli_park) beside; /* in client->parks_used or client->parks_free */
};

/* How many are woken at once, after the mutex was released: they need it. */
#define DLI_WAKES_MAX 64

/* ---- events (events.c) ------------------------------------------------------------------------- */

/* What a queue hands out, in one order. */
typedef struct dli_entry {
    TAILQ_ENTRY(dli_entry) turn;
    bool is_event; /* a dli_event_t, else a dli_op_t; it is the first member of both */
} dli_entry_t;
typedef TAILQ_HEAD(dli_entries, dli_entry) dli_entries_t;

typedef struct dli_event {
    dli_entry_t entry;
    dl_event_kind_t kind;
    dl_status_t status;
    int64_t valid_ms;
    const char *text; /* static, or behind it */
    dl_client_t *client;
    dli_hold_t *hold; /* a reference while it is queued; NULL: it is of the client */
} dli_event_t;

/* ---- claims (claim.c, renew.c, free.c) ---------------------------------------------------------- */

/* What the server knows of one acquisition, from its first try to the end of all that may be left of it. */
struct dli_claim {
    /* Fixed once the try has begun */
    dli_gate_t *gate; /* a reference */
    char owner_text[DLI_OWNER_TEXT];
    unsigned refs;
    uint64_t hold_id;
    dli_hold_t *hold; /* who has it while it is LIVE; NULL: nobody */
    uint64_t token;   /* of its first hold */
    uint64_t valid_until_ns;
    int64_t lease_ms;           /* the longest lease asked for, what the server may keep it for */
    dli_timer_t timer;          /* its end or renewal; later its next free */
    dli_claim_t *next_due;      /* in client->due; at its end in client->dead */
    TAILQ_HEAD(, dli_op) users; /* SESSION: operations that want to use it next */
    int session_fd;
    bool busy : 1;      /* SESSION: an exchange uses the driver's hold */
    bool hung_up : 1;   /* SESSION: its descriptor has hung up since the last ping began */
    bool attempted : 1; /* an op of the driver has seen the driver's hold: the driver drops it */
    /* renew.c */
    bool renew_failing : 1;
    bool renew_queued : 1; /* in client->due, or its batch is under way */
    /* free.c: it is nobody's, and may still be on the server */
    bool freeing : 1;
    bool may_appear : 1; /* the request that would create it may still be on its way */
    bool is_rest : 1;    /* a backend has asked for it once already */
    bool last_try : 1;   /* the client closes, and it was tried before */
    /* pass.c */
    uint16_t passes;     /* so often it was passed on */
    uint16_t passes_max; /* at most, and as long as holds have tokens */
    uint32_t trip_ns;    /* from its request to the answer; at most DLI_PASS_NS */
    uint64_t renew_due_ns;
    union {
        uint64_t granted_ns;    /* when its first hold began */
        uint64_t free_until_ns; /* freeing: it is tried until then */
    };
    dli_free_t *free; /* NULL: it is not being freed, or waits for memory */
};

/* Behind it stands the driver's hold, where drivers have one. */
#define DLI_HOLD_AT \
    ((sizeof(dli_claim_t) + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t))

/* The release of a claim in the background. */
struct dli_free {
    dli_claim_t *claim; /* NULL: the client's spare one, which nobody has */
    uint64_t pause_ns;
    dli_request_t request;
};

/* ---- holds (hold.c) ---------------------------------------------------------------------------- */

typedef enum dli_hold_state {
    DLI_HOLD_TRYING,    /* belongs to the operation that tries to acquire it */
    DLI_HOLD_LIVE,      /* held: gate->current */
    DLI_HOLD_RELEASING, /* being freed on the server: still gate->current, so that nobody overtakes */
    DLI_HOLD_LOST,      /* lost, with levels that were not unlocked yet: in gate->lost */
    DLI_HOLD_ENDED
} dli_hold_state_t;

/* What an owner has: a name, entered so many times, on a claim. */
struct dli_hold {
    dli_gate_t *gate;   /* a reference */
    dli_owner_t owner;  /* a reference on owner.thread */
    dli_claim_t *claim; /* a reference, from LIVE to LOST */
    dli_op_t *unlock;   /* while it is RELEASING */
    unsigned refs;
    dli_hold_state_t state;
    uint32_t levels;     /* entered and not left */
    uint32_t auto_level; /* the lowest level with an automatic lease; 0: none */
    uint64_t hold_id, token;
    uint64_t acquired_ns;
    uint64_t max_hold_until_ns;  /* DLI_NEVER: no bound */
    LIST_ENTRY(dli_hold) beside; /* in gate->lost */
    dli_event_t lost_event;      /* so that the news of a loss needs no memory */
};

/* ---- gates (gate.c) ---------------------------------------------------------------------------- */

/* One name in this process: at most one holder, one operation that asks the server, the others in a queue. */
struct dli_gate {
    dli_node_t node; /* in client->gates */
    dl_client_t *client;
    unsigned refs; /* handles, claims, holds */
    TAILQ_HEAD(, dli_op) queue;
    dli_op_t *active;    /* whose turn it is */
    dli_hold_t *current; /* LIVE or RELEASING */
    LIST_HEAD(, dli_hold) lost;
    dli_claim_t *passed; /* for who is active to take: a reference */
    uint64_t trouble_ns; /* since then the server has answered nobody who asked for it; 0: it did */
    uint64_t rest_ns;    /* so long the next one lets other processes ask first */
    uint64_t turn_ns;    /* so long this process has had it */
    uint64_t busy_ns;    /* when the server said last that another has it */
    dl_watch_t *watch;   /* the driver's, while operations of this process wait */
    bool woken;          /* since the last try began */
    bool hears;          /* releases are heard, says the driver */
    bool in_line;        /* this process may stand in line on the server */
    uint64_t left_ns;    /* nobody waits since then, but the watch is kept for a while; 0: it is not */
    bool unwatch;        /* in client->unwatch */
    bool polled;         /* found busy since its timer was set */
    bool watch_changes;  /* the driver begins or ends it: there must be no other meanwhile */
    dli_gate_t *next_unwatch;
    dli_timer_t timer;    /* once it was found busy: does the one whose turn it is go on? */
    const dli_op_t *late; /* it did not, when that was looked at last */
    uint64_t late_ns;     /* since then */
    size_t name_len;
    char name[];
};

struct dl_lock_handle {
    dl_client_t *client; /* a reference */
    dli_gate_t *gate;    /* a reference */
    bool owned;
    uint64_t owner_number;
    unsigned refs; /* the handle, and each operation until its completion was taken */
    bool closed;
};

struct dl_cancel {
    dli_origin_t origin; /* a forked child shares the descriptor, and must not trigger it */
    int fd;              /* readable once triggered */
    atomic_bool triggered;
};

/* ---- operations (op.c) -------------------------------------------------------------------------- */

/* What an operation needs next. */
typedef enum dli_next {
    DLI_STEP, /* the next step, at once */
    DLI_ASK,  /* op->ask carried out by the driver; the next step has the answer */
    DLI_WAIT, /* a poke, or op->until_ns */
    DLI_DONE
} dli_next_t;
typedef dli_next_t (*dli_step_fn)(dli_op_t *op);

/* Where an operation of a queue is; one of a blocking call is CARRIED, or WAITING among loop.sleepers. */
typedef enum dli_op_place {
    DLI_OP_CARRIED, /* a thread carries it on */
    DLI_OP_READY,   /* in client->ready: to be carried on by whoever releases the mutex next */
    DLI_OP_WAITING, /* for a poke or its timer */
    DLI_OP_ASKED,   /* its request is pending, or its watch is called soon */
    DLI_OP_ENDED    /* completed; in its queue */
} dli_op_place_t;

typedef enum dli_lane_kind {
    DLI_LANE_RENEW,
    DLI_LANE_FREE, /* in the background; and chores */
    DLI_LANE_UNLOCK,
    DLI_LANE_CLAIM,
    DLI_LANES
} dli_lane_kind_t;

/* With what a call begins one. */
typedef struct dli_asked {
    dl_op_kind_t kind;
    dli_step_fn step; /* the first */
    int64_t lease_ms; /* DL_OP_EXTEND */
    void *tag;
    dl_acquire_opts_t opts; /* DL_OP_ACQUIRE */
} dli_asked_t;

struct dli_op {
    dli_entry_t entry;
    dl_op_kind_t kind;
    dl_client_t *client;
    dl_lock_t *lock;          /* a reference; NULL: nobody called, it frees what an ended thread has left */
    dli_gate_t *gate;         /* of the handle, or of the hold */
    dli_node_t by_handle;     /* in client->ops, while it runs */
    TAILQ_ENTRY(dli_op) turn; /* in gate->queue */
    TAILQ_ENTRY(dli_op) in;   /* client->ready or to_watch, or loop.sleepers */
    TAILQ_ENTRY(dli_op) by_claim; /* in claim->users */
    dli_node_t by_owner;          /* in client->queued, while it is in the queue of its gate */
    dli_node_t by_id;             /* in its queue, until it is taken */
    dli_owner_t owner;            /* no reference: the caller, or a task */
    dli_step_fn step;
    dli_op_place_t place;
    dli_park_t *park;  /* of the thread that carries it; NULL: none */
    bool async;        /* not carried on by a caller: its place is of interest */
    bool asks, waits;  /* of a blocking call: its thread is in the driver; there, or asleep */
    uint64_t spins_ns; /* since then, and is in client->spin.spinning; 0: it does not */
    dli_op_t *outer;   /* in thread->calls */
    uint64_t due_ns;   /* when its thread should go on at the latest */
    uint64_t term;     /* it reads its own reply; 0: it does not */
    bool cancelled;
    bool is_user;      /* in claim->users */
    bool listens;      /* waits for a release */
    uint64_t until_ns; /* of the wait, or of what is asked */
    dli_timer_t timer;
    dl_status_t status; /* in the end */

    /* What is asked, and the answer */
    dli_ask_kind_t ask;
    dl_status_t answer;
    bool interrupted; /* somebody poked it while the driver was asked */
    uint32_t level;
    int64_t lease_ms; /* never 0: the automatic lease is the client's */
    int64_t wait_ms;  /* on the server */
    uint64_t called_ns;
    dl_lock_info_t *info;
    dli_claim_t *claim; /* a reference: what is asked about */
    dli_hold_t *hold;   /* a reference */

    /* acquire.c */
    dl_acquire_opts_t opts; /* cancel: of a blocking call, until its thread has left it */
    bool automatic;
    bool queued, was_queued; /* at the gate */
    bool counted;            /* in stats.waiting_now */
    bool watch_refused;      /* the driver cannot watch here: poll */
    bool last_try;           /* the deadline is over; this try is the last */
    bool held_by_other; /* another holder was seen, here, on the server or by the queue of this process */
    bool told_no_expiry;
    bool was_refused;  /* in this trouble, by an answer or an error with time left */
    bool longer;       /* a level that needs a longer lease */
    dl_watch_t *watch; /* that it has begun */
    uint64_t began_ns; /* when the last try began */
    dli_step_fn then;  /* extend.c */
    unsigned tries;    /* since the last answer of another kind; for the backoff */
    uint64_t took_ns;  /* the shortest of these that the server refused */
    uint64_t started_ns;
    uint64_t deadline_ns; /* DLI_NEVER: it waits for ever */
    uint64_t trouble_ns;  /* when the first try without an answer began; 0: the last one had an answer */

    /* queue.c */
    dl_queue_t *queue; /* NULL: nobody takes its completion */
    void *tag;

    /* Not zeroed as it begins */
    dl_error_t err; /* of the last answer, later of the end */
    union {
        dl_grant_t grant;
        dl_renewal_t renewal;
    } with;
    dli_request_t request;
};

/* ---- queues (queue.c) --------------------------------------------------------------------------- */

struct dl_queue {
    dli_origin_t origin;
    int fd;       /* readable while entries wait */
    size_t limit; /* DL_QUEUE_MAX; tests lower it */

    pthread_mutex_t taking; /* to look at operations that are not taken; before a client's mutex */
    pthread_mutex_t mutex;  /* guards the rest; behind a client's mutex */
    dli_entries_t entries;
    dli_node_t *ops; /* begun and not taken yet, by their ids */
    size_t op_count;
    uint64_t last_id;
    dl_client_t *clients; /* whose events come here; a reference each */
};

/* ---- client ------------------------------------------------------------------------------------ */

/* The client's one thread (loop.c): descriptors and instants. */
typedef struct dli_loop {
    pthread_t thread;
    bool started;
    int wake_fd;
    int session_epoll_fd;
    int resume_fd;
    uint64_t sleeps_to_ns; /* 0: it is awake, or being woken; DLI_NEVER before it is started */
    uint64_t told_ns;      /* until then it was to sleep at most, when it was woken last */
    dli_node_t *timers;
    bool is_woken;                    /* by whoever releases the mutex */
    bool again;                       /* woken since its turn began */
    bool flushes;                     /* before it sleeps: requests have begun */
    bool listening;                   /* a thread is between the driver's listen_fds and listen */
    bool reading;                     /* it is in listen */
    bool look_anew;                   /* it was told to begin anew */
    uint64_t round;                   /* of listening: one that is late finds another */
    uint64_t late_ns;                 /* since then who listens is late; 0: it was not, when last looked at */
    dli_op_t *listener;               /* of the caller that listens; NULL: the loop does, or nobody */
    struct pollfd fds[DL_LISTEN_MAX]; /* that are polled, once listens_to_ns is set */
    size_t fd_count;
    atomic_uint_fast64_t listens_to_ns; /* 0: it is about to say */
    TAILQ_HEAD(, dli_op) sleepers;      /* of callers that wait for a release */
    size_t waits;                       /* for how many nobody sleeps here: operations of queues, requests */
    size_t asks;                        /* so many of these are requests of queues, or of the core */
    uint64_t slept_ns;                  /* so long the machine had slept when last looked at */
    uint64_t tend_ns; /* when who listens is late; else when the loop looks whether anything came meanwhile */
} dli_loop_t;

/* Whether callers spin before they sleep (spin.c). */
typedef struct dli_spin {
    unsigned most;     /* at once; fixed after open */
    unsigned spinning; /* so many do, or sleep since they did in vain */
    uint64_t trip_ns;  /* the usual time from a request to its reply, of those that came in time */
    unsigned misses;   /* in a row */
    uint64_t rest_ns;  /* until then nobody does */
} dli_spin_t;

/* Threads for the driver's blocking ops (workers.c). */
struct dli_worker {
    dl_client_t *client;
    dli_lane_kind_t lane;
    pthread_t thread;
    pthread_cond_t has_work;
    dli_park_t *park;
    dli_worker_t *next_idle;
    bool is_idle; /* in lane->idle */
    bool waits;   /* for another holder, on the server */
};
typedef struct dli_lane {
    TAILQ_HEAD(, dli_request) queue;
    dli_worker_t workers[DLI_CLAIM_WORKERS];
    size_t count;
    bool is_short; /* the last start of a worker failed */
    dli_worker_t *idle;
} dli_lane_t;

struct dl_client {
    /* Fixed after open */
    dli_origin_t origin;
    const dl_driver_t *driver;  /* the table below */
    dl_driver_t table;          /* a whole one, however short the author's was */
    const dli_backend_t *inner; /* NULL: the table blocks, and workers ask it for queues */
    dli_backend_env_t inner_env;
    void *state;
    dl_driver_env_t env;
    char uuid[37];
    char label[64];
    char backend[64];
    int64_t lease_ms, renew_every_ms, max_hold_ms, call_timeout_ms, backoff_min_ms, backoff_max_ms;
    bool session;
    bool passes; /* locks on, within this process */
    dli_spin_t spin;
    dli_exit_hook_t exit_hook;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* calls == 0; a poke without a park; a callback returned */
    unsigned refs;          /* the client handle, its locks, its callback thread, queues that hear of it */
    bool closing;           /* no new operation starts, waits end */
    bool closes_inside;     /* a callback */
    bool closed;            /* nothing is held any more, the driver is closed */
    bool stop_threads;
    unsigned calls; /* in progress: operations, calls, and threads that do what was put aside */

    dli_node_t *gates;   /* by the hashes of their names */
    dli_node_t *queued;  /* operations at them, by gate and owner */
    dli_gate_t *unwatch; /* whose watch is to be ended outside the mutex */

    LIST_HEAD(dli_parks, dli_park) parks_used, parks_free;
    size_t parks_free_count;
    atomic_uint *wakes[DLI_WAKES_MAX]; /* words of parks, to be woken by whoever releases the mutex */
    size_t wake_count;

    dli_node_t *ops; /* that run, by their handles */
    TAILQ_HEAD(, dli_op) ready;
    TAILQ_HEAD(, dli_op) to_watch; /* operations of queues whose driver's watch is called outside the mutex */
    bool to_flush;                 /* requests have begun */
    dli_loop_t loop;
    dli_lane_t lanes[DLI_LANES];

    uint64_t last_hold_id;
    uint64_t token_floor;
    dli_claim_t *dead;            /* without references, to be dropped outside the mutex */
    uint64_t last_answer_ns;      /* when the server was last heard of */
    dl_error_t trouble;           /* why it was last not */
    const dli_gate_t *trouble_at; /* when asked for a lock of this one, which may be gone */
    uint32_t level_limit;         /* DL_LEVEL_MAX; tests lower it */
    bool threads_exited;
    uint64_t close_until_ns; /* how long a close asks a server that is silent */

    /* renew.c */
    dli_claim_t *due, *due_last; /* to be renewed */
    dl_renewal_t *batch;         /* DLI_RENEW_BATCH entries, of the one batch that is under way */
    dli_claim_t **batch_claims;
    size_t batch_len; /* 0: none is */
    uint64_t batch_called_ns;
    dli_request_t batch_request;
    dli_timer_t batch_timer;

    dli_free_t spare_free; /* free.c: where there is no memory */

    /* events.c */
    int event_fd;      /* readable while events wait */
    bool events_shown; /* by it */
    dli_entries_t events;
    size_t event_count;
    dl_queue_t *event_queue; /* where they go instead; it has a reference on the client */
    dl_client_t *next_of_queue;
    dl_event_fn event_fn;
    void *event_arg;
    pthread_cond_t callbacks_changed;
    pthread_t callback_thread;
    bool callbacks_started;
    bool callback_running;
    unsigned callback_changers; /* calls that wait for the one that runs */

    dl_client_stats_t stats;
    atomic_uint_fast64_t round_trips, reconnects;

    dl_error_t *why_deaf; /* trial.c: for what the driver warns of while it is to begin to hear; or NULL */
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
/* Carries on what is ready, unlocks, and does what was put aside. */
void dli_unlock_client(dl_client_t *client);
void dli_release_client(dl_client_t *client); /* and wakes who was to be woken */
/* For a system call of a backend, which is what the loop, if it is to be woken, will wait for. */
void dli_release_for_a_moment(dl_client_t *client);
/* The same, and locks again. */
void dli_tidy(dl_client_t *client);
/* Wakes who was to be woken, before this thread is counted on for something else: it may be stopped, or leave
 * by a jump. Releases the mutex meanwhile. */
void dli_wake_first(dl_client_t *client);
/* A jump of this thread may have left it in that, amid what it does for the client (NULL: for any). */
void dli_end_waking(const dl_client_t *client);
/* Without what was put aside: for what a driver calls, with its own mutexes held. */
void dli_unlock_client_at_once(dl_client_t *client);
/* Before a wait with a condition variable, which releases the mutex by itself. */
void dli_before_wait(dl_client_t *client);
/* The thread is never to be late: its unlocks leave to a worker what may take long. Says how it was. */
bool dli_be_punctual(bool now);
void dli_punctual_as_before(const bool *before);
/* Until the end of the block. */
#define DLI_PUNCTUAL \
    __attribute__((cleanup(dli_punctual_as_before), unused)) const bool dli_punctual_ = dli_be_punctual(true)
bool dli_has_chores(const dl_client_t *client);

/* lock.c */
/* Copies what the caller's options have; of what came later they keep the initial values. */
dl_status_t dli_take_opts(const dl_acquire_opts_t *given, dl_acquire_opts_t *opts, dl_error_t *err);
dl_status_t dli_check_lease(int64_t lease_ms, dl_error_t *err);
/* Who calls with this handle. False: no memory. */
bool dli_lock_owner(const dl_lock_t *lock, dli_owner_t *owner);
void dli_lock_unref(dl_lock_t *lock); /* not the last one of a closed client's */
void dli_lock_unref_and_unlock(dl_lock_t *lock);

/* close.c: every function with the mutex held unless it says so */
/* A client that closes asks for call_timeout from then, or from the last answer of the server if that is
 * later. */
uint64_t dli_close_until(const dl_client_t *client);
bool dli_forked(const dl_client_t *client); /* needs no mutex */
/* Begins a call: it is counted in and the mutex is held, or DL_OK is not returned. Without the mutex. */
dl_status_t dli_call_enter(dl_client_t *client);
dl_status_t dli_call_enter_always(dl_client_t *client); /* one that a closing client still answers */
void dli_call_leave(dl_client_t *client);
void dli_call_leave_and_unlock(dl_client_t *client);
void dli_client_unref_and_unlock(dl_client_t *client);
void dli_client_free(dl_client_t *client); /* one without threads; without the mutex */

/* park.c */
/* NULL with errno: no descriptor or no memory. */
dli_park_t *dli_park_get(dl_client_t *client);
void dli_park_put(dl_client_t *client, dli_park_t *park);
void dli_park_wake(dl_client_t *client, dli_park_t *park);
bool dli_park_drain(dli_park_t *park); /* true: it had been woken */
void dli_park_free_all(dl_client_t *client);
/* A write to an eventfd, which only fails when it is readable already; and what takes it back. */
void dli_eventfd_raise(int fd);
void dli_eventfd_lower(int fd);

/* tree.c */
uint64_t dli_hash(const void *bytes, size_t len);
void dli_tree_add(dli_node_t **root, dli_node_t *node, uint64_t key);
void dli_tree_remove(dli_node_t **root, dli_node_t *node);
dli_node_t *dli_tree_find(dli_node_t *root, uint64_t key); /* the oldest with this key; NULL: none */
/* By their keys, and those of one key by their age: the first (node NULL), and the next. */
dli_node_t *dli_tree_after(dli_node_t *root, const dli_node_t *node);
void dli_timer_set(dli_node_t **timers, dli_timer_t *timer, uint64_t at_ns);
void dli_timer_clear(dli_node_t **timers, dli_timer_t *timer);
/* When the first is due; DLI_NEVER: there is none. */
uint64_t dli_timers_due(dli_node_t *timers);

/* loop.c */
int dli_loop_start(dl_client_t *client); /* if it does not run; 0 or an errno */
void dli_loop_wake(dl_client_t *client);
bool dli_loop_is_awake(const dl_client_t *client); /* it will look at everything, and flush */
void dli_loop_call_again(dl_client_t *client);     /* a worker could not be had */
/* Sets a timer of the client's; the loop, once it runs, sees it in time. */
void dli_loop_at(dl_client_t *client, dli_timer_t *timer, uint64_t at_ns);
/* The operation of a blocking call sleeps until this instant, an answer or a poke. If it waits for a release
 * or an answer it listens meanwhile, for all. */
void dli_loop_sleep(dli_op_t *op, uint64_t until_ns);
/* Something for which no caller listens begins or ends to wait for a release or an answer. */
void dli_loop_listen(dl_client_t *client, bool begins);
/* The same for a request of it, for whose answer who listens is soon looked at. */
void dli_loop_ask(dl_client_t *client, bool begins);
void dli_loop_answered(dli_op_t *op); /* the request of a blocking call has ended */
void dli_loop_fire(dl_client_t *client);
/* Nobody else does. Releases the mutex meanwhile. */
void dli_loop_listen_alone(dl_client_t *client, uint64_t until_ns);
/* Somebody who waits listens from now on, if nobody does. */
void dli_loop_hand_over(dl_client_t *client);
/* Its thread has left it by a jump, and neither sleeps nor listens any more. */
void dli_loop_forget(dli_op_t *op);
/* Its reply is here, or it does not wait any more: if it was to read for others, another does. */
void dli_loop_end_lead(dli_op_t *op);
/* There is a new watch: whoever listens looks again at what is to be polled. */
void dli_loop_listen_anew(dl_client_t *client);
/* dl_driver_env_t.woken; without the mutex. core NULL: nobody waits. */
void dli_env_woken(void *core, const char *name, size_t name_len, int hears);

/* spin.c */
/* Until when the thread of this operation is to look for its reply without sleeping; 0: not at all. */
uint64_t dli_spin_until(dli_op_t *op);
/* It did, until that instant; and whether the reply came meanwhile. */
void dli_spin_note(dli_op_t *op, bool is_hit, uint64_t ended_ns);
/* It spins no more, whether or not it ever did. */
void dli_spin_end(dli_op_t *op);
/* Is who has begun to let others begin before anything is sent? Its own reply may then have come, too, before
 * it would sleep. */
bool dli_spin_gives_way(const dl_client_t *client);

/* workers.c */
void dli_lane_push(dl_client_t *client, dli_request_t *request);
void dli_lane_remove(dl_client_t *client, dli_request_t *request);
/* Carries out the first on this thread; false: there is none. Releases the mutex meanwhile. */
bool dli_lane_carry(dl_client_t *client, dli_lane_kind_t kind);
void dli_lane_chores(dl_client_t *client); /* were put aside by a thread that must not do them */
/* Starts workers where there is work and none; true: one could not be had. */
bool dli_lanes_call_again(dl_client_t *client);
int dli_renewals_start(dl_client_t *client); /* as dli_loop_start */
void dli_workers_stop(dl_client_t *client);  /* without the mutex */

/* op.c */
/* What an inspection learns stands behind it. NULL: no memory. */
dli_op_t *dli_op_new(const dli_asked_t *asked);
/* Begins an operation on a handle: it is counted in and the mutex is held, or DL_OK is not returned. */
dl_status_t dli_op_enter(dli_op_t *op, dl_lock_t *lock, dl_error_t *err);
/* A blocking call. What an inspection learns goes to info. */
dl_status_t dli_op_call(const dli_asked_t *asked, dl_lock_t *lock, dl_lock_info_t *info, dl_error_t *err);
/* An operation of a queue, or of nobody. */
void dli_op_start(dli_op_t *op);
/* Carries out what the operation of a blocking call asks, or a watch. With the mutex; released meanwhile. */
void dli_op_ask(dli_op_t *op);
/* Calls the driver's watch for operations of queues. Releases the mutex meanwhile. */
void dli_ops_watch(dl_client_t *client);
void dli_run_ready(dl_client_t *client);
/* Something has changed for this operation; it looks again. */
void dli_op_poke(dli_op_t *op);
/* All that run, or those on one handle (NULL: all). */
void dli_op_poke_all(dl_client_t *client, const dl_lock_t *lock);
/* DL_OK, or why the wait has to end: DL_ECLOSED, DL_ECANCELED. */
dl_status_t dli_op_stop_reason(const dli_op_t *op);
/* Whether it can sleep; DL_ENOMEM, DL_ELIMIT: a blocking call has no descriptor to do so. */
dl_status_t dli_op_can_wait(dli_op_t *op);
/* The answer as it is on the thread that takes it: DL_ELOST if validity is over. */
void dli_op_judge(dli_op_t *op);
void dli_op_give_up(dli_op_t *op); /* nobody takes what it has acquired */
void dli_op_leave(dli_op_t *op);
void dli_op_free_and_unlock(dli_op_t *op); /* after the completion was taken or dropped */
/* Ends: the status and, where the message is not its own, the plain text. */
dli_next_t dli_op_end(dli_op_t *op, dl_status_t status);
void dli_op_about(dli_op_t *op, dli_hold_t *hold);

/* acquire.c, unlock.c, extend.c, query.c: the first steps */
dli_next_t dli_acquire_step(dli_op_t *op);
dli_next_t dli_unlock_step(dli_op_t *op);
dli_next_t dli_extend_step(dli_op_t *op);
dli_next_t dli_query_step(dli_op_t *op);
/* The whole hold of a thread that has ended; false: no memory. */
bool dli_unlock_left_behind(dli_hold_t *hold);
/* A worker has come to a try before op->until_ns. What it may take counts from here, unless the server
 * has answered nobody meanwhile. */
void dli_acquire_ask_now(dli_op_t *op);
/* Says whether its try keeps this process in line on the server, or polls (backend.h). */
void dli_acquire_line_up(dli_op_t *op, dli_request_t *request);
/* A try has waited for a worker as long as an exchange may take. It may go on while the server answers
 * others, until then; in the past: no longer, as all that is no try. */
uint64_t dli_acquire_may_queue_until(const dli_op_t *op, uint64_t now);
/* Until when one exchange of this call may go on: call_timeout, and never much more than the call has. */
uint64_t dli_exchange_deadline(const dli_op_t *op, uint64_t now);
/* extend.c: the server is told of op->hold, which takes an exchange: that it has so many levels, and how long
 * its lease is. `then` has the outcome for the caller in op->answer. */
dli_next_t dli_tell_server(dli_op_t *op, uint32_t level, dli_step_fn then);
/* A pause drawn at random below min(max, min << tries). */
uint64_t dli_backoff(const dl_client_t *client, unsigned tries);

/* trial.c */
/* Tries a lock of nobody's, for dl_client_check, and says how that went. Without the mutex. */
void dli_trial(dl_client_t *client, dl_finding_fn fn, void *arg);

/* gate.c */
dli_gate_t *dli_gate_get(dl_client_t *client, const char *name,
                         size_t len); /* a reference; NULL: no memory */
/* Of all: the first (gate NULL), and the next. */
dli_gate_t *dli_gate_after(dl_client_t *client, const dli_gate_t *gate);
dli_gate_t *dli_gate_find_name(dl_client_t *client, const char *name, size_t len); /* NULL: unused */
void dli_gate_unref(dli_gate_t *gate);
/* The owner's hold at this gate, live or lost; NULL: none. One whose validity is over is lost: a starved loop
 * must not keep a dead hold alive. */
dli_hold_t *dli_gate_find(dli_gate_t *gate, const dli_owner_t *owner, uint64_t now);
bool dli_gate_is_wanted(const dli_gate_t *gate); /* somebody of this process tries, or is in the queue */
void dli_gate_enqueue(dli_gate_t *gate, dli_op_t *op);
void dli_gate_leave(dli_gate_t *gate, dli_op_t *op); /* its queue, or the turn */
void dli_gate_polled(dli_gate_t *gate);              /* found busy: whose turn it is has to go on */
void dli_gate_next(dli_gate_t *gate);                /* if nobody holds and nobody tries */
/* Pokes the queued operations of the hold's owner: its standing has changed. */
void dli_gate_look_again(const dli_hold_t *hold);
/* Whose turn it is tries again, or looks after its watch: a release was heard, or its watch has changed. */
void dli_gate_wake(dli_gate_t *gate);
/* Ends the next of the watches that nobody wants any more. Releases the mutex meanwhile. */
void dli_gate_unwatch_next(dl_client_t *client);
/* Those that were kept for whoever comes soon. */
void dli_gates_end_watches(dl_client_t *client);

/* claim.c */
dli_claim_t *dli_claim_new(dli_gate_t *gate, const dli_owner_t *owner); /* NULL: no memory */
void dli_claim_unref(dli_claim_t *claim);                               /* NULL: nothing */
/* hold_size bytes, aligned as malloc aligns. */
void *dli_claim_driver_hold(dli_claim_t *claim); /* NULL: none */
/* Sets or clears the timer so that it fits the claim's state and its instants. */
void dli_claim_watch(dli_claim_t *claim);
void dli_claim_watch_session(dli_claim_t *claim, int fd); /* for hang-ups; -1: no longer */
/* SESSION: one exchange of op->claim at a time. DLI_STEP: it is this one's, until dli_claim_idle. DLI_WAIT:
 * it will be poked. DLI_DONE: it was not to be had until op->until_ns or a stop, and op->answer says so. */
dli_next_t dli_claim_use(dli_op_t *op);
void dli_claim_idle(dli_claim_t *claim);

/* renew.c */
void dli_renew_plan(dli_claim_t *claim, uint64_t now); /* LIVE: when it is to be renewed next */
bool dli_is_renewed(const dli_claim_t *claim);
void dli_renew_queue(dli_claim_t *claim);
void dli_renew_carry_on(dl_client_t *client);
/* No more renewals; what is under way ends without an answer. */
void dli_renew_stop(dl_client_t *client);

/* free.c */
/* The claim's request may have been, or may yet be (may_appear), carried out: it is freed in the background,
 * until it must have run out on the server, or while the server is silent. */
void dli_free_add(dli_claim_t *claim, bool may_appear);
/* Its request has ended. True: the backend may have left something (`owes`), and the same begins after a
 * while. */
bool dli_free_rest(dli_claim_t *claim);
/* One or the other, by the answer to a release or the reason of a loss. */
void dli_free_left(dli_claim_t *claim, dl_status_t answer);
/* dli_backend_env_t.settled */
void dli_free_settled(dli_claim_t *claim);
/* It is time for its next try, or that of one at a backend is over. */
void dli_free_due(dli_claim_t *claim, uint64_t now);
/* All that are left, twice if need be, until the server has had its time. Releases the mutex meanwhile. */
void dli_free_all(dl_client_t *client);

/* hold.c */
dli_hold_t *dli_hold_new(dli_gate_t *gate, const dli_owner_t *owner); /* NULL: no memory */
void dli_hold_unref(dli_hold_t *hold);                                /* NULL: nothing */
/* TRYING -> LIVE by a grant, and the claim's reference is the hold's. False: no validity is left, and nothing
 * has changed. */
bool dli_hold_begin(dli_op_t *op, uint64_t now);
/* TRYING -> LIVE on the claim that was passed to its gate. */
void dli_hold_take_over(dli_op_t *op, uint64_t now);
/* LIVE -> RELEASING, and the claim is without a hold, its session still watched. */
void dli_hold_leave_claim(dli_hold_t *hold);
/* The instant at which it ends, unless it is renewed; and the loss, once that has come. */
static inline uint64_t dli_hold_ends_ns(const dli_hold_t *hold) {
    return hold->claim->valid_until_ns < hold->max_hold_until_ns ? hold->claim->valid_until_ns
                                                                 : hold->max_hold_until_ns;
}
int64_t dli_hold_valid_ms(const dli_hold_t *hold); /* 0: it is not LIVE, or over */
/* LIVE and over by now: lost. True: it is lost. */
bool dli_hold_expire(dli_hold_t *hold, uint64_t now);
/* LIVE -> LOST: one event, the gate opens. Unless the server itself said so, it is freed there too. */
void dli_hold_lose(dli_hold_t *hold, dl_status_t why, const char *text);
/* The same, with DL_ELOST and the words for what was seen. */
void dli_hold_lose_as(dli_hold_t *hold, dl_loss_t loss);
/* RELEASING or LOST -> ENDED; takes it from its gate and drops the gate's reference. */
void dli_hold_end(dli_hold_t *hold);
/* LIVE -> RELEASING: nothing is renewed any more. */
void dli_hold_disarm(dli_hold_t *hold);
/* One level that nobody wants: with the last one the hold ends, and is freed in the background. */
void dli_hold_give_up_level(dli_hold_t *hold);
void dli_hold_extended(dli_hold_t *hold, uint64_t sent_ns, int64_t lease_ms, uint64_t now);
void dli_hold_enter_auto(dli_hold_t *hold, uint32_t level, uint64_t now);
void dli_hold_left_level(dli_hold_t *hold, uint64_t now);

/* pass.c */
/* An unlock of the last level. True: the hold has ended, its claim waits for the next of this process. */
bool dli_pass(dli_hold_t *hold, uint64_t now);
bool dli_pass_suits(const dli_op_t *op); /* may this one, whose turn comes, be given a claim? */
/* It is its turn, and a claim waits for it. True: held. False: it has to ask the server. */
bool dli_pass_take(dli_op_t *op);
void dli_pass_end(dli_gate_t *gate);

/* call.c */
uint64_t dli_call_deadline(const dl_client_t *client);
uint64_t
dli_ask_deadline(const dl_client_t *client); /* with the mutex; of one that closes, that of the close */
void dli_call_prepare(dli_op_t *op);         /* fills the request in, once it is carried out */
/* What the answer says: to the operation, and of the server. */
void dli_call_answered(dli_op_t *op, dl_status_t answer);
/* A request goes to the backend, or waits for a worker who carries it out. First its `start` fills in what
 * depends on that moment; false: it is over instead. A worker gives its park. Its timer comes at its
 * deadline, unless that is DLI_NEVER then; the timer of one that is not in a lane is to withdraw it. timer
 * NULL: its caller waits for it. */
void dli_request_begin(dl_client_t *client, dli_request_t *request);
/* By `ended`, or instead of it: nobody waits for it any more. */
void dli_request_over(dl_client_t *client, dli_request_t *request);
/* No answer is waited for any more: it ends, with DL_EUNKNOWN, or DL_EIO: it was not sent. Of one that no
 * worker carries out. */
void dli_request_give_up(dl_client_t *client, dli_request_t *request);
/* At the table of the driver, by this thread. Releases the mutex meanwhile. */
dl_status_t dli_request_carry_out(dl_client_t *client, const dli_request_t *request);
void dli_requests_flush(dl_client_t *client); /* releases the mutex meanwhile */
dl_request_t dli_call_request(const dli_claim_t *claim, uint32_t level, uint64_t deadline_ns);
void dli_call_renewed(dl_renewal_t *batch, size_t n, uint64_t called_ns, uint64_t now);
dl_renewal_t dli_call_renewal_of(dli_claim_t *claim, int64_t lease_ms);
/* With the mutex: what the answer says of the server. */
void dli_call_note(dl_client_t *client, dl_status_t status, uint64_t now);

/* events.c */
void dli_event_lost(dli_hold_t *hold, dl_status_t why, const char *text);
void dli_event_hold(dli_hold_t *hold, dl_event_kind_t kind, dl_status_t status, const char *text);
void dli_event_warning(dl_client_t *client, const char *text);
void dli_event_route(dli_event_t *event); /* to who reads the client's events now */
bool dli_event_take(dl_client_t *client, dl_event_t *event);
void dli_event_give(dli_event_t *event, dl_event_t *out); /* and it is gone */
void dli_event_discard(dli_event_t *event);
void dli_events_free(dl_client_t *client);
/* To the descriptor or the callback: whether events wait. */
void dli_events_show(dl_client_t *client);

/* queue.c: with the client's mutex */
void dli_queue_put_op(dli_op_t *op); /* a completion, to be taken */
void dli_queue_put_event(dl_queue_t *queue, dli_event_t *event);
/* The client closes: its events go, and the queue's reference. */
void dli_queue_forget_client(dl_client_t *client);
void dli_queue_leave(dl_client_t *client); /* new events go elsewhere */

/* callbacks.c */
bool dli_in_callback(const dl_client_t *client); /* is this the thread of a running callback? */

/* log.c */
void dli_log(dl_client_t *client, dl_log_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void dli_log_emit(dl_client_t *client, dli_log_line_t *lines); /* without the mutex; frees them */
void dli_inner_report(void *client, dl_log_level_t level, const char *text); /* dli_backend_env_t.report */
/* Without the mutex. client NULL: nobody hears of it. */
void dli_env_report(void *client, dl_log_level_t level, const char *text); /* dl_driver_env_t.report */
void dli_env_count(void *client, dl_count_t what, uint64_t n);             /* dl_driver_env_t.count */

#endif
