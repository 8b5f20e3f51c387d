/* cancel_cases.c - contract: a wait can be ended at every point of it, and leaves nothing behind. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "callers.h"

static dl_cancel_t *new_cancel(ct_t *ct) {
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    return cancel;
}

/* Triggers, and the caller ends at once with DL_ECANCELED. */
static void cancel_caller(ct_t *ct, caller_t *c) {
    int64_t before_ms = ct_now_ms(ct);
    dl_cancel_trigger(c->opts.cancel);
    end_caller(ct, c, DL_ECANCELED);
    CT_LE(c->ended_ms - before_ms, ct_tolerance_ms(ct));
}

/* The object is triggered for good. A queue is told of each operation by itself, once that was begun. */
CT_CASE(cancel, before_the_call_asks_nobody, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "free");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.cancel = new_cancel(ct);
    dl_cancel_trigger(opts.cancel);
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_ECANCELED);
    opts.wait_ms = 0;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_ECANCELED);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 0);
    CT_EQ(dl_hold_count(lock), 0);
    dl_cancel_free(opts.cancel);
    CT_OK(dl_trylock(lock, CT_ERR));
}

CT_CASE(cancel, in_the_queue_of_the_process_lets_the_others_move_up) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "queue");
    CT_OK(dl_lock(lock, CT_ERR));
    caller_t first = CALLER(lock, DL_WAIT_FOREVER), second = CALLER(lock, DL_WAIT_FOREVER);
    first.opts.cancel = new_cancel(ct);
    start_caller(ct, &first);
    ct_await_waiting(ct, c, 1, 5000);
    start_caller(ct, &second);
    ct_await_waiting(ct, c, 2, 5000);
    cancel_caller(ct, &first);
    CT_GT(dl_valid_ms(lock), 0);
    CT_CHECK(!ct_thread_done(ct, second.thread));
    CT_OK(dl_unlock(lock, CT_ERR));
    end_caller(ct, &second, DL_OK);
    ct_expect_free(ct, "queue", 0);
    CT_EQ(ct_stats(ct, c).waiting_now, 0);
    dl_cancel_free(first.opts.cancel);
}

/* Cancelled while the driver tries, with this fault on it. */
static void cancel_try(ct_t *ct, ct_mode_t mode) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "trying");
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = mode, .delay_ms = ct_call_timeout_ms(ct) * 3 / 4};
    ct_fault_add(ct, &fault);
    caller_t caller = CALLER(lock, DL_WAIT_FOREVER);
    caller.opts.cancel = new_cancel(ct);
    start_caller(ct, &caller);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), ==, 1, 5000);
    ct_sleep_ms(ct, 20);
    cancel_caller(ct, &caller);
    ct_expect_free(ct, "trying", ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).held_now, 0);
    CT_EQ(ct_stats(ct, c).waiting_now, 0);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 1);
    ct_expect_free(ct, "trying", 0);
    CT_OK(dl_trylock(lock, CT_ERR)); /* and the gate is free */
    dl_cancel_free(caller.opts.cancel);
}

CT_CASE(cancel, while_the_server_is_silent) {
    cancel_try(ct, CT_NEVER);
}

CT_CASE(cancel, while_the_yes_is_on_its_way) {
    cancel_try(ct, CT_LATE_REPLY);
}

CT_CASE(cancel, while_a_yes_is_lost) {
    cancel_try(ct, CT_NEVER_ACTED);
}

static void trigger_on_yes(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)ct;
    if (call->status == DL_OK) {
        dl_cancel_trigger(arg);
    }
}

/* queue_cases.c does the same to an operation of a queue. */
CT_CASE(cancel, at_the_instant_of_the_yes_gives_the_lock_back, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, a, "yes"), *other = ct_lock(ct, b, "yes");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.cancel = new_cancel(ct);
    ct_hook(ct, CT_OP_TRY, CT_AFTER, "yes", trigger_on_yes, opts.cancel);
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_ECANCELED);
    ct_hook(ct, CT_OP_TRY, CT_AFTER, NULL, NULL, NULL);
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(dl_valid_ms(lock), 0);
    ct_expect_free(ct, "yes", ct_tolerance_ms(ct));
    CT_OK(dl_trylock(other, CT_ERR));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_GT(dl_valid_ms(other), 0);
    CT_EQ(ct_calls_of(ct, CT_OP_RENEW, a, NULL), 0);
    CT_EQ(ct_stats(ct, a).acquired, 0);
    ct_no_event(ct, a, 0, NULL, 0);
    dl_cancel_free(opts.cancel);
}

