/* fake_store.c - the rules of a lease server, carried out at one instant. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_store.h"

#include <stdio.h>
#include <string.h>

#include "support/alloc_fail.h"

#define NS_PER_MS 1000000u

static uint64_t ms(int64_t value) {
    return (uint64_t)value * NS_PER_MS;
}

static fake_lock_t **bucket_of(fake_store_t *store, const char *name) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *at = name; *at != 0; at++) {
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    return &store->buckets[hash % FAKE_BUCKETS];
}

/* Where the entry of this name is linked; *place NULL: there is none. An entry whose lease is over is
 * none. */
static fake_lock_t **find(fake_store_t *store, const char *name, uint64_t now_ns) {
    fake_lock_t **place = bucket_of(store, name);
    while (*place != NULL) {
        fake_lock_t *here = *place;
        if (here->ends_ns <= now_ns) {
            *place = here->next;
            alloc_real_free(here);
        } else if (strcmp(here->name, name) == 0) {
            break;
        } else {
            place = &here->next;
        }
    }
    return place;
}

static void remove_at(fake_lock_t **place) {
    fake_lock_t *gone = *place;
    *place = gone->next;
    alloc_real_free(gone);
}

static int is_own(const fake_lock_t *lock, const char *owner, uint64_t hold_id) {
    return lock != NULL && strcmp(lock->owner, owner) == 0 && lock->hold_id == hold_id;
}

static void extend(fake_lock_t *lock, int64_t lease_ms, uint64_t now_ns) {
    uint64_t until = now_ns + ms(lease_ms);
    if (lock->ends_ns < until) { /* nothing ever shortens a lease */
        lock->ends_ns = until;
    }
}

/* The block of an acquire; the next one's begins above it. */
static void draw(fake_store_t *store, const dl_request_t *request, dl_grant_t *grant) {
    if (store->last_token < request->token_floor) {
        store->last_token = request->token_floor;
    }
    grant->token = store->last_token + 1;
    grant->tokens = request->tokens > 0 ? request->tokens : 1;
    store->last_token += grant->tokens;
}

/* A new hold: full lease, fresh tokens. */
static dl_status_t take(fake_store_t *store, fake_lock_t **place, const dl_request_t *request,
                        const char *client, uint64_t now_ns, dl_grant_t *grant) {
    if (*place == NULL) {
        *place = alloc_real(sizeof **place);
        snprintf((*place)->name, sizeof(*place)->name, "%s", request->name);
    }
    fake_lock_t *lock = *place;
    snprintf(lock->owner, sizeof lock->owner, "%s", request->owner);
    snprintf(lock->client, sizeof lock->client, "%s", client);
    lock->hold_id = request->hold_id;
    lock->level = 1;
    lock->ends_ns = now_ns + ms(request->lease_ms);
    draw(store, request, grant);
    lock->token = grant->token;
    return DL_OK;
}

static dl_status_t write_level(fake_lock_t *lock, const dl_request_t *request, uint64_t now_ns,
                               dl_grant_t *grant) {
    if (!is_own(lock, request->owner, request->hold_id)) {
        return DL_ELOST;
    }
    lock->level = request->level;
    extend(lock, request->lease_ms, now_ns);
    grant->token = lock->token;
    return DL_OK;
}

dl_status_t fake_store_acquire(fake_store_t *store, const dl_request_t *request, const char *client,
                               uint64_t now_ns, dl_grant_t *grant) {
    pthread_mutex_lock(&store->mutex);
    fake_lock_t **place = find(store, request->name, now_ns);
    fake_lock_t *lock = *place;
    dl_status_t status;
    if (request->level > 1) {
        status = write_level(lock, request, now_ns, grant);
    } else if (lock == NULL ||
               (strcmp(lock->owner, request->owner) == 0 && lock->hold_id <= request->hold_id)) {
        status = take(store, place, request, client, now_ns, grant);
    } else {
        /* Rounded up: a waiter that comes back a moment too early would wait once more. */
        grant->busy_ms = (int64_t)((lock->ends_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS);
        grant->busy_is_dlock = 1;
        status = DL_EBUSY;
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

dl_status_t fake_store_release(fake_store_t *store, const dl_request_t *request, uint64_t now_ns) {
    pthread_mutex_lock(&store->mutex);
    fake_lock_t **place = find(store, request->name, now_ns);
    dl_status_t status = is_own(*place, request->owner, request->hold_id) ? DL_OK : DL_ELOST;
    if (status == DL_OK && request->level > 0) {
        (*place)->level = request->level;
    } else if (status == DL_OK) {
        remove_at(place);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

dl_status_t fake_store_renew(fake_store_t *store, const char *name, const char *owner, uint64_t hold_id,
                             int64_t lease_ms, uint64_t now_ns) {
    pthread_mutex_lock(&store->mutex);
    fake_lock_t *lock = *find(store, name, now_ns);
    dl_status_t status = DL_ELOST;
    if (is_own(lock, owner, hold_id)) {
        extend(lock, lease_ms, now_ns);
        status = DL_OK;
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

static void describe(const fake_lock_t *lock, uint64_t now_ns, dl_lock_info_t *info) {
    info->held = 1;
    snprintf(info->owner, sizeof info->owner, "%s", lock->owner);
    snprintf(info->client, sizeof info->client, "%s", lock->client);
    info->hold_id = lock->hold_id;
    info->holds = lock->level;
    info->token = lock->token;
    info->remaining_ms = (int64_t)((lock->ends_ns - now_ns) / NS_PER_MS);
}

void fake_store_inspect(fake_store_t *store, const char *name, uint64_t now_ns, dl_lock_info_t *info) {
    pthread_mutex_lock(&store->mutex);
    fake_lock_t *lock = *find(store, name, now_ns);
    if (lock != NULL) {
        describe(lock, now_ns, info);
    }
    pthread_mutex_unlock(&store->mutex);
}

dl_status_t fake_store_force(fake_store_t *store, const char *name, uint64_t now_ns) {
    pthread_mutex_lock(&store->mutex);
    fake_lock_t **place = find(store, name, now_ns);
    dl_status_t status = *place == NULL ? DL_ENOTOWNER : DL_OK;
    if (*place != NULL) {
        remove_at(place);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

void fake_store_list(fake_store_t *store, const char *prefix, size_t prefix_len, uint64_t now_ns,
                     dl_list_fn fn, void *arg) {
    fake_lock_t *copies = NULL;
    pthread_mutex_lock(&store->mutex);
    for (size_t i = 0; i < FAKE_BUCKETS; i++) {
        for (fake_lock_t *lock = store->buckets[i]; lock != NULL; lock = lock->next) {
            if (lock->ends_ns > now_ns && strncmp(lock->name, prefix, prefix_len) == 0) {
                fake_lock_t *copy = alloc_real(sizeof *copy);
                *copy = *lock;
                copy->next = copies;
                copies = copy;
            }
        }
    }
    pthread_mutex_unlock(&store->mutex);
    int stop = 0;
    while (copies != NULL) {
        fake_lock_t *copy = copies;
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        describe(copy, now_ns, &info);
        stop = stop || fn(arg, copy->name, &info) != 0;
        copies = copy->next;
        alloc_real_free(copy);
    }
}

void fake_store_reset(fake_store_t *store) {
    pthread_mutex_lock(&store->mutex);
    for (size_t i = 0; i < FAKE_BUCKETS; i++) {
        while (store->buckets[i] != NULL) {
            remove_at(&store->buckets[i]);
        }
    }
    store->last_token = 0;
    pthread_mutex_unlock(&store->mutex);
}
