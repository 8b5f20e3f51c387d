/* redis_wire.h - what the faults of Redis servers share besides wire.h: keys and channels. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_WIRE_H
#define REDIS_WIRE_H

#include "faults/wire.h"
#include "support/redis_server.h"

/* The key of a lock, in the thread's own memory. */
static inline const char *key_of(ct_t *ct, const char *name) {
    static _Thread_local char key[DL_NAME_MAX + 16];
    snprintf(key, sizeof key, "%s%s", strcmp(ct_driver_name(ct), "redis-string") == 0 ? "dlock:" : "", name);
    return key;
}

/* Someone waits for a release there: at least this many channels are subscribed to. */
static inline int is_subscribed(ct_t *ct) {
    return redis_ask(ct_redis(ct), "PUBSUB CHANNELS")[0] != 0;
}

#endif
