/* mutex.c - the client's mutex, and what has to be done right after it is released. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* Threads that must never be late, and calls that must not block, leave to others what may take long: the
 * user's log function, a driver's drop. */
static _Thread_local bool punctual;

bool dli_be_punctual(bool now) {
    bool before = punctual;
    punctual = now;
    return before;
}

void dli_punctual_as_before(const bool *before) {
    punctual = *before;
}

bool dli_has_chores(const dl_client_t *client) {
    return client->dead != NULL || client->log_lines != NULL;
}

void dli_lock_client(dl_client_t *client) {
    pthread_mutex_lock(&client->mutex);
}

/* The words may be gone by then: waking one does not touch it. */
void dli_release_for_a_moment(dl_client_t *client) {
    atomic_uint *wakes[DLI_WAKES_MAX];
    size_t n = client->wake_count;
    memcpy(wakes, client->wakes, n * sizeof wakes[0]);
    client->wake_count = 0;
    pthread_mutex_unlock(&client->mutex);
    for (size_t i = 0; i < n; i++) {
        dli_sys->word_wake(wakes[i]);
    }
}

/* Before the mutex is released: after that its descriptor may be closed. Not when it is let go for a system
 * call of a backend, so that the loop finds its request sent. */
static void wake_loop(dl_client_t *client) {
    if (client->loop.is_woken) {
        client->loop.is_woken = false;
        dli_eventfd_raise(client->loop.wake_fd);
    }
}

void dli_release_client(dl_client_t *client) {
    wake_loop(client);
    dli_release_for_a_moment(client);
}

static void drop(dl_client_t *client, dli_claim_t *dead) {
    while (dead != NULL) {
        dli_claim_t *claim = dead;
        dead = claim->next_due;
        client->driver->drop(client->state, (char *)claim + DLI_HOLD_AT);
        free(claim);
    }
}

/* A backend's drop waits for nothing. */
static bool has_chores_here(const dl_client_t *client) {
    return punctual ? client->dead != NULL && client->inner != NULL : dli_has_chores(client);
}

static void do_chores(dl_client_t *client) {
    dli_claim_t *dead = client->dead;
    dli_log_line_t *lines = punctual ? NULL : client->log_lines;
    client->dead = NULL;
    if (lines != NULL) {
        client->log_lines = client->log_lines_last = NULL;
    }
    dli_release_client(client);
    dli_log_emit(client, lines);
    drop(client, dead);
    pthread_mutex_lock(&client->mutex);
}

/* What waits for nothing, and is done by every thread. */
static bool has_calls(const dl_client_t *client) {
    return client->to_flush || client->unwatch != NULL;
}

void dli_wake_first(dl_client_t *client) {
    if (client->wake_count > 0) {
        dli_release_client(client);
        pthread_mutex_lock(&client->mutex);
    }
}

/* The client that counts this thread among its calls while it wakes others. */
static _Thread_local dl_client_t *waking;

static void wake_outside(dl_client_t *client) {
    dl_client_t *left = waking; /* by a jump: that client stays until this thread ends it */
    client->calls -= left == client;
    waking = left == NULL ? client : left;
    dli_wake_first(client);
    waking = waking == client ? NULL : left;
}

void dli_end_waking(const dl_client_t *client) {
    dl_client_t *left = waking;
    if (left != NULL && (client == NULL || left == client) && !dli_forked(left)) {
        waking = NULL;
        dli_lock_client(left);
        dli_call_leave(left);
        dli_unlock_client(left);
    }
}

void dli_tidy(dl_client_t *client) {
    dli_run_ready(client);
    while (has_calls(client) || has_chores_here(client)) {
        client->calls++; /* the client stays, and its driver stays open, meanwhile */
        if (client->to_flush) {
            dli_requests_flush(client);
        }
        if (client->unwatch != NULL || has_chores_here(client)) {
            wake_outside(client);
        }
        if (client->unwatch != NULL) {
            dli_gate_unwatch_next(client);
        } else if (has_chores_here(client)) {
            do_chores(client);
        }
        dli_call_leave(client);
        dli_run_ready(client);
    }
    if (dli_has_chores(client)) {
        dli_lane_chores(client);
    }
}

void dli_unlock_client(dl_client_t *client) {
    dli_tidy(client);
    dli_release_client(client);
}

void dli_before_wait(dl_client_t *client) {
    dli_run_ready(client);
    if ((has_calls(client) || client->dead != NULL) && client->inner != NULL) {
        dli_loop_wake(client); /* what has begun waits for no worker */
    } else if (has_calls(client) || dli_has_chores(client)) {
        dli_lane_chores(client);
    }
    wake_loop(client);
    while (client->wake_count > 0) {
        dli_sys->word_wake(client->wakes[--client->wake_count]);
    }
}

void dli_unlock_client_at_once(dl_client_t *client) {
    dli_before_wait(client);
    dli_release_client(client);
}
