/* driver_cases.c - what driver.h asks of a driver, asked of each driver by hand, without the core. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "support/driver_bench.h"

/* Long enough that it does not end while a case runs on real time. */
#define LONG_MS 60000
/* The shortest that a core asks for. */
#define SHORT_MS DL_LEASE_MIN_MS
#define HOUR_US ((uint64_t)3600 * 1000000)

static void open_two(ct_t *ct, bench_t *a, bench_t *b) {
    bench_open(ct, a, ct->inner, "a:1");
    bench_open(ct, b, ct->inner, "b:2");
}

static void close_two(bench_t *a, bench_t *b) {
    bench_close(a);
    bench_close(b);
}

/* ---- claiming ------------------------------------------------------------------------------------ */

CT_CASE(driver, grants_a_free_name_and_tells_others_how_long_it_is_busy, .traits = CT_BLOCKING) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 1, LONG_MS);
    dl_request_t theirs = bench_request(&b, BENCH_OWNER_B, "orders", 1, LONG_MS);
    uint64_t before = ct_now_ns(ct);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_BETWEEN(grant.sent_ns, before, ct_now_ns(ct));
    CT_EQ(grant.token != 0, (ct_caps(ct) & DL_CAP_FENCE) != 0);
    CT_EQ(grant.session_fd >= 0, (ct_caps(ct) & DL_CAP_SESSION) != 0);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_EBUSY);
    CT_BETWEEN(grant.busy_ms, LONG_MS - 10000, LONG_MS);
    CT_EQ(grant.busy_is_dlock, 1);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_OK);
    close_two(&a, &b);
}

CT_CASE(driver, a_larger_hold_id_of_the_owner_replaces_a_smaller_one_and_never_the_reverse,
        .traits = CT_BLOCKING) {
    bench_t a;
    dl_grant_t first, second;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t old = bench_request(&a, BENCH_OWNER_A, "orders", 7, LONG_MS);
    dl_request_t new = bench_request(&a, BENCH_OWNER_A, "orders", 8, LONG_MS);
    CT_EQ(bench_try(&a, &old, &first), DL_OK);
    CT_EQ(bench_try(&a, &new, &second), DL_OK);
    if (ct_caps(ct) & DL_CAP_FENCE) {
        CT_GT(second.token, first.token);
    }
    CT_EQ(bench_try(&a, &old, &first), DL_EBUSY);
    CT_EQ(bench_release(&a, &old), DL_ELOST);
    CT_EQ(bench_renew(&a, &old, LONG_MS), DL_ELOST);
    CT_EQ(bench_renew(&a, &new, LONG_MS), DL_OK);
    CT_EQ(bench_release(&a, &new), DL_OK);
    bench_close(&a);
}

CT_CASE(driver, a_grant_is_above_the_whole_block_of_the_one_before, .needs = DL_CAP_FENCE,
        .traits = CT_BLOCKING) {
    enum { BLOCK = 33 };
    bench_t a, b;
    dl_grant_t first, block, next;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 1, LONG_MS);
    dl_request_t theirs = bench_request(&b, BENCH_OWNER_B, "orders", 1, LONG_MS);
    CT_EQ(bench_try(&b, &theirs, &first), DL_OK);
    CT_GE(1, first.tokens);
    CT_EQ(bench_release(&b, &theirs), DL_OK);
    /* So far ahead that no clock hides what was not remembered. */
    mine.token_floor = first.token + HOUR_US;
    mine.tokens = BLOCK;
    CT_EQ(bench_try(&a, &mine, &block), DL_OK);
    CT_GT(block.token, mine.token_floor);
    CT_CHECK(block.tokens <= 1 || block.tokens == BLOCK);
    CT_EQ(bench_renew(&a, &mine, LONG_MS), DL_OK);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    uint64_t last = block.token + (block.tokens > 0 ? block.tokens - 1 : 0);
    /* This one knows nothing of the others' tokens. */
    theirs.hold_id = 2;
    CT_EQ(bench_try(&b, &theirs, &next), DL_OK);
    CT_GT(next.token, last);
    CT_GE(1, next.tokens);
    close_two(&a, &b);
}

