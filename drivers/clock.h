/* clock.h - a server's clock against this host's, by looks at it at two instants. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CLOCK_H
#define DLI_CLOCK_H

#include <stdbool.h>

#include "report.h"

/* To be taken at each of the two; the quickest is the sharpest. */
#define DLI_CLOCK_LOOKS 5
/* Between the two; long enough that a clock a few percent off shows. */
#define DLI_CLOCK_WINDOW_NS ((uint64_t)250 * 1000000)

/* The quickest look at an instant. */
typedef struct dli_moment {
    uint64_t before_ns, after_ns; /* by our clock; both 0: no look */
    int64_t server_us;
    int64_t skew_us; /* server minus our wall clock */
} dli_moment_t;

/* The answer to a look has just come. `best` is zeroed before the first. */
void dli_clock_look(dli_moment_t *best, uint64_t before_ns, uint64_t after_ns, int64_t server_us);
/* Nothing, if there was no look. */
void dli_clock_report_trip(const dli_report_t *report, int64_t lease_ms, const dli_moment_t *first);
/* ends_leases: by this clock, or false: the locks depend on none, but their tokens start from it. */
void dli_clock_report(const dli_report_t *report, const dli_moment_t *first, const dli_moment_t *last,
                      bool ends_leases);

#endif
