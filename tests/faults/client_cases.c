/* client_cases.c - faults of clients, and of single requests: rows 1 to 14 and 38 to 41 of the table of faults. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "contract/callers.h"
#include "core/core.h"

/* ---- row 1: killed ---------------------------------------------------------------------------------------- */

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
    int64_t before_ms = ct_now_ms(ct);
    for (int i = 0; i < 4; i++) {
        end_caller(ct, &waiters[i], DL_OK);
        CT_LE(waiters[i].ended_ms - before_ms, ct_lease_ms(ct) + ct_tolerance_ms(ct));
        for (int k = 0; k < i && (ct_caps(ct) & DL_CAP_FENCE); k++) {
            CT_CHECK((waiters[i].token > waiters[k].token) == (waiters[i].ended_ms >= waiters[k].ended_ms) ||
                     waiters[i].ended_ms == waiters[k].ended_ms);
        }
    }
}

/* ---- rows 2 to 4: stopped and starved ------------------------------------------------------------------------ */

static void be_stopped_with_work_in_hand(ct_t *ct, void *arg) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, arg), *explicit_lock = ct_lock(ct, c, "row 2 explicit");
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, explicit_lock, ct_lease_ms(ct));
    CT_AWAIT(ct_stats(ct, c).renewed >= 1, ct_lease_ms(ct));
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
    CT_OK(dl_trylock_for(lock, ct_lease_ms(ct) + ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
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

CT_CASE(faults, row03_stopped_between_sending_and_reading_until_after_validity) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 3");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_AFTER, c, "row 3");
    caller_t one_try = CALLER(lock, 0);
    start_caller(ct, &one_try);
    ct_pause_await(ct, pause, 5000);
    ct_sleep_ms(ct, lease_ms);
    ct_pause_go(ct, pause);
    end_caller(ct, &one_try, DL_ELOST);
    ct_expect_free(ct, "row 3", ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, c).acquired, 0);
    /* A call that may wait goes on with a hold of its own; the dead one is never it. */
    pause = ct_pause(ct, CT_OP_TRY, CT_AFTER, c, "row 3");
    caller_t waiting = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &waiting);
    ct_pause_await(ct, pause, 5000);
    ct_sleep_ms(ct, lease_ms);
    ct_pause_go(ct, pause);
    end_caller(ct, &waiting, DL_OK);
    CT_GE(waiting.valid_ms, validity_of(lease_ms) - ct_tolerance_ms(ct));
    CT_GE(ct_calls(ct, CT_OP_TRY), 3);
    ct_expect_free(ct, "row 3", ct_tolerance_ms(ct));
}

static void stop_myself(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)ct;
    (void)call;
    (void)arg;
    raise(SIGSTOP);
}

static void be_stopped_in_a_call(ct_t *ct, void *arg) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, arg);
    (void)ct_recv(ct, NULL);
    ct_hook(ct, CT_OP_TRY, CT_AFTER, arg, stop_myself, NULL);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(lock), 0);
}

CT_CASE(faults, row03_process_stopped_between_sending_and_reading, .traits = CT_PROCESSES) {
    char name[] = "row 3";
    ct_process_t *victim = ct_process(ct, be_stopped_in_a_call, name);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, name);
    ct_send(ct, victim, 1);
    CT_AWAIT(dl_trylock(lock, NULL) == DL_EBUSY || dl_unlock(lock, NULL) != DL_OK, 5000);
    ct_process_stop(ct, victim);
    CT_OK(dl_trylock_for(lock, ct_lease_ms(ct) + ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
    ct_process_continue(ct, victim);
    ct_process_wait(ct, victim);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(faults, row04_watchdog_starved, .traits = CT_VIRTUAL) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 4"), *other = ct_lock_owned(ct, c, "row 4", 9);
    take(ct, lock, DL_LEASE_AUTO);
    take(ct, lock, DL_LEASE_AUTO);
    int64_t valid_ms = dl_valid_ms(lock);
    CT_BETWEEN(valid_ms, validity_of(ct_lease_ms(ct)) - 1, validity_of(ct_lease_ms(ct)));
    /* The clock jumps while this thread runs, and so before the watchdog can. */
    ct_suspend_ms(ct, valid_ms - 1);
    CT_BETWEEN(dl_valid_ms(lock), 1, 2);
    ct_suspend_ms(ct, 2);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_hold_count(lock), 2);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_ELOST);
    /* And whoever comes next in this process does not wait for the watchdog either. */
    CT_OK(dl_trylock_for(other, 1000, DL_LEASE_AUTO, CT_ERR));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_EQ(ct_stats(ct, c).lost, 1);
}

