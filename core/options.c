/* options.c - the table of the options that every backend has. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

/* In ms. */
#define DURATION(name_, default_, min_, max_, help_)                                                   \
    {                                                                                                  \
        .name = name_, .type = DL_OPTION_DURATION, .default_text = default_, .min = min_, .max = max_, \
        .help = help_                                                                                  \
    }
#define SWITCH(name_, default_, help_) \
    { .name = name_, .type = DL_OPTION_BOOL, .default_text = default_, .help = help_ }

const dl_option_t dli_core_options[DLI_OPT_COUNT + 1] = {
    [DLI_OPT_LEASE] = DURATION("lease", "30s", DL_LEASE_MIN_MS, DL_LEASE_MAX_MS,
                               "The automatic lease: how long the server keeps a lock without a renewal."),
    [DLI_OPT_RENEW_EVERY] =
        DURATION("renew_every", NULL, 10, DL_LEASE_MAX_MS,
                 "How often the watchdog renews automatic leases; at most half of the lease. Unset: a third "
                 "of it. What is due together goes out together: a 32nd of this sooner, or 20 ms, at most."),
    [DLI_OPT_MAX_HOLD] = DURATION("max_hold", "0s", 0, DL_LEASE_MAX_MS,
                                  "After this time renewal stops and the hold ends as lost; 0s: never."),
    [DLI_OPT_CALL_TIMEOUT] = DURATION("call_timeout", "2s", 10, 600000,
                                      "Bound of every exchange with the server, connecting included."),
    [DLI_OPT_BACKOFF_MIN] = DURATION("backoff_min", "5ms", 1, 60000,
                                     "The first pause between two tries where no release can be heard of."),
    [DLI_OPT_BACKOFF_MAX] = DURATION(
        "backoff_max", "500ms", 1, 60000,
        "The longest such pause. Pauses double from try to try and are drawn at random; while another "
        "library's client has the key of a redis-string, they grow with the time waited, to a sixteenth of "
        "it."),
    [DLI_OPT_PASS] = SWITCH("pass", "true",
                            "An unlock gives the lock to the next caller of this process without asking the "
                            "server, for 10 ms or 32 times in a row."),
    [DLI_OPT_SPIN] =
        SWITCH("spin", "true",
               "A caller looks for its reply without sleeping for up to twice the usual round trip, if "
               "that is below 100 us, where it pays: Redis drivers, few callers at once."),
    [DLI_OPT_COUNT] = {.name = NULL},
};
