/* redlock_scripts_test.c - what the scripts of a node promise, on a real server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_scripts_fixture.h"

#define MARKER "dlock_tokens:node"
#define QUARANTINE "dlock_tokens:quarantine"
#define RUN_1 "1111111111111111111111111111111111111111"
#define RUN_2 "2222222222222222222222222222222222222222"

/* What a claim says; the rest is always the same. */
typedef struct claim {
    const char *owner, *hold_id, *lease_ms, *fences, *floor, *run_id, *durable, *quarantine_ms;
} claim_t;

static const claim_t plain = {A, "7", "30000", "1", "0", RUN_1, "0", "60000"};

static const char *vote_on(redisContext *c, claim_t claim) {
    return run_on(c, &dli_script_redlock_acquire, "4", LOCK, TOKENS, MARKER, QUARANTINE, claim.owner,
                  claim.hold_id, claim.lease_ms, claim.fences, claim.floor, claim.run_id, claim.durable,
                  claim.quarantine_ms, NULL);
}

static const char *vote(claim_t claim) {
    return vote_on(server.admin, claim);
}

static claim_t with_hold(const char *owner, const char *hold_id) {
    claim_t claim = plain;
    claim.owner = owner;
    claim.hold_id = hold_id;
    return claim;
}

static claim_t with_server(const char *run_id, const char *durable) {
    claim_t claim = plain;
    claim.run_id = run_id;
    claim.durable = durable;
    return claim;
}

static const char *mark(const char *run_id) {
    ask("SET", MARKER, run_id, NULL);
    return ask("DEL", QUARANTINE, NULL);
}

static const char *raise_to(const char *token) {
    return run_on(server.admin, &dli_script_redlock_raise, "1", TOKENS, token, NULL);
}

static const char *free_and_tell(const char *owner, const char *hold_id, const char *channel,
                                 const char *what) {
    return run_on(server.admin, &dli_script_redlock_release, "1", LOCK, owner, hold_id, channel, what, NULL);
}

static const char *release(const char *owner, const char *hold_id, const char *channel) {
    return free_and_tell(owner, hold_id, channel, "0");
}

static const char *fill(const char *owner, const char *hold_id, const char *lease_ms) {
    claim_t claim = {owner, hold_id, lease_ms, "0", "", "", "", "0"};
    return vote(claim);
}

/* "{0, ms}" with ms between the two. */
static bool is_excluded(const char *text, long long from_ms, long long to_ms) {
    long long left = begins(text, "[0,") ? atoll(text + 3) : -2;
    return left >= from_ms && left <= to_ms;
}

static void set_up_marked(void) {
    set_up();
    ask("SET", MARKER, RUN_1, NULL);
}

TestSuite(redlock_scripts, .init = set_up_marked, .fini = tear_down, .timeout = 60);

/* ---- who has a vote ------------------------------------------------------------------------------- */

Test(redlock_scripts, a_node_without_a_marker_has_no_vote_until_every_lease_is_over) {
    ask("DEL", MARKER, NULL);
    cr_assert(is_excluded(vote(plain), 59000, 60000), "%s", vote(plain));
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, NULL), "0");
    cr_assert_str_eq(ask("GET", MARKER, NULL), RUN_1);
    cr_assert_str_eq(ask("PTTL", MARKER, NULL), "-1");
    cr_assert(is_excluded(vote(plain), 59000, 60000), "the marker alone does not end it");
    ask("PEXPIRE", QUARANTINE, "5000", NULL);
    cr_assert(is_excluded(vote(plain), 4000, 5000), "asking again makes it no longer");
    ask("DEL", QUARANTINE, NULL);
    cr_assert(is_token(vote(plain)), "%s", vote(plain));
}

Test(redlock_scripts, a_quarantine_without_an_end_excludes_all_the_same) {
    ask("SET", QUARANTINE, "1", NULL);
    cr_assert_str_eq(vote(plain), "[0,-1]");
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, NULL), "0");
}

