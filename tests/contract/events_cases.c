/* events_cases.c - contract: the one stream of events, by descriptor or by callback. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <string.h>

#include "callers.h"
#include "core/core.h"

static int is_readable(dl_client_t *c) {
    struct pollfd fd = {.fd = dl_event_fd(c), .events = POLLIN};
    return poll(&fd, 1, 0) == 1; /* does not wait */
}

CT_CASE(events, make_the_descriptor_readable_until_the_last_is_taken) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_event_t event = DL_EVENT_INIT;
    CT_GE(dl_event_fd(c), 0);
    CT_CHECK(!is_readable(c));
    CT_EQ(dl_event_next(c, &event), DL_ETIMEDOUT);
    lose(ct, c, "one");
    lose(ct, c, "two");
    CT_CHECK(is_readable(c));
    CT_EQ(dl_event_next(c, &event), DL_OK);
    CT_STR_EQ(event.name, "one");
    CT_EQ(event.size, sizeof event);
    CT_CHECK(is_readable(c));
    CT_EQ(dl_event_next(c, &event), DL_OK);
    CT_STR_EQ(event.name, "two");
    CT_CHECK(!is_readable(c));
    CT_EQ(dl_event_next(c, &event), DL_ETIMEDOUT);
    lose(ct, c, "three");
    CT_CHECK(is_readable(c));
}

/* What a callback has seen. */
typedef struct seen {
    ct_t *ct;
    int count;
    char names[8][16];
    ct_latch_t *first, *go_on; /* first: came; go_on: may return (NULL: at once) */
} seen_t;

static void see(void *arg, const dl_event_t *event) {
    seen_t *s = arg;
    ct_t *ct = s->ct;
    CT_EQ(event->kind, DL_EVENT_LOST);
    CT_LT(s->count, 8);
    CT_LT(strlen(event->name), sizeof s->names[0]);
    strcpy(s->names[s->count], event->name);
    __atomic_add_fetch(&s->count, 1, __ATOMIC_SEQ_CST);
    if (s->first != NULL) {
        ct_latch_down(ct, s->first);
    }
    if (s->go_on != NULL) {
        ct_latch_wait(ct, s->go_on, KEEP_MS);
    }
}

static int count_of(const seen_t *s) {
    return __atomic_load_n(&s->count, __ATOMIC_SEQ_CST);
}

CT_CASE(events, go_to_the_callback_in_their_order_and_nowhere_else) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_event_t event = DL_EVENT_INIT;
    seen_t seen = {.ct = ct};
    lose(ct, c, "before"); /* what waits goes to the callback too */
    CT_CHECK(is_readable(c));
    CT_EQ(dl_client_on_event(c, see, &seen), DL_OK);
    lose(ct, c, "one");
    lose(ct, c, "two");
    CT_AWAIT_THAT(count_of(&seen), ==, 3, 1000);
    CT_STR_EQ(seen.names[0], "before");
    CT_STR_EQ(seen.names[1], "one");
    CT_STR_EQ(seen.names[2], "two");
    CT_EQ(dl_event_next(c, &event), DL_ETIMEDOUT);
    CT_CHECK(!is_readable(c));
    CT_EQ(dl_client_on_event(c, NULL, NULL), DL_OK);
    lose(ct, c, "after");
    CT_EQ(dl_event_next(c, &event), DL_OK);
    CT_STR_EQ(event.name, "after");
    CT_EQ(count_of(&seen), 3);
}

typedef struct remover {
    dl_client_t *client;
    ct_latch_t *began;
    int done;
} remover_t;

static void remove_callback(ct_t *ct, void *arg) {
    remover_t *r = arg;
    ct_latch_down(ct, r->began);
    CT_EQ(dl_client_on_event(r->client, NULL, NULL), DL_OK);
    __atomic_store_n(&r->done, 1, __ATOMIC_SEQ_CST);
}