/* ---- rows 5 to 7: threads, callbacks, children --------------------------------------------------------------- */

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

CT_CASE(faults, row05_owner_thread_exits_holding) {
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
    ct_fault_t fault = {.op = CT_OP_RENEW, .mode = CT_FAIL_BEFORE, .count = CT_ALWAYS, .name = "row 6 failing"};
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

/* ---- row 9: the wall clock ------------------------------------------------------------------------------------- */

/* Every question for the wall clock in this program comes by here, the C library's own aside. */
static long wall_offset_s;

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        t->tv_sec += __atomic_load_n(&wall_offset_s, __ATOMIC_RELAXED);
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now = {0, 0};
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return rc;
}

time_t time(time_t *t) {
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (t != NULL) {
        *t = now.tv_sec;
    }
    return now.tv_sec;
}

static void set_wall_clock(ct_t *ct, long offset_s) {
    time_t before = time(NULL);
    long moved_s = offset_s - __atomic_exchange_n(&wall_offset_s, offset_s, __ATOMIC_RELAXED);
    CT_BETWEEN(time(NULL) - before, moved_s, moved_s + 5); /* it works, or this test proves nothing */
}

CT_CASE(faults, row09_client_wall_clock_off_by_an_hour, .traits = CT_REAL_TIME) {
    static const long offsets_s[] = {3600, -3600, 0};
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, a, "row 9"), *explicit_lock = ct_lock(ct, a, "row 9 explicit");
    int64_t lease_ms = ct_lease_ms(ct);
    uint64_t token = 0;
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(mine, CT_ERR));
        take(ct, explicit_lock, lease_ms);
        CT_CHECK(!(ct_caps(ct) & DL_CAP_FENCE) || dl_token(mine) > token);
        token = dl_token(mine);
        set_wall_clock(ct, offsets_s[i]);
        dl_client_t *b = ct_open(ct, NULL);
        dl_lock_t *theirs = ct_lock(ct, b, "row 9"), *next = ct_lock(ct, b, "row 9 explicit");
        CT_STATUS(dl_trylock(theirs, CT_ERR), DL_EBUSY);
        CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_trylock_for(next, 2 * lease_ms, DL_LEASE_AUTO, CT_ERR));
        CT_BETWEEN(ct_now_ms(ct) - before_ms, lease_ms / 2, lease_ms + ct_tolerance_ms(ct));
        CT_GT(dl_valid_ms(mine), 0);
        CT_OK(dl_unlock(mine, CT_ERR));
        CT_STATUS(dl_unlock(explicit_lock, CT_ERR), DL_ELOST);
        CT_OK(dl_trylock(theirs, CT_ERR));
        CT_CHECK(!(ct_caps(ct) & DL_CAP_FENCE) || dl_token(theirs) > token);
        token = dl_token(theirs);
        ct_close(ct, b);
    }
    CT_EQ(ct_stats(ct, a).lost, 3);
}

/* ---- rows 11 to 14: replies, duplicates, notifications ------------------------------------------------------------- */

CT_CASE(faults, row11_replies_lost_after_the_server_did_it, .needs = DL_CAP_LEASE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 11");
    for (int lost = 1; lost <= 4; lost++) {
        /* The releases never arrive either: nothing but the larger hold id can help. */
        int tries = ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, lost);
        ct_fault_t releases = {.op = CT_OP_RELEASE, .mode = CT_LOSE_REQUEST, .count = CT_ALWAYS};
        int fault = ct_fault_add(ct, &releases);
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_lock(lock, CT_ERR));
        CT_EQ(ct_fault_hits(ct, tries), lost);
        CT_LE(ct_now_ms(ct) - before_ms, 200 + ct_tolerance_ms(ct));
        ct_fault_end(ct, fault);
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_expect_free(ct, "row 11", 0);
    }
    CT_EQ(ct_stats(ct, c).contended, 0);
    CT_EQ(ct_stats(ct, c).unknown_outcomes >= 10, 1);
}

