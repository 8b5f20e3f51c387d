/* mysql_check_test.c - what dlock check says of a server, and on which servers no client opens. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "driver_env.h"
#include "mysql_setup_fixture.h"

#include <sched.h>

#include "core/sys.h"

TestSuite(mysql_check, .init = set_up, .fini = tear_down, .timeout = 180);

/* A server of the case's own, with these arguments and a database. */
#define USE_OWN_SERVER(...)                                   \
    do {                                                      \
        tear_down();                                          \
        server = mysql_server_start(NULL, NULL, __VA_ARGS__); \
        mysql_database(server, database);                     \
    } while (0)

/* ---- what is said --------------------------------------------------------------------------------- */

/* Nothing crosses a network, with TLS as without it: what would be a warning over one is none. */
Test(mysql_check, unverified_tls_on_this_host_is_no_less_than_none) {
    char folder[64], command[400], cert[96], key[96];
    findings_t found;
    make_folder(folder, sizeof folder);
    snprintf(command, sizeof command,
             "cd '%s' && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
             "key.pem -out "
             "cert.pem -days 2 -subj /CN=x 2>openssl.log",
             folder);
    cr_assert_eq(system(command), 0, "%s", command);
    snprintf(cert, sizeof cert, "--ssl-cert=%s/cert.pem", folder);
    snprintf(key, sizeof key, "--ssl-key=%s/key.pem", folder);
    USE_OWN_SERVER(cert, key, NULL);
    make_tables("mysql-lease", "");
    check_with("mysql-lease", "", &found); /* tls: prefer */
    EXPECT(&found, "transport", DL_FINDING_OK,
           "loopback: nothing leaves this host (TLS, and the server's certificate is not verified)");
    delete_folder(folder);
}

Test(mysql_check, a_server_is_told_what_it_gives) {
    for (size_t i = 0; i < DRIVERS; i++) {
        bool is_lease = i < 2;
        findings_t found;
        make_tables(drivers[i], "");
        check_with(drivers[i], "", &found);
        cr_expect_null(complaint(&found), "%s", complaint(&found));
        EXPECT(&found, "server", DL_FINDING_OK, mysql_is_mariadb() ? "MariaDB " : "MySQL ");
        EXPECT(&found, "server", DL_FINDING_OK, "127.0.0.1");
        EXPECT(&found, "fitness", DL_FINDING_OK, "takes writes");
        EXPECT(&found, "table", DL_FINDING_OK, tables[i]);
        EXPECT(&found, "round trip", DL_FINDING_OK, "s at best");
        cr_expect_eq(level_of(&found, "transport"), DL_FINDING_OK);
        EXPECT(&found, "session", DL_FINDING_OK, "READ-COMMITTED");
        EXPECT(&found, "session", DL_FINDING_OK, is_lease ? "autocommit ON" : "autocommit OFF");
        EXPECT(&found, "rights", DL_FINDING_OK, "may do all");
        EXPECT(&found, "connections", DL_FINDING_OK, is_lease ? "up to 72" : "up to 76");
        EXPECT(&found, "locking", DL_FINDING_OK, "taken, renewed and freed");
        EXPECT(&found, "server clock", DL_FINDING_OK, "ran as ours");
        EXPECT(&found, "clock skew", DL_FINDING_OK, "harmless");
        EXPECT(&found, "guarantee", DL_FINDING_NOTE,
               is_lease ? "until its lease ends" : "ends with its connection");
        EXPECT(&found, "limit", DL_FINDING_NOTE, "refuse smaller tokens");
        cr_expect_eq(level_of(&found, "capacity"), is_lease ? -1 : (int)DL_FINDING_NOTE);
    }
}

Test(mysql_check, trials_leave_rows_of_few_names) {
    findings_t found;
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], "");
        check_with(drivers[i], "", &found);
        EXPECT(&found, "locking", DL_FINDING_OK, "taken");
        cr_expect_eq(mysql_number(server,
                                  "SELECT COUNT(*) FROM `%s`.%s WHERE CAST(name AS CHAR) NOT RLIKE "
                                  "'^(dlock-check-[0-9a-f]{2})?$'",
                                  database, tables[i]),
                     0);
    }
}

