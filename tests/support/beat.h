/* beat.h - how long the machine stood still, by a process that does nothing but look at the clock. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BEAT_H
#define BEAT_H

#include <stdint.h>

/*
 * A promise about time is one of a machine that runs. The beat looks at the clock every few ms; where it came
 * much later than that, nothing ran, and who compares times leaves that out. What the library does cannot
 * make the beat late.
 */

/* Starts it, for this process and those that it forks from now on, unless that has been done. It ends with
 * the calling thread. */
void beat_begin(void);
/* How long the machine stood still until now; always 0 without a beat. now_ns: the clock (CLOCK_BOOTTIME) at
 * which that is said; NULL is fine. Less this, it goes on evenly. */
uint64_t beat_stood_ns(uint64_t *now_ns);

#endif
