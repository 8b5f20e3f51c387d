/* redis_subscriber_faults_test.c - the subscriber when the server dies, hangs, refuses or hangs up. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"

#include <netinet/in.h>
#include <sys/socket.h>

TestSuite(redis_subscriber_faults, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- outages ---------------------------------------------------------------------------------------- */

Test(redis_subscriber_faults, a_restarted_server_wakes_waiters_twice_and_then_hears) {
    hearer_t w, other;
    must_watch("orders", &w);
    must_watch("other", &other);
    kill_server(&server);
    must_lose(&w); /* try again: a message may be lost */
    must_lose(&other);
    cr_assert_not(wait_ms(&w, 1500), "told twice that nothing is heard");
    boot_server(&server);
    must_wake(&w); /* try again: whatever happened meanwhile was not heard */
    must_wake(&other);
    cr_assert_eq(subscribed_channels(), 2);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    must_sleep(&other);
    cr_assert_eq(atomic_load(&reconnects), 1);
    unwatch(&w);
    unwatch(&other);
}

/* Whether or not another was there before. */
Test(redis_subscriber_faults, a_watch_of_a_server_that_is_down_hears_once_it_is_there) {
    for (int i = 0; i < 2; i++) {
        hearer_t other, w;
        if (i == 1) {
            must_watch("other", &other);
        }
        kill_server(&server);
        if (i == 1) {
            must_lose(&other);
            unwatch(&other);
        }
        cr_assert_eq(watch("orders", &w), DL_OK, "%s", err.message);
        cr_assert_not(wait_ms(&w, 400), "there is nothing to tell");
        cr_assert_has(subscriber->why.message, "refused");
        boot_server(&server);
        must_wake(&w);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(&w);
        unwatch(&w);
        atomic_fetch_add(&clock_ahead_ns, 11 * SECOND);
        listen_once(0); /* forgets all */
        listen_once(0);
    }
}

/* As while a name leads to the old primary again. */
Test(redis_subscriber_faults, a_connection_to_the_server_that_claims_left_is_lost_each_time) {
    static const char elsewhere[] = "0123456789abcdef0123456789abcdef01234567";
    hearer_t w;
    char own[sizeof elsewhere];
    must_watch("orders", &w);
    snprintf(own, sizeof own, "%s", dli_conn_facts(subscriber->conn)->run_id);
    cr_assert_eq(strlen(own), sizeof own - 1);
    dli_subscriber_follow(subscriber, own);
    must_sleep(&w);
    for (int i = 0; i < 3; i++) {
        dli_subscriber_follow(subscriber, elsewhere);
        must_lose(&w);
        dli_subscriber_follow(subscriber, ""); /* nothing is known for a while */
        must_wake(&w);                         /* it has been made again, and leads to the same server */
    }
    dli_subscriber_follow(subscriber, own); /* claims have come back */
    must_sleep(&w);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    unwatch(&w);
}

static atomic_int attempts; /* to connect */

static int note_random(void *buf, size_t len) {
    atomic_fetch_add(&attempts, 1);
    return dli_sys_real.random(buf, len);
}

/* Each failure draws its pause: 20 ms at most, doubled up to a quarter of a second. */
Test(redis_subscriber_faults, attempts_to_connect_become_rare) {
    hearer_t w;
    kill_server(&server);
    cr_assert_eq(watch("orders", &w), DL_OK);
    env.random = note_random;
    cr_assert_not(wait_ms(&w, 3000));
    cr_assert_geq(atomic_load(&attempts), 6, "%d", atomic_load(&attempts));
    cr_assert_lt(atomic_load(&attempts), 60, "%d", atomic_load(&attempts));
    unwatch(&w);
}

Test(redis_subscriber_faults, a_killed_connection_comes_back) {
    hearer_t w;
    must_watch("orders", &w);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(tell(&server, "CLIENT KILL TYPE pubsub"), 1);
        must_lose(&w);
        must_wake(&w);
        cr_assert_eq(subscribed_channels(), 1);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(&w);
        must_sleep(&w);
    }
    unwatch(&w);
    cr_assert_eq(atomic_load(&reconnects), 5);
}

