/* locks.c - taking and freeing a lock by the scripts, and hearing of releases. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

#define NS_PER_MS 1000000u
#define NS_PER_S 1000000000u
/* Less time than this is none to hear of replicas in. */
#define REPLICAS_NS (20u * (uint64_t)NS_PER_MS)

void dli_redis_key(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *key) {
    memcpy(key->at, redis->prefix, redis->prefix_len);
    memcpy(key->at + redis->prefix_len, name, name_len);
    key->len = redis->prefix_len + name_len;
}

bool dli_redis_is_foreign(const redisReply *reply) {
    return dli_reply_is_error(reply, "WRONGTYPE") || dli_reply_is_error(reply, "EFOREIGN");
}

/* Keys and labels are cut so that the whole message fits. */
#define KEY_SHOWN 64
#define LABEL_SHOWN 64

/* The key for people: what the options give of it as they are shown, its beginning, without what controls
 * terminals, and no character cut in half. */
static void show_key(const dli_redis_t *redis, const char *key, size_t key_len, char text[KEY_SHOWN + 4]) {
    char whole[DLI_KEY_MAX];
    bool is_counter = key_len == strlen(redis->token_key) && memcmp(key, redis->token_key, key_len) == 0;
    size_t given = is_counter || key_len < redis->prefix_len ? key_len : redis->prefix_len;
    size_t len = (size_t)snprintf(whole, sizeof whole, "%s%.*s",
                                  is_counter ? redis->token_key_shown : redis->prefix_shown,
                                  (int)(key_len - given), key + given);
    size_t shown = len <= KEY_SHOWN ? len : KEY_SHOWN;
    while (shown < len && shown > 0 && ((unsigned char)whole[shown] & 0xc0) == 0x80) {
        shown--;
    }
    for (size_t i = 0; i < shown; i++) {
        unsigned char byte = (unsigned char)whole[i];
        text[i] = byte < ' ' || byte == 0x7f ? '?' : whole[i];
    }
    strcpy(text + shown, shown < len ? "..." : "");
}

/* Something else stands where a lock or the counter should be. */
static dl_status_t fail_foreign(const dli_redis_t *redis, const char *key, size_t len, const char *what,
                                const char *wanted, const char *of, dl_error_t *err) {
    char text[KEY_SHOWN + 4];
    show_key(redis, key, len, text);
    return dl_driver_fail(err, DL_EFOREIGN, 0, "'%s' at %.*s: the key holds %s, not %s%s", text, LABEL_SHOWN,
                          redis->endpoint.label, what, wanted, of);
}

dl_status_t dli_redis_fail(const dli_redis_t *redis, const dli_key_t *key, const redisReply *reply,
                           dl_error_t *err) {
    if (key != NULL && dli_redis_is_foreign(reply)) {
        bool typed = dli_reply_is_error(reply, "WRONGTYPE");
        return fail_foreign(redis, key->at, key->len, typed ? "a value of another type" : "another hash",
                            "a lock of ", redis->layout->driver, err);
    }
    if (dli_reply_is_error(reply, "ETOKEN")) {
        return fail_foreign(redis, redis->token_key, strlen(redis->token_key), "something else",
                            "a token counter", "", err);
    }
    if (reply->type != REDIS_REPLY_ERROR) {
        dli_link_distrust(redis->link); /* perhaps the answer to something else */
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

void dli_redis_warn(dli_redis_t *redis, const char *text) {
    uint_fast64_t now = redis->env->now_ns();
    uint_fast64_t last = atomic_load(&redis->warned_ns);
    if ((last == 0 || now - last >= NS_PER_S) &&
        atomic_compare_exchange_strong(&redis->warned_ns, &last, now)) {
        redis->env->report(redis->env->core, DL_LOG_WARNING, text);
    }
}

/* ---- taking ----------------------------------------------------------------------------------------- */

/* One attempt on its way. */
typedef struct attempt {
    dli_redis_t *redis;
    const dl_request_t *request;
    dl_error_t *err;
    dli_script_call_t call;
    dli_slice_t argv[9];
    dli_key_t key, channel, peers;
    char hold_id[24], level[24], lease_ms[24], floor[24];
    redisReply *replies[2]; /* the script's, and WAIT's */
    uint64_t sent_ns;
} attempt_t;

static void prepare(attempt_t *a) {
    const dl_request_t *r = a->request;
    dli_redis_key(a->redis, r->name, r->name_len, &a->key);
    a->argv[0] = (dli_slice_t){a->key.at, a->key.len};
    a->argv[1] = dli_slice(a->redis->token_key);
    a->argv[2] = dli_slice(r->owner);
    a->argv[3] = dli_slice_int(a->hold_id, (int64_t)r->hold_id);
    a->argv[4] = dli_slice_int(a->level, r->level);
    a->argv[5] = dli_slice_int(a->lease_ms, r->lease_ms);
    a->argv[6] = dli_slice_int(a->floor, (int64_t)r->token_floor);
    size_t words = 7;
    if (r->level > 1) { /* which may find that the hold is over, and then tells those who wait */
        a->redis->layout->channel(a->redis, r->name, r->name_len, &a->channel);
        a->redis->layout->peers(a->redis, r->name, r->name_len, &a->peers);
        a->argv[words++] = (dli_slice_t){a->channel.at, a->channel.len};
        a->argv[words++] = (dli_slice_t){a->peers.at, a->peers.len};
    }
    a->call = (dli_script_call_t){a->redis->layout->acquire, 2, words, a->argv};
}

static bool is_durable(const attempt_t *a) {
    return a->redis->min_replicas > 0 && a->request->level == 1;
}

static dl_status_t check_numbers(const dl_request_t *request, dl_error_t *err) {
    if (request->hold_id >= DLI_EXACT_END || request->token_floor >= DLI_EXACT_END - 1) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "hold id or token floor is too large for this server");
    }
    if (request->lease_ms < 1 || request->lease_ms > DL_LEASE_MAX_MS) {
        return dl_driver_fail(err, DL_EINVAL, 0, "a lease of %s", dl_driver_duration(request->lease_ms).text);
    }
    return DL_OK;
}

