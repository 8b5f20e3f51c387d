/* mysql_renewals_test.c - locks in rows: renewing many holds, and rows that others keep locked. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "mysql_rows_fixture.h"
#include "mysql_standing.h"

TestSuite(mysql_renewals, .init = set_up, .fini = tear_down, .timeout = 120);

#define HOLDS 600

static char names[HOLDS][256];
static dl_renewal_t renewals[HOLDS];

static void fill_renewals(unsigned n, const char *stem, int64_t lease_ms) {
    for (unsigned i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "%s%u", stem, i);
        renewals[i] = renewal(names[i], A, i + 1, lease_ms);
    }
}

static void renew_all(client_t *c, unsigned n, uint64_t deadline_ns) {
    for (unsigned i = 0; i < n; i++) {
        renewals[i].status = DL_EPROTO;
    }
    c->driver->renew(c->state, renewals, n, deadline_ns);
}

static unsigned count_status(unsigned n, dl_status_t status) {
    unsigned count = 0;
    for (unsigned i = 0; i < n; i++) {
        count += renewals[i].status == status;
    }
    return count;
}

/* ---- outcomes --------------------------------------------------------------------------------------- */

static dl_status_t expected_of(unsigned i) {
    return i >= 3 && i <= 6 ? DL_ELOST : i == 7 || i == 8 ? DL_EINVAL : DL_OK;
}

Test(mysql_renewals, each_entry_of_a_batch_has_an_outcome_of_its_own) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            fill_renewals(HOLDS, "lock", 200000);
            hold_rows(k, "lock", HOLDS);
            mysql_ask(server, "DELETE FROM %s.%s WHERE name='lock3'", database, k->table);
            renewals[4].hold_id++;
            set_row(k, "lock5", "owner='" B "'");
            set_row(k, "lock6", "expires_at=UTC_TIMESTAMP(6)");
            renewals[7].lease_ms = 0;
            renewals[8].lease_ms = DL_LEASE_MAX_MS + 1;
            renewals[9].lease_ms = 1000;
            renewals[10].lease_ms = 3600000;
            renewals[11].lease_ms = DL_LEASE_MAX_MS;
            uint64_t before_ns = ran_ns();
            unsigned long trips = atomic_load(&round_trips);
            renew_all(&c, HOLDS, in_ms(5000));
            cr_assert_leq(atomic_load(&round_trips), trips + 4, "three chunks, one of them with lost ones");
            for (unsigned i = 0; i < HOLDS; i++) {
                cr_assert_eq(renewals[i].status, expected_of(i), "%u: %d", i, renewals[i].status);
                cr_assert_geq(renewals[i].sent_ns, before_ns);
                cr_assert_leq(renewals[i].sent_ns, ran_ns());
            }
            cr_assert_gt(renewals[599].sent_ns, renewals[0].sent_ns, "one instant for all statements");
            cr_assert_gt(look(&c, "lock599").remaining_ms, 150000);
            cr_assert_leq(look(&c, "lock599").remaining_ms, 200000);
            cr_assert_leq(look(&c, "lock20").remaining_ms, 200000, "another's lease");
            cr_assert_gt(look(&c, "lock9").remaining_ms, 50000, "shortened");
            cr_assert_leq(look(&c, "lock9").remaining_ms, 100000, "another's lease");
            cr_assert_gt(look(&c, "lock10").remaining_ms, 3550000);
            cr_assert_leq(look(&c, "lock10").remaining_ms, 3600000, "another's lease");
            cr_assert_gt(look(&c, "lock11").remaining_ms, DL_LEASE_MAX_MS - 50000);
            cr_assert_str_eq(look(&c, "lock5").owner, B);
            cr_assert_leq(look(&c, "lock5").remaining_ms, 100000, "another's hold was renewed");
            cr_assert(!look(&c, "lock3").held && !look(&c, "lock6").held);
            shut(&c);
        }
}

Test(mysql_renewals, a_single_one_has_the_same_outcomes) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 7);
            cr_assert_eq(renew_name(&c, "orders", A, 7, 200000), DL_OK);
            cr_assert_eq(renew_name(&c, "orders", A, 7, 1000), DL_OK);
            cr_assert_gt(look(&c, "orders").remaining_ms, 150000, "shortened");
            cr_assert_eq(renew_name(&c, "orders", A, 6, 900000), DL_ELOST);
            cr_assert_eq(renew_name(&c, "orders", B, 7, 900000), DL_ELOST);
            cr_assert_eq(renew_name(&c, "order", A, 7, 900000), DL_ELOST);
            cr_assert_eq(renew_name(&c, "orders", A, 7, -1), DL_EINVAL);
            cr_assert_leq(look(&c, "orders").remaining_ms, 200000);
            set_row(k, "orders", "expires_at=UTC_TIMESTAMP(6)-INTERVAL 1 MICROSECOND");
            cr_assert_eq(renew_name(&c, "orders", A, 7, 900000), DL_ELOST);
            cr_assert(!look(&c, "orders").held, "revived");
            shut(&c);
        }
}

