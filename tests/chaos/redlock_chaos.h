/* redlock_chaos.h - what the processes of the rotation share besides the log of holds. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_CHAOS_H
#define REDLOCK_CHAOS_H

#include "chaos.h"

#define ROTATION_NODES 5
#define ROTATION_NAMES 4
#define ROTATION_LEASE_MS 1500

/* In memory that all processes share. A counter is read and written, and nothing but the lock of its name
 * keeps two apart; `counted` says how often it was done. */
typedef struct rotation_board {
    _Atomic int64_t counters[ROTATION_NAMES];
    atomic_long counted[ROTATION_NAMES];
    atomic_int asked;      /* the step that a far process shall hold the first name for */
    atomic_int held;       /* the step that one has it for */
    atomic_int ended;      /* the step that it has left it for */
    atomic_int contenders; /* how often a near process had the first name */
    atomic_int overlaps;   /* how often while a far one held it for a step */
} rotation_board_t;

extern rotation_board_t *board;

/* A process of threads that count. `nodes` is a list of YAML. far: it reaches the nodes through proxies, and
 * its first thread holds the first name for as long as it can when it is asked to. Its exit status. */
int rotation_work(int number, bool is_far, const char *nodes, bool quarantine);

#endif
