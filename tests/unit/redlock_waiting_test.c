/* redlock_waiting_test.c - hearing of releases at several nodes at once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

#include <sys/eventfd.h>

#include "support/entries.h"

#define NODES 3

static const plan_t plan = {.n = NODES, .subscribes = true};
static const dl_stop_t no_stop = {{-1, -1}};

static void set_up(void) {
    start_nodes(&plan);
}

TestSuite(redlock_waiting, .init = set_up, .fini = end_nodes, .timeout = 60);

static dl_status_t watch(const char *name, uint64_t ms, dl_watch_t **made) {
    return dli_redlock_watch(&client, name, strlen(name), in_ms(ms), &no_stop, made, &err);
}

static dl_watch_t *must_watch(const char *name) {
    dl_watch_t *made;
    cr_assert_eq(watch(name, 5000, &made), DL_OK, "%s", err.message);
    return made;
}

static dl_status_t wait_ms(dl_watch_t *w, uint64_t ms) {
    return dli_redlock_wait(&client, w, in_ms(ms), &no_stop, &err);
}

static void unwatch(dl_watch_t *w) {
    dli_redlock_unwatch(&client, w);
}

/* As a release does, on these nodes; every one of them is subscribed to. */
static void publish(const char *name, uint32_t nodes) {
    for (size_t i = 0; i < NODES; i++) {
        if ((nodes >> i & 1) != 0) {
            AWAIT_THAT(subscribers(i, name), ==, 1);
            cr_assert_eq(tell(&servers[i], "PUBLISH " CHANNEL "%s 0", name), 1);
        }
    }
}

/* Every node has confirmed it: a watch is there before. Until nobody wakes it any more. */
static void await_all(dl_watch_t *w) {
    for (size_t i = 0; i < NODES; i++) {
        AWAIT_THAT(subscriptions(i), >, 0);
    }
    await_relays();
    while (wait_ms(w, 50) == DL_OK) {}
}

/* A wait on a thread of its own. */
typedef struct sleeper {
    dl_watch_t *watch;
    uint64_t until_ns;
    int stop_fd;
    pthread_t thread;
    dl_status_t status;
    uint64_t woke_ns;
} sleeper_t;

static void *sleep_once(void *arg) {
    sleeper_t *s = arg;
    dl_stop_t stop = {{s->stop_fd, -1}};
    dl_error_t why;
    s->status = dli_redlock_wait(&client, s->watch, s->until_ns, &stop, &why);
    s->woke_ns = dli_sys_real.now_ns();
    return NULL;
}

static void begin_wait(sleeper_t *s, dl_watch_t *w) {
    *s = (sleeper_t){.watch = w, .until_ns = in_ms(20000), .stop_fd = -1};
    cr_assert_eq(pthread_create(&s->thread, NULL, sleep_once, s), 0);
}

static dl_status_t end_wait(sleeper_t *s) {
    cr_assert_eq(pthread_join(s->thread, NULL), 0);
    return s->status;
}

/* ---- being woken ------------------------------------------------------------------------------------ */

/* No time passes: nothing but the second message can have done it. */
Test(redlock_waiting, a_majority_that_tells_wakes_at_once) {
    dl_watch_t *w = must_watch("orders");
    await_all(w);
    stop_clock();
    for (uint32_t i = 0; i < 3; i++) {
        publish("orders", 7u & ~(1u << i));
        await_relays();
        cr_assert_eq(wait_ms(w, 0), DL_OK, "%s", err.message);
        atomic_fetch_add(&stopped_ns, 20 * MS);
        cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT, "one release wakes once");
    }
    unwatch(w);
}

/* The wait reads the message and goes on: only the time makes a difference. */
Test(redlock_waiting, a_single_node_that_tells_wakes_ten_milliseconds_later) {
    dl_watch_t *w = must_watch("orders");
    await_all(w);
    for (uint32_t i = 0; i < 3; i++) {
        stop_clock();
        publish("orders", 1u << i);
        await_relay(&relays[i], &servers[i]);
        cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT, "woken by the first");
        atomic_fetch_add(&stopped_ns, 9 * MS);
        cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT, "woken too early");
        atomic_fetch_add(&stopped_ns, 1 * MS);
        cr_assert_eq(wait_ms(w, 0), DL_OK, "%s", err.message);
        cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT, "woken twice");
        atomic_store(&stopped_ns, 0);
    }
    unwatch(w);
}

Test(redlock_waiting, the_grace_ends_a_sleep) {
    dl_watch_t *w = must_watch("orders");
    sleeper_t s;
    await_all(w);
    begin_wait(&s, w);
    publish("orders", 2);
    cr_assert_eq(end_wait(&s), DL_OK);
    unwatch(w);
}

