/* command_server.h - what the tests of the command over real servers share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_COMMAND_SERVER_H
#define TEST_COMMAND_SERVER_H

#include "command_fixture.h"

/* The server is a child of the test; the configuration names it. */

/* One that keeps nothing. It ends with this process, however that ends; the log is its standard error. */
void start_redis(program_t *server, const char *socket_path);
void end_server(program_t *server);
/* What dlock compare holds on the backend, as JSON. */
void list_compared(program_t *list, const char *backend);
/* Waits until the measured time has begun: until some lock was renewed. Those of before are freed at once. */
void await_long_hold(const char *backend);

void freeze_server(pid_t server); /* returns when it has stopped */

/* A command that does not want to end is run under a lock, and this happens to the server: the command and
 * what it started have ended before validity has, dlock says 76, and no lock stays behind. */
void end_in_time_when_frozen(pid_t server);
void end_in_time_when_killed(void (*kill_it)(void), void (*start_it_again)(void));
/* Nothing happens for long enough to lose it. */
void survive_a_short_freeze(pid_t server);
/* The lock was freed by force. */
void end_at_once_when_forgotten(void);

#endif
