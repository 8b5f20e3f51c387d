/* redlock_release_test.c - frees of what is lost or may be, and what is left where no answer came. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

#include <sys/stat.h>

/* The suites are declared in redlock_test.c; `redlock` has this many nodes. */
#define NODES 5

static dli_request_t free_of(uint64_t hold_id, uint64_t deadline_ns) {
    err = (dl_error_t){.status = DL_OK};
    return (dli_request_t){.kind = DLI_ASK_RELEASE,
                           .with = make_request(NAME, OWNER, hold_id, deadline_ns),
                           .hold = hold_of(hold_id),
                           .err = &err};
}

/* As the core does, until nothing is left. */
static void free_the_rest(uint64_t hold_id) {
    AWAIT((!owes(hold_id) || free_again(hold_id) == DL_OK) && is_free());
    cr_assert(!owes(hold_id));
}

/* What has met the trap there, or soon does. */
static void let_pass(size_t i, int way) {
    AWAIT_THAT(atomic_load(&relays[i].sprung), !=, 0);
    atomic_store(&relays[i].held[atomic_load(&relays[i].sprung) - 1][way], 0);
}

Test(redlock, an_attempt_that_is_stopped_leaves_nothing) {
    asked_t asked;
    connect_all();
    for (size_t i = 0; i < NODES; i++) {
        set_trap(i, &dli_script_redlock_acquire, REPLIES);
    }
    dl_request_t with = request_of(7);
    const dli_request_t request = try_of(&with);
    begin_asking(&asked, &request);
    AWAIT_THAT(have(OWNER ":7"), ==, NODES);
    cr_assert(!asked.is_over);
    cr_assert_eq(withdraw(&asked), DL_EUNKNOWN);
    cr_assert(owes(7));
    free_the_rest(7);
}

Test(redlock, an_attempt_that_has_not_left_is_surely_none) {
    asked_t asked;
    dl_request_t with = request_of(7);
    const dli_request_t request = try_of(&with);
    asked = (asked_t){.request = request};
    asked.request.ended = note_end;
    dli_redlock_begin(&client, &asked.request);
    cr_assert_eq(withdraw(&asked), DL_EIO);
    cr_assert(!owes(7));
    connect_all();
    cr_assert_eq(have(OWNER ":7"), 0);
}

/* ---- losses --------------------------------------------------------------------------------------- */

Test(redlock_three, a_lock_that_a_majority_has_lost_is_lost_and_freed_all_the_same) {
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
    tell(&servers[0], "DEL " KEY);
    cr_assert_eq(free_it(7), DL_OK, "a majority had it: %s", err.message);
    AWAIT(is_free());
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":8"), ==, 3);
    tell(&servers[0], "DEL " KEY);
    tell(&servers[1], "DEL " KEY);
    kill_server(&servers[2]);
    cr_assert_eq(free_it(8), DL_ELOST, "%s", err.message);
}

Test(redlock, a_loss_is_told_though_slow_nodes_have_to_say_it) {
    asked_t asked;
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    for (size_t i = 0; i <= 2; i++) {
        tell(&servers[i], "DEL " KEY);
    }
    set_trap(1, &dli_script_redlock_release, REPLIES);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    stop_clock(); /* no silence is too long */
    const dli_request_t request = free_of(7, in_ms(20000));
    begin_asking(&asked, &request);
    AWAIT_THAT(pending(), ==, 2);
    cr_assert(!asked.is_over, "two had it, one had not");
    let_pass(1, REPLIES);
    let_pass(2, REPLIES);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_ELOST, "%s", err.message);
}

Test(redlock, a_loss_that_nobody_can_tell_is_not_waited_for) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    tell(&servers[0], "DEL " KEY);
    kill_server(&servers[1]);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    uint64_t before_ns = show_ns();
    cr_assert_eq(free_it(7), DL_EUNKNOWN, "two of five had it, one had not: %s", err.message);
    cr_assert_has(err.message, "it may have been lost before");
    cr_assert_lt(show_ns() - before_ns, 1500 * MS);
    AWAIT(is_free());
    cr_assert(owes(7), "one that is down may have it when it is back");
}