/* The third message of a release comes when the first two have woken already. */
Test(redlock_waiting, who_tells_late_wakes_nobody_again) {
    dl_watch_t *w = must_watch("orders");
    await_all(w);
    stop_clock();
    publish("orders", 3);
    cr_assert_eq(wait_ms(w, 5000), DL_OK);
    publish("orders", 4);
    await_relay(&relays[2], &servers[2]);
    cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT);
    atomic_fetch_add(&stopped_ns, 10 * MS);
    cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT, "woken by the third");
    publish("orders", 4);
    await_relay(&relays[2], &servers[2]);
    cr_assert_eq(wait_ms(w, 0), DL_ETIMEDOUT);
    atomic_fetch_add(&stopped_ns, 10 * MS);
    cr_assert_eq(wait_ms(w, 0), DL_OK, "by then it is news");
    unwatch(w);
}

/* It is there before anybody waits. */
Test(redlock_waiting, a_release_between_busy_and_wait_is_not_missed) {
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "orders%d", i);
        dl_watch_t *w = must_watch(name);
        int heard = 0;
        for (size_t k = 0; k < NODES; k++) { /* on a majority, of which at least one is watched */
            heard += k != (size_t)i % NODES && tell(&servers[k], "PUBLISH " CHANNEL "%s 0", name) == 1;
        }
        cr_assert_geq(heard, 1);
        cr_assert_eq(wait_ms(w, 10000), DL_OK, "%s", err.message);
        unwatch(w);
    }
}

Test(redlock_waiting, another_name_wakes_nobody) {
    dl_watch_t *w = must_watch("orders"), *other = must_watch("order");
    await_all(w);
    await_all(other);
    for (int i = 0; i < 5; i++) {
        publish("order", 7);
        await_relays();
        cr_assert_eq(wait_ms(w, 30), DL_ETIMEDOUT);
        cr_assert_eq(wait_ms(other, 5000), DL_OK);
    }
    unwatch(w);
    unwatch(other);
}

/* Each connection has one reader; whoever it is, all hear at once. */
Test(redlock_waiting, each_of_many_hears_of_its_own) {
    enum { MANY = 6 };
    sleeper_t s[MANY];
    dl_watch_t *w[MANY];
    char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "orders%d", i);
        w[i] = must_watch(names[i]);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < MANY; i++) {
            await_all(w[i]);
            begin_wait(&s[i], w[i]);
        }
        for (int i = 0; i < MANY; i++) {
            int which = (i * 5 + round) % MANY;
            uint64_t before_ns = dli_sys_real.now_ns();
            publish(names[which], 7);
            cr_assert_eq(end_wait(&s[which]), DL_OK);
            uint64_t took_ns = s[which].woke_ns - before_ns;
            cr_assert_lt(took_ns, 250 * MS, "%lu ms", (unsigned long)(took_ns / MS));
        }
    }
    for (int i = 0; i < MANY; i++) {
        unwatch(w[i]);
    }
}

/* ---- connections that are lost ---------------------------------------------------------------------- */

Test(redlock_waiting, a_lost_connection_wakes_and_comes_back) {
    dl_watch_t *w = must_watch("orders");
    sleeper_t s;
    await_all(w);
    for (size_t i = 0; i < NODES; i++) {
        begin_wait(&s, w);
        cr_assert_eq(tell(&servers[i], "CLIENT KILL TYPE pubsub"), 1);
        cr_assert_eq(end_wait(&s), DL_OK);
        AWAIT_THAT(subscriptions(i), ==, 1);
        while (wait_ms(w, 50) == DL_OK) {}
        publish("orders", 7u & ~(1u << (i + 1) % NODES)); /* this one counts again */
        cr_assert_eq(wait_ms(w, 5000), DL_OK);
        while (wait_ms(w, 50) == DL_OK) {}
    }
    unwatch(w);
}

/* Who is down is heard of once; the others go on telling. */
Test(redlock_waiting, a_minority_that_goes_down_wakes_once) {
    dl_watch_t *w = must_watch("orders");
    await_all(w);
    kill_server(&servers[1]);
    cr_assert_eq(wait_ms(w, 5000), DL_OK, "%s", err.message);
    cr_assert_eq(wait_ms(w, 2500), DL_ETIMEDOUT, "woken for nothing");
    publish("orders", 5);
    cr_assert_eq(wait_ms(w, 5000), DL_OK);
    unwatch(w);
}

Test(redlock_waiting, a_majority_that_goes_down_breaks_the_watch) {
    dl_watch_t *w = must_watch("orders");
    await_all(w);
    kill_server(&servers[0]);
    cr_assert_eq(wait_ms(w, 5000), DL_OK);
    kill_server(&servers[2]);
    cr_assert_eq(wait_ms(w, 5000), DL_EIO);
    cr_assert_has(err.message, "1 of 3 nodes");
    cr_assert_eq(wait_ms(w, 5000), DL_EIO, "it stays broken");
    unwatch(w);
}

/* ---- making a watch --------------------------------------------------------------------------------- */

static uint64_t time_watch(uint64_t ms, dl_status_t expected) {
    dl_watch_t *w = NULL;
    uint64_t began_ns = dli_sys_real.now_ns();
    dl_status_t status = watch("orders", ms, &w);
    uint64_t took_ms = (dli_sys_real.now_ns() - began_ns) / MS;
    cr_assert_eq(status, expected, "%s after %lu ms: %s", dl_status_name(status), (unsigned long)took_ms,
                 err.message);
    cr_assert_eq((w != NULL), (status == DL_OK));
    if (w != NULL) {
        publish("orders", 6);
        cr_assert_eq(wait_ms(w, 5000), DL_OK);
        unwatch(w);
    }
    return took_ms;
}

