/* holder.h - tells a person who waits for a lock who holds it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_HOLDER_H
#define CLI_HOLDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "dlock/dlock.h"
#include "options.h"

/* A thread that asks who holds the lock while another waits for it. Asking may take as long as any call: the
 * wait, and the signals that end it, have nothing to do with it. */
typedef struct holder_watch {
    const options_t *options;
    const char *name;    /* the lock's, fit for a terminal */
    dl_client_t *client; /* the thread's own */
    dl_lock_t *lock;
    pthread_t thread;
    int over_fd;        /* readable: the wait is over */
    bool started;       /* and not joined */
    atomic_bool asking; /* or writing: not to be waited for */
} holder_watch_t;

/* Where a person reads the standard error: says after a second what is waited for, and again when somebody
 * else holds it. Both pointers stay valid until holder_watch_end says so. */
void holder_watch_begin(holder_watch_t *watch, const options_t *options, const char *name);
/* Nothing more is asked. Never waits. False: the last question is still under way; may be called again. */
bool holder_watch_end(holder_watch_t *watch);

#endif
