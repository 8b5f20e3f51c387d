/* group.h - starts the command in a process group of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_GROUP_H
#define CLI_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "signals.h"

/* What is to be run; fixed before the keeper is started. */
typedef struct launch {
    const char *lock_name;
    char **argv;
    const signals_t *signals;
} launch_t;

/* Starts the command; its group has its number. *exec_fd gives an int, the errno, when it could not be
 * executed, and nothing but the end when it was. -1 with errno. */
pid_t group_start(const launch_t *launch, uint64_t token, bool take_terminal, int *exec_fd);

#endif
