/* gate_cases.c - contract: the queue inside the process, one name at a time and in order of arrival. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "callers.h"

#define WAITERS 5

/* ---- order ----------------------------------------------------------------------------------- */

typedef struct line {
    dl_lock_t *lock;
    int served; /* guarded by the lock under test */
    int order[WAITERS];
} line_t;

typedef struct waiter {
    line_t *line;
    int number;
} waiter_t;

static void stand_in_line(ct_t *ct, void *arg) {
    waiter_t *w = arg;
    CT_OK(dl_lock(w->line->lock, CT_ERR));
    w->line->order[__atomic_fetch_add(&w->line->served, 1, __ATOMIC_SEQ_CST)] = w->number;
    ct_sleep_ms(ct, 1);
    CT_OK(dl_unlock(w->line->lock, CT_ERR));
}

static void serve_in_order(ct_t *ct, dl_client_t *client, dl_lock_t *held_by) {
    line_t line = {.lock = ct_lock(ct, client, "desk")};
    waiter_t waiters[WAITERS];
    ct_thread_t *threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (waiter_t){.line = &line, .number = i};
        threads[i] = ct_thread(ct, stand_in_line, &waiters[i]);
        ct_await_waiting(ct, client, (uint64_t)i + 1, 5000);
    }
    ct_sleep_ms(ct, 50);
    CT_EQ(line.served, 0);
    CT_OK(dl_unlock(held_by, CT_ERR));
    for (int i = 0; i < WAITERS; i++) {
        ct_join(ct, threads[i]);
    }
    for (int i = 0; i < WAITERS; i++) {
        CT_EQ(line.order[i], i);
    }
}

CT_CASE(gate, threads_are_served_in_order_behind_a_thread_of_their_own_client) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    CT_OK(dl_lock(lock, CT_ERR));
    serve_in_order(ct, client, lock);
}

CT_CASE(gate, threads_are_served_in_order_behind_another_client) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, LASTING), "desk");
    CT_OK(dl_lock(lock, CT_ERR));
    serve_in_order(ct, ct_open(ct, NULL), lock);
}

CT_CASE(gate, only_the_head_of_the_queue_talks_to_the_server) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, LASTING), "desk");
    CT_OK(dl_lock(lock, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    line_t line = {.lock = ct_lock(ct, client, "desk")};
    waiter_t waiters[WAITERS];
    ct_thread_t *threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (waiter_t){.line = &line, .number = i};
        threads[i] = ct_thread(ct, stand_in_line, &waiters[i]);
    }
    ct_await_waiting(ct, client, WAITERS, 5000);
    ct_sleep_ms(ct, 4 * ct_tolerance_ms(ct));
    int tries = ct_calls(ct, CT_OP_TRY);
    CT_GE(tries, 2);
    char head[DL_OWNER_MAX + 1];
    snprintf(head, sizeof head, "%s", ct_call(ct, CT_OP_TRY, 1).owner);
    for (int i = 1; i < tries; i++) {
        CT_STR_EQ(ct_call(ct, CT_OP_TRY, i).owner, head);
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    for (int i = 0; i < WAITERS; i++) {
        ct_join(ct, threads[i]);
    }
}

/* Not before all have come. */
static void time_out(ct_t *ct, void *lock) {
    CT_STATUS(dl_trylock_for(lock, 8 * ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
}

static void wait_and_unlock(ct_t *ct, void *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(gate, one_who_gives_up_in_the_queue_leaves_no_hole) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_thread_t *threads[4];
    ct_fn fns[4] = {time_out, wait_and_unlock, time_out, wait_and_unlock};
    for (int i = 0; i < 4; i++) {
        threads[i] = ct_thread(ct, fns[i], lock);
        ct_await_waiting(ct, client, (uint64_t)i + 1, 5000);
    }
    ct_join(ct, threads[0]);
    ct_join(ct, threads[2]);
    CT_EQ(ct_stats(ct, client).waiting_now, 2);
    CT_OK(dl_unlock(lock, CT_ERR));
    int64_t start_ms = ct_now_ms(ct);
    ct_join(ct, threads[1]);
    ct_join(ct, threads[3]);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, client).waiting_now, 0);
}

static void be_refused(ct_t *ct, void *lock) {
    CT_STATUS(dl_lock(lock, CT_ERR), DL_EAUTH);
}

CT_CASE(gate, a_failed_head_passes_the_turn_on) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    ct_fault_t refusal = {.op = CT_OP_TRY, .mode = CT_ANSWER, .status = DL_EAUTH};
    ct_fault_add(ct, &refusal);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, client, "desk");
    ct_thread_t *head = ct_thread(ct, be_refused, lock);
    ct_pause_await(ct, pause, 5000);
    ct_thread_t *next = ct_thread(ct, wait_and_unlock, lock);
    ct_await_waiting(ct, client, 2, 5000);
    int64_t start_ms = ct_now_ms(ct);
    ct_pause_go(ct, pause);
    ct_join(ct, head);
    ct_join(ct, next);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, client).acquired, 1);
}

