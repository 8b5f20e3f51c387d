/* mutex.c - the client's mutex, and what has to be done right after it is released. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

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
}

void dli_tidy(dl_client_t *client) {
    while (has_chores(client) && !punctual) {
        dli_unlock_client(client);
        dli_lock_client(client);
    }
}
