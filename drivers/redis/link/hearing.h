/* hearing.h - the state of a subscriber, and what it says and hears; for the subscriber only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_HEARING_H
#define DLI_REDIS_HEARING_H

#include "channels.h"

#define DLI_ONE_MS_NS ((uint64_t)1000000)
/* So long without a word from the server, and it is asked whether it is there. */
#define DLI_QUIET_NS (1000 * DLI_ONE_MS_NS)

/* One answer that the server owes. */
typedef enum dli_due_kind { DLI_DUE_SUBSCRIBE, DLI_DUE_UNSUBSCRIBE, DLI_DUE_PING } dli_due_kind_t;
typedef struct dli_due {
    dli_due_kind_t kind;
    dli_channel_t *channel; /* NULL: of a PING */
    size_t rest;            /* how many answers the command has left with this one: an error stands for all */
} dli_due_t;

/* A queue in a ring. */
typedef struct dli_dues {
    dli_due_t *ring;
    size_t cap, at, len; /* cap is a power of two, or 0 */
} dli_dues_t;

struct dli_subscriber {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;

    pthread_mutex_t mutex; /* of the channels; nothing blocks under it */
    dli_channels_t channels;

    /* Of the one who listens. */
    dli_conn_t *conn; /* a forked child looks at it too: each change is one store */
    bool ready;       /* commands can be sent */
    bool was_ready;   /* the next connection is a reconnection */
    dli_dues_t dues;
    dli_commands_t commands;
    uint64_t heard_ns; /* the last traffic from the server */
    uint64_t asked_ns; /* since when the oldest answer is due */
    uint64_t ready_ns; /* when it became ready */
    uint64_t empty_ns; /* since when there is no channel; 0: there is one */
    uint64_t retry_ns; /* no attempt to connect before */
    unsigned attempts; /* for the backoff; a connection that dies young does not reset it */
    dl_error_t why;    /* why it was lost, or a channel refused, last */
    bool refused;      /* a channel was */
    bool has_warned;   /* of that */
};

/* Both with the mutex held. speak appends what is to be said now to `commands`. */
void dli_hearing_speak(dli_subscriber_t *subscriber, uint64_t now);
/* What the server said; anything but DL_OK: this connection is of no more use. */
dl_status_t dli_hearing_hear(dli_subscriber_t *subscriber, const redisReply *reply, dl_error_t *err);

#endif