/* ---- many names ------------------------------------------------------------------------------ */

#define NAMES 150 /* more than any table of buckets begins with */

static void lock_other_names(ct_t *ct, dl_client_t *client) {
    for (int i = 0; i < NAMES; i++) {
        char name[32];
        snprintf(name, sizeof name, "other-%d", i);
        dl_lock_t *lock = ct_lock(ct, client, name);
        int64_t start_ms = ct_now_ms(ct);
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, ct_tolerance_ms(ct));
        ct_lock_close(ct, lock);
    }
}

CT_CASE(gate, one_busy_name_never_delays_another, .timeout_s = 60) {
    dl_lock_t *held = ct_lock(ct, ct_open(ct, LASTING), "busy");
    CT_OK(dl_lock(held, CT_ERR));
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *busy = ct_lock(ct, client, "busy");
    ct_thread_t *head = ct_thread(ct, wait_and_unlock, busy), *second = ct_thread(ct, wait_and_unlock, busy);
    ct_await_waiting(ct, client, 2, 5000);
    lock_other_names(ct, client);
    CT_EQ(ct_stats(ct, client).waiting_now, 2);
    CT_OK(dl_unlock(held, CT_ERR));
    ct_join(ct, head);
    ct_join(ct, second);
}

static void be_stuck(ct_t *ct, void *lock) {
    (void)ct;
    (void)!dl_trylock_for(lock, 60000, DL_LEASE_AUTO, NULL);
}

CT_CASE(gate, one_stuck_request_never_delays_another_name, .timeout_s = 60) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "stuck");
    ct_fault_t never = {.op = CT_OP_TRY, .mode = CT_NEVER, .count = CT_ALWAYS, .name = "stuck"};
    ct_fault_add(ct, &never);
    ct_thread_t *thread = ct_thread(ct, be_stuck, lock);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, client, "stuck"), >, 0, 5000);
    int64_t start_ms = ct_now_ms(ct);
    lock_other_names(ct, client);
    CT_LT(ct_now_ms(ct) - start_ms, 60000);
    ct_fault_end(ct, -1);
    ct_join(ct, thread);
}

/* ---- the owner's standing -------------------------------------------------------------------- */

static void enter(ct_t *ct, void *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
}

CT_CASE(gate, a_second_thread_of_an_owner_sees_that_its_owner_already_holds) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, client, "task", 7);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, client, "task");
    ct_thread_t *first = ct_thread(ct, enter, lock);
    ct_pause_await(ct, pause, 5000);
    ct_thread_t *second = ct_thread(ct, enter, lock); /* its owner does not hold yet, so it queues */
    ct_await_waiting(ct, client, 2, 5000);
    ct_pause_go(ct, pause);
    CT_AWAIT(ct_thread_done(ct, first) && ct_thread_done(ct, second), 2 * ct_tolerance_ms(ct));
    ct_join(ct, first);
    ct_join(ct, second);
    CT_EQ(dl_hold_count(lock), 2);
    CT_EQ(ct_stats(ct, client).acquired, 1);
    CT_EQ(ct_stats(ct, client).reentered, 1);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_held(ct, "task");
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "task", 0);
}

