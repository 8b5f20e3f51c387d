/* redis_server.c - starts redis-server as a child process, and talks to it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/redis_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "support/alloc_fail.h"
#include "support/ct.h"
#include "support/port.h"

#define READY_MS 10000
#define ANSWER_MS 10000

/* ---- one command -------------------------------------------------------------------------------- */

int redis_connect(redis_server_t *server) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", server->path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int send_all(int fd, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        bytes += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int send_command(int fd, const char *format, va_list args) {
    char *bytes = NULL;
    int len = redisvFormatCommand(&bytes, format, args);
    int rc = len < 0 ? -1 : send_all(fd, bytes, (size_t)len);
    redisFreeCommand(bytes);
    return rc;
}

/* NULL: none came. */
static redisReply *read_reply(int fd) {
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    char bytes[16384];
    while (reply == NULL) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0 || redisReaderFeed(reader, bytes, (size_t)n) != REDIS_OK ||
            redisReaderGetReply(reader, &reply) != REDIS_OK) {
            break;
        }
    }
    redisReaderFree(reader);
    return reply;
}

/* Logs in when there is a password. */
static int log_in(redis_server_t *server, int fd) {
    char bytes[160];
    if (server->password[0] == 0) {
        return 0;
    }
    int len = snprintf(bytes, sizeof bytes, "AUTH %s\r\n", server->password);
    redisReply *reply = send_all(fd, bytes, (size_t)len) == 0 ? read_reply(fd) : NULL;
    int rc = reply != NULL && reply->type == REDIS_REPLY_STATUS ? 0 : -1;
    freeReplyObject(reply);
    return rc;
}

static redisReply *ask(redis_server_t *server, const char *format, va_list args) {
    int fd = redis_connect(server);
    redisReply *reply = NULL;
    if (fd >= 0 && log_in(server, fd) == 0 && send_command(fd, format, args) == 0) {
        reply = read_reply(fd);
    }
    close(fd);
    return reply;
}

static size_t put_reply(char *text, size_t size, size_t at, const redisReply *reply) {
    int n = 0;
    switch (reply->type) {
    case REDIS_REPLY_INTEGER:
        n = snprintf(text + at, size - at, "%lld", reply->integer);
        break;
    case REDIS_REPLY_NIL:
        n = snprintf(text + at, size - at, "(nil)");
        break;
    case REDIS_REPLY_ARRAY:
        for (size_t i = 0; i < reply->elements && at + 2 < size; i++) {
            text[at] = ',';
            at = put_reply(text, size, at + (i > 0), reply->element[i]);
        }
        break;
    default:
        n = snprintf(text + at, size - at, "%s%.*s", reply->type == REDIS_REPLY_ERROR ? "-" : "",
                     (int)reply->len, reply->str);
    }
    at += n > 0 ? (size_t)n : 0;
    at = at < size ? at : size - 1;
    text[at] = 0;
    return at;
}

static const char *answer(redis_server_t *server, const char *format, va_list args) {
    static _Thread_local char text[65536];
    ct_t *ct = ct_current();
    redisReply *reply = ask(server, format, args);
    CT_CHECKF(reply != NULL, "no answer of the Redis server to '%s'", format);
    text[0] = 0;
    put_reply(text, sizeof text, 0, reply);
    freeReplyObject(reply);
    return text;
}

const char *redis_try(redis_server_t *server, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = answer(server, format, args);
    va_end(args);
    return text;
}

const char *redis_ask(redis_server_t *server, const char *format, ...) {
    ct_t *ct = ct_current();
    va_list args;
    va_start(args, format);
    const char *text = answer(server, format, args);
    va_end(args);
    CT_CHECKF(text[0] != '-' || (text[1] >= '0' && text[1] <= '9'), "Redis on '%s': %s", format, text);
    return text;
}

long long redis_number(redis_server_t *server, const char *format, ...) {
    ct_t *ct = ct_current();
    va_list args;
    va_start(args, format);
    const char *text = answer(server, format, args);
    va_end(args);
    char *end;
    long long number = strtoll(text, &end, 10);
    CT_CHECKF(*text != 0 && *end == 0, "Redis on '%s': %s, which is no number", format, text);
    return number;
}

int redis_send(redis_server_t *server, const char *format, ...) {
    ct_t *ct = ct_current();
    va_list args;
    va_start(args, format);
    int fd = redis_connect(server);
    CT_CHECKF(fd >= 0 && log_in(server, fd) == 0 && send_command(fd, format, args) == 0,
              "cannot send '%s' to the Redis server", format);
    va_end(args);
    return fd;
}

long long redis_info(redis_server_t *server, const char *field) {
    ct_t *ct = ct_current();
    char line[80];
    snprintf(line, sizeof line, "\n%s:", field);
    const char *at = strstr(redis_ask(server, "INFO"), line);
    CT_CHECKF(at != NULL, "INFO has no '%s'", field);
    return atoll(at + strlen(line));
}

/* ---- the process -------------------------------------------------------------------------------- */

