/* fault.h - a driver table around another one that records, checks, and fails on request. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAULT_H
#define FAULT_H

#include "core/backend.h"
#include "dlock/driver.h"
#include "support/contract.h"

/* The table to give to fault_open_client. One inner driver in a process; the table is static. */
const dl_driver_t *fault_wrap(const dl_driver_t *inner);
/* As dl_client_open_driver, on this table or on one of drive.h: those as the backends that they are. */
dl_status_t fault_open_client(const dl_driver_t *driver, const char *yaml, dl_client_t **client,
                              dl_error_t *err);
/* The next open on this thread is that of client `number`. */
void fault_next_client(int number);
/* Tells the client's number from its pointer; set by the harness, as faults may name a client. */
void fault_set_client_numbers(int (*number_of)(const dl_client_t *client));
/* Forgets faults, hooks, pauses and records; every client must be closed. */
void fault_reset(void);

/* ---- between fault.c and its parts ---------------------------------------------------------------- */

#define FAULT_ALIGN(n) (((n) + 15u) & ~(size_t)15u)
#define FAULT_ANY_CLIENT (-1)

struct fault_state;

/* One op from its beginning to its end. */
typedef struct fault_run {
    struct fault_state *state;
    size_t record; /* SIZE_MAX: not kept */
    ct_call_t call;
    ct_fault_t fault; /* mode 0: none applies */
} fault_run_t;

struct dl_watch {
    dl_watch_t *inner; /* NULL: it hears nothing */
    dl_watch_t *next;
    size_t name_len;
    char name[DL_NAME_MAX + 1];
};

/* Of a backend: its requests that threads carry out. */
typedef struct fault_job fault_job_t;
typedef struct fault_twin {
    dli_backend_env_t core; /* whose mutex guards the rest */
    int fd;                 /* readable once a job is done; -1: there was none */
    int shown;              /* that is listened to */
    int is_new;             /* a thread has begun: what is listened to may be new */
    fault_job_t *done;
    size_t threads;
} fault_twin_t;

/* In front of the inner driver's state. */
typedef struct fault_state {
    const dl_driver_env_t *env;
    dl_driver_env_t inner_env; /* whose core is this state */
    int client;
    int opened, closed;
    int blocked; /* a fault kept an answer back: the core may have run out of time */
    int ops;     /* running now */
    int holds;
    dl_watch_t *watches;
    fault_twin_t twin;
    fault_run_t listening; /* between listen_fds and listen */
    int listens;           /* that the above is so, and in which thread */
    pthread_t listener;
    struct fault_state *next;
} fault_state_t;

/* In front of the inner driver's hold, for SESSION drivers. */
typedef struct fault_hold {
    uint32_t magic; /* 0 at first, then used, then dropped */
    int ops;
} fault_hold_t;

extern const dl_driver_t *fault_inner;
void *fault_inner_state(fault_state_t *state);
void *fault_inner_hold(void *hold); /* NULL for NULL */

typedef enum fault_waited { FAULT_ON_TIME, FAULT_AT_DEADLINE, FAULT_STOPPED } fault_waited_t;
/* Waits until delay_ms (negative: for ever) after the call began, its deadline, or a stop (may be NULL). */
fault_waited_t fault_wait_ms(fault_run_t *run, int64_t delay_ms, const dl_stop_t *stop);

/* An op that was noted and entered, to its end. */
dl_status_t fault_run_try(fault_run_t *run, void *hold, const dl_request_t *request, dl_grant_t *grant,
                          dl_error_t *err);
dl_status_t fault_run_release(fault_run_t *run, void *hold, const dl_request_t *request, dl_error_t *err);
dl_status_t fault_run_inspect(fault_run_t *run, const dl_request_t *request, dl_lock_info_t *info,
                              dl_error_t *err);
dl_status_t fault_run_force(fault_run_t *run, const dl_request_t *request, dl_error_t *err);

/* Is this thread inside the inner driver, as it listens or sends? */
extern _Thread_local int fault_inside;

/* fault_twin.c: what a backend listens to beside its own */
size_t fault_twin_fds(fault_state_t *state, struct pollfd *fds);
size_t fault_twin_listen(fault_state_t *state); /* how many of the above there were */
void fault_twin_close(fault_state_t *state);    /* when all threads have ended */
/* fault_inner is wrapped by this table. */
void fault_twin_wrap(const dl_driver_t *table);

/* fault_renew.c */
typedef struct fault_batch {
    fault_run_t whole;
    fault_run_t *runs; /* of its entries */
    size_t n;
    int is_plain; /* nothing is planned for any of them */
    /* The server has answered the entries without a fault, and the others are still waited for. NULL: no
     * matter. */
    void (*answered)(struct fault_batch *batch);
} fault_batch_t;
void fault_batch_note(fault_batch_t *batch, fault_state_t *state, dl_renewal_t *renewals, size_t n,
                      uint64_t deadline_ns);
void fault_batch_run(fault_batch_t *batch, dl_renewal_t *renewals); /* one that was noted, to its end */
void fault_batch_end(fault_batch_t *batch, const dl_renewal_t *renewals);
void fault_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns);

/* fault_news.c: makes the environment of the inner driver, whose core is the state. */
void fault_lend_env(fault_state_t *state);

/* fault_plan.c: faults, records, hooks, pauses */
void fault_begin(fault_run_t *run, fault_state_t *state, ct_op_t op, const char *name, size_t name_len,
                 uint64_t deadline_ns);
/* Checks and records it, and says which fault applies. fault_begin does that, and enters. */
void fault_note(fault_run_t *run, fault_state_t *state, ct_op_t op, const char *name, size_t name_len,
                uint64_t deadline_ns);
void fault_note_request(fault_run_t *run, fault_state_t *state, ct_op_t op, const dl_request_t *request);
int fault_is_hooked(const fault_run_t *run); /* a hook or a pause is planned for it */
int fault_is_plain(const fault_run_t *run);  /* nothing is */
/* Runs the hooks and pauses of CT_BEFORE. */
void fault_enter(fault_run_t *run);
dl_status_t fault_end(fault_run_t *run, dl_status_t status);
/* Records what the driver says to the core of a watch. The mode of the fault that applies. */
ct_mode_t fault_note_woken(fault_state_t *state, const char *name, size_t name_len, int hears);
void fault_plan_reset(void);
/* Reads the records under their mutex; stops when fn returns non-zero. Newest first. */
void fault_each_record(int (*fn)(const ct_call_t *call, void *arg), void *arg);
fault_state_t *fault_state_of(int client);
int fault_number_of(const dl_client_t *client); /* FAULT_ANY_CLIENT for NULL */
void fault_state_add(fault_state_t *state);
void fault_state_remove(fault_state_t *state);

/* fault_check.c: the core's side of driver.h */
void fault_check_request(const fault_run_t *run, const dl_request_t *request);
void fault_check_batch(const fault_state_t *state, const dl_renewal_t *renewals, size_t n,
                       uint64_t deadline_ns);
void fault_check_hold_begin(fault_state_t *state, void *hold);
void fault_check_hold_end(void *hold);
void fault_check_drop(fault_state_t *state, void *hold);
void fault_check_op(fault_state_t *state, int begins);
void fault_check_watch(fault_state_t *state, dl_watch_t *watch);
void fault_check_unwatch(fault_state_t *state, dl_watch_t *watch);
void fault_check_listen(fault_state_t *state, size_t max);
void fault_check_listened(fault_state_t *state);
void fault_check_left(fault_state_t *state); /* its listener may be this thread, which has left it */
void fault_check_close(fault_state_t *state, int forked);

#endif
