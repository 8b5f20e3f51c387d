/* scratch.h - temporary folders of tests, which are removed whatever ends the test. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/*
 * All lie in one folder of the run, $DLOCK_TEST_SCRATCH. Where there is none yet, the first call makes it in
 * $TMPDIR, and a process that removes it when this one has ended. Call it from the first thread: it is that
 * thread's end that counts.
 */

/* Makes an empty folder, "NAME-XXXXXX". false, with errno: there is none. */
bool scratch_make(const char *name, char *path, size_t size);
/* Removes it and all in it now. */
void scratch_remove(const char *path);

#endif
