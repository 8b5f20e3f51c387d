/* batch.h - holds that the nodes are asked for together; they last as long as the round that asks. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_BATCH_H
#define DLI_REDLOCK_BATCH_H

#include "round.h"

/* So many go together: a node works on them for a few milliseconds, so nobody waits long behind them. */
#define DLI_CHUNK 256

/* Entries of a renewal, each for some nodes: what a batch is made of. */
typedef struct dli_chunk {
    size_t count;
    dl_renewal_t *entries[DLI_CHUNK];
    uint32_t nodes[DLI_CHUNK];
} dli_chunk_t;

void dli_chunk_add(dli_chunk_t *chunk, dl_renewal_t *entry, uint32_t nodes);

typedef struct dli_item {
    dli_slice_t key, owner;
    uint64_t hold;
    char hold_id[24], lease_ms[24];
    uint32_t nodes;           /* that are asked for this one */
    atomic_bool is_forgotten; /* none is, any more */
} dli_item_t;

/* The data of a round, in the order of the chunk; the texts are behind the items. */
typedef struct dli_batch {
    size_t count;
    dli_item_t items[];
} dli_batch_t;

/* NULL: out of memory. */
dli_round_t *dli_batch_round(dli_redlock_t *redlock, const dli_question_t *question,
                             const dli_chunk_t *chunk);
/* Puts the chunk into a round with room for it. */
void dli_batch_put(dli_round_t *round, const dli_chunk_t *chunk);
/* The data of a round for one entry, however long its texts. */
#define DLI_BATCH_OF_ONE (sizeof(dli_batch_t) + sizeof(dli_item_t) + DLI_KEY_MAX + DL_OWNER_MAX + 1)
/* For `encode`: the script, for each item that this node is asked for. */
void dli_batch_encode(const dli_batch_t *batch, const dli_node_t *node, const dli_script_t *script,
                      bool with_source, dli_commands_t *commands);
/* NULL: it is not among them. */
dli_item_t *dli_batch_find(const dli_round_t *round, const dl_request_t *hold);

#endif
