/* queue_turns_cases.c - contract: who of many operations is served when, with few threads to ask for them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>

#include "core/sys.h"
#include "queues.h"

/* ---- order ------------------------------------------------------------------------------------ */

#define LINE 6

CT_CASE(queue, serves_the_waiters_of_a_name_in_their_order, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "counter"), *locks[LINE];
    dl_queue_t *queue = new_queue(ct);
    uint64_t ids[LINE];
    CT_OK(dl_lock(held, CT_ERR));
    for (uint64_t i = 0; i < LINE; i++) {
        locks[i] = ct_lock_owned(ct, b, "counter", LINE - i);
        ids[i] = begin_lock(ct, queue, locks[i]);
    }
    await_wait(ct, b, "counter");
    CT_EQ(ct_stats(ct, b).waiting_now, LINE);
    expect_nothing(ct, queue);
    CT_OK(dl_unlock(held, CT_ERR));
    for (int i = 0; i < LINE; i++) {
        (void)take_of(ct, queue, ids[i], DL_OK, SOON_MS);
        unlock_by(ct, queue, locks[i]);
    }
    dl_queue_free(queue);
}

#define STRANGERS 100
#define TOGETHER 4

/* In their order, unless a server that counts levels is told of each. */
CT_CASE(queue, operations_of_one_owner_hold_together, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "counter"), *other = ct_lock(ct, a, "other"), *mine[TOGETHER];
    dl_queue_t *queue = new_queue(ct), *others = new_queue(ct);
    uint64_t ids[TOGETHER];
    CT_OK(dl_lock(held, CT_ERR));
    CT_OK(dl_lock(other, CT_ERR));
    for (uint64_t i = 0; i < STRANGERS; i++) {
        if (i % (STRANGERS / TOGETHER) == 0) {
            uint64_t n = i / (STRANGERS / TOGETHER);
            mine[n] = ct_lock_owned(ct, b, "counter", STRANGERS);
            ids[n] = begin_lock(ct, queue, mine[n]);
        }
        (void)begin_lock(ct, others, ct_lock_owned(ct, b, "counter", i));
        (void)begin_lock(ct, others, ct_lock_owned(ct, b, "other", STRANGERS));
    }
    CT_OK(dl_unlock(held, CT_ERR));
    for (int i = 0; i < TOGETHER; i++) {
        dl_completion_t done = take_next(ct, queue, SOON_MS);
        CT_EQ(done.status, DL_OK);
        CT_EQ(done.id, ct_caps(ct) & DL_CAP_SERVER_COUNT ? done.id : ids[i]);
    }
    CT_EQ(dl_hold_count(mine[0]), TOGETHER);
    expect_nothing(ct, others);
    for (int i = 0; i < TOGETHER; i++) {
        unlock_by(ct, queue, mine[i]);
    }
    CT_EQ(take_next(ct, others, SOON_MS).status, DL_OK);
    expect_nothing(ct, others);
    dl_queue_free(queue);
    dl_queue_free(others);
}

/* ---- a crowd from one thread ------------------------------------------------------------------- */

#define NAMES 100
#define EACH 100

typedef struct crowd {
    uint64_t token[NAMES]; /* the last */
    int inside[NAMES];
    int acquired, unlocked;
} crowd_t;

static void serve(ct_t *ct, crowd_t *crowd, dl_queue_t *queue, const dl_completion_t *done) {
    int name = (int)(intptr_t)done->tag;
    CT_EQ(done->status, DL_OK);
    if (done->kind == DL_OP_UNLOCK) {
        crowd->unlocked++;
        return;
    }
    CT_EQ(crowd->inside[name]++, 0);
    CT_GT(done->valid_ms, 0);
    if (ct_caps(ct) & DL_CAP_FENCE) {
        CT_GT(done->token, crowd->token[name]);
        crowd->token[name] = done->token;
    }
    crowd->acquired++;
    crowd->inside[name]--;
    CT_OK(dl_unlock_begin(done->lock, queue, done->tag, NULL, CT_ERR));
}

