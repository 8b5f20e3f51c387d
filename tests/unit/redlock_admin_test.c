/* redlock_admin_test.c - who holds a lock, by what several servers say of it, left-overs included. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/redis/redlock/tally.h"
#include "redlock_nodes_fixture.h"

static void set_up_five(void) {
    start_servers(5);
}

TestSuite(redlock_admin, .init = set_up_five, .fini = end_servers, .timeout = 60);

/* ---- the rule ----------------------------------------------------------------------------------------- */

static dl_lock_info_t seen[5], told;
static size_t seen_count;

static void add(const char *owner, uint64_t hold_id, int64_t remaining_ms) {
    dl_lock_info_t *info = &seen[seen_count++];
    *info = (dl_lock_info_t){.held = 1, .hold_id = hold_id, .remaining_ms = remaining_ms};
    snprintf(info->owner, sizeof info->owner, "%s", owner);
}

static void sum_up(size_t unanswered, size_t quorum) {
    told = (dl_lock_info_t)DL_LOCK_INFO_INIT;
    dli_tally_holder(seen, seen_count, unanswered, quorum, &told);
    cr_expect_eq(told.size, sizeof told);
}

Test(redlock_admin, a_hold_lasts_until_fewer_than_a_quorum_have_it, .init = NULL, .fini = NULL) {
    sum_up(5, 3);
    cr_expect(!told.held);
    add(A, 1, 9000);
    add(A, 1, 100);
    sum_up(0, 3);
    cr_expect(!told.held, "two of five are no quorum");
    sum_up(1, 3);
    cr_expect(told.held, "the one that is silent may have it: %ld", told.remaining_ms);
    cr_expect_eq(told.remaining_ms, 100, "the one that is silent may have it: %ld", told.remaining_ms);
    add(A, 1, 5000);
    sum_up(0, 3);
    cr_expect_eq(told.remaining_ms, 100);
    add(A, 1, 7000);
    sum_up(0, 3);
    cr_expect_eq(told.remaining_ms, 5000, "%ld", told.remaining_ms);
    add(A, 1, -1);
    sum_up(0, 3);
    cr_expect_eq(told.remaining_ms, 7000, "%ld", told.remaining_ms);
    sum_up(0, 1);
    cr_expect_eq(told.remaining_ms, -1);
}

Test(redlock_admin, the_hold_on_most_nodes_counts, .init = NULL, .fini = NULL) {
    add(B, 7, 9000);
    add(A, 1, 1000);
    add(A, 2, 2000);
    add(A, 2, 2000);
    add(A, 2, 2000);
    sum_up(0, 3);
    cr_expect_eq(told.hold_id, 2, "holds of one owner are told apart");
    sum_up(0, 4);
    cr_expect(!told.held);
}

/* ---- inspect ------------------------------------------------------------------------------------------ */

Test(redlock_admin, a_left_over_on_a_minority_is_no_holder) {
    client_t c;
    prepare(&c, UUID_A);
    must_open(&c);
    plant(0, "orders", B ":7", 60000);
    plant(1, "orders", B ":7", 60000);
    cr_expect(!look(&c, "orders").held);
    plant(2, "orders", B ":7", 20000);
    dl_lock_info_t info = look(&c, "orders");
    cr_expect(info.held);
    cr_expect_eq(info.hold_id, 7);
    cr_expect_eq(info.holds, 1);
    cr_expect_eq(info.token, 0);
    cr_expect_str_eq(info.owner, B);
    cr_expect_gt(info.remaining_ms, 15000, "%ld", info.remaining_ms);
    cr_expect_leq(info.remaining_ms, 20000, "%ld", info.remaining_ms);
    /* What is left over from another attempt does not hide it. */
    plant(3, "orders", A ":9", 60000);
    plant(4, "orders", A ":9", 60000);
    cr_expect_str_eq(look(&c, "orders").owner, B);
    shut(&c);
}

/* What came too late for one node of a quorum has come to another one, which answers a little later. */
Test(redlock_admin, all_say_for_how_long_it_is_held) {
    client_t c;
    prepare(&c, UUID_A);
    must_open(&c);
    for (size_t i = 0; i < 5; i++) {
        plant(i, "orders", B ":7", i < 1 ? 20000 : 60000);
    }
    tell(&servers[4], "CLIENT PAUSE 100");
    tell(&servers[3], "CLIENT PAUSE 100");
    cr_expect_gt(look(&c, "orders").remaining_ms, 50000);
    shut(&c);
}

