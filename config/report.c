/* report.c - the one-line errors of the loader: `file:line:column: what, and what was expected`. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

#define SHOWN_MAX 40

/* Characters that would break the line or could steer a terminal: controls, line ends, text direction. */
static int is_unfit(uint32_t code) {
    return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x2028 || code == 0x2029 ||
           (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

/* Writes the next character of text as it may be shown; returns how many bytes of text it was. */
static size_t show_next(const char *text, size_t len, char piece[16]) {
    uint32_t code = 0;
    size_t size = dli_utf8_next(text, len, &code);
    if (size == 0) {
        snprintf(piece, 16, "\\x%02X", (unsigned)(unsigned char)text[0]);
        return 1;
    }
    if (code == '\n' || code == '\t') {
        snprintf(piece, 16, code == '\n' ? "\\n" : "\\t");
    } else if (is_unfit(code)) {
        snprintf(piece, 16, code < 0x100 ? "\\x%02X" : "\\u%04X", (unsigned)code);
    } else {
        memcpy(piece, text, size);
        piece[size] = '\0';
    }
    return size;
}

/* Shows as much of text as `room` bytes hold; returns the bytes of text that were shown. */
static size_t show_into(char *out, size_t room, const char *text, size_t len) {
    size_t at = 0, used = 0;
    while (at < len) {
        char piece[16];
        size_t size = show_next(text + at, len - at, piece);
        size_t wide = strlen(piece);
        if (used + wide > room) {
            break;
        }
        memcpy(out + used, piece, wide);
        used += wide;
        at += size;
    }
    out[used] = '\0';
    return at;
}

dli_shown_t dli_show(const char *text, size_t len) {
    dli_shown_t shown;
    if (show_into(shown.text, SHOWN_MAX, text, len) < len) {
        show_into(shown.text, SHOWN_MAX - 3, text, len);
        strcat(shown.text, "...");
    }
    return shown;
}

dli_label_t dli_label_make(const char *path) {
    dli_label_t label;
    size_t len = strlen(path), skipped = 0;
    if (show_into(label.text, DLI_LABEL_MAX, path, len) == len) {
        return label;
    }
    /* Its end says more than its beginning. Skips until the rest fits; every round skips more. */
    skipped = len > DLI_LABEL_MAX ? len - DLI_LABEL_MAX : 1;
    memcpy(label.text, "...", 3);
    for (;;) {
        while (skipped < len && ((unsigned char)path[skipped] & 0xC0u) == 0x80) {
            skipped++;
        }
        if (show_into(label.text + 3, DLI_LABEL_MAX - 3, path + skipped, len - skipped) == len - skipped) {
            return label;
        }
        skipped++;
    }
}

__attribute__((format(printf, 6, 0))) static void fill(dl_error_t *err, dl_status_t status, int native,
                                                       const char *label, dli_mark_t at, const char *format,
                                                       va_list args) {
    char line[sizeof err->message + 1];
    int head = at.line == 0 ? snprintf(line, sizeof line, "%s: ", label)
                            : snprintf(line, sizeof line, "%s:%u:%u: ", label, at.line, at.column);
    if (head > 0 && (size_t)head < sizeof line) {
        vsnprintf(line + head, sizeof line - (size_t)head, format, args);
    }
    if (strlen(line) >= sizeof err->message) {
        line[dli_utf8_cut(line, sizeof err->message - 4)] = '\0';
        strcat(line, "...");
    }
    dl_driver_fail(err, status, native, "%s", line);
}

dl_status_t dli_report(dl_error_t *err, const char *label, dli_mark_t at, const char *format, ...) {
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        fill(err, DL_ECONFIG, 0, label, at, format, args);
        va_end(args);
    }
    return DL_ECONFIG;
}

dl_status_t dli_report_native(dl_error_t *err, dl_status_t status, int native, const char *label,
                              dli_mark_t at, const char *format, ...) {
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        fill(err, status, native, label, at, format, args);
        va_end(args);
    }
    return status;
}

dl_status_t dli_report_no_memory(dl_error_t *err) {
    if (err != NULL) {
        dl_driver_fail(err, DL_ENOMEM, 0, "%s", dl_status_text(DL_ENOMEM));
    }
    return DL_ENOMEM;
}
