/* redis_memory_test.c - commands, answers and URLs of the Redis drivers when memory runs out. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/redis/link/endpoint.h"
#include "drivers/redis/scripts.h"
#include "redis_codec.h"
#include "support/own_malloc.h"

TestSuite(redis_memory, .timeout = 60);

#define SECRET "hunter2hunter2"
#define CALLS 80

/* ---- what is done with too little memory ------------------------------------------------------------ */

static dl_status_t note(dl_status_t status) {
    cr_assert(status == DL_OK || (status == DL_ENOMEM && err.status == DL_ENOMEM), "%s: %s",
              dl_status_name(status), err.message);
    return status;
}

static dl_status_t make_endpoint(void) {
    dli_endpoint_t endpoint;
    dli_endpoint_extras_t extras = {
        .database = -1, .username = "app", .connect_timeout_ms = -1, .keepalive_ms = -1};
    dl_status_t status = note(dli_endpoint_make(&endpoint, "redis://:" SECRET "@cache/1", &extras, &err));
    if (status == DL_OK) {
        cr_assert_str_eq(endpoint.password, SECRET);
        extras.password = SECRET;
        dli_endpoint_free(&endpoint);
        status = note(dli_endpoint_make(&endpoint, "unix:///run/redis.sock", &extras, &err));
    }
    cr_assert_eq(status == DL_OK, endpoint.path != NULL);
    dli_endpoint_free(&endpoint);
    return status;
}

static dl_status_t encode(void) {
    dli_commands_t commands = {0};
    for (int i = 0; i < 400; i++) {
        dli_commands_add_words(&commands, "AUTH", "app", SECRET, NULL);
    }
    dli_commands_add_words(&commands, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13",
                           "14", "15", "16", "17", "18", NULL);
    dl_status_t status = commands.out_of_memory ? DL_ENOMEM : DL_OK;
    cr_assert_eq(commands.count == 401, status == DL_OK);
    dli_commands_free(&commands);
    return status;
}

/* Reads every reply in the bytes, which are fed in pieces. */
static dl_status_t read_replies(const char *bytes, size_t len, size_t piece, redisReply **replies, size_t n) {
    dli_decoder_t decoder;
    dl_status_t status = DL_OK;
    size_t got = 0;
    if (!dli_decoder_init(&decoder)) {
        dli_decoder_free(&decoder);
        return dl_driver_fail(&err, DL_ENOMEM, 0, "no decoder");
    }
    for (size_t i = 0; status == DL_OK && i < len; i += piece) {
        status = note(dli_decoder_feed(&decoder, bytes + i, len - i < piece ? len - i : piece, &err));
        redisReply *reply = NULL;
        while (status == DL_OK && (status = note(dli_decoder_next(&decoder, &reply, &err))) == DL_OK &&
               reply != NULL) {
            cr_assert_lt(got, n);
            replies[got++] = reply;
        }
    }
    cr_assert_eq(got == n && dli_decoder_is_empty(&decoder), status == DL_OK);
    dli_decoder_free(&decoder);
    return status;
}

static void free_replies(redisReply **replies, size_t n) {
    for (size_t i = 0; i < n; i++) {
        freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

/* A long string, so that the parser is exchanged for a fresh one, and a list. */
static dl_status_t read_answers(void) {
    static char bytes[200000];
    redisReply *replies[3] = {NULL};
    size_t len =
        (size_t)sprintf(bytes, "$%d\r\n%0150000d\r\n*3\r\n*1\r\n$1\r\nx\r\n$-1\r\n:5\r\n+OK\r\n", 150000, 7);
    dl_status_t status = read_replies(bytes, len, 20000, replies, 3);
    if (status == DL_OK) {
        cr_assert_eq(replies[0]->len, 150000);
        cr_assert_eq(replies[1]->element[2]->integer, 5);
    }
    free_replies(replies, 3);
    return status;
}

/* Calls of many words, which need a larger buffer four times. */
static dl_status_t encode_calls(void) {
    static const dli_script_t script = {"s", "return 1", "0123456789012345678901234567890123456789"};
    dli_slice_t argv[30];
    dli_commands_t commands = {0};
    for (size_t i = 0; i < 30; i++) {
        argv[i] = dli_slice("x");
    }
    for (size_t i = 0; i < CALLS; i++) {
        dli_script_encode(&commands, &script, false, 1, 30, argv);
    }
    dl_status_t status = commands.out_of_memory ? DL_ENOMEM : DL_OK;
    cr_assert_eq(commands.count == CALLS, status == DL_OK);
    dli_commands_free(&commands);
    return status;
}

static dl_status_t (*const deeds[])(void) = {make_endpoint, encode, read_answers, encode_calls};
#define DEEDS (sizeof deeds / sizeof deeds[0])

Test(redis_memory, enough_memory_is_enough) {
    for (size_t i = 0; i < DEEDS; i++) {
        cr_assert_eq(deeds[i](), DL_OK, "%s", err.message);
    }
}

#if OWN_MALLOC
/* Giving a lock back and renewing it must not fail for lack of memory. */
Test(redis_memory, commands_of_the_usual_size_need_none) {
    dli_commands_t commands = {0};
    char key[450];
    memset(key, 'k', sizeof key);
    dli_slice_t argv[] = {
        {key, sizeof key}, {key, 128}, dli_slice("owner"), {key, sizeof key}, dli_slice("1")};
    static const dli_script_t script = {"s", "return 1", "0123456789012345678901234567890123456789"};
    own_malloc_fail_after(0, 1);
    dli_script_encode(&commands, &script, false, 2, sizeof argv / sizeof argv[0], argv);
    dli_commands_add_words(&commands, "CLIENT", "KILL", "ID", "12345678", NULL);
    bool fits = !commands.out_of_memory && commands.count == 2;
    dli_commands_free(&commands);
    own_malloc_fail_after(-1, 0);
    cr_assert(fits);
    cr_assert_eq(own_malloc_failed(), 0);
}

/* The n-th allocation fails, for every n until none has to. */
static void fail_each(int for_ever) {
    for (size_t i = 0; i < DEEDS; i++) {
        int n = 0, refused = 0;
        do {
            cr_assert_lt(n, 10000);
            own_malloc_count();
            own_malloc_fail_after(n++, for_ever);
            dl_status_t status = deeds[i]();
            own_malloc_fail_after(-1, 0);
            cr_assert_eq(own_malloc_balance(), 0, "deed %zu leaks at allocation %d", i, n);
            refused += status == DL_ENOMEM;
            if (status != DL_OK) {
                cr_assert_gt(own_malloc_failed(), 0);
            }
        } while (own_malloc_failed() > 0);
        cr_assert_geq(refused, 4, "deed %zu: %d", i, refused);
    }
}

Test(redis_memory, each_allocation_fails_once) {
    fail_each(0);
}

Test(redis_memory, each_allocation_fails_and_all_after_it) {
    fail_each(1);
}

/* Whatever is given back to the allocator may be read by the next who gets it. */
Test(redis_memory, passwords_are_wiped_before_memory_is_freed) {
    /* volatile, or the compiler drops the copy and its free. */
    char *volatile probe = strdup(SECRET);
    own_malloc_watch(SECRET);
    dl_status_t made = make_endpoint(), encoded = encode();
    own_malloc_watch(NULL);
    cr_assert_eq(made, DL_OK);
    cr_assert_eq(encoded, DL_OK);
    cr_assert_eq(own_malloc_found(), 0);
    /* The test must be able to fail. */
    own_malloc_watch(SECRET);
    free(probe);
    own_malloc_watch(NULL);
    cr_assert_eq(own_malloc_found(), 1);
}
#endif
