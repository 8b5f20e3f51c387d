/* arena.c - memory that is taken in pieces and wiped and freed as a whole. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_MIN ((size_t)1024)
#define BLOCK_MAX ((size_t)64 * 1024)

typedef struct dli_block {
    struct dli_block *next;
    size_t size;
    size_t used;
    _Alignas(max_align_t) unsigned char data[];
} block_t;

/* Blocks double from BLOCK_MIN to BLOCK_MAX; a larger piece gets a block of its own. */
static block_t *add_block(dli_arena_t *arena, size_t size) {
    size_t room = arena->first == NULL ? BLOCK_MIN : arena->first->size * 2;
    room = room > BLOCK_MAX ? BLOCK_MAX : room;
    room = room < size ? size : room;
    if (room > SIZE_MAX / 2) {
        return NULL;
    }
    block_t *block = calloc(1, sizeof *block + room);
    if (block != NULL) {
        block->size = room;
        block->next = arena->first;
        arena->first = block;
    }
    return block;
}

void *dli_arena_get(dli_arena_t *arena, size_t size) {
    const size_t unit = _Alignof(max_align_t);
    if (size > SIZE_MAX / 2) {
        return NULL;
    }
    size = size == 0 ? unit : (size + unit - 1) / unit * unit;
    block_t *block = arena->first;
    if (block == NULL || block->size - block->used < size) {
        block = add_block(arena, size);
        if (block == NULL) {
            return NULL;
        }
    }
    void *piece = block->data + block->used;
    block->used += size;
    return piece;
}

char *dli_arena_copy(dli_arena_t *arena, const char *text, size_t len) {
    char *copy = dli_arena_get(arena, len + 1);
    if (copy != NULL && len > 0) {
        memcpy(copy, text, len);
    }
    return copy;
}

void dli_arena_wipe(dli_arena_t *arena) {
    block_t *block = arena->first;
    arena->first = NULL;
    while (block != NULL) {
        block_t *next = block->next;
        explicit_bzero(block->data, block->used);
        free(block);
        block = next;
    }
}
