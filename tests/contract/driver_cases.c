/* driver_cases.c - what driver.h asks of a driver, asked of each driver by hand, without the core. */
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

/* ---- claiming ------------------------------------------------------------------------------------ */

CT_CASE(driver, grants_a_free_name_and_tells_others_how_long_it_is_busy) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 1, LONG_MS);
    dl_request_t theirs = bench_request(&b, "b:1", "orders", 1, LONG_MS);
    uint64_t before = ct_now_ns(ct);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_BETWEEN(grant.sent_ns, before, ct_now_ns(ct));
    CT_EQ(grant.token != 0, (ct_caps(ct) & DL_CAP_FENCE) != 0);
    CT_EQ(grant.session_fd >= 0, (ct_caps(ct) & DL_CAP_SESSION) != 0);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_EBUSY);
    CT_BETWEEN(grant.busy_ms, LONG_MS - 10000, LONG_MS);
    CT_EQ(grant.busy_is_dlock, 1);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_OK);
    close_two(&a, &b);
}

CT_CASE(driver, a_larger_hold_id_of_the_owner_replaces_a_smaller_one_and_never_the_reverse) {
    bench_t a;
    dl_grant_t first, second;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t old = bench_request(&a, "a:1", "orders", 7, LONG_MS);
    dl_request_t new = bench_request(&a, "a:1", "orders", 8, LONG_MS);
    CT_EQ(bench_try(&a, &old, &first), DL_OK);
    CT_EQ(bench_try(&a, &new, &second), DL_OK);
    CT_CHECK(!(ct_caps(ct) & DL_CAP_FENCE) || second.token > first.token);
    CT_EQ(bench_try(&a, &old, &first), DL_EBUSY);
    CT_EQ(bench_release(&a, &old), DL_ELOST);
    CT_EQ(bench_renew(&a, &old, LONG_MS), DL_ELOST);
    CT_EQ(bench_renew(&a, &new, LONG_MS), DL_OK);
    CT_EQ(bench_release(&a, &new), DL_OK);
    bench_close(&a);
}

CT_CASE(driver, the_same_hold_asked_for_twice_is_granted_with_the_full_lease) {
    bench_t a;
    dl_grant_t first, second;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, "a:1", "orders", 7, SHORT_MS * 10);
    CT_EQ(bench_try(&a, &mine, &first), DL_OK);
    mine.lease_ms = LONG_MS;
    CT_EQ(bench_try(&a, &mine, &second), DL_OK);
    CT_CHECK(second.token >= first.token);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, LONG_MS - 10000);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    bench_close(&a);
}

CT_CASE(driver, names_are_compared_byte_by_byte) {
    static const char *const names[] = {"a",        "A",   "a ",  " a",     "ab", "\xe4",
                                        "\xc3\xa4", "a\n", "{a}", "a'; --", "%"};
    enum { COUNT = sizeof names / sizeof names[0] };
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    for (uint64_t i = 0; i < COUNT; i++) {
        dl_request_t mine = bench_request(&a, "a:1", names[i], i + 1, LONG_MS);
        CT_CHECKF(bench_try(&a, &mine, &grant) == DL_OK, "name %d: %s", (int)i, a.err.message);
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        CT_EQ(bench_inspect(&a, names[i]).hold_id, i + 1);
        dl_request_t mine = bench_request(&a, "a:1", names[i], i + 1, LONG_MS);
        CT_EQ(bench_release(&a, &mine), DL_OK);
        CT_EQ(bench_inspect(&a, names[i]).held, 0);
    }
    bench_close(&a);
}

CT_CASE(driver, the_longest_name_and_owner_are_kept_whole) {
    char name[DL_NAME_MAX + 1], owner[DL_OWNER_MAX + 1];
    bench_t a;
    dl_grant_t grant;
    memset(name, 'n', sizeof name - 1);
    memset(owner, 'o', sizeof owner - 1);
    name[sizeof name - 1] = owner[sizeof owner - 1] = 0;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, owner, name, UINT64_C(1) << 60, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    dl_lock_info_t info = bench_inspect(&a, name);
    CT_STR_EQ(info.owner, owner);
    CT_CHECK(info.hold_id == UINT64_C(1) << 60);
    name[DL_NAME_MAX - 1] = 'x';
    CT_EQ(bench_inspect(&a, name).held, 0);
    name[DL_NAME_MAX - 1] = 'n';
    CT_EQ(bench_release(&a, &mine), DL_OK);
    bench_close(&a);
}

/* ---- freeing --------------------------------------------------------------------------------------- */

CT_CASE(driver, release_frees_only_the_very_hold_and_only_once) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    dl_request_t stranger = bench_request(&b, "b:1", "orders", 5, LONG_MS);
    dl_request_t other_id = bench_request(&a, "a:1", "orders", 6, LONG_MS);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_release(&b, &stranger), DL_ELOST);
    CT_EQ(bench_release(&a, &other_id), DL_ELOST);
    CT_EQ(bench_inspect(&b, "orders").held, 1);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    close_two(&a, &b);
}

