/* resolve.c - the final values of one backend: its own, else of `defaults`, else of the tables. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "value.h"

static size_t count_of(const dl_option_t *options) {
    size_t count = 0;
    while (options != NULL && options[count].name != NULL) {
        count++;
    }
    return count;
}

/* The text of a value for messages, before variables were replaced. Of a secret nothing is shown. */
static dl_status_t keep_written(const dli_reader_t *reader, const dl_option_t *option, const char *text,
                                const char **written) {
    if (option->type == DL_OPTION_SECRET || option->type == DL_OPTION_LIST) {
        return DL_OK;
    }
    *written = dli_arena_copy(reader->arena, text, strlen(text));
    return *written == NULL ? dli_report_no_memory(reader->err) : DL_OK;
}

/* 1 and *status when the mapping says something of the option. */
static int read_from(const dli_reader_t *reader, const dli_node_t *map, const dl_option_t *option,
                     dl_option_value_t *out, const char **written, dl_status_t *status) {
    char file_name[DLI_KEY_SIZE];
    const dli_node_t *key = NULL, *value = dli_node_get(map, option->name, &key);
    if (value != NULL) {
        *status = dli_value_read(reader, option, key, value, out);
        *status = *status == DL_OK ? keep_written(reader, option, value->text, written) : *status;
        return 1;
    }
    if (option->type != DL_OPTION_SECRET) {
        return 0;
    }
    dli_key_file_name(option, file_name);
    value = dli_node_get(map, file_name, &key);
    if (value == NULL) {
        return 0;
    }
    *status = dli_value_read_file(reader, key, value, out);
    return 1;
}

/* A default stands in the table as one would write it in YAML, and goes the same way. */
static dl_status_t read_default(const dli_reader_t *reader, const dl_option_t *option, dl_option_value_t *out,
                                const char **written) {
    static const char label[] = "<default>";
    const dli_node_t key = {
        .kind = DLI_NODE_SCALAR, .text = option->name, .len = strlen(option->name), .mark = DLI_MARK_START};
    static const dli_node_t nothing = {.kind = DLI_NODE_SCALAR, .text = "", .mark = DLI_MARK_START};
    dli_node_t *root = NULL;
    dli_reader_t own = *reader;
    own.label = label;
    dl_status_t status = dli_document_parse(option->default_text, strlen(option->default_text), label,
                                            reader->arena, &root, reader->err);
    if (status != DL_OK) {
        return status;
    }
    const dli_node_t *value = root == NULL ? &nothing : root;
    status = dli_value_read(&own, option, &key, value, out);
    return status == DL_OK ? keep_written(reader, option, value->text, written) : status;
}

/* The values of one table, from the mappings in the order in which they count. */
static dl_status_t read_table(const dli_reader_t *reader, const dl_option_t *options,
                              const dli_node_t *const maps[2], dli_values_t *values) {
    values->count = count_of(options);
    values->values = dli_arena_get(reader->arena, values->count * sizeof *values->values);
    values->written = dli_arena_get(reader->arena, values->count * sizeof *values->written);
    if (values->values == NULL || values->written == NULL) {
        return dli_report_no_memory(reader->err);
    }
    for (size_t i = 0; i < values->count; i++) {
        dl_option_value_t *out = &values->values[i];
        const char **written = &values->written[i];
        dl_status_t status = DL_OK;
        if (!read_from(reader, maps[0], &options[i], out, written, &status) &&
            !read_from(reader, maps[1], &options[i], out, written, &status) &&
            options[i].default_text != NULL) {
            status = read_default(reader, &options[i], out, written);
        }
        if (status != DL_OK) {
            return status;
        }
    }
    return DL_OK;
}

