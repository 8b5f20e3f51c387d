/* redis_handoff.c - hand-over between processes: dl_lock against bare publish and SET NX PX by hiredis. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis.h"

/* The bare way: subscribed from the beginning, tries whenever it hears of a release. */
typedef struct bare_user {
    bare_t commands, messages;
} bare_user_t;

static redisReply *next_message(bare_user_t *user) {
    void *reply = NULL;
    if (redisGetReply(user->messages.redis, &reply) != REDIS_OK) {
        die(user->messages.redis->errstr, NULL);
    }
    return reply;
}

static void *open_bare(const void *layout) {
    bare_user_t *user = calloc(1, sizeof *user);
    if (user == NULL) {
        die("out of memory", NULL);
    }
    bare_open(&user->commands, layout, "handed");
    bare_open(&user->messages, layout, "handed");
    if (redisAppendCommand(user->messages.redis, "SUBSCRIBE %s", user->messages.channel) != REDIS_OK) {
        die("SUBSCRIBE", NULL);
    }
    freeReplyObject(next_message(user)); /* subscribed */
    return user;
}

/* A message of an earlier release only costs one more try, as in the library. */
static void await_bare(void *arg) {
    bare_user_t *user = arg;
    while (!bare_set(&user->commands)) {
        freeReplyObject(next_message(user));
    }
}

static void give_bare(void *arg) {
    bare_compare_and_delete(&((bare_user_t *)arg)->commands);
}

static void close_bare(void *arg) {
    bare_user_t *user = arg;
    bare_close(&user->commands);
    bare_close(&user->messages);
    free(user);
}

const way_t redis_bare_way = {"bare publish and SET NX PX", open_bare, await_bare, give_bare, close_bare};

static void *open_ours(const void *layout) {
    return user_open(redis_open_client(layout, ""));
}

void bench_redis_handoff(const char *folder, unsigned scale) {
    static const way_t ours = {"dl_lock", open_ours, user_await, user_give, user_close};
    redis_start(folder);
    for (int i = 0; i < LAYOUTS; i++) {
        char title[80];
        (void)snprintf(title, sizeof title, "%s hand-off between processes", layouts[i].driver);
        compare_ways(title, &redis_bare_way, &ours, &layouts[i], scale);
    }
}
