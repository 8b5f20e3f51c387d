/* redis_subscriber_faults_test.c - the subscriber when the server dies, hangs, refuses or hangs up. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"

#include "drivers/redis/link/listener.h"

TestSuite(redis_subscriber_faults, .init = set_up, .fini = tear_down, .timeout = 60);

/* Takes back every wake-up that is there, until it sleeps for a moment. */
static void calm(dl_watch_t *w) {
    while (wait_ms(w, 300) == DL_OK) {}
}

/* ---- outages ---------------------------------------------------------------------------------------- */

Test(redis_subscriber_faults, a_restarted_server_wakes_waiters_twice_and_then_hears) {
    dl_watch_t *w = must_watch("orders"), *other = must_watch("other");
    kill_server(&server);
    must_wake(w); /* try again: a message may be lost */
    must_wake(other);
    must_sleep(w); /* not yet long enough for being woken without cause */
    boot_server(&server);
    must_wake(w); /* try again: whatever happened meanwhile was not heard */
    must_wake(other);
    AWAIT_THAT(subscribed_channels(), ==, 2);
    calm(w);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    must_sleep(other);
    cr_assert_eq(atomic_load(&reconnects), 1);
    unwatch(w);
    unwatch(other);
}

Test(redis_subscriber_faults, waiters_look_now_and_then_while_the_server_is_down) {
    dl_watch_t *w = must_watch("orders");
    kill_server(&server);
    must_wake(w);
    uint64_t before_ns = now_shifted();
    for (int i = 0; i < 4; i++) {
        must_wake(w);
    }
    uint64_t took_ns = now_shifted() - before_ns;
    cr_assert_geq(took_ns, 2400 * MS, "woken too often: 4 times in %lu ms", took_ns / MS);
    cr_assert_lt(took_ns, 8 * SECOND);
    unwatch(w);
}

Test(redis_subscriber_faults, while_the_server_is_down_a_new_watch_fails_at_once) {
    dl_watch_t *w = must_watch("orders"), *none;
    kill_server(&server);
    must_wake(w);
    AWAIT_THAT(watch("other", 300, &none), ==, DL_EIO); /* the first may still wait for the connection */
    for (int i = 0; i < 40; i++) {
        if (i == 20) {
            unwatch(w); /* from here on only those that are sent away ask for the server */
        }
        uint64_t before_ns = now_shifted();
        cr_assert_eq(watch("orders", 5000, &none), DL_EIO);
        cr_assert_null(none);
        cr_assert_lt(now_shifted() - before_ns, 100 * MS);
        cr_assert_has(err.message, "refused");
        (void)poll(NULL, 0, 10); /* time for the thread to forget, if it were to */
    }
    boot_server(&server);
    AWAIT_THAT(watch("orders", 5000, &w), ==,
               DL_OK); /* it goes on connecting, though nobody waited meanwhile */
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    unwatch(w);
}

static unsigned known_failures(void) {
    pthread_mutex_lock(&subscriber->mutex);
    unsigned n = subscriber->failures;
    pthread_mutex_unlock(&subscriber->mutex);
    return n;
}

Test(redis_subscriber_faults, the_first_watch_waits_for_a_server_that_comes_up) {
    dl_watch_t *none;
    kill_server(&server);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(watch("orders", 400, &none), DL_EIO);
    cr_assert_geq(now_shifted() - before_ns, 390 * MS);
    cr_assert_has(err.message, "refused");
    cr_assert_gt(known_failures(), 0);
    atomic_fetch_add(&clock_ahead_ns, 30 * SECOND);
    AWAIT_THAT(known_failures(), ==, 0); /* what was known of the server is too old to count */
    before_ns = now_shifted();
    cr_assert_eq(watch("orders", 400, &none), DL_EIO);
    cr_assert_geq(now_shifted() - before_ns, 390 * MS);
    boot_server(&server);
    dl_watch_t *w = NULL;
    AWAIT_THAT(watch("orders", 5000, &w), ==, DL_OK);
    unwatch(w);
}

