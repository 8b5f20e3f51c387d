/* tokens_cases.c - contract: fencing tokens rise with every holder. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "callers.h"

static uint64_t take_and_leave(ct_t *ct, dl_lock_t *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    CT_NE(token, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    return token;
}

static void expect_larger(ct_t *ct, uint64_t token, uint64_t before) {
    CT_CHECKF(token > before, "token %llu after %llu", (unsigned long long)token, (unsigned long long)before);
}

CT_CASE(tokens, they_rise_from_holder_to_holder, .needs = DL_CAP_FENCE) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *locks[] = {ct_lock(ct, a, "orders"), ct_lock(ct, b, "orders"),
                          ct_lock_owned(ct, a, "orders", 1), ct_lock(ct, b, "orders")};
    uint64_t last = 0;
    for (int i = 0; i < 20; i++) {
        uint64_t token = take_and_leave(ct, locks[i % 4]);
        expect_larger(ct, token, last);
        last = token;
    }
}

typedef struct race {
    dl_lock_t *lock;
    uint64_t *last; /* guarded by the lock under test */
} race_t;

static void race(ct_t *ct, void *arg) {
    race_t *r = arg;
    for (int i = 0; i < 10; i++) {
        CT_OK(dl_lock(r->lock, CT_ERR));
        uint64_t token = dl_token(r->lock);
        expect_larger(ct, token, __atomic_exchange_n(r->last, token, __ATOMIC_SEQ_CST));
        CT_OK(dl_unlock(r->lock, CT_ERR));
    }
}

CT_CASE(tokens, they_rise_in_the_order_of_the_holds_under_contention, .needs = DL_CAP_FENCE,
        .timeout_s = 60) {
    uint64_t last = 0;
    race_t races[4];
    ct_thread_t *threads[4];
    for (int i = 0; i < 4; i += 2) {
        dl_client_t *client = ct_open(ct, NULL);
        races[i] = races[i + 1] = (race_t){.lock = ct_lock(ct, client, "orders"), .last = &last};
    }
    for (int i = 0; i < 4; i++) {
        threads[i] = ct_thread(ct, race, &races[i]);
    }
    for (int i = 0; i < 4; i++) {
        ct_join(ct, threads[i]);
    }
}

CT_CASE(tokens, they_rise_after_the_server_lost_the_lock, .needs = DL_CAP_FENCE, .traits = CT_CAN_FORCE) {
    dl_lock_t *a = ct_lock(ct, ct_open(ct, NULL), "orders"), *b = ct_lock(ct, ct_open(ct, NULL), "orders");
    CT_OK(dl_lock(a, CT_ERR));
    uint64_t first = dl_token(a);
    ct_wipe(ct, "orders");
    CT_OK(dl_lock(b, CT_ERR));
    expect_larger(ct, dl_token(b), first);
}

CT_CASE(tokens, they_rise_after_a_lease_has_run_out, .needs = DL_CAP_FENCE) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *a = ct_lock(ct, client, "orders"), *b = ct_lock(ct, ct_open(ct, NULL), "orders");
    ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, CT_ALWAYS);
    CT_OK(dl_trylock_for(a, 0, 2 * ct_tolerance_ms(ct), CT_ERR));
    uint64_t first = dl_token(a);
    CT_NE(first, 0);
    CT_OK(dl_lock(b, CT_ERR));
    expect_larger(ct, dl_token(b), first);
    CT_EQ(dl_token(a), 0);
    ct_fault_end(ct, -1);
}

CT_CASE(tokens, they_rise_when_every_client_was_closed_in_between, .needs = DL_CAP_FENCE) {
    uint64_t last = 0;
    for (int i = 0; i < 4; i++) {
        dl_client_t *client = ct_open(ct, NULL);
        dl_lock_t *lock = ct_lock(ct, client, "orders");
        uint64_t token = take_and_leave(ct, lock);
        expect_larger(ct, token, last);
        last = token;
        ct_lock_close(ct, lock);
        ct_close(ct, client);
    }
}

