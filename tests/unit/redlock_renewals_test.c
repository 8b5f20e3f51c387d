/* redlock_renewals_test.c - renewals by a majority, and that nodes which lost a hold get it again. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

#define NODES 3
#define LEASE_MS 30000

static const plan_t plan = {.n = NODES, .scripts = {&dli_script_string_acquire, &dli_script_redlock_acquire}};

static void set_up(void) {
    start_nodes(&plan);
}

TestSuite(redlock_renewals, .init = set_up, .fini = end_nodes, .timeout = 60);

/* ---- holds ------------------------------------------------------------------------------------------ */

/* As it is there after an acquisition: on these nodes. */
static void put(const char *name, uint64_t hold_id, uint32_t nodes, int px) {
    for (size_t i = 0; i < NODES; i++) {
        if ((nodes >> i & 1) != 0) {
            tell(&servers[i], "SET dlock:%s %s:%llu PX %d", name, OWNER, (unsigned long long)hold_id, px);
        }
    }
}

static long long left_ms(size_t node, const char *name) {
    return tell(&servers[node], "PTTL dlock:%s", name);
}

/* What a client has of a hold that it has acquired. */
static dli_redlock_hold_t *adopt(const char *name, uint64_t hold_id) {
    dli_redlock_hold_t *hold = hold_of(hold_id);
    const dli_request_t request = {.with = make_request(name, OWNER, hold_id, in_ms(2000)), .hold = hold};
    if (hold->round == NULL) {
        dli_round_t *round = dli_round_of(&client, &request, hold, &err);
        cr_assert_not_null(round, "%s", err.message);
        round->maybe = (1u << NODES) - 1;
    }
    return hold;
}

static dl_renewal_t renewal(const char *name, uint64_t hold_id, int64_t lease_ms) {
    return (dl_renewal_t){.name = name,
                          .name_len = strlen(name),
                          .owner = OWNER,
                          .hold_id = hold_id,
                          .lease_ms = lease_ms,
                          .hold = adopt(name, hold_id),
                          .status = DL_EPROTO};
}

static void renew_all(dl_renewal_t *r, size_t n, uint64_t deadline_ns) {
    const dli_request_t request = {
        .kind = DLI_ASK_RENEW, .with.deadline_ns = deadline_ns, .renewals = r, .n = n};
    (void)ask(&request);
}

static dl_status_t renew(const char *name, uint64_t hold_id, int64_t lease_ms) {
    dl_renewal_t r = renewal(name, hold_id, lease_ms);
    uint64_t before_ns = show_ns();
    renew_all(&r, 1, in_ms(2000));
    cr_assert_geq(r.sent_ns, before_ns);
    cr_assert_leq(r.sent_ns, show_ns());
    return r.status;
}

static bool is_late(size_t node) {
    return client.nodes[node].waited_ns != 0;
}

/* A connection to each node is there and lies idle: all have answered. */
static void warm_up(void) {
    put("warm", 1, 7, LEASE_MS);
    AWAIT(renew("warm", 1, LEASE_MS) == DL_OK && !is_late(0) && !is_late(1) && !is_late(2));
}

/* A renewal under way. */
typedef struct errand {
    dl_renewal_t r[2];
    size_t n;
    asked_t asked;
} errand_t;

/* Returns when every node has answered; those whose replies are held have not been heard yet. */
static void begin_errand(errand_t *errand) {
    clear_counts();
    const dli_request_t request = {
        .kind = DLI_ASK_RENEW, .with.deadline_ns = in_ms(2000), .renewals = errand->r, .n = errand->n};
    begin_asking(&errand->asked, &request);
    for (size_t i = 0; i < NODES; i++) {
        AWAIT_THAT(info(&servers[i], "commandstats", "cmdstat_evalsha:calls="), >=, (long long)errand->n);
    }
}

static void begin_renewal(errand_t *errand, const char *name, uint64_t hold_id, int64_t lease_ms) {
    *errand = (errand_t){.r = {renewal(name, hold_id, lease_ms)}, .n = 1};
    begin_errand(errand);
}

static dl_status_t end_renewal(errand_t *errand) {
    AWAIT(errand->asked.is_over);
    return errand->r[0].status;
}

/* ---- by a majority ---------------------------------------------------------------------------------- */