Test(redis_subscriber_faults, a_killed_connection_comes_back) {
    dl_watch_t *w = must_watch("orders");
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(tell(&server, "CLIENT KILL TYPE pubsub"), 1);
        must_wake(w);
        AWAIT_THAT(subscribed_channels(), ==, 1);
        calm(w);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(w);
    }
    unwatch(w);
    cr_assert_eq(atomic_load(&reconnects), 5);
}

Test(redis_subscriber_faults, a_stopped_server_is_noticed) {
    env.call_timeout_ms = 300;
    dl_watch_t *w = must_watch("orders"), *none;
    calm(w);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    must_wake(w);
    cr_assert_lt(now_shifted() - before_ns, 2 * SECOND);
    /* Now it is down, and connecting to it succeeds while the handshake does not. */
    cr_assert_eq(watch("other", 100, &none), DL_EIO);
    cr_assert_eq(kill(server.pid, SIGCONT), 0);
    AWAIT_THAT(subscribed_channels(), >=, 1);
    calm(w);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    unwatch(w);
}

Test(redis_subscriber_faults, a_healthy_silent_server_is_pinged_and_kept) {
    env.call_timeout_ms = 300;
    dl_watch_t *w = must_watch("orders");
    AWAIT_THAT(calls_of("ping"), >=, 2);
    must_sleep(w);
    unwatch(w);
    AWAIT_THAT(subscribed_channels(), ==, 0);
    long long before = calls_of("ping");
    atomic_fetch_add(&clock_ahead_ns, 5 * SECOND);
    (void)poll(NULL, 0, 300); /* nothing to wait for: that nothing happens is the point */
    cr_assert_eq(calls_of("ping"), before, "without a channel there is nothing to keep alive");
    cr_assert_eq(atomic_load(&reconnects), 0);
}

/* A server that is busy with a script refuses PING and SUBSCRIBE for a while. */
Test(redis_subscriber_faults, a_busy_server_is_no_refusal) {
    dl_watch_t *w = must_watch("orders"), *other = NULL;
    tell(&server, "CONFIG SET lua-time-limit 10");
    redisContext *second = redisConnect("127.0.0.1", server.port);
    cr_assert_eq(redisAppendCommand(second, "EVAL %s 0", "while true do end"), REDIS_OK);
    int done = 0;
    while (!done) {
        cr_assert_eq(redisBufferWrite(second, &done), REDIS_OK);
    }
    (void)poll(NULL, 0, 50); /* past the limit; only then does the server answer at all */
    dl_status_t status = watch("other", 300, &other);
    cr_assert_eq(status, DL_EIO, "%s %s", dl_status_name(status), err.message);
    tell(&server, "SCRIPT KILL");
    AWAIT_THAT(watch("other", 5000, &other), ==, DL_OK);
    AWAIT_THAT(subscribed_channels(), ==, 2);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    cr_assert_eq(atomic_load(&warnings), 0);
    unwatch(w);
    unwatch(other);
    redisFree(second);
}

/* ---- permissions ------------------------------------------------------------------------------------ */

Test(redis_subscriber_faults, who_may_not_subscribe_is_told_and_others_may) {
    tell(&server, "ACL SETUSER ann on >pw ~* +@all resetchannels &mine:*");
    dli_subscriber_close(subscriber, false);
    open_as("ann:pw@");
    dl_watch_t *none, *w = must_watch("mine:1");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(watch("yours:1", 5000, &none), DL_ENOTSUP);
        cr_assert_null(none);
        cr_assert_has(err.message, "NOPERM");
    }
    cr_assert_eq(atomic_load(&warnings), 1);
    cr_assert_has(last_warning, "NOPERM");
    dl_watch_t *second = must_watch("mine:2");
    cr_assert_eq(tell(&server, "PUBLISH mine:1 0"), 1);
    must_wake(w);
    must_sleep(second);
    unwatch(second);
    unwatch(w);
    cr_assert_eq(atomic_load(&reconnects), 0);
}

