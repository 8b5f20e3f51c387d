/* guard.h - ends library calls that are still reading at their deadline. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_GUARD_H
#define DLI_MYSQL_GUARD_H

#include <stdbool.h>

#include "dlock/driver.h"

/*
 * The client libraries bound their calls in whole seconds. We wait for the first byte of a reply with poll,
 * so a call of theirs normally finds all it reads. When the rest does not come (a reply cut off, garbage that
 * announces more than follows) one thread, the guard, shuts the socket down at the deadline, and the call
 * comes back with an error. Arming is a mutex and, rarely, a wake; the thread sleeps while nothing is due.
 */
typedef struct dli_mysql_guard dli_mysql_guard_t;

/* One call; on its caller's stack. */
typedef struct dli_mysql_guarded {
    int fd;
    uint64_t deadline_ns;
    int ended; /* the guard has shut fd down */
    struct dli_mysql_guarded *next, **link;
} dli_mysql_guarded_t;

dl_status_t dli_mysql_guard_open(const dl_driver_env_t *env, dli_mysql_guard_t **guard, dl_error_t *err);
/* Nothing is armed. NULL is fine. forked: no thread is there; descriptors are closed, memory is freed. */
void dli_mysql_guard_close(dli_mysql_guard_t *guard, bool forked);

void dli_mysql_guard_arm(dli_mysql_guard_t *guard, dli_mysql_guarded_t *call);
/* true: the guard ended it. From now on it does not touch fd. */
bool dli_mysql_guard_disarm(dli_mysql_guard_t *guard, dli_mysql_guarded_t *call);

#endif