Test(redlock_renewals, a_hold_is_extended_on_every_node) {
    put("orders", 7, 7, 5000);
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_OK);
    for (size_t i = 0; i < NODES; i++) {
        AWAIT_THAT(left_ms(i, "orders"), >, 20000);
    }
    cr_assert_eq(renew("orders", 7, 1000), DL_OK);
    cr_assert_gt(left_ms(0, "orders"), 20000, "shortened");
}

/* By this renewal, or by a next one where the node's answer came late. */
static bool is_filled_in(const char *name, uint64_t hold_id) {
    cr_assert_eq(renew(name, hold_id, LEASE_MS), DL_OK);
    return where(name, hold_id) == 7;
}

Test(redlock_renewals, a_minority_that_lost_it_is_filled_in) {
    put("orders", 7, 6, 5000);
    AWAIT(is_filled_in("orders", 7));
    cr_assert_gt(left_ms(0, "orders"), 20000);
}

Test(redlock_renewals, a_forgotten_script_is_sent_with_its_text) {
    put("orders", 7, 6, 5000);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < NODES; i++) {
            tell(&servers[i], "SCRIPT FLUSH");
        }
        tell(&servers[0], "DEL dlock:orders");
        AWAIT(is_filled_in("orders", 7));
    }
}

/* The core may have picked the hold for a renewal before its release began. */
Test(redlock_renewals, what_is_being_freed_is_not_filled_in) {
    put("orders", 7, 6, 5000);
    put("beacon", 8, 6, 5000);
    adopt("orders", 7)->round->is_freed = true;
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_OK);
    AWAIT(is_filled_in("beacon", 8));
    cr_assert_eq(where("orders", 7), 6, "filled in behind its release");
}

/* Two have lost it: what could be filled in there is no vote, and the one that is left is no majority. It is
 * freed there, too: others shall not wait for the end of a lease that was made longer just now. */
Test(redlock_renewals, what_could_be_filled_in_is_no_vote) {
    put("orders", 7, 1, 60000);
    clear_counts();
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_ELOST);
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_ELOST);
    AWAIT_THAT(where("orders", 7), ==, 0);
    await_relays();
    cr_assert(!was_written(1) && !was_written(2));
}

Test(redlock_renewals, what_nobody_has_is_not_created) {
    clear_counts();
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_ELOST);
    await_relays();
    cr_assert_eq(where("orders", 7), 0);
    cr_assert(!was_written(0) && !was_written(1) && !was_written(2));
}

Test(redlock_renewals, another_owners_hold_is_not_filled_over) {
    put("orders", 7, 3, 5000);
    tell(&servers[2], "SET dlock:orders %s PX 20000", "bbbbbbbb-0000-0000-0000-000000000002:1:3");
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_OK);
    await_relays();
    cr_assert_eq(where("orders", 7), 3);
    put("orders", 9, 4, 20000); /* a later hold of the same owner */
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_OK);
    await_relays();
    cr_assert_eq(where("orders", 9), 4);
}

Test(redlock_renewals, a_foreign_value_is_a_loss_and_stays) {
    put("orders", 7, 6, 5000);
    tell(&servers[0], "RPUSH dlock:orders x");
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_OK);
    await_relays();
    cr_assert_eq(where("orders", 7), 6);
    tell(&servers[1], "DEL dlock:orders");
    tell(&servers[1], "RPUSH dlock:orders x");
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_ELOST);
    cr_assert_eq(tell(&servers[0], "LLEN dlock:orders"), 1);
}

/* The clock jumps while answers are on their way. */
Test(redlock_renewals, nothing_is_filled_in_once_validity_is_over) {
    errand_t errand;
    for (int late = 0; late < 2; late++) {
        put("orders", 7, 3, 20000);
        tell(&servers[2], "DEL dlock:orders");
        warm_up();
        hold(&relays[0], REPLIES, 1);
        stop_clock();
        begin_renewal(&errand, "orders", 7, 200);
        atomic_fetch_add(&stopped_ns, (late ? 197 : 190) * MS);
        hold(&relays[0], REPLIES, 0);
        cr_assert_eq(end_renewal(&errand), DL_OK);
        await_relays();
        cr_assert_eq(where("orders", 7), late ? 3 : 7, "%d", late);
        atomic_store(&stopped_ns, 0);
    }
}

