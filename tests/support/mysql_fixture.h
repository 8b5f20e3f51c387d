/* mysql_fixture.h - the server behind the fixtures of the MySQL drivers; for fixtures.c. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_FIXTURE_H
#define MYSQL_FIXTURE_H

#include <stddef.h>

#include "dlock/driver.h"
#include "support/mysql_server.h"

const dl_driver_t *mysql_pessimistic_driver(void);
const dl_driver_t *mysql_lease_driver(void);
const dl_driver_t *mysql_optimistic_driver(void);
/* One server for all cases of a run, unless there is one already. */
void mysql_fixture_share(void);
void mysql_fixture_unshare(void);
void mysql_fixture_start(const char *dir);
void mysql_fixture_stop(void);
/* How to reach the case's database: over TCP, over the unix socket. */
void mysql_tcp_option(const char *dir, char *yaml, size_t size);
void mysql_unix_option(const char *dir, char *yaml, size_t size);

#endif
