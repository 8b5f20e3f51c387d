/* mysql_pessimistic_traps_test.c - mysql-pessimistic: what crosses, comes late, or one side alone sees. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pessimistic_fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <sys/ioctl.h>

#include "drivers/mysql/session.h"
#include "mysql_relay.h"

TestSuite(mysql_pessimistic_traps, .init = set_up, .fini = tear_down, .timeout = 120);
TestSuite(mysql_pessimistic_cuts, .init = set_up_own, .fini = tear_down, .timeout = 120);

Test(mysql_pessimistic_traps, a_draw_that_crossed_a_deletion_takes_no_token_back) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    uint64_t deleted = h.grant.token + 1000000000000;
    must_free(&h);
    /* As a draw leaves it that had read the row with the empty name before that was raised. */
    (void)mysql_ask(server, "UPDATE %s." TABLE "_tokens SET token=1 WHERE name='orders'", database);
    (void)mysql_ask(server,
                    "INSERT INTO %s." TABLE "_tokens(name,token,drawn_at) VALUES('',%llu,UTC_TIMESTAMP(6))"
                    " ON DUPLICATE KEY UPDATE token=%llu",
                    database, (unsigned long long)deleted, (unsigned long long)deleted);
    for (uint64_t i = 2, last = deleted; i <= 4; i++, last = h.grant.token) {
        h = must_lock(&c, i < 4 ? "orders" : "new", A, i, 30000);
        cr_assert_gt(h.grant.token, i < 4 ? last : deleted);
        must_free(&h);
    }
    shut(&c);
}

Test(mysql_pessimistic_traps, a_committed_owner_cannot_be_freed_by_force_and_takes_no_time) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    must_free(&h);
    (void)mysql_ask(server, "UPDATE %s." TABLE " SET owner='somebody'", database);
    uint64_t before = atomic_load(&round_trips);
    cr_assert_eq(force_name(&c, "orders"), DL_EFOREIGN, "%s", c.err.message);
    cr_assert_leq(atomic_load(&round_trips) - before, 4);
    shut(&c);
}

/* After a crash a server shows, until it has rolled it back, what a transaction of its earlier run had
 * written. */
Test(mysql_pessimistic_traps, a_marker_of_an_earlier_run_has_nobody_killed) {
    client_t c;
    mysql_server_await_uptime(server, 4);
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    must_free(&h);
    char refusal[256] = "";
    int up_s = 0;
    mysql_hand_t *recovered = mysql_hand(server, database);
    mysql_hand_t *namesake =
        mysql_hand_as(server, MYSQL_USER, MYSQL_SECRET, database, refusal, sizeof refusal);
    cr_assert_not_null(namesake, "%s", refusal);
    (void)mysql_hand_ask(recovered, "BEGIN");
    /* Written a moment before this run began, as far as whole seconds tell. */
    cr_assert_eq(sscanf(mysql_hand_ask(recovered, "SHOW GLOBAL STATUS LIKE 'Uptime'"), "Uptime,%d", &up_s),
                 1);
    (void)mysql_hand_ask(recovered,
                         "UPDATE " TABLE " SET owner='" B "',hold_id=1,client='',lease_ms=30000,"
                         "acquired_at=UTC_TIMESTAMP(6)-INTERVAL %d SECOND,connection_id=%llu "
                         "WHERE name='orders'",
                         up_s, (unsigned long long)mysql_hand_id(namesake));
    cr_assert_eq(driver->force_release(c.state, "orders", 6, in_ms(500), &c.err), DL_EIO, "%s",
                 c.err.message);
    cr_assert_has(c.err.message, "an earlier run", "%s", c.err.message);
    cr_assert_str_eq(mysql_hand_ask(namesake, "SELECT 'alive'"), "alive");
    /* One of this run. */
    (void)mysql_hand_ask(recovered, "UPDATE " TABLE " SET acquired_at=UTC_TIMESTAMP(6) WHERE name='orders'");
    do {
        (void)driver->force_release(c.state, "orders", 6, in_ms(500), &c.err);
    } while (mysql_hand_try(namesake, "SELECT 'alive'")[0] != '-');
    mysql_hand_close(recovered);
    mysql_hand_close(namesake);
    cr_assert_neq(force_name(&c, "orders"), DL_OK, "nobody holds it");
    shut(&c);
}

