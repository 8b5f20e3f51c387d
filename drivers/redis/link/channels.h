/* channels.h - which channels are subscribed to, and who hears of each; for the subscriber only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CHANNELS_H
#define DLI_REDIS_CHANNELS_H

#include "subscriber.h"

typedef struct dli_channels dli_channels_t;

typedef enum dli_channel_state {
    DLI_CHANNEL_WANTED, /* has watchers; SUBSCRIBE has yet to be sent: on the list `wanted` */
    DLI_CHANNEL_ASKED,  /* SUBSCRIBE was sent */
    DLI_CHANNEL_LIVE,   /* confirmed: no message can be missed */
    DLI_CHANNEL_LEAVING /* no watchers; UNSUBSCRIBE was sent */
} dli_channel_state_t;

struct dli_channel {
    dli_channel_t *chain;       /* of the hash bucket */
    dli_channel_t *prev, *next; /* of the list it is on */
    LIST_HEAD(, dli_watcher) watchers;
    dli_channel_state_t state;
    size_t due;         /* answers of the server that are still to come; it is not freed before */
    bool is_subscribed; /* SUBSCRIBE was the last that was sent */
    bool alone;         /* was refused together with others; now asked for by itself */
    uint32_t hash;
    size_t len;
    char name[]; /* not terminated */
};

typedef struct dli_channel_list {
    dli_channel_t *first, *last;
} dli_channel_list_t;

/* Zeroed is empty. The caller locks. */
struct dli_channels {
    dli_channel_t **buckets;
    size_t bucket_count; /* a power of two, or 0 */
    size_t count;
    dli_channel_list_t wanted, unwanted; /* UNSUBSCRIBE has yet to be sent; both oldest first */
};

dli_channel_t *dli_channels_find(const dli_channels_t *channels, const char *name, size_t len);
/* Joins the watcher to the channel, which is made if need be, and subscribed to anew: what came before is no
 * news to it. false: out of memory. */
bool dli_channels_join(dli_channels_t *channels, const char *name, size_t len, dli_watcher_t *watcher);
/* The reverse; a subscription without watchers is unwanted. */
void dli_channels_leave(dli_channels_t *channels, dli_watcher_t *watcher);
/* The server does not let us: its watchers hear nothing, and the channel is gone. */
void dli_channels_refuse(dli_channels_t *channels, dli_channel_t *channel);
/* The state changes; the lists follow. */
void dli_channels_move(dli_channels_t *channels, dli_channel_t *channel, dli_channel_state_t state);
/* It is live: its watchers are told that they hear, and are to look. */
void dli_channels_tell(dli_channels_t *channels, dli_channel_t *channel);
/* Once neither watchers nor answers are left. */
void dli_channels_forget(dli_channels_t *channels, dli_channel_t *channel);
/* Nothing is subscribed to any more: who heard is told so; what has watchers is wanted anew, the rest is
 * forgotten. */
void dli_channels_reset(dli_channels_t *channels);
/* Frees everything that is left. */
void dli_channels_free(dli_channels_t *channels);

#endif
