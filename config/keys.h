/* keys.h - which keys a mapping may have, and what is said of those it may not. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_KEYS_H
#define DLI_CONFIG_KEYS_H

#include "document.h"

/* The keys that a mapping may have. Any part may be NULL. */
typedef struct dli_keys {
    const char *const *words;   /* ends with NULL; keys that are no options */
    const dl_option_t *options; /* two tables of options */
    const dl_option_t *more_options;
} dli_keys_t;

/* What a key means. */
typedef struct dli_key {
    const char *word;          /* one of `words` */
    const dl_option_t *option; /* or an option */
    int is_file;               /* the key is NAME_file of a secret */
} dli_key_t;

/* What is put behind a secret's name to name a file that holds it. */
#define DLI_FILE_SUFFIX "_file"
/* Room for an option's name with the suffix. */
#define DLI_KEY_SIZE 72

/* 1 and *meaning, or 0 for a key that is not known. */
int dli_keys_find(const dli_keys_t *keys, const dli_node_t *key, dli_key_t *meaning);
/* The error for a key that is not known. */
dl_status_t dli_keys_unknown(const dli_keys_t *keys, const dli_node_t *key, const char *label,
                             dl_error_t *err);
/* The error for the first key that comes a second time, or DL_OK. */
dl_status_t dli_keys_refuse_twice(const dli_node_t *map, const char *label, dl_error_t *err);

/* The option's name with the suffix. */
void dli_key_file_name(const dl_option_t *option, char name[DLI_KEY_SIZE]);

#endif
