/* dlock.c - this library, or its release 0.1, with its defaults: blocking threads, and a queue. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dlock/dlock.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "peer.h"

#define IS_OLD (DL_VERSION_MAJOR == 0 && DL_VERSION_MINOR < 2)

static void *connect_dlock(int port, const char *scenario) {
    char yaml[192];
    const char *other = peer_mixed(scenario);
    dl_client_t *client;
    dl_error_t err;
    int n =
        snprintf(yaml, sizeof yaml, "use: b\nbackends:\n  b: {driver: %s, url: \"redis://127.0.0.1:%d\"%s}\n",
                 other != NULL && strcmp(other, "redisson") == 0 ? "redis-hash-reentrant" : "redis-string",
                 port, other != NULL ? ", prefix: \"\", lease: " PEER_LEASE : "");
    if (dl_client_open_text(yaml, (size_t)n, NULL, &client, &err) != DL_OK) {
        peer_die("open", err.message);
    }
    return client;
}

static void *open_dlock(void *client, int port, const char *name) {
    dl_lock_t *lock;
    dl_error_t err;
    (void)port;
    if (dl_lock_open(client, name, &lock, &err) != DL_OK) {
        peer_die(name, err.message);
    }
    return lock;
}

static void lock_dlock(void *lock) {
    dl_error_t err;
    if (dl_lock(lock, &err) != DL_OK) {
        peer_die("lock", err.message);
    }
}

static void unlock_dlock(void *lock) {
    dl_error_t err;
    if (dl_unlock(lock, &err) != DL_OK) {
        peer_die("unlock", err.message);
    }
}

#if !IS_OLD
static void begin_lock(dl_queue_t *queue, dl_lock_t *lock) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_error_t err;
    if (dl_acquire_begin(lock, &opts, queue, NULL, NULL, &err) != DL_OK) {
        peer_die("begin", err.message);
    }
}

static double run_queue(void *client, uint64_t begin_ns, uint64_t end_ns) {
    dl_queue_t *queue;
    dl_error_t err;
    uint64_t pairs = 0;
    if (dl_queue_new(&queue, &err) != DL_OK) {
        peer_die("queue", err.message);
    }
    for (unsigned i = 0; i < PEER_TASKS; i++) {
        char name[32];
        dl_lock_t *lock;
        (void)snprintf(name, sizeof name, "queue/%u", i);
        if (dl_lock_open_owned(client, name, i, &lock, &err) != DL_OK) {
            peer_die(name, err.message);
        }
        begin_lock(queue, lock);
    }
    struct pollfd ready = {dl_queue_fd(queue), POLLIN, 0};
    for (int left = PEER_TASKS; left > 0;) {
        dl_completion_t done[16];
        (void)poll(&ready, 1, -1);
        size_t n = dl_queue_take(queue, done, sizeof done[0], 16);
        for (size_t i = 0; i < n; i++) {
            uint64_t now = peer_now_ns();
            if (done[i].status != DL_OK) {
                peer_die("completion", done[i].err.message);
            }
            if (done[i].kind == DL_OP_ACQUIRE) {
                if (dl_unlock_begin(done[i].lock, queue, NULL, NULL, &err) != DL_OK) {
                    peer_die("begin", err.message);
                }
                continue;
            }
            pairs += now >= begin_ns && now < end_ns;
            if (now < end_ns) {
                begin_lock(queue, done[i].lock);
            } else {
                left--;
            }
        }
    }
    return (double)pairs * 1e9 / (double)(end_ns - begin_ns);
}
#endif

int main(int argc, char **argv) {
    const peer_t peer = {
        .name = IS_OLD ? "dlock-0.1" : "dlock",
        .version = dl_version(),
        .waits = 1,
        .processes = IS_OLD ? 2 : 3,
        .threads = IS_OLD ? 1 : 2,
        .connect = connect_dlock,
        .open = open_dlock,
        .lock = lock_dlock,
        .unlock = unlock_dlock,
#if !IS_OLD
        .queue = run_queue,
#endif
    };
    return peer_main(&peer, argc, argv);
}
