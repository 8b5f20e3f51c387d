/* input_cases.c - faults: misuse of calls, numbers and names (rows 38 to 41). */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "contract/callers.h"
#include "core/core.h"

static void unlock_as_a_stranger(ct_t *ct, void *arg) {
    CT_STATUS(dl_unlock(arg, CT_ERR), DL_ENOTOWNER);
}

CT_CASE(faults, row38_unlock_by_another_twice_and_of_an_expired_hold) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 38"), *theirs = ct_lock(ct, other, "row 38");
    take(ct, lock, ct_lease_ms(ct));
    take(ct, lock, ct_lease_ms(ct));
    ct_join(ct, ct_thread(ct, unlock_as_a_stranger, lock));
    CT_STATUS(dl_unlock(theirs, CT_ERR), DL_ENOTOWNER);
    CT_EQ(dl_hold_count(lock), 2);
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct));
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
    "a",    "A",        "a ",       " a",        "a\n",      "a\t",
    "'",    "''",       "\"",       "\\",        "`",        "'; DROP TABLE dlock_locks; --",
    "{}",   "{a}",      "{",        "%",         "%s%n",     "*",
    "?",    "_",        "a/b",      "../a",      ".",        "..",
    "-",    "--",       "0",        "00",        "\x01",     "\x7f",
    "\xff", "\xff\xfe", "\xc3\xa9", "e\xcc\x81", "\xc3\x89", "\xe2\x80\x8b",
    "NULL", "null",     "a:b",      "a:b:1",     "$(id)",    "a;b",
    "a,b",  "a=b",
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
