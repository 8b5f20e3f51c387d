/* callbacks.c - the thread that hands events to the user's function; started with the first one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

static void run_callback(dl_client_t *client) {
    dl_event_t event = DL_EVENT_INIT;
    (void)dli_event_take(client, &event); /* one waits */
    dl_event_fn fn = client->event_fn;
    void *arg = client->event_arg;
    client->callback_running = true;
    dli_unlock_client(client);
    fn(arg, &event);
    dli_lock_client(client);
    client->callback_running = false;
    dli_sys->cond_broadcast(&client->changed);
}

/* A thread of its own: a free that hangs must not delay the news of a loss, nor a slow callback a free. */
static void *callbacks_main(void *arg) {
    dl_client_t *client = arg;
    dli_lock_client(client);
    while (!client->stop_threads) {
        dli_tidy(client);
        if (client->event_fn != NULL && !TAILQ_EMPTY(&client->events) && client->callback_changers == 0) {
            run_callback(client);
        } else if (!client->stop_threads) {
            dli_before_wait(client);
            (void)dli_sys->cond_wait(&client->callbacks_changed, &client->mutex, DLI_NEVER);
        }
    }
    dli_client_unref_and_unlock(client);
    return NULL;
}

bool dli_in_callback(const dl_client_t *client) {
    return client->callback_running && pthread_equal(pthread_self(), client->callback_thread);
}

static dl_status_t start_thread(dl_client_t *client) {
    if (client->callbacks_started) {
        return DL_OK;
    }
    client->refs++; /* the thread's own */
    if (dli_sys->thread_start(&client->callback_thread, callbacks_main, client) != 0) {
        client->refs--;
        return DL_ELIMIT;
    }
    client->callbacks_started = true;
    return DL_OK;
}

/* Meanwhile no other callback begins, however many events there are. False: it closes the client, and so
 * waits for this call. */
static bool wait_for_the_old_one(dl_client_t *client) {
    client->callback_changers++;
    while (client->callback_running && !client->closes_inside && !dli_in_callback(client)) {
        (void)dli_sys->cond_wait(&client->changed, &client->mutex, DLI_NEVER);
    }
    if (--client->callback_changers == 0) {
        dli_sys->cond_broadcast(&client->callbacks_changed);
    }
    return !client->closes_inside || dli_in_callback(client);
}

dl_status_t dl_client_on_event(dl_client_t *client, dl_event_fn fn, void *arg) {
    DLI_NO_THREAD_CANCEL;
    dl_status_t status = dli_call_enter(client);
    if (status != DL_OK) {
        return status;
    }
    bool is_over = wait_for_the_old_one(client);
    status = !is_over ? DL_ECLOSED : fn != NULL ? start_thread(client) : DL_OK;
    if (status == DL_OK) {
        if (fn != NULL) {
            dli_queue_leave(client);
        }
        client->event_fn = fn;
        client->event_arg = arg;
        dli_events_show(client);
    }
    dli_call_leave_and_unlock(client);
    return status;
}
