/* redis_codec.h - feeding bytes to the decoder of the Redis drivers, for unit tests. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDIS_CODEC_H
#define REDIS_CODEC_H

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/link/reply.h"

static dl_error_t err;

static inline void start(dli_decoder_t *decoder) {
    cr_assert(dli_decoder_init(decoder));
    cr_assert(dli_decoder_is_empty(decoder));
}

static inline void feed(dli_decoder_t *decoder, const char *text) {
    cr_assert_eq(dli_decoder_feed(decoder, text, strlen(text), &err), DL_OK, "%s", err.message);
}

static inline redisReply *next(dli_decoder_t *decoder) {
    redisReply *reply = NULL;
    cr_assert_eq(dli_decoder_next(decoder, &reply, &err), DL_OK, "%s", err.message);
    return reply;
}

/* The one reply that the bytes are. */
static inline redisReply *decode(const char *text) {
    dli_decoder_t decoder;
    start(&decoder);
    feed(&decoder, text);
    redisReply *reply = next(&decoder);
    cr_assert_not_null(reply, "%s", text);
    cr_assert(dli_decoder_is_empty(&decoder), "%s", text);
    dli_decoder_free(&decoder);
    return reply;
}

#endif
