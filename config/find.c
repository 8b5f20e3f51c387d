/* find.c - which configuration file to use when the caller names none. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config.h"
#include "report.h"

#define SYSTEM_FILE "/etc/dlock/dlock.yaml"

/* Only a file that is surely not there is passed over: one that cannot be looked at is an error when it is
 * read, and so is a link that leads nowhere. */
static int exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

const char *dli_config_setting(const char *name) {
    const char *value = secure_getenv(name);
    return value == NULL || *value == '\0' ? NULL : value;
}

/* 0, or -1 when the path does not fit. */
static int put(char *path, size_t size, const char *folder, const char *rest) {
    int len = snprintf(path, size, "%s%s", folder, rest);
    return len < 0 || (size_t)len >= size ? -1 : 0;
}

static dl_status_t refuse_long(dl_error_t *err, const char *variable) {
    return dl_driver_fail(err, DL_ECONFIG, ENAMETOOLONG,
                          "the path in $%s is too long, expected a shorter one", variable);
}

/* The user's file, whether it exists or not; "" when there is none by these rules. Relative folders do not
 * count. */
static dl_status_t users_file(char *path, size_t size, dl_error_t *err) {
    const char *folder = dli_config_setting("XDG_CONFIG_HOME"), *home = dli_config_setting("HOME");
    path[0] = '\0';
    if (folder != NULL && folder[0] == '/') {
        return put(path, size, folder, "/dlock/dlock.yaml") == 0 ? DL_OK
                                                                 : refuse_long(err, "XDG_CONFIG_HOME");
    }
    if (home != NULL && home[0] == '/') {
        return put(path, size, home, "/.config/dlock/dlock.yaml") == 0 ? DL_OK : refuse_long(err, "HOME");
    }
    return DL_OK;
}

dl_status_t dli_config_find(char *path, size_t size, dl_error_t *err) {
    const char *named = dli_config_setting("DLOCK_CONFIG");
    if (size == 0) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "no room for a path");
    }
    path[0] = '\0';
    if (named != NULL) {
        if (put(path, size, named, "") != 0) {
            return refuse_long(err, "DLOCK_CONFIG");
        }
        if (!exists(path)) {
            return dli_report_native(
                err, DL_ECONFIG, errno, dli_label_make(named).text, DLI_MARK_NONE,
                "$DLOCK_CONFIG names this file, which does not exist, expected a readable file");
        }
        return DL_OK;
    }
    dl_status_t status = users_file(path, size, err);
    if (status != DL_OK || (path[0] != '\0' && exists(path))) {
        return status;
    }
    const dli_label_t users = dli_label_make(path[0] == '\0' ? "~/.config/dlock/dlock.yaml" : path);
    if (put(path, size, SYSTEM_FILE, "") == 0 && exists(path)) {
        return DL_OK;
    }
    path[0] = '\0';
    return dl_driver_fail(
        err, DL_ECONFIG, ENOENT,
        "no configuration, expected one in %s or " SYSTEM_FILE ", or its path in $DLOCK_CONFIG", users.text);
}
