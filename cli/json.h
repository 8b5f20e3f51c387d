/* json.h - writes JSON to stdout, commas and escapes included. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>

/* key NULL: an element of an array, or the outermost value. */
void json_open(const char *key, char bracket); /* '{' or '[' */
void json_close(char bracket);                 /* '}' or ']' */
/* Bytes that are not UTF-8 appear as U+FFFD; then a member key_hex follows with all bytes as hexadecimal
 * digits. */
void json_text(const char *key, const char *text);
void json_text_or_null(const char *key, const char *text); /* "" is null */
void json_number(const char *key, int64_t number);
void json_unsigned(const char *key, uint64_t number);
/* With that many digits behind the point. */
void json_real(const char *key, double number, int digits);
void json_bool(const char *key, bool yes);
void json_null(const char *key);
void json_end(void); /* the newline after the outermost value */

#endif
