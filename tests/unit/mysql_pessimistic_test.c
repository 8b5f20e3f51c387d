/* mysql_pessimistic_test.c - mysql-pessimistic through its table: holds, tokens, rows, connections, lists. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_insert_id.h"
#include "mysql_pessimistic_fixture.h"

TestSuite(mysql_pessimistic, .init = set_up, .fini = tear_down, .timeout = 120);

Test(mysql_pessimistic, the_table_promises_what_it_should) {
    cr_assert_eq(driver->caps, DL_CAP_SESSION | DL_CAP_FENCE | DL_CAP_NATIVE_WAIT);
    cr_assert_null(driver->watch);
    cr_assert_null(driver->listen);
    cr_assert_null(driver->unwatch);
    cr_assert_null(driver->listen_fds);
    for (int i = 0; i < DLI_MYSQL_OPT_COUNT; i++) {
        cr_assert_not_null(driver->options[i].name, "option %d", i);
    }
    cr_assert_null(driver->options[DLI_MYSQL_OPT_COUNT].name);
    cr_assert_str_eq(driver->options[DLI_MYSQL_OPT_TABLE].default_text, "dlock_pessimistic");
}

/* ---- holds ------------------------------------------------------------------------------------------ */

Test(mysql_pessimistic, a_lock_is_taken_seen_and_freed) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    uint64_t before_ns = ran_ns();
    hold_t mine = must_lock(&a, "orders", A, 7, 30000), theirs = new_hold(&b, "orders", B, 1);
    cr_assert_gt(mine.grant.token, 0);
    cr_assert_geq(mine.grant.session_fd, 0);
    cr_assert_geq(mine.grant.sent_ns, before_ns);
    cr_assert_leq(mine.grant.sent_ns, ran_ns());
    dl_lock_info_t info = look(&b, "orders");
    cr_assert(info.held);
    cr_assert_eq(info.hold_id, 7);
    cr_assert_eq(info.holds, 1);
    cr_assert_eq(info.token, mine.grant.token);
    cr_assert_str_eq(info.owner, A);
    cr_assert_str_eq(info.client, "host:1");
    cr_assert_gt(info.remaining_ms, 25000, "%ld", (long)info.remaining_ms);
    cr_assert_leq(info.remaining_ms, 30000, "%ld", (long)info.remaining_ms);
    cr_assert_eq(try_hold(&theirs, 0), DL_EBUSY);
    cr_assert_gt(theirs.grant.busy_ms, 25000, "%ld", (long)theirs.grant.busy_ms);
    cr_assert_leq(theirs.grant.busy_ms, 30000, "%ld", (long)theirs.grant.busy_ms);
    cr_assert_eq(theirs.grant.busy_is_dlock, 1);
    cr_assert_eq(free_hold(&theirs), DL_ELOST);
    cr_assert_eq(free_hold(&mine), DL_OK);
    cr_assert_eq(free_hold(&mine), DL_ELOST);
    info = look(&a, "orders");
    cr_assert(!info.held);
    cr_assert_eq(info.remaining_ms, -1);
    cr_assert_eq(info.owner[0], '\0');
    cr_assert_eq(info.token, 0);
    /* Nothing of it was ever committed. */
    cr_assert_str_eq(mysql_ask(server, "SELECT * FROM %s." TABLE, database),
                     "orders,NULL,NULL,NULL,NULL,NULL,NULL");
    cr_assert_eq(try_hold(&theirs, 0), DL_OK, "%s", theirs.err.message);
    drop_hold(&mine);
    must_free(&theirs);
    shut(&a);
    shut(&b);
}

Test(mysql_pessimistic, taking_and_freeing_cost_as_few_round_trips_as_they_can) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t first = must_lock(&c, "orders", A, 1, 30000);
    must_free(&first);
    unsigned long before = atomic_load(&round_trips);
    hold_t h = must_lock(&c, "orders", A, 2, 30000);
    cr_assert_eq(atomic_load(&round_trips) - before, 3, "the row, the token, the marker");
    before = atomic_load(&round_trips);
    cr_assert_eq(renew_hold(&h, 30000), DL_OK);
    cr_assert_eq(renew_hold(&h, 0), DL_OK);
    cr_assert_eq(atomic_load(&round_trips) - before, 2);
    before = atomic_load(&round_trips);
    must_free(&h);
    cr_assert_eq(atomic_load(&round_trips) - before, 1);
    shut(&c);
}

