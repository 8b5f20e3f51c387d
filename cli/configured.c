/* configured.c - the backends of a configuration, however many, as a list. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "configured.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct reading {
    configured_t *list;
    bool failed;
} reading_t;

bool configured_add(configured_t *list, const char *backend, const char *driver) {
    if (list->count == list->room) {
        size_t room = list->room > 0 ? 2 * list->room : 16;
        configured_row_t *rows = realloc(list->rows, room * sizeof *rows);
        if (rows == NULL) {
            return false;
        }
        list->rows = rows;
        list->room = room;
    }
    configured_row_t *row = &list->rows[list->count++];
    *row = (configured_row_t){.compiled_in = true};
    (void)snprintf(row->backend, sizeof row->backend, "%s", backend);
    (void)snprintf(row->driver, sizeof row->driver, "%s", driver);
    return true;
}

static int add_reported(void *arg, const char *backend, const char *driver, int compiled_in, int selected) {
    reading_t *reading = arg;
    configured_t *list = reading->list;
    if (!configured_add(list, backend, driver)) {
        reading->failed = true;
        return 1;
    }
    list->rows[list->count - 1].compiled_in = compiled_in != 0;
    list->rows[list->count - 1].selected = selected != 0;
    return 0;
}

dl_status_t configured_read(configured_t *list, const char *path, char *source, size_t source_size,
                            dl_error_t *err) {
    reading_t reading = {.list = list};
    dl_status_t status = dl_backends(path, source, source_size, add_reported, &reading, err);
    if (status == DL_OK && reading.failed) {
        *err = (dl_error_t){.status = DL_ENOMEM};
        return DL_ENOMEM;
    }
    return status;
}

void configured_free(configured_t *list) {
    free(list->rows);
    *list = (configured_t){.rows = NULL};
}