/* ---- a release at the same time --------------------------------------------------------------------- */

typedef struct release {
    asked_t asked;
    dl_error_t why;
} release_t;

static void begin_release(release_t *release, const char *name, uint64_t hold_id) {
    const dli_request_t request = {.kind = DLI_ASK_RELEASE,
                                   .with = make_request(name, OWNER, hold_id, in_ms(2000)),
                                   .hold = hold_of(hold_id),
                                   .err = &release->why};
    begin_asking(&release->asked, &request);
}

static dl_status_t end_release(release_t *release) {
    AWAIT(release->asked.is_over);
    return release->asked.status;
}

/* The nodes answered before the hold was freed, and that is heard of after it. */
Test(redlock_renewals, a_release_during_the_round_leaves_no_hold_behind) {
    errand_t errand;
    release_t release;
    put("orders", 7, 3, 20000);
    warm_up();
    stop_clock();
    hold(&relays[0], REPLIES, 1);
    begin_renewal(&errand, "orders", 7, LEASE_MS);
    begin_release(&release, "orders", 7);
    hold(&relays[0], REPLIES, 0);
    cr_assert_eq(end_renewal(&errand), DL_OK);
    cr_assert_eq(end_release(&release), DL_OK);
    await_relays();
    cr_assert_eq(where("orders", 7), 0);
    cr_assert(!was_written(2));
}

/* The same beside another: only what was freed is left out. */
Test(redlock_renewals, a_release_during_the_round_leaves_the_others_to_be_filled_in) {
    errand_t errand = {.r = {renewal("orders", 7, LEASE_MS), renewal("others", 8, LEASE_MS)}, .n = 2};
    release_t release;
    put("orders", 7, 3, 20000);
    put("others", 8, 3, 20000);
    warm_up();
    stop_clock();
    hold(&relays[0], REPLIES, 1);
    begin_errand(&errand);
    begin_release(&release, "orders", 7);
    hold(&relays[0], REPLIES, 0);
    cr_assert_eq(end_renewal(&errand), DL_OK);
    cr_assert_eq(errand.r[1].status, DL_OK);
    cr_assert_eq(end_release(&release), DL_OK);
    AWAIT_THAT(where("others", 8), ==, 7);
    AWAIT_THAT(where("orders", 7), ==, 0);
}

/* A renewal finds what the release has freed so far. To clear away the rest would make that a loss. */
Test(redlock_renewals, a_renewal_takes_nothing_from_a_release) {
    release_t release;
    put("orders", 7, 5, 20000);
    warm_up();
    adopt("orders", 7);
    stop_clock();
    set_trap(2, &dli_script_redlock_release, REQUESTS);
    begin_release(&release, "orders", 7);
    AWAIT(atomic_load(&relays[2].sprung) != 0 && where("orders", 7) == 4);
    cr_assert(!release.asked.is_over, "one had it, one had not");
    cr_assert_eq(renew("orders", 7, LEASE_MS), DL_ELOST);
    cr_assert(!release.asked.is_over);
    hold(&relays[2], REQUESTS, 0);
    cr_assert_eq(end_release(&release), DL_OK, "it was on a majority until then: %s", release.why.message);
    cr_assert_eq(where("orders", 7), 0);
}

/* What fills the hold in is on its way when it is freed: it must not arrive behind the release. */
Test(redlock_renewals, a_release_overtakes_no_fill) {
    errand_t errand;
    release_t release;
    put("orders", 7, 3, 20000);
    warm_up();
    stop_clock();
    hold(&relays[0], REPLIES, 1);
    begin_renewal(&errand, "orders", 7, LEASE_MS);
    hold(&relays[2], REQUESTS, 1);
    hold(&relays[0], REPLIES, 0);
    cr_assert_eq(end_renewal(&errand), DL_OK);
    cr_assert_eq(where("orders", 7), 3);
    begin_release(&release, "orders", 7);
    cr_assert_eq(end_release(&release), DL_OK);
    hold(&relays[2], REQUESTS, 0);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert_eq(where("orders", 7), 0);
}

