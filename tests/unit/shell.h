/* shell.h - what a test has done by the shell. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHELL_H
#define SHELL_H

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* It has to succeed. */
__attribute__((format(printf, 1, 2))) static inline void shell(const char *format, ...) {
    char command[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    cr_assert_eq(system(command), 0, "%s", command);
}

#endif
