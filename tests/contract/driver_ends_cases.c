/* driver_ends_cases.c - what driver.h asks of waiting, of the ends of holds and of lists, asked by hand. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/driver_bench.h"

/* Long enough that it does not end while a case runs on real time. */
#define LONG_MS 60000
/* The shortest that a core asks for. */
#define SHORT_MS DL_LEASE_MIN_MS

static void open_two(ct_t *ct, bench_t *a, bench_t *b) {
    bench_open(ct, a, ct->inner, "a:1");
    bench_open(ct, b, ct->inner, "b:2");
}

static void close_two(bench_t *a, bench_t *b) {
    bench_close(a);
    bench_close(b);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

static int stop_fd(ct_t *ct) {
    int fd = eventfd(1, EFD_CLOEXEC);
    CT_GE(fd, 0);
    return fd;
}

CT_CASE(driver, a_watch_hears_of_a_release_and_of_a_forced_one, .traits = CT_BLOCKING,
        .needs = DL_CAP_NOTIFY) {
    bench_t a, b;
    dl_grant_t grant;
    dl_watch_t *watch;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(b.driver->watch(b.state, "orders", 6, &watch, &b.err), DL_OK);
    CT_EQ(bench_release(&a, &mine), DL_OK); /* perhaps before it is able to hear, which is told too */
    while (!b.hears) {
        CT_CHECK(bench_hears(&b, 5000));
    }
    for (int forced = 0; forced <= 1; forced++) {
        CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
        while (bench_hears(&b, 50)) {} /* of what was before, or for nothing */
        CT_EQ(forced ? bench_force(&a, "orders") : bench_release(&a, &mine), DL_OK);
        CT_CHECK(bench_hears(&b, 5000));
        CT_EQ(b.hears, 1);
    }
    while (bench_hears(&b, 50)) {}
    b.driver->unwatch(b.state, watch);
    close_two(&a, &b);
}

CT_CASE(driver, nothing_of_hearing_waits, .traits = CT_BLOCKING, .needs = DL_CAP_NOTIFY) {
    bench_t b;
    dl_watch_t *watch;
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t until_ns;
    bench_open(ct, &b, ct->inner, "b:2");
    int64_t start_ms = ct_now_ms(ct);
    for (int i = 0; i < 20; i++) {
        CT_EQ(b.driver->watch(b.state, "orders", 6, &watch, &b.err), DL_OK);
        size_t n = b.driver->listen_fds(b.state, fds, DL_LISTEN_MAX, &until_ns);
        CT_LE(n, DL_LISTEN_MAX);
        for (size_t k = 0; k < n; k++) {
            fds[k].revents = 0;
        }
        b.driver->listen(b.state, fds, n);
        b.driver->unwatch(b.state, watch);
    }
    CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, ct_tolerance_ms(ct));
    bench_close(&b);
}

CT_CASE(driver, a_native_wait_ends_in_time_and_on_a_stop, .traits = CT_BLOCKING,
        .needs = DL_CAP_NATIVE_WAIT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    dl_request_t theirs = bench_request(&b, BENCH_OWNER_B, "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    int64_t start = ct_now_ms(ct);
    theirs.wait_ms = 300;
    CT_EQ(bench_try(&b, &theirs, &grant), DL_EBUSY);
    CT_BETWEEN(ct_now_ms(ct) - start, 300, 300 + ct_tolerance_ms(ct));
    theirs.stop.fd[0] = stop_fd(ct);
    start = ct_now_ms(ct);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_ECANCELED);
    CT_BETWEEN(ct_now_ms(ct) - start, 0, ct_tolerance_ms(ct));
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").held, 0); /* nobody is left in the queue */
    close(theirs.stop.fd[0]);
    close_two(&a, &b);
}