CT_CASE(events, callback_is_removed_only_when_it_is_not_running) {
    dl_client_t *c = ct_open(ct, LASTING);
    seen_t seen = {.ct = ct, .first = ct_latch(ct, 1), .go_on = ct_latch(ct, 1)};
    CT_EQ(dl_client_on_event(c, see, &seen), DL_OK);
    lose(ct, c, "one");
    ct_latch_wait(ct, seen.first, 1000);
    /* Queued behind the running callback; the remover does not wait for all of them. */
    static const char *const queued[] = {"two", "and", "some", "more"};
    for (size_t i = 0; i < sizeof queued / sizeof queued[0]; i++) {
        lose(ct, c, queued[i]);
    }
    remover_t remover = {.client = c, .began = ct_latch(ct, 1)};
    ct_thread_t *thread = ct_thread(ct, remove_callback, &remover);
    ct_latch_wait(ct, remover.began, 5000);
    ct_sleep_ms(ct, 50);
    CT_EQ(__atomic_load_n(&remover.done, __ATOMIC_SEQ_CST), 0);
    ct_latch_down(ct, seen.go_on);
    ct_join(ct, thread);
    int count = count_of(&seen);
    CT_LE(count, 2);
    lose(ct, c, "three");
    ct_sleep_ms(ct, 20);
    CT_EQ(count_of(&seen), count);
    /* Nothing got lost on the way between the two readers. */
    ct_expect_event(ct, c, DL_EVENT_LOST, "three", ct_tolerance_ms(ct));
    if (count == 1) {
        ct_expect_event(ct, c, DL_EVENT_LOST, "two", 0);
    }
}

static void close_it(ct_t *ct, void *client) {
    ct_close(ct, client);
}

CT_CASE(events, callback_is_removed_only_when_it_is_not_running_though_the_client_closes) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "held");
    seen_t seen = {.ct = ct, .first = ct_latch(ct, 1), .go_on = ct_latch(ct, 1)};
    CT_EQ(dl_client_on_event(c, see, &seen), DL_OK);
    lose(ct, c, "one");
    ct_latch_wait(ct, seen.first, 1000);
    remover_t remover = {.client = c, .began = ct_latch(ct, 1)};
    ct_thread_t *thread = ct_thread(ct, remove_callback, &remover);
    ct_latch_wait(ct, remover.began, 5000);
    ct_sleep_ms(ct, 50); /* it waits */
    ct_thread_t *closing = ct_thread(ct, close_it, c);
    CT_AWAIT_THAT(dl_trylock(lock, NULL), ==, DL_ECLOSED, 5000);
    ct_sleep_ms(ct, 50);
    CT_EQ(__atomic_load_n(&remover.done, __ATOMIC_SEQ_CST), 0);
    ct_latch_down(ct, seen.go_on);
    ct_join(ct, thread);
    ct_join(ct, closing);
}

/* A callback that does everything a program might: locks, unlocks, waits, asks, and replaces itself. */
typedef struct busy {
    ct_t *ct;
    dl_client_t *client;
    dl_lock_t *lost, *other, *held;
    ct_latch_t *done;
    int gone; /* the fault */
} busy_t;

static void never_called(void *arg, const dl_event_t *event) {
    busy_t *b = arg;
    ct_t *ct = b->ct;
    CT_FAIL("an event of kind %d for '%s'", (int)event->kind, event->name);
}

