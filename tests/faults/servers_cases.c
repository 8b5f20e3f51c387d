/* servers_cases.c - faults of MySQL servers (rows 15, 18 and 33): gone, frozen, full, read-only, refusing. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/mysql_wire.h"

/* ---- row 15: the server goes away, with its data on disk ---------------------------------------------- */

CT_CASE(faults, row15_database_restarted, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 15"), *next = ct_lock(ct, other, "row 15");
    int64_t long_ms = 60 * ct_lease_ms(ct);
    take(ct, lock, long_ms);
    uint64_t token = dl_token(lock);
    mysql_server_restart(ct_mysql(ct));
    if (is_session(ct)) {
        ct_expect_event(ct, c, DL_EVENT_LOST, "row 15", ct_tolerance_ms(ct));
        CT_EQ(dl_valid_ms(lock), 0);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
        expect_back(ct, lock);
    } else { /* what was promised is kept */
        ct_sleep_ms(ct, RETRY_MS);
        CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
        CT_GT(ct_server_info(ct, "row 15").remaining_ms, long_ms / 4);
        CT_OK(dl_extend(lock, long_ms, CT_ERR));
        CT_EQ(dl_token(lock), token);
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    CT_OK(dl_trylock_for(next, RETRY_MS, DL_LEASE_AUTO, CT_ERR));
    CT_GT(dl_token(next), token);
    CT_OK(dl_unlock(next, CT_ERR));
    ct_expect_free(ct, "row 15", 0);
}

CT_CASE(faults, row15_database_killed_and_back_with_the_clients_waiting, MYSQL, .timeout_s = 60) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *holder = ct_open(ct, NULL), *c = ct_open(ct, "call_timeout: 20s");
    dl_lock_t *held = ct_lock(ct, holder, "row 15"), *lock = ct_lock(ct, c, "row 15");
    take(ct, held, ct_lease_ms(ct));
    uint64_t token = dl_token(held);
    caller_t caller = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &caller);
    ct_await_waiting(ct, c, 1, 5000);
    mysql_server_kill(ct_mysql(ct));
    ct_expect_event(ct, holder, DL_EVENT_LOST, "row 15", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_CHECK(!ct_thread_done(ct, caller.thread));
    mysql_server_boot(ct_mysql(ct));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &caller, DL_OK); /* it has gone on trying */
    CT_LE(caller.ended_ms - before_ms, 2 * RETRY_MS + ct_tolerance_ms(ct));
    CT_GT(caller.token, token);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    CT_EQ(ct_stats(ct, holder).lost, 1);
    ct_expect_free(ct, "row 15", 0);
}

CT_CASE(faults, row15_database_frozen_longer_than_the_lease, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 15"), *explicit_lock = ct_lock(ct, c, "row 15 explicit");
    dl_lock_t *wanted = ct_lock(ct, other, "row 15 wanted"), *next = ct_lock(ct, other, "row 15");
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    take(ct, explicit_lock, ct_lease_ms(ct));
    mysql_server_freeze(ct_mysql(ct));
    watch_t lost = start_watch(ct), watch = start_watch(ct);
    CT_EITHER(dl_trylock_for(wanted, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, 50);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 15", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 15 explicit", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(lost, ct_lease_ms(ct));
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_valid_ms(explicit_lock), 0);
    watch = start_watch(ct);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(explicit_lock, CT_ERR), DL_ELOST);
    IN_TIME(watch, 0);
    watch = start_watch(ct);
    CT_EITHER(dl_lock(wanted, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    mysql_server_thaw(ct_mysql(ct));
    /* What it finds in its sockets now are late claims and late renewals. */
    ct_expect_free(ct, "row 15 wanted", ct_call_timeout_ms(ct) + FREE_MS + ct_tolerance_ms(ct));
    CT_OK(dl_trylock_for(next, ct_lease_ms(ct) + 1000 + RETRY_MS, DL_LEASE_AUTO, CT_ERR));
    CT_GT(dl_token(next), token);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).lost, 2);
    CT_OK(dl_unlock(next, CT_ERR));
    ct_expect_free(ct, "row 15", 0);
    ct_expect_free(ct, "row 15 wanted", 0);
}

