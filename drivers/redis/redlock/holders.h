/* holders.h - who holds a lock, by what several servers say of it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_HOLDERS_H
#define DLI_REDLOCK_HOLDERS_H

#include "redlock.h"

/* One hold, and the nodes that have it. */
typedef struct dli_holder {
    dl_lock_info_t info; /* as the first of these nodes has it */
    size_t nodes;
    int64_t left_ms[DLI_NODES_MAX]; /* what is left there; INT64_MAX: no end */
} dli_holder_t;

/* What the nodes say of one name. Zeroed: nothing yet. */
typedef struct dli_holders {
    size_t n;
    dli_holder_t at[DLI_NODES_MAX];
} dli_holders_t;

/* One more node has this. At most DLI_NODES_MAX times. */
void dli_holders_add(dli_holders_t *holders, const dl_lock_info_t *info);
/* The hold on most nodes, if it can be on a quorum: on the nodes that have it and those that did not answer.
 * What a smaller number has is left over from an attempt, and holds nothing. NULL: nobody holds it. */
const dli_holder_t *dli_holders_find(const dli_holders_t *holders, size_t unanswered, size_t quorum);
/* The same as an answer of inspect: it ends when fewer than a quorum have it. */
void dli_holders_tell(const dli_holders_t *holders, size_t unanswered, size_t quorum, dl_lock_info_t *info);

#endif
