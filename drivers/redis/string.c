/* string.c - the driver redis-string: a lock is one string key, as in the recipe SET NX PX. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "lock.h"

static const dl_option_t options[] = {
    DLI_REDIS_OPTIONS("\"dlock:\""),
    DLI_REDIS_TEXT(DLI_REDIS_OPT_ALSO_PUBLISH, "also_publish", NULL,
                   "Releases are told on this and the key too, with the key as message, at most 128 bytes"),
    {.name = NULL}};

/* A namespace of our own: keys of this kind have no channel that others would agree on. */
static void name_channel(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *channel) {
    static const char before[] = "dlock:released:";
    dli_key_t key;
    dli_redis_key(redis, name, name_len, &key);
    memcpy(channel->at, before, sizeof before - 1);
    memcpy(channel->at + sizeof before - 1, key.at, key.len);
    channel->len = sizeof before - 1 + key.len;
}

/* A channel that the user has named. */
static void name_peers(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *peers) {
    dli_key_t key;
    size_t len = strlen(redis->also_publish);
    peers->len = 0;
    if (len > 0) {
        dli_redis_key(redis, name, name_len, &key);
        memcpy(peers->at, redis->also_publish, len);
        memcpy(peers->at + len, key.at, key.len);
        peers->len = len + key.len;
    }
}

const dli_layout_t dli_redis_string_layout = {
    .driver = "redis-string",
    .acquire = &dli_script_string_acquire,
    .release = &dli_script_string_release,
    .renew = &dli_script_string_renew,
    .inspect = &dli_script_string_inspect,
    .list = &dli_script_string_list,
    .force = &dli_script_string_force,
    .redis_type = "string",
    .channel = name_channel,
    .peers = name_peers,
    .also_publish = DLI_REDIS_OPT_ALSO_PUBLISH,
};

static dl_status_t open_string(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                               uint64_t deadline_ns, dl_error_t *err) {
    return dli_redis_open(state, &dli_redis_string_layout, values, env, deadline_ns, err);
}

static dl_status_t init_string(const dl_option_value_t *values, const dl_driver_env_t *env, unsigned flags,
                               dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    return dli_redis_init(&dli_redis_string_layout, values, env, flags, fn, arg, deadline_ns, err);
}

const dl_driver_t dli_redis_string_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "redis-string",
    .summary = "a string key on one Redis or Valkey server; excludes other clients of SET NX PX",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY,
    .state_size = sizeof(dli_redis_t),
    .options = options,
    .open = open_string,
    .init = init_string,
    DLI_REDIS_OPS,
};

const dli_backend_t dli_redis_string_backend = DLI_REDIS_BACKEND(&dli_redis_string_driver);
