/* reentry_cases.c - contract: levels of one owner, their leases, and who may unlock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

/* ---- counting -------------------------------------------------------------------------------- */

CT_CASE(reentry, only_the_last_unlock_frees) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_EQ(dl_hold_count(lock), 0);
    for (uint32_t level = 1; level <= 5; level++) {
        CT_OK(level % 2 == 0 ? dl_trylock(lock, CT_ERR) : dl_lock(lock, CT_ERR));
        CT_EQ(dl_hold_count(lock), level);
    }
    for (uint32_t left = 5; left-- > 0;) {
        ct_expect_held(ct, "orders");
        CT_GT(dl_valid_ms(lock), 0);
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_EQ(dl_hold_count(lock), left);
    }
    ct_expect_free(ct, "orders", 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    dl_client_stats_t stats = ct_stats(ct, client);
    CT_EQ(stats.acquired, 1);
    CT_EQ(stats.reentered, 4);
    CT_EQ(stats.released, 1);
}

CT_CASE(reentry, the_max_hold_of_a_level_is_none_of_the_hold) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.max_hold_ms = 1;
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_acquire(lock, &opts, CT_ERR));
    ct_sleep_ms(ct, 10);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(reentry, nothing_is_sent_to_enter_again, .needs_not = DL_CAP_SERVER_COUNT) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    int tries = ct_calls(ct, CT_OP_TRY), renewals = ct_calls(ct, CT_OP_RENEW);
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_trylock_for(lock, 1000, 5000, CT_ERR));
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    CT_EQ(ct_calls(ct, CT_OP_TRY), tries);
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), 0);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), renewals);
    CT_EQ(dl_hold_count(lock), 1);
}

CT_CASE(reentry, several_handles_on_one_name_are_one_lock) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *one = ct_lock(ct, client, "orders"), *two = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(one, CT_ERR));
    CT_OK(dl_trylock(two, CT_ERR));
    CT_EQ(dl_hold_count(one), 2);
    CT_EQ(dl_token(one), dl_token(two));
    CT_OK(dl_unlock(two, CT_ERR));
    CT_OK(dl_unlock(two, CT_ERR));
    CT_EQ(dl_hold_count(one), 0);
    ct_expect_free(ct, "orders", 0);
}

static void wait_for_it(ct_t *ct, void *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(reentry, entering_again_does_not_wait_behind_waiters) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_thread_t *near = ct_thread(ct, wait_for_it, lock);
    ct_thread_t *far = ct_thread(ct, wait_for_it, ct_lock(ct, ct_open(ct, NULL), "orders"));
    ct_await_waiting(ct, client, 1, 5000);
    int64_t start_ms = ct_now_ms(ct);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_LE(ct_now_ms(ct) - start_ms, ct_tolerance_ms(ct));
    for (int i = 0; i < 3; i++) {
        CT_CHECK(!ct_thread_done(ct, near) && !ct_thread_done(ct, far));
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    ct_join(ct, near);
    ct_join(ct, far);
}

CT_CASE(reentry, every_owner_counts_for_itself) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *mine = ct_lock(ct, client, "a"), *task = ct_lock_owned(ct, client, "a", 1);
    dl_lock_t *other = ct_lock_owned(ct, client, "b", 1);
    CT_OK(dl_lock(task, CT_ERR));
    CT_OK(dl_lock(task, CT_ERR));
    CT_OK(dl_lock(other, CT_ERR));
    CT_EQ(dl_hold_count(mine), 0);
    CT_EQ(dl_hold_count(task), 2);
    CT_EQ(dl_hold_count(other), 1);
    /* Locks are left in any order. */
    CT_OK(dl_unlock(task, CT_ERR));
    CT_OK(dl_unlock(other, CT_ERR));
    CT_EQ(dl_hold_count(task), 1);
    ct_expect_free(ct, "b", 0);
    ct_expect_held(ct, "a");
    CT_OK(dl_unlock(task, CT_ERR));
    CT_OK(dl_lock(mine, CT_ERR));
    CT_OK(dl_unlock(mine, CT_ERR));
}

/* ---- who may unlock -------------------------------------------------------------------------- */

static void fail_to_unlock(ct_t *ct, void *lock) {
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_hold_count(lock), 0);
}

CT_CASE(reentry, a_stranger_cannot_unlock_and_changes_nothing) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    fail_to_unlock(ct, lock); /* nobody holds it */
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    int releases = ct_calls(ct, CT_OP_RELEASE);
    fail_to_unlock(ct, ct_lock(ct, ct_open(ct, NULL), "orders"));
    fail_to_unlock(ct, ct_lock_owned(ct, client, "orders", 1));
    ct_join(ct, ct_thread(ct, fail_to_unlock, lock));
    CT_EQ(ct_calls(ct, CT_OP_RELEASE), releases);
    CT_EQ(dl_hold_count(lock), 2);
    CT_EQ(dl_token(lock), token);
    ct_expect_held(ct, "orders");
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER); /* once too often */
    CT_STATUS(dl_unlock(NULL, CT_ERR), DL_EINVAL);
}

