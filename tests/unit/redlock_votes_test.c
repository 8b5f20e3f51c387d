/* redlock_votes_test.c - what the nodes' answers to a claim come to; no server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "drivers/redis/redlock/tally.h"

#define MS ((uint64_t)1000000)
#define OURS "aaaaaaaa-0000-4000-8000-000000000001:1:7"

TestSuite(redlock_votes, .timeout = 20);

/* ---- ballots and what they come to ---------------------------------------------------------------- */

static dli_ballot_t yes(uint64_t token) {
    return (dli_ballot_t){.vote = DLI_VOTE_YES, .token = token};
}

static dli_ballot_t busy(const char *value, int64_t left_ms, bool is_ours) {
    return (dli_ballot_t){
        .vote = DLI_VOTE_BUSY, .value = {value, strlen(value)}, .left_ms = left_ms, .is_ours = is_ours};
}

static dli_ballot_t excluded(int64_t left_ms) {
    return (dli_ballot_t){.vote = DLI_VOTE_EXCLUDED, .left_ms = left_ms};
}

static dli_ballot_t missing(dl_status_t status, const char *why) {
    return (dli_ballot_t){.vote = DLI_VOTE_NONE, .status = status, .why = why};
}

static dli_ballot_t foreign(void) {
    return (dli_ballot_t){.vote = DLI_VOTE_FOREIGN, .status = DL_EFOREIGN, .why = "no lock"};
}

static dli_ballot_t unknown(dl_status_t status, const char *why) {
    return (dli_ballot_t){.vote = DLI_VOTE_UNKNOWN, .status = status, .why = why};
}

static dl_grant_t grant;
static dl_error_t err;

static dl_status_t refuse_at(const dli_ballot_t *ballots, size_t n, uint64_t took_ns, uint64_t draw) {
    dli_tally_t tally;
    dli_tally_count(&tally, ballots, n, n / 2 + 1);
    grant = (dl_grant_t){.busy_ms = -7, .busy_is_dlock = -7};
    err = (dl_error_t){.status = DL_OK};
    dl_status_t status = dli_tally_refusal(&tally, took_ns, draw, &grant, &err);
    cr_assert_eq(err.status, status);
    return status;
}

static dl_status_t refuse(const dli_ballot_t *ballots, size_t n) {
    return refuse_at(ballots, n, 0, 0);
}

/* For n = 3 or 5 ballots written out. */
#define REFUSE(...) \
    refuse((dli_ballot_t[]){__VA_ARGS__}, sizeof((dli_ballot_t[]){__VA_ARGS__}) / sizeof(dli_ballot_t))