static void be_busy(void *arg, const dl_event_t *event) {
    busy_t *b = arg;
    ct_t *ct = b->ct;
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    if (event->kind != DL_EVENT_LOST) {
        return; /* the answer may have come too late at first */
    }
    ct_fault_end(ct, b->gone);
    CT_STR_EQ(event->name, "lost");
    CT_STATUS(dl_lock(b->lost, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(b->lost, CT_ERR), DL_ELOST);
    CT_OK(dl_lock(b->lost, CT_ERR));
    CT_OK(dl_lock(b->other, CT_ERR));
    CT_OK(dl_extend(b->other, 120000, CT_ERR));
    CT_STATUS(dl_trylock(b->held, CT_ERR), DL_EBUSY);
    CT_STATUS(dl_trylock_for(b->held, 50, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    if (ct_traits(ct) & CT_CAN_INSPECT) {
        CT_OK(dl_inspect(b->other, &info, CT_ERR));
        CT_CHECK(info.held && info.ours);
    }
    int renewed = renewals_of(ct, "held"); /* and still is, behind the callback */
    CT_AWAIT_THAT(renewals_of(ct, "held"), >, renewed + 2, 5000);
    CT_GT(dl_valid_ms(b->other), 0);
    CT_OK(dl_unlock(b->other, CT_ERR));
    CT_OK(dl_unlock(b->lost, CT_ERR));
    CT_EQ(dl_client_on_event(b->client, never_called, b), DL_OK);
    ct_latch_down(ct, b->done);
}

CT_CASE(events, callback_may_call_everything_and_take_its_time) {
    dl_client_t *c = ct_open(ct, LASTING);
    busy_t b = {.ct = ct, .client = c, .done = ct_latch(ct, 1)};
    b.lost = ct_lock_owned(ct, c, "lost", 1);
    b.other = ct_lock(ct, c, "other");
    b.held = ct_lock(ct, c, "held");
    CT_OK(dl_lock(b.held, CT_ERR));
    CT_EQ(dl_client_on_event(c, be_busy, &b), DL_OK);
    b.gone = lose_by_renewal(ct, "lost");
    take(ct, b.lost, DL_LEASE_AUTO);
    ct_latch_wait(ct, b.done, 20000);
    CT_GT(dl_valid_ms(b.held), 0);
    CT_OK(dl_unlock(b.held, CT_ERR));
    ct_expect_free(ct, "other", 0);
    ct_expect_free(ct, "lost", 0);
}

CT_CASE(events, of_a_closed_client_are_nobodys) {
    dl_client_t *c = ct_open(ct, LASTING);
    seen_t seen = {.ct = ct};
    lose(ct, c, "unread");
    CT_OK(dl_lock(ct_lock(ct, c, "held"), CT_ERR));
    CT_EQ(dl_client_on_event(c, see, &seen), DL_OK);
    CT_AWAIT_THAT(count_of(&seen), ==, 1, 1000);
    ct_close(ct, c);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(count_of(&seen), 1); /* a close is no loss */
}

/* ---- lines of the log ------------------------------------------------------------------------- */

static _Thread_local int looks;

typedef struct heard {
    atomic_int lines, by_who_looks;
} heard_t;

static void hear(void *arg, dl_log_level_t level, const char *line) {
    heard_t *heard = arg;
    (void)level;
    (void)line;
    atomic_fetch_add(&heard->by_who_looks, looks);
    atomic_fetch_add(&heard->lines, 1);
}

static void look(dl_lock_t *lock, int at) {
    looks = 1;
    if (at == 0) {
        (void)dl_valid_ms(lock);
    } else if (at == 1) {
        (void)dl_token(lock);
    } else {
        (void)dl_hold_count(lock);
    }
    looks = 0;
}

static void put_aside(dl_client_t *c) {
    dli_lock_client(c);
    dli_log(c, DL_LOG_INFO, "a line that another thread puts aside");
    dli_release_client(c);
}

/* It may take long. */
CT_CASE(events, log_function_is_never_run_by_who_only_looks_at_a_hold) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "orders");
    heard_t heard = {0};
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(dl_client_set_log(c, hear, &heard), DL_OK);
    for (int i = 0; i < 3; i++) {
        int before = atomic_load(&heard.lines);
        put_aside(c);
        look(lock, i);
        CT_AWAIT_THAT(atomic_load(&heard.lines), >, before, 5000);
    }
    CT_EQ(atomic_load(&heard.by_who_looks), 0);
    CT_EQ(dl_client_set_log(c, NULL, NULL), DL_OK);
    CT_OK(dl_unlock(lock, CT_ERR));
}

typedef struct slow {
    ct_t *ct;
    atomic_int lines;
} slow_t;

static void hear_slowly(void *arg, dl_log_level_t level, const char *line) {
    slow_t *slow = arg;
    (void)level;
    (void)line;
    ct_sleep_ms(slow->ct, 2 * ct_call_timeout_ms(slow->ct));
    atomic_fetch_add(&slow->lines, 1);
}

CT_CASE(events, log_function_that_takes_long_leaves_each_exchange_its_time, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "orders");
    slow_t slow = {.ct = ct};
    CT_OK(dl_client_set_log(c, hear_slowly, &slow));
    put_aside(c);
    CT_OK(dl_trylock(lock, CT_ERR));
    put_aside(c);
    CT_OK(dl_extend(lock, LASTING_MS, CT_ERR));
    put_aside(c);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_AWAIT_THAT(atomic_load(&slow.lines), ==, 3, KEEP_MS);
    CT_OK(dl_client_set_log(c, NULL, NULL));
}
