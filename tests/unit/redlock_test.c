/* redlock_test.c - claims and frees on three and five real servers, with what goes wrong on the way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_claims_fixture.h"

#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#define NAME "orders"
#define KEY "dlock:orders"
#define OTHER "bbbbbbbb-0000-0000-0000-000000000002:1"

static const dli_script_t *const claim_script = &dli_script_redlock_acquire;
static const dli_script_t *const raise_script = &dli_script_redlock_raise;

static void of_five(void) {
    start_nodes();
    open_client(5);
}

static void of_three(void) {
    start_nodes();
    open_client(3);
}

TestSuite(redlock, .init = of_five, .fini = end_nodes, .timeout = 60);
TestSuite(redlock_three, .init = of_three, .fini = end_nodes, .timeout = 60);

/* ---- what the nodes have -------------------------------------------------------------------------- */

static bool node_has(size_t i, const char *key, const char *value) {
    redisReply *reply = redisCommand(servers[i].admin, "GET %s", key);
    cr_assert_not_null(reply);
    bool has = reply->type == REDIS_REPLY_STRING && strcmp(reply->str, value) == 0;
    freeReplyObject(reply);
    return has;
}

/* The nodes, of those that run, that have this at the lock's key. */
static size_t have(const char *value) {
    size_t count = 0;
    for (size_t i = 0; i < client.n; i++) {
        count += servers[i].pid != 0 && node_has(i, KEY, value);
    }
    return count;
}

static bool is_free(void) {
    for (size_t i = 0; i < client.n; i++) {
        if (servers[i].pid != 0 && tell(&servers[i], "EXISTS " KEY) != 0) {
            return false;
        }
    }
    return true;
}

/* How many scripts were run there. */
static long long runs(size_t i) {
    return info(&servers[i], "commandstats", "cmdstat_evalsha:calls=");
}

static unsigned long long counter(size_t i) {
    redisReply *reply = redisCommand(servers[i].admin, "GET " TOKENS);
    cr_assert(reply != NULL && reply->type == REDIS_REPLY_STRING);
    unsigned long long number = strtoull(reply->str, NULL, 10);
    freeReplyObject(reply);
    return number;
}

static void occupy(size_t i, const char *value, long long left_ms) {
    tell(&servers[i], "SET " KEY " %s PX %lld", value, left_ms);
}

/* ---- what the client does ------------------------------------------------------------------------- */

static dl_grant_t grant;

static dl_status_t try_with(dl_request_t request) {
    grant = (dl_grant_t){.session_fd = -7, .busy_ms = -7};
    err = (dl_error_t){.status = DL_OK};
    dl_status_t status = dli_redlock_try_acquire(&client, NULL, &request, &grant, &err);
    cr_assert_eq(status, err.status, "%s", err.message);
    return status;
}

static dl_request_t request_of(uint64_t hold_id) {
    return make_request(NAME, OWNER, hold_id, in_ms(2000));
}

static dl_status_t try_it(uint64_t hold_id) {
    return try_with(request_of(hold_id));
}

static dl_status_t free_it(uint64_t hold_id) {
    dl_request_t request = request_of(hold_id);
    err = (dl_error_t){.status = DL_OK};
    return dli_redlock_release(&client, NULL, &request, &err);
}

static void set_trap(size_t i, const dli_script_t *script, int way) {
    atomic_store(&relays[i].trap_way, way);
    atomic_store(&relays[i].trap, script->sha);
}

/* Every node has a connection that is ready. */
static void connect_all(void) {
    cr_assert_eq(try_it(1), DL_OK, "%s", err.message);
    AWAIT(have(OWNER ":1") == client.n);
    cr_assert_eq(free_it(1), DL_OK, "%s", err.message);
    AWAIT(is_free());
    spread_counters(8100000000000000);
}

/* When it hears of this script, each node's relay lets the clock jump. */
static void set_jumps(const dli_script_t *script, unsigned long ms) {
    for (size_t i = 0; i < client.n; i++) {
        atomic_store(&relays[i].jump_ms, ms);
        set_trap(i, script, JUMP);
    }
}

/* ---- the usual ------------------------------------------------------------------------------------ */

