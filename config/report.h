/* report.h - the one-line errors of the loader: `file:line:column: what, and what was expected`. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_REPORT_H
#define DLI_CONFIG_REPORT_H

#include "dlock/driver.h"

/* A place in a text; both count from 1, columns in characters. */
typedef struct dli_mark {
    unsigned line;
    unsigned column;
} dli_mark_t;

/* Where an error that concerns the file as a whole points. */
#define DLI_MARK_START ((dli_mark_t){1, 1})
/* Of a file that could not be read: no place is shown. */
#define DLI_MARK_NONE ((dli_mark_t){0, 0})

/* Text made fit for an error: at most 40 bytes, control characters written out, always UTF-8. */
#define DLI_SHOWN_SIZE 44
typedef struct dli_shown {
    char text[DLI_SHOWN_SIZE];
} dli_shown_t;
dli_shown_t dli_show(const char *text, size_t len);

/* The name of a file as errors show it: a long one loses its beginning, so that the line still has room. */
#define DLI_LABEL_MAX 100
typedef struct dli_label {
    char text[DLI_LABEL_MAX + 4];
} dli_label_t;
dli_label_t dli_label_make(const char *path);

/* Fills err (may be NULL) and returns DL_ECONFIG. */
dl_status_t dli_report(dl_error_t *err, const char *label, dli_mark_t at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a failed system call; returns `status`. */
dl_status_t dli_report_native(dl_error_t *err, dl_status_t status, int native, const char *label,
                              dli_mark_t at, const char *format, ...) __attribute__((format(printf, 6, 7)));
dl_status_t dli_report_no_memory(dl_error_t *err);

#endif
