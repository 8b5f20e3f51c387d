/* hearing.c - the channels of a subscriber, what it says to the server, and what the answers mean. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "hearing.h"

#include <stdlib.h>
#include <string.h>

/* ---- channels --------------------------------------------------------------------------------------- */

/* By FNV-1a. */
static struct dli_channel_bucket *bucket_of(dli_subscriber_t *s, const char *name, size_t len) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    }
    return &s->buckets[(hash ^ hash >> 16) % DLI_CHANNEL_BUCKETS];
}

static bool is_named(const dli_channel_t *channel, const char *name, size_t len) {
    return channel->len == len && memcmp(channel->name, name, len) == 0;
}

static dli_channel_t *find(dli_subscriber_t *s, const char *name, size_t len) {
    dli_channel_t *channel = LIST_FIRST(bucket_of(s, name, len));
    while (channel != NULL && !is_named(channel, name, len)) {
        channel = LIST_NEXT(channel, of_bucket);
    }
    return channel;
}

static void move(dli_subscriber_t *s, dli_channel_t *channel, dli_channel_state_t state) {
    TAILQ_REMOVE(&s->lists[channel->state], channel, of_state);
    channel->state = state;
    TAILQ_INSERT_TAIL(&s->lists[state], channel, of_state);
}

static dli_channel_t *add(dli_subscriber_t *s, const char *name, size_t len) {
    dli_channel_t *channel = calloc(1, sizeof *channel + len);
    if (channel != NULL) {
        channel->len = len;
        memcpy(channel->name, name, len);
        LIST_INSERT_HEAD(bucket_of(s, name, len), channel, of_bucket);
        TAILQ_INSERT_TAIL(&s->lists[DLI_CHANNEL_UNSAID], channel, of_state);
        s->count++;
    }
    return channel;
}

static void forget(dli_subscriber_t *s, dli_channel_t *channel) {
    TAILQ_REMOVE(&s->lists[channel->state], channel, of_state);
    LIST_REMOVE(channel, of_bucket);
    s->count--;
    free(channel);
}

/* Of a loss only who heard. */
static void tell(const dli_channel_t *channel, bool hears, const char *message) {
    dli_watcher_t *watcher;
    LIST_FOREACH(watcher, &channel->watchers, at) {
        if (hears || watcher->hears) {
            watcher->hears = hears;
            watcher->heard(watcher, hears, message);
        }
    }
}

void dli_hearing_init(dli_subscriber_t *s) {
    for (size_t i = 0; i < DLI_CHANNEL_STATES; i++) {
        TAILQ_INIT(&s->lists[i]);
    }
}

bool dli_hearing_join(dli_subscriber_t *s, const char *name, size_t len, dli_watcher_t *watcher) {
    dli_channel_t *channel = find(s, name, len);
    if (channel == NULL) {
        channel = add(s, name, len);
    } else if (channel->state == DLI_CHANNEL_LIVE) {
        move(s, channel, DLI_CHANNEL_UNSAID);
    }
    watcher->channel = channel;
    watcher->hears = false;
    if (channel != NULL) {
        LIST_INSERT_HEAD(&channel->watchers, watcher, at);
    }
    return channel != NULL;
}

void dli_hearing_leave(dli_subscriber_t *s, dli_watcher_t *watcher) {
    dli_channel_t *channel = watcher->channel;
    if (channel == NULL) {
        return;
    }
    watcher->channel = NULL;
    LIST_REMOVE(watcher, at);
    bool is_last = LIST_EMPTY(&channel->watchers);
    if (is_last && channel->state == DLI_CHANNEL_LIVE) {
        move(s, channel, DLI_CHANNEL_UNSAID);
    } else if (is_last && channel->state == DLI_CHANNEL_UNSAID && !channel->is_subscribed) {
        forget(s, channel);
    }
}

void dli_hearing_reset(dli_subscriber_t *s) {
    TAILQ_CONCAT(&s->lists[DLI_CHANNEL_UNSAID], &s->lists[DLI_CHANNEL_ASKED], of_state);
    TAILQ_CONCAT(&s->lists[DLI_CHANNEL_UNSAID], &s->lists[DLI_CHANNEL_LIVE], of_state);
    dli_channel_t *next, *channel = TAILQ_FIRST(&s->lists[DLI_CHANNEL_UNSAID]);
    for (; channel != NULL; channel = next) {
        next = TAILQ_NEXT(channel, of_state);
        channel->state = DLI_CHANNEL_UNSAID;
        channel->is_subscribed = false;
        tell(channel, false, NULL);
        if (LIST_EMPTY(&channel->watchers)) {
            forget(s, channel);
        }
    }
}

