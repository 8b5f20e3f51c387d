/* client_cases.c - faults: clients killed, stopped, left by a thread, forked (rows 1 to 7). */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>

#include "contract/callers.h"

/* ---- row 1: killed --------------------------------------------------------------------------- */

static void hold_and_say_so(ct_t *ct, void *arg) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), arg);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_send(ct, NULL, 1);
    (void)ct_recv(ct, NULL);
}

CT_CASE(faults, row01_holder_killed_with_sigkill, .traits = CT_PROCESSES) {
    char name[] = "row 1";
    ct_process_t *victim = ct_process(ct, hold_and_say_so, name);
    (void)ct_recv(ct, victim);
    /* Waiters of two clients: each gets it in turn, the first within the lease. */
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    caller_t waiters[4];
    for (int i = 0; i < 4; i++) {
        waiters[i] = (caller_t)CALLER(ct_lock(ct, i % 2 == 0 ? a : b, name), DL_WAIT_FOREVER);
        start_caller(ct, &waiters[i]);
    }
    ct_await_waiting(ct, a, 2, 5000);
    ct_await_waiting(ct, b, 2, 5000);
    ct_process_kill(ct, victim);
    int64_t before_ms = ct_now_ms(ct), first_ms = INT64_MAX;
    /* Where waiting is by polling, those after the first may each sleep half a second too long. */
    int64_t polls_ms = ct_traits(ct) & CT_PLAIN_POLLING ? 3 * 500 : 0;
    for (int i = 0; i < 4; i++) {
        end_caller(ct, &waiters[i], DL_OK);
        first_ms = waiters[i].ended_ms < first_ms ? waiters[i].ended_ms : first_ms;
        CT_LE(waiters[i].ended_ms - before_ms, ct_lease_ms(ct) + polls_ms + ct_tolerance_ms(ct));
        for (int k = 0; k < i && (ct_caps(ct) & DL_CAP_FENCE); k++) {
            CT_CHECK((waiters[i].token > waiters[k].token) == (waiters[i].ended_ms >= waiters[k].ended_ms) ||
                     waiters[i].ended_ms == waiters[k].ended_ms);
        }
    }
    CT_LE(first_ms - before_ms, ct_lease_ms(ct) + ct_tolerance_ms(ct));
}

/* ---- rows 2 and 3: stopped ----------------------------------------------------------------- */

static void be_stopped_with_work_in_hand(ct_t *ct, void *arg) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, arg), *explicit_lock = ct_lock(ct, c, "row 2 explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, ct_lease_ms(ct));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, ct_lease_ms(ct));
    ct_send(ct, NULL, 1);
    (void)ct_recv(ct, NULL); /* stopped here */
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(explicit_lock, CT_ERR), DL_ELOST);
    ct_expect_event(ct, c, DL_EVENT_LOST, arg, ct_tolerance_ms(ct));
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 2 explicit", ct_tolerance_ms(ct));
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).lost, 2);
}

CT_CASE(faults, row02_holder_stopped_longer_than_its_lease, .traits = CT_PROCESSES) {
    char name[] = "row 2";
    ct_process_t *victim = ct_process(ct, be_stopped_with_work_in_hand, name);
    (void)ct_recv(ct, victim);
    ct_process_stop(ct, victim);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, name);
    int64_t wait_ms = ct_server_lease_ms(ct, ct_lease_ms(ct)) + ct_tolerance_ms(ct);
    CT_OK(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, CT_ERR));
    uint64_t token = dl_token(lock);
    ct_send(ct, victim, 1);
    ct_process_continue(ct, victim);
    ct_process_wait(ct, victim);
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), token);
    ct_expect_held(ct, name);
    ct_no_event(ct, c, 0, NULL, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* A thread that waits for the answer in the driver's op stands there; else the one that listens for it. */
static ct_pause_t *pause_before_reading(ct_t *ct, dl_client_t *c) {
    return ct_traits(ct) & CT_BACKEND ? ct_pause(ct, CT_OP_LISTEN, CT_BEFORE, c, NULL)
                                      : ct_pause(ct, CT_OP_TRY, CT_AFTER, c, "row 3");
}

/* Its connection is there, and it has nothing that a thread of its own would have to look after. */
static dl_lock_t *open_and_warm(ct_t *ct, dl_client_t **c) {
    dl_client_t *holder = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, holder, "row 3");
    *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, *c, "row 3");
    CT_OK(dl_lock(held, CT_ERR));
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    CT_OK(dl_unlock(held, CT_ERR));
    return lock;
}

