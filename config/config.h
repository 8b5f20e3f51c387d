/* config.h - what opening asks of the configuration loader. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_H
#define DLI_CONFIG_H

#include "dlock/driver.h"

/* The backend that needs no configuration; `use` may name it all the same. */
#define DLI_BACKEND_BUILT_IN "local"

/* A parsed configuration. It remembers where every word stood. */
typedef struct dli_config dli_config_t;

/* The values for one option table, in the order of the table. */
typedef struct dli_values {
    dl_option_value_t *values; /* one an option */
    const char **written;      /* as dl_driver_env_t.written */
    size_t count;
    void *memory; /* everything the values point to */
} dli_values_t;

/* How the loader finds the option table of a driver. NULL: not in this build; *known says whether the
 * name is one of this library's drivers all the same. Also lists names, for "did you mean": name_at
 * returns NULL past the end. */
typedef struct dli_driver_lookup {
    const dl_option_t *(*options_of)(const char *driver, int *compiled_in, int *known);
    const char *(*name_at)(size_t index);
} dli_driver_lookup_t;

/* Reads and checks the whole of a file or text: syntax, keys, types, ranges and units of every backend whose
 * driver is compiled in. `core` is the table of the options that every backend and `defaults` may have.
 * Variables are only replaced later, for the backend that is used. DL_ECONFIG, DL_ENOMEM. */
dl_status_t dli_config_load_file(const char *path, const dl_option_t *core,
                                 const dli_driver_lookup_t *drivers, dli_config_t **config, dl_error_t *err);
/* `label` stands where errors name the file, such as "<text>". */
dl_status_t dli_config_load_text(const char *yaml, size_t len, const char *label, const dl_option_t *core,
                                 const dli_driver_lookup_t *drivers, dli_config_t **config, dl_error_t *err);
/* The file to use when the caller names none: $DLOCK_CONFIG, the user's, the system's. DL_OK, or DL_ECONFIG
 * with path "" when there is none (a $DLOCK_CONFIG that does not exist is an error, never passed over). */
dl_status_t dli_config_find(char *path, size_t size, dl_error_t *err);
/* A variable of the environment; NULL: not set, or empty, or the program has more rights than its caller. */
const char *dli_config_setting(const char *name);
void dli_config_free(dli_config_t *config);

/* The value of `use:`, or NULL. */
const char *dli_config_use(const dli_config_t *config);
/* The n-th backend and its driver; 0 past the end. */
int dli_config_backend_at(const dli_config_t *config, size_t index, const char **backend,
                          const char **driver);
/* 1 if the configuration has it; then *driver is its driver's name. */
int dli_config_has_backend(const dli_config_t *config, const char *backend, const char **driver);
/* The error for a backend that is not there: names the place of `use:` or says where it was asked for. */
dl_status_t dli_config_no_backend(const dli_config_t *config, const char *backend, dl_error_t *err);

/* The final values of `backend` for its driver's table and for the core's: the backend's own, else
 * `defaults`, else the table's default. Replaces ${VARIABLE}, reads NAME_file. DL_ECONFIG, DL_ENOMEM. */
dl_status_t dli_config_resolve(const dli_config_t *config, const char *backend,
                               const dl_option_t *driver_options, dli_values_t *driver_values,
                               const dl_option_t *core_options, dli_values_t *core_values, dl_error_t *err);
/* The same without a document: a mapping as it would stand under a backend's name (dl_client_open_driver,
 * and the built-in backend with an empty text). */
dl_status_t dli_config_resolve_mapping(const char *yaml, size_t len, const char *label,
                                       const dl_option_t *driver_options, dli_values_t *driver_values,
                                       const dl_option_t *core_options, dli_values_t *core_values,
                                       dl_error_t *err);
/* Wipes secrets, then frees. Safe on a zeroed one. */
void dli_values_free(dli_values_t *values);

#endif
