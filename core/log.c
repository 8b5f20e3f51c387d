/* log.c - diagnostics to the user's function, and what drivers report. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "core.h"

static void emit(dl_client_t *client, dl_log_level_t level, const char *line) {
    pthread_rwlock_rdlock(&client->log_lock);
    if (client->log_fn != NULL) {
        client->log_fn(client->log_arg, level, line);
    }
    pthread_rwlock_unlock(&client->log_lock);
}

void dli_log(dl_client_t *client, dl_log_level_t level, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    for (char *p = line; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20) {
            *p = ' ';
        }
    }
    emit(client, level, line);
}

void dli_env_report(void *arg, dl_log_level_t level, const char *text) {
    dl_client_t *client = arg;
    dli_log(client, level, "%s", text);
    if (level <= DL_LOG_WARNING) {
        dli_lock_client(client);
        dli_event_warning(client, text);
        dli_unlock_client(client);
    }
}

void dli_env_count(void *arg, dl_count_t what, uint64_t n) {
    dl_client_t *client = arg;
    atomic_fetch_add_explicit(what == DL_COUNT_RECONNECT ? &client->reconnects : &client->round_trips, n,
                              memory_order_relaxed);
}

dl_status_t dl_client_set_log(dl_client_t *client, dl_log_fn fn, void *arg) {
    if (client == NULL) {
        return DL_EINVAL;
    }
    if (dli_forked(client)) {
        return DL_EFORKED;
    }
    pthread_rwlock_wrlock(&client->log_lock);
    client->log_fn = fn;
    client->log_arg = arg;
    pthread_rwlock_unlock(&client->log_lock);
    return DL_OK;
}