Test(mysql_pessimistic, a_larger_hold_id_of_the_owner_takes_it_and_never_the_reverse) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t old = must_lock(&c, "orders", A, 7, 30000), new = new_hold(&c, "orders", A, 8);
    hold_t other = new_hold(&c, "orders", UUID_A ":2", 9);
    cr_assert_eq(try_hold(&other, 0), DL_EBUSY, "another thread of the same client");
    uint64_t before_ms = now_ms();
    cr_assert_eq(try_hold(&new, 0), DL_OK, "%s", new.err.message);
    cr_assert_lt(now_ms() - before_ms, SLACK_MS);
    cr_assert_gt(new.grant.token, old.grant.token);
    cr_assert_eq(try_hold(&old, 0), DL_EBUSY);
    cr_assert_eq(renew_hold(&old, 30000), DL_ELOST);
    cr_assert_eq(free_hold(&old), DL_ELOST);
    cr_assert_eq(renew_hold(&new, 30000), DL_OK);
    drop_hold(&old);
    drop_hold(&other);
    must_free(&new);
    shut(&c);
}

Test(mysql_pessimistic, an_own_hold_whose_connection_was_given_up_is_not_waited_for) {
    client_t c;
    must_open(&c, UUID_A);
    for (uint64_t i = 1; i <= 10; i++) {
        hold_t forgotten = must_lock(&c, "orders", A, 2 * i, 30000),
               new = new_hold(&c, "orders", A, 2 * i + 1);
        drop_hold(&forgotten); /* closed here; the server may not have noticed */
        cr_assert_eq(try_hold(&new, i % 2 ? 1000 : 0), DL_OK, "%s", new.err.message);
        must_free(&new);
    }
    shut(&c);
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

static uint64_t token_of(client_t *c, const char *name, uint64_t *hold_id) {
    hold_t h = must_lock(c, name, A, ++*hold_id, 30000);
    uint64_t token = h.grant.token;
    must_free(&h);
    return token;
}

Test(mysql_pessimistic, tokens_rise_whatever_ends_a_hold_and_whatever_is_deleted) {
    client_t c;
    must_open(&c, UUID_A);
    uint64_t id = 0, last = token_of(&c, "orders", &id), token;
    for (int round = 0; round < 5; round++) {
        hold_t h = must_lock(&c, "orders", A, ++id, 30000);
        cr_assert_gt(h.grant.token, last, "round %d: the token is not larger", round);
        last = h.grant.token;
        switch (round) {
        case 0: /* the marker, and with it all that the transaction wrote, is rolled back */
            cr_assert_eq(free_hold(&h), DL_OK);
            break;
        case 1:
            (void)mysql_ask(server, "KILL %lld", holder_of("orders"));
            break;
        case 2:
            cr_assert_eq(free_hold(&h), DL_OK);
            (void)mysql_ask(server, "DELETE FROM %s." TABLE, database);
            break;
        case 3:
            cr_assert_eq(free_hold(&h), DL_OK);
            (void)mysql_ask(server, "DELETE FROM %s." TABLE "_tokens", database);
            break;
        default: /* far ahead of every clock, and the client knows */
            cr_assert_eq(free_hold(&h), DL_OK);
            h.request.token_floor = last = UINT64_C(1) << 60;
            h.request.hold_id = ++id;
            cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
            cr_assert_eq(h.grant.token, last + 1);
            last++;
            cr_assert_eq(free_hold(&h), DL_OK);
        }
        drop_hold(&h);
        AWAIT(is_row_free("orders") || round == 2, 1000);
    }
    token = token_of(&c, "orders", &id);
    cr_assert_eq(token, last + 1, "the row's token, though it is ahead of the clock");
    shut(&c);
}

static dl_grant_t hold_block(client_t *c, uint64_t hold_id, uint64_t floor, uint64_t tokens) {
    hold_t h = new_hold(c, "orders", A, hold_id);
    h.request.token_floor = floor;
    h.request.tokens = tokens;
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
    must_free(&h);
    return h.grant;
}

Test(mysql_pessimistic, a_name_keeps_the_last_token_of_a_block) {
    const uint64_t high = UINT64_C(1) << 60;
    client_t c;
    must_open(&c, UUID_A);
    dl_grant_t many = hold_block(&c, 1, high, 33); /* its first row */
    cr_assert_eq(many.token, high + 1);
    cr_assert_eq(many.tokens, 33);
    dl_grant_t one = hold_block(&c, 2, 0, 1);
    cr_assert_eq(one.token, high + 34);
    cr_assert_eq(one.tokens, 1);
    cr_assert_eq(hold_block(&c, 3, 0, 1000).token, high + 35);
    cr_assert_eq(hold_block(&c, 4, 0, 1).token, high + 1035);
    /* To the end of the numbers, and no further. */
    many = hold_block(&c, 5, INT64_MAX - 3, 33);
    cr_assert_eq(many.token, INT64_MAX - 2);
    cr_assert_eq(many.tokens, 3);
    shut(&c);
}

Test(mysql_pessimistic, a_token_that_is_not_above_the_floor_is_not_believed) {
    const uint64_t floor = UINT64_C(1) << 60;
    client_t c;
    must_open(&c, UUID_A);
    for (uint64_t below = 0; below < 2; below++) {
        hold_t h = new_hold(&c, "orders", A, 1 + below);
        h.request.token_floor = floor;
        said_insert_id = floor - below;
        dl_status_t status = try_hold(&h, 0);
        said_insert_id = 0;
        cr_assert_eq(status, DL_EPROTO, "%llu below: %d", (unsigned long long)below, status);
        cr_assert(is_row_free("orders"), "what was locked is let go");
        drop_hold(&h);
    }
    hold_t h = new_hold(&c, "orders", A, 9);
    h.request.token_floor = floor;
    said_insert_id = floor + 1;
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
    said_insert_id = 0;
    cr_assert_eq(h.grant.token, floor + 1);
    must_free(&h);
    shut(&c);
}

/* The server gives the draw up after its own limit, long before the deadline. */
Test(mysql_pessimistic, a_token_that_cannot_be_drawn_leaves_nothing_locked) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t first = must_lock(&c, "orders", A, 1, 30000), h = new_hold(&c, "orders", A, 2);
    must_free(&first);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "LOCK TABLES " TABLE "_tokens WRITE");
    cr_assert_eq(try_hold(&h, 0), DL_EIO, "%d: %s", h.err.status, h.err.message);
    (void)mysql_hand_ask(hand, "UNLOCK TABLES");
    cr_assert(is_row_free("orders"), "the answer came when it had been let go");
    cr_assert_eq(free_hold(&h), DL_ELOST, "%s", h.err.message);
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
    must_free(&h);
    mysql_hand_close(hand);
    shut(&c);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

