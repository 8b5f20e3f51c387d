/* log.c - diagnostics to the user's function, and what drivers report. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core.h"

/* Lines are made with the mutex and handed out without it: the user's function may take locks of its own. */
struct dli_log_line {
    dli_log_line_t *next;
    dl_log_level_t level;
    char text[256];
};

void dli_log(dl_client_t *client, dl_log_level_t level, const char *format, ...) {
    if (!atomic_load(&client->logging)) {
        return;
    }
    dli_log_line_t *line = calloc(1, sizeof *line);
    if (line == NULL) {
        return; /* a diagnostic is not worth a failure */
    }
    line->level = level;
    va_list args;
    va_start(args, format);
    dli_line(line->text, sizeof line->text, format, args);
    va_end(args);
    *(client->log_lines != NULL ? &client->log_lines_last->next : &client->log_lines) = line;
    client->log_lines_last = line;
}

void dli_log_emit(dl_client_t *client, dli_log_line_t *lines) {
    while (lines != NULL) {
        dli_log_line_t *line = lines;
        lines = line->next;
        pthread_rwlock_rdlock(&client->log_lock);
        if (client->log_fn != NULL) {
            client->log_fn(client->log_arg, line->level, line->text);
        }
        pthread_rwlock_unlock(&client->log_lock);
        free(line);
    }
}

void dli_inner_report(void *arg, dl_log_level_t level, const char *text) {
    dl_client_t *client = arg;
    dli_log(client, level, "%s", text);
    if (level <= DL_LOG_WARNING) {
        dli_event_warning(client, text);
        if (client->why_deaf != NULL) {
            dli_fail(client->why_deaf, DL_EIO, "%s", text);
        }
    }
}

void dli_env_report(void *arg, dl_log_level_t level, const char *text) {
    dl_client_t *client = arg;
    if (client == NULL) {
        return;
    }
    dli_lock_client(client);
    dli_inner_report(client, level, text);
    dli_unlock_client(client);
}

void dli_env_count(void *arg, dl_count_t what, uint64_t n) {
    dl_client_t *client = arg;
    if (client != NULL) {
        atomic_fetch_add_explicit(what == DL_COUNT_RECONNECT ? &client->reconnects : &client->round_trips, n,
                                  memory_order_relaxed);
    }
}

dl_status_t dl_client_set_log(dl_client_t *client, dl_log_fn fn, void *arg) {
    DLI_NO_THREAD_CANCEL;
    dl_status_t status = dli_call_enter_always(client);
    if (status != DL_OK) {
        return status;
    }
    dli_unlock_client(client); /* the function may run now, and wait for what another does */
    pthread_rwlock_wrlock(&client->log_lock);
    client->log_fn = fn;
    client->log_arg = arg;
    atomic_store(&client->logging, fn != NULL);
    pthread_rwlock_unlock(&client->log_lock);
    dli_lock_client(client);
    dli_call_leave_and_unlock(client);
    return DL_OK;
}
