/* ct_check.c - assertions: one line of text, and the end of the case. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/ct.h"
#include "support/scratch.h"
#include "support/sim.h"

/* A status that no call returns, to see whether err was written. */
#define UNTOUCHED ((dl_status_t)0x7eadbeef)

static _Thread_local dl_error_t thread_err;
static _Thread_local int err_given; /* CT_ERR was an argument of the call being checked */
static _Thread_local dl_error_t last_err;

/* The first failure counts; other threads must not print theirs over it. */
static pthread_mutex_t failing = PTHREAD_MUTEX_INITIALIZER;

char *ct_reason;

void ct_fail_no_more(void) {
    (void)pthread_mutex_trylock(&failing);
}

void ct_exit(int status) {
    for (;;) {
        (void)syscall(SYS_exit_group, status);
    }
}

void ct_fail(ct_t *ct, const char *file, int line, const char *format, ...) {
    static char text[4000]; /* written at once, so that no other process of the run gets into the line */
    pthread_mutex_lock(&failing);
    const char *in_tree = NULL;
    for (const char *at = file; (at = strstr(at, "/tests/")) != NULL; at++) {
        in_tree = at;
    }
    char name[300] = "?";
    if (ct != NULL) {
        ct_full_name(ct->test, ct->fixture, ct->door, name, sizeof name);
    }
    int n = snprintf(text, sizeof text - 1, "%s: %s%s:%d: ", name,
                     ct != NULL && ct->is_child ? "in a child process: " : "",
                     in_tree == NULL ? file : in_tree + 1, line);
    size_t len = (size_t)n < sizeof text - 1 ? (size_t)n : sizeof text - 2;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + len, sizeof text - 1 - len, format, args);
    va_end(args);
    if (ct_reason != NULL && ct_reason[0] == 0) {
        snprintf(ct_reason, CT_REASON_MAX, "%s", text + strlen(name) + 2);
    }
    len = strlen(text);
    text[len++] = '\n';
    (void)!write(STDERR_FILENO, text, len);
    if (sim_active()) {
        sim_dump();
    }
    if (ct != NULL && !ct->is_child) {
        ct_kill_processes(ct);
        if (ct->owns_dir) {
            scratch_remove(ct->dir);
        }
    }
    fflush(NULL);
    /* Not exit: other threads still run and hold who knows what. */
    ct_exit(CT_EXIT_FAILED);
}

dl_error_t *ct_err(void) {
    memset(&thread_err, 0, sizeof thread_err);
    thread_err.status = UNTOUCHED;
    err_given = 1;
    return &thread_err;
}

const dl_error_t *ct_last_err(void) {
    return &last_err;
}

/* err is written exactly on failure, with the status that was returned and a line of text. */
static void check_err(ct_t *ct, const char *file, int line, const char *what, dl_status_t actual) {
    if (!err_given) {
        return;
    }
    err_given = 0;
    if (actual == DL_OK) {
        if (thread_err.status != UNTOUCHED) {
            ct_fail(ct, file, line, "%s is DL_OK, but wrote to err: %s", what, thread_err.message);
        }
        return;
    }
    last_err = thread_err;
    if (thread_err.status == UNTOUCHED) {
        ct_fail(ct, file, line, "%s is %s, but left err alone", what, dl_status_name(actual));
    }
    if (thread_err.status != actual) {
        ct_fail(ct, file, line, "%s is %s, but err says %s: %s", what, dl_status_name(actual),
                dl_status_name(thread_err.status), thread_err.message);
    }
    size_t len = strnlen(thread_err.message, sizeof thread_err.message);
    if (len == 0 || len == sizeof thread_err.message || strchr(thread_err.message, '\n') != NULL) {
        ct_fail(ct, file, line, "%s is %s, and err's message is no line of text", what,
                dl_status_name(actual));
    }
}

static const char *message_of(dl_status_t actual, int given) {
    return actual != DL_OK && given ? thread_err.message : "";
}

void ct_check_status(ct_t *ct, const char *file, int line, const char *what, dl_status_t actual,
                     dl_status_t expected) {
    int given = err_given;
    check_err(ct, file, line, what, actual);
    if (actual != expected) {
        ct_fail(ct, file, line, "%s is %s, expected %s%s%s", what, dl_status_name(actual),
                dl_status_name(expected), given && actual != DL_OK ? ": " : "", message_of(actual, given));
    }
}

dl_status_t ct_check_either(ct_t *ct, const char *file, int line, const char *what, dl_status_t actual,
                            dl_status_t one, dl_status_t other) {
    int given = err_given;
    check_err(ct, file, line, what, actual);
    if (actual != one && actual != other) {
        ct_fail(ct, file, line, "%s is %s, expected %s or %s%s%s", what, dl_status_name(actual),
                dl_status_name(one), dl_status_name(other), given && actual != DL_OK ? ": " : "",
                message_of(actual, given));
    }
    return actual;
}
