/* text.c - text of unknown bytes, made fit for terminals. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

#define PLAIN_RING 4u
/* A name has 255 bytes, and each becomes four characters at most; longer text is cut. */
#define PLAIN_MAX 1100u

/* A byte is looked at only where the one before it asks for it, so none behind the final NUL. */
static size_t next_of(const char *text, uint32_t *code) {
    return *text == '\0' ? 0 : dli_utf8_next(text, 4, code);
}

size_t utf8_length(const char *text) {
    uint32_t code;
    return next_of(text, &code);
}

bool is_utf8(const char *text) {
    while (*text != '\0') {
        size_t len = utf8_length(text);
        if (len == 0) {
            return false;
        }
        text += len;
    }
    return true;
}

/* U+0080 to U+009F control terminals too. */
static bool is_control(uint32_t code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

/* The character at `text` as it is, or its bytes as \xNN; to `out`, which has room for 17 bytes. The bytes of
 * text that were used. */
static size_t show(const char *text, char *out, size_t *used) {
    uint32_t code;
    size_t len = next_of(text, &code);
    size_t count = len == 0 ? 1 : len;
    *used = 0;
    if (len > 0 && !is_control(code)) {
        memcpy(out, text, len);
        *used = len;
        return count;
    }
    for (size_t i = 0; i < count; i++) {
        *used += (size_t)snprintf(out + *used, 5, "\\x%02x", (unsigned char)text[i]);
    }
    return count;
}

int columns_of(const char *text) {
    int count = 0;
    for (; *text != '\0'; text++) {
        count += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return count;
}

/* The first len bytes as they are shown; returns how many columns those take. To stdout if `print`. */
static int show_word(const char *word, size_t len, bool print) {
    int columns = 0;
    for (const char *end = word + len; word < end;) {
        char shown[17];
        size_t used;
        word += show(word, shown, &used);
        shown[used] = '\0';
        columns += columns_of(shown);
        if (print) {
            (void)fputs(shown, stdout);
        }
    }
    return columns;
}

void print_wrapped(wrap_t *wrap, const char *text) {
    while (*text != '\0') {
        size_t blanks = strspn(text, " ");
        size_t len = strcspn(text + blanks, " ");
        wrap->blanks += (int)blanks;
        text += blanks;
        if (len == 0) {
            return; /* the next piece says what follows the blanks */
        }
        int columns = wrap->blanks + show_word(text, len, false);
        if (wrap->width > 0 && wrap->blanks > 0 && wrap->column > wrap->indent &&
            wrap->column + columns > wrap->width) {
            (void)printf("\n%*s", wrap->indent, "");
            columns -= wrap->blanks;
            wrap->column = wrap->indent;
        } else {
            (void)printf("%*s", wrap->blanks, "");
        }
        (void)show_word(text, len, true);
        wrap->column += columns;
        wrap->blanks = 0;
        text += len;
    }
}

void print_prose(const char *text) {
    char shown[17];
    size_t used;
    while (*text != '\0') {
        text += show(text, shown, &used);
        (void)fwrite(shown, 1, used, stdout);
    }
}

const char *plain(const char *text) {
    static _Thread_local char ring[PLAIN_RING][PLAIN_MAX];
    static _Thread_local unsigned next;
    char *out = ring[next++ % PLAIN_RING];
    size_t used = 0;
    while (*text != '\0' && used + 18 < PLAIN_MAX) { /* a backslash, a character and the end */
        size_t len;
        if (*text == '\\') {
            out[used++] = '\\';
        }
        text += show(text, out + used, &len);
        used += len;
    }
    out[used] = '\0';
    return out;
}
