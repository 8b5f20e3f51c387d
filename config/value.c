/* value.c - turns one node of a document into the value of one option. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "value.h"

#include <stdio.h>
#include <string.h>

#include "input.h"
#include "nearest.h"
#include "scalar.h"

#define CHOICES_SIZE 256

int dli_value_range(const dl_option_t *option, char *text, size_t size) {
    char low[32], high[32];
    dl_option_type_t type = option->type == DL_OPTION_LIST ? DL_OPTION_INT : option->type;
    if (option->min == 0 && option->max == 0) {
        return 0;
    }
    dli_scalar_write(type, option->min, low, sizeof low);
    dli_scalar_write(type, option->max, high, sizeof high);
    snprintf(text, size, "%s to %s", low, high);
    return 1;
}

dl_status_t dli_value_refuse(dl_error_t *err, const char *label, const dli_node_t *key,
                             const dli_node_t *value, const char *expected) {
    /* Where nothing is there to point to but the key, the key. */
    dli_mark_t mark = value->plain && value->len == 0 ? key->mark : value->mark;
    return dli_report(err, label, mark, "'%s' is %s, expected %s", key->text, dli_node_kind(value), expected);
}

/* Replaces the variables of a scalar. *text is NULL when that has to wait. No error shows what a variable
 * holds. */
static dl_status_t expand(const dli_reader_t *r, const dli_node_t *key, const dli_node_t *value,
                          const char **text, int *replaced) {
    char missing[DLI_VARIABLE_MAX + 1];
    dli_variables_t outcome = dli_variables_scan(value->text, replaced);
    *text = NULL;
    if (outcome == DLI_VARIABLES_OK && (!*replaced || r->environment != NULL)) {
        outcome = dli_variables_expand(value->text, r->environment, r->arena, text, missing);
    }
    switch (outcome) {
    case DLI_VARIABLES_OK:
        return DL_OK;
    case DLI_VARIABLES_SYNTAX:
        return dli_report(
            r->err, r->label, value->mark,
            "a dollar in '%s' begins no variable, expected ${NAME}, ${NAME:-default} or $$ for a dollar",
            key->text);
    case DLI_VARIABLES_MISSING:
        return dli_report(
            r->err, r->label, value->mark,
            "the variable '%s' is not set, expected it in the environment or a default: ${%s:-default}",
            dli_show(missing, strlen(missing)).text, dli_show(missing, strlen(missing)).text);
    case DLI_VARIABLES_TOO_LONG:
        return dli_report(r->err, r->label, value->mark,
                          "'%s' with its variables is too long, expected at most %zu KiB", key->text,
                          DLI_EXPANDED_MAX / 1024);
    default:
        return dli_report_no_memory(r->err);
    }
}

/* "'lease' is '30', which has no unit, expected ...". Of a value with variables only the text in the file is
 * shown. */
static dl_status_t refuse_text(const dli_reader_t *r, const dli_node_t *key, const dli_node_t *value,
                               int replaced, const char *fault, const char *expected) {
    const char *link = replaced ? ", whose value " : ", which ";
    return dli_report(r->err, r->label, value->mark, "'%s' is '%s'%s%s, expected %s", key->text,
                      dli_show(value->text, value->len).text, fault == NULL ? "" : link,
                      fault == NULL ? "" : fault, expected);
}

