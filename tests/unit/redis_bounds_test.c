/* redis_bounds_test.c - what a Redis server may not answer: too much, too deep, or not in its protocol. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_codec.h"

TestSuite(redis_bounds, .timeout = 30);

/* The bytes are refused for this reason. */
static void expect_refused(const char *bytes, size_t len, const char *why) {
    dli_decoder_t decoder;
    redisReply *reply = (redisReply *)&decoder;
    start(&decoder);
    dl_status_t status = dli_decoder_feed(&decoder, bytes, len, &err);
    if (status == DL_OK) {
        status = dli_decoder_next(&decoder, &reply, &err);
        cr_assert_null(reply);
    }
    cr_assert_eq(status, DL_EPROTO, "%s: %s", bytes, dl_status_name(status));
    cr_assert_eq(err.status, DL_EPROTO);
    cr_assert_str_eq(err.message, why);
    /* For good. */
    cr_assert(!dli_decoder_is_empty(&decoder));
    cr_assert_eq(dli_decoder_feed(&decoder, "+OK\r\n", 5, &err), DL_EPROTO);
    cr_assert_eq(dli_decoder_next(&decoder, &reply, &err), DL_EPROTO);
    cr_assert_null(reply);
    dli_decoder_free(&decoder);
}

#define REFUSED "the server's answer is refused: "

Test(redis_bounds, a_list_may_not_ask_for_more_items_than_the_bound) {
    char text[64];
    snprintf(text, sizeof text, "*%u\r\n", DLI_REPLY_ITEMS_MAX);
    dli_decoder_t decoder;
    start(&decoder);
    feed(&decoder, text);
    cr_assert_null(next(&decoder), "as many as the bound are fine");
    dli_decoder_free(&decoder);

    snprintf(text, sizeof text, "*%u\r\n", DLI_REPLY_ITEMS_MAX + 1);
    expect_refused(text, strlen(text), REFUSED "it has too many items");
    expect_refused("*1000000000\r\n", 13, REFUSED "it has too many items");
    expect_refused("*2147483647\r\n", 13, REFUSED "it has too many items");
    /* Lists in a list count together. */
    snprintf(text, sizeof text, "*2\r\n*%u\r\n", DLI_REPLY_ITEMS_MAX - 1);
    expect_refused(text, strlen(text), REFUSED "it has too many items");
}

Test(redis_bounds, the_items_are_counted_anew_for_each_reply) {
    dli_decoder_t decoder;
    size_t n = DLI_REPLY_ITEMS_MAX - 7, len = 0;
    char *bytes = malloc(32 + n * 4);
    cr_assert_not_null(bytes);
    len = (size_t)sprintf(bytes, "*%zu\r\n", n);
    for (size_t i = 0; i < n; i++) {
        memcpy(bytes + len, ":1\r\n", 4);
        len += 4;
    }
    start(&decoder);
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(dli_decoder_feed(&decoder, bytes, len, &err), DL_OK);
        redisReply *reply = next(&decoder);
        cr_assert_not_null(reply);
        cr_assert_eq(reply->elements, n);
        freeReplyObject(reply);
        cr_assert(dli_decoder_is_empty(&decoder));
    }
    dli_decoder_free(&decoder);
    free(bytes);
}

Test(redis_bounds, nesting_has_a_bound) {
    char text[4 * 100000 + 1] = "";
    for (size_t i = 0; i < DLI_REPLY_DEPTH_MAX; i++) {
        memcpy(text + 4 * i, "*1\r\n", 5);
    }
    strcat(text, ":5\r\n");
    redisReply *reply = decode(text), *inner = reply;
    for (size_t i = 0; i < DLI_REPLY_DEPTH_MAX; i++) {
        cr_assert_eq(inner->elements, 1);
        inner = inner->element[0];
    }
    cr_assert_eq(inner->integer, 5);
    freeReplyObject(reply);

    for (size_t i = 0; i < 100000; i++) {
        memcpy(text + 4 * i, "*1\r\n", 4);
    }
    const size_t lens[] = {4 * (DLI_REPLY_DEPTH_MAX + 1), 4 * 1000, 4 * 100000};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        dli_decoder_t decoder;
        start(&decoder);
        cr_assert_eq(dli_decoder_feed(&decoder, text, lens[i], &err), DL_OK);
        cr_assert_eq(dli_decoder_next(&decoder, &reply, &err), DL_EPROTO);
        dli_decoder_free(&decoder);
    }
}

Test(redis_bounds, what_resp3_adds_is_refused) {
    static const char *const cases[] = {
        "#t\r\n",       ",1.5\r\n",           "(123\r\n",           "=5\r\ntxt:a\r\n", "%1\r\n:1\r\n:2\r\n",
        "~1\r\n:1\r\n", ">2\r\n+a\r\n+b\r\n", "|1\r\n+a\r\n+b\r\n", "!5\r\nERR x\r\n", "$?\r\n;1\r\na\r\n",
        "*1\r\n#t\r\n", "*2\r\n:1\r\n%0\r\n"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dli_decoder_t decoder;
        redisReply *reply;
        start(&decoder);
        feed(&decoder, cases[i]);
        cr_assert_eq(dli_decoder_next(&decoder, &reply, &err), DL_EPROTO, "%s", cases[i]);
        cr_assert_null(reply);
        dli_decoder_free(&decoder);
    }
}

