/* bare.c - the floor: SET NX PX, and compare-and-delete by EVALSHA, on a hiredis connection a thread. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "peer.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

typedef struct bare {
    redisContext *redis;
    char key[64], sha[41];
} bare_t;

static const char owner[] = "00000000-0000-4000-8000-000000000001:1"; /* as long as dlock's owners */
static const char compare_and_delete[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

static void *connect_nothing(int port, const char *scenario) {
    (void)port;
    (void)scenario;
    return NULL;
}

static void *open_bare(void *client, int port, const char *name) {
    bare_t *bare = calloc(1, sizeof *bare);
    int on = 1;
    (void)client;
    if (bare == NULL || (bare->redis = redisConnect("127.0.0.1", port)) == NULL || bare->redis->err != 0) {
        peer_die(name, "no connection");
    }
    (void)setsockopt(bare->redis->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    redisReply *reply = redisCommand(bare->redis, "SCRIPT LOAD %s", compare_and_delete);
    if (reply == NULL || reply->type != REDIS_REPLY_STRING) {
        peer_die(name, "SCRIPT LOAD failed");
    }
    (void)snprintf(bare->sha, sizeof bare->sha, "%s", reply->str);
    (void)snprintf(bare->key, sizeof bare->key, "%s", name);
    freeReplyObject(reply);
    return bare;
}

static void run(bare_t *bare, int argc, const char **argv) {
    redisReply *reply = redisCommandArgv(bare->redis, argc, argv, NULL);
    if (reply == NULL || (reply->type != REDIS_REPLY_STATUS && reply->integer != 1)) {
        peer_die(bare->key, "the server did not say yes");
    }
    freeReplyObject(reply);
}

static void lock_bare(void *lock) {
    bare_t *bare = lock;
    const char *argv[] = {"SET", bare->key, owner, "NX", "PX", "30000"};
    run(bare, 6, argv);
}

static void unlock_bare(void *lock) {
    bare_t *bare = lock;
    const char *argv[] = {"EVALSHA", bare->sha, "1", bare->key, owner};
    run(bare, 5, argv);
}

int main(int argc, char **argv) {
    static const peer_t peer = {
        .name = "bare",
        .version = "hiredis-" TEXT(HIREDIS_MAJOR) "." TEXT(HIREDIS_MINOR) "." TEXT(HIREDIS_PATCH),
        .connect = connect_nothing,
        .open = open_bare,
        .lock = lock_bare,
        .unlock = unlock_bare,
    };
    return peer_main(&peer, argc, argv);
}
