/* document.c - a YAML text as a bounded tree, built from the events of libyaml. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "document.h"

#include <string.h>
#include <yaml.h>

#include "keys.h"
#include "syntax.h"
#include "text.h"

typedef struct builder {
    const char *label;
    dli_arena_t *arena;
    dl_error_t *err;
    dli_node_t *root;
    dli_node_t *open[DLI_DEPTH_MAX]; /* the collections that are being read, outermost first */
    dli_node_t *last[DLI_DEPTH_MAX]; /* the newest child of each */
    int awaits_value[DLI_DEPTH_MAX]; /* of a mapping: a key has been read */
    size_t depth;
    size_t nodes;
    int documents;
    int ended;
} builder_t;

static dli_mark_t mark_of(yaml_mark_t mark) {
    return (dli_mark_t){(unsigned)mark.line + 1, (unsigned)mark.column + 1};
}

static dl_status_t refuse(const builder_t *b, dli_mark_t at, const char *what) {
    return dli_report(b->err, b->label, at, "%s", what);
}

/* Hangs the node under the innermost open collection. */
static dl_status_t attach(builder_t *b, dli_node_t *node) {
    if (b->depth == 0) {
        b->root = node;
        return DL_OK;
    }
    size_t top = b->depth - 1;
    dli_node_t *parent = b->open[top];
    if (parent->kind == DLI_NODE_MAP && !b->awaits_value[top]) {
        if (node->kind != DLI_NODE_SCALAR) {
            return refuse(b, node->mark, "a list or mapping as a key, expected a name");
        }
        if (dli_node_is_empty(node) || node->len == 0) {
            return refuse(b, node->mark, "an empty key, expected a name");
        }
        if (node->plain && dli_node_is(node, "<<")) {
            return refuse(b, node->mark, "a merge key '<<', expected the keys themselves");
        }
        parent->count++;
    }
    b->awaits_value[top] = parent->kind == DLI_NODE_MAP && !b->awaits_value[top];
    parent->count += parent->kind == DLI_NODE_LIST;
    if (b->last[top] == NULL) {
        parent->first = node;
    } else {
        b->last[top]->next = node;
    }
    b->last[top] = node;
    return DL_OK;
}

static dl_status_t add(builder_t *b, dli_node_kind_t kind, dli_mark_t mark, dli_node_t **added) {
    if (++b->nodes > DLI_NODES_MAX) {
        return dli_report(b->err, b->label, mark, "more than %d words, expected a configuration",
                          DLI_NODES_MAX);
    }
    dli_node_t *node = dli_arena_get(b->arena, sizeof *node);
    if (node == NULL) {
        return dli_report_no_memory(b->err);
    }
    node->kind = kind;
    node->mark = mark;
    *added = node;
    return DL_OK;
}

/* Anchors and tags would give one text several meanings, and aliases make a small file large. */
static dl_status_t refuse_decoration(const builder_t *b, const yaml_event_t *event, const yaml_char_t *anchor,
                                     const yaml_char_t *tag) {
    if (anchor != NULL) {
        return refuse(b, mark_of(event->start_mark), "an anchor '&', expected the value alone");
    }
    if (tag != NULL) {
        return refuse(b, mark_of(event->start_mark), "a tag '!', expected the value alone");
    }
    return DL_OK;
}

static dl_status_t open_collection(builder_t *b, const yaml_event_t *event, dli_node_kind_t kind) {
    dli_node_t *node = NULL;
    dli_mark_t mark = mark_of(event->start_mark);
    if (b->depth == DLI_DEPTH_MAX) {
        return dli_report(b->err, b->label, mark, "nested too deeply, expected at most %d levels",
                          DLI_DEPTH_MAX);
    }
    dl_status_t status = add(b, kind, mark, &node);
    if (status == DL_OK) {
        status = attach(b, node);
    }
    if (status == DL_OK) {
        b->open[b->depth] = node;
        b->last[b->depth] = NULL;
        b->awaits_value[b->depth] = 0;
        b->depth++;
    }
    return status;
}

static dl_status_t close_collection(builder_t *b) {
    const dli_node_t *node = b->open[--b->depth];
    return node->kind == DLI_NODE_MAP ? dli_keys_refuse_twice(node, b->label, b->err) : DL_OK;
}

