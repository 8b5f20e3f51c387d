/* redis_subscriber_test.c - the subscriber on a healthy server: waking, lingering, closing, fork(). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"

TestSuite(redis_subscriber, .init = set_up, .fini = tear_down, .timeout = 60);

#define MANY 2000

/* ---- waking ----------------------------------------------------------------------------------------- */

Test(redis_subscriber, a_message_wakes_the_watch_once) {
    dl_watch_t *w = must_watch("orders");
    must_sleep(w);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    must_sleep(w);
    cr_assert_eq(tell(&server, "PUBLISH other 0"), 0);
    must_sleep(w);
    unwatch(w);
}

Test(redis_subscriber, a_message_between_watch_and_wait_is_not_lost) {
    char channel[32];
    for (int i = 0; i < 200; i++) {
        snprintf(channel, sizeof channel, "orders:%d", i);
        dl_watch_t *w = must_watch(channel);
        cr_assert_eq(tell(&server, "PUBLISH %s 0", channel), 1, "%s is not subscribed to", channel);
        must_wake(w);
        unwatch(w);
    }
}

Test(redis_subscriber, channels_are_any_bytes) {
    dl_watch_t *one, *other;
    cr_assert_eq(dli_subscriber_watch(subscriber, "a\r\n\0b", 5, in_ms(5000), &no_stop, &one, &err), DL_OK);
    cr_assert_eq(dli_subscriber_watch(subscriber, "a\r\n\0c", 5, in_ms(5000), &no_stop, &other, &err), DL_OK);
    cr_assert_eq(tell(&server, "PUBLISH %b 0", "a\r\n\0c", (size_t)5), 1);
    must_wake(other);
    must_sleep(one);
    unwatch(one);
    unwatch(other);
}

Test(redis_subscriber, a_stop_descriptor_ends_a_wait) {
    dl_watch_t *w = must_watch("orders");
    int fd = eventfd(1, EFD_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        dl_stop_t stop = {{i == 0 ? fd : -1, i == 1 ? fd : -1}};
        cr_assert_eq(dli_subscriber_wait(subscriber, w, in_ms(10000), &stop, &err), DL_ECANCELED);
    }
    close(fd);
    unwatch(w);
}

/* ---- sharing ---------------------------------------------------------------------------------------- */

Test(redis_subscriber, watches_of_a_channel_share_its_subscription) {
    dl_watch_t *w[3];
    for (int i = 0; i < 3; i++) {
        w[i] = must_watch("orders");
    }
    cr_assert_eq(calls_of("subscribe"), 1);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    for (int i = 0; i < 3; i++) {
        must_wake(w[i]);
    }
    unwatch(w[1]);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w[0]);
    must_wake(w[2]);
    unwatch(w[2]);
    unwatch(w[0]);
    cr_assert_eq(atomic_load(&threads), 1 /* an address in digits needs no thread to resolve it */);
}

Test(redis_subscriber, a_subscription_lingers_and_then_ends) {
    uint64_t before_ns = now_shifted();
    for (int i = 0; i < 50; i++) {
        unwatch(must_watch("orders"));
    }
    cr_assert_eq(calls_of("subscribe"), 1);
    cr_assert_eq(subscribed_channels(), 1);
    AWAIT_THAT(subscribed_channels(), ==, 0);
    cr_assert_geq(now_shifted() - before_ns, 900 * MS);
    cr_assert_lt(now_shifted() - before_ns, 4 * SECOND);
    cr_assert_eq(calls_of("unsubscribe"), 1);
    dl_watch_t *w = must_watch("orders");
    cr_assert_eq(calls_of("subscribe"), 2);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    unwatch(w);
}

Test(redis_subscriber, a_connection_without_channels_is_closed_and_comes_back) {
    unwatch(must_watch("orders"));
    AWAIT_THAT(subscribed_channels(), ==, 0);
    int before = open_descriptors();
    atomic_fetch_add(&clock_ahead_ns, 11 * SECOND);
    AWAIT_THAT(open_descriptors(), ==, before - 1);
    dl_watch_t *w = must_watch("orders");
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(w);
    unwatch(w);
    cr_assert_eq(atomic_load(&reconnects), 0);
}

