/* loader.h - a loaded configuration, as the files of this folder see it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_LOADER_H
#define DLI_CONFIG_LOADER_H

#include "config.h"
#include "document.h"

#define DLI_BACKENDS_MAX 1000
#define DLI_BACKEND_NAME_MAX 63

typedef struct dli_backend {
    const dli_node_t *name;
    const dli_node_t *options; /* its mapping, `driver` included */
    const char *driver;
} dli_backend_t;

struct dli_config {
    dli_arena_t arena; /* holds the tree and everything below */
    dli_label_t label;
    const dli_node_t *use;          /* the value, or NULL */
    const dli_node_t *defaults;     /* the mapping, or NULL */
    const dli_node_t *backends_key; /* or NULL */
    dli_backend_t *backends;
    size_t backend_count;
};

/* NULL: the configuration has no such backend. */
const dli_backend_t *dli_loader_find(const dli_config_t *config, const char *backend);

#endif