Test(redlock_scripts, a_node_that_was_restarted_has_no_vote_with_its_data_or_without) {
    cr_assert(is_token(vote(plain)));
    cr_assert(is_excluded(vote(with_server(RUN_2, "0")), 59000, 60000), "with its data");
    cr_assert_str_eq(ask("GET", MARKER, NULL), RUN_2);
    cr_assert(is_busy(inspect(&layouts[0]), 29000, 30000, A ":7,1,1,]"), "%s", inspect(&layouts[0]));
    ask("PEXPIRE", QUARANTINE, "5000", NULL);
    cr_assert(is_excluded(vote(with_server(RUN_1, "0")), 59000, 60000), "and again");
    ask("FLUSHALL", NULL);
    cr_assert(is_excluded(vote(plain), 59000, 60000), "the same process without its data");
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, NULL), "0");
}

Test(redlock_scripts, a_restart_that_keeps_everything_is_waived_and_nothing_else) {
    cr_assert(is_token(vote(with_server(RUN_1, "1"))));
    cr_assert(is_token(vote(with_server(RUN_2, "1"))), "another process with the data of this one");
    cr_assert_str_eq(ask("GET", MARKER, NULL), RUN_2);
    cr_assert_str_eq(ask("EXISTS", QUARANTINE, NULL), "0");
    cr_assert(is_token(vote(with_server("", "1"))), "who may not ask for the run id");
    ask("FLUSHALL", NULL);
    cr_assert(is_excluded(vote(with_server(RUN_2, "1")), 59000, 60000));
    ask("FLUSHALL", NULL);
    cr_assert(is_excluded(vote(with_server("", "1")), 59000, 60000));
    cr_assert(is_excluded(vote(with_server("", "1")), 59000, 60000));
    ask("PEXPIRE", QUARANTINE, "5000", NULL);
    cr_assert(is_excluded(vote(with_server(RUN_1, "1")), 4000, 5000), "one that runs goes on");
}

Test(redlock_scripts, without_quarantine_its_keys_are_left_alone) {
    claim_t claim = plain;
    claim.quarantine_ms = "0";
    claim.run_id = RUN_2;
    cr_assert(is_token(vote(claim)));
    cr_assert_str_eq(ask("GET", MARKER, NULL), RUN_1);
    ask("DEL", MARKER, NULL);
    ask("SET", QUARANTINE, "1", NULL);
    cr_assert(is_token(vote(claim)));
    cr_assert_str_eq(ask("EXISTS", MARKER, NULL), "0");
}

Test(redlock_scripts, a_marker_that_holds_something_else_is_an_error_and_stays) {
    ask("DEL", MARKER, NULL);
    ask("RPUSH", MARKER, "x", NULL);
    cr_assert(is_error(vote(plain), "EMARKER"), "%s", vote(plain));
    cr_assert_str_eq(ask("LRANGE", MARKER, "0", "-1", NULL), "[x]");
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, QUARANTINE, NULL), "0");
}

Test(redlock_scripts, an_administrator_marks_a_node) {
    ask("DEL", MARKER, NULL);
    mark(RUN_1);
    cr_assert(is_token(vote(plain)));
    cr_assert(is_excluded(vote(with_server(RUN_2, "0")), 59000, 60000));
    ask("PERSIST", QUARANTINE, NULL);
    cr_assert_str_eq(mark(RUN_2), "1");
    cr_assert(is_token(vote(with_server(RUN_2, "0"))));
    cr_assert_str_eq(ask("EXISTS", QUARANTINE, NULL), "0");
}

/* ---- claims --------------------------------------------------------------------------------------- */

Test(redlock_scripts, a_free_node_is_taken_with_the_full_lease_and_a_token) {
    const char *token = vote(plain);
    cr_assert(is_token(token), "%s", token);
    cr_assert_str_eq(ask("GET", TOKENS, NULL), token);
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":7");
    cr_assert_gt(left_ms(), 29000);
    cr_assert_leq(left_ms(), 30000);
    long long again = atoll(vote(plain));
    cr_assert_gt(again, atoll(token), "sent twice");
    cr_assert_str_eq(ask("PTTL", TOKENS, NULL), "-1");
}