static uint64_t booted_ns;

static uint64_t now_since_boot(void) {
    return ran_ns() - booted_ns;
}

static int poll_since_boot(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    bool is_instant = deadline_ns != 0 && deadline_ns != DL_NO_DEADLINE;
    return poll_while_it_runs(fds, n, is_instant ? deadline_ns + booted_ns : deadline_ns);
}

static int wait_since_boot(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    bool is_instant = deadline_ns != 0 && deadline_ns != DL_NO_DEADLINE;
    return wait_while_it_runs(cond, mutex, is_instant ? deadline_ns + booted_ns : deadline_ns);
}

/* Its holder has it for longer than the machine runs on which it is forced. */
Test(mysql_pessimistic_traps, a_lock_that_is_older_than_the_machine_can_be_forced) {
    client_t a, c;
    mysql_server_await_uptime(server, 6);
    must_open(&a, UUID_A);
    hold_t h = must_lock(&a, "orders", A, 1, 30000);
    must_free(&h);
    char refusal[256] = "";
    mysql_hand_t *hand = mysql_hand_as(server, MYSQL_USER, MYSQL_SECRET, database, refusal, sizeof refusal);
    cr_assert_not_null(hand, "%s", refusal);
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "UPDATE " TABLE " SET owner='" B "',hold_id=1,client='',lease_ms=30000,"
                               "acquired_at=UTC_TIMESTAMP(6)-INTERVAL 2 SECOND,connection_id=CONNECTION_ID() "
                               "WHERE name='orders'");
    prepare(&c, UUID_B);
    booted_ns = ran_ns() - 1000 * MS;
    c.env.now_ns = now_since_boot;
    c.env.poll = poll_since_boot;
    c.env.cond_wait = wait_since_boot;
    open_prepared(&c);
    cr_assert_eq(driver->force_release(c.state, "orders", 6, now_since_boot() + 5000 * MS, &c.err), DL_OK,
                 "%s", c.err.message);
    cr_assert_eq(mysql_hand_try(hand, "SELECT 'alive'")[0], '-');
    mysql_hand_close(hand);
    shut(&a);
    shut(&c);
}

/* The core takes it out of its watching by its number, which must be nobody else's by then. */
Test(mysql_pessimistic_traps, a_descriptor_to_watch_is_the_holds_own_until_its_end) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t lost = must_lock(&c, "lost", A, 1, 30000);
    struct pollfd hang_up = {.fd = lost.grant.session_fd, .events = POLLRDHUP};
    cr_assert_eq(poll(&hang_up, 1, 0), 0);
    (void)mysql_ask(server, "KILL %lld", holder_of("lost"));
    cr_assert_eq(poll_while_it_runs(&hang_up, 1, in_ms(5000)), 1);
    cr_assert_eq(renew_hold(&lost, 0), DL_ELOST);
    hold_t next = must_lock(&c, "next", A, 2, 30000);
    cr_assert_neq(next.grant.session_fd, lost.grant.session_fd);
    cr_assert_eq(poll(&hang_up, 1, 0), 1, "it is open, and hung up");
    hang_up.fd = next.grant.session_fd;
    cr_assert_eq(poll(&hang_up, 1, 0), 0);
    drop_hold(&lost);
    cr_assert_eq(fcntl(lost.grant.session_fd, F_GETFD), -1);
    must_free(&next);
    shut(&c);
}

/* ---- idle timeouts whose setting was not waited for ---------------------------------------------------- */

static atomic_int cancel_fd = -1; /* written to in the next wait for an answer; -1: none */
static atomic_bool hears_nothing;
static atomic_bool was_cancelled; /* the next wait is for the answer: as long as the server takes */

/* A call is cancelled while its answer is on its way. */
static int poll_cancelled(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (atomic_load(&hears_nothing)) {
        return 0;
    }
    int fd = n == 3 && fds[1].fd >= 0 ? atomic_exchange(&cancel_fd, -1) : -1;
    if (fd >= 0) {
        uint64_t one = 1;
        cr_assert_eq(write(fd, &one, sizeof one), sizeof one);
        atomic_store(&was_cancelled, true);
        fds[0].revents = 0;
        return poll_while_it_runs(fds + 1, n - 1, deadline_ns);
    }
    uint64_t more_ns = atomic_exchange(&was_cancelled, false) ? 5000 * MS : 0;
    return poll_while_it_runs(fds, n, deadline_ns + more_ns);
}

