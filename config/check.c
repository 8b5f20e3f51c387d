/* check.c - holds a document against the tables of options. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdio.h>
#include <string.h>

#include "nearest.h"
#include "value.h"

static const char *const top_words[] = {"use", "defaults", "backends", NULL};
static const char *const backend_words[] = {"driver", NULL};

/* What one load hands from check to check. */
typedef struct checker {
    dli_config_t *config;
    const dl_option_t *core;
    const dli_driver_lookup_t *drivers;
    dl_error_t *err;
} checker_t;

/* ---- options ------------------------------------------------------------------------------------- */

/* A secret is given once: as itself or as a file. The error stands at the second of the two. */
static dl_status_t refuse_both(const dli_checked_t *c, const dl_option_t *option, const dli_node_t *key,
                               dl_error_t *err) {
    char file_name[DLI_KEY_SIZE];
    dli_key_file_name(option, file_name);
    for (const dli_node_t *at = c->map->first; at != key; at = at->next->next) {
        dli_key_t meaning;
        if (dli_keys_find(&c->keys, at, &meaning) && meaning.option == option) {
            return dli_report(err, c->label, key->mark, "both '%s' and '%s' are given, expected one of them",
                              option->name, file_name);
        }
    }
    return DL_OK;
}

static dl_status_t check_pair(const dli_checked_t *c, const dli_reader_t *reader, const dli_node_t *key) {
    dli_key_t meaning;
    dl_option_value_t ignored;
    if (!dli_keys_find(&c->keys, key, &meaning)) {
        return c->tolerant ? DL_OK : dli_keys_unknown(&c->keys, key, c->label, reader->err);
    }
    if (meaning.option == NULL) {
        return DL_OK;
    }
    dl_status_t status = DL_OK;
    if (meaning.option->type == DL_OPTION_SECRET) {
        status = refuse_both(c, meaning.option, key, reader->err);
    }
    if (status != DL_OK) {
        return status;
    }
    return meaning.is_file ? dli_value_read_file(reader, key, key->next, &ignored)
                           : dli_value_read(reader, meaning.option, key, key->next, &ignored);
}

static int is_given(const dli_node_t *map, const dl_option_t *option) {
    char file_name[DLI_KEY_SIZE];
    dli_key_file_name(option, file_name);
    return dli_node_get(map, option->name, NULL) != NULL ||
           (option->type == DL_OPTION_SECRET && dli_node_get(map, file_name, NULL) != NULL);
}

static dl_status_t check_required(const dli_checked_t *c, const dl_option_t *options, dl_error_t *err) {
    for (const dl_option_t *o = options; o != NULL && o->name != NULL; o++) {
        if (o->required && o->default_text == NULL && !is_given(c->map, o) && !is_given(c->defaults, o)) {
            int is_secret = o->type == DL_OPTION_SECRET;
            return dli_report(err, c->label, c->mark, "%s lacks '%s', expected '%s: value'%s%s%s", c->owner,
                              o->name, o->name, is_secret ? " or '" : "", is_secret ? o->name : "",
                              is_secret ? DLI_FILE_SUFFIX ": path'" : "");
        }
    }
    return DL_OK;
}

dl_status_t dli_check_options(const dli_checked_t *checked, dli_arena_t *arena, dl_error_t *err) {
    const dli_reader_t reader = {.label = checked->label, .arena = arena, .environment = NULL, .err = err};
    const dli_node_t *key = checked->map == NULL ? NULL : checked->map->first;
    for (; key != NULL; key = key->next->next) {
        dl_status_t status = check_pair(checked, &reader, key);
        if (status != DL_OK) {
            return status;
        }
    }
    if (checked->owner == NULL) {
        return DL_OK;
    }
    dl_status_t status = check_required(checked, checked->keys.options, err);
    return status == DL_OK ? check_required(checked, checked->keys.more_options, err) : status;
}

/* ---- one backend --------------------------------------------------------------------------------- */

static int is_backend_name(const dli_node_t *name) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    return name->len >= 1 && name->len <= DLI_BACKEND_NAME_MAX && strspn(name->text, allowed) == name->len;
}

/* The names of drivers, one after the other. */
typedef struct names {
    char text[120];
    size_t count;
} names_t;

