/* batch.c - holds that the nodes are asked for together. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <string.h>

/* ---- making ----------------------------------------------------------------------------------------- */

void dli_chunk_add(dli_chunk_t *chunk, dl_renewal_t *entry, uint32_t nodes) {
    chunk->entries[chunk->count] = entry;
    chunk->nodes[chunk->count++] = nodes;
}

/* Puts the entry's texts where `text` is; returns what is behind them. */
static char *fill_item(dli_item_t *item, const dli_redis_t *redis, const dl_renewal_t *entry, uint32_t nodes,
                       char *text) {
    dli_key_t key;
    size_t owner_size = strlen(entry->owner) + 1;
    dli_redis_key(redis, entry->name, entry->name_len, &key);
    item->key = (dli_slice_t){memcpy(text, key.at, key.len), key.len};
    item->owner = (dli_slice_t){memcpy(text + key.len, entry->owner, owner_size), owner_size - 1};
    item->hold = entry->hold_id;
    (void)dli_slice_int(item->hold_id, (int64_t)entry->hold_id);
    (void)dli_slice_int(item->lease_ms, entry->lease_ms);
    item->nodes = nodes;
    return text + key.len + owner_size;
}

dli_round_t *dli_batch_round(dli_redlock_t *redlock, const dli_question_t *question,
                             const dli_chunk_t *chunk) {
    const dli_redis_t *redis = &redlock->nodes[0].redis;
    size_t head = sizeof(dli_batch_t) + chunk->count * sizeof(dli_item_t), texts = 0;
    for (size_t i = 0; i < chunk->count; i++) {
        texts += redis->prefix_len + chunk->entries[i]->name_len + strlen(chunk->entries[i]->owner) + 1;
    }
    dli_round_t *round = dli_round_new(redlock, question, head + texts, chunk->count);
    if (round != NULL) {
        dli_batch_put(round, chunk);
    }
    return round;
}

void dli_batch_put(dli_round_t *round, const dli_chunk_t *chunk) {
    const dli_redis_t *redis = &round->redlock->nodes[0].redis;
    dli_batch_t *batch = round->data;
    char *text = (char *)&batch->items[chunk->count];
    batch->count = chunk->count;
    for (size_t i = 0; i < chunk->count; i++) {
        text = fill_item(&batch->items[i], redis, chunk->entries[i], chunk->nodes[i], text);
    }
}

/* ---- asking ----------------------------------------------------------------------------------------- */

static void add_call(const dli_item_t *item, const dli_script_t *script, bool with_source,
                     dli_commands_t *commands) {
    const dli_slice_t argv[] = {item->key, item->owner, dli_slice(item->hold_id), dli_slice(item->lease_ms)};
    const dli_script_call_t call = {script, 1, 4, argv};
    dli_script_encode(commands, &call, with_source);
}

/* The text of the script goes with the first call; the others then find it. */
void dli_batch_encode(const dli_batch_t *batch, const dli_node_t *node, const dli_script_t *script,
                      bool with_source, dli_commands_t *commands) {
    for (size_t i = 0; i < batch->count; i++) {
        const dli_item_t *item = &batch->items[i];
        if ((item->nodes >> node->index & 1) != 0 && !atomic_load(&item->is_forgotten)) {
            add_call(item, script, with_source, commands);
            with_source = false;
        }
    }
}

dli_item_t *dli_batch_find(const dli_round_t *round, const dl_request_t *hold) {
    dli_batch_t *batch = round->data;
    size_t prefix_len = round->redlock->nodes[0].redis.prefix_len;
    for (size_t i = 0; i < batch->count; i++) {
        dli_item_t *item = &batch->items[i];
        if (item->hold == hold->hold_id && item->key.len == prefix_len + hold->name_len &&
            memcmp(item->key.at + prefix_len, hold->name, hold->name_len) == 0 &&
            strcmp(item->owner.at, hold->owner) == 0) {
            return item;
        }
    }
    return NULL;
}
