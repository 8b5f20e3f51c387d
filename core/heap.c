/* heap.c - a binary heap of holds by their next instant. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

static void place(dli_heap_t *heap, size_t i, dli_hold_t *hold) {
    heap->at[i] = hold;
    hold->heap_index = i;
}

static void sift_up(dli_heap_t *heap, size_t i) {
    dli_hold_t *hold = heap->at[i];
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (heap->at[parent]->heap_key_ns <= hold->heap_key_ns) {
            break;
        }
        place(heap, i, heap->at[parent]);
        i = parent;
    }
    place(heap, i, hold);
}

static void sift_down(dli_heap_t *heap, size_t i) {
    dli_hold_t *hold = heap->at[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= heap->len) {
            break;
        }
        if (child + 1 < heap->len && heap->at[child + 1]->heap_key_ns < heap->at[child]->heap_key_ns) {
            child++;
        }
        if (hold->heap_key_ns <= heap->at[child]->heap_key_ns) {
            break;
        }
        place(heap, i, heap->at[child]);
        i = child;
    }
    place(heap, i, hold);
}

/* Room is made before the server is asked, so that a lock that was obtained can always be watched. */
bool dli_heap_room(dli_heap_t *heap, size_t count) {
    if (count <= heap->cap) {
        return true;
    }
    size_t cap = heap->cap == 0 ? 16 : heap->cap * 2;
    dli_hold_t **at = realloc(heap->at, cap * sizeof(dli_hold_t *));
    if (at == NULL) {
        return false;
    }
    heap->at = at;
    heap->cap = cap;
    return true;
}

void dli_heap_put(dli_heap_t *heap, dli_hold_t *hold, uint64_t key_ns) {
    if (hold->heap != heap) {
        dli_heap_remove(hold->heap, hold);
        hold->heap = heap;
        hold->heap_key_ns = key_ns;
        place(heap, heap->len++, hold);
        sift_up(heap, hold->heap_index);
        return;
    }
    uint64_t old_ns = hold->heap_key_ns;
    hold->heap_key_ns = key_ns;
    if (key_ns < old_ns) {
        sift_up(heap, hold->heap_index);
    } else {
        sift_down(heap, hold->heap_index);
    }
}

void dli_heap_remove(dli_heap_t *heap, dli_hold_t *hold) {
    if (heap == NULL || hold->heap != heap) {
        return;
    }
    size_t i = hold->heap_index;
    hold->heap = NULL;
    dli_hold_t *last = heap->at[--heap->len];
    if (last == hold) {
        return;
    }
    place(heap, i, last);
    sift_up(heap, i);
    sift_down(heap, last->heap_index);
}

bool dli_heap_is_sound(const dli_heap_t *heap) {
    for (size_t i = 0; i < heap->len; i++) {
        if (heap->at[i]->heap != heap || heap->at[i]->heap_index != i ||
            heap->at[(i == 0 ? 0 : (i - 1) / 2)]->heap_key_ns > heap->at[i]->heap_key_ns) {
            return false;
        }
    }
    return true;
}
