/* channels.h - which channels are subscribed to, and who waits on each; for the subscriber only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CHANNELS_H
#define DLI_REDIS_CHANNELS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "dlock/driver.h"

typedef struct dli_channel dli_channel_t;
typedef struct dli_channels dli_channels_t;

typedef enum dli_channel_state {
    DLI_CHANNEL_WANTED, /* has watches; SUBSCRIBE has yet to be sent: on the list `wanted` */
    DLI_CHANNEL_ASKED,  /* SUBSCRIBE was sent */
    DLI_CHANNEL_LIVE,   /* confirmed: no message can be missed */
    DLI_CHANNEL_LEAVING /* no watches; UNSUBSCRIBE was sent */
} dli_channel_state_t;

struct dli_channel {
    dli_channel_t *chain;       /* of the hash bucket */
    dli_channel_t *prev, *next; /* of the list it is on */
    dl_watch_t *watches;
    dli_channel_state_t state;
    size_t due;       /* answers of the server that are still to come; it is not freed before */
    bool alone;       /* was refused together with others; now asked for by itself */
    uint64_t idle_ns; /* ASKED or LIVE without watches: since when; on the list `idle` */
    uint32_t hash;
    size_t len;
    char name[]; /* not terminated */
};

struct dl_watch {
    int fd;                 /* eventfd: readable when woken */
    atomic_int broken;      /* a dl_status_t other than DL_OK: it hears nothing any more */
    bool pending;           /* inside the call that makes it */
    dli_channel_t *channel; /* NULL: refused */
    dl_watch_t *prev, *next;
    /* Of all watches. A forked child reads it as some other thread left it: each change is one store. */
    _Atomic(dl_watch_t *) next_of_all;
    dl_watch_t *prev_of_all;
};

typedef struct dli_channel_list {
    dli_channel_t *first, *last;
} dli_channel_list_t;

/* Zeroed is empty. The caller locks. */
struct dli_channels {
    dli_channel_t **buckets;
    size_t bucket_count; /* a power of two, or 0 */
    size_t count;
    dli_channel_list_t wanted, idle; /* oldest first */
    _Atomic(dl_watch_t *) watches;
};

dli_channel_t *dli_channels_find(const dli_channels_t *channels, const char *name, size_t len);
/* Joins the watch to the channel, which is made if need be. false: out of memory. */
bool dli_channels_join(dli_channels_t *channels, const char *name, size_t len, dl_watch_t *watch);
/* The reverse; a subscription without watches becomes idle. */
void dli_channels_leave(dli_channels_t *channels, dl_watch_t *watch, uint64_t now);
/* The server does not let us: its watches are broken, and the channel is gone. */
void dli_channels_refuse(dli_channels_t *channels, dli_channel_t *channel);
/* The state changes; the lists follow. */
void dli_channels_move(dli_channels_t *channels, dli_channel_t *channel, dli_channel_state_t state);
/* Once neither watches nor answers are left. */
void dli_channels_forget(dli_channels_t *channels, dli_channel_t *channel);
/* Nothing is subscribed to any more: what has watches is wanted anew, the rest is forgotten. */
void dli_channels_reset(dli_channels_t *channels);
/* Frees everything that is left. */
void dli_channels_free(dli_channels_t *channels);

void dli_watch_wake(dl_watch_t *watch);
/* Takes back what woke it. */
void dli_watch_drain(const dl_watch_t *watch);
void dli_channel_wake(dli_channel_t *channel);

#endif