Test(redlock_scripts, a_claim_that_comes_again_shortens_nothing) {
    cr_assert(is_token(vote(plain)));
    ask("PEXPIRE", LOCK, "50000", NULL);
    cr_assert(is_token(vote(plain)));
    cr_assert_gt(left_ms(), 40000, "extended, and then a claim came that had been under way");
    ask("PERSIST", LOCK, NULL);
    cr_assert(is_token(vote(plain)));
    cr_assert_gt(left_ms(), 29000);
    cr_assert_leq(left_ms(), 30000);
    /* The next hold of this owner has nothing of the last. */
    ask("PEXPIRE", LOCK, "50000", NULL);
    cr_assert(is_token(vote(with_hold(A, "8"))));
    cr_assert_gt(left_ms(), 29000);
    cr_assert_leq(left_ms(), 30000);
}

Test(redlock_scripts, without_fencing_there_is_no_token) {
    claim_t claim = plain;
    claim.fences = "0";
    cr_assert_str_eq(vote(claim), "1");
    cr_assert_str_eq(ask("EXISTS", TOKENS, NULL), "0");
    cr_assert_gt(left_ms(), 29000);
}

Test(redlock_scripts, a_larger_hold_id_replaces_a_smaller_never_the_reverse) {
    long long first = atoll(vote(with_hold(A, "9")));
    cr_assert_gt(atoll(vote(with_hold(A, "10"))), first);
    cr_assert(is_busy(vote(with_hold(A, "9")), 29000, 30000, A ":10,1]"));
    cr_assert(is_busy(vote(with_hold(B, "900")), 29000, 30000, A ":10,1]"));
    cr_assert(is_busy(vote(with_hold(A "1", "900")), 29000, 30000, A ":10,1]"), "an owner is compared whole");
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":10");
    ask("SET", LOCK, "somebody", NULL);
    cr_assert_str_eq(vote(plain), "[-1,somebody,0]");
}

Test(redlock_scripts, a_token_is_above_the_counter_and_the_floor) {
    claim_t claim = plain;
    ask("SET", TOKENS, "8000000000000001", NULL);
    cr_assert_str_eq(vote(claim), "8000000000000002");
    claim.floor = "8000000000000009";
    cr_assert_str_eq(vote(claim), "8000000000000010");
    claim.floor = "5";
    cr_assert_str_eq(vote(claim), "8000000000000011");
    ask("SET", TOKENS, "abc", NULL);
    ask("DEL", LOCK, NULL);
    cr_assert(is_error(vote(claim), "ETOKEN"));
    cr_assert_str_eq(ask("GET", TOKENS, NULL), "abc");
    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
}

Test(redlock_scripts, a_value_of_another_type_is_an_error_and_stays) {
    ask("RPUSH", LOCK, "x", NULL);
    cr_assert(begins(vote(plain), "-WRONGTYPE"), "%s", vote(plain));
    cr_assert(begins(release(A, "7", ""), "-WRONGTYPE"));
    cr_assert(begins(fill(A, "7", "30000"), "-WRONGTYPE"));
    cr_assert_str_eq(ask("LRANGE", LOCK, "0", "-1", NULL), "[x]");
    cr_assert_str_eq(ask("EXISTS", TOKENS, NULL), "0");
    cr_assert(is_excluded(vote(with_server(RUN_2, "0")), 59000, 60000), "who has no vote says nothing else");
}

Test(redlock_scripts, full_memory_refuses_a_claim_before_anything_is_written) {
    ask("CONFIG", "SET", "maxmemory", "1", NULL);
    cr_assert(is_error(vote(plain), "OOM"), "%s", vote(plain));
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, QUARANTINE, NULL), "0");
    cr_assert(is_error(vote(with_server(RUN_2, "0")), "OOM"));
    cr_assert_str_eq(ask("EXISTS", QUARANTINE, NULL), "0");
    cr_assert_str_eq(ask("GET", MARKER, NULL), RUN_1, "a marker without the quarantine");
    cr_assert(is_error(raise_to("9"), "OOM"));
    cr_assert(is_error(fill(A, "7", "30000"), "OOM"));
    ask("CONFIG", "SET", "maxmemory", "0", NULL);
    cr_assert(is_excluded(vote(with_server(RUN_2, "0")), 59000, 60000));
    mark(RUN_1);
    cr_assert(is_token(vote(plain)));
    ask("CONFIG", "SET", "maxmemory", "1", NULL);
    cr_assert_str_eq(fill(A, "7", "50000"), "1");
    cr_assert_gt(left_ms(), 49000);
    cr_assert_str_eq(release(A, "7", CHANNEL), "1");
    ask("CONFIG", "SET", "maxmemory", "0", NULL);
}

