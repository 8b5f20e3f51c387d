/* redis_subscriber_memory_test.c - the subscriber when memory runs out, in its callers and in its thread. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_subscriber_fixture.h"
#include "support/alloc_fail.h"

TestSuite(redis_subscriber_memory, .init = set_up, .fini = tear_down, .timeout = 60);

/* Everything from opening to closing. DL_OK, or why there is no watch. */
static dl_status_t live_once(void) {
    dl_watch_t *w = NULL;
    dli_subscriber_t *before = subscriber;
    dl_status_t status = dli_subscriber_open(&endpoint, &env, &subscriber, &err);
    if (status != DL_OK) {
        cr_assert_null(subscriber);
        subscriber = before;
        return status;
    }
    status = watch("orders", 5000, &w);
    cr_assert_eq(status == DL_OK, w != NULL);
    if (status == DL_OK) {
        tell(&server, "PUBLISH orders 0");
        must_wake(w); /* by the message, or by the loss of the connection */
        unwatch(w);
    }
    dli_subscriber_close(subscriber, false);
    subscriber = before;
    return status;
}

static void fail_each(int forever) {
    int failed = 1, failures = 0;
    for (int n = 1; failed > 0; n++) {
        alloc_fail_at(n, forever);
        dl_status_t status = live_once();
        failed = alloc_fail_failed();
        alloc_fail_at(0, 0);
        cr_assert(status == DL_OK || status == DL_ENOMEM, "allocation %d: %s %s", n, dl_status_name(status),
                  err.message);
        if (failed == 0) {
            cr_assert_eq(status, DL_OK);
        }
        failures += status == DL_ENOMEM;
        cr_assert_lt(n, 1000);
    }
    cr_assert_gt(failures, 5);
}

Test(redis_subscriber_memory, each_allocation_fails_once) {
    fail_each(0);
}

Test(redis_subscriber_memory, each_allocation_fails_and_all_after_it) {
    fail_each(1);
}

Test(redis_subscriber_memory, a_thread_without_memory_recovers) {
    dl_watch_t *w = must_watch("orders"), *other = must_watch("other");
    for (int n = 1; n <= 20; n++) {
        alloc_fail_at(n, n % 2);
        tell(&server, "CLIENT KILL TYPE pubsub");
        must_wake(w);
        (void)wait_ms(w, 20);
        alloc_fail_at(0, 0);
        AWAIT_THAT(subscribed_channels(), ==, 2);
        while (wait_ms(w, 30) == DL_OK) {}
        cr_assert_eq(tell(&server, "PUBLISH orders 0"), 1);
        must_wake(w);
    }
    unwatch(w);
    unwatch(other);
}