Test(mysql_pessimistic, a_row_that_is_deleted_while_it_is_waited_for_is_no_lock) {
    client_t c;
    waiter_t w;
    must_open(&c, UUID_A);
    hold_t first = must_lock(&c, "orders", A, 1, 30000);
    must_free(&first);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "DELETE FROM " TABLE);
    start_waiter(&w, &c, B, 1, -1);
    AWAIT(is_waited_for(), 2000);
    (void)mysql_hand_ask(hand, "COMMIT");
    cr_assert_eq(end_waiter(&w), DL_OK, "%s", w.hold.err.message);
    cr_assert(look(&c, "orders").held && !is_row_free("orders"), "there is a row again, and it is locked");
    must_free(&w.hold);
    mysql_hand_close(hand);
    shut(&c);
}

Test(mysql_pessimistic, a_committed_owner_is_foreign_and_stays) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    cr_assert_eq(free_hold(&h), DL_OK);
    (void)mysql_ask(server, "UPDATE %s." TABLE " SET owner='somebody'", database);
    cr_assert_eq(try_hold(&h, 0), DL_EFOREIGN);
    cr_assert_has(h.err.message, "set the owner to NULL");
    cr_assert_str_eq(mysql_ask(server, "SELECT owner FROM %s." TABLE, database), "somebody");
    cr_assert(is_row_free("orders"));
    (void)mysql_ask(server, "UPDATE %s." TABLE " SET owner=NULL", database);
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
    must_free(&h);
    shut(&c);
}

static long long count_old(const char *table) {
    return mysql_number(server, "SELECT COUNT(*) FROM %s.%s WHERE name LIKE 'old%%'", database, table);
}

