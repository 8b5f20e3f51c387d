/* contract.h - what a contract case is written against: one server, any driver, faults at will. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CT_CONTRACT_H
#define CT_CONTRACT_H

#include <stdint.h>

#include "dlock/dlock.h"
#include "support/ct_door.h"

/*
 * How to write a case
 *
 *     #include "support/contract.h"
 *
 *     CT_CASE(unlock, a_stranger_is_refused, .needs_not = 0)
 *     {
 *         dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, "lease: 5s\nmax_hold: 1m");
 *         dl_lock_t *mine = ct_lock(ct, a, "orders"), *theirs = ct_lock(ct, b, "orders");
 *         CT_OK(dl_lock(mine, CT_ERR));
 *         CT_STATUS(dl_unlock(theirs, CT_ERR), DL_ENOTOWNER);
 *         ct_expect_held(ct, "orders");
 *         CT_OK(dl_unlock(mine, CT_ERR));
 *     }
 *
 * - A case is a function over *any* driver. It runs once for each driver (fixture) that has every cap of
 *   `.needs`, none of `.needs_not`, every trait of `.traits` and none of `.traits_not`. Nothing else decides;
 *   there is no skip. The caps and traits of every fixture stand in tests/contract/caps.txt, and a difference
 *   fails the run.
 * - A case runs once more through the second door, where its lock calls go through a completion queue instead
 *   of blocking (ct_door.h). It says .traits = CT_BLOCKING if that would make no sense.
 * - Each case × driver runs in a process of its own with a fresh, empty server. Every client that ct_open
 *   gives is a client of that same server.
 * - Time: cases use ct_now_ms, ct_sleep_ms, latches and the dl_ calls only. On the fakes time is simulated:
 *   it stands still while any thread runs, and jumps to the next deadline when all are blocked, so that a
 *   lease of 30 s costs nothing. Therefore: start threads by ct_thread only; never call sleep, poll,
 *   pthread_cond_wait or pthread_join; never spin. Plain mutexes are fine while nobody waits for time with
 *   one held. The same case runs on real time with SQLite: take leases from ct_lease_ms and compare times
 *   with ct_tolerance_ms of slack. Never compare instants for equality. Threads share memory as in any
 *   program: with atomics, or ordered by a latch or a join.
 * - An assertion that fails prints one line and ends the case at once, from whichever thread or process.
 *   All of them need a variable `ct` in scope; thread and process functions get one.
 * - A descriptor or a thread that is there after the case and was not before fails it.
 * - Clients and locks that the case leaves open are closed by the harness: locks first, then clients. A case
 *   that closes one itself uses ct_close / ct_lock_close (or calls ct_forget before the dl_ call).
 *   A thread that was not joined fails the case.
 *
 * Files: tests/contract/SUBJECT_cases.c, named in tests/contract/CMakeLists.txt.
 * Running, in the build folder:
 *   tests/support/contract       Criterion: a suite for each driver, a test suite__name for each case;
 *                                --filter 'fake_lease/unlock__*'
 *   tests/support/plain_runner   the same without Criterion, for sanitizers, valgrind and gdb: --list,
 *                                --driver fake-lease, --case TEXT (part of "driver/suite__name"), --door
 * queue
 *                                ("driver-queue/suite__name"), --no-fork, --real-time (the fakes too),
 * --serial --seed N (one thread at a time, in an order that the seed gives: a failure of the simulation can
 * be repeated)
 */

typedef struct ct ct_t; /* one running case */

/* ---- traits of fixtures ------------------------------------------------------------------------ */

