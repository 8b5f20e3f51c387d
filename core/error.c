/* error.c - status names and texts, and how error structs are filled. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdio.h>
#include <string.h>

#include "utf8.h"

static const struct {
    const char *name;
    const char *text;
} statuses[DL_STATUS_COUNT] = {
#define STATUS_ROW(name_, number_, text_) [number_] = {"DL_" #name_, text_},
    DL_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

static int is_status(dl_status_t status) {
    return (unsigned)status < (unsigned)DL_STATUS_COUNT;
}

const char *dl_status_name(dl_status_t status) {
    return is_status(status) ? statuses[status].name : "DL_UNKNOWN_STATUS";
}

const char *dl_status_text(dl_status_t status) {
    return is_status(status) ? statuses[status].text : "this number is no status";
}

const char *dl_version(void) {
    return DL_VERSION_STRING;
}

void dli_line(char *line, size_t size, const char *format, va_list args) {
    if (vsnprintf(line, size, format, args) < 0) {
        line[0] = '\0';
    }
    /* What a server sends may hold line ends, other control characters, and bytes that are no UTF-8. */
    size_t size_of_one, left = strlen(line);
    for (char *at = line; left > 0; at += size_of_one, left -= size_of_one) {
        uint32_t code = 0;
        size_of_one = dli_utf8_next(at, left, &code);
        if (size_of_one == 0) {
            size_of_one = 1;
            *at = '?';
        } else if (code < 0x20 || (code >= 0x7f && code <= 0x9f)) {
            memset(at, ' ', size_of_one);
        }
    }
}

dl_status_t dl_driver_fail(dl_error_t *err, dl_status_t status, int native, const char *format, ...) {
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        err->status = status;
        err->native = native;
        dli_line(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

const char *dl_driver_shown(const dl_driver_env_t *env, const dl_option_value_t *values, size_t option) {
    const char *shown = env->written != NULL ? env->written[option] : NULL;
    shown = shown != NULL ? shown : values[option].string;
    return shown != NULL ? shown : "";
}

dl_status_t dli_fail_plain(dl_error_t *err, dl_status_t status) {
    return dli_fail(err, status, "%s", dl_status_text(status));
}

void dli_error_clear(dl_error_t *err) {
    err->status = DL_OK;
    err->native = 0;
    err->message[0] = '\0';
}

dl_status_t dli_error_give(dl_error_t *to, const dl_error_t *from, dl_status_t status) {
    if (to == NULL || status == DL_OK) {
        return status;
    }
    if (from->status == status && from->message[0] != '\0') {
        *to = *from;
        return status;
    }
    return dli_fail_plain(to, status);
}