static void add_name(names_t *names, const char *name) {
    size_t used = strlen(names->text);
    snprintf(names->text + used, sizeof names->text - used, "%s%s", used > 0 ? ", " : "", name);
    names->count++;
}

static dl_status_t unknown_driver(const checker_t *c, const dli_node_t *driver) {
    const char *label = c->config->label.text, *name = NULL;
    names_t all = {.count = 0}, longer = {.count = 0}; /* such as mysql-lease, for mysql */
    dli_nearest_t nearest;
    dli_nearest_start(&nearest, driver->text, driver->len);
    for (size_t i = 0; (name = c->drivers->name_at(i)) != NULL; i++) {
        dli_nearest_try(&nearest, name);
        add_name(&all, name);
        if (strncmp(name, driver->text, driver->len) == 0) {
            add_name(&longer, name);
        }
    }
    dli_shown_t shown = dli_show(driver->text, driver->len);
    name = dli_nearest_name(&nearest);
    if (name != NULL && longer.count < 2) {
        return dli_report(c->err, label, driver->mark, "unknown driver '%s', did you mean '%s'?", shown.text,
                          name);
    }
    return dli_report(c->err, label, driver->mark, "unknown driver '%s', expected one of %s", shown.text,
                      longer.count > 1 && driver->len > 0 ? longer.text : all.text);
}

/* A scalar that names something; variables are not replaced in it, so that the whole file can be checked at
 * once. */
static dl_status_t check_word(const checker_t *c, const dli_node_t *key, const dli_node_t *value,
                              const char *expected) {
    const char *label = c->config->label.text;
    if (value->kind != DLI_NODE_SCALAR || dli_node_is_empty(value) || value->len == 0) {
        return dli_value_refuse(c->err, label, key, value, expected);
    }
    if (strchr(value->text, '$') != NULL) {
        return dli_report(c->err, label, value->mark, "a variable in '%s', expected %s as it is", key->text,
                          expected);
    }
    return DL_OK;
}

static dl_status_t check_backend(const checker_t *c, const dli_node_t *name, dli_backend_t *backend) {
    const char *label = c->config->label.text;
    const dli_node_t *map = name->next, *key = NULL;
    int compiled_in = 0, known = 0;
    char owner[32 + DLI_BACKEND_NAME_MAX];
    if (!is_backend_name(name)) {
        return dli_report(c->err, label, name->mark,
                          "'%s' cannot name a backend, expected 1 to %d of the characters A-Z a-z 0-9 _ . -",
                          dli_show(name->text, name->len).text, DLI_BACKEND_NAME_MAX);
    }
    if (map->kind != DLI_NODE_MAP) {
        return dli_report(c->err, label, dli_node_is_empty(map) ? name->mark : map->mark,
                          "backend '%s' is %s, expected a mapping with 'driver'", name->text,
                          dli_node_kind(map));
    }
    const dli_node_t *driver = dli_node_get(map, "driver", &key);
    if (driver == NULL) {
        return dli_report(c->err, label, name->mark, "backend '%s' lacks 'driver', expected 'driver: name'",
                          name->text);
    }
    dl_status_t status = check_word(c, key, driver, "the name of a driver");
    if (status != DL_OK) {
        return status;
    }
    const dl_option_t *options = c->drivers->options_of(driver->text, &compiled_in, &known);
    if (!compiled_in && !known) {
        return unknown_driver(c, driver);
    }
    snprintf(owner, sizeof owner, "backend '%s'", name->text);
    *backend = (dli_backend_t){.name = name, .options = map, .driver = driver->text};
    const dli_checked_t checked = {.label = label,
                                   .keys = {backend_words, options, c->core},
                                   .map = map,
                                   .defaults = c->config->defaults,
                                   .mark = name->mark,
                                   .owner = owner,
                                   .tolerant = !compiled_in};
    return dli_check_options(&checked, &c->config->arena, c->err);
}

/* ---- the whole ----------------------------------------------------------------------------------- */

