/* dues.c - the queue of answers that the server owes a subscriber. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "hearing.h"

#define FIRST_CAP 64

static bool grow(dli_dues_t *dues) {
    size_t cap = dues->cap == 0 ? FIRST_CAP : dues->cap * 2;
    dli_due_t *ring = malloc(cap * sizeof *ring);
    if (ring == NULL) {
        return false;
    }
    for (size_t i = 0; i < dues->len; i++) {
        ring[i] = dues->ring[(dues->at + i) & (dues->cap - 1)];
    }
    free(dues->ring);
    *dues = (dli_dues_t){.ring = ring, .cap = cap, .len = dues->len};
    return true;
}

bool dli_dues_push(dli_dues_t *dues, dli_due_t due) {
    if (dues->len == dues->cap && !grow(dues)) {
        return false;
    }
    dues->ring[(dues->at + dues->len++) & (dues->cap - 1)] = due;
    return true;
}

dli_due_t dli_dues_pop(dli_dues_t *dues) {
    dli_due_t due = dues->ring[dues->at];
    dues->at = (dues->at + 1) & (dues->cap - 1);
    dues->len--;
    return due;
}