/* ---- row 18: the server refuses ---------------------------------------------------------------------- */

/* An account of our own, with these rights in the case's database. */
static void make_account(ct_t *ct, const char *rights) {
    char where[MYSQL_DATABASE_MAX + 4];
    snprintf(where, sizeof where, "%s.*", ct_mysql_database(ct));
    (void)mysql_ask(ct_mysql(ct), "DROP USER IF EXISTS 'ali'@'%%'");
    mysql_user(ct_mysql(ct), "ali", rights, where);
}

#define FILLERS 12
#define ALL "SELECT, INSERT, UPDATE, DELETE, CREATE"
#define ALI "user: ali\npassword: \"" MYSQL_SECRET "\""

CT_CASE(faults, row18_login_refused, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c;
    make_tables(ct);
    make_account(ct, ALL);
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, "user: ali\npassword: \"open-barley\"", &c, CT_ERR), DL_EAUTH);
    IN_TIME(watch, 0);
    CT_CHECK(strstr(ct_last_err()->message, "barley") == NULL);
    SAYS("ali");
    CT_STATUS(ct_try_open(ct, "user: nobody\npassword: \"" MYSQL_SECRET "\"", &c, CT_ERR), DL_EAUTH);
    CT_CHECK(strstr(ct_last_err()->message, MYSQL_SECRET) == NULL);
    CT_STATUS(ct_try_open(ct, "user: ali\npassword: \"\"", &c, CT_ERR), DL_EAUTH);
    c = ct_open(ct, ALI);
    dl_lock_t *lock = ct_lock(ct, c, "row 18"), *more = ct_lock(ct, c, "row 18 more");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, ct_lease_ms(ct));
    /* Changed under a client: its connections stay good, new ones are refused; it says why. */
    (void)mysql_ask(ct_mysql(ct), "ALTER USER 'ali'@'%%' IDENTIFIED BY 'another'");
    (void)mysql_kill_connections(ct_mysql(ct), "ali");
    ct_sleep_ms(ct, TRUST_MS);
    CT_STATUS(dl_trylock(more, CT_ERR), DL_EAUTH);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 18", ct_lease_ms(ct) + ct_tolerance_ms(ct));
}

CT_CASE(faults, row18_unknown_database, MYSQL) {
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, "database: dlock_nowhere", &c, CT_ERR), DL_ECONFIG);
    IN_TIME(watch, 0);
    SAYS("dlock_nowhere");
}

CT_CASE(faults, row18_rights_missing, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c;
    make_tables(ct);
    make_account(ct, "SELECT");
    watch_t watch = start_watch(ct);
    dl_status_t status = ct_try_open(ct, ALI, &c, CT_ERR);
    IN_TIME(watch, 0);
    if (status == DL_OK) { /* then the first call has to say so, whose waiting would not help */
        watch = start_watch(ct);
        CT_STATUS(dl_lock(ct_lock(ct, c, "row 18"), CT_ERR), DL_EAUTH);
        IN_TIME(watch, 0);
    } else {
        CT_EQ(status, DL_EAUTH);
    }
    ct_expect_free(ct, "row 18", 0);
    make_account(ct, ALL);
    expect_works(ct, ct_open(ct, ALI), "row 18");
}

