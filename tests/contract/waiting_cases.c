/* waiting_cases.c - contract: how a call waits for another holder, and what wakes it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "contract/callers.h"

/* Leases far longer than any wait here: who waits for the lease's end is found out. */
#define LONG_LEASE_MS 60000
#define BACKOFF_MAX_MS 500 /* the default of the option */

/* A holder, and one thread of another client that waits for it. */
typedef struct pair {
    dl_client_t *holding_client, *waiting_client;
    dl_lock_t *held, *wanted;
    int64_t got_it_ms; /* when the waiter got it; 0: not yet */
    ct_thread_t *thread;
} pair_t;

static void want(ct_t *ct, void *arg) {
    pair_t *pair = arg;
    CT_OK(dl_lock(pair->wanted, CT_ERR));
    __atomic_store_n(&pair->got_it_ms, ct_now_ms(ct), __ATOMIC_SEQ_CST);
    CT_OK(dl_unlock(pair->wanted, CT_ERR));
}

static pair_t *open_pair(ct_t *ct, pair_t *pair, const char *waiter_options) {
    memset(pair, 0, sizeof *pair);
    pair->holding_client = ct_open(ct, LASTING);
    pair->waiting_client = ct_open(ct, waiter_options);
    pair->held = ct_lock(ct, pair->holding_client, "orders");
    pair->wanted = ct_lock(ct, pair->waiting_client, "orders");
    return pair;
}

/* The holder holds, and the waiter waits on the server. */
static void start_waiting(ct_t *ct, pair_t *pair, int64_t lease_ms) {
    CT_OK(dl_trylock_for(pair->held, 0, lease_ms, CT_ERR));
    pair->thread = ct_thread(ct, want, pair);
    ct_await_waiting(ct, pair->waiting_client, 1, 5000);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, pair->waiting_client, NULL), >, 0, 5000);
}

static void release_and_expect(ct_t *ct, pair_t *pair, int64_t within_ms) {
    CT_EQ(__atomic_load_n(&pair->got_it_ms, __ATOMIC_SEQ_CST), 0);
    int64_t stood_ms = ct_stood_ms(ct);
    CT_OK(dl_unlock(pair->held, CT_ERR));
    int64_t released_ms = ct_now_ms(ct);
    ct_join(ct, pair->thread);
    stood_ms = ct_stood_ms(ct) - stood_ms;
    CT_BETWEEN(pair->got_it_ms - released_ms, -ct_tolerance_ms(ct), within_ms + stood_ms);
}

/* How soon a waiter of this driver hears of a release. */
static int64_t hears_within_ms(ct_t *ct) {
    return ct_tolerance_ms(ct) + (ct_traits(ct) & CT_PLAIN_POLLING ? BACKOFF_MAX_MS : 0);
}

/* ---- being woken ----------------------------------------------------------------------------- */

CT_CASE(waiting, a_waiter_gets_the_lock_soon_after_the_release) {
    pair_t pair;
    start_waiting(ct, open_pair(ct, &pair, NULL), LONG_LEASE_MS);
    ct_sleep_ms(ct, 3 * ct_tolerance_ms(ct));
    release_and_expect(ct, &pair, hears_within_ms(ct));
    CT_EQ(ct_stats(ct, pair.waiting_client).contended, 1);
}

CT_CASE(waiting, a_waiter_of_a_renewed_hold_gets_the_lock_soon_after_the_release) {
    pair_t pair;
    start_waiting(ct, open_pair(ct, &pair, NULL), DL_LEASE_AUTO);
    ct_sleep_ms(ct, ct_lease_ms(ct) * 5 / 2);
    release_and_expect(ct, &pair, hears_within_ms(ct));
}

/* Who stands in line on a Redis server says each second, or up to a quarter earlier, that it still waits.
 * Nobody else asks. How often at most, if the last try before was not earlier than that. */
static int asked_again_since(ct_t *ct, int64_t since_ms) {
    int is_in_line = strncmp(ct_driver_name(ct), "redis-", 6) == 0;
    return is_in_line ? (int)((ct_now_ms(ct) - since_ms) / 750) : 0;
}

