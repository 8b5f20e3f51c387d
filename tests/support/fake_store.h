/* fake_store.h - what one lease server keeps: names, who holds them and until when. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_STORE_H
#define FAKE_STORE_H

#include <pthread.h>

#include "dlock/driver.h"

#define FAKE_BUCKETS 16384

typedef struct fake_lock {
    struct fake_lock *next;
    char name[DL_NAME_MAX + 1];
    char owner[DL_OWNER_MAX + 1];
    char client[64];
    uint64_t hold_id;
    uint32_t level;
    uint64_t token;   /* the first of its block */
    uint64_t ends_ns; /* by the server's clock, which here is everybody's */
} fake_lock_t;

/* One server. Zeroed with its mutex initialised it is empty. */
typedef struct fake_store {
    pthread_mutex_t mutex; /* guards everything; each function takes it for itself */
    fake_lock_t *buckets[FAKE_BUCKETS];
    uint64_t last_token; /* the end of the last block */
} fake_store_t;
#define FAKE_STORE_INIT \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

/* The rules of driver.h, as a script on the server would carry them out. `now_ns` is the server's clock. None
 * of these can fail in another way: what they return is the server's answer. */
dl_status_t fake_store_acquire(fake_store_t *store, const dl_request_t *request, const char *client,
                               uint64_t now_ns, dl_grant_t *grant);
dl_status_t fake_store_release(fake_store_t *store, const dl_request_t *request, uint64_t now_ns);
dl_status_t fake_store_renew(fake_store_t *store, const char *name, const char *owner, uint64_t hold_id,
                             int64_t lease_ms, uint64_t now_ns);
void fake_store_inspect(fake_store_t *store, const char *name, uint64_t now_ns, dl_lock_info_t *info);
dl_status_t fake_store_force(fake_store_t *store, const char *name, uint64_t now_ns);
/* Copies the live locks with this prefix, so that fn runs without the mutex. */
void fake_store_list(fake_store_t *store, const char *prefix, size_t prefix_len, uint64_t now_ns,
                     dl_list_fn fn, void *arg);
void fake_store_reset(fake_store_t *store);

#endif
