/* close.c - the end of a client: waits end, threads stop, what is held is freed. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "core.h"

bool dli_forked(const dl_client_t *client) {
    return dli_is_inherited(&client->origin);
}

dl_status_t dli_call_enter_always(dl_client_t *client) {
    if (client == NULL || dli_forked(client)) {
        return client == NULL ? DL_EINVAL : DL_EFORKED;
    }
    dli_lock_client(client);
    client->calls++;
    return DL_OK;
}

dl_status_t dli_call_enter(dl_client_t *client) {
    dl_status_t status = dli_call_enter_always(client);
    if (status == DL_OK && client->closing) {
        status = DL_ECLOSED;
        dli_call_leave_and_unlock(client);
    }
    return status;
}

void dli_call_leave(dl_client_t *client) {
    if (--client->calls == 0 && client->closing) {
        dli_sys->cond_broadcast(&client->changed);
    }
}

void dli_call_leave_and_unlock(dl_client_t *client) {
    dli_call_leave(client);
    dli_unlock_client(client);
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

static void close_descriptors(dl_client_t *client) {
    close_fd(&client->event_fd);
    close_fd(&client->loop.wake_fd);
    close_fd(&client->loop.session_epoll_fd);
    close_fd(&client->loop.resume_fd);
}

/* Nobody sleeps any more. */
static void free_descriptors(dl_client_t *client) {
    close_descriptors(client);
    dli_park_free_all(client);
}

void dli_client_free(dl_client_t *client) {
    free_descriptors(client);
    free(client->batch);
    free(client->batch_claims);
    free(client->state);
    pthread_cond_destroy(&client->changed);
    pthread_cond_destroy(&client->callbacks_changed);
    pthread_rwlock_destroy(&client->log_lock);
    pthread_mutex_destroy(&client->mutex);
    free(client);
}

void dli_client_unref_and_unlock(dl_client_t *client) {
    bool last = --client->refs == 0;
    dli_unlock_client(client);
    if (last) {
        dli_client_free(client);
    }
}

/* The other process' sockets, files and mutexes are left alone; what the child cannot free safely stays. */
static void close_forked(dl_client_t *client) {
    client->driver->close(client->state, 1);
    close_descriptors(client);
    /* Free at the instant of the fork, and so what it guards was in order? No other thread exists here. */
    if (pthread_mutex_trylock(&client->mutex) == 0) {
        dli_park_free_all(client);
    }
}

static void end_calls(dl_client_t *client) {
    client->closing = true;
    client->closes_inside = dli_in_callback(client);
    dli_gates_end_watches(client);
    dli_op_poke_all(client, NULL);
    dli_sys->cond_broadcast(&client->changed);
    for (dli_before_wait(client); client->calls > 0; dli_before_wait(client)) {
        (void)dli_sys->cond_wait(&client->changed, &client->mutex, DLI_NEVER);
    }
}

/* Without the mutex. */
static void end_threads(dl_client_t *client) {
    dli_lock_client(client);
    client->stop_threads = true;
    dli_sys->cond_broadcast(&client->callbacks_changed);
    dli_loop_wake(client);
    dli_unlock_client(client);
    if (client->loop.started) {
        dli_sys->thread_join(client->loop.thread);
    }
    dli_workers_stop(client);
}

/* Without the mutex. In a callback its thread cannot join itself: it leaves by its own way. */
static void end_callbacks(dl_client_t *client) {
    if (client->closes_inside) {
        pthread_detach(client->callback_thread);
    } else if (client->callbacks_started) {
        dli_sys->thread_join(client->callback_thread);
    }
}

static void end_holds(dl_client_t *client) {
    dli_gate_t *next;
    /* However long it has waited for calls, each free is sent. */
    client->close_until_ns = dli_max(client->close_until_ns, dli_now() + DLI_GRACE_NS);
    for (dli_gate_t *gate = dli_gate_after(client, NULL); gate != NULL; gate = next) {
        gate->refs++; /* its last hold ends */
        dli_timer_clear(&client->loop.timers, &gate->timer);
        while (!LIST_EMPTY(&gate->lost)) {
            dli_hold_end(LIST_FIRST(&gate->lost));
        }
        if (gate->current != NULL) {
            gate->current->levels = 1;
            dli_hold_give_up_level(gate->current);
        }
        next = dli_gate_after(client, gate);
        dli_gate_unref(gate);
    }
    dli_free_all(client);
}

uint64_t dli_close_until(const dl_client_t *client) {
    return dli_max(client->close_until_ns, client->last_answer_ns + dli_ms(client->call_timeout_ms));
}

void dl_client_close(dl_client_t *client) {
    DLI_NO_THREAD_CANCEL;
    if (client == NULL) {
        return;
    }
    if (dli_forked(client)) {
        close_forked(client);
        return;
    }
    dli_end_calls(dli_thread_known(), client);
    (void)dli_be_punctual(false); /* a call of another client may have been left by a jump */
    client->close_until_ns = dli_call_deadline(client);
    dli_exit_hook_remove(&client->exit_hook);
    dli_lock_client(client);
    end_calls(client);
    dli_unlock_client(client);
    end_threads(client);

    dli_lock_client(client);
    dli_renew_stop(client);
    end_holds(client);
    dli_unlock_client(client);
    end_callbacks(client);

    dli_lock_client(client);
    dli_queue_forget_client(client);
    dli_events_free(client);
    client->event_fn = NULL;
    dli_tidy(client); /* while the driver is still open */
    while (client->calls > 0) {
        (void)dli_sys->cond_wait(&client->changed, &client->mutex, DLI_NEVER);
    }
    dli_unlock_client(client);

    client->driver->close(client->state, 0);

    dli_lock_client(client);
    dli_events_free(client); /* what the driver reported at its end */
    client->closed = true;
    free_descriptors(client); /* handles may stay for long */
    dli_client_unref_and_unlock(client);
}