/* ---- what was not heard --------------------------------------------------------------------------- */

Test(redlock, a_free_that_was_lost_is_what_is_left) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    set_trap(0, &dli_script_redlock_release, REQUESTS);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[0].sprung), !=, 0);
    cr_assert(owes(7));
    free_the_rest(7); /* the lease is longer than this waits */
}

Test(redlock, a_late_answer_to_a_free_leaves_nothing) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    set_trap(0, &dli_script_redlock_release, REPLIES);
    stop_clock();
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT(is_free());
    cr_assert(owes(7), "nobody has heard of it");
    let_pass(0, REPLIES);
    AWAIT_THAT(owes(7), ==, false);
}

/* A claim that comes late comes to each node by itself. */
Test(redlock, a_late_claim_found_on_a_minority_may_yet_come_to_the_others) {
    connect_all();
    occupy(0, OWNER ":7", 20000);
    occupy(1, OWNER ":7", 20000);
    cr_assert_eq(free_again(7), DL_ELOST);
    AWAIT(is_free());
    for (size_t i = 0; i < 3; i++) {
        occupy(i, OWNER ":8", 20000);
    }
    cr_assert_eq(free_again(8), DL_OK);
    AWAIT(is_free());
}

Test(redlock, force_harms_nobody_who_comes_after_it) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    tell(&servers[0], "SCRIPT LOAD %s", dli_script_redlock_release.source);
    set_trap(0, &dli_script_redlock_release, REQUESTS);
    cr_assert_eq(ask_by_name(DLI_ASK_FORCE, NAME, NULL), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 1);
    occupy(0, OTHER ":1", 20000);
    long long before = runs(0);
    let_pass(0, REQUESTS);
    AWAIT_THAT(runs(0), >, before);
    cr_assert(node_has(0, KEY, OTHER ":1"));
}

/* Two of three have it. One frees it; the other may do so yet. */
Test(redlock, a_force_that_may_still_come_is_unknown) {
    connect_all();
    for (size_t i = 0; i < NODES / 2 + 1; i++) {
        occupy(i, OTHER ":1", 60000);
    }
    tell(&servers[0], "SCRIPT LOAD %s", dli_script_redlock_release.source);
    set_trap(0, &dli_script_redlock_release, REQUESTS);
    cr_assert_eq(ask_by_name(DLI_ASK_FORCE, NAME, NULL), DL_EUNKNOWN, "%s", err.message);
    let_pass(0, REQUESTS);
    AWAIT(is_free());
}

/* Those that do not say what they have and those that do not say what became of it are a majority. */
Test(redlock, a_force_after_which_it_may_be_held_is_unknown) {
    connect_all();
    for (size_t i = 0; i < NODES; i++) {
        occupy(i, OTHER ":1", 60000);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_redlock_release.source);
        tell(&servers[i], "SCRIPT LOAD %s", dli_script_string_inspect.source);
    }
    set_trap(0, &dli_script_string_inspect, REQUESTS);
    set_trap(1, &dli_script_string_inspect, REQUESTS);
    set_trap(2, &dli_script_redlock_release, REQUESTS);
    cr_assert_eq(ask_by_name(DLI_ASK_FORCE, NAME, NULL), DL_EUNKNOWN, "%s", err.message);
    cr_assert_has(err.message, "2 of 5 nodes answered", "%s", err.message);
    for (size_t i = 0; i < 3; i++) {
        let_pass(i, REQUESTS);
    }
}

/* It waits for a connection to a node until the round is over, which says something about that node
 * meanwhile. */