static dl_status_t resolve_table(const char *label, const dl_option_t *options, const dli_node_t *own,
                                 const dli_node_t *defaults, dli_values_t *values, dl_error_t *err) {
    dli_arena_t arena = {NULL};
    /* A program with more rights than its caller must not read passwords that the caller made up. */
    const dli_reader_t reader = {.label = label, .arena = &arena, .environment = secure_getenv, .err = err};
    const dli_node_t *const maps[2] = {own, defaults};
    dl_status_t status = read_table(&reader, options, maps, values);
    values->memory = arena.first;
    if (status != DL_OK) {
        dli_values_free(values);
    }
    return status;
}

/* Checks once more, for the tables may be others than when the document was loaded, and makes the values. */
static dl_status_t resolve(const dli_checked_t *checked, dli_arena_t *scratch, dli_values_t *driver_values,
                           dli_values_t *core_values, dl_error_t *err) {
    dl_status_t status = dli_check_options(checked, scratch, err);
    if (status == DL_OK) {
        status = resolve_table(checked->label, checked->keys.options, checked->map, NULL, driver_values, err);
    }
    if (status == DL_OK) {
        status = resolve_table(checked->label, checked->keys.more_options, checked->map, checked->defaults,
                               core_values, err);
    }
    if (status != DL_OK) {
        dli_values_free(driver_values);
    }
    return status;
}

dl_status_t dli_config_resolve(const dli_config_t *config, const char *backend,
                               const dl_option_t *driver_options, dli_values_t *driver_values,
                               const dl_option_t *core_options, dli_values_t *core_values, dl_error_t *err) {
    static const char *const words[] = {"driver", NULL};
    const dli_backend_t *found = backend == NULL ? NULL : dli_loader_find(config, backend);
    dli_arena_t scratch = {NULL};
    memset(driver_values, 0, sizeof *driver_values);
    memset(core_values, 0, sizeof *core_values);
    /* The built-in backend needs no place in the file, and `defaults` hold for it too. */
    if (found == NULL && (backend == NULL || strcmp(backend, DLI_BACKEND_BUILT_IN) != 0)) {
        return dli_config_no_backend(config, backend, err);
    }
    const dli_checked_t checked = {.label = config->label.text,
                                   .keys = {words, driver_options, core_options},
                                   .map = found == NULL ? NULL : found->options,
                                   .defaults = config->defaults,
                                   .mark = found == NULL ? DLI_MARK_START : found->name->mark,
                                   .owner = "the backend"};
    dl_status_t status = resolve(&checked, &scratch, driver_values, core_values, err);
    dli_arena_wipe(&scratch);
    return status;
}

dl_status_t dli_config_resolve_mapping(const char *yaml, size_t len, const char *label,
                                       const dl_option_t *driver_options, dli_values_t *driver_values,
                                       const dl_option_t *core_options, dli_values_t *core_values,
                                       dl_error_t *err) {
    const dli_label_t shown = dli_label_make(label);
    dli_arena_t scratch = {NULL};
    dli_node_t *root = NULL;
    memset(driver_values, 0, sizeof *driver_values);
    memset(core_values, 0, sizeof *core_values);
    dl_status_t status = dli_document_parse(yaml == NULL ? "" : yaml, yaml == NULL ? 0 : len, shown.text,
                                            &scratch, &root, err);
    if (status == DL_OK && root != NULL && dli_node_is_empty(root)) {
        root = NULL;
    }
    if (status == DL_OK && root != NULL && root->kind != DLI_NODE_MAP) {
        status = dli_report(err, shown.text, root->mark, "the options are %s, expected a mapping of options",
                            dli_node_kind(root));
    }
    if (status == DL_OK) {
        const dli_checked_t checked = {.label = shown.text,
                                       .keys = {NULL, driver_options, core_options},
                                       .map = root,
                                       .mark = DLI_MARK_START,
                                       .owner = "the driver"};
        status = resolve(&checked, &scratch, driver_values, core_values, err);
    }
    dli_arena_wipe(&scratch);
    return status;
}

void dli_values_free(dli_values_t *values) {
    if (values != NULL) {
        dli_arena_t arena = {values->memory};
        dli_arena_wipe(&arena);
        memset(values, 0, sizeof *values);
    }
}
