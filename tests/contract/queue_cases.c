/* queue_cases.c - contract: what is begun on a completion queue completes once, and what may be begun. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/core.h"
#include "queues.h"

/* ---- completions ------------------------------------------------------------------------------ */

static void check_completion(ct_t *ct, const dl_completion_t *done, dl_op_kind_t kind, dl_lock_t *lock,
                             dl_client_t *client) {
    CT_EQ(done->kind, kind);
    CT_CHECK(done->tag == lock && done->lock == lock && done->client == client);
    CT_EQ(done->hold_id != 0, kind == DL_OP_ACQUIRE);
    CT_EQ(done->err.status, done->status);
    CT_EQ(done->err.message[0] != 0, done->status != DL_OK);
}

CT_CASE(queue, each_operation_completes_once_with_its_tag, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    expect_nothing(ct, queue);
    uint64_t acquire = begin_lock(ct, queue, lock);
    dl_completion_t done = take_of(ct, queue, acquire, DL_OK, SOON_MS);
    check_completion(ct, &done, DL_OP_ACQUIRE, lock, c);
    CT_EQ(done.token, dl_token(lock));
    CT_EQ(done.token != 0, (ct_caps(ct) & DL_CAP_FENCE) != 0);
    CT_BETWEEN(done.valid_ms, dl_valid_ms(lock), validity_of(ct_lease_ms(ct)));
    uint64_t extend = begin_extend(ct, queue, lock, 4 * ct_lease_ms(ct));
    done = take_of(ct, queue, extend, DL_OK, SOON_MS);
    check_completion(ct, &done, DL_OP_EXTEND, lock, c);
    CT_BETWEEN(done.valid_ms, 2 * ct_lease_ms(ct), validity_of(4 * ct_lease_ms(ct)));
    uint64_t unlock = begin_unlock(ct, queue, lock);
    done = take_of(ct, queue, unlock, DL_OK, SOON_MS);
    check_completion(ct, &done, DL_OP_UNLOCK, lock, c);
    ct_expect_free(ct, "orders", 0);
    /* What fails completes too. */
    uint64_t again = begin_unlock(ct, queue, lock);
    done = take_of(ct, queue, again, DL_ENOTOWNER, SOON_MS);
    check_completion(ct, &done, DL_OP_UNLOCK, lock, c);
    extend = begin_extend(ct, queue, lock, DL_LEASE_AUTO);
    done = take_of(ct, queue, extend, DL_ENOTOWNER, SOON_MS);
    check_completion(ct, &done, DL_OP_EXTEND, lock, c);
    CT_CHECK(acquire != 0 && acquire < unlock && unlock < again);
    ct_sleep_ms(ct, ct_lease_ms(ct));
    expect_nothing(ct, queue);
    dl_queue_free(queue);
}

CT_CASE(queue, an_inspection_says_what_the_blocking_call_does, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    uint64_t id = 0;
    lock_by(ct, queue, lock, 60000);
    CT_OK(dl_inspect_begin(lock, queue, &id, &id, CT_ERR));
    dl_completion_t done = take_of(ct, queue, id, DL_OK, SOON_MS);
    dl_lock_info_t info = ct_server_info(ct, "orders");
    CT_EQ(done.kind, DL_OP_INSPECT);
    CT_CHECK(done.lock != NULL && done.tag == &id);
    CT_EQ(done.with.info.held, 1);
    CT_EQ(done.with.info.ours, 1);
    CT_STR_EQ(done.with.info.owner, info.owner);
    CT_EQ(done.with.info.hold_id, info.hold_id);
    CT_EQ(done.with.info.token, info.token);
    CT_EQ(done.with.info.size, sizeof info);
    unlock_by(ct, queue, lock);
    CT_OK(dl_inspect_begin(lock, queue, NULL, NULL, CT_ERR));
    done = take_next(ct, queue, SOON_MS);
    CT_EQ(done.status, DL_OK);
    CT_CHECK(done.tag == NULL);
    CT_EQ(done.with.info.held, 0);
    dl_queue_free(queue);
}

CT_CASE(queue, an_inspection_that_the_driver_cannot_make_completes_too, .traits = CT_BLOCKING,
        .traits_not = CT_CAN_INSPECT) {
    dl_queue_t *queue = new_queue(ct);
    uint64_t id = 0;
    CT_OK(dl_inspect_begin(ct_lock_owned(ct, ct_open(ct, NULL), "orders", 1), queue, NULL, &id, CT_ERR));
    (void)take_of(ct, queue, id, DL_ENOTSUP, SOON_MS);
    dl_queue_free(queue);
}

