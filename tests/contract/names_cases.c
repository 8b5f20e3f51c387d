/* names_cases.c - contract: names are bytes, compared exactly, and interpreted by nobody. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/contract.h"

/* Each of them means something to some server, shell, query language or terminal; several are twins. */
/* clang-format off */
static const char *const hostile[] = {
    "orders", "Orders", "ORDERS", "orders ", " orders", "orders\n", "orders\r\n", "orders\t",
    "\n", " ", "\t", "\x01", "\x7f", "\x1b[2J", "'", "''", "\"", "`", "\\", "\\'", "\\0",
    "%", "%%", "_", "*", "?", "[a-z]", "a", "A", "a%", "a_", "a*", "%s%n",
    "'; DROP TABLE locks; --", "' OR '1'='1", "--", "-- x", "/*", "#",
    "{", "}", "{}", "{a}", "{a}b", "b{a}", "$1", "${HOME}", "$(id)", "`id`",
    "../a", "/", ".", "..", "a/b", "a:b", "a,b", "a;b", "a|b",
    "0", "00", "-1", "1e1", "10", "NULL", "null", "true",
    "\xc3\xa9", "e\xcc\x81", "\xe9", "\xff", "\xfe\xff", "\xc3", "\xc3\x28",
    "\xf0\x9f\x94\x92", "\xe2\x80\xae", "\xef\xbb\xbf", "\xef\xbb\xbf.",
    "ss", "\xc3\x9f", "i", "\xc4\xb1", "I", "K", "\xe2\x84\xaa"};
/* clang-format on */
#define HOSTILE (sizeof hostile / sizeof hostile[0])

/* ---- which are names ------------------------------------------------------------------------- */

