/* redis_subscriber_test.c - the subscriber on a healthy server: waking, sharing, closing, fork(). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"

TestSuite(redis_subscriber, .init = set_up, .fini = tear_down, .timeout = 60);

#define MANY 2000

/* ---- waking ----------------------------------------------------------------------------------------- */

Test(redis_subscriber, a_message_wakes_the_watch_once) {
    hearer_t w;
    must_watch("orders", &w);
    must_sleep(&w);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    must_sleep(&w);
    cr_assert_eq(tell(&server, "PUBLISH other 0"), 0);
    must_sleep(&w);
    unwatch(&w);
}

Test(redis_subscriber, a_message_between_watch_and_wait_is_not_lost) {
    char channel[32];
    for (int i = 0; i < 200; i++) {
        hearer_t w;
        snprintf(channel, sizeof channel, "orders:%d", i);
        must_watch(channel, &w);
        cr_assert_eq(tell(&server, "PUBLISH %s 0", channel), 1, "%s is not subscribed to", channel);
        must_wake(&w);
        unwatch(&w);
    }
}

Test(redis_subscriber, nobody_hears_before_the_server_has_confirmed_it) {
    hearer_t w, late;
    must_watch("orders", &w);
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    cr_assert_eq(waitpid(server.pid, NULL, WUNTRACED), server.pid);
    cr_assert_eq(watch("late", &late), DL_OK);
    must_sleep(&late);
    cr_assert_eq(kill(server.pid, SIGCONT), 0);
    must_wake(&late);
    unwatch(&late);
    unwatch(&w);
}

Test(redis_subscriber, what_nobody_read_wakes_no_later_watch) {
    for (int i = 0; i < 10; i++) {
        hearer_t w;
        struct pollfd fd;
        uint64_t until_ns;
        must_watch("orders", &w);
        must_sleep(&w);
        unwatch(&w);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        dli_subscriber_fds(subscriber, &fd, &until_ns);
        cr_assert_eq(poll(&fd, 1, 5000), 1, "no message lies there");
        cr_assert_eq(watch("orders", &w), DL_OK);
        LISTEN_UNTIL(w.told > 0);
        cr_assert_eq(w.told, 1, "that it hears, and nothing of the message that was there before");
        w.told = 0;
        must_sleep(&w);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(&w);
        unwatch(&w);
    }
}

Test(redis_subscriber, channels_are_any_bytes) {
    hearer_t one = {.watcher.heard = note_heard}, other = one;
    cr_assert_eq(dli_subscriber_watch(subscriber, "a\r\n\0b", 5, &one.watcher, &err), DL_OK);
    cr_assert_eq(dli_subscriber_watch(subscriber, "a\r\n\0c", 5, &other.watcher, &err), DL_OK);
    must_wake(&one);
    must_wake(&other);
    cr_assert_eq(tell(&server, "PUBLISH %b 0", "a\r\n\0c", (size_t)5), 1);
    must_wake(&other);
    must_sleep(&one);
    unwatch(&one);
    unwatch(&other);
}

/* ---- sharing ---------------------------------------------------------------------------------------- */

Test(redis_subscriber, watches_of_a_channel_share_its_subscription) {
    hearer_t w[3];
    int threads = running_threads();
    for (int i = 0; i < 3; i++) {
        must_watch("orders", &w[i]);
    }
    cr_assert_eq(subscribed_channels(), 1);
    for (int i = 0; i < 3; i++) {
        (void)wait_ms(&w[i], 0); /* those who were there may be told of one that joins */
    }
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    for (int i = 0; i < 3; i++) {
        must_wake(&w[i]);
    }
    unwatch(&w[1]);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w[0]);
    must_wake(&w[2]);
    unwatch(&w[2]);
    unwatch(&w[0]);
    cr_assert_eq(running_threads(), threads, "an address in digits needs no thread, nor does listening");
}

Test(redis_subscriber, before_the_first_watch_there_is_nothing_to_poll) {
    struct pollfd fd;
    uint64_t until_ns;
    dli_subscriber_fds(subscriber, &fd, &until_ns);
    cr_assert_eq(fd.fd, -1);
    cr_assert_eq(until_ns, DL_NO_DEADLINE);
}

Test(redis_subscriber, a_subscription_ends_with_its_last_watch) {
    hearer_t w;
    must_watch("orders", &w);
    cr_assert_eq(subscribed_channels(), 1);
    unwatch(&w);
    LISTEN_UNTIL(subscribed_channels() == 0);
    cr_assert_eq(calls_of("unsubscribe"), 1);
    must_watch("orders", &w);
    cr_assert_eq(calls_of("subscribe"), 2);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    unwatch(&w);
}

Test(redis_subscriber, a_connection_without_channels_is_closed_and_comes_back) {
    hearer_t w;
    must_watch("orders", &w);
    unwatch(&w);
    LISTEN_UNTIL(subscribed_channels() == 0);
    listen_once(in_ms(20)); /* hears the last answer */
    int before = open_descriptors();
    atomic_fetch_add(&clock_ahead_ns, 11 * SECOND);
    LISTEN_UNTIL(open_descriptors() == before - 1);
    must_watch("orders", &w);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    unwatch(&w);
    cr_assert_eq(atomic_load(&reconnects), 0);
}