static void unlock_task(ct_t *ct, void *lock) {
    CT_EQ(dl_hold_count(lock), 1);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(reentry, a_task_may_unlock_from_another_thread) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, client, "orders", 42);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_join(ct, ct_thread(ct, unlock_task, ct_lock_owned(ct, client, "orders", 42)));
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_free(ct, "orders", 0);
}

/* ---- leases of levels ------------------------------------------------------------------------ */

CT_CASE(reentry, a_longer_lease_is_obtained_before_the_level_is_entered) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 5000, CT_ERR));
    CT_LE(dl_valid_ms(lock), 4948);
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    CT_BETWEEN(dl_valid_ms(lock), 59398 - ct_tolerance_ms(ct), 59398);
    CT_EQ(dl_hold_count(lock), 2);
    if (ct_traits(ct) & CT_CAN_INSPECT) {
        /* A session's own time limit need not be visible on the server. */
        CT_CHECK((ct_caps(ct) & DL_CAP_SESSION) ||
                 ct_server_info(ct, "orders").remaining_ms > 60000 - 2 * ct_tolerance_ms(ct));
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_GT(dl_valid_ms(lock), 50000); /* leaving the level gives nothing back */
}

CT_CASE(reentry, a_shorter_lease_shortens_nothing) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    CT_OK(dl_trylock_for(lock, 0, 200, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_GT(dl_valid_ms(lock), 59398 - 2 * ct_tolerance_ms(ct));
    if ((ct_traits(ct) & CT_CAN_INSPECT) && (ct_caps(ct) & DL_CAP_LEASE)) {
        CT_GT(ct_server_info(ct, "orders").remaining_ms, 60000 - 3 * ct_tolerance_ms(ct));
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_sleep_ms(ct, 500);
    CT_GT(dl_valid_ms(lock), 50000);
    ct_expect_held(ct, "orders");
}

CT_CASE(reentry, a_level_whose_longer_lease_was_not_obtained_is_not_entered) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_trylock_for(lock, 0, 20000, CT_ERR));
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, CT_ALWAYS);
    ct_fault(ct, CT_OP_TRY, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_STATUS(dl_trylock_for(lock, 0, 60000, CT_ERR), DL_EIO);
    CT_EQ(dl_hold_count(lock), 1);
    CT_BETWEEN(dl_valid_ms(lock), 1, 19798);
    ct_fault_end(ct, -1);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "orders", 0);
}

/* Renewals that ask for time; the heartbeat of a session asks for none. */
static int count_extending(ct_t *ct) {
    int found = 0;
    for (int i = 0; i < ct_calls(ct, CT_OP_RENEW); i++) {
        found += ct_call(ct, CT_OP_RENEW, i).lease_ms > 0;
    }
    return found;
}

/* When the last of them began. */
static int64_t last_extending_ms(ct_t *ct) {
    int i = ct_calls(ct, CT_OP_RENEW) - 1;
    while (ct_call(ct, CT_OP_RENEW, i).lease_ms <= 0) {
        i--;
    }
    return (int64_t)(ct_call(ct, CT_OP_RENEW, i).begin_ns / 1000000);
}

