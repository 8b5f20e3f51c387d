/* fake_sessions.h - what a server of sessions keeps: connections, what each holds, and who waits for what. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_SESSIONS_H
#define FAKE_SESSIONS_H

#include "dlock/driver.h"

/* A connection is known by its number, which is never used again. All instants are the server's clock. Every
 * function is one exchange; an idle connection is ended, and a closed one noticed, at the next exchange of
 * anybody. */

/* 0 and the client's end of a socketpair, and a descriptor that becomes readable when a lock is granted to
 * the waiting connection; or an errno. Both belong to the caller. */
int fake_sessions_connect(uint64_t *number, int *fd, int *granted_fd);
/* DL_OK, DL_EBUSY (with busy_ms) or DL_ELOST: the connection is not there any more. `queue`: a busy answer
 * puts it into the queue of the lock. */
dl_status_t fake_sessions_lock(uint64_t number, const dl_request_t *request, const char *client, int queue,
                               uint64_t now_ns, dl_grant_t *grant);
/* Leaves the queue. 1: it holds the lock by now. */
int fake_sessions_leave_queue(uint64_t number, uint64_t now_ns);
/* A statement on the connection: DL_OK, and at least lease_ms more until it counts as idle; or DL_ELOST: it
 * does not hold the lock (any more). *grant: the tokens of its hold. */
dl_status_t fake_sessions_ping(uint64_t number, int64_t lease_ms, uint64_t now_ns, dl_grant_t *grant);
/* Ends the connection, whoever's it is, that holds `name` for this owner and hold id. DL_OK or DL_ELOST. */
dl_status_t fake_sessions_end_hold(const char *name, const char *owner, uint64_t hold_id, uint64_t now_ns);
/* Until when the holder's connection may stay silent; now_ns when nobody holds it. */
uint64_t fake_sessions_busy_until(const char *name, uint64_t now_ns);
/* The server hears that somebody closed a connection. */
void fake_sessions_notice(uint64_t now_ns);
int fake_sessions_inspect(const char *name, uint64_t now_ns, dl_lock_info_t *info);
/* Ends the connection that holds `name`; 0: nobody. now_ns 0: by the clock of nobody, idle ones included. */
int fake_sessions_kill(const char *name, uint64_t now_ns);
void fake_sessions_list(const char *prefix, size_t prefix_len, uint64_t now_ns, dl_list_fn fn, void *arg);
void fake_sessions_reset(void);

#endif
