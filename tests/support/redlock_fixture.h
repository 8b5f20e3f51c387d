/* redlock_fixture.h - the nodes behind the fixtures of redlock; for fixtures.c. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_FIXTURE_H
#define REDLOCK_FIXTURE_H

#include <stddef.h>

#include "dlock/driver.h"

const dl_driver_t *redlock_driver(void);
void redlock_start_three(const char *dir);
void redlock_start_five(const char *dir);
/* Five, of which two refuse connections. */
void redlock_start_a_majority(const char *dir);
void redlock_fixture_stop(void);
/* The nodes of the case, and times that leave room for two rounds in a call. */
void redlock_options(const char *dir, char *yaml, size_t size);

#endif
