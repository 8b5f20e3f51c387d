/* value.h - turns one node of a document into the value of one option. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_VALUE_H
#define DLI_CONFIG_VALUE_H

#include "document.h"
#include "variables.h"

/* A secret in a file is a password or a key, never a document. */
#define DLI_SECRET_MAX ((size_t)64 * 1024)
/* More items than any list needs; bounds what variables can make of one. */
#define DLI_LIST_MAX 1000

/* How values are read. */
typedef struct dli_reader {
    const char *label;
    dli_arena_t *arena;            /* takes everything that a value points to */
    dli_environment_t environment; /* NULL: check only; what needs variables or files passes */
    dl_error_t *err;
} dli_reader_t;

/* Checks kind, variables, form, choices and range; fills *out. DL_ECONFIG, DL_ENOMEM. */
dl_status_t dli_value_read(const dli_reader_t *reader, const dl_option_t *option, const dli_node_t *key,
                           const dli_node_t *value, dl_option_value_t *out);
/* The same for a secret's NAME_file: reads the file, without one line end at its end. Also DL_ELIMIT. */
dl_status_t dli_value_read_file(const dli_reader_t *reader, const dli_node_t *key, const dli_node_t *value,
                                dl_option_value_t *out);

/* The error for a value of the wrong kind, or for none. */
dl_status_t dli_value_refuse(dl_error_t *err, const char *label, const dli_node_t *key,
                             const dli_node_t *value, const char *expected);

/* Writes "MIN to MAX" in the option's own units; 0: the option has no bounds. */
int dli_value_range(const dl_option_t *option, char *text, size_t size);

#endif