static void refuse(ct_t *ct, dl_client_t *client, const char *name) {
    dl_lock_t *lock = (dl_lock_t *)client; /* anything but NULL */
    CT_STATUS(dl_lock_open(client, name, &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
    lock = (dl_lock_t *)client;
    CT_STATUS(dl_lock_open_owned(client, name, 1, &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
}

CT_CASE(names, a_name_has_1_to_255_bytes) {
    dl_client_t *client = ct_open(ct, NULL);
    char long_name[DL_NAME_MAX + 2];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    refuse(ct, client, long_name);
    refuse(ct, client, "");
    refuse(ct, client, NULL);
    long_name[DL_NAME_MAX] = '\0';
    dl_lock_t *longest = ct_lock(ct, client, long_name), *shortest = ct_lock(ct, client, "x");
    CT_OK(dl_lock(longest, CT_ERR));
    CT_STR_EQ(ct_call(ct, CT_OP_TRY, -1).name, long_name);
    CT_OK(dl_lock(shortest, CT_ERR));
    ct_expect_held(ct, long_name);
    CT_OK(dl_unlock(longest, CT_ERR));
    ct_expect_free(ct, long_name, 0);
    ct_expect_held(ct, "x");
    CT_EQ(ct_calls(ct, CT_OP_TRY), 2);
}

CT_CASE(names, handles_need_a_client_and_a_place) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = (dl_lock_t *)client;
    CT_STATUS(dl_lock_open(NULL, "a", &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
    CT_STATUS(dl_lock_open(client, "a", NULL, CT_ERR), DL_EINVAL);
    dl_lock_close(NULL);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 0); /* making handles asks nobody */
}

CT_CASE(names, the_callers_text_is_copied) {
    dl_client_t *client = ct_open(ct, NULL);
    char name[] = "first";
    dl_lock_t *lock = ct_lock(ct, client, name);
    memcpy(name, "other", sizeof name);
    CT_OK(dl_lock(lock, CT_ERR));
    ct_expect_held(ct, "first");
    ct_expect_free(ct, "other", 0);
}

/* ---- exactness ------------------------------------------------------------------------------- */

/* All are held by one client at once, then freed one by one; at each step another client finds the
 * rest busy: an alias would show as a lock that is busy too early or free too early. */
static void hold_all_at_once(ct_t *ct, const char *const *names, size_t n, size_t step) {
    /* Nothing here is about time: where holds are sessions, each is looked after three times a lease. */
    dl_client_t *a = ct_open(ct, "lease: 60s"), *b = ct_open(ct, "lease: 60s");
    dl_lock_t **held = calloc(n, sizeof *held), **wanted = calloc(n, sizeof *wanted);
    CT_CHECK(held != NULL && wanted != NULL);
    for (size_t i = 0; i < n; i++) {
        held[i] = ct_lock(ct, a, names[i]);
        wanted[i] = ct_lock(ct, b, names[i]);
        CT_OK(dl_trylock_for(held[i], 0, 3600000, CT_ERR));
        CT_EQ(dl_hold_count(held[i]), 1);
    }
    for (size_t i = 0; i < n; i++) {
        CT_OK(dl_unlock(held[i], CT_ERR));
        CT_OK(dl_trylock(wanted[i], CT_ERR));
        for (size_t k = i + 1; k < n; k += step) {
            CT_STATUS(dl_trylock(wanted[k], CT_ERR), DL_EBUSY);
        }
    }
    free(held);
    free(wanted);
}

CT_CASE(names, hostile_names_are_just_names_and_none_is_anothers_alias, .timeout_s = 90) {
    hold_all_at_once(ct, hostile, HOSTILE, 7);
}

CT_CASE(names, every_byte_is_a_name_of_its_own, .timeout_s = 90) {
    static char texts[255][2];
    const char *names[255];
    for (int i = 0; i < 255; i++) {
        texts[i][0] = (char)(i + 1);
        names[i] = texts[i];
    }
    hold_all_at_once(ct, names, 255, 51);
}

CT_CASE(names, the_last_byte_of_the_longest_name_counts) {
    static char texts[4][DL_NAME_MAX + 1];
    const char *names[4];
    for (int i = 0; i < 4; i++) {
        memset(texts[i], '\xff', DL_NAME_MAX);
        texts[i][DL_NAME_MAX - 1] = "ab\xff"[i % 3];
        names[i] = texts[i];
    }
    texts[3][DL_NAME_MAX - 1] = '\0'; /* one byte shorter */
    hold_all_at_once(ct, names, 4, 1);
}

CT_CASE(names, many_names_of_one_shape_are_many_locks, .timeout_s = 90) {
    enum { MANY = 300 };
    static char texts[MANY][24];
    const char *names[MANY];
    for (int i = 0; i < MANY; i++) {
        /* One length, one beginning and one end: only the middle tells them apart. */
        (void)snprintf(texts[i], sizeof texts[i], "job-%03d-end", i);
        names[i] = texts[i];
    }
    hold_all_at_once(ct, names, MANY, 60);
}

CT_CASE(names, a_hostile_name_comes_back_as_it_was_given) {
    dl_client_t *client = ct_open(ct, NULL);
    ct_fault_t wiped = {.op = CT_OP_RENEW, .mode = CT_ANSWER, .status = DL_ELOST, .count = CT_ALWAYS};
    ct_fault_add(ct, &wiped);
    const char *name = "'; DROP\n\x01\xff {a}%";
    dl_lock_t *lock = ct_lock(ct, client, name);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_STR_EQ(ct_call(ct, CT_OP_TRY, 0).name, name);
    CT_STATUS(dl_extend(lock, 1000, CT_ERR), DL_ELOST);
    CT_STR_EQ(ct_expect_event(ct, client, DL_EVENT_LOST, NULL, 0).name, name);
}

/* ---- inspect --------------------------------------------------------------------------------- */

CT_CASE(names, inspect_tells_who_holds_it, .traits = CT_CAN_INSPECT) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders"), *stranger = ct_lock(ct, ct_open(ct, NULL), "orders");
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    CT_OK(dl_inspect(lock, &info, CT_ERR));
    CT_EQ(info.held, 0);
    CT_EQ(info.ours, 0);
    CT_EQ(info.holds, 0);
    CT_STR_EQ(info.owner, "");
    CT_OK(dl_trylock_for(lock, 0, 20000, CT_ERR));
    ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
    CT_OK(dl_inspect(lock, &info, CT_ERR));
    CT_EQ(info.held, 1);
    CT_EQ(info.ours, 1);
    CT_EQ(info.holds, 1);
    CT_STR_EQ(info.owner, call.owner);
    if (info.hold_id != 0) {
        CT_EQ(info.hold_id, call.hold_id);
    }
    if (info.token != 0) {
        CT_EQ(info.token, dl_token(lock));
    }
    CT_CHECK(info.remaining_ms == -1 ||
             (info.remaining_ms <= 20000 && info.remaining_ms > 20000 - 2 * ct_tolerance_ms(ct)));
    CT_OK(dl_inspect(stranger, &info, CT_ERR));
    CT_EQ(info.held, 1);
    CT_EQ(info.ours, 0);
    CT_STR_EQ(info.owner, call.owner);
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_inspect(stranger, &info, CT_ERR));
    CT_EQ(info.held, 0);
    CT_STR_EQ(info.owner, "");
    info.size--;
    CT_STATUS(dl_inspect(lock, &info, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_inspect(lock, NULL, CT_ERR), DL_EINVAL);
}

/* ---- list ------------------------------------------------------------------------------------ */

typedef struct listing {
    ct_t *ct;
    const char *prefix;
    unsigned char seen[HOSTILE];
    int count, stop_after;
    int ours;
} listing_t;

static int note_listed(void *arg, const char *name, const dl_lock_info_t *info) {
    listing_t *l = arg;
    ct_t *ct = l->ct;
    size_t i = 0;
    while (i < HOSTILE && strcmp(hostile[i], name) != 0) {
        i++;
    }
    CT_CHECKF(i < HOSTILE, "'%s' was never locked", name);
    CT_CHECKF(strncmp(name, l->prefix, strlen(l->prefix)) == 0, "'%s' does not begin with '%s'", name,
              l->prefix);
    CT_CHECKF(!l->seen[i], "'%s' was listed twice", name);
    l->seen[i] = 1;
    CT_EQ(info->held, 1);
    CT_EQ(info->ours, l->ours);
    CT_EQ(info->holds, 1);
    CT_NE(info->owner[0], '\0');
    return ++l->count == l->stop_after;
}

static void expect_listed(ct_t *ct, dl_client_t *client, const char *prefix, int ours) {
    listing_t l = {.ct = ct, .prefix = prefix == NULL ? "" : prefix, .ours = ours};
    CT_OK(dl_list(client, prefix, note_listed, &l, CT_ERR));
    int expected = 0;
    for (size_t i = 0; i < HOSTILE; i++) {
        expected += strncmp(hostile[i], l.prefix, strlen(l.prefix)) == 0;
    }
    CT_EQ(l.count, expected);
}

CT_CASE(names, list_shows_every_held_name_with_the_prefix_and_no_other, .traits = CT_CAN_LIST,
        .timeout_s = 60) {
    dl_client_t *client = ct_open(ct, NULL);
    for (size_t i = 0; i < HOSTILE; i++) {
        CT_OK(dl_trylock_for(ct_lock(ct, client, hostile[i]), 0, 3600000, CT_ERR));
    }
    dl_lock_t *gone = ct_lock(ct, client, "never listed");
    CT_OK(dl_lock(gone, CT_ERR));
    CT_OK(dl_unlock(gone, CT_ERR));
    static const char *const prefixes[] = {NULL,   "",     "o",   "O",  "orders", "orders ", "a",
                                           "A",    "%",    "_",   "*",  "[",      "'",       "\\",
                                           "\xc3", "\xff", "{a}", "\n", "?",      "nothing", "e"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        expect_listed(ct, client, prefixes[i], 1);
    }
    expect_listed(ct, ct_open(ct, NULL), "orders", 0);
    listing_t some = {.ct = ct, .prefix = "", .stop_after = 3, .ours = 1};
    CT_OK(dl_list(client, NULL, note_listed, &some, CT_ERR));
    CT_EQ(some.count, 3); /* non-zero stops */
    CT_STATUS(dl_list(client, NULL, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_list(NULL, NULL, note_listed, &some, CT_ERR), DL_EINVAL);
}

CT_CASE(names, what_has_run_out_is_not_held, .traits = CT_CAN_INSPECT | CT_CAN_LIST, .needs = DL_CAP_LEASE) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    ct_fault(ct, CT_OP_RELEASE, CT_FAIL_BEFORE, CT_ALWAYS); /* the entry itself stays on the server */
    CT_OK(dl_trylock_for(lock, 0, 2 * ct_tolerance_ms(ct), CT_ERR));
    ct_sleep_ms(ct, 2 * ct_tolerance_ms(ct) + 50);
    listing_t l = {.ct = ct, .prefix = ""};
    CT_OK(dl_list(ct_observer(ct), NULL, note_listed, &l, CT_ERR));
    CT_EQ(l.count, 0);
    CT_EQ(ct_server_info(ct, "orders").held, 0);
    ct_fault_end(ct, -1);
}

CT_CASE(names, list_of_an_empty_server_is_empty, .traits = CT_CAN_LIST) {
    listing_t l = {.ct = ct, .prefix = ""};
    CT_OK(dl_list(ct_open(ct, NULL), NULL, note_listed, &l, CT_ERR));
    CT_EQ(l.count, 0);
}

/* ---- what a driver need not have ------------------------------------------------------------- */

CT_CASE(names, a_driver_without_inspect_says_so, .traits_not = CT_CAN_INSPECT) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    CT_STATUS(dl_inspect(ct_lock(ct, ct_open(ct, NULL), "a"), &info, CT_ERR), DL_ENOTSUP);
}

CT_CASE(names, a_driver_without_list_says_so, .traits_not = CT_CAN_LIST) {
    listing_t l = {.ct = ct, .prefix = ""};
    CT_STATUS(dl_list(ct_open(ct, NULL), NULL, note_listed, &l, CT_ERR), DL_ENOTSUP);
}

CT_CASE(names, a_driver_without_force_says_so, .traits_not = CT_CAN_FORCE) {
    CT_STATUS(dl_force_unlock(ct_lock(ct, ct_open(ct, NULL), "a"), CT_ERR), DL_ENOTSUP);
}

CT_CASE(names, force_frees_exactly_this_name, .traits = CT_CAN_FORCE) {
    dl_client_t *client = ct_open(ct, NULL), *admin = ct_open(ct, NULL);
    static const char *const names[] = {"orders", "orders ", "Orders", "%", "*"};
    for (size_t i = 0; i < 5; i++) {
        CT_OK(dl_trylock_for(ct_lock(ct, client, names[i]), 0, 3600000, CT_ERR));
    }
    CT_OK(dl_force_unlock(ct_lock(ct, admin, "%"), CT_ERR));
    CT_OK(dl_force_unlock(ct_lock(ct, admin, "orders"), CT_ERR));
    CT_STATUS(dl_force_unlock(ct_lock(ct, admin, "orders"), CT_ERR), DL_ENOTOWNER);
    CT_STATUS(dl_force_unlock(ct_lock(ct, admin, "ord"), CT_ERR), DL_ENOTOWNER);
    CT_STATUS(dl_force_unlock(NULL, CT_ERR), DL_EINVAL);
    ct_expect_free(ct, "%", 0);
    ct_expect_free(ct, "orders", 0);
    ct_expect_held(ct, "orders ");
    ct_expect_held(ct, "Orders");
    ct_expect_held(ct, "*");
}
