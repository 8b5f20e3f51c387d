/* fakes.h - drivers whose server lives in this process: references for driver authors, and fast tests. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKES_H
#define FAKES_H

#include "dlock/driver.h"

/*
 * All of them reach the clock and every wait through dl_driver_env_t, so that they run on simulated time. All
 * clients of a process share one server of each kind; the resets make it empty and need every client to be
 * closed. Each takes the option `latency`, the time of one exchange (0 by default).
 */

/* LEASE FENCE: the plainest lease server. Its waiters have to poll. */
const dl_driver_t *fake_lease_driver(void);
/* LEASE FENCE: the same without any optional op. */
const dl_driver_t *fake_bare_driver(void);
/* The plain one with NOTIFY; its news is read from a descriptor. */
const dl_driver_t *fake_notify_driver(void);
/* LEASE SERVER_COUNT FENCE NOTIFY: the server also shows how often the owner entered. Its news is said from
 * the thread that releases. */
const dl_driver_t *fake_count_driver(void);
void fake_server_reset(void); /* of these four */

/* LEASE SERVER_COUNT FENCE NOTIFY: a backend (core/backend.h) in the table of drive.h. Requests go over a
 * wire, in order.
 */
const dl_driver_t *fake_socket_driver(void);
void fake_socket_reset(void);

/* SESSION NATIVE_WAIT FENCE: a hold is a connection, and the server blocks those who wait. It aborts when the
 * core uses one connection twice at once, after its drop, or forgets to drop it. */
const dl_driver_t *fake_session_driver(void);
void fake_session_reset(void);
/* The server ends the connection that holds `name`, as a KILL would. 1: there was one. */
int fake_session_kill(const char *name);

/* LEASE: three servers, of which a majority decides. No tokens. */
#define FAKE_NODES 3
typedef enum fake_node_mode {
    FAKE_NODE_UP,
    FAKE_NODE_REFUSES, /* a request never leaves */
    FAKE_NODE_DEAF,    /* requests are lost on the way */
    FAKE_NODE_MUTE     /* requests are carried out, replies are lost */
} fake_node_mode_t;
const dl_driver_t *fake_quorum_driver(void);
void fake_quorum_reset(void);
/* delay_ms: how much longer than `latency` an exchange with this node takes from now on. */
void fake_quorum_node(int node, fake_node_mode_t mode, int64_t delay_ms);
void fake_quorum_forget(int node); /* the node restarts empty */

#endif
