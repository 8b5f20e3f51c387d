/* redlock_test.c - claims and frees on three and five real servers, with what goes wrong on the way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

static const dli_script_t *const claim_script = &dli_script_redlock_acquire;
static const dli_script_t *const raise_script = &dli_script_redlock_raise;

static void start(size_t n) {
    const plan_t plan = {
        .n = n, .scripts = {claim_script, raise_script, &dli_script_redlock_release}, .fences = true};
    start_nodes(&plan);
}

static void of_five(void) {
    start(5);
}

static void of_three(void) {
    start(3);
}

TestSuite(redlock, .init = of_five, .fini = end_nodes, .timeout = 60);
TestSuite(redlock_three, .init = of_three, .fini = end_nodes, .timeout = 60);

/* When it hears of this script, each node's relay lets the clock jump. */
static void set_jumps(const dli_script_t *script, unsigned long ms) {
    for (size_t i = 0; i < client.n; i++) {
        atomic_store(&relays[i].jump_ms, ms);
        set_trap(i, script, JUMP);
    }
}

static void begin_trying(asked_t *asked) {
    dl_request_t with = make_request(NAME, OWNER, 7, in_ms(20000));
    const dli_request_t request = try_of(&with);
    stop_clock(); /* no silence is too long */
    begin_asking(asked, &request);
}

/* ---- the usual ------------------------------------------------------------------------------------ */

