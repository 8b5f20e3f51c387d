/* redlock_waiting_test.c - hearing of releases at several nodes at once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

#include "support/entries.h"

#define NODES 3

static const plan_t plan = {.n = NODES};

/* ---- those who wait --------------------------------------------------------------------------------- */

/* A watch, and what was said of its name. */
typedef struct waiter waiter_t;
struct waiter {
    char name[16];
    dl_watch_t *watch;
    bool hears;
    int woken; /* how often, since somebody looked last */
    waiter_t *next;
};

static waiter_t *waiters;
static bool is_woken; /* anybody, since somebody began to listen */

static void note_woken(void *core, const char *name, size_t name_len, int hears) {
    (void)core;
    for (waiter_t *w = waiters; w != NULL; w = w->next) {
        if (strlen(w->name) == name_len && memcmp(w->name, name, name_len) == 0) {
            w->hears = hears;
            w->woken++;
            is_woken = true;
        }
    }
}

/* Listens as a caller of the core does, until the instant at the longest. */
static void listen_once(uint64_t until_ns) {
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t due_ns;
    is_woken = false;
    size_t n = dli_redlock_listen_fds(&client, fds, DL_LISTEN_MAX, &due_ns);
    until_ns = is_woken ? 0 : due_ns < until_ns ? due_ns : until_ns;
    if (env.poll(fds, n, until_ns) <= 0) {
        for (size_t i = 0; i < n; i++) {
            fds[i].revents = 0;
        }
    }
    dli_redlock_listen(&client, fds, n);
}

/* Listens until it is true. */
#define LISTEN_UNTIL(cond) AWAIT((listen_once(in_ms(2)), (cond)))

/* Listens at least once. True: woken, and that is taken back. */
static bool wait_ms(waiter_t *w, uint64_t ms) {
    uint64_t until_ns = in_ms(ms);
    do {
        listen_once(until_ns);
    } while (w->woken == 0 && show_ns() < until_ns);
    bool woken = w->woken > 0;
    w->woken = 0;
    return woken;
}

static void must_wake(waiter_t *w, uint64_t ms) {
    cr_assert(wait_ms(w, ms), "%s: not woken", w->name);
    cr_assert(w->hears, "%s: not heard", w->name);
}

static void must_sleep(waiter_t *w, uint64_t ms) {
    cr_assert_not(wait_ms(w, ms), "%s: woken for nothing", w->name);
}

static void watch(waiter_t *w, const char *name) {
    *w = (waiter_t){.next = waiters};
    snprintf(w->name, sizeof w->name, "%s", name);
    waiters = w;
    cr_assert_eq(dli_redlock_watch(&client, name, strlen(name), &w->watch, &err), DL_OK, "%s", err.message);
}

static void unwatch(waiter_t *w) {
    waiter_t **at = &waiters;
    dli_redlock_unwatch(&client, w->watch);
    while (*at != w) {
        at = &(*at)->next;
    }
    *at = w->next;
}

/* Until enough nodes have confirmed it. */
static void must_watch(waiter_t *w, const char *name) {
    watch(w, name);
    must_wake(w, 5000);
}

/* Until all of them have. */
static void watch_all(waiter_t *w, const char *name) {
    must_watch(w, name);
    for (size_t i = 0; i < NODES; i++) {
        LISTEN_UNTIL(subscribers(i, name) == 1);
    }
    await_relays();
    listen_once(0);
    cr_assert_eq(w->woken, 0, "who becomes able to hear later is no news");
}

static void set_up(void) {
    start_nodes(&plan);
    env.woken = note_woken;
}

TestSuite(redlock_waiting, .init = set_up, .fini = end_nodes, .timeout = 60);

/* On these nodes; every one of them is subscribed to. */
static void publish_text(const char *name, uint32_t nodes, const char *text) {
    for (size_t i = 0; i < NODES; i++) {
        if ((nodes >> i & 1) != 0) {
            cr_assert_eq(tell(&servers[i], "PUBLISH " CHANNEL "%s %s", name, text), 1);
            await_relay(&relays[i], &servers[i]);
        }
    }
}

/* As a release does. */
static void publish(const char *name, uint32_t nodes) {
    publish_text(name, nodes, "0");
}

/* As a claim does that has failed. */
static void take_back(const char *name, uint32_t nodes) {
    publish_text(name, nodes, "1");
}

/* When it listens again, even if nothing comes. */
static uint64_t next_ns(void) {
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t due_ns;
    (void)dli_redlock_listen_fds(&client, fds, DL_LISTEN_MAX, &due_ns);
    return due_ns;
}

/* ---- being woken ------------------------------------------------------------------------------------ */