#define SEVERAL 6

CT_CASE(queue, many_are_taken_at_once, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    dl_lock_t *locks[SEVERAL];
    dl_completion_t done[SEVERAL + 2];
    for (int i = 0; i < SEVERAL; i++) {
        char name[2] = {(char)('a' + i), 0};
        locks[i] = ct_lock_owned(ct, c, name, (uint64_t)i);
        (void)begin_lock(ct, queue, locks[i]);
    }
    CT_AWAIT_THAT(ct_stats(ct, c).held_now, ==, SEVERAL, SOON_MS);
    CT_EQ(dl_queue_take(queue, done, sizeof *done, 0), 0);
    CT_EQ(dl_queue_take(queue, done, sizeof *done, 2), 2);
    CT_EQ(dl_queue_take(queue, done + 2, sizeof *done, SEVERAL), SEVERAL - 2);
    expect_nothing(ct, queue);
    uint64_t seen = 0;
    for (int i = 0; i < SEVERAL; i++) {
        CT_EQ(done[i].status, DL_OK);
        seen |= (uint64_t)1 << done[i].id;
        (void)begin_unlock(ct, queue, done[i].lock);
    }
    CT_EQ(seen, (uint64_t)2 * ((1u << SEVERAL) - 1));
    for (int i = 0; i < SEVERAL; i++) {
        CT_EQ(take_next(ct, queue, SOON_MS).status, DL_OK);
    }
    dl_queue_free(queue);
}

#define ROUNDS 100
#define TAKERS 3

typedef struct counter {
    dl_queue_t *queue;
    int taken[ROUNDS + 1], all;
} counter_t;

static void count_completions(ct_t *ct, void *arg) {
    counter_t *counter = arg;
    while (__atomic_load_n(&counter->all, __ATOMIC_SEQ_CST) < ROUNDS) {
        dl_completion_t done[4];
        size_t n = dl_queue_take(counter->queue, done, sizeof *done, 4);
        for (size_t i = 0; i < n; i++) {
            CT_BETWEEN(done[i].id, 1, ROUNDS);
            __atomic_add_fetch(&counter->taken[done[i].id], 1, __ATOMIC_SEQ_CST);
            __atomic_add_fetch(&counter->all, 1, __ATOMIC_SEQ_CST);
        }
        (void)ct_await_readable(ct, dl_queue_fd(counter->queue), 10);
    }
}

CT_CASE(queue, threads_that_take_at_once_get_each_completion_once, .traits = CT_BLOCKING) {
    dl_lock_t *lock = ct_lock_owned(ct, ct_open(ct, NULL), "orders", 1);
    counter_t counter = {.queue = new_queue(ct)};
    ct_thread_t *threads[TAKERS];
    for (int i = 0; i < TAKERS; i++) {
        threads[i] = ct_thread(ct, count_completions, &counter);
    }
    for (int i = 0; i < ROUNDS; i++) {
        (void)begin_unlock(ct, counter.queue, lock);
    }
    for (int i = 0; i < TAKERS; i++) {
        ct_join(ct, threads[i]);
    }
    for (int i = 1; i <= ROUNDS; i++) {
        CT_EQ(counter.taken[i], 1);
    }
    expect_nothing(ct, counter.queue);
    dl_queue_free(counter.queue);
}

/* ---- levels ----------------------------------------------------------------------------------- */

CT_CASE(queue, an_owner_enters_again_without_waiting_behind_others, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1), *other = ct_lock_owned(ct, c, "orders", 2);
    dl_queue_t *queue = new_queue(ct), *others = new_queue(ct);
    lock_by(ct, queue, lock, DL_LEASE_AUTO);
    uint64_t waiting = begin_lock(ct, others, other);
    for (uint32_t level = 2; level <= 4; level++) {
        lock_by(ct, queue, lock, DL_LEASE_AUTO);
        CT_EQ(dl_hold_count(lock), level);
    }
    for (int i = 0; i < 4; i++) {
        expect_nothing(ct, others);
        unlock_by(ct, queue, lock);
    }
    (void)take_of(ct, others, waiting, DL_OK, SOON_MS);
    CT_EQ(ct_stats(ct, c).reentered, 3);
    unlock_by(ct, others, other);
    ct_expect_free(ct, "orders", 0);
    dl_queue_free(queue);
    dl_queue_free(others);
}

