/* report.c - lines on stderr, and which exit status a library status becomes. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exits.h"

#define LINE_MAX_BYTES 2048 /* fits into a pipe that takes anything: PIPE_BUF is 4096 */

/* So long for one that reads slowly. */
#define LINE_WAITS_MS 10

static bool quiet_lines;
static bool verbose_lines;
static atomic_bool dropping_lines; /* several threads have something to say */
static int output_errno;           /* of what could not be written first; 0: nothing */
static FILE *written_stdout;       /* while it is held */
static char *held_text;
static size_t held_len;

void report_level(bool quiet, bool verbose) {
    quiet_lines = quiet;
    verbose_lines = verbose;
}

void lines_may_wait(bool may_wait) {
    atomic_store(&dropping_lines, !may_wait);
}

static bool takes_a_line(void) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&out, 1, LINE_WAITS_MS) == 1 && (out.revents & POLLOUT) != 0;
}

/* One write a line, so that lines of several processes on one terminal do not mix. */
static void __attribute__((format(printf, 1, 0))) write_line(const char *format, va_list args) {
    if (atomic_load(&dropping_lines) && !takes_a_line()) {
        return;
    }
    char line[LINE_MAX_BYTES];
    int used = snprintf(line, sizeof line, "dlock: ");
    int len = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    size_t end = len < 0 ? 0 : (size_t)used + (size_t)len;
    end = end > sizeof line - 2 ? sizeof line - 2 : end;
    line[end] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end + 1);
    (void)written; /* there is nowhere left to complain to */
}

void error_line(const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_line(format, args);
    va_end(args);
}

void notice_line(const char *format, ...) {
    if (!quiet_lines) {
        va_list args;
        va_start(args, format);
        write_line(format, args);
        va_end(args);
    }
}

bool notices_are_wanted(void) {
    return !quiet_lines;
}

void verbose_line(const char *format, ...) {
    if (verbose_lines) {
        va_list args;
        va_start(args, format);
        write_line(format, args);
        va_end(args);
    }
}

int usage_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_line(format, args);
    va_end(args);
    return EX_USAGE;
}

int exit_status_of(dl_status_t status) {
    switch (status) {
    case DL_OK:
        return 0;
    case DL_EBUSY:
    case DL_ETIMEDOUT:
        return EX_TEMPFAIL;
    case DL_ELOST:
        return EXIT_LOST;
    case DL_ENOTOWNER:
        return EXIT_NO;
    case DL_EINVAL:
        return EX_USAGE;
    case DL_ENOMEM:
    case DL_ELIMIT:
        return EX_OSERR;
    case DL_EIO:
    case DL_EUNKNOWN:
    case DL_EPROTO:
        return EX_UNAVAILABLE;
    case DL_EAUTH:
        return EX_NOPERM;
    case DL_EFOREIGN:
        return EX_DATAERR;
    case DL_ECONFIG:
    case DL_ENOTSUP:
        return EX_CONFIG;
    case DL_ECANCELED:
    case DL_ECLOSED:
    case DL_EFORKED:
    case DL_STATUS_COUNT:
        break;
    }
    return EX_SOFTWARE;
}

int report_failure(dl_status_t status, const dl_error_t *err) {
    error_line("%s", err->message[0] != '\0' ? err->message : dl_status_text(status));
    return exit_status_of(status);
}

void stdout_hold(void) {
    FILE *memory = open_memstream(&held_text, &held_len);
    if (memory != NULL) { /* else nothing is held */
        written_stdout = stdout;
        stdout = memory; /* a variable in the GNU library */
    }
}

void stdout_release(void) {
    if (written_stdout == NULL) {
        return;
    }
    bool failed = ferror(stdout) != 0;
    failed = fclose(stdout) != 0 || failed;
    stdout = written_stdout;
    written_stdout = NULL;
    if (failed) {
        output_errno = ENOMEM;
    } else {
        (void)fwrite(held_text, 1, held_len, stdout);
    }
    free(held_text);
}

bool flush_stdout(void) {
    if (fflush(stdout) != 0 && output_errno == 0) {
        output_errno = errno; /* after a failure the buffer is empty, and the next flush succeeds */
    }
    return output_errno == 0 && ferror(stdout) == 0;
}

int finish_stdout(int exit_status) {
    if (!flush_stdout()) {
        error_line("cannot write the output: %s", strerror(output_errno != 0 ? output_errno : EIO));
        return EX_IOERR;
    }
    return exit_status;
}
