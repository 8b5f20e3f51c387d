/* alone.c - requests of one thread, without a core, on connections of its own; of several servers at once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void ignore(void *core) {
    (void)core;
}

const dli_backend_env_t dli_redis_no_core = {.lock = ignore, .unlock = ignore};

dl_status_t dli_redis_open_alone(const dli_redis_t *redis, dli_redis_t **alone, dl_error_t *err) {
    /* Never idle for so long. */
    const dli_mux_options_t options = {
        .is_quiet = true, .idle_timeout_ms = 3600000, .idle_check_ms = 3600000};
    dli_redis_t *made = *alone = calloc(1, sizeof *made);
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    memcpy(made, redis, offsetof(dli_redis_t, mux)); /* others may be using the client */
    made->core = &dli_redis_no_core;
    return dli_redis_make_mux(made, &options, err);
}

void dli_redis_close_alone(dli_redis_t *alone) {
    if (alone != NULL) {
        dli_mux_close(&alone->mux, false);
        free(alone);
    }
}

/* ---- exchanges -------------------------------------------------------------------------------------- */

static dli_exchange_t *exchange_of(dli_redis_request_t *wire) {
    return (dli_exchange_t *)(void *)wire;
}

static void encode(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    (void)with_source;
    dli_commands_append(commands, exchange_of(wire)->commands);
}

static void end(dli_exchange_t *x, dl_status_t status) {
    x->status = status;
    x->is_pending = false;
    x->heard_ns = x->redis->env->now_ns();
    if (x->then != NULL) {
        x->then(x);
    }
}

static void exchange_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    dli_exchange_t *x = exchange_of(wire);
    if (status != DL_OK) {
        x->err = *why;
        x->err.status = status;
    }
    end(x, status);
}

static const dli_redis_kind_t reading = {.intent = DLI_READ, .encode = encode, .ended = exchange_ended};
static const dli_redis_kind_t writing = {.intent = DLI_PLAIN, .encode = encode, .ended = exchange_ended};

void dli_exchange_begin(dli_exchange_t *x) {
    memset(x->replies, 0, x->commands->count * sizeof *x->replies);
    x->wire = (dli_redis_request_t){.kind = x->writes ? &writing : &reading,
                                    .count = (uint32_t)x->commands->count,
                                    .pipe = x->pipe,
                                    .kept = x->replies};
    if (x->commands->out_of_memory) {
        end(x, dl_driver_fail(&x->err, DL_ENOMEM, 0, "out of memory"));
        return;
    }
    x->is_pending = true;
    dli_mux_begin(&x->redis->mux, &x->wire);
    x->wire.with_source = true; /* there is no other text of it: scripts that are not known are an answer */
}

void dli_replies_free(redisReply **replies, size_t n) {
    for (size_t i = 0; i < n; i++) {
        freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

static void flush(dli_redis_t *redis) {
    redis->core->lock(redis->core->core);
    (void)dli_mux_flush(&redis->mux);
    redis->core->unlock(redis->core->core);
}

/* Once. */
static void listen_all(dli_mux_t *const *muxes, size_t n, uint64_t until_ns) {
    struct pollfd fds[DLI_EXCHANGES_MAX * 2 * DLI_PIPES_MAX];
    size_t counts[DLI_EXCHANGES_MAX], count = 0;
    for (size_t i = 0; i < n; count += counts[i++]) {
        uint64_t mux_ns;
        counts[i] = dli_mux_listen_fds(muxes[i], fds + count, &mux_ns);
        until_ns = mux_ns < until_ns ? mux_ns : until_ns;
    }
    (void)muxes[0]->env->poll(fds, count, until_ns);
    for (size_t i = 0, at = 0; i < n; at += counts[i++]) {
        dli_mux_listen(muxes[i], fds + at, counts[i]);
    }
}

/* Where its time is over. */
static void give_up(dli_exchange_t *x) {
    dli_redis_t *redis = x->redis;
    if (!x->is_pending || redis->env->now_ns() < x->deadline_ns) {
        return;
    }
    redis->core->lock(redis->core->core);
    bool was_sent = dli_mux_withdraw(&redis->mux, &x->wire);
    end(x, dl_driver_fail(&x->err, was_sent && x->writes ? DL_EUNKNOWN : DL_EIO, ETIMEDOUT,
                          "%s: no answer in time", redis->endpoint.label));
    redis->core->unlock(redis->core->core);
}

void dli_exchanges_run(dli_exchange_t *const *exchanges, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (exchanges[i]->is_pending) {
            flush(exchanges[i]->redis);
        }
    }
    for (;;) {
        dli_mux_t *muxes[DLI_EXCHANGES_MAX];
        size_t pending = 0;
        uint64_t until_ns = DL_NO_DEADLINE;
        for (size_t i = 0; i < n; i++) {
            dli_exchange_t *x = exchanges[i];
            if (x->is_pending) {
                muxes[pending++] = &x->redis->mux;
                until_ns = x->deadline_ns < until_ns ? x->deadline_ns : until_ns;
            }
        }
        if (pending == 0) {
            return;
        }
        listen_all(muxes, pending, until_ns);
        for (size_t i = 0; i < n; i++) {
            give_up(exchanges[i]);
        }
    }
}