/* ---- saying ----------------------------------------------------------------------------------------- */

void dli_hearing_speak(dli_subscriber_t *s, uint64_t now) {
    dli_channel_t *channel;
    s->asked_ns = dli_hearing_owes(s) ? s->asked_ns : now;
    while ((channel = TAILQ_FIRST(&s->lists[DLI_CHANNEL_UNSAID])) != NULL) {
        channel->is_subscribed = !LIST_EMPTY(&channel->watchers);
        move(s, channel, DLI_CHANNEL_ASKED);
        const dli_slice_t argv[] = {dli_slice(channel->is_subscribed ? "SUBSCRIBE" : "UNSUBSCRIBE"),
                                    {channel->name, channel->len}};
        dli_commands_add(s->out, 2, argv);
    }
    if (s->count > 0 && !dli_hearing_owes(s) && s->heard_ns + DLI_QUIET_NS <= now) {
        dli_commands_add_words(s->out, "PING", NULL);
        s->pinged = true;
    }
}

/* ---- hearing ---------------------------------------------------------------------------------------- */

static bool is_text(const redisReply *reply, const char *text) {
    return (reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS) &&
           strlen(text) == reply->len && strncasecmp(reply->str, text, reply->len) == 0;
}

/* The answer about it is there. Watchers may have come or gone meanwhile. */
static void settle(dli_subscriber_t *s, dli_channel_t *channel) {
    bool is_wanted = !LIST_EMPTY(&channel->watchers);
    if (is_wanted != channel->is_subscribed) {
        move(s, channel, DLI_CHANNEL_UNSAID);
    } else if (is_wanted) {
        move(s, channel, DLI_CHANNEL_LIVE);
        tell(channel, true, NULL); /* something may have been missed before */
    } else {
        forget(s, channel);
    }
}

/* The server does not let us: its watchers hear nothing, and the channel is gone. */
static void refuse(dli_subscriber_t *s, dli_channel_t *channel, const char *why) {
    dli_watcher_t *watcher;
    (void)dl_driver_fail(&s->why, DL_ENOTSUP, 0, "%s", why);
    s->refused = true;
    while ((watcher = LIST_FIRST(&channel->watchers)) != NULL) {
        LIST_REMOVE(watcher, at);
        watcher->channel = NULL;
        watcher->hears = false;
        watcher->heard(watcher, false, NULL);
    }
    forget(s, channel);
}

static dl_status_t hear_error(dli_subscriber_t *s, const redisReply *reply, dl_error_t *err) {
    dli_channel_t *channel = TAILQ_FIRST(&s->lists[DLI_CHANNEL_ASKED]);
    if (s->pinged) {
        s->pinged = false; /* a server that refuses a PING lives, too */
    } else if (channel != NULL && !channel->is_subscribed) {
        settle(s, channel);
    } else if (channel != NULL && (dli_reply_is_error(reply, "NOPERM") || dli_reply_is_error(reply, "ERR"))) {
        refuse(s, channel, reply->str);
    } else {
        return dli_reply_unexpected(reply, "a subscription", err); /* such as BUSY: it may pass */
    }
    return DL_OK;
}

static void hear_message(dli_subscriber_t *s, const redisReply *name, const redisReply *text) {
    const dli_channel_t *channel = find(s, name->str, name->len);
    if (channel != NULL && channel->state == DLI_CHANNEL_LIVE) {
        tell(channel, true, text->type == REDIS_REPLY_STRING ? text->str : "");
    }
}

/* It has to be about the channel whose turn it is. */
static dl_status_t hear_confirmation(dli_subscriber_t *s, bool subscribes, const redisReply *reply,
                                     dl_error_t *err) {
    const redisReply *name = reply->element[1];
    dli_channel_t *channel = TAILQ_FIRST(&s->lists[DLI_CHANNEL_ASKED]);
    if (s->pinged || channel == NULL || channel->is_subscribed != subscribes ||
        !is_named(channel, name->str, name->len)) {
        return dli_reply_unexpected(reply, "a subscription", err);
    }
    settle(s, channel);
    return DL_OK;
}

static dl_status_t hear_pong(dli_subscriber_t *s, const redisReply *reply, dl_error_t *err) {
    dl_status_t status = s->pinged ? DL_OK : dli_reply_unexpected(reply, "PING", err);
    s->pinged = false;
    return status;
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
        hear_message(s, reply->element[1], reply->element[2]);
        return DL_OK;
    }
    bool subscribes = is_text(kind, "subscribe");
    return subscribes || is_text(kind, "unsubscribe") ? hear_confirmation(s, subscribes, reply, err)
                                                      : dli_reply_unexpected(reply, "a subscription", err);
}
