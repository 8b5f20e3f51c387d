/* utf8.h - reading UTF-8 one character at a time. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_UTF8_H
#define DLI_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The bytes of the first character of text (1 to 4), its number in *code; 0: not UTF-8, or cut off.
 * Overlong forms, surrogates and numbers above U+10FFFF are not UTF-8. len is at least 1. */
size_t dli_utf8_next(const char *text, size_t len, uint32_t *code);
/* The largest length <= `len` at which text does not end inside a character. */
size_t dli_utf8_cut(const char *text, size_t len);

#endif
