/* model_queue_cases.c - contract: tasks of queues begin, cancel and take at random, and each hears once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>

#include "queues.h"
#include "walks.h"

/*
 * Tasks of two clients want two names, all by one queue, which is also freed now and then with all that is
 * under way. The model knows what each task has begun, by when that has to be over, and how many levels it
 * has entered.
 */
#define NAMES 2
#define TASKS 12
#define WALKS 30
#define STEPS 150

typedef struct task {
    dl_lock_t *lock;
    int name, client;
    uint32_t levels;
    dl_op_kind_t kind; /* under way, or waiting to be taken; 0: nothing */
    uint64_t id, hold_id;
    int64_t due_ms;
} task_t;

typedef struct walk {
    way_t way;
    bool is_healthy;
    bool was_freed; /* a queue: what was had by it and not taken may be lost, too */
    dl_client_t *clients[2];
    dl_queue_t *queue;
    task_t tasks[TASKS];
    uint64_t last_token[NAMES];
} walk_t;

static int64_t soon_ms(const walk_t *w) {
    return ct_now_ms(w->way.ct) + ct_call_timeout_ms(w->way.ct) + 1000;
}

static void begin(walk_t *w, task_t *t) {
    static const dl_op_kind_t kinds[] = {DL_OP_ACQUIRE, DL_OP_ACQUIRE, DL_OP_UNLOCK, DL_OP_UNLOCK,
                                         DL_OP_EXTEND};
    int64_t lease_ms = draw(&w->way, 2) ? DL_LEASE_AUTO : draw_lease(&w->way, DL_LEASE_MIN_MS);
    int64_t wait_ms = draw(&w->way, 3) ? draw(&w->way, 20000) : 0;
    t->kind = kinds[draw(&w->way, 5)];
    snprintf(w->way.said, sizeof w->way.said, "begin %d of task %d, %lld ms, waits %lld ms", (int)t->kind,
             (int)(t - w->tasks), (long long)lease_ms, (long long)wait_ms);
    dl_acquire_opts_t opts = {sizeof opts, wait_ms, lease_ms, 0, NULL};
    dl_status_t status =
        t->kind == DL_OP_ACQUIRE  ? dl_acquire_begin(t->lock, &opts, w->queue, t, &t->id, NULL)
        : t->kind == DL_OP_UNLOCK ? dl_unlock_begin(t->lock, w->queue, t, &t->id, NULL)
                                  : dl_extend_begin(t->lock, lease_ms, w->queue, t, &t->id, NULL);
    NEED(w, status == DL_OK);
    t->due_ms = soon_ms(w) + (t->kind == DL_OP_ACQUIRE ? wait_ms : 0);
}

static void cancel(walk_t *w, task_t *t) {
    snprintf(w->way.said, sizeof w->way.said, "cancel of task %d, kind %d", (int)(t - w->tasks),
             (int)t->kind);
    dl_status_t status = dl_op_cancel(w->queue, t->id);
    NEED(w, status == (t->kind == DL_OP_UNLOCK ? DL_EBUSY : status == DL_OK ? DL_OK : DL_EBUSY));
    t->due_ms = soon_ms(w) < t->due_ms ? soon_ms(w) : t->due_ms;
}

/* A loss is heard of behind the completion by which the lock was had. */
static void hear(walk_t *w, const dl_completion_t *event) {
    if (event->with.event.kind == DL_EVENT_LOST) {
        bool is_known = w->was_freed;
        for (task_t *t = w->tasks; t < w->tasks + TASKS; t++) {
            is_known |= t->client == 0 && t->hold_id == event->with.event.hold_id;
        }
        NEED(w, is_known);
    }
}

static void take_one(walk_t *w, const dl_completion_t *done) {
    if (done->kind == DL_OP_EVENT) {
        hear(w, done);
        return;
    }
    task_t *t = done->tag;
    snprintf(w->way.said, sizeof w->way.said, "taken: %d of task %d, %s", (int)done->kind,
             (int)(t - w->tasks), dl_status_name(done->status));
    NEED(w, t->kind == done->kind && t->id == done->id && done->lock == t->lock);
    t->kind = 0;
    bool is_healthy_end = done->status == DL_OK || done->status == DL_ELOST || done->status == DL_ENOTOWNER ||
                          done->status == DL_EBUSY || done->status == DL_ETIMEDOUT ||
                          done->status == DL_ECANCELED;
    NEED(w, is_healthy_end || !w->is_healthy);
    if (done->kind == DL_OP_ACQUIRE && done->status == DL_OK) {
        t->hold_id = done->hold_id;
        if (t->levels++ == 0 && done->token != 0) {
            NEED(w, done->token > w->last_token[t->name]);
            w->last_token[t->name] = done->token;
        }
    } else if (done->kind == DL_OP_ACQUIRE && done->hold_id != 0) {
        t->hold_id = done->hold_id;
    } else if (done->kind == DL_OP_UNLOCK) {
        NEED(w, (done->status == DL_ENOTOWNER) == (t->levels == 0));
        t->levels -= t->levels > 0;
    }
}