static void lock_and_unlock(void) {
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    cr_assert(grant.sent_ns >= before_ns && grant.sent_ns <= show_ns());
    cr_assert_eq(grant.session_fd, -1);
    size_t known = 0;
    for (size_t i = 0; i < client.n; i++) {
        known += counter(i) >= grant.token;
    }
    cr_assert_geq(known, client.quorum, "%zu nodes know of the token", known);
    cr_assert_geq(have(OWNER ":7"), client.quorum);
    AWAIT(have(OWNER ":7") == client.n);
    uint64_t first = grant.token;
    cr_assert_eq(try_it(8), DL_OK, "a later attempt replaces the earlier: %s", err.message);
    cr_assert_gt(grant.token, first);
    AWAIT(have(OWNER ":8") == client.n);
    cr_assert_eq(free_it(7), DL_ELOST, "%s", err.message);
    cr_assert_eq(have(OWNER ":8"), client.n);
    cr_assert_eq(free_it(8), DL_OK, "%s", err.message);
    AWAIT(is_free());
    cr_assert_eq(free_it(8), DL_ELOST);
}

Test(redlock_three, a_lock_is_on_all_of_three_nodes_and_then_on_none) {
    lock_and_unlock();
}

Test(redlock, a_lock_is_on_all_of_five_nodes_and_then_on_none) {
    lock_and_unlock();
}

Test(redlock, nodes_that_forgot_the_scripts_get_their_text) {
    for (size_t i = 0; i < NODES; i++) {
        tell(&servers[i], "SCRIPT FLUSH");
    }
    lock_and_unlock();
}

Test(redlock, without_fencing_no_token_is_drawn) {
    client.fences = false;
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    cr_assert_eq(grant.token, 0);
    cr_assert_eq(counter(4), 8000000000004000ULL);
    cr_assert_eq(free_it(7), DL_OK);
}

Test(redlock, numbers_out_of_range_are_refused) {
    dl_request_t request = request_of(7);
    request.lease_ms = 60001;
    cr_assert_eq(try_with(request), DL_EINVAL);
    cr_assert_not_null(strstr(err.message, "is longer than max_lease (60000 ms); ask for less"), "%s",
                       err.message);
    request.lease_ms = 0;
    cr_assert_eq(try_with(request), DL_EINVAL);
    cr_assert_eq(try_it(DLI_EXACT_END), DL_ELIMIT);
    cr_assert_eq(free_it(DLI_EXACT_END), DL_ELIMIT);
    cr_assert(is_free());
}

/* ---- nodes that are down -------------------------------------------------------------------------- */

Test(redlock, a_minority_that_is_down_or_slow_costs_no_time) {
    kill_server(&servers[0]);
    freeze(1);
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    cr_assert_lt(show_ns() - before_ns, 400 * MS);
    thaw(1);
    AWAIT(is_free());
}

Test(redlock, a_majority_that_is_down_ends_the_attempt_and_nothing_is_held) {
    for (size_t i = 0; i < 3; i++) {
        kill_server(&servers[i]);
    }
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_it(7), DL_EIO, "%s", err.message);
    cr_assert_not_null(strstr(err.message, " of 5 nodes answered; "), "%s", err.message);
    cr_assert_lt(show_ns() - before_ns, 2000 * MS);
    AWAIT(is_free());
    cr_assert_eq(free_it(7), DL_EUNKNOWN, "some of it left: %s", err.message);
    kill_server(&servers[3]);
    kill_server(&servers[4]);
    AWAIT(free_it(7) == DL_EIO); /* once no connection lies idle that nobody knows to be dead */
    cr_assert_eq(try_it(8), DL_EIO, "%s", err.message);
    cr_assert_not_null(strstr(err.message, "0 of 5 nodes answered; "), "%s", err.message);
}

Test(redlock, a_majority_that_is_silent_is_an_unknown_outcome_in_time) {
    connect_all();
    for (size_t i = 0; i < 3; i++) {
        freeze(i);
    }
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_it(7), DL_EUNKNOWN, "%s", err.message);
    cr_assert_eq(free_it(7), DL_EUNKNOWN, "%s", err.message);
    cr_assert_lt(show_ns() - before_ns, 3000 * MS);
    for (size_t i = 0; i < 3; i++) {
        thaw(i);
    }
    AWAIT(free_it(7) != DL_EUNKNOWN); /* as the core does in the background */
    AWAIT(have(OWNER ":7") == 0);
}

/* ---- other holders -------------------------------------------------------------------------------- */

