/* mysql_rows_test.c - mysql-lease and mysql-optimistic through their tables: holds, rows, tokens, lists. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_insert_id.h"
#include "mysql_rows_fixture.h"

TestSuite(mysql_rows, .init = set_up, .fini = tear_down, .timeout = 120);

#define END ((uint64_t)1 << 62) /* of tokens */

Test(mysql_rows, the_tables_promise_what_they_should) {
    for
        EACH_KIND(k) {
            cr_assert_eq(k->driver->caps, DL_CAP_LEASE | DL_CAP_FENCE);
            cr_assert_null(k->driver->watch);
            cr_assert_null(k->driver->listen);
            cr_assert_null(k->driver->unwatch);
            cr_assert_null(k->driver->listen_fds);
            for (int i = 0; i < DLI_MYSQL_OPT_COUNT; i++) {
                cr_assert_not_null(k->driver->options[i].name, "option %d", i);
            }
            cr_assert_null(k->driver->options[DLI_MYSQL_OPT_COUNT].name);
        }
    cr_assert_str_eq(dli_mysql_lease_driver.options[DLI_MYSQL_OPT_TABLE].default_text, "dlock_lease");
    cr_assert_str_eq(dli_mysql_optimistic_driver.options[DLI_MYSQL_OPT_TABLE].default_text,
                     "dlock_optimistic");
}

/* ---- holds ------------------------------------------------------------------------------------------ */

Test(mysql_rows, a_lock_is_taken_seen_and_freed) {
    for
        EACH_KIND(k) {
            client_t a, b;
            dl_grant_t grant;
            must_open(&a, k, UUID_A);
            must_open(&b, k, UUID_B);
            uint64_t before_ns = ran_ns();
            dl_request_t r = request("orders", A, 7);
            cr_assert_eq(lock_full(&a, &r, &grant), DL_OK, "%s", a.err.message);
            cr_assert_gt(grant.token, 0);
            cr_assert_lt(grant.token, END);
            cr_assert_eq(grant.session_fd, -1);
            cr_assert_geq(grant.sent_ns, before_ns);
            cr_assert_leq(grant.sent_ns, ran_ns());
            dl_lock_info_t info = look(&b, "orders");
            cr_assert(info.held);
            cr_assert_eq(info.hold_id, 7);
            cr_assert_eq(info.holds, 1);
            cr_assert_eq(info.token, grant.token);
            cr_assert_str_eq(info.owner, A);
            cr_assert_str_eq(info.client, "host:1");
            cr_assert_gt(info.remaining_ms, 25000);
            cr_assert_leq(info.remaining_ms, 30000);
            r = request("orders", B, 1);
            cr_assert_eq(lock_full(&b, &r, &grant), DL_EBUSY);
            cr_assert_gt(grant.busy_ms, 25000, "%ld", (long)grant.busy_ms);
            cr_assert_leq(grant.busy_ms, 30000, "%ld", (long)grant.busy_ms);
            cr_assert_eq(grant.busy_is_dlock, 1, "%ld", (long)grant.busy_ms);
            cr_assert_eq(free_name(&b, "orders", B, 1), DL_ELOST);
            cr_assert_eq(free_name(&b, "orders", A, 6), DL_ELOST, "another hold of the same owner");
            cr_assert_eq(free_name(&a, "orders", A, 7), DL_OK);
            cr_assert_eq(free_name(&a, "orders", A, 7), DL_ELOST);
            info = look(&a, "orders");
            cr_assert(!info.held);
            cr_assert_eq(info.remaining_ms, -1);
            cr_assert_eq(info.owner[0], '\0');
            cr_assert_eq(lock_name(&b, "orders", B, 2), DL_OK, "%s", b.err.message);
            shut(&a);
            shut(&b);
        }
}

static unsigned long trips_of_lock(client_t *c, const char *name, uint64_t hold_id) {
    unsigned long before = atomic_load(&round_trips);
    must_lock(c, name, A, hold_id);
    return atomic_load(&round_trips) - before;
}

