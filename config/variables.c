/* variables.c - ${NAME}, ${NAME:-default} and $$ in the texts of a configuration. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "variables.h"

#include <string.h>

/* One part of a text: words as they stand, or one variable. */
typedef struct part {
    const char *text; /* literal text, or the default of a variable; NULL: none */
    size_t len;
    char name[DLI_VARIABLE_MAX + 1]; /* "": no variable */
} part_t;

static int is_letter(char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

/* Reads a variable whose "${" begins at text; returns what is behind its "}", NULL: it is none. */
static const char *read_variable(const char *text, part_t *part) {
    const char *at = text + 2;
    while (is_letter(*at) || (at > text + 2 && *at >= '0' && *at <= '9')) {
        at++;
    }
    size_t len = (size_t)(at - text) - 2;
    if (len == 0 || len > DLI_VARIABLE_MAX) {
        return NULL;
    }
    memcpy(part->name, text + 2, len);
    part->name[len] = '\0';
    part->text = NULL;
    part->len = 0;
    if (at[0] == ':' && at[1] == '-') {
        at += 2;
        part->text = at;
        part->len = strcspn(at, "}$");
        at += part->len;
    }
    return *at == '}' ? at + 1 : NULL;
}

/* Cuts the next part off a text that is not empty; returns the rest, NULL: a dollar is wrong. */
static const char *next_part(const char *text, part_t *part) {
    part->name[0] = '\0';
    part->text = text;
    part->len = strcspn(text, "$");
    if (part->len > 0) {
        return text + part->len;
    }
    if (text[1] == '$') {
        part->len = 1;
        return text + 2;
    }
    return text[1] == '{' ? read_variable(text, part) : NULL;
}

dli_variables_t dli_variables_scan(const char *text, int *any) {
    part_t part;
    *any = 0;
    while (*text != '\0') {
        text = next_part(text, &part);
        if (text == NULL) {
            return DLI_VARIABLES_SYNTAX;
        }
        *any = *any || part.name[0] != '\0';
    }
    return DLI_VARIABLES_OK;
}

/* Puts the value of a variable, else its default, in place of its name. A variable that is set but empty
 * counts as set, except that a default goes before it, as in the shell. */
static dli_variables_t look_up(part_t *part, dli_environment_t environment) {
    const char *value = environment(part->name);
    if (value != NULL && (*value != '\0' || part->text == NULL)) {
        part->text = value;
        part->len = strlen(value);
    }
    return part->text == NULL ? DLI_VARIABLES_MISSING : DLI_VARIABLES_OK;
}

dli_variables_t dli_variables_expand(const char *text, dli_environment_t environment, dli_arena_t *arena,
                                     const char **expanded, char missing[DLI_VARIABLE_MAX + 1]) {
    size_t room = strlen(text), used = 0;
    part_t part;
    if (strchr(text, '$') == NULL) {
        *expanded = text;
        return DLI_VARIABLES_OK;
    }
    char *out = dli_arena_get(arena, room + 1);
    while (*text != '\0') {
        text = next_part(text, &part);
        if (text == NULL) {
            return DLI_VARIABLES_SYNTAX;
        }
        if (part.name[0] != '\0' && look_up(&part, environment) != DLI_VARIABLES_OK) {
            memcpy(missing, part.name, sizeof part.name);
            return DLI_VARIABLES_MISSING;
        }
        if (part.len > DLI_EXPANDED_MAX || used + part.len > DLI_EXPANDED_MAX) {
            return DLI_VARIABLES_TOO_LONG;
        }
        if (out != NULL && used + part.len > room) {
            char *before = out;
            room = (used + part.len) * 2;
            out = dli_arena_get(arena, room + 1);
            if (out != NULL) {
                memcpy(out, before, used);
            }
        }
        if (out == NULL) {
            return DLI_VARIABLES_NO_MEMORY;
        }
        memcpy(out + used, part.text, part.len);
        used += part.len;
    }
    if (out == NULL) {
        return DLI_VARIABLES_NO_MEMORY;
    }
    out[used] = '\0';
    *expanded = out;
    return DLI_VARIABLES_OK;
}