Test(mysql_check, rights_that_are_lacking_are_named_with_what_they_cost) {
    static const struct {
        const char *rights, *lacking, *words;
        dl_finding_level_t level;
        bool can_lock;
    } cases[] = {
        {"SELECT, INSERT, UPDATE", "DELETE", "not purged", DL_FINDING_WARNING, true},
        {"SELECT, UPDATE, DELETE", "INSERT", "no row yet", DL_FINDING_ERROR, false},
        {"SELECT, INSERT, DELETE", "UPDATE", "no lock can be taken", DL_FINDING_ERROR, false},
    };
    findings_t found;
    char on[MYSQL_DATABASE_MAX + 8];
    snprintf(on, sizeof on, "`%s`.*", database);
    for (size_t d = 0; d < DRIVERS; d++) {
        make_tables(drivers[d], "");
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            char name[32];
            snprintf(name, sizeof name, "some%zu%zu", d, i);
            mysql_try(server, "DROP USER %s@'%%'", name);
            mysql_user(server, name, cases[i].rights, on);
            user = name;
            check_with(drivers[d], "", &found);
            user = MYSQL_USER;
            EXPECT(&found, cases[i].lacking, cases[i].level, cases[i].words);
            cr_expect_eq(level_of(&found, "rights"), -1);
            EXPECT(&found, "locking", cases[i].can_lock ? DL_FINDING_OK : DL_FINDING_NOTE,
                   cases[i].can_lock ? "taken" : "not tried");
            mysql_ask(server, "DROP USER %s@'%%'", name);
        }
    }
}

Test(mysql_check, a_table_that_was_changed_since_is_an_error) {
    findings_t found = {.n = 0};
    dl_client_t *client;
    dl_error_t err;
    make_tables("mysql-lease", "");
    cr_assert_eq(open_with("mysql-lease", "", &client, &err), DL_OK, "%s", err.message);
    mysql_ask(server, "ALTER TABLE `%s`.dlock_lease DROP COLUMN owner", database);
    cr_expect_eq(dl_client_check(client, keep, &found, &err), DL_OK);
    EXPECT(&found, "table", DL_FINDING_ERROR, "no column 'owner'");
    EXPECT(&found, "locking", DL_FINDING_NOTE, "not tried");
    dl_client_close(client);
}

Test(mysql_check, limits_of_connections_are_said) {
    findings_t found;
    USE_OWN_SERVER("--max-connections=40", "--max-user-connections=20", NULL);
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], "");
        check_with(drivers[i], "", &found);
        EXPECT(&found, "connections", DL_FINDING_WARNING, "of 40 (max_connections)");
        EXPECT(&found, "max_user_connections", DL_FINDING_WARNING, "20 for each account");
        check_with(drivers[i], ", max_total: 8", &found);
        EXPECT(&found, "connections", DL_FINDING_OK, i < 2 ? "up to 16" : "up to 20");
        cr_expect_eq(level_of(&found, "max_user_connections"), -1);
    }
    EXPECT(&found, "capacity", DL_FINDING_NOTE, "at most 8 at a time");
}

