/* resources_cases.c - faults: no memory, descriptors or threads; signals; very many locks (rows 35 to 37). */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "contract/callers.h"
#include "core/sys.h"
#include "support/entries.h"

/* ---- row 35: memory -------------------------------------------------------------------------- */

static dl_status_t ok_or_nomem(ct_t *ct, dl_status_t status) {
    return CT_EITHER(status, DL_OK, DL_ENOMEM);
}

/* Everything a program does with one lock, going on as far as the memory lasts. */
static void use_lock(ct_t *ct, dl_lock_t *lock) {
    uint32_t levels = 0;
    levels += ok_or_nomem(ct, dl_trylock(lock, CT_ERR)) == DL_OK;
    levels += ok_or_nomem(ct, dl_lock(lock, CT_ERR)) == DL_OK;
    levels += ok_or_nomem(ct, dl_trylock_for(lock, 100, 2 * ct_lease_ms(ct), CT_ERR)) == DL_OK;
    CT_EQ(dl_hold_count(lock), levels);
    if (levels > 0) {
        CT_GT(dl_valid_ms(lock), 0);
        (void)ok_or_nomem(ct, dl_extend(lock, 3 * ct_lease_ms(ct), CT_ERR));
    }
    for (; levels > 0; levels--) {
        CT_OK(dl_unlock(lock, CT_ERR)); /* giving back needs no memory */
    }
    (void)CT_EITHER(dl_unlock(lock, CT_ERR), DL_ENOTOWNER, DL_ENOMEM);
}

static void use_client(ct_t *ct) {
    dl_client_t *c = NULL;
    dl_lock_t *lock = NULL;
    dl_cancel_t *cancel = NULL;
    if (ok_or_nomem(ct, ct_try_open(ct, NULL, &c, CT_ERR)) != DL_OK) {
        CT_CHECK(c == NULL);
        return;
    }
    if (ok_or_nomem(ct, dl_lock_open(c, "row 35", &lock, CT_ERR)) == DL_OK) {
        use_lock(ct, lock);
    }
    if (ok_or_nomem(ct, dl_cancel_new(&cancel, CT_ERR)) != DL_OK) {
        CT_CHECK(cancel == NULL);
    }
    dl_cancel_free(cancel);
    dl_lock_close(lock);
    ct_close(ct, c);
}

static void fail_each_allocation(ct_t *ct, int forever) {
    int n = 1, failed = 1;
    for (; failed; n++) {
        CT_LT(n, 120);
        ct_alloc_fail(ct, n, forever);
        use_client(ct);
        failed = ct_alloc_failed(ct);
        ct_alloc_fail(ct, 0, 0);
        ct_expect_free(ct, "row 35", 0);
    }
    CT_GT(n, 8); /* it did fail something */
}

/* The fake quorum needs memory for every exchange and calls its absence a server that cannot be reached. To
 * begin an operation of a queue needs memory, an unlock's too. */
CT_CASE(faults, row35_each_malloc_fails_once, .traits = CT_BLOCKING, .needs = DL_CAP_FENCE) {
    fail_each_allocation(ct, 0);
}

CT_CASE(faults, row35_each_malloc_fails_from_then_on, .traits = CT_BLOCKING, .needs = DL_CAP_FENCE) {
    fail_each_allocation(ct, 1);
}

/* A wait behind another holder, in which the n-th allocation fails. */
static void fail_in_waits(ct_t *ct, int forever) {
    dl_client_t *a = ct_open(ct, "lease: 60s"), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 35"), *wanted = ct_lock(ct, b, "row 35");
    CT_OK(dl_lock(held, CT_ERR));
    int64_t wait_ms = ct_traits(ct) & CT_VIRTUAL ? 20 : 100; /* a server answers within it */
    int n = 1;
    for (int failed = 1; failed; n++) {
        CT_LT(n, 60);
        ct_alloc_fail(ct, n, forever);
        (void)CT_EITHER(dl_trylock_for(wanted, wait_ms, DL_LEASE_AUTO, CT_ERR), DL_ETIMEDOUT, DL_ENOMEM);
        failed = ct_alloc_failed(ct);
        ct_alloc_fail(ct, 0, 0);
        CT_EQ(dl_hold_count(wanted), 0);
        CT_EQ(ct_stats(ct, b).waiting_now, 0);
        CT_AWAIT_THAT(ct_calls(ct, CT_OP_UNWATCH), ==, done_calls(ct, CT_OP_WATCH), 5000);
    }
    CT_GT(n, 1);
    CT_OK(dl_unlock(held, CT_ERR));
    ct_expect_free(ct, "row 35", 0);
    CT_OK(dl_trylock(wanted, CT_ERR));
}