static void lock_and_unlock(void) {
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    cr_assert_geq(grant.sent_ns, before_ns);
    cr_assert_leq(grant.sent_ns, show_ns());
    cr_assert_eq(grant.session_fd, -1);
    size_t known = 0;
    for (size_t i = 0; i < client.n; i++) {
        known += counter(i) >= grant.token;
    }
    cr_assert_geq(known, client.quorum, "%zu nodes know of the token", known);
    cr_assert_geq(have(OWNER ":7"), client.quorum);
    AWAIT_THAT(have(OWNER ":7"), ==, client.n);
    uint64_t first = grant.token;
    cr_assert_eq(try_it(8), DL_OK, "a later attempt replaces the earlier: %s", err.message);
    cr_assert_gt(grant.token, first);
    AWAIT_THAT(have(OWNER ":8"), ==, client.n);
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
    for (size_t i = 0; i < client.n; i++) {
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
    cr_assert_has(err.message, "is longer than max_lease (1m); ask for less");
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

/* Sent to this node without an answer, or yet to be sent. */
static size_t left_to(size_t node) {
    const dli_mux_t *mux = &client.nodes[node].redis.mux;
    const dli_redis_request_t *request;
    size_t n = 0;
    for (size_t i = 0; i < mux->count; i++) {
        n += mux->pipes[i].tail - mux->pipes[i].head;
        TAILQ_FOREACH(request, &mux->pipes[i].queue, of_queue) {
            n++;
        }
    }
    return n;
}

/* So what it costs does not grow with the locks that are taken meanwhile. */
Test(redlock, a_silent_node_is_not_left_with_what_it_was_never_sent) {
    connect_all();
    freeze(1);
    uint64_t hold_id = 2;
    for (; !client.nodes[1].lags && hold_id < 500; hold_id++) {
        cr_assert_eq(try_it(hold_id), DL_OK, "%s", err.message);
        cr_assert_eq(free_it(hold_id), DL_OK, "%s", err.message);
    }
    size_t before = left_to(1);
    for (size_t i = 0; i < 300; i++, hold_id++) {
        tell(&servers[0], "INCRBY " TOKENS " 1000"); /* so that its token is written to the others */
        cr_assert_eq(try_it(hold_id), DL_OK, "%s", err.message);
        cr_assert_eq(free_it(hold_id), DL_OK, "%s", err.message);
    }
    cr_assert_leq(left_to(1), before + 10);
    thaw(1);
    AWAIT(is_free());
}

Test(redlock, a_majority_that_is_down_ends_the_attempt_and_nothing_is_held) {
    for (size_t i = 0; i < 3; i++) {
        kill_server(&servers[i]);
    }
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_it(7), DL_EIO, "%s", err.message);
    cr_assert_has(err.message, " of 5 nodes answered; ");
    cr_assert_lt(show_ns() - before_ns, 2000 * MS);
    AWAIT(is_free());
    dl_status_t freed = free_it(7); /* by whether the dead were sent anything before that was known */
    cr_assert(freed == DL_ELOST || freed == DL_EUNKNOWN, "%s", err.message);
    kill_server(&servers[3]);
    kill_server(&servers[4]);
    AWAIT_THAT(try_it(8), ==, DL_EIO); /* once no connection lies idle that nobody knows to be dead */
    cr_assert_has(err.message, "0 of 5 nodes answered; ");
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
    AWAIT_THAT(free_it(7), !=, DL_EUNKNOWN); /* as the core does in the background */
    AWAIT_THAT(have(OWNER ":7"), ==, 0);
}

/* Its answers have come, and nobody has read them yet. */
static void await_answers(void) {
    for (size_t i = 0; i < client.n; i++) {
        struct pollfd fd = {.fd = client.nodes[i].redis.mux.pipes[0].fd, .events = POLLIN};
        cr_assert_eq(poll(&fd, 1, 15000), 1);
    }
}

/* Whoever flushes meanwhile, and whatever was seen by a poll before. */
static void expect_no_silence(bool is_polled_before) {
    struct pollfd fds[DL_LISTEN_MAX] = {{.fd = -1}};
    uint64_t due_ns;
    size_t n = 0;
    asked_t asked;
    connect_all();
    if (is_polled_before) {
        n = dli_redlock_listen_fds(&client, fds, DL_LISTEN_MAX, &due_ns);
    }
    begin_trying(&asked);
    if (!is_polled_before) {
        n = dli_redlock_listen_fds(&client, fds, DL_LISTEN_MAX, &due_ns);
    }
    for (size_t i = 0; i < n; i++) {
        fds[i].revents = 0;
    }
    await_answers();
    jump((uint64_t)client.node_timeout_ms + 1);
    (void)dli_redlock_flush(&client);
    cr_assert(!asked.is_over, "nobody has read");
    dli_redlock_listen(&client, fds, n);
    cr_assert_eq(end_asking(&asked), DL_OK, "%s", err.message);
    cr_assert_eq(atomic_load(&warnings), 0);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
}

Test(redlock_three, what_has_come_is_no_silence) {
    expect_no_silence(false);
}

Test(redlock_three, what_was_asked_behind_a_poll_is_no_silence) {
    expect_no_silence(true);
}

/* The thread was away before it could send. */
Test(redlock_three, nobody_is_blamed_for_what_was_sent_late) {
    asked_t asked;
    dl_request_t with = make_request(NAME, OWNER, 7, in_ms(20000));
    const dli_request_t request = try_of(&with);
    connect_all();
    stop_clock();
    asked = (asked_t){.request = request};
    asked.request.ended = note_end;
    dli_redlock_begin(&client, &asked.request);
    jump((uint64_t)client.node_timeout_ms + 1);
    take_turn();
    cr_assert_eq(end_asking(&asked), DL_OK, "%s", err.message);
    cr_assert_eq(atomic_load(&warnings), 0);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
}

/* A late answer, and behind it the end of the connection. */
Test(redlock_three, what_lies_unread_is_read_before_more_is_sent) {
    connect_all();
    set_trap(2, claim_script, REPLIES);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT(node_has(2, KEY, OWNER ":7"));
    int at = atomic_load(&relays[2].sprung) - 1;
    kill_server(&servers[2]);
    boot_server(&servers[2]);
    atomic_store(&relays[2].held[at][REPLIES], 0);
    while (atomic_load(&relays[2].open[at])) {
        (void)poll(NULL, 0, 1); /* the client reads nothing */
    }
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    AWAIT(node_has(2, KEY, OWNER ":8"));
}

/* ---- other holders -------------------------------------------------------------------------------- */

Test(redlock, a_lock_of_another_is_busy_and_what_was_got_is_given_back) {
    connect_all();
    for (size_t i = 0; i < 3; i++) {
        occupy(i, OTHER ":1", 20000 + 1000 * (long long)i);
    }
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    cr_assert_gt(grant.busy_ms, 18000, "%lld", (long long)grant.busy_ms);
    cr_assert_leq(grant.busy_ms, 22000, "%lld", (long long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, 1);
    AWAIT_THAT(have(OWNER ":7"), ==, 0);
    cr_assert_eq(have(OTHER ":1"), 3);
}

/* The yes of the third is heard first: it is no lock. */
Test(redlock_three, claims_that_split_the_nodes_leave_nothing) {
    asked_t asked;
    connect_all();
    occupy(0, OTHER ":1", 20000);
    occupy(1, "somebody", 20000);
    set_trap(0, claim_script, REPLIES);
    set_trap(1, claim_script, REPLIES);
    begin_trying(&asked);
    AWAIT_THAT(pending(), ==, 2);
    cr_assert(!asked.is_over, "%s", err.message);
    AWAIT(atomic_load(&relays[0].sprung) != 0 && atomic_load(&relays[1].sprung) != 0);
    hold(&relays[0], REPLIES, 0);
    hold(&relays[1], REPLIES, 0);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_EBUSY, "%s", err.message);
    cr_assert_geq(grant.busy_ms, 1, "%lld", (long long)grant.busy_ms);
    cr_assert_lt(grant.busy_ms, 5000, "%lld", (long long)grant.busy_ms);
    AWAIT_THAT(node_has(2, KEY, OWNER ":7"), ==, false);
}

/* A lock was freed on two nodes, and the third will hear of it soon. One of the two was slow last time. */
Test(redlock_three, a_late_node_that_decides_gets_a_little_time) {
    connect_all();
    occupy(0, OTHER ":1", 20000);
    client.node_timeout_ms = 10000;
    freeze(2);
    client.nodes[2].lags = true;
    const dl_request_t with = request_of(7);
    const dli_request_t request = try_of(&with);
    asked_t claim;
    begin_asking(&claim, &request);
    while (!claim.is_over && !LIST_FIRST(&client.rounds)->lingers) {
        take_turn();
    }
    thaw(2);
    cr_assert_eq(end_asking(&claim), DL_OK, "%s", err.message);
    cr_assert_eq(client.nodes[2].waited_ns, 0, "not in vain");
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
}

Test(redlock_three, a_late_node_is_not_waited_for_again_soon_after_it_was_in_vain) {
    connect_all();
    occupy(0, OTHER ":1", 20000);
    freeze(2);
    client.nodes[2].lags = true;
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    uint64_t waited_ns = client.nodes[2].waited_ns;
    cr_assert_neq(waited_ns, 0);
    cr_assert_eq(try_it(8), DL_EBUSY, "%s", err.message);
    cr_assert(client.nodes[2].waited_ns == waited_ns || show_ns() - waited_ns >= 1000 * MS);
    thaw(2);
    AWAIT_THAT(have(OWNER ":7") + have(OWNER ":8"), ==, 0);
}

Test(redlock_three, a_value_of_another_kind_on_a_majority_is_foreign) {
    tell(&servers[0], "RPUSH " KEY " x");
    cr_assert_eq(try_it(7), DL_OK, "one is no hindrance: %s", err.message);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    tell(&servers[1], "DEL " KEY);
    tell(&servers[1], "RPUSH " KEY " x");
    cr_assert_eq(try_it(8), DL_EFOREIGN, "%s", err.message);
    AWAIT_THAT(tell(&servers[2], "EXISTS " KEY), ==, 0);
    cr_assert_eq(tell(&servers[0], "LLEN " KEY), 1);
}

/* What has left comes before the free, and the answer to the free says so. */
Test(redlock_three, the_free_of_a_late_claim_goes_behind_it) {
    connect_all();
    occupy(0, OTHER ":1", 20000);
    occupy(1, OTHER ":1", 20000);
    set_trap(2, claim_script, REQUESTS);
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
    cr_assert(owes(7));
    hold(&relays[2], REQUESTS, 0);
    AWAIT_THAT(owes(7), ==, false);
    cr_assert_eq(have(OWNER ":7"), 0);
}

/* The kill was said, and not answered: the free that was is behind no claim for sure. */
Test(redlock_three, a_claim_whose_connection_is_yet_to_be_killed_is_owed) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
    dli_mux_t *mux = &client.nodes[2].redis.mux;
    dli_redlock_hold_t *hold_ = hold_of(7);
    hold_->round->parts[2].claimed_on = mux->kills[0].id = 1234567;
    mux->kills[0].said = UINT32_MAX;
    mux->kill_count = 1;
    tell(&servers[2], "DEL " KEY);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert(owes(7));
    mux->kill_count = 0;
    AWAIT((free_again(7), !owes(7)));
}