Test(mysql_check, what_a_crash_takes_is_said) {
    findings_t found;
    USE_OWN_SERVER("--log-bin", "--server-id=1", "--binlog-format=ROW", NULL);
    make_tables("mysql-lease", "");
    make_tables("mysql-pessimistic", "");
    mysql_ask(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 1");
    mysql_ask(server, "SET GLOBAL sync_binlog = 1");
    check_with("mysql-lease", "", &found);
    EXPECT(&found, "durability", DL_FINDING_OK, "loses no lock");
    EXPECT(&found, "replication", DL_FINDING_NOTE, "a failover may lose");
    mysql_ask(server, "SET GLOBAL sync_binlog = 0");
    check_with("mysql-lease", "", &found);
    EXPECT(&found, "durability", DL_FINDING_NOTE, "sync_binlog is 0");
    mysql_ask(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 0");
    check_with("mysql-lease", "", &found);
    EXPECT(&found, "durability", DL_FINDING_WARNING, "is 0: a crash loses");
    mysql_ask(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    check_with("mysql-lease", "", &found);
    EXPECT(&found, "durability", DL_FINDING_WARNING, "is 2: a power failure");
    check_with("mysql-pessimistic", "", &found);
    EXPECT(&found, "durability", DL_FINDING_OK, "leaves none behind");
    EXPECT(&found, "replication", DL_FINDING_NOTE, "none knows of row locks");
}

Test(mysql_check, a_server_that_fixes_sysdate_is_noticed) {
    findings_t found;
    make_tables("mysql-lease", "");
    check_with("mysql-lease", "", &found);
    cr_expect_eq(level_of(&found, "sysdate-is-now"), -1);
    USE_OWN_SERVER("--sysdate-is-now", NULL);
    make_tables("mysql-lease", "");
    check_with("mysql-lease", "", &found);
    EXPECT(&found, "sysdate-is-now", DL_FINDING_NOTE, "still extends it");
    EXPECT(&found, "locking", DL_FINDING_OK, "taken");
}

Test(mysql_check, a_server_that_does_not_answer_is_the_status_and_a_finding) {
    findings_t found = {.n = 0};
    dl_client_t *client;
    dl_error_t err;
    USE_OWN_SERVER(NULL, NULL);
    make_tables("mysql-lease", "");
    patience = "3s";
    cr_assert_eq(open_with("mysql-lease", "", &client, &err), DL_OK, "%s", err.message);
    mysql_server_freeze(server);
    dl_status_t status = dl_client_check(client, keep, &found, &err);
    mysql_server_thaw(server);
    cr_expect_eq(status, DL_EIO, "%s", dl_status_name(status));
    cr_expect_eq(found.n, 1);
    EXPECT(&found, "server", DL_FINDING_ERROR, "");
    dl_client_close(client);
}

/* ---- clocks --------------------------------------------------------------------------------------- */

static uint64_t began_ns;

/* A clock of this host that runs twice as fast as the server's. */
static uint64_t hurried_now(void) {
    return began_ns + 2 * (dli_sys_real.now_ns() - began_ns);
}

static uint64_t unhurried(uint64_t deadline_ns) {
    return deadline_ns == DL_NO_DEADLINE ? deadline_ns : began_ns + (deadline_ns - began_ns) / 2;
}

static int hurried_poll(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    return dli_sys_real.poll(fds, n, unhurried(deadline_ns));
}

static int hurried_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    return dli_sys_real.cond_wait(cond, mutex, unhurried(deadline_ns));
}

static dli_sys_t hurried;

Test(mysql_check, a_server_clock_that_runs_at_another_speed_is_noticed) {
    findings_t lease, pessimistic;
    make_tables("mysql-lease", "");
    make_tables("mysql-pessimistic", "");
    began_ns = dli_sys_real.now_ns();
    hurried = dli_sys_real;
    hurried.now_ns = hurried_now;
    hurried.poll = hurried_poll;
    hurried.cond_wait = hurried_wait;
    dli_sys = &hurried;
    check_with("mysql-lease", "", &lease);
    check_with("mysql-pessimistic", "", &pessimistic);
    dli_sys = &dli_sys_real;
    EXPECT(&lease, "server clock", DL_FINDING_WARNING, "a lock can pass to another before its holder stops");
    EXPECT(&pessimistic, "server clock", DL_FINDING_NOTE, "no row lock depends on it");
}

/* ---- servers that cannot carry locks -------------------------------------------------------------- */

Test(mysql_check, a_read_only_server_is_refused_until_it_takes_writes) {
    dl_error_t err;
    findings_t found = {.n = 0};
    dl_client_t *client;
    USE_OWN_SERVER(NULL, NULL);
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], "");
    }
    cr_assert_eq(open_with("mysql-lease", "", &client, &err), DL_OK, "%s", err.message);
    mysql_ask(server, "SET GLOBAL read_only = ON");
    for (size_t i = 0; i < DRIVERS; i++) {
        EXPECT_REFUSED(try_open(drivers[i], "", &err), DL_ENOTSUP, err, "read-only");
    }
    /* One that was open already. */
    cr_expect_eq(dl_client_check(client, keep, &found, &err), DL_OK);
    EXPECT(&found, "locking", DL_FINDING_ERROR, "could not be taken");
    mysql_ask(server, "SET GLOBAL read_only = OFF");
    for (size_t i = 0; i < DRIVERS; i++) {
        cr_expect_eq(try_open(drivers[i], "", &err), DL_OK, "%s", err.message);
    }
    dl_client_close(client);
}

Test(mysql_check, a_binary_log_of_statements_is_refused) {
    dl_error_t err;
    findings_t found;
    USE_OWN_SERVER("--log-bin", "--server-id=1", "--binlog-format=STATEMENT", NULL);
    for (size_t i = 0; i < DRIVERS; i++) {
        EXPECT_REFUSED(init_with(drivers[i], "", 0, &found, &err), DL_ECONFIG, err, "set ROW or MIXED");
    }
    mysql_ask(server, "SET GLOBAL binlog_format = 'MIXED'");
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], "");
        check_with(drivers[i], "", &found);
        EXPECT(&found, "locking", DL_FINDING_OK, "taken");
    }
}

/* Debian's server brings the library; a cluster of one node is a cluster. */
static const char *galera_library(void) {
    static const char *const places[] = {"/usr/lib/galera/libgalera_smm.so",
                                         "/usr/lib64/galera-4/libgalera_smm.so", "/usr/lib/libgalera_smm.so"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (access(places[i], R_OK) == 0) {
            return places[i];
        }
    }
    return NULL;
}

/* Makes the server a node. */
static void join_cluster(void) {
    char provider[128];
    snprintf(provider, sizeof provider, "--wsrep-provider=%s", galera_library());
    mysql_server_kill(server);
    mysql_server_arg(server, "--wsrep-on=ON");
    mysql_server_arg(server, provider);
    mysql_server_arg(server, "--wsrep-cluster-address=gcomm://");
    mysql_server_arg(server, "--binlog-format=ROW");
    mysql_server_arg(server, "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:0");
    mysql_server_boot(server);
    while (strcmp(mysql_ask(server, "SHOW STATUS LIKE 'wsrep_ready'"), "wsrep_ready,ON") != 0) {
        sched_yield(); /* the case's own time limit ends it */
    }
}

