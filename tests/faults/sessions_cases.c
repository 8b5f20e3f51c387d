/* sessions_cases.c - faults of a MySQL server's sessions (rows 8, 26, 27): killed, cut, idle, waited in. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/mysql_wire.h"

/* ---- row 26: connections are killed -------------------------------------------------------------------- */

static void kill_holder(ct_t *ct, const char *name) {
    mysql_hand_t *hand = mysql_hand(ct_mysql(ct), NULL);
    (void)mysql_hand_ask(hand, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED");
    long long id = atoll(mysql_hand_ask(hand, "SELECT connection_id FROM %s WHERE name=x'%s'", table_of(ct),
                                        name_of(ct, name)));
    CT_GT(id, 0);
    (void)mysql_hand_ask(hand, "KILL CONNECTION %lld", id);
    mysql_hand_close(hand);
}

static void lose_connection(ct_t *ct, int64_t lease_ms) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 26"), *next = ct_lock(ct, other, "row 26");
    take(ct, lock, lease_ms);
    take(ct, lock, lease_ms);
    uint64_t token = dl_token(lock);
    caller_t waiter = CALLER(next, DL_WAIT_FOREVER);
    waiter.keep = ct_latch(ct, 1);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, other, 1, 5000);
    watch_t watch = start_watch(ct);
    kill_holder(ct, "row 26");
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "row 26", ct_lease_ms(ct));
    CT_EQ(lost.status, DL_ELOST);
    IN_TIME(watch, ct_lease_ms(ct) / 3); /* one heartbeat */
    CT_EQ(dl_valid_ms(lock), 0);
    CT_AWAIT_THAT(ct_stats(ct, other).held_now, ==, 1, RETRY_MS + ct_tolerance_ms(ct));
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).lost, 1);
    ct_expect_held(ct, "row 26");
    ct_latch_down(ct, waiter.keep);
    end_caller(ct, &waiter, DL_OK);
    CT_GT(waiter.token, token);
    CT_EQ(ct_stats(ct, other).lost, 0);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_GT(dl_token(lock), waiter.token);
}

CT_CASE(faults, row26_holding_connection_killed, MYSQL, .needs = DL_CAP_SESSION) {
    lose_connection(ct, DL_LEASE_AUTO);
}

CT_CASE(faults, row26_holding_connection_killed_with_an_explicit_lease, MYSQL, .needs = DL_CAP_SESSION) {
    lose_connection(ct, 20 * ct_lease_ms(ct));
}

/* Nobody has said that another holds it: there is nobody who could. */
CT_CASE(faults, row26_a_loss_by_a_server_that_is_gone, MYSQL, .needs = DL_CAP_SESSION) {
    mysql_server_t *server = ct_mysql_own(ct, NULL);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *renewed = ct_lock(ct, c, "row 26"), *explicit_lock = ct_lock(ct, c, "row 26 explicit");
    CT_OK(dl_lock(renewed, CT_ERR));
    take(ct, explicit_lock, 20 * ct_lease_ms(ct));
    mysql_server_kill(server);
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "row 26" : "row 26 explicit";
        dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, name, ct_lease_ms(ct));
        CT_STR_EQ(lost.text, "the connection that held it has ended");
    }
    mysql_server_boot(server);
    ct_expect_free(ct, "row 26", 5000);
}

CT_CASE(faults, row26_all_connections_killed, MYSQL, .needs = DL_CAP_LEASE) {
    (void)ct_mysql_own(ct, NULL);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 26"), *explicit_lock = ct_lock(ct, c, "row 26 explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, 20 * ct_lease_ms(ct));
    uint64_t token = dl_token(lock), renewed = 0;
    for (int i = 0; i < 4; i++) {
        CT_AWAIT_THAT(ct_stats(ct, c).renewed, >, renewed, ct_lease_ms(ct));
        renewed = ct_stats(ct, c).renewed;
        (void)mysql_kill_connections(ct_mysql(ct), MYSQL_USER);
        expect_works(ct, c, "row 26 again");
    }
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), token);
    CT_EQ(ct_stats(ct, c).lost, 0);
    (void)mysql_kill_connections(ct_mysql(ct), MYSQL_USER);
    CT_OK(dl_unlock(explicit_lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 26", 0);
}

CT_CASE(faults, row26_waiting_connection_killed, MYSQL, .needs = DL_CAP_NATIVE_WAIT) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 26"), *wanted = ct_lock(ct, b, "row 26");
    take(ct, held, 20 * ct_lease_ms(ct));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    for (int i = 0; i < 3; i++) {
        long long id = 0;
        CT_AWAIT_THAT(waiting_connections(ct, &id), >, 0, 5000);
        (void)mysql_try(ct_mysql(ct), "KILL CONNECTION %lld", id);
    }
    CT_AWAIT_THAT(waiting_connections(ct, NULL), >, 0, 5000); /* it goes on waiting, on another */
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 26", 0);
}

static long long last_token_drawn(ct_t *ct) {
    return mysql_number(ct_mysql(ct), "SELECT COALESCE(MAX(token), 0) FROM %s_tokens WHERE name=x'%s'",
                        table_of(ct), name_of(ct, "row 26"));
}