Test(redis_bounds, garbage_is_refused_with_a_reason) {
    static const struct {
        const char *bytes, *why;
    } cases[] = {
        {"HTTP/1.1 400 Bad Request\r\n", "Protocol error, got \"H\" as reply type byte"},
        {"\r\n", "Protocol error, got \"\\r\" as reply type byte"},
        {"\x15\x03\x01", "Protocol error, got \"\\x15\" as reply type byte"},
        {":12a\r\n", "Bad integer value"},
        {":\r\n", "Bad integer value"},
        {":99999999999999999999\r\n", "Bad integer value"},
        {"$abc\r\n", "Bad bulk string length"},
        {"$-2\r\n", "Bulk string length out of range"},
        {"*x\r\n", "Bad multi-bulk length"},
        {"*-2\r\n", "Multi-bulk length out of range"},
        {"*1\r\nx", "Protocol error, got \"x\" as reply type byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[200];
        snprintf(why, sizeof why, "the server's answer is not in the protocol of Redis: %s", cases[i].why);
        expect_refused(cases[i].bytes, strlen(cases[i].bytes), why);
    }
}

/* Feeds `len` bytes of `byte` in pieces of `piece` until that is refused; returns how many were taken. */
static size_t pour(dli_decoder_t *decoder, char byte, size_t piece, size_t len) {
    static char bytes[1 << 20];
    redisReply *reply = NULL;
    memset(bytes, byte, piece);
    size_t done = 0;
    while (done < len) {
        if (dli_decoder_feed(decoder, bytes, piece, &err) != DL_OK) {
            break;
        }
        done += piece;
        if (dli_decoder_next(decoder, &reply, &err) != DL_OK) {
            break;
        }
        cr_assert_null(reply);
    }
    return done;
}

Test(redis_bounds, a_reply_has_at_most_16_mib) {
    const size_t max = 16u * 1024 * 1024, piece = 1 << 20;
    char header[32];
    dli_decoder_t decoder;
    /* Exactly the bound, counted with its header and its end. */
    size_t text = max - 2 - 11;
    start(&decoder);
    cr_assert_eq(snprintf(header, sizeof header, "$%zu\r\n", text), 11);
    feed(&decoder, header);
    cr_assert_eq(pour(&decoder, 'x', piece, 15 * piece), 15 * piece);
    cr_assert_eq(pour(&decoder, 'x', 1, piece - 13), piece - 13);
    feed(&decoder, "\r\n");
    redisReply *reply = next(&decoder);
    cr_assert_eq(reply->len, text);
    freeReplyObject(reply);
    /* It gave the memory back and counts from zero. */
    cr_assert(dli_decoder_is_empty(&decoder));
    cr_assert_lt(decoder.reader->len, 1024);
    cr_assert_eq(decoder.peak, 0);
    feed(&decoder, ":1\r\n");
    reply = next(&decoder);
    cr_assert_eq(reply->integer, 1);
    freeReplyObject(reply);
    dli_decoder_free(&decoder);

    start(&decoder);
    feed(&decoder, "$16777216\r\n");
    cr_assert_eq(pour(&decoder, 'x', piece, 20 * piece), 15 * piece);
    cr_assert_eq(err.status, DL_EPROTO);
    cr_assert_str_eq(err.message, REFUSED "it is too long");
    dli_decoder_free(&decoder);
}

Test(redis_bounds, a_large_reply_in_small_items_is_bounded_too) {
    dli_decoder_t decoder;
    redisReply *reply;
    size_t fed = 0;
    char item[1 + 3 + 2 + 200 + 2 + 1];
    snprintf(item, sizeof item, "$200\r\n%0200d\r\n", 7);
    start(&decoder);
    feed(&decoder, "*131072\r\n");
    while (dli_decoder_feed(&decoder, item, strlen(item), &err) == DL_OK) {
        fed += strlen(item);
        cr_assert_eq(dli_decoder_next(&decoder, &reply, &err), DL_OK);
        cr_assert_null(reply);
        cr_assert_leq(fed, DLI_REPLY_BYTES_MAX);
    }
    cr_assert_gt(fed, DLI_REPLY_BYTES_MAX - 1000);
    cr_assert_str_eq(err.message, REFUSED "it is too long");
    dli_decoder_free(&decoder);
}

Test(redis_bounds, a_line_without_end_is_refused_early) {
    static const char *const starts[] = {"+", "-ERR ", ":", "$", "*", "*2\r\n:1\r\n+"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        dli_decoder_t decoder;
        start(&decoder);
        feed(&decoder, starts[i]);
        size_t taken = pour(&decoder, '1', 1000, 1000000);
        cr_assert_leq(taken, DLI_REPLY_LINE_MAX + 1000, "%s: %zu", starts[i], taken);
        cr_assert_gt(taken, DLI_REPLY_LINE_MAX - 1000);
        cr_assert_str_eq(err.message, REFUSED "a line of it is too long");
        dli_decoder_free(&decoder);
    }
    /* A long line that ends, and a string as long, are fine. */
    dli_decoder_t decoder;
    start(&decoder);
    feed(&decoder, "+");
    cr_assert_eq(pour(&decoder, 'x', 1000, 60000), 60000);
    feed(&decoder, "\r\n$300000\r\n");
    redisReply *reply = next(&decoder);
    cr_assert_eq(reply->len, 60000);
    freeReplyObject(reply);
    cr_assert_eq(pour(&decoder, '\n', 1000, 300000), 300000);
    feed(&decoder, "\r\n");
    reply = next(&decoder);
    cr_assert_eq(reply->len, 300000);
    freeReplyObject(reply);
    cr_assert(dli_decoder_is_empty(&decoder));
    dli_decoder_free(&decoder);
}
