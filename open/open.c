/* open.c - choosing a backend: the one file that brings configuration, registry and core together. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "core/client.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sys.h"
#include "drivers/registry.h"

/* ---- which backend ----------------------------------------------------------------------------- */

typedef struct choice {
    dli_chosen_t chosen;
    dli_values_t driver_values, core_values; /* what it points to */
} choice_t;

static void free_choice(choice_t *choice) {
    dli_values_free(&choice->driver_values);
    dli_values_free(&choice->core_values);
}

static const dl_option_t *look_up_options(const char *name, int *compiled_in, int *known) {
    const dl_driver_t *driver = dli_registry_find(name);
    *compiled_in = driver != NULL;
    *known = dli_registry_known(name);
    return driver != NULL ? driver->options : NULL;
}

static const dli_driver_lookup_t lookup = {look_up_options, dli_registry_known_at};

/* The options of the driver that is chosen; config NULL: as the text has them. */
static dl_status_t resolve(choice_t *choice, const dli_config_t *config, const char *text, size_t len,
                           dl_error_t *err) {
    dli_chosen_t *chosen = &choice->chosen;
    const dl_option_t *options = chosen->driver.options;
    dli_values_t *driver = &choice->driver_values, *core = &choice->core_values;
    dl_status_t status = config != NULL ? dli_config_resolve(config, chosen->backend, options, driver,
                                                             dli_core_options, core, err)
                                        : dli_config_resolve_mapping(text, len, "<options>", options, driver,
                                                                     dli_core_options, core, err);
    chosen->driver_values = driver->values;
    chosen->core_values = core->values;
    chosen->written = driver->written;
    return status;
}

/* config NULL: there is none, and the built-in backend is asked for. */
static dl_status_t choose(choice_t *choice, const dli_config_t *config, const char *backend,
                          dl_error_t *err) {
    const char *name = "sqlite"; /* of the built-in one: a file of the calling user */
    if (config != NULL && backend == NULL) {
        backend = dli_config_use(config);
    }
    if (config != NULL && (backend == NULL || (!dli_config_has_backend(config, backend, &name) &&
                                               strcmp(backend, DLI_BACKEND_BUILT_IN) != 0))) {
        return dli_config_no_backend(config, backend, err);
    }
    const dl_driver_t *driver = dli_registry_find(name);
    if (driver == NULL) {
        return dli_fail(
            err, DL_ECONFIG,
            "driver '%s' is not in this build of libdlock; it comes with -D%s=ON where the version has it",
            name, dli_registry_build_option(name));
    }
    (void)snprintf(choice->chosen.backend, sizeof choice->chosen.backend, "%s", backend);
    choice->chosen.inner = dli_registry_backend(name);
    dl_status_t status = dli_driver_take(driver, choice->chosen.inner, &choice->chosen.driver, err);
    if (status == DL_OK) {
        status = resolve(choice, config, NULL, 0, err);
    }
    return status;
}

/* The configuration of a path, or of the place where it is by default. *config NULL with DL_OK: none is
 * needed. */
static dl_status_t load(const char *path, const char *backend, char *found, size_t found_size,
                        dli_config_t **config, dl_error_t *err) {
    *config = NULL;
    if (path == NULL) {
        bool needed = dli_config_setting("DLOCK_CONFIG") != NULL || backend == NULL ||
                      strcmp(backend, DLI_BACKEND_BUILT_IN) != 0;
        dl_status_t status = dli_config_find(found, found_size, needed ? err : NULL);
        if (status != DL_OK) {
            return needed ? status : DL_OK;
        }
        path = found;
    } else {
        (void)snprintf(found, found_size, "%s", path);
    }
    return dli_config_load_file(path, dli_core_options, &lookup, config, err);
}

/* text NULL: from a file. */
static dl_status_t choose_from(choice_t *choice, const char *path, const char *text, size_t len,
                               const char *backend, dl_error_t *err) {
    backend = backend != NULL ? backend : dli_config_setting("DLOCK_BACKEND");
    char found[4096];
    dli_config_t *config;
    dl_status_t status =
        text != NULL ? dli_config_load_text(text, len, "<text>", dli_core_options, &lookup, &config, err)
                     : load(path, backend, found, sizeof found, &config, err);
    if (status == DL_OK) {
        status = choose(choice, config, backend, err);
    }
    dli_config_free(config);
    return status;
}

/* ---- the public side --------------------------------------------------------------------------- */

