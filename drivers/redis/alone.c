/* alone.c - requests of one thread, one after the other, without a core: on a connection of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* It is never idle for so long. */
#define LONG_MS 3600000

static void ignore(void *core) {
    (void)core;
}

const dli_backend_env_t dli_redis_no_core = {.lock = ignore, .unlock = ignore};

dl_status_t dli_redis_open_alone(const dli_redis_t *redis, uint64_t deadline_ns, dli_redis_t **alone,
                                 dl_error_t *err) {
    const dli_pool_options_t pool = {.is_quiet = true, .idle_timeout_ms = LONG_MS, .idle_check_ms = LONG_MS};
    dli_redis_t *made = *alone = calloc(1, sizeof *made);
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    memcpy(made, redis, offsetof(dli_redis_t, mux)); /* others may be using the client */
    made->core = &dli_redis_no_core;
    return dli_redis_open_mux(made, 1, &pool, deadline_ns, err);
}

void dli_redis_close_alone(dli_redis_t *alone) {
    if (alone != NULL) {
        dli_redis_close_mux(alone, false);
        free(alone);
    }
}

typedef struct question {
    dli_request_t request; /* first */
    dl_status_t status;
    bool over;
} question_t;

static void ended(dli_request_t *request, dl_status_t status) {
    question_t *question = (question_t *)(void *)request;
    question->status = status;
    question->over = true;
}

dl_status_t dli_redis_ask_alone(void *state, const dli_request_t *request) {
    dli_redis_t *alone = state;
    question_t question = {.request = *request};
    question.request.ended = ended;
    dli_redis_begin(alone, &question.request);
    dli_mux_await(alone->mux, &question.over, request->with.deadline_ns);
    if (!question.over) {
        bool was_sent = dli_redis_withdraw(alone, &question.request);
        return dl_driver_fail(request->err, was_sent ? DL_EUNKNOWN : DL_EIO, 0, "%s: no answer in time",
                              alone->endpoint.label);
    }
    return question.status;
}
