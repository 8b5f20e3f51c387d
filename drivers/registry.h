/* registry.h - which drivers there are, and which of them this build has. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REGISTRY_H
#define DLI_REGISTRY_H

#include "core/backend.h"

/* The table of the driver `name`; NULL when this build does not have it. */
const dl_driver_t *dli_registry_find(const char *name);
/* How it speaks over sockets, where the options ask for that; NULL: never. */
const dli_backend_t *dli_registry_backend(const char *name);
/* The i-th driver of this build; NULL past the end. */
const dl_driver_t *dli_registry_at(size_t i);

/* The i-th name that this library knows, whether built in or not; NULL past the end. */
const char *dli_registry_known_at(size_t i);
/* 1 if `name` is one of those. */
int dli_registry_known(const char *name);
/* The CMake option that would build the driver `name` in, such as "DLOCK_WITH_SQLITE"; NULL for a name that
 * is not known. For the text of the error that misses it. */
const char *dli_registry_build_option(const char *name);

#endif
