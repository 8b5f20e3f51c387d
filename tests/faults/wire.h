/* wire.h - what the faults of networks and of Redis servers share: keys, clients behind a proxy, bounds. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_H
#define WIRE_H

#include <stdio.h>
#include <string.h>

#include "contract/callers.h"
#include "support/proxy.h"
#include "support/redis_server.h"

#define REDIS .traits = CT_REDIS

/* The longest pause between two tries to free something in the background, and to reach a server that was
 * away. */
#define FREE_MS 1000
#define RETRY_MS 500

/* A connection that lies idle for longer is looked at before it is used again. */
#define TRUST_MS 5

/* The key of a lock, in the thread's own memory. */
static inline const char *key_of(ct_t *ct, const char *name) {
    static _Thread_local char key[DL_NAME_MAX + 16];
    snprintf(key, sizeof key, "%s%s", strcmp(ct_driver_name(ct), "redis-string") == 0 ? "dlock:" : "", name);
    return key;
}

/* A name like no other before: what is freed in the background under an older one is in nobody's way. */
static inline const char *fresh_name(const char *row) {
    static char name[32];
    static int count;
    snprintf(name, sizeof name, "%s no %d.", row, ++count);
    return name;
}

/* A client whose connections go through the proxy. It has made some already, and the server knows the
 * scripts. */
static inline dl_client_t *open_behind(ct_t *ct, proxy_t *proxy) {
    dl_client_t *c = ct_open(ct, proxy_url(proxy));
    dl_lock_t *lock = ct_lock(ct, c, "warm");
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    return c;
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

/* The server can be reached again. Between two tries of its connections a client may pause for RETRY_MS; then
 * a single try is enough. */
static inline void expect_back(ct_t *ct, dl_lock_t *lock) {
    ct_sleep_ms(ct, RETRY_MS);
    watch_t watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR));
    IN_TIME(watch, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* Someone waits for a release there: at least this many channels are subscribed to. */
static inline int is_subscribed(ct_t *ct) {
    return redis_ask(ct_redis(ct), "PUBSUB CHANNELS")[0] != 0;
}

#endif