static void expect_busy(int64_t busy_ms, int is_dlock) {
    cr_assert_eq(err.status, DL_EBUSY, "%s", err.message);
    cr_assert_eq(grant.busy_ms, busy_ms, "%lld ms", (long long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, is_dlock);
}

/* ---- majorities ----------------------------------------------------------------------------------- */

Test(redlock_votes, a_round_is_settled_by_a_majority_or_when_there_can_be_none) {
    for (size_t n = 3; n <= 7; n++) {
        size_t quorum = n / 2 + 1;
        cr_assert_gt(2 * quorum, n);
        for (size_t yeses = 0; yeses <= n; yeses++) {
            for (size_t pending = 0; yeses + pending <= n; pending++) {
                bool has = 2 * yeses > n, cannot = 2 * (yeses + pending) <= n;
                cr_assert_eq(dli_quorum_is_decided(yeses, pending, quorum), has || cannot,
                             "%zu of %zu, %zu to come", yeses, n, pending);
            }
        }
    }
}

Test(redlock_votes, the_token_is_the_highest_of_all_that_said_yes) {
    dli_ballot_t ballots[5] = {yes(7), yes(12), busy(OURS, 5, true), yes(12), yes(9)};
    dli_tally_t tally;
    dli_tally_count(&tally, ballots, 5, 3);
    cr_assert_eq(tally.token, 12);
    cr_assert_eq(tally.exact, 0x0au);
    cr_assert_eq(tally.yes, 4);
    cr_assert_eq(tally.busy, 1);
    ballots[1] = unknown(DL_EIO, NULL);
    ballots[3] = excluded(9);
    dli_tally_count(&tally, ballots, 5, 3);
    cr_assert_eq(tally.token, 9);
    cr_assert_eq(tally.exact, 0x10u);
    cr_assert_eq(tally.unknown, 1);
}

/* ---- busy ----------------------------------------------------------------------------------------- */

Test(redlock_votes, busy_lasts_until_a_majority_can_be_free) {
    REFUSE(busy(OURS, 900, true), busy(OURS, 1000, true), busy(OURS, 1100, true));
    expect_busy(1000, 1);
    REFUSE(busy(OURS, 1100, true), yes(5), busy(OURS, 900, true));
    expect_busy(900, 1);
    REFUSE(busy(OURS, 900, true), busy(OURS, 1000, true), missing(DL_EIO, "down"));
    expect_busy(1000, 1);
    REFUSE(busy(OURS, -1, true), busy(OURS, 1000, true), yes(1));
    expect_busy(1000, 1);
    REFUSE(busy(OURS, -1, true), busy(OURS, -1, true), yes(1));
    expect_busy(-1, 1);
    REFUSE(busy(OURS, 10, true), busy(OURS, 20, true), busy(OURS, 30, true), missing(DL_EIO, "down"),
           unknown(DL_EIO, NULL));
    expect_busy(30, 1);
    REFUSE(yes(1), excluded(70), busy(OURS, 30, true), yes(2), excluded(60));
    expect_busy(30, 0);
}

Test(redlock_votes, most_nodes_say_whether_the_holder_is_one_of_ours) {
    REFUSE(busy("redsync", 900, false), busy("redsync", 900, false), busy(OURS, 900, true));
    expect_busy(900, 0);
    REFUSE(busy(OURS, 900, true), busy("redsync", 900, false), busy(OURS, 900, true));
    expect_busy(900, 1);
    REFUSE(busy(OURS, 900, true), busy(OURS, 900, true), busy("redsync", 900, false), yes(1), yes(1));
    cr_assert_eq(grant.busy_is_dlock, 1, "a split");
}

Test(redlock_votes, where_a_node_without_a_vote_is_needed_no_holder_tells) {
    REFUSE(busy(OURS, 900, true), excluded(60000), missing(DL_EIO, "down"));
    expect_busy(60000, 0);
    cr_assert_has(err.message, "1 of 3 nodes have no vote yet");
    REFUSE(excluded(60000), excluded(50000), yes(1));
    expect_busy(50000, 0);
    REFUSE(excluded(-1), excluded(-1), yes(1));
    expect_busy(-1, 0);
    REFUSE(busy(OURS, 900, true), excluded(60000), yes(1));
    expect_busy(900, 0);
    cr_assert_has(err.message, "held by another owner");
}

Test(redlock_votes, claims_that_split_the_nodes_try_again_after_a_random_time) {
    const dli_ballot_t split[3] = {yes(1), busy(OURS, 30000, true), busy("x", 30000, false)};
    bool seen[26] = {false};
    for (uint64_t draw = 0; draw < 100; draw++) {
        cr_assert_eq(refuse_at(split, 3, 5 * MS, draw), DL_EBUSY);
        cr_assert_geq(grant.busy_ms, 1, "%lld", (long long)grant.busy_ms);
        cr_assert_leq(grant.busy_ms, 25, "%lld", (long long)grant.busy_ms);
        cr_assert_eq(grant.busy_is_dlock, 1);
        seen[grant.busy_ms] = true;
    }
    for (int ms = 1; ms <= 25; ms++) {
        cr_assert(seen[ms], "never %d ms", ms);
    }
    cr_assert_eq(refuse_at(split, 3, 0, UINT64_MAX), DL_EBUSY);
    cr_assert_geq(grant.busy_ms, 1, "%lld", (long long)grant.busy_ms);
    cr_assert_leq(grant.busy_ms, 5, "%lld", (long long)grant.busy_ms);
    REFUSE(yes(1), yes(1), busy("a", 9000, true), busy("b", 9000, true), missing(DL_EIO, "down"));
    expect_busy(1, 1);
    REFUSE(yes(1), foreign(), busy("a", 9000, true));
    expect_busy(1, 1);
}

Test(redlock_votes, what_may_be_a_holder_is_no_split) {
    /* A node that has forgotten may be another of the holder's, who then tells of the end. */
    REFUSE(yes(1), busy(OURS, 9000, true), excluded(60000));
    expect_busy(9000, 0);
}

/* A node that does not say may be the holder's, too; or two claims have met, and are being taken back. */
Test(redlock_votes, where_silent_nodes_decide_each_looks_again_soon) {
    const dli_ballot_t down = missing(DL_EIO, "down"), late = unknown(DL_EIO, NULL);
    const dli_ballot_t doubts[][5] = {
        {yes(1), busy(OURS, 9000, true), down},
        {busy(OURS, 900, true), busy("redsync", 900, false), down},
        {busy("redsync", 900, false), busy(OURS, 900, true), down},
        {yes(1), yes(1), busy("a", 8000, true), down, late},
    };
    for (size_t i = 0; i < sizeof doubts / sizeof doubts[0]; i++) {
        bool seen[101] = {false};
        for (uint64_t draw = 0; draw < 300; draw++) {
            cr_assert_eq(refuse_at(doubts[i], i < 3 ? 3 : 5, 5 * MS, draw), DL_EBUSY);
            cr_assert_geq(grant.busy_ms, 1, "%lld", (long long)grant.busy_ms);
            cr_assert_leq(grant.busy_ms, 100, "%lld", (long long)grant.busy_ms);
            cr_assert_eq(grant.busy_is_dlock, 0);
            seen[grant.busy_ms] = true;
        }
        for (int ms = 1; ms <= 100; ms++) {
            cr_assert(seen[ms], "%d", ms);
        }
    }
    refuse_at((dli_ballot_t[]){yes(1), busy("a", 7, true), down}, 3, 0, 99);
    expect_busy(7, 0); /* no later than a majority can be free */
}

static bool settled(const dli_ballot_t *ballots, size_t n, size_t pending) {
    dli_tally_t tally;
    dli_tally_count(&tally, ballots, n, n / 2 + 1);
    return dli_votes_are_settled(&tally, pending);
}

Test(redlock_votes, answers_are_waited_for_while_they_tell_a_holder_from_a_split) {
    const dli_ballot_t to_come = unknown(DL_EIO, NULL), a = busy("a", 9000, true), b = busy("b", 9000, true);
    const dli_ballot_t down = missing(DL_EIO, "down");
    cr_assert(settled((dli_ballot_t[]){yes(1), yes(2), to_come}, 3, 1));
    cr_assert_not(settled((dli_ballot_t[]){yes(1), a, to_come}, 3, 1), "it may say yes");
    cr_assert(settled((dli_ballot_t[]){a, a, to_come}, 3, 1), "a holds it");
    cr_assert_not(settled((dli_ballot_t[]){a, b, to_come}, 3, 1), "a, b or nobody");
    cr_assert(settled((dli_ballot_t[]){a, b, yes(1)}, 3, 0));
    cr_assert(settled((dli_ballot_t[]){a, b, down}, 3, 0));
    cr_assert(settled((dli_ballot_t[]){down, down, to_come}, 3, 1), "no majority answers");
    cr_assert_not(settled((dli_ballot_t[]){a, b, busy("c", 1, true), to_come, to_come}, 5, 2));
    cr_assert(settled((dli_ballot_t[]){a, b, busy("c", 1, true), yes(1), to_come}, 5, 1), "none can");
    cr_assert_not(settled((dli_ballot_t[]){a, a, b, yes(1), to_come}, 5, 1));
    cr_assert_not(settled((dli_ballot_t[]){a, down, to_come}, 3, 1), "busy or a failure");
    cr_assert_not(settled((dli_ballot_t[]){excluded(9), down, to_come}, 3, 1), "busy or a failure");
    cr_assert(settled((dli_ballot_t[]){excluded(9), excluded(9), to_come}, 3, 1));
    cr_assert(settled((dli_ballot_t[]){foreign(), foreign(), to_come}, 3, 1));
}

/* ---- no answers ----------------------------------------------------------------------------------- */

Test(redlock_votes, too_few_answers_end_with_what_is_wrong) {
    cr_assert_eq(REFUSE(yes(1), missing(DL_EIO, "redis://c:6379: refused"), missing(DL_EIO, "late")), DL_EIO);
    cr_assert_str_eq(err.message, "1 of 3 nodes answered; redis://c:6379: refused; late");
    cr_assert_eq(REFUSE(missing(DL_EAUTH, "no"), busy(OURS, 5, true), missing(DL_EAUTH, "no")), DL_EAUTH);
    cr_assert_eq(REFUSE(missing(DL_EAUTH, "no"), yes(1), missing(DL_EIO, "down")), DL_EIO);
    cr_assert_eq(REFUSE(missing(DL_ENOMEM, "no"), missing(DL_ENOMEM, "no"), unknown(DL_EIO, NULL)), DL_ENOMEM,
                 "so many that the rest does not matter");
    cr_assert_eq(REFUSE(unknown(DL_EIO, NULL), unknown(DL_EIO, NULL), unknown(DL_EIO, NULL)), DL_EIO);
    cr_assert_str_eq(err.message, "0 of 3 nodes answered; the others are late");
    cr_assert_eq(REFUSE(yes(1), foreign(), missing(DL_EIO, "down")), DL_EIO);
    cr_assert_str_eq(err.message, "2 of 3 nodes answered; down");
}

Test(redlock_votes, something_else_on_too_many_nodes_is_foreign) {
    cr_assert_eq(REFUSE(foreign(), yes(1), foreign()), DL_EFOREIGN);
    cr_assert_str_eq(err.message, "no lock");
    cr_assert_eq(
        REFUSE(foreign(), foreign(), busy(OURS, 10, true), busy(OURS, 20, true), busy(OURS, 30, true)),
        DL_EBUSY);
    expect_busy(30, 1);
    cr_assert_eq(REFUSE(foreign(), foreign(), foreign(), yes(1), yes(1)), DL_EFOREIGN);
}

/* ---- reading answers ------------------------------------------------------------------------------ */

static dli_vote_t read_text(const char *text, bool fences, uint64_t floor, dli_ballot_t *ballot) {
    static redisReply *last;
    dli_decoder_t decoder;
    dl_error_t why;
    freeReplyObject(last);
    last = NULL;
    cr_assert(dli_decoder_init(&decoder));
    cr_assert_eq(dli_decoder_feed(&decoder, text, strlen(text), &why), DL_OK);
    cr_assert_eq(dli_decoder_next(&decoder, &last, &why), DL_OK);
    cr_assert_not_null(last, "%s", text);
    dli_ballot_read(ballot, last, fences, floor);
    dli_decoder_free(&decoder);
    return ballot->vote;
}

Test(redlock_votes, an_answer_is_read_for_what_it_is) {
    dli_ballot_t b;
    cr_assert_eq(read_text(":1700000000000001\r\n", true, 1700000000000000, &b), DLI_VOTE_YES);
    cr_assert_eq(b.token, 1700000000000001);
    cr_assert_eq(read_text(":1\r\n", false, 0, &b), DLI_VOTE_YES);
    cr_assert_eq(b.token, 0);
    cr_assert_eq(read_text("*2\r\n:0\r\n:60600\r\n", true, 0, &b), DLI_VOTE_EXCLUDED);
    cr_assert_eq(b.left_ms, 60600);
    cr_assert_eq(read_text("*2\r\n:0\r\n:-1\r\n", true, 0, &b), DLI_VOTE_EXCLUDED);
    cr_assert_eq(b.left_ms, -1);
    cr_assert_eq(read_text("*3\r\n:900\r\n$3\r\nabc\r\n:1\r\n", true, 0, &b), DLI_VOTE_BUSY);
    cr_assert_eq(b.left_ms, 900);
    cr_assert(b.is_ours);
    cr_assert_eq(b.value.len, 3);
    cr_assert_eq(memcmp(b.value.at, "abc", 3), 0);
    cr_assert_eq(read_text("*3\r\n:-2\r\n$3\r\nabc\r\n:0\r\n", true, 0, &b), DLI_VOTE_BUSY);
    cr_assert_eq(b.left_ms, -1);
    cr_assert(!b.is_ours);
    cr_assert_eq(read_text("-WRONGTYPE Operation against a key\r\n", true, 0, &b), DLI_VOTE_FOREIGN);
    cr_assert_eq(read_text("-OOM command not allowed\r\n", true, 0, &b), DLI_VOTE_NONE);
}

Test(redlock_votes, an_answer_that_makes_no_sense_is_no_vote_and_no_denial) {
    static const char *const texts[] = {":0\r\n",
                                        ":-5\r\n",
                                        ":1700000000000000\r\n",
                                        "+OK\r\n",
                                        "$-1\r\n",
                                        "$1\r\n1\r\n",
                                        "*0\r\n",
                                        "*1\r\n:1\r\n",
                                        "*2\r\n:1\r\n:5\r\n",
                                        "*2\r\n:0\r\n$1\r\n5\r\n",
                                        "*3\r\n:900\r\n:5\r\n:1\r\n",
                                        "*3\r\n$1\r\n9\r\n$3\r\nabc\r\n:1\r\n",
                                        "*4\r\n:900\r\n$3\r\nabc\r\n:1\r\n:1\r\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        dli_ballot_t b;
        cr_assert_eq(read_text(texts[i], true, 1700000000000000, &b), DLI_VOTE_UNKNOWN, "%s", texts[i]);
        cr_assert_eq(b.token, 0);
    }
    dli_ballot_t b;
    cr_assert_eq(read_text(":2\r\n", false, 0, &b), DLI_VOTE_UNKNOWN, "there is no token to be had");
}