Test(redlock_waiting, a_minority_that_is_down_is_not_waited_for) {
    kill_server(&servers[0]);
    cr_assert_lt(time_watch(5000, DL_OK), 1000);
    cr_assert_lt(time_watch(5000, DL_OK), 1000);
}

Test(redlock_waiting, a_minority_that_is_slow_is_not_waited_for) {
    freeze(0);
    cr_assert_lt(time_watch(5000, DL_OK), 1000);
    thaw(0);
}

Test(redlock_waiting, a_majority_that_is_down_is_told_in_time) {
    kill_server(&servers[0]);
    kill_server(&servers[1]);
    cr_assert_lt(time_watch(200, DL_EIO), 500);
    cr_assert_has(err.message, "1 of 3 nodes");
    /* Once it is known, nobody waits for it. */
    cr_assert_lt(time_watch(5000, DL_EIO), 1000);
    boot_server(&servers[0]);
    dl_watch_t *w;
    AWAIT_THAT(watch("orders", 5000, &w), ==, DL_OK);
    unwatch(w);
}

Test(redlock_waiting, a_majority_that_is_slow_is_told_in_time) {
    freeze(1);
    freeze(2);
    uint64_t took_ms = time_watch(200, DL_EIO);
    cr_assert_geq(took_ms, 200, "%lu ms", (unsigned long)took_ms);
    cr_assert_lt(took_ms, 500, "%lu ms", (unsigned long)took_ms);
    thaw(1);
    thaw(2);
    cr_assert_lt(time_watch(5000, DL_OK), 5000);
}

/* Confirmed late, a node counts all the same. */
Test(redlock_waiting, a_node_that_comes_late_tells_too) {
    freeze(2);
    dl_watch_t *w = must_watch("orders");
    thaw(2);
    AWAIT_THAT(subscriptions(2), ==, 1);
    await_all(w);
    stop_clock();
    publish("orders", 6);
    cr_assert_eq(wait_ms(w, 5000), DL_OK);
    unwatch(w);
}

Test(redlock_waiting, who_may_not_subscribe_is_told) {
    dl_watch_t *w;
    for (size_t i = 0; i < NODES; i++) {
        tell(&servers[i], "ACL SETUSER mute on >mute +@all ~* resetchannels");
    }
    close_client();
    open_client(&(plan_t){.n = NODES, .username = "mute", .subscribes = true});
    cr_assert_eq(watch("orders", 5000, &w), DL_ENOTSUP, "%s", err.message);
    cr_assert_null(w);
    for (size_t i = 1; i < NODES; i++) {
        tell(&servers[i], "ACL SETUSER mute allchannels");
    }
    w = must_watch("orders"); /* the others suffice */
    publish("orders", 6);
    cr_assert_eq(wait_ms(w, 5000), DL_OK);
    unwatch(w);
}

/* ---- stops and leaks -------------------------------------------------------------------------------- */

Test(redlock_waiting, a_stop_ends_a_wait_and_a_watch) {
    int fd = eventfd(0, EFD_CLOEXEC);
    dl_watch_t *w = must_watch("orders"), *none;
    await_all(w);
    for (int i = 0; i < 2; i++) {
        dl_stop_t stop = {{i == 0 ? fd : -1, i == 0 ? -1 : fd}};
        sleeper_t s = {.watch = w, .until_ns = in_ms(20000), .stop_fd = fd};
        cr_assert_eq(pthread_create(&s.thread, NULL, sleep_once, &s), 0);
        cr_assert_eq(eventfd_write(fd, 1), 0);
        cr_assert_eq(end_wait(&s), DL_ECANCELED, "%s", dl_status_name(s.status));
        cr_assert_eq(dli_redlock_wait(&client, w, in_ms(20000), &stop, &err), DL_ECANCELED);
        freeze(0);
        freeze(1);
        cr_assert_eq(dli_redlock_watch(&client, i == 0 ? "one" : "two", 3, in_ms(20000), &stop, &none, &err),
                     DL_ECANCELED, "%s", err.message);
        cr_assert_null(none);
        thaw(0);
        thaw(1);
        eventfd_t count;
        cr_assert_eq(eventfd_read(fd, &count), 0);
    }
    unwatch(w);
    close(fd);
}

Test(redlock_waiting, no_descriptor_is_left_behind) {
    dl_watch_t *w = must_watch("orders");
    await_all(w);
    unwatch(w);
    int before = open_descriptors();
    for (int i = 0; i < 30; i++) {
        w = must_watch("orders");
        publish("orders", 7);
        cr_assert_eq(wait_ms(w, 5000), DL_OK);
        unwatch(w);
    }
    cr_assert_eq(open_descriptors(), before);
    freeze(0);
    freeze(1);
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(watch("others", 10, &w), DL_EIO, "%s", err.message);
    }
    thaw(0);
    thaw(1);
    cr_assert_eq(open_descriptors(), before);
}
