/* duration.h - times on the command line and in lines for people, as the configuration writes them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DURATION_H
#define CLI_DURATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The written form of a time. */
typedef struct duration {
    char text[24];
} duration_t;

/* A number and one of ms, s, m, h, d, in whole milliseconds altogether; or 0. False: it is not that. Beyond
 * all bounds: INT64_MAX. */
bool parse_duration(const char *text, int64_t *ms);
/* A setting, to the millisecond, so that it can be given again: 250ms, 28.5s, 90m, 0. */
duration_t exact_duration(int64_t ms);
/* A time that was measured, by its first three digits: 83.1µs, 250ms, 28.5s, 1.50h. */
duration_t measured_duration(uint64_t ns);
/* What measured_duration writes a number by; returns the text. */
const char *three_digits(double value, const char *unit, char *text, size_t size);

#endif
