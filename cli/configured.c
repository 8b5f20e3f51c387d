/* configured.c - the backends of a configuration, however many, as a list. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "configured.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "report.h"

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

static int skip(void *arg, const char *backend, const char *driver, int compiled_in, int selected) {
    (void)arg, (void)backend, (void)driver, (void)compiled_in, (void)selected;
    return 1;
}

/* Did nobody name a file, and is there none in the usual places? */
static bool has_none(const options_t *options) {
    char source[4096] = "";
    dl_error_t err = {.status = DL_OK};
    return !options->local && options->config == NULL &&
           dl_backends(NULL, source, sizeof source, skip, NULL, &err) == DL_ECONFIG && source[0] == '\0' &&
           err.native == ENOENT;
}

int report_unopened(const options_t *options, dl_status_t status, const dl_error_t *err) {
    if (status != DL_ECONFIG || !has_none(options)) {
        return report_failure(status, err);
    }
    /* The lines of the file have no indentation, so that they can be copied. */
    const char *folder = getenv("XDG_CONFIG_HOME");
    error_line(
        "no configuration: use --local for locks of this host, or write\n%s/dlock/dlock.yaml, such as:\n%.*s",
        folder != NULL && folder[0] == '/' ? plain(folder) : "~/.config", (int)sizeof LOCAL_CONFIG - 2,
        LOCAL_CONFIG);
    return exit_status_of(status);
}
