/* failing_cases.c - cases that must fail, each in its own way: the harness has to notice every one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/driver_bench.h"
#include "support/fakes.h"
#include "support/fault.h"

/* harness_selftest.sh knows which line each of them has to print. */

CT_CASE(fails, on_a_false_condition) {
    CT_CHECK(ct_driver_name(ct) == NULL);
}

CT_CASE(fails, on_a_wrong_number) {
    int sheep = 3;
    CT_EQ(sheep, 2);
}

CT_CASE(fails, on_a_number_that_does_not_come) {
    int sheep = 3;
    CT_AWAIT_THAT(sheep, ==, 2, 50);
}

CT_CASE(fails, on_a_text_without_a_part) {
    CT_HAS("wheat", "rye");
}

CT_CASE(fails, on_a_wrong_status) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "x");
    CT_OK(dl_unlock(lock, CT_ERR));
}

static dl_status_t keeps_quiet(dl_error_t *err) {
    (void)err;
    return DL_EBUSY;
}

CT_CASE(fails, on_a_status_without_an_error) {
    CT_STATUS(keeps_quiet(CT_ERR), DL_EBUSY);
}

static dl_status_t says_another(dl_error_t *err) {
    (void)dl_driver_fail(err, DL_EIO, 0, "something else");
    return DL_EBUSY;
}

CT_CASE(fails, on_an_error_with_another_status) {
    CT_STATUS(says_another(CT_ERR), DL_EBUSY);
}

static dl_status_t writes_on_success(dl_error_t *err) {
    (void)dl_driver_fail(err, DL_EIO, 0, "nothing to say");
    return DL_OK;
}

CT_CASE(fails, on_an_error_written_on_success) {
    CT_OK(writes_on_success(CT_ERR));
}

static void fail_here(ct_t *ct, void *arg) {
    (void)arg;
    CT_FAIL("in a thread or process of the case");
}

CT_CASE(fails, in_a_thread) {
    ct_join(ct, ct_thread(ct, fail_here, NULL));
}

CT_CASE(fails, in_a_child_process) {
    ct_process_wait(ct, ct_fork(ct, fail_here, NULL));
}

static void die_here(ct_t *ct, void *arg) {
    (void)ct;
    (void)arg;
    abort();
}

CT_CASE(fails, when_a_child_process_dies) {
    ct_process_wait(ct, ct_fork(ct, die_here, NULL));
}

static void stay(ct_t *ct, void *arg) {
    (void)arg;
    (void)ct_recv(ct, NULL);
}

CT_CASE(fails, when_a_child_process_is_left) {
    (void)ct_fork(ct, stay, NULL);
}

static void return_at_once(ct_t *ct, void *arg) {
    (void)ct;
    (void)arg;
}

CT_CASE(fails, when_a_thread_is_left) {
    (void)ct_thread(ct, return_at_once, NULL);
    ct_sleep_ms(ct, 10);
}

CT_CASE(fails, when_a_latch_stays_closed) {
    ct_latch_wait(ct, ct_latch(ct, 1), 50);
}

CT_CASE(fails, when_an_event_does_not_come) {
    (void)ct_expect_event(ct, ct_open(ct, NULL), DL_EVENT_LOST, "x", 50);
}

CT_CASE(fails, when_a_descriptor_is_left) {
    CT_GE(dup(0), 0);
}

CT_CASE(fails, when_it_hangs, .timeout_s = 1) {
    pthread_mutex_t twice = PTHREAD_MUTEX_INITIALIZER;
    CT_EQ(pthread_mutex_lock(&twice), 0);
    CT_EQ(pthread_mutex_lock(&twice), 0);
}

static void wait_at_pause(ct_t *ct, void *arg) {
    CT_OK(dl_trylock(arg, CT_ERR));
}

CT_CASE(fails, when_everybody_waits_for_ever, .traits = CT_VIRTUAL, .traits_not = CT_BACKEND) {
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, a, "x");
    (void)ct_pause(ct, CT_OP_TRY, CT_BEFORE, NULL, NULL);
    ct_join(ct, ct_thread(ct, wait_at_pause, lock));
}

/* ---- breaches of the core's side of driver.h, made by hand --------------------------------------------- */

/* One request on the wrapped driver, deadline and all. */
typedef struct breaker {
    bench_t bench;
    dl_request_t request;
    dl_grant_t grant;
} breaker_t;

static breaker_t *open_breaker(ct_t *ct, breaker_t *b) {
    bench_open(ct, &b->bench, ct->wrapped, "a:1");
    b->request = bench_request(&b->bench, "a:1", "x", 5, 1000);
    return b;
}

static dl_status_t try_it(breaker_t *b) {
    bench_t *bench = &b->bench;
    return bench->driver->try_acquire(bench->state, bench_hold(bench, 5), &b->request, &b->grant,
                                      &bench->err);
}

CT_CASE(breach, a_hold_id_that_falls, .traits = CT_VIRTUAL) {
    breaker_t b;
    CT_EQ(try_it(open_breaker(ct, &b)), DL_OK);
    b.request.hold_id = 4;
    (void)try_it(&b);
}

