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

/*
 * The same in steps, for callers that look after several subscribers by one poll. Making a watch: ask; then
 * while its state is DL_ETIMEDOUT: sleep, poll, rise. Waiting: sleep; poll and hear until [0] is readable;
 * rise. Whoever sleeps polls all the time, or rises: others may rely on its reading. One sleep at a time on a
 * watch; once it was woken it is to rise before it sleeps on.
 */

/* A watch that has yet to be confirmed; unwatch ends it. Fails as dli_subscriber_watch does at once. */
dl_status_t dli_subscriber_ask(dli_subscriber_t *subscriber, const char *channel, size_t len,
                               dl_watch_t **watch, dl_error_t *err);
/* DL_OK: confirmed, no message can be missed. DL_ETIMEDOUT: not yet, or not now, and err is not filled.
 * Anything else: it hears nothing any more. */
dl_status_t dli_subscriber_state(dli_subscriber_t *subscriber, dl_watch_t *watch, dl_error_t *err);
/* DL_EIO with the reason why a watch was not confirmed in time. */
dl_status_t dli_subscriber_fail_late(dli_subscriber_t *subscriber, dl_error_t *err);
/* What to poll: [0] is readable when the watch was woken; [1] is the connection when this sleeper is the one
 * to read it, otherwise no descriptor. */
void dli_subscriber_sleep(dli_subscriber_t *subscriber, dl_watch_t *watch, struct pollfd fds[2]);
/* After a poll: reads what has come; [0] tells at the next poll whether that was for this watch. */
void dli_subscriber_hear(dli_subscriber_t *subscriber, struct pollfd fds[2]);
/* True: it was woken, as the last poll of [0] says, and that is taken back. */
bool dli_subscriber_rise(dli_subscriber_t *subscriber, const dl_watch_t *watch, const struct pollfd fds[2]);

#endif
