/* duration.c - times in messages, as people and the configuration write them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "dlock/driver.h"

typedef struct unit {
    const char *name;
    int64_t ms;
} unit_t;

/* From small to large. */
static const unit_t units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
#define UNIT_COUNT (sizeof units / sizeof units[0])

dl_duration_text_t dl_driver_duration(int64_t ms) {
    dl_duration_text_t out;
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

static dl_duration_text_t three_digits(double value, const char *unit) {
    dl_duration_text_t out;
    int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    (void)snprintf(out.text, sizeof out.text, "%.*f%s", decimals, value, unit);
    return out;
}

dl_duration_text_t dl_driver_measured(uint64_t ns) {
    double us = (double)ns / 1e3, ms = us / 1e3;
    if (us < 999.5) {
        return three_digits(us, "\xc2\xb5s");
    }
    /* The largest unit of which there is one, after rounding. */
    const unit_t *unit = units;
    for (size_t i = 1; i < UNIT_COUNT; i++) {
        unit = ms / (double)units[i].ms >= 0.9995 ? &units[i] : unit;
    }
    return three_digits(ms / (double)unit->ms, unit->name);
}