CT_CASE(faults, row35_malloc_fails_once_in_a_wait) {
    fail_in_waits(ct, 0);
}

CT_CASE(faults, row35_malloc_fails_from_then_on_in_a_wait) {
    fail_in_waits(ct, 1);
}

CT_CASE(faults, row35_without_memory_holds_are_renewed_lost_and_freed, .traits = CT_BLOCKING,
        .needs = DL_CAP_FENCE) {
    dl_client_t *c = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, c, "row 35"), *lost = ct_lock_owned(ct, c, "row 35 lost", 1);
    CT_OK(dl_lock(lock, CT_ERR));
    take(ct, lost, ct_lease_ms(ct));
    ct_alloc_fail(ct, 1, 1);
    uint64_t renewed = ct_stats(ct, c).renewed;
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 2, 5000); /* renewals need none */
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(dl_valid_ms(lost), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_STATUS(dl_unlock(lost, CT_ERR), DL_ELOST);
    ct_alloc_fail(ct, 0, 0);
    /* Nor does the news of a loss. */
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 35 lost", 0);
    ct_expect_free(ct, "row 35", 0);
    ct_expect_free(ct, "row 35 lost", 0);
}

/* ---- row 36: descriptors, threads, signals --------------------------------------------------- */

static struct rlimit limit_descriptors(ct_t *ct, rlim_t max) {
    struct rlimit old, new;
    CT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    new = old;
    new.rlim_cur = max;
    CT_EQ(setrlimit(RLIMIT_NOFILE, &new), 0);
    return old;
}

static int lowest_free_descriptor(ct_t *ct) {
    int fd = dup(0);
    CT_GE(fd, 0);
    close(fd);
    return fd;
}

/* Statuses that say "not now" without having taken anything. */
static int is_clear(dl_status_t status) {
    return status == DL_ELIMIT || status == DL_EIO || status == DL_ENOMEM || status == DL_ETIMEDOUT;
}

CT_CASE(faults, row36_no_descriptors_for_a_client) {
    ct_close(ct, ct_open(ct, NULL)); /* what is made once in a process is made */
    int before = open_descriptors(), first = lowest_free_descriptor(ct), opened = 0, extra = 0;
    for (; !opened && extra < 40; extra++) {
        dl_client_t *c = NULL;
        dl_error_t err = {.status = DL_OK};
        struct rlimit old = limit_descriptors(ct, (rlim_t)(first + extra));
        dl_status_t status = ct_try_open(ct, NULL, &c, &err);
        CT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (status == DL_OK) {
            opened = 1;
            ct_close(ct, c);
        } else {
            CT_CHECKF(is_clear(status), "with %d descriptors: %s: %s", extra, dl_status_name(status),
                      err.message);
            CT_EQ(err.status, status);
        }
        /* Nothing leaks. SQLite itself keeps one closed file for its next open while another connection of
         * this process is open, because closing it would drop that connection's locks. */
        CT_LE(open_descriptors(), before + 1);
    }
    CT_CHECK(opened);
    CT_GE(extra, 4);
}

/* A queue needs one itself. */
CT_CASE(faults, row36_no_descriptors_for_a_wait, .traits = CT_BLOCKING) {
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 36"), *wanted = ct_lock(ct, b, "row 36");
    dl_lock_t *also = ct_lock_owned(ct, a, "row 36", 3);
    CT_OK(dl_lock(held, CT_ERR));
    (void)ct_observer(ct);
    int first = lowest_free_descriptor(ct);
    for (int extra = 0; extra < 6; extra++) {
        struct rlimit old = limit_descriptors(ct, (rlim_t)(first + extra));
        dl_status_t waited = dl_trylock_for(wanted, 50, DL_LEASE_AUTO, NULL);
        dl_status_t queued = dl_trylock_for(also, 50, DL_LEASE_AUTO, NULL);
        dl_cancel_t *cancel = NULL;
        dl_status_t made = dl_cancel_new(&cancel, NULL);
        CT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        CT_CHECKF(is_clear(waited), "the wait ended with %s", dl_status_name(waited));
        CT_CHECKF(is_clear(queued), "the queue ended with %s", dl_status_name(queued));
        if (made != DL_ELIMIT) {
            CT_GT(extra, 0);
        }
        dl_cancel_free(cancel);
        CT_EQ(ct_stats(ct, b).waiting_now, 0);
    }
    CT_GT(dl_valid_ms(held), 0);
    /* Giving back may need none, or is made up for in the background. */
    struct rlimit old = limit_descriptors(ct, (rlim_t)lowest_free_descriptor(ct));
    dl_status_t unlocked = dl_unlock(held, NULL);
    CT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CT_CHECKF(unlocked == DL_OK || is_clear(unlocked), "the unlock was %s", dl_status_name(unlocked));
    CT_EQ(dl_hold_count(held), 0);
    ct_expect_free(ct, "row 36", ct_tolerance_ms(ct));
}

