/* core_spin_test.c - whether a caller spins: how long, beside whom, and after which misses. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/core.h"

static dl_client_t client;
static dli_op_t op = {.client = &client};

static void begin(unsigned most) {
    memset(&client, 0, sizeof client);
    client.spin.most = most;
    client.calls = 1;
    client.last_answer_ns = dli_now() + 60000 * DLI_NS_PER_MS; /* however slow this machine is */
    op.called_ns = dli_now();
    op.spins_ns = 0;
}

/* How long from now, in ns; 0: not at all. */
static uint64_t spins_for(void) {
    uint64_t now = dli_now(), until_ns = dli_spin_until(&op);
    return until_ns > now ? until_ns - now : 0;
}

Test(core_spin, it_takes_no_more_than_its_part_of_the_processors) {
    dli_op_t others[2] = {{.client = &client}, {.client = &client}};
    begin(0);
    cr_assert_eq(spins_for(), 0);
    begin(2);
    cr_assert_gt(dli_spin_until(&others[0]), 0);
    cr_assert_gt(dli_spin_until(&others[1]), 0);
    cr_assert_eq(spins_for(), 0);
    dli_spin_note(&others[0], true, dli_now());
    cr_assert_gt(spins_for(), 0);
}

Test(core_spin, a_crowd_is_better_served_by_one_that_sleeps) {
    begin(2);
    client.calls = 24;
    cr_assert_gt(spins_for(), 0);
    dli_spin_note(&op, true, dli_now());
    client.calls = 25;
    cr_assert_eq(spins_for(), 0);
}

Test(core_spin, in_a_crowd_who_has_begun_gives_way) {
    static const struct {
        unsigned most;
        size_t calls;
        bool gives_way;
    } cases[] = {{1, 12, false}, {1, 13, true},  {1, 48, true}, {1, 49, false}, {2, 24, false}, {2, 25, true},
                 {2, 96, true},  {2, 97, false}, {0, 1, false}, {0, 20, false}, {1, 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(cases[i].most);
        client.calls = cases[i].calls;
        cr_assert_eq(dli_spin_gives_way(&client), cases[i].gives_way, "%zu calls", cases[i].calls);
        dli_node_t waiting = {.key = 1};
        client.queued = &waiting;
        cr_assert_not(dli_spin_gives_way(&client), "the processors are for whoever is to have the lock");
    }
}

Test(core_spin, who_asks_after_a_pause_sleeps) {
    begin(1);
    client.last_answer_ns = dli_now() - 2 * DLI_NS_PER_MS - 1;
    cr_assert_eq(spins_for(), 0);
    client.last_answer_ns = 0; /* never so far */
    cr_assert_eq(spins_for(), 0);
}

Test(core_spin, one_beside_others_that_queue_for_a_lock_sleeps) {
    begin(1);
    dli_node_t waiting = {.key = 1};
    client.stats.waiting_now = 2; /* all that ask for a lock are among these */
    client.calls = 2;
    cr_assert_gt(spins_for(), 0);
    dli_spin_note(&op, true, dli_now());
    client.queued = &waiting;
    client.calls = 1;
    cr_assert_gt(spins_for(), 0, "a task waits: no thread");
    dli_spin_note(&op, true, dli_now());
    client.calls = 2;
    cr_assert_eq(spins_for(), 0);
}

Test(core_spin, one_that_was_left_by_a_jump_takes_no_processor) {
    begin(1);
    cr_assert_gt(spins_for(), 0);
    dli_loop_forget(&op);
    cr_assert_gt(spins_for(), 0);
    dli_spin_note(&op, true, dli_now());
    cr_assert_eq(client.spin.spinning, 0);
    dli_loop_forget(&op);
    cr_assert_eq(client.spin.spinning, 0, "it spun no more");
}

Test(core_spin, it_is_bounded_by_twice_the_usual_round_trip) {
    begin(1);
    client.spin.trip_ns = 10000;
    uint64_t now = dli_now(), until_ns = dli_spin_until(&op), then = dli_now();
    cr_assert_geq(until_ns, now + 20000);
    cr_assert_leq(until_ns, then + 20000);
    dli_spin_note(&op, true, dli_now());
    client.spin.trip_ns = 5000000;
    until_ns = dli_spin_until(&op);
    cr_assert_leq(until_ns, dli_now() + 200000);
}

/* A spin that began so long ago was a miss: for how long nobody spins. */
static uint64_t rest_after(uint64_t ns) {
    client.spin.rest_ns = 0;
    cr_assert_gt(spins_for(), 0);
    uint64_t ended_ns = op.spins_ns + ns;
    dli_spin_note(&op, false, ended_ns);
    cr_assert_eq(spins_for(), 0);
    return client.spin.rest_ns - ended_ns;
}

Test(core_spin, after_misses_in_a_row_all_sleep_for_longer_and_longer) {
    begin(1);
    uint64_t lasted_ns = 3000000, before = 0;
    for (int miss = 0; miss < 5; miss++) {
        uint64_t rest = rest_after(lasted_ns);
        cr_assert_geq(rest, before == 0 ? 3 * lasted_ns : 2 * before);
        before = rest;
    }
    client.spin.rest_ns = 0;
    cr_assert_gt(spins_for(), 0);
    dli_spin_note(&op, true, dli_now());
    cr_assert_lt(rest_after(lasted_ns), before / 8, "a hit begins anew");
    cr_assert_leq(rest_after(3600u * (uint64_t)1000000000), 1000000000u, "it was stopped");
}
