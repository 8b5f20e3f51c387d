/* fork_cases.c - contract: what a child process may do with what it inherited, and what its parent keeps. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <sys/mman.h>

#include "callers.h"

typedef struct family {
    dl_client_t *client;
    dl_lock_t *lock, *owned;
    dl_cancel_t *cancel;
} family_t;

static family_t make_family(ct_t *ct) {
    family_t f;
    f.client = ct_open(ct, LASTING);
    f.lock = ct_lock(ct, f.client, "family");
    f.owned = ct_lock_owned(ct, f.client, "family too", 7);
    CT_OK(dl_cancel_new(&f.cancel, CT_ERR));
    CT_OK(dl_lock(f.lock, CT_ERR));
    CT_OK(dl_lock(f.lock, CT_ERR));
    CT_OK(dl_lock(f.owned, CT_ERR));
    return f;
}

/* Nothing of the parent's has changed, and its renewals go on. */
static void check_parent(ct_t *ct, family_t *f) {
    CT_EQ(dl_hold_count(f->lock), 2);
    int renewals = renewals_of(ct, "family"), others = renewals_of(ct, "family too");
    CT_AWAIT_THAT(renewals_of(ct, "family"), >=, renewals + 3, 5000);
    CT_AWAIT_THAT(renewals_of(ct, "family too"), >=, others + 3, 5000);
    ct_no_event(ct, f->client, DL_EVENT_LOST, NULL, 0);
    CT_GT(dl_valid_ms(f->lock), 0);
    CT_GT(dl_valid_ms(f->owned), 0);
    ct_expect_held(ct, "family");
    ct_expect_held(ct, "family too");
    CT_OK(dl_unlock(f->lock, CT_ERR));
    CT_OK(dl_unlock(f->lock, CT_ERR));
    CT_OK(dl_unlock(f->owned, CT_ERR));
    ct_expect_free(ct, "family", 0);
    ct_expect_free(ct, "family too", 0);
    dl_cancel_free(f->cancel);
}

static int list_nothing(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)arg;
    (void)name;
    (void)info;
    return 0;
}

static void find_nothing(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    (void)level;
    (void)subject;
    (void)text;
}

