/* housekeeping.c - the housekeeping thread: background frees, and holds of threads that have ended. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

void dli_hear_thread_exit(dli_exit_hook_t *hook) {
    dl_client_t *client = (dl_client_t *)(void *)((char *)hook - offsetof(dl_client_t, exit_hook));
    if (dli_forked(client)) {
        return;
    }
    /* No chores here, such as the user's log function: the hooks' mutex is held, and fork() needs it. */
    pthread_mutex_lock(&client->mutex);
    client->threads_exited = true;
    dli_sys->cond_broadcast(&client->housekeeping_changed);
    pthread_mutex_unlock(&client->mutex);
}

static bool is_orphaned_by_thread(const dli_hold_t *hold) {
    return hold->owner.thread != NULL && atomic_load(&hold->owner.thread->exited);
}

static dli_hold_t *left_behind_at(const dli_gate_t *gate) {
    for (dli_hold_t *hold = gate->lost; hold != NULL; hold = hold->next_lost) {
        if (is_orphaned_by_thread(hold)) {
            return hold;
        }
    }
    dli_hold_t *hold = gate->current;
    return hold != NULL && hold->state == DLI_HOLD_LIVE && is_orphaned_by_thread(hold) ? hold : NULL;
}

/* The next hold, live or lost, whose thread has ended; the search goes on from *bucket. */
static dli_hold_t *find_left_behind(dl_client_t *client, size_t *bucket) {
    for (; *bucket < client->bucket_count; (*bucket)++) {
        for (dli_gate_t *gate = client->buckets[*bucket]; gate != NULL; gate = gate->next_in_bucket) {
            dli_hold_t *hold = left_behind_at(gate);
            if (hold != NULL) {
                return hold;
            }
        }
    }
    return NULL;
}

static void free_one(dl_client_t *client, dli_hold_t *hold) {
    if (hold->state == DLI_HOLD_LOST) {
        dli_hold_end(hold); /* its loss was reported already */
        return;
    }
    dli_hold_ref(hold);
    dl_error_t err;
    dl_status_t status = dli_release(hold, dli_call_deadline(client), &err);
    if (status != DL_ELOST) {
        dli_event_hold(client, hold, DL_EVENT_THREAD_EXITED, status,
                       "the thread that held it has ended; the lock was released");
    }
    dli_hold_unref(hold);
}

/* Passes until one finds nothing: the table may have grown while a release was under way. */
static void free_left_behind(dl_client_t *client) {
    bool found = true;
    while (found) {
        found = false;
        size_t bucket = 0;
        dli_hold_t *hold;
        while (!client->stop_threads && (hold = find_left_behind(client, &bucket)) != NULL) {
            free_one(client, hold);
            found = true;
        }
    }
}

/* True: something was done, look again. *until_ns gets smaller when something is due later. */
static bool work(dl_client_t *client, uint64_t *until_ns) {
    bool worked = false;
    if (client->threads_exited && !client->stop_threads) {
        client->threads_exited = false;
        free_left_behind(client);
        worked = true;
    }
    if (client->orphans.len > 0 && !client->stop_threads) {
        if (client->orphans.at[0]->heap_key_ns <= dli_now()) {
            (void)dli_orphan_try_first(client, dli_call_deadline(client));
            worked = true;
        } else {
            *until_ns = client->orphans.at[0]->heap_key_ns;
        }
    }
    return worked;
}

/* Something came while the mutex was free for tidying. */
static bool has_news(const dl_client_t *client, uint64_t until_ns) {
    return client->threads_exited || client->dead != NULL || client->log_lines != NULL ||
           (client->orphans.len > 0 && client->orphans.at[0]->heap_key_ns < until_ns);
}

void *dli_housekeeping_main(void *arg) {
    dl_client_t *client = arg;
    dli_lock_client(client);
    while (!client->stop_threads) {
        uint64_t until_ns = DLI_NEVER;
        bool worked = work(client, &until_ns);
        dli_tidy(client);
        if (!worked && !client->stop_threads && !has_news(client, until_ns)) {
            (void)dli_sys->cond_wait(&client->housekeeping_changed, &client->mutex, until_ns);
        }
    }
    dli_unlock_client(client);
    return NULL;
}
