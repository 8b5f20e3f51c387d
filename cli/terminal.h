/* terminal.h - whose turn it is to read from the terminal, and what it can show. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>

/* All of them do nothing without a terminal (terminal < 0). SIGTTOU must be blocked. */
int terminal_open(void);             /* -1: there is none */
bool terminal_is_ours(int terminal); /* our group is in its foreground */
/* Should the command have the terminal from its start? */
bool terminal_is_for_command(int terminal);
void terminal_give(int terminal, pid_t group);
bool terminal_take_back(int terminal, pid_t group); /* false: that group does not have it */

int terminal_width(int fd); /* its columns; 0: this is no terminal */
/* A terminal, and neither NO_COLOR nor a TERM without colours forbids it. */
bool terminal_has_colour(int fd);

#endif
