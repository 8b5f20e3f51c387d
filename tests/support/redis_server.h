/* redis_server.h - real Redis servers for a case: started, stopped, frozen, killed, asked. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_SERVER_H
#define REDIS_SERVER_H

#include <sys/types.h>

#include "support/contract.h"

/*
 * Each server is a child process of the case that ends with it, whatever becomes of the case: start servers
 * from the case's first thread only, since it is that thread's end that ends them. They keep nothing on
 * disk unless told to, listen on a port of 127.0.0.1 that stays theirs and on a unix socket in a folder of
 * their own, and are ready when a call returns. $DLOCK_REDIS_SERVER names another program than redis-server,
 * such as valkey-server. Everything here fails the case when it does not work.
 */

#define REDIS_PATH_MAX 104 /* what fits into a sockaddr_un */
#define REDIS_ARGS_MAX 64

typedef struct redis_server {
    pid_t pid; /* 0: not running */
    int port, port_keeper;
    char path[REDIS_PATH_MAX]; /* of the unix socket */
    char dir[REDIS_PATH_MAX];
    char *args[REDIS_ARGS_MAX]; /* the program's, ended by NULL */
    char password[64];          /* that the calls below log in with; "": none */
} redis_server_t;

/* The server of the running case (trait CT_REDIS), which its clients use. */
redis_server_t *ct_redis(ct_t *ct);

/* One more server, with these arguments, ended by NULL: "--maxmemory", "1mb", NULL. `dir` is an existing
 * folder; `name` becomes a folder in it (NULL: dir itself). */
redis_server_t *redis_server_start(const char *dir, const char *name, ...) __attribute__((sentinel));
/* The same without a start: for several side by side. Then launch all and await all. */
redis_server_t *redis_server_new(const char *dir, const char *name);
void redis_server_launch(redis_server_t *server);
void redis_server_await(redis_server_t *server);
/* Kills it if it runs, and forgets it. NULL is fine. */
void redis_server_stop(redis_server_t *server);

void redis_server_kill(redis_server_t *server); /* SIGKILL, and reaped; its port and path stay its own */
void redis_server_boot(redis_server_t *server); /* again, after kill; with the same arguments, without data */
void redis_server_restart(redis_server_t *server);
void redis_server_freeze(redis_server_t *server); /* SIGSTOP; returns when it has stopped */
void redis_server_thaw(redis_server_t *server);   /* SIGCONT */
/* Another argument for the next boot. */
void redis_server_arg(redis_server_t *server, const char *word);

/*
 * One command past all clients and faults, on a connection of its own; from any thread. The format is that
 * of hiredis: words, with %s, %b (pointer and size_t), %lld ... as whole or part of a word.
 */
/* Its answer, which must be no error, in one line: texts and numbers as they are, "(nil)", items with
 * commas between. The text is the calling thread's and lasts until its next call. */
const char *redis_ask(redis_server_t *server, const char *format, ...);
/* The same, an error allowed: then the text begins with '-'. */
const char *redis_try(redis_server_t *server, const char *format, ...);
/* An integer. */
long long redis_number(redis_server_t *server, const char *format, ...);
/* Sends the command and does not wait for an answer: the descriptor of its connection, for the caller to
 * close. */
int redis_send(redis_server_t *server, const char *format, ...);
/* A connection that nobody uses; the caller's to close. -1: refused. */
int redis_connect(redis_server_t *server);

/* The number after "field:" in INFO. */
long long redis_info(redis_server_t *server, const char *field);

#endif
