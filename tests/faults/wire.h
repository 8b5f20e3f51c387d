/* wire.h - what the faults of networks and of servers share: a proxy before either kind, clients, bounds. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_H
#define WIRE_H

#include <stdio.h>
#include <string.h>

#include "contract/callers.h"
#include "support/proxy.h"

/* For cases over every server that is reached by TCP. */
#define WIRE .traits = CT_NETWORK
#define REDIS .traits = CT_REDIS
#define MYSQL .traits = CT_MYSQL

/* The longest pause between two tries to free something in the background, and to reach a server that was
 * away. */
#define FREE_MS 1000
#define RETRY_MS 500
/* The default of connect_timeout. */
#define CONNECT_MS 1000

/* A connection that lies idle for longer is looked at before it is used again. */
#define TRUST_MS 5

/* ---- either kind of server (wire.c) ------------------------------------------------------------------ */

static inline int is_mysql(ct_t *ct) {
    return (ct_traits(ct) & CT_MYSQL) != 0;
}

/* Holds end with a connection. */
static inline int is_session(ct_t *ct) {
    return (ct_caps(ct) & DL_CAP_SESSION) != 0;
}

/* A proxy before the case's server. */
proxy_t *start_proxy(ct_t *ct);
/* Lines for ct_open: the case's server at this port of 127.0.0.1. The text is the thread's own. */
const char *address_at(ct_t *ct, int port);
const char *address_of(ct_t *ct, proxy_t *proxy);
/* Pieces of requests, for plans of the proxy, in the thread's own memory: every request that names the lock;
 * what takes it; what frees it. */
const char *name_of(ct_t *ct, const char *name);
const char *claim_of(ct_t *ct, const char *name);
const char *unlock_of(ct_t *ct, const char *name);
/* The server knows this name already, so that the first request for it takes it. */
void introduce(ct_t *ct, const char *name);

/* ---- clients and bounds ------------------------------------------------------------------------------ */

/* A name like no other before: what is freed in the background under an older one is in nobody's way. */
static inline const char *fresh_name(const char *row) {
    static char name[32];
    static int count;
    snprintf(name, sizeof name, "%s no %d.", row, ++count);
    return name;
}

/* A client whose connections go through the proxy. It has made some already, and the server knows the
 * scripts. */
static inline dl_client_t *open_behind_with(ct_t *ct, proxy_t *proxy, const char *options) {
    char more[1024];
    snprintf(more, sizeof more, "%s\n%s", address_of(ct, proxy), options);
    dl_client_t *c = ct_open(ct, more);
    dl_lock_t *lock = ct_lock(ct, c, "warm");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    return c;
}

static inline dl_client_t *open_behind(ct_t *ct, proxy_t *proxy) {
    return open_behind_with(ct, proxy, "");
}

/* The reply to the next request that contains this (NULL: to any) does not come. */
static inline void lose_reply(ct_t *ct, proxy_t *proxy, const char *request, proxy_act_t act) {
    proxy_plan_t plan = {.request = request, .way = PROXY_REPLIES, .act = act};
    proxy_plan(ct, proxy, &plan);
}

/* Begins; then in_time says how long it took, which must be no longer than promised. */
typedef struct watch {
    int64_t began_ms;
} watch_t;

static inline watch_t start_watch(ct_t *ct) {
    return (watch_t){ct_now_ms(ct)};
}

#define IN_TIME(watch_, promised_ms) \
    CT_LE(ct_now_ms(ct) - (watch_).began_ms, (promised_ms) + ct_tolerance_ms(ct))

/* The lock can be taken and given back by this client, whatever happened before. */
static inline void expect_works(ct_t *ct, dl_client_t *client, const char *name) {
    dl_lock_t *lock = ct_lock(ct, client, name);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_CHECK(ct_server_info(ct, name).held);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, name, 0);
}

/* After a silence other idle connections are asked for a sign of life before they are used: a lock that needs
 * several connections may meet one that has none. */
static inline int64_t sign_of_life_ms(ct_t *ct) {
    return is_session(ct) ? 250 : 0;
}

/* The server can be reached again. Between two tries of its connections a client may pause for RETRY_MS, and
 * a client library that began one while it was away goes on for CONNECT_MS; then a single try is enough. */
static inline void expect_back(ct_t *ct, dl_lock_t *lock) {
    ct_sleep_ms(ct, RETRY_MS + (is_mysql(ct) ? CONNECT_MS : 0));
    watch_t watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR));
    IN_TIME(watch, sign_of_life_ms(ct));
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* The message of the last failing call says this word. */
#define SAYS(word)                                                                          \
    CT_CHECKF(strstr(ct_last_err()->message, word) != NULL, "not a word of '%s': %s", word, \
              ct_last_err()->message)

#endif