Test(mysql_renewals, a_lost_lease_of_the_first_entry_says_nothing_of_the_others) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            fill_renewals(2, "lock", 200000);
            hold_rows(k, "lock", 2);
            for (unsigned lost = 0; lost < 2; lost++) {
                fill_renewals(2, "lock", 200000);
                renewals[lost].hold_id = 99;
                renew_all(&c, 2, in_ms(5000));
                cr_assert_eq(renewals[lost].status, DL_ELOST);
                cr_assert_eq(renewals[1 - lost].status, DL_OK);
            }
            fill_renewals(2, "lock", 200000);
            renewals[0].hold_id = renewals[1].hold_id = 99;
            renew_all(&c, 2, in_ms(5000));
            cr_assert_eq(count_status(2, DL_ELOST), 2);
            c.driver->renew(c.state, NULL, 0, in_ms(5000));
            shut(&c);
        }
}

Test(mysql_renewals, long_names_make_smaller_statements) {
    for
        EACH_KIND(k) {
            char stem[252];
            client_t c;
            must_open(&c, k, UUID_A);
            memset(stem, 'n', 251);
            stem[251] = '\0';
            fill_renewals(300, stem, 200000);
            hold_rows(k, stem, 300);
            for (unsigned i = 0; i < 300; i++) {
                renewals[i].lease_ms = 200000 + i; /* no two the same */
            }
            renewals[299].hold_id = 1;
            renew_all(&c, 300, in_ms(5000));
            cr_assert_eq(count_status(300, DL_OK), 299);
            cr_assert_eq(renewals[299].status, DL_ELOST);
            cr_assert_gt(look(&c, names[298]).remaining_ms, 150000);
            shut(&c);
        }
}

/* ---- rows that somebody's transaction keeps locked ---------------------------------------------------- */

static mysql_hand_t *keep_locked(const kind_t *k, const char *name) {
    mysql_hand_t *hand = mysql_hand(server, database);
    mysql_hand_ask(hand, "BEGIN");
    mysql_hand_ask(hand, "SELECT 1 FROM %s WHERE name='%s' FOR UPDATE", k->table, name);
    return hand;
}

typedef struct letting_go {
    mysql_hand_t *hand;
    const kind_t *kind;
    const char *name;
} letting_go_t;

/* Does a statement about this name wait for its row? */
static bool is_row_awaited(const char *name) {
    return mysql_number(server,
                        "SELECT COUNT(*) FROM information_schema.INNODB_TRX"
                        " WHERE trx_state='LOCK WAIT' AND trx_query LIKE CONCAT('%%',LOWER(HEX('%s')),'%%')",
                        name) > 0;
}

/* Once a renewal waits for the row, lets its lease be over, and then lets go of the row. */
static void *let_go_after_expiry(void *arg) {
    letting_go_t *l = arg;
    const struct timespec pause = {.tv_nsec = ASKING_PAUSE_MS * 1000000};
    while (!is_row_awaited(l->name)) {
        nanosleep(&pause, NULL);
    }
    mysql_hand_ask(l->hand, "UPDATE %s SET expires_at=UTC_TIMESTAMP(6) WHERE name='%s'", l->kind->table,
                   l->name);
    mysql_hand_ask(l->hand, "COMMIT");
    return NULL;
}

Test(mysql_renewals, a_hold_that_expires_while_its_row_is_waited_for_is_not_revived) {
    for
        EACH_KIND(k) {
            for (unsigned n = 1; n <= 2; n++) {
                client_t c;
                pthread_t thread;
                must_open(&c, k, UUID_A);
                fill_renewals(2, n == 1 ? "one" : "two", 200000);
                hold_rows(k, n == 1 ? "one" : "two", 2);
                letting_go_t l = {keep_locked(k, names[0]), k, names[0]};
                cr_assert_eq(pthread_create(&thread, NULL, let_go_after_expiry, &l), 0);
                do { /* again, if the row was not let go of for longer than a server waits */
                    renew_all(&c, n, in_ms(5000));
                } while (renewals[0].status == DL_EIO);
                pthread_join(thread, NULL);
                cr_assert_eq(renewals[0].status, DL_ELOST, "%d", renewals[0].status);
                cr_assert(!look(&c, names[0]).held);
                if (n > 1) {
                    cr_assert_eq(renewals[1].status, DL_OK);
                }
                mysql_hand_close(l.hand);
                shut(&c);
            }
        }
}