/* A lock that the replicas have to know of is not begun without time to hear of them. */
static dl_status_t check_time(const attempt_t *a) {
    if (!is_durable(a) || a->redis->env->now_ns() + REPLICAS_NS <= a->request->deadline_ns) {
        return DL_OK;
    }
    return dl_driver_fail(a->err, DL_EIO, 0, "no time is left to hear from %lld replicas",
                          (long long)a->redis->min_replicas);
}

/* At most half of what is left of the call. WAIT takes 0 as for ever. */
static int64_t replicas_wait_ms(const attempt_t *a) {
    uint64_t now = a->redis->env->now_ns();
    uint64_t deadline_ns = a->request->deadline_ns;
    uint64_t half_ms = deadline_ns > now ? (deadline_ns - now) / 2 / NS_PER_MS : 0;
    uint64_t wait_ms = (uint64_t)a->redis->replica_timeout_ms;
    wait_ms = wait_ms < half_ms ? wait_ms : half_ms;
    return wait_ms > 0 ? (int64_t)wait_ms : 1;
}

/* The script, and behind it on the same connection the wait for the replicas. */
static dl_status_t send_with_wait(attempt_t *a, dli_exchange_t *exchange, bool with_source) {
    char replicas[24], wait_ms[24];
    dli_commands_t commands = {0};
    dli_script_encode(&commands, &a->call, with_source);
    dli_slice_t wait[3] = {dli_slice("WAIT"), dli_slice_int(replicas, a->redis->min_replicas),
                           dli_slice_int(wait_ms, replicas_wait_ms(a))};
    dli_commands_add(&commands, 3, wait);
    dl_status_t status;
    if (commands.out_of_memory) {
        status = dl_driver_fail(a->err, DL_ENOMEM, 0, "out of memory");
    } else {
        exchange->commands = &commands;
        exchange->replies = a->replies;
        status = dli_link_run(a->redis->link, exchange, a->err);
    }
    a->sent_ns = exchange->sent_ns;
    dli_commands_free(&commands);
    return status;
}

/* An answer that makes no sense: the request may have been carried out all the same. */
static dl_status_t unclear(const dli_exchange_t *exchange, dl_status_t status, dl_error_t *err) {
    if (status != DL_EPROTO || exchange->sent_ns == 0) {
        return status;
    }
    dl_error_t why = *err;
    return dl_driver_fail(err, DL_EUNKNOWN, 0, "%s", why.message);
}

/* Servers look at the end of a WAIT only now and then. One that is late is given up while there is still a
 * quarter of the time to free the lock in, so that the call can end with a clear no. */
static uint64_t exchange_until(const attempt_t *a) {
    uint64_t now = a->redis->env->now_ns();
    uint64_t deadline_ns = a->request->deadline_ns;
    return is_durable(a) && deadline_ns > now ? deadline_ns - (deadline_ns - now) / 4 : deadline_ns;
}

