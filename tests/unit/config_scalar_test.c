/* config_scalar_test.c - numbers with units, the nearest name, UTF-8: the pure parts of the loader. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "config/nearest.h"
#include "config/scalar.h"
#include "core/utf8.h"

static const struct {
    dl_option_type_t type;
    const char *text;
    dli_scalar_t outcome;
    int64_t number;
} readings[] = {
    {DL_OPTION_DURATION, "0", DLI_SCALAR_OK, 0},
    {DL_OPTION_DURATION, "0ms", DLI_SCALAR_OK, 0},
    {DL_OPTION_DURATION, "250ms", DLI_SCALAR_OK, 250},
    {DL_OPTION_DURATION, "1.5s", DLI_SCALAR_OK, 1500},
    {DL_OPTION_DURATION, "1.500000000000s", DLI_SCALAR_OK, 1500},
    {DL_OPTION_DURATION, "0.001s", DLI_SCALAR_OK, 1},
    {DL_OPTION_DURATION, "0.0001s", DLI_SCALAR_FRACTION, 0},
    {DL_OPTION_DURATION, "0.0000000001d", DLI_SCALAR_FRACTION, 0},
    {DL_OPTION_DURATION, "0.000000125d", DLI_SCALAR_FRACTION, 0},
    {DL_OPTION_DURATION, "0.00000125d", DLI_SCALAR_OK, 108},
    {DL_OPTION_DURATION, "2m", DLI_SCALAR_OK, 120000},
    {DL_OPTION_DURATION, "07m", DLI_SCALAR_OK, 420000},
    {DL_OPTION_DURATION, "2h", DLI_SCALAR_OK, 7200000},
    {DL_OPTION_DURATION, "365d", DLI_SCALAR_OK, 31536000000},
    {DL_OPTION_DURATION, "9223372036854775807ms", DLI_SCALAR_OK, INT64_MAX},
    {DL_OPTION_DURATION, "9223372036854775808ms", DLI_SCALAR_TOO_LARGE, 0},
    {DL_OPTION_DURATION, "9223372036854775.807s", DLI_SCALAR_OK, INT64_MAX},
    {DL_OPTION_DURATION, "9223372036854775.808s", DLI_SCALAR_TOO_LARGE, 0},
    {DL_OPTION_DURATION, "", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_DURATION, ".5s", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_DURATION, "+5s", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_DURATION, "-", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_DURATION, "-0s", DLI_SCALAR_NEGATIVE, 0},
    {DL_OPTION_DURATION, "0.0", DLI_SCALAR_NO_UNIT, 0},
    {DL_OPTION_DURATION, "1e3ms", DLI_SCALAR_UNKNOWN_UNIT, 0},
    {DL_OPTION_DURATION, "1s500ms", DLI_SCALAR_UNKNOWN_UNIT, 0},
    {DL_OPTION_DURATION, "1,5s", DLI_SCALAR_UNKNOWN_UNIT, 0},
    {DL_OPTION_DURATION, "5kB", DLI_SCALAR_UNKNOWN_UNIT, 0},
    {DL_OPTION_SIZE, "0", DLI_SCALAR_OK, 0},
    {DL_OPTION_SIZE, "7B", DLI_SCALAR_OK, 7},
    {DL_OPTION_SIZE, "1.5KiB", DLI_SCALAR_OK, 1536},
    {DL_OPTION_SIZE, "2MiB", DLI_SCALAR_OK, 2097152},
    {DL_OPTION_SIZE, "0.000000001GiB", DLI_SCALAR_FRACTION, 0},
    {DL_OPTION_SIZE, "8589934591GiB", DLI_SCALAR_OK, 8589934591 * 1073741824},
    {DL_OPTION_SIZE, "8589934592GiB", DLI_SCALAR_TOO_LARGE, 0},
    {DL_OPTION_SIZE, "1kB", DLI_SCALAR_DECIMAL_UNIT, 0},
    {DL_OPTION_SIZE, "1GB", DLI_SCALAR_DECIMAL_UNIT, 0},
    {DL_OPTION_SIZE, "1kib", DLI_SCALAR_UNKNOWN_UNIT, 0},
    {DL_OPTION_INT, "0", DLI_SCALAR_OK, 0},
    {DL_OPTION_INT, "-1", DLI_SCALAR_OK, -1},
    {DL_OPTION_INT, "9223372036854775807", DLI_SCALAR_OK, INT64_MAX},
    {DL_OPTION_INT, "9223372036854775808", DLI_SCALAR_TOO_LARGE, 0},
    {DL_OPTION_INT, "-0", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_INT, "00", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_INT, "1_000", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_INT, "", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_INT, " 1", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_BOOL, "true", DLI_SCALAR_OK, 1},
    {DL_OPTION_BOOL, "false", DLI_SCALAR_OK, 0},
    {DL_OPTION_BOOL, "True", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_BOOL, "", DLI_SCALAR_MALFORMED, 0},
    {DL_OPTION_STRING, "x", DLI_SCALAR_MALFORMED, 0},
};

Test(config_scalar, reads_numbers_with_units) {
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        int64_t number = -7;
        dli_scalar_t outcome = dli_scalar_read(readings[i].type, readings[i].text, &number);
        cr_assert_eq(outcome, readings[i].outcome, "'%s': %s", readings[i].text, dli_scalar_fault(outcome));
        if (outcome == DLI_SCALAR_OK) {
            cr_assert_eq(number, readings[i].number, "'%s' is %" PRId64, readings[i].text, number);
        }
    }
}

Test(config_scalar, writes_what_it_reads) {
    static const dl_option_type_t types[] = {DL_OPTION_INT, DL_OPTION_DURATION, DL_OPTION_SIZE};
    static const int64_t numbers[] = {0, 1, 999, 1000, 1024, 1500, 60000, 86400000, 31536000000, INT64_MAX};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            char text[40];
            int64_t number = -1;
            dli_scalar_write(types[t], numbers[i], text, sizeof text);
            cr_assert_eq(dli_scalar_read(types[t], text, &number), DLI_SCALAR_OK, "'%s'", text);
            cr_assert_eq(number, numbers[i], "'%s'", text);
        }
    }
    char text[40];
    dli_scalar_write(DL_OPTION_DURATION, 90000, text, sizeof text);
    cr_assert_str_eq(text, "90s");
    dli_scalar_write(DL_OPTION_SIZE, 3145728, text, sizeof text);
    cr_assert_str_eq(text, "3MiB");
}

static const char *nearest_to(const char *word) {
    static const char *const names[] = {"lease", "renew_every", "redis-string", "redis-hash-reentrant", "url",
                                        "a"};
    dli_nearest_t nearest;
    dli_nearest_start(&nearest, word, strlen(word));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        dli_nearest_try(&nearest, names[i]);
    }
    const char *name = dli_nearest_name(&nearest);
    return name == NULL ? "" : name;
}

Test(config_scalar, finds_the_nearest_name) {
    static const char *const cases[][2] = {
        {"lese", "lease"},
        {"laese", "lease"},
        {"leases", "lease"},
        {"LEASE", "lease"},
        {"renew", "renew_every"},
        {"renewevery", "renew_every"},
        {"redis", "redis-string"},
        {"redis-hash", "redis-hash-reentrant"},
        {"ulr", "url"},
        {"host", ""},
        {"b", ""},
        {"", ""},
        {"xyz", ""},
    };
    char word[200];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_str_eq(nearest_to(cases[i][0]), cases[i][1], "'%s' gave '%s'", cases[i][0],
                         nearest_to(cases[i][0]));
    }
    memset(word, 'l', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    cr_assert_str_eq(nearest_to(word), "");
}

/* Writes a character; the reference for what is read back. */
static size_t encode(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

Test(config_scalar, reads_every_character_of_unicode_and_no_other) {
    for (uint32_t code = 0; code < 0x200000; code++) {
        char bytes[4];
        uint32_t read = 0;
        size_t size = encode(code, bytes);
        int is_character = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
        cr_assert_eq(dli_utf8_next(bytes, size, &read), is_character ? size : 0, "U+%04X", (unsigned)code);
        cr_assert(!is_character || read == code, "U+%04X", (unsigned)code);
        cr_assert(size == 1 || dli_utf8_next(bytes, size - 1, &read) == 0, "U+%04X cut", (unsigned)code);
    }
}

Test(config_scalar, cuts_between_characters) {
    static const char text[] = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x94\x92z";
    static const size_t cuts[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    for (size_t len = 0; len < sizeof cuts / sizeof cuts[0]; len++) {
        cr_assert_eq(dli_utf8_cut(text, len), cuts[len], "%zu", len);
    }
}