static int patience_of(const hold_t *h) {
    static const char sql[] = "SELECT @@SESSION.wait_timeout";
    const dli_mysql_session_t *session = h->memory;
    dli_mysql_sessions_t *state = h->client->state;
    dli_mysql_answer_t answer;
    dl_error_t err;
    cr_assert_eq(dli_mysql_link_ask(state->mysql.link, session->conn, sql, sizeof sql - 1, in_ms(5000), NULL,
                                    NULL, &answer, &err),
                 DL_OK);
    int seconds = (int)dli_mysql_number(dli_mysql_answer_row(&answer, NULL)[0]);
    dli_mysql_answer_free(&answer);
    return seconds;
}

Test(mysql_pessimistic_traps, a_cancelled_call_leaves_no_idle_timeout_to_the_next_hold) {
    client_t c;
    prepare(&c, UUID_A);
    c.env.poll = poll_cancelled;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 20000);
    must_free(&h);
    int stop_fd = eventfd(0, EFD_CLOEXEC);
    hold_t cancelled = new_hold(&c, "orders", A, 2);
    cancelled.request.lease_ms = 1000;
    cancelled.request.stop.fd[0] = stop_fd;
    unsigned long before = atomic_load(&round_trips);
    atomic_store(&cancel_fd, stop_fd);
    cr_assert_eq(try_hold(&cancelled, 0), DL_ECANCELED, "%s", cancelled.err.message);
    cr_assert_eq(atomic_load(&cancel_fd), -1);
    cr_assert_eq(atomic_load(&round_trips) - before, 2, "its answer is heard, and nothing has to be ended");
    drop_hold(&cancelled);
    h = must_lock(&c, "orders", A, 3, 20000);
    cr_assert_eq(patience_of(&h), 20);
    must_free(&h);
    close(stop_fd);
    shut(&c);
}

Test(mysql_pessimistic_traps, an_extension_without_an_answer_leaves_no_idle_timeout_to_the_next_hold) {
    client_t c;
    prepare(&c, UUID_A);
    c.env.poll = poll_cancelled;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 20000);
    atomic_store(&hears_nothing, true);
    cr_assert_eq(renew_hold(&h, 60000), DL_EUNKNOWN);
    atomic_store(&hears_nothing, false);
    must_free(&h);
    h = must_lock(&c, "orders", A, 2, 20000);
    cr_assert_eq(patience_of(&h), 20);
    must_free(&h);
    shut(&c);
}

/* Each heartbeat starts the idle time again. */
Test(mysql_pessimistic_traps, behind_an_extension_a_silent_holder_is_freed_when_its_lease_is_over) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 20000);
    dli_mysql_session_t *session = h.memory;
    cr_assert_eq(renew_hold(&h, 60000), DL_OK);
    cr_assert_eq(patience_of(&h), 60);
    session->ends_ns -= 20000 * MS; /* so much of it is over */
    cr_assert_eq(renew_hold(&h, 20000), DL_OK);
    int rest_s = patience_of(&h);
    cr_assert_leq(rest_s, 40);
    cr_assert_geq((uint64_t)rest_s * 1000 + SLACK_MS, session->ends_ns / MS - now_ms());
    session->ends_ns -= 30000 * MS;
    cr_assert_eq(renew_hold(&h, 20000), DL_OK);
    cr_assert_eq(patience_of(&h), 20);
    cr_assert_leq(look(&c, "orders").remaining_ms, 20000);
    unsigned long before = atomic_load(&round_trips);
    cr_assert_eq(renew_hold(&h, 20000), DL_OK);
    cr_assert_eq(atomic_load(&round_trips) - before, 1, "nothing changed");
    must_free(&h);
    shut(&c);
}

