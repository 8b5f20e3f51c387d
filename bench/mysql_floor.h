/* mysql_floor.h - a MySQL or MariaDB server of the bench's own, and what a driver says to it, said bare. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_MYSQL_FLOOR_H
#define DLOCK_BENCH_MYSQL_FLOOR_H

#include <mysql.h>

#include "bench.h"

/* Makes a data folder and starts a server ($DLOCK_MYSQL_SERVER names the program; otherwise mariadbd, else
 * mysqld) with its own defaults on a free port of 127.0.0.1, once; it ends with this program. */
void mysql_start(const char *folder);
/* Its version. */
const char *mysql_started(void);
/* A connection to it, in clear over TCP, as the drivers' are here. */
MYSQL *mysql_open(void);
/* `more` is further options of the backend, such as ", lease: 3s". */
dl_client_t *mysql_open_client(const char *driver, const char *more);

/*
 * The floor: the very statements that a driver sent for one dl_lock and dl_unlock, read from the server's
 * general log, with the session settings of the connections that it sent them on.
 */
typedef struct script script_t;
/* dl_lock and dl_unlock of `name`, uncontended. Never freed. */
script_t *script_record(const char *driver, const char *name);

/* One user of a script, with connections of its own. */
typedef struct bare_lock bare_lock_t;
bare_lock_t *bare_lock_open(const script_t *script);
void bare_lock_close(bare_lock_t *bare);
/* Says it again. Ends the program if a statement does not find its row. */
void bare_lock_acquire(bare_lock_t *bare);
void bare_lock_release(bare_lock_t *bare);
/* The same, but waits for the row: its first statement without NOWAIT. */
void bare_lock_await(bare_lock_t *bare);
/* Only that first statement, and the last of the release: a row lock and nothing else. */
void bare_lock_await_row(bare_lock_t *bare);
void bare_lock_release_row(bare_lock_t *bare);

void bench_mysql_many(const char *folder, unsigned scale);
void bench_mysql_queue_scale(const char *folder, unsigned scale);
void bench_mysql_pair(const char *folder, unsigned scale);
void bench_mysql_crowd(const char *folder, unsigned scale);
void bench_mysql_crowd_passing(const char *folder, unsigned scale);
void bench_mysql_wake(const char *folder, unsigned scale);

#endif