CT_CASE(driver, release_does_not_need_the_hold_that_acquired, .needs = DL_CAP_SESSION) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_release(&b, &mine), DL_OK); /* as the background free does after a broken connection */
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    close_two(&a, &b);
}

/* ---- renewing --------------------------------------------------------------------------------------- */

CT_CASE(driver, renewal_extends_and_never_shortens) {
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_renew(&a, &mine, SHORT_MS), DL_OK);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, LONG_MS - 10000);
    CT_EQ(bench_renew(&a, &mine, 3 * LONG_MS), DL_OK);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, 3 * LONG_MS - 10000);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    bench_close(&a);
}

CT_CASE(driver, renewal_never_creates_and_never_revives) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, SHORT_MS);
    dl_request_t theirs = bench_request(&b, "b:1", "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    ct_sleep_ms(ct, SHORT_MS + 20);
    CT_EQ(bench_renew(&a, &mine, LONG_MS), DL_ELOST);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    CT_EQ(bench_try(&b, &theirs, &grant), DL_OK);
    CT_EQ(bench_renew(&a, &mine, LONG_MS), DL_ELOST);
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    CT_EQ(bench_renew(&b, &theirs, LONG_MS), DL_OK);
    CT_EQ(bench_release(&b, &theirs), DL_OK);
    close_two(&a, &b);
}

CT_CASE(driver, each_entry_of_a_batch_has_its_own_answer) {
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t first = bench_request(&a, "a:1", "first", 1, LONG_MS);
    dl_request_t gone = bench_request(&a, "a:1", "gone", 2, LONG_MS);
    dl_request_t last = bench_request(&a, "a:2", "last", 3, LONG_MS);
    CT_EQ(bench_try(&a, &first, &grant), DL_OK);
    CT_EQ(bench_try(&a, &gone, &grant), DL_OK);
    CT_EQ(bench_try(&a, &last, &grant), DL_OK);
    CT_EQ(bench_release(&a, &gone), DL_OK);
    dl_renewal_t batch[] = {bench_renewal(&a, &first, 2 * LONG_MS), bench_renewal(&a, &gone, 2 * LONG_MS),
                            bench_renewal(&a, &last, 2 * LONG_MS)};
    a.driver->renew(a.state, batch, 3, bench_deadline(&a));
    CT_EQ(batch[0].status, DL_OK);
    CT_EQ(batch[1].status, DL_ELOST);
    CT_EQ(batch[2].status, DL_OK);
    CT_GT(bench_inspect(&a, "last").remaining_ms, LONG_MS);
    CT_EQ(bench_release(&a, &first), DL_OK);
    CT_EQ(bench_release(&a, &last), DL_OK);
    bench_close(&a);
}

/* ---- tokens, counts ---------------------------------------------------------------------------------- */

CT_CASE(driver, tokens_rise_above_the_floor_and_all_earlier_ones, .needs = DL_CAP_FENCE) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    uint64_t last = UINT64_C(1) << 53;
    for (uint64_t i = 1; i <= 4; i++) {
        bench_t *who = i % 2 ? &a : &b;
        dl_request_t mine = bench_request(who, i % 2 ? "a:1" : "b:1", "orders", i, LONG_MS);
        mine.token_floor = i == 1 ? last : 0;
        CT_EQ(bench_try(who, &mine, &grant), DL_OK);
        CT_CHECKF(grant.token > last, "token %llu after %llu", (unsigned long long)grant.token,
                  (unsigned long long)last);
        last = grant.token;
        /* Freed in three ways: none of them may take the tokens back. */
        CT_EQ(i == 2 ? bench_force(&a, "orders") : bench_release(who, &mine), DL_OK);
    }
    close_two(&a, &b);
}

CT_CASE(driver, counts_are_written_as_they_are_and_never_create, .needs = DL_CAP_SERVER_COUNT) {
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    mine.level = 2;
    CT_EQ(bench_try(&a, &mine, &grant), DL_ELOST);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    mine.level = 1;
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    uint64_t token = grant.token;
    mine.level = 3;
    mine.lease_ms = SHORT_MS;
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK); /* sent again: it counts once */
    CT_EQ(bench_inspect(&a, "orders").holds, 3);
    CT_CHECK(bench_inspect(&a, "orders").token == token);
    CT_GT(bench_inspect(&a, "orders").remaining_ms, LONG_MS - 10000);
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").holds, 2);
    mine.level = 1;
    CT_EQ(bench_release(&a, &mine), DL_OK);
    CT_EQ(bench_inspect(&a, "orders").held, 0);
    bench_close(&a);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

static int stop_fd(ct_t *ct) {
    int fd = eventfd(1, EFD_CLOEXEC);
    CT_CHECK(fd >= 0);
    return fd;
}

