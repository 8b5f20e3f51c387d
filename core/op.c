/* op.c - operations: carried from step to step, by who waits for them or by whoever has the mutex. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/*
 * A step looks at the client's state and changes it, under the mutex, and says what is needed next: the
 * driver's answer, a poke or an instant, or nothing. A blocking call takes its own steps, and asks the driver
 * itself. The operations of queues are carried on by whoever releases the mutex next, as far as it goes
 * without the driver; workers ask that for them. A poke only marks, so that no step is taken inside another.
 */

/* ---- begin and end ------------------------------------------------------------------------------ */

static void fill(dli_op_t *op, const dli_asked_t *asked) {
    memset(op, 0, offsetof(dli_op_t, err)); /* the rest is large, and is filled before it is read */
    dli_error_clear(&op->err);
    op->request.pending = op->request.in_lane = op->request.in_line = false;
    op->kind = asked->kind;
    op->step = asked->step;
    op->lease_ms = asked->lease_ms;
    op->tag = asked->tag;
    op->opts = asked->opts;
    if (op->kind == DL_OP_INSPECT) {
        op->info = (dl_lock_info_t *)(void *)(op + 1);
        *op->info = (dl_lock_info_t)DL_LOCK_INFO_INIT;
    }
}

dli_op_t *dli_op_new(const dli_asked_t *asked) {
    dli_op_t *op = malloc(sizeof *op + (asked->kind == DL_OP_INSPECT ? sizeof *op->info : 0));
    if (op != NULL) {
        fill(op, asked);
    }
    return op;
}

dl_status_t dli_op_enter(dli_op_t *op, dl_lock_t *lock, dl_error_t *err) {
    if (lock == NULL) {
        return dli_fail(err, DL_EINVAL, "no lock");
    }
    dl_status_t status = dli_lock_owner(lock, &op->owner) ? dli_call_enter(lock->client) : DL_ENOMEM;
    if (status != DL_OK) {
        return dli_fail_plain(err, status);
    }
    op->client = lock->client;
    op->gate = lock->gate;
    op->lock = lock;
    lock->refs++;
    dli_tree_add(&op->client->ops, &op->by_handle, (uintptr_t)op->lock);
    return DL_OK;
}

dl_status_t dli_op_stop_reason(const dli_op_t *op) {
    if (op->client->closing || (op->lock != NULL && op->lock->closed)) {
        return DL_ECLOSED;
    }
    bool triggered = op->opts.cancel != NULL && atomic_load(&op->opts.cancel->triggered);
    return op->cancelled || triggered ? DL_ECANCELED : DL_OK;
}

dli_next_t dli_op_end(dli_op_t *op, dl_status_t status) {
    op->status = status;
    if (status != DL_OK && (op->err.status != status || op->err.message[0] == '\0')) {
        dli_fail_plain(&op->err, status);
    }
    return DLI_DONE;
}

void dli_op_about(dli_op_t *op, dli_hold_t *hold) {
    hold->refs++;
    op->hold = hold;
    hold->claim->refs++;
    op->claim = hold->claim;
}

void dli_op_leave(dli_op_t *op) {
    dli_claim_unref(op->claim);
    op->claim = NULL;
    dli_tree_remove(&op->client->ops, &op->by_handle);
    dli_call_leave(op->client);
}

void dli_op_judge(dli_op_t *op) {
    dli_hold_t *hold = op->hold;
    if (op->kind != DL_OP_ACQUIRE || op->status != DL_OK || hold == NULL) {
        return;
    }
    (void)dli_hold_expire(hold, dli_now());
    if (hold->state == DLI_HOLD_LOST) {
        dli_hold_give_up_level(hold);
        op->status = dli_fail(&op->err, DL_ELOST, "it was lost as soon as it was held");
    } else if (hold->state != DLI_HOLD_LIVE) {
        op->status = op->client->closing
                         ? dli_fail_plain(&op->err, DL_ECLOSED)
                         : dli_fail(&op->err, DL_ELOST, "it was given back before this was taken");
    }
}

/* ---- asking the driver ------------------------------------------------------------------------------- */

static void make_ready(dli_op_t *op) {
    op->place = DLI_OP_READY;
    TAILQ_INSERT_TAIL(&op->client->ready, op, in);
}

/* Not asked, and why: the next step takes it for the answer. */
static void answer_unasked(dli_op_t *op, dl_status_t answer, const char *why) {
    dli_request_over(op->client, &op->request);
    op->answer = dli_fail(&op->err, answer, "%s", why);
    op->interrupted = false;
    make_ready(op);
}

