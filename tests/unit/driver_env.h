/* driver_env.h - what a driver gets from the core, and a folder, for tests that drive it directly. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRIVER_ENV_H
#define DRIVER_ENV_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sys.h"
#include "dlock/driver.h"
#include "support/scratch.h"

#define MS ((uint64_t)1000000)

/* With the real clock and threads; a test exchanges what it wants to see. */
static inline dl_driver_env_t make_env(const char *client_uuid,
                                       void (*report)(void *core, dl_log_level_t level, const char *text),
                                       void (*count)(void *core, dl_count_t what, uint64_t n)) {
    return (dl_driver_env_t){.size = sizeof(dl_driver_env_t),
                             .client_uuid = client_uuid,
                             .client_label = "host:1",
                             .call_timeout_ms = 2000,
                             .lease_ms = 30000,
                             .now_ns = dli_sys_real.now_ns,
                             .poll = dli_sys_real.poll,
                             .random = dli_sys_real.random,
                             .thread_start = dli_sys_real.thread_start,
                             .thread_join = dli_sys_real.thread_join,
                             .cond_init = dli_sys_real.cond_init,
                             .cond_wait = dli_sys_real.cond_wait,
                             .cond_broadcast = dli_sys_real.cond_broadcast,
                             .report = report,
                             .count = count};
}

static inline dl_request_t make_request(const char *name, const char *owner, uint64_t hold_id,
                                        uint64_t deadline_ns) {
    return (dl_request_t){
        .name = name,
        .name_len = strlen(name),
        .owner = owner,
        .hold_id = hold_id,
        .level = 1,
        .lease_ms = 30000,
        .deadline_ns = deadline_ns,
        .stop = {{-1, -1}},
        .tokens = 1,
    };
}

static inline void make_folder(char *folder, size_t size) {
    cr_assert(scratch_make("unit", folder, size), "no folder: errno %d", errno);
}

static inline void delete_folder(const char *folder) {
    scratch_remove(folder);
}

#endif