Test(mysql_pessimistic_traps, an_extension_answered_late_leaves_no_idle_timeout_to_the_next_hold) {
    client_t c;
    prepare(&c, UUID_A);
    c.env.poll = poll_cancelled;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 20000);
    cr_assert_eq(renew_hold(&h, 40000), DL_OK);
    atomic_store(&hears_nothing, true);
    cr_assert_eq(renew_hold(&h, 60000), DL_EUNKNOWN);
    atomic_store(&hears_nothing, false);
    cr_assert_eq(renew_hold(&h, 20000), DL_OK);
    cr_assert_geq(patience_of(&h), 40, "the hold has so much left");
    must_free(&h);
    h = must_lock(&c, "orders", A, 2, 40000);
    cr_assert_eq(patience_of(&h), 40);
    must_free(&h);
    shut(&c);
}

Test(mysql_pessimistic_traps, a_hold_that_ends_behind_a_late_extension_leaves_no_idle_timeout) {
    client_t c;
    prepare(&c, UUID_A);
    c.env.poll = poll_cancelled;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 1000);
    atomic_store(&hears_nothing, true);
    cr_assert_eq(renew_hold(&h, 60000), DL_EUNKNOWN);
    atomic_store(&hears_nothing, false);
    /* The lease goes by the clock that leaves out when this process did not run. */
    for (uint64_t over_ns = h.grant.sent_ns + 1100 * MS; ran_ns() < over_ns;) {
        (void)poll(NULL, 0, 1);
    }
    cr_assert_eq(renew_hold(&h, 1000), DL_ELOST);
    drop_hold(&h);
    h = must_lock(&c, "orders", A, 2, 1000);
    cr_assert_eq(patience_of(&h), 1);
    must_free(&h);
    shut(&c);
}

/* ---- a purge that stands still ----------------------------------------------------------------------------
 */

/* The row with the empty name is raised, and the names' rows are deleted, in one transaction. */
Test(mysql_pessimistic_traps, a_client_that_is_stopped_while_it_purges_keeps_nobody_from_locking) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    uint64_t last = h.grant.token;
    must_free(&h);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "UPDATE " TABLE "_tokens SET token=token+1 WHERE name=''");
    h = must_lock(&c, "orders", A, 2, 30000);
    cr_assert_gt(h.grant.token, last);
    must_free(&h);
    h = must_lock(&c, "new", A, 3, 30000);
    must_free(&h);
    mysql_hand_close(hand);
    shut(&c);
}

/* ---- no row with the empty name --------------------------------------------------------------------------
 */

Test(mysql_pessimistic_traps, a_row_with_the_empty_name_is_made_anew_or_missed_in_words) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    uint64_t last = h.grant.token;
    must_free(&h);
    (void)mysql_ask(server, "DELETE FROM %s." TABLE "_tokens WHERE name=''", database);
    h = must_lock(&c, "orders", A, 2, 30000);
    cr_assert_gt(h.grant.token, last);
    must_free(&h);
    (void)mysql_ask(server, "DELETE FROM %s." TABLE "_tokens WHERE name=''", database);
    (void)mysql_ask(server,
                    "CREATE TRIGGER %s.renames BEFORE INSERT ON %s." TABLE "_tokens FOR EACH ROW"
                    " SET NEW.name=IF(NEW.name='','another',NEW.name)",
                    database, database);
    h = new_hold(&c, "orders", A, 3);
    cr_assert_eq(try_hold(&h, 0), DL_EIO, "%s", h.err.message);
    cr_assert_has(h.err.message, "no row with the empty name in table");
    drop_hold(&h);
    cr_assert(is_row_free("orders"));
    shut(&c);
}

/* ---- a break that the server does not see -------------------------------------------------------------- */

static bool is_drawn(void) {
    return mysql_number(
               server,
               "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB='%s' AND COMMAND='Query'"
               " AND INFO LIKE 'INSERT INTO " TABLE "_tokens%%'",
               database) > 0;
}

