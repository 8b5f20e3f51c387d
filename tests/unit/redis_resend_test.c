/* redis_resend_test.c - scripts go by their hash, and by their text where the server has forgotten them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_codec.h"

#include "drivers/redis/scripts.h"

TestSuite(redis_resend, .timeout = 30);

/* ---- a link that answers what the test says ------------------------------------------------------------ */

#define CALLS_MAX 40

/* One round trip. */
typedef struct scripted {
    dl_status_t status;
    uint64_t sent_ns;
    const char *answers[CALLS_MAX]; /* NULL: none came */
    size_t n;                       /* as many commands are expected */
} scripted_t;

static scripted_t rounds[2];
static size_t ran;
static char sent[2][8192];
static dli_exchange_t seen[2];

dl_status_t dli_link_run(dli_link_t *link, dli_exchange_t *exchange, dl_error_t *error) {
    cr_assert_lt(ran, 2, "no third round trip");
    cr_assert_null(link);
    const scripted_t *round = &rounds[ran];
    cr_assert(!exchange->commands->out_of_memory);
    cr_assert_eq(exchange->commands->count, round->n, "%zu", exchange->commands->count);
    cr_assert_lt(exchange->commands->len, sizeof sent[0]);
    memcpy(sent[ran], exchange->commands->bytes, exchange->commands->len);
    seen[ran++] = *exchange;
    exchange->sent_ns = round->sent_ns;
    for (size_t i = 0; i < round->n; i++) {
        cr_assert_null(exchange->replies[i]);
        exchange->replies[i] = round->answers[i] != NULL ? decode(round->answers[i]) : NULL;
    }
    return round->status == DL_OK ? DL_OK : dl_driver_fail(error, round->status, 0, "round %zu", ran);
}

#define FORGOTTEN "-NOSCRIPT No matching script. Please use EVAL.\r\n"
#define SHA_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SHA_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static const dli_script_t script_a = {"a", "return 1", SHA_A}, script_b = {"b", "return 22", SHA_B};
static redisReply *replies[CALLS_MAX];
static uint64_t sent_ns[CALLS_MAX];
static const dl_stop_t stop = {{-1, -1}};

static dl_status_t run(dli_exchange_t *exchange, const dli_script_call_t *calls, size_t n) {
    memset(replies, 0x55, sizeof replies);
    memset(sent_ns, 0x55, sizeof sent_ns);
    memset(sent, 0, sizeof sent);
    ran = 0;
    *exchange = (dli_exchange_t){.replies = replies,
                                 .lane = DLI_LANE_RENEWALS,
                                 .intent = DLI_FREE,
                                 .deadline_ns = 123456789,
                                 .stop = &stop};
    return dli_scripts_run(NULL, exchange, calls, n, sent_ns, &err);
}

static void expect_number(size_t i, int64_t expected) {
    int64_t number = 0;
    cr_assert(dli_reply_int(replies[i], &number), "reply %zu", i);
    cr_assert_eq(number, expected);
    freeReplyObject(replies[i]);
}

/* Three calls: a, b, a. */
static void three(dli_script_call_t calls[3], const dli_slice_t *argv) {
    for (size_t i = 0; i < 3; i++) {
        calls[i] = (dli_script_call_t){i == 1 ? &script_b : &script_a, 1, 2, argv};
    }
}

/* ---- encoding --------------------------------------------------------------------------------------- */

Test(redis_resend, a_call_is_encoded_by_hash_or_by_text) {
    dli_commands_t commands = {0};
    dli_slice_t argv[] = {dli_slice("key"), dli_slice("k2"), {"a\0b", 3}};
    dli_script_call_t call = {&script_b, 2, 3, argv};
    static const char by_hash[] =
        "*6\r\n$7\r\nEVALSHA\r\n$40\r\n" SHA_B "\r\n$1\r\n2\r\n$3\r\nkey\r\n$2\r\nk2\r\n$3\r\na\0b\r\n";
    static const char by_text[] =
        "*6\r\n$4\r\nEVAL\r\n$9\r\nreturn 22\r\n$1\r\n2\r\n$3\r\nkey\r\n$2\r\nk2\r\n$3\r\na\0b\r\n";
    dli_script_encode(&commands, &call, false);
    cr_assert_eq(commands.len, sizeof by_hash - 1);
    cr_assert_arr_eq(commands.bytes, by_hash, commands.len);
    dli_commands_clear(&commands);
    dli_script_encode(&commands, &call, true);
    cr_assert_eq(commands.len, sizeof by_text - 1);
    cr_assert_arr_eq(commands.bytes, by_text, commands.len);
    dli_commands_free(&commands);
}