CT_CASE(faults, row12_late_duplicates_of_everything, .traits = CT_REPLAY | CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    for (int generation = 0; generation < 4; generation++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_extend(lock, ct_lease_ms(ct) + generation, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    CT_OK(dl_lock(lock, CT_ERR));
    dl_lock_info_t before = ct_server_info(ct, "row 12");
    for (int round = 0; round < 2; round++) {
        for (int i = 3; i >= 0; i--) {
            ct_call_t tried = ct_call(ct, CT_OP_TRY, i), renewed = ct_call(ct, CT_OP_RENEW, i);
            ct_call_t released = ct_call(ct, CT_OP_RELEASE, i);
            CT_EQ(ct_replay(ct, &released), DL_ELOST);
            CT_EQ(ct_replay(ct, &tried), DL_EBUSY);
            CT_EQ(ct_replay(ct, &renewed), DL_ELOST);
        }
    }
    dl_lock_info_t after = ct_server_info(ct, "row 12");
    CT_CHECK(after.held && after.hold_id == before.hold_id && after.token == before.token);
    CT_LE(after.remaining_ms, before.remaining_ms);
    /* After the release they may take it; nobody acts on that, and the next hold replaces it at once. */
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_call_t tried = ct_call(ct, CT_OP_TRY, 2);
    CT_EQ(ct_replay(ct, &tried), DL_OK);
    CT_EQ(dl_hold_count(lock), 0);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_EQ(ct_replay(ct, &tried), DL_EBUSY);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 12", 0);
}

/* A waiter while the holder has a long lease; this fault makes its notifications worthless. */
static void wait_without_news(ct_t *ct, ct_op_t op, ct_mode_t mode, int64_t within_ms) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 13");
    take(ct, held, DL_LEASE_AUTO);
    int fault = ct_fault(ct, op, mode, CT_ALWAYS);
    caller_t waiter = CALLER(ct_lock(ct, b, "row 13"), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    CT_AWAIT(ct_fault_hits(ct, fault) >= 1, 5000);
    ct_sleep_ms(ct, 20);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, within_ms + ct_tolerance_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_WAIT) > 0, op == CT_OP_WAIT);
}

CT_CASE(faults, row13_notification_connection_dies, .needs = DL_CAP_NOTIFY) {
    wait_without_news(ct, CT_OP_WAIT, CT_FAIL_BEFORE, 500);
}

CT_CASE(faults, row13_notification_connection_cannot_be_made, .needs = DL_CAP_NOTIFY) {
    wait_without_news(ct, CT_OP_WATCH, CT_FAIL_BEFORE, 500);
}

CT_CASE(faults, row13_notification_is_missed, .needs = DL_CAP_NOTIFY) {
    wait_without_news(ct, CT_OP_WAIT, CT_NEVER, ct_lease_ms(ct));
}

static void unlock_in_the_gap(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)call;
    dl_lock_t *held = arg;
    if (dl_hold_count(held) > 0) {
        CT_OK(dl_unlock(held, CT_ERR));
    }
}

/* The holder releases at this instant of the subscription. */
static void release_in_the_gap(ct_t *ct, ct_when_t when) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock_owned(ct, a, "row 14", 1), *wanted = ct_lock(ct, b, "row 14");
    take(ct, held, 20 * ct_lease_ms(ct));
    ct_hook(ct, CT_OP_WATCH, when, "row 14", unlock_in_the_gap, held);
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_lock(wanted, CT_ERR));
    CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
    CT_EQ(ct_calls(ct, CT_OP_WATCH), 1);
    CT_OK(dl_unlock(wanted, CT_ERR));
}

CT_CASE(faults, row14_release_just_before_the_subscription, .needs = DL_CAP_NOTIFY) {
    release_in_the_gap(ct, CT_BEFORE);
}

CT_CASE(faults, row14_release_just_after_the_subscription, .needs = DL_CAP_NOTIFY) {
    release_in_the_gap(ct, CT_AFTER);
}

/* ---- rows 38 to 41: misuse ---------------------------------------------------------------------------------------------- */

static void unlock_as_a_stranger(ct_t *ct, void *arg) {
    CT_STATUS(dl_unlock(arg, CT_ERR), DL_ENOTOWNER);
}

CT_CASE(faults, row38_unlock_by_another_twice_and_of_an_expired_hold) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 38"), *theirs = ct_lock(ct, other, "row 38");
    take(ct, lock, DL_LEASE_MIN_MS);
    take(ct, lock, DL_LEASE_MIN_MS);
    ct_join(ct, ct_thread(ct, unlock_as_a_stranger, lock));
    CT_STATUS(dl_unlock(theirs, CT_ERR), DL_ENOTOWNER);
    CT_EQ(dl_hold_count(lock), 2);
    ct_sleep_ms(ct, 2 * DL_LEASE_MIN_MS);
    ct_join(ct, ct_thread(ct, unlock_as_a_stranger, lock)); /* a stranger's unlock pays no level of it */
    CT_EQ(dl_hold_count(lock), 2);
    CT_OK(dl_trylock(theirs, CT_ERR));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(lock), 1);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_GT(dl_valid_ms(theirs), 0);
    ct_expect_held(ct, "row 38");
    CT_OK(dl_unlock(theirs, CT_ERR));
    CT_STATUS(dl_unlock(theirs, CT_ERR), DL_ENOTOWNER);
}

