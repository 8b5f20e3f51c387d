/* heap.c - a binary heap of timers by their instants. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

/* Places count from 1, so that a zeroed timer is not set. */
static void place(dli_heap_t *heap, size_t i, dli_timer_t *timer) {
    heap->at[i - 1] = timer;
    timer->place = i;
}

static uint64_t at_ns(const dli_heap_t *heap, size_t i) {
    return heap->at[i - 1]->at_ns;
}

static void sift_up(dli_heap_t *heap, size_t i) {
    dli_timer_t *timer = heap->at[i - 1];
    while (i > 1 && at_ns(heap, i / 2) > timer->at_ns) {
        place(heap, i, heap->at[i / 2 - 1]);
        i /= 2;
    }
    place(heap, i, timer);
}

static void sift_down(dli_heap_t *heap, size_t i) {
    dli_timer_t *timer = heap->at[i - 1];
    for (;;) {
        size_t child = 2 * i;
        if (child > heap->len) {
            break;
        }
        if (child < heap->len && at_ns(heap, child + 1) < at_ns(heap, child)) {
            child++;
        }
        if (timer->at_ns <= at_ns(heap, child)) {
            break;
        }
        place(heap, i, heap->at[child - 1]);
        i = child;
    }
    place(heap, i, timer);
}

bool dli_heap_reserve(dli_heap_t *heap) {
    if (heap->reserved == heap->cap) {
        size_t cap = heap->cap == 0 ? 16 : heap->cap * 2;
        dli_timer_t **at = realloc(heap->at, cap * sizeof(dli_timer_t *));
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
    dli_timer_t *last = heap->at[--heap->len];
    if (last != timer) {
        place(heap, i, last);
        sift_up(heap, i);
        sift_down(heap, last->place);
    }
}
