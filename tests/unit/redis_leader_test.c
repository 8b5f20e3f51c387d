/* redis_leader_test.c - who reads the subscriber's connection, and that the next one does when it leaves. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"

#include <sys/ioctl.h>

#include "drivers/redis/link/listener.h"

TestSuite(redis_leader, .init = set_up, .fini = tear_down, .timeout = 60);

/* The thread looks every second of its own accord: what takes less was handed over. */
#define PROMPT_NS (250 * MS)
#define MOST 8

/* ---- threads that sleep ----------------------------------------------------------------------------- */

typedef struct sleeper {
    pthread_t thread;
    char channel[32];
    dl_watch_t *watch;
    uint64_t ms; /* how long it sleeps at most */
    int stop_fd;
    dl_status_t status;
    uint64_t woke_ns;
} sleeper_t;

static void *sleep_once(void *arg) {
    sleeper_t *sleeper = arg;
    dl_stop_t stop = {{sleeper->stop_fd, -1}};
    dl_error_t why;
    sleeper->status = dli_subscriber_wait(subscriber, sleeper->watch, in_ms(sleeper->ms), &stop, &why);
    sleeper->woke_ns = now_shifted();
    return NULL;
}

static dl_watch_t *leader(size_t *sleepers) {
    pthread_mutex_lock(&subscriber->mutex);
    dl_watch_t *leads = subscriber->leader;
    *sleepers = subscriber->sleepers;
    pthread_mutex_unlock(&subscriber->mutex);
    return leads;
}

static bool is_asleep(const dl_watch_t *leads, size_t sleepers) {
    size_t n;
    return leader(&n) == leads && n == sleepers;
}

static void make_sleepers(sleeper_t *sleepers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        sleepers[i] = (sleeper_t){.ms = 20000, .stop_fd = -1};
        snprintf(sleepers[i].channel, sizeof sleepers[i].channel, "orders:%zu", i);
        sleepers[i].watch = must_watch(sleepers[i].channel);
    }
    for (size_t i = 0; i < n; i++) {
        while (wait_ms(sleepers[i].watch, 0) == DL_OK) {} /* its own confirmation */
    }
}

static void unwatch_all(sleeper_t *sleepers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unwatch(sleepers[i].watch);
    }
}

static void put_to_sleep(sleeper_t *sleeper) {
    cr_assert_eq(pthread_create(&sleeper->thread, NULL, sleep_once, sleeper), 0);
}

static void join_woken(sleeper_t *sleeper, dl_status_t status) {
    cr_assert_eq(pthread_join(sleeper->thread, NULL), 0);
    cr_assert_eq(sleeper->status, status, "%s", dl_status_name(sleeper->status));
}

static void must_hear(sleeper_t *sleeper) {
    uint64_t before_ns = now_shifted();
    cr_assert_eq(tell(&server, "PUBLISH %s 0", sleeper->channel), 1);
    join_woken(sleeper, DL_OK);
    uint64_t took_ns = sleeper->woke_ns - before_ns;
    cr_assert_lt(took_ns, PROMPT_NS, "%s: woken after %lu ms", sleeper->channel, took_ns / MS);
}

/* ---- the leader leaves ------------------------------------------------------------------------------ */

enum { BY_MESSAGE, BY_DEADLINE, BY_STOP };

/* Whoever sleeps beside the leader hears as fast when the leader is gone. */
static void leave_one(int how) {
    static const dl_status_t ends[] = {DL_OK, DL_ETIMEDOUT, DL_ECANCELED};
    sleeper_t s[2];
    int stop_fd = eventfd(0, EFD_CLOEXEC);
    make_sleepers(s, 2);
    for (int i = 0; i < 8; i++) {
        s[0].stop_fd = how == BY_STOP ? stop_fd : -1;
        s[0].ms = how == BY_DEADLINE ? 200 : 20000;
        put_to_sleep(&s[0]);
        AWAIT(is_asleep(s[0].watch, 0));
        put_to_sleep(&s[1]);
        AWAIT(is_asleep(s[0].watch, 1));
        if (how == BY_MESSAGE) {
            must_hear(&s[0]);
        } else {
            eventfd_t count = 0;
            if (how == BY_STOP) {
                cr_assert_eq(eventfd_write(stop_fd, 1), 0);
            }
            join_woken(&s[0], ends[how]);
            if (how == BY_STOP) {
                cr_assert_eq(eventfd_read(stop_fd, &count), 0);
            }
        }
        AWAIT(is_asleep(NULL, 1));
        must_hear(&s[1]);
    }
    unwatch_all(s, 2);
    close(stop_fd);
}

