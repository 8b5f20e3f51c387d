/* queue_events_cases.c - contract: losses and other events of clients that come out of a completion queue. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "queues.h"

/* The next is an event of this kind. */
static dl_event_t take_event(ct_t *ct, dl_queue_t *queue, dl_client_t *client, dl_event_kind_t kind,
                             int64_t within_ms) {
    dl_completion_t done = take_next(ct, queue, within_ms);
    CT_EQ(done.kind, DL_OP_EVENT);
    CT_CHECK(done.client == client && done.lock == NULL && done.tag == NULL);
    CT_EQ(done.id, 0);
    CT_EQ(done.with.event.kind, kind);
    CT_EQ(done.status, done.with.event.status);
    return done.with.event;
}

static void expect_lost(ct_t *ct, dl_queue_t *queue, dl_client_t *client, const char *name) {
    dl_event_t event = take_event(ct, queue, client, DL_EVENT_LOST, 0);
    CT_STR_EQ(event.name, name);
}

/* ---- validity --------------------------------------------------------------------------------- */

CT_CASE(queue, validity_is_judged_when_the_completion_is_taken, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock_owned(ct, c, "late", 1), *renewed = ct_lock_owned(ct, c, "renewed", 1);
    dl_queue_t *queue = new_queue(ct), *other = new_queue(ct);
    int64_t lease_ms = ct_lease_ms(ct);
    uint64_t late = begin_acquire(ct, queue, lock, 0, lease_ms);
    uint64_t kept = begin_lock(ct, other, renewed);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), SOON_MS));
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(other), SOON_MS));
    ct_sleep_ms(ct, lease_ms);
    dl_completion_t done = take_of(ct, queue, late, DL_ELOST, 0);
    CT_EQ(done.token, 0);
    CT_EQ(done.valid_ms, 0);
    CT_EQ(dl_hold_count(lock), 0); /* nothing has to be unlocked */
    CT_EQ(dl_valid_ms(lock), 0);
    ct_expect_free(ct, "late", ct_tolerance_ms(ct));
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_RELEASE, c, "late"), >=, 1,
                  ct_tolerance_ms(ct)); /* not left to its lease */
    done = take_of(ct, other, kept, DL_OK, 0);
    CT_GT(done.valid_ms, 0);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, NULL, 0);
    CT_STR_EQ(lost.name, "late");
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, lease_ms);
    lock_by(ct, queue, lock, DL_LEASE_AUTO);
    dl_queue_free(queue);
    dl_queue_free(other);
}

/* By another thread of its owner, as soon as it was held, or as it heard of a loss. */
CT_CASE(queue, what_was_given_back_before_it_is_taken_is_not_held, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock_owned(ct, c, "given back", 1);
    dl_queue_t *queue = new_queue(ct), *other = new_queue(ct);
    for (int i = 0; i < 3; i++) {
        uint64_t id = begin_acquire(ct, queue, lock, 0, ct_lease_ms(ct));
        CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), SOON_MS));
        if (i == 0) {
            CT_OK(dl_unlock(lock, CT_ERR));
        } else if (i == 1) {
            unlock_by(ct, other, lock);
        } else {
            (void)ct_expect_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct) + ct_tolerance_ms(ct));
            CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
        }
        dl_completion_t done = take_of(ct, queue, id, DL_ELOST, 0);
        CT_EQ(done.token, 0);
        CT_EQ(done.valid_ms, 0);
        CT_EQ(dl_hold_count(lock), 0);
    }
    dl_queue_free(queue);
    dl_queue_free(other);
}

CT_CASE(queue, a_completion_says_what_is_left_when_it_is_taken, .traits = CT_BLOCKING) {
    dl_lock_t *lock = ct_lock_owned(ct, ct_open(ct, NULL), "half", 1);
    dl_queue_t *queue = new_queue(ct);
    int64_t pause_ms = ct_lease_ms(ct) / 2;
    uint64_t id = begin_acquire(ct, queue, lock, 0, 60000);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), SOON_MS));
    ct_sleep_ms(ct, pause_ms);
    dl_completion_t done = take_of(ct, queue, id, DL_OK, 0);
    CT_BETWEEN(done.valid_ms, 1, validity_of(60000) - pause_ms);
    CT_LE(dl_valid_ms(lock), done.valid_ms);
    dl_queue_free(queue);
}

/* ---- one order -------------------------------------------------------------------------------- */