/* One owner, through both doors. */
CT_CASE(queue, blocking_calls_and_operations_are_of_one_owner, .traits = CT_BLOCKING) {
    dl_lock_t *lock = ct_lock_owned(ct, ct_open(ct, NULL), "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    lock_by(ct, queue, lock, DL_LEASE_AUTO);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_EQ(dl_hold_count(lock), 2);
    unlock_by(ct, queue, lock);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "orders", 0);
    dl_queue_free(queue);
}

/* ---- what cannot be begun --------------------------------------------------------------------- */

static void refuse_acquire(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock, const dl_acquire_opts_t *opts) {
    uint64_t id = 0;
    CT_STATUS(dl_acquire_begin(lock, opts, queue, NULL, &id, CT_ERR), DL_EINVAL);
    CT_EQ(id, 0);
}

CT_CASE(queue, begins_nothing_with_arguments_that_are_wrong, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1), *of_threads = ct_lock(ct, c, "orders");
    dl_queue_t *queue = new_queue(ct);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    CT_STATUS(dl_queue_new(NULL, CT_ERR), DL_EINVAL);
    refuse_acquire(ct, queue, NULL, &opts);
    refuse_acquire(ct, NULL, lock, &opts);
    refuse_acquire(ct, queue, lock, NULL);
    refuse_acquire(ct, queue, of_threads, &opts);
    CT_STATUS(dl_unlock_begin(of_threads, queue, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_extend_begin(of_threads, DL_LEASE_AUTO, queue, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_inspect_begin(of_threads, queue, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_extend_begin(lock, DL_LEASE_MIN_MS - 1, queue, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_unlock_begin(lock, NULL, NULL, NULL, CT_ERR), DL_EINVAL);
    opts.wait_ms = -2;
    refuse_acquire(ct, queue, lock, &opts);
    opts = (dl_acquire_opts_t)DL_ACQUIRE_OPTS_INIT;
    opts.size--;
    refuse_acquire(ct, queue, lock, &opts);
    opts = (dl_acquire_opts_t)DL_ACQUIRE_OPTS_INIT;
    CT_OK(dl_cancel_new(&opts.cancel, CT_ERR));
    refuse_acquire(ct, queue, lock, &opts);
    dl_cancel_free(opts.cancel);
    CT_EQ(dl_op_cancel(NULL, 1), DL_EINVAL);
    CT_EQ(dl_op_cancel(queue, 1), DL_EINVAL);
    CT_EQ(dl_queue_fd(NULL), -1);
    CT_EQ(dl_queue_events(queue, NULL), DL_EINVAL);
    expect_nothing(ct, queue);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 0);
    dl_queue_free(queue);
    dl_queue_free(NULL);
}

CT_CASE(queue, a_completion_of_a_size_that_none_had_is_not_taken, .traits = CT_BLOCKING) {
    dl_lock_t *lock = ct_lock_owned(ct, ct_open(ct, NULL), "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    dl_completion_t done;
    uint64_t id = begin_lock(ct, queue, lock);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), SOON_MS));
    CT_EQ(dl_queue_take(queue, &done, sizeof done - 1, 1), 0);
    CT_EQ(dl_queue_take(queue, &done, 0, 1), 0);
    CT_EQ(dl_queue_take(queue, NULL, sizeof done, 1), 0);
    CT_EQ(dl_queue_take(NULL, &done, sizeof done, 1), 0);
    (void)take_of(ct, queue, id, DL_OK, 0);
    dl_queue_free(queue);
}

#define MORE 64

/* Two for a program that has `size` bytes for each. */
static void take_sized(ct_t *ct, dl_queue_t *queue, dl_lock_t *lock, size_t size) {
    static union {
        dl_completion_t first;
        unsigned char bytes[2 * (sizeof(dl_completion_t) + MORE) + 1];
    } room;
    dl_completion_t done = {.id = 0};
    size_t common = size < sizeof done ? size : sizeof done;
    memset(&room, 0xa5, sizeof room);
    uint64_t ids[2] = {begin_unlock(ct, queue, lock), begin_unlock(ct, queue, lock)};
    for (size_t n = 0; n < 2;) {
        CT_CHECK(ct_await_readable(ct, dl_queue_fd(queue), SOON_MS));
        n += dl_queue_take(queue, (dl_completion_t *)(void *)(room.bytes + n * size), size, 2 - n);
    }
    for (size_t i = 0; i < 2; i++) {
        memcpy(&done, room.bytes + i * size, common);
        CT_EQ(done.id, ids[i]);
        CT_EQ(done.status, DL_ENOTOWNER);
        CT_STR_EQ(done.err.message, dl_status_text(DL_ENOTOWNER));
        for (size_t k = common; k < size; k++) {
            CT_EQ(room.bytes[i * size + k], 0);
        }
    }
    CT_EQ(room.bytes[2 * size], 0xa5);
}

