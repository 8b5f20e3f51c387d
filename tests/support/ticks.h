/* ticks.h - where the time of all processors went since the boot, as proc(5) counts it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_TESTS_TICKS_H
#define DLOCK_TESTS_TICKS_H

/* In the kernel's ticks, sysconf(_SC_CLK_TCK) a second. */
typedef struct ticks {
    unsigned long long total;
    unsigned long long idle;
} ticks_t;

/* 1, or 0 and nothing read: there is no such file here. */
int ticks_read(ticks_t *ticks);

#endif
