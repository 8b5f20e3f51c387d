/* hearing.c - what a subscriber says to the server, and what its answers and messages mean. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hearing.h"

/* Channels of one SUBSCRIBE. */
#define CHUNK 256
#define FIRST_DUES 64

/* ---- pending answers -------------------------------------------------------------------------------- */

static bool grow(dli_dues_t *dues) {
    size_t cap = dues->cap == 0 ? FIRST_DUES : dues->cap * 2;
    dli_due_t *ring = malloc(cap * sizeof *ring);
    if (ring == NULL) {
        return false;
    }
    for (size_t i = 0; i < dues->len; i++) {
        ring[i] = dues->ring[(dues->at + i) & (dues->cap - 1)];
    }
    free(dues->ring);
    *dues = (dli_dues_t){.ring = ring, .cap = cap, .len = dues->len};
    return true;
}

/* false: out of memory. */
static bool push(dli_dues_t *dues, dli_due_t due) {
    if (dues->len == dues->cap && !grow(dues)) {
        return false;
    }
    dues->ring[(dues->at + dues->len++) & (dues->cap - 1)] = due;
    return true;
}

/* The oldest; there is one. */
static dli_due_t pop(dli_dues_t *dues) {
    dli_due_t due = dues->ring[dues->at];
    dues->at = (dues->at + 1) & (dues->cap - 1);
    dues->len--;
    return due;
}

/* ---- saying: the mutex is held ---------------------------------------------------------------------- */

/* Notes in the commands that memory is missing, if it is. */
static void expect(dli_subscriber_t *s, dli_due_t due) {
    if (s->dues.len == 0) {
        s->asked_ns = s->env->now_ns();
    }
    if (!push(&s->dues, due)) {
        s->commands.out_of_memory = true;
    } else if (due.channel != NULL) {
        due.channel->due++;
    }
}

static dli_slice_t name_of(const dli_channel_t *channel) {
    return (dli_slice_t){channel->name, channel->len};
}

/* One SUBSCRIBE for the oldest that are wanted. A refusal hits all of a command, so who was refused among
 * others is asked for alone. */
static void say_subscribe(dli_subscriber_t *s) {
    dli_slice_t argv[CHUNK + 1] = {dli_slice("SUBSCRIBE")};
    dli_channel_t *chosen[CHUNK];
    size_t n = 0;
    dli_channel_t *channel;
    while (n < CHUNK && (channel = s->channels.wanted.first) != NULL) {
        if (channel->alone && n > 0) {
            break;
        }
        dli_channels_move(&s->channels, channel, DLI_CHANNEL_ASKED);
        channel->is_subscribed = true;
        chosen[n++] = channel;
        argv[n] = name_of(channel);
        if (channel->alone) {
            break;
        }
    }
    dli_commands_add(&s->commands, n + 1, argv);
    for (size_t i = 0; i < n; i++) {
        expect(s, (dli_due_t){DLI_DUE_SUBSCRIBE, chosen[i], n - i});
    }
}

static void say_unsubscribe(dli_subscriber_t *s, dli_channel_t *channel) {
    dli_channels_move(&s->channels, channel, DLI_CHANNEL_LEAVING);
    channel->is_subscribed = false;
    dli_commands_add(&s->commands, 2, (dli_slice_t[]){dli_slice("UNSUBSCRIBE"), name_of(channel)});
    expect(s, (dli_due_t){DLI_DUE_UNSUBSCRIBE, channel, 1});
}

void dli_hearing_speak(dli_subscriber_t *s, uint64_t now) {
    while (s->channels.unwanted.first != NULL) {
        say_unsubscribe(s, s->channels.unwanted.first);
    }
    while (s->channels.wanted.first != NULL) {
        say_subscribe(s);
    }
    if (s->channels.count > 0 && s->dues.len == 0 && s->heard_ns + DLI_QUIET_NS <= now) {
        dli_commands_add_words(&s->commands, "PING", (char *)NULL);
        expect(s, (dli_due_t){DLI_DUE_PING, NULL, 1});
    }
}

/* ---- hearing: the mutex is held --------------------------------------------------------------------- */

static bool is_text(const redisReply *reply, const char *text) {
    return (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS) &&
           strlen(text) == reply->len && strncasecmp(reply->str, text, reply->len) == 0;
}

/* Takes the oldest answer off the queue. A channel that is left with nothing is forgotten. True: the answer
 * is the last word on its channel; while more are due, a later command will change what it says. */
