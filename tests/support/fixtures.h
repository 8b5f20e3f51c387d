/* fixtures.h - the drivers that every contract case is run over. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FIXTURES_H
#define FIXTURES_H

#include <stddef.h>
#include <stdint.h>

#include "dlock/driver.h"

typedef struct fixture {
    const char *name;
    const dl_driver_t *(*driver)(void);
    uint32_t traits; /* CT_..., as caps.txt has them */
    /* Writes lines of YAML that a client of the case's server needs; `dir` is an empty folder. NULL: none. */
    void (*options)(const char *dir, char *yaml, size_t size);
    /* Makes the server empty. NULL: an empty folder is an empty server. */
    void (*reset)(void);
    /* A server that is a process: started before the case (`dir` as above), stopped after it. NULL: none. */
    void (*start)(const char *dir);
    void (*stop)(void);
} fixture_t;

/* The i-th fixture of this build; NULL past the end. */
const fixture_t *fixture_at(size_t i);
const fixture_t *fixture_find(const char *name);

/* Around a run of many cases: what they can share is started once. `only` not NULL: for this fixture. */
void fixtures_begin(const fixture_t *only);
void fixtures_end(void);

/* Compares every fixture with the committed table (tests/contract/caps.txt), and the table with the fixtures.
 * Writes one line for each difference; returns how many. `only` not NULL: this fixture alone. */
int fixtures_compare(const char *table_path, const fixture_t *only);
/* The line of the table that this fixture deserves. */
void fixture_describe(const fixture_t *fixture, char *text, size_t size);

#endif