static dl_status_t take_scalar(builder_t *b, const yaml_event_t *event) {
    const char *text = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;
    dli_node_t *node = NULL;
    dli_mark_t mark = mark_of(event->start_mark);
    dl_status_t status = refuse_decoration(b, event, event->data.scalar.anchor, event->data.scalar.tag);
    if (status == DL_OK && memchr(text, '\0', len) != NULL) {
        status = refuse(b, mark, "a NUL character in a text, expected text without one");
    }
    if (status == DL_OK) {
        status = add(b, DLI_NODE_SCALAR, mark, &node);
    }
    if (status != DL_OK) {
        return status;
    }
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    node->len = len;
    node->text = dli_arena_copy(b->arena, text, len);
    return node->text == NULL ? dli_report_no_memory(b->err) : attach(b, node);
}

static dl_status_t open_document(builder_t *b, const yaml_event_t *event) {
    dli_mark_t mark = mark_of(event->start_mark);
    if (event->data.document_start.version_directive != NULL ||
        event->data.document_start.tag_directives.start != event->data.document_start.tag_directives.end) {
        return refuse(b, mark, "a directive '%', expected the document alone");
    }
    if (++b->documents > 1) {
        return refuse(b, mark, "a second document, expected one in a file");
    }
    return DL_OK;
}

static dl_status_t take(builder_t *b, const yaml_event_t *event) {
    dl_status_t status = DL_OK;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return open_document(b, event);
    case YAML_ALIAS_EVENT:
        return refuse(b, mark_of(event->start_mark), "an alias '*', expected the value itself");
    case YAML_SCALAR_EVENT:
        return take_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
        status =
            refuse_decoration(b, event, event->data.sequence_start.anchor, event->data.sequence_start.tag);
        return status == DL_OK ? open_collection(b, event, DLI_NODE_LIST) : status;
    case YAML_MAPPING_START_EVENT:
        status = refuse_decoration(b, event, event->data.mapping_start.anchor, event->data.mapping_start.tag);
        return status == DL_OK ? open_collection(b, event, DLI_NODE_MAP) : status;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_collection(b);
    case YAML_STREAM_END_EVENT:
        b->ended = 1;
        return DL_OK;
    default:
        return DL_OK;
    }
}

/* What libyaml copied of the text may be a secret. */
static void drop_event(yaml_event_t *event) {
    if (event->type == YAML_SCALAR_EVENT) {
        explicit_bzero(event->data.scalar.value, event->data.scalar.length);
    }
    yaml_event_delete(event);
}

static void drop_parser(yaml_parser_t *parser) {
    if (parser->raw_buffer.start != NULL) {
        explicit_bzero(parser->raw_buffer.start, (size_t)(parser->raw_buffer.end - parser->raw_buffer.start));
    }
    if (parser->buffer.start != NULL) {
        explicit_bzero(parser->buffer.start, (size_t)(parser->buffer.end - parser->buffer.start));
    }
    yaml_parser_delete(parser);
}

dl_status_t dli_document_parse(const char *text, size_t len, const char *label, dli_arena_t *arena,
                               dli_node_t **root, dl_error_t *err) {
    builder_t b = {.label = label, .arena = arena, .err = err};
    yaml_parser_t parser;
    *root = NULL;
    dl_status_t status = dli_text_check(text, len, label, err);
    if (status != DL_OK) {
        return status;
    }
    if (!yaml_parser_initialize(&parser)) {
        return dli_report_no_memory(err);
    }
    size_t bom = dli_text_bom(text, len);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text + bom, len - bom);
    while (status == DL_OK && !b.ended) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = dli_syntax_report(&parser, text, len, label, err);
            break;
        }
        status = take(&b, &event);
        drop_event(&event);
    }
    drop_parser(&parser);
    if (status == DL_OK) {
        *root = b.root;
    }
    return status;
}

int dli_node_is_empty(const dli_node_t *node) {
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (node->kind != DLI_NODE_SCALAR || !node->plain) {
        return 0;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(node->text, words[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

const char *dli_node_kind(const dli_node_t *node) {
    if (node->kind == DLI_NODE_LIST) {
        return "a list";
    }
    if (node->kind == DLI_NODE_MAP) {
        return node->count > 0 ? "a mapping" : "empty";
    }
    return node->len > 0 && !dli_node_is_empty(node) ? "text" : "empty";
}

int dli_node_is(const dli_node_t *scalar, const char *word) {
    return scalar->kind == DLI_NODE_SCALAR && strcmp(scalar->text, word) == 0;
}

const dli_node_t *dli_node_get(const dli_node_t *map, const char *name, const dli_node_t **key) {
    for (const dli_node_t *at = map == NULL ? NULL : map->first; at != NULL; at = at->next->next) {
        if (dli_node_is(at, name)) {
            if (key != NULL) {
                *key = at;
            }
            return at->next;
        }
    }
    return NULL;
}
