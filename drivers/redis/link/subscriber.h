/* subscriber.h - one connection that hears of releases, shared by all waits of a client. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_SUBSCRIBER_H
#define DLI_REDIS_SUBSCRIBER_H

#include "conn.h"

/*
 * A thread keeps the connection; it starts with the first watch. Whoever waits reads it, one at a time, so
 * that a message wakes its waiter without a detour. Watches of one channel share one subscription, which
 * lingers for a moment after the last of them, so that who waits again and again does not subscribe each
 * time. When the connection dies, every wait is woken (it may have missed a message), the thread connects
 * again with backoff, subscribes to everything anew and wakes every wait once more. A silent server is found
 * by PING.
 */
typedef struct dli_subscriber dli_subscriber_t;

/* No I/O. The endpoint outlives it. */
dl_status_t dli_subscriber_open(const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                                dli_subscriber_t **subscriber, dl_error_t *err);
/* No watch is left. NULL is fine. forked: closes descriptors only. */
void dli_subscriber_close(dli_subscriber_t *subscriber, bool forked);

/* As the ops watch, wait and unwatch of the driver contract, for a channel. DL_ENOTSUP: the user may
 * not subscribe to it (reported once as a warning); the caller polls then. A watch that is made while
 * the connection is lost waits for it until the deadline (DL_EIO), but fails at once with the reason
 * when connecting anew has failed already. */
dl_status_t dli_subscriber_watch(dli_subscriber_t *subscriber, const char *channel, size_t len,
                                 uint64_t deadline_ns, const dl_stop_t *stop, dl_watch_t **watch,
                                 dl_error_t *err);
dl_status_t dli_subscriber_wait(dli_subscriber_t *subscriber, dl_watch_t *watch, uint64_t deadline_ns,
                                const dl_stop_t *stop, dl_error_t *err);
void dli_subscriber_unwatch(dli_subscriber_t *subscriber, dl_watch_t *watch);

#endif