Test(mysql_pessimistic_cuts, a_row_locked_on_a_connection_that_only_we_see_broken_is_freed) {
    static relay_t relay;
    client_t c;
    waiter_t w;
    relay_start(&relay, server->path);
    prepare(&c, UUID_A);
    set_text(&c, DLI_MYSQL_OPT_SOCKET, relay.path);
    open_prepared(&c);
    int at = atomic_load(&relay.pairs);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    cr_assert_eq(atomic_load(&relay.pairs), at + 1);
    must_free(&h);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "SELECT token FROM " TABLE "_tokens WHERE name='orders' FOR UPDATE");
    start_waiter(&w, &c, A, 2, -1);
    AWAIT(is_drawn(), 3000);
    atomic_store(&relay.states[at], RELAY_DEAF);
    cr_assert_eq(shutdown(relay.fds[at][0], SHUT_RDWR), 0);
    (void)mysql_hand_ask(hand, "COMMIT");
    cr_assert_eq(end_waiter(&w), DL_EUNKNOWN, "%s", w.hold.err.message);
    cr_assert(!is_row_free("orders"), "the server knows nothing of it");
    cr_assert_eq(free_hold(&w.hold), DL_ELOST, "its session was killed before this looked");
    cr_assert(is_row_free("orders"));
    drop_hold(&w.hold);
    mysql_hand_close(hand);
    shut(&c);
    relay_stop(&relay);
}

static int unread_at(int fd) {
    int n = 0;
    cr_assert_eq(ioctl(fd, FIONREAD, &n), 0);
    return n;
}

static atomic_int renewed_as;

static void *renew_it(void *arg) {
    dl_renewal_t r = renewal(arg, 30000);
    driver->renew(((hold_t *)arg)->client->state, &r, 1, in_ms(15000));
    atomic_store(&renewed_as, (int)r.status);
    return NULL;
}

/* As after a loss while a heartbeat is on its way. */
Test(mysql_pessimistic_cuts, an_own_hold_that_is_being_renewed_is_not_waited_for) {
    static relay_t relay;
    client_t c;
    pthread_t thread;
    relay_start(&relay, server->path);
    prepare(&c, UUID_A);
    set_text(&c, DLI_MYSQL_OPT_SOCKET, relay.path);
    mysql_server_await_uptime(server, 4);
    open_prepared(&c);
    int at = atomic_load(&relay.pairs);
    hold_t old = must_lock(&c, "orders", A, 1, 30000), new = new_hold(&c, "orders", A, 2);
    cr_assert_eq(atomic_load(&relay.pairs), at + 1);
    atomic_store(&relay.states[at], RELAY_DEAF);
    cr_assert_eq(pthread_create(&thread, NULL, renew_it, &old), 0);
    AWAIT_THAT(unread_at(relay.fds[at][0]), >, 0, 3000);
    uint64_t before_ms = now_ms();
    cr_assert_eq(try_hold(&new, 0), DL_OK, "%s", new.err.message);
    pthread_join(thread, NULL);
    cr_assert_eq(atomic_load(&renewed_as), (int)DL_ELOST);
    cr_assert_lt(now_ms() - before_ms, 15000);
    must_free(&new);
    drop_hold(&old);
    shut(&c);
    relay_stop(&relay);
}

/* The answer with this number from now on comes whole, and behind it the socket is shut down, as the guard
 * does to one that is late. 0: none. */
static atomic_int cut_at;

static int poll_cut(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    int ready = poll_while_it_runs(fds, n, deadline_ns);
    if (ready > 0 && fds[0].revents != 0 && atomic_load(&cut_at) > 0 && atomic_fetch_sub(&cut_at, 1) == 1) {
        cr_assert_eq(shutdown(fds[0].fd, SHUT_RDWR), 0);
    }
    return ready;
}

Test(mysql_pessimistic_traps, a_hold_whose_connection_ends_behind_a_good_answer_is_none) {
    client_t c;
    prepare(&c, UUID_A);
    c.env.poll = poll_cut;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    must_free(&h);
    h = new_hold(&c, "orders", A, 2);
    h.request.lease_ms = 30000;
    atomic_store(&cut_at, 3); /* the row, the token, the marker */
    cr_assert_eq(try_hold(&h, 0), DL_EUNKNOWN, "%d: %s", h.err.status, h.err.message);
    cr_assert_eq(atomic_load(&cut_at), 0);
    cr_assert_eq(free_hold(&h), DL_ELOST, "%s", h.err.message);
    cr_assert(is_row_free("orders"));
    drop_hold(&h);
    /* The ping alone; and the idle timeout, the ping, the marker. */
    static const struct {
        int64_t lease_ms;
        int answers;
    } renewals[] = {{30000, 1}, {40000, 1}, {40000, 2}, {40000, 3}};
    for (uint64_t i = 0; i < 4; i++) {
        h = must_lock(&c, "orders", A, i + 3, 30000);
        atomic_store(&cut_at, renewals[i].answers);
        cr_assert_eq(must_lose(&h, renewals[i].lease_ms), DL_LOSS_HANG_UP, "%d", (int)i);
        cr_assert_eq(atomic_load(&cut_at), 0);
        drop_hold(&h);
        AWAIT(is_row_free("orders"), 1000);
    }
    shut(&c);
}