Test(mysql_rows, taking_and_freeing_cost_as_few_round_trips_as_they_can) {
    for
        EACH_KIND(k) {
            const unsigned long usual = k == kinds ? 1 : 2;
            client_t c;
            must_open(&c, k, UUID_A);
            (void)trips_of_lock(&c, "the first of all makes the row of the purged", 1);
            cr_assert_eq(trips_of_lock(&c, "orders", 2), k == kinds ? 3 : 4, "a row has to be made");
            unsigned long before = atomic_load(&round_trips);
            cr_assert_eq(free_name(&c, "orders", A, 2), DL_OK);
            cr_assert_eq(atomic_load(&round_trips), before + 1);
            cr_assert_eq(trips_of_lock(&c, "orders", 3), usual);
            before = atomic_load(&round_trips);
            cr_assert_eq(lock_name(&c, "orders", B, 1), DL_EBUSY);
            cr_assert_eq(atomic_load(&round_trips), before + 1);
            cr_assert_eq(renew_name(&c, "orders", A, 3, 40000), DL_OK);
            cr_assert_eq(atomic_load(&round_trips), before + 2);
            shut(&c);
        }
}

Test(mysql_rows, a_larger_hold_id_of_the_same_owner_replaces_and_a_smaller_is_busy) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            uint64_t first = must_lock(&c, "orders", A, 7);
            uint64_t again = must_lock(&c, "orders", A, 7); /* sent twice */
            cr_assert_gt(again, first);
            uint64_t newer = must_lock(&c, "orders", A, UINT64_MAX);
            cr_assert_gt(newer, again);
            cr_assert_eq(lock_name(&c, "orders", A, 8), DL_EBUSY);
            cr_assert_eq(look(&c, "orders").hold_id, UINT64_MAX);
            cr_assert_eq(free_name(&c, "orders", A, 7), DL_ELOST);
            cr_assert_eq(free_name(&c, "orders", A, UINT64_MAX), DL_OK);
            shut(&c);
        }
}

Test(mysql_rows, a_lock_taken_again_has_the_full_lease) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 7);
            set_row(k, "orders", "expires_at=UTC_TIMESTAMP(6)+INTERVAL 1 SECOND");
            must_lock(&c, "orders", A, 8);
            cr_assert_gt(look(&c, "orders").remaining_ms, 25000);
            shut(&c);
        }
}

Test(mysql_rows, an_expired_row_is_free_to_all_and_its_owner_may_free_it) {
    for
        EACH_KIND(k) {
            client_t a, b;
            must_open(&a, k, UUID_A);
            must_open(&b, k, UUID_B);
            uint64_t first = must_lock(&a, "orders", A, 7);
            set_row(k, "orders", "expires_at=UTC_TIMESTAMP(6)-INTERVAL 1 MICROSECOND");
            cr_assert(!look(&a, "orders").held);
            cr_assert_eq(force_name(&a, "orders"), DL_ENOTOWNER);
            cr_assert_gt(must_lock(&b, "orders", B, 1), first);
            cr_assert_eq(free_name(&a, "orders", A, 7), DL_ELOST, "freed by its successor's loss");
            cr_assert_str_eq(look(&a, "orders").owner, B);
            must_lock(&a, "others", A, 8);
            set_row(k, "others", "expires_at=UTC_TIMESTAMP(6)-INTERVAL 1 HOUR");
            cr_assert_eq(free_name(&a, "others", A, 8), DL_OK);
            cr_assert_str_eq(cell(k, "others", "owner"), "NULL");
            shut(&a);
            shut(&b);
        }
}

static _Thread_local uint64_t last_poll_ns; /* when this thread last began to wait */

static int poll_noted(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    last_poll_ns = ran_ns();
    return poll_while_it_runs(fds, n, deadline_ns);
}

Test(mysql_rows, a_request_counts_from_before_the_answer) {
    for
        EACH_KIND(k) {
            client_t c;
            dl_grant_t grant;
            prepare(&c, k, UUID_A);
            c.env.poll = poll_noted;
            cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
            dl_request_t r = request("orders", A, 7);
            cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
            cr_assert_leq(grant.sent_ns, last_poll_ns);
            uint64_t before_ns = ran_ns();
            dl_renewal_t extension = renewal("orders", A, 7, 40000);
            c.driver->renew(c.state, &extension, 1, in_ms(5000));
            cr_assert_eq(extension.status, DL_OK);
            cr_assert_geq(extension.sent_ns, before_ns);
            cr_assert_leq(extension.sent_ns, last_poll_ns);
            shut(&c);
        }
}

/* ---- rows that say something odd --------------------------------------------------------------------- */

