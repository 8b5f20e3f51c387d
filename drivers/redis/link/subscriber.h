/* subscriber.h - one connection that hears of releases, shared by all waits of a client. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_SUBSCRIBER_H
#define DLI_REDIS_SUBSCRIBER_H

#include <sys/queue.h>

#include "conn.h"

/*
 * It has no thread: whoever listens calls fds, polls and calls listen, over and over; one thread at a time is
 * between the two, and none of the functions waits for anything. The connection is made for the first
 * watcher. Watchers of one channel share one subscription, which ends with the last of them. When the
 * connection dies, it is made again with backoff, and everything is subscribed to anew. A silent server is
 * found by PING.
 */
typedef struct dli_subscriber dli_subscriber_t;
typedef struct dli_channel dli_channel_t;

/* Who is to hear of a channel; lives in memory of the caller's, from watch to unwatch. */
typedef struct dli_watcher dli_watcher_t;
struct dli_watcher {
    /* hears: a message has come, and this is its text; or, with NULL, every one will from now on. Otherwise:
     * none is heard, because the connection is lost, or for good, because the server refuses the subscription
     * (reported once as a warning). Called by fds and listen with the subscriber's mutex held: it calls no
     * subscriber. */
    void (*heard)(dli_watcher_t *watcher, bool hears, const char *message);
    void *owner; /* the caller's, for that */
    /* The subscriber's own. */
    dli_channel_t *channel; /* NULL: refused */
    bool hears;             /* what it was told last */
    LIST_ENTRY(dli_watcher) at;
};

/* No I/O. The endpoint outlives it. */
dl_status_t dli_subscriber_open(const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                                dli_subscriber_t **subscriber, dl_error_t *err);
/* No watcher is left, and nobody listens. NULL is fine. forked: closes descriptors only. */
void dli_subscriber_close(dli_subscriber_t *subscriber, bool forked);

/* From any thread. `heard` is set. Nothing is sent before the next fds. */
dl_status_t dli_subscriber_watch(dli_subscriber_t *subscriber, const char *channel, size_t len,
                                 dli_watcher_t *watcher, dl_error_t *err);
/* From any thread; `heard` is not called any more. */
void dli_subscriber_unwatch(dli_subscriber_t *subscriber, dli_watcher_t *watcher);

/* Before fds: the server that claims go to, by its run id ("": not known). A connection to another is lost:
 * what is released there is told there. */
void dli_subscriber_follow(dli_subscriber_t *subscriber, const char *run_id);
/* Says to the server what is to be said now. What to poll (-1: nothing), and until when at the longest; a
 * watcher that joins meanwhile is a reason to ask again. */
void dli_subscriber_fds(dli_subscriber_t *subscriber, struct pollfd *fd, uint64_t *until_ns);
/* After that poll: hears what has come. */
void dli_subscriber_listen(dli_subscriber_t *subscriber, short revents);

#endif
