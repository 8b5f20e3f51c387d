/* report.h - lines on stderr, and which exit status a library status becomes. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>

#include "dlock/dlock.h"
#include "text.h"

/* --quiet and --verbose, once the command line has been read. */
void report_level(bool quiet, bool verbose);
/* They do until this says that they may not: then a line that stderr does not take in 10 ms (a full pipe, a
 * terminal after Ctrl-S) is dropped, since who keeps a lock waits for no reader. */
void lines_may_wait(bool may_wait);
/* All of them: one line "dlock: ..." by one write. */
void error_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void notice_line(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* not with --quiet */
void verbose_line(const char *format, ...) __attribute__((format(printf, 1, 2))); /* only with --verbose */
bool notices_are_wanted(void);
int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2))); /* returns EX_USAGE */

/* The exit status for an outcome of the library; DL_OK: 0. */
int exit_status_of(dl_status_t status);
/* Says what went wrong and returns its exit status. */
int report_failure(dl_status_t status, const dl_error_t *err);
/* Around a call of the library that prints by its callbacks: what is printed on stdout is kept until it has
 * returned. Who reads slowly would take the time that the call has. */
void stdout_hold(void);
void stdout_release(void);
/* False: what was printed until now could not be written, now or before. */
bool flush_stdout(void);
/* 0, or EX_IOERR after a line when stdout could not be written. */
int finish_stdout(int exit_status);

#endif
