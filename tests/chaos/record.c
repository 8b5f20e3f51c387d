/* record.c - the log of all holds of all processes, and the verdict on it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "chaos.h"

#define HOLDS_A_SECOND 4000u

void chaos_make_shared(void) {
    size_t room = (size_t)HOLDS_A_SECOND * (size_t)(chaos.seconds + 10);
    void *memory = mmap(NULL, sizeof *shared + room * sizeof shared->holds[0], PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        chaos_die("no shared memory for %zu holds", room);
    }
    shared = memory;
    shared->hold_room = room;
}

bool chaos_was_wiped(uint64_t from_ns, uint64_t to_ns) {
    unsigned count = atomic_load(&shared->wipe_count);
    for (unsigned i = 0; i < count && i < CHAOS_WIPES_MAX; i++) {
        uint64_t end_ns = atomic_load(&shared->wipes[i].to_ns);
        if (atomic_load(&shared->wipes[i].from_ns) <= to_ns && (end_ns == 0 || end_ns >= from_ns)) {
            return true;
        }
    }
    return false;
}

chaos_hold_t *chaos_hold_new(void) {
    size_t at = atomic_fetch_add(&shared->hold_count, 1);
    return at < shared->hold_room ? &shared->holds[at] : NULL;
}

static int compare(const void *a, const void *b) {
    const chaos_hold_t *x = *(chaos_hold_t *const *)a, *y = *(chaos_hold_t *const *)b;
    if (x->name != y->name) {
        return x->name < y->name ? -1 : 1;
    }
    return (x->enter_ns > y->enter_ns) - (x->enter_ns < y->enter_ns);
}

/* `next` entered after `hold`. */
static void judge_pair(const chaos_hold_t *hold, const chaos_hold_t *next) {
    uint64_t until_ns = atomic_load(&hold->until_ns);
    if (next->token <= hold->token) {
        chaos_violated("lock %u: %u entered with token %llu after %u with token %llu", next->name, next->who,
                       (unsigned long long)next->token, hold->who, (unsigned long long)hold->token);
    }
    if (next->enter_ns < until_ns && !chaos_was_wiped(hold->asked_ns, next->enter_ns)) {
        chaos_violated(
            "lock %u: %u entered at %llu, %.3f ms before the validity of %u (entered at %llu) ended",
            next->name, next->who, (unsigned long long)next->enter_ns,
            (double)(until_ns - next->enter_ns) / 1e6, hold->who, (unsigned long long)hold->enter_ns);
    }
}

void chaos_judge_holds(void) {
    size_t count = atomic_load(&shared->hold_count), n = 0;
    if (count > shared->hold_room) {
        fprintf(stderr, "only the first %zu of %zu holds were looked at\n", shared->hold_room, count);
        count = shared->hold_room;
    }
    chaos_hold_t **sorted = calloc(count + 1, sizeof(chaos_hold_t *));
    if (sorted == NULL) {
        chaos_die("no memory to judge %zu holds", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (atomic_load(&shared->holds[i].is_claimed)) {
            sorted[n++] = &shared->holds[i];
        }
    }
    qsort(sorted, n, sizeof(chaos_hold_t *), compare);
    const chaos_hold_t *longest = NULL; /* of this name so far: a short hold inside must not hide it */
    for (size_t i = 0; i < n; i++) {
        bool same = i > 0 && sorted[i - 1]->name == sorted[i]->name;
        if (same) {
            judge_pair(sorted[i - 1], sorted[i]);
            if (longest != sorted[i - 1]) {
                judge_pair(longest, sorted[i]);
            }
        }
        if (!same || atomic_load(&longest->until_ns) < atomic_load(&sorted[i]->until_ns)) {
            longest = sorted[i];
        }
    }
    printf("%zu holds judged\n", n);
    free(sorted);
}
