/* scalar.c - what the text of a number, a duration, a size or a boolean means. Pure functions. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "scalar.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct unit {
    const char *name;
    int64_t factor;
} unit_t;

/* From small to large. */
static const unit_t time_units[] = {{"ms", 1},      {"s", 1000},     {"m", 60000},
                                    {"h", 3600000}, {"d", 86400000}, {NULL, 0}};
static const unit_t size_units[] = {
    {"B", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {NULL, 0}};

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Reads the digits at *text and moves it behind them. 0, or -1 when the number is too large. */
static int read_digits(const char **text, int64_t *number) {
    int64_t n = 0;
    for (; is_digit(**text); (*text)++) {
        if (__builtin_mul_overflow(n, (int64_t)10, &n) ||
            __builtin_add_overflow(n, (int64_t)(**text - '0'), &n)) {
            return -1;
        }
    }
    *number = n;
    return 0;
}

static dli_scalar_t read_int(const char *text, int64_t *number) {
    int negative = *text == '-';
    const char *at = text + negative;
    /* A leading zero means octal to some readers of YAML. */
    if (!is_digit(*at) || (at[0] == '0' && (at[1] != '\0' || negative)) ||
        at[strspn(at, "0123456789")] != '\0') {
        return DLI_SCALAR_MALFORMED;
    }
    if (read_digits(&at, number) != 0) {
        return DLI_SCALAR_TOO_LARGE;
    }
    *number = negative ? -*number : *number;
    return DLI_SCALAR_OK;
}

static dli_scalar_t read_bool(const char *text, int64_t *number) {
    *number = strcmp(text, "true") == 0;
    return *number || strcmp(text, "false") == 0 ? DLI_SCALAR_OK : DLI_SCALAR_MALFORMED;
}

static dli_scalar_t find_unit(const unit_t *units, const char *name, int64_t *factor) {
    for (const unit_t *u = units; u->name != NULL; u++) {
        if (strcmp(u->name, name) == 0) {
            *factor = u->factor;
            return DLI_SCALAR_OK;
        }
    }
    if (units == size_units && (strcmp(name, "kB") == 0 || strcmp(name, "KB") == 0 ||
                                strcmp(name, "MB") == 0 || strcmp(name, "GB") == 0)) {
        return DLI_SCALAR_DECIMAL_UNIT;
    }
    if (*name == ' ') {
        return DLI_SCALAR_SPACE;
    }
    return *name == '\0' ? DLI_SCALAR_NO_UNIT : DLI_SCALAR_UNKNOWN_UNIT;
}

/* The part behind the point, times the factor of the unit. At most nine decimals, so that their product with
 * the largest factor, 2^30, fits in 63 bits. */
static dli_scalar_t read_fraction(const char **text, int64_t *digits, int64_t *scale) {
    const char *begin = *text;
    size_t len = strspn(begin, "0123456789"), used = len;
    if (len == 0) {
        return DLI_SCALAR_MALFORMED;
    }
    while (used > 0 && begin[used - 1] == '0') {
        used--;
    }
    *text = begin + len;
    if (used > 9) {
        return DLI_SCALAR_FRACTION;
    }
    for (size_t i = 0; i < used; i++) {
        *digits = *digits * 10 + (begin[i] - '0');
        *scale *= 10;
    }
    return DLI_SCALAR_OK;
}

/* DIGITS[.DIGITS]UNIT; a zero needs no unit. */
static dli_scalar_t read_quantity(const unit_t *units, const char *text, int64_t *number) {
    int64_t whole = 0, digits = 0, scale = 1, factor = 0;
    if (strcmp(text, "0") == 0) {
        *number = 0;
        return DLI_SCALAR_OK;
    }
    if (text[0] == '-' && is_digit(text[1])) {
        return DLI_SCALAR_NEGATIVE;
    }
    if (!is_digit(*text)) {
        return DLI_SCALAR_MALFORMED;
    }
    const char *at = text + strspn(text, "0123456789");
    dli_scalar_t fraction = DLI_SCALAR_OK;
    if (*at == '.') {
        at++;
        fraction = read_fraction(&at, &digits, &scale);
        if (fraction == DLI_SCALAR_MALFORMED) {
            return fraction;
        }
    }
    dli_scalar_t unit = find_unit(units, at, &factor);
    if (unit != DLI_SCALAR_OK) {
        return unit;
    }
    if (fraction != DLI_SCALAR_OK || digits * factor % scale != 0) {
        return DLI_SCALAR_FRACTION;
    }
    if (read_digits(&text, &whole) != 0 || __builtin_mul_overflow(whole, factor, &whole) ||
        __builtin_add_overflow(whole, digits * factor / scale, number)) {
        return DLI_SCALAR_TOO_LARGE;
    }
    return DLI_SCALAR_OK;
}

dli_scalar_t dli_scalar_read(dl_option_type_t type, const char *text, int64_t *number) {
    *number = 0;
    switch (type) {
    case DL_OPTION_INT:
        return read_int(text, number);
    case DL_OPTION_BOOL:
        return read_bool(text, number);
    case DL_OPTION_DURATION:
        return read_quantity(time_units, text, number);
    case DL_OPTION_SIZE:
        return read_quantity(size_units, text, number);
    default:
        return DLI_SCALAR_MALFORMED;
    }
}

const char *dli_scalar_fault(dli_scalar_t fault) {
    static const char *const faults[DLI_SCALAR_COUNT] = {
        [DLI_SCALAR_OK] = "is right",
        [DLI_SCALAR_MALFORMED] = "has the wrong form",
        [DLI_SCALAR_NEGATIVE] = "is negative",
        [DLI_SCALAR_NO_UNIT] = "has no unit",
        [DLI_SCALAR_SPACE] = "has a space before the unit",
        [DLI_SCALAR_UNKNOWN_UNIT] = "has an unknown unit",
        [DLI_SCALAR_DECIMAL_UNIT] = "has a decimal unit",
        [DLI_SCALAR_FRACTION] = "is too fine",
        [DLI_SCALAR_TOO_LARGE] = "is too large",
    };
    return faults[fault];
}

const char *dli_scalar_expected(dl_option_type_t type) {
    switch (type) {
    case DL_OPTION_INT:
        return "a whole number";
    case DL_OPTION_BOOL:
        return "true or false";
    case DL_OPTION_DURATION:
        return "a duration such as 30s (units: ms, s, m, h, d)";
    case DL_OPTION_SIZE:
        return "a size such as 64KiB (units: B, KiB, MiB, GiB)";
    case DL_OPTION_LIST:
        return "a list such as [a, b]";
    default:
        return "text";
    }
}

void dli_scalar_write(dl_option_type_t type, int64_t number, char *text, size_t size) {
    const unit_t *best = size_units;
    switch (type) {
    case DL_OPTION_BOOL:
        snprintf(text, size, "%s", number ? "true" : "false");
        return;
    case DL_OPTION_DURATION:
        snprintf(text, size, "%s", dl_driver_duration(number).text);
        return;
    case DL_OPTION_SIZE:
        for (const unit_t *u = size_units; u->name != NULL; u++) {
            best = number % u->factor == 0 ? u : best;
        }
        snprintf(text, size, "%" PRId64 "%s", number / best->factor, number != 0 ? best->name : "");
        return;
    default:
        snprintf(text, size, "%" PRId64, number);
    }
}