Test(mysql_rows, a_free_row_is_not_held_by_stale_columns) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 7);
            set_row(k, "orders", "owner=NULL,expires_at=UTC_TIMESTAMP(6)+INTERVAL 1 DAY,hold_id=99");
            cr_assert(!look(&c, "orders").held);
            cr_assert_eq(force_name(&c, "orders"), DL_ENOTOWNER);
            cr_assert_eq(renew_name(&c, "orders", A, 99, 1000), DL_ELOST);
            cr_assert_eq(lock_name(&c, "orders", B, 1), DL_OK, "%s", c.err.message);
            shut(&c);
        }
}

static void expect_busy(client_t *c, const char *owner, int64_t least_ms, int64_t most_ms, int is_dlock) {
    dl_grant_t grant;
    dl_request_t r = request("orders", B, 1);
    cr_assert_eq(lock_full(c, &r, &grant), DL_EBUSY, "%s: %s", owner, c->err.message);
    cr_assert_geq(grant.busy_ms, least_ms, "%s: %ld", owner, (long)grant.busy_ms);
    cr_assert_leq(grant.busy_ms, most_ms, "%s: %ld", owner, (long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, is_dlock, "%s", owner);
}

Test(mysql_rows, whoever_holds_it_it_is_busy) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 7);
            set_row(k, "orders", "owner='somebody'");
            expect_busy(&c, "somebody", 25000, 30000, 0);
            set_row(k, "orders", "owner='" UUID_A "'");
            expect_busy(&c, "a uuid alone", 25000, 30000, 0);
            set_row(k, "orders", "owner='somebody',expires_at=NULL");
            expect_busy(&c, "somebody for ever", -1, -1, 0);
            cr_assert_eq(look(&c, "orders").remaining_ms, -1);
            set_row(k, "orders", "owner='" A "'");
            expect_busy(&c, "one of ours for ever", -1, -1, 1);
            set_row(k, "orders", "expires_at='9999-12-31 23:59:59'");
            expect_busy(&c, "nearly for ever", DL_LEASE_MAX_MS, INT64_MAX, 1);
            cr_assert_eq(force_name(&c, "orders"), DL_OK);
            cr_assert_eq(lock_name(&c, "orders", B, 1), DL_OK);
            shut(&c);
        }
}

Test(mysql_rows, a_row_whose_token_is_nonsense_is_foreign_and_stays) {
    static const char *const odd[] = {"NULL", "4611686018427387904", "9223372036854775807",
                                      "18446744073709551615"};
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            mysql_ask(server, "ALTER TABLE %s.%s MODIFY %s BIGINT UNSIGNED NULL", database, k->table,
                      k->token);
            must_lock(&c, "orders", A, 7);
            cr_assert_eq(free_name(&c, "orders", A, 7), DL_OK);
            for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
                char text[64];
                snprintf(text, sizeof text, "%s=%s", k->token, odd[i]);
                set_row(k, "orders", text);
                cr_assert_eq(lock_name(&c, "orders", A, 8), DL_EFOREIGN, "%s: %s", odd[i], c.err.message);
                cr_assert_has(c.err.message, "'orders'");
                cr_assert_has(c.err.message, k->table);
                cr_assert_str_eq(cell(k, "orders", k->token), odd[i]);
                cr_assert_str_eq(cell(k, "orders", "owner"), "NULL");
            }
            shut(&c);
        }
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

static dl_status_t lock_above(client_t *c, const char *name, uint64_t hold_id, uint64_t floor,
                              uint64_t *token) {
    dl_request_t r = request(name, A, hold_id);
    dl_grant_t grant;
    r.token_floor = floor;
    dl_status_t status = lock_full(c, &r, &grant);
    *token = grant.token;
    return status;
}

Test(mysql_rows, tokens_rise_above_floor_row_and_clock) {
    for
        EACH_KIND(k) {
            const uint64_t high = (uint64_t)1 << 60;
            client_t c;
            uint64_t token;
            must_open(&c, k, UUID_A);
            uint64_t micros = (uint64_t)mysql_number(
                server, "SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))");
            cr_assert_gt(must_lock(&c, "clock", A, 1), micros);
            cr_assert_eq(lock_above(&c, "floor", 1, high, &token), DL_OK);
            cr_assert_eq(token, high + 1);
            cr_assert_eq(lock_above(&c, "floor", 2, 0, &token), DL_OK);
            cr_assert_eq(token, high + 2, "the row's was higher");
            cr_assert_eq(lock_above(&c, "floor", 3, END - 2, &token), DL_OK);
            cr_assert_eq(token, END - 1);
            cr_assert_eq(lock_above(&c, "other", 4, END - 1, &token), DL_ELIMIT);
            cr_assert_eq(lock_above(&c, "other", 4, UINT64_MAX, &token), DL_ELIMIT);
            cr_assert_str_eq(cell(k, "other", "1"), "", "something was made all the same");
            shut(&c);
        }
}