static void release_later(ct_t *ct, void *arg) {
    bench_t *a = arg;
    dl_request_t mine = bench_request(a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    ct_sleep_ms(ct, 100);
    CT_EQ(bench_release(a, &mine), DL_OK);
}

CT_CASE(driver, a_native_wait_is_granted_when_the_holder_leaves, .traits = CT_BLOCKING,
        .needs = DL_CAP_NATIVE_WAIT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    dl_request_t theirs = bench_request(&b, BENCH_OWNER_B, "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    uint64_t start = ct_now_ns(ct);
    ct_thread_t *leaver = ct_thread(ct, release_later, &a);
    theirs.wait_ms = 5000;
    CT_EQ(bench_try(&b, &theirs, &grant), DL_OK);
    /* Validity may not count from before the lock was free. */
    CT_BETWEEN(grant.sent_ns, start + (uint64_t)100 * DLI_NS_PER_MS, ct_now_ns(ct));
    ct_join(ct, leaver);
    CT_EQ(bench_release(&b, &theirs), DL_OK);
    close_two(&a, &b);
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

CT_CASE(driver, a_hold_ends_with_its_lease, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, SHORT_MS);
    dl_request_t theirs = bench_request(&b, BENCH_OWNER_B, "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    int64_t sent_ms = (int64_t)(grant.sent_ns / DLI_NS_PER_MS), until = sent_ms + SHORT_MS;
    while (bench_try(&b, &theirs, &grant) != DL_OK) {
        CT_LT(ct_now_ms(ct), sent_ms + ct_server_lease_ms(ct, SHORT_MS) + ct_tolerance_ms(ct));
        ct_sleep_ms(ct, 5);
    }
    CT_GE(ct_now_ms(ct) + 1, until); /* not a moment earlier */
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    CT_STR_EQ(bench_inspect(&a, "orders").owner, BENCH_OWNER_B);
    close_two(&a, &b);
}

CT_CASE(driver, a_forced_release_tells_whether_there_was_one, .traits = CT_BLOCKING | CT_CAN_FORCE) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    CT_EQ(bench_force(&b, "orders"), DL_ENOTOWNER);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_force(&b, "orders"), DL_OK);
    if (ct_caps(ct) & DL_CAP_SESSION) {
        struct pollfd fd = {.fd = grant.session_fd, .events = POLLIN | POLLRDHUP};
        CT_EQ(dli_sys->poll(&fd, 1, ct_now_ns(ct) + (uint64_t)1000 * DLI_NS_PER_MS), 1);
    }
    CT_EQ(bench_renew(&a, &mine, LONG_MS), DL_ELOST);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    close_two(&a, &b);
}

CT_CASE(driver, a_dropped_hold_frees_the_lock_when_the_server_notices, .traits = CT_BLOCKING,
        .needs = DL_CAP_SESSION) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, BENCH_OWNER_A, "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    bench_drop(&a, 5);
    CT_AWAIT_THAT(bench_inspect(&b, "orders").held, ==, 0, 1000);
    close_two(&a, &b);
}

/* ---- looking ------------------------------------------------------------------------------------------- */

typedef struct seen {
    int count;
    char names[8][DL_NAME_MAX + 1];
    int stop_after;
} seen_t;

static int note_name(void *arg, const char *name, const dl_lock_info_t *info) {
    seen_t *seen = arg;
    if (info->held && seen->count < 8) {
        memcpy(seen->names[seen->count], name, strlen(name) + 1);
    }
    return ++seen->count == seen->stop_after;
}

static int saw(const seen_t *seen, const char *name) {
    int count = 0;
    for (int i = 0; i < seen->count && i < 8; i++) {
        count += strcmp(seen->names[i], name) == 0;
    }
    return count;
}

CT_CASE(driver, a_list_names_each_held_lock_with_the_prefix_once, .traits = CT_BLOCKING | CT_CAN_LIST) {
    static const char *const names[] = {"job/1", "job/2", "job%", "jobless", "JOB/1", "other"};
    enum { COUNT = sizeof names / sizeof names[0] };
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    for (uint64_t i = 0; i < COUNT; i++) {
        dl_request_t mine = bench_request(&a, BENCH_OWNER_A, names[i], i + 1, LONG_MS);
        CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    }
    dl_request_t freed = bench_request(&a, BENCH_OWNER_A, "job/2", 2, LONG_MS);
    CT_EQ(bench_release(&a, &freed), DL_OK);
    seen_t seen = {0}, all = {0}, one = {.stop_after = 1}, percent = {0};
    CT_EQ(a.driver->list(a.state, "job/", 4, note_name, &seen, bench_deadline(&a), &a.err), DL_OK);
    CT_EQ(seen.count, 1);
    CT_EQ(saw(&seen, "job/1"), 1);
    CT_EQ(a.driver->list(a.state, "", 0, note_name, &all, bench_deadline(&a), &a.err), DL_OK);
    CT_EQ(all.count, COUNT - 1);
    for (int i = 0; i < COUNT; i++) {
        CT_EQ(saw(&all, names[i]), strcmp(names[i], "job/2") != 0);
    }
    CT_EQ(a.driver->list(a.state, "", 0, note_name, &one, bench_deadline(&a), &a.err), DL_OK);
    CT_EQ(one.count, 1);
    CT_EQ(a.driver->list(a.state, "job%", 4, note_name, &percent, bench_deadline(&a), &a.err), DL_OK);
    CT_EQ(percent.count, 1);
    bench_close(&a);
}
