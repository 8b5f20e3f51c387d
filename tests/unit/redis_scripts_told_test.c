/* redis_scripts_told_test.c - each way to free a lock is told; a level sent twice counts once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_scripts_fixture.h"

TestSuite(redis_scripts_told, .init = set_up, .fini = tear_down, .timeout = 60);

/* The message that has come, or comes within a while. */
static void expect_message(redisContext *listener, const char *what) {
    struct pollfd fd = {.fd = listener->fd, .events = POLLIN};
    redisReply *told = NULL;
    cr_assert_eq(poll(&fd, 1, 2000), 1, "%s: nobody was told", what);
    cr_assert_eq(redisGetReply(listener, (void **)&told), REDIS_OK);
    cr_assert_eq(told->elements, 3);
    cr_assert_str_eq(told->element[0]->str, "message");
    cr_assert_str_eq(told->element[1]->str, CHANNEL);
    cr_assert_str_eq(told->element[2]->str, "0");
    freeReplyObject(told);
}

Test(redis_scripts_told, a_release_and_a_release_by_force_are_told) {
    redisContext *listener = must_connect();
    const char *subscribe[] = {"SUBSCRIBE", CHANNEL};
    cr_assert_str_eq(send_words(listener, 2, subscribe), "[subscribe," CHANNEL ",1]");
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, A, "7")));
            cr_assert_str_eq(drop(l, A, "7", "0"), "1");
            expect_message(listener, l->name);
            cr_assert(is_token(take(l, A, "8")));
            cr_assert_str_eq(force(l), "1");
            expect_message(listener, l->name);
            /* Where nothing ends there is nothing to tell. */
            cr_assert_str_eq(force(l), "0");
            cr_assert_str_eq(drop(l, A, "8", "0"), "nil");
            cr_assert(is_token(take(l, A, "9")));
            cr_assert_str_eq(drop(l, A, "9", "1"), "0");
            ask("DEL", LOCK, NULL);
        }
    struct pollfd more = {.fd = listener->fd, .events = POLLIN};
    cr_assert_str_eq(ask("PING", NULL), "PONG");
    cr_assert_eq(poll(&more, 1, 0), 0, "told more than was freed");
    redisFree(listener);
}

Test(redis_scripts_told, a_level_that_is_lowered_twice_is_lowered_once) {
    const layout_t *hash = &layouts[1];
    cr_assert(is_token(take(hash, A, "7")));
    cr_assert_str_eq(take_at(hash, A, "7", "3", "30000", "0"), "1");
    for (int i = 0; i < 3; i++) {
        cr_assert_str_eq(drop(hash, A, "7", "2"), "0");
        cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "2");
    }
    cr_assert_str_eq(drop(hash, A, "7", "1"), "0");
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "1");
    cr_assert_str_eq(drop(hash, A, "7", "0"), "1");
    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
}
