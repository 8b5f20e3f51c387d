/* suggest.h - the nearest known word. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

#include <stddef.h>

typedef struct nearest {
    const char *written;
    const char *word; /* the nearest of those that were tried; NULL: none may have been meant */
    size_t distance;
} nearest_t;

/* May this word have been meant? Those beyond 31 bytes never are. */
void try_word(nearest_t *nearest, const char *word);

#endif
