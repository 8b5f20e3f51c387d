/* redis_hearing_test.c - the subscriber's side of the protocol, answer by answer, without a server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/link/hearing.h"

static dli_subscriber_t s;
static dli_commands_t said;
static dl_driver_env_t env;
static dl_error_t err;
static uint64_t now_ns;

static uint64_t now(void) {
    return now_ns;
}

static void set_up(void) {
    now_ns = 1000 * NS_PER_MS;
    env = (dl_driver_env_t){.now_ns = now};
    s = (dli_subscriber_t){.env = &env, .heard_ns = now_ns, .out = &said};
    dli_hearing_init(&s);
}

static void tear_down(void) {
    dli_hearing_reset(&s);
    dli_commands_free(&said);
}

TestSuite(redis_hearing, .init = set_up, .fini = tear_down, .timeout = 10);

typedef struct hearer {
    dli_watcher_t watcher; /* the first */
    int heard, deaf;       /* how often it was told so */
} hearer_t;

static void note_heard(dli_watcher_t *watcher, bool hears, const char *message) {
    hearer_t *hearer = (hearer_t *)watcher;
    (void)message;
    hearer->heard += hears;
    hearer->deaf += !hears;
}

static hearer_t *join(const char *channel) {
    hearer_t *hearer = calloc(1, sizeof *hearer);
    hearer->watcher.heard = note_heard;
    cr_assert(dli_hearing_join(&s, channel, strlen(channel), &hearer->watcher));
    return hearer;
}

static void leave(hearer_t *hearer) {
    dli_hearing_leave(&s, &hearer->watcher);
    free(hearer);
}

/* Takes it back. */
static bool is_woken(hearer_t *hearer) {
    bool woken = hearer->heard > 0;
    hearer->heard = 0;
    return woken;
}

/* What is said now; "" is nothing. */
static void must_say(const char *bytes) {
    dli_hearing_speak(&s, now_ns);
    cr_assert_not(said.out_of_memory);
    cr_assert_eq(said.len, strlen(bytes), "%.*s", (int)said.len, said.bytes);
    cr_assert(said.len == 0 || memcmp(said.bytes, bytes, said.len) == 0, "%.*s", (int)said.len, said.bytes);
    dli_commands_clear(&said);
}

static dl_status_t hear(const char *bytes) {
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    cr_assert_eq(redisReaderFeed(reader, bytes, strlen(bytes)), REDIS_OK);
    cr_assert_eq(redisReaderGetReply(reader, &reply), REDIS_OK);
    cr_assert_not_null(reply, "half a reply: %s", bytes);
    dl_status_t status = dli_hearing_hear(&s, reply, &err);
    freeReplyObject(reply);
    redisReaderFree(reader);
    return status;
}

#define SUBSCRIBE_A "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n"
#define SUBSCRIBE_B "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nb\r\n"
#define UNSUBSCRIBE_B "*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\nb\r\n"
#define UNSUBSCRIBE_A "*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\na\r\n"
#define PING "*1\r\n$4\r\nPING\r\n"
#define SUBSCRIBED_A "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
#define SUBSCRIBED_B "*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n"
#define UNSUBSCRIBED_A "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n"
#define MESSAGE_A "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n0\r\n"
#define PONG "*2\r\n$4\r\npong\r\n$0\r\n\r\n"
#define NOPERM "-NOPERM this user may not\r\n"

/* While one is due nothing more is said of it. */
Test(redis_hearing, only_the_last_answer_about_a_channel_counts) {
    leave(join("a"));
    must_say("");
    hearer_t *w = join("a");
    must_say(SUBSCRIBE_A);
    leave(w);
    must_say("");
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    must_say(UNSUBSCRIBE_A);
    w = join("a");
    must_say("");
    cr_assert_neq(w->watcher.channel->state, DLI_CHANNEL_LIVE, "the server ends this subscription next");
    cr_assert_eq(hear(MESSAGE_A), DL_OK);
    cr_assert_not(is_woken(w));
    cr_assert_eq(hear(UNSUBSCRIBED_A), DL_OK);
    cr_assert_neq(w->watcher.channel->state, DLI_CHANNEL_LIVE);
    cr_assert_not(is_woken(w));
    must_say(SUBSCRIBE_A);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert_eq(w->watcher.channel->state, DLI_CHANNEL_LIVE);
    cr_assert(is_woken(w));
    leave(w);
    must_say(UNSUBSCRIBE_A);
    cr_assert_eq(s.count, 1, "it is kept until the answer");
    cr_assert_eq(hear(UNSUBSCRIBED_A), DL_OK);
    cr_assert_eq(s.count, 0);
}

Test(redis_hearing, a_watch_that_left_before_its_subscription_was_sent_leaves_nothing) {
    leave(join("a"));
    cr_assert_eq(s.count, 0);
    hearer_t *w = join("a");
    must_say(SUBSCRIBE_A);
    leave(w);
    leave(join("a")); /* while the answer is still due */
    must_say("");
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    leave(join("a"));
    must_say(UNSUBSCRIBE_A);
    leave(join("a"));
    must_say("");
    cr_assert_eq(hear(UNSUBSCRIBED_A), DL_OK);
    cr_assert_eq(s.count, 0);
}

