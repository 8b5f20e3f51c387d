/* redis_codec_test.c - what is sent to a Redis server, and what its answers may be and mean. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/redis/link/command.h"
#include "drivers/redis/scripts.h"
#include "redis_codec.h"

TestSuite(redis_codec, .timeout = 30);

/* ---- commands --------------------------------------------------------------------------------------- */

static void expect_bytes(const dli_commands_t *commands, const char *bytes, size_t len, size_t count) {
    cr_assert(!commands->out_of_memory);
    cr_assert_eq(commands->count, count);
    cr_assert_eq(commands->len, len, "%zu", commands->len);
    cr_assert_arr_eq(commands->bytes, bytes, len);
}

Test(redis_codec, commands_stand_one_after_the_other) {
    dli_commands_t commands = {0};
    static const char bytes[] =
        "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n";
    dli_slice_t get[] = {dli_slice("GET"), dli_slice("k")};
    dli_slice_t empty[] = {dli_slice("a"), {NULL, 0}};
    dli_commands_add(&commands, 2, get);
    dli_commands_add_words(&commands, "PING", NULL);
    dli_commands_add(&commands, 2, empty);
    expect_bytes(&commands, bytes, sizeof bytes - 1, 3);
    size_t cap = commands.cap;
    dli_commands_clear(&commands);
    cr_assert_eq(commands.len, 0);
    cr_assert_eq(commands.count, 0);
    cr_assert_eq(commands.cap, cap);
    dli_commands_add(&commands, 2, get);
    expect_bytes(&commands, bytes, 20, 1);
    dli_commands_free(&commands);
    cr_assert_null(commands.bytes);
    cr_assert_eq(commands.cap, 0);
    dli_commands_free(&commands);
}

Test(redis_codec, a_word_holds_any_byte) {
    dli_commands_t commands = {0};
    char all[256];
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
    }
    dli_slice_t words[] = {{all, sizeof all}};
    dli_commands_add(&commands, 1, words);
    cr_assert_eq(commands.len, 4 + 6 + 256 + 2);
    cr_assert_arr_eq(commands.bytes, "*1\r\n$256\r\n", 10);
    cr_assert_arr_eq(commands.bytes + 10, all, 256);
    dli_commands_free(&commands);
}

Test(redis_codec, many_words_and_many_commands_fit) {
    dli_commands_t commands = {0};
    dli_slice_t words[1000];
    for (size_t i = 0; i < 1000; i++) {
        words[i] = dli_slice("x");
    }
    for (size_t i = 0; i < 100; i++) {
        dli_commands_add(&commands, 1000, words);
    }
    cr_assert_eq(commands.count, 100);
    cr_assert_eq(commands.len, 100 * (7 + 1000 * 7));
    cr_assert_arr_eq(commands.bytes + 99 * 7007, "*1000\r\n$1\r\nx\r\n", 14);
    dli_commands_clear(&commands);
    dli_commands_add_words(&commands, "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a",
                           "a", "a", "a", "b", NULL);
    cr_assert_eq(commands.len, 5 + 18 * 7);
    cr_assert_arr_eq(commands.bytes + commands.len - 7, "$1\r\nb\r\n", 7);
    dli_commands_free(&commands);
}

Test(redis_codec, what_cannot_be_encoded_is_noted_and_stays_noted) {
    dli_commands_t commands = {0};
    dli_slice_t huge[] = {dli_slice("GET"), {"x", SIZE_MAX - 2}};
    dli_commands_add_words(&commands, "PING", NULL);
    dli_commands_add(&commands, 2, huge);
    cr_assert(commands.out_of_memory);
    dli_commands_add_words(&commands, "PING", NULL);
    cr_assert(commands.out_of_memory);
    cr_assert_eq(commands.count, 1);
    cr_assert_eq(commands.len, strlen("*1\r\n$4\r\nPING\r\n"), "no part of a command is there");
    dli_commands_clear(&commands);
    cr_assert(!commands.out_of_memory);
    /* Together too large, each alone not. */
    huge[1].len = SIZE_MAX / 8 - 10;
    dli_commands_add(&commands, 2, huge);
    cr_assert(commands.out_of_memory);
    cr_assert_eq(commands.len, 0);
    dli_commands_clear(&commands);
    /* So many that the sum of their sizes begins again at zero. */
    dli_slice_t eight[8];
    for (size_t i = 0; i < 8; i++) {
        eight[i] = (dli_slice_t){"x", SIZE_MAX / 8};
    }
    dli_commands_add(&commands, 8, eight);
    cr_assert(commands.out_of_memory);
    dli_commands_clear(&commands);
    dli_commands_add(&commands, 0, huge);
    cr_assert(commands.out_of_memory);
    dli_commands_free(&commands);
}

