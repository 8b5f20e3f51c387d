/* floor_cases.c - faults of the network that turn the answer to a lock into a token of before (row 10). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

/* The answer to a lock is this instead: not believed, and nothing stays taken. */
static void take_with_answer(ct_t *ct, proxy_t *proxy, dl_client_t *c, const char *bytes, size_t len) {
    const char *name = fresh_name("row 10");
    dl_lock_t *lock = ct_lock(ct, c, name);
    int64_t acts = proxy_counts(ct, proxy).acts;
    introduce(ct, name);
    proxy_plan_t plan = {
        .request = is_session(ct) ? "_tokens" : claim_of(ct, name),
        .way = PROXY_REPLIES,
        .act = PROXY_INSERT,
        .bytes = bytes,
        .len = len,
    };
    proxy_plan(ct, proxy, &plan);
    dl_status_t status = dl_trylock(lock, CT_ERR);
    /* Where the token is drawn apart from the lock, it is known that there is no lock. */
    CT_CHECKF(status == DL_EUNKNOWN || (is_session(ct) && (status == DL_EPROTO || status == DL_EIO)),
              "it was %s, with token %llu", dl_status_name(status), (unsigned long long)dl_token(lock));
    CT_EQ(proxy_counts(ct, proxy).acts, acts + 1);
    CT_EQ(dl_token(lock), 0);
    ct_expect_free(ct, name, FREE_MS + ct_tolerance_ms(ct));
    /* The answer proper may have come behind it, on a connection that was used since. */
    ct_sleep_ms(ct, TRUST_MS);
    expect_works(ct, c, name);
}

/* One row changed, and the number 7. */
static const char packet[] = "\x07\x00\x00\x01\x00\x01\x07\x02\x00\x00\x00";

CT_CASE(faults, row10_answer_with_a_token_that_is_not_larger, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy); /* it has seen a token */
    take_with_answer(ct, proxy, c, is_mysql(ct) ? packet : ":7\r\n",
                     is_mysql(ct) ? sizeof packet - 1 : strlen(":7\r\n"));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_answer_with_the_token_that_was_seen_last, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *last = ct_lock(ct, c, "row 10 last");
    char answer[32];
    CT_OK(dl_trylock(last, CT_ERR));
    snprintf(answer, sizeof answer, ":%llu\r\n", (unsigned long long)dl_token(last));
    CT_OK(dl_unlock(last, CT_ERR));
    take_with_answer(ct, proxy, c, answer, strlen(answer));
    proxy_stop(ct, proxy);
}
