/* floor_cases.c - faults of the network that turn the answer to a lock into a token of before (row 10). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

CT_CASE(faults, row10_answer_with_a_token_that_is_not_larger, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy); /* it has seen a token */
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    proxy_plan_t plan = {
        .request = "row 10", .way = PROXY_REPLIES, .act = PROXY_INSERT, .bytes = ":7\r\n", .len = 4};
    proxy_plan(ct, proxy, &plan);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    CT_EQ(dl_token(lock), 0);
    ct_expect_free(ct, "row 10", FREE_MS + ct_tolerance_ms(ct));
    /* The answer proper may have come behind it, on a connection that was used since. */
    ct_sleep_ms(ct, TRUST_MS);
    expect_works(ct, c, "row 10");
    proxy_stop(ct, proxy);
}
