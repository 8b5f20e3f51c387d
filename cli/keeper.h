/* keeper.h - the process between dlock and the command; it ends the command in time, come what may. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_KEEPER_H
#define CLI_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "group.h"

/*
 * dlock forks the keeper before it opens the client, so that the keeper has one thread and none of the
 * library's descriptors. The keeper starts the command, adopts and reaps what descends from it, passes
 * signals on, and knows until when the lock is valid: it ends the command in time even while dlock is
 * stopped. When dlock dies, the socket between them hangs up, and the keeper ends everything at once. When
 * the keeper dies, the kernel ends the command (PR_SET_PDEATHSIG), and dlock the rest of its group.
 */
typedef struct keeper {
    pid_t pid;
    int pidfd;  /* its number may be another's as soon as it has ended; -1: an old kernel */
    int socket; /* carries notes (note.h) */
} keeper_t;

/* Not dlock's: should one `pkill dlock` end both at once, that rest would go on. */
#define KEEPER_NAME "lock-keeper"

/* False with errno. From then on the kernel reaps whatever ends as a child of this process. */
bool keeper_start(keeper_t *keeper, const launch_t *launch);
void keeper_kill(const keeper_t *keeper);
/* Nothing is said to it any more; returns when it has ended. */
void keeper_end(keeper_t *keeper);

/* How long a killed process may take to go before it counts as one that cannot be ended. */
#define KILL_BOUND_NS (5u * UINT64_C(1000000000))
/* From then on it is looked for this often, and killed again. */
#define LEFT_AGAIN_NS (200u * UINT64_C(1000000))

#endif