/* A caller of client b waits for the lock that client a holds, with a cancel object. */
static void wait_for_other(ct_t *ct, dl_client_t *a, dl_client_t *b, caller_t *caller) {
    CT_OK(dl_lock(ct_lock(ct, a, "held"), CT_ERR));
    *caller = (caller_t)CALLER(ct_lock(ct, b, "held"), DL_WAIT_FOREVER);
    caller->opts.cancel = new_cancel(ct);
    start_caller(ct, caller);
    ct_await_waiting(ct, b, 1, 5000);
}

CT_CASE(cancel, while_waiting_for_the_holder) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, NULL);
    caller_t caller;
    wait_for_other(ct, a, b, &caller);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, b, "held"), >=, 1, 5000);
    ct_sleep_ms(ct, ct_lease_ms(ct) / 2);
    cancel_caller(ct, &caller);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_UNWATCH), ==, ct_calls(ct, CT_OP_WATCH), 5000);
    ct_expect_held(ct, "held");
    ct_close(ct, a);
    ct_expect_free(ct, "held", 0);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    ct_expect_free(ct, "held", 0);
    CT_OK(dl_trylock(caller.lock, CT_ERR));
    dl_cancel_free(caller.opts.cancel);
}

CT_CASE(cancel, while_subscribing, .needs = DL_CAP_NOTIFY) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    ct_fault(ct, CT_OP_WATCH, CT_NEVER, 1);
    caller_t caller;
    wait_for_other(ct, a, b, &caller);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_WATCH), ==, 1, 5000);
    ct_sleep_ms(ct, 20);
    cancel_caller(ct, &caller);
    CT_EQ(ct_stats(ct, b).waiting_now, 0);
    dl_cancel_free(caller.opts.cancel);
}

CT_CASE(cancel, while_the_notification_is_awaited, .needs = DL_CAP_NOTIFY) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    caller_t caller;
    wait_for_other(ct, a, b, &caller);
    ct_await_hearing(ct, b, "held", 5000);
    ct_sleep_ms(ct, 20);
    cancel_caller(ct, &caller);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_UNWATCH), ==, 1, 5000);
    dl_cancel_free(caller.opts.cancel);
}

#define MANY 12

CT_CASE(cancel, once_ends_many_waits_and_no_others) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_cancel_t *cancel = new_cancel(ct), *other = new_cancel(ct);
    caller_t callers[MANY + 1];
    char name[32];
    for (int i = 0; i <= MANY; i++) {
        snprintf(name, sizeof name, "many %d", i / 2);
        if (i % 2 == 0) {
            CT_OK(dl_lock(ct_lock(ct, a, name), CT_ERR));
        }
        /* Two waiters a name: one at the server, one in the queue of the process. */
        callers[i] = (caller_t)CALLER(ct_lock(ct, b, name), DL_WAIT_FOREVER);
        callers[i].opts.cancel = i < MANY ? cancel : other;
        start_caller(ct, &callers[i]);
    }
    ct_await_waiting(ct, b, MANY + 1, 5000);
    int64_t before_ms = ct_now_ms(ct);
    dl_cancel_trigger(cancel);
    for (int i = 0; i < MANY; i++) {
        end_caller(ct, &callers[i], DL_ECANCELED);
        CT_LE(callers[i].ended_ms - before_ms, ct_tolerance_ms(ct));
    }
    ct_sleep_ms(ct, 50);
    CT_CHECK(!ct_thread_done(ct, callers[MANY].thread));
    CT_EQ(ct_stats(ct, b).waiting_now, 1);
    ct_close(ct, a);
    end_caller(ct, &callers[MANY], DL_OK);
    dl_cancel_free(cancel);
    dl_cancel_free(other);
}

static dl_cancel_t *signal_cancel;

static void on_signal(int number) {
    (void)number;
    dl_cancel_trigger(signal_cancel);
}

CT_CASE(cancel, works_from_a_signal_handler) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    caller_t caller;
    wait_for_other(ct, a, b, &caller);
    signal_cancel = caller.opts.cancel;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    CT_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    int64_t before_ms = ct_now_ms(ct);
    CT_EQ(raise(SIGUSR1), 0);
    end_caller(ct, &caller, DL_ECANCELED);
    CT_LE(caller.ended_ms - before_ms, ct_tolerance_ms(ct));
    CT_GE(dl_cancel_fd(signal_cancel), 0);
    dl_cancel_free(signal_cancel);
}
