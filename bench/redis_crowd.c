/* redis_crowd.c - a crowd on the Redis drivers, against bare publish and SET NX PX by hiredis. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "crowd.h"
#include "redis.h"

static dl_client_t *open_ours(const void *layout) {
    return redis_open_client(layout, "");
}

static void *open_user(const void *layout) {
    return crowd_user_open(open_ours, layout);
}

static dl_client_t *open_without_passing(const void *layout) {
    return redis_open_client(layout, ", pass: false");
}

static void *open_user_without(const void *layout) {
    return crowd_user_open(open_without_passing, layout);
}

void bench_redis_crowd_passing(const char *folder, unsigned scale) {
    redis_start(folder);
    for (int i = 0; i < LAYOUTS; i++) {
        crowd_compare_passing(layouts[i].driver, open_user, open_user_without, &layouts[i], scale);
    }
}

void bench_redis_crowd(const char *folder, unsigned scale) {
    static const way_t ours = {"dl_lock", open_user, crowd_user_await, crowd_user_give, crowd_user_close};
    redis_start(folder);
    for (int i = 0; i < LAYOUTS; i++) {
        crowd_compare_all(layouts[i].driver, &redis_bare_way, &ours, &layouts[i], scale);
    }
}

void bench_redis_crowd_turns(const char *folder, unsigned scale) {
    static const way_t without = {"dl_lock, pass: false", open_user_without, crowd_user_await,
                                  crowd_user_give, crowd_user_close};
    redis_start(folder);
    for (int i = 0; i < LAYOUTS; i++) {
        crowd_compare_all(layouts[i].driver, &redis_bare_way, &without, &layouts[i], scale);
    }
}

void bench_redis_many(const char *folder, unsigned scale) {
    redis_start(folder);
    for (int i = 0; i < LAYOUTS; i++) {
        hold_many(redis_open_client(&layouts[i], ", lease: 30s"), 100000 * scale, 30000, "", NULL);
    }
}

/* The nodes of this process' first measurement. */
static int nodes[3];

static dl_client_t *open_redlock(const void *unused) {
    char yaml[256];
    (void)unused;
    int n = snprintf(yaml, sizeof yaml,
                     "use: b\nbackends:\n  b: {driver: redlock, lease: 1s, max_lease: 1s, nodes: "
                     "[\"redis://127.0.0.1:%d\", \"redis://127.0.0.1:%d\", \"redis://127.0.0.1:%d\"]}\n",
                     nodes[0], nodes[1], nodes[2]);
    dl_client_t *client;
    dl_error_t err;
    if (dl_client_open_text(yaml, (size_t)n, NULL, &client, &err) != DL_OK) {
        die("open", &err);
    }
    return client;
}

static void *open_redlock_user(const void *unused) {
    return crowd_user_open(open_redlock, unused);
}

void bench_redlock_crowd(const char *folder, unsigned scale) {
    static const way_t ours = {"dl_lock", open_redlock_user, crowd_user_await, crowd_user_give,
                               crowd_user_close};
    for (int i = 0; i < 3; i++) {
        nodes[i] = nodes[i] == 0 ? redis_start_another(folder) : nodes[i];
    }
    crowd_compare_all("redlock, 3 nodes", NULL, &ours, NULL, scale);
}