Test(redis_codec, lengths_of_every_number_of_digits_are_right) {
    static char word[100001];
    for (size_t len = 1; len < sizeof word; len = len % 9 == 0 ? len + 1 : len * 10 - 1) {
        dli_commands_t commands = {0};
        char header[40];
        memset(word, 'w', len);
        word[len] = '\0';
        size_t head = (size_t)snprintf(header, sizeof header, "*1\r\n$%zu\r\n", len);
        for (int i = 0; i < 2; i++) {
            dli_slice_t slice = dli_slice(word);
            dli_commands_add(&commands, 1, &slice);
            dli_commands_add_words(&commands, word, NULL);
        }
        cr_assert_eq(commands.len, 4 * (head + len + 2));
        for (size_t i = 0; i < 4; i++) {
            const char *at = commands.bytes + i * (head + len + 2);
            cr_assert_arr_eq(at, header, head);
            cr_assert_arr_eq(at + head, word, len);
            cr_assert_arr_eq(at + head + len, "\r\n", 2);
        }
        dli_commands_free(&commands);
    }
}

Test(redis_codec, no_byte_stands_behind_the_buffer) {
    static const size_t lens[] = {8, 9, 10, 11, 98, 99, 100, 101};
    char word[128];
    memset(word, 'w', sizeof word);
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        for (size_t first = 0; first < 120; first++) {
            dli_commands_t commands = {0};
            dli_slice_t start = {word, first}, slice = {word, lens[i]};
            dli_commands_add(&commands, 1, &start);
            for (size_t n = 0; n < 200; n++) {
                dli_commands_add(&commands, 1, &slice);
                cr_assert_leq(commands.len, commands.cap);
            }
            dli_commands_free(&commands);
        }
    }
}

