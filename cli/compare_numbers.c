/* compare_numbers.c - percentiles in bounded memory, and fairness. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "compare_numbers.h"

static size_t bucket_of(uint64_t ns) {
    if (ns < 2 * HISTOGRAM_STEPS) {
        return (size_t)ns;
    }
    unsigned top = 63 - (unsigned)__builtin_clzll(ns); /* 7 or more */
    if (top >= HISTOGRAM_BITS_MAX) {
        return HISTOGRAM_BUCKETS - 1;
    }
    unsigned shift = top - 6;
    return (size_t)shift * HISTOGRAM_STEPS + (size_t)(ns >> shift);
}

/* The middle of a bucket. */
static uint64_t value_of(size_t bucket) {
    if (bucket < 2 * HISTOGRAM_STEPS) {
        return bucket;
    }
    unsigned shift = (unsigned)(bucket / HISTOGRAM_STEPS) - 1;
    uint64_t low = (uint64_t)(bucket - (size_t)shift * HISTOGRAM_STEPS) << shift;
    return low + (UINT64_C(1) << shift) / 2;
}

void histogram_add(histogram_t *histogram, uint64_t ns) {
    histogram->buckets[bucket_of(ns)]++;
    histogram->count++;
    histogram->max_ns = ns > histogram->max_ns ? ns : histogram->max_ns;
}

void histogram_merge(histogram_t *into, const histogram_t *from) {
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        into->buckets[i] += from->buckets[i];
    }
    into->count += from->count;
    into->max_ns = from->max_ns > into->max_ns ? from->max_ns : into->max_ns;
}

uint64_t histogram_percentile(const histogram_t *histogram, unsigned percent) {
    if (histogram->count == 0) {
        return 0;
    }
    uint64_t rank = (histogram->count * percent + 99) / 100;
    rank = rank == 0 ? 1 : rank;
    uint64_t seen = 0;
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen >= rank) {
            uint64_t middle = value_of(i);
            return middle < histogram->max_ns ? middle : histogram->max_ns;
        }
    }
    return histogram->max_ns;
}

double jain_index(const uint64_t *counts, size_t n) {
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)counts[i];
        squares += (double)counts[i] * (double)counts[i];
    }
    return squares > 0 ? sum * sum / ((double)n * squares) : 0;
}
