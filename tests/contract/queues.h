/* queues.h - operations of completion queues: begun, awaited, taken. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef QUEUES_H
#define QUEUES_H

#include "callers.h"

/* Longer than any operation of a case takes that is not told to wait. */
#define SOON_MS 5000

static inline dl_queue_t *new_queue(ct_t *ct) {
    dl_queue_t *queue;
    CT_OK(dl_queue_new(&queue, CT_ERR));
    return queue;
}

static inline uint64_t begin_acquire(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock, int64_t wait_ms,
                                     int64_t lease_ms) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = wait_ms;
    opts.lease_ms = lease_ms;
    uint64_t id = 0;
    CT_OK(dl_acquire_begin(lock, &opts, queue, lock, &id, CT_ERR));
    return id;
}

static inline uint64_t begin_lock(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock) {
    return begin_acquire(ct, queue, lock, DL_WAIT_FOREVER, DL_LEASE_AUTO);
}

static inline uint64_t begin_unlock(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock) {
    uint64_t id = 0;
    CT_OK(dl_unlock_begin(lock, queue, lock, &id, CT_ERR));
    return id;
}

static inline uint64_t begin_extend(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock, int64_t lease_ms) {
    uint64_t id = 0;
    CT_OK(dl_extend_begin(lock, lease_ms, queue, lock, &id, CT_ERR));
    return id;
}

/* Nothing waits to be taken. */
static inline void expect_nothing(ct_t *ct, dl_queue_t *queue) {
    dl_completion_t done;
    CT_CHECK(!ct_await_readable(ct, dl_queue_fd(queue), 0));
    CT_EQ(dl_queue_take(queue, &done, sizeof done, 1), 0);
}

/* The next that comes, and it comes within this time. */
static inline dl_completion_t take_next(ct_t *ct, dl_queue_t *queue, int64_t within_ms) {
    dl_completion_t done;
    CT_CHECKF(ct_await_readable(ct, dl_queue_fd(queue), within_ms), "no completion within %lld ms",
              (long long)within_ms);
    CT_EQ(dl_queue_take(queue, &done, sizeof done, 1), 1);
    return done;
}

/* The next is that of this operation, with this status. */
static inline dl_completion_t take_of(ct_t *ct, dl_queue_t *queue, uint64_t id, dl_status_t status,
                                      int64_t within_ms) {
    dl_completion_t done = take_next(ct, queue, within_ms);
    CT_EQ(done.id, id);
    CT_CHECKF(done.status == status, "the completion is %s, expected %s: %s", dl_status_name(done.status),
              dl_status_name(status), done.err.message);
    return done;
}

/* Acquired through the queue, and taken. */
static inline void lock_by(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock, int64_t lease_ms) {
    uint64_t id = begin_acquire(ct, queue, lock, DL_WAIT_FOREVER, lease_ms);
    (void)take_of(ct, queue, id, DL_OK, SOON_MS);
}

static inline void unlock_by(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock) {
    uint64_t id = begin_unlock(ct, queue, lock);
    (void)take_of(ct, queue, id, DL_OK, SOON_MS);
}

/* The client's operation waits for another client's holder, and hears of its release if anybody may. */
static inline void await_wait(ct_t *ct, dl_client_t *client, const char *name) {
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, client, name), >=, 1, SOON_MS);
    if (ct_caps(ct) & DL_CAP_NOTIFY) {
        ct_await_hearing(ct, client, name, SOON_MS);
    }
}

#endif
