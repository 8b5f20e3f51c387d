/* text.c - what a text must be before it is read as YAML: bounded, UTF-8, without control characters. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <string.h>

#include "core/utf8.h"

size_t dli_text_bom(const char *text, size_t len) {
    return len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* Goes one character on; CR, LF and CR LF each end a line. */
static void advance(dli_mark_t *mark, uint32_t code, int before_lf) {
    if (code == '\n' || (code == '\r' && !before_lf)) {
        mark->line++;
        mark->column = 1;
    } else {
        mark->column++;
    }
}

/* NULL: the character may stand in a configuration. YAML counts the other line ends as lines and editors do
 * not, so that with them no error could name a line that everybody agrees on. */
static const char *objection(uint32_t code) {
    if (code == 0) {
        return "a NUL byte, expected text";
    }
    if (code == 0x85 || code == 0x2028 || code == 0x2029) {
        return "a Unicode line separator, expected an ordinary line end";
    }
    if (code == 0xFEFF) {
        return "a byte order mark inside the text, expected one at most at the start";
    }
    if ((code < 0x20 && code != '\t' && code != '\n' && code != '\r') || (code >= 0x7F && code <= 0x9F) ||
        code == 0xFFFE || code == 0xFFFF) {
        return "a control character, expected printable text";
    }
    return NULL;
}

dl_status_t dli_text_check(const char *text, size_t len, const char *label, dl_error_t *err) {
    dli_mark_t mark = DLI_MARK_START;
    if (len > DLI_TEXT_MAX) {
        return dli_report(err, label, mark, "larger than %zu KiB, expected a configuration",
                          DLI_TEXT_MAX / 1024);
    }
    for (size_t at = dli_text_bom(text, len); at < len;) {
        uint32_t code = 0;
        size_t size = dli_utf8_next(text + at, len - at, &code);
        if (size == 0) {
            return dli_report(err, label, mark, "the byte 0x%02X is not UTF-8, expected UTF-8 text",
                              (unsigned)(unsigned char)text[at]);
        }
        const char *why = objection(code);
        if (why != NULL) {
            return dli_report(err, label, mark, "%s", why);
        }
        at += size;
        advance(&mark, code, at < len && text[at] == '\n');
    }
    return DL_OK;
}

size_t dli_text_offset(const char *text, size_t len, dli_mark_t mark) {
    dli_mark_t here = DLI_MARK_START;
    size_t at = dli_text_bom(text, len);
    while (at < len && (here.line < mark.line || (here.line == mark.line && here.column < mark.column))) {
        uint32_t code = 0;
        size_t size = dli_utf8_next(text + at, len - at, &code);
        at += size == 0 ? 1 : size;
        advance(&here, code, at < len && text[at] == '\n');
    }
    return at;
}
