/* check.h - holds a document against the tables of options. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_CHECK_H
#define DLI_CONFIG_CHECK_H

#include "keys.h"
#include "loader.h"

/* Checks the whole document and fills the configuration in from it. DL_ECONFIG, DL_ENOMEM. */
dl_status_t dli_check_document(dli_config_t *config, const dli_node_t *root, const dl_option_t *core,
                               const dli_driver_lookup_t *drivers, dl_error_t *err);

/* A mapping of options and what it is checked for. */
typedef struct dli_checked {
    const char *label;
    dli_keys_t keys;            /* `words` are passed over; both tables must be complete */
    const dli_node_t *map;      /* NULL: empty */
    const dli_node_t *defaults; /* where a required option may stand instead, or NULL */
    dli_mark_t mark;            /* where a missing option is missed */
    const char *owner;          /* what misses it, such as "backend 'orders'"; NULL: nothing is required */
    int tolerant;               /* 1: other keys may be there, for nobody knows the driver's */
} dli_checked_t;

/* Checks keys, forms and ranges, without variables and files. `arena` takes scratch memory. */
dl_status_t dli_check_options(const dli_checked_t *checked, dli_arena_t *arena, dl_error_t *err);

#endif