Test(redlock, a_force_that_leaves_late_frees_what_was_seen) {
    asked_t asked;
    const dli_request_t force = {.kind = DLI_ASK_FORCE,
                                 .with = {.name = NAME, .name_len = strlen(NAME), .deadline_ns = in_ms(5000)},
                                 .err = &err};
    connect_all();
    for (size_t i = 0; i < NODES; i++) {
        occupy(i, OTHER ":1", 60000);
    }
    hold(&relays[0], REPLIES, 1);
    begin_asking(&asked, &force);
    AWAIT_THAT(pending(), ==, 1);
    long long before = runs(2);
    freeze(2);
    cut_all(&relays[2]);
    hold(&relays[0], REPLIES, 0);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_OK, "%s", err.message);
    thaw(2);
    AWAIT_THAT(runs(2), >, before);
    cr_assert(!node_has(2, KEY, OTHER ":1"));
    AWAIT(is_free());
}

/* What a node is given before it counts as silent. */
#define SILENT_MS 600

static void begin_force(asked_t *asked) {
    const dli_request_t force = {.kind = DLI_ASK_FORCE,
                                 .with = {.name = NAME, .name_len = strlen(NAME), .deadline_ns = in_ms(5000)},
                                 .err = &err};
    begin_asking(asked, &force);
}

/* It has freed two nodes and heard so, and the third keeps silent. */
static void begin_forcing(asked_t *asked) {
    for (size_t i = 0; i < 3; i++) {
        occupy(i, OTHER ":1", 60000);
    }
    set_trap(2, &dli_script_redlock_release, REQUESTS);
    begin_force(asked);
    AWAIT_THAT(have(OTHER ":1"), ==, 1);
    AWAIT_THAT(pending(), ==, 1);
}

/* The first has this meanwhile. */
static dl_status_t force_while(const char *value) {
    asked_t asked;
    begin_forcing(&asked);
    occupy(0, value, 60000);
    jump(SILENT_MS);
    AWAIT(asked.is_over);
    let_pass(2, REQUESTS);
    await_relays();
    AWAIT_THAT(pending(), ==, 0);
    return asked.status;
}

Test(redlock_three, a_force_whose_holder_has_filled_in_what_it_freed_is_unknown) {
    connect_all();
    stop_clock();
    cr_assert_eq(force_while(OTHER ":1"), DL_EUNKNOWN, "%s", err.message);
    cr_assert_has(err.message, "its holder renewed it");
    cr_assert_eq(force_while(OTHER ":2"), DL_OK, "%s", err.message);
}

/* A left-over hides who has a majority with the node that keeps silent; and they fill in what was freed. */
Test(redlock_three, a_force_is_unknown_whoever_of_those_that_were_seen_has_filled_in_what_it_freed) {
    asked_t asked;
    connect_all();
    stop_clock();
    occupy(0, OTHER ":9", 60000);
    occupy(1, OTHER ":1", 60000);
    occupy(2, OTHER ":1", 60000);
    set_trap(1, &dli_script_redlock_release, REQUESTS);
    set_trap(2, &dli_script_string_inspect, REQUESTS);
    begin_force(&asked);
    AWAIT_THAT(pending(), ==, 1);
    jump(SILENT_MS);
    AWAIT_THAT(have(OTHER ":9"), ==, 0);
    occupy(0, OTHER ":1", 60000);
    let_pass(1, REQUESTS);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_EUNKNOWN, "%s", err.message);
    cr_assert_has(err.message, "its holder renewed it");
    let_pass(2, REQUESTS);
    AWAIT_THAT(pending(), ==, 0);
}

Test(redlock_three, a_force_that_is_given_up_while_it_looks_again_is_unknown) {
    asked_t asked;
    connect_all();
    stop_clock();
    begin_forcing(&asked);
    set_trap(0, &dli_script_string_inspect, REQUESTS);
    jump(SILENT_MS);
    AWAIT_THAT(atomic_load(&relays[0].sprung), !=, 0);
    cr_assert(!asked.is_over);
    cr_assert_eq(withdraw(&asked), DL_EUNKNOWN);
    let_pass(0, REQUESTS);
    let_pass(2, REQUESTS);
}