static void take_all(walk_t *w) {
    dl_completion_t done[4];
    size_t n;
    while ((n = dl_queue_take(w->queue, done, sizeof done[0], 1 + (size_t)draw(&w->way, 4))) > 0) {
        for (size_t i = 0; i < n; i++) {
            take_one(w, &done[i]);
        }
    }
    for (task_t *t = w->tasks; t < w->tasks + TASKS; t++) {
        NEED(w, t->kind == 0 || ct_now_ms(w->way.ct) <= t->due_ms);
    }
}

static void look(walk_t *w) {
    int live[NAMES] = {0};
    for (task_t *t = w->tasks; t < w->tasks + TASKS; t++) {
        NEED(w, t->kind != 0 || dl_hold_count(t->lock) == t->levels);
        live[t->name] += dl_valid_ms(t->lock) > 0;
    }
    for (int name = 0; name < NAMES; name++) {
        NEED(w, live[name] <= 1);
    }
}

static void open_queue(walk_t *w) {
    w->queue = new_queue(w->way.ct);
    NEED(w, dl_queue_events(w->queue, w->clients[0]) == DL_OK);
}

/* Unlocks that had begun go on, and all else is as if it had not. */
static void free_queue(walk_t *w) {
    snprintf(w->way.said, sizeof w->way.said, "the queue is freed");
    dl_queue_free(w->queue);
    w->was_freed = true;
    ct_sleep_ms(w->way.ct, 2 * ct_call_timeout_ms(w->way.ct) + 1000);
    for (task_t *t = w->tasks; t < w->tasks + TASKS; t++) {
        uint32_t levels = dl_hold_count(t->lock);
        NEED(w, levels == t->levels || (t->kind == DL_OP_UNLOCK && levels + 1 == t->levels));
        t->levels = levels;
        t->kind = 0;
    }
    open_queue(w);
}

static void take_step(walk_t *w) {
    task_t *t = &w->tasks[draw(&w->way, TASKS)];
    int what = (int)draw(&w->way, 20);
    if (!w->is_healthy && draw(&w->way, 5) == 0) {
        break_some(&w->way);
    }
    if (what < 11 && t->kind == 0) {
        begin(w, t);
    } else if (what < 11 && draw(&w->way, 2)) {
        cancel(w, t);
    } else if (what < 16) {
        take_all(w);
    } else if (what < 19 || draw(&w->way, 4)) {
        snprintf(w->way.said, sizeof w->way.said, "sleep");
        ct_sleep_ms(w->way.ct, draw_sleep(&w->way));
    } else {
        free_queue(w);
    }
}

static void end_all(walk_t *w) {
    ct_t *ct = w->way.ct;
    ct_fault_end(ct, -1);
    for (bool is_busy = true; is_busy; ct_sleep_ms(ct, is_busy ? 50 : 0)) {
        take_all(w);
        is_busy = false;
        for (task_t *t = w->tasks; t < w->tasks + TASKS; t++) {
            is_busy |= t->kind != 0;
        }
    }
    for (task_t *t = w->tasks; t < w->tasks + TASKS; t++) {
        for (; t->levels > 0; t->levels--) {
            NEED(w, dl_unlock(t->lock, NULL) != DL_ENOTOWNER);
        }
        NEED(w, dl_hold_count(t->lock) == 0);
        ct_lock_close(ct, t->lock);
    }
    take_all(w); /* events are there for the next walk otherwise */
    dl_queue_free(w->queue);
}

static void walk(walk_t *w) {
    ct_t *ct = w->way.ct;
    char name[32];
    open_queue(w);
    for (int i = 0; i < TASKS; i++) {
        task_t *t = &w->tasks[i];
        *t = (task_t){.client = i % 2, .name = i / 2 % NAMES};
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, t->name);
        t->lock = ct_lock_owned(ct, w->clients[t->client], name, (uint64_t)(1 + i));
    }
    for (w->way.step = 0; w->way.step < STEPS; w->way.step++) {
        take_step(w);
        look(w);
    }
    end_all(w);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, i);
        ct_expect_free(ct, name, LONGEST_MS);
    }
}

static void walk_often(ct_t *ct, bool is_healthy) {
    dl_client_t *clients[2] = {ct_open(ct, "lease: 30s"), ct_open(ct, "lease: 8s\nrenew_every: 4s")};
    const unsigned first = first_seed(ct, WALKS);
    for (unsigned seed = first; seed < first + (unsigned)ct_many(WALKS); seed++) {
        walk_t w = {.way = {.ct = ct, .seed = seed, .random = seed},
                    .is_healthy = is_healthy,
                    .clients = {clients[0], clients[1]}};
        walk(&w);
    }
}

CT_CASE(model, each_task_of_a_queue_hears_once, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, true);
}

CT_CASE(model, each_task_of_a_queue_hears_once_whatever_fails, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, false);
}