Test(mysql_pessimistic, names_long_unused_are_forgotten_and_their_tokens_never_fall) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
    open_prepared(&c);
    uint64_t id = 0, high = UINT64_C(1) << 60;
    (void)token_of(&c, "fresh", &id);
    hold_t held = must_lock(&c, "held", A, ++id, 30000);
    /* Not from one table into the other: that may wait for the row that is held. */
    static const char old[] = "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i<300)"
                              " SELECT CONCAT('old',i)";
    (void)mysql_ask(server, "INSERT INTO %s." TABLE "(name) %s FROM s", database, old);
    (void)mysql_ask(server, "INSERT INTO %s." TABLE "_tokens %s,%llu,UTC_TIMESTAMP(6)-INTERVAL 2 HOUR FROM s",
                    database, old, (unsigned long long)high);
    (void)mysql_ask(server,
                    "UPDATE %s." TABLE "_tokens SET drawn_at=drawn_at-INTERVAL 2 HOUR WHERE name='held'",
                    database);
    for (int i = 0; i < 64 * 6 && count_old(TABLE) > 0; i++) {
        (void)token_of(&c, "fresh", &id);
    }
    cr_assert_eq(count_old(TABLE), 0);
    cr_assert_eq(count_old(TABLE "_tokens"), 0);
    cr_assert_str_eq(mysql_ask(server, "SELECT GROUP_CONCAT(name ORDER BY name) FROM %s." TABLE, database),
                     "fresh,held");
    cr_assert_eq(renew_hold(&held, 30000), DL_OK);
    cr_assert_gt(token_of(&c, "old7", &id), high);
    must_free(&held);
    shut(&c);
}

/* A client that ends before it draws leaves a row, and one whose row was deleted meanwhile a token. */
Test(mysql_pessimistic, names_that_only_one_table_has_are_forgotten_too) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
    open_prepared(&c);
    uint64_t id = 0, high = UINT64_C(1) << 60;
    (void)mysql_ask(server, "INSERT INTO %s." TABLE "(name) VALUES('old row')", database);
    (void)mysql_ask(
        server, "INSERT INTO %s." TABLE "_tokens VALUES('old token',%llu,UTC_TIMESTAMP(6)-INTERVAL 2 HOUR)",
        database, (unsigned long long)high);
    (void)mysql_ask(server, "INSERT INTO %s." TABLE "_tokens VALUES('young token',1,UTC_TIMESTAMP(6))",
                    database);
    for (int i = 0; i < 64 * 6 && count_old(TABLE) + count_old(TABLE "_tokens") > 0; i++) {
        (void)token_of(&c, "fresh", &id);
    }
    static const char names[] = "SELECT GROUP_CONCAT(name ORDER BY name) FROM %s." TABLE "%s";
    cr_assert_str_eq(mysql_ask(server, names, database, ""), "fresh");
    cr_assert_str_eq(mysql_ask(server, names, database, "_tokens"), ",fresh,young token");
    cr_assert_gt(token_of(&c, "old token", &id), high);
    shut(&c);
}

static atomic_bool is_unused_watched, is_unused_kept;

static void age_token(const char *name, int hours) {
    (void)mysql_ask(
        server, "UPDATE %s." TABLE "_tokens SET drawn_at=UTC_TIMESTAMP(6)-INTERVAL %d HOUR WHERE name='%s'",
        database, hours, name);
}

/* A purge that has found the token old keeps the row, and the token is drawn anew; until then it is old. */
static void draw_during_purge(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
    bool is_kept = atomic_load(&is_unused_watched) && !is_row_free("unused");
    if (is_kept != atomic_exchange(&is_unused_kept, is_kept)) {
        age_token("unused", is_kept ? 0 : 2);
    }
}

Test(mysql_pessimistic, a_name_whose_token_is_not_purged_keeps_its_row) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
    c.env.count = draw_during_purge;
    open_prepared(&c);
    uint64_t id = 0;
    (void)token_of(&c, "gone", &id);
    (void)token_of(&c, "unused", &id);
    age_token("gone", 2);
    age_token("unused", 2);
    atomic_store(&is_unused_watched, true);
    static const char count[] = "SELECT COUNT(*) FROM %s." TABLE "%s WHERE name='%s'";
    for (int i = 0; i < 64 * 12 && mysql_number(server, count, database, "_tokens", "gone") > 0; i++) {
        (void)token_of(&c, "fresh", &id);
    }
    atomic_store(&is_unused_watched, false);
    cr_assert_eq(mysql_number(server, count, database, "_tokens", "gone"), 0, "nothing was purged");
    cr_assert_eq(mysql_number(server, count, database, "_tokens", "unused"), 1);
    cr_assert_eq(mysql_number(server, count, database, "", "unused"), 1);
    shut(&c);
}

static atomic_bool is_purge_awaited;
static waiter_t purge_waiter;