CT_CASE(driver, the_same_hold_asked_for_twice_is_granted_with_the_full_lease,
        .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a;
    dl_grant_t first, second;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 7, SHORT_MS * 10);
    CT_EQ(bench_try(&a, &mine, &first), DL_OK);
    mine.lease_ms = LONG_MS;
    CT_EQ(bench_try(&a, &mine, &second), DL_OK);
    CT_GE(second.token, first.token);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, LONG_MS - 10000);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    bench_close(&a);
}

CT_CASE(driver, names_are_compared_byte_by_byte, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    static const char *const names[] = {"a",        "A",   "a ",  " a",     "ab", "\xe4",
                                        "\xc3\xa4", "a\n", "{a}", "a'; --", "%"};
    enum { COUNT = sizeof names / sizeof names[0] };
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    for (uint64_t i = 0; i < COUNT; i++) {
        dl_request_t mine = bench_request(&a, BENCH_OWNER_A, names[i], i + 1, LONG_MS);
        CT_CHECKF(bench_try(&a, &mine, &grant) == DL_OK, "name %d: %s", (int)i, a.err.message);
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        CT_EQ(bench_inspect(&a, names[i]).hold_id, i + 1);
        dl_request_t mine = bench_request(&a, BENCH_OWNER_A, names[i], i + 1, LONG_MS);
        CT_EQ(bench_release(&a, &mine), DL_OK);
        CT_EQ(bench_inspect(&a, names[i]).held, 0);
    }
    bench_close(&a);
}

CT_CASE(driver, the_longest_name_and_owner_are_kept_whole, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    char name[DL_NAME_MAX + 1], owner[DL_OWNER_MAX + 1];
    bench_t a;
    dl_grant_t grant;
    memset(name, 'n', sizeof name - 1);
    memset(owner, '1', sizeof owner - 1);
    memcpy(owner, BENCH_OWNER_A, strlen(BENCH_OWNER_A));
    name[sizeof name - 1] = owner[sizeof owner - 1] = 0;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, owner, name, UINT64_C(1) << 52, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    dl_lock_info_t info = bench_inspect(&a, name);
    CT_STR_EQ(info.owner, owner);
    CT_EQ(info.hold_id, UINT64_C(1) << 52);
    name[DL_NAME_MAX - 1] = 'x';
    CT_EQ(bench_inspect(&a, name).held, 0);
    name[DL_NAME_MAX - 1] = 'n';
    CT_EQ(bench_release(&a, &mine), DL_OK);
    bench_close(&a);
}

/* ---- freeing --------------------------------------------------------------------------------------- */

CT_CASE(driver, release_frees_only_the_very_hold_and_only_once, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    dl_request_t stranger = bench_request(&b, BENCH_OWNER_B, "orders", 5, LONG_MS);
    dl_request_t other_id = bench_request(&a, BENCH_OWNER_A, "orders", 6, LONG_MS);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_release(&b, &stranger), DL_ELOST);
    CT_EQ(bench_release(&a, &other_id), DL_ELOST);
    CT_EQ(bench_inspect(&b, "orders").held, 1);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    close_two(&a, &b);
}

CT_CASE(driver, release_does_not_need_the_hold_that_acquired, .traits = CT_BLOCKING,
        .needs = DL_CAP_SESSION) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_release(&b, &mine), DL_OK); /* as the background free does after a broken connection */
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    close_two(&a, &b);
}

/* ---- renewing --------------------------------------------------------------------------------------- */

CT_CASE(driver, renewal_extends_and_never_shortens, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_renew(&a, &mine, SHORT_MS), DL_OK);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, LONG_MS - 10000);
    CT_EQ(bench_renew(&a, &mine, 3 * LONG_MS), DL_OK);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, 3 * LONG_MS - 10000);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    bench_close(&a);
}