/* Operations of queues wait until they have one, as in queue_cases.c. */
CT_CASE(faults, row36_no_threads, .traits = CT_BLOCKING) {
    int before = open_descriptors(), refused = 0;
    dl_client_t *c = NULL;
    for (int have = 0; c == NULL && have < 10; have++) {
        ct_threads_left(ct, have);
        dl_status_t status = ct_try_open(ct, NULL, &c, CT_ERR);
        refused += CT_EITHER(status, DL_OK, DL_ELIMIT) == DL_ELIMIT;
        if (ct_traits(ct) & CT_REAL_TIME) { /* the simulated clock keeps descriptors of its own */
            if (status != DL_OK) {
                CT_EQ(open_descriptors(), before);
            }
        }
    }
    dl_lock_t *lock = ct_lock(ct, c, "row 36");
    dl_status_t status = DL_ELIMIT;
    for (int have = 0; status == DL_ELIMIT && have < 10; have++) {
        ct_threads_left(ct, have);
        status = dl_lock(lock, CT_ERR);
        refused += CT_EITHER(status, DL_OK, DL_ELIMIT) == DL_ELIMIT;
        CT_EQ(dl_hold_count(lock), status == DL_OK);
    }
    CT_GE(refused, ct_traits(ct) & CT_BACKEND ? 1 : 2); /* the client's own thread, the renewals */
    /* A free in the background waits for a thread, as long as it takes. */
    ct_threads_left(ct, 0);
    ct_fault(ct, CT_OP_RELEASE, CT_LOSE_REQUEST, 1);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    ct_threads_left(ct, 100);
    ct_expect_free(ct, "row 36", 100 + ct_tolerance_ms(ct));
    ct_lock_close(ct, lock);
    ct_close(ct, c);
}

/* An automatic level in a hold with an explicit lease is the first that has to be renewed. */
CT_CASE(faults, row36_no_thread_for_the_first_renewal, .traits = CT_BLOCKING) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, LASTING), "row 36");
    int renews = (ct_caps(ct) & DL_CAP_SESSION) != 0 || (ct_traits(ct) & CT_BACKEND) != 0;
    dl_status_t status = DL_ELIMIT;
    for (int have = 0; status == DL_ELIMIT && have < 10; have++) {
        ct_threads_left(ct, have);
        status = CT_EITHER(dl_trylock_for(lock, 0, 2 * ct_lease_ms(ct), CT_ERR), DL_OK, DL_ELIMIT);
    }
    ct_threads_left(ct, 0);
    CT_STATUS(dl_trylock(lock, CT_ERR), renews ? DL_OK : DL_ELIMIT);
    CT_EQ(dl_hold_count(lock), renews ? 2 : 1);
    ct_threads_left(ct, 100);
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_sleep_ms(ct, 3 * ct_lease_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
}

static int signals_seen;

static void count_signal(int number) {
    (void)number;
    __atomic_add_fetch(&signals_seen, 1, __ATOMIC_RELAXED);
}

static void lock_often(ct_t *ct, void *arg) {
    for (int i = 0; i < 60; i++) {
        CT_OK(dl_trylock_for(arg, 20000, DL_LEASE_AUTO, CT_ERR));
        CT_GT(dl_valid_ms(arg), 0);
        CT_OK(dl_unlock(arg, CT_ERR));
    }
}

