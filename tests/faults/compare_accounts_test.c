/* compare_accounts_test.c - dlock compare counts what is wrong when it is, and its numbers are right. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/clock.h"
#include "cli/compare_check.h"
#include "cli/compare_numbers.h"

static place_t *place;

static void open_place(void) {
    place = mmap(NULL, sizeof *place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(place, MAP_FAILED);
    cr_assert_eq(place_begin(place), 0);
}

static void close_place(void) {
    (void)munmap(place, sizeof *place);
}

TestSuite(compare_accounts, .init = open_place, .fini = close_place);

/* ---- holders ------------------------------------------------------------------------------------ */

static uint64_t far_off(void) {
    return now_ns() + 60u * UINT64_C(1000000000);
}

static stay_t enter(uint64_t owner, uint64_t token, uint64_t valid_until_ns) {
    grant_t grant = {
        .owner = owner, .returned_ns = now_ns(), .valid_until_ns = valid_until_ns, .token = token};
    stay_t stay;
    place_enter(place, &grant, &stay);
    return stay;
}

static violations_t seen(void) {
    return places_violations(place, 1);
}

static void await_instant(uint64_t at_ns) {
    while (now_ns() <= at_ns) {}
}

Test(compare_accounts, holders_one_after_the_other_are_no_violation) {
    for (uint64_t owner = 0; owner < 5; owner++) {
        stay_t stay = enter(owner, owner + 1, far_off());
        place_write(place, place_read(place) + 1);
        place_leave(place, &stay, far_off());
        place_complete(place);
    }
    violations_t none = seen();
    cr_assert_eq(violations_sum(&none), 0);
    cr_assert_eq(place_read(place), 5);
}

Test(compare_accounts, two_holders_at_once_are_counted) {
    stay_t first = enter(1, 0, far_off()), second = enter(2, 0, far_off());
    place_leave(place, &first, far_off());
    cr_assert_eq(seen().overlaps, 1);
    place_leave(place, &second, far_off());
    cr_assert_eq(seen().overlaps, 1, "it was alone from then on");
}

/* When it learns of its loss only afterwards, it was a holder all the same. */
Test(compare_accounts, two_holders_at_once_are_counted_though_the_first_was_lost_before_it_left) {
    stay_t first = enter(1, 0, far_off());
    (void)enter(2, 0, far_off());
    place_leave(place, &first, 0);
    cr_assert_eq(seen().overlaps, 1);
}

Test(compare_accounts, a_holder_whose_validity_was_over_is_none) {
    uint64_t until_ns = now_ns() + 1000000;
    stay_t first = enter(1, 0, until_ns);
    await_instant(until_ns);
    stay_t second = enter(2, 0, far_off());
    place_leave(place, &first, 0);
    place_leave(place, &second, far_off());
    cr_assert_eq(seen().overlaps, 0);
    /* The same, but a renewal had made it valid for longer. */
    until_ns = now_ns() + 1000000;
    first = enter(1, 0, until_ns);
    await_instant(until_ns);
    second = enter(2, 0, far_off());
    place_leave(place, &first, far_off());
    place_leave(place, &second, far_off());
    cr_assert_eq(seen().overlaps, 1);
}

Test(compare_accounts, a_long_hold_tells_how_long_it_is_valid) {
    uint64_t until_ns = now_ns() + 1000000;
    stay_t first = enter(1, 0, until_ns);
    place_stay(place, &first, far_off());
    await_instant(until_ns);
    stay_t second = enter(2, 0, far_off());
    place_stay(place, &first, 0); /* it has learned of its loss; that says nothing of the second */
    place_leave(place, &first, 0);
    cr_assert_eq(seen().overlaps, 1);
    stay_t third = enter(3, 0, far_off());
    place_leave(place, &second, 0);
    place_leave(place, &third, far_off());
    cr_assert_eq(seen().overlaps, 2);
}

Test(compare_accounts, a_lock_that_came_without_validity_is_no_hold) {
    stay_t holder = enter(1, 7, far_off()), late = enter(2, 6, 0);
    cr_assert_eq(late.entry, 0);
    place_leave(place, &late, 0);
    place_leave(place, &holder, far_off());
    violations_t none = seen();
    cr_assert_eq(violations_sum(&none), 0);
}

Test(compare_accounts, a_process_that_dies_within_the_notes_does_not_stop_the_others) {
    pid_t pid = fork();
    if (pid == 0) {
        (void)enter(1, 0, far_off());
        _exit(pthread_mutex_lock(&place->mutex));
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), 0);
    stay_t stay = enter(2, 0, far_off());
    cr_assert_eq(stay.entry, 2, "what the other process had noted is not seen");
    place_leave(place, &stay, far_off());
    cr_assert_eq(seen().overlaps, 0, "the dead do not hold");
}

/* ---- tokens and updates ------------------------------------------------------------------------- */

static uint64_t fallen_after(uint64_t token) {
    stay_t stay = enter(1, token, far_off());
    place_leave(place, &stay, far_off());
    return seen().fallen_tokens;
}