Test(redis_subscriber_faults, a_permission_taken_away_breaks_its_waits_only) {
    tell(&server, "ACL SETUSER ann on >pw ~* +@all &*");
    dli_subscriber_close(subscriber, false);
    open_as("ann:pw@");
    dl_watch_t *mine = must_watch("mine:1"), *yours = must_watch("yours:1"), *also = must_watch("mine:2");
    tell(&server, "ACL SETUSER ann resetchannels &mine:*"); /* the server closes the connection */
    dl_status_t status = DL_OK;
    AWAIT_THAT((status = wait_ms(yours, 5000)), !=, DL_OK);
    cr_assert_eq(status, DL_ENOTSUP);
    cr_assert_eq(wait_ms(yours, 5000), DL_ENOTSUP, "it stays broken");
    unwatch(yours);
    AWAIT_THAT(subscribed_channels(), ==, 2);
    calm(mine);
    calm(also);
    cr_assert_eq(tell(&server, "PUBLISH mine:1 0"), 1);
    must_wake(mine);
    cr_assert_eq(tell(&server, "PUBLISH mine:2 0"), 1);
    must_wake(also);
    tell(&server, "ACL SETUSER ann allchannels");
    yours = must_watch("yours:1");
    unwatch(mine);
    unwatch(also);
    unwatch(yours);
    cr_assert_eq(atomic_load(&warnings), 1);
}

Test(redis_subscriber_faults, a_wrong_password_is_not_waited_for) {
    dl_watch_t *none;
    tell(&server, "ACL SETUSER ann on >pw ~* +@all");
    dli_subscriber_close(subscriber, false);
    open_as("ann:wrong@");
    uint64_t before_ns = now_shifted();
    cr_assert_eq(watch("orders", 5000, &none), DL_EAUTH, "%s", err.message);
    cr_assert_lt(now_shifted() - before_ns, 2 * SECOND);
    cr_assert_eq(watch("orders", 5000, &none), DL_EAUTH, "%s", err.message);
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
    dl_watch_t *none;
    int fd = mute_listener();
    cr_assert_eq(watch("orders", 100, &none), DL_EIO, "%s", err.message);
    uint64_t before_ns = now_shifted();
    dli_subscriber_close(subscriber, false);
    cr_assert_lt(now_shifted() - before_ns, 500 * MS);
    subscriber = NULL;
    close(fd);
}

static void *stop_soon(void *arg) {
    (void)poll(NULL, 0, 50); /* after the watch has begun; before would be as good */
    cr_assert_eq(eventfd_write(*(int *)arg, 1), 0);
    return NULL;
}

Test(redis_subscriber_faults, a_stop_descriptor_ends_a_watch_in_the_making) {
    pthread_t stopper;
    dl_watch_t *none;
    int fd = mute_listener(), stop_fd = eventfd(0, EFD_CLOEXEC);
    dl_stop_t stop = {{-1, stop_fd}};
    cr_assert_eq(pthread_create(&stopper, NULL, stop_soon, &stop_fd), 0);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(dli_subscriber_watch(subscriber, "orders", 6, in_ms(10000), &stop, &none, &err),
                 DL_ECANCELED);
    cr_assert_lt(now_shifted() - before_ns, 2 * SECOND);
    pthread_join(stopper, NULL);
    close(stop_fd);
    close(fd);
}

/* ---- limits of this process ------------------------------------------------------------------------- */

static int no_thread(pthread_t *thread, void *(*fn)(void *), void *arg) {
    (void)thread;
    (void)fn;
    (void)arg;
    return EAGAIN;
}

Test(redis_subscriber_faults, no_thread_and_no_descriptor_are_limits) {
    dl_watch_t *none;
    struct rlimit few, files;
    env.thread_start = no_thread;
    cr_assert_eq(watch("orders", 5000, &none), DL_ELIMIT, "%s", err.message);
    env.thread_start = start_thread;
    unwatch(must_watch("orders"));
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = files;
    few.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    dl_status_t status = watch("orders", 5000, &none);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    cr_assert_eq(status, DL_ELIMIT, "%s", err.message);
    unwatch(must_watch("orders"));
}
