/* event_loop_epoll.c - tasks of one thread hold locks: epoll watches a queue of the library. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: event_loop_epoll [BACKEND [STEPS [PATIENCE_MS]]]
 *
 * Each task works STEPS steps under its lock, one at each tick. The last one wants the lock that the first
 * one has: it waits, and after PATIENCE_MS gives up. No call here waits, whatever the server does.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

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
} task_t;

static task_t tasks[TASKS] = {{.name = "orders"}, {.name = "stock"}, {.name = "prices"}, {.name = "orders"}};
static int steps_wanted = 3;
static long patience_ms = 5000;
static dl_queue_t *queue;

static void end(task_t *task, dl_status_t result, const char *why) {
    task->result = task->result == DL_OK ? result : task->result;
    task->state = ENDED;
    printf("task %d, %s: %s %s\n", (int)(task - tasks), task->name, dl_status_name(task->result), why);
}

static void begin_unlock(task_t *task, dl_status_t result) {
    dl_error_t err;
    task->result = result;
    task->state = UNLOCKS;
    if (dl_unlock_begin(task->lock, queue, task, NULL, &err) != DL_OK)
        end(task, err.status, err.message);
}

/* What was begun has ended; `tag` is the task. */
static void on_completion(const dl_completion_t *done) {
    task_t *task = done->tag;
    if (done->kind == DL_OP_ACQUIRE && done->status == DL_OK) {
        task->state = WORKS;
        task->hold_id = done->hold_id;
        printf("task %d, %s: held with token %" PRIu64 "\n", (int)(task - tasks), task->name, done->token);
    } else {
        end(task, done->status, done->status != DL_OK ? done->err.message : "");
    }
}

/* Losses come out of the queue too, behind the completion that told of the lock. */
static void on_event(const dl_event_t *event) {
    printf("event: %s: %s\n", event->name[0] ? event->name : "backend", event->text);
    for (task_t *task = tasks; task < tasks + TASKS && event->kind == DL_EVENT_LOST; task++)
        if (task->state == WORKS && task->hold_id == event->hold_id)
            begin_unlock(task, DL_ELOST);
}

static void on_queue(void) {
    dl_completion_t done[16];
    size_t n;
    while ((n = dl_queue_take(queue, done, sizeof done[0], 16)) > 0)
        for (size_t i = 0; i < n; i++)
            if (done[i].kind == DL_OP_EVENT)
                on_event(&done[i].with.event);
            else
                on_completion(&done[i]);
}

static void on_tick(task_t *task, long passed_ms) {
    if (task->state == WAITS && passed_ms >= patience_ms)
        (void)dl_op_cancel(queue, task->op); /* its completion says whether that was in time */
    if (task->state != WORKS)
        return;
    /* Before each step that matters; local arithmetic. */
    int64_t valid_ms = dl_valid_ms(task->lock);
    if (valid_ms > 0 && task->steps < steps_wanted)
        printf("task %d, %s: step %d, the lock is surely ours for %" PRId64 " ms more\n", (int)(task - tasks),
               task->name, ++task->steps, valid_ms);
    else
        begin_unlock(task, valid_ms > 0 ? DL_OK : DL_ELOST);
}

static int is_running(void) {
    int running = 0;
    for (const task_t *task = tasks; task < tasks + TASKS; task++)
        running += task->state != ENDED;
    return running;
}

static void loop(int epoll, int timer) {
    for (long passed_ms = 0; is_running();) {
        struct epoll_event ready;
        uint64_t ticks;
        if (epoll_wait(epoll, &ready, 1, -1) < 1)
            continue; /* only EINTR is possible here */
        if (ready.data.fd != timer) {
            on_queue();
        } else if (read(timer, &ticks, sizeof ticks) == (ssize_t)sizeof ticks) {
            passed_ms += (long)ticks * TICK_MS;
            for (task_t *task = tasks; task < tasks + TASKS; task++)
                on_tick(task, passed_ms);
        }
    }
}

static int open_loop(int *timer) {
    const struct timespec tick = {0, TICK_MS * 1000000};
    const struct itimerspec every = {tick, tick};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int fds[2] = {timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK), dl_queue_fd(queue)};
    for (int i = 0; i < 2; i++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &wanted) != 0)
            return -1;
    }
    *timer = fds[0];
    return timerfd_settime(fds[0], 0, &every, NULL) == 0 ? epoll : -1;
}

/* The owner of a lock is the task, by its number, and not the thread. */
static dl_status_t begin(dl_client_t *client, task_t *task, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT; /* waits for ever; renewed in the background */
    dl_status_t status = dl_lock_open_owned(client, task->name, (uint64_t)(task - tasks), &task->lock, err);
    return status == DL_OK ? dl_acquire_begin(task->lock, &opts, queue, task, &task->op, err) : status;
}

int main(int argc, char **argv) {
    dl_client_t *client;
    dl_error_t err;
    int timer, epoll;
    steps_wanted = argc > 2 ? atoi(argv[2]) : steps_wanted;
    patience_ms = argc > 3 ? atol(argv[3]) : patience_ms;
    /* Opening a client asks the server, and waits for it: before the loop, or on another thread. */
    dl_status_t status = dl_client_open(NULL, argc > 1 ? argv[1] : "local", &client, &err);
    if (status == DL_OK)
        status = dl_queue_new(&queue, &err);
    if (status == DL_OK)
        status = dl_queue_events(queue, client);
    for (task_t *task = tasks; task < tasks + TASKS && status == DL_OK; task++)
        status = begin(client, task, &err);
    if (status != DL_OK) {
        fprintf(stderr, "event_loop_epoll: %s: %s\n", dl_status_name(status), err.message);
        return 1;
    }
    if ((epoll = open_loop(&timer)) < 0) {
        perror("event_loop_epoll");
        return 1;
    }
    loop(epoll, timer);
    for (task_t *task = tasks; task < tasks + TASKS; task++) {
        status = status == DL_OK ? task->result : status;
        dl_lock_close(task->lock);
    }
    dl_queue_free(queue);
    dl_client_close(client);
    close(epoll);
    close(timer);
    return status == DL_OK ? 0 : 1;
}
