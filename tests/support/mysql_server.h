/* mysql_server.h - real MariaDB or MySQL servers for a test: started, stopped, frozen, killed, asked. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_SERVER_H
#define MYSQL_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Each server is a child process of the test that ends with it, whatever becomes of the test: start servers
 * from the test's first thread only, since it is that thread's end that ends them. Each works on a copy of a
 * data folder that is initialised once for each server program, in the folder of the build. It listens on a
 * free port of 127.0.0.1 and on a unix socket in its folder, and is ready when a call returns. What was
 * committed survives a kill of the server, not of the machine.
 *
 * The program is $DLOCK_MYSQL_SERVER, or mariadbd, or Oracle's mysqld. Usable from contract cases and from
 * Criterion; nothing here allocates memory that a test could make fail. What does not work fails the test.
 *
 * Accounts: root without a password (from this machine), and MYSQL_USER with MYSQL_SECRET, which may SELECT,
 * INSERT, UPDATE, DELETE and CREATE in databases whose name begins with "dlock_", and nothing else.
 */

#define MYSQL_USER "dlock"
#define MYSQL_SECRET "secret"
#define MYSQL_DATABASE_MAX 48
#define MYSQL_PATH_MAX 104 /* what fits into a sockaddr_un */
#define MYSQL_ARGS_MAX 64
#define MYSQL_SERVERS_MAX 8 /* at once */

typedef struct mysql_server {
    bool is_used, is_shared, owns_dir;
    pid_t pid; /* 0: not running, or not ours */
    int port, port_keeper;
    char path[MYSQL_PATH_MAX]; /* of the unix socket */
    char dir[MYSQL_PATH_MAX];
    const char *args[MYSQL_ARGS_MAX]; /* the program's, ended by NULL */
    char words[4096];                 /* their text */
    size_t words_len;
} mysql_server_t;

/* Is the program MariaDB's? */
bool mysql_is_mariadb(void);

/* One more server, with these arguments, ended by NULL: "--max-connections=10", NULL. `dir` is an existing
 * folder; `name` becomes a folder in it (NULL: dir itself, which must be empty). dir NULL: a new folder that
 * mysql_server_stop removes. */
mysql_server_t *mysql_server_start(const char *dir, const char *name, ...) __attribute__((sentinel));
/* The server that is shared among all tests of a run (by with_mysql, by plain_runner), or else one that is
 * started here. For tests that need no more than a database of their own: it must not be killed, frozen or
 * reconfigured. */
mysql_server_t *mysql_server_any(void);
/* Shares this one with all processes that are started from now on. */
void mysql_server_share(mysql_server_t *server);
/* Kills it if it runs, and forgets it. NULL is fine; the shared one goes on. */
void mysql_server_stop(mysql_server_t *server);

void mysql_server_kill(mysql_server_t *server); /* SIGKILL, and reaped; its port and path stay its own */
void mysql_server_boot(mysql_server_t *server); /* again, after kill; with the same arguments and data */
void mysql_server_restart(mysql_server_t *server);
void mysql_server_freeze(mysql_server_t *server); /* SIGSTOP; returns when it has stopped */
void mysql_server_thaw(mysql_server_t *server);   /* SIGCONT */
/* Its uptime tells its run from one before, but for a second or two: that is to be over. */
void mysql_server_await_uptime(mysql_server_t *server, int seconds);
/* Another argument for the next boot. */
void mysql_server_arg(mysql_server_t *server, const char *word);

/* ---- asking ------------------------------------------------------------------------------------------ */

/*
 * One statement as root, past all clients and faults, on a connection of its own; from any thread. The format
 * is printf's, so a % of SQL is written %%. The text is the calling thread's and lasts until its next call.
 */
/* The first row's columns with commas between, NULL for NULL; "" when there is none. */
const char *mysql_ask(mysql_server_t *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, an error allowed: then the text is "-1146 Table ... doesn't exist". */
const char *mysql_try(mysql_server_t *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The first column as a number; 0 when there is no row. */
long long mysql_number(mysql_server_t *server, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A connection of the test's own: for transactions that stay open. One thread at a time. */
typedef struct mysql_hand mysql_hand_t;
mysql_hand_t *mysql_hand(mysql_server_t *server, const char *database);
/* As another user, who may be refused: NULL, with the error as text ("-1045 ...") in refusal unless NULL. */
mysql_hand_t *mysql_hand_as(mysql_server_t *server, const char *user, const char *password,
                            const char *database, char *refusal, size_t size);
void mysql_hand_close(mysql_hand_t *hand);  /* NULL is fine */
uint64_t mysql_hand_id(mysql_hand_t *hand); /* CONNECTION_ID() */
const char *mysql_hand_ask(mysql_hand_t *hand, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *mysql_hand_try(mysql_hand_t *hand, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- databases, users, connections --------------------------------------------------------------------- */

/* Makes an empty database with a name that nobody else has. */
void mysql_database(mysql_server_t *server, char name[MYSQL_DATABASE_MAX]);
/* Makes a user ('name'@'%', password MYSQL_SECRET) with these rights, "SELECT, INSERT"; on: "base.*". */
void mysql_user(mysql_server_t *server, const char *name, const char *rights, const char *on);
/* How many connections this user has. */
int mysql_connections(mysql_server_t *server, const char *user);
/* KILL for each of them; how many. */
int mysql_kill_connections(mysql_server_t *server, const char *user);

/* ---- in contract cases (trait CT_MYSQL) ---------------------------------------------------------------- */

typedef struct ct ct_t;

/* The server that the clients of the running case use. Other cases may use it at the same time, each in a
 * database of its own, so it must be neither stopped nor reconfigured. */
mysql_server_t *ct_mysql(ct_t *ct);
/* The case's database there. */
const char *ct_mysql_database(ct_t *ct);
/* From now on a server of the case's own, which it may stop, freeze, kill and reconfigure; with more
 * arguments for it, ended by NULL. Before the first client is opened. */
mysql_server_t *ct_mysql_own(ct_t *ct, ...) __attribute__((sentinel));

/* ---- when something does not work ---------------------------------------------------------------------- */

/* Called with one line of text; does not return. NULL: printed to stderr, and abort. */
extern void (*mysql_server_on_failure)(const char *text);
/* For the files that belong to this. */
void mysql_server_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