/* One that has not left does not, and what has left is killed with its connection. */
Test(redlock_renewals, a_fill_whose_connection_is_lost_never_arrives) {
    errand_t errand;
    release_t release;
    put("orders", 7, 3, 20000);
    warm_up();
    hold(&relays[0], REPLIES, 1);
    begin_renewal(&errand, "orders", 7, LEASE_MS);
    hold(&relays[2], REQUESTS, 1);
    hold(&relays[0], REPLIES, 0);
    cr_assert_eq(end_renewal(&errand), DL_OK);
    begin_release(&release, "orders", 7);
    cr_assert_eq(end_release(&release), DL_OK);
    AWAIT_THAT((free_again(7), info(&servers[2], "commandstats", "cmdstat_client|kill:calls=")), >, 0);
    hold(&relays[2], REQUESTS, 0);
    await_relays();
    cr_assert_eq(where("orders", 7), 0);
}

/* It may come when what was filled in has been freed, which says nothing about it. */
Test(redlock_renewals, a_claim_that_may_come_is_owed_although_it_was_filled_in) {
    dli_mux_t *mux = &client.nodes[2].redis.mux;
    warm_up();
    mux->may_not_kill = true;
    set_trap(2, &dli_script_redlock_acquire, REQUESTS);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
    AWAIT(is_filled_in("orders", 7));
    AWAIT_THAT(pending(), ==, 0);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert_eq(where("orders", 7), 0);
    cr_assert(owes(7), "it is not there yet");
    hold(&relays[2], REQUESTS, 0);
    AWAIT_THAT(where("orders", 7), ==, 4);
    mux->may_not_kill = false;
    cr_assert_eq(free_again(7), DL_OK);
    cr_assert(!owes(7));
    cr_assert_eq(where("orders", 7), 0);
}

/* Asked for once more where the node is gone meanwhile, the same hold is not known to be nowhere. */
Test(redlock_renewals, a_claim_that_may_come_is_owed_although_another_never_left) {
    warm_up();
    set_trap(2, &dli_script_redlock_acquire, REQUESTS);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
    kill_server(&servers[2]);
    AWAIT_THAT(pending(), ==, 0); /* its end was heard of: the next one does not leave */
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(pending(), ==, 0);
    cr_assert(owes(7), "it may have come before that");
}

/* ---- nodes that are slow or down -------------------------------------------------------------------- */

/* The time that one renewal takes, in ms. */
static uint64_t time_renewal(dl_status_t expected) {
    dl_renewal_t r = renewal("orders", 7, LEASE_MS);
    uint64_t began_ns = ran_ns();
    renew_all(&r, 1, began_ns + 2000 * MS);
    uint64_t took_ms = (ran_ns() - began_ns) / MS;
    cr_assert_eq(r.status, expected, "%s after %lu ms", dl_status_name(r.status), (unsigned long)took_ms);
    return took_ms;
}

Test(redlock_renewals, a_slow_minority_does_not_delay) {
    put("orders", 7, 7, 20000);
    (void)time_renewal(DL_OK);
    freeze(1);
    for (int i = 0; i < 10; i++) {
        uint64_t took_ms = time_renewal(DL_OK);
        cr_assert_lt(took_ms, 250, "%lu ms", (unsigned long)took_ms);
    }
    thaw(1);
}

Test(redlock_renewals, a_loss_is_told_without_waiting_for_the_slow) {
    put("orders", 7, 1, 20000);
    (void)time_renewal(DL_ELOST);
    freeze(0);
    cr_assert_lt(time_renewal(DL_ELOST), 250);
    thaw(0);
}

Test(redlock_renewals, a_majority_that_is_slow_is_unknown_in_time) {
    put("orders", 7, 7, 20000);
    (void)time_renewal(DL_OK);
    freeze(0);
    freeze(1);
    cr_assert_lt(time_renewal(DL_EUNKNOWN), 1000);
    thaw(0);
    thaw(1);
    AWAIT_THAT(renew("orders", 7, LEASE_MS), ==, DL_OK);
}

Test(redlock_renewals, the_deadline_of_the_caller_holds) {
    put("orders", 7, 7, 20000);
    (void)time_renewal(DL_OK);
    freeze(0);
    freeze(1);
    dl_renewal_t r = renewal("orders", 7, LEASE_MS);
    uint64_t began_ns = ran_ns();
    renew_all(&r, 1, began_ns + 50 * MS);
    cr_assert_lt(ran_ns() - began_ns, 300 * MS);
    cr_assert_eq(r.status, DL_EUNKNOWN);
    cr_assert_eq(atomic_load(&warnings), 0, "that a caller has no time says nothing about a node");
    thaw(0);
    thaw(1);
}

