/* redis.h - the tables of the drivers in this folder; for the registry. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_REDIS_H
#define DLI_REDIS_REDIS_H

#include "core/backend.h"

extern const dl_driver_t dli_redis_string_driver;
extern const dl_driver_t dli_redis_hash_driver;
extern const dl_driver_t dli_redlock_driver;

/* The same drivers, where requests of all threads share connections. */
extern const dli_backend_t dli_redis_string_backend;
extern const dli_backend_t dli_redis_hash_backend;
extern const dli_backend_t dli_redlock_backend;

#endif
