/* text.h - text of unknown bytes, made fit for terminals. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The length of the well-formed UTF-8 character at `text` (1 to 4); 0: there is none. NUL ends the text. */
size_t utf8_length(const char *text);
bool is_utf8(const char *text);
/* The text with a backslash doubled, and control bytes and bytes that are not UTF-8 as \xNN, so that no two
 * texts look alike and none controls the terminal. Valid until the fourth next call; one thread only. */
const char *plain(const char *text);
/* Prints sentences of the library, however long: what is printable comes out as it is, a backslash too, since
 * people copy from it; control bytes and bytes that are not UTF-8 as \xNN. */
void print_prose(const char *text);

#endif