static dl_grant_t lock_block(client_t *c, uint64_t hold_id, uint64_t floor, uint64_t tokens) {
    dl_request_t r = request("orders", A, hold_id);
    dl_grant_t grant;
    r.token_floor = floor;
    r.tokens = tokens;
    cr_assert_eq(lock_full(c, &r, &grant), DL_OK, "%s", c->err.message);
    return grant;
}

Test(mysql_rows, a_row_keeps_the_last_token_of_a_block) {
    for
        EACH_KIND(k) {
            const uint64_t high = (uint64_t)1 << 60;
            client_t c;
            must_open(&c, k, UUID_A);
            dl_grant_t one = lock_block(&c, 1, high, 1);
            cr_assert_eq(one.token, high + 1);
            cr_assert_eq(one.tokens, 1);
            dl_grant_t many = lock_block(&c, 2, 0, 33);
            cr_assert_eq(many.token, high + 2);
            cr_assert_eq(many.tokens, 33);
            cr_assert_eq(look(&c, "orders").token, high + 34, "the row's");
            cr_assert_eq(lock_block(&c, 3, high + 100, 1000).token, high + 101);
            cr_assert_eq(free_name(&c, "orders", A, 3), DL_OK);
            cr_assert_eq(lock_block(&c, 4, 0, 1).token, high + 1101);
            /* To the end of the numbers, and no further. */
            many = lock_block(&c, 5, END - 4, 33);
            cr_assert_eq(many.token, END - 3);
            cr_assert_eq(many.tokens, 3);
            shut(&c);
        }
}

Test(mysql_rows, a_block_that_begins_at_the_floor_is_not_believed) {
    for
        EACH_KIND(k) {
            const uint64_t floor = (uint64_t)1 << 60;
            client_t c;
            dl_grant_t grant;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 1); /* its row is there */
            dl_request_t r = request("orders", A, 2);
            r.token_floor = floor;
            r.tokens = 33;
            said_insert_id = floor + 32;
            dl_status_t status = lock_full(&c, &r, &grant);
            said_insert_id = 0;
            cr_assert_eq(status, DL_EUNKNOWN);
            shut(&c);
        }
}

/* Each client has seen the floor: whoever holds with it could be taken for the holder before. */
Test(mysql_rows, a_token_that_is_not_above_the_floor_is_not_believed) {
    for
        EACH_KIND(k) {
            const uint64_t floor = (uint64_t)1 << 60;
            client_t c;
            uint64_t token;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 1); /* its row is there */
            for (uint64_t below = 0; below < 2; below++) {
                said_insert_id = floor - below;
                dl_status_t status = lock_above(&c, "orders", 2 + below, floor, &token);
                said_insert_id = 0;
                cr_assert_eq(status, DL_EUNKNOWN, "%llu below: %d", (unsigned long long)below, status);
                cr_assert_has(c.err.message, "no token above");
                cr_assert_eq(free_name(&c, "orders", A, 2 + below), DL_OK, "it was taken all the same");
            }
            said_insert_id = floor + 1;
            cr_assert_eq(lock_above(&c, "orders", 9, floor, &token), DL_OK, "%s", c.err.message);
            said_insert_id = 0;
            cr_assert_eq(token, floor + 1);
            shut(&c);
        }
}

Test(mysql_rows, new_rows_begin_above_what_was_purged) {
    for
        EACH_KIND(k) {
            const uint64_t high = (uint64_t)1 << 60;
            char text[64];
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 1);
            snprintf(text, sizeof text, "%s=%llu", k->token, (unsigned long long)high);
            set_row(k, "", text);
            cr_assert_eq(must_lock(&c, "new", A, 2), high + 1);
            mysql_ask(server, "DELETE FROM %s.%s", database, k->table);
            cr_assert_lt(must_lock(&c, "orders", A, 3), high, "an empty table begins at the clock");
            shut(&c);
        }
}
