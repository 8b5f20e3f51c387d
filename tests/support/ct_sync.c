/* ct_sync.c - time, threads and latches of a case, on whichever clock it runs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/sys.h"
#include "support/alloc_fail.h"
#include "support/beat.h"
#include "support/ct.h"
#include "support/sim.h"

uint64_t ct_now_ns(ct_t *ct) {
    (void)ct;
    return dli_sys->now_ns();
}

int64_t ct_now_ms(ct_t *ct) {
    return (int64_t)(ct_now_ns(ct) / DLI_NS_PER_MS);
}

int64_t ct_stood_ms(ct_t *ct) {
    return ct->traits & CT_VIRTUAL ? 0 : (int64_t)((beat_stood_ns(NULL) - ct->stood_ns) / DLI_NS_PER_MS);
}

int64_t ct_ran_ms(ct_t *ct) {
    return ct_now_ms(ct) - ct_stood_ms(ct);
}

static uint64_t after_ms(int64_t ms) {
    return dli_sys->now_ns() + (ms > 0 ? (uint64_t)ms * DLI_NS_PER_MS : 0);
}

void ct_sleep_ms(ct_t *ct, int64_t ms) {
    (void)ct;
    (void)dli_sys->poll(NULL, 0, after_ms(ms));
}

int ct_await_readable(ct_t *ct, int fd, int64_t within_ms) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int64_t until_ms = ct_ran_ms(ct) + within_ms;
    int rc;
    do {
        rc = dli_sys->poll(&entry, 1, after_ms(until_ms - ct_ran_ms(ct)));
        CT_GE(rc, 0);
    } while (rc == 0 && ct_ran_ms(ct) < until_ms);
    return rc == 1;
}

int64_t ct_lease_ms(ct_t *ct) {
    return ct->traits & CT_VIRTUAL ? 30000 : 400 * ct->time_scale;
}

int64_t ct_call_timeout_ms(ct_t *ct) {
    return ct->traits & CT_VIRTUAL ? 2000 : 800 * ct->time_scale;
}

uint64_t ct_seed(ct_t *ct) {
    return ct->seed;
}

int64_t ct_tolerance_ms(ct_t *ct) {
    return ct->traits & CT_VIRTUAL ? 100 : 250 * ct->time_scale + ct_stood_ms(ct);
}

int64_t ct_server_lease_ms(ct_t *ct, int64_t lease_ms) {
    return ct->traits & CT_WHOLE_SECONDS ? (lease_ms + 999) / 1000 * 1000 : lease_ms;
}

void ct_suspend_ms(ct_t *ct, int64_t ms) {
    CT_CHECKF(sim_active(), "ct_suspend_ms needs the trait CT_VIRTUAL");
    sim_suspend((uint64_t)ms * DLI_NS_PER_MS);
}

/* ---- latches ------------------------------------------------------------------------------------- */

ct_latch_t *ct_latch(ct_t *ct, int count) {
    ct_latch_t *latch = alloc_real(sizeof *latch);
    latch->left = count;
    pthread_mutex_lock(&ct->mutex);
    latch->next = ct->latches;
    ct->latches = latch;
    pthread_mutex_unlock(&ct->mutex);
    return latch;
}

void ct_latch_down(ct_t *ct, ct_latch_t *latch) {
    pthread_mutex_lock(&ct->mutex);
    latch->left--;
    dli_sys->cond_broadcast(&ct->changed);
    pthread_mutex_unlock(&ct->mutex);
}

int ct_latch_open(ct_t *ct, ct_latch_t *latch) {
    pthread_mutex_lock(&ct->mutex);
    int open = latch->left <= 0;
    pthread_mutex_unlock(&ct->mutex);
    return open;
}

static int wait_for_latch(ct_t *ct, ct_latch_t *latch, uint64_t until_ns) {
    pthread_mutex_lock(&ct->mutex);
    while (latch->left > 0 && dli_sys->now_ns() < until_ns) {
        dli_sys->cond_wait(&ct->changed, &ct->mutex, until_ns);
    }
    int left = latch->left;
    pthread_mutex_unlock(&ct->mutex);
    return left;
}

void ct_latch_wait(ct_t *ct, ct_latch_t *latch, int64_t within_ms) {
    int left = wait_for_latch(ct, latch, after_ms(within_ms));
    CT_CHECKF(left <= 0, "a latch is still closed after %lld ms (%d to go)", (long long)within_ms, left);
}

void ct_free_latches(ct_t *ct) {
    while (ct->latches != NULL) {
        ct_latch_t *next = ct->latches->next;
        alloc_real_free(ct->latches);
        ct->latches = next;
    }
}

/* ---- threads ------------------------------------------------------------------------------------- */

static void *thread_main(void *arg) {
    ct_thread_t *thread = arg;
    thread->fn(thread->ct, thread->arg);
    ct_latch_down(thread->ct, thread->done);
    return NULL;
}

ct_thread_t *ct_thread(ct_t *ct, ct_fn fn, void *arg) {
    ct_thread_t *thread = alloc_real(sizeof *thread);
    thread->ct = ct;
    thread->fn = fn;
    thread->arg = arg;
    thread->done = ct_latch(ct, 1);
    pthread_mutex_lock(&ct->mutex);
    thread->next = ct->threads;
    ct->threads = thread;
    pthread_mutex_unlock(&ct->mutex);
    int rc = dli_sys->thread_start(&thread->id, thread_main, thread);
    CT_CHECKF(rc == 0, "cannot start a thread: errno %d", rc);
    return thread;
}

void ct_join(ct_t *ct, ct_thread_t *thread) {
    CT_CHECKF(!thread->joined, "a thread was joined twice");
    dli_sys->thread_join(thread->id);
    thread->joined = 1;
}

int ct_thread_done(ct_t *ct, ct_thread_t *thread) {
    return ct_latch_open(ct, thread->done);
}

void ct_end_threads(ct_t *ct) {
    while (ct->threads != NULL) {
        ct_thread_t *next = ct->threads->next;
        CT_CHECKF(ct->threads->joined, "a thread was not joined");
        alloc_real_free(ct->threads);
        ct->threads = next;
    }
}

/* The table in use, but with starts of threads that fail, and sleeps that are counted. */
static dli_sys_t changed;
static dli_sys_t before;
static pthread_t changer;
static atomic_int threads_left, sleeps;

static int start_or_fail(pthread_t *thread, void *(*fn)(void *), void *arg) {
    return atomic_fetch_sub(&threads_left, 1) > 0 ? before.thread_start(thread, fn, arg) : EAGAIN;
}

static int count_sleep(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    atomic_fetch_add(&sleeps, deadline_ns != 0 && !pthread_equal(pthread_self(), changer));
    return before.poll(fds, n, deadline_ns);
}

static void change_sys(void) {
    if (dli_sys != &changed) {
        changed = before = *dli_sys;
        changer = pthread_self();
        atomic_store(&threads_left, INT_MAX);
        changed.thread_start = start_or_fail;
        changed.poll = count_sleep;
        dli_sys = &changed;
    }
}

/* Now that no thread looks at it. */
void ct_end_changed_sys(void) {
    if (dli_sys == &changed) {
        dli_sys = &dli_sys_real;
    }
}

void ct_threads_left(ct_t *ct, int n) {
    (void)ct;
    change_sys();
    atomic_store(&threads_left, n);
}

int ct_sleeps(ct_t *ct) {
    (void)ct;
    change_sys();
    return atomic_load(&sleeps);
}