Test(redis_resend, a_call_may_have_many_arguments) {
    dli_commands_t commands = {0};
    dli_slice_t argv[100];
    for (size_t i = 0; i < 100; i++) {
        argv[i] = dli_slice(i == 99 ? "z" : "y");
    }
    dli_script_call_t call = {&script_a, 0, 100, argv};
    dli_script_encode(&commands, &call, false);
    cr_assert_eq(commands.count, 1);
    cr_assert_arr_eq(commands.bytes, "*103\r\n", 6);
    cr_assert_arr_eq(commands.bytes + commands.len - 14, "$1\r\ny\r\n$1\r\nz\r\n", 14);
    dli_commands_free(&commands);
}

/* ---- running ---------------------------------------------------------------------------------------- */

Test(redis_resend, known_scripts_take_one_round_trip) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    rounds[0] = (scripted_t){DL_OK, 1000, {":1\r\n", ":2\r\n", ":3\r\n"}, 3};
    cr_assert_eq(run(&exchange, calls, 3), DL_OK);
    cr_assert_eq(ran, 1);
    for (size_t i = 0; i < 3; i++) {
        expect_number(i, (int64_t)i + 1);
        cr_assert_eq(sent_ns[i], 1000);
    }
    cr_assert_eq(exchange.sent_ns, 1000);
    cr_assert_null(exchange.commands, "they are gone");
    cr_assert_has(sent[0], "EVALSHA");
    cr_assert_null(strstr(sent[0], "return"));
}

Test(redis_resend, a_forgotten_script_is_sent_again_and_counts_from_then) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    rounds[0] = (scripted_t){DL_OK, 1000, {FORGOTTEN}, 1};
    rounds[1] = (scripted_t){DL_OK, 2000, {":7\r\n"}, 1};
    cr_assert_eq(run(&exchange, calls, 1), DL_OK);
    cr_assert_eq(ran, 2);
    expect_number(0, 7);
    cr_assert_eq(sent_ns[0], 2000);
    cr_assert_eq(exchange.sent_ns, 2000);
    cr_assert_str_eq(sent[1], "*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\nv\r\n");
    cr_assert_eq(seen[1].lane, DLI_LANE_RENEWALS);
    cr_assert_eq(seen[1].intent, DLI_FREE);
    cr_assert_eq(seen[1].deadline_ns, 123456789);
    cr_assert_eq(seen[1].stop, &stop);
    cr_assert_eq(exchange.replies, replies);
    /* Nobody has to ask for the instants. */
    ran = 0;
    cr_assert_eq(dli_scripts_run(NULL, &exchange, calls, 1, NULL, &err), DL_OK);
    expect_number(0, 7);
    cr_assert_eq(exchange.sent_ns, 2000);
}

Test(redis_resend, only_what_was_forgotten_is_sent_again) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    rounds[0] = (scripted_t){DL_OK, 1000, {FORGOTTEN, ":5\r\n", FORGOTTEN}, 3};
    rounds[1] = (scripted_t){DL_OK, 2000, {":6\r\n", "-OOM x\r\n"}, 2};
    cr_assert_eq(run(&exchange, calls, 3), DL_OK);
    expect_number(0, 6);
    expect_number(1, 5);
    cr_assert(dli_reply_is_error(replies[2], "OOM"));
    freeReplyObject(replies[2]);
    cr_assert_eq(sent_ns[0], 2000);
    cr_assert_eq(sent_ns[1], 1000);
    cr_assert_eq(sent_ns[2], 2000);
    cr_assert_eq(exchange.sent_ns, 1000, "the earliest is safe for all");
}