CT_CASE(queue, a_loss_comes_after_the_completion_it_is_about_and_once, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *early = ct_lock_owned(ct, c, "early", 1), *late = ct_lock_owned(ct, c, "late", 1);
    dl_queue_t *queue = new_queue(ct);
    CT_EQ(dl_queue_events(queue, c), DL_OK);
    uint64_t id = begin_lock(ct, queue, early);
    dl_completion_t done = take_of(ct, queue, id, DL_OK, SOON_MS);
    (void)lose_by_renewal(ct, "early");
    dl_event_t event = take_event(ct, queue, c, DL_EVENT_LOST, SOON_MS);
    CT_STR_EQ(event.name, "early");
    CT_EQ(event.hold_id, done.hold_id);
    CT_EQ(event.status, DL_ELOST);
    /* Not taken before it is lost. */
    (void)lose_by_renewal(ct, "late");
    id = begin_lock(ct, queue, late);
    CT_AWAIT_THAT(ct_stats(ct, c).lost, ==, 2, SOON_MS);
    done = take_of(ct, queue, id, DL_ELOST, 0);
    event = take_event(ct, queue, c, DL_EVENT_LOST, 0);
    CT_STR_EQ(event.name, "late");
    CT_EQ(event.hold_id, done.hold_id);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    expect_nothing(ct, queue);
    CT_STATUS(dl_unlock(early, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(late, CT_ERR), DL_ENOTOWNER);
    dl_queue_free(queue);
}

CT_CASE(queue, events_that_wait_go_along_and_later_ones_come_back, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_queue_t *queue = new_queue(ct);
    dl_event_t event = DL_EVENT_INIT;
    lose(ct, c, "before");
    lose(ct, c, "before too");
    CT_EQ(dl_queue_events(queue, c), DL_OK);
    CT_CHECK(!ct_await_readable(ct, dl_event_fd(c), 0));
    CT_EQ(dl_event_next(c, &event), DL_ETIMEDOUT);
    lose(ct, c, "meanwhile");
    expect_lost(ct, queue, c, "before");
    expect_lost(ct, queue, c, "before too");
    CT_EQ(dl_queue_events(queue, c), DL_OK); /* again is no change */
    CT_EQ(dl_queue_events(NULL, c), DL_OK);
    lose(ct, c, "after");
    CT_CHECK(ct_await_readable(ct, dl_event_fd(c), 0));
    CT_EQ(dl_event_next(c, &event), DL_OK);
    CT_STR_EQ(event.name, "after");
    expect_lost(ct, queue, c, "meanwhile");
    expect_nothing(ct, queue);
    CT_EQ(dl_queue_events(NULL, c), DL_OK);
    dl_queue_free(queue);
}

static void count_event(void *arg, const dl_event_t *event) {
    (void)event;
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

CT_CASE(queue, a_callback_and_a_queue_take_the_place_of_each_other, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_queue_t *queue = new_queue(ct);
    int called = 0;
    CT_EQ(dl_client_on_event(c, count_event, &called), DL_OK);
    CT_EQ(dl_queue_events(queue, c), DL_OK);
    lose(ct, c, "to the queue");
    expect_lost(ct, queue, c, "to the queue");
    CT_EQ(dl_client_on_event(c, count_event, &called), DL_OK);
    lose(ct, c, "to the callback");
    CT_AWAIT_THAT(__atomic_load_n(&called, __ATOMIC_SEQ_CST), ==, 1, SOON_MS);
    expect_nothing(ct, queue);
    dl_queue_free(queue);
}

/* News of a renewal is made as it comes, with no room reserved for it; that of a loss has room. */
static void fail_a_renewal(ct_t *ct, dl_lock_t *lock, dl_queue_t *queue, dl_client_t *c) {
    lock_by(ct, queue, lock, DL_LEASE_AUTO);
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, 1);
    (void)take_event(ct, queue, c, DL_EVENT_RENEWAL_FAILING, SOON_MS);
    (void)take_event(ct, queue, c, DL_EVENT_RENEWAL_RECOVERED, SOON_MS);
    unlock_by(ct, queue, lock);
}

CT_CASE(queue, events_are_moved_to_another_queue_and_none_is_missed, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock_owned(ct, c, "renewed", 1);
    dl_queue_t *first = new_queue(ct), *second = new_queue(ct);
    CT_EQ(dl_queue_events(first, c), DL_OK);
    lose(ct, c, "one");
    lose(ct, c, "two");
    CT_EQ(dl_queue_events(second, c), DL_OK);
    lose(ct, c, "three");
    expect_lost(ct, second, c, "three");
    expect_lost(ct, first, c, "one"); /* these stay where they were */
    expect_lost(ct, first, c, "two");
    fail_a_renewal(ct, lock, second, c);
    dl_queue_free(second);
    expect_nothing(ct, first);
    CT_EQ(ct_stats(ct, c).events_dropped, 0);
    /* A queue that is freed takes no more. */
    lose(ct, c, "four");
    (void)ct_expect_event(ct, c, DL_EVENT_LOST, "four", 0);
    dl_queue_free(first);
}

static void expect_lost_next(ct_t *ct, dl_client_t *c, const char *name) {
    dl_event_t event = DL_EVENT_INIT;
    CT_EQ(dl_event_next(c, &event), DL_OK);
    CT_STR_EQ(event.name, name);
}

CT_CASE(queue, freed_gives_back_the_events_that_nobody_took, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, LASTING);
    dl_queue_t *first = new_queue(ct), *second = new_queue(ct);
    CT_EQ(dl_queue_events(first, a), DL_OK);
    CT_EQ(dl_queue_events(first, b), DL_OK);
    lose(ct, a, "one of a");
    lose(ct, b, "of b");
    lose(ct, a, "two of a");
    CT_EQ(dl_queue_events(second, b), DL_OK); /* what has come stays behind, until its queue goes */
    dl_queue_free(first);
    CT_CHECK(ct_await_readable(ct, dl_event_fd(a), 0));
    expect_lost_next(ct, a, "one of a");
    expect_lost_next(ct, a, "two of a");
    CT_CHECK(!ct_await_readable(ct, dl_event_fd(a), 0));
    expect_lost(ct, second, b, "of b");
    lose(ct, b, "of b and nobody's");
    ct_close(ct, b);
    expect_nothing(ct, second);
    dl_queue_free(second);
    CT_EQ(ct_stats(ct, a).events_dropped, 0);
}

