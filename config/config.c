/* config.c - loading a configuration and asking what is in it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "input.h"
#include "nearest.h"
#include "scalar.h"
#include "text.h"

dl_status_t dli_config_load_text(const char *yaml, size_t len, const char *label, const dl_option_t *core,
                                 const dli_driver_lookup_t *drivers, dli_config_t **config, dl_error_t *err) {
    dli_node_t *root = NULL;
    *config = NULL;
    dli_config_t *loaded = calloc(1, sizeof *loaded);
    if (loaded == NULL) {
        return dli_report_no_memory(err);
    }
    loaded->label = dli_label_make(label);
    dl_status_t status = dli_document_parse(yaml == NULL ? "" : yaml, yaml == NULL ? 0 : len,
                                            loaded->label.text, &loaded->arena, &root, err);
    if (status == DL_OK) {
        status = dli_check_document(loaded, root, core, drivers, err);
    }
    if (status != DL_OK) {
        dli_config_free(loaded);
        return status;
    }
    *config = loaded;
    return DL_OK;
}

dl_status_t dli_config_load_file(const char *path, const dl_option_t *core,
                                 const dli_driver_lookup_t *drivers, dli_config_t **config, dl_error_t *err) {
    dli_input_t input;
    dli_input_fault_t fault = {0};
    *config = NULL;
    dl_status_t status = dli_input_read(path, DLI_TEXT_MAX, &input, &fault);
    if (status == DL_ENOMEM) {
        return dli_report_no_memory(err);
    }
    if (status != DL_OK) {
        return dli_report_native(err, status, fault.native, dli_label_make(path).text, DLI_MARK_NONE,
                                 "%s, expected a readable file", fault.why);
    }
    status = dli_config_load_text(input.data, input.len, path, core, drivers, config, err);
    dli_input_free(&input);
    return status;
}

void dli_config_free(dli_config_t *config) {
    if (config != NULL) {
        dli_arena_wipe(&config->arena);
        free(config);
    }
}

const char *dli_config_use(const dli_config_t *config) {
    return config->use == NULL ? NULL : config->use->text;
}

int dli_config_backend_at(const dli_config_t *config, size_t index, const char **backend,
                          const char **driver) {
    if (index >= config->backend_count) {
        return 0;
    }
    *backend = config->backends[index].name->text;
    *driver = config->backends[index].driver;
    return 1;
}

const dli_backend_t *dli_loader_find(const dli_config_t *config, const char *backend) {
    for (size_t i = 0; i < config->backend_count; i++) {
        if (dli_node_is(config->backends[i].name, backend)) {
            return &config->backends[i];
        }
    }
    return NULL;
}

int dli_config_has_backend(const dli_config_t *config, const char *backend, const char **driver) {
    const dli_backend_t *found = dli_loader_find(config, backend);
    if (found == NULL) {
        return 0;
    }
    *driver = found->driver;
    return 1;
}

dl_status_t dli_config_no_backend(const dli_config_t *config, const char *backend, dl_error_t *err) {
    const char *label = config->label.text;
    dli_mark_t at = config->backends_key == NULL ? DLI_MARK_START : config->backends_key->mark;
    dli_nearest_t nearest;
    if (backend == NULL) {
        return dli_report(err, label, at,
                          "no backend is chosen, expected 'use: name' here or a name in $DLOCK_BACKEND");
    }
    int by_use = config->use != NULL && dli_node_is(config->use, backend);
    dli_nearest_start(&nearest, backend, strlen(backend));
    for (size_t i = 0; i < config->backend_count; i++) {
        dli_nearest_try(&nearest, config->backends[i].name->text);
    }
    const char *name = dli_nearest_name(&nearest);
    const char *variable = dli_config_setting("DLOCK_BACKEND");
    const char *what = by_use ? "'use' names the backend"
                       : variable != NULL && strcmp(variable, backend) == 0
                           ? "$DLOCK_BACKEND asks for the backend"
                           : "asked for the backend";
    at = by_use ? config->use->mark : at;
    if (name != NULL) {
        return dli_report(err, label, at, "%s '%s', which is not in the file, did you mean '%s'?", what,
                          dli_show(backend, strlen(backend)).text, dli_show(name, strlen(name)).text);
    }
    return dli_report(err, label, at, "%s '%s', which is not in the file, expected a name under 'backends'",
                      what, dli_show(backend, strlen(backend)).text);
}