static void call_lock(ct_t *ct, dl_lock_t *lock) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    CT_STATUS(dl_lock(lock, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_trylock_for(lock, 100, DL_LEASE_AUTO, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_inspect(lock, &info, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_force_unlock(lock, CT_ERR), DL_EFORKED);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_EQ(dl_hold_count(lock), 0);
}

static void call_everything(ct_t *ct, void *arg) {
    family_t *f = arg;
    dl_lock_t *lock = f->lock;
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_event_t event = DL_EVENT_INIT;
    call_lock(ct, f->lock);
    call_lock(ct, f->owned);
    CT_STATUS(dl_lock_open(f->client, "new", &lock, CT_ERR), DL_EFORKED);
    CT_CHECK(lock == NULL);
    CT_STATUS(dl_lock_open_owned(f->client, "new", 1, &lock, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_list(f->client, NULL, list_nothing, NULL, CT_ERR), DL_EFORKED);
    CT_STATUS(dl_client_check(f->client, find_nothing, NULL, CT_ERR), DL_EFORKED);
    CT_EQ(dl_client_info(f->client, &info), DL_EFORKED);
    CT_EQ(dl_client_stats(f->client, &stats), DL_EFORKED);
    CT_EQ(dl_event_next(f->client, &event), DL_EFORKED);
    CT_EQ(dl_client_on_event(f->client, NULL, NULL), DL_EFORKED);
    CT_EQ(dl_client_set_log(f->client, NULL, NULL), DL_EFORKED);
    CT_EQ(dl_event_fd(f->client), -1);
}

CT_CASE(fork, child_gets_eforked_from_every_call) {
    family_t f = make_family(ct);
    ct_process_wait(ct, ct_fork(ct, call_everything, &f));
    check_parent(ct, &f);
}

static void close_everything(ct_t *ct, void *arg) {
    family_t *f = arg;
    dl_lock_close(f->lock);
    dl_client_close(f->client);
    /* A handle may outlive the client here too. */
    CT_STATUS(dl_unlock(f->owned, CT_ERR), DL_EFORKED);
    dl_lock_close(f->owned);
    dl_cancel_free(f->cancel);
}

CT_CASE(fork, child_that_closes_leaves_the_parents_locks_intact) {
    family_t f = make_family(ct);
    ct_process_wait(ct, ct_fork(ct, close_everything, &f));
    check_parent(ct, &f);
}

CT_CASE(fork, child_that_closes_leaves_the_parents_waits_intact) {
    dl_client_t *holder = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, holder, "waited for");
    family_t f = make_family(ct);
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(ct_lock(ct, f.client, "waited for"), DL_WAIT_FOREVER);
    caller_t queued = CALLER(f.lock, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    start_caller(ct, &queued);
    ct_await_waiting(ct, f.client, 2, 5000);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, f.client, "waited for"), >=, 1, 5000);
    ct_process_wait(ct, ct_fork(ct, close_everything, &f));
    ct_sleep_ms(ct, 20);
    CT_EQ(ct_stats(ct, f.client).waiting_now, 2);
    CT_OK(dl_unlock(held, CT_ERR));
    end_caller(ct, &waiter, DL_OK);
    CT_OK(dl_unlock(f.lock, CT_ERR));
    CT_OK(dl_unlock(f.lock, CT_ERR));
    end_caller(ct, &queued, DL_OK);
    dl_cancel_free(f.cancel);
}

static void open_own(ct_t *ct, void *arg) {
    family_t *f = arg;
    dl_client_t *own = ct_open(ct, LASTING);
    dl_lock_t *same = ct_lock(ct, own, "family"), *other = ct_lock(ct, own, "childs");
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CT_EQ(dl_client_info(own, &info), DL_OK);
    CT_STATUS(dl_trylock(same, CT_ERR), DL_EBUSY);
    CT_OK(dl_lock(other, CT_ERR));
    CT_STATUS(dl_unlock(f->lock, CT_ERR), DL_EFORKED);
    dl_client_close(f->client);
    CT_AWAIT_THAT(ct_stats(ct, own).renewed, >=, 2, 5000);
    ct_no_event(ct, own, DL_EVENT_LOST, NULL, 0);
    CT_GT(dl_valid_ms(other), 0);
    CT_OK(dl_unlock(other, CT_ERR));
    dl_lock_close(same);
    dl_lock_close(other);
    dl_client_close(own);
}

CT_CASE(fork, child_can_open_a_client_of_its_own, .traits = CT_PROCESSES | CT_FORK_THREADS) {
    family_t f = make_family(ct);
    ct_process_wait(ct, ct_fork(ct, open_own, &f));
    check_parent(ct, &f);
}

static void use_the_parents_cancel(ct_t *ct, void *arg) {
    family_t *f = arg;
    dl_client_t *own = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, own, "childs");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.cancel = f->cancel;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EFORKED);
    CT_EQ(dl_cancel_fd(f->cancel), -1);
    dl_cancel_free(f->cancel);
    dl_lock_close(lock);
    dl_client_close(own);
}

CT_CASE(fork, child_cannot_wait_with_the_parents_cancel_object,
        .traits = CT_PROCESSES | CT_FORK_THREADS | CT_BLOCKING) {
    family_t f = make_family(ct);
    ct_process_wait(ct, ct_fork(ct, use_the_parents_cancel, &f));
    check_parent(ct, &f);
}

#define WORKERS 10
#define ROUNDS 20

/* Lost updates show that two were inside. */
static void add_under_the_lock(ct_t *ct, dl_lock_t *lock, volatile int *count) {
    for (int i = 0; i < ROUNDS; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        int seen = *count;
        sched_yield();
        *count = seen + 1;
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

static void work_as_a_child(ct_t *ct, void *arg) {
    dl_client_t *own = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, own, "workers");
    add_under_the_lock(ct, lock, arg);
    dl_lock_close(lock);
    dl_client_close(own);
}

/* As a server does that opens its client, then forks its workers. */
CT_CASE(fork, workers_lock_beside_the_client_that_was_open_before, .traits = CT_PROCESSES | CT_FORK_THREADS) {
    dl_client_t *client = ct_open(ct, LASTING);
    dl_lock_t *lock = ct_lock(ct, client, "workers");
    int *count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CT_CHECKF(count != MAP_FAILED, "no memory to share");
    ct_process_t *workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = ct_fork(ct, work_as_a_child, count);
    }
    add_under_the_lock(ct, lock, count);
    for (int i = 0; i < WORKERS; i++) {
        ct_process_wait(ct, workers[i]);
    }
    CT_EQ(*count, (WORKERS + 1) * ROUNDS);
    munmap(count, sizeof *count);
}