CT_CASE(faults, row03_stopped_between_sending_and_reading_until_after_validity) {
    dl_client_t *c, *other;
    dl_lock_t *lock = open_and_warm(ct, &c);
    int64_t lease_ms = ct_lease_ms(ct);
    ct_pause_t *pause = pause_before_reading(ct, c);
    caller_t one_try = CALLER(lock, 0);
    start_caller(ct, &one_try);
    ct_pause_await(ct, pause, 5000);
    ct_sleep_ms(ct, lease_ms);
    ct_pause_go(ct, pause);
    end_caller(ct, &one_try, DL_ELOST);
    ct_expect_free(ct, "row 3", ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).acquired, 0);
    /* A call that may wait goes on with a hold of its own; the dead one is never it. The first client has a
     * thread of its own now, for the free, and that might read the answer. */
    lock = open_and_warm(ct, &other);
    int tries = ct_calls_of(ct, CT_OP_TRY, other, "row 3");
    pause = pause_before_reading(ct, other);
    caller_t waiting = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &waiting);
    ct_pause_await(ct, pause, 5000);
    ct_sleep_ms(ct, lease_ms);
    ct_pause_go(ct, pause);
    end_caller(ct, &waiting, DL_OK);
    CT_GE(waiting.valid_ms, validity_of(lease_ms) - ct_tolerance_ms(ct));
    CT_GE(ct_calls_of(ct, CT_OP_TRY, other, "row 3"), tries + 2);
    ct_expect_free(ct, "row 3", ct_tolerance_ms(ct));
}

/* Here the other process stops this one. It says when it may go on, so that it is never stopped too late. */
static void stay_in_the_call(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)call;
    (void)arg;
    ct_send(ct, NULL, 1);
    (void)ct_recv(ct, NULL);
}

static void be_stopped_in_a_call(ct_t *ct, void *arg) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, arg);
    (void)ct_recv(ct, NULL);
    ct_hook(ct, CT_OP_TRY, CT_AFTER, arg, stay_in_the_call, NULL);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(lock), 0);
}

CT_CASE(faults, row03_process_stopped_between_sending_and_reading, .traits = CT_PROCESSES | CT_CAN_INSPECT) {
    char name[] = "row 3";
    ct_process_t *victim = ct_process(ct, be_stopped_in_a_call, name);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, name);
    ct_send(ct, victim, 1);
    (void)ct_recv(ct, victim);
    CT_CHECK(ct_server_info(ct, name).held);
    ct_process_stop(ct, victim);
    int64_t wait_ms = ct_server_lease_ms(ct, ct_lease_ms(ct)) + ct_tolerance_ms(ct);
    CT_OK(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, CT_ERR));
    ct_process_continue(ct, victim);
    ct_send(ct, victim, 1);
    ct_process_wait(ct, victim);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- rows 5 to 7: threads, callbacks, children ----------------------------------------------- */

#define LEFT 20

typedef struct left {
    dl_client_t *client;
    dl_lock_t *locks[LEFT];
} left_t;

static void leave_many(ct_t *ct, void *arg) {
    left_t *left = arg;
    for (int i = 0; i < LEFT; i++) {
        for (int level = 0; level <= i % 3; level++) {
            take(ct, left->locks[i], i % 2 == 0 ? DL_LEASE_AUTO : 10 * ct_lease_ms(ct));
        }
    }
}

