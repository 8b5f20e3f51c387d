/* block.h - how many tokens an acquire draws. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_BLOCK_H
#define DLI_BLOCK_H

#include "dlock/driver.h"

/* More than any queue passes a lock on to; sums with it cannot overflow. */
#define DLI_BLOCK_MAX ((uint64_t)1 << 16)

/* What the request may use, and no more than fit between its floor and `last`, the largest token there is.
 * A request of no tokens is one of a core that knows none of this. */
static inline uint64_t dli_block(const dl_request_t *request, uint64_t last) {
    uint64_t room = request->token_floor < last ? last - request->token_floor : 1;
    uint64_t most = room < DLI_BLOCK_MAX ? room : DLI_BLOCK_MAX;
    return request->tokens < 1 ? 1 : request->tokens < most ? request->tokens : most;
}

#endif