CT_CASE(faults, row36_eintr_storm, .traits = CT_REAL_TIME) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = count_signal; /* no SA_RESTART */
    CT_EQ(sigaction(SIGUSR2, &action, NULL), 0);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR2;
    timer_t timer;
    CT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    struct itimerspec every = {.it_interval = {0, 300000}, .it_value = {0, 300000}};
    CT_EQ(timer_settime(timer, 0, &every, NULL), 0);
    dl_client_t *a = ct_open(ct, LASTING), *b = ct_open(ct, LASTING);
    dl_lock_t *mine = ct_lock(ct, a, "row 36"), *theirs = ct_lock(ct, b, "row 36");
    ct_thread_t *threads[3];
    for (int i = 0; i < 3; i++) {
        threads[i] = ct_thread(ct, lock_often, i == 0 ? mine : theirs);
    }
    lock_often(ct, mine);
    for (int i = 0; i < 3; i++) {
        ct_join(ct, threads[i]);
    }
    CT_OK(dl_lock(mine, CT_ERR));
    uint64_t renewed = ct_stats(ct, a).renewed;
    CT_AWAIT_THAT(ct_stats(ct, a).renewed, >=, renewed + 2, 5000);
    CT_GT(dl_valid_ms(mine), 0);
    CT_OK(dl_unlock(mine, CT_ERR));
    timer_delete(timer);
    CT_GT(__atomic_load_n(&signals_seen, __ATOMIC_RELAXED), 100);
    CT_EQ(ct_stats(ct, a).lost + ct_stats(ct, b).lost, 0);
}

CT_CASE(faults, row36_signals_and_their_handlers_are_left_alone) {
    struct sigaction before[65], after;
    sigset_t mask_before, mask_after;
    for (int i = 1; i <= 64; i++) {
        memset(&before[i], 0, sizeof before[i]);
        (void)sigaction(i, NULL, &before[i]);
    }
    CT_EQ(pthread_sigmask(SIG_SETMASK, NULL, &mask_before), 0);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 36");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    for (int i = 1; i <= 64; i++) {
        memset(&after, 0, sizeof after);
        (void)sigaction(i, NULL, &after);
        CT_CHECKF(after.sa_handler == before[i].sa_handler, "the handler of signal %d was changed", i);
        CT_EQ(after.sa_flags, before[i].sa_flags);
    }
    CT_EQ(pthread_sigmask(SIG_SETMASK, NULL, &mask_after), 0);
    for (int i = 1; i <= 64; i++) {
        CT_EQ(sigismember(&mask_before, i), sigismember(&mask_after, i));
    }
}

/* ---- row 37: very many locks ----------------------------------------------------------------- */

CT_CASE(faults, row37_100000_locks_of_one_client, .needs = DL_CAP_FENCE, .traits = CT_VIRTUAL,
        .needs_not = DL_CAP_SESSION | DL_CAP_NOTIFY, .timeout_s = 120) {
    dl_client_t *c = ct_open(ct, NULL);
    char name[32];
    int n = ct_many(100000);
    /* Every batch takes its time on the way, so that one renewal after the other would never do. */
    ct_fault_t slow = {.op = CT_OP_BATCH, .mode = CT_LATE, .count = CT_ALWAYS, .delay_ms = 20};
    ct_fault_add(ct, &slow);
    int64_t before_ms = ct_now_ms(ct);
    for (int i = 0; i < n; i++) {
        dl_lock_t *lock;
        snprintf(name, sizeof name, "row 37 %d", i);
        CT_OK(dl_lock_open(c, name, &lock, CT_ERR));
        CT_OK(dl_trylock(lock, CT_ERR));
        dl_lock_close(lock); /* the hold stays */
        if (i % 1000 == 0) {
            ct_sleep_ms(ct, 1);
        }
    }
    CT_LE(ct_now_ms(ct) - before_ms, ct_lease_ms(ct) / 3);
    ct_sleep_ms(ct, 2 * ct_lease_ms(ct));
    dl_client_stats_t stats = ct_stats(ct, c);
    CT_EQ(stats.held_now, n);
    CT_EQ(stats.lost, 0);
    CT_GE(stats.renewed, 5 * (int64_t)n);
    CT_LE(stats.renewal_lateness_us_max, ct_lease_ms(ct) / 3 * 1000);
    CT_GE(ct_calls(ct, CT_OP_BATCH), 5 * n / 1000);
    ct_no_event(ct, c, 0, NULL, 0);
    ct_close(ct, c);
    ct_expect_free(ct, "row 37 0", 0);
    ct_expect_free(ct, name, 0); /* the last */
}
