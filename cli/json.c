/* json.c - writes JSON to stdout, commas and escapes included. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <inttypes.h>
#include <stdio.h>

#include "text.h"

static bool comma_is_due;

static void write_string(const char *text) {
    (void)putchar('"');
    while (*text != '\0') {
        size_t len = utf8_length(text);
        unsigned char first = (unsigned char)*text;
        if (len == 0) {
            (void)fputs("\\ufffd", stdout);
            len = 1;
        } else if (first == '"' || first == '\\') {
            (void)printf("\\%c", first);
        } else if (first < 0x20 || first == 0x7f) {
            (void)printf("\\u%04x", first);
        } else {
            (void)fwrite(text, 1, len, stdout);
        }
        text += len;
    }
    (void)putchar('"');
}

static void begin(const char *key) {
    if (comma_is_due) {
        (void)fputs(", ", stdout);
    }
    if (key != NULL) {
        (void)printf("\"%s\": ", key);
    }
    comma_is_due = true;
}

void json_open(const char *key, char bracket) {
    begin(key);
    (void)putchar(bracket);
    comma_is_due = false;
}

void json_close(char bracket) {
    (void)putchar(bracket);
    comma_is_due = true;
}

void json_text(const char *key, const char *text) {
    begin(key);
    write_string(text);
    if (key != NULL && !is_utf8(text)) {
        (void)printf(", \"%s_hex\": \"", key);
        for (; *text != '\0'; text++) {
            (void)printf("%02x", (unsigned char)*text);
        }
        (void)putchar('"');
    }
}

void json_number(const char *key, int64_t number) {
    begin(key);
    (void)printf("%" PRId64, number);
}

void json_unsigned(const char *key, uint64_t number) {
    begin(key);
    (void)printf("%" PRIu64, number);
}

void json_real(const char *key, double number, int digits) {
    begin(key);
    (void)printf("%.*f", digits, number);
}

void json_bool(const char *key, bool yes) {
    begin(key);
    (void)fputs(yes ? "true" : "false", stdout);
}

void json_null(const char *key) {
    begin(key);
    (void)fputs("null", stdout);
}

void json_text_or_null(const char *key, const char *text) {
    if (text[0] != '\0') {
        json_text(key, text);
    } else {
        json_null(key);
    }
}

void json_end(void) {
    (void)putchar('\n');
    comma_is_due = false;
}