Test(redis_hearing, a_refusal_of_several_is_sorted_out_one_by_one) {
    hearer_t *a = join("a"), *b = join("b");
    must_say(SUBSCRIBE_A SUBSCRIBE_B);
    cr_assert_eq(hear(NOPERM), DL_OK);
    cr_assert_not(is_woken(a));
    cr_assert_eq(a->deaf, 1);
    cr_assert_null(a->watcher.channel);
    cr_assert_not(is_woken(b));
    cr_assert_eq(hear(SUBSCRIBED_B), DL_OK);
    cr_assert(is_woken(b));
    cr_assert_eq(b->deaf, 0);
    cr_assert_eq(s.count, 1);
    cr_assert(s.refused);
    cr_assert_str_eq(s.why.message, "NOPERM this user may not");
    must_say("");
    leave(b);
    must_say(UNSUBSCRIBE_B);
    cr_assert_eq(hear(NOPERM), DL_OK, "who refuses that lives, too");
    cr_assert_eq(s.count, 0);
    leave(a);
}

Test(redis_hearing, a_ping_follows_silence_only) {
    hearer_t *a = join("a");
    must_say(SUBSCRIBE_A);
    now_ns += DLI_QUIET_NS;
    must_say(""); /* an answer is due already */
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    now_ns += DLI_QUIET_NS - 1;
    must_say("");
    now_ns += 1;
    must_say(PING);
    must_say("");
    cr_assert_eq(hear(MESSAGE_A), DL_OK);
    cr_assert_eq(hear(PONG), DL_OK);
    now_ns += DLI_QUIET_NS;
    must_say(PING);
    cr_assert_eq(hear(NOPERM), DL_OK, "who refuses lives");
    now_ns += DLI_QUIET_NS;
    must_say(PING);
    cr_assert_eq(hear("+PONG\r\n"), DL_OK);
    leave(a);
}

Test(redis_hearing, messages_of_channels_that_nobody_knows_are_ignored) {
    cr_assert_eq(hear(MESSAGE_A), DL_OK);
    hearer_t *b = join("b"), *a = join("a");
    cr_assert_eq(hear(MESSAGE_A), DL_OK);
    cr_assert_not(is_woken(a), "not confirmed, perhaps of a subscription that is about to end");
    must_say(SUBSCRIBE_B SUBSCRIBE_A);
    cr_assert_eq(hear(SUBSCRIBED_B), DL_OK);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert(is_woken(a));
    cr_assert(is_woken(b));
    cr_assert_eq(hear(MESSAGE_A), DL_OK);
    cr_assert(is_woken(a));
    cr_assert_not(is_woken(b));
    leave(a);
    leave(b);
}

/* Another SUBSCRIBE, whose confirmation tells them: what came before is no news. */
Test(redis_hearing, who_joins_a_live_channel_is_told_so_once) {
    hearer_t *a = join("a");
    must_say(SUBSCRIBE_A);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert(is_woken(a));
    leave(a);
    a = join("a"); /* before its end was sent */
    must_say(SUBSCRIBE_A);
    cr_assert_eq(hear(MESSAGE_A), DL_OK);
    cr_assert_not(is_woken(a), "what came before is no news");
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert(is_woken(a));
    hearer_t *other = join("a");
    must_say(SUBSCRIBE_A);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert(is_woken(a), "it may have missed a message meanwhile");
    cr_assert(is_woken(other));
    hearer_t *late = join("a");
    dli_hearing_reset(&s);
    cr_assert_eq(a->deaf, 1, "it heard, though another had just joined");
    cr_assert_eq(late->deaf, 0);
    must_say(SUBSCRIBE_A);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert(is_woken(a));
    leave(late);
    leave(other);
    must_say("");
    leave(a);
    leave(join("a")); /* before it was subscribed to anew */
    must_say(UNSUBSCRIBE_A);
    must_say("");
    cr_assert_eq(hear(UNSUBSCRIBED_A), DL_OK);
    cr_assert_eq(s.count, 0);
}

Test(redis_hearing, only_who_heard_is_told_of_a_loss) {
    hearer_t *a = join("a");
    must_say(SUBSCRIBE_A);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    hearer_t *b = join("b");
    must_say(SUBSCRIBE_B);
    leave(join("c"));
    dli_hearing_reset(&s);
    cr_assert_eq(a->deaf, 1);
    cr_assert_eq(b->deaf, 0);
    dli_hearing_reset(&s);
    cr_assert_eq(a->deaf, 1);
    leave(a);
    leave(b);
    cr_assert_eq(s.count, 0);
}

Test(redis_hearing, what_makes_no_sense_ends_the_connection) {
    static const char *const nonsense[] = {
        SUBSCRIBED_B,
        UNSUBSCRIBED_A,
        PONG,
        "+PONG\r\n",
        "+OK\r\n",
        ":1\r\n",
        "*0\r\n",
        "*-1\r\n",
        "$-1\r\n",
        "*1\r\n:1\r\n",
        "*2\r\n:1\r\n:2\r\n",
        "*3\r\n:1\r\n:2\r\n:3\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$-1\r\n:1\r\n",
        "*3\r\n$7\r\nmessage\r\n:1\r\n:1\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$2\r\naa\r\n:1\r\n",
        "*3\r\n$8\r\nsubscrib\r\n$1\r\na\r\n:1\r\n",
        "*4\r\n$8\r\npmessage\r\n$1\r\na\r\n$1\r\na\r\n$1\r\n0\r\n",
    };
    hearer_t *a = join("a");
    must_say(SUBSCRIBE_A);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        cr_assert_eq(hear(nonsense[i]), DL_EPROTO, "%s", nonsense[i]);
    }
    cr_assert_not(is_woken(a));
    cr_assert_eq(hear(SUBSCRIBED_A), DL_OK);
    cr_assert_eq(hear(SUBSCRIBED_A), DL_EPROTO, "nobody asked a second time");
    cr_assert_neq(hear("-ERR whatever\r\n"), DL_OK, "nor is an error due");
    leave(a);
}
