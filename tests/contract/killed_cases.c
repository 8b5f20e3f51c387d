/* killed_cases.c - contract: holders and waiters in other processes that are killed or stopped. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "callers.h"

/* Holds the lock and says so; then does what the parent asks until it is killed. */
static void hold_for_ever(ct_t *ct, void *arg) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), arg);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    ct_send(ct, NULL, 1);
    (void)ct_recv(ct, NULL);
}

CT_CASE(killed, holder_leaves_the_lock_to_the_waiter_within_its_lease, .traits = CT_PROCESSES) {
    char name[] = "killed";
    ct_process_t *victim = ct_process(ct, hold_for_ever, name);
    (void)ct_recv(ct, victim);
    dl_client_t *c = ct_open(ct, NULL);
    caller_t waiter = CALLER(ct_lock(ct, c, name), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_waiting(ct, c, 1, 5000);
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct));
    /* It renews as long as it lives, and the machine runs. */
    CT_CHECK(!ct_thread_done(ct, waiter.thread) || ct_stood_ms(ct) > 0);
    ct_process_kill(ct, victim);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_lease_ms(ct) + ct_tolerance_ms(ct));
}

static void wait_for_ever(ct_t *ct, void *arg) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), arg);
    (void)ct_recv(ct, NULL);
    ct_send(ct, NULL, 1);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_FAIL("the lock was not to be had");
}

CT_CASE(killed, waiter_holds_nobody_up, .traits = CT_PROCESSES) {
    char name[] = "waited";
    ct_process_t *victim = ct_process(ct, wait_for_ever, name);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, name);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_send(ct, victim, 1);
    (void)ct_recv(ct, victim);
    ct_sleep_ms(ct, ct_lease_ms(ct) / 4);
    ct_process_kill(ct, victim);
    CT_OK(dl_unlock(lock, CT_ERR));
    /* For a server that has not seen the end of its connection yet, it was its turn. */
    CT_OK(dl_trylock_for(lock, ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* Holds, is stopped by the parent past its lease, and goes on. */
static void be_stopped(ct_t *ct, void *arg) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, arg);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    /* Right after a renewal the next is far away: it is not stopped in the middle of a write. */
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, ct_lease_ms(ct));
    ct_send(ct, NULL, (int64_t)dl_token(lock));
    (void)ct_recv(ct, NULL); /* stopped here */
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    ct_expect_event(ct, c, DL_EVENT_LOST, arg, ct_tolerance_ms(ct));
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    ct_no_event(ct, c, 0, NULL, ct_lease_ms(ct));
    ct_send(ct, NULL, 1);
}

CT_CASE(killed, holder_that_was_stopped_past_its_lease_knows_and_harms_nobody, .traits = CT_PROCESSES) {
    char name[] = "stopped";
    ct_process_t *victim = ct_process(ct, be_stopped, name);
    uint64_t token = (uint64_t)ct_recv(ct, victim);
    ct_process_stop(ct, victim);
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, name);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    int64_t wait_ms = ct_server_lease_ms(ct, ct_lease_ms(ct)) + ct_tolerance_ms(ct);
    CT_OK(dl_trylock_for(lock, wait_ms, DL_LEASE_AUTO, CT_ERR));
    if (ct_caps(ct) & DL_CAP_FENCE) {
        CT_GT(dl_token(lock), token);
    }
    ct_send(ct, victim, 1); /* waits in its socket */
    ct_process_continue(ct, victim);
    (void)ct_recv(ct, victim);
    ct_process_wait(ct, victim);
    CT_GT(dl_valid_ms(lock), 0);
    ct_no_event(ct, c, 0, NULL, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}