static dl_status_t check_place(dl_client_t **client, dl_error_t *err) {
    if (client == NULL) {
        return dli_fail(err, DL_EINVAL, "no place for the client");
    }
    *client = NULL;
    return DL_OK;
}

static dl_status_t open_chosen(choice_t *choice, dl_status_t status, dl_client_t **client, dl_error_t *err) {
    if (status == DL_OK) {
        status = dli_client_make(&choice->chosen, client, err);
    }
    free_choice(choice);
    return status;
}

dl_status_t dl_client_open(const char *path, const char *backend, dl_client_t **client, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    choice_t choice = {.chosen.backend = ""};
    dl_status_t status = check_place(client, err);
    if (status == DL_OK) {
        status = choose_from(&choice, path, NULL, 0, backend, err);
    }
    return open_chosen(&choice, status, client, err);
}

dl_status_t dl_client_open_text(const char *yaml, size_t len, const char *backend, dl_client_t **client,
                                dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    choice_t choice = {.chosen.backend = ""};
    dl_status_t status = check_place(client, err);
    if (status == DL_OK) {
        status = yaml != NULL ? choose_from(&choice, NULL, yaml, len, backend, err)
                              : dli_fail(err, DL_EINVAL, "no text");
    }
    return open_chosen(&choice, status, client, err);
}

static dl_status_t open_table(const dl_driver_t *driver, const dli_backend_t *inner, const char *options,
                              size_t len, dl_client_t **client, dl_error_t *err) {
    choice_t choice = {.chosen.inner = inner};
    dli_chosen_t *chosen = &choice.chosen;
    dl_status_t status = check_place(client, err);
    if (status == DL_OK) {
        status = dli_driver_take(driver, inner, &chosen->driver, err);
    }
    if (status == DL_OK) {
        (void)snprintf(chosen->backend, sizeof chosen->backend, "%s", chosen->driver.name);
        status = resolve(&choice, NULL, options, len, err);
    }
    return open_chosen(&choice, status, client, err);
}

dl_status_t dl_client_open_driver(const dl_driver_t *driver, const char *options, size_t len,
                                  dl_client_t **client, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    return open_table(driver, NULL, options, len, client, err);
}

dl_status_t dli_client_open_backend(const dli_backend_t *backend, const char *options, size_t len,
                                    dl_client_t **client, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    return open_table(backend->driver, backend, options, len, client, err);
}

dl_status_t dl_backend_init(const char *path, const char *backend, unsigned flags, dl_finding_fn fn,
                            void *arg, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (fn == NULL || (flags & ~DL_INIT_PRINT) != 0) {
        return dli_fail(err, DL_EINVAL, "no function, or an unknown flag");
    }
    choice_t choice = {.chosen.backend = ""};
    dl_status_t status = choose_from(&choice, path, NULL, 0, backend, err);
    if (status == DL_OK) {
        status = dli_driver_init(&choice.chosen, flags, fn, arg, err);
    }
    free_choice(&choice);
    return status;
}

void dl_drivers(dl_driver_fn fn, void *arg) {
    DLI_NO_THREAD_CANCEL;
    if (fn == NULL) {
        return;
    }
    const dl_driver_t *driver;
    for (size_t i = 0; (driver = dli_registry_at(i)) != NULL; i++) {
        if (fn(arg, driver->name, driver->caps, driver->summary) != 0) {
            return;
        }
    }
}

dl_status_t dl_backends(const char *path, char *source, size_t source_size, dl_backend_fn fn, void *arg,
                        dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (fn == NULL) {
        return dli_fail(err, DL_EINVAL, "no function");
    }
    char found[4096];
    dli_config_t *config;
    dl_status_t status = load(path, NULL, found, sizeof found, &config, err);
    if (source != NULL && source_size > 0) {
        (void)snprintf(source, source_size, "%s", found);
    }
    if (status != DL_OK) {
        return status;
    }
    const char *selected = dli_config_setting("DLOCK_BACKEND");
    selected = selected != NULL ? selected : dli_config_use(config);
    const char *backend, *driver;
    for (size_t i = 0; dli_config_backend_at(config, i, &backend, &driver); i++) {
        int is_selected = selected != NULL && strcmp(selected, backend) == 0;
        if (fn(arg, backend, driver, dli_registry_find(driver) != NULL, is_selected) != 0) {
            break;
        }
    }
    dli_config_free(config);
    return DL_OK;
}