/* No time passes: nothing but the second message can have done it. */
Test(redlock_waiting, a_majority_that_tells_wakes_at_once) {
    waiter_t w;
    watch_all(&w, "orders");
    stop_clock();
    for (uint32_t i = 0; i < 3; i++) {
        publish("orders", 7u & ~(1u << i));
        must_wake(&w, 0);
        atomic_fetch_add(&stopped_ns, 20 * MS);
        must_sleep(&w, 0); /* one release wakes once */
    }
    unwatch(&w);
}

/* The message is read, and it sleeps on: only the time makes a difference. */
Test(redlock_waiting, a_single_node_that_tells_wakes_ten_milliseconds_later) {
    waiter_t w;
    watch_all(&w, "orders");
    for (uint32_t i = 0; i < 3; i++) {
        stop_clock();
        publish("orders", 1u << i);
        must_sleep(&w, 0); /* not woken by the first */
        atomic_fetch_add(&stopped_ns, 9 * MS);
        must_sleep(&w, 0);
        atomic_fetch_add(&stopped_ns, 1 * MS);
        must_wake(&w, 0);
        must_sleep(&w, 0);
        atomic_store(&stopped_ns, 0);
    }
    unwatch(&w);
}

/* Of several, the first that is due. */
Test(redlock_waiting, the_grace_is_what_a_poll_ends_for) {
    waiter_t w[3];
    const char *const names[] = {"one", "two", "three"};
    for (size_t i = 0; i < 3; i++) {
        watch_all(&w[i], names[i]);
    }
    stop_clock();
    uint64_t began_ns = show_ns();
    for (size_t i = 0; i < 3; i++) {
        publish(names[i], 2);
        must_sleep(&w[i], 0);
        atomic_fetch_add(&stopped_ns, 2 * MS);
    }
    unwatch(&w[1]); /* its grace goes with it */
    cr_assert_eq(next_ns(), began_ns + 10 * MS);
    atomic_store(&stopped_ns, began_ns + 10 * MS);
    must_wake(&w[0], 0);
    cr_assert_eq(next_ns(), began_ns + 14 * MS);
    must_sleep(&w[2], 0);
    atomic_store(&stopped_ns, 0);
    must_wake(&w[2], 5000);
    unwatch(&w[0]);
    unwatch(&w[2]);
}

/* The third message of a release comes when the first two have woken already. */
Test(redlock_waiting, who_tells_late_wakes_nobody_again) {
    waiter_t w;
    watch_all(&w, "orders");
    stop_clock();
    publish("orders", 3);
    must_wake(&w, 0);
    publish("orders", 4);
    must_sleep(&w, 0);
    atomic_fetch_add(&stopped_ns, 10 * MS);
    must_sleep(&w, 0); /* not woken by the third */
    publish("orders", 4);
    must_sleep(&w, 0);
    atomic_fetch_add(&stopped_ns, 10 * MS);
    must_wake(&w, 0); /* by then it is news */
    unwatch(&w);
}

/* Two whose claims meet hear each other's end, and their own: they are not to claim at one instant again. */
Test(redlock_waiting, a_claim_that_is_taken_back_wakes_each_time_at_another_instant) {
    waiter_t w;
    uint64_t waits_ns[8];
    int same = 0;
    watch_all(&w, "orders");
    for (size_t i = 0; i < 8; i++) {
        stop_clock();
        take_back("orders", 7);
        must_sleep(&w, 0);
        waits_ns[i] = next_ns() - show_ns();
        cr_assert_leq(waits_ns[i], 100 * MS);
        same += i > 0 && waits_ns[i] == waits_ns[i - 1];
        atomic_fetch_add(&stopped_ns, waits_ns[i] - 1);
        take_back("orders", 2); /* it is what the others met */
        must_sleep(&w, 0);
        atomic_fetch_add(&stopped_ns, 1);
        must_wake(&w, 0);
        must_sleep(&w, 0);
        atomic_store(&stopped_ns, 0);
    }
    cr_assert_eq(same, 0);
    unwatch(&w);
}

/* The pause between claims is not for it. */
Test(redlock_waiting, a_release_after_a_claim_that_is_taken_back_wakes_as_ever) {
    waiter_t w;
    watch_all(&w, "orders");
    for (int i = 0; i < 8; i++) {
        stop_clock();
        take_back("orders", 7);
        publish("orders", 6);
        must_wake(&w, 0);
        take_back("orders", 1);
        publish("orders", 1); /* the rest of that release */
        must_sleep(&w, 0);
        atomic_fetch_add(&stopped_ns, 100 * MS);
        must_wake(&w, 0); /* by the claim */
        take_back("orders", 7);
        publish("orders", 1);
        must_sleep(&w, 0);
        atomic_fetch_add(&stopped_ns, 10 * MS);
        must_wake(&w, 0);
        must_sleep(&w, 0);
        atomic_store(&stopped_ns, 0);
    }
    unwatch(&w);
}

