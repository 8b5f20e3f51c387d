/* mysql_plans_test.c - locks in rows: which rows statements about many names go to, and lock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>

#include "mysql_rows_fixture.h"

#include "mysql_plans.h"

#define ROWS 10000u
/* A server may go through a whole table rather than look for a tenth of its rows, one by one. */
#define FEW_ROWS 600u

static void set_up_plans(void) {
    server = mysql_server_start(NULL, NULL, PLANS_ARGS, NULL);
    mysql_database(server, database);
}

TestSuite(mysql_plans, .init = set_up_plans, .fini = tear_down, .timeout = 120);

static char names[1000][16];
static dl_renewal_t renewals[1000];

/* Rows 00000, 00001, ... that A holds for 100 s with hold ids from 1; and what a server that has seen them
 * for a while knows of them. */
static void fill_table(const kind_t *k, unsigned n) {
    mysql_ask(server, "DELETE FROM %s.%s", database, k->table);
    mysql_ask(server,
              "INSERT INTO %s.%s(name,owner,hold_id,expires_at,%s)"
              " WITH RECURSIVE d(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM d WHERE i<99)"
              " SELECT LPAD(100*h.i+d.i,5,'0'),'" A "',100*h.i+d.i+1,UTC_TIMESTAMP(6)+INTERVAL 100 SECOND,1"
              " FROM d JOIN d h WHERE 100*h.i+d.i<%u",
              database, k->table, k->token, n);
    mysql_ask(server, "ANALYZE TABLE %s.%s", database, k->table);
}

/* As far apart as they can be. */
static void renew_some(client_t *c, unsigned n, unsigned rows) {
    for (unsigned i = 0; i < n; i++) {
        unsigned at = i * (rows / n);
        snprintf(names[i], sizeof names[i], "%05u", at);
        renewals[i] = renewal(names[i], A, at + 1, 200000);
    }
    renewals[0].hold_id = 99999; /* lost, so that it has to be seen which was */
    c->driver->renew(c->state, renewals, n, in_ms(5000));
    cr_assert_eq(renewals[0].status, DL_ELOST, "%d", renewals[0].status);
    for (unsigned i = 1; i < n; i++) {
        cr_assert_eq(renewals[i].status, DL_OK, "%u: %d", i, renewals[i].status);
    }
}

Test(mysql_plans, renewals_look_at_the_rows_that_they_renew) {
    static const struct {
        unsigned rows, n;
    } sizes[] = {{FEW_ROWS, 10}, {FEW_ROWS, 128}, {FEW_ROWS, 600}, {ROWS, 10}, {ROWS, 128}, {ROWS, 1000}};
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                fill_table(k, sizes[i].rows);
                hear_statements(server);
                renew_some(&c, sizes[i].n, sizes[i].rows);
                cr_assert_geq(check_plans(server, database, "%expires_at%", 256), 2);
            }
            shut(&c);
        }
}

/* Those with a locked row among them ask the server in other words. */
Test(mysql_plans, renewals_that_meet_a_locked_row_look_at_no_others) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            fill_table(k, FEW_ROWS);
            mysql_hand_t *hand = mysql_hand(server, database);
            mysql_hand_ask(hand, "BEGIN");
            mysql_hand_ask(hand, "SELECT 1 FROM %s WHERE name='00012' FOR UPDATE", k->table);
            hear_statements(server);
            for (unsigned i = 0; i < 128; i++) {
                snprintf(names[i], sizeof names[i], "%05u", 4 * i);
                renewals[i] = renewal(names[i], A, 4 * i + 1, 200000);
            }
            c.driver->renew(c.state, renewals, 128, in_ms(900));
            cr_assert_eq(renewals[3].status, DL_EIO, "%d", renewals[3].status);
            mysql_hand_close(hand);
            cr_assert_geq(check_plans(server, database, "%expires_at%", 128), 5);
            shut(&c);
        }
}

Test(mysql_plans, a_purge_looks_at_a_page_and_deletes_what_it_found) {
    static const unsigned sizes[] = {FEW_ROWS, ROWS};
    for
        EACH_KIND(k) {
            for (size_t i = 0; i < 2; i++) {
                client_t c;
                prepare(&c, k, UUID_A);
                set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
                cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
                fill_table(k, sizes[i]);
                mysql_ask(server, "UPDATE %s.%s SET owner=NULL,released_at=UTC_TIMESTAMP(6)-INTERVAL 1 DAY",
                          database, k->table);
                hear_statements(server);
                for (uint64_t turn = 1; turn <= 128; turn++) {
                    must_lock(&c, "00000", A, turn);
                    cr_assert_eq(free_name(&c, "00000", A, turn), DL_OK, "%s", c.err.message);
                }
                cr_assert_eq(mysql_number(server, "SELECT COUNT(*) FROM %s.%s", database, k->table),
                             (int)sizes[i] + 1 - 256, "nothing was purged");
                cr_assert_eq(check_plans(server, database, "DELETE%", 1), 2);
                cr_assert_eq(check_plans(server, database, "% LIMIT %", ULONG_MAX), 2);
                shut(&c);
            }
        }
}

static int count_locks(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    (void)info;
    ++*(unsigned *)arg;
    return 0;
}

Test(mysql_plans, a_page_of_a_list_begins_where_the_last_one_ended) {
    for
        EACH_KIND(k) {
            client_t c;
            unsigned locks = 0;
            must_open(&c, k, UUID_A);
            fill_table(k, ROWS);
            hear_statements(server);
            cr_assert_eq(c.driver->list(c.state, "", 0, count_locks, &locks, in_ms(10000), &c.err), DL_OK,
                         "%s", c.err.message);
            cr_assert_eq(locks, ROWS);
            cr_assert_gt(check_plans(server, database, "% LIMIT %", ULONG_MAX), ROWS / 500);
            shut(&c);
        }
}