CT_CASE(driver, renewal_never_creates_and_never_revives, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, SHORT_MS);
    dl_request_t theirs = bench_request(&b, BENCH_OWNER_B, "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    ct_sleep_ms(ct, SHORT_MS + 20);
    CT_EQ(bench_renew(&a, &mine, LONG_MS), DL_ELOST);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_OK);
    CT_EQ(bench_renew(&a, &mine, LONG_MS), DL_ELOST);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    CT_EQ(bench_renew(&b, &theirs, LONG_MS), DL_OK);
    CT_EQ(bench_release(&b, &theirs), DL_OK);
    close_two(&a, &b);
}

CT_CASE(driver, each_entry_of_a_batch_has_its_own_answer, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t first = bench_request(&a, BENCH_OWNER_A, "first", 1, LONG_MS);
    dl_request_t gone = bench_request(&a, BENCH_OWNER_A, "gone", 2, LONG_MS);
    dl_request_t last = bench_request(&a, BENCH_OWNER_A2, "last", 3, LONG_MS);
    CT_EQ(bench_try(&a, &first, &grant), DL_OK);
    CT_EQ(bench_try(&a, &gone, &grant), DL_OK);
    CT_EQ(bench_try(&a, &last, &grant), DL_OK);
    CT_EQ(bench_release(&a, &gone), DL_OK);
    dl_renewal_t batch[] = {bench_renewal(&a, &first, 2 * LONG_MS), bench_renewal(&a, &gone, 2 * LONG_MS),
                            bench_renewal(&a, &last, 2 * LONG_MS)};
    a.driver->renew(a.state, batch, 3, bench_deadline(&a));
    CT_EQ(batch[0].status, DL_OK);
    CT_EQ(batch[1].status, DL_ELOST);
    CT_EQ(batch[2].status, DL_OK);
    CT_GT(bench_inspect(&a, "last").remaining_ms, LONG_MS);
    CT_EQ(bench_release(&a, &first), DL_OK);
    CT_EQ(bench_release(&a, &last), DL_OK);
    bench_close(&a);
}

/* ---- tokens, counts ---------------------------------------------------------------------------------- */

CT_CASE(driver, tokens_rise_above_the_floor_and_all_earlier_ones, .needs = DL_CAP_FENCE,
        .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    uint64_t last = UINT64_C(1) << 52; /* later than any clock, and exact on servers that count in doubles */
    for (uint64_t i = 1; i <= 4; i++) {
        bench_t *who = i % 2 ? &a : &b;
        dl_request_t mine = bench_request(who, i % 2 ? BENCH_OWNER_A : BENCH_OWNER_B, "orders", i, LONG_MS);
        mine.token_floor = i == 1 ? last : 0;
        CT_EQ(bench_try(who, &mine, &grant), DL_OK);
        CT_CHECKF(grant.token > last, "token %llu after %llu", (unsigned long long)grant.token,
                  (unsigned long long)last);
        last = grant.token;
        /* Freed in three ways: none of them may take the tokens back. */
        CT_EQ(i == 2 ? bench_force(&a, "orders") : bench_release(who, &mine), DL_OK);
    }
    close_two(&a, &b);
}

CT_CASE(driver, counts_are_written_as_they_are_and_never_create, .traits = CT_BLOCKING,
        .needs = DL_CAP_SERVER_COUNT) {
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    mine.level = 2;
    CT_EQ(bench_try(&a, &mine, &grant), DL_ELOST);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    mine.level = 1;
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    uint64_t token = grant.token;
    mine.level = 3;
    mine.lease_ms = SHORT_MS;
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK); /* sent again: it counts once */
    CT_EQ(bench_inspect(&a, "orders").holds, 3);
    uint64_t shown = bench_inspect(&a, "orders").token;
    if (shown != 0) {
        CT_EQ(shown, token);
    } /* not every layout has a place for it */
    CT_GT(bench_inspect(&a, "orders").remaining_ms, LONG_MS - 10000);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").holds, 2);
    mine.level = 1;
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    bench_close(&a);
}