CT_CASE(faults, row39_more_levels_than_there_may_be) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 39");
    c->level_limit = 1000; /* the real limit of a thousand million takes too long */
    for (int i = 0; i < 1000; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
    }
    int calls = ct_calls(ct, CT_OP_TRY);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELIMIT);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_ELIMIT);
    CT_EQ(ct_calls(ct, CT_OP_TRY), calls);
    CT_EQ(dl_hold_count(lock), 1000);
    for (int i = 1000; i > 0; i--) {
        CT_EQ(dl_hold_count(lock), i);
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    ct_expect_free(ct, "row 39", 0);
    CT_LE(DL_LEVEL_MAX, INT32_MAX);
}

CT_CASE(faults, row40_close_while_held_and_waited_for) {
    for (int i = 0; i < 5; i++) {
        dl_client_t *c = ct_open(ct, NULL);
        dl_lock_t *lock = ct_lock(ct, c, "row 40");
        CT_OK(dl_lock(lock, CT_ERR));
        caller_t waiter = CALLER(lock, DL_WAIT_FOREVER);
        start_caller(ct, &waiter);
        ct_await_waiting(ct, c, 1, 5000);
        int64_t before_ms = ct_now_ms(ct);
        ct_close(ct, c);
        CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
        end_caller(ct, &waiter, DL_ECLOSED);
        ct_expect_free(ct, "row 40", 0);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ECLOSED);
    }
}

static const char *const hostile_names[] = {
    "a", "A", "a ", " a", "a\n", "a\t", "'", "''", "\"", "\\", "`", "'; DROP TABLE dlock_locks; --", "{}", "{a}", "{",
    "%", "%s%n", "*", "?", "_", "a/b", "../a", ".", "..", "-", "--", "0", "00", "\x01", "\x7f", "\xff", "\xff\xfe",
    "\xc3\xa9", "e\xcc\x81", "\xc3\x89", "\xe2\x80\x8b", "NULL", "null", "a:b", "a:b:1", "$(id)", "a;b", "a,b", "a=b",
};
#define NAMES (sizeof hostile_names / sizeof hostile_names[0])

static int count_listed(void *arg, const char *name, const dl_lock_info_t *info) {
    int *seen = arg;
    for (size_t i = 0; i < NAMES; i++) {
        seen[i] += strcmp(hostile_names[i], name) == 0 && info->held;
    }
    return 0;
}

CT_CASE(faults, row41_hostile_names_are_exact, .traits = CT_CAN_LIST | CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *locks[NAMES];
    char longest[2][DL_NAME_MAX + 1];
    for (size_t i = 0; i < NAMES; i++) {
        locks[i] = ct_lock_owned(ct, c, hostile_names[i], i);
        CT_OK(dl_trylock(locks[i], CT_ERR)); /* all at once: none is another */
    }
    int seen[NAMES] = {0};
    CT_OK(dl_list(c, NULL, count_listed, seen, CT_ERR));
    for (size_t i = 0; i < NAMES; i++) {
        CT_EQ(seen[i], 1);
        CT_EQ(ct_server_info(ct, hostile_names[i]).hold_id, ct_call(ct, CT_OP_TRY, (int)i).hold_id);
    }
    for (int k = 0; k < 2; k++) {
        memset(longest[k], 'x', DL_NAME_MAX);
        longest[k][DL_NAME_MAX - 1] = (char)('0' + k); /* different in the last byte only */
        longest[k][DL_NAME_MAX] = 0;
        CT_OK(dl_trylock(ct_lock_owned(ct, c, longest[k], (uint64_t)k), CT_ERR));
    }
    for (size_t i = 0; i < NAMES; i++) {
        CT_OK(dl_unlock(locks[i], CT_ERR));
        ct_expect_free(ct, hostile_names[i], 0);
    }
    ct_expect_held(ct, longest[0]);
    ct_expect_held(ct, longest[1]);
}
