/* listener.h - the state of a subscriber, shared by its callers and its thread; for the subscriber only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_LISTENER_H
#define DLI_REDIS_LISTENER_H

#include "channels.h"
#include "subscriber.h"

#define DLI_ONE_MS_NS ((uint64_t)1000000)
/* So long after somebody asked for a watch the thread goes on connecting, even for nobody: callers are sent
 * away while the server is down. */
#define DLI_INTEREST_NS (10000 * DLI_ONE_MS_NS)
/* How long a subscription outlives its last watch. */
#define DLI_LINGER_NS (1000 * DLI_ONE_MS_NS)
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

/* false: out of memory. */
bool dli_dues_push(dli_dues_t *dues, dli_due_t due);
/* The oldest; there is one. */
dli_due_t dli_dues_pop(dli_dues_t *dues);

/*
 * The thread keeps the connection: it connects, speaks, watches over silence. Who sleeps on a watch while the
 * connection is ready and nobody else does so reads it, as the leader: the message that it waits for then
 * goes through no other thread. The thread leaves the reading to a leader, and to the next one when the last
 * has just left and nobody sleeps; otherwise it reads itself.
 *
 * No message stays unread while somebody sleeps. Whoever goes to sleep on a ready connection, under the
 * mutex, either finds a leader or becomes one. A leader polls the socket until it leaves, under the mutex,
 * too; if others sleep then, it pokes the thread, which looks again and reads, unless there is another
 * leader. Losing the connection wakes all.
 *
 * Locks: io is taken before mutex; nobody sleeps or reports with either held.
 */
struct dli_subscriber {
    const dli_endpoint_t *endpoint;
    const dl_driver_env_t *env;
    int poke_fd; /* eventfd: the thread has something to look at; -1: never started */
    pthread_t thread;

    pthread_mutex_t mutex; /* guards from here to io; nothing blocks under it */
    dli_channels_t channels;
    bool started, closing;
    bool ready;               /* commands can be sent; changes with io held, too */
    int fd;                   /* ready: the socket, for the leader to poll */
    dl_watch_t *leader;       /* whose sleeper polls the socket; NULL: nobody's */
    bool was_led;             /* there was a leader since the thread looked last */
    size_t sleepers;          /* who sleep beside the leader */
    unsigned failures;        /* attempts to connect since it was last ready, or since it was last idle */
    uint64_t wanted_until_ns; /* connect until then even if there is no channel */
    dl_error_t why;           /* the last failure */
    bool refused;             /* a channel was */
    char refusal[96];         /* what the server said to the last SUBSCRIBE that it refused */

    pthread_mutex_t io;         /* guards from here; nothing blocks under it */
    _Atomic(dli_conn_t *) conn; /* a forked child looks at it too */
    dl_error_t broke;           /* what a leader found wrong with it; the thread is to lose it */
    dli_dues_t dues;
    dli_commands_t commands;
    uint64_t heard_ns; /* the last traffic from the server */
    uint64_t asked_ns; /* since when the oldest answer is due */

    /* The thread's own. */
    unsigned attempts; /* for the backoff; a connection that dies young does not reset it */
    uint64_t retry_ns; /* no attempt before */
    uint64_t ready_ns; /* when it became ready */
    uint64_t down_ns;  /* since when there is no connection */
    uint64_t woke_ns;  /* when all were last woken because of that */
    uint64_t empty_ns; /* since when there is no channel; 0: there is one */
    bool was_ready;    /* the next connection is a reconnection */
    bool warned_of_refusal;
};

/* Both with io and the mutex held. speak appends what is to be said now to `commands`. */
void dli_hearing_speak(dli_subscriber_t *subscriber, uint64_t now);
/* What the server said; anything but DL_OK: this connection is of no more use. */
dl_status_t dli_hearing_hear(dli_subscriber_t *subscriber, const redisReply *reply, dl_error_t *err);

/* Reads what has come to a connection that is ready, by any thread. false: there is none. */
bool dli_listener_read(dli_subscriber_t *subscriber);
/* The thread's function; arg is the subscriber. */
void *dli_listener_main(void *arg);
/* Makes the thread look. */
void dli_listener_poke(const dli_subscriber_t *subscriber);

#endif