/* ---- a proxy that numbers connections by itself ---------------------------------------------------------
 */

static atomic_int warned;

static void note_warning(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    if (level == DL_LOG_WARNING) {
        cr_assert_not_null(strstr(text, "numbers connections"), "%s", text);
        atomic_fetch_add(&warned, 1);
    }
}

static void note_proxy(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    if (strcmp(subject, "proxy") == 0) {
        cr_assert_eq(level, DL_FINDING_WARNING, "%s", text);
        ++*(int *)arg;
    }
}

static int count_proxies(client_t *c) {
    int n = 0;
    cr_assert_eq(driver->check(c->state, note_proxy, &n, in_ms(10000), &c->err), DL_OK, "%s", c->err.message);
    return n;
}

static long long count_kills(void) {
    const char *text = mysql_ask(server, "SHOW GLOBAL STATUS LIKE 'Com_kill'");
    cr_assert_not_null(strchr(text, ','));
    return atoll(strchr(text, ',') + 1);
}

static long long count_waiters(void) {
    return mysql_number(server,
                        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB='%s' AND "
                        "COMMAND='Query' AND INFO LIKE '%%FOR UPDATE%%'",
                        database);
}

/* Those before wait on the server all the same. */
static void stop_waiter(waiter_t *w, int stop_fd, long long n) {
    uint64_t one = 1;
    AWAIT_THAT(count_waiters(), ==, n, 3000);
    cr_assert_eq(write(stop_fd, &one, sizeof one), sizeof one);
    cr_assert_eq(end_waiter(w), DL_EUNKNOWN, "%s", w->hold.err.message);
}

Test(mysql_pessimistic_cuts, behind_a_proxy_with_numbers_of_its_own_nobody_is_killed) {
    static relay_t relay;
    client_t proxied, direct;
    relay_start(&relay, server->path);
    atomic_store(&relay.renumbers, true);
    must_open(&direct, UUID_B);
    prepare(&proxied, UUID_A);
    set_text(&proxied, DLI_MYSQL_OPT_SOCKET, relay.path);
    proxied.env.report = note_warning;
    open_prepared(&proxied);
    cr_assert_eq(count_proxies(&direct), 0);
    cr_assert_eq(count_proxies(&proxied), 1);
    hold_t h = must_lock(&direct, "orders", B, 1, 30000);
    long long kills = count_kills();
    /* By force; and by waits that are given up, whose connections the server has to end by itself. */
    cr_assert_eq(force_name(&proxied, "orders"), DL_ENOTSUP, "%s", proxied.err.message);
    cr_assert_has(proxied.err.message, "numbers connections");
    for (uint64_t i = 1; i <= 2; i++) {
        waiter_t w;
        int stop_fd = eventfd(0, EFD_CLOEXEC);
        start_waiter(&w, &proxied, A, i, stop_fd);
        stop_waiter(&w, stop_fd, (long long)i);
        cr_assert_eq(free_hold(&w.hold), DL_ELOST, "%s", w.hold.err.message);
        drop_hold(&w.hold);
        close(stop_fd);
    }
    cr_assert_eq(atomic_load(&warned), 1);
    cr_assert_eq(count_kills(), kills);
    cr_assert_eq(renew_hold(&h, 30000), DL_OK);
    must_free(&h);
    /* A hold whose connection is cut ends all the same, and its release sees to that. */
    AWAIT_THAT(count_waiters(), ==, 0, 5000);
    AWAIT(is_row_free("orders"), 5000);
    h = must_lock(&proxied, "orders", A, 3, 30000);
    cr_assert_eq(shutdown(h.grant.session_fd, SHUT_RDWR), 0);
    cr_assert_neq(free_hold(&h), DL_ENOTSUP, "%s", h.err.message);
    cr_assert(is_row_free("orders"));
    drop_hold(&h);
    shut(&direct);
    shut(&proxied);
    relay_stop(&relay);
}

