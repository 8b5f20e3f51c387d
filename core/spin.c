/* spin.c - whether a caller looks for its reply for a while before it sleeps. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/*
 * A processor that has gone to sleep takes longer to wake up than a server that is near to answer. So a
 * caller that reads its own reply, and those of others, spins for up to twice the usual round trip, where
 * that round trip is short. Beside others it yields its processor between two looks: they have something to
 * ask as well. Those who spin never take more than half of the processors; and after a miss nobody spins for
 * some times as long as that one lasted, which it may have for a whole slice of another process. Nor does
 * anybody who asks after a pause: the server sleeps as well, so that it takes longer, and the waiter who is
 * woken by a release needs the processor.
 */

/* Round trips that are longer than this are not worth it. */
#define LONGEST_TRIP_NS (100u * (uint64_t)DLI_NS_PER_US)
/* A miss is followed by 2 ^ so many times as long without spinning, and by twice that in a row. */
#define REST_BITS 2u
#define MISSES_MAX 6u
/* Nor for longer than this: it may have been stopped while it spun. */
#define REST_MAX_NS (1000u * (uint64_t)DLI_NS_PER_MS)
#define CROWD 12u
#define THRONG 48u
#define PAUSE_NS (2000u * (uint64_t)DLI_NS_PER_US)

/* More callers than so many for each who may spin are better served by a reader that sleeps: more replies
 * come at once. And where some queue for a lock, the processors are for whoever is to have it. */
static bool is_crowded(const dl_client_t *client) {
    unsigned most = client->spin.most;
    return client->calls > CROWD * most || (client->calls > most && client->queued != NULL);
}

uint64_t dli_spin_until(dli_op_t *op) {
    dli_spin_t *spin = &op->client->spin;
    uint64_t now = dli_now();
    bool is_pausing = now < spin->rest_ns || now > op->client->last_answer_ns + PAUSE_NS;
    if (spin->spinning >= spin->most || is_crowded(op->client) || is_pausing) {
        return 0;
    }
    uint64_t trip_ns = spin->trip_ns == 0 ? LONGEST_TRIP_NS : dli_min(spin->trip_ns, LONGEST_TRIP_NS);
    op->spins_ns = now;
    spin->spinning++;
    return now + 2 * trip_ns;
}

/* In a crowd. In a throng somebody always writes or reads, and what begins goes out with the next write. */
bool dli_spin_gives_way(const dl_client_t *client) {
    unsigned most = client->spin.most;
    return client->calls > CROWD * most && client->calls <= THRONG * most && client->queued == NULL;
}

void dli_spin_end(dli_op_t *op) {
    op->client->spin.spinning -= op->spins_ns != 0;
    op->spins_ns = 0;
}

void dli_spin_note(dli_op_t *op, bool is_hit, uint64_t ended_ns) {
    dli_spin_t *spin = &op->client->spin;
    if (is_hit) {
        uint64_t took_ns = ended_ns - op->called_ns;
        spin->trip_ns = spin->trip_ns == 0 ? took_ns : (7 * spin->trip_ns + took_ns) / 8;
        spin->misses = 0;
    } else {
        spin->trip_ns = 0;
        uint64_t rest_ns = (ended_ns - op->spins_ns) << (REST_BITS + spin->misses);
        spin->rest_ns = ended_ns + dli_min(rest_ns, REST_MAX_NS);
        spin->misses += spin->misses < MISSES_MAX;
    }
    dli_spin_end(op);
}