CT_CASE(waiting, notification_replaces_asking, .needs = DL_CAP_NOTIFY) {
    pair_t pair;
    start_waiting(ct, open_pair(ct, &pair, NULL), LONG_LEASE_MS);
    ct_await_hearing(ct, pair.waiting_client, "orders", 5000); /* until then it polls */
    int tries = ct_calls_of(ct, CT_OP_TRY, pair.waiting_client, NULL);
    int64_t heard_ms = ct_now_ms(ct);
    ct_sleep_ms(ct, ct_traits(ct) & CT_VIRTUAL ? 20000 : 1500);
    int more = ct_calls_of(ct, CT_OP_TRY, pair.waiting_client, NULL) - tries;
    CT_LE(more, 1 + asked_again_since(ct, heard_ms));
    CT_EQ(ct_calls_of(ct, CT_OP_WATCH, pair.waiting_client, NULL), 1);
    release_and_expect(ct, &pair, hears_within_ms(ct));
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_UNWATCH, pair.waiting_client, NULL), ==, 1, 5000);
}

/* Its watch is kept: it hears from its first try on. */
CT_CASE(waiting, who_waits_again_soon_asks_once, .needs = DL_CAP_NOTIFY) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    dl_client_t *c = pair.waiting_client;
    CT_OK(dl_trylock_for(pair.held, 0, LONG_LEASE_MS, CT_ERR));
    caller_t first = CALLER(pair.wanted, DL_WAIT_FOREVER);
    CT_OK(dl_cancel_new(&first.opts.cancel, CT_ERR));
    start_caller(ct, &first);
    ct_await_hearing(ct, c, "orders", 5000);
    int64_t heard_ms = ct_now_ms(ct);
    int tries = ct_calls_of(ct, CT_OP_TRY, c, NULL);
    dl_cancel_trigger(first.opts.cancel);
    end_caller(ct, &first, DL_ECANCELED);
    pair.thread = ct_thread(ct, want, &pair);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, c, NULL), >, tries, 5000);
    ct_sleep_ms(ct, 200);
    int more = ct_calls_of(ct, CT_OP_TRY, c, NULL) - tries;
    CT_LE(more, 1 + asked_again_since(ct, heard_ms));
    CT_EQ(ct_calls_of(ct, CT_OP_WATCH, c, NULL), 1);
    release_and_expect(ct, &pair, hears_within_ms(ct));
    dl_cancel_free(first.opts.cancel);
}

typedef struct steps {
    char text[16];
    int count;
} steps_t;

static void note_step(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)ct;
    steps_t *steps = arg;
    if (call->client == 1 && steps->count < (int)sizeof steps->text - 1) {
        steps->text[steps->count++] = call->op == CT_OP_TRY ? 't' : call->op == CT_OP_WATCH ? 'w' : 's';
    }
}

CT_CASE(waiting, the_order_is_watch_then_try_again_then_sleep, .needs = DL_CAP_NOTIFY) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    steps_t steps = {.count = 0}; /* written by the waiter alone */
    ct_hook(ct, CT_OP_TRY, CT_BEFORE, NULL, note_step, &steps);
    ct_hook(ct, CT_OP_WATCH, CT_BEFORE, NULL, note_step, &steps);
    int for_answers = (ct_traits(ct) & CT_BACKEND) != 0; /* it listens for these, too */
    if (!for_answers) {
        ct_hook(ct, CT_OP_LISTEN, CT_BEFORE, NULL, note_step, &steps);
    }
    start_waiting(ct, &pair, LONG_LEASE_MS);
    ct_await_hearing(ct, pair.waiting_client, "orders", 5000);
    release_and_expect(ct, &pair, hears_within_ms(ct));
    /* A driver that is not yet able to hear when the watch begins makes it sleep before the second try too.
     */
    CT_CHECKF(strncmp(steps.text, "tw", 2) == 0 && strstr(steps.text + 2, for_answers ? "t" : "ts") != NULL,
              "the steps were '%s'", steps.text);
}

static void hold_until_told(ct_t *ct, void *arg) {
    (void)arg;
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, LONG_LEASE_MS, CT_ERR));
    ct_send(ct, NULL, 0);
    (void)ct_recv(ct, NULL);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_send(ct, NULL, ct_now_ms(ct)); /* one clock for all processes of a machine */
}

CT_CASE(waiting, a_release_in_another_process_wakes_too, .traits = CT_PROCESSES) {
    ct_process_t *process = ct_process(ct, hold_until_told, NULL);
    (void)ct_recv(ct, process);
    pair_t pair;
    open_pair(ct, &pair, NULL);
    pair.thread = ct_thread(ct, want, &pair);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, pair.waiting_client, NULL), >, 1, 5000);
    ct_sleep_ms(ct, ct_tolerance_ms(ct));
    CT_EQ(__atomic_load_n(&pair.got_it_ms, __ATOMIC_SEQ_CST), 0);
    ct_send(ct, process, 0);
    int64_t released_ms = ct_recv(ct, process);
    ct_join(ct, pair.thread);
    CT_BETWEEN(pair.got_it_ms - released_ms, -ct_tolerance_ms(ct), hears_within_ms(ct));
    ct_process_wait(ct, process);
}

