/* command_screen.h - runs the built dlock command on a terminal. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_COMMAND_SCREEN_H
#define TEST_COMMAND_SCREEN_H

#include "command_fixture.h"

/* A terminal with dlock in it. */
typedef struct screen {
    pid_t pid;
    int fd;
    char text[16384]; /* what was written to it, without carriage returns */
    size_t len;
} screen_t;

/* Starts dlock on a terminal of so many columns, with the configuration and these words. NULL ends the words.
 */
void screen_start(screen_t *screen, int columns, ...) __attribute__((sentinel));
/* Waits for more output; false at its end. */
bool screen_read(screen_t *screen);
void screen_read_until(screen_t *screen, const char *words);
/* Reads all output until the end; the exit status. */
int screen_end(screen_t *screen);

#endif