Test(compare_accounts, tokens_that_do_not_rise_are_counted) {
    cr_assert_eq(fallen_after(0), 0, "without tokens nothing can fall");
    cr_assert_eq(fallen_after(0), 0);
    cr_assert_eq(fallen_after(5), 0);
    cr_assert_eq(fallen_after(9), 0);
    cr_assert_eq(fallen_after(8), 1, "it falls");
    cr_assert_eq(fallen_after(9), 2, "it was there before");
    cr_assert_eq(fallen_after(0), 3, "there is none any more");
    cr_assert_eq(fallen_after(10), 3);
}

Test(compare_accounts, without_a_token_nothing_was_checked) {
    (void)fallen_after(0);
    cr_assert(!places_had_tokens(place, 1));
    (void)fallen_after(5);
    cr_assert(places_had_tokens(place, 1));
}

Test(compare_accounts, lost_updates_are_counted) {
    uint64_t mine = place_read(place), theirs = place_read(place);
    place_write(place, mine + 1);
    place_complete(place);
    cr_assert_eq(seen().lost_updates, 0);
    place_write(place, theirs + 1);
    place_complete(place);
    cr_assert_eq(seen().lost_updates, 1);
    place_write(place, place_read(place) + 1); /* a hold that wrote, and then ended with a loss */
    cr_assert_eq(seen().lost_updates, 0);
}

/* ---- hand-offs ---------------------------------------------------------------------------------- */

Test(compare_accounts, a_handoff_is_from_a_release_that_others_waited_for_to_the_next_owner) {
    stay_t stay = enter(1, 0, far_off());
    cr_assert_eq(stay.handoff_ns, NO_HANDOFF, "nobody was before");
    place_leave(place, &stay, far_off());
    stay = enter(2, 0, far_off());
    cr_assert_eq(stay.handoff_ns, NO_HANDOFF, "nobody waited");
    atomic_store(&place->waiting, 1);
    uint64_t before_ns = now_ns();
    place_leave(place, &stay, far_off());
    await_instant(now_ns() + 2000000);
    stay = enter(3, 0, far_off());
    uint64_t after_ns = now_ns();
    cr_assert_geq(stay.handoff_ns, 2000000);
    cr_assert_leq(stay.handoff_ns, after_ns - before_ns);
    place_leave(place, &stay, far_off());
    stay = enter(3, 0, far_off());
    cr_assert_eq(stay.handoff_ns, NO_HANDOFF, "it has handed it to itself");
    place_leave(place, &stay, 0);
    stay = enter(4, 0, far_off());
    cr_assert_eq(stay.handoff_ns, NO_HANDOFF, "it was lost, not released");
}

/* ---- numbers ------------------------------------------------------------------------------------ */

enum { SAMPLES = 20000 };

static int by_size(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

Test(compare_accounts, percentiles_are_near_those_of_the_sorted_samples) {
    static uint64_t samples[SAMPLES];
    static histogram_t halves[2], all;
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < SAMPLES; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        samples[i] = (random >> 21) >> (random % 43); /* of all sizes, from 0 to 2.4 hours */
        histogram_add(&halves[i % 2], samples[i]);
    }
    histogram_merge(&all, &halves[0]);
    histogram_merge(&all, &halves[1]);
    qsort(samples, SAMPLES, sizeof samples[0], by_size);
    cr_assert_eq(all.count, SAMPLES);
    cr_assert_eq(all.max_ns, samples[SAMPLES - 1]);
    for (unsigned percent = 1; percent <= 100; percent++) {
        double exact = (double)samples[(size_t)SAMPLES * percent / 100 - 1];
        double told = (double)histogram_percentile(&all, percent);
        double allowed = exact < 128 ? 0 : exact / 128;
        cr_assert_leq(fabs(told - exact), allowed, "p%u: %.0f instead of %.0f", percent, told, exact);
    }
}

Test(compare_accounts, percentiles_of_little_and_of_too_much) {
    static histogram_t none, some;
    cr_assert_eq(histogram_percentile(&none, 50), 0);
    histogram_add(&some, 100);
    cr_assert_eq(histogram_percentile(&some, 1), 100);
    cr_assert_eq(histogram_percentile(&some, 99), 100);
    histogram_add(&some, UINT64_MAX);
    cr_assert_eq(histogram_percentile(&some, 50), 100);
    cr_assert_gt(histogram_percentile(&some, 51), UINT64_C(1) << 42);
}

Test(compare_accounts, fairness_is_jains_index) {
    const uint64_t same[] = {5, 5, 5, 5}, one[] = {8, 0, 0, 0}, steps[] = {1, 2, 3}, none[] = {0, 0};
    cr_assert_float_eq(jain_index(same, 4), 1.0, 1e-12);
    cr_assert_float_eq(jain_index(one, 4), 0.25, 1e-12);
    cr_assert_float_eq(jain_index(steps, 3), 36.0 / 42.0, 1e-12);
    cr_assert_float_eq(jain_index(none, 2), 0.0, 1e-12);
}
