/* redis_label_test.c - a client says who it is where it takes locks, for nothing, and takes that back. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_mux_fixture.h"

#define KEY "tokens:client:me"
#define DAY_NS ((uint64_t)86400 * 1000 * MS)

static void set_up_label(void) {
    set_up();
    options.label_key = KEY;
}

TestSuite(redis_label, .init = set_up_label, .fini = tear_down, .timeout = 60);

static atomic_uint_fast64_t later_ns;

static uint64_t now_later_ns(void) {
    return ran_ns() + atomic_load(&later_ns);
}

/* How often it was said so far. */
static long long said(void) {
    long long calls = info(&server, "commandstats", "cmdstat_set:calls=");
    return calls < 0 ? 0 : calls;
}

static dl_status_t claim_within(uint64_t ms) {
    line_t line = line_of(&claim, "INCR claims");
    begin_line(&line);
    uint64_t until_ns = env.now_ns() + ms * MS;
    while (!line.over && env.now_ns() < until_ns) {
        listen_once(until_ns);
    }
    return line.over ? line.status : withdraw_line(&line) ? DL_EUNKNOWN : DL_EIO;
}

static dl_status_t take(void) {
    return claim_within(2000);
}

static void ping(void) {
    line_t line = line_of(&plain, "PING");
    run_line(&line);
    cr_assert_eq(line.status, DL_OK, "%s", line.err.message);
}

static void expect_key(const char *wanted) {
    redisReply *reply = redisCommand(server.admin, "GET " KEY);
    cr_assert_not_null(reply);
    cr_assert_eq(reply->type == REDIS_REPLY_STRING, wanted != NULL, "%s", reply->str);
    if (wanted != NULL) {
        cr_assert_str_eq(reply->str, wanted);
    }
    freeReplyObject(reply);
}

Test(redis_label, goes_ahead_of_a_claim_once_and_costs_no_round_trip) {
    open_mux(server.path);
    ping();
    cr_assert_eq(said(), 0, "who takes no lock says nothing");
    for (int i = 0; i < 5; i++) {
        line_t line = line_of(&claim, "ECHO mine");
        run_line(&line);
        cr_assert_str_eq(line.answer, "mine");
    }
    cr_assert_eq(said(), 1);
    cr_assert_eq(atomic_load(&round_trips), 6);
    expect_key("host:1");
    redisReply *reply = redisCommand(server.admin, "TTL " KEY);
    cr_assert_gt(reply->integer, 6 * 86400); /* longer than until it is said again */
    cr_assert_leq(reply->integer, 7 * 86400);
    freeReplyObject(reply);
    dli_mux_close(&mux, false);
    AWAIT_THAT(info(&server, "commandstats", "cmdstat_del:calls="), ==, 1);
    expect_key(NULL);
}

Test(redis_label, is_said_again_every_day_also_by_renewals) {
    env.now_ns = now_later_ns;
    open_mux(server.path);
    cr_assert_eq(take(), DL_OK);
    atomic_store(&later_ns, DAY_NS - 3600 * 1000 * MS);
    cr_assert_eq(take(), DL_OK);
    cr_assert_eq(said(), 1);
    atomic_store(&later_ns, DAY_NS);
    line_t line = line_of(&renewal, "PING");
    run_line(&line);
    cr_assert_eq(line.status, DL_OK, "%s", line.err.message);
    cr_assert_eq(said(), 2);
}

Test(redis_label, is_said_to_a_server_that_is_new) {
    open_mux(server.path);
    cr_assert_eq(take(), DL_OK);
    kill_server(&server);
    boot_server(&server);
    expect_key(NULL);
    uint64_t until_ns = env.now_ns() + 10000 * MS;
    while (take() != DL_OK) {
        cr_assert_lt(env.now_ns(), until_ns, "the server is not met again");
    }
    expect_key("host:1");
}

Test(redis_label, is_no_matter_of_a_claim_and_what_is_refused_is_not_tried_again) {
    tell(&server, "ACL SETUSER ann on >x ~claims +incr +info +hello +eval");
    open_mux_as(server.path, "ann", "x");
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(take(), DL_OK);
    }
    redisReply *reply = redisCommand(server.admin, "ACL LOG");
    cr_assert_eq(reply->elements, 1);
    freeReplyObject(reply);
    reply = redisCommand(server.admin, "GET claims");
    cr_assert_str_eq(reply->str, "5");
    freeReplyObject(reply);
    expect_key(NULL);
    cr_assert_eq(atomic_load(&warnings), 0, "%s", reported);
    dli_mux_close(&mux, false);
    cr_assert_leq(info(&server, "commandstats", "cmdstat_del:calls="), 0);
}

/* No answer came, so the next says it. */
Test(redis_label, of_a_claim_that_was_given_up_is_said_by_the_next) {
    open_mux_over_relay();
    ping();
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(claim_within(100), DL_EUNKNOWN);
    uint64_t until_ns = env.now_ns() + 10000 * MS;
    while (take() != DL_OK) { /* until a successor has taken over */
        cr_assert_lt(env.now_ns(), until_ns);
    }
    expect_key("host:1");
}
