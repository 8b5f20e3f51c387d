/* replies_cases.c - faults of the network that break off or replace replies and requests (row 10). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

/* ---- an answer that breaks off, or is none ---------------------------------------------------------- */

/* The reply to the first try goes wrong like this; the server has taken the lock. */
static void spoil_reply(ct_t *ct, proxy_t *proxy, dl_client_t *c, const proxy_plan_t *how) {
    proxy_plan_t plan = *how;
    /* Without waiting for more; but the client libraries of MySQL read what a packet announces before they
     * look at its number. */
    int64_t promised_ms = is_mysql(ct) && how->act == PROXY_INSERT ? ct_call_timeout_ms(ct) : 0;
    int64_t acts = proxy_counts(ct, proxy).acts;
    const char *name = fresh_name("row 10");
    dl_lock_t *lock = ct_lock(ct, c, name);
    introduce(ct, name);
    plan.request = claim_of(ct, name);
    plan.way = PROXY_REPLIES;
    proxy_plan(ct, proxy, &plan);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, promised_ms);
    CT_EQ(proxy_counts(ct, proxy).acts, acts + 1);
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_free(ct, name, FREE_MS + ct_tolerance_ms(ct));
    expect_works(ct, c, name);
    /* The same with the answer to an unlock. */
    name = fresh_name("row 10");
    lock = ct_lock(ct, c, name);
    take(ct, lock, 20 * ct_lease_ms(ct)); /* no renewal meets the proxy's plan */
    plan.request = unlock_of(ct, name);
    proxy_plan(ct, proxy, &plan);
    watch = start_watch(ct);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, promised_ms);
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_free(ct, name, 0); /* it was carried out */
    expect_works(ct, c, name);
}

/* After each of its first bytes. */
static void break_off_replies(ct_t *ct, proxy_act_t act) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    for (size_t after = 0; after <= 3; after++) {
        proxy_plan_t plan = {.act = act, .after = after};
        spoil_reply(ct, proxy, c, &plan);
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_reset_mid_reply, WIRE) {
    break_off_replies(ct, PROXY_RESET);
}

CT_CASE(faults, row10_reply_truncated, WIRE) {
    break_off_replies(ct, PROXY_CUT);
}

typedef struct garbage {
    const char *bytes;
    size_t len;
} garbage_t;

#define GARBAGE(text) \
    { text, sizeof text - 1 }

static const garbage_t no_redis[] = {GARBAGE("HTTP/1.1 400 Bad Request\r\n"),
                                     GARBAGE("\x16\x03\x01\x02\x05\x01"), GARBAGE(":12x4\r\n"),
                                     GARBAGE("*1000000000\r\n"), GARBAGE("\r\n")};
/* Packets begin with three bytes of length and a number that has to be 1. */
static const garbage_t no_mysql[] = {GARBAGE("HTTP/1.1 400 Bad Request\r\n"),
                                     GARBAGE("\x16\x03\x01\x02\x05\x01"), GARBAGE("\x00\x00\x00\x01"),
                                     GARBAGE("\x01\x00\x00\x01\xc8"), GARBAGE("\x01\x00\x00\x02\x00")};

CT_CASE(faults, row10_garbage_instead_of_a_reply, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    for (size_t i = 0; i < sizeof no_redis / sizeof no_redis[0]; i++) {
        const garbage_t *garbage = is_mysql(ct) ? &no_mysql[i] : &no_redis[i];
        proxy_plan_t plan = {.act = PROXY_INSERT, .bytes = garbage->bytes, .len = garbage->len};
        spoil_reply(ct, proxy, c, &plan);
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_reply_that_announces_more_than_comes, WIRE) {
    static const garbage_t long_text = GARBAGE("$99999999999\r\n"), long_packet = GARBAGE("\xff\xff\x7f\x01");
    const garbage_t *beginning = is_mysql(ct) ? &long_packet : &long_text;
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    proxy_plan_t plan = {.request = claim_of(ct, "row 10"),
                         .way = PROXY_REPLIES,
                         .act = PROXY_INSERT,
                         .bytes = beginning->bytes,
                         .len = beginning->len};
    introduce(ct, "row 10");
    proxy_plan(ct, proxy, &plan);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    ct_expect_free(ct, "row 10", FREE_MS + ct_tolerance_ms(ct));
    expect_works(ct, c, "row 10");
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_garbage_from_the_first_byte, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    proxy_plan_t plan = {.way = PROXY_REPLIES, .act = PROXY_INSERT, .bytes = "220 mail\r\n", .len = 10};
    proxy_plan(ct, proxy, &plan);
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    /* The client libraries of MySQL tell it from no greeting by nothing, and older ones wait for the long
     * packet that its first bytes announce. */
    CT_STATUS(ct_try_open(ct, address_of(ct, proxy), &c, CT_ERR), is_mysql(ct) ? DL_EIO : DL_EPROTO);
    IN_TIME(watch, is_mysql(ct) ? ct_call_timeout_ms(ct) : 0);
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    proxy_stop(ct, proxy);
}

/* A yes as the server would say it, with the token 7; and "not yours". */
static const garbage_t redis_yes = GARBAGE(":7\r\n"), redis_no = GARBAGE("$-1\r\n");
static const garbage_t mysql_yes = GARBAGE("\x07\x00\x00\x01\x00\x01\x07\x02\x00\x00\x00"),
                       mysql_no = GARBAGE("\x07\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00");

/* On every connection that has been idle for a moment. */
static void inject(ct_t *ct, proxy_t *proxy, const garbage_t *answer) {
    ct_sleep_ms(ct, TRUST_MS);
    proxy_inject(ct, proxy, answer->bytes, answer->len);
}

CT_CASE(faults, row10_answers_that_nobody_asked_for, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *direct = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 10"), *held = ct_lock(ct, direct, "row 10");
    CT_OK(dl_lock(held, CT_ERR));
    uint64_t token = dl_token(held);
    for (int i = 0; i < 3; i++) {
        inject(ct, proxy, is_mysql(ct) ? &mysql_yes : &redis_yes);
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    }
    CT_OK(dl_unlock(held, CT_ERR));
    inject(ct, proxy, is_mysql(ct) ? &mysql_yes : &redis_yes);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
    inject(ct, proxy, is_mysql(ct) ? &mysql_no : &redis_no);
    if (is_session(ct)) { /* it came on the connection of the hold, which cannot be trusted any more */
        (void)CT_EITHER(dl_unlock(lock, CT_ERR), DL_ELOST, DL_EUNKNOWN);
        ct_expect_free(ct, "row 10", FREE_MS + ct_tolerance_ms(ct));
    } else {
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_expect_free(ct, "row 10", 0);
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_request_truncated, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    for (size_t after = 0; after < 120; after += 30) {
        const char *name = fresh_name("row 10");
        dl_lock_t *lock = ct_lock(ct, c, name);
        introduce(ct, name);
        int64_t acts = proxy_counts(ct, proxy).acts;
        proxy_plan_t plan = {
            .request = claim_of(ct, name), .way = PROXY_REQUESTS, .after = after, .act = PROXY_RESET};
        proxy_plan(ct, proxy, &plan);
        watch_t watch = start_watch(ct);
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
        IN_TIME(watch, 0);
        CT_EQ(proxy_counts(ct, proxy).acts, acts + 1);
        ct_expect_free(ct, name, 0);
        expect_works(ct, c, name);
    }
    proxy_stop(ct, proxy);
}