Test(redlock_renewals, a_majority_that_is_down_is_no_outcome_at_once) {
    put("orders", 7, 7, 20000);
    kill_server(&servers[0]);
    kill_server(&servers[1]);
    /* The third may have renewed it. */
    cr_assert_lt(time_renewal(DL_EUNKNOWN), 1000);
    kill_server(&servers[2]);
    AWAIT_THAT(renew("orders", 7, LEASE_MS), ==, DL_EIO); /* nothing has left */
    for (size_t i = 0; i < NODES; i++) {
        boot_server(&servers[i]);
    }
    put("orders", 7, 7, 5000);
    /* A majority is enough, and may be the other two. */
    AWAIT(renew("orders", 7, LEASE_MS) == DL_OK && left_ms(0, "orders") > 20000);
}

/* ---- batches ---------------------------------------------------------------------------------------- */

#define HOLDS 600

static char names[HOLDS][16];
static dl_renewal_t renewals[HOLDS];

static void make_batch(void) {
    for (int i = 0; i < HOLDS; i++) {
        snprintf(names[i], sizeof names[i], "lock%d", i);
        renewals[i] = renewal(names[i], (uint64_t)i + 1, LEASE_MS);
    }
}

Test(redlock_renewals, each_entry_of_a_batch_has_an_outcome_of_its_own) {
    make_batch();
    for (int i = 0; i < HOLDS; i++) {
        /* All have it; one has lost it; two have; nobody has it. */
        static const uint32_t spread[] = {7, 5, 2, 0};
        put(names[i], (uint64_t)i + 1, spread[i % 4], 20000);
    }
    renewals[4].hold_id++;
    renewals[20].lease_ms = client.voting.max_lease_ms;
    uint64_t before_ns = ran_ns();
    stop_clock(); /* so that every node is heard: what a slow one lacks is left to the next renewal */
    renew_all(renewals, HOLDS, in_ms(5000));
    atomic_store(&stopped_ns, 0);
    for (int i = 0; i < HOLDS; i++) {
        dl_status_t expected = i != 4 && i % 4 < 2 ? DL_OK : DL_ELOST;
        cr_assert_eq(renewals[i].status, expected, "%d: %s", i, dl_status_name(renewals[i].status));
        cr_assert_geq(renewals[i].sent_ns, before_ns);
        cr_assert_leq(renewals[i].sent_ns, ran_ns());
    }
    for (int i = 1; i < HOLDS; i += 4) {
        AWAIT_THAT(where(names[i], (uint64_t)i + 1), ==, 7);
        AWAIT_THAT(where(names[i + 1], (uint64_t)i + 2), ==, 0);
    }
    AWAIT(left_ms(0, "lock599") < 0 && left_ms(0, "lock20") > 40000);
}

Test(redlock_renewals, a_batch_to_a_slow_majority_ends_in_time) {
    make_batch();
    put(names[0], 1, 7, 20000);
    renew_all(renewals, HOLDS, in_ms(5000));
    cr_assert_eq(renewals[0].status, DL_OK);
    cr_assert_eq(renewals[HOLDS - 1].status, DL_ELOST);
    freeze(0);
    freeze(2);
    make_batch();
    uint64_t began_ns = ran_ns();
    renew_all(renewals, HOLDS, began_ns + 700 * MS);
    uint64_t took_ns = ran_ns() - began_ns;
    thaw(0);
    thaw(2);
    cr_assert_lt(took_ns, 1000 * MS, "%lu ms", (unsigned long)(took_ns / MS));
    for (int i = 0; i < HOLDS; i++) {
        cr_assert(renewals[i].status == DL_EUNKNOWN || renewals[i].status == DL_EIO, "%d: %s", i,
                  dl_status_name(renewals[i].status));
        cr_assert_geq(renewals[i].sent_ns, began_ns);
        cr_assert_leq(renewals[i].sent_ns, began_ns + took_ns);
    }
    cr_assert_eq(renewals[0].status, DL_EUNKNOWN);
}
