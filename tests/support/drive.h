/* drive.h - a backend behind a blocking table: for benches, and for what stands between it and a core. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRIVE_H
#define DRIVE_H

#include "core/backend.h"

/* The table that carries a request out from its begin to its end. Of four backends in a process; it is
 * static.
 */
const dl_driver_t *drive_table(const dli_backend_t *backend);
/* NULL: this is no such table. */
const dli_backend_t *drive_backend_of(const dl_driver_t *table);

/* Alone a state listens for itself, on the one thread that uses it. Lent a core before open, its calls leave
 * that to the core, and each waits for its own end; look_again says that the core is to ask listen_fds again.
 */
void drive_lend(void *state, const dli_backend_env_t *env, void (*look_again)(void *arg), void *arg);
/* The state of the backend. */
void *drive_inner(void *state);

#endif