/* ---- tokens, fills, frees ------------------------------------------------------------------------- */

Test(redlock_scripts, a_counter_is_raised_and_never_lowered) {
    cr_assert_str_eq(raise_to("8000000000000002"), "1");
    cr_assert_str_eq(ask("GET", TOKENS, NULL), "8000000000000002");
    cr_assert_str_eq(ask("PTTL", TOKENS, NULL), "-1");
    cr_assert_str_eq(raise_to("8000000000000001"), "1");
    cr_assert_str_eq(ask("GET", TOKENS, NULL), "8000000000000002");
    cr_assert_str_eq(raise_to("9007199254740991"), "1");
    cr_assert_str_eq(ask("GET", TOKENS, NULL), "9007199254740991");
    ask("SET", TOKENS, "12 ", NULL);
    cr_assert(is_error(raise_to("13"), "ETOKEN"));
    cr_assert_str_eq(ask("GET", TOKENS, NULL), "12 ");
    ask("DEL", TOKENS, NULL);
    ask("RPUSH", TOKENS, "x", NULL);
    cr_assert(is_error(raise_to("13"), "ETOKEN"));
}

Test(redlock_scripts, a_fill_takes_what_is_free_or_given_up_and_extends_its_own) {
    cr_assert_str_eq(fill(A, "7", "5000"), "1");
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":7");
    cr_assert_gt(left_ms(), 4000);
    cr_assert_leq(left_ms(), 5000);
    cr_assert_str_eq(fill(A, "7", "30000"), "1");
    cr_assert_gt(left_ms(), 29000);
    cr_assert_str_eq(fill(A, "7", "5000"), "1");
    cr_assert_gt(left_ms(), 29000, "shortened");
    cr_assert(is_busy(fill(B, "900", "5000"), 29000, 30000, A ":7,1]"));
    cr_assert(is_busy(fill(A, "6", "5000"), 29000, 30000, A ":7,1]"));
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":7");
    cr_assert_gt(left_ms(), 29000);
    cr_assert_str_eq(fill(A, "10", "5000"), "1");
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":10");
    cr_assert_leq(left_ms(), 5000);
    cr_assert_str_eq(ask("EXISTS", TOKENS, QUARANTINE, NULL), "0");
}

Test(redlock_scripts, a_release_frees_its_own_hold_and_tells_those_it_should) {
    redisContext *listener = must_connect();
    const char *subscribe[] = {"SUBSCRIBE", CHANNEL};
    struct pollfd more = {.fd = listener->fd, .events = POLLIN};
    cr_assert_str_eq(send_words(listener, 2, subscribe), "[subscribe," CHANNEL ",1]");
    cr_assert_str_eq(release(A, "7", CHANNEL), "0", "nothing there");
    cr_assert(is_token(vote(plain)));
    cr_assert_str_eq(release(B, "7", CHANNEL), "0");
    cr_assert_str_eq(release(A, "6", CHANNEL), "0");
    cr_assert_str_eq(release(A, "8", CHANNEL), "0");
    cr_assert_str_eq(release(A, "7", ""), "1");
    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
    cr_assert_eq(poll(&more, 1, 0), 0, "told without a channel, or what was not freed");
    cr_assert(is_token(vote(with_hold(A, "8"))));
    cr_assert_str_eq(release(A, "8", CHANNEL), "1");
    cr_assert(is_token(vote(with_hold(A, "9"))));
    cr_assert_str_eq(free_and_tell(A, "9", CHANNEL, "1"), "1");
    const char *const texts[] = {"0", "1"};
    for (size_t i = 0; i < 2; i++) {
        redisReply *told = NULL;
        cr_assert_eq(redisGetReply(listener, (void **)&told), REDIS_OK);
        cr_assert_str_eq(told->element[2]->str, texts[i]);
        freeReplyObject(told);
    }
    cr_assert_eq(poll(&more, 1, 0), 0, "told more than was freed");
    redisFree(listener);
}