static void end_queueing(dli_op_t *op, uint64_t now) {
    op->until_ns = now; /* it was not away: no thread was free */
    if (op->ask == DLI_ASK_TRY && op->opts.wait_ms != 0 && now < op->deadline_ns) {
        answer_unasked(op, DL_EIO, "the server answers nobody, and no thread was free to ask it");
    } else {
        answer_unasked(op, DL_ETIMEDOUT, "the time was over before a thread was free to ask the server");
    }
}

static bool start(dli_request_t *request, dli_park_t *park) {
    dli_op_t *op = DLI_CONTAINER_OF(dli_op_t, request, request);
    if (park != NULL) {
        uint64_t now = dli_now();
        if (now >= op->until_ns && dli_acquire_may_queue_until(op, now) <= now) {
            end_queueing(op, now);
            return false;
        }
        dli_timer_clear(&op->client->loop.timers, &op->timer);
        op->park = park;
        if (op->ask == DLI_ASK_TRY) {
            dli_acquire_ask_now(op);
        }
        op->due_ns = op->until_ns;
    }
    dli_call_prepare(op);
    return true;
}

static void ended(dli_request_t *request, dl_status_t status) {
    dli_op_t *op = DLI_CONTAINER_OF(dli_op_t, request, request);
    dli_request_over(op->client, request);
    if (op->async && op->park != NULL) { /* a poke of this one is not for the worker's next */
        op->interrupted = dli_park_drain(op->park);
        op->park = NULL;
    }
    dli_call_answered(op, status);
    if (op->async) {
        make_ready(op);
    } else {
        dli_loop_answered(op);
    }
}

static void make_request(dli_op_t *op) {
    op->request = (dli_request_t){.kind = op->ask,
                                  .with.deadline_ns = op->until_ns,
                                  .err = &op->err,
                                  .ended = ended,
                                  .start = start,
                                  .timer = op->async ? &op->timer : NULL,
                                  .lane = op->kind == DL_OP_ACQUIRE ? DLI_LANE_CLAIM : DLI_LANE_UNLOCK};
}

/* A try is not to go on: it was poked. */
static bool is_stopped(const dli_op_t *op) {
    return op->ask == DLI_ASK_TRY &&
           (dli_op_stop_reason(op) != DL_OK || (op->interrupted && op->opts.wait_ms != 0));
}

static void ask_backend(dli_op_t *op) {
    DLI_PUNCTUAL; /* its own time is not for the program's log function */
    dl_client_t *client = op->client;
    if (op->park == NULL) {
        op->park = dli_park_get(client);
    }
    int rc = op->park == NULL ? dli_loop_start(client) : 0; /* somebody has to read */
    if (rc != 0) {
        op->answer =
            dl_driver_fail(&op->err, DL_ELIMIT, rc, "no descriptor and no thread is left to wait with");
        return;
    }
    make_request(op);
    op->request.leads = op->park != NULL && client->inner->lead_fds != NULL;
    dli_request_begin(client, &op->request);
    if (dli_spin_gives_way(client)) {
        dli_release_for_a_moment(client);
        (void)sched_yield();
        dli_lock_client(client);
    }
    dli_tidy(client);
    while (op->request.pending && !is_stopped(op) && dli_now() < op->until_ns) {
        dli_loop_sleep(op, op->until_ns);
    }
    if (op->request.pending) {
        dli_request_give_up(client, &op->request);
    }
    if (op->park != NULL) { /* its own answer, if that came before it slept, wakes it from no later sleep */
        (void)dli_park_drain(op->park);
    }
    dli_loop_end_lead(op);      /* it may have been about to read */
    dli_loop_hand_over(client); /* it may have been the one that listened */
}

void dli_op_ask(dli_op_t *op) {
    if (op->client->inner != NULL && op->ask != DLI_ASK_WATCH) {
        ask_backend(op);
        return;
    }
    make_request(op);
    dli_call_prepare(op);
    op->asks = true;
    dl_status_t answer = dli_request_carry_out(op->client, &op->request);
    op->asks = false;
    op->interrupted = op->park != NULL && dli_park_drain(op->park);
    dli_call_answered(op, answer);
}

/* ---- carried by the caller ---------------------------------------------------------------------- */

