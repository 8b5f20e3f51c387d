/* options.h - what the configuration may say of several independent servers. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_OPTIONS_H
#define DLI_REDLOCK_OPTIONS_H

#include "redlock.h"

enum {
    DLI_REDLOCK_OPT_NODES,
    DLI_REDLOCK_OPT_USERNAME,
    DLI_REDLOCK_OPT_PASSWORD,
    DLI_REDLOCK_OPT_PREFIX,
    DLI_REDLOCK_OPT_TOKEN_KEY,
    DLI_REDLOCK_OPT_NODE_TIMEOUT,
    DLI_REDLOCK_OPT_MAX_LEASE,
    DLI_REDLOCK_OPT_FENCING,
    DLI_REDLOCK_OPT_QUARANTINE,
    DLI_REDLOCK_OPT_DURABLE,
    DLI_REDLOCK_OPT_CONNECT_TIMEOUT,
    DLI_REDLOCK_OPT_KEEPALIVE,
    DLI_REDIS_SHARING_BLOCK(DLI_REDLOCK_OPT),
    DLI_REDIS_TLS_BLOCK(DLI_REDLOCK_OPT),
    DLI_REDLOCK_OPT_COUNT
};

extern const dl_option_t dli_redlock_options[];

/* What init needs of the options: names, numbers and endpoints. Close can follow, whatever the status. No
 * I/O. */
dl_status_t dli_redlock_configure(dli_redlock_t *redlock, const dl_option_value_t *values,
                                  const dl_driver_env_t *env, dl_error_t *err);
/* Would the key of a lock of this name be one of those that the driver needs for itself? */
bool dli_redlock_is_own_key(const dli_redlock_t *redlock, const char *name, size_t name_len);

#endif
