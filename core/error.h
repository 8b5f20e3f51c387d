/* error.h - how the core fills the caller's error struct. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_ERROR_H
#define DLI_ERROR_H

#include <stdarg.h>

#include "dlock/driver.h"

/* One formatted line, cut off at its size. */
__attribute__((format(printf, 3, 0))) void dli_line(char *line, size_t size, const char *format,
                                                    va_list args);
/* (err, status, format, ...): fills err, which may be NULL, and returns status. */
#define dli_fail(err_, status_, ...) dl_driver_fail(err_, status_, 0, __VA_ARGS__)
/* The same with the status' own text. */
dl_status_t dli_fail_plain(dl_error_t *err, dl_status_t status);
void dli_error_clear(dl_error_t *err);
/* Hands an inner error on: its message when it speaks of `status`, else the status' own text. */
dl_status_t dli_error_give(dl_error_t *to, const dl_error_t *from, dl_status_t status);

#endif
