/* options.c - the table of the options that every backend has. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

const dl_option_t dli_core_options[DLI_OPT_COUNT + 1] = {
    [DLI_OPT_LEASE] = {.name = "lease",
                       .type = DL_OPTION_DURATION,
                       .default_text = "30s",
                       .min = DL_LEASE_MIN_MS,
                       .max = DL_LEASE_MAX_MS,
                       .help = "The automatic lease: how long the server keeps a lock without a renewal."},
    [DLI_OPT_RENEW_EVERY] = {.name = "renew_every",
                             .type = DL_OPTION_DURATION,
                             .min = 10,
                             .max = DL_LEASE_MAX_MS,
                             .help =
                                 "How often the watchdog renews automatic leases; at most half of the lease. "
                                 "Unset: a third of it. What is due together goes out together: a 32nd of "
                                 "this sooner, or 20 ms, at most."},
    [DLI_OPT_MAX_HOLD] = {.name = "max_hold",
                          .type = DL_OPTION_DURATION,
                          .default_text = "0s",
                          .min = 0,
                          .max = DL_LEASE_MAX_MS,
                          .help = "After this time renewal stops and the hold ends as lost; 0s: never."},
    [DLI_OPT_CALL_TIMEOUT] = {.name = "call_timeout",
                              .type = DL_OPTION_DURATION,
                              .default_text = "2s",
                              .min = 10,
                              .max = 600000,
                              .help = "Bound of every exchange with the server, connecting included."},
    [DLI_OPT_BACKOFF_MIN] = {.name = "backoff_min",
                             .type = DL_OPTION_DURATION,
                             .default_text = "5ms",
                             .min = 1,
                             .max = 60000,
                             .help = "The first pause between two tries where no release can be heard of."},
    [DLI_OPT_BACKOFF_MAX] =
        {.name = "backoff_max",
         .type = DL_OPTION_DURATION,
         .default_text = "500ms",
         .min = 1,
         .max = 60000,
         .help = "The longest such pause, also while another library's client holds the lock. Pauses double "
                 "from try to try and are drawn at random."},
    [DLI_OPT_PASS] = {.name = "pass",
                      .type = DL_OPTION_BOOL,
                      .default_text = "true",
                      .help =
                          "An unlock gives the lock to the next caller of this process without asking the "
                          "server, for 10 ms or 32 times in a row."},
    [DLI_OPT_SPIN] = {.name = "spin",
                      .type = DL_OPTION_BOOL,
                      .default_text = "true",
                      .help =
                          "A caller looks for its reply without sleeping for some 100 us, where that pays: "
                          "Redis drivers, few callers at once, a server that is near."},
    [DLI_OPT_COUNT] = {.name = NULL},
};
