/* text.h - what a text must be before it is read as YAML: bounded, UTF-8, without control characters. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_TEXT_H
#define DLI_CONFIG_TEXT_H

#include "report.h"

/* Two orders of magnitude above any real configuration, and small enough to read in an instant. */
#define DLI_TEXT_MAX ((size_t)1024 * 1024)

dl_status_t dli_text_check(const char *text, size_t len, const char *label, dl_error_t *err);
/* How many bytes of a byte order mark the text begins with. */
size_t dli_text_bom(const char *text, size_t len);
/* The offset of a place in a text that passed the check; len when it lies behind the end. */
size_t dli_text_offset(const char *text, size_t len, dli_mark_t mark);

#endif
