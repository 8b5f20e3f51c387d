/* redis_process.h - a redis-server of a test's own, and short questions to it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_PROCESS_H
#define REDIS_PROCESS_H

#include <criterion/criterion.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_env.h"
#include "support/port.h"

/* Looks until it is true; nobody tells when. */
#define AWAIT(cond)                                                      \
    do {                                                                 \
        for (uint64_t end_ = ran_ns() + 15000 * MS; !(cond);) {          \
            cr_assert_lt(ran_ns(), end_, "%s did not come true", #cond); \
            (void)poll(NULL, 0, 1);                                      \
        }                                                                \
    } while (0)

#define AWAIT_THAT(a, op, b) VALUES_AWAIT(a, op, b, 15000)

typedef struct server {
    pid_t pid; /* 0: it does not run */
    int port;  /* 0: the unix socket only */
    char folder[80], path[108];
    const char *asked, *done; /* asked for this command it carries out that one; NULL: as it should */
    redisContext *admin;      /* a connection that no test uses up */
} server_t;

static inline void become_server(const server_t *server) {
    char port[8];
    const char *program = getenv("DLOCK_REDIS_SERVER");
    program = program != NULL ? program : "redis-server";
    snprintf(port, sizeof port, "%d", server->port);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    execlp(program, program, "--port", port, "--bind", "127.0.0.1", "--unixsocket", server->path, "--dir",
           server->folder, "--save", "", "--appendonly", "no", "--logfile", "server.log",
           "--repl-diskless-sync-delay", "0", server->asked != NULL ? "--rename-command" : NULL,
           server->asked, "", "--rename-command", server->done, server->asked, (char *)NULL);
    _exit(127);
}

/* A connection more; NULL: refused. */
static inline redisContext *dial(const server_t *server) {
    redisContext *c = redisConnectUnix(server->path);
    if (c != NULL && c->err != 0) {
        redisFree(c);
        c = NULL;
    }
    return c;
}

/* Starts it, the first time or again, without data. */
static inline void boot_server(server_t *server) {
    fflush(NULL);
    server->pid = fork();
    if (server->pid == 0) {
        become_server(server);
    }
    AWAIT(waitpid(server->pid, NULL, WNOHANG) != 0 || (server->admin = dial(server)) != NULL);
    cr_assert_not_null(server->admin, "redis-server has ended");
}

static inline void start_server(server_t *server, int port) {
    server_t made = {.port = port};
    make_folder(made.folder, sizeof made.folder);
    snprintf(made.path, sizeof made.path, "%s/socket", made.folder);
    *server = made;
    boot_server(server);
}

static inline void kill_server(server_t *server) {
    redisFree(server->admin);
    server->admin = NULL;
    kill(server->pid, SIGKILL);
    cr_assert_eq(waitpid(server->pid, NULL, 0), server->pid);
    server->pid = 0;
    unlink(server->path);
}

/* Nothing of it stays. */
static inline void end_server(server_t *server) {
    if (server->pid > 0) {
        kill_server(server);
    }
    delete_folder(server->folder);
}

/* One command, in the words of hiredis; the number that is its answer, or the length of it. */
static inline long long tell(server_t *server, const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *reply = redisvCommand(server->admin, format, args);
    va_end(args);
    cr_assert_not_null(reply, "%s: %s", format, server->admin->errstr);
    cr_assert_neq(reply->type, REDIS_REPLY_ERROR, "%s: %s", format, reply->str);
    long long number = reply->type == REDIS_REPLY_INTEGER ? reply->integer : (long long)reply->elements;
    freeReplyObject(reply);
    return number;
}

/* The number behind `key` in a section of INFO; -1: not there. */
static inline long long info(server_t *server, const char *section, const char *key) {
    redisReply *reply = redisCommand(server->admin, "INFO %s", section);
    cr_assert_not_null(reply);
    const char *at = strstr(reply->str, key);
    long long number = at == NULL ? -1 : atoll(at + strlen(key));
    freeReplyObject(reply);
    return number;
}

#endif