Test(redis_subscriber_faults, a_server_that_died_while_nobody_listened_is_noticed_at_the_next_look) {
    hearer_t w;
    must_watch("orders", &w);
    kill_server(&server);
    LISTEN_UNTIL(w.told > 0); /* as the client does now and then */
    cr_assert_not(w.hears);
    unwatch(&w);
}

Test(redis_subscriber_faults, a_stopped_server_is_noticed) {
    hearer_t w, other;
    env.call_timeout_ms = 300;
    must_watch("orders", &w);
    must_sleep(&w);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    must_lose(&w);
    cr_assert_lt(now_shifted() - before_ns, 2 * SECOND);
    /* Now it is down, and connecting to it succeeds while the handshake does not. */
    cr_assert_eq(watch("other", &other), DL_OK);
    LISTEN_UNTIL(strstr(subscriber->why.message, "handshake") != NULL);
    cr_assert_eq(w.told + other.told, 0, "there is nothing new to tell");
    cr_assert_eq(kill(server.pid, SIGCONT), 0);
    must_wake(&w);
    must_wake(&other);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    unwatch(&w);
    unwatch(&other);
}

/* A pause of this process is no silence of the server's. */
Test(redis_subscriber_faults, an_answer_that_lay_there_unread_is_no_silence) {
    hearer_t w;
    must_watch("orders", &w);
    for (int i = 0; i < 3; i++) {
        struct pollfd fd;
        uint64_t until_ns;
        atomic_fetch_add(&clock_ahead_ns, 2 * SECOND);
        dli_subscriber_fds(subscriber, &fd, &until_ns); /* asks */
        cr_assert_eq(poll(&fd, 1, 5000), 1, "no answer has come");
        atomic_fetch_add(&clock_ahead_ns, 60 * SECOND);
        dli_subscriber_listen(subscriber, fd.revents);
        cr_assert_eq(w.told, 0, "told of a loss");
    }
    cr_assert_eq(calls_of("ping"), 3);
    unwatch(&w);
}

Test(redis_subscriber_faults, a_healthy_silent_server_is_pinged_and_kept) {
    hearer_t w;
    env.call_timeout_ms = 300;
    must_watch("orders", &w);
    LISTEN_UNTIL(calls_of("ping") >= 2);
    must_sleep(&w);
    unwatch(&w);
    LISTEN_UNTIL(subscribed_channels() == 0);
    listen_once(in_ms(20)); /* hears the last answer */
    long long before = calls_of("ping");
    atomic_fetch_add(&clock_ahead_ns, 5 * SECOND);
    for (int i = 0; i < 10; i++) {
        listen_once(in_ms(20));
    }
    cr_assert_eq(calls_of("ping"), before, "without a channel there is nothing to keep alive");
    cr_assert_eq(atomic_load(&reconnects), 0);
}

/* A server that is busy with a script refuses PING and SUBSCRIBE for a while. */
Test(redis_subscriber_faults, a_busy_server_is_no_refusal) {
    hearer_t w, other;
    must_watch("orders", &w);
    tell(&server, "CONFIG SET lua-time-limit 10");
    redisContext *second = redisConnect("127.0.0.1", server.port);
    cr_assert_eq(redisAppendCommand(second, "EVAL %s 0", "while true do end"), REDIS_OK);
    int done = 0;
    while (!done) {
        cr_assert_eq(redisBufferWrite(second, &done), REDIS_OK);
    }
    (void)poll(NULL, 0, 50); /* past the limit; only then does the server answer at all */
    cr_assert_eq(watch("other", &other), DL_OK);
    cr_assert_not(wait_ms(&other, 300));
    tell(&server, "SCRIPT KILL");
    must_wake(&other);
    LISTEN_UNTIL(w.hears);
    cr_assert_eq(subscribed_channels(), 2);
    (void)wait_ms(&w, 0);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    cr_assert_eq(atomic_load(&warnings), 0);
    unwatch(&w);
    unwatch(&other);
    redisFree(second);
}

/* ---- permissions ------------------------------------------------------------------------------------ */