Test(redis_leader, a_leader_that_has_its_message_passes_on) {
    leave_one(BY_MESSAGE);
}

Test(redis_leader, a_leader_whose_time_is_over_passes_on) {
    leave_one(BY_DEADLINE);
}

Test(redis_leader, a_leader_that_is_stopped_passes_on) {
    leave_one(BY_STOP);
}

/* In each round another leads, and another hears first. */
static void publish_to_each(size_t n) {
    sleeper_t s[MOST];
    make_sleepers(s, n);
    for (size_t round = 0; round < 3 * n; round++) {
        for (size_t i = 0; i < n; i++) {
            put_to_sleep(&s[(round + i) % n]);
            AWAIT(is_asleep(s[round % n].watch, i));
        }
        for (size_t i = 0; i < n; i++) {
            must_hear(&s[(round / 2 + i) % n]);
        }
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(wait_ms(s[i].watch, 0), DL_ETIMEDOUT, "one message wakes once");
        }
    }
    unwatch_all(s, n);
}

Test(redis_leader, each_of_two_hears_at_once) {
    publish_to_each(2);
}

Test(redis_leader, each_of_eight_hears_at_once) {
    publish_to_each(MOST);
}

Test(redis_leader, the_next_to_sleep_leads) {
    sleeper_t s[3];
    make_sleepers(s, 3);
    put_to_sleep(&s[0]);
    AWAIT(is_asleep(s[0].watch, 0));
    put_to_sleep(&s[1]);
    AWAIT(is_asleep(s[0].watch, 1));
    must_hear(&s[0]);
    put_to_sleep(&s[2]);
    AWAIT(is_asleep(s[2].watch, 1));
    must_hear(&s[1]);
    cr_assert(is_asleep(s[2].watch, 0), "a leader that hears for others goes on");
    must_hear(&s[2]);
    unwatch_all(s, 3);
}

/* ---- with the connection ---------------------------------------------------------------------------- */

Test(redis_leader, a_cut_connection_wakes_all_and_is_made_anew) {
    sleeper_t s[3];
    make_sleepers(s, 3);
    for (int round = 1; round <= 5; round++) {
        for (size_t i = 0; i < 3; i++) {
            put_to_sleep(&s[i]);
            AWAIT(is_asleep(s[0].watch, i));
        }
        uint64_t before_ns = now_shifted();
        cr_assert_eq(tell(&server, "CLIENT KILL TYPE pubsub"), 1);
        for (size_t i = 0; i < 3; i++) {
            join_woken(&s[i], DL_OK);
            cr_assert_lt(s[i].woke_ns - before_ns, PROMPT_NS);
        }
        AWAIT_THAT(subscribed_channels(), ==, 3);
        for (size_t i = 0; i < 3; i++) {
            while (wait_ms(s[i].watch, 50) == DL_OK) {}
        }
    }
    cr_assert_eq(atomic_load(&reconnects), 5);
    unwatch_all(s, 3);
}

static void *watch_in_time(void *arg) {
    sleeper_t *sleeper = arg;
    dl_error_t why;
    sleeper->status = dli_subscriber_watch(subscriber, sleeper->channel, strlen(sleeper->channel),
                                           in_ms(sleeper->ms), &no_stop, &sleeper->watch, &why);
    return NULL;
}