CT_CASE(queue, completions_of_earlier_and_later_releases_are_taken, .traits = CT_BLOCKING) {
    dl_lock_t *lock = ct_lock_owned(ct, ct_open(ct, NULL), "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    dli_layout_completion.earlier[0] = offsetof(dl_completion_t, with);
    take_sized(ct, queue, lock, offsetof(dl_completion_t, with));
    dli_layout_completion.earlier[0] = 0;
    take_sized(ct, queue, lock, sizeof(dl_completion_t));
    take_sized(ct, queue, lock, sizeof(dl_completion_t) + MORE);
    dl_queue_free(queue);
}

CT_CASE(queue, nothing_is_begun_on_a_closed_client, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1);
    dl_queue_t *queue = new_queue(ct);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    ct_close(ct, c);
    CT_STATUS(dl_acquire_begin(lock, &opts, queue, NULL, NULL, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_unlock_begin(lock, queue, NULL, NULL, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_extend_begin(lock, DL_LEASE_AUTO, queue, NULL, NULL, CT_ERR), DL_ECLOSED);
    CT_STATUS(dl_inspect_begin(lock, queue, NULL, NULL, CT_ERR), DL_ECLOSED);
    expect_nothing(ct, queue);
    dl_queue_free(queue);
}

CT_CASE(queue, has_a_bound, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1);
    dl_queue_t *queue = new_queue(ct), *other = new_queue(ct);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    queue->limit = 2;
    uint64_t first = begin_lock(ct, queue, lock);
    uint64_t waiting = begin_lock(ct, queue, ct_lock_owned(ct, c, "orders", 2));
    CT_STATUS(dl_acquire_begin(lock, &opts, queue, NULL, NULL, CT_ERR), DL_ELIMIT);
    CT_STATUS(dl_unlock_begin(lock, queue, NULL, NULL, CT_ERR), DL_ELIMIT);
    (void)take_of(ct, queue, first, DL_OK, SOON_MS);
    unlock_by(ct, queue, lock); /* there is room again */
    (void)begin_unlock(ct, other, lock);
    (void)take_of(ct, queue, waiting, DL_OK, SOON_MS);
    CT_EQ(ct_stats(ct, c).waiting_now, 0);
    dl_queue_free(queue);
    dl_queue_free(other);
}

/* ---- begin does not block ---------------------------------------------------------------------- */

#define SILENT 20

CT_CASE(queue, begins_without_waiting_while_the_server_is_silent, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock_owned(ct, c, "held", 1), *more = ct_lock_owned(ct, c, "more", 1);
    dl_queue_t *queue = new_queue(ct);
    lock_by(ct, queue, held, 60000);
    lock_by(ct, queue, more, 60000);
    static const ct_op_t silent[] = {CT_OP_TRY, CT_OP_RENEW, CT_OP_RELEASE, CT_OP_INSPECT};
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        ct_fault(ct, silent[i], CT_NEVER, CT_ALWAYS);
    }
    int64_t before_ms = ct_now_ms(ct);
    for (int i = 0; i < SILENT; i++) {
        char name[2] = {(char)('a' + i), 0};
        (void)begin_acquire(ct, queue, ct_lock_owned(ct, c, name, 1), i % 2 ? 100 : DL_WAIT_FOREVER,
                            DL_LEASE_AUTO);
    }
    (void)begin_extend(ct, queue, held, 120000);
    CT_OK(dl_inspect_begin(held, queue, NULL, NULL, CT_ERR));
    (void)begin_unlock(ct, queue, more);
    CT_LE(ct_now_ms(ct) - before_ms, ct_traits(ct) & CT_VIRTUAL ? 0 : ct_tolerance_ms(ct));
    for (int i = 0; i < SILENT + 3; i++) {
        dl_completion_t done = take_next(ct, queue, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
        CT_NE(done.status, DL_OK);
    }
    CT_LE(ct_now_ms(ct) - before_ms, ct_call_timeout_ms(ct) + 2 * ct_tolerance_ms(ct));
    expect_nothing(ct, queue);
    ct_fault_end(ct, -1);
    dl_queue_free(queue);
}

/* ---- processes and memory ---------------------------------------------------------------------- */

typedef struct family {
    dl_client_t *client;
    dl_lock_t *lock;
    dl_queue_t *queue;
} family_t;

static void use_what_was_inherited(ct_t *ct, void *arg) {
    family_t *f = arg;
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_completion_t done;
    dl_queue_t *own = new_queue(ct);
    for (int i = 0; i < 2; i++) {
        dl_queue_t *queue = i == 0 ? f->queue : own;
        CT_STATUS(dl_acquire_begin(f->lock, &opts, queue, NULL, NULL, CT_ERR), DL_EFORKED);
        CT_STATUS(dl_unlock_begin(f->lock, queue, NULL, NULL, CT_ERR), DL_EFORKED);
        CT_STATUS(dl_extend_begin(f->lock, 0, queue, NULL, NULL, CT_ERR), DL_EFORKED);
        CT_STATUS(dl_inspect_begin(f->lock, queue, NULL, NULL, CT_ERR), DL_EFORKED);
        CT_EQ(dl_queue_events(queue, f->client), DL_EFORKED);
    }
    CT_EQ(dl_queue_take(f->queue, &done, sizeof done, 1), 0);
    CT_EQ(dl_op_cancel(f->queue, 1), DL_EFORKED);
    CT_EQ(dl_queue_fd(f->queue), -1);
    dl_queue_free(f->queue);
    dl_queue_free(own);
}

CT_CASE(queue, a_forked_child_can_only_free_it, .traits = CT_BLOCKING) {
    family_t f = {.client = ct_open(ct, NULL), .queue = new_queue(ct)};
    f.lock = ct_lock_owned(ct, f.client, "orders", 1);
    dl_lock_t *other = ct_lock_owned(ct, f.client, "orders", 2);
    uint64_t first = begin_lock(ct, f.queue, f.lock), second = begin_lock(ct, f.queue, other);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(f.queue), SOON_MS));
    ct_process_wait(ct, ct_fork(ct, use_what_was_inherited, &f));
    (void)take_of(ct, f.queue, first, DL_OK, 0);
    uint64_t unlock = begin_unlock(ct, f.queue, f.lock);
    for (int i = 0; i < 2; i++) {
        dl_completion_t done = take_next(ct, f.queue, SOON_MS);
        CT_EQ(done.status, DL_OK);
        CT_CHECK(done.id == unlock || done.id == second);
    }
    unlock_by(ct, f.queue, other);
    dl_queue_free(f.queue);
}

