/* variables.h - ${NAME}, ${NAME:-default} and $$ in the texts of a configuration. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_VARIABLES_H
#define DLI_CONFIG_VARIABLES_H

#include "arena.h"

/* The longest text that replacing may give. */
#define DLI_EXPANDED_MAX ((size_t)64 * 1024)
#define DLI_VARIABLE_MAX 127

typedef enum dli_variables {
    DLI_VARIABLES_OK = 0,
    DLI_VARIABLES_SYNTAX,  /* a dollar that begins none of the three forms */
    DLI_VARIABLES_MISSING, /* not set, and no default */
    DLI_VARIABLES_TOO_LONG,
    DLI_VARIABLES_NO_MEMORY
} dli_variables_t;

/* What the environment says; NULL: not set. */
typedef char *(*dli_environment_t)(const char *name);

/* Looks only. *any is 1 when the text needs the environment. DLI_VARIABLES_OK or _SYNTAX. */
dli_variables_t dli_variables_scan(const char *text, int *any);
/* Replaces. After _MISSING, `missing` is the variable's name. `text` may be what *expanded becomes. */
dli_variables_t dli_variables_expand(const char *text, dli_environment_t environment, dli_arena_t *arena,
                                     const char **expanded, char missing[DLI_VARIABLE_MAX + 1]);

#endif
