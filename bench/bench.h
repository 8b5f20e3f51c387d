/* bench.h - what the measurements share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_H
#define DLOCK_BENCH_H

#include <dlock/dlock.h>
#include <stddef.h>
#include <stdint.h>

/* A row of samples in nanoseconds. */
typedef struct samples {
    uint64_t *ns;
    size_t len, cap;
} samples_t;

void samples_add(samples_t *samples, uint64_t ns);
/* p from 0 to 100; sorts. */
uint64_t samples_percentile(samples_t *samples, double p);
void samples_free(samples_t *samples);

uint64_t now_ns(void);
/* Says why and ends the program. */
void die(const char *what, const dl_error_t *err) __attribute__((noreturn));
/* A client of an SQLite file in `folder`; `more` is further options of the backend, such as ", lease: 3s". */
dl_client_t *open_client(const char *folder, const char *more);

/* Each prints one line a figure. `scale` multiplies how much is measured; 1 takes a few seconds. */
void bench_pair(const char *folder, unsigned scale);
void bench_handoff(const char *folder, unsigned scale);
void bench_many(const char *folder, unsigned scale);

#endif