CT_CASE(faults, row05_owner_thread_exits_holding, .traits = CT_BLOCKING) {
    left_t left = {.client = ct_open(ct, NULL)};
    char name[32];
    for (int i = 0; i < LEFT; i++) {
        snprintf(name, sizeof name, "row 5 %d", i);
        left.locks[i] = ct_lock(ct, left.client, name);
    }
    ct_join(ct, ct_thread(ct, leave_many, &left));
    for (int i = 0; i < LEFT; i++) {
        snprintf(name, sizeof name, "row 5 %d", i);
        ct_expect_event(ct, left.client, DL_EVENT_THREAD_EXITED, name, 2 * ct_tolerance_ms(ct));
        ct_expect_free(ct, name, 0);
        CT_OK(dl_trylock(left.locks[i], CT_ERR));
        CT_OK(dl_unlock(left.locks[i], CT_ERR));
    }
    ct_no_event(ct, left.client, 0, NULL, ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, left.client).held_now, 0);
}

typedef struct rescue {
    ct_t *ct;
    dl_lock_t *failing, *also;
    ct_latch_t *done;
} rescue_t;

/* What a careful program does when renewals fail: it stops in good order while it still may. */
static void unlock_in_time(void *arg, const dl_event_t *event) {
    rescue_t *r = arg;
    ct_t *ct = r->ct;
    if (event->kind == DL_EVENT_RENEWAL_FAILING) {
        CT_GT(event->valid_ms, 0);
        CT_GT(dl_valid_ms(r->failing), 0);
        CT_OK(dl_lock(r->also, CT_ERR));
        ct_sleep_ms(ct, ct_lease_ms(ct) / 10);
        CT_OK(dl_unlock(r->failing, CT_ERR));
        ct_sleep_ms(ct, ct_lease_ms(ct));
        CT_GT(dl_valid_ms(r->also), 0);
        CT_OK(dl_unlock(r->also, CT_ERR));
        ct_latch_down(ct, r->done);
    } else {
        CT_FAIL("an event of kind %d for '%s'", (int)event->kind, event->name);
    }
}

CT_CASE(faults, row06_callback_calls_back_blocks_and_unlocks) {
    dl_client_t *c = ct_open(ct, NULL);
    rescue_t r = {.ct = ct, .done = ct_latch(ct, 1)};
    r.failing = ct_lock_owned(ct, c, "row 6 failing", 1);
    r.also = ct_lock(ct, c, "row 6 also");
    dl_lock_t *kept = ct_lock(ct, c, "row 6 kept");
    CT_EQ(dl_client_on_event(c, unlock_in_time, &r), DL_OK);
    CT_OK(dl_lock(kept, CT_ERR));
    CT_OK(dl_lock(r.failing, CT_ERR));
    ct_fault_t fault = {
        .op = CT_OP_RENEW, .mode = CT_FAIL_BEFORE, .count = CT_ALWAYS, .name = "row 6 failing"};
    ct_fault_add(ct, &fault);
    ct_latch_wait(ct, r.done, 3 * ct_lease_ms(ct));
    CT_GT(dl_valid_ms(kept), 0);
    CT_LE(ct_stats(ct, c).renewal_lateness_us_max, ct_tolerance_ms(ct) * 1000);
    CT_EQ(ct_stats(ct, c).lost, 0);
    ct_expect_free(ct, "row 6 failing", 0);
}

static void exit_only(ct_t *ct, void *arg) {
    (void)ct;
    (void)arg;
}

static void call_only(ct_t *ct, void *arg) {
    for (int i = 0; i < 3; i++) {
        CT_STATUS(dl_lock(arg, CT_ERR), DL_EFORKED);
        CT_STATUS(dl_unlock(arg, CT_ERR), DL_EFORKED);
        CT_EQ(dl_valid_ms(arg), 0);
    }
}

static void close_only(ct_t *ct, void *arg) {
    (void)ct;
    dl_client_close(arg);
}

CT_CASE(faults, row07_fork_while_holding) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 7");
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        uint64_t token = dl_token(lock);
        ct_process_wait(ct, ct_fork(ct, exit_only, NULL));
        ct_process_wait(ct, ct_fork(ct, call_only, lock));
        ct_process_wait(ct, ct_fork(ct, close_only, c));
        ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
        CT_GT(dl_valid_ms(lock), 0);
        CT_EQ(dl_token(lock), token);
        ct_expect_held(ct, "row 7");
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_expect_free(ct, "row 7", 0);
    }
}