/* ---- a release at the worst instant ---------------------------------------------------------- */

static void release_while_paused(ct_t *ct, ct_op_t op, ct_when_t when) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    ct_pause_t *pause = ct_pause(ct, op, when, pair.waiting_client, NULL);
    start_waiting(ct, &pair, LONG_LEASE_MS);
    ct_pause_await(ct, pause, 5000);
    CT_OK(dl_unlock(pair.held, CT_ERR));
    int64_t start_ms = ct_now_ms(ct);
    ct_pause_go(ct, pause);
    ct_join(ct, pair.thread);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, ct_tolerance_ms(ct));
}

CT_CASE(waiting, a_release_between_busy_and_watching_is_seen, .needs = DL_CAP_NOTIFY) {
    release_while_paused(ct, CT_OP_WATCH, CT_BEFORE);
}

CT_CASE(waiting, a_release_right_after_the_watch_began_is_seen, .needs = DL_CAP_NOTIFY) {
    release_while_paused(ct, CT_OP_WATCH, CT_AFTER);
}

CT_CASE(waiting, a_release_right_before_the_sleep_is_seen, .needs = DL_CAP_NOTIFY) {
    release_while_paused(ct, CT_OP_LISTEN, CT_BEFORE);
}

/* ---- notification that fails ----------------------------------------------------------------- */

CT_CASE(waiting, a_lost_notification_costs_time_but_never_the_lock, .needs = DL_CAP_NOTIFY) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    int64_t lease_ms = ct_traits(ct) & CT_VIRTUAL ? 20000 : 4 * ct_tolerance_ms(ct);
    int64_t start_ms = ct_now_ms(ct);
    start_waiting(ct, &pair, lease_ms);
    ct_await_hearing(ct, pair.waiting_client, "orders", 5000);
    int fault = ct_fault(ct, CT_OP_WOKEN, CT_LOSE_REPLY, CT_ALWAYS);
    CT_OK(dl_unlock(pair.held, CT_ERR));
    ct_join(ct, pair.thread);
    CT_GT(ct_fault_hits(ct, fault), 0);
    /* Never later than the lease that the holder had when it was last asked about. */
    CT_BETWEEN(pair.got_it_ms - start_ms, 0, lease_ms + ct_tolerance_ms(ct));
}

/* It polls now, and does not spin: pauses grow to half a second, drawn at random. */
static void expect_polling(ct_t *ct, const pair_t *pair) {
    int before = ct_calls_of(ct, CT_OP_TRY, pair->waiting_client, NULL);
    ct_sleep_ms(ct, 2000);
    CT_BETWEEN(ct_calls_of(ct, CT_OP_TRY, pair->waiting_client, NULL) - before, 3, 80);
}

static void wait_with_broken(ct_t *ct, ct_op_t op, ct_mode_t mode, dl_status_t status) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    ct_fault_t broken = {.op = op, .mode = mode, .count = CT_ALWAYS, .status = status};
    int fault = ct_fault_add(ct, &broken);
    start_waiting(ct, &pair, LONG_LEASE_MS);
    expect_polling(ct, &pair);
    CT_GT(ct_fault_hits(ct, fault), 0);
    release_and_expect(ct, &pair, BACKOFF_MAX_MS + ct_tolerance_ms(ct));
}

CT_CASE(waiting, a_watch_that_cannot_begin_falls_back_to_polling, .needs = DL_CAP_NOTIFY) {
    wait_with_broken(ct, CT_OP_WATCH, CT_FAIL_BEFORE, DL_EIO);
}

CT_CASE(waiting, a_server_that_refuses_watches_is_polled, .needs = DL_CAP_NOTIFY) {
    wait_with_broken(ct, CT_OP_WATCH, CT_FAIL_BEFORE, DL_ENOTSUP);
}

CT_CASE(waiting, a_watch_that_is_never_able_to_hear_is_no_reason_not_to_poll, .needs = DL_CAP_NOTIFY) {
    wait_with_broken(ct, CT_OP_WATCH, CT_NEVER, DL_OK);
}