Test(redis_codec, numbers_become_words) {
    static const struct {
        int64_t number;
        const char *text;
    } cases[] = {{0, "0"},
                 {-1, "-1"},
                 {30000, "30000"},
                 {INT64_MAX, "9223372036854775807"},
                 {INT64_MIN, "-9223372036854775808"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buffer[24];
        dli_slice_t word = dli_slice_int(buffer, cases[i].number);
        int64_t back = 77;
        cr_assert_eq(word.len, strlen(cases[i].text));
        cr_assert_arr_eq(word.at, cases[i].text, word.len);
        cr_assert(dli_text_int(word.at, word.len, &back));
        cr_assert_eq(back, cases[i].number);
    }
}

Test(redis_codec, only_whole_decimal_numbers_are_numbers) {
    static const char *const cases[] = {"",
                                        "-",
                                        "+1",
                                        " 1",
                                        "1 ",
                                        "1.0",
                                        "0x1",
                                        "01",
                                        "-0",
                                        "00",
                                        "1e3",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "99999999999999999999",
                                        "18446744073709551616",
                                        "12a",
                                        "--1"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t number = 77;
        cr_assert(!dli_text_int(cases[i], strlen(cases[i]), &number), "%s", cases[i]);
        cr_assert_eq(number, 77);
    }
    int64_t number = 0;
    cr_assert(dli_text_int("123", 2, &number));
    cr_assert_eq(number, 12, "only the given bytes count");
}

/* ---- replies --------------------------------------------------------------------------------------- */

#define EVERYTHING       \
    "*8\r\n+OK\r\n-ERR " \
    "no\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*0\r\n*2\r\n$0\r\n\r\n:9223372036854775807\r\n"

static void check_everything(const redisReply *reply) {
    cr_assert_eq(reply->type, REDIS_REPLY_ARRAY);
    cr_assert_eq(reply->elements, 8);
    redisReply **e = reply->element;
    cr_assert_eq(e[0]->type, REDIS_REPLY_STATUS);
    cr_assert_str_eq(e[0]->str, "OK");
    cr_assert_eq(e[1]->type, REDIS_REPLY_ERROR);
    cr_assert_str_eq(e[1]->str, "ERR no");
    cr_assert_eq(e[2]->type, REDIS_REPLY_INTEGER);
    cr_assert_eq(e[2]->integer, -12);
    cr_assert_eq(e[3]->type, REDIS_REPLY_STRING);
    cr_assert_eq(e[3]->len, 3);
    cr_assert_eq(memcmp(e[3]->str, "a\r\n", 4), 0);
    cr_assert_eq(e[4]->type, REDIS_REPLY_NIL);
    cr_assert_eq(e[5]->type, REDIS_REPLY_NIL);
    cr_assert_eq(e[6]->type, REDIS_REPLY_ARRAY);
    cr_assert_eq(e[6]->elements, 0);
    cr_assert_eq(e[7]->elements, 2);
    cr_assert_eq(e[7]->element[0]->len, 0);
    cr_assert_eq(e[7]->element[1]->integer, INT64_MAX);
}

Test(redis_codec, every_type_of_the_protocol_is_read) {
    redisReply *reply = decode(EVERYTHING);
    check_everything(reply);
    freeReplyObject(reply);
}

Test(redis_codec, a_reply_may_be_cut_anywhere) {
    static const char bytes[] = EVERYTHING;
    size_t len = sizeof bytes - 1;
    for (size_t cut = 0; cut <= len; cut++) {
        dli_decoder_t decoder;
        start(&decoder);
        cr_assert_eq(dli_decoder_feed(&decoder, bytes, cut, &err), DL_OK);
        redisReply *reply = next(&decoder);
        cr_assert_eq(reply != NULL, cut == len, "cut at %zu", cut);
        if (reply == NULL) {
            cr_assert_eq(dli_decoder_is_empty(&decoder), cut == 0, "cut at %zu", cut);
            cr_assert_eq(dli_decoder_feed(&decoder, bytes + cut, len - cut, &err), DL_OK);
            reply = next(&decoder);
        }
        check_everything(reply);
        freeReplyObject(reply);
        cr_assert(dli_decoder_is_empty(&decoder));
        cr_assert_null(next(&decoder));
        dli_decoder_free(&decoder);
    }
}

Test(redis_codec, byte_by_byte_gives_the_same_and_half_a_reply_is_not_empty) {
    static const char bytes[] = EVERYTHING "+A\r\n";
    dli_decoder_t decoder;
    size_t replies = 0;
    start(&decoder);
    for (size_t i = 0; i < sizeof bytes - 1; i++) {
        cr_assert_eq(dli_decoder_feed(&decoder, bytes + i, 1, &err), DL_OK);
        cr_assert(!dli_decoder_is_empty(&decoder), "byte %zu", i);
        redisReply *reply = next(&decoder);
        replies += reply != NULL;
        cr_assert_eq(dli_decoder_is_empty(&decoder), reply != NULL, "byte %zu", i);
        freeReplyObject(reply);
    }
    cr_assert_eq(replies, 2);
    dli_decoder_free(&decoder);
}

Test(redis_codec, replies_come_in_order_and_the_last_makes_it_empty) {
    dli_decoder_t decoder;
    start(&decoder);
    feed(&decoder, ":1\r\n:2\r\n:3\r\n*1\r\n");
    for (int64_t i = 1; i <= 3; i++) {
        redisReply *reply = next(&decoder);
        int64_t number = 0;
        cr_assert(dli_reply_int(reply, &number));
        cr_assert_eq(number, i);
        cr_assert(!dli_decoder_is_empty(&decoder));
        freeReplyObject(reply);
    }
    cr_assert_null(next(&decoder));
    cr_assert(!dli_decoder_is_empty(&decoder),
              "the header of a list is there, although all bytes are parsed");
    feed(&decoder, "+x\r\n");
    redisReply *reply = next(&decoder);
    cr_assert_eq(reply->elements, 1);
    freeReplyObject(reply);
    cr_assert(dli_decoder_is_empty(&decoder));
    dli_decoder_free(&decoder);
}

Test(redis_codec, a_decoder_that_was_never_made_can_be_freed) {
    dli_decoder_t decoder;
    memset(&decoder, 0, sizeof decoder);
    dli_decoder_free(&decoder);
    cr_assert(!dli_decoder_is_empty(&decoder));
}

/* ---- calls of scripts ------------------------------------------------------------------------------- */

#define SHA_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SHA_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static const dli_script_t script_a = {"a", "return 1", SHA_A}, script_b = {"b", "return 22", SHA_B};

Test(redis_codec, a_call_is_encoded_by_hash_or_by_text) {
    dli_commands_t commands = {0};
    dli_slice_t argv[] = {dli_slice("key"), dli_slice("k2"), {"a\0b", 3}};
    static const char by_hash[] =
        "*6\r\n$7\r\nEVALSHA\r\n$40\r\n" SHA_B "\r\n$1\r\n2\r\n$3\r\nkey\r\n$2\r\nk2\r\n$3\r\na\0b\r\n";
    static const char by_text[] =
        "*6\r\n$4\r\nEVAL\r\n$9\r\nreturn 22\r\n$1\r\n2\r\n$3\r\nkey\r\n$2\r\nk2\r\n$3\r\na\0b\r\n";
    dli_script_encode(&commands, &script_b, false, 2, 3, argv);
    cr_assert_eq(commands.len, sizeof by_hash - 1);
    cr_assert_arr_eq(commands.bytes, by_hash, commands.len);
    dli_commands_clear(&commands);
    dli_script_encode(&commands, &script_b, true, 2, 3, argv);
    cr_assert_eq(commands.len, sizeof by_text - 1);
    cr_assert_arr_eq(commands.bytes, by_text, commands.len);
    dli_commands_free(&commands);
}

Test(redis_codec, a_call_may_have_many_arguments) {
    dli_commands_t commands = {0};
    dli_slice_t argv[100];
    for (size_t i = 0; i < 100; i++) {
        argv[i] = dli_slice(i == 99 ? "z" : "y");
    }
    dli_script_encode(&commands, &script_a, false, 0, 100, argv);
    cr_assert_eq(commands.count, 1);
    cr_assert_arr_eq(commands.bytes, "*103\r\n", 6);
    cr_assert_arr_eq(commands.bytes + commands.len - 14, "$1\r\ny\r\n$1\r\nz\r\n", 14);
    dli_commands_free(&commands);
}
