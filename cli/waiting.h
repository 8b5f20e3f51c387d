/* waiting.h - lets signals end the wait for the lock, and news be told meanwhile. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_WAITING_H
#define CLI_WAITING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "dlock/dlock.h"
#include "signals.h"

/* Where a wait is by now. */
enum { WAITING_OPENS, WAITING_ACQUIRES, WAITING_LEAVES };

/*
 * The calls of the library block the main thread, and all signals are blocked in it and in the library's
 * threads. A thread of our own reads them meanwhile; a handler would need them unblocked, and every thread
 * that the library starts during the call would inherit that.
 */
typedef struct waiting {
    const signals_t *signals;
    dl_cancel_t *cancel; /* for dl_acquire */
    int signal_fd;       /* the signals that are passed on to a command */
    int keeper_fd;       /* hangs up with the keeper, which ends the wait, as SIGKILL */
    int stop_fd;         /* readable: `over` or `news_fd` has changed */
    atomic_bool over;    /* the wait is */
    atomic_int caught;   /* the first signal that came; 0: none */
    atomic_int phase;    /* WAITING_... */
    const char *name;    /* the lock's, fit for a terminal */
    atomic_int news_fd;  /* of waiting_listen; -1: none */
    void (*on_news)(void *arg);
    void *arg;
    pthread_t thread;
} waiting_t;

/* DL_OK, or with err. Until waiting_listen a signal ends the process at once: opening a client takes up to
 * call_timeout, and leaves nothing behind. */
dl_status_t waiting_begin(waiting_t *waiting, const signals_t *signals, int keeper_fd, const char *name,
                          dl_error_t *err);
/* Once, before the lock is asked for: from now on a signal triggers `cancel`, and on_news(arg) is called, on
 * a thread of its own, whenever the descriptor is readable. */
void waiting_listen(waiting_t *waiting, int news_fd, void (*on_news)(void *arg), void *arg);
/* Ends it, and returns the signal that came, or 0. Signals that come later are left to be passed on. */
int waiting_end(waiting_t *waiting);
/* Says that this signal ended the wait (SIGKILL: by its keeper's end); returns the exit status. */
int waiting_tell_end(const char *name, int number);

#endif
