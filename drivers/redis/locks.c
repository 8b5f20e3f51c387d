/* locks.c - keys of locks, what errors of their scripts mean, and hearing of releases. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/report.h"
#include "lock.h"

static void append(dli_key_t *to, const char *bytes, size_t len) {
    memcpy(to->at + to->len, bytes, len);
    to->len += len;
}

void dli_redis_key(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *key) {
    key->len = 0;
    append(key, redis->prefix, redis->prefix_len);
    append(key, name, name_len);
}

void dli_redis_queue_key(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *key) {
    key->len =
        (size_t)snprintf(key->at, sizeof key->at, "%s" DLI_QUEUE_INFIX "%s", redis->token_key, redis->prefix);
    append(key, name, name_len);
}

/* Before "": none. */
static void name_after(const dli_redis_t *redis, const char *before, const char *name, size_t name_len,
                       dli_key_t *to) {
    dli_key_t key;
    dli_redis_key(redis, name, name_len, &key);
    size_t brace = redis->layout->braces && memchr(key.at, '{', key.len) == NULL ? 1 : 0;
    to->len = 0;
    if (before[0] != '\0') {
        append(to, before, strlen(before));
        append(to, "{", brace);
        append(to, key.at, key.len);
        append(to, "}", brace);
    }
}

void dli_redis_channel(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *channel) {
    name_after(redis, redis->layout->channel_before, name, name_len, channel);
}

void dli_redis_peers(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *peers) {
    const char *before = redis->layout->peers_before;
    name_after(redis, before != NULL ? before : redis->also_publish, name, name_len, peers);
}

bool dli_redis_is_foreign(const redisReply *reply) {
    return dli_reply_is_error(reply, "WRONGTYPE") || dli_reply_is_error(reply, "EFOREIGN");
}

/* Labels are cut so that the whole message fits. */
#define LABEL_SHOWN 64

dl_status_t dli_redis_fail(const dli_redis_t *redis, const dl_request_t *request, const redisReply *reply,
                           dl_error_t *err) {
    char key[DLI_NAME_SHOWN + 4];
    if (request != NULL && dli_redis_is_foreign(reply)) {
        bool typed = dli_reply_is_error(reply, "WRONGTYPE");
        char whole[DLI_KEY_MAX]; /* what the options give of it as they are shown */
        snprintf(whole, sizeof whole, "%s%.*s", redis->prefix_shown, (int)request->name_len, request->name);
        dli_name_show(whole, key);
        return dl_driver_fail(err, DL_EFOREIGN, 0, "'%s' at %.*s: the key holds %s, not a lock of %s", key,
                              LABEL_SHOWN, redis->endpoint.label,
                              typed ? "a value of another type" : "another hash", redis->layout->driver);
    }
    if (dli_reply_is_error(reply, "ETOKEN")) {
        dli_name_show(redis->token_key_shown, key);
        return dl_driver_fail(err, DL_EFOREIGN, 0,
                              "'%s' at %.*s: the key holds something else, not a token counter", key,
                              LABEL_SHOWN, redis->endpoint.label);
    }
    dl_status_t status = dli_reply_unexpected(reply, "a lock script", err);
    dl_error_t why = *err;
    if (status == DL_EAUTH) {
        char user[DLI_ENDPOINT_USER_MAX];
        dli_endpoint_show_user(&redis->endpoint, user);
        return dl_driver_fail(err, status, 0, "%.*s: %s lacks rights: see `dlock init --print` (%s)",
                              LABEL_SHOWN, redis->endpoint.label, user, why.message);
    }
    return dl_driver_fail(err, status, 0, "%.*s: %s", LABEL_SHOWN, redis->endpoint.label, why.message);
}

/* ---- waiting ---------------------------------------------------------------------------------------- */

/* Of two channels: where everybody is told of a lock that was left free, and one of this process' own, where
 * it is told that the lock is reserved for it. */
struct dl_watch {
    dli_watcher_t all, own;
    bool hears;
    const dl_driver_env_t *env;
    size_t name_len;
    char name[];
};

static void hear(dli_watcher_t *watcher, bool hears, const char *message) {
    dl_watch_t *watch = watcher->owner;
    bool heard = watch->hears, is_refused = watch->own.channel == NULL;
    (void)hears; /* as both watchers say */
    (void)message;
    /* Who may not have a channel of its own goes without the queue. */
    watch->hears = watch->all.hears && (watch->own.hears || is_refused);
    if (watch->hears || heard) {
        watch->env->woken(watch->env->core, watch->name, watch->name_len, watch->hears);
    }
}

dl_status_t dli_redis_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                            dl_error_t *err) {
    dli_redis_t *redis = state;
    dli_key_t channel;
    dl_watch_t *made = calloc(1, sizeof *made + name_len);
    *watch = NULL;
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    made->all = made->own = (dli_watcher_t){.heard = hear, .owner = made};
    made->env = redis->env;
    made->name_len = name_len;
    memcpy(made->name, name, name_len);
    dli_redis_channel(redis, name, name_len, &channel);
    dli_key_t own = channel;
    own.len += (size_t)snprintf(own.at + own.len, sizeof own.at - own.len, ":%.36s", redis->env->client_uuid);
    dl_status_t status = dli_subscriber_watch(redis->subscriber, own.at, own.len, &made->own, err);
    if (status == DL_OK) {
        status = dli_subscriber_watch(redis->subscriber, channel.at, channel.len, &made->all, err);
    }
    if (status != DL_OK) {
        dli_redis_unwatch(redis, made);
        return status;
    }
    *watch = made;
    return DL_OK;
}

void dli_redis_unwatch(void *state, dl_watch_t *watch) {
    dli_redis_t *redis = state;
    dli_subscriber_unwatch(redis->subscriber, &watch->all);
    dli_subscriber_unwatch(redis->subscriber, &watch->own);
    free(watch);
}

/* The subscriber's descriptor, if there is one, behind those of the mux. */
size_t dli_redis_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    dli_redis_t *redis = state;
    uint64_t mux_ns = DL_NO_DEADLINE;
    (void)max;
    redis->polled = dli_mux_listen_fds(&redis->mux, fds, &mux_ns);
    fds += redis->polled;
    dli_subscriber_follow(redis->subscriber, redis->mux.polled_run_id);
    dli_subscriber_fds(redis->subscriber, fds, until_ns);
    *until_ns = mux_ns < *until_ns ? mux_ns : *until_ns;
    return redis->polled + (fds->fd >= 0);
}

void dli_redis_listen(void *state, const struct pollfd *fds, size_t n) {
    dli_redis_t *redis = state;
    dli_subscriber_listen(redis->subscriber, n > redis->polled ? fds[redis->polled].revents : 0);
    dli_mux_listen(&redis->mux, fds, redis->polled);
}