/* The child: nothing but system calls until the program is another. */
static void become_server(char **argv, const char *log, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127);
    }
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        _exit(127);
    }
    close(0);
    close_range(3, ~0u, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    _exit(127);
}

static void launch(ct_t *ct, redis_server_t *server) {
    char log[REDIS_PATH_MAX + 16];
    snprintf(log, sizeof log, "%s/server.log", server->dir);
    (void)unlink(server->path);
    pid_t parent = getpid();
    server->pid = fork();
    CT_CHECKF(server->pid >= 0, "fork failed: errno %d", errno);
    if (server->pid == 0) {
        become_server(server->args, log, parent);
    }
}

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* 1: it answers. 0: it has ended. */
static int await_ready(ct_t *ct, redis_server_t *server) {
    long long until_ms = now_ms() + READY_MS * ct->time_scale;
    for (;;) {
        int fd = redis_connect(server);
        if (fd >= 0) {
            /* Any answer will do, an error too. */
            redisReply *reply = send_all(fd, "PING\r\n", 6) == 0 ? read_reply(fd) : NULL;
            close(fd);
            if (reply != NULL) {
                freeReplyObject(reply);
                return 1;
            }
        }
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return 0;
        }
        CT_CHECKF(now_ms() < until_ms, "the Redis server is not ready after %d ms", READY_MS);
        (void)poll(NULL, 0, 1); /* it tells nobody */
    }
}

void redis_server_launch(redis_server_t *server) {
    ct_t *ct = ct_current();
    CT_EQ(server->pid, 0);
    launch(ct, server);
}

void redis_server_await(redis_server_t *server) {
    ct_t *ct = ct_current();
    CT_CHECKF(await_ready(ct, server), "cannot start %s (is it installed? see %s/server.log)",
              server->args[0], server->dir);
}

void redis_server_boot(redis_server_t *server) {
    redis_server_launch(server);
    redis_server_await(server);
}

redis_server_t *redis_server_new(const char *dir, const char *name) {
    ct_t *ct = ct_current();
    redis_server_t *server = alloc_real(sizeof *server);
    int n = snprintf(server->dir, sizeof server->dir, "%s%s%s", dir, name == NULL ? "" : "/",
                     name == NULL ? "" : name);
    CT_CHECK(name == NULL || mkdir(server->dir, 0700) == 0);
    n += snprintf(server->path, sizeof server->path, "%.*s/redis.sock", REDIS_PATH_MAX - 12, server->dir);
    CT_CHECKF(n < 2 * (REDIS_PATH_MAX - 12), "the path of the folder is too long for a socket: %s", dir);
    server->port = port_take(&server->port_keeper);
    CT_GT(server->port, 0);
    char port[16];
    snprintf(port, sizeof port, "%d", server->port);
    const char *program = getenv("DLOCK_REDIS_SERVER");
    const char *const usual[] = {program == NULL ? "redis-server" : program,
                                 "--port",
                                 port,
                                 "--bind",
                                 "127.0.0.1",
                                 "--unixsocket",
                                 server->path,
                                 "--save",
                                 "",
                                 "--appendonly",
                                 "no",
                                 "--dir",
                                 server->dir,
                                 "--databases",
                                 "4"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        redis_server_arg(server, usual[i]);
    }
    return server;
}

redis_server_t *redis_server_start(const char *dir, const char *name, ...) {
    redis_server_t *server = redis_server_new(dir, name);
    va_list args;
    va_start(args, name);
    for (const char *word; (word = va_arg(args, const char *)) != NULL;) {
        redis_server_arg(server, word);
    }
    va_end(args);
    redis_server_boot(server);
    return server;
}

void redis_server_arg(redis_server_t *server, const char *word) {
    ct_t *ct = ct_current();
    int n = 0;
    while (server->args[n] != NULL) {
        n++;
    }
    CT_LT(n + 1, REDIS_ARGS_MAX);
    server->args[n] = alloc_real_text(word);
}

void redis_server_kill(redis_server_t *server) {
    if (server->pid > 0) {
        (void)kill(server->pid, SIGKILL);
        (void)waitpid(server->pid, NULL, 0);
        server->pid = 0;
    }
}

void redis_server_stop(redis_server_t *server) {
    if (server == NULL) {
        return;
    }
    redis_server_kill(server);
    close(server->port_keeper);
    for (char **word = server->args; *word != NULL; word++) {
        alloc_real_free(*word);
    }
    alloc_real_free(server);
}

void redis_server_restart(redis_server_t *server) {
    redis_server_kill(server);
    redis_server_boot(server);
}

void redis_server_freeze(redis_server_t *server) {
    ct_t *ct = ct_current();
    int status = 0;
    CT_GT(server->pid, 0);
    CT_EQ(kill(server->pid, SIGSTOP), 0);
    CT_EQ(waitpid(server->pid, &status, WUNTRACED), server->pid);
    CT_CHECK(WIFSTOPPED(status));
}

void redis_server_thaw(redis_server_t *server) {
    ct_t *ct = ct_current();
    CT_GT(server->pid, 0);
    CT_EQ(kill(server->pid, SIGCONT), 0);
}
