/* report.h - what the reports on all kinds of servers have in common. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REPORT_H
#define DLI_REPORT_H

#include "dlock/driver.h"

/* To whom it is made. */
typedef struct dli_report {
    dl_finding_fn fn;
    void *arg;
} dli_report_t;

void dli_say(const dli_report_t *report, dl_finding_level_t level, const char *subject, const char *format,
             ...) __attribute__((format(printf, 4, 5)));

#endif
