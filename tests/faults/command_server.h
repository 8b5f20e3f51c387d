/* command_server.h - what the tests of the command over real servers share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_COMMAND_SERVER_H
#define TEST_COMMAND_SERVER_H

#include "command_fixture.h"

/* The server is a program that was started by start_plain; the configuration names it. */

void freeze_server(const program_t *server); /* returns when it has stopped */
void end_server(program_t *server);

/* A command that does not want to end is run under a lock, and this happens to the server: the command and what
 * it started have ended before validity has, dlock says 76, and no lock stays behind. */
void end_in_time_when_frozen(const program_t *server);
void end_in_time_when_killed(program_t *server, void (*start_again)(void));
/* The lock was freed by force. */
void end_at_once_when_forgotten(void);

#endif