static int draw_a_millisecond(void *to, size_t size) {
    uint64_t draw = MS - 1;
    memcpy(to, &draw, size);
    return 0;
}

/* What it wakes for is another's; the rest of the release is no news for that. */
Test(redlock_waiting, who_tells_late_of_a_release_wakes_nobody_though_a_claim_has_woken_since) {
    waiter_t w;
    watch_all(&w, "orders");
    env.random = draw_a_millisecond;
    stop_clock();
    publish("orders", 6);
    must_wake(&w, 0);
    take_back("orders", 4);
    must_sleep(&w, 0);
    atomic_fetch_add(&stopped_ns, 1 * MS);
    must_wake(&w, 0);
    publish("orders", 1);
    must_sleep(&w, 0);
    atomic_fetch_add(&stopped_ns, 10 * MS);
    must_sleep(&w, 0);
    unwatch(&w);
}

/* Each has an instant of its own, those of a release the same. */
Test(redlock_waiting, whoever_is_due_first_is_woken_first) {
    enum { MANY = 6 };
    waiter_t w[MANY];
    char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "orders%d", i);
        watch_all(&w[i], names[i]);
    }
    for (int round = 0; round < 6; round++) {
        stop_clock();
        for (int i = 0; i < MANY; i++) {
            i % 2 == 0 ? take_back(names[i], 7) : publish(names[i], 1);
            must_sleep(&w[i], 0);
            cr_assert_leq(next_ns() - show_ns(), (i == 0 ? 100 : 10) * MS);
        }
        for (int before = 0, woken = 0; before < MANY; before = woken) {
            atomic_store(&stopped_ns, next_ns());
            listen_once(0);
            woken = 0;
            for (int i = 0; i < MANY; i++) {
                woken += w[i].woken;
            }
            cr_assert_gt(woken, before);
        }
        for (int i = 0; i < MANY; i++) {
            cr_assert_eq(w[i].woken, 1);
            w[i].woken = 0;
        }
        atomic_store(&stopped_ns, 0);
    }
    for (int i = 0; i < MANY; i++) {
        unwatch(&w[i]);
    }
}

/* It is there before anybody listens on. */
Test(redlock_waiting, a_release_between_busy_and_wait_is_not_missed) {
    for (int i = 0; i < 20; i++) {
        waiter_t w;
        char name[16];
        snprintf(name, sizeof name, "orders%d", i);
        must_watch(&w, name);
        int heard = 0;
        for (size_t k = 0; k < NODES; k++) { /* on a majority, of which at least one is watched */
            heard += k != (size_t)i % NODES && tell(&servers[k], "PUBLISH " CHANNEL "%s 0", name) == 1;
        }
        cr_assert_geq(heard, 1);
        must_wake(&w, 10000);
        unwatch(&w);
    }
}

Test(redlock_waiting, another_name_wakes_nobody) {
    waiter_t w, other;
    watch_all(&w, "orders");
    watch_all(&other, "order");
    for (int i = 0; i < 5; i++) {
        publish("order", 7);
        must_sleep(&w, 30);
        cr_assert_eq(other.woken, 1, "%d", other.woken);
        other.woken = 0;
    }
    unwatch(&w);
    unwatch(&other);
}

/* One who listens hears for all of them. */
Test(redlock_waiting, each_of_many_hears_of_its_own) {
    enum { MANY = 6 };
    waiter_t w[MANY];
    char names[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "orders%d", i);
        watch_all(&w[i], names[i]);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < MANY; i++) {
            int which = (i * 5 + round) % MANY;
            publish(names[which], 7);
            must_wake(&w[which], 250);
            must_sleep(&w[which], 15);
            for (int k = 0; k < MANY; k++) {
                cr_assert_eq(w[k].woken, 0);
            }
        }
    }
    for (int i = 0; i < MANY; i++) {
        unwatch(&w[i]);
    }
}

/* ---- connections that are lost ---------------------------------------------------------------------- */

Test(redlock_waiting, a_lost_connection_wakes_and_comes_back) {
    waiter_t w;
    watch_all(&w, "orders");
    for (size_t i = 0; i < NODES; i++) {
        cr_assert_eq(tell(&servers[i], "CLIENT KILL TYPE pubsub"), 1);
        must_wake(&w, 5000); /* two are enough to hear */
        LISTEN_UNTIL(subscriptions(i) == 1);
        await_relays();
        must_sleep(&w, 50);
        publish("orders", 7u & ~(1u << (i + 1) % NODES)); /* this one counts again */
        stop_clock();
        must_wake(&w, 0);
        atomic_store(&stopped_ns, 0);
        must_sleep(&w, 50);
    }
    unwatch(&w);
}

