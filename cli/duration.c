/* duration.c - times on the command line and in lines for people, as the configuration writes them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "duration.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NS_PER_US 1000u

typedef struct unit {
    const char *name;
    int64_t ms;
} unit_t;

/* From small to large. */
static const unit_t units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
#define UNIT_COUNT (sizeof units / sizeof units[0])

/* The digits at *at, which moves behind them; what is larger than `most` comes as something larger than it.
 */
static int64_t read_digits(const char **at, int64_t most) {
    int64_t number = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        number = number <= most ? number * 10 + (**at - '0') : number;
    }
    return number;
}

bool parse_duration(const char *text, int64_t *ms) {
    const int64_t whole_max = INT64_C(1000) * 365 * 86400; /* of any unit; times 86400000 stays below 2^63 */
    const int64_t decimals_max = 9;                        /* 10^9 times 86400000 does too */
    const char *at = text;
    int64_t whole = read_digits(&at, whole_max);
    if (at == text) {
        return false;
    }
    if (strcmp(text, "0") == 0) {
        *ms = 0;
        return true;
    }
    int64_t part = 0, scale = 1;
    if (*at == '.') {
        const char *point = at++;
        part = read_digits(&at, INT64_MAX / 100);
        if (at - point < 2 || at - point > 1 + decimals_max) {
            return false;
        }
        for (const char *digit = point + 1; digit < at; digit++) {
            scale *= 10;
        }
    }
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        if (strcmp(at, units[i].name) == 0) {
            *ms = whole <= whole_max ? whole * units[i].ms + part * units[i].ms / scale : INT64_MAX;
            return part * units[i].ms % scale == 0;
        }
    }
    return false;
}

duration_t exact_duration(int64_t ms) {
    duration_t out;
    const unit_t *best = units;
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        best = ms % units[i].ms == 0 ? &units[i] : best;
    }
    if (best != units || ms < 1000) {
        (void)snprintf(out.text, sizeof out.text, "%" PRId64 "%s", ms / best->ms, ms != 0 ? best->name : "");
        return out;
    }
    int decimals = ms % 10 != 0 ? 3 : ms % 100 != 0 ? 2 : 1;
    int64_t scale = decimals == 3 ? 1 : decimals == 2 ? 10 : 100;
    (void)snprintf(out.text, sizeof out.text, "%" PRId64 ".%0*" PRId64 "s", ms / 1000, decimals,
                   ms % 1000 / scale);
    return out;
}

const char *three_digits(double value, const char *unit, char *text, size_t size) {
    int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    (void)snprintf(text, size, "%.*f%s", decimals, value, unit);
    return text;
}

duration_t measured_duration(uint64_t ns) {
    duration_t out;
    double us = (double)ns / NS_PER_US;
    double ms = us / 1000;
    if (us < 999.5) {
        (void)three_digits(us, "\xc2\xb5s", out.text, sizeof out.text);
        return out;
    }
    /* The largest unit of which there is one, after rounding. */
    const unit_t *unit = units;
    for (size_t i = 1; i < UNIT_COUNT; i++) {
        unit = ms / (double)units[i].ms >= 0.9995 ? &units[i] : unit;
    }
    (void)three_digits(ms / (double)unit->ms, unit->name, out.text, sizeof out.text);
    return out;
}