CT_CASE(driver, a_watch_hears_of_a_release_and_of_a_forced_one, .needs = DL_CAP_NOTIFY) {
    bench_t a, b;
    dl_grant_t grant;
    dl_watch_t *watch;
    dl_stop_t never = {{-1, -1}}, now = {{-1, stop_fd(ct)}};
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(b.driver->watch(b.state, "orders", 6, bench_deadline(&b), &never, &watch, &b.err), DL_OK);
    CT_EQ(bench_release(&a, &mine), DL_OK); /* between watch and wait */
    uint64_t until = ct_now_ns(ct) + (uint64_t)5000 * DLI_NS_PER_MS;
    CT_EQ(b.driver->wait(b.state, watch, until, &never, &b.err), DL_OK);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    CT_EQ(bench_force(&a, "orders"), DL_OK);
    CT_EQ(b.driver->wait(b.state, watch, until, &never, &b.err), DL_OK);
    CT_LT(ct_now_ns(ct), until);
    /* A stop ends a wait, and so does its deadline; each may be preceded by a wake for nothing. */
    dl_status_t status;
    while ((status = b.driver->wait(b.state, watch, until, &now, &b.err)) == DL_OK) {}
    CT_EQ(status, DL_ECANCELED);
    until = ct_now_ns(ct) + (uint64_t)50 * DLI_NS_PER_MS;
    while ((status = b.driver->wait(b.state, watch, until, &never, &b.err)) == DL_OK) {}
    CT_EQ(status, DL_ETIMEDOUT);
    CT_GE(ct_now_ns(ct), until);
    b.driver->unwatch(b.state, watch);
    close(now.fd[1]);
    close_two(&a, &b);
}

CT_CASE(driver, a_native_wait_ends_in_time_and_on_a_stop, .needs = DL_CAP_NATIVE_WAIT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    dl_request_t theirs = bench_request(&b, "b:1", "orders", 1, LONG_MS);
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
    dl_request_t mine = bench_request(a, "a:1", "orders", 5, LONG_MS);
    ct_sleep_ms(ct, 100);
    CT_EQ(bench_release(a, &mine), DL_OK);
}

CT_CASE(driver, a_native_wait_is_granted_when_the_holder_leaves, .needs = DL_CAP_NATIVE_WAIT) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    dl_request_t theirs = bench_request(&b, "b:1", "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    ct_thread_t *leaver = ct_thread(ct, release_later, &a);
    uint64_t start = ct_now_ns(ct);
    theirs.wait_ms = 5000;
    CT_EQ(bench_try(&b, &theirs, &grant), DL_OK);
    /* Validity may not count from before the lock was free. */
    CT_BETWEEN(grant.sent_ns, start + (uint64_t)100 * DLI_NS_PER_MS, ct_now_ns(ct));
    ct_join(ct, leaver);
    CT_EQ(bench_release(&b, &theirs), DL_OK);
    close_two(&a, &b);
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

CT_CASE(driver, a_hold_ends_with_its_lease) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, SHORT_MS);
    dl_request_t theirs = bench_request(&b, "b:1", "orders", 1, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    int64_t until = (int64_t)(grant.sent_ns / DLI_NS_PER_MS) + SHORT_MS;
    while (bench_try(&b, &theirs, &grant) != DL_OK) {
        CT_LT(ct_now_ms(ct), until + ct_tolerance_ms(ct));
        ct_sleep_ms(ct, 5);
    }
    CT_GE(ct_now_ms(ct) + 1, until); /* not a moment earlier */
    CT_EQ(bench_release(&a, &mine), DL_ELOST);
    CT_STR_EQ(bench_inspect(&a, "orders").owner, "b:1");
    close_two(&a, &b);
}

CT_CASE(driver, a_forced_release_tells_whether_there_was_one, .traits = CT_CAN_FORCE) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
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

CT_CASE(driver, a_dropped_hold_frees_the_lock_when_the_server_notices, .needs = DL_CAP_SESSION) {
    bench_t a, b;
    dl_grant_t grant;
    open_two(ct, &a, &b);
    dl_request_t mine = bench_request(&a, "a:1", "orders", 5, LONG_MS);
    CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    bench_drop(&a, 5);
    CT_AWAIT(bench_inspect(&b, "orders").held == 0, 1000);
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

CT_CASE(driver, a_list_names_each_held_lock_with_the_prefix_once, .traits = CT_CAN_LIST) {
    static const char *const names[] = {"job/1", "job/2", "job%", "jobless", "JOB/1", "other"};
    enum { COUNT = sizeof names / sizeof names[0] };
    bench_t a;
    dl_grant_t grant;
    bench_open(ct, &a, ct->inner, "a:1");
    for (uint64_t i = 0; i < COUNT; i++) {
        dl_request_t mine = bench_request(&a, "a:1", names[i], i + 1, LONG_MS);
        CT_EQ(bench_try(&a, &mine, &grant), DL_OK);
    }
    dl_request_t freed = bench_request(&a, "a:1", "job/2", 2, LONG_MS);
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