CT_CASE(waiting, a_watch_that_breaks_falls_back_to_polling_until_it_hears_again, .needs = DL_CAP_NOTIFY) {
    pair_t pair;
    start_waiting(ct, open_pair(ct, &pair, NULL), LONG_LEASE_MS);
    ct_await_hearing(ct, pair.waiting_client, "orders", 5000);
    ct_woken(ct, pair.waiting_client, "orders", 0);
    expect_polling(ct, &pair);
    ct_woken(ct, pair.waiting_client, "orders", 1);
    ct_await_hearing(ct, pair.waiting_client, "orders", 5000);
    int64_t heard_ms = ct_now_ms(ct);
    int tries = ct_calls_of(ct, CT_OP_TRY, pair.waiting_client, NULL);
    ct_sleep_ms(ct, 2000);
    int more = ct_calls_of(ct, CT_OP_TRY, pair.waiting_client, NULL) - tries;
    CT_LE(more, asked_again_since(ct, heard_ms - 750)); /* the last one may have been so long ago */
    release_and_expect(ct, &pair, hears_within_ms(ct));
}

/* ---- holders that are not ours --------------------------------------------------------------- */

#define FOREIGN_PAUSE_MS 100

/* Nobody may ever tell that it has gone. Where a backend says that it may be there again at once, it is
 * looked at often at first. */
static void look_at_a_foreign_holder(ct_t *ct, int64_t busy_ms) {
    dl_client_t *client = ct_open(ct, "backoff_min: 10ms\nbackoff_max: 100ms");
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    ct_fault_t foreign = {
        .op = CT_OP_TRY, .mode = CT_ANSWER, .count = CT_ALWAYS, .status = DL_EBUSY, .busy_ms = busy_ms};
    ct_fault_add(ct, &foreign);
    int64_t wait_ms = ct_traits(ct) & CT_VIRTUAL ? 20000 : 1000;
    int64_t start_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    CT_BETWEEN(ct_now_ms(ct) - start_ms, wait_ms, wait_ms + ct_tolerance_ms(ct));
    int tries = ct_calls(ct, CT_OP_TRY), in_first_second = 0;
    uint64_t first_ns = ct_call(ct, CT_OP_TRY, 0).begin_ns;
    for (int i = 1; i < tries; i++) {
        uint64_t at_ns = ct_call(ct, CT_OP_TRY, i).begin_ns;
        uint64_t gap_ns = at_ns - ct_call(ct, CT_OP_TRY, i - 1).begin_ns;
        CT_BETWEEN(gap_ns / 1000000, 0, FOREIGN_PAUSE_MS + ct_tolerance_ms(ct));
        in_first_second += at_ns - first_ns < 1000000000u;
    }
    if (ct_traits(ct) & CT_VIRTUAL) {
        /* Drawn at random: about half of the bound on the average. */
        CT_BETWEEN(wait_ms / tries, FOREIGN_PAUSE_MS * 3 / 10, FOREIGN_PAUSE_MS * 7 / 10);
        /* On the average 20; or 30 until a sixteenth of the time is more than 10 ms, and then 55. */
        int looks_often = (ct_traits(ct) & CT_BACKEND) != 0;
        CT_BETWEEN(in_first_second, looks_often ? 45 : 8, looks_often ? 140 : 40);
    }
}

CT_CASE(waiting, a_holder_that_may_never_notify_is_looked_at_by_the_backoff) {
    look_at_a_foreign_holder(ct, LONG_LEASE_MS);
}

CT_CASE(waiting, a_holder_without_expiry_is_looked_at_by_the_backoff) {
    look_at_a_foreign_holder(ct, -1);
}

/* ---- polling --------------------------------------------------------------------------------- */

CT_CASE(waiting, pauses_grow_to_their_bound_and_are_drawn_at_random,
        .traits = CT_PLAIN_POLLING | CT_VIRTUAL) {
    pair_t pair;
    open_pair(ct, &pair, "backoff_min: 10ms\nbackoff_max: 200ms");
    start_waiting(ct, &pair, LONG_LEASE_MS);
    ct_sleep_ms(ct, 30000);
    int tries = ct_calls_of(ct, CT_OP_TRY, pair.waiting_client, NULL);
    CT_GT(tries, 100);
    int64_t sum_us = 0, shortest_us = INT64_MAX, longest_us = 0;
    int first = ct_calls_of(ct, CT_OP_TRY, pair.holding_client, NULL);
    for (int i = 1; i < tries; i++) {
        uint64_t before_ns = ct_call(ct, CT_OP_TRY, first + i - 1).begin_ns;
        int64_t gap_us = (int64_t)(ct_call(ct, CT_OP_TRY, first + i).begin_ns - before_ns) / 1000;
        CT_BETWEEN(gap_us, 1, i < 6 ? 10000 << (i - 1) : 200000);
        if (i >= 6) {
            sum_us += gap_us;
            shortest_us = gap_us < shortest_us ? gap_us : shortest_us;
            longest_us = gap_us > longest_us ? gap_us : longest_us;
        }
    }
    /* Full jitter: over the whole range, so about half of the bound on the average. */
    CT_BETWEEN(sum_us / (tries - 6), 60000, 140000);
    CT_LT(shortest_us, 50000);
    CT_GT(longest_us, 150000);
    release_and_expect(ct, &pair, 200 + 1);
}

