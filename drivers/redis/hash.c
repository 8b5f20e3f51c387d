/* hash.c - the driver redis-hash-reentrant: a lock is a hash with the owner's count, as Redisson's RLock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "lock.h"

static const dl_option_t options[] = {DLI_REDIS_OPTIONS("\"\""), {.name = NULL}};

static void append(dli_key_t *to, const char *bytes, size_t len) {
    memcpy(to->at + to->len, bytes, len);
    to->len += len;
}

/* A name of Redisson's: no braces around a key that has one already. */
static void name_after(const char *before, const dli_redis_t *redis, const char *name, size_t name_len,
                       dli_key_t *to) {
    dli_key_t key;
    dli_redis_key(redis, name, name_len, &key);
    size_t brace = memchr(key.at, '{', key.len) == NULL ? 1 : 0;
    to->len = 0;
    append(to, before, strlen(before));
    append(to, "{", brace);
    append(to, key.at, key.len);
    append(to, "}", brace);
}

static void name_channel(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *channel) {
    name_after("redisson_lock__channel:", redis, name, name_len, channel);
}

static void name_queue(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *queue) {
    name_after("redisson_lock_queue:", redis, name, name_len, queue);
}

static const dli_layout_t layout = {
    .driver = "redis-hash-reentrant",
    .acquire = &dli_script_hash_acquire,
    .release = &dli_script_hash_release,
    .renew = &dli_script_hash_renew,
    .inspect = &dli_script_hash_inspect,
    .list = &dli_script_hash_list,
    .force = &dli_script_hash_force,
    .redis_type = "hash",
    .channel = name_channel,
    .peers = name_queue,
};

static dl_status_t open_hash(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                             uint64_t deadline_ns, dl_error_t *err) {
    return dli_redis_open(state, &layout, values, env, deadline_ns, err);
}

static dl_status_t init_hash(const dl_option_value_t *values, const dl_driver_env_t *env, unsigned flags,
                             dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    return dli_redis_init(&layout, values, env, flags, fn, arg, deadline_ns, err);
}

const dl_driver_t dli_redis_hash_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "redis-hash-reentrant",
    .summary = "a hash key on one Redis or Valkey server, shared with Redisson's RLock; shows the count",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_SERVER_COUNT | DL_CAP_NOTIFY,
    .state_size = sizeof(dli_redis_t),
    .options = options,
    .open = open_hash,
    .init = init_hash,
    DLI_REDIS_OPS,
};

const dli_backend_t dli_redis_hash_backend = DLI_REDIS_BACKEND(&dli_redis_hash_driver);
