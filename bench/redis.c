/* redis.c - the server, the client and the bare connection that the measurements on Redis share. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lua.h" /* the text of the drivers' scripts, by CMake */

const layout_t layouts[LAYOUTS] = {
    {"redis-string", lua_string_acquire, lua_string_release},
    {"redis-hash-reentrant", lua_hash_acquire, lua_hash_release},
};
const redlock_scripts_t redlock_scripts = {lua_redlock_acquire, lua_redlock_raise, lua_redlock_release};

/* ---- the servers ------------------------------------------------------------------------------------ */

#define SERVERS_MAX 10

static struct {
    pid_t pid;
    int port;
} servers[SERVERS_MAX];
static int server_count;
static int port; /* of the first, which most measurements use */

static void stop_servers(void) {
    for (int i = 0; i < server_count; i++) {
        kill(servers[i].pid, SIGKILL);
        waitpid(servers[i].pid, NULL, 0);
    }
}

int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        die("no free port", NULL);
    }
    /* Stays open: nobody else is given the port, and a server can listen there. */
    return ntohs(address.sin_port);
}

static void await_server(int at) {
    for (int i = 0; i < 1000; i++) {
        redisContext *redis = redisConnect("127.0.0.1", at);
        int failed = redis == NULL || redis->err != 0;
        redisFree(redis);
        if (!failed) {
            return;
        }
        (void)poll(NULL, 0, 10); /* it tells nobody when it is ready */
    }
    die("redis-server does not start", NULL);
}

int redis_start_another(const char *folder) {
    const char *named = getenv("DLOCK_REDIS_SERVER");
    const char *program = named != NULL ? named : "redis-server";
    char port_text[8];
    pid_t parent = getpid();
    int at = free_port();
    if (server_count == SERVERS_MAX) {
        die("too many servers", NULL);
    }
    (void)snprintf(port_text, sizeof port_text, "%d", at);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            execlp(program, program, "--port", port_text, "--bind", "127.0.0.1", "--dir", folder, "--save",
                   "", "--appendonly", "no", "--logfile", "redis.log", (char *)NULL);
        }
        _exit(127);
    }
    if (server_count == 0) {
        /* Only the first process ends them: those that hand over are forked later. */
        (void)atexit(stop_servers);
    }
    servers[server_count].pid = pid;
    servers[server_count++].port = at;
    await_server(at);
    return at;
}

void redis_signal(int at, int signal) {
    for (int i = 0; i < server_count; i++) {
        if (servers[i].port == at) {
            kill(servers[i].pid, signal);
        }
    }
}

void redis_start(const char *folder) {
    port = port == 0 ? redis_start_another(folder) : port;
}

dl_client_t *redis_open_client(const layout_t *layout, const char *more) {
    char yaml[256];
    int n =
        snprintf(yaml, sizeof yaml,
                 "use: b\nbackends:\n  b: {driver: %s, url: \"redis://127.0.0.1:%d\", prefix: \"ours:\"%s}\n",
                 layout->driver, port, more);
    dl_client_t *client;
    dl_error_t err;
    if (dl_client_open_text(yaml, (size_t)n, NULL, &client, &err) != DL_OK) {
        die("open", &err);
    }
    return client;
}

/* ---- bare hiredis ----------------------------------------------------------------------------------- */

static const char compare_and_delete[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) "
    "redis.call('publish', ARGV[2], '0') return 1 end return 0";

static void load(const bare_t *bare, const char *source, char sha[41]) {
    redisReply *reply = redisCommand(bare->redis, "SCRIPT LOAD %s", source);
    if (reply == NULL || reply->type != REDIS_REPLY_STRING) {
        die("SCRIPT LOAD", NULL);
    }
    (void)snprintf(sha, 41, "%.40s", reply->str);
    freeReplyObject(reply);
}

void bare_open(bare_t *bare, const layout_t *layout, const char *name) {
    memset(bare, 0, sizeof *bare);
    bare->redis = redisConnect("127.0.0.1", port);
    if (bare->redis == NULL || bare->redis->err != 0) {
        die("connect", NULL);
    }
    int on = 1; /* as the drivers have it: without it requests could be held back */
    (void)setsockopt(bare->redis->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    load(bare, layout->acquire, bare->acquire);
    load(bare, layout->release, bare->release);
    load(bare, compare_and_delete, bare->compare);
    (void)snprintf(bare->key, sizeof bare->key, "bare:%s", name);
    (void)snprintf(bare->channel, sizeof bare->channel, "bare:released:%s", name);
    /* As long as the drivers' owners. */
    (void)snprintf(bare->owner, sizeof bare->owner, "00000000-0000-4000-8000-%012d:1", (int)getpid());
}

void bare_close(bare_t *bare) {
    redisFree(bare->redis);
}

static void begin(const bare_t *bare, int argc, const char **argv) {
    if (redisAppendCommandArgv(bare->redis, argc, argv, NULL) != REDIS_OK) {
        die(bare->redis->errstr, NULL);
    }
}

long long bare_end(const bare_t *bare) {
    void *got = NULL;
    redisReply *reply = redisGetReply(bare->redis, &got) == REDIS_OK ? got : NULL;
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        die(reply != NULL ? reply->str : bare->redis->errstr, NULL);
    }
    long long number =
        reply->type == REDIS_REPLY_INTEGER ? reply->integer : reply->type == REDIS_REPLY_STATUS;
    number = reply->type == REDIS_REPLY_NIL ? -1 : number;
    freeReplyObject(reply);
    return number;
}

static long long run(const bare_t *bare, int argc, const char **argv) {
    begin(bare, argc, argv);
    return bare_end(bare);
}

void bare_begin_acquire(bare_t *bare) {
    char hold_id[24];
    (void)snprintf(hold_id, sizeof hold_id, "%llu", ++bare->hold_id);
    const char *argv[] = {"EVALSHA",   bare->acquire, "2", bare->key, "bare_tokens",
                          bare->owner, hold_id,       "1", "30000",   "0"};
    begin(bare, 10, argv);
}

void bare_acquire(bare_t *bare) {
    bare_begin_acquire(bare);
    if (bare_end(bare) <= 0) {
        die("the bare lock is held by another", NULL);
    }
}

void bare_begin_release(bare_t *bare) {
    char hold_id[24];
    (void)snprintf(hold_id, sizeof hold_id, "%llu", bare->hold_id);
    const char *argv[] = {"EVALSHA", bare->release, "1", bare->key, bare->owner, hold_id, "0", bare->channel};
    begin(bare, 8, argv);
}

void bare_release(bare_t *bare) {
    bare_begin_release(bare);
    if (bare_end(bare) != 1) {
        die("the bare lock was lost", NULL);
    }
}

int bare_set(bare_t *bare) {
    const char *argv[] = {"SET", bare->key, bare->owner, "NX", "PX", "30000"};
    return run(bare, 6, argv) == 1;
}

void bare_compare_and_delete(bare_t *bare) {
    const char *argv[] = {"EVALSHA", bare->compare, "1", bare->key, bare->owner, bare->channel};
    if (run(bare, 6, argv) != 1) {
        die("the bare lock was lost", NULL);
    }
}
