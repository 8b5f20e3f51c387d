/* suggest.h - the nearest known word. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

#include <stddef.h>

/* How many letters have to be changed, put in, left out or swapped with their neighbour; words beyond 31
 * bytes are infinitely far from everything. */
size_t edit_distance(const char *a, const char *b);
/* Is a word at this distance near enough to be what was meant? */
int is_near(const char *word, size_t distance);

#endif
