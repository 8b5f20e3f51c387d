/* redis_conn_server.h - real servers for the tests of a connection, each with options of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_CONN_SERVER_H
#define REDIS_CONN_SERVER_H

#include "redis_conn_fixture.h"

#include <stdarg.h>

#include "support/port.h"

#define ARGS_MAX 48

typedef struct server {
    pid_t pid;
    int port; /* 0: none */
    FILE *log;
    char path[100];
} server_t;

static inline void run_server(char **args, int out) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    dup2(out, STDOUT_FILENO);
    execvp(args[0], args);
    _exit(127);
}

/* Runs the words, ended by NULL, and awaits that the server is ready. */
static inline void launch(server_t *server, char **args) {
    char line[512];
    int pipes[2];
    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    server->pid = fork();
    if (server->pid == 0) {
        run_server(args, pipes[1]);
    }
    close(pipes[1]);
    server->log = fdopen(pipes[0], "r");
    do {
        cr_assert_not_null(fgets(line, sizeof line, server->log), "the server has not started");
    } while (strstr(line, "The server is now ready to accept connections at") == NULL &&
             strstr(line, "Ready to accept connections") == NULL && strstr(line, "+monitor master") == NULL);
}

static inline void choose_place(server_t *server) {
    server->port = port_keep();
    snprintf(server->path, sizeof server->path, "%s/%d.sock", folder, server->port);
}

/* A server on a unix socket and a port, with more options, ended by NULL. */
static inline void start(server_t *server, ...) {
    char port[8], *args[ARGS_MAX];
    int n = 0;
    va_list more;
    choose_place(server);
    snprintf(port, sizeof port, "%d", server->port);
    const char *const usual[] = {"redis-server", "--save", "",       "--appendonly", "no",
                                 "--dir",        folder,   "--bind", "127.0.0.1",    "--unixsocket",
                                 server->path,   "--port", port};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        args[n++] = strdup(usual[i]);
    }
    va_start(more, server);
    for (const char *arg = va_arg(more, const char *); arg != NULL; arg = va_arg(more, const char *)) {
        args[n++] = strdup(arg);
        cr_assert_lt(n, ARGS_MAX);
    }
    va_end(more);
    args[n] = NULL;
    launch(server, args);
    while (n > 0) {
        free(args[--n]);
    }
}

static inline void start_sentinel(server_t *server) {
    char config[100], program[] = "redis-server", sentinel[] = "--sentinel";
    choose_place(server);
    snprintf(config, sizeof config, "%s/sentinel.conf", folder);
    FILE *file = fopen(config, "w");
    cr_assert_not_null(file);
    fprintf(file, "port %d\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 1 1\n", server->port);
    fclose(file);
    launch(server, (char *[]){program, config, sentinel, NULL});
}

static inline void stop(server_t *server) {
    kill(server->pid, SIGKILL);
    cr_assert_eq(waitpid(server->pid, NULL, 0), server->pid);
    fclose(server->log);
}

static inline dli_endpoint_t at_port(const server_t *server) {
    set_place("127.0.0.1", server->port);
    return place;
}

static inline dli_endpoint_t at_path(server_t *server) {
    dli_endpoint_t endpoint = {.path = server->path, .connect_timeout_ms = PATIENCE_MS / 2};
    snprintf(endpoint.label, sizeof endpoint.label, "unix://%s", server->path);
    return endpoint;
}

static inline void expect_text(dli_conn_t *conn, const char *command, const char *first, const char *second,
                               const char *wanted) {
    redisReply *reply = ask(conn, command, first, second);
    cr_assert_not_null(reply->str, "%s: %s", command, reply->str != NULL ? reply->str : "no text");
    cr_assert_has(reply->str, wanted, "%s: %s", command, reply->str != NULL ? reply->str : "no text");
    freeReplyObject(reply);
}

#endif
