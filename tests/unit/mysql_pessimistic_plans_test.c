/* mysql_pessimistic_plans_test.c - row locks: which rows statements about many names go to. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>

#include "mysql_pessimistic_fixture.h"

#include "mysql_plans.h"

static void set_up_plans(void) {
    server = mysql_server_start(NULL, NULL, PLANS_ARGS, NULL);
    mysql_database(server, database);
}

TestSuite(mysql_pessimistic_plans, .init = set_up_plans, .fini = tear_down, .timeout = 120);

/* Names 0000, 0001, ... that were last locked two hours ago. */
static void fill_tables(unsigned n) {
    mysql_ask(server,
              "INSERT INTO %s." TABLE "(name) WITH RECURSIVE d(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM d"
              " WHERE i<99) SELECT LPAD(100*h.i+d.i,4,'0') FROM d JOIN d h WHERE 100*h.i+d.i<%u",
              database, n);
    mysql_ask(server,
              "INSERT INTO %s." TABLE "_tokens SELECT name,1,UTC_TIMESTAMP(6)-INTERVAL 2 HOUR FROM %s." TABLE,
              database, database);
    mysql_ask(server, "ANALYZE TABLE %s." TABLE ",%s." TABLE "_tokens", database, database);
}

static void lock_and_free(client_t *c, unsigned times) {
    static uint64_t id;
    for (unsigned i = 0; i < times; i++) {
        hold_t h = must_lock(c, "0000", A, ++id, 30000);
        must_free(&h);
    }
}

Test(mysql_pessimistic_plans, names_are_forgotten_by_name) {
    static const unsigned sizes[] = {600, 10000};
    for (size_t i = 0; i < 2; i++) {
        client_t c;
        prepare(&c, UUID_A);
        set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
        open_prepared(&c);
        fill_tables(sizes[i]);
        hear_statements(server);
        lock_and_free(&c, 64);
        cr_assert_eq(mysql_number(server, "SELECT COUNT(*) FROM %s." TABLE, database), (int)sizes[i] - 128);
        cr_assert_eq(check_plans(server, database, "%STRAIGHT_JOIN%", 1), 3);
        cr_assert_eq(check_plans(server, database, "% LIMIT %", ULONG_MAX), 1);
        shut(&c);
        mysql_ask(server, "DROP TABLE %s." TABLE ",%s." TABLE "_tokens", database, database);
    }
}

static int count_locks(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    (void)info;
    ++*(unsigned *)arg;
    return 0;
}

Test(mysql_pessimistic_plans, lists_and_looks_go_to_their_rows) {
    client_t c;
    unsigned locks = 0;
    must_open(&c, UUID_A);
    fill_tables(10000);
    hear_statements(server);
    hold_t a = must_lock(&c, "0001", A, 1, 30000), b = must_lock(&c, "7000", A, 2, 30000);
    dl_renewal_t looks[2] = {renewal(&a, 0), renewal(&b, 0)};
    driver->renew(c.state, looks, 2, in_ms(5000));
    cr_assert_eq(looks[0].status, DL_OK);
    cr_assert_eq(looks[1].status, DL_OK);
    cr_assert_eq(driver->list(c.state, "", 0, count_locks, &locks, in_ms(5000), &c.err), DL_OK);
    cr_assert_eq(locks, 2);
    must_free(&a);
    must_free(&b);
    cr_assert_eq(check_plans(server, database, "% LIMIT %", ULONG_MAX), 1);
    cr_assert_eq(check_plans(server, database, "SELECT % UNION ALL %", 1), 1);
    cr_assert_geq(check_plans(server, database, "%name=x%", 1), 5);
    shut(&c);
}