/* Each allocation fails once: what is begun completes, and nothing is left. */
CT_CASE(queue, without_memory_it_says_so, .traits = CT_BLOCKING, .needs = DL_CAP_FENCE) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "orders", 1);
    int failed = 1;
    for (int n = 1; failed; n++) {
        dl_queue_t *queue = NULL;
        dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
        dl_status_t status, locked = DL_ENOMEM;
        CT_LT(n, 60);
        ct_alloc_fail(ct, n, 0);
        status = CT_EITHER(dl_queue_new(&queue, CT_ERR), DL_OK, DL_ENOMEM);
        if (status == DL_OK) {
            status = CT_EITHER(dl_acquire_begin(lock, &opts, queue, NULL, NULL, CT_ERR), DL_OK, DL_ENOMEM);
        }
        if (status == DL_OK) {
            locked = take_next(ct, queue, SOON_MS).status;
            CT_CHECKF(locked == DL_OK || locked == DL_ENOMEM, "it is %s", dl_status_name(locked));
        }
        CT_EQ(dl_hold_count(lock), locked == DL_OK);
        if (locked == DL_OK) {
            status = CT_EITHER(dl_unlock_begin(lock, queue, NULL, NULL, CT_ERR), DL_OK, DL_ENOMEM);
        }
        if (locked == DL_OK && status == DL_OK) {
            CT_EQ(take_next(ct, queue, SOON_MS).status, DL_OK);
        }
        failed = ct_alloc_failed(ct);
        ct_alloc_fail(ct, 0, 0);
        dl_queue_free(queue);
        if (dl_hold_count(lock) > 0) {
            CT_OK(dl_unlock(lock, CT_ERR));
        }
        ct_expect_free(ct, "orders", ct_tolerance_ms(ct));
    }
}