Test(redis_subscriber_faults, who_may_not_subscribe_is_told_and_others_may) {
    hearer_t w, refused, second;
    tell(&server, "ACL SETUSER ann on >pw ~* +@all resetchannels &mine:*");
    dli_subscriber_close(subscriber, false);
    open_as("ann:pw@");
    must_watch("mine:1", &w);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(watch("yours:1", &refused), DL_OK);
        must_lose(&refused);
        cr_assert_has(subscriber->why.message, "NOPERM");
        must_sleep(&refused);
        unwatch(&refused);
    }
    cr_assert_eq(atomic_load(&warnings), 1);
    cr_assert_has(last_warning, "NOPERM");
    must_watch("mine:2", &second);
    cr_assert_eq(tell(&server, "PUBLISH mine:1 0"), 1);
    must_wake(&w);
    must_sleep(&second);
    unwatch(&second);
    unwatch(&w);
    cr_assert_eq(atomic_load(&reconnects), 0);
}

Test(redis_subscriber_faults, a_permission_taken_away_breaks_its_waits_only) {
    hearer_t mine, yours, also;
    tell(&server, "ACL SETUSER ann on >pw ~* +@all &*");
    dli_subscriber_close(subscriber, false);
    open_as("ann:pw@");
    must_watch("mine:1", &mine);
    must_watch("yours:1", &yours);
    must_watch("mine:2", &also);
    tell(&server, "ACL SETUSER ann resetchannels &mine:*"); /* the server closes the connection */
    must_lose(&mine);
    must_lose(&also);
    must_lose(&yours); /* the loss; the refusal may be another */
    must_wake(&mine);
    must_wake(&also);
    LISTEN_UNTIL(atomic_load(&warnings) == 1);
    cr_assert_not(yours.hears);
    unwatch(&yours);
    cr_assert_eq(subscribed_channels(), 2);
    cr_assert_eq(tell(&server, "PUBLISH mine:1 0"), 1);
    must_wake(&mine);
    cr_assert_eq(tell(&server, "PUBLISH mine:2 0"), 1);
    must_wake(&also);
    tell(&server, "ACL SETUSER ann allchannels");
    must_watch("yours:1", &yours);
    unwatch(&mine);
    unwatch(&also);
    unwatch(&yours);
    cr_assert_eq(atomic_load(&warnings), 1);
}

Test(redis_subscriber_faults, a_wrong_password_is_not_heard_and_may_become_right) {
    hearer_t w;
    tell(&server, "ACL SETUSER ann on >pw ~* &* +@all");
    dli_subscriber_close(subscriber, false);
    open_as("ann:wrong@");
    cr_assert_eq(watch("orders", &w), DL_OK);
    cr_assert_not(wait_ms(&w, 300));
    cr_assert_has(subscriber->why.message, "WRONGPASS");
    tell(&server, "ACL SETUSER ann >wrong");
    must_wake(&w);
    unwatch(&w);
}

/* ---- a server that never answers -------------------------------------------------------------------- */

static int mute_listener(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, len), 0);
    cr_assert_eq(listen(fd, 8), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    dli_subscriber_close(subscriber, false);
    endpoint_of("", ntohs(address.sin_port));
    cr_assert_eq(dli_subscriber_open(&endpoint, &env, &subscriber, &err), DL_OK);
    return fd;
}

Test(redis_subscriber_faults, closing_while_connecting_is_prompt) {
    hearer_t w;
    int fd = mute_listener();
    cr_assert_eq(watch("orders", &w), DL_OK);
    cr_assert_not(wait_ms(&w, 100));
    unwatch(&w);
    uint64_t before_ns = now_shifted();
    dli_subscriber_close(subscriber, false);
    cr_assert_lt(now_shifted() - before_ns, 500 * MS);
    subscriber = NULL;
    close(fd);
}

/* ---- limits of this process ------------------------------------------------------------------------- */

Test(redis_subscriber_faults, a_descriptor_that_is_missing_is_tried_for_again) {
    hearer_t w;
    struct rlimit few, files;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = files;
    few.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    dl_status_t status = watch("orders", &w);
    bool told = wait_ms(&w, 100);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    cr_assert_not(told);
    cr_assert_has(subscriber->why.message, "Too many open files");
    must_wake(&w);
    unwatch(&w);
}