Test(redlock_three, a_claim_whose_connection_is_lost_is_killed_before_it_is_freed) {
    connect_all();
    occupy(0, OTHER ":1", 20000);
    occupy(1, OTHER ":1", 20000);
    set_trap(2, claim_script, REQUESTS);
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    AWAIT_THAT((free_again(7), info(&servers[2], "commandstats", "cmdstat_client|kill:calls=")), >, 0);
    hold(&relays[2], REQUESTS, 0);
    await_relays();
    cr_assert_eq(have(OWNER ":7"), 0, "the claim came behind its free");
}

Test(redlock_three, a_claim_whose_connection_cannot_be_killed_is_owed_unless_its_free_came_behind_it) {
    dli_mux_t *mux = &client.nodes[2].redis.mux;
    connect_all();
    occupy(0, OTHER ":1", 20000);
    occupy(1, OTHER ":1", 20000);
    mux->may_not_kill = true;
    set_trap(2, claim_script, REQUESTS);
    stop_clock();
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
    hold(&relays[2], REQUESTS, 0);
    AWAIT_THAT(owes(7), ==, false);
    atomic_store(&stopped_ns, 0);
    set_trap(2, claim_script, REQUESTS);
    cr_assert_eq(try_it(8), DL_EBUSY, "%s", err.message);
    int64_t connection = mux->pipes[0].facts.client_id;
    AWAIT_THAT((free_again(8), mux->pipes[0].facts.client_id), !=, connection);
    cr_assert_eq(free_again(8), DL_EIO);
    cr_assert_eq(pending(), 0);
    cr_assert(owes(8), "it is not there yet");
    hold(&relays[2], REQUESTS, 0);
    mux->may_not_kill = false;
    cr_assert_eq(free_again(8), DL_OK);
    cr_assert(!owes(8));
}

