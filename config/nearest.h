/* nearest.h - the known name that is nearest to a mistyped one. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_NEAREST_H
#define DLI_CONFIG_NEAREST_H

#include <stddef.h>

/* Words longer than this have no nearest name: the cost of one comparison is at most its square. */
#define DLI_NEAREST_WORD_MAX 64

typedef struct dli_nearest {
    const char *word;
    size_t len;
    unsigned limit; /* the largest distance that still counts as a slip */
    const char *name;
    unsigned distance;
} dli_nearest_t;

void dli_nearest_start(dli_nearest_t *nearest, const char *word, size_t len);
/* `name` must live as long as `nearest`. Of equally near names the first wins. */
void dli_nearest_try(dli_nearest_t *nearest, const char *name);
/* NULL: nothing is near. */
const char *dli_nearest_name(const dli_nearest_t *nearest);

#endif
