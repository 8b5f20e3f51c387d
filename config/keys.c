/* keys.c - which keys a mapping may have, and what is said of those it may not. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nearest.h"

void dli_key_file_name(const dl_option_t *option, char name[DLI_KEY_SIZE]) {
    snprintf(name, DLI_KEY_SIZE, "%s%s", option->name, DLI_FILE_SUFFIX);
}

static int find_in(const dl_option_t *options, const dli_node_t *key, int as_file, dli_key_t *meaning) {
    for (const dl_option_t *o = options; o != NULL && o->name != NULL; o++) {
        char file_name[DLI_KEY_SIZE];
        if (as_file && o->type != DL_OPTION_SECRET) {
            continue;
        }
        dli_key_file_name(o, file_name);
        if (dli_node_is(key, as_file ? file_name : o->name)) {
            *meaning = (dli_key_t){.option = o, .is_file = as_file};
            return 1;
        }
    }
    return 0;
}

int dli_keys_find(const dli_keys_t *keys, const dli_node_t *key, dli_key_t *meaning) {
    for (const char *const *word = keys->words; word != NULL && *word != NULL; word++) {
        if (dli_node_is(key, *word)) {
            *meaning = (dli_key_t){.word = *word};
            return 1;
        }
    }
    /* An option of its own name goes before the file form of another. */
    return find_in(keys->options, key, 0, meaning) || find_in(keys->more_options, key, 0, meaning) ||
           find_in(keys->options, key, 1, meaning) || find_in(keys->more_options, key, 1, meaning);
}

/* Appends ", name" while there is room; afterwards only "..." once. */
static void list_name(char *list, size_t size, const char *name) {
    size_t used = strlen(list);
    size_t need = strlen(name) + (used > 0 ? 2 : 0);
    if (used >= 5 && strcmp(list + used - 5, ", ...") == 0) {
        return;
    }
    if (used + need + 6 > size) {
        name = "...";
    }
    snprintf(list + used, size - used, "%s%s", used > 0 ? ", " : "", name);
}

static void list_options(char *list, size_t size, const dl_option_t *options) {
    for (const dl_option_t *o = options; o != NULL && o->name != NULL; o++) {
        list_name(list, size, o->name);
    }
}

static void try_options(dli_nearest_t *nearest, const dl_option_t *options) {
    for (const dl_option_t *o = options; o != NULL && o->name != NULL; o++) {
        dli_nearest_try(nearest, o->name);
    }
}

/* `password:word` without a space is a key to YAML. What stands behind the colon may be a secret. */
static dl_status_t refuse_colon(const dli_node_t *key, size_t before, const char *label, dl_error_t *err) {
    return dli_report(err, label, key->mark, "no space after '%s:', expected '%s: value'",
                      dli_show(key->text, before).text, dli_show(key->text, before).text);
}

dl_status_t dli_keys_unknown(const dli_keys_t *keys, const dli_node_t *key, const char *label,
                             dl_error_t *err) {
    char file_names[8][DLI_KEY_SIZE];
    char list[100] = "";
    size_t files = 0;
    dli_nearest_t nearest;
    const char *colon = strchr(key->text, ':');
    if (key->plain && colon != NULL && colon > key->text) {
        return refuse_colon(key, (size_t)(colon - key->text), label, err);
    }
    dli_nearest_start(&nearest, key->text, key->len);
    for (const char *const *word = keys->words; word != NULL && *word != NULL; word++) {
        dli_nearest_try(&nearest, *word);
        list_name(list, sizeof list, *word);
    }
    const dl_option_t *const tables[] = {keys->options, keys->more_options};
    for (size_t t = 0; t < 2; t++) {
        try_options(&nearest, tables[t]);
        list_options(list, sizeof list, tables[t]);
        for (const dl_option_t *o = tables[t]; o != NULL && o->name != NULL && files < 8; o++) {
            if (o->type == DL_OPTION_SECRET) {
                dli_key_file_name(o, file_names[files]);
                dli_nearest_try(&nearest, file_names[files++]);
            }
        }
    }
    const char *name = dli_nearest_name(&nearest);
    dli_shown_t shown = dli_show(key->text, key->len);
    if (name != NULL) {
        return dli_report(err, label, key->mark, "unknown key '%s', did you mean '%s'?", shown.text, name);
    }
    return dli_report(err, label, key->mark, "unknown key '%s', expected one of %s", shown.text, list);
}

static int is_before(const dli_node_t *x, const dli_node_t *y) {
    return x->mark.line != y->mark.line ? x->mark.line < y->mark.line : x->mark.column < y->mark.column;
}

/* By text, then by place. */
static int compare_keys(const void *a, const void *b) {
    const dli_node_t *x = *(const dli_node_t *const *)a, *y = *(const dli_node_t *const *)b;
    int order = strcmp(x->text, y->text);
    return order != 0 ? order : is_before(y, x) - is_before(x, y);
}

/* Sorting keeps a hostile mapping with a hundred thousand keys cheap. */
dl_status_t dli_keys_refuse_twice(const dli_node_t *map, const char *label, dl_error_t *err) {
    if (map->count < 2) {
        return DL_OK;
    }
    const dli_node_t **keys = malloc(map->count * sizeof *keys);
    if (keys == NULL) {
        return dli_report_no_memory(err);
    }
    size_t count = 0;
    for (const dli_node_t *key = map->first; key != NULL && count < map->count; key = key->next->next) {
        keys[count++] = key;
    }
    qsort(keys, count, sizeof *keys, compare_keys);
    const dli_node_t *second = NULL, *first = NULL;
    for (size_t i = 1; i < count; i++) {
        if (strcmp(keys[i - 1]->text, keys[i]->text) == 0 && (second == NULL || is_before(keys[i], second))) {
            first = keys[i - 1];
            second = keys[i];
        }
    }
    free(keys);
    if (second == NULL) {
        return DL_OK;
    }
    return dli_report(err, label, second->mark,
                      "duplicate key '%s', expected it once; the first is in line %u",
                      dli_show(second->text, second->len).text, first->mark.line);
}
