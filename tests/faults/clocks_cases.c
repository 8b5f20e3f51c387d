/* clocks_cases.c - faults: a starved watchdog, and a wall clock that jumps (rows 4 and 9). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/callers.h"
#include "core/core.h"
#include "support/wall_clock.h"

/* ---- row 4: the watchdog --------------------------------------------------------------------- */

/* The table in use, but with a poll that the watchdog does not come back from while it is starved. */
static dli_sys_t starving_sys;
static const dli_sys_t *usual_sys;
static pthread_mutex_t starving_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t starving_changed;
static int starving, watchdog_fd;

static int poll_or_starve(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    int rc = usual_sys->poll(fds, n, deadline_ns);
    pthread_mutex_lock(&starving_mutex);
    while (starving && n > 0 && fds[0].fd == watchdog_fd) {
        usual_sys->cond_wait(&starving_changed, &starving_mutex, DLI_NEVER);
    }
    pthread_mutex_unlock(&starving_mutex);
    return rc;
}

/* A client whose watchdog can be starved. Each needs an end_starving. */
static dl_client_t *open_starvable(ct_t *ct, const char *options) {
    usual_sys = dli_sys;
    starving_sys = *usual_sys;
    starving_sys.poll = poll_or_starve;
    usual_sys->cond_init(&starving_changed);
    watchdog_fd = -1;
    dli_sys = &starving_sys;
    dl_client_t *c = ct_open(ct, options);
    watchdog_fd = c->loop.wake_fd;
    return c;
}

static void starve(int on) {
    pthread_mutex_lock(&starving_mutex);
    starving = on;
    usual_sys->cond_broadcast(&starving_changed);
    pthread_mutex_unlock(&starving_mutex);
}

static void end_starving(ct_t *ct, dl_client_t *c) {
    starve(0);
    ct_close(ct, c);
    dli_sys = usual_sys;
}

/* It carries the operations of queues. */
CT_CASE(faults, row04_watchdog_starved, .traits = CT_BLOCKING) {
    dl_client_t *c = open_starvable(ct, BRIEF);
    dl_lock_t *lock = ct_lock(ct, c, "row 4"), *other = ct_lock_owned(ct, c, "row 4", 9);
    int64_t lease_ms = BRIEF_MS;
    starve(1);
    take(ct, lock, DL_LEASE_AUTO);
    take(ct, lock, DL_LEASE_AUTO);
    int64_t valid_ms = dl_valid_ms(lock);
    CT_LE(valid_ms, validity_of(lease_ms));
    ct_sleep_ms(ct, valid_ms / 2);
    CT_BETWEEN(dl_valid_ms(lock), 1, valid_ms - valid_ms / 2 + 1);
    ct_sleep_ms(ct, valid_ms - valid_ms / 2 + 1);
    /* Nobody but this thread has seen that it is over. */
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_token(lock), 0);
    CT_EQ(dl_hold_count(lock), 2);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_ELOST);
    /* Whoever comes next in this process does not need the watchdog either. */
    CT_OK(dl_trylock_for(other, lease_ms, DL_LEASE_AUTO, CT_ERR));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 4", 0);
    CT_EQ(ct_stats(ct, c).lost, 1);
    end_starving(ct, c);
}

CT_CASE(faults, row04_watchdog_starved_when_a_yes_comes_too_late, .traits_not = CT_BACKEND) {
    dl_client_t *c = open_starvable(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 4");
    int64_t lease_ms = ct_lease_ms(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_AFTER, c, "row 4");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_pause_await(ct, pause, lease_ms);
    starve(1);
    /* Past validity, but not past what the renewal would give: the thread that hears its yes has to look. */
    ct_sleep_ms(ct, lease_ms * 8 / 10);
    ct_pause_go(ct, pause);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 4", 5000);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    end_starving(ct, c);
}

static void extend_once(ct_t *ct, void *arg) {
    CT_STATUS(dl_extend(arg, 2 * ct_lease_ms(ct), CT_ERR), DL_ELOST);
}

CT_CASE(faults, row04_watchdog_starved_when_an_extension_comes_too_late, .traits_not = CT_BACKEND) {
    dl_client_t *c = open_starvable(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "row 4", 1);
    int64_t lease_ms = ct_lease_ms(ct);
    take(ct, lock, lease_ms);
    starve(1);
    /* Only the reply is late; the server has done it. */
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_AFTER, c, "row 4");
    ct_thread_t *extender = ct_thread(ct, extend_once, lock);
    ct_pause_await(ct, pause, lease_ms / 2);
    ct_sleep_ms(ct, lease_ms);
    ct_pause_go(ct, pause);
    ct_join(ct, extender);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 4", 0);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    end_starving(ct, c);
}

/* ---- row 9: the wall clock ------------------------------------------------------------------- */

/* Every question for the wall clock in this program comes by here, the C library's own aside. */
static long wall_offset_s;

static long offset_s(void) {
    return __atomic_load_n(&wall_offset_s, __ATOMIC_RELAXED);
}

static void set_wall_clock(ct_t *ct, long wanted_s) {
    time_t before = time(NULL);
    long moved_s = wanted_s - __atomic_exchange_n(&wall_offset_s, wanted_s, __ATOMIC_RELAXED);
    CT_BETWEEN(time(NULL) - before, moved_s, moved_s + 5); /* it works, or this test proves nothing */
}

CT_CASE(faults, row09_client_wall_clock_off_by_an_hour, .traits = CT_REAL_TIME) {
    static const long offsets_s[] = {3600, -3600, 0};
    dl_client_t *a = ct_open(ct, LASTING);
    dl_lock_t *mine = ct_lock(ct, a, "row 9"), *explicit_lock = ct_lock(ct, a, "row 9 explicit");
    int64_t lease_ms = BRIEF_MS / 2;
    uint64_t token = 0;
    for (int i = 0; i < 3; i++) {
        CT_OK(dl_lock(mine, CT_ERR));
        int64_t before_ms = ct_now_ms(ct);
        take(ct, explicit_lock, lease_ms);
        int64_t taken_ms = ct_now_ms(ct);
        CT_GT(dl_valid_ms(mine), 0);
        if (ct_caps(ct) & DL_CAP_FENCE) {
            CT_GT(dl_token(mine), token);
        }
        token = dl_token(mine);
        set_wall_clock(ct, offsets_s[i]);
        dl_client_t *b = ct_open(ct, LASTING);
        dl_lock_t *theirs = ct_lock(ct, b, "row 9"), *next = ct_lock(ct, b, "row 9 explicit");
        CT_STATUS(dl_trylock(theirs, CT_ERR), DL_EBUSY);
        CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
        CT_OK(dl_trylock_for(next, 2 * lease_ms, DL_LEASE_AUTO, CT_ERR));
        CT_BETWEEN(ct_now_ms(ct), before_ms + validity_of(lease_ms),
                   taken_ms + lease_ms + ct_tolerance_ms(ct));
        CT_GT(dl_valid_ms(mine), 0);
        CT_OK(dl_unlock(mine, CT_ERR));
        CT_STATUS(dl_unlock(explicit_lock, CT_ERR), DL_ELOST);
        CT_OK(dl_trylock(theirs, CT_ERR));
        if (ct_caps(ct) & DL_CAP_FENCE) {
            CT_GT(dl_token(theirs), token);
        }
        token = dl_token(theirs);
        ct_close(ct, b);
    }
    CT_EQ(ct_stats(ct, a).lost, 3);
}
