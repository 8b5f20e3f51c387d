/* spin.c - whether a caller looks for its reply for a while before it sleeps. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/*
 * A processor that has gone to sleep takes longer to wake up than a server that is near to answer. So a
 * caller that reads its own reply spins for up to twice the usual round trip, where that round trip is short.
 * It never takes more than half of the processors, since the server may need one of them, too; and after a
 * miss more and more requests sleep at once.
 */

/* Round trips that are longer than this are not worth it. */
#define LONGEST_TRIP_NS (100u * (uint64_t)DLI_NS_PER_US)
/* 2 ^ so many requests are skipped at most. */
#define MISSES_MAX 10u

uint64_t dli_spin_until(const dli_op_t *op) {
    dli_spin_t *spin = &op->client->spin;
    if (op->client->calls > spin->callers) {
        return 0;
    }
    if (spin->skips > 0) {
        spin->skips--;
        return 0;
    }
    uint64_t trip_ns = spin->trip_ns == 0 ? LONGEST_TRIP_NS : dli_min(spin->trip_ns, LONGEST_TRIP_NS);
    return dli_now() + 2 * trip_ns;
}

void dli_spin_note(const dli_op_t *op, bool is_hit) {
    dli_spin_t *spin = &op->client->spin;
    if (is_hit) {
        uint64_t took_ns = dli_now() - op->called_ns;
        spin->trip_ns = spin->trip_ns == 0 ? took_ns : (7 * spin->trip_ns + took_ns) / 8;
        spin->misses = 0;
    } else {
        spin->trip_ns = 0;
        spin->misses += spin->misses < MISSES_MAX;
        spin->skips = 1u << spin->misses;
    }
}