CT_CASE(breach, a_hold_id_of_two_names, .traits = CT_VIRTUAL, .needs_not = DL_CAP_SESSION) {
    breaker_t b;
    CT_EQ(try_it(open_breaker(ct, &b)), DL_OK);
    b.request.name = "y";
    (void)try_it(&b);
}

CT_CASE(breach, a_deadline_too_far, .traits = CT_VIRTUAL) {
    breaker_t b;
    open_breaker(ct, &b)->request.deadline_ns = dli_sys->now_ns() + 3000000000u;
    (void)try_it(&b);
}

CT_CASE(breach, an_old_deadline, .traits = CT_VIRTUAL) {
    breaker_t b;
    open_breaker(ct, &b)->request.deadline_ns = dli_sys->now_ns() - 1;
    (void)try_it(&b);
}

CT_CASE(breach, a_level_without_counts, .traits = CT_VIRTUAL, .needs_not = DL_CAP_SERVER_COUNT) {
    breaker_t b;
    open_breaker(ct, &b)->request.level = 2;
    (void)try_it(&b);
}

CT_CASE(breach, a_grant_without_a_release, .traits = CT_VIRTUAL) {
    breaker_t b;
    CT_EQ(try_it(open_breaker(ct, &b)), DL_OK);
    bench_close(&b.bench);
}

CT_CASE(breach, an_op_after_close, .traits = CT_VIRTUAL, .needs_not = DL_CAP_SESSION) {
    breaker_t b;
    open_breaker(ct, &b);
    ct->wrapped->close(b.bench.state, 0);
    (void)try_it(&b);
}

CT_CASE(breach, a_hold_dropped_twice, .traits = CT_VIRTUAL, .needs = DL_CAP_SESSION) {
    breaker_t b;
    CT_EQ(try_it(open_breaker(ct, &b)), DL_OK);
    ct->wrapped->drop(b.bench.state, bench_hold(&b.bench, 5));
    ct->wrapped->drop(b.bench.state, bench_hold(&b.bench, 5));
}

CT_CASE(breach, a_hold_not_dropped, .traits = CT_VIRTUAL, .needs = DL_CAP_SESSION) {
    breaker_t b;
    CT_EQ(try_it(open_breaker(ct, &b)), DL_OK);
    fault_inner = fake_lease_driver(); /* whose close does not look for itself */
    ct->wrapped->close(b.bench.state, 0);
}

static void try_in_thread(ct_t *ct, void *arg) {
    (void)ct;
    (void)try_it(arg);
}

CT_CASE(breach, two_ops_at_once_on_one_hold, .traits = CT_VIRTUAL, .needs = DL_CAP_SESSION) {
    breaker_t b;
    open_breaker(ct, &b);
    (void)bench_hold(&b.bench, 5);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, NULL, NULL);
    (void)ct_thread(ct, try_in_thread, &b);
    ct_pause_await(ct, pause, 100);
    (void)try_it(&b);
}

CT_CASE(breach, one_name_twice_in_a_batch, .traits = CT_VIRTUAL, .needs_not = DL_CAP_SESSION) {
    breaker_t b;
    open_breaker(ct, &b);
    dl_renewal_t twice[2];
    for (int i = 0; i < 2; i++) {
        twice[i] = bench_renewal(&b.bench, &b.request, 1000);
    }
    ct->wrapped->renew(b.bench.state, twice, 2, b.request.deadline_ns);
}

CT_CASE(breach, a_watch_not_ended, .traits = CT_VIRTUAL, .needs = DL_CAP_NOTIFY) {
    breaker_t b;
    dl_watch_t *watch;
    open_breaker(ct, &b);
    CT_EQ(ct->wrapped->watch(b.bench.state, "x", 1, &watch, &b.bench.err), DL_OK);
    ct->wrapped->close(b.bench.state, 0);
}

CT_CASE(breach, two_watches_of_a_name, .traits = CT_VIRTUAL, .needs = DL_CAP_NOTIFY) {
    breaker_t b;
    dl_watch_t *watches[2];
    open_breaker(ct, &b);
    for (int i = 0; i < 2; i++) {
        CT_EQ(ct->wrapped->watch(b.bench.state, "x", 1, &watches[i], &b.bench.err), DL_OK);
    }
}

static void ask_what_to_poll(ct_t *ct, void *arg) {
    breaker_t *b = arg;
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t until_ns;
    (void)ct->wrapped->listen_fds(b->bench.state, fds, DL_LISTEN_MAX, &until_ns);
}

CT_CASE(breach, two_that_listen_at_once, .traits = CT_VIRTUAL, .needs = DL_CAP_NOTIFY) {
    breaker_t b;
    ask_what_to_poll(ct, open_breaker(ct, &b));
    ct_join(ct, ct_thread(ct, ask_what_to_poll, &b));
}

CT_CASE(breach, a_listener_that_did_not_ask, .traits = CT_VIRTUAL, .needs = DL_CAP_NOTIFY) {
    breaker_t b;
    open_breaker(ct, &b);
    ct->wrapped->listen(b.bench.state, NULL, 0);
}