CT_CASE(gate, an_owner_that_got_the_lock_meanwhile_does_not_wait_behind_others) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock_owned(ct, client, "task", 7), *other = ct_lock_owned(ct, client, "task", 8);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, client, "task");
    ct_thread_t *first = ct_thread(ct, enter, mine);
    ct_pause_await(ct, pause, 5000);
    ct_thread_t *between = ct_thread(ct, wait_and_unlock, other);
    ct_await_waiting(ct, client, 2, 5000);
    ct_thread_t *second = ct_thread(ct, enter, mine);
    ct_await_waiting(ct, client, 3, 5000);
    ct_pause_go(ct, pause);
    CT_AWAIT(ct_thread_done(ct, first) && ct_thread_done(ct, second), 2 * ct_tolerance_ms(ct));
    CT_CHECK(!ct_thread_done(ct, between));
    ct_join(ct, first);
    ct_join(ct, second);
    CT_OK(dl_unlock(mine, CT_ERR));
    CT_OK(dl_unlock(mine, CT_ERR));
    ct_join(ct, between);
}

CT_CASE(gate, a_trylock_does_not_overtake_the_one_whose_turn_it_is) {
    dl_client_t *client = ct_open(ct, "pass: false");
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_thread_t *thread = ct_thread(ct, wait_and_unlock, lock);
    ct_await_waiting(ct, client, 1, 5000);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, client, "desk");
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_pause_await(ct, pause, 5000);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    ct_pause_go(ct, pause);
    ct_join(ct, thread);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(gate, the_end_of_a_lease_opens_the_gate_too) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    int64_t lease_ms = 2 * ct_tolerance_ms(ct);
    CT_OK(dl_trylock_for(lock, 0, lease_ms, CT_ERR));
    int64_t start_ms = ct_now_ms(ct);
    ct_thread_t *thread = ct_thread(ct, wait_and_unlock, lock);
    ct_join(ct, thread);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, lease_ms / 2, lease_ms + ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

/* ---- leaving just when the turn comes --------------------------------------------------------- */

#define TURNS 20

typedef struct leaver {
    caller_t caller;
    dl_lock_t *stays; /* another handle of the same name */
} leaver_t;

/* Its handle may be closed by the time it has the lock. */
static void acquire_by_a_handle_that_goes(ct_t *ct, void *arg) {
    (void)ct;
    leaver_t *leaver = arg;
    caller_t *c = &leaver->caller;
    c->status = dl_acquire(c->lock, &c->opts, &c->err);
    if (c->status == DL_OK) {
        c->unlocked = dl_unlock(leaver->stays, &c->err);
    }
}

/* Two wait; the first is told to give up right after the holder has handed its turn to it. */
static void give_up_on_ones_turn(ct_t *ct, int by_close) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    for (int i = 0; i < TURNS; i++) {
        leaver_t leaver = {CALLER(ct_lock(ct, client, "desk"), DL_WAIT_FOREVER), lock};
        caller_t *first = &leaver.caller;
        caller_t second = CALLER(lock, 20000);
        CT_OK(dl_cancel_new(&first->opts.cancel, CT_ERR));
        CT_OK(dl_lock(lock, CT_ERR));
        first->thread = ct_thread(ct, acquire_by_a_handle_that_goes, &leaver);
        ct_await_waiting(ct, client, 1, 5000);
        start_caller(ct, &second);
        ct_await_waiting(ct, client, 2, 5000);
        CT_OK(dl_unlock(lock, CT_ERR));
        if (by_close) {
            ct_lock_close(ct, first->lock);
        } else {
            dl_cancel_trigger(first->opts.cancel);
        }
        ct_join(ct, first->thread);
        CT_CHECKF(first->status == (by_close ? DL_ECLOSED : DL_ECANCELED) || first->status == DL_OK,
                  "the first ended with %s", dl_status_name(first->status));
        CT_EQ(first->unlocked, DL_OK);
        end_caller(ct, &second, DL_OK);
        dl_cancel_free(first->opts.cancel);
    }
    CT_EQ(ct_stats(ct, client).waiting_now, 0);
}