/* Reads what a server tells of the lock, within five seconds. */
static void must_hear(redisContext *c, const char *text) {
    redisReply *reply = NULL;
    cr_assert_eq(redisGetReply(c, (void **)&reply), REDIS_OK, "nothing is told, not \"%s\"", text);
    cr_assert_str_eq(reply->element[0]->str, "message");
    cr_assert_str_eq(reply->element[2]->str, text);
    freeReplyObject(reply);
}

Test(redlock, a_majority_that_is_given_back_is_told_of) {
    connect_all();
    redisContext *c = redisConnectUnix(servers[4].path);
    cr_assert_not_null(c);
    cr_assert_eq(c->err, 0);
    cr_assert_eq(redisSetTimeout(c, (struct timeval){.tv_sec = 5}), REDIS_OK);
    freeReplyObject(redisCommand(c, "SUBSCRIBE " CHANNEL NAME));
    cr_assert_eq(try_it(6), DL_OK, "%s", err.message);
    cr_assert_eq(free_it(6), DL_OK, "%s", err.message);
    must_hear(c, "0");
    AWAIT_THAT(pending(), ==, 0);
    spread_counters(8200000000000000);
    for (size_t i = 0; i < 4; i++) {
        set_trap(i, &dli_script_redlock_raise, REQUESTS);
    }
    cr_assert_eq(try_it(7), DL_EIO, "%s", err.message);
    must_hear(c, "1"); /* who saw the majority waits for the holder's lease to end */
    redisFree(c);
}

/* The answers to the claim come late from two nodes of five. The free goes behind them, and is heard. */
Test(redlock, an_unlock_hears_those_whose_claim_was_late) {
    asked_t asked;
    connect_all();
    stop_clock();
    for (size_t i = 0; i < 2; i++) {
        set_trap(i, &dli_script_redlock_acquire, REPLIES);
    }
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    tell(&servers[4], "DEL " KEY);
    const dli_request_t request = free_of(7, in_ms(20000));
    begin_asking(&asked, &request);
    AWAIT_THAT(have(OWNER ":7"), ==, 0);
    cr_assert(!asked.is_over);
    let_pass(0, REPLIES);
    let_pass(1, REPLIES);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_OK, "%s", err.message);
}

/* ---- what is on its way ---------------------------------------------------------------------------- */

/* Two nodes of three have it; the third hears the claim, or is heard, when the trap lets it go. */
static void hold_on_two(int way) {
    connect_all();
    set_trap(2, &dli_script_redlock_acquire, way);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
}

static dl_status_t renew_it(void) {
    dl_renewal_t r = {.name = NAME,
                      .name_len = strlen(NAME),
                      .owner = OWNER,
                      .hold_id = 7,
                      .lease_ms = 20000,
                      .hold = hold_of(7)};
    const dli_request_t request = {
        .kind = DLI_ASK_RENEW, .with.deadline_ns = in_ms(20000), .renewals = &r, .n = 1};
    cr_assert_eq(ask(&request), DL_OK);
    return r.status;
}

Test(redlock_three, a_claim_on_its_way_is_ended_when_a_renewal_finds_the_hold_lost) {
    hold_on_two(REQUESTS);
    tell(&servers[1], "DEL " KEY);
    AWAIT_THAT(renew_it(), ==, DL_ELOST); /* once there is another connection to the third */
    AWAIT_THAT(info(&servers[2], "commandstats", "cmdstat_client|kill:calls="), >, 0);
    let_pass(2, REQUESTS);
    await_relays();
    cr_assert(is_free(), "the claim came behind what should clear away");
}

/* The third has forgotten the script of the claim, and is heard once the free is on its way. */
Test(redlock_three, a_claim_is_not_sent_again_behind_its_free) {
    connect_all();
    stop_clock();
    tell(&servers[2], "SCRIPT FLUSH");
    tell(&servers[2], "SCRIPT LOAD %s", dli_script_redlock_release.source);
    set_trap(2, &dli_script_redlock_acquire, REPLIES);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    let_pass(2, REPLIES);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert(is_free(), "it lasts until its lease is over");
}

