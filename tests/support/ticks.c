/* ticks.c - where the time of all processors went since the boot, as proc(5) counts it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/ticks.h"

#include <stdio.h>

/* The numbers of the first line that together are all the time. */
enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, KINDS };

int ticks_read(ticks_t *ticks) {
    unsigned long long t[KINDS];
    FILE *file = fopen("/proc/stat", "re");
    int n = file == NULL ? 0
                         : fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[USER], &t[NICE],
                                  &t[SYSTEM], &t[IDLE], &t[IOWAIT], &t[IRQ], &t[SOFTIRQ], &t[STEAL]);
    if (file != NULL) {
        fclose(file);
    }
    if (n != KINDS) {
        return 0;
    }
    ticks->total = 0;
    for (int i = 0; i < KINDS; i++) {
        ticks->total += t[i];
    }
    ticks->idle = t[IDLE];
    return 1;
}