static dl_status_t read_number(const dli_reader_t *r, const dl_option_t *option, const dli_node_t *key,
                               const dli_node_t *value, const char *text, int replaced, int64_t *number) {
    char range[72];
    int bounded = dli_value_range(option, range, sizeof range);
    dli_scalar_t outcome = dli_scalar_read(option->type, text, number);
    const char *fault = dli_scalar_fault(outcome), *expected = dli_scalar_expected(option->type);
    switch (outcome) {
    case DLI_SCALAR_OK:
        if (!bounded || (*number >= option->min && *number <= option->max)) {
            return DL_OK;
        }
        return refuse_text(r, key, value, replaced, "is out of range", range);
    case DLI_SCALAR_MALFORMED:
        return refuse_text(r, key, value, replaced, replaced ? fault : NULL, expected);
    case DLI_SCALAR_NEGATIVE:
    case DLI_SCALAR_TOO_LARGE:
        return refuse_text(r, key, value, replaced, fault, bounded ? range : expected);
    case DLI_SCALAR_FRACTION:
        return refuse_text(r, key, value, replaced, fault,
                           option->type == DL_OPTION_SIZE ? "whole bytes" : "whole milliseconds");
    case DLI_SCALAR_DECIMAL_UNIT:
        return refuse_text(r, key, value, replaced, fault,
                           "KiB, MiB or GiB, which are 1024 of the next smaller");
    default:
        return refuse_text(r, key, value, replaced, fault, expected);
    }
}

static dl_status_t check_choice(const dli_reader_t *r, const dl_option_t *option, const dli_node_t *key,
                                const dli_node_t *value, const char *text, int replaced) {
    char choices[CHOICES_SIZE], expected[CHOICES_SIZE] = "one of ";
    char *rest = choices;
    dli_nearest_t nearest;
    size_t used = strlen(expected);
    snprintf(choices, sizeof choices, "%s", option->choices);
    dli_nearest_start(&nearest, text, strlen(text));
    for (char *choice = strsep(&rest, "|"); choice != NULL; choice = strsep(&rest, "|")) {
        if (strcmp(choice, text) == 0) {
            return DL_OK;
        }
        dli_nearest_try(&nearest, choice);
        int n = snprintf(expected + used, sizeof expected - used, "%s%s",
                         used > strlen("one of ") ? ", " : "", choice);
        used = n < 0 || (size_t)n >= sizeof expected - used ? sizeof expected - 1 : used + (size_t)n;
    }
    if (!replaced && dli_nearest_name(&nearest) != NULL) {
        return dli_report(r->err, r->label, value->mark, "'%s' is '%s', did you mean '%s'?", key->text,
                          dli_show(value->text, value->len).text, dli_nearest_name(&nearest));
    }
    return refuse_text(r, key, value, replaced, replaced ? "is not known" : NULL, expected);
}

static dl_status_t keep_text(const dli_reader_t *r, const char *text, const char **kept) {
    *kept = r->environment == NULL ? text : dli_arena_copy(r->arena, text, strlen(text));
    return *kept == NULL ? dli_report_no_memory(r->err) : DL_OK;
}

static dl_status_t read_scalar(const dli_reader_t *r, const dl_option_t *option, const dli_node_t *key,
                               const dli_node_t *value, dl_option_value_t *out) {
    const char *text = NULL;
    int replaced = 0;
    if (value->kind != DLI_NODE_SCALAR || dli_node_is_empty(value)) {
        return dli_value_refuse(r->err, r->label, key, value, dli_scalar_expected(option->type));
    }
    dl_status_t status = expand(r, key, value, &text, &replaced);
    if (status != DL_OK || text == NULL) {
        return status;
    }
    if (option->type != DL_OPTION_STRING && option->type != DL_OPTION_SECRET) {
        return read_number(r, option, key, value, text, replaced, &out->number);
    }
    if (option->type == DL_OPTION_STRING && option->choices != NULL) {
        status = check_choice(r, option, key, value, text, replaced);
    }
    return status == DL_OK ? keep_text(r, text, &out->string) : status;
}

static dl_status_t read_items(const dli_reader_t *r, const dli_node_t *key, const dli_node_t *value,
                              dl_option_value_t *out) {
    static const dl_option_t item = {.name = "item", .type = DL_OPTION_STRING};
    const char **list = dli_arena_get(r->arena, (value->count + 1) * sizeof *list);
    if (list == NULL) {
        return dli_report_no_memory(r->err);
    }
    size_t count = 0;
    for (const dli_node_t *node = value->first; node != NULL; node = node->next) {
        char name[DLI_SHOWN_SIZE + 32];
        dl_option_value_t one = {0};
        snprintf(name, sizeof name, "item %zu of %s", count + 1, dli_show(key->text, key->len).text);
        const dli_node_t item_key = {.text = name, .mark = node->mark};
        dl_status_t status = read_scalar(r, &item, &item_key, node, &one);
        if (status != DL_OK) {
            return status;
        }
        list[count++] = one.string;
    }
    out->list = list;
    out->list_len = count;
    return DL_OK;
}