/* So that its uptime, in whole seconds, tells its run from another: else what hangs there is not killed. */
static void await_uptime(void) {
    const struct timespec pause = {.tv_nsec = 50 * 1000000};
    int seconds = 0;
    while (sscanf(mysql_ask(server, "SHOW GLOBAL STATUS LIKE 'Uptime'"), "Uptime,%d", &seconds) != 1 ||
           seconds < 4) {
        nanosleep(&pause, NULL);
    }
}

Test(mysql_renewals, a_locked_row_delays_no_other_hold) {
    await_uptime();
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            fill_renewals(HOLDS, "lock", 200000);
            hold_rows(k, "lock", HOLDS);
            /* The last of the first statement's: it has locked all others by then. */
            mysql_hand_t *first = keep_locked(k, "lock99"), *last = keep_locked(k, "lock400");
            fill_renewals(HOLDS, "lock", 200000);
            renewals[5].hold_id = 99;
            /* Less than a server waits for a row. */
            renew_all(&c, HOLDS, in_ms(900));
            cr_assert_eq(renewals[99].status, DL_EIO, "%d, %d", renewals[99].status, renewals[400].status);
            cr_assert_eq(renewals[400].status, DL_EIO, "%d, %d", renewals[99].status, renewals[400].status);
            cr_assert_eq(renewals[5].status, DL_ELOST);
            cr_assert_eq(count_status(HOLDS, DL_OK), HOLDS - 3);
            cr_assert_gt(look(&c, "lock599").remaining_ms, 150000);
            cr_assert_leq(look(&c, "lock400").remaining_ms, 100000);
            mysql_hand_ask(first, "ROLLBACK");
            mysql_hand_ask(last, "ROLLBACK");
            fill_renewals(HOLDS, "lock", 200000);
            renew_all(&c, HOLDS, in_ms(5000));
            cr_assert_eq(count_status(HOLDS, DL_OK), HOLDS);
            mysql_hand_close(first);
            mysql_hand_close(last);
            shut(&c);
        }
}

static bool is_orders_awaited(void) {
    return is_row_awaited("orders");
}

/* The same of a claim, in less time than the server waits: it is ended there, and nothing of it can follow.
 */
static void expect_an_end_in_time(client_t *c) {
    dl_grant_t grant;
    dl_request_t r = request("orders", A, 9);
    r.deadline_ns = in_ms(5000);
    stand_until_due(is_orders_awaited);
    cr_assert_eq(lock_full(c, &r, &grant), DL_EIO, "%s", c->err.message);
    cr_assert_lt(go_on(), r.deadline_ns);
    cr_assert_has(c->err.message, "another transaction keeps the row locked, or the table");
    cr_assert_has(c->err.message, "'orders'");
}

Test(mysql_renewals, a_locked_row_is_no_lost_hold_and_a_claim_on_it_ends_in_time) {
    /* By the uptime it is known whom KILL QUERY would hit. The client's clock jumps to the deadline of 5 s.
     */
    mysql_server_await_uptime(server, 8);
    for
        EACH_KIND(k) {
            client_t c;
            prepare(&c, k, UUID_A);
            let_stand(&c.env);
            cr_assert_eq(open_prepared(&c), DL_OK, "open: %s", c.err.message);
            must_lock(&c, "orders", A, 7);
            mysql_hand_t *hand = keep_locked(k, "orders");
            cr_assert_eq(renew_name(&c, "orders", A, 7, 200000), DL_EIO);
            cr_assert_eq(lock_name(&c, "orders", A, 8), DL_EIO);
            cr_assert_has(c.err.message, "another transaction keeps the row locked");
            cr_assert_has(c.err.message, "'orders'");
            expect_an_end_in_time(&c);
            mysql_hand_ask(hand, "ROLLBACK");
            cr_assert_eq(free_name(&c, "orders", A, 9), DL_ELOST);
            cr_assert_eq(look(&c, "orders").hold_id, 7);
            mysql_hand_close(hand);
            shut(&c);
        }
}

/* Once it met a row that is kept locked, a client expects more of them, and looks before it renews. */
static void make_wary(client_t *c, const kind_t *k) {
    hold_rows(k, "wary", 2);
    mysql_hand_t *hand = keep_locked(k, "wary0");
    fill_renewals(2, "wary", 200000);
    renew_all(c, 2, in_ms(5000));
    cr_assert_eq(renewals[0].status, DL_EIO, "%d, %d", renewals[0].status, renewals[1].status);
    cr_assert_eq(renewals[1].status, DL_OK, "%d, %d", renewals[0].status, renewals[1].status);
    mysql_hand_close(hand);
}