/* Ten thousand at once, a hundred for each name, each with an owner of its own. */
CT_CASE(queue, one_thread_has_ten_thousand_under_way, .traits = CT_BLOCKING | CT_VIRTUAL, .timeout_s = 120) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    crowd_t crowd = {.acquired = 0};
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    static dl_completion_t done[64];
    for (int i = 0; i < NAMES * EACH; i++) {
        char name[16];
        snprintf(name, sizeof name, "name %d", i % NAMES);
        CT_OK(dl_acquire_begin(ct_lock_owned(ct, c, name, (uint64_t)i), &opts, queue,
                               (void *)(intptr_t)(i % NAMES), NULL, CT_ERR));
    }
    while (crowd.unlocked < NAMES * EACH) {
        CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), SOON_MS));
        size_t n = dl_queue_take(queue, done, sizeof *done, 64);
        for (size_t i = 0; i < n; i++) {
            serve(ct, &crowd, queue, &done[i]);
        }
    }
    CT_EQ(crowd.acquired, NAMES * EACH);
    expect_nothing(ct, queue);
    dl_client_stats_t stats = ct_stats(ct, c);
    CT_EQ(stats.acquired, NAMES * EACH);
    CT_EQ(stats.waiting_now, 0);
    CT_EQ(stats.held_now, 0);
    dl_queue_free(queue);
}

/* ---- few threads -------------------------------------------------------------------------------- */

#define MORE_THAN_WORKERS 12

#define WORKERS 8

/* All that ask are kept by a server that is silent for these. */
static void keep_workers(ct_t *ct, dl_client_t *c, dl_queue_t *queue) {
    for (int i = 0; i < MORE_THAN_WORKERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "kept %d", i);
        ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_NEVER, .count = CT_ALWAYS};
        fault.name = name;
        ct_fault_add(ct, &fault);
        (void)begin_lock(ct, queue, ct_lock_owned(ct, c, name, 1));
    }
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), >=, WORKERS, SOON_MS);
    ct_sleep_ms(ct, 20); /* who waited on the server has been called back for the others */
}

CT_CASE(queue, a_wait_ends_in_time_while_every_thread_is_kept, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *kept = new_queue(ct), *queue = new_queue(ct);
    int64_t wait_ms = ct_call_timeout_ms(ct) / 4;
    keep_workers(ct, c, kept);
    int64_t before_ms = ct_now_ms(ct);
    uint64_t id = begin_acquire(ct, queue, ct_lock_owned(ct, c, "free", 1), wait_ms, DL_LEASE_AUTO);
    (void)take_of(ct, queue, id, DL_ETIMEDOUT, wait_ms + 100 + ct_tolerance_ms(ct));
    CT_BETWEEN(ct_now_ms(ct) - before_ms, wait_ms, wait_ms + ct_tolerance_ms(ct));
    CT_EQ(ct_calls_of(ct, CT_OP_TRY, c, "free"), 0);
    CT_EQ(ct_stats(ct, c).timed_out, 1);
    dl_queue_free(kept);
    dl_queue_free(queue);
}

