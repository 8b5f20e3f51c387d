/* utf8.c - reading UTF-8 one character at a time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "utf8.h"

size_t dli_utf8_next(const char *text, size_t len, uint32_t *code) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *code = p[0];
        return 1;
    }
    size_t size = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC0 || p[0] > 0xF7 || size > len) {
        return 0;
    }
    uint32_t value = p[0] & (0xFFu >> (size + 1));
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xC0u) != 0x80) {
            return 0;
        }
        value = value << 6 | (p[i] & 0x3Fu);
    }
    if (value < smallest[size] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
        return 0;
    }
    *code = value;
    return size;
}

size_t dli_utf8_cut(const char *text, size_t len) {
    size_t at = 0;
    while (at < len) {
        uint32_t code;
        size_t size = dli_utf8_next(text + at, len - at, &code);
        if (size == 0) {
            /* A byte that is no character counts as one, unless it begins one that goes on behind `len`. */
            if (((unsigned char)text[at] & 0xC0u) == 0xC0 && len - at < 4) {
                return at;
            }
            size = 1;
        }
        at += size;
    }
    return at;
}
