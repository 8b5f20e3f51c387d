/* arena.h - memory that is taken in pieces and wiped and freed as a whole. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_ARENA_H
#define DLI_CONFIG_ARENA_H

#include <stddef.h>

/* Zeroed is empty. Everything a configuration says may be a secret, so all of it is wiped at the end. */
typedef struct dli_arena {
    struct dli_block *first;
} dli_arena_t;

/* Zeroed memory, aligned for any type; NULL when there is none. A size of 0 gives a valid pointer too. */
void *dli_arena_get(dli_arena_t *arena, size_t size);
/* A copy of `len` bytes with a NUL after them. */
char *dli_arena_copy(dli_arena_t *arena, const char *text, size_t len);
/* Wipes and frees everything; the arena is empty again. */
void dli_arena_wipe(dli_arena_t *arena);

#endif