/* Nobody answers: that is told as soon as a blocking call would tell it. */
CT_CASE(queue, a_server_that_answers_nobody_is_not_waited_for, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *kept = new_queue(ct), *queue = new_queue(ct);
    keep_workers(ct, c, kept);
    ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    int64_t before_ms = ct_now_ms(ct);
    (void)begin_lock(ct, queue, ct_lock_owned(ct, c, "free", 1));
    dl_completion_t done = take_next(ct, queue, 2 * ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    CT_CHECKF(done.status == DL_EIO || done.status == DL_EUNKNOWN, "it is %s", dl_status_name(done.status));
    CT_GE(ct_now_ms(ct) - before_ms, ct_call_timeout_ms(ct) - ct_tolerance_ms(ct));
    dl_queue_free(kept);
    dl_queue_free(queue);
}

#define SLOW 60

/* One that answers slowly is: whoever waits for ever is not out of time before a thread comes to him. */
CT_CASE(queue, a_server_that_is_slow_is_waited_for, .traits = CT_BLOCKING | CT_VIRTUAL,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    ct_fault_t fault = {.op = CT_OP_TRY,
                        .mode = CT_LATE_REPLY,
                        .count = CT_ALWAYS,
                        .delay_ms = ct_call_timeout_ms(ct) * 3 / 4};
    ct_fault_add(ct, &fault);
    int64_t before_ms = ct_now_ms(ct);
    for (int i = 0; i < SLOW; i++) {
        char name[16];
        snprintf(name, sizeof name, "slow %d", i);
        (void)begin_lock(ct, queue, ct_lock_owned(ct, c, name, 1));
    }
    for (int i = 0; i < SLOW; i++) {
        dl_completion_t done = take_next(ct, queue, ct_call_timeout_ms(ct));
        CT_CHECKF(done.status == DL_OK, "number %d is %s: %s", i, dl_status_name(done.status),
                  done.err.message);
    }
    CT_GT(ct_now_ms(ct) - before_ms, 2 * ct_call_timeout_ms(ct)); /* or it was no test */
    dl_queue_free(queue);
}

/* However many wait for holders, a free name is got at once. */
static void wait_for_holders(ct_t *ct, void (*begin)(ct_t *ct), int64_t within_ms) {
    const char *options = ct_traits(ct) & CT_MYSQL ? "max_total: 60" : NULL;
    dl_client_t *a = ct_open(ct, options), *b = ct_open(ct, options);
    dl_queue_t *waits = new_queue(ct), *queue = new_queue(ct);
    dl_lock_t *free_one = ct_lock_owned(ct, b, "free", 1);
    lock_by(ct, queue, free_one, DL_LEASE_AUTO); /* what it needs is there */
    unlock_by(ct, queue, free_one);
    for (int i = 0; i < MORE_THAN_WORKERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "held %d", i);
        CT_OK(dl_lock(ct_lock(ct, a, name), CT_ERR));
    }
    begin(ct);
    for (int i = 0; i < MORE_THAN_WORKERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "held %d", i);
        (void)begin_lock(ct, waits, ct_lock_owned(ct, b, name, 1));
        CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, b, name), >=, 1, within_ms);
    }
    for (int i = 0; i < 10; i++) {
        ct_sleep_ms(ct, 7);
        int64_t before_ms = ct_now_ms(ct);
        lock_by(ct, queue, free_one, DL_LEASE_AUTO);
        CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
        unlock_by(ct, queue, free_one);
    }
    expect_nothing(ct, waits);
    ct_close(ct, a);
    for (int i = 0; i < MORE_THAN_WORKERS; i++) {
        CT_EQ(take_next(ct, waits, SOON_MS).status, DL_OK);
    }
    ct_close(ct, b);
    dl_queue_free(waits);
    dl_queue_free(queue);
}

static void have_threads(ct_t *ct) {
    (void)ct;
}

CT_CASE(queue, waits_keep_no_free_name_from_others, .traits = CT_BLOCKING) {
    wait_for_holders(ct, have_threads, SOON_MS);
}

static void have_none_more(ct_t *ct) {
    ct_threads_left(ct, 0);
}

/* MySQL: connections, too, are made by threads. */
CT_CASE(queue, waits_keep_no_free_name_from_others_where_threads_are_few, .traits = CT_BLOCKING,
        .needs = DL_CAP_NATIVE_WAIT, .traits_not = CT_MYSQL) {
    ct_threads_left(ct, 1000);
    wait_for_holders(ct, have_none_more, ct_tolerance_ms(ct));
}