Test(redlock_admin, a_silent_node_may_have_what_is_missing_to_a_quorum) {
    client_t c;
    prepare(&c, UUID_A);
    must_open(&c);
    plant(0, "orders", A ":7", 60000);
    plant(1, "orders", A ":7", 60000);
    kill_server(&servers[4]);
    dl_lock_info_t info = look(&c, "orders");
    cr_expect(info.held);
    kill_server(&servers[3]);
    cr_expect(look(&c, "orders").held);
    kill_server(&servers[2]);
    cr_expect_eq(inspect_name(&c, "orders", &info), DL_EIO, "%s", c.err.message);
    cr_expect_has(c.err.message, "2 of 5 nodes answered; unix://");
    cr_expect(!info.held);
    shut(&c);
}

Test(redlock_admin, what_is_no_lock_on_a_majority_is_foreign) {
    client_t c;
    dl_lock_info_t info;
    prepare(&c, UUID_A);
    must_open(&c);
    for (size_t i = 0; i < 3; i++) {
        cr_expect_eq(inspect_name(&c, "orders", &info), DL_OK, "%s", c.err.message);
        tell(&servers[i], "RPUSH dlock:orders x");
    }
    cr_expect_eq(inspect_name(&c, "orders", &info), DL_EFOREIGN, "%s", c.err.message);
    cr_expect_has(c.err.message, "not a lock of redlock");
    cr_expect_eq(force_name(&c, "orders"), DL_EFOREIGN, "%s", c.err.message);
    cr_expect_eq(tell(&servers[0], "LLEN dlock:orders"), 1);
    shut(&c);
}

/* ---- force -------------------------------------------------------------------------------------------- */

Test(redlock_admin, force_frees_on_every_node_left_overs_too) {
    client_t c;
    prepare(&c, UUID_A);
    must_open(&c);
    cr_expect_eq(force_name(&c, "orders"), DL_ENOTOWNER, "%s", c.err.message);
    for (size_t i = 0; i < 5; i++) {
        plant(i, "orders", i < 3 ? B ":7" : A ":9", 60000);
    }
    cr_expect_eq(force_name(&c, "orders"), DL_OK, "%s", c.err.message);
    for (size_t i = 0; i < 5; i++) {
        cr_expect_eq(tell(&servers[i], "EXISTS dlock:orders"), 0, "server %zu", i);
    }
    plant(4, "orders", A ":9", 60000); /* nobody holds it by that */
    cr_expect_eq(force_name(&c, "orders"), DL_ENOTOWNER, "%s", c.err.message);
    cr_expect_eq(tell(&servers[4], "EXISTS dlock:orders"), 0);
    shut(&c);
}

Test(redlock_admin, force_needs_a_majority) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_REDLOCK_OPT_NODE_TIMEOUT, 200);
    must_open(&c);
    plant(0, "orders", A ":7", 60000);
    for (size_t i = 2; i < 5; i++) {
        kill_server(&servers[i]);
    }
    cr_expect_eq(force_name(&c, "orders"), DL_EIO, "%s", c.err.message);
    for (size_t i = 2; i < 5; i++) {
        boot_server(&servers[i]);
    }
    AWAIT_THAT(force_name(&c, "orders"), ==, DL_ENOTOWNER);
    for (size_t i = 2; i < 5; i++) {
        cr_assert_eq(kill(servers[i].pid, SIGSTOP), 0);
    }
    cr_expect_eq(force_name(&c, "orders"), DL_EIO, "%s", c.err.message);
    cr_expect_eq(tell(&servers[0], "EXISTS dlock:orders"), 0);
    for (size_t i = 2; i < 5; i++) {
        cr_assert_eq(kill(servers[i].pid, SIGCONT), 0);
    }
    shut(&c);
}

/* ---- list --------------------------------------------------------------------------------------------- */

typedef struct listed {
    size_t n, stop_after;
    char names[8][16], owners[8][DL_OWNER_MAX + 1];
} listed_t;