static dl_status_t read_list(const dli_reader_t *r, const dl_option_t *option, const dli_node_t *key,
                             const dli_node_t *value, dl_option_value_t *out) {
    char range[72];
    if (value->kind != DLI_NODE_LIST) {
        return dli_value_refuse(r->err, r->label, key, value, dli_scalar_expected(DL_OPTION_LIST));
    }
    if (!dli_value_range(option, range, sizeof range)) {
        snprintf(range, sizeof range, "at most %d", DLI_LIST_MAX);
    }
    int64_t max = option->max == 0 || option->max > DLI_LIST_MAX ? DLI_LIST_MAX : option->max;
    if ((int64_t)value->count < option->min || (int64_t)value->count > max) {
        return dli_report(r->err, r->label, value->mark, "'%s' has %zu item%s, expected %s", key->text,
                          value->count, value->count == 1 ? "" : "s", range);
    }
    return read_items(r, key, value, out);
}

dl_status_t dli_value_read(const dli_reader_t *reader, const dl_option_t *option, const dli_node_t *key,
                           const dli_node_t *value, dl_option_value_t *out) {
    memset(out, 0, sizeof *out);
    out->is_set = 1;
    return option->type == DL_OPTION_LIST ? read_list(reader, option, key, value, out)
                                          : read_scalar(reader, option, key, value, out);
}

/* Editors and `echo` end a file with a line end that is not part of the secret. */
static size_t without_line_end(const char *data, size_t len) {
    if (len > 0 && data[len - 1] == '\n') {
        len--;
        len -= len > 0 && data[len - 1] == '\r';
    }
    return len;
}

static dl_status_t take_secret(const dli_reader_t *r, const dli_node_t *key, const dli_node_t *value,
                               const dli_input_t *input, dl_option_value_t *out) {
    size_t len = without_line_end(input->data, input->len);
    const char *why = len == 0                                 ? "is empty"
                      : memchr(input->data, '\0', len) != NULL ? "holds a NUL byte"
                                                               : NULL;
    if (why != NULL) {
        return dli_report(r->err, r->label, value->mark, "the file of '%s' %s, expected a secret", key->text,
                          why);
    }
    out->string = dli_arena_copy(r->arena, input->data, len);
    return out->string == NULL ? dli_report_no_memory(r->err) : DL_OK;
}

dl_status_t dli_value_read_file(const dli_reader_t *reader, const dli_node_t *key, const dli_node_t *value,
                                dl_option_value_t *out) {
    const char *path = NULL;
    int replaced = 0;
    dli_input_t input;
    dli_input_fault_t fault = {0};
    memset(out, 0, sizeof *out);
    out->is_set = 1;
    if (value->kind != DLI_NODE_SCALAR || dli_node_is_empty(value) || value->len == 0) {
        return dli_value_refuse(reader->err, reader->label, key, value, "the path of a file");
    }
    dl_status_t status = expand(reader, key, value, &path, &replaced);
    if (status != DL_OK || reader->environment == NULL) {
        return status;
    }
    status = dli_input_read(path, DLI_SECRET_MAX, &input, &fault);
    if (status == DL_ENOMEM) {
        return dli_report_no_memory(reader->err);
    }
    if (status != DL_OK) {
        return dli_report_native(reader->err, status, fault.native, reader->label, value->mark,
                                 "the file of '%s' %s, expected a readable file", key->text, fault.why);
    }
    status = take_secret(reader, key, value, &input, out);
    dli_input_free(&input);
    return status;
}
