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
 * texts look alike and none controls the terminal. Valid until the fourth next call of the thread. */
const char *plain(const char *text);
/* Prints sentences of the library, however long: what is printable comes out as it is, a backslash too, since
 * people copy from it; control bytes and bytes that are not UTF-8 as \xNN. */
void print_prose(const char *text);
/* How many columns of a terminal a text takes: its characters, since none here is wide. */
int columns_of(const char *text);

/* A line that is printed piece by piece. */
typedef struct wrap {
    int width;  /* of the terminal; 0: the line is not broken */
    int indent; /* of the lines that follow the first */
    int column; /* where the line is by now */
    int blanks; /* that come before the next word, if it is on this line */
} wrap_t;

/* As print_prose, but a line that gets too long is broken at blanks. */
void print_wrapped(wrap_t *wrap, const char *text);

#endif