Test(redis_leader, who_makes_a_watch_leads_and_outlives_the_connection) {
    sleeper_t maker = {.channel = "made", .ms = 15000};
    size_t n;
    unwatch(must_watch("orders"));
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    cr_assert_eq(pthread_create(&maker.thread, NULL, watch_in_time, &maker), 0);
    AWAIT(leader(&n) != NULL);
    kill_server(&server);
    AWAIT(leader(&n) == NULL);
    boot_server(&server);
    join_woken(&maker, DL_OK);
    cr_assert_eq(tell(&server, "PUBLISH made 0"), 1);
    must_wake(maker.watch);
    unwatch(maker.watch);
}

/* ---- after the leader ------------------------------------------------------------------------------- */

/* Until something lies in the socket, but not for long: the thread may have read it. */
static void await_bytes(void) {
    int n = 0;
    for (int i = 0; i < 50 && n == 0; i++) {
        cr_assert_eq(ioctl(subscriber->fd, FIONREAD, &n), 0);
        (void)poll(NULL, 0, n > 0 ? 0 : 2);
    }
}

Test(redis_leader, what_nobody_read_wakes_no_later_watch) {
    for (int i = 0; i < 10; i++) {
        dl_watch_t *w = must_watch("orders");
        while (wait_ms(w, 10) == DL_OK) {}
        unwatch(w);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        await_bytes();
        w = must_watch("orders");
        cr_assert_eq(wait_ms(w, 20), DL_ETIMEDOUT, "woken by a message that was there before");
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(w);
        unwatch(w);
    }
    cr_assert_eq(calls_of("subscribe"), 1);
}

Test(redis_leader, a_channel_still_ends_and_a_subscriber_still_closes) {
    dl_watch_t *w = must_watch("orders");
    while (wait_ms(w, 10) == DL_OK) {}
    unwatch(w);
    uint64_t before_ns = now_shifted();
    AWAIT_THAT(subscribed_channels(), ==, 0);
    cr_assert_lt(now_shifted() - before_ns, 4 * SECOND);
    w = must_watch("orders");
    while (wait_ms(w, 10) == DL_OK) {}
    unwatch(w);
    before_ns = now_shifted();
    dli_subscriber_close(subscriber, false);
    subscriber = NULL;
    cr_assert_lt(now_shifted() - before_ns, 500 * MS);
}

static bool is_lost(void) {
    pthread_mutex_lock(&subscriber->mutex);
    bool lost = !subscriber->ready;
    pthread_mutex_unlock(&subscriber->mutex);
    return lost;
}

/* Nobody sleeps and nobody leads: the thread is alone with the connection again. */
Test(redis_leader, a_server_that_dies_unheard_is_noticed) {
    dl_watch_t *w = must_watch("orders");
    while (wait_ms(w, 10) == DL_OK) {}
    uint64_t before_ns = now_shifted();
    kill_server(&server);
    AWAIT(is_lost());
    cr_assert_lt(now_shifted() - before_ns, 4 * SECOND);
    must_wake(w);
    unwatch(w);
}

static bool was_led(void) {
    pthread_mutex_lock(&subscriber->mutex);
    bool led = subscriber->was_led;
    pthread_mutex_unlock(&subscriber->mutex);
    return led;
}

/* Messages do not pile up behind a watch that nobody sleeps on. */
Test(redis_leader, the_thread_reads_when_no_leader_comes) {
    dl_watch_t *w = must_watch("orders");
    while (wait_ms(w, 10) == DL_OK) {}
    AWAIT((atomic_fetch_add(&clock_ahead_ns, SECOND), !was_led()));
    atomic_fetch_add(&clock_ahead_ns, 2 * SECOND);
    (void)poll(NULL, 0, 100); /* for the thread to look once more; it tells nobody */
    for (int i = 0; i < 5; i++) {
        struct pollfd fd = {.fd = w->fd, .events = POLLIN};
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        cr_assert_eq(poll(&fd, 1, PROMPT_NS / MS), 1, "nobody has read");
        dli_watch_drain(w);
    }
    unwatch(w);
}
