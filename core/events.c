/* events.c - the stream of events: queued for a descriptor, or handed to a callback. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

/* As many unread events are kept; beyond it the oldest go, and are counted. */
#define QUEUE_MAX 262144u

static void signal_fd(dl_client_t *client) {
    uint64_t one = 1;
    ssize_t n = write(client->event_fd, &one, sizeof one);
    (void)n;
}

static void quiet_fd(dl_client_t *client) {
    uint64_t count;
    ssize_t n = read(client->event_fd, &count, sizeof count);
    (void)n;
}

static dli_event_t *pop(dl_client_t *client) {
    dli_event_t *event = client->events;
    if (event == NULL) {
        return NULL;
    }
    client->events = event->next;
    client->event_count--;
    if (client->events == NULL) {
        client->events_last = NULL;
        if (client->event_fn == NULL) {
            quiet_fd(client);
        }
    }
    return event;
}

static void discard(dli_event_t *event) {
    dli_hold_t *hold = event->hold;
    if (!event->embedded) {
        free(event);
    }
    if (hold != NULL) {
        dli_hold_unref(hold);
    }
}

static void push(dl_client_t *client, dli_event_t *event) {
    if (event->hold != NULL) {
        dli_hold_ref(event->hold);
    }
    event->next = NULL;
    bool first = client->events == NULL;
    if (first) {
        client->events = event;
    } else {
        client->events_last->next = event;
    }
    client->events_last = event;
    if (++client->event_count > QUEUE_MAX) {
        discard(pop(client));
        client->stats.events_dropped++;
    }
    if (client->event_fn != NULL) {
        dli_sys->cond_broadcast(&client->callbacks_changed);
    } else if (first) {
        signal_fd(client);
    }
}

static int64_t valid_ms_now(const dli_hold_t *hold) {
    uint64_t now = dli_now();
    if (hold->state != DLI_HOLD_LIVE || now >= dli_hold_ends_ns(hold)) {
        return 0;
    }
    return (int64_t)((dli_hold_ends_ns(hold) - now) / DLI_NS_PER_MS);
}

void dli_event_lost(dli_hold_t *hold, dl_status_t why, const char *text) {
    hold->lost_event =
        (dli_event_t){.embedded = true, .kind = DL_EVENT_LOST, .status = why, .text = text, .hold = hold};
    push(hold->client, &hold->lost_event);
    dli_log(hold->client, DL_LOG_WARNING, "lost '%s' (hold %llu): %s", hold->gate->name,
            (unsigned long long)hold->hold_id, text);
}

static dli_event_t *new_event(dl_client_t *client, dl_event_kind_t kind, dl_status_t status, dli_hold_t *hold,
                              const char *text) {
    dli_event_t *event = calloc(1, sizeof *event);
    if (event == NULL) {
        client->stats.events_dropped++;
        return NULL;
    }
    event->kind = kind;
    event->status = status;
    event->hold = hold;
    event->valid_ms = hold != NULL ? valid_ms_now(hold) : 0;
    (void)snprintf(event->own_text, sizeof event->own_text, "%s", text);
    event->text = event->own_text;
    return event;
}

void dli_event_hold(dl_client_t *client, dli_hold_t *hold, dl_event_kind_t kind, dl_status_t status,
                    const char *text) {
    dli_event_t *event = new_event(client, kind, status, hold, text);
    if (event != NULL) {
        push(client, event);
    }
    dli_log(client, kind == DL_EVENT_RENEWAL_RECOVERED ? DL_LOG_INFO : DL_LOG_WARNING, "'%s' (hold %llu): %s",
            hold->gate->name, (unsigned long long)hold->hold_id, text);
}

void dli_event_warning(dl_client_t *client, const char *text) {
    dli_event_t *event = new_event(client, DL_EVENT_WARNING, DL_OK, NULL, text);
    if (event != NULL) {
        push(client, event);
    }
}

bool dli_event_take(dl_client_t *client, dl_event_t *out) {
    dli_event_t *event = pop(client);
    if (event == NULL) {
        return false;
    }
    out->kind = event->kind;
    out->status = event->status;
    out->valid_ms = event->valid_ms;
    (void)snprintf(out->text, sizeof out->text, "%s", event->text);
    if (event->hold != NULL) {
        memcpy(out->name, event->hold->gate->name, event->hold->gate->name_len + 1);
        memcpy(out->owner, event->hold->owner_text, sizeof out->owner);
        out->hold_id = event->hold->hold_id;
        out->token = event->hold->token;
    }
    discard(event);
    return true;
}

void dli_events_free(dl_client_t *client) {
    while (client->events != NULL) {
        discard(pop(client));
    }
}

void dli_events_reader_changed(dl_client_t *client) {
    if (client->events == NULL) {
        return;
    }
    if (client->event_fn != NULL) {
        quiet_fd(client);
        dli_sys->cond_broadcast(&client->callbacks_changed);
    } else {
        signal_fd(client);
    }
}

/* ---- the public side --------------------------------------------------------------------------- */

int dl_event_fd(dl_client_t *client) {
    return client == NULL || dli_forked(client) ? -1 : client->event_fd;
}

dl_status_t dl_event_next(dl_client_t *client, dl_event_t *event) {
    DLI_NO_THREAD_CANCEL;
    if (client == NULL || event == NULL || !dli_layout_has(&dli_layout_event, event->size)) {
        return DL_EINVAL;
    }
    if (dli_forked(client)) {
        return DL_EFORKED;
    }
    dl_event_t whole = DL_EVENT_INIT;
    dli_call_enter_always(client);
    dli_lock_client(client);
    bool taken = client->event_fn == NULL && dli_event_take(client, &whole);
    dli_unlock_client(client);
    dli_call_leave_always(client);
    dli_layout_give(event, event->size, &whole);
    return taken ? DL_OK : DL_ETIMEDOUT;
}
