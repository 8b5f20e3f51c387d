/* mysql_pessimistic_group_test.c - mysql-pessimistic in groups and clusters, and behind proxies. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pessimistic_fixture.h"

#include "mysql_relay.h"

#define PRIMARY \
    "SELECT 'group_replication_group_name','aaaa' UNION SELECT 'group_replication_single_primary_mode',"
#define ONE_PRIMARY PRIMARY "'ON'"
#define MANY_PRIMARIES PRIMARY "'OFF'"

/* Of Percona's, which has no global wsrep_on. */
#define CLUSTER "SELECT 'wsrep_cluster_address','gcomm://a,b' UNION SELECT 'wsrep_provider',"

static relay_t relay;

static void set_up_relay(void) {
    set_up();
    relay_start(&relay, server->path);
    relay.asked = "SHOW GLOBAL VARIABLES";
}

static void tear_down_relay(void) {
    relay_stop(&relay);
    tear_down();
}

TestSuite(mysql_pessimistic_group, .init = set_up_relay, .fini = tear_down_relay, .timeout = 120);

static void prepare_relayed(client_t *c) {
    prepare(c, UUID_A);
    set_text(c, DLI_MYSQL_OPT_SOCKET, relay.path);
}

static void expect_refused(const char *told, const char *words) {
    client_t c;
    atomic_store(&relay.told, told);
    prepare_relayed(&c);
    c.state = calloc(1, driver->state_size);
    cr_assert_eq(driver->open(c.state, c.values, &c.env, in_ms(10000), &c.err), DL_ENOTSUP, "%s",
                 c.err.message);
    cr_assert_has(c.err.message, words);
    shut(&c);
}

Test(mysql_pessimistic_group, each_connection_learns_anew_who_takes_writes) {
    client_t c;
    expect_refused(MANY_PRIMARIES, "several primaries");
    atomic_store(&relay.told, ONE_PRIMARY);
    prepare_relayed(&c);
    open_prepared(&c);
    hold_t first = must_lock(&c, "first", A, 1, 30000);
    /* The mode is changed, or a balancer leads elsewhere. */
    atomic_store(&relay.told, MANY_PRIMARIES);
    hold_t second = new_hold(&c, "second", A, 2);
    cr_assert_eq(try_hold(&second, 0), DL_ENOTSUP, "%s", second.err.message);
    cr_assert_has(second.err.message, "several primaries");
    drop_hold(&second);
    must_free(&first);
    shut(&c);
}

static void expect_accepted(const char *told) {
    client_t c;
    atomic_store(&relay.told, told);
    prepare_relayed(&c);
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    must_free(&h);
    shut(&c);
}

Test(mysql_pessimistic_group, without_a_provider_the_address_of_a_cluster_is_of_none) {
    expect_refused(CLUSTER "'/usr/lib/galera4/libgalera_smm.so'", "Galera");
    expect_refused(CLUSTER "''", "Galera");
    expect_accepted(CLUSTER "'none'");
}
