/* guard.c - the thread that shuts down sockets whose calls are over time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "guard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct dli_mysql_guard {
    const dl_driver_env_t *env;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t cond;
    dli_mysql_guarded_t *armed;
    uint64_t wakes_ns; /* when the thread looks again at the latest */
    bool is_closing;
};

static void take_out(dli_mysql_guarded_t *call) {
    if (call->link != NULL) {
        *call->link = call->next;
        if (call->next != NULL) {
            call->next->link = call->link;
        }
        call->link = NULL;
    }
}

/* With the mutex held: nobody can have disarmed, and then closed, what is shut down here. */
static void end_late(dli_mysql_guard_t *guard) {
    uint64_t now = guard->env->now_ns();
    dli_mysql_guarded_t *next;
    guard->wakes_ns = DL_NO_DEADLINE;
    for (dli_mysql_guarded_t *call = guard->armed; call != NULL; call = next) {
        next = call->next;
        if (call->deadline_ns <= now) {
            (void)shutdown(call->fd, SHUT_RDWR);
            call->ended = 1;
            take_out(call);
        } else if (call->deadline_ns < guard->wakes_ns) {
            guard->wakes_ns = call->deadline_ns;
        }
    }
}

static void *run(void *arg) {
    dli_mysql_guard_t *guard = arg;
    pthread_mutex_lock(&guard->mutex);
    while (!guard->is_closing) {
        /* Woken for a call that is due earlier, it only sleeps less. Looking at calls then, it would mostly
         * find that one answered, forget the plan, and be woken by the next. */
        if (guard->env->now_ns() >= guard->wakes_ns) {
            end_late(guard);
        }
        guard->env->cond_wait(&guard->cond, &guard->mutex, guard->wakes_ns);
    }
    pthread_mutex_unlock(&guard->mutex);
    return NULL;
}

static void destroy(dli_mysql_guard_t *guard) {
    pthread_cond_destroy(&guard->cond);
    pthread_mutex_destroy(&guard->mutex);
    free(guard);
}

dl_status_t dli_mysql_guard_open(const dl_driver_env_t *env, dli_mysql_guard_t **guard, dl_error_t *err) {
    dli_mysql_guard_t *made = calloc(1, sizeof *made);
    *guard = NULL;
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    made->env = env;
    made->wakes_ns = DL_NO_DEADLINE;
    pthread_mutex_init(&made->mutex, NULL);
    env->cond_init(&made->cond);
    /* Not at the first call that needs it: what is held must not depend on a thread that cannot be had. */
    int rc = env->thread_start(&made->thread, run, made);
    if (rc != 0) {
        destroy(made);
        return dl_driver_fail(err, DL_ELIMIT, rc, "no thread for deadlines: %s", strerror(rc));
    }
    *guard = made;
    return DL_OK;
}

void dli_mysql_guard_close(dli_mysql_guard_t *guard, bool forked) {
    if (guard == NULL) {
        return;
    }
    if (forked) {
        free(guard); /* the mutex may be held by a thread that is not here */
        return;
    }
    pthread_mutex_lock(&guard->mutex);
    guard->is_closing = true;
    guard->env->cond_broadcast(&guard->cond);
    pthread_mutex_unlock(&guard->mutex);
    guard->env->thread_join(guard->thread);
    destroy(guard);
}

void dli_mysql_guard_arm(dli_mysql_guard_t *guard, dli_mysql_guarded_t *call) {
    call->ended = 0;
    pthread_mutex_lock(&guard->mutex);
    call->next = guard->armed;
    call->link = &guard->armed;
    if (call->next != NULL) {
        call->next->link = &call->next;
    }
    guard->armed = call;
    if (call->deadline_ns < guard->wakes_ns) {
        guard->wakes_ns = call->deadline_ns;
        guard->env->cond_broadcast(&guard->cond);
    }
    pthread_mutex_unlock(&guard->mutex);
}

bool dli_mysql_guard_disarm(dli_mysql_guard_t *guard, dli_mysql_guarded_t *call) {
    pthread_mutex_lock(&guard->mutex);
    take_out(call);
    bool ended = call->ended != 0;
    pthread_mutex_unlock(&guard->mutex);
    return ended;
}