static dli_next_t advance(dli_op_t *op) {
    dli_next_t next;
    do {
        next = op->step(op);
    } while (next == DLI_STEP);
    return next;
}

dl_status_t dli_op_can_wait(dli_op_t *op) {
    if (op->async || op->park != NULL) {
        return DL_OK;
    }
    op->park = dli_park_get(op->client);
    if (op->park != NULL) {
        return DL_OK;
    }
    return errno == ENOMEM ? dli_fail_plain(&op->err, DL_ENOMEM)
                           : dli_fail(&op->err, DL_ELIMIT, "no descriptor is left to wait with");
}

static void run(dli_op_t *op) {
    dli_next_t next;
    while ((next = advance(op)) != DLI_DONE) {
        op->due_ns = op->until_ns;
        op->waits = true;
        if (next == DLI_ASK) {
            dli_op_ask(op);
        } else {
            dli_loop_sleep(op, op->until_ns);
        }
        op->waits = false;
    }
    dli_op_judge(op);
    dli_park_put(op->client, op->park);
    dli_op_leave(op);
}

/*
 * The operation of a blocking call is in its thread's record, not on its stack, so that a jump out of the
 * call (siglongjmp) leaves it whole. The thread ends it with its next call to the same client, or as it ends.
 */

static void end_left(dli_op_t *op) {
    if (dli_forked(op->client)) {
        return; /* the parent's; the little memory stays */
    }
    dli_lock_client(op->client);
    op->opts.cancel = NULL;
    op->cancelled = true;
    if (op->request.pending) {
        dli_request_give_up(op->client, &op->request);
    } else if (op->asks) {
        op->answer = dli_fail_plain(&op->err, DL_EUNKNOWN);
    }
    op->asks = false;
    dli_loop_forget(op); /* only now: what it was to read for itself is another's to read */
    run(op);
    dli_op_give_up(op);
    dli_op_free_and_unlock(op);
}

/* Neither the driver makes a call to this client, nor what a thread that waits does for others. */
static bool end_one_left(dli_thread_t *thread, const dl_client_t *client) {
    for (dli_op_t **at = &thread->calls; *at != NULL; at = &(*at)->outer) {
        dli_op_t *op = *at;
        if (client == NULL || (op->client == client && op->waits)) {
            *at = op->outer;
            end_left(op);
            return true;
        }
    }
    return false;
}

void dli_end_calls(dli_thread_t *thread, const dl_client_t *client) {
    dli_end_waking(client);
    while (thread != NULL && end_one_left(thread, client)) {}
}

static void keep(dli_thread_t *thread, dli_op_t *op) {
    free(thread->spare); /* of a call inside this one */
    thread->spare = op;
}