CT_CASE(queue, operations_wait_for_a_thread_that_cannot_be_had, .traits = CT_BLOCKING,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    ct_threads_left(ct, 0);
    CT_STATUS(dl_acquire_begin(lock, &opts, queue, NULL, NULL, CT_ERR), DL_ELIMIT);
    expect_nothing(ct, queue);
    ct_threads_left(ct, 1); /* the client's own */
    uint64_t id = begin_acquire(ct, queue, lock, DL_WAIT_FOREVER, 60000);
    ct_sleep_ms(ct, ct_call_timeout_ms(ct) / 4);
    if (!(ct_caps(ct) & DL_CAP_SESSION)) { /* the pings of a session need one more, and are refused it */
        expect_nothing(ct, queue);
        ct_threads_left(ct, 100);
        (void)take_of(ct, queue, id, DL_OK, ct_call_timeout_ms(ct));
        unlock_by(ct, queue, lock);
    } else {
        (void)take_of(ct, queue, id, DL_ELIMIT, 0);
    }
    dl_queue_free(queue);
    ct_lock_close(ct, lock);
    ct_close(ct, c);
}

/* ---- who listens --------------------------------------------------------------------------------- */

#define NEVER_POLLS "backoff_min: 60s\nbackoff_max: 60s"

/* The caller that listened for all goes away; the operation still hears of its release. */
CT_CASE(queue, hears_of_releases_when_the_caller_that_listened_has_left, .traits = CT_BLOCKING,
        .needs = DL_CAP_NOTIFY) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NEVER_POLLS);
    dl_lock_t *held = ct_lock(ct, a, "waited for"), *other = ct_lock(ct, a, "the caller's");
    dl_queue_t *queue = new_queue(ct);
    caller_t caller = CALLER(ct_lock(ct, b, "the caller's"), DL_WAIT_FOREVER);
    CT_OK(dl_cancel_new(&caller.opts.cancel, CT_ERR));
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    CT_OK(dl_trylock_for(other, 0, 60000, CT_ERR));
    start_caller(ct, &caller);
    ct_await_hearing(ct, b, "the caller's", SOON_MS);
    dl_lock_t *lock = ct_lock_owned(ct, b, "waited for", 1);
    uint64_t id = begin_lock(ct, queue, lock);
    ct_await_hearing(ct, b, "waited for", SOON_MS);
    dl_cancel_trigger(caller.opts.cancel);
    end_caller(ct, &caller, DL_ECANCELED);
    ct_sleep_ms(ct, 20);
    CT_OK(dl_unlock(held, CT_ERR));
    (void)take_of(ct, queue, id, DL_OK, ct_tolerance_ms(ct));
    unlock_by(ct, queue, lock);
    dl_cancel_free(caller.opts.cancel);
    dl_queue_free(queue);
}

/* And the other way round. */
CT_CASE(queue, leaves_the_listening_to_a_caller, .traits = CT_BLOCKING, .needs = DL_CAP_NOTIFY) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NEVER_POLLS);
    dl_lock_t *held = ct_lock(ct, a, "waited for"), *other = ct_lock(ct, a, "the caller's");
    dl_queue_t *queue = new_queue(ct);
    caller_t caller = CALLER(ct_lock(ct, b, "the caller's"), DL_WAIT_FOREVER);
    CT_OK(dl_trylock_for(held, 0, 60000, CT_ERR));
    CT_OK(dl_trylock_for(other, 0, 60000, CT_ERR));
    uint64_t id = begin_lock(ct, queue, ct_lock_owned(ct, b, "waited for", 1));
    ct_await_hearing(ct, b, "waited for", SOON_MS);
    start_caller(ct, &caller);
    ct_await_hearing(ct, b, "the caller's", SOON_MS);
    CT_EQ(dl_op_cancel(queue, id), DL_OK);
    (void)take_of(ct, queue, id, DL_ECANCELED, ct_tolerance_ms(ct));
    ct_sleep_ms(ct, 20);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_unlock(other, CT_ERR));
    end_caller(ct, &caller, DL_OK);
    CT_LE(caller.ended_ms - before_ms, ct_tolerance_ms(ct));
    dl_queue_free(queue);
}