Test(redis_subscriber, two_thousand_channels) {
    static dl_watch_t *w[MANY];
    char channel[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(channel, sizeof channel, "orders:%d", i);
        w[i] = must_watch(channel);
    }
    cr_assert_eq(subscribed_channels(), MANY);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) {
            cr_assert_eq(tell(&server, "PUBLISH orders:%d 0", i), 1);
        }
        for (int i = 0; i < MANY; i++) {
            must_wake(w[i]);
        }
        must_sleep(w[MANY / 2]);
        if (round == 0) {
            long long before = calls_of("subscribe");
            cr_assert_eq(tell(&server, "CLIENT KILL TYPE pubsub"), 1);
            AWAIT_THAT(subscribed_channels(), ==, MANY);
            cr_assert_leq(calls_of("subscribe") - before, 10, "many channels go into one command");
            AWAIT_THAT(wait_ms(w[MANY - 1], 0), ==, DL_OK); /* all have been woken, some once, some twice */
            for (int i = 0; i < MANY; i++) {
                while (wait_ms(w[i], i == 0 ? 300 : 0) == DL_OK) {}
            }
        }
    }
    for (int i = 0; i < MANY; i++) {
        unwatch(w[i]);
    }
}

/* ---- many threads ----------------------------------------------------------------------------------- */

#define THREADS 8
#define TURNS 200

static int kills_wanted; /* 0: the connection is left alone */
static atomic_bool over;
static atomic_int failures;

static void *publish_all_the_time(void *arg) {
    (void)arg;
    redisContext *context = redisConnect("127.0.0.1", server.port);
    for (int i = 1; !atomic_load(&over); i++) {
        freeReplyObject(redisCommand(context, "PUBLISH orders:%d 0", i % 5));
        if (kills_wanted > 0 && i % 100 == 0) {
            freeReplyObject(redisCommand(context, "CLIENT KILL TYPE pubsub"));
        }
    }
    redisFree(context);
    return NULL;
}

static void *watch_and_wait(void *arg) {
    int number = *(int *)arg;
    char channel[32];
    for (int i = 0; i < TURNS || atomic_load(&reconnects) < kills_wanted; i++) {
        dl_watch_t *w;
        dl_error_t mine;
        snprintf(channel, sizeof channel, "orders:%d", (number + i) % 5);
        if (dli_subscriber_watch(subscriber, channel, strlen(channel), in_ms(10000), &no_stop, &w, &mine) !=
            DL_OK) {
            atomic_fetch_add(&failures, 1);
            continue;
        }
        if (dli_subscriber_wait(subscriber, w, in_ms(10000), &no_stop, &mine) != DL_OK) {
            atomic_fetch_add(&failures, 1);
        }
        dli_subscriber_unwatch(subscriber, w);
    }
    return NULL;
}

static void watch_in_threads(void) {
    pthread_t publisher, waiters[THREADS];
    int numbers[THREADS];
    cr_assert_eq(pthread_create(&publisher, NULL, publish_all_the_time, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        cr_assert_eq(pthread_create(&waiters[i], NULL, watch_and_wait, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(waiters[i], NULL);
    }
    atomic_store(&over, true);
    pthread_join(publisher, NULL);
    cr_assert_eq(atomic_load(&failures), 0);
}

Test(redis_subscriber, threads_watch_while_messages_rain) {
    watch_in_threads();
    cr_assert_eq(atomic_load(&reconnects), 0);
}

Test(redis_subscriber, threads_watch_while_connections_are_killed) {
    kills_wanted = 5;
    watch_in_threads();
}

/* ---- closing and fork() ----------------------------------------------------------------------------- */

Test(redis_subscriber, closing_gives_every_descriptor_back) {
    dli_subscriber_close(subscriber, false);
    int before = open_descriptors();
    open_as("");
    dli_subscriber_close(subscriber, false); /* nobody ever watched */
    open_as("");
    unwatch(must_watch("orders"));
    uint64_t closing_ns = now_shifted();
    dli_subscriber_close(subscriber, false);
    cr_assert_lt(now_shifted() - closing_ns, 500 * MS);
    dli_subscriber_close(NULL, false);
    cr_assert_eq(open_descriptors(), before);
    open_as("");
}

static void *wait_for_message(void *arg) {
    return (void *)(intptr_t)wait_ms(arg, 10000);
}

Test(redis_subscriber, a_forked_child_only_closes_descriptors) {
    dli_subscriber_close(subscriber, false);
    int before = open_descriptors();
    open_as("");
    dl_watch_t *w = must_watch("orders");
    dl_watch_t *other = must_watch("other");
    unwatch(must_watch("third"));
    pthread_t waiter;
    cr_assert_eq(pthread_create(&waiter, NULL, wait_for_message, w), 0);
    pid_t child = fork();
    if (child == 0) {
        dli_subscriber_close(subscriber, true);
        _exit(open_descriptors() == before ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    void *result;
    pthread_join(waiter, &result);
    cr_assert_eq((dl_status_t)(intptr_t)result, DL_OK);
    cr_assert_eq(tell(&server, "PUBLISH other 0"), 1);
    must_wake(other);
    cr_assert_eq(calls_of("subscribe"), 3);
    unwatch(other);
    unwatch(w);
}
