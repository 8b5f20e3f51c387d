/* mysql_pessimistic_group_test.c - mysql-pessimistic in groups and clusters, and behind proxies. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pessimistic_fixture.h"

#include "mysql_relay.h"

#define PRIMARY \
    "SELECT 'group_replication_group_name','aaaa' UNION SELECT 'group_replication_single_primary_mode',"
#define PATIENCE " UNION SELECT 'group_replication_unreachable_majority_timeout',"
#define ONE_PRIMARY PRIMARY "'ON'" PATIENCE "'5'"
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

static void expect_accepted(const char *told) {
    client_t c;
    atomic_store(&relay.told, told);
    prepare_relayed(&c);
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    must_free(&h);
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

Test(mysql_pessimistic_group, without_a_provider_the_address_of_a_cluster_is_of_none) {
    expect_refused(CLUSTER "'/usr/lib/galera4/libgalera_smm.so'", "Galera");
    expect_accepted(CLUSTER "''");
    expect_accepted(CLUSTER "'none'");
}

/* Heartbeats write nothing: it would confirm them for ever. */
Test(mysql_pessimistic_group, a_primary_that_goes_on_without_its_majority_is_refused) {
    expect_refused(PRIMARY "'ON'", "group_replication_unreachable_majority_timeout be 1 to 60");
    expect_refused(PRIMARY "'ON'" PATIENCE "'0'", "group_replication_unreachable_majority_timeout");
    expect_refused(PRIMARY "'ON'" PATIENCE "'61'", "group_replication_unreachable_majority_timeout");
    expect_accepted(PRIMARY "'ON'" PATIENCE "'60'");
    expect_accepted(PRIMARY "'ON'" PATIENCE "'1'");
    /* One that becomes so later, or is another. */
    client_t c;
    atomic_store(&relay.told, ONE_PRIMARY);
    prepare_relayed(&c);
    open_prepared(&c);
    atomic_store(&relay.told, PRIMARY "'ON'" PATIENCE "'0'");
    hold_t h = new_hold(&c, "orders", A, 1);
    cr_assert_eq(try_hold(&h, 0), DL_ENOTSUP, "%s", h.err.message);
    drop_hold(&h);
    shut(&c);
}

/* What check says of a subject. */
typedef struct said {
    const char *subject;
    int level;
    char text[1024];
} said_t;

static void note_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    said_t *said = arg;
    if (strcmp(subject, said->subject) == 0) {
        said->level = (int)level;
        snprintf(said->text, sizeof said->text, "%s", text);
    }
}

static void expect_said(client_t *c, const char *subject, dl_finding_level_t level, const char *words) {
    said_t said = {.subject = subject, .level = -1};
    cr_assert_eq(driver->check(c->state, note_finding, &said, in_ms(10000), &c->err), DL_OK, "%s",
                 c->err.message);
    cr_assert_eq(said.level, (int)level, "%s", said.text);
    cr_assert_has(said.text, words, "%s", said.text);
}

Test(mysql_pessimistic_group, check_says_how_long_two_can_hold_a_lock) {
    client_t c;
    atomic_store(&relay.told, ONE_PRIMARY);
    prepare_relayed(&c);
    open_prepared(&c);
    expect_said(&c, "fitness", DL_FINDING_OK, "takes writes");
    expect_said(&c, "replication", DL_FINDING_WARNING, "no longer than");
    atomic_store(&relay.told, ONE_PRIMARY " UNION SELECT 'group_replication_member_expel_timeout','5'");
    expect_said(&c, "replication", DL_FINDING_NOTE, "holds for 5 s more");
    atomic_store(&relay.told, PRIMARY "'ON'" PATIENCE "'0'");
    expect_said(&c, "replication", DL_FINDING_WARNING, "holds without end");
    expect_said(&c, "fitness", DL_FINDING_ERROR, "cut off from its group");
    shut(&c);
}

/* The proxy's number for a connection can be the server's by chance. */
Test(mysql_pessimistic_group, one_connection_with_another_number_is_enough_for_nobody_to_be_killed) {
    client_t direct, c;
    must_open(&direct, UUID_B);
    hold_t foreign = must_lock(&direct, "foreign", B, 1, 30000);
    atomic_store(&relay.renumbers, true);
    prepare_relayed(&c);
    open_prepared(&c);
    atomic_store(&relay.renumbers, false);
    hold_t own = must_lock(&c, "own", A, 1, 30000); /* on a connection of its own, the last one made */
    cr_assert_eq(force_name(&c, "foreign"), DL_ENOTSUP, "%s", c.err.message);
    expect_said(&c, "proxy", DL_FINDING_WARNING, "numbers connections");
    cr_assert_eq(renew_hold(&foreign, 30000), DL_OK);
    must_free(&foreign);
    must_free(&own);
    shut(&c);
    shut(&direct);
}

static atomic_int warned;

static void note_warning(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    if (level == DL_LOG_WARNING && strstr(text, "numbers connections") != NULL) {
        atomic_fetch_add(&warned, 1);
    }
}

Test(mysql_pessimistic_group, what_was_condemned_before_the_proxy_was_noticed_is_spared) {
    client_t c;
    prepare_relayed(&c);
    c.env.report = note_warning;
    open_prepared(&c);
    hold_t own = must_lock(&c, "own", A, 1, 30000);
    long long id = holder_of("own");
    atomic_store(&relay.renumbers, true);
    hold_t other = must_lock(&c, "other", A, 2, 30000);
    atomic_store(&relay.states[2], RELAY_DEAF); /* behind those for tokens and control: of "own" */
    drop_hold(&own);
    hold_t third = must_lock(&c, "third", A, 3, 30000);
    cr_assert_eq(
        mysql_number(server, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID=%lld", id), 1);
    cr_assert_eq(atomic_load(&warned), 1);
    must_free(&third);
    must_free(&other);
    cr_assert_eq(atomic_load(&warned), 1);
    shut(&c);
}
