/* mutex.c - the client's mutex, and what has to be done right after it is released. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

/* No call is a point of pthread_cancel: a thread that ended inside would leave the mutex locked or its turn
 * in a queue. Counted, because calls lock and unlock the mutex several times. */
static _Thread_local unsigned deep;
static _Thread_local int state_outside;

void dli_no_thread_cancel(void) {
    if (deep++ == 0) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_outside);
    }
}

void dli_thread_cancel_again(void) {
    if (--deep == 0) {
        pthread_setcancelstate(state_outside, NULL);
    }
}

/* The threads that must never be late leave to others what may take long: the user's log function, a
 * driver's drop. */
static _Thread_local bool punctual;

void dli_thread_is_punctual(void) {
    punctual = true;
}

static bool has_chores(const dl_client_t *client) {
    return client->dead != NULL || client->log_lines != NULL;
}

void dli_lock_client(dl_client_t *client) {
    dli_no_thread_cancel();
    pthread_mutex_lock(&client->mutex);
}

static void drop(dl_client_t *client, dli_hold_t *dead) {
    while (dead != NULL) {
        dli_hold_t *hold = dead;
        dead = hold->next_dead;
        if (hold->driver_hold != NULL && hold->attempted) {
            client->driver->drop(client->state, hold->driver_hold);
        }
        free(hold->driver_hold);
        free(hold);
    }
}

void dli_unlock_client(dl_client_t *client) {
    if (has_chores(client) && punctual) {
        dli_sys->cond_broadcast(&client->housekeeping_changed);
    } else if (has_chores(client)) {
        dli_hold_t *dead = client->dead;
        dli_log_line_t *lines = client->log_lines;
        client->dead = NULL;
        client->log_lines = client->log_lines_last = NULL;
        client->busy_outside++; /* the client stays, and its driver stays open, meanwhile */
        pthread_mutex_unlock(&client->mutex);
        dli_log_emit(client, lines);
        drop(client, dead);
        pthread_mutex_lock(&client->mutex);
        if (--client->busy_outside == 0 && client->closing) {
            dli_sys->cond_broadcast(&client->changed);
        }
    }
    pthread_mutex_unlock(&client->mutex);
    dli_thread_cancel_again();
}

void dli_tidy(dl_client_t *client) {
    while (has_chores(client) && !punctual) {
        dli_unlock_client(client);
        dli_lock_client(client);
    }
}
