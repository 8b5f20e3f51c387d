/* floor_cases.c - faults of the network that turn the answer to a lock into a token of before (row 10). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

CT_CASE(faults, row10_answer_with_a_token_that_is_not_larger, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy); /* it has seen a token */
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    introduce(ct, "row 10");
    /* One row changed, and the number 7. */
    static const char packet[] = "\x07\x00\x00\x01\x00\x01\x07\x02\x00\x00\x00";
    proxy_plan_t plan = {
        .request = is_session(ct) ? "_tokens" : claim_of(ct, "row 10"),
        .way = PROXY_REPLIES,
        .act = PROXY_INSERT,
        .bytes = is_mysql(ct) ? packet : ":7\r\n",
        .len = is_mysql(ct) ? sizeof packet - 1 : 4,
    };
    proxy_plan(ct, proxy, &plan);
    dl_status_t status = dl_trylock(lock, CT_ERR);
    /* Where the token is drawn apart from the lock, it is known that there is no lock. */
    CT_CHECKF(status == DL_EUNKNOWN || (is_session(ct) && (status == DL_EPROTO || status == DL_EIO)),
              "it was %s, with token %llu", dl_status_name(status), (unsigned long long)dl_token(lock));
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    CT_EQ(dl_token(lock), 0);
    ct_expect_free(ct, "row 10", FREE_MS + ct_tolerance_ms(ct));
    /* The answer proper may have come behind it, on a connection that was used since. */
    ct_sleep_ms(ct, TRUST_MS);
    expect_works(ct, c, "row 10");
    proxy_stop(ct, proxy);
}
