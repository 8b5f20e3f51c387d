/* document.h - a YAML text as a bounded tree in which every word knows its place. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_DOCUMENT_H
#define DLI_CONFIG_DOCUMENT_H

#include "arena.h"
#include "report.h"

/* A configuration is four levels deep: the document, `backends`, a backend, a list. */
#define DLI_DEPTH_MAX 8
/* 1000 backends with 50 keys and values each; at some 60 bytes a node this bounds the memory. */
#define DLI_NODES_MAX 100000

typedef enum dli_node_kind { DLI_NODE_SCALAR = 1, DLI_NODE_LIST, DLI_NODE_MAP } dli_node_kind_t;

typedef struct dli_node {
    dli_node_kind_t kind;
    int plain; /* a scalar without quotes */
    dli_mark_t mark;
    const char *text; /* of a scalar: without NUL inside, one after it */
    size_t len;
    struct dli_node *first; /* items; of a mapping: key, value, key, value ... */
    struct dli_node *next;
    size_t count; /* items or pairs */
} dli_node_t;

/*
 * Reads one document of the YAML subset: mappings, lists and scalars; no anchors, aliases, merge keys, tags,
 * directives or second documents; keys are scalars and none comes twice in a mapping. *root is NULL when
 * there is nothing in the text. Time and memory are bounded by the text's own bound. DL_ECONFIG, DL_ENOMEM.
 */
dl_status_t dli_document_parse(const char *text, size_t len, const char *label, dli_arena_t *arena,
                               dli_node_t **root, dl_error_t *err);

/* 1: a scalar that says nothing, as `key:` or `key: null` does. "" in quotes says an empty text. */
int dli_node_is_empty(const dli_node_t *node);
/* "text", "a list", "a mapping"; or "empty": a scalar or a mapping with nothing in it. */
const char *dli_node_kind(const dli_node_t *node);
int dli_node_is(const dli_node_t *scalar, const char *word);
/* The value of a key of a mapping (NULL is an empty mapping), or NULL; *key, unless NULL, is the key's own
 * node. */
const dli_node_t *dli_node_get(const dli_node_t *map, const char *name, const dli_node_t **key);

#endif
