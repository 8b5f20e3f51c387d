/* suggest.c - the nearest known word, for "did you mean". */
/* SPDX-License-Identifier: Apache-2.0 */
#include "suggest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define WORD_MAX 31

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* How many letters have to be changed, put in, left out or swapped with their neighbour. */
static size_t edit_distance(const char *a, const char *b) {
    size_t a_len = strlen(a);
    size_t b_len = strlen(b);
    if (a_len > WORD_MAX || b_len > WORD_MAX) {
        return SIZE_MAX;
    }
    /* cost[i][j]: from the first i letters of a to the first j of b. */
    size_t cost[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= a_len; i++) {
        cost[i][0] = i;
    }
    for (size_t j = 0; j <= b_len; j++) {
        cost[0][j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        for (size_t j = 1; j <= b_len; j++) {
            size_t best = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = smaller(best, cost[i - 1][j] + 1);
            best = smaller(best, cost[i][j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                best = smaller(best, cost[i - 2][j - 2] + 1);
            }
            cost[i][j] = best;
        }
    }
    return cost[a_len][b_len];
}

void try_word(nearest_t *nearest, const char *word) {
    size_t distance = edit_distance(nearest->written, word);
    /* Beyond half of its letters a word is another word. */
    bool is_near = distance <= 3 && distance * 2 <= strlen(nearest->written);
    if (is_near && (nearest->word == NULL || distance < nearest->distance)) {
        nearest->word = word;
        nearest->distance = distance;
    }
}
