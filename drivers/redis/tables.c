/* tables.c - the drivers of one server: which options, scripts and names. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "lock.h"

/* ---- redis-string: a lock is one string key, as in the recipe SET NX PX ------------------------------- */

static const dl_option_t string_options[] = {
    DLI_REDIS_OPTIONS("\"dlock:\""),
    DLI_REDIS_TEXT(DLI_REDIS_OPT_ALSO_PUBLISH, "also_publish", NULL,
                   "Releases are told on this and the key too, with the key as message, at most 128 bytes"),
    {.name = NULL}};

const dli_layout_t dli_redis_string_layout = {
    .driver = "redis-string",
    .acquire = &dli_script_string_acquire,
    .release = &dli_script_string_release,
    .inspect = &dli_script_string_inspect,
    .redis_type = "string",
    .channel_before = "dlock:released:",
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
    .options = string_options,
    .open = open_string,
    .init = init_string,
    DLI_REDIS_OPS,
};

const dli_backend_t dli_redis_string_backend = DLI_REDIS_BACKEND(&dli_redis_string_driver);

/* ---- redis-hash-reentrant: a lock is a hash with the owner's count, as Redisson's RLock ---------------- */

static const dl_option_t hash_options[] = {DLI_REDIS_OPTIONS("\"\""), {.name = NULL}};

static const dli_layout_t hash_layout = {
    .driver = "redis-hash-reentrant",
    .acquire = &dli_script_hash_acquire,
    .release = &dli_script_hash_release,
    .inspect = &dli_script_hash_inspect,
    .redis_type = "hash",
    .channel_before = "redisson_lock__channel:",
    .peers_before = "redisson_lock_queue:",
    .braces = true,
    .hears_peers = true,
};

static dl_status_t open_hash(void *state, const dl_option_value_t *values, const dl_driver_env_t *env,
                             uint64_t deadline_ns, dl_error_t *err) {
    return dli_redis_open(state, &hash_layout, values, env, deadline_ns, err);
}

static dl_status_t init_hash(const dl_option_value_t *values, const dl_driver_env_t *env, unsigned flags,
                             dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    return dli_redis_init(&hash_layout, values, env, flags, fn, arg, deadline_ns, err);
}

const dl_driver_t dli_redis_hash_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "redis-hash-reentrant",
    .summary = "a hash key on one Redis or Valkey server, shared with Redisson's RLock; shows the count",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_SERVER_COUNT | DL_CAP_NOTIFY,
    .state_size = sizeof(dli_redis_t),
    .options = hash_options,
    .open = open_hash,
    .init = init_hash,
    DLI_REDIS_OPS,
};

const dli_backend_t dli_redis_hash_backend = DLI_REDIS_BACKEND(&dli_redis_hash_driver);