/* ---- a wait that ends on the server, and a ROLLBACK without an answer -----------------------------------
 */

static atomic_int heard_at_most = INT_MAX; /* so many answers from now on */

static int poll_numb(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (n == 3 && atomic_fetch_sub(&heard_at_most, 1) <= 0) {
        return 0;
    }
    return poll_while_it_runs(fds, n, deadline_ns);
}

/* What ends a statement by its time may cross the grant of the row; what says that it is locked does not. */
Test(mysql_pessimistic_traps, a_row_is_unknown_if_it_may_have_come_as_its_wait_ended) {
    static const struct {
        int64_t wait_ms;
        int answers;
        dl_status_t status;
    } tries[] = {{300, INT_MAX, DL_EBUSY}, {300, 1, DL_EUNKNOWN}, {0, INT_MAX, DL_EBUSY}, {0, 1, DL_EBUSY}};
    client_t c, other;
    must_open(&other, UUID_B);
    prepare(&c, UUID_A);
    c.env.poll = poll_numb;
    open_prepared(&c);
    hold_t h = must_lock(&other, "orders", B, 1, 30000);
    for (uint64_t i = 0; i < 4; i++) {
        hold_t mine =
            must_lock(&c, "mine", A, 2 * i + 1, 30000); /* connections are there, and its idle timeout */
        must_free(&mine);
        mine = new_hold(&c, "orders", A, 2 * i + 2);
        mine.request.lease_ms = 30000;
        atomic_store(&heard_at_most, tries[i].answers);
        dl_status_t status = try_hold(&mine, tries[i].wait_ms);
        atomic_store(&heard_at_most, INT_MAX);
        cr_assert_eq(status, tries[i].status, "%d: %d: %s", (int)i, status, mine.err.message);
        cr_assert_eq(mine.grant.busy_is_dlock, 1, "%d: it was another's until then", (int)i);
        drop_hold(&mine);
    }
    must_free(&h);
    shut(&other);
    shut(&c);
}

/* ---- a server that stops in the middle ----------------------------------------------------------------- */

static void *freeze_at_the_draw(void *arg) {
    (void)arg;
    AWAIT(is_drawn(), 3000);
    mysql_server_freeze(server);
    return NULL;
}

Test(mysql_pessimistic_cuts, a_token_without_an_answer_leaves_nothing_locked) {
    client_t c;
    pthread_t freezer;
    must_open(&c, UUID_A);
    hold_t first = must_lock(&c, "orders", A, 1, 30000), h = new_hold(&c, "orders", A, 2);
    must_free(&first);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "LOCK TABLES " TABLE "_tokens WRITE");
    cr_assert_eq(pthread_create(&freezer, NULL, freeze_at_the_draw, NULL), 0);
    h.request.deadline_ns = in_ms(900);
    h.grant = (dl_grant_t){.session_fd = -1};
    cr_assert_eq(driver->try_acquire(c.state, h.memory, &h.request, &h.grant, &h.err), DL_EUNKNOWN, "%d: %s",
                 h.err.status, h.err.message);
    cr_assert_has(h.err.message, "ROLLBACK");
    pthread_join(freezer, NULL);
    mysql_server_thaw(server);
    mysql_hand_close(hand);
    cr_assert_eq(free_hold(&h), DL_ELOST, "as the background free finds it: %s", h.err.message);
    AWAIT(is_row_free("orders"), 1000);
    cr_assert_eq(try_hold(&h, 0), DL_OK, "%s", h.err.message);
    must_free(&h);
    shut(&c);
}

/* ---- a row that is gone -------------------------------------------------------------------------------- */

