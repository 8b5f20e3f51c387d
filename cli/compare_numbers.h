/* compare_numbers.h - percentiles in bounded memory, and fairness. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_COMPARE_NUMBERS_H
#define CLI_COMPARE_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

/*
 * A histogram of nanoseconds whose buckets grow with what they count: exact below 128 ns, above that 64
 * buckets for each doubling. A percentile is the middle of a bucket, at most 1/128 (0.8 %) away from the
 * sample. Samples of 2^43 ns (2.4 hours) and more count as the largest bucket.
 */
#define HISTOGRAM_STEPS 64u /* a doubling */
#define HISTOGRAM_BITS_MAX 43u
#define HISTOGRAM_BUCKETS ((HISTOGRAM_BITS_MAX - 7) * HISTOGRAM_STEPS + 2 * HISTOGRAM_STEPS)

typedef struct histogram {
    uint64_t count, max_ns;
    /* An hour, the longest a run takes, at a million samples a second stays below 2^32. */
    uint32_t buckets[HISTOGRAM_BUCKETS];
} histogram_t;

void histogram_add(histogram_t *histogram, uint64_t ns); /* one writer at a time */
void histogram_merge(histogram_t *into, const histogram_t *from);
/* The smallest bucket that `percent` of the samples do not exceed; 0 when there are none. */
uint64_t histogram_percentile(const histogram_t *histogram, unsigned percent);

/* Jain's index: 1 when all counts are the same, 1/n when one has everything. 0 when nobody has anything. */
double jain_index(const uint64_t *counts, size_t n);

#endif