static dl_status_t send_attempt(attempt_t *a) {
    const dli_exchange_t fresh = {.replies = a->replies,
                                  .lane = DLI_LANE_CALLS,
                                  .intent = DLI_CLAIM,
                                  .deadline_ns = exchange_until(a),
                                  .stop = &a->request->stop};
    dli_exchange_t exchange = fresh;
    dl_status_t status;
    if (!is_durable(a)) {
        status = dli_scripts_run(a->redis->link, &exchange, &a->call, 1, &a->sent_ns, a->err);
    } else {
        status = send_with_wait(a, &exchange, false);
        if (status == DL_OK && dli_reply_is_error(a->replies[0], "NOSCRIPT")) {
            freeReplyObject(a->replies[0]);
            freeReplyObject(a->replies[1]);
            a->replies[0] = a->replies[1] = NULL;
            exchange = fresh;
            status = send_with_wait(a, &exchange, true);
        }
    }
    return unclear(&exchange, status, a->err);
}

static dl_status_t judge_busy(const attempt_t *a, const redisReply *reply, dl_grant_t *grant) {
    dl_error_t *err = a->err;
    int64_t left_ms = -1, ours = 0;
    if (reply->elements < 3 || !dli_reply_int(reply->element[0], &left_ms) ||
        !dli_reply_int(reply->element[2], &ours)) {
        dli_link_distrust(a->redis->link);
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "the server answered with a list of another kind");
    }
    grant->busy_ms = left_ms < 0 ? -1 : left_ms;
    grant->busy_is_dlock = ours == 1;
    if (left_ms < 0) {
        return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner, without an end");
    }
    return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner for %s more",
                          dl_driver_duration(left_ms).text);
}

/* What the script answered. */
static dl_status_t judge(const attempt_t *a, dl_grant_t *grant) {
    const redisReply *reply = a->replies[0];
    int64_t number;
    if (reply->type == REDIS_REPLY_ARRAY) {
        return judge_busy(a, reply, grant);
    }
    bool fresh = a->request->level == 1;
    if (!fresh && dli_redis_is_foreign(reply)) {
        return dl_driver_fail(a->err, DL_ELOST, 0, "something else is where this hold was");
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        return dli_redis_fail(a->redis, &a->key, reply, a->err);
    }
    if (!dli_reply_int(reply, &number) || number < 0 ||
        (fresh && (uint64_t)number <= a->request->token_floor)) {
        /* Not the answer to this request, or from a server that is out of its mind; it may have the hold. */
        dli_link_distrust(a->redis->link);
        return dl_driver_fail(a->err, DL_EUNKNOWN, 0, "the server's answer makes no sense");
    }
    if (number == 0) {
        return dl_driver_fail(a->err, DL_ELOST, 0, "the lock was lost: this hold is no longer on the server");
    }
    grant->token = fresh ? (uint64_t)number : 0;
    grant->sent_ns = a->sent_ns;
    grant->session_fd = -1;
    return DL_OK;
}

/* ---- replicas --------------------------------------------------------------------------------------- */

/* The lock is taken, but too few replicas know of it. After DL_EIO the core frees nothing, so the hold has to
 * be gone for sure by then. */
static dl_status_t refuse(const attempt_t *a, const char *text) {
    dl_request_t free_it = *a->request;
    free_it.level = 0;
    free_it.stop = (dl_stop_t){{-1, -1}};
    dl_status_t status = dli_redis_release(a->redis, NULL, &free_it, a->err);
    if (status != DL_OK && status != DL_ELOST) {
        return dl_driver_fail(a->err, DL_EUNKNOWN, 0, "%s, and freeing it has no clear outcome", text);
    }
    const redisReply *reply = a->replies[1];
    if (reply != NULL && reply->type == REDIS_REPLY_ERROR) {
        return dli_reply_fail(reply, a->err);
    }
    return dl_driver_fail(a->err, DL_EIO, 0, "%s", text);
}

/* Do as many replicas know of the lock as have to? */
static dl_status_t confirm(const attempt_t *a) {
    dli_redis_t *redis = a->redis;
    char text[160];
    int64_t known = 0;
    if (a->replies[1] != NULL && dli_reply_int(a->replies[1], &known) && known >= redis->min_replicas) {
        return DL_OK;
    }
    snprintf(text, sizeof text, "only %lld of %lld replicas acknowledged the lock", (long long)known,
             (long long)redis->min_replicas);
    if (redis->shortfall == DLI_SHORTFALL_REFUSE) {
        return refuse(a, text);
    }
    dli_redis_warn(redis, text);
    return DL_OK;
}