static void *try_it(void *arg) {
    waiter_t *w = arg;
    w->status = try_hold(&w->hold, 0);
    return NULL;
}

/* In the middle of a purge, as soon as it keeps the row, another client tries for it. */
static void try_during_purge(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
    if (atomic_load(&is_purge_awaited) && !is_row_free("orders")) {
        atomic_store(&is_purge_awaited, false);
        unsigned long before = atomic_load(&round_trips);
        cr_assert_eq(pthread_create(&purge_waiter.thread, NULL, try_it, &purge_waiter), 0);
        AWAIT(is_waited_for(), 3000);
        /* Until it has waited once, and waits again; or has given up. */
        for (uint64_t until_ns = in_ms(500); atomic_load(&round_trips) < before + 4 && ran_ns() < until_ns;) {
            (void)poll(NULL, 0, 1);
        }
    }
}

Test(mysql_pessimistic, a_try_without_waiting_gets_what_only_a_purge_keeps) {
    client_t purging, c;
    prepare(&purging, UUID_A);
    set_number(&purging, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
    purging.env.count = try_during_purge;
    open_prepared(&purging);
    must_open(&c, UUID_B);
    purge_waiter.hold = must_lock(&c, "orders", B, 1, 30000);
    must_free(&purge_waiter.hold);
    (void)mysql_ask(server, "UPDATE %s." TABLE "_tokens SET drawn_at=drawn_at-INTERVAL 2 HOUR", database);
    purge_waiter.hold = new_hold(&c, "orders", B, 2);
    atomic_store(&is_purge_awaited, true);
    for (uint64_t id = 0; id < 192 && atomic_load(&is_purge_awaited);) {
        (void)token_of(&purging, "fresh", &id);
    }
    cr_assert_not(atomic_load(&is_purge_awaited), "nothing was purged");
    cr_assert_eq(end_waiter(&purge_waiter), DL_OK, "%s", purge_waiter.hold.err.message);
    must_free(&purge_waiter.hold);
    shut(&purging);
    shut(&c);
}

/* ---- connections ------------------------------------------------------------------------------------- */

#define CROWD 8
#define NAMES 20
#define TURNS 30

typedef struct visitor {
    client_t *client;
    char owner[64];
    atomic_int *inside; /* of each name */
    unsigned number;
    int got, overlaps;
    pthread_t thread;
} visitor_t;

static void *visit(void *arg) {
    visitor_t *v = arg;
    char name[16];
    for (unsigned turn = 0; v->got < TURNS && turn < 100000; turn++) {
        unsigned at = (v->number * 7 + turn * 3) % NAMES;
        snprintf(name, sizeof name, "name %u", at);
        hold_t h = new_hold(v->client, name, v->owner, 1000 * v->number + turn + 1);
        h.request.lease_ms = 5000;
        if (try_hold(&h, 200) == DL_OK) {
            v->overlaps += atomic_fetch_add(&v->inside[at], 1) != 0;
            v->got++;
            atomic_fetch_sub(&v->inside[at], 1);
            v->overlaps += free_hold(&h) != DL_OK;
        }
        drop_hold(&h);
    }
    return NULL;
}

Test(mysql_pessimistic, a_pool_of_two_serves_a_crowd_with_many_names) {
    client_t c;
    visitor_t crowd[CROWD];
    static atomic_int inside[NAMES];
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_MAX_TOTAL, 2);
    open_prepared(&c);
    for (unsigned i = 0; i < CROWD; i++) {
        crowd[i] = (visitor_t){.client = &c, .inside = inside, .number = i + 1};
        snprintf(crowd[i].owner, sizeof crowd[i].owner, UUID_A ":%u", i + 1);
        cr_assert_eq(pthread_create(&crowd[i].thread, NULL, visit, &crowd[i]), 0);
    }
    for (int i = 0; i < CROWD; i++) {
        pthread_join(crowd[i].thread, NULL);
        cr_assert_eq(crowd[i].got, TURNS, "%d", i);
        cr_assert_eq(crowd[i].overlaps, 0, "%d", i);
    }
    shut(&c);
}

