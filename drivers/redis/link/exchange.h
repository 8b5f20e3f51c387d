/* exchange.h - what a link is made of, for the two files that implement it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_EXCHANGE_H
#define DLI_REDIS_EXCHANGE_H

#include "keeper.h"

struct dli_link {
    dli_pool_t pool;
    dli_keeper_t keeper;
};

/* Where an exchange stands. */
enum { DLI_STEP_QUEUED = 1, DLI_STEP_CONNECTING, DLI_STEP_TESTING, DLI_STEP_TALKING, DLI_STEP_DONE };

#endif
