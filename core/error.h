/* error.h - how the core fills the caller's error struct. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_ERROR_H
#define DLI_ERROR_H

#include "dlock/driver.h"

/* Fills err (may be NULL) with a formatted line; returns status. */
dl_status_t dli_fail(dl_error_t *err, dl_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with the status' own text. */
dl_status_t dli_fail_plain(dl_error_t *err, dl_status_t status);
void dli_error_clear(dl_error_t *err);
/* Hands an inner error on: its message when it speaks of `status`, else the status' own text. */
dl_status_t dli_error_give(dl_error_t *to, const dl_error_t *from, dl_status_t status);

#endif