Test(redlock_three, a_release_is_no_place_for_a_claim_that_is_not_sent_yet) {
    char away[128];
    snprintf(away, sizeof away, "%s.away", relays[2].path);
    cr_assert_eq(rename(relays[2].path, away), 0);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    cr_assert(!owes(7), "the third never heard of it");
    cr_assert_eq(rename(away, relays[2].path), 0);
    AWAIT(try_it(8) == DL_OK && node_has(2, KEY, OWNER ":8"));
    cr_assert_eq(free_it(8), DL_OK, "%s", err.message);
    free_the_rest(8);
}

/* ---- refused --------------------------------------------------------------------------------------- */

/* All three have it. */
static void hold_on_all(void) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
}

Test(redlock_three, a_free_that_found_no_connection_is_left) {
    char away[128];
    hold_on_all();
    snprintf(away, sizeof away, "%s.away", relays[2].path);
    cr_assert_eq(rename(relays[2].path, away), 0);
    cut_all(&relays[2]);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    cr_assert(node_has(2, KEY, OWNER ":7"));
    cr_assert(owes(7));
    cr_assert_neq(free_again(7), DL_OK);
    cr_assert(owes(7));
    cr_assert_eq(rename(away, relays[2].path), 0);
    free_the_rest(7);
}

Test(redlock_three, a_free_that_found_the_server_full_is_left) {
    hold_on_all();
    tell(&servers[2], "CONFIG SET maxclients 1"); /* which is the test's own connection */
    cut_all(&relays[2]);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(info(&servers[2], "stats", "rejected_connections:"), >, 0);
    cr_assert(node_has(2, KEY, OWNER ":7"));
    tell(&servers[2], "CONFIG SET maxclients 100");
    free_the_rest(7);
}

/* -MISCONF: it cannot save, for a folder stands where the file should be. */
Test(redlock_three, a_free_that_a_node_did_not_write_is_left) {
    char path[128];
    hold_on_all();
    snprintf(path, sizeof path, "%s/dump.rdb", servers[2].folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    tell(&servers[2], "CONFIG SET save %s", "3600 1");
    tell(&servers[2], "BGSAVE");
    AWAIT_THAT(info(&servers[2], "persistence", "rdb_last_bgsave_status:err"), >=, 0);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert(owes(7));
    cr_assert(node_has(2, KEY, OWNER ":7"));
    tell(&servers[2], "CONFIG SET stop-writes-on-bgsave-error no");
    free_the_rest(7);
}

static bool is_held_up(size_t i) {
    redisReply *reply = redisCommand(servers[i].admin, "PING");
    bool is_busy = reply != NULL && reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "BUSY", 4) == 0;
    freeReplyObject(reply);
    return is_busy;
}

Test(redlock_three, a_free_that_a_node_was_too_busy_for_is_left) {
    int done = 0;
    redisReply *killed;
    hold_on_all();
    redisContext *c = redisConnectUnix(servers[2].path);
    cr_assert_not_null(c);
    cr_assert_eq(c->err, 0);
    tell(&servers[2], "CONFIG SET lua-time-limit 1");
    cr_assert_eq(redisAppendCommand(c, "EVAL %s 0", "while true do end"), REDIS_OK);
    cr_assert_eq(redisBufferWrite(c, &done), REDIS_OK);
    cr_assert_eq(done, 1);
    AWAIT(is_held_up(2));
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert(owes(7));
    freeReplyObject(redisCommand(servers[2].admin, "SCRIPT KILL"));
    cr_assert_eq(redisGetReply(c, (void **)&killed), REDIS_OK);
    freeReplyObject(killed);
    redisFree(c);
    free_the_rest(7);
}
