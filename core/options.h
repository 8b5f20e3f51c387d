/* options.h - the options that every backend has, whatever its driver. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_OPTIONS_H
#define DLI_OPTIONS_H

#include "dlock/driver.h"

/* Indices into dli_core_options. */
enum {
    DLI_OPT_LEASE,
    DLI_OPT_RENEW_EVERY,
    DLI_OPT_MAX_HOLD,
    DLI_OPT_CALL_TIMEOUT,
    DLI_OPT_BACKOFF_MIN,
    DLI_OPT_BACKOFF_MAX,
    DLI_OPT_PASS,
    DLI_OPT_SPIN,
    DLI_OPT_COUNT
};

extern const dl_option_t dli_core_options[DLI_OPT_COUNT + 1];

#endif