Test(mysql_pessimistic, a_call_without_a_connection_ends_at_the_borrow_timeout_over_all_its_attempts) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_MAX_TOTAL, 1);
    set_number(&c, DLI_MYSQL_OPT_BORROW_TIMEOUT, 500);
    open_prepared(&c);
    hold_t held = must_lock(&c, "one", A, 1, 30000), h = new_hold(&c, "two", A, 2);
    uint64_t before_ms = now_ms();
    cr_assert_eq(try_hold(&h, 200), DL_EBUSY, "it is to come again: %s", h.err.message);
    cr_assert_eq(h.grant.busy_ms, DL_LEASE_MAX_MS, "when one comes free is not known");
    cr_assert_eq(try_hold(&h, 200), DL_EBUSY, "%s", h.err.message);
    cr_assert_eq(try_hold(&h, 200), DL_ETIMEDOUT, "%s", h.err.message);
    cr_assert_geq(now_ms() - before_ms, 500);
    cr_assert_lt(now_ms() - before_ms, 500 + SLACK_MS);
    drop_hold(&h);
    h = new_hold(&c, "two", A, 3);
    before_ms = now_ms();
    cr_assert_eq(try_hold(&h, 0), DL_ETIMEDOUT, "%s", h.err.message);
    cr_assert_geq(now_ms() - before_ms, 500);
    cr_assert_lt(now_ms() - before_ms, 500 + SLACK_MS);
    cr_assert_eq(renew_hold(&held, 30000), DL_OK, "which needs no other connection");
    must_free(&held);
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
    must_free(&h);
    shut(&c);
}

/* The core's patience with a server may end before the wait does, and the caller's own time is not over. */
Test(mysql_pessimistic, a_wait_that_the_deadline_cuts_short_is_to_come_again) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_MAX_TOTAL, 1);
    open_prepared(&c);
    hold_t held = must_lock(&c, "one", A, 1, 30000), h = new_hold(&c, "two", A, 2);
    h.request.level = 1;
    h.request.wait_ms = 5000;
    h.request.deadline_ns = in_ms(50);
    cr_assert_eq(driver->try_acquire(c.state, h.memory, &h.request, &h.grant, &h.err), DL_EBUSY, "%s",
                 h.err.message);
    drop_hold(&h);
    must_free(&held);
    shut(&c);
}

/* The client's connections are killed, one a call; all are gone. */
static bool kill_all(mysql_hand_t *hand) {
    long long id = mysql_number(
        server, "SELECT COALESCE(MAX(ID),0) FROM information_schema.PROCESSLIST WHERE DB='%s'", database);
    (void)mysql_hand_try(hand, "KILL %lld", id);
    return id == 0;
}

Test(mysql_pessimistic, while_the_server_is_away_no_call_waits_for_one_of_a_full_pool) {
    client_t c;
    char path[sizeof server->path + 8];
    mysql_hand_t *hand = mysql_hand(server, NULL);
    snprintf(path, sizeof path, "%s.link", server->path);
    cr_assert_eq(symlink(server->path, path), 0);
    prepare(&c, UUID_A);
    set_text(&c, DLI_MYSQL_OPT_SOCKET, path);
    set_number(&c, DLI_MYSQL_OPT_MAX_TOTAL, 1);
    set_number(&c, DLI_MYSQL_OPT_BORROW_TIMEOUT, 300);
    open_prepared(&c);
    cr_assert_eq(unlink(path), 0);
    AWAIT(kill_all(hand), 3000);
    hold_t held = new_hold(&c, "one", A, 1), h = new_hold(&c, "two", A, 2);
    for (uint64_t until_ms = now_ms() + 400; now_ms() < until_ms;) {
        cr_assert_eq(try_hold(&h, 50), DL_EIO, "%s", h.err.message);
    }
    cr_assert_eq(symlink(server->path, path), 0);
    AWAIT_THAT(try_hold(&held, 0), ==, DL_OK, 5000);
    cr_assert_eq(try_hold(&h, 100), DL_EBUSY, "it waits since just now: %s", h.err.message);
    must_free(&held);
    drop_hold(&h);
    shut(&c);
    mysql_hand_close(hand);
    cr_assert_eq(unlink(path), 0);
}

Test(mysql_pessimistic, a_connection_that_was_killed_while_idle_never_surfaces) {
    client_t c;
    must_open(&c, UUID_A);
    for (uint64_t i = 1; i <= 5; i++) {
        hold_t h = must_lock(&c, "orders", A, i, 30000);
        long long id = holder_of("orders");
        must_free(&h);
        (void)mysql_ask(server, "KILL %lld", id);
        AWAIT_THAT(
            mysql_number(server, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID=%lld", id), ==,
            0, 2000);
    }
    shut(&c);
}
