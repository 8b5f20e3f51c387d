/* events.c - the stream of events: queued for a descriptor, or handed to a callback. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "core.h"

/* As many unread events are kept; beyond it the oldest go, and are counted. */
#define QUEUE_MAX 262144u
/* Of the text of one that is not a loss, as long as dl_event_t's. */
#define TEXT_SIZE sizeof(((dl_event_t *)0)->text)

void dli_events_show(dl_client_t *client) {
    bool is_shown = !TAILQ_EMPTY(&client->events) && client->event_fn == NULL;
    if (is_shown != client->events_shown) {
        client->events_shown = is_shown;
        (is_shown ? dli_eventfd_raise : dli_eventfd_lower)(client->event_fd);
    }
    if (!TAILQ_EMPTY(&client->events) && client->event_fn != NULL) {
        dli_sys->cond_broadcast(&client->callbacks_changed);
    }
}

static dli_event_t *pop(dl_client_t *client) {
    dli_entry_t *entry = TAILQ_FIRST(&client->events);
    if (entry == NULL) {
        return NULL;
    }
    TAILQ_REMOVE(&client->events, entry, turn);
    client->event_count--;
    dli_events_show(client);
    return (dli_event_t *)(void *)entry;
}

/* Else malloc'ed. */
static bool is_embedded(const dli_event_t *event) {
    return event->hold != NULL && event == &event->hold->lost_event;
}

void dli_event_discard(dli_event_t *event) {
    dli_hold_t *hold = event->hold;
    if (!is_embedded(event)) {
        free(event);
    }
    dli_hold_unref(hold);
}

void dli_event_route(dli_event_t *event) {
    dl_client_t *client = event->client;
    if (client->event_queue == NULL) {
        TAILQ_INSERT_TAIL(&client->events, &event->entry, turn);
        if (++client->event_count > QUEUE_MAX && TAILQ_FIRST(&client->events) != &event->entry) {
            dli_event_discard(pop(client));
            client->stats.events_dropped++;
        }
        dli_events_show(client);
    } else if (is_embedded(event) || client->event_count < QUEUE_MAX) {
        dli_queue_put_event(client->event_queue, event);
    } else {
        dli_event_discard(event);
        client->stats.events_dropped++;
    }
}

/* hold NULL: it is of the client. */
static void push(dli_event_t *event, dl_client_t *client, dli_hold_t *hold) {
    event->entry.is_event = true;
    event->client = client;
    event->hold = hold;
    if (hold != NULL) {
        hold->refs++;
    }
    dli_event_route(event);
}

void dli_event_lost(dli_hold_t *hold, dl_status_t why, const char *text) {
    hold->lost_event = (dli_event_t){.kind = DL_EVENT_LOST, .status = why, .text = text};
    push(&hold->lost_event, hold->gate->client, hold);
    dli_log(hold->gate->client, DL_LOG_WARNING, "lost '%s' (hold %llu): %s", hold->gate->name,
            (unsigned long long)hold->hold_id, text);
}

static void push_new(dl_client_t *client, dli_hold_t *hold, dl_event_kind_t kind, dl_status_t status,
                     const char *text) {
    dli_event_t *event = calloc(1, sizeof *event + TEXT_SIZE);
    if (event == NULL) {
        client->stats.events_dropped++;
        return;
    }
    char *copy = (char *)(event + 1);
    (void)snprintf(copy, TEXT_SIZE, "%s", text);
    event->kind = kind;
    event->status = status;
    event->text = copy;
    event->valid_ms = hold != NULL ? dli_hold_valid_ms(hold) : 0;
    push(event, client, hold);
}

void dli_event_hold(dli_hold_t *hold, dl_event_kind_t kind, dl_status_t status, const char *text) {
    dl_client_t *client = hold->gate->client;
    push_new(client, hold, kind, status, text);
    dli_log(client, kind == DL_EVENT_RENEWAL_RECOVERED ? DL_LOG_INFO : DL_LOG_WARNING, "'%s' (hold %llu): %s",
            hold->gate->name, (unsigned long long)hold->hold_id, text);
}

void dli_event_warning(dl_client_t *client, const char *text) {
    push_new(client, NULL, DL_EVENT_WARNING, DL_OK, text);
}

void dli_event_give(dli_event_t *event, dl_event_t *out) {
    out->kind = event->kind;
    out->status = event->status;
    out->valid_ms = event->valid_ms;
    (void)snprintf(out->text, sizeof out->text, "%s", event->text);
    const dli_hold_t *hold = event->hold;
    if (hold != NULL) {
        memcpy(out->name, hold->gate->name, hold->gate->name_len + 1);
        dli_owner_text(&hold->owner, event->client->uuid, out->owner);
        out->hold_id = hold->hold_id;
        out->token = hold->token;
    }
    dli_event_discard(event);
}

bool dli_event_take(dl_client_t *client, dl_event_t *out) {
    dli_event_t *event = pop(client);
    if (event != NULL) {
        dli_event_give(event, out);
    }
    return event != NULL;
}

void dli_events_free(dl_client_t *client) {
    while (!TAILQ_EMPTY(&client->events)) {
        dli_event_discard(pop(client));
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
    dl_status_t status = dli_call_enter_always(client);
    if (status != DL_OK) {
        return status;
    }
    dl_event_t whole = DL_EVENT_INIT;
    bool taken = client->event_fn == NULL && dli_event_take(client, &whole);
    dli_call_leave_and_unlock(client);
    dli_layout_give(event, event->size, &whole);
    return taken ? DL_OK : DL_ETIMEDOUT;
}
