/* redis_subscriber_memory_test.c - the subscriber when memory runs out, for who watches and who listens. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"
#include "support/alloc_fail.h"

TestSuite(redis_subscriber_memory, .init = set_up, .fini = tear_down, .timeout = 60);

/* Memory is there again. How many allocations had failed. */
static int end_of_failing(void) {
    int failed = alloc_fail_failed();
    alloc_fail_at(0, 0);
    return failed;
}

/* Everything from opening to closing, without memory at first. DL_OK, or why there is no watch. */
static dl_status_t live_once(int *failed) {
    hearer_t w;
    dli_subscriber_t *before = subscriber;
    dl_status_t status = dli_subscriber_open(&endpoint, &env, &subscriber, &err);
    if (status != DL_OK) {
        *failed = end_of_failing();
        cr_assert_null(subscriber);
        subscriber = before;
        return status;
    }
    status = watch("orders", &w);
    if (status == DL_OK) {
        (void)wait_ms(&w, 20);
        tell(&server, "PUBLISH orders 0");
        (void)wait_ms(&w, 5);
    }
    *failed = end_of_failing();
    if (status == DL_OK) {
        LISTEN_UNTIL(w.hears);
        (void)wait_ms(&w, 5);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(&w);
        unwatch(&w);
    }
    dli_subscriber_close(subscriber, false);
    subscriber = before;
    return status;
}

static void fail_each(int forever) {
    int failed = 1, n, failures = 0;
    for (n = 1; failed > 0; n++) {
        alloc_fail_at(n, forever);
        dl_status_t status = live_once(&failed);
        cr_assert(status == DL_OK || status == DL_ENOMEM, "allocation %d: %s %s", n, dl_status_name(status),
                  err.message);
        if (failed == 0) {
            cr_assert_eq(status, DL_OK);
        }
        failures += status == DL_ENOMEM;
        cr_assert_lt(n, 1000);
    }
    cr_assert_geq(failures, 2, "the subscriber, the channel");
    cr_assert_gt(n, 5, "and what the connection is made of");
}

Test(redis_subscriber_memory, each_allocation_fails_once) {
    fail_each(0);
}

Test(redis_subscriber_memory, each_allocation_fails_and_all_after_it) {
    fail_each(1);
}

Test(redis_subscriber_memory, who_listens_without_memory_recovers) {
    hearer_t w, other;
    must_watch("orders", &w);
    must_watch("other", &other);
    for (int n = 1; n <= 20; n++) {
        alloc_fail_at(n, n % 2);
        tell(&server, "CLIENT KILL TYPE pubsub");
        must_lose(&w);
        (void)wait_ms(&w, 20);
        alloc_fail_at(0, 0);
        LISTEN_UNTIL(w.hears && other.hears);
        (void)wait_ms(&w, 30);
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(&w);
    }
    unwatch(&w);
    unwatch(&other);
}