static long long count_waits_for_rows(void) {
    const char *text = mysql_ask(server, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'");
    cr_assert_not_null(strchr(text, ','));
    return atoll(strchr(text, ',') + 1);
}

/* What is left of a deleted row stays locked by its waiter, who would be in the way of the new row. */
Test(mysql_pessimistic_cuts, a_row_that_was_deleted_is_not_waited_for_again) {
    client_t c;
    waiter_t w;
    must_open(&c, UUID_A);
    hold_t first = must_lock(&c, "orders", A, 1, 30000);
    must_free(&first);
    mysql_hand_t *hand = mysql_hand(server, database);
    long long before = count_waits_for_rows();
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "DELETE FROM " TABLE);
    start_waiter(&w, &c, B, 1, -1);
    AWAIT_THAT(count_waits_for_rows(), >, before, 2000);
    (void)mysql_hand_ask(hand, "COMMIT");
    cr_assert_eq(end_waiter(&w), DL_OK, "%s", w.hold.err.message);
    cr_assert_eq(count_waits_for_rows(), before + 1, "for the deletion, and for nothing else");
    must_free(&w.hold);
    mysql_hand_close(hand);
    shut(&c);
}

static atomic_bool stops; /* whoever hears the next answer */
static sem_t stands, goes_on;

static void stand_behind_an_answer(void *core, dl_count_t what, uint64_t n) {
    note_count(core, what, n);
    if (what == DL_COUNT_ROUND_TRIP && atomic_exchange(&stops, false)) {
        sem_post(&stands);
        sem_wait(&goes_on);
    }
}

/* Between the two only the marker's own statement can tell: validity counts from when that was sent. */
Test(mysql_pessimistic_cuts, a_server_that_becomes_read_only_behind_the_draw_grants_nothing) {
    client_t c;
    waiter_t w;
    (void)mysql_ask(server, "GRANT ALL PRIVILEGES ON *.* TO '" MYSQL_USER "'@'%%'");
    cr_assert(sem_init(&stands, 0, 0) == 0 && sem_init(&goes_on, 0, 0) == 0);
    prepare(&c, UUID_A);
    c.env.count = stand_behind_an_answer;
    open_prepared(&c);
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    must_free(&h);
    mysql_hand_t *hand = mysql_hand(server, database);
    (void)mysql_hand_ask(hand, "BEGIN");
    (void)mysql_hand_ask(hand, "SELECT token FROM " TABLE "_tokens WHERE name='orders' FOR UPDATE");
    start_waiter(&w, &c, A, 2, -1);
    AWAIT(is_drawn(), 3000);
    atomic_store(&stops, true);
    (void)mysql_hand_ask(hand, "ROLLBACK");
    cr_assert_eq(sem_wait(&stands), 0);
    (void)mysql_hand_ask(hand, "SET GLOBAL read_only=1");
    sem_post(&goes_on);
    cr_assert_eq(end_waiter(&w), DL_ENOTSUP, "%s", w.hold.err.message);
    cr_assert_has(w.hold.err.message, "read-only");
    (void)mysql_hand_ask(hand, "SET GLOBAL read_only=0");
    drop_hold(&w.hold);
    mysql_hand_close(hand);
    shut(&c);
}

Test(mysql_pessimistic_cuts, a_server_that_became_read_only_is_not_purged) {
    client_t c;
    (void)mysql_ask(server, "GRANT ALL PRIVILEGES ON *.* TO '" MYSQL_USER "'@'%%'");
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
    open_prepared(&c);
    hold_t h = must_lock(&c, "unused", A, 1, 30000);
    must_free(&h);
    (void)mysql_ask(server, "UPDATE %s." TABLE "_tokens SET drawn_at=drawn_at-INTERVAL 2 HOUR", database);
    for (uint64_t i = 2; i <= 200; i++) { /* one of 64 releases purges */
        h = must_lock(&c, "orders", A, i, 30000);
        (void)mysql_ask(server, "SET GLOBAL read_only=1");
        must_free(&h);
        (void)mysql_ask(server, "SET GLOBAL read_only=0");
    }
    cr_assert_eq(mysql_number(server, "SELECT COUNT(*) FROM %s." TABLE " WHERE name='unused'", database), 1);
    cr_assert_eq(
        mysql_number(server, "SELECT COUNT(*) FROM %s." TABLE "_tokens WHERE name='unused'", database), 1);
    shut(&c);
}