CT_CASE(queue, serves_two_clients, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, LASTING);
    dl_lock_t *mine = ct_lock_owned(ct, a, "shared", 1), *theirs = ct_lock_owned(ct, b, "shared", 1);
    dl_queue_t *queue = new_queue(ct);
    CT_EQ(dl_queue_events(queue, a), DL_OK);
    CT_EQ(dl_queue_events(queue, b), DL_OK);
    lock_by(ct, queue, mine, DL_LEASE_AUTO);
    uint64_t waiting = begin_lock(ct, queue, theirs);
    await_wait(ct, b, "shared");
    expect_nothing(ct, queue);
    uint64_t unlock = begin_unlock(ct, queue, mine);
    for (int i = 0; i < 2; i++) {
        dl_completion_t done = take_next(ct, queue, SOON_MS);
        CT_EQ(done.status, DL_OK);
        CT_CHECK(done.id == (done.client == a ? unlock : waiting));
    }
    lose(ct, a, "of a");
    lose(ct, b, "of b");
    expect_lost(ct, queue, a, "of a");
    expect_lost(ct, queue, b, "of b");
    unlock_by(ct, queue, theirs);
    dl_queue_free(queue);
}

CT_CASE(queue, events_of_a_closed_client_are_nobodys, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, LASTING);
    dl_queue_t *queue = new_queue(ct);
    CT_EQ(dl_queue_events(queue, a), DL_OK);
    CT_EQ(dl_queue_events(queue, b), DL_OK);
    lose(ct, a, "of a");
    lose(ct, b, "of b");
    lose(ct, a, "of a too");
    uint64_t id = begin_lock(ct, queue, ct_lock_owned(ct, a, "held", 1));
    CT_AWAIT_THAT(ct_stats(ct, a).held_now, ==, 1, SOON_MS);
    ct_close(ct, a);
    expect_lost(ct, queue, b, "of b");
    (void)take_of(ct, queue, id, DL_ECLOSED, 0);
    expect_nothing(ct, queue);
    CT_EQ(dl_queue_events(queue, b), DL_OK);
    lose(ct, b, "still of b");
    expect_lost(ct, queue, b, "still of b");
    dl_queue_free(queue);
}

CT_CASE(queue, events_are_given_to_no_queue_by_a_closed_client, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_queue_t *queue = new_queue(ct);
    lose(ct, c, "before");
    CT_EQ(dl_queue_events(queue, c), DL_OK);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), 0));
    ct_close(ct, c);
    expect_nothing(ct, queue);
    dl_queue_free(queue);
}

CT_CASE(queue, events_that_a_closed_client_has_left_in_an_old_queue_are_nobodys, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_queue_t *queue = new_queue(ct);
    CT_EQ(dl_queue_events(queue, c), DL_OK);
    lose(ct, c, "before");
    CT_EQ(dl_queue_events(NULL, c), DL_OK);
    ct_close(ct, c);
    dl_completion_t done;
    CT_EQ(dl_queue_take(queue, &done, sizeof done, 1), 0);
    expect_nothing(ct, queue);
    dl_queue_free(queue);
}

typedef struct mover {
    dl_client_t *client;
    dl_queue_t *to;
} mover_t;

static void move(ct_t *ct, void *arg) {
    const mover_t *m = arg;
    CT_EQ(dl_queue_events(m->to, m->client), DL_OK);
}

CT_CASE(queue, events_are_moved_while_their_queue_is_freed, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, LASTING);
    mover_t mover = {.client = c, .to = new_queue(ct)};
    for (int i = 0; i < 20; i++) {
        dl_queue_t *from = new_queue(ct);
        CT_EQ(dl_queue_events(from, c), DL_OK);
        ct_thread_t *thread = ct_thread(ct, move, &mover);
        dl_queue_free(from);
        ct_join(ct, thread);
        char name[16];
        snprintf(name, sizeof name, "after %d", i);
        lose(ct, c, name);
        expect_lost(ct, mover.to, c, name);
    }
    dl_queue_free(mover.to);
}
