/* hearing.h - the state of a subscriber: its channels, what it says and what it hears; for it only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_HEARING_H
#define DLI_REDIS_HEARING_H

#include "drivers/breaker.h"
#include "subscriber.h"

/* So long without a word from the server, and it is asked whether it is there. */
#define DLI_QUIET_NS (1000 * NS_PER_MS)
#define DLI_CHANNEL_BUCKETS 1024

/* A channel is on the list of its state, the oldest first. Of each one answer at most is to come. */
typedef enum dli_channel_state {
    DLI_CHANNEL_UNSAID, /* SUBSCRIBE or, without watchers, UNSUBSCRIBE has yet to be sent */
    DLI_CHANNEL_ASKED,  /* it was; only who listens changes this list */
    DLI_CHANNEL_LIVE,   /* confirmed: no message can be missed */
    DLI_CHANNEL_STATES
} dli_channel_state_t;

struct dli_channel {
    LIST_ENTRY(dli_channel) of_bucket;
    TAILQ_ENTRY(dli_channel) of_state;
    LIST_HEAD(, dli_watcher) watchers;
    dli_channel_state_t state;
    bool is_subscribed; /* SUBSCRIBE was the last that was sent */
    size_t len;
    char name[]; /* not terminated */
};

struct dli_subscriber {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;

    pthread_mutex_t mutex; /* of the channels; nothing blocks under it */
    LIST_HEAD(dli_channel_bucket, dli_channel) buckets[DLI_CHANNEL_BUCKETS];
    TAILQ_HEAD(, dli_channel) lists[DLI_CHANNEL_STATES];
    size_t count;

    /* Of the one who listens. */
    dli_conn_t *conn;      /* a forked child looks at it too: each change is one store */
    bool ready;            /* commands can be sent */
    bool was_ready;        /* the next connection is a reconnection */
    bool pinged;           /* the answer is to come, before those about channels */
    char server[41];       /* that claims go to, by its run id */
    char left[41];         /* that they went to before; "": no other */
    dli_commands_t *out;   /* of conn, once it is ready */
    uint64_t heard_ns;     /* the last traffic from the server */
    uint64_t asked_ns;     /* since when the oldest answer is due */
    uint64_t ready_ns;     /* when it became ready */
    uint64_t empty_ns;     /* since when there is no channel; 0: there is one */
    dli_breaker_t breaker; /* no attempt to connect before; a connection that dies young does not mend it */
    dl_error_t why;        /* why it was lost, or a channel refused, last */
    bool refused;          /* a channel was */
};

/* All but init and owes with the mutex held. */
void dli_hearing_init(dli_subscriber_t *subscriber);
/* Joins the watcher to the channel. One that is live is subscribed to anew: what came before is no news to
 * it. false: out of memory. */
bool dli_hearing_join(dli_subscriber_t *subscriber, const char *name, size_t len, dli_watcher_t *watcher);
void dli_hearing_leave(dli_subscriber_t *subscriber, dli_watcher_t *watcher);
/* Nothing is subscribed to any more: who heard is told so; what has watchers is asked for anew, the rest is
 * forgotten. */
void dli_hearing_reset(dli_subscriber_t *subscriber);
/* Puts what is to be said now into `out`. */
void dli_hearing_speak(dli_subscriber_t *subscriber, uint64_t now);
/* What the server said; anything but DL_OK: this connection is of no more use. */
dl_status_t dli_hearing_hear(dli_subscriber_t *subscriber, const redisReply *reply, dl_error_t *err);
/* Is an answer to come? */
static inline bool dli_hearing_owes(const dli_subscriber_t *subscriber) {
    return subscriber->pinged || !TAILQ_EMPTY(&subscriber->lists[DLI_CHANNEL_ASKED]);
}

#endif