Test(redlock_three, a_claim_whose_answer_is_late_is_freed) {
    connect_all();
    occupy(0, OTHER ":1", 20000);
    occupy(1, OTHER ":1", 20000);
    long long before = runs(2);
    set_trap(2, claim_script, REPLIES);
    cr_assert_eq(try_it(7), DL_EBUSY, "%s", err.message);
    AWAIT_THAT(runs(2), >, before);
    AWAIT_THAT(have(OWNER ":7"), ==, 0);
}

/* ---- validity and tokens -------------------------------------------------------------------------- */

static dl_request_t long_request(uint64_t hold_id) {
    dl_request_t request = request_of(hold_id);
    request.lease_ms = 1000;
    request.deadline_ns = in_ms(100000);
    client.node_timeout_ms = 60000;
    return request;
}

/* Whatever comes after it, the write-back of the token too. The core looks whether any of it is left. */
Test(redlock, validity_counts_from_before_the_claim) {
    connect_all();
    dl_request_t request = long_request(7);
    stop_clock();
    uint64_t before_ns = show_ns();
    set_jumps(claim_script, 30); /* all five together are no silence yet */
    cr_assert_eq(try_with(request), DL_OK, "%s", err.message);
    cr_assert_geq(show_ns(), before_ns + 30 * MS);
    cr_assert_lt(grant.sent_ns, before_ns + 30 * MS);
}

Test(redlock, a_lock_whose_token_is_not_on_a_majority_is_not_held) {
    connect_all();
    for (size_t i = 0; i < 4; i++) {
        set_trap(i, raise_script, REQUESTS);
    }
    cr_assert_eq(try_it(7), DL_EIO, "%s", err.message);
    cr_assert_has(err.message, "the token is not on a majority of the nodes: ");
    AWAIT(is_free());
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    cr_assert_eq(free_it(8), DL_OK);
}

/* Of two that have it, one draws the token, and the other's connection ends instead of having it raised. */
Test(redlock_three, a_node_that_is_late_with_its_yes_may_be_the_one_that_has_the_token) {
    asked_t asked;
    connect_all();
    set_trap(0, claim_script, REPLIES);
    set_trap(1, raise_script, REPLIES);
    begin_trying(&asked);
    AWAIT_THAT(atomic_load(&relays[1].sprung), !=, 0);
    cut(&relays[1], atomic_load(&relays[1].sprung) - 1);
    AWAIT(asked.is_over || !client.nodes[1].redis.mux.pipes[0].ready);
    cr_assert(!asked.is_over, "%s", err.message);
    hold(&relays[0], REPLIES, 0);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_OK, "%s", err.message);
}

Test(redlock, a_token_counts_as_written_only_where_the_holder_has_a_vote) {
    asked_t asked;
    connect_all();
    for (size_t i = 0; i < 2; i++) {
        set_trap(i, raise_script, REQUESTS);
        occupy(3 + i, OTHER ":1", 20000);
    }
    begin_trying(&asked);
    AWAIT(atomic_load(&relays[0].sprung) != 0 && atomic_load(&relays[1].sprung) != 0);
    AWAIT_THAT(pending(), ==, 2); /* the third drew it, and the others say that theirs is higher */
    cr_assert(!asked.is_over);
    hold(&relays[0], REQUESTS, 0);
    hold(&relays[1], REQUESTS, 0);
    AWAIT(asked.is_over);
    cr_assert_eq(asked.status, DL_OK, "%s", err.message);
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
    connect_all();
    client.voting.quarantines = true;
    cr_assert_eq(try_it(7), DL_EBUSY, "nobody knows these nodes: %s", err.message);
    cr_assert_gt(grant.busy_ms, 59000, "%lld", (long long)grant.busy_ms);
    cr_assert_leq(grant.busy_ms, 60603, "%lld", (long long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, 0);
    cr_assert(is_free());
    cr_assert_geq(atomic_load(&warnings), 2);
    for (size_t i = 0; i < 3; i++) {
        AWAIT_THAT(tell(&servers[i], "EXISTS " QUARANTINE), ==, 1); /* one may hear of the claim late */
    }
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
    AWAIT_THAT(have(OTHER ":1"), ==, 0);
}