CT_CASE(waiting, a_native_wait_is_no_longer_than_the_call_may_wait, .needs = DL_CAP_NATIVE_WAIT) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    CT_OK(dl_trylock_for(pair.held, 0, LONG_LEASE_MS, CT_ERR));
    CT_EQ(ct_call(ct, CT_OP_TRY, -1).wait_ms, 0);
    CT_STATUS(dl_trylock(pair.wanted, CT_ERR), DL_EBUSY);
    CT_EQ(ct_call(ct, CT_OP_TRY, -1).wait_ms, 0);
    int first = ct_calls(ct, CT_OP_TRY);
    CT_STATUS(dl_trylock_for(pair.wanted, 300, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT);
    CT_GT(ct_call(ct, CT_OP_TRY, first).wait_ms, 0);
    for (int i = first; i < ct_calls(ct, CT_OP_TRY); i++) {
        CT_BETWEEN(ct_call(ct, CT_OP_TRY, i).wait_ms, 0, 300);
    }
}

/* ---- the holder never unlocks ---------------------------------------------------------------- */

CT_CASE(waiting, a_waiter_gets_the_lock_when_the_lease_runs_out_on_the_server) {
    pair_t pair;
    open_pair(ct, &pair, NULL);
    ct_fault_t silence = {
        .op = CT_OP_RELEASE, .mode = CT_FAIL_BEFORE, .count = CT_ALWAYS, .client = pair.holding_client};
    int64_t lease_ms = ct_traits(ct) & CT_VIRTUAL ? 20000 : 4 * ct_tolerance_ms(ct);
    ct_fault_add(ct, &silence);
    start_waiting(ct, &pair, lease_ms);
    int64_t valid_ms = dl_valid_ms(pair.held), start_ms = ct_now_ms(ct);
    ct_join(ct, pair.thread);
    /* Not while the holder may still act, and no later than the lease plus a bit. */
    CT_BETWEEN(pair.got_it_ms - start_ms, valid_ms, ct_server_lease_ms(ct, lease_ms) + ct_tolerance_ms(ct));
    CT_EQ(dl_valid_ms(pair.held), 0);
}

/* ---- many of them ---------------------------------------------------------------------------- */

typedef struct visitor {
    dl_lock_t *lock;
    int *inside;
} visitor_t;

static void visit(ct_t *ct, void *arg) {
    visitor_t *v = arg;
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(v->lock, CT_ERR));
        CT_EQ(__atomic_fetch_add(v->inside, 1, __ATOMIC_SEQ_CST), 0);
        ct_sleep_ms(ct, 5);
        CT_EQ(__atomic_fetch_sub(v->inside, 1, __ATOMIC_SEQ_CST), 1);
        CT_OK(dl_unlock(v->lock, CT_ERR));
    }
}

CT_CASE(waiting, everybody_in_a_crowd_of_clients_gets_a_turn, .timeout_s = 60) {
    int inside = 0;
    visitor_t visitors[6];
    ct_thread_t *threads[6];
    for (int i = 0; i < 6; i += 2) {
        dl_client_t *client = ct_open(ct, NULL);
        visitors[i] = visitors[i + 1] = (visitor_t){.lock = ct_lock(ct, client, "museum"), .inside = &inside};
    }
    int64_t start_ms = ct_now_ms(ct);
    for (int i = 0; i < 6; i++) {
        threads[i] = ct_thread(ct, visit, &visitors[i]);
    }
    for (int i = 0; i < 6; i++) {
        ct_join(ct, threads[i]);
    }
    CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, 20000);
}

CT_CASE(waiting, waiting_for_another_holder_outlasts_the_call_timeout) {
    pair_t pair;
    start_waiting(ct, open_pair(ct, &pair, NULL), LONG_LEASE_MS);
    ct_sleep_ms(ct, 3 * ct_call_timeout_ms(ct));
    release_and_expect(ct, &pair, hears_within_ms(ct));
}
