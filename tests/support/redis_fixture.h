/* redis_fixture.h - the Redis server behind the fixtures of the Redis drivers; for fixtures.c. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_FIXTURE_H
#define REDIS_FIXTURE_H

#include <stddef.h>

#include "dlock/driver.h"

const dl_driver_t *redis_string_driver(void);
const dl_driver_t *redis_hash_driver(void);
void redis_fixture_start(const char *dir);
void redis_fixture_stop(void);
/* The `url` of the case's server: over TCP, over the unix socket. */
void redis_tcp_option(const char *dir, char *yaml, size_t size);
void redis_unix_option(const char *dir, char *yaml, size_t size);

#endif
