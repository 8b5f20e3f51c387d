/* event_loop_uv.c - tasks of a libuv loop hold locks: a uv_poll_t watches a queue of the library. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: event_loop_uv [BACKEND [STEPS [PATIENCE_MS]]]
 *
 * As event_loop_epoll: each task works STEPS steps under its lock; the last one wants the lock that the first
 * one has, and gives up after PATIENCE_MS. A task has one timer: its patience, later its steps.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#include "dlock/dlock.h"

#define TASKS 4
#define TICK_MS 20

typedef struct task {
    const char *name;
    enum { WAITS, WORKS, UNLOCKS, ENDED } state;
    int steps;
    dl_status_t result; /* DL_OK: all steps done, and the lock was its own to the end */
    uint64_t op;        /* of its acquire */
    uint64_t hold_id;   /* what that got */
    dl_lock_t *lock;
    uv_timer_t timer;
} task_t;

static task_t tasks[TASKS] = {{.name = "orders"}, {.name = "stock"}, {.name = "prices"}, {.name = "orders"}};
static int steps_wanted = 3, running = TASKS;
static uint64_t patience_ms = 5000;
static dl_queue_t *queue;
static uv_poll_t queue_poll;

static void end(task_t *task, dl_status_t result, const char *why) {
    task->result = task->result == DL_OK ? result : task->result;
    task->state = ENDED;
    printf("task %d, %s: %s %s\n", (int)(task - tasks), task->name, dl_status_name(task->result), why);
    uv_close((uv_handle_t *)&task->timer, NULL);
    if (--running == 0)
        uv_close((uv_handle_t *)&queue_poll, NULL); /* the loop ends with its last handle */
}

static void begin_unlock(task_t *task, dl_status_t result) {
    dl_error_t err;
    uv_timer_stop(&task->timer);
    task->result = result;
    task->state = UNLOCKS;
    if (dl_unlock_begin(task->lock, queue, task, NULL, &err) != DL_OK)
        end(task, err.status, err.message);
}

static void on_patience_over(uv_timer_t *timer) {
    const task_t *task = timer->data;
    (void)dl_op_cancel(queue, task->op); /* its completion says whether that was in time */
}

static void on_step(uv_timer_t *timer) {
    task_t *task = timer->data;
    /* Before each step that matters; local arithmetic. */
    int64_t valid_ms = dl_valid_ms(task->lock);
    if (valid_ms > 0 && task->steps < steps_wanted)
        printf("task %d, %s: step %d, the lock is surely ours for %" PRId64 " ms more\n", (int)(task - tasks),
               task->name, ++task->steps, valid_ms);
    else
        begin_unlock(task, valid_ms > 0 ? DL_OK : DL_ELOST);
}

static void on_completion(const dl_completion_t *done) {
    task_t *task = done->tag;
    if (done->kind == DL_OP_ACQUIRE && done->status == DL_OK) {
        task->state = WORKS;
        task->hold_id = done->hold_id;
        printf("task %d, %s: held with token %" PRIu64 "\n", (int)(task - tasks), task->name, done->token);
        uv_timer_start(&task->timer, on_step, TICK_MS, TICK_MS);
    } else {
        end(task, done->status, done->status != DL_OK ? done->err.message : "");
    }
}

static void on_event(const dl_event_t *event) {
    printf("event: %s: %s\n", event->name[0] ? event->name : "backend", event->text);
    for (task_t *task = tasks; task < tasks + TASKS && event->kind == DL_EVENT_LOST; task++)
        if (task->state == WORKS && task->hold_id == event->hold_id)
            begin_unlock(task, DL_ELOST);
}

static void on_queue(uv_poll_t *poll, int status, int events) {
    dl_completion_t done[16];
    size_t n;
    (void)poll, (void)status, (void)events;
    while ((n = dl_queue_take(queue, done, sizeof done[0], 16)) > 0)
        for (size_t i = 0; i < n; i++)
            if (done[i].kind == DL_OP_EVENT)
                on_event(&done[i].with.event);
            else
                on_completion(&done[i]);
}

/* The owner of a lock is the task, by its number, and not the thread. */
static dl_status_t begin(uv_loop_t *loop, dl_client_t *client, task_t *task, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT; /* waits for ever; renewed in the background */
    dl_status_t status = dl_lock_open_owned(client, task->name, (uint64_t)(task - tasks), &task->lock, err);
    uv_timer_init(loop, &task->timer);
    task->timer.data = task;
    uv_timer_start(&task->timer, on_patience_over, patience_ms, 0);
    return status == DL_OK ? dl_acquire_begin(task->lock, &opts, queue, task, &task->op, err) : status;
}

int main(int argc, char **argv) {
    uv_loop_t *loop = uv_default_loop();
    dl_client_t *client;
    dl_error_t err;
    steps_wanted = argc > 2 ? atoi(argv[2]) : steps_wanted;
    patience_ms = argc > 3 ? strtoull(argv[3], NULL, 10) : patience_ms;
    /* Opening a client asks the server, and waits for it: before the loop, or by uv_queue_work. */
    dl_status_t status = dl_client_open(NULL, argc > 1 ? argv[1] : "local", &client, &err);
    if (status == DL_OK)
        status = dl_queue_new(&queue, &err);
    if (status == DL_OK)
        status = dl_queue_events(queue, client);
    for (task_t *task = tasks; task < tasks + TASKS && status == DL_OK; task++)
        status = begin(loop, client, task, &err);
    if (status != DL_OK) {
        fprintf(stderr, "event_loop_uv: %s: %s\n", dl_status_name(status), err.message);
        return 1;
    }
    uv_poll_init(loop, &queue_poll, dl_queue_fd(queue));
    uv_poll_start(&queue_poll, UV_READABLE, on_queue);
    uv_run(loop, UV_RUN_DEFAULT);
    for (task_t *task = tasks; task < tasks + TASKS; task++) {
        status = status == DL_OK ? task->result : status;
        dl_lock_close(task->lock);
    }
    dl_queue_free(queue);
    dl_client_close(client);
    uv_loop_close(loop);
    return status == DL_OK ? 0 : 1;
}