static int note_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    listed_t *listed = arg;
    cr_assert_lt(listed->n, 8);
    cr_expect(info->held);
    snprintf(listed->names[listed->n], sizeof listed->names[0], "%s", name);
    snprintf(listed->owners[listed->n++], sizeof listed->owners[0], "%s", info->owner);
    return listed->n == listed->stop_after;
}

static dl_status_t list_all(client_t *c, const char *prefix, listed_t *listed) {
    listed->n = 0;
    return table()->list(c->state, prefix, strlen(prefix), note_lock, listed, in_ms(2000), &c->err);
}

static void plant_locks(void) {
    for (size_t i = 0; i < 5; i++) {
        plant(i, "all", A ":1", 60000);
        if (i < 3) {
            plant(i, "majority", B ":2", 60000);
        }
        if (i >= 3) {
            plant(i, "left-over", B ":3", 60000);
        }
    }
    plant(4, "majority", A ":9", 60000);
}

Test(redlock_admin, list_shows_what_a_quorum_has_each_once) {
    client_t c;
    listed_t listed = {0};
    prepare(&c, UUID_A);
    must_open(&c);
    plant_locks();
    cr_assert_eq(list_all(&c, "", &listed), DL_OK, "%s", c.err.message);
    cr_assert_eq(listed.n, 2, "%zu", listed.n);
    cr_expect_str_eq(listed.names[0], "all");
    cr_expect_str_eq(listed.names[1], "majority");
    cr_expect_str_eq(listed.owners[1], B);
    cr_assert_eq(list_all(&c, "maj", &listed), DL_OK, "%s", c.err.message);
    cr_expect_eq(listed.n, 1);
    listed.stop_after = 1;
    cr_assert_eq(list_all(&c, "", &listed), DL_OK, "%s", c.err.message);
    cr_expect_eq(listed.n, 1, "it was to stop");
    shut(&c);
}

Test(redlock_admin, a_node_that_hangs_keeps_no_list_from_ending) {
    client_t c;
    listed_t listed = {0};
    prepare(&c, UUID_A);
    set_number(&c, DLI_REDLOCK_OPT_NODE_TIMEOUT, 200);
    must_open(&c);
    plant_locks();
    cr_assert_eq(kill(servers[0].pid, SIGSTOP), 0);
    uint64_t began_ns = ran_ns();
    cr_assert_eq(list_all(&c, "", &listed), DL_OK, "%s", c.err.message);
    cr_expect_lt(ran_ns() - began_ns, 1500 * MS);
    cr_expect_eq(listed.n, 3, "what two of five have may be held by the silent one too: %zu", listed.n);
    cr_assert_eq(kill(servers[0].pid, SIGCONT), 0);
    for (size_t i = 1; i < 4; i++) {
        kill_server(&servers[i]);
    }
    cr_expect_eq(list_all(&c, "", &listed), DL_EIO, "%s", c.err.message);
    cr_expect_eq(listed.n, 0);
    shut(&c);
}

Test(redlock_admin, who_may_not_list_is_told_so_and_no_node_is_down_for_it) {
    client_t c;
    listed_t listed = {0};
    prepare(&c, UUID_A);
    must_open(&c);
    for (size_t i = 0; i < 5; i++) {
        tell(&servers[i], "ACL SETUSER default -scan");
    }
    cr_expect_eq(list_all(&c, "", &listed), DL_EAUTH, "%s", c.err.message);
    cr_expect_eq(warnings(), 0, "%s", reports.text);
    shut(&c);
}

Test(redlock_admin, its_own_keys_are_no_locks) {
    client_t c;
    listed_t listed = {0};
    prepare(&c, UUID_A);
    set_text(&c, DLI_REDIS_OPT_PREFIX, "dlock_");
    must_open(&c);
    for (size_t i = 0; i < 5; i++) {
        tell(&servers[i], "SET dlock_tokens:quarantine 1 PX 60000");
        tell(&servers[i], "SET dlock_orders %s PX 60000", A ":1");
    }
    cr_assert_eq(list_all(&c, "", &listed), DL_OK, "%s", c.err.message);
    cr_expect_eq(listed.n, 1, "%zu", listed.n);
    cr_expect_str_eq(listed.names[0], "orders", "%zu", listed.n);
    shut(&c);
}
