/* client.h - what opening asks of the core, once a backend is chosen. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CLIENT_H
#define DLI_CLIENT_H

#include "backend.h"

/* A backend and the values of its options, in the order of their tables; they are read, and not kept. */
typedef struct dli_chosen {
    char backend[64];
    dl_driver_t driver;         /* as dli_driver_take gives it */
    const dli_backend_t *inner; /* NULL: the driver is a whole one */
    const dl_option_value_t *driver_values, *core_values;
    const char *const *written; /* as dl_driver_env_t.written */
} dli_chosen_t;

/* driver_check.c: copies the author's table into a whole one, and checks it */
dl_status_t dli_driver_take(const dl_driver_t *given, const dli_backend_t *inner, dl_driver_t *table,
                            dl_error_t *err);

/* client.c: a client whose driver is open */
dl_status_t dli_client_make(const dli_chosen_t *chosen, dl_client_t **out, dl_error_t *err);
/* What dl_backend_init does. */
dl_status_t dli_driver_init(const dli_chosen_t *chosen, unsigned flags, dl_finding_fn fn, void *arg,
                            dl_error_t *err);

#endif
