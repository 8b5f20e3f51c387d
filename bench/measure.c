/* measure.c - clocks, medians, and the client under measurement. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

void die(const char *what, const dl_error_t *err) {
    fprintf(stderr, "dlock_bench: %s: %s\n", what, err != NULL ? err->message : "failed");
    exit(1);
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void samples_add(samples_t *samples, uint64_t ns) {
    if (samples->len == samples->cap) {
        size_t cap = samples->cap == 0 ? 1024 : samples->cap * 2;
        uint64_t *more = realloc(samples->ns, cap * sizeof *more);
        if (more == NULL) {
            die("out of memory", NULL);
        }
        samples->ns = more;
        samples->cap = cap;
    }
    samples->ns[samples->len++] = ns;
}

static int by_size(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

uint64_t samples_percentile(samples_t *samples, double p) {
    if (samples->len == 0) {
        die("nothing was measured", NULL);
    }
    qsort(samples->ns, samples->len, sizeof samples->ns[0], by_size);
    return samples->ns[(size_t)(p / 100.0 * (double)(samples->len - 1))];
}

void samples_free(samples_t *samples) {
    free(samples->ns);
    memset(samples, 0, sizeof *samples);
}

dl_client_t *open_client(const char *folder, const char *more) {
    char yaml[4096];
    int n = snprintf(yaml, sizeof yaml, "use: b\nbackends:\n  b: {driver: sqlite, path: \"%s/locks.db\"%s}\n",
                     folder, more);
    dl_client_t *client;
    dl_error_t err;
    if (dl_client_open_text(yaml, (size_t)n, NULL, &client, &err) != DL_OK) {
        die("open", &err);
    }
    return client;
}