dl_status_t dli_redis_try_acquire(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                  dl_error_t *err) {
    (void)hold;
    attempt_t a = {.redis = state, .request = request, .err = err};
    dl_status_t status = check_numbers(request, err);
    if (status == DL_OK) {
        status = check_time(&a);
    }
    if (status != DL_OK) {
        return status;
    }
    prepare(&a);
    status = send_attempt(&a);
    if (a.replies[0] != NULL && dli_reply_is_error(a.replies[0], "NOSCRIPT")) {
        /* Nothing but the WAIT behind it was carried out, and the script's text was not sent in time. */
        status = status == DL_ECANCELED
                     ? status
                     : dl_driver_fail(err, DL_EIO, 0, "no time was left to send the script's text");
    } else if (a.replies[0] != NULL) {
        status = judge(&a, grant); /* counts even where the answer to the WAIT behind it is missing */
    }
    if (status == DL_OK && is_durable(&a)) {
        status = confirm(&a);
    }
    freeReplyObject(a.replies[0]);
    freeReplyObject(a.replies[1]);
    return status;
}

/* ---- freeing ---------------------------------------------------------------------------------------- */

static dl_status_t judge_release(const dli_redis_t *redis, const dli_key_t *key, const redisReply *reply,
                                 dl_error_t *err) {
    int64_t number;
    if (dli_reply_int(reply, &number) && number >= 0 && number <= 1) {
        return DL_OK;
    }
    if (reply->type == REDIS_REPLY_NIL || dli_redis_is_foreign(reply)) {
        return dl_driver_fail(err, DL_ELOST, 0, "the lock was lost: this hold is no longer on the server");
    }
    return dli_redis_fail(redis, key, reply, err);
}

dl_status_t dli_redis_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    dli_redis_t *redis = state;
    char hold_id[24], level[24];
    dli_key_t key, channel, peers;
    if (request->hold_id >= DLI_EXACT_END) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "hold id is too large for this server");
    }
    dli_redis_key(redis, request->name, request->name_len, &key);
    redis->layout->channel(redis, request->name, request->name_len, &channel);
    redis->layout->peers(redis, request->name, request->name_len, &peers);
    const dli_slice_t argv[] = {{key.at, key.len},
                                dli_slice(request->owner),
                                dli_slice_int(hold_id, (int64_t)request->hold_id),
                                dli_slice_int(level, request->level),
                                {channel.at, channel.len},
                                {peers.at, peers.len}};
    dli_script_call_t call = {redis->layout->release, 1, sizeof argv / sizeof argv[0], argv};
    redisReply *reply = NULL;
    dli_exchange_t exchange = {.replies = &reply,
                               .lane = DLI_LANE_CALLS,
                               .intent = DLI_FREE,
                               .deadline_ns = request->deadline_ns,
                               .stop = &request->stop};
    dl_status_t status =
        unclear(&exchange, dli_scripts_run(redis->link, &exchange, &call, 1, NULL, err), err);
    if (status == DL_OK) {
        status = judge_release(redis, &key, reply, err);
    }
    freeReplyObject(reply);
    return status;
}

/* ---- waiting ---------------------------------------------------------------------------------------- */

struct dl_watch {
    dli_watcher_t watcher; /* the first: what is heard, is heard by the whole */
    const dl_driver_env_t *env;
    size_t name_len;
    char name[];
};

static void hear(dli_watcher_t *watcher, bool hears) {
    const dl_watch_t *watch = (const dl_watch_t *)watcher;
    watch->env->woken(watch->env->core, watch->name, watch->name_len, hears);
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
    made->watcher.heard = hear;
    made->env = redis->env;
    made->name_len = name_len;
    memcpy(made->name, name, name_len);
    redis->layout->channel(redis, name, name_len, &channel);
    dl_status_t status =
        dli_subscriber_watch(redis->subscriber, channel.at, channel.len, &made->watcher, err);
    if (status != DL_OK) {
        free(made);
        return status;
    }
    *watch = made;
    return DL_OK;
}

void dli_redis_unwatch(void *state, dl_watch_t *watch) {
    dli_redis_t *redis = state;
    dli_subscriber_unwatch(redis->subscriber, &watch->watcher);
    free(watch);
}

/* The subscriber's descriptor, if there is one, behind those of the mux. */
size_t dli_redis_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    dli_redis_t *redis = state;
    uint64_t mux_ns = DL_NO_DEADLINE;
    (void)max;
    redis->polled = redis->mux != NULL ? dli_mux_listen_fds(redis->mux, fds, &mux_ns) : 0;
    fds += redis->polled;
    dli_subscriber_fds(redis->subscriber, fds, until_ns);
    *until_ns = mux_ns < *until_ns ? mux_ns : *until_ns;
    return redis->polled + (fds->fd >= 0);
}

void dli_redis_listen(void *state, const struct pollfd *fds, size_t n) {
    dli_redis_t *redis = state;
    dli_subscriber_listen(redis->subscriber, n > redis->polled ? fds[redis->polled].revents : 0);
    if (redis->mux != NULL) {
        dli_mux_listen(redis->mux, fds, redis->polled);
    }
}