/* Who is down is heard of once; the others go on telling. */
Test(redlock_waiting, a_minority_that_goes_down_wakes_once) {
    waiter_t w;
    watch_all(&w, "orders");
    kill_server(&servers[1]);
    must_wake(&w, 5000);
    must_sleep(&w, 2500);
    publish("orders", 5);
    must_wake(&w, 5000);
    unwatch(&w);
}

Test(redlock_waiting, a_majority_that_goes_down_is_told_and_comes_back) {
    waiter_t w;
    watch_all(&w, "orders");
    kill_server(&servers[0]);
    must_wake(&w, 5000);
    kill_server(&servers[2]);
    cr_assert(wait_ms(&w, 5000), "not woken");
    cr_assert_not(w.hears, "one of three is too few");
    must_sleep(&w, 1000);
    kill_server(&servers[1]);
    must_sleep(&w, 500); /* it knows already */
    boot_server(&servers[1]);
    must_sleep(&w, 1000);
    boot_server(&servers[2]);
    must_wake(&w, 5000);
    publish("orders", 6);
    must_wake(&w, 5000);
    unwatch(&w);
}

/* ---- making a watch --------------------------------------------------------------------------------- */

/* How long until it hears; a majority that tells then wakes it. */
static uint64_t time_watch(void) {
    waiter_t w;
    uint64_t began_ns = ran_ns();
    must_watch(&w, "orders");
    uint64_t took_ms = (ran_ns() - began_ns) / MS;
    publish("orders", 6);
    must_wake(&w, 5000);
    unwatch(&w);
    return took_ms;
}

Test(redlock_waiting, a_minority_that_is_down_is_not_waited_for) {
    kill_server(&servers[0]);
    cr_assert_lt(time_watch(), 1000);
    cr_assert_lt(time_watch(), 1000);
}

Test(redlock_waiting, a_minority_that_is_slow_is_not_waited_for) {
    freeze(0);
    cr_assert_lt(time_watch(), 1000);
    thaw(0);
}

Test(redlock_waiting, a_majority_that_is_down_is_heard_once_it_is_back) {
    waiter_t w;
    kill_server(&servers[0]);
    kill_server(&servers[1]);
    watch(&w, "orders");
    must_sleep(&w, 500); /* one of three is too few */
    boot_server(&servers[1]);
    must_wake(&w, 5000);
    publish("orders", 6);
    must_wake(&w, 5000);
    unwatch(&w);
}

Test(redlock_waiting, a_majority_that_is_slow_is_heard_once_it_answers) {
    waiter_t w;
    freeze(1);
    freeze(2);
    watch(&w, "orders");
    must_sleep(&w, 300);
    thaw(1);
    thaw(2);
    must_wake(&w, 5000);
    unwatch(&w);
}

/* Confirmed late, a node counts all the same. */
Test(redlock_waiting, a_node_that_comes_late_tells_too) {
    waiter_t w;
    freeze(2);
    must_watch(&w, "orders");
    thaw(2);
    LISTEN_UNTIL(subscriptions(2) == 1);
    await_relays();
    must_sleep(&w, 50);
    publish("orders", 6);
    stop_clock();
    must_wake(&w, 0);
    unwatch(&w);
}

Test(redlock_waiting, who_may_not_subscribe_is_told) {
    waiter_t w;
    for (size_t i = 0; i < NODES; i++) {
        tell(&servers[i], "ACL SETUSER mute on >mute +@all ~* resetchannels");
    }
    close_client();
    open_client(&(plan_t){.n = NODES, .username = "mute"});
    watch(&w, "orders");
    LISTEN_UNTIL(atomic_load(&warnings) == NODES); /* and nobody is waiting for more */
    cr_assert_eq(w.woken, 0, "it did not hear before");
    unwatch(&w);
    for (size_t i = 1; i < NODES; i++) {
        tell(&servers[i], "ACL SETUSER mute allchannels");
    }
    must_watch(&w, "orders"); /* the others suffice */
    publish("orders", 6);
    must_wake(&w, 5000);
    unwatch(&w);
}

/* ---- leaks ------------------------------------------------------------------------------------------ */

Test(redlock_waiting, no_descriptor_is_left_behind) {
    waiter_t w;
    watch_all(&w, "orders");
    unwatch(&w);
    int before = open_descriptors(), threads = running_threads();
    for (int i = 0; i < 30; i++) {
        watch_all(&w, "orders");
        publish("orders", 7);
        must_wake(&w, 5000);
        unwatch(&w);
    }
    cr_assert_eq(open_descriptors(), before);
    freeze(0);
    freeze(1);
    for (int i = 0; i < 10; i++) {
        watch(&w, "others");
        must_sleep(&w, 10);
        unwatch(&w);
    }
    thaw(0);
    thaw(1);
    cr_assert_eq(open_descriptors(), before);
    cr_assert_eq(running_threads(), threads);
}
