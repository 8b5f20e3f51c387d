/* core_spin_test.c - whether a caller spins: how long, beside whom, and after which misses. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/core.h"

static dl_client_t client;
static dli_op_t op = {.client = &client};

static void begin(unsigned callers) {
    memset(&client, 0, sizeof client);
    client.spin.callers = callers;
    client.calls = 1;
    op.called_ns = dli_now();
}

/* How long from now, in ns; 0: not at all. */
static uint64_t spins_for(void) {
    uint64_t now = dli_now(), until_ns = dli_spin_until(&op);
    return until_ns > now ? until_ns - now : 0;
}

Test(core_spin, it_takes_no_more_than_its_part_of_the_processors) {
    begin(0);
    cr_assert_eq(spins_for(), 0);
    begin(2);
    client.calls = 2;
    cr_assert_gt(spins_for(), 0);
    client.calls = 3;
    cr_assert_eq(spins_for(), 0);
}

Test(core_spin, it_is_bounded_by_twice_the_usual_round_trip) {
    begin(1);
    client.spin.trip_ns = 10000;
    uint64_t now = dli_now(), until_ns = dli_spin_until(&op), then = dli_now();
    cr_assert_geq(until_ns, now + 20000);
    cr_assert_leq(until_ns, then + 20000);
    client.spin.trip_ns = 5000000;
    until_ns = dli_spin_until(&op);
    cr_assert_leq(until_ns, dli_now() + 200000);
}

Test(core_spin, after_misses_in_a_row_more_and_more_requests_sleep) {
    begin(1);
    unsigned before = 0;
    for (int miss = 0; miss < 5; miss++) {
        unsigned skipped = 0;
        cr_assert_gt(spins_for(), 0);
        dli_spin_note(&op, false);
        while (client.spin.skips > 0) {
            cr_assert_eq(spins_for(), 0);
            skipped++;
        }
        cr_assert_gt(skipped, before);
        before = skipped;
    }
    dli_spin_note(&op, true);
    cr_assert_gt(spins_for(), 0);
    dli_spin_note(&op, false);
    cr_assert_eq(client.spin.skips, 2, "a hit begins anew");
}