/* A jump may leave it as soon as the mutex is released. */
dl_status_t dli_op_call(const dli_asked_t *asked, dl_lock_t *lock, dl_lock_info_t *info, dl_error_t *err) {
    dli_thread_t *thread = dli_thread_self();
    if (thread == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    if (lock != NULL) {
        dli_end_calls(thread, lock->client);
    }
    dli_op_t *op = thread->spare != NULL ? thread->spare : malloc(sizeof *op + sizeof *op->info);
    thread->spare = NULL;
    if (op == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    fill(op, asked);
    dl_status_t status = dli_op_enter(op, lock, err);
    if (status != DL_OK) {
        keep(thread, op);
        return status;
    }
    op->outer = thread->calls;
    thread->calls = op;
    run(op);
    status = dli_error_give(err, &op->err, op->status);
    if (info != NULL) {
        *info = *op->info;
    }
    dli_hold_unref(op->hold);
    thread->calls = op->outer;
    keep(thread, op);
    dli_lock_unref_and_unlock(lock);
    return status;
}

/* ---- carried by whoever has the mutex ------------------------------------------------------------ */

void dli_op_give_up(dli_op_t *op) {
    if (op->kind != DL_OP_ACQUIRE || op->status != DL_OK || op->hold == NULL) {
        return;
    }
    if (op->hold->state == DLI_HOLD_LIVE && op->hold->levels > 1) {
        dli_hold_left_level(op->hold, dli_now()); /* the lease of the levels that stay counts again */
    } else {
        dli_hold_give_up_level(op->hold);
    }
}

static void complete(dli_op_t *op) {
    op->place = DLI_OP_ENDED;
    dli_op_leave(op);
    if (op->queue != NULL) {
        dli_queue_put_op(op);
        return;
    }
    dli_op_give_up(op);
    dli_hold_unref(op->hold);
    if (op->lock != NULL) {
        dli_lock_unref(op->lock); /* not the last: the client is not closed while operations run */
    }
    free(op);
}

/* A backend's watch, which waits for nothing, is called by the loop. */
static void begin_to_ask(dli_op_t *op) {
    dl_client_t *client = op->client;
    op->place = DLI_OP_ASKED;
    if (op->ask == DLI_ASK_WATCH && client->inner != NULL) {
        TAILQ_INSERT_TAIL(&client->to_watch, op, in);
        dli_loop_wake(client);
    } else {
        make_request(op);
        dli_request_begin(client, &op->request);
    }
}

static void carry_on(dli_op_t *op) {
    op->place = DLI_OP_CARRIED;
    op->due_ns = DLI_NEVER;
    dli_next_t next = advance(op);
    if (next == DLI_DONE) {
        complete(op);
        return;
    }
    if (next == DLI_ASK) {
        begin_to_ask(op);
        return;
    }
    op->place = DLI_OP_WAITING;
    if (op->listens) {
        dli_loop_listen(op->client, true);
    }
    if (op->until_ns != DLI_NEVER) {
        dli_loop_at(op->client, &op->timer, op->until_ns);
    }
}

void dli_run_ready(dl_client_t *client) {
    do {
        dli_op_t *op;
        while ((op = TAILQ_FIRST(&client->ready)) != NULL) {
            TAILQ_REMOVE(&client->ready, op, in);
            carry_on(op);
        }
        dli_renew_carry_on(client);
    } while (!TAILQ_EMPTY(&client->ready));
}

static void stop_waiting(dli_op_t *op) {
    dli_timer_clear(&op->client->loop.timers, &op->timer);
    if (op->listens) {
        dli_loop_listen(op->client, false);
    }
    make_ready(op);
}

void dli_ops_watch(dl_client_t *client) {
    dli_op_t *op;
    while ((op = TAILQ_FIRST(&client->to_watch)) != NULL) {
        TAILQ_REMOVE(&client->to_watch, op, in);
        dli_op_ask(op);
        make_ready(op);
    }
}

static void fire(dli_timer_t *timer, uint64_t now) {
    dli_op_t *op = DLI_CONTAINER_OF(dli_op_t, timer, timer);
    if (op->place == DLI_OP_WAITING) {
        stop_waiting(op);
    } else if (!op->request.in_lane) {
        dli_request_give_up(op->client, &op->request);
    } else if (dli_acquire_may_queue_until(op, now) > now) {
        dli_loop_at(op->client, timer, dli_acquire_may_queue_until(op, now));
    } else {
        end_queueing(op, now);
    }
}

void dli_op_start(dli_op_t *op) {
    op->async = true;
    op->timer.fire = fire;
    if (op->lock == NULL) {
        dli_tree_add(&op->client->ops, &op->by_handle, (uintptr_t)op->lock);
        op->client->calls++;
    }
    make_ready(op);
}

void dli_op_poke(dli_op_t *op) {
    op->interrupted = true;
    if (op->park != NULL || !op->async) {
        bool goes_on = op->request.pending && op->opts.wait_ms == 0;
        op->due_ns = op->park != NULL && !goes_on ? dli_min(op->due_ns, dli_now()) : op->due_ns;
        dli_loop_answered(op);
    } else if (op->place == DLI_OP_WAITING) {
        stop_waiting(op);
    } else if (op->request.in_lane && dli_op_stop_reason(op) != DL_OK) {
        answer_unasked(op, dli_op_stop_reason(op), "it was stopped before the server was asked");
    } else if (op->request.pending && !op->request.in_lane && is_stopped(op)) {
        dli_request_give_up(op->client, &op->request);
    }
}

void dli_op_poke_all(dl_client_t *client, const dl_lock_t *lock) {
    uint64_t key = (uintptr_t)lock;
    dli_node_t *at = lock != NULL ? dli_tree_find(client->ops, key) : dli_tree_after(client->ops, NULL);
    for (; at != NULL && (lock == NULL || at->key == key); at = dli_tree_after(client->ops, at)) {
        dli_op_poke(DLI_CONTAINER_OF(dli_op_t, by_handle, at));
    }
}

void dli_op_free_and_unlock(dli_op_t *op) {
    dli_hold_unref(op->hold);
    dl_lock_t *lock = op->lock;
    free(op);
    dli_lock_unref_and_unlock(lock);
}