static void expect_node_refused(void) {
    dl_error_t err;
    findings_t found;
    dl_client_t *client;
    dl_lock_t *lock;
    cr_assert_eq(open_with("mysql-lease", ", create: true", &client, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_lock_open(client, "name", &lock, &err), DL_OK, "%s", err.message);
    join_cluster();
    /* One that was open already. */
    EXPECT_REFUSED(dl_trylock(lock, &err), DL_ENOTSUP, err, "the commits clash later");
    dl_client_close(client);
    for (size_t i = 0; i < DRIVERS; i++) {
        EXPECT_REFUSED(try_open(drivers[i], ", create: true", &err), DL_ENOTSUP, err, "Galera");
        EXPECT_REFUSED(init_with(drivers[i], "", 0, &found, &err), DL_ENOTSUP, err,
                       "the commits clash later");
    }
}

Test(mysql_check, a_node_of_a_galera_cluster_is_refused_with_the_reason) {
    dl_error_t err;
    if (!mysql_is_mariadb()) {
        for (size_t i = 0; i < DRIVERS; i++) {
            cr_expect_eq(try_open(drivers[i], ", create: true", &err), DL_OK, "%s", err.message);
        }
        return;
    }
    if (galera_library() == NULL) {
        cr_skip_test("needs Galera's library, package galera-4");
    }
    USE_OWN_SERVER(NULL, NULL);
    expect_node_refused();
}

/* MySQL has clusters, too, as Percona builds it: here is a node that says it is one. */
Test(mysql_check, a_node_of_a_galera_cluster_is_refused_whatever_its_version) {
    if (!mysql_is_mariadb() || galera_library() == NULL) {
        cr_skip_test("needs MariaDB with Galera's library, package galera-4");
    }
    USE_OWN_SERVER("--version=8.0.36-28.1", NULL);
    cr_assert_null(strcasestr(mysql_ask(server, "SELECT VERSION()"), "mariadb"));
    expect_node_refused();
}

/* ---- a server whose settings are against us ------------------------------------------------------- */

/* One lock by two clients: excluded, renewed, freed, with rising tokens. */
static void lock_by_turns(const char *driver) {
    dl_client_t *client[2];
    dl_lock_t *lock[2];
    dl_error_t err;
    uint64_t token = 0;
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(open_with(driver, "", &client[i], &err), DL_OK, "%s", err.message);
        cr_assert_eq(dl_lock_open(client[i], "a'b\\c\" ", &lock[i], &err), DL_OK, "%s", err.message);
    }
    for (size_t i = 0; i < 6; i++) {
        dl_lock_t *mine = lock[i % 2], *other = lock[(i + 1) % 2];
        dl_status_t status = dl_trylock_for(mine, 2000, i % 3 == 0 ? DL_LEASE_AUTO : 5000, &err);
        cr_assert_eq(status, DL_OK, "%s: %s", driver, err.message);
        cr_expect_eq(dl_trylock(other, &err), DL_EBUSY, "%s", err.message);
        cr_expect_gt(dl_token(mine), token);
        token = dl_token(mine);
        cr_expect_eq(dl_extend(mine, 60000, &err), DL_OK, "%s", err.message);
        cr_expect_gt(dl_valid_ms(mine), 50000);
        cr_assert_eq(dl_unlock(mine, &err), DL_OK, "%s", err.message);
    }
    for (size_t i = 0; i < 2; i++) {
        dl_lock_close(lock[i]);
        dl_client_close(client[i]);
    }
}

Test(mysql_check, row31_hostile_settings_of_the_server_have_no_effect) {
    findings_t found;
    USE_OWN_SERVER("--autocommit=0", "--transaction-isolation=SERIALIZABLE", "--completion-type=RELEASE",
                   "--default-time-zone=-11:00", "--wait-timeout=1", "--interactive-timeout=1",
                   "--innodb-lock-wait-timeout=50", "--character-set-server=utf16",
                   "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION,"
                   "HIGH_NOT_PRECEDENCE",
                   "--init-connect=SET autocommit=0, time_zone='+12:00', sql_mode='ANSI', sql_safe_updates=1;"
                   "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; BEGIN",
                   mysql_is_mariadb() ? "--max-statement-time=0.001" : "--max-execution-time=1",
                   mysql_is_mariadb() ? "--idle-transaction-timeout=1" : NULL, NULL);
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], "");
        lock_by_turns(drivers[i]);
        check_with(drivers[i], "", &found);
        cr_expect_null(complaint(&found), "%s", complaint(&found));
        EXPECT(&found, "session", DL_FINDING_OK, "READ-COMMITTED");
    }
}
