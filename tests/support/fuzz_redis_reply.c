/* fuzz_redis_reply.c - a libFuzzer target: any bytes as a Redis server's answers, and as an URL. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/link/endpoint.h"
#include "drivers/redis/link/reply.h"

/*
 * Not part of the build. To run it, in the root of the tree:
 *   clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -I. -Iinclude \
 *       tests/support/fuzz_redis_reply.c drivers/redis/link/reply.c drivers/redis/link/endpoint.c \
 *       core/error.c -lhiredis -o fuzz_redis_reply
 *   mkdir corpus && ./fuzz_redis_reply -max_len=4096 corpus
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_message(const dl_error_t *err, dl_status_t status) {
    must(err->status == status && memchr(err->message, '\0', sizeof err->message) != NULL);
    for (const char *c = err->message; *c != '\0'; c++) {
        must((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

static void look_at(const redisReply *reply, size_t depth) {
    dl_error_t err;
    int64_t number;
    must(depth <= DLI_REPLY_DEPTH_MAX);
    must(reply->type >= REDIS_REPLY_STRING && reply->type <= REDIS_REPLY_ERROR);
    must(dli_reply_int(reply, &number) == (reply->type == REDIS_REPLY_INTEGER));
    must(!dli_reply_is_error(reply, "WRONGTYPE") || reply->type == REDIS_REPLY_ERROR);
    dl_status_t status = dli_reply_unexpected(reply, "a command", &err);
    must(status != DL_OK);
    check_message(&err, status);
    if (reply->type == REDIS_REPLY_STRING) {
        (void)dli_text_int(reply->str, reply->len, &number);
    }
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++) {
        look_at(reply->element[i], depth + 1);
    }
}

/* The bytes in pieces; returns how many whole replies there were, or -1 - that many when it was refused. */
static long decode(const uint8_t *data, size_t size, size_t piece) {
    dli_decoder_t decoder;
    dl_error_t err;
    dl_status_t status = DL_OK;
    long count = 0;
    must(dli_decoder_init(&decoder));
    for (size_t i = 0; status == DL_OK && i < size; i += piece) {
        status =
            dli_decoder_feed(&decoder, (const char *)data + i, size - i < piece ? size - i : piece, &err);
        redisReply *reply = NULL;
        while (status == DL_OK && (status = dli_decoder_next(&decoder, &reply, &err)) == DL_OK &&
               reply != NULL) {
            look_at(reply, 0);
            freeReplyObject(reply);
            count++;
        }
    }
    if (status != DL_OK) {
        must(!dli_decoder_is_empty(&decoder));
        check_message(&err, status);
        count = -1 - count;
    }
    dli_decoder_free(&decoder);
    return count;
}

/* A password that stands before the bytes is never repeated. */
static void read_url(const uint8_t *data, size_t size) {
    static const char secret[] = "redis://:hunter2";
    static const dli_endpoint_extras_t nothing = {.database = -1};
    dli_endpoint_t endpoint;
    dl_error_t err;
    char *url = malloc(sizeof secret + size + 1);
    must(url != NULL);
    bool repeated = memmem(data, size, "hunter2", 7) != NULL;
    for (int with_secret = 0; with_secret <= !repeated; with_secret++) {
        size_t at = with_secret ? sizeof secret - 1 : 0;
        memcpy(url, secret, at);
        memcpy(url + at, data, size);
        url[at + size] = '\0';
        dl_status_t status = dli_endpoint_make(&endpoint, url, &nothing, &err);
        if (status == DL_OK) {
            must((endpoint.host == NULL) != (endpoint.path == NULL) && endpoint.database >= 0);
            must(!with_secret || strstr(endpoint.label, "hunter2") == NULL);
        } else {
            check_message(&err, status);
            must(!with_secret || strstr(err.message, "hunter2") == NULL);
        }
        dli_endpoint_free(&endpoint);
    }
    free(url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    long whole = decode(data, size, size + 1);
    must(decode(data, size, 1) == whole);
    must(decode(data, size, 7) == whole);
    read_url(data, size);
    return 0;
}