static mysql_hand_t *late_hand;
static const kind_t *late_kind;

/* The last of the first chunk, by name: a statement that waits for it has come by all others. */
static void lock_the_last(unsigned long n) {
    (void)n;
    after_round_trip = NULL;
    late_hand = keep_locked(late_kind, "lock99");
}

Test(mysql_renewals, a_statement_that_hangs_leaves_time_for_the_others) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            make_wary(&c, k);
            fill_renewals(HOLDS, "lock", 200000);
            hold_rows(k, "lock", HOLDS);
            /* Locked after it was seen that it was not. */
            late_kind = k;
            after_round_trip = lock_the_last;
            renew_all(&c, HOLDS, in_ms(900));
            cr_assert_null(after_round_trip);
            cr_assert_eq(renewals[0].status, DL_EUNKNOWN, "%d", renewals[0].status);
            cr_assert_eq(count_status(HOLDS, DL_OK), HOLDS - 256, "%u", count_status(HOLDS, DL_OK));
            /* It waits there still, and keeps none of the other 255 from the next. */
            fill_renewals(HOLDS, "lock", 200000);
            renew_all(&c, HOLDS, in_ms(400));
            cr_assert_eq(renewals[99].status, DL_EIO, "%d", renewals[99].status);
            cr_assert_eq(count_status(HOLDS, DL_OK), HOLDS - 1, "%u", count_status(HOLDS, DL_OK));
            mysql_hand_close(late_hand);
            shut(&c);
        }
}

static void free_one(unsigned long n) {
    (void)n;
    after_round_trip = NULL;
    set_row(late_kind, "lock3", "owner=NULL");
}

Test(mysql_renewals, a_hold_that_ends_in_the_midst_of_a_batch_is_lost_and_no_other) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            make_wary(&c, k);
            fill_renewals(20, "lock", 200000);
            hold_rows(k, "lock", 20);
            late_kind = k;
            after_round_trip = free_one;
            renew_all(&c, 20, in_ms(5000));
            cr_assert_null(after_round_trip);
            cr_assert_eq(renewals[3].status, DL_ELOST, "%d", renewals[3].status);
            cr_assert_eq(count_status(20, DL_OK), 19);
            shut(&c);
        }
}

/* ---- servers that say nothing ------------------------------------------------------------------------- */

Test(mysql_renewals, a_batch_to_a_stopped_server_ends_in_time_with_outcomes, .init = NULL) {
    server = mysql_server_start(NULL, NULL, NULL);
    mysql_database(server, database);
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            fill_renewals(HOLDS, "lock", 200000);
            renew_all(&c, HOLDS, in_ms(5000));
            cr_assert_eq(count_status(HOLDS, DL_ELOST), HOLDS);
            for (unsigned n = 1; n <= HOLDS; n += HOLDS - 1) {
                mysql_server_freeze(server);
                uint64_t began_ns = ran_ns();
                renew_all(&c, n, began_ns + 300 * MS);
                uint64_t ended_ns = ran_ns();
                mysql_server_thaw(server);
                cr_assert_lt(ended_ns - began_ns, 400 * MS, "%lu ms",
                             (unsigned long)((ended_ns - began_ns) / MS));
                cr_assert_eq(count_status(n, DL_EUNKNOWN) + count_status(n, DL_EIO), n);
                for (unsigned i = 0; i < n; i++) {
                    cr_assert_geq(renewals[i].sent_ns, began_ns);
                    cr_assert_leq(renewals[i].sent_ns, ended_ns);
                }
                renew_all(&c, n, in_ms(5000));
                cr_assert_eq(count_status(n, DL_ELOST), n, "%d", renewals[0].status);
            }
            shut(&c);
        }
}

static void kill_renewing(unsigned long n) {
    (void)n;
    after_round_trip = NULL;
    mysql_kill_connections(server, MYSQL_USER);
}

Test(mysql_renewals, a_killed_connection_costs_others_nothing, .init = NULL) {
    server = mysql_server_start(NULL, NULL, NULL);
    mysql_database(server, database);
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            fill_renewals(HOLDS, "lock", 200000);
            hold_rows(k, "lock", HOLDS);
            after_round_trip = kill_renewing;
            renew_all(&c, HOLDS, in_ms(5000));
            cr_assert_null(after_round_trip);
            cr_assert_eq(count_status(HOLDS, DL_ELOST), 0);
            cr_assert_geq(count_status(HOLDS, DL_OK), HOLDS - 256, "%u", count_status(HOLDS, DL_OK));
            shut(&c);
        }
}