static bool settle(dli_subscriber_t *s, dli_due_t *due) {
    *due = pop(&s->dues);
    dli_channel_t *channel = due->channel;
    if (channel == NULL || --channel->due > 0) {
        return false;
    }
    if (channel->state == DLI_CHANNEL_LEAVING) {
        dli_channels_forget(&s->channels, channel);
        return false;
    }
    return channel->state == DLI_CHANNEL_ASKED;
}

static void hear_refusal(dli_subscriber_t *s, const redisReply *reply) {
    dli_due_t due;
    size_t together = s->dues.ring[s->dues.at].rest;
    for (size_t i = 0; i < together; i++) {
        if (!settle(s, &due) || due.kind != DLI_DUE_SUBSCRIBE) {
            continue;
        }
        if (together == 1) {
            (void)dl_driver_fail(&s->why, DL_ENOTSUP, 0, "%s", reply->str);
            s->refused = true;
            dli_channels_refuse(&s->channels, due.channel);
        } else if (LIST_EMPTY(&due.channel->watchers)) {
            dli_channels_forget(&s->channels, due.channel);
        } else {
            due.channel->alone = true;
            dli_channels_move(&s->channels, due.channel, DLI_CHANNEL_WANTED);
        }
    }
}

static dl_status_t hear_error(dli_subscriber_t *s, const redisReply *reply, dl_error_t *err) {
    if (s->dues.len == 0) {
        return dli_reply_fail(reply, err);
    }
    dli_due_t due = s->dues.ring[s->dues.at];
    if (due.kind != DLI_DUE_SUBSCRIBE) {
        (void)settle(s, &due); /* a server that refuses a PING lives, too */
        return DL_OK;
    }
    if (!dli_reply_is_error(reply, "NOPERM") && !dli_reply_is_error(reply, "ERR")) {
        return dli_reply_fail(reply, err); /* such as BUSY: it may pass */
    }
    hear_refusal(s, reply);
    return DL_OK;
}

static void hear_message(dli_subscriber_t *s, const redisReply *name) {
    dli_channel_t *channel = dli_channels_find(&s->channels, name->str, name->len);
    if (channel != NULL && channel->state == DLI_CHANNEL_LIVE) {
        dli_channels_tell(&s->channels, channel);
    }
}

/* The confirmation of a SUBSCRIBE or an UNSUBSCRIBE: it has to be about the channel whose turn it is. */
static dl_status_t hear_confirmation(dli_subscriber_t *s, dli_due_kind_t kind, const redisReply *reply,
                                     dl_error_t *err) {
    const redisReply *name = reply->element[1];
    dli_due_t due = s->dues.len > 0 ? s->dues.ring[s->dues.at] : (dli_due_t){0};
    if (due.kind != kind || due.channel == NULL || due.channel->len != name->len ||
        memcmp(due.channel->name, name->str, name->len) != 0) {
        return dli_reply_unexpected(reply, "a subscription", err);
    }
    if (settle(s, &due) && kind == DLI_DUE_SUBSCRIBE) {
        due.channel->alone = false;
        dli_channels_tell(&s->channels, due.channel); /* something may have been missed before */
    }
    return DL_OK;
}

static dl_status_t hear_pong(dli_subscriber_t *s, const redisReply *reply, dl_error_t *err) {
    dli_due_t due;
    if (s->dues.len == 0 || s->dues.ring[s->dues.at].kind != DLI_DUE_PING) {
        return dli_reply_unexpected(reply, "PING", err);
    }
    (void)settle(s, &due);
    return DL_OK;
}

dl_status_t dli_hearing_hear(dli_subscriber_t *s, const redisReply *reply, dl_error_t *err) {
    s->heard_ns = s->asked_ns = s->env->now_ns();
    if (reply->type == REDIS_REPLY_ERROR) {
        return hear_error(s, reply, err);
    }
    if (is_text(reply, "PONG")) {
        return hear_pong(s, reply, err);
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 2) {
        return dli_reply_unexpected(reply, "a subscription", err);
    }
    const redisReply *kind = reply->element[0];
    if (reply->elements == 2 && is_text(kind, "pong")) {
        return hear_pong(s, reply, err);
    }
    if (reply->elements != 3 || reply->element[1]->type != REDIS_REPLY_STRING) {
        return dli_reply_unexpected(reply, "a subscription", err);
    }
    if (is_text(kind, "message")) {
        hear_message(s, reply->element[1]);
        return DL_OK;
    }
    if (is_text(kind, "subscribe")) {
        return hear_confirmation(s, DLI_DUE_SUBSCRIBE, reply, err);
    }
    return is_text(kind, "unsubscribe") ? hear_confirmation(s, DLI_DUE_UNSUBSCRIBE, reply, err)
                                        : dli_reply_unexpected(reply, "a subscription", err);
}