static dl_status_t check_defaults(const checker_t *c, const dli_node_t *key) {
    const dli_node_t *map = key->next;
    const char *label = c->config->label.text;
    if (map->kind != DLI_NODE_MAP) {
        return dli_value_refuse(c->err, label, key, map, "a mapping of options");
    }
    c->config->defaults = map;
    /* What `defaults` lacks, the backends may have: nothing is required here. */
    const dli_checked_t checked = {.label = label, .keys = {NULL, c->core, NULL}, .map = map};
    return dli_check_options(&checked, &c->config->arena, c->err);
}

static dl_status_t check_backends(const checker_t *c, const dli_node_t *key) {
    dli_config_t *config = c->config;
    const dli_node_t *map = key->next;
    if (map->kind != DLI_NODE_MAP || map->count == 0) {
        return dli_value_refuse(c->err, config->label.text, key, map, "a mapping of names to backends");
    }
    config->backends =
        dli_arena_get(&config->arena, (map->count < DLI_BACKENDS_MAX ? map->count : DLI_BACKENDS_MAX) *
                                          sizeof *config->backends);
    if (config->backends == NULL) {
        return dli_report_no_memory(c->err);
    }
    for (const dli_node_t *name = map->first; name != NULL; name = name->next->next) {
        if (config->backend_count == DLI_BACKENDS_MAX) {
            return dli_report(c->err, config->label.text, name->mark, "more than %d backends, expected fewer",
                              DLI_BACKENDS_MAX);
        }
        dl_status_t status = check_backend(c, name, &config->backends[config->backend_count]);
        if (status != DL_OK) {
            return status;
        }
        config->backend_count++;
    }
    return DL_OK;
}

static dl_status_t check_root(const checker_t *c, const dli_node_t *root) {
    const char *label = c->config->label.text;
    static const char expected[] = "a mapping with 'backends'";
    const dli_keys_t keys = {top_words, NULL, NULL};
    if (root == NULL || dli_node_is_empty(root) || (root->kind == DLI_NODE_MAP && root->count == 0)) {
        return dli_report(c->err, label, root == NULL ? DLI_MARK_START : root->mark,
                          "nothing is configured, expected %s", expected);
    }
    if (root->kind != DLI_NODE_MAP) {
        return dli_report(c->err, label, root->mark, "the configuration is %s, expected %s",
                          dli_node_kind(root), expected);
    }
    for (const dli_node_t *key = root->first; key != NULL; key = key->next->next) {
        dli_key_t meaning;
        if (!dli_keys_find(&keys, key, &meaning)) {
            return dli_keys_unknown(&keys, key, label, c->err);
        }
    }
    return DL_OK;
}

/* `use` must name a backend of the file, except that the built-in one is always there. */
static dl_status_t check_use(const checker_t *c, const dli_node_t *root) {
    const dli_node_t *key = NULL, *use = dli_node_get(root, "use", &key);
    if (use == NULL) {
        return DL_OK;
    }
    dl_status_t status = check_word(c, key, use, "the name of a backend");
    if (status != DL_OK) {
        return status;
    }
    c->config->use = use;
    if (dli_loader_find(c->config, use->text) != NULL || dli_node_is(use, DLI_BACKEND_BUILT_IN)) {
        return DL_OK;
    }
    return dli_config_no_backend(c->config, use->text, c->err);
}

dl_status_t dli_check_document(dli_config_t *config, const dli_node_t *root, const dl_option_t *core,
                               const dli_driver_lookup_t *drivers, dl_error_t *err) {
    const checker_t c = {.config = config, .core = core, .drivers = drivers, .err = err};
    const dli_node_t *defaults = NULL, *backends = NULL, *use = NULL;
    dl_status_t status = check_root(&c, root);
    if (status != DL_OK) {
        return status;
    }
    if (dli_node_get(root, "defaults", &defaults) != NULL) {
        status = check_defaults(&c, defaults);
    }
    if (status == DL_OK && dli_node_get(root, "backends", &backends) != NULL) {
        config->backends_key = backends;
        status = check_backends(&c, backends);
    }
    if (status == DL_OK && backends == NULL && dli_node_get(root, "use", &use) == NULL) {
        return dli_report(err, config->label.text, root->mark,
                          "'backends' is missing, expected a mapping with it");
    }
    return status == DL_OK ? check_use(&c, root) : status;
}