CT_CASE(faults, row18_rights_taken_away, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    make_tables(ct);
    make_account(ct, ALL);
    dl_client_t *c = ct_open(ct, ALI);
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *wanted = ct_lock(ct, c, "row 18");
    CT_OK(dl_lock(held, CT_ERR));
    (void)mysql_ask(ct_mysql(ct), "REVOKE " ALL " ON %s.* FROM 'ali'@'%%'", ct_mysql_database(ct));
    (void)mysql_kill_connections(ct_mysql(ct), "ali"); /* those that are there keep their rights */
    ct_sleep_ms(ct, TRUST_MS);
    watch_t watch = start_watch(ct);
    CT_EITHER(dl_lock(wanted, CT_ERR), DL_EAUTH, DL_ECONFIG);
    IN_TIME(watch, 0);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 18 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    (void)mysql_ask(ct_mysql(ct), "GRANT " ALL " ON %s.* TO 'ali'@'%%'", ct_mysql_database(ct));
    expect_back(ct, wanted);
}

CT_CASE(faults, row18_too_many_connections, MYSQL) {
    mysql_server_t *server = ct_mysql_own(ct, NULL);
    make_account(ct, ALL);
    dl_client_t *c = ct_open(ct, LASTING), *late;
    dl_lock_t *lock = ct_lock(ct, c, "row 18");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, 5 * LASTING_EVERY_MS);
    /* Now others take all that are left; ten is the fewest that MariaDB can be told. */
    mysql_hand_t *hands[FILLERS];
    int n = 0;
    char refusal[256] = "";
    (void)mysql_ask(server, "SET GLOBAL max_connections=10");
    while (n < FILLERS &&
           (hands[n] = mysql_hand_as(server, "ali", MYSQL_SECRET, NULL, refusal, sizeof refusal)) != NULL) {
        n++;
    }
    CT_CHECKF(strncmp(refusal, "-1040", 5) == 0, "refused so: %s", refusal);
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_ELIMIT);
    IN_TIME(watch, 100);
    uint64_t renewed = ct_stats(ct, c).renewed;
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 3, 5 * LASTING_EVERY_MS);
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    while (n > 0) {
        mysql_hand_close(hands[--n]);
    }
    CT_AWAIT_THAT(ct_try_open(ct, NULL, &late, NULL), ==, DL_OK, 1000);
    expect_works(ct, late, "row 18");
}

CT_CASE(faults, row18_read_only_at_open, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c;
    make_tables(ct);
    (void)mysql_ask(ct_mysql(ct), "SET GLOBAL read_only=1");
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, NULL, &c, CT_ERR), DL_ENOTSUP);
    IN_TIME(watch, 0);
    SAYS("read");
    (void)mysql_ask(ct_mysql(ct), "SET GLOBAL read_only=0");
    expect_works(ct, ct_open(ct, NULL), "row 18");
}

