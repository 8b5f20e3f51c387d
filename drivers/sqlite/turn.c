/* turn.c - a lock with a deadline: whose turn it is to use a connection. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

/* A free turn goes to whoever asks first, which keeps a running thread running. A waiter that has been passed
 * over for this long gets the turn kept. */
#define PATIENCE_NS (2 * (uint64_t)NS_PER_MS)
/* A condition cannot be waited for together with a descriptor, so that a cancel is looked for this often. And
 * a turn is kept for this long: the thread that it is kept for need not be running. */
#define LOOK_EVERY_NS (20 * (uint64_t)NS_PER_MS)

void dli_turn_init(dli_turn_t *turn) {
    *turn = (dli_turn_t){.taken = false};
    pthread_mutex_init(&turn->mutex, NULL);
}

static void enqueue(dli_turn_t *turn, dli_waiter_t *waiter) {
    waiter->queued = true;
    waiter->next = NULL;
    if (turn->last != NULL) {
        turn->last->next = waiter;
    } else {
        turn->first = waiter;
    }
    turn->last = waiter;
}

static void dequeue(dli_turn_t *turn, dli_waiter_t *waiter) {
    waiter->queued = false;
    dli_waiter_t *before = NULL;
    for (dli_waiter_t *w = turn->first; w != waiter; w = w->next) {
        before = w;
    }
    if (before != NULL) {
        before->next = waiter->next;
    } else {
        turn->first = waiter->next;
    }
    if (turn->last == waiter) {
        turn->last = before;
    }
}

/* With the mutex held. `me` is NULL, or queued; then it is in the queue no more. */
static bool get(dli_turn_t *turn, dli_waiter_t *me, const dl_driver_env_t *env) {
    if (turn->taken) {
        return false;
    }
    dli_waiter_t *first = turn->first;
    if (turn->kept_until_ns != 0 && first != NULL && first != me) {
        if (env->now_ns() < turn->kept_until_ns) {
            return false;
        }
        dequeue(turn, first);
    }
    if (me != NULL) {
        dequeue(turn, me);
    }
    turn->taken = true;
    turn->kept_until_ns = 0;
    return true;
}

/* The same for one that may have come too late, and then queues again. */
static bool get_late(dli_turn_t *turn, dli_waiter_t *me, const dl_driver_env_t *env) {
    if (!me->queued) {
        enqueue(turn, me);
    }
    return get(turn, me, env);
}

/* With the mutex held. Ends with the turn taken or the waiter gone from the queue. */
static dl_status_t wait_for(dli_turn_t *turn, dli_waiter_t *me, const dl_driver_env_t *env,
                            uint64_t deadline_ns, const dl_stop_t *stop) {
    for (;;) {
        uint64_t look_ns = env->now_ns() + LOOK_EVERY_NS;
        env->cond_wait(&me->cond, &turn->mutex, look_ns < deadline_ns ? look_ns : deadline_ns);
        if (get_late(turn, me, env)) {
            return DL_OK;
        }
        pthread_mutex_unlock(&turn->mutex);
        dl_status_t status = DL_OK;
        if (stop != NULL && dli_stop_wait(env, stop, 0)) {
            status = DL_ECANCELED;
        } else if (env->now_ns() >= deadline_ns) {
            status = DL_ETIMEDOUT;
        }
        pthread_mutex_lock(&turn->mutex);
        if (get_late(turn, me, env)) {
            return DL_OK;
        }
        if (status != DL_OK) {
            dequeue(turn, me);
            return status;
        }
    }
}

dl_status_t dli_turn_take(dli_turn_t *turn, const dl_driver_env_t *env, uint64_t deadline_ns,
                          const dl_stop_t *stop) {
    dl_status_t status = DL_OK;
    pthread_mutex_lock(&turn->mutex);
    if (!get(turn, NULL, env)) {
        dli_waiter_t me = {.since_ns = env->now_ns()};
        env->cond_init(&me.cond);
        enqueue(turn, &me);
        status = wait_for(turn, &me, env, deadline_ns, stop);
        pthread_cond_destroy(&me.cond);
    }
    pthread_mutex_unlock(&turn->mutex);
    return status;
}

bool dli_turn_try(dli_turn_t *turn) {
    pthread_mutex_lock(&turn->mutex);
    bool got = !turn->taken && turn->kept_until_ns == 0;
    turn->taken |= got;
    pthread_mutex_unlock(&turn->mutex);
    return got;
}

void dli_turn_give(dli_turn_t *turn, const dl_driver_env_t *env) {
    pthread_mutex_lock(&turn->mutex);
    dli_waiter_t *first = turn->first;
    turn->taken = false;
    if (first != NULL) {
        uint64_t now_ns = env->now_ns();
        turn->kept_until_ns = now_ns - first->since_ns > PATIENCE_NS ? now_ns + LOOK_EVERY_NS : 0;
        env->cond_broadcast(&first->cond);
    }
    pthread_mutex_unlock(&turn->mutex);
}
