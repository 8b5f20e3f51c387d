/* heap.c - a binary heap of timers by their instants. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

static void place(dli_heap_t *heap, size_t i, dli_timer_t *timer) {
    heap->at[i] = timer;
    timer->place = i;
}

static void sift_up(dli_heap_t *heap, size_t i) {
    dli_timer_t *timer = heap->at[i];
    while (i > 1 && heap->at[i / 2]->at_ns > timer->at_ns) {
        place(heap, i, heap->at[i / 2]);
        i /= 2;
    }
    place(heap, i, timer);
}

static void sift_down(dli_heap_t *heap, size_t i) {
    dli_timer_t *timer = heap->at[i];
    for (;;) {
        size_t child = 2 * i;
        if (child > heap->len) {
            break;
        }
        if (child < heap->len && heap->at[child + 1]->at_ns < heap->at[child]->at_ns) {
            child++;
        }
        if (timer->at_ns <= heap->at[child]->at_ns) {
            break;
        }
        place(heap, i, heap->at[child]);
        i = child;
    }
    place(heap, i, timer);
}

bool dli_heap_reserve(dli_heap_t *heap) {
    if (heap->reserved == heap->cap) {
        size_t cap = heap->cap == 0 ? 16 : heap->cap * 2;
        dli_timer_t **at = realloc(heap->at, (cap + 1) * sizeof(dli_timer_t *));
        if (at == NULL) {
            return false;
        }
        heap->at = at;
        heap->cap = cap;
    }
    heap->reserved++;
    return true;
}

void dli_heap_give_back(dli_heap_t *heap) {
    heap->reserved--;
}

void dli_timer_set(dli_heap_t *heap, dli_timer_t *timer, uint64_t at) {
    timer->at_ns = at;
    if (timer->place == 0) {
        place(heap, ++heap->len, timer);
    }
    sift_up(heap, timer->place);
    sift_down(heap, timer->place);
}

void dli_timer_clear(dli_heap_t *heap, dli_timer_t *timer) {
    size_t i = timer->place;
    if (i == 0) {
        return;
    }
    timer->place = 0;
    dli_timer_t *last = heap->at[heap->len--];
    if (last != timer) {
        place(heap, i, last);
        sift_up(heap, i);
        sift_down(heap, last->place);
    }
}