#define CT_REAL_TIME 0x001u     /* the clock is the machine's */
#define CT_VIRTUAL 0x002u       /* the clock is simulated: long leases are free, times are exact to the ms */
#define CT_PROCESSES 0x004u     /* several processes can share the server: ct_process works */
#define CT_CAN_INSPECT 0x008u   /* the driver has inspect */
#define CT_CAN_FORCE 0x010u     /* ... force_release; ct_wipe works */
#define CT_CAN_LIST 0x020u      /* ... list */
#define CT_REPLAY 0x040u        /* LEASE: ct_replay works, without a hold */
#define CT_ALLOC 0x080u         /* ct_alloc_fail works in this executable; true of every fixture */
#define CT_FORK_THREADS 0x200u  /* a child of ct_fork may start threads, open clients: not with sanitizers */
#define CT_FORK_BUSY 0x40000u   /* ct_fork while others run: not with ASan, with TSan in simulated time */
#define CT_PLAIN_POLLING 0x100u /* no NOTIFY and no NATIVE_WAIT: waiting is by backoff */
#define CT_REDIS 0x400u /* behind it is a Redis server of the case's own: ct_redis of redis_server.h */
#define CT_WHOLE_SECONDS 0x2000u /* the server ends a silent holder's lease at the next whole second */
#define CT_MYSQL 0x800u          /* behind it is a MariaDB or MySQL server: ct_mysql of mysql_server.h */
#define CT_NETWORK 0x1000u       /* the server is reached by TCP: a proxy fits before it */
#define CT_REDLOCK 0x4000u       /* behind it are several Redis servers: ct_redlock of redlock_nodes.h */
#define CT_DEAD_MINORITY 0x8000u /* ... as many of which are dead as may be: of five these */
#define CT_DEAD_NODES 2
#define CT_BACKEND \
    0x20000u /* requests end later or are withdrawn: no thread stands in an op, none waits for one */
#define CT_BLOCKING 0x10000u /* the lock calls block: not through the second door */

/* ---- cases ------------------------------------------------------------------------------------- */

typedef struct ct_case {
    const char *suite; /* the promise's subject: a C identifier */
    const char *name;  /* the promise: a C identifier that reads as a sentence */
    const char *file;
    int line;
    void (*run)(ct_t *ct);
    uint32_t needs;     /* DL_CAP_... that the driver must have, all of them */
    uint32_t needs_not; /* ... must not have, any of them */
    uint32_t traits;    /* CT_... of the fixture, all of them */
    uint32_t traits_not;
    int timeout_s; /* real seconds until the case counts as hanging; 0 = 30, times the time scale */
    struct ct_case *next;
} ct_case_t;

void ct_register(ct_case_t *new_case);

/* CT_CASE(suite, name [, .needs = DL_CAP_FENCE, .traits = CT_PROCESSES ...]) { uses ct } */
#define CT_CASE(suite_, name_, ...)                                                    \
    static void ct_run_##suite_##__##name_(ct_t *ct);                                  \
    static ct_case_t ct_case_##suite_##__##name_ = {.suite = #suite_,                  \
                                                    .name = #name_,                    \
                                                    .file = __FILE__,                  \
                                                    .line = __LINE__,                  \
                                                    .run = ct_run_##suite_##__##name_, \
                                                    __VA_ARGS__};                      \
    __attribute__((constructor(1000))) static void ct_add_##suite_##__##name_(void) {  \
        ct_register(&ct_case_##suite_##__##name_);                                     \
    }                                                                                  \
    static void ct_run_##suite_##__##name_(ct_t *ct)

uint32_t ct_caps(ct_t *ct);           /* DL_CAP_... of the driver under test */
uint32_t ct_traits(ct_t *ct);         /* CT_... of the fixture */
const char *ct_driver_name(ct_t *ct); /* the fixture's name */
int ct_built_in(ct_t *ct);            /* 1: the driver is the library's own, and YAML can name it */

/* ---- assertions -------------------------------------------------------------------------------- */

/* The caller's thread's own dl_error_t, wiped. Give it to the call inside CT_STATUS or CT_OK: those then also
 * check that err is left alone on DL_OK, and has the same status and a line of text on everything else. */
dl_error_t *ct_err(void);
#define CT_ERR ct_err()
/* What the last failing call of this thread inside CT_STATUS left in CT_ERR. */
const dl_error_t *ct_last_err(void);

