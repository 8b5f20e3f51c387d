/* report.c - what the reports on all kinds of servers have in common. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>

void dli_say(const dli_report_t *report, dl_finding_level_t level, const char *subject, const char *format,
             ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *at = text; *at != '\0'; at++) {
        *at = (unsigned char)*at < ' ' ? ' ' : *at; /* one line, whatever names and servers have */
    }
    report->fn(report->arg, level, subject, text);
}