Test(redis_resend, a_large_batch_is_resent_whole) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[CALLS_MAX];
    dli_exchange_t exchange;
    char numbers[CALLS_MAX][8];
    for (size_t i = 0; i < CALLS_MAX; i++) {
        calls[i] = (dli_script_call_t){&script_a, 1, 2, argv};
        snprintf(numbers[i], sizeof numbers[i], ":%zu\r\n", i);
        rounds[0].answers[i] = FORGOTTEN;
        rounds[1].answers[i] = numbers[i];
    }
    rounds[0].n = rounds[1].n = CALLS_MAX;
    rounds[1].sent_ns = 9;
    cr_assert_eq(run(&exchange, calls, CALLS_MAX), DL_OK);
    for (size_t i = 0; i < CALLS_MAX; i++) {
        expect_number(i, (int64_t)i);
        cr_assert_eq(sent_ns[i], 9);
    }
}

Test(redis_resend, a_server_that_forgets_at_once_is_not_asked_for_ever) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    rounds[0] = rounds[1] = (scripted_t){DL_OK, 1000, {FORGOTTEN}, 1};
    cr_assert_eq(run(&exchange, calls, 1), DL_OK);
    cr_assert(dli_reply_is_error(replies[0], "NOSCRIPT"));
    freeReplyObject(replies[0]);
}

/* ---- failing ---------------------------------------------------------------------------------------- */

Test(redis_resend, a_first_round_that_fails_keeps_the_answers_it_got) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    rounds[0] = (scripted_t){DL_EUNKNOWN, 1000, {":1\r\n", FORGOTTEN, NULL}, 3};
    cr_assert_eq(run(&exchange, calls, 3), DL_EUNKNOWN);
    cr_assert_eq(ran, 1);
    cr_assert_str_eq(err.message, "round 1");
    expect_number(0, 1);
    cr_assert_null(replies[1], "a refusal to run is no answer");
    cr_assert_null(replies[2]);
    cr_assert_eq(sent_ns[0], 1000);
}

Test(redis_resend, a_second_round_that_fails_keeps_the_answers_of_both) {
    dli_slice_t argv[] = {dli_slice("k"), dli_slice("v")};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    rounds[0] = (scripted_t){DL_OK, 1000, {FORGOTTEN, ":1\r\n", FORGOTTEN}, 3};
    rounds[1] = (scripted_t){DL_EUNKNOWN, 2000, {":2\r\n", NULL}, 2};
    cr_assert_eq(run(&exchange, calls, 3), DL_EUNKNOWN);
    cr_assert_str_eq(err.message, "round 2");
    expect_number(0, 2);
    expect_number(1, 1);
    cr_assert_null(replies[2]);
    cr_assert_null(exchange.commands);
    rounds[1] = (scripted_t){DL_EIO, 0, {NULL, NULL}, 2};
    cr_assert_eq(run(&exchange, calls, 3), DL_EIO);
    cr_assert_null(replies[0]);
    expect_number(1, 1);
    cr_assert_null(replies[2]);
    cr_assert_eq(sent_ns[1], 1000);
}

Test(redis_resend, nothing_to_do_needs_no_server) {
    dli_exchange_t exchange;
    cr_assert_eq(run(&exchange, NULL, 0), DL_OK);
    cr_assert_eq(ran, 0);
}

Test(redis_resend, what_cannot_be_encoded_is_not_sent) {
    dli_slice_t argv[] = {dli_slice("k"), {"v", SIZE_MAX / 2}};
    dli_script_call_t calls[3];
    dli_exchange_t exchange;
    three(calls, argv);
    cr_assert_eq(run(&exchange, calls, 2), DL_ENOMEM);
    cr_assert_eq(err.status, DL_ENOMEM);
    cr_assert_eq(ran, 0);
    cr_assert_null(replies[0]);
    cr_assert_null(replies[1]);
}
