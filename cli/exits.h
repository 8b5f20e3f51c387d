/* exits.h - the exit statuses of the command; docs/dlock.1 explains them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_EXITS_H
#define CLI_EXITS_H

#include <sysexits.h>

/* Beside those of sysexits.h that are used: EX_USAGE 64, EX_DATAERR 65, EX_UNAVAILABLE 69, EX_SOFTWARE
 * 70, EX_OSERR 71, EX_IOERR 74, EX_TEMPFAIL 75 (the lock was not obtained in time), EX_NOPERM 77,
 * EX_CONFIG 78. */
enum {
    EXIT_NO = 1,           /* "no" as an answer: free, nobody held it, check found an error */
    EXIT_LOST = 76,        /* the lock was lost, or could not be kept, while the command ran */
    EXIT_CANNOT_RUN = 126, /* the command was found and cannot be executed */
    EXIT_NOT_FOUND = 127,  /* there is no such command */
    EXIT_SIGNAL_BASE = 128 /* plus the number of the signal */
};

#endif