CT_CASE(gate, a_waiter_cancelled_on_its_turn_lets_the_next_one_in) {
    give_up_on_ones_turn(ct, 0);
}

/* An operation of a queue may have got it before; then its caller would go on with a handle that is closed.
 */
CT_CASE(gate, a_handle_closed_on_its_turn_lets_the_next_one_in, .traits = CT_BLOCKING) {
    give_up_on_ones_turn(ct, 1);
}

/* ---- many at once ---------------------------------------------------------------------------- */

#define CROWD 6
#define CROWD_ROUNDS 20

typedef struct crowd {
    dl_lock_t *lock;
    int inside, entered, gave_up, unanswered;
} crowd_t;

/* Their patience is of the size of a hold. On real time it may be over before a server has answered: then the
 * call ends with what it says of that. */
static void push_and_shove(ct_t *ct, void *arg) {
    crowd_t *crowd = arg;
    int64_t unit_ms = ct_traits(ct) & CT_VIRTUAL ? 1 : ct_tolerance_ms(ct) / 10;
    for (int i = 0; i < CROWD_ROUNDS; i++) {
        dl_error_t err;
        dl_status_t status = dl_trylock_for(crowd->lock, (1 + i % 7) * unit_ms, DL_LEASE_AUTO, &err);
        int is_unanswered = ct_traits(ct) & CT_REAL_TIME && (status == DL_EIO || status == DL_EUNKNOWN);
        CT_CHECKF(status == DL_OK || status == DL_ETIMEDOUT || is_unanswered, "dl_trylock_for is %s: %s",
                  dl_status_name(status), err.message);
        if (status == DL_OK) {
            CT_EQ(__atomic_fetch_add(&crowd->inside, 1, __ATOMIC_SEQ_CST), 0);
            ct_sleep_ms(ct, 2 * unit_ms);
            CT_EQ(__atomic_fetch_sub(&crowd->inside, 1, __ATOMIC_SEQ_CST), 1);
            CT_OK(dl_unlock(crowd->lock, CT_ERR));
        }
        __atomic_fetch_add(status == DL_OK ? &crowd->entered
                           : is_unanswered ? &crowd->unanswered
                                           : &crowd->gave_up,
                           1, __ATOMIC_SEQ_CST);
    }
}

CT_CASE(gate, a_crowd_of_impatient_threads_leaves_it_free) {
    dl_client_t *client = ct_open(ct, BRIEF);
    crowd_t crowd = {.lock = ct_lock(ct, client, "door")};
    ct_thread_t *threads[CROWD];
    for (int i = 0; i < CROWD; i++) {
        threads[i] = ct_thread(ct, push_and_shove, &crowd);
    }
    for (int i = 0; i < CROWD; i++) {
        ct_join(ct, threads[i]);
    }
    CT_EQ(crowd.entered + crowd.gave_up + crowd.unanswered, CROWD * CROWD_ROUNDS);
    CT_GT(crowd.entered, 0);
    CT_GT(crowd.gave_up, 0);
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.acquired, crowd.entered);
    CT_EQ(stats.released, crowd.entered);
    CT_EQ(stats.timed_out, crowd.gave_up);
    CT_EQ(stats.held_now, 0);
    CT_EQ(stats.waiting_now, 0);
    /* What a server was asked and did not answer is freed in the background. */
    int64_t free_within_ms = crowd.unanswered > 0 ? BRIEF_MS + ct_tolerance_ms(ct) : 0;
    CT_OK(dl_trylock_for(crowd.lock, free_within_ms, DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(crowd.lock, CT_ERR));
}