CT_CASE(tokens, a_hold_after_a_lost_grant_has_a_larger_token, .needs = DL_CAP_FENCE) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    uint64_t first = take_and_leave(ct, lock);
    ct_fault(ct, CT_OP_TRY, CT_LOSE_REPLY, 2);
    CT_OK(dl_lock(lock, CT_ERR));
    /* The lost ones may have been drawn, and shown to somebody by the server. */
    uint64_t lost = ct_call(ct, CT_OP_TRY, -2).token;
    CT_EQ(ct_call(ct, CT_OP_TRY, -2).applied, CT_LOSE_REPLY);
    expect_larger(ct, dl_token(lock), first);
    expect_larger(ct, dl_token(lock), lost);
}

CT_CASE(tokens, each_request_carries_the_highest_token_seen, .needs = DL_CAP_FENCE) {
    dl_client_t *client = ct_open(ct, NULL);
    uint64_t highest = 0;
    static const char *const names[] = {"a", "b", "a", "c", "b"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        dl_lock_t *lock = ct_lock(ct, client, names[i]);
        CT_OK(dl_lock(lock, CT_ERR));
        ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
        CT_EQ(call.token_floor, highest);
        expect_larger(ct, call.token, call.token_floor);
        CT_EQ(call.token, dl_token(lock));
        highest = call.token > highest ? call.token : highest;
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

static void see_no_token(ct_t *ct, void *lock) {
    CT_EQ(dl_token(lock), 0);
}

CT_CASE(tokens, a_token_is_the_holders_and_stays_the_same_while_it_holds, .needs = DL_CAP_FENCE) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "orders"), *twin = ct_lock(ct, client, "orders");
    see_no_token(ct, lock);
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    CT_NE(token, 0);
    CT_EQ(dl_token(twin), token);
    see_no_token(ct, ct_lock(ct, ct_open(ct, NULL), "orders"));
    see_no_token(ct, ct_lock_owned(ct, client, "orders", 1));
    ct_join(ct, ct_thread(ct, see_no_token, lock));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_extend(lock, 2 * ct_lease_ms(ct), CT_ERR));
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct)); /* renewals */
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), token);
    if (ct_traits(ct) & CT_CAN_INSPECT) {
        uint64_t shown = ct_server_info(ct, "orders").token;
        if (shown != 0) {
            CT_EQ(shown, token);
        }
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), token);
    CT_OK(dl_unlock(lock, CT_ERR));
    see_no_token(ct, lock);
    CT_EQ(dl_token(NULL), 0);
}

CT_CASE(tokens, a_backend_without_tokens_says_so, .needs_not = DL_CAP_FENCE) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CT_OK(dl_client_info(client, &info));
    CT_EQ(info.caps & DL_CAP_FENCE, 0);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(dl_token(lock), 0);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- processes ------------------------------------------------------------------------------- */

static void hand_tokens_over(ct_t *ct, void *arg) {
    (void)arg;
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "orders");
    while (ct_recv(ct, NULL) != 0) {
        ct_send(ct, NULL, (int64_t)take_and_leave(ct, lock));
    }
}

CT_CASE(tokens, they_rise_from_process_to_process, .needs = DL_CAP_FENCE, .traits = CT_PROCESSES) {
    ct_process_t *processes[3];
    for (int i = 0; i < 3; i++) {
        processes[i] = ct_process(ct, hand_tokens_over, NULL);
    }
    uint64_t last = 0;
    for (int i = 0; i < 12; i++) {
        ct_send(ct, processes[i % 3], 1);
        uint64_t token = (uint64_t)ct_recv(ct, processes[i % 3]);
        expect_larger(ct, token, last);
        last = token;
    }
    for (int i = 0; i < 3; i++) {
        ct_send(ct, processes[i], 0);
        ct_process_wait(ct, processes[i]);
    }
}