/* The connection of a holder ends when its token is drawn, and before it has heard so. */
CT_CASE(faults, row26_cut_between_token_and_grant, MYSQL, .needs = DL_CAP_SESSION) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 26"), *theirs = ct_lock(ct, other, "row 26");
    uint64_t token = 0;
    for (int i = 0; i < 4; i++) {
        long long drawn = last_token_drawn(ct);
        lose_reply(ct, proxy, "_tokens", i % 2 == 0 ? PROXY_CUT : PROXY_RESET);
        CT_EITHER(dl_trylock(lock, CT_ERR), DL_EUNKNOWN, DL_EIO);
        CT_EQ(proxy_counts(ct, proxy).acts, i + 1);
        CT_GT(last_token_drawn(ct), drawn); /* so it was drawn for nobody */
        ct_expect_free(ct, "row 26", FREE_MS + ct_tolerance_ms(ct));
        CT_OK(dl_trylock(theirs, CT_ERR));
        CT_GT(dl_token(theirs), token);
        CT_GT((long long)dl_token(theirs), drawn);
        token = dl_token(theirs);
        CT_OK(dl_unlock(theirs, CT_ERR));
    }
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
    CT_OK(dl_unlock(lock, CT_ERR));
    proxy_stop(ct, proxy);
}

/* ---- row 27: the server has no patience with idle sessions ------------------------------------------ */

static void set_impatient(ct_t *ct) {
    (void)ct_mysql_own(ct, NULL);
    mysql_server_t *server = ct_mysql(ct);
    (void)mysql_ask(server, "SET GLOBAL wait_timeout=1");
    (void)mysql_ask(server, "SET GLOBAL interactive_timeout=1");
    (void)mysql_ask(server, "SET GLOBAL net_read_timeout=1");
    /* Those only MariaDB has. */
    (void)mysql_try(server, "SET GLOBAL idle_transaction_timeout=1");
    (void)mysql_try(server, "SET GLOBAL idle_write_transaction_timeout=1");
    (void)mysql_try(server, "SET GLOBAL idle_readonly_transaction_timeout=1");
}

CT_CASE(faults, row27_impatient_server_and_idle_connections, MYSQL) {
    set_impatient(ct);
    dl_client_t *c = ct_open(ct, NULL);
    expect_works(ct, c, "row 27");
    uint64_t reconnects = ct_stats(ct, c).reconnects;
    ct_sleep_ms(ct, 2500);
    expect_works(ct, c, "row 27");
    CT_EQ(ct_stats(ct, c).reconnects, reconnects);
}

/* The lease is longer than the server's own patience, and nobody says a word for a third of it. */
CT_CASE(faults, row27_impatient_server_and_a_long_lease, MYSQL) {
    set_impatient(ct);
    dl_client_t *c = ct_open(ct, "lease: 6s");
    dl_lock_t *lock = ct_lock(ct, c, "row 27"), *explicit_lock = ct_lock(ct, c, "row 27 explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, 10000);
    uint64_t token = dl_token(lock);
    ct_no_event(ct, c, 0, NULL, 2800);
    ct_expect_held(ct, "row 27");
    ct_expect_held(ct, "row 27 explicit");
    CT_EQ(dl_token(lock), token);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(explicit_lock, CT_ERR));
}

/* ---- row 8: a wait on the server ends --------------------------------------------------------------- */

/* Nobody holds or waits for the row: another can lock it at once. */
static void expect_row_free(ct_t *ct, const char *name) {
    CT_AWAIT_THAT(waiting_connections(ct, NULL), ==, 0, ct_tolerance_ms(ct));
    const char *row = mysql_ask(ct_mysql(ct), "SELECT 'mine' FROM %s WHERE name=x'%s' FOR UPDATE NOWAIT",
                                table_of(ct), name_of(ct, name));
    CT_STR_EQ(row, "mine");
}

/* How soon a cancel or a close ends a wait, as promised. */
#define END_MS 100

static void end_native_wait(ct_t *ct, int by_close) {
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 8");
    for (int i = 0; i < 5; i++) {
        dl_client_t *b = ct_open(ct, NULL);
        take(ct, held, 20 * ct_lease_ms(ct));
        caller_t waiter = CALLER(ct_lock(ct, b, "row 8"), DL_WAIT_FOREVER);
        CT_OK(dl_cancel_new(&waiter.opts.cancel, CT_ERR));
        start_caller(ct, &waiter);
        CT_AWAIT_THAT(waiting_connections(ct, NULL), >, 0, 5000);
        ct_sleep_ms(ct, 10 * i);
        int64_t before_ms = ct_now_ms(ct);
        if (by_close) {
            ct_close(ct, b);
        } else {
            dl_cancel_trigger(waiter.opts.cancel);
        }
        end_caller(ct, &waiter, by_close ? DL_ECLOSED : DL_ECANCELED);
        CT_LE(waiter.ended_ms - before_ms, END_MS * ct_lease_ms(ct) / 400 + ct_stood_ms(ct));
        CT_OK(dl_unlock(held, CT_ERR));
        ct_expect_free(ct, "row 8", 0);
        expect_row_free(ct, "row 8");
        dl_cancel_free(waiter.opts.cancel);
    }
}

CT_CASE(faults, row08_cancel_of_a_wait_on_the_server, MYSQL, .needs = DL_CAP_NATIVE_WAIT) {
    end_native_wait(ct, 0);
}

CT_CASE(faults, row08_close_of_a_wait_on_the_server, MYSQL, .needs = DL_CAP_NATIVE_WAIT) {
    end_native_wait(ct, 1);
}