Test(redlock, a_lock_of_another_is_busy_and_what_was_got_is_given_back) {
    for (size_t i = 0; i < 3; i++) {
        occupy(i, OTHER ":1", 20000 + 1000 * (long long)i);
    }
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    cr_assert(grant.busy_ms > 18000 && grant.busy_ms <= 22000, "%lld", (long long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, 1);
    AWAIT(have(OWNER ":7") == 0);
    cr_assert_eq(have(OTHER ":1"), 3);
}

Test(redlock_three, claims_that_split_the_nodes_leave_nothing) {
    occupy(0, OTHER ":1", 20000);
    occupy(1, "somebody", 20000);
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    cr_assert(grant.busy_ms >= 1 && grant.busy_ms < 5000, "%lld", (long long)grant.busy_ms);
    AWAIT(node_has(2, KEY, OWNER ":7") == false);
}

Test(redlock_three, a_value_of_another_kind_on_a_majority_is_foreign) {
    tell(&servers[0], "RPUSH " KEY " x");
    cr_assert_eq(try_it(7), DL_OK, "one is no hindrance: %s", err.message);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    tell(&servers[1], "DEL " KEY);
    tell(&servers[1], "RPUSH " KEY " x");
    cr_assert_eq(try_it(8), DL_EFOREIGN, "%s", err.message);
    AWAIT(tell(&servers[2], "EXISTS " KEY) == 0);
    cr_assert_eq(tell(&servers[0], "LLEN " KEY), 1);
}

Test(redlock_three, a_claim_that_is_late_is_killed_before_it_is_freed) {
    connect_all();
    occupy(0, OTHER ":1", 20000);
    occupy(1, OTHER ":1", 20000);
    set_trap(2, claim_script, REQUESTS);
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    int at = atomic_load(&relays[2].sprung) - 1;
    cr_assert_geq(at, 0);
    AWAIT(atomic_load(&relays[2].open[at]) == 0); /* ended by the server, with the claim in it */
    cr_assert_eq(have(OWNER ":7"), 0);
}

Test(redlock_three, a_claim_whose_answer_is_late_is_freed) {
    occupy(0, OTHER ":1", 20000);
    occupy(1, OTHER ":1", 20000);
    set_trap(2, claim_script, REPLIES);
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    AWAIT(atomic_load(&relays[2].sprung) != 0 && runs(2) >= 2);
    cr_assert_eq(have(OWNER ":7"), 0);
}

/* ---- validity and tokens -------------------------------------------------------------------------- */

static dl_request_t long_request(uint64_t hold_id) {
    dl_request_t request = request_of(hold_id);
    request.lease_ms = 1000;
    request.deadline_ns = in_ms(100000);
    client.node_timeout_ms = 60000;
    return request;
}

Test(redlock, a_majority_after_the_end_of_validity_holds_nothing) {
    connect_all();
    dl_request_t request = long_request(7);
    set_jumps(claim_script, 995);
    cr_assert_eq(try_with(request), DL_EIO, "%s", err.message);
    cr_assert_not_null(strstr(err.message, "no validity was left"), "%s", err.message);
    AWAIT(is_free());
}

Test(redlock, a_token_written_back_after_the_end_of_validity_is_of_no_use) {
    connect_all();
    dl_request_t request = long_request(7);
    set_jumps(raise_script, 995);
    cr_assert_eq(try_with(request), DL_EIO, "%s", err.message);
    cr_assert_not_null(strstr(err.message, "no validity was left"), "%s", err.message);
    AWAIT(is_free());
}

Test(redlock, a_lock_whose_token_is_not_on_a_majority_is_not_held) {
    connect_all();
    for (size_t i = 0; i < 3; i++) {
        set_trap(i, raise_script, REQUESTS);
    }
    cr_assert_eq(try_it(7), DL_EIO, "%s", err.message);
    cr_assert_not_null(strstr(err.message, "the token is not on a majority of the nodes: 2 of 5"), "%s",
                       err.message);
    AWAIT(is_free());
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    cr_assert_eq(free_it(8), DL_OK);
}

Test(redlock_three, tokens_rise_from_one_majority_to_the_next) {
    tell(&servers[0], "SET " TOKENS " 8500000000000000");
    freeze(2);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    uint64_t first = grant.token;
    cr_assert_eq(first, 8500000000000001ULL);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    kill_server(&servers[0]);
    thaw(2);
    tell(&servers[2], "SET " TOKENS " 1");
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    cr_assert_gt(grant.token, first);
    cr_assert_eq(free_it(8), DL_OK, "%s", err.message);
}

Test(redlock_three, a_token_that_is_not_above_the_floor_is_no_vote) {
    dl_request_t request = request_of(7);
    request.token_floor = 8700000000000000ULL;
    cr_assert_eq(try_with(request), DL_OK, "%s", err.message);
    cr_assert_gt(grant.token, request.token_floor);
    cr_assert_eq(free_it(7), DL_OK);
}

/* ---- quarantine ----------------------------------------------------------------------------------- */

Test(redlock_three, a_node_that_was_emptied_has_no_vote_until_every_lease_is_over) {
    client.quarantines = true;
    cr_assert_eq(try_it(7), DL_EBUSY, "nobody knows these nodes: %s", err.message);
    cr_assert(grant.busy_ms > 59000 && grant.busy_ms <= 60603, "%lld", (long long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, 0);
    cr_assert(is_free());
    cr_assert_geq(atomic_load(&warnings), 2);
    tell(&servers[0], "DEL " QUARANTINE);
    cr_assert_eq(try_it(8), DL_EBUSY, "%s", err.message);
    AWAIT(is_free());
    tell(&servers[1], "DEL " QUARANTINE);
    cr_assert_eq(try_it(9), DL_OK, "%s", err.message);
    tell(&servers[1], "FLUSHALL");
    dl_request_t request = make_request(NAME, OTHER, 1, in_ms(2000));
    tell(&servers[2], "DEL " QUARANTINE);
    cr_assert_eq(try_with(request), DL_EBUSY, "two nodes do not know of the holder: %s", err.message);
    cr_assert(node_has(0, KEY, OWNER ":9"));
    AWAIT(have(OTHER ":1") == 0);
}

/* ---- ends ----------------------------------------------------------------------------------------- */

Test(redlock, an_attempt_that_is_stopped_leaves_nothing) {
    connect_all();
    long long before[NODES];
    int fd = eventfd(1, EFD_CLOEXEC);
    dl_request_t request = request_of(7);
    request.stop.fd[1] = fd;
    for (size_t i = 0; i < NODES; i++) {
        before[i] = runs(i);
        set_trap(i, claim_script, REPLIES);
    }
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_with(request), DL_EUNKNOWN, "%s", err.message);
    cr_assert_lt(show_ns() - before_ns, 400 * MS);
    for (size_t i = 0; i < NODES; i++) {
        AWAIT(atomic_load(&relays[i].sprung) != 0 && runs(i) > before[i]);
    }
    AWAIT(is_free());
    close(fd);
}

Test(redlock_three, a_lock_that_a_majority_has_lost_is_lost_and_freed_all_the_same) {
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT(have(OWNER ":7") == 3);
    tell(&servers[0], "DEL " KEY);
    cr_assert_eq(free_it(7), DL_OK, "a majority had it: %s", err.message);
    AWAIT(is_free());
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    AWAIT(have(OWNER ":8") == 3);
    tell(&servers[0], "DEL " KEY);
    tell(&servers[1], "DEL " KEY);
    kill_server(&servers[2]);
    cr_assert_eq(free_it(8), DL_ELOST, "%s", err.message);
}

/* All that the nodes said has been read by the client. */
static bool is_read(size_t i) {
    relay_t *r = &relays[i];
    for (int at = 0; at < atomic_load(&r->pairs); at++) {
        int unread = 0;
        if (atomic_load(&r->open[at])) {
            cr_assert_eq(ioctl(r->fds[at][REQUESTS], SIOCOUTQ, &unread), 0);
        }
        if (unread > 0) {
            return false;
        }
    }
    return true;
}

/* When the client has the answers of the others, those of 1 and 2 pass. */
static void *let_pass(void *arg) {
    const long long *before = arg;
    for (size_t i = 0; i < NODES; i++) {
        AWAIT(runs(i) > before[i]);
    }
    AWAIT(atomic_load(&relays[1].sprung) != 0 && atomic_load(&relays[2].sprung) != 0);
    AWAIT(is_read(0) && is_read(3) && is_read(4));
    for (size_t i = 1; i <= 2; i++) {
        atomic_store(&relays[i].held[atomic_load(&relays[i].sprung) - 1][REPLIES], 0);
    }
    return NULL;
}

Test(redlock, a_loss_is_told_though_slow_nodes_have_to_say_it) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT(have(OWNER ":7") == 5);
    long long before[NODES];
    for (size_t i = 0; i < NODES; i++) {
        before[i] = runs(i);
    }
    for (size_t i = 0; i <= 2; i++) {
        tell(&servers[i], "DEL " KEY);
    }
    set_trap(1, &dli_script_redlock_release, REPLIES);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    client.node_timeout_ms = 60000;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, let_pass, before), 0);
    dl_request_t request = make_request(NAME, OWNER, 7, in_ms(20000));
    dl_status_t status = dli_redlock_release(&client, NULL, &request, &err);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(status, DL_ELOST, "%s", err.message);
}

Test(redlock, a_loss_that_nobody_can_tell_is_not_waited_for) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT(have(OWNER ":7") == 5);
    tell(&servers[0], "DEL " KEY);
    kill_server(&servers[1]);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    uint64_t before_ns = show_ns();
    cr_assert_eq(free_it(7), DL_OK, "two of five had it, one had not: %s", err.message);
    cr_assert_lt(show_ns() - before_ns, 1500 * MS);
    atomic_store(&relays[2].held[atomic_load(&relays[2].sprung) - 1][REPLIES], 0);
    AWAIT(is_free());
}
