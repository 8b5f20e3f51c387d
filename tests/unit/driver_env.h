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
#include "support/beat.h"
#include "support/scratch.h"

#define MS ((uint64_t)1000000)

/* ---- the clock ------------------------------------------------------------------------------------ */

/* The machine's, less what the machine stood still: what it did not run for is nobody's time. */
static inline uint64_t ran_ns(void) {
    uint64_t now_ns, stood_ns = beat_stood_ns(&now_ns);
    return now_ns - stood_ns;
}

static inline uint64_t real_ns(uint64_t deadline_ns) {
    return deadline_ns == DL_NO_DEADLINE ? deadline_ns : deadline_ns + beat_stood_ns(NULL);
}

/* By what servers count, and libraries, it may have been so much longer. */
static inline uint64_t stood_ms(void) {
    return beat_stood_ns(NULL) / MS;
}

static inline int poll_while_it_runs(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    int ready;
    do {
        ready = dli_sys_real.poll(fds, n, real_ns(deadline_ns));
    } while (ready == 0 && ran_ns() < deadline_ns);
    return ready;
}

static inline int wait_while_it_runs(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    int rc = dli_sys_real.cond_wait(cond, mutex, real_ns(deadline_ns));
    return rc == ETIMEDOUT && ran_ns() < deadline_ns ? 0 : rc;
}

/* ---- the environment ------------------------------------------------------------------------------ */

/* With that clock and real threads; a test exchanges what it wants to see. */
static inline dl_driver_env_t make_env(const char *client_uuid,
                                       void (*report)(void *core, dl_log_level_t level, const char *text),
                                       void (*count)(void *core, dl_count_t what, uint64_t n)) {
    beat_begin();
    return (dl_driver_env_t){.size = sizeof(dl_driver_env_t),
                             .client_uuid = client_uuid,
                             .client_label = "host:1",
                             .call_timeout_ms = 2000,
                             .lease_ms = 30000,
                             .now_ns = ran_ns,
                             .poll = poll_while_it_runs,
                             .random = dli_sys_real.random,
                             .thread_start = dli_sys_real.thread_start,
                             .thread_join = dli_sys_real.thread_join,
                             .cond_init = dli_sys_real.cond_init,
                             .cond_wait = wait_while_it_runs,
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
