/* run.h - one dlock run: what run.c prepares and finishes, and run_watch.c watches over. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "dlock/dlock.h"
#include "holder.h"
#include "keeper.h"
#include "note.h"
#include "options.h"

typedef struct run {
    const options_t *options;
    const char *name; /* the lock's, fit for a terminal */
    dl_client_t *client;
    dl_lock_t *lock;
    keeper_t keeper;
    signals_t signals;
    int terminal, signal_fd, timer_fd;
    holder_watch_t holder_watch; /* while it waits for the lock */
    /* How early the command is ended. All are the same instants for dlock and for the keeper. */
    int64_t margin_ms;       /* SIGKILL comes this long before validity ends */
    int64_t grace_ms;        /* and SIGTERM this long before that */
    uint64_t valid_until_ns; /* as the keeper knows it */
    uint64_t hold_end_ns;    /* of --max-hold or the backend's; NEVER_NS: none */
    /* What has happened */
    pid_t group; /* 0: not started */
    pid_t rest;  /* without the keeper: the same; 0: nothing that is ours has that number */
    bool terminal_given;
    bool told_lost;       /* the keeper was told */
    bool renewal_failing; /* the last that the library said of it */
    bool kill_seen;       /* the keeper has sent SIGKILL */
    bool keeper_replaced; /* it had not when it was due, and dlock does */
    bool ended, keeper_died;
    bool valid_at_end; /* the lock still was when everything had ended */
    uint64_t ended_ns; /* when everything was seen to have ended */
    end_cause_t cause;
    uint64_t left;     /* processes that could not be ended */
    uint64_t leave_ns; /* when they are waited for no longer; NEVER_NS: there are none */
    /* Without the keeper: when they count as such; with it: when it says so at the latest. */
    uint64_t give_up_ns;
    int exit_status; /* of the command, if it has ended by itself */
    int start_errno; /* why it could not be started; 0: it was */
    char loss[160];  /* why the lock was lost, in words; "": not known */
} run_t;

/* Prints what the library has to say, as far as it is for people; keeps why the lock was lost. */
void take_events(run_t *run);
/* Starts the command and returns when everything has ended, or when the lease that is kept for what could not
 * be ended is over: fills what has happened. */
void watch_run(run_t *run);

#endif
