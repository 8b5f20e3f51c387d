/* digits.h - numbers as text. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_DIGITS_H
#define DLI_DIGITS_H

#include <stddef.h>
#include <stdint.h>

#define DLI_DIGITS_MAX 20

/* Decimal digits without an end; returns how many. By hand: printf would be a tenth of a lock and unlock. */
static inline size_t dli_digits(char to[DLI_DIGITS_MAX], uint64_t number) {
    size_t len = 0;
    for (uint64_t left = number; len == 0 || left > 0; left /= 10) {
        len++;
    }
    for (size_t at = len; at-- > 0; number /= 10) {
        to[at] = (char)('0' + number % 10);
    }
    return len;
}

#endif