Test(redis_subscriber, two_thousand_channels) {
    static hearer_t w[MANY];
    char channel[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(channel, sizeof channel, "orders:%d", i);
        must_watch(channel, &w[i]);
    }
    cr_assert_eq(subscribed_channels(), MANY);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) {
            cr_assert_eq(tell(&server, "PUBLISH orders:%d 0", i), 1);
        }
        for (int i = 0; i < MANY; i++) {
            must_wake(&w[i]);
        }
        must_sleep(&w[MANY / 2]);
        if (round == 0) {
            long long before = calls_of("subscribe");
            cr_assert_eq(tell(&server, "CLIENT KILL TYPE pubsub"), 1);
            for (int i = 0; i < MANY; i++) {
                must_lose(&w[i]);
            }
            for (int i = 0; i < MANY; i++) {
                must_wake(&w[i]);
            }
            cr_assert_eq(subscribed_channels(), MANY);
            cr_assert_eq(calls_of("subscribe") - before, MANY, "each is asked for once");
        }
    }
    for (int i = 0; i < MANY; i++) {
        unwatch(&w[i]);
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

static void *listen_all_the_time(void *arg) {
    (void)arg;
    while (!atomic_load(&over)) {
        listen_once(in_ms(1)); /* those who watch wake nobody */
    }
    return NULL;
}

/* Told on the thread that listens. */
typedef struct sleeper {
    dli_watcher_t watcher; /* the first */
    int fd;
} sleeper_t;

static void wake_sleeper(dli_watcher_t *watcher, bool hears, const char *message) {
    (void)message;
    if (hears) {
        (void)eventfd_write(((sleeper_t *)watcher)->fd, 1);
    }
}

static void *watch_and_wait(void *arg) {
    int number = *(int *)arg;
    char channel[32];
    sleeper_t sleeper = {.watcher.heard = wake_sleeper, .fd = eventfd(0, EFD_CLOEXEC)};
    for (int i = 0; i < TURNS || atomic_load(&reconnects) < kills_wanted; i++) {
        dl_error_t mine;
        snprintf(channel, sizeof channel, "orders:%d", (number + i) % 5);
        if (dli_subscriber_watch(subscriber, channel, strlen(channel), &sleeper.watcher, &mine) != DL_OK) {
            atomic_fetch_add(&failures, 1);
            continue;
        }
        for (int k = 0; k < 2; k++) { /* that it hears, and a message, or once more that it hears */
            struct pollfd fd = {.fd = sleeper.fd, .events = POLLIN};
            eventfd_t count;
            if (poll(&fd, 1, 10000) != 1 || eventfd_read(sleeper.fd, &count) != 0) {
                atomic_fetch_add(&failures, 1);
            }
        }
        dli_subscriber_unwatch(subscriber, &sleeper.watcher);
    }
    close(sleeper.fd);
    return NULL;
}

static void watch_in_threads(void) {
    pthread_t publisher, listener, waiters[THREADS];
    int numbers[THREADS];
    cr_assert_eq(pthread_create(&publisher, NULL, publish_all_the_time, NULL), 0);
    cr_assert_eq(pthread_create(&listener, NULL, listen_all_the_time, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        cr_assert_eq(pthread_create(&waiters[i], NULL, watch_and_wait, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(waiters[i], NULL);
    }
    atomic_store(&over, true);
    pthread_join(publisher, NULL);
    pthread_join(listener, NULL);
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
    hearer_t w;
    dli_subscriber_close(subscriber, false);
    int before = open_descriptors();
    open_as("");
    dli_subscriber_close(subscriber, false); /* nobody ever watched */
    open_as("");
    must_watch("orders", &w);
    unwatch(&w);
    uint64_t closing_ns = now_shifted();
    dli_subscriber_close(subscriber, false);
    cr_assert_lt(now_shifted() - closing_ns, 500 * MS);
    dli_subscriber_close(NULL, false);
    cr_assert_eq(open_descriptors(), before);
    open_as("");
}

Test(redis_subscriber, a_forked_child_only_closes_descriptors) {
    hearer_t w, other, third;
    pthread_t listener;
    dli_subscriber_close(subscriber, false);
    int before = open_descriptors();
    open_as("");
    must_watch("orders", &w);
    must_watch("other", &other);
    must_watch("third", &third);
    unwatch(&third);
    cr_assert_eq(pthread_create(&listener, NULL, listen_all_the_time, NULL), 0);
    pid_t child = fork();
    if (child == 0) {
        dli_subscriber_close(subscriber, true);
        _exit(open_descriptors() == before ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    atomic_store(&over, true);
    pthread_join(listener, NULL);
    cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
    must_wake(&w);
    cr_assert_eq(tell(&server, "PUBLISH other 0"), 1);
    must_wake(&other);
    cr_assert_eq(calls_of("subscribe"), 3);
    unwatch(&other);
    unwatch(&w);
}
