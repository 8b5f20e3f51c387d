/* nearest.c - the known name that is nearest to a mistyped one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "nearest.h"

#include <string.h>

static unsigned smaller(unsigned a, unsigned b) {
    return a < b ? a : b;
}

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* How many letters to insert, delete, change or swap with their neighbour; case does not count. */
static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len) {
    unsigned rows[3][DLI_NEAREST_WORD_MAX + 1];
    unsigned *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_len; j++) {
        above[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            char x = lower(a[i - 1]), y = lower(b[j - 1]);
            unsigned best = smaller(above[j], row[j - 1]) + 1;
            best = smaller(best, above[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y) {
                best = smaller(best, before[j - 2] + 1);
            }
            row[j] = best;
        }
        unsigned *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[b_len];
}

void dli_nearest_start(dli_nearest_t *nearest, const char *word, size_t len) {
    nearest->word = word;
    nearest->len = len;
    nearest->limit = 1 + (unsigned)(len < DLI_NEAREST_WORD_MAX ? len : DLI_NEAREST_WORD_MAX) / 4;
    nearest->name = NULL;
    nearest->distance = nearest->limit + 1;
}

void dli_nearest_try(dli_nearest_t *nearest, const char *name) {
    size_t len = strlen(name);
    if (nearest->len == 0 || nearest->len > DLI_NEAREST_WORD_MAX || len > DLI_NEAREST_WORD_MAX) {
        return;
    }
    unsigned found = distance(nearest->word, nearest->len, name, len);
    /* A shortened name, such as `redis` for `redis-string`, is the weakest slip that counts. */
    if (found > nearest->limit && nearest->len >= 3 && len > nearest->len &&
        memcmp(nearest->word, name, nearest->len) == 0) {
        found = nearest->limit;
    }
    /* A word of which no letter stays is another word. */
    if (found < nearest->distance && found < (len > nearest->len ? len : nearest->len)) {
        nearest->distance = found;
        nearest->name = name;
    }
}

const char *dli_nearest_name(const dli_nearest_t *nearest) {
    return nearest->name;
}