CT_CASE(reentry, an_automatic_level_inside_an_explicit_one_is_renewed_until_it_is_left) {
    dl_client_t *client = ct_open(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    int64_t lease_ms = BRIEF_MS, explicit_ms = lease_ms * 3 / 2;
    CT_OK(dl_trylock_for(lock, 0, explicit_ms, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    for (int i = 0; i < 32; i++) {
        ct_sleep_ms(ct, lease_ms / 16);
        CT_GT(dl_valid_ms(lock), 0);
    }
    CT_GT(count_extending(ct), 3);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(dl_hold_count(lock), 1);
    int renewals = count_extending(ct);
    CT_BETWEEN(dl_valid_ms(lock), 1, lease_ms);
    dl_event_t event = ct_expect_event(ct, client, DL_EVENT_LOST, "orders", lease_ms + ct_tolerance_ms(ct));
    CT_EQ(event.status, DL_ETIMEDOUT);
    CT_LE(count_extending(ct), renewals + 1); /* one may have been on its way */
    CT_LE(ct_now_ms(ct), last_extending_ms(ct) + lease_ms + ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
}

CT_CASE(reentry, an_explicit_level_inside_an_automatic_one_does_not_end_its_renewal) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_trylock_for(lock, 0, DL_LEASE_MIN_MS, CT_ERR));
    int renewals = count_extending(ct);
    CT_AWAIT_THAT(count_extending(ct), >=, renewals + 3, 5000);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    renewals = count_extending(ct);
    CT_AWAIT_THAT(count_extending(ct), >=, renewals + 3, 5000);
    CT_GT(dl_valid_ms(lock), 0);
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

static void enter_in_vain(ct_t *ct, void *lock) {
    CT_STATUS(dl_trylock_for(lock, 0, ct_lease_ms(ct), CT_ERR), DL_EIO);
}

static void enter_automatically(ct_t *ct, void *lock) {
    CT_OK(dl_trylock(lock, CT_ERR));
}

/* Two tasks of one owner enter; the level of the first, which is below, is given up. */
static void give_up_below(ct_t *ct, int is_first_answered_first) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, client, "orders", 9);
    CT_OK(dl_trylock_for(lock, 0, ct_lease_ms(ct) / 2, CT_ERR));
    ct_thread_t *threads[2];
    ct_pause_t *pauses[2];
    pauses[0] = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, client, "orders");
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, 1);
    threads[0] = ct_thread(ct, enter_in_vain, lock);
    ct_pause_await(ct, pauses[0], 5000);
    pauses[1] = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, client, "orders");
    threads[1] = ct_thread(ct, enter_automatically, lock);
    ct_pause_await(ct, pauses[1], 5000);
    for (int i = 0; i < 2; i++) {
        int next = is_first_answered_first ? i : 1 - i;
        ct_pause_go(ct, pauses[next]);
        ct_join(ct, threads[next]);
    }
    CT_EQ(dl_hold_count(lock), 2);
    CT_OK(dl_trylock_for(lock, 0, DL_LEASE_MIN_MS, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 2 * ct_lease_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(reentry, an_automatic_level_is_renewed_although_one_below_it_was_given_up,
        .needs_not = DL_CAP_SERVER_COUNT | DL_CAP_SESSION, .traits = CT_VIRTUAL) {
    give_up_below(ct, 0);
    give_up_below(ct, 1);
}

/* ---- servers that show the count ------------------------------------------------------------- */

CT_CASE(reentry, a_server_that_counts_is_told_the_level_itself, .needs = DL_CAP_SERVER_COUNT,
        .traits = CT_CAN_INSPECT) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    for (uint32_t level = 1; level <= 4; level++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_EQ(ct_call(ct, CT_OP_TRY, -1).level, level);
        CT_EQ(ct_server_info(ct, "orders").holds, level);
    }
    uint64_t hold_id = ct_call(ct, CT_OP_TRY, 0).hold_id;
    for (uint32_t left = 4; left-- > 0;) {
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_call_t call = ct_call(ct, CT_OP_RELEASE, -1);
        CT_EQ(call.level, left);
        CT_EQ(call.hold_id, hold_id);
        CT_EQ(ct_server_info(ct, "orders").holds, left);
    }
    CT_EQ(ct_call(ct, CT_OP_TRY, -1).hold_id, hold_id);
}

CT_CASE(reentry, a_count_that_could_not_be_written_is_no_error, .needs = DL_CAP_SERVER_COUNT,
        .traits = CT_CAN_INSPECT) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    static const ct_mode_t modes[] = {CT_LOSE_REPLY, CT_LOSE_REQUEST, CT_FAIL_BEFORE};
    for (size_t i = 0; i < 3; i++) {
        int fault = ct_fault(ct, CT_OP_TRY, modes[i], 1);
        CT_OK(dl_lock(lock, CT_ERR));
        CT_EQ(ct_fault_hits(ct, fault), 1);
        CT_EQ(dl_hold_count(lock), i + 2);
    }
    CT_OK(dl_lock(lock, CT_ERR)); /* whatever was counted before, now it is right */
    CT_EQ(ct_server_info(ct, "orders").holds, 5);
    for (size_t i = 0; i < 3; i++) {
        ct_fault(ct, CT_OP_RELEASE, modes[i], 1);
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_EQ(dl_hold_count(lock), 4 - i);
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(ct_server_info(ct, "orders").holds, 1);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "orders", 0);
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0);
}

CT_CASE(reentry, a_count_that_finds_the_hold_gone_reports_the_loss, .needs = DL_CAP_SERVER_COUNT,
        .traits = CT_CAN_FORCE | CT_CAN_INSPECT) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_trylock_for(lock, 0, 60000, CT_ERR));
    CT_OK(dl_trylock_for(lock, 0, 1000, CT_ERR));
    ct_wipe(ct, "orders");
    CT_STATUS(dl_trylock_for(lock, 0, 1000, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(lock), 2);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_CHECK(!ct_server_info(ct, "orders").held); /* a level above 1 never creates */
    CT_EQ(ct_expect_event(ct, client, DL_EVENT_LOST, "orders", 0).status, DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_no_event(ct, client, DL_EVENT_LOST, NULL, 0);
}
