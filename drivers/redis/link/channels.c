/* channels.c - the table of channels and their watchers; touches no connection. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "channels.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 16

/* FNV-1a. */
static uint32_t hash_of(const char *name, size_t len) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    }
    return hash ^ hash >> 16;
}

/* ---- the lists -------------------------------------------------------------------------------------- */

static dli_channel_list_t *list_of(dli_channels_t *channels, const dli_channel_t *channel) {
    bool is_left = channel->state != DLI_CHANNEL_LEAVING && LIST_EMPTY(&channel->watchers);
    return channel->state == DLI_CHANNEL_WANTED ? &channels->wanted : is_left ? &channels->unwanted : NULL;
}

static void append(dli_channel_list_t *list, dli_channel_t *channel) {
    if (list == NULL) {
        return;
    }
    channel->prev = list->last;
    channel->next = NULL;
    *(list->last != NULL ? &list->last->next : &list->first) = channel;
    list->last = channel;
}

static void take_off(dli_channel_list_t *list, dli_channel_t *channel) {
    if (list == NULL) {
        return;
    }
    *(channel->prev != NULL ? &channel->prev->next : &list->first) = channel->next;
    *(channel->next != NULL ? &channel->next->prev : &list->last) = channel->prev;
    channel->prev = channel->next = NULL;
}

void dli_channels_move(dli_channels_t *channels, dli_channel_t *channel, dli_channel_state_t state) {
    take_off(list_of(channels, channel), channel);
    channel->state = state;
    append(list_of(channels, channel), channel);
}

/* Of a loss only who heard. */
static void tell(const dli_channel_t *channel, bool hears) {
    dli_watcher_t *watcher;
    LIST_FOREACH(watcher, &channel->watchers, at) {
        if (hears || watcher->hears) {
            watcher->hears = hears;
            watcher->heard(watcher, hears);
        }
    }
}

void dli_channels_tell(dli_channels_t *channels, dli_channel_t *channel) {
    dli_channels_move(channels, channel, DLI_CHANNEL_LIVE);
    tell(channel, true);
}

/* ---- the table -------------------------------------------------------------------------------------- */

static dli_channel_t **bucket_of(const dli_channels_t *channels, uint32_t hash) {
    return &channels->buckets[hash & (channels->bucket_count - 1)];
}

static dli_channel_t *find(const dli_channels_t *channels, const char *name, size_t len, uint32_t hash) {
    if (channels->bucket_count == 0) {
        return NULL;
    }
    dli_channel_t *channel = *bucket_of(channels, hash);
    while (channel != NULL &&
           !(channel->hash == hash && channel->len == len && memcmp(channel->name, name, len) == 0)) {
        channel = channel->chain;
    }
    return channel;
}

dli_channel_t *dli_channels_find(const dli_channels_t *channels, const char *name, size_t len) {
    return find(channels, name, len, hash_of(name, len));
}

/* Keeps the chains short. Failing is no harm, unless there is no table at all. */
static bool grow(dli_channels_t *channels) {
    if (channels->count < channels->bucket_count) {
        return true;
    }
    dli_channels_t larger = *channels;
    larger.bucket_count = channels->bucket_count == 0 ? FIRST_BUCKETS : channels->bucket_count * 2;
    larger.buckets = calloc(larger.bucket_count, sizeof *larger.buckets);
    if (larger.buckets == NULL) {
        return channels->bucket_count > 0;
    }
    for (size_t i = 0; i < channels->bucket_count; i++) {
        while (channels->buckets[i] != NULL) {
            dli_channel_t *channel = channels->buckets[i];
            channels->buckets[i] = channel->chain;
            dli_channel_t **bucket = bucket_of(&larger, channel->hash);
            channel->chain = *bucket;
            *bucket = channel;
        }
    }
    free(channels->buckets);
    channels->buckets = larger.buckets;
    channels->bucket_count = larger.bucket_count;
    return true;
}

