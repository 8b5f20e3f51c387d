/* configured.h - the backends of a configuration, however many, as a list. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CONFIGURED_H
#define CLI_CONFIGURED_H

#include <stdbool.h>
#include <stddef.h>

#include "dlock/dlock.h"
#include "options.h"

typedef struct configured_row {
    char backend[64];
    char driver[32];
    bool compiled_in, selected;
} configured_row_t;

/* Begins as zeros. */
typedef struct configured {
    configured_row_t *rows;
    size_t count, room;
} configured_t;

/* Appends what dl_backends reports; arguments as there, errors too, and DL_ENOMEM. */
dl_status_t configured_read(configured_t *list, const char *path, char *source, size_t source_size,
                            dl_error_t *err);
/* False: no memory. */
bool configured_add(configured_t *list, const char *backend, const char *driver);
void configured_free(configured_t *list);
/* As report_failure, for what uses the configuration: says what to do where there is none. */
int report_unopened(const options_t *options, dl_status_t status, const dl_error_t *err);

#endif