#define CT_STATUS(call, expected) ct_check_status(ct, __FILE__, __LINE__, #call, (call), (expected))
#define CT_OK(call) CT_STATUS(call, DL_OK)
/* One of two statuses, where the design leaves the choice to timing; returns which. */
#define CT_EITHER(call, one, other) ct_check_either(ct, __FILE__, __LINE__, #call, (call), (one), (other))
#define CT_CHECK(cond) ((cond) ? (void)0 : ct_fail(ct, __FILE__, __LINE__, "%s", #cond " is false"))
#define CT_CHECKF(cond, ...) ((cond) ? (void)0 : ct_fail(ct, __FILE__, __LINE__, __VA_ARGS__))
#define CT_FAIL(...) ct_fail(ct, __FILE__, __LINE__, __VA_ARGS__)
/* Integers of any type; pointers by CT_CHECK. */
#define CT_EQ(a, b) ct_check_int(ct, __FILE__, __LINE__, #a " == " #b, (int64_t)(a), '=', (int64_t)(b))
#define CT_NE(a, b) ct_check_int(ct, __FILE__, __LINE__, #a " != " #b, (int64_t)(a), '!', (int64_t)(b))
#define CT_LT(a, b) ct_check_int(ct, __FILE__, __LINE__, #a " < " #b, (int64_t)(a), '<', (int64_t)(b))
/* First a, which may be a call, and then b, which may be how long it should have taken. */
#define CT_LE(a, b)                                                                      \
    do {                                                                                 \
        int64_t ct_left_ = (int64_t)(a);                                                 \
        ct_check_int(ct, __FILE__, __LINE__, #a " <= " #b, ct_left_, 'l', (int64_t)(b)); \
    } while (0)
#define CT_GT(a, b) CT_LT(b, a)
#define CT_GE(a, b) CT_LE(b, a)
/* A text with this part in it. */
#define CT_HAS(text, part) ct_check_has(ct, __FILE__, __LINE__, #text, (text), (part))
#define CT_STR_EQ(a, b) ct_check_str(ct, __FILE__, __LINE__, #a " == " #b, (a), (b))
/* low <= value <= high; for times, whose tolerance is asked for after they have passed. */
#define CT_BETWEEN(value, low, high)                                                                  \
    do {                                                                                              \
        int64_t ct_value_ = (int64_t)(value);                                                         \
        ct_check_between(ct, __FILE__, __LINE__, #value, ct_value_, (int64_t)(low), (int64_t)(high)); \
    } while (0)
/* Waits (in the case's time) until cond is true; fails after within_ms. For conditions that have no latch. */
#define CT_AWAIT(cond, within_ms)                                                          \
    do {                                                                                   \
        int64_t ct_until_ = ct_ran_ms(ct) + (within_ms);                                   \
        while (!(cond)) {                                                                  \
            if (ct_ran_ms(ct) > ct_until_)                                                 \
                ct_fail(ct, __FILE__, __LINE__, "%s", #cond " did not come true in time"); \
            ct_sleep_ms(ct, 1);                                                            \
        }                                                                                  \
    } while (0)
/* The same for a comparison of integers, so that a failure says what they were: CT_AWAIT_THAT(n, ==, 3,
 * 1000). */
#define CT_AWAIT_THAT(a, op, b, within_ms)                                                     \
    do {                                                                                       \
        int64_t ct_until_ = ct_ran_ms(ct) + (within_ms);                                       \
        for (;;) {                                                                             \
            int64_t ct_a_ = (int64_t)(a), ct_b_ = (int64_t)(b);                                \
            if (ct_a_ op ct_b_)                                                                \
                break;                                                                         \
            if (ct_ran_ms(ct) > ct_until_)                                                     \
                ct_fail(ct, __FILE__, __LINE__, "%s did not come true in time: %lld and %lld", \
                        #a " " #op " " #b, (long long)ct_a_, (long long)ct_b_);                \
            ct_sleep_ms(ct, 1);                                                                \
        }                                                                                      \
    } while (0)

/* ---- clients and locks -------------------------------------------------------------------------- */

/*
 * A new client of the case's server, through the fault wrapper. `extra` is lines of YAML, "key: value\nkey:
 * value" (NULL: none); they replace the harness's own settings of the same keys, which are
 *   lease: ct_lease_ms      call_timeout: ct_call_timeout_ms      and what the fixture needs (a path ...).
 */
dl_client_t *ct_open(ct_t *ct, const char *extra);
/* The same where opening may fail. */
dl_status_t ct_try_open(ct_t *ct, const char *extra, dl_client_t **client, dl_error_t *err);
/* The path of a configuration file with one backend: the case's server, by the driver's own name. */
const char *ct_config(ct_t *ct);
dl_lock_t *ct_lock(ct_t *ct, dl_client_t *client, const char *name);
dl_lock_t *ct_lock_owned(ct_t *ct, dl_client_t *client, const char *name, uint64_t owner);
void ct_close(ct_t *ct, dl_client_t *client);  /* dl_client_close, and no more the harness's to close */
void ct_lock_close(ct_t *ct, dl_lock_t *lock); /* dl_lock_close, likewise */
void ct_forget(ct_t *ct, const void *object);  /* the case ends this client or lock itself */

/* dl_client_stats in one call; ct_stats(ct, c).renewed */
dl_client_stats_t ct_stats(ct_t *ct, dl_client_t *client);

/* ---- the server as it really is, past all faults ------------------------------------------------- */

/* A client of the same server without the fault wrapper, opened at the first use. */
dl_client_t *ct_observer(ct_t *ct);
dl_lock_info_t ct_server_info(ct_t *ct, const char *name); /* needs CT_CAN_INSPECT */
/* Held by somebody; free within this time (0: now). On a driver without inspect the observer
 * tries the lock. */
void ct_expect_held(ct_t *ct, const char *name);
void ct_await_held(ct_t *ct, const char *name, int64_t within_ms);
void ct_expect_free(ct_t *ct, const char *name, int64_t within_ms);
/* Deletes what the server knows of the hold, as an administrator or a crash would (needs CT_CAN_FORCE). */
void ct_wipe(ct_t *ct, const char *name);

/* ---- time ---------------------------------------------------------------------------------------- */

int64_t ct_now_ms(ct_t *ct);
uint64_t ct_now_ns(ct_t *ct);
void ct_sleep_ms(ct_t *ct, int64_t ms);
/* 1: the descriptor became readable within this time. */
int ct_await_readable(ct_t *ct, int fd, int64_t within_ms);
/* The automatic lease that ct_open sets: 30000 on virtual time, 400 × time scale on real time. */
int64_t ct_lease_ms(ct_t *ct);
/* The call_timeout that ct_open sets: 2000 on virtual time, 800 × time scale on real time. */
int64_t ct_call_timeout_ms(ct_t *ct);
/* The runner's --seed. */
uint64_t ct_seed(ct_t *ct);
/* How often to do what is done otherwise each time: n times, under a sanitizer a third of that. */
int ct_many(int n);
/* How long the machine stood still since the case began, and the time without that: what waits for something
 * has its patience by the latter. On virtual time nothing stands still. */
int64_t ct_stood_ms(ct_t *ct);
int64_t ct_ran_ms(ct_t *ct);
/* How much later than promised (T + this) counts as in time: 100 virtual, 250 × time scale real, and what
 * the machine stood still meanwhile.
 * The time scale is $DLOCK_TEST_TIME_SCALE (an integer, for sanitizers and valgrind), 1 by default. */
int64_t ct_tolerance_ms(ct_t *ct);
/* How long the server waits for a silent holder with this lease: longer where it counts in whole seconds. */
int64_t ct_server_lease_ms(ct_t *ct, int64_t lease_ms);
/* The machine sleeps for this long: the clock jumps and resume descriptors fire. Only CT_VIRTUAL. */
void ct_suspend_ms(ct_t *ct, int64_t ms);

/* ---- threads ------------------------------------------------------------------------------------- */

typedef struct ct_thread ct_thread_t;
typedef void (*ct_fn)(ct_t *ct, void *arg);
ct_thread_t *ct_thread(ct_t *ct, ct_fn fn, void *arg);
void ct_join(ct_t *ct, ct_thread_t *thread);
/* 1 once the function has returned (no join). */
int ct_thread_done(ct_t *ct, ct_thread_t *thread);
/* From now on so many threads can be started, by whomever; then none (EAGAIN). First called before threads
 * of clients are there. */
void ct_threads_left(ct_t *ct, int n);
/* How often other threads than this one have begun to sleep in poll. First called as the above. */
int ct_sleeps(ct_t *ct);

/* Opens for all waiters once it was counted down `count` times. A gate is a latch of 1. */
typedef struct ct_latch ct_latch_t;
ct_latch_t *ct_latch(ct_t *ct, int count);
void ct_latch_down(ct_t *ct, ct_latch_t *latch);
/* Fails the case after within_ms. */
void ct_latch_wait(ct_t *ct, ct_latch_t *latch, int64_t within_ms);
int ct_latch_open(ct_t *ct, ct_latch_t *latch); /* 1 when open */
/* Waits until `client` has at least n calls waiting (dl_client_stats.waiting_now), that is: until the waiters
 * of the other threads have really arrived. */
void ct_await_waiting(ct_t *ct, dl_client_t *client, uint64_t n, int64_t within_ms);

/* ---- events -------------------------------------------------------------------------------------- */

/* The next event of this kind and name (kind 0, name NULL: any); others are kept for later calls. Fails the
 * case after within_ms. Not together with dl_event_next or dl_client_on_event on the same client. */
dl_event_t ct_expect_event(ct_t *ct, dl_client_t *client, dl_event_kind_t kind, const char *name,
                           int64_t within_ms);
/* No such event is there now, nor comes for this long. */
void ct_no_event(ct_t *ct, dl_client_t *client, dl_event_kind_t kind, const char *name, int64_t for_ms);

/* ---- faults -------------------------------------------------------------------------------------- */

typedef enum ct_op {
    CT_OP_OPEN,
    CT_OP_TRY, /* try_acquire */
    CT_OP_RELEASE,
    CT_OP_RENEW, /* counted and faulted an entry, not a batch */
    CT_OP_BATCH, /* one call of renew; faults: only CT_LATE */
    CT_OP_WATCH,
    CT_OP_LISTEN, /* from listen_fds to the end of listen; only counted and hooked, without a name */
    CT_OP_WOKEN, /* what the driver says; no hooks and pauses. Its status: DL_OK or DL_EIO for hears 1 or 0 */
    CT_OP_UNWATCH, /* only counted and hooked */
    CT_OP_INSPECT,
    CT_OP_FORCE,
    CT_OP_LIST,
    CT_OP_DROP,  /* only counted and hooked */
    CT_OP_CLOSE, /* only counted and hooked */
    CT_OP_COUNT
} ct_op_t;

typedef enum ct_mode {
    CT_FAIL_BEFORE = 1, /* never leaves: DL_EIO at once (or .status) */
    CT_LOSE_REQUEST,    /* sent, never arrives: DL_EUNKNOWN at once. ct_replay delivers it later */
    CT_LOSE_REPLY,      /* the server acts, the reply is lost: DL_EUNKNOWN at once */
    CT_LATE,            /* the request arrives delay_ms later; past the deadline: never, DL_EUNKNOWN at it */
    CT_LATE_REPLY,      /* acts at once, answers delay_ms later; past the deadline: DL_EUNKNOWN at it */
    CT_NEVER,           /* nothing happens until the deadline, then DL_EUNKNOWN */
    CT_NEVER_ACTED,     /* acts at once, but no answer until the deadline, then DL_EUNKNOWN */
    CT_ANSWER           /* not asked: answers .status (DL_EBUSY with .busy_ms, DL_ELOST, DL_EFOREIGN ...) */
} ct_mode_t;
/* The waits of LATE, LATE_REPLY, NEVER and NEVER_ACTED end early when a stop descriptor becomes readable:
 * DL_ECANCELED when nothing was sent, else DL_EUNKNOWN. Op by op:
 * - CT_OP_OPEN: what would be DL_EUNKNOWN is DL_EIO.
 * - CT_OP_RENEW: the other entries of the batch reach the server first; then delays pass, counted from the
 *   batch's beginning, and all of it is answered at once.
 * - CT_OP_WATCH, which waits for nothing: CT_FAIL_BEFORE, and CT_NEVER: there is a watch, but it is never
 * able to hear.
 * - CT_OP_WOKEN: CT_LOSE_REPLY: the core is not told. CT_FAIL_BEFORE: it is told that releases are not heard.
 * - CT_OP_TRY with CT_ANSWER and DL_OK: a grant that the server knows nothing of. */

#define CT_ALWAYS (-1)

typedef struct ct_fault {
    ct_op_t op;
    ct_mode_t mode;
    int skip;            /* let this many matching calls pass first */
    int count;           /* then apply to this many; CT_ALWAYS; 0 means 1 */
    dl_client_t *client; /* NULL: all */
    const char *name;    /* of the lock; NULL: all */
    uint32_t level;      /* try_acquire only; 0: all */
    dl_status_t status;  /* FAIL_BEFORE (DL_OK means DL_EIO) and ANSWER */
    int64_t delay_ms;    /* LATE, LATE_REPLY; CT_ANSWER: before answering */
    int64_t busy_ms;     /* ANSWER with DL_EBUSY: the holder's remaining lease; -1: not known */
    int busy_is_dlock;
} ct_fault_t;

/* The short form: this mode, all clients and names, DL_EIO. Delay of LATE forms by ct_fault_add. */
int ct_fault(ct_t *ct, ct_op_t op, ct_mode_t mode, int count);
/* The whole form. The first fault added that matches a call applies to it. Returns a number for
 * ct_fault_end. */
int ct_fault_add(ct_t *ct, const ct_fault_t *fault);
void ct_fault_end(ct_t *ct, int fault); /* this one; -1: all */
int ct_fault_hits(ct_t *ct, int fault); /* how often it has applied */

/* What the core asked of the driver, in order of the calls' beginnings. */
typedef struct ct_call {
    ct_op_t op;
    int client; /* number of the client in the order of ct_open, from 0 */
    char name[DL_NAME_MAX + 1];
    char owner[DL_OWNER_MAX + 1];
    uint64_t hold_id;
    uint32_t level;
    int64_t lease_ms;
    uint64_t token_floor;
    uint64_t tokens; /* asked for */
    int64_t wait_ms;
    uint64_t begin_ns, end_ns, deadline_ns; /* end_ns 0: still running */
    dl_status_t status;                     /* what the core was told (CT_AFTER hooks and later) */
    int applied;                            /* ct_mode_t, 0 = passed */
    uint64_t token;                         /* granted */
    uint64_t sent_ns;
} ct_call_t;

/* Calls that have begun; the server may not have acted on the last one yet (ct_await_held). */
int ct_calls(ct_t *ct, ct_op_t op);
int ct_calls_of(ct_t *ct, ct_op_t op, dl_client_t *client, const char *name); /* NULL: any */
/* The n-th call of this op, from 0; negative from the end, -1 = the last. Fails the case when there is
 * none. */
ct_call_t ct_call(ct_t *ct, ct_op_t op, int n);
/* Sends a recorded try_acquire, release or renew to the server again, unfaulted, as a late duplicate would
 * arrive. Returns the server's answer, which nobody reads. Needs CT_REPLAY. */
dl_status_t ct_replay(ct_t *ct, const ct_call_t *call);

/* Waits until a call that waits for this name has looked at it once more since it is able to hear of
 * releases: the next news is of what happens from now on. client NULL: any. */
void ct_await_hearing(ct_t *ct, dl_client_t *client, const char *name, int64_t within_ms);
/* The driver of this client says woken, faults and all. */
void ct_woken(ct_t *ct, dl_client_t *client, const char *name, int hears);

typedef enum ct_when { CT_BEFORE = 0, CT_AFTER = 1 } ct_when_t;
/* Runs fn on the thread of every matching call, before the fault and the driver or after both. It may call
 * dl_ functions of other clients and block. name NULL: all; fn NULL removes the hooks of this op and
 * instant. */
typedef void (*ct_hook_fn)(ct_t *ct, const ct_call_t *call, void *arg);
void ct_hook(ct_t *ct, ct_op_t op, ct_when_t when, const char *name, ct_hook_fn fn, void *arg);
/* In a hook: its thread leaves the call for good, by a jump. */
void ct_hook_leaves(ct_t *ct);
/* This thread has left its sleep in a call to this client by a jump. */
void ct_listener_leaves(ct_t *ct, dl_client_t *client);
/* Removes all hooks, and returns once none runs: what they refer to may go. */
void ct_hooks_end(ct_t *ct);

/* Stops the next matching call at this point, as if its process had been stopped there: pause, wait until the
 * call has arrived, do something, go. client NULL: any; name NULL: any. Each pause catches one call. LISTEN:
 * one of a caller, not of the client's own thread. */
typedef struct ct_pause ct_pause_t;
ct_pause_t *ct_pause(ct_t *ct, ct_op_t op, ct_when_t when, dl_client_t *client, const char *name);
void ct_pause_await(ct_t *ct, ct_pause_t *pause, int64_t within_ms);
void ct_pause_go(ct_t *ct, ct_pause_t *pause);

/* Independently of faults the wrapper fails the case when the core breaks its side of driver.h: two ops at
 * once on one hold of a SESSION driver, a hold not dropped exactly once and last, hold ids that do not rise,
 * a deadline in the past or too far, a batch with one name twice, a watch that is not ended, two of one name,
 * two threads that listen at once, an op after close, a grant or unknown outcome that no release followed
 * while the client lived on for a lease. */

/* The n-th allocation of the library from now fails (n from 1), once or from then on. Harness allocations do
 * not count. n 0: off. */
void ct_alloc_fail(ct_t *ct, int n, int forever);
int ct_alloc_calls(ct_t *ct);  /* library allocations since ct_alloc_fail */
int ct_alloc_failed(ct_t *ct); /* how many of them failed */

/* ---- processes ----------------------------------------------------------------------------------- */

typedef struct ct_process ct_process_t;
/* Runs fn in a child process that opens its own clients by ct_open (needs CT_PROCESSES). Must be called while
 * this process has no client open: start the processes first, then let them wait with ct_recv. */
ct_process_t *ct_process(ct_t *ct, ct_fn fn, void *arg);
/* Runs fn in a child that inherited this process's clients, on any fixture: for DL_EFORKED. The child must
 * not use time, threads or ct_open (but see CT_FORK_THREADS, on real time with CT_PROCESSES). */
ct_process_t *ct_fork(ct_t *ct, ct_fn fn, void *arg);
/* A number from parent to child or back; fails the case after 20 real seconds or when the other side ended.
 * In the parent `process` is the child; in the child it is NULL and means the parent. */
void ct_send(ct_t *ct, ct_process_t *process, int64_t value);
int64_t ct_recv(ct_t *ct, ct_process_t *process);
int ct_pid(ct_process_t *process);
void ct_process_kill(ct_t *ct, ct_process_t *process);     /* SIGKILL, and reaped */
void ct_process_stop(ct_t *ct, ct_process_t *process);     /* SIGSTOP; returns when it has stopped */
void ct_process_continue(ct_t *ct, ct_process_t *process); /* SIGCONT */
/* Waits for its end, which must be the return of fn with every assertion true. A child that is not waited for
 * or killed fails the case (and is killed). */
void ct_process_wait(ct_t *ct, ct_process_t *process);

/* ---- behind the macros --------------------------------------------------------------------------- */

void ct_fail(ct_t *ct, const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
void ct_check_status(ct_t *ct, const char *file, int line, const char *what, dl_status_t actual,
                     dl_status_t expected);
dl_status_t ct_check_either(ct_t *ct, const char *file, int line, const char *what, dl_status_t actual,
                            dl_status_t one, dl_status_t other);
void ct_check_int(ct_t *ct, const char *file, int line, const char *what, int64_t a, char relation,
                  int64_t b);
void ct_check_between(ct_t *ct, const char *file, int line, const char *what, int64_t value, int64_t low,
                      int64_t high);
void ct_check_str(ct_t *ct, const char *file, int line, const char *what, const char *a, const char *b);
void ct_check_has(ct_t *ct, const char *file, int line, const char *what, const char *text, const char *part);

#endif