/* A new one is LEAVING, that is on no list, until its first watcher has joined. */
static dli_channel_t *add(dli_channels_t *channels, const char *name, size_t len, uint32_t hash) {
    dli_channel_t *channel = grow(channels) ? calloc(1, sizeof *channel + len) : NULL;
    if (channel == NULL) {
        return NULL;
    }
    channel->state = DLI_CHANNEL_LEAVING;
    channel->hash = hash;
    channel->len = len;
    memcpy(channel->name, name, len);
    dli_channel_t **bucket = bucket_of(channels, hash);
    channel->chain = *bucket;
    *bucket = channel;
    channels->count++;
    return channel;
}

void dli_channels_forget(dli_channels_t *channels, dli_channel_t *channel) {
    dli_channel_t **at = bucket_of(channels, channel->hash);
    while (*at != channel) {
        at = &(*at)->chain;
    }
    *at = channel->chain;
    channels->count--;
    take_off(list_of(channels, channel), channel);
    free(channel);
}

void dli_channels_reset(dli_channels_t *channels) {
    for (size_t i = 0; i < channels->bucket_count; i++) {
        dli_channel_t *next;
        for (dli_channel_t *channel = channels->buckets[i]; channel != NULL; channel = next) {
            next = channel->chain;
            channel->due = 0;
            tell(channel, false);
            if (LIST_EMPTY(&channel->watchers)) {
                dli_channels_forget(channels, channel);
            } else {
                channel->is_subscribed = false;
                dli_channels_move(channels, channel, DLI_CHANNEL_WANTED);
            }
        }
    }
}

void dli_channels_free(dli_channels_t *channels) {
    for (size_t i = 0; i < channels->bucket_count; i++) {
        while (channels->buckets[i] != NULL) {
            dli_channel_t *channel = channels->buckets[i];
            channels->buckets[i] = channel->chain;
            free(channel);
        }
    }
    free(channels->buckets);
    *channels = (dli_channels_t){0};
}

/* ---- watchers --------------------------------------------------------------------------------------- */

bool dli_channels_join(dli_channels_t *channels, const char *name, size_t len, dli_watcher_t *watcher) {
    uint32_t hash = hash_of(name, len);
    dli_channel_t *channel = find(channels, name, len, hash);
    if (channel == NULL) {
        channel = add(channels, name, len, hash);
        if (channel == NULL) {
            return false;
        }
    }
    take_off(list_of(channels, channel), channel);
    watcher->channel = channel;
    watcher->hears = false;
    LIST_INSERT_HEAD(&channel->watchers, watcher, at);
    channel->state = DLI_CHANNEL_WANTED;
    append(list_of(channels, channel), channel);
    return true;
}

void dli_channels_leave(dli_channels_t *channels, dli_watcher_t *watcher) {
    dli_channel_t *channel = watcher->channel;
    if (channel == NULL) {
        return;
    }
    watcher->channel = NULL;
    take_off(list_of(channels, channel), channel);
    LIST_REMOVE(watcher, at);
    if (LIST_EMPTY(&channel->watchers) && channel->state == DLI_CHANNEL_WANTED) {
        channel->state = channel->is_subscribed ? DLI_CHANNEL_ASKED : DLI_CHANNEL_LEAVING;
    }
    append(list_of(channels, channel), channel);
    if (channel->state == DLI_CHANNEL_LEAVING && channel->due == 0) {
        dli_channels_forget(channels, channel);
    }
}

void dli_channels_refuse(dli_channels_t *channels, dli_channel_t *channel) {
    dli_watcher_t *watcher;
    take_off(list_of(channels, channel), channel);
    channel->state = DLI_CHANNEL_LEAVING;
    while ((watcher = LIST_FIRST(&channel->watchers)) != NULL) {
        LIST_REMOVE(watcher, at);
        watcher->channel = NULL;
        watcher->heard(watcher, false);
    }
    dli_channels_forget(channels, channel);
}
