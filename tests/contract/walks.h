/* walks.h - random walks of cases: what they draw, the faults on their way, and what a failure says. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WALKS_H
#define WALKS_H

#include <stdio.h>

#include "callers.h"

/* Of a walk: the same seed walks the same way. */
typedef struct way {
    ct_t *ct;
    unsigned seed, step, random;
    char said[128]; /* what the step does */
} way_t;

#define NEED(w, cond)                                                                             \
    ((cond) ? (void)0                                                                             \
            : ct_fail((w)->way.ct, __FILE__, __LINE__, "seed %u, step %u, %s: %s", (w)->way.seed, \
                      (w)->way.step, (w)->way.said, #cond))

/* The seeds of a case's walks, `count` of them: each --seed of the runner has its own. */
static inline unsigned first_seed(ct_t *ct, unsigned count) {
    return 1 + ((unsigned)ct_seed(ct) - 1) * count;
}

/* From 0. */
static inline int64_t draw(way_t *way, int64_t below) {
    way->random = way->random * 1664525u + 1013904223u;
    return (int64_t)(way->random >> 8) % below;
}

/* So much and up to 25 s more; short ones more often. */
static inline int64_t draw_lease(way_t *way, int64_t least_ms) {
    return least_ms + draw(way, (int64_t)100 << draw(way, 9));
}

static inline int64_t draw_sleep(way_t *way) {
    return 1 + draw(way, (int64_t)50 << draw(way, 10));
}

/* More than all leases of a walk. */
#define LONGEST_MS 40000

/* Some of the next exchanges do not go well. */
static inline void break_some(way_t *way) {
    static const ct_op_t ops[] = {CT_OP_TRY, CT_OP_TRY, CT_OP_RELEASE, CT_OP_RENEW};
    static const ct_mode_t modes[] = {CT_FAIL_BEFORE, CT_LOSE_REPLY, CT_LATE,
                                      CT_LATE_REPLY,  CT_NEVER,      CT_NEVER_ACTED};
    ct_fault_t fault = {.op = ops[draw(way, 4)], .mode = modes[draw(way, 6)], .count = 1 + (int)draw(way, 3)};
    fault.delay_ms = 1 + draw(way, 3000);
    ct_fault_add(way->ct, &fault);
}

#endif
