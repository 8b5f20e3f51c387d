/* redlock.c - the driver redlock: a lock is a string key on a majority of independent servers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "redlock.h"

static dl_status_t check_name(void *state, const char *name, size_t name_len, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    return dli_redis_check_name(&redlock->nodes[0].redis, name, name_len, err);
}

/* "Redis 7.0.15 at 3 nodes: redis://a:6379/0, ..." */
static void describe(void *state, char *text, size_t size) {
    const dli_redlock_t *redlock = state;
    dli_facts_t facts = {.version_number = 0};
    for (size_t i = 0; i < redlock->n && facts.version_number == 0; i++) {
        facts = dli_redis_facts(&redlock->nodes[i].redis);
    }
    int len = snprintf(text, size,
                       "%s%s%s on %zu nodes:", strcmp(facts.product, "valkey") == 0 ? "Valkey" : "Redis",
                       facts.version[0] != '\0' ? " " : "", facts.version, redlock->n);
    for (size_t i = 0; i < redlock->n && len >= 0 && (size_t)len < size; i++) {
        const char *label = redlock->nodes[i].redis.endpoint.label;
        bool fits = (size_t)len + strlen(label) + sizeof ", , ..." <= size;
        len += snprintf(text + len, size - (size_t)len, "%s %s", i > 0 ? "," : "", fits ? label : "...");
        if (!fits) {
            break;
        }
    }
}

static uint32_t caps_off(void *state) {
    const dli_redlock_t *redlock = state;
    return redlock->fences ? 0 : DL_CAP_FENCE;
}

const dl_driver_t dli_redlock_driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "redlock",
    .summary = "a string key on a majority of independent Redis or Valkey servers",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY,
    .state_size = sizeof(dli_redlock_t),
    .hold_size = sizeof(dli_redlock_hold_t),
    .options = dli_redlock_options,
    .open = dli_redlock_open,
    .close = dli_redlock_close,
    .drop = dli_redlock_drop,
    .watch = dli_redlock_watch,
    .listen = dli_redlock_listen,
    .unwatch = dli_redlock_unwatch,
    .list = dli_redlock_list,
    .check_name = check_name,
    .describe = describe,
    .caps_off = caps_off,
    .check = dli_redlock_check,
    .init = dli_redlock_init,
    .listen_fds = dli_redlock_listen_fds,
};