CT_CASE(faults, row18_read_only_later, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    make_tables(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *wanted = ct_lock(ct, c, "row 18");
    introduce(ct, "row 18");
    take(ct, held, 20 * ct_lease_ms(ct));
    (void)mysql_ask(ct_mysql(ct), "SET GLOBAL read_only=1");
    watch_t watch = start_watch(ct);
    CT_EITHER(dl_trylock(wanted, CT_ERR), DL_ENOTSUP, DL_EIO);
    IN_TIME(watch, 0);
    SAYS("read");
    ct_expect_free(ct, "row 18", 0);
    watch = start_watch(ct);
    dl_status_t status = dl_unlock(held, NULL);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    CT_EQ(dl_hold_count(held), 0);
    if (is_session(ct)) { /* a rollback is no write */
        CT_EQ(status, DL_OK);
    } else {
        CT_NE(status, DL_OK);
    }
    (void)mysql_ask(ct_mysql(ct), "SET GLOBAL read_only=0");
    ct_expect_free(ct, "row 18 held", FREE_MS + ct_tolerance_ms(ct));
    expect_back(ct, wanted);
}

/* Of a driver that keeps them in a table of their own. */
static long long last_token(ct_t *ct) {
    return ct_caps(ct) & DL_CAP_LEASE
               ? 0
               : mysql_number(ct_mysql(ct), "SELECT MAX(token) FROM %s_tokens", table_of(ct));
}

static const char *tokens_of(ct_t *ct) {
    return ct_caps(ct) & DL_CAP_LEASE ? "" : "_tokens";
}

/* read_only does not stop the writes of all accounts; those of locks it has to, also of rows that are
 * missing. */
CT_CASE(faults, row18_read_only_for_an_account_with_all_rights, MYSQL) {
    (void)ct_mysql_own(ct, NULL);
    (void)mysql_ask(ct_mysql(ct), "GRANT ALL PRIVILEGES ON *.* TO '" MYSQL_USER "'@'%%'");
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *wanted = ct_lock(ct, c, "row 18");
    dl_lock_t *done = ct_lock(ct, c, "row 18 done"), *fresh = ct_lock(ct, c, "row 18 new");
    introduce(ct, "row 18");
    CT_OK(dl_lock(held, CT_ERR));
    take(ct, done, 60000);
    (void)mysql_ask(ct_mysql(ct), "SET GLOBAL read_only=1");
    CT_STATUS(dl_unlock(done, CT_ERR), ct_caps(ct) & DL_CAP_LEASE ? DL_ENOTSUP : DL_OK);
    long long last = last_token(ct);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(wanted, CT_ERR), DL_ENOTSUP);
    IN_TIME(watch, 0);
    SAYS("read-only");
    CT_EQ(last_token(ct), last);
    (void)mysql_ask(ct_mysql(ct), "DELETE FROM %s%s WHERE name=''", table_of(ct), tokens_of(ct));
    CT_STATUS(dl_trylock(wanted, CT_ERR), DL_ENOTSUP);
    CT_STATUS(dl_trylock(fresh, CT_ERR), DL_ENOTSUP);
    SAYS("read-only");
    CT_EQ(mysql_number(ct_mysql(ct), "SELECT COUNT(*) FROM %s WHERE name='row 18 new'", table_of(ct)), 0);
    CT_EQ(mysql_number(ct_mysql(ct), "SELECT COUNT(*) FROM %s%s WHERE name=''", table_of(ct), tokens_of(ct)),
          0);
    ct_expect_free(ct, "row 18", 0);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 18 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    (void)mysql_ask(ct_mysql(ct), "SET GLOBAL read_only=0");
    ct_expect_free(ct, "row 18 held", FREE_MS + ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 18 done", FREE_MS + ct_tolerance_ms(ct));
    expect_back(ct, wanted);
}

/* ---- row 33: the server asks for a file of ours ----------------------------------------------------- */

CT_CASE(faults, row33_server_asks_for_a_local_file, MYSQL) {
    /* The answer to LOAD DATA LOCAL INFILE: a packet with 0xfb and a name. This program is large. */
    static const char wish[] = "\x0f\x00\x00\x01\xfb"
                               "/proc/self/exe";
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    for (int i = 0; i < 4; i++) {
        const char *name = fresh_name("row 33");
        proxy_plan_t plan = {.request = claim_of(ct, name),
                             .way = PROXY_REPLIES,
                             .act = PROXY_INSERT,
                             .bytes = wish,
                             .len = sizeof wish - 1};
        int64_t before = proxy_counts(ct, proxy).requests;
        introduce(ct, name);
        proxy_plan(ct, proxy, &plan);
        watch_t watch = start_watch(ct);
        CT_EITHER(dl_trylock(ct_lock(ct, c, name), CT_ERR), DL_EUNKNOWN, DL_EPROTO);
        IN_TIME(watch, ct_call_timeout_ms(ct));
        CT_EQ(proxy_counts(ct, proxy).acts, i + 1);
        ct_expect_free(ct, name, FREE_MS + ct_tolerance_ms(ct));
        CT_LT(proxy_counts(ct, proxy).requests - before, 20000);
        expect_works(ct, c, name);
    }
    proxy_stop(ct, proxy);
}
