/* redis_scripts_told_test.c - each way to free a lock is told; a level sent twice counts once. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_scripts_fixture.h"

TestSuite(redis_scripts_told, .init = set_up, .fini = tear_down, .timeout = 60);

/* The message that has come, or comes within a while, on this channel. */
static void expect_on(redisContext *listener, const char *channel, const char *text, const char *what) {
    redisReply *told = NULL;
    cr_assert_eq(redisSetTimeout(listener, (struct timeval){.tv_sec = 2}), REDIS_OK);
    cr_assert_eq(redisGetReply(listener, (void **)&told), REDIS_OK, "%s: nobody was told", what);
    cr_assert_eq(told->elements, 3);
    cr_assert_str_eq(told->element[0]->str, "message");
    cr_assert_str_eq(told->element[1]->str, channel);
    cr_assert_str_eq(told->element[2]->str, text);
    freeReplyObject(told);
}

static void expect_message(redisContext *listener, const char *what) {
    expect_on(listener, CHANNEL, "0", what);
}

/* The server tells before it answers. */
static void expect_silence(redisContext *listener) {
    struct pollfd more = {.fd = listener->fd, .events = POLLIN};
    cr_assert_str_eq(ask("PING", NULL), "PONG");
    cr_assert_eq(poll(&more, 1, 0), 0, "told more than was freed");
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
            cr_assert_str_eq(force(l), "nil");
            cr_assert_str_eq(drop(l, A, "8", "0"), "nil");
            cr_assert(is_token(take(l, A, "9")));
            cr_assert_str_eq(drop(l, A, "9", "1"), "0");
            ask("DEL", LOCK, NULL);
        }
    expect_silence(listener);
    redisFree(listener);
}

/* By whatever finds that others have written into the hash of hold 7, or by force: what it answers. */
static const char *end_it(int how) {
    const layout_t *hash = &layouts[1];
    return how == 0   ? drop(hash, A, "7", "0")
           : how == 1 ? drop(hash, A, "7", "1")
           : how == 2 ? renew(hash, A, "7", "30000")
           : how == 3 ? take_at(hash, A, "7", "2", "30000", "0")
                      : force(hash);
}

Test(redis_scripts_told, a_lost_hold_is_told_where_nobody_has_the_key_any_more) {
    static const char *const answers[] = {"nil", "nil", "0", "0", "1"};
    redisContext *listener = must_connect();
    const char *subscribe[] = {"SUBSCRIBE", CHANNEL};
    cr_assert_str_eq(send_words(listener, 2, subscribe), "[subscribe," CHANNEL ",1]");
    for (int how = 0; how < 5; how++) {
        cr_assert(is_token(take(&layouts[1], A, "7")));
        ask("HSET", LOCK, "mode", "write", "theirs", "1", NULL);
        cr_assert_str_eq(end_it(how), answers[how], "%d", how);
        ask("DEL", LOCK, NULL);
        cr_assert(is_token(take(&layouts[1], A, "7")));
        ask("HSET", LOCK, "mode", "read", NULL);
        cr_assert_str_eq(end_it(how), answers[how], "%d", how);
        expect_message(listener, "the rest of a read-write lock");
    }
    expect_silence(listener);
    redisFree(listener);
}

/* A lock, freed by a release or by force, with this place where others wait. */
static void free_with(const layout_t *l, const char *peers, int by_force) {
    cr_assert(is_token(take(l, A, "7")));
    cr_assert_str_eq(run_on(server.admin, l->release, "1", LOCK, by_force ? A ":7" : A, by_force ? "" : "7",
                            "0", CHANNEL, peers, "queue:" LOCK, "1", NULL),
                     "1");
}

Test(redis_scripts_told, others_are_told_on_a_channel_of_theirs_with_the_key) {
    redisContext *listener = must_connect();
    const char *subscribe[] = {"PSUBSCRIBE", "app-channel:*"};
    cr_assert_str_eq(send_words(listener, 2, subscribe), "[psubscribe,app-channel:*,1]");
    cr_assert_eq(redisSetTimeout(listener, (struct timeval){.tv_sec = 2}), REDIS_OK);
    for (int by_force = 0; by_force < 2; by_force++) {
        redisReply *told = NULL;
        free_with(&layouts[0], "app-channel:" LOCK, by_force);
        cr_assert_eq(redisGetReply(listener, (void **)&told), REDIS_OK, "nobody was told");
        cr_assert_eq(told->elements, 4);
        cr_assert_str_eq(told->element[2]->str, "app-channel:" LOCK);
        cr_assert_str_eq(told->element[3]->str, LOCK);
        freeReplyObject(told);
    }
    redisFree(listener);
}

/* B asks as one that waits and hears. */
static const char *ask_in_line(const layout_t *l) {
    return run_on(server.admin, l->acquire, "2", LOCK, TOKENS, B, "2", "1", "30000", "0", "1", "queue:" LOCK,
                  "1", NULL);
}

/* B waits for what A has. */
static void stand_behind(const layout_t *l) {
    cr_assert(is_token(take(l, A, "7")));
    const char *busy = ask_in_line(l);
    cr_assert(strstr(busy, ",1,1]") != NULL, "%s", busy);
}

static const char *leave_to_others(redisContext *c, const layout_t *l) {
    return run_on(c, l->release, "1", LOCK, A, "7", "0", CHANNEL, "", "queue:" LOCK, "0", NULL);
}

static redisContext *must_listen(void) {
    redisContext *listener = must_connect();
    const char *own[] = {"SUBSCRIBE", CHANNEL ":" UUID_B}, *all[] = {"SUBSCRIBE", CHANNEL};
    cr_assert_str_eq(send_words(listener, 2, own), "[subscribe," CHANNEL ":" UUID_B ",1]");
    cr_assert_str_eq(send_words(listener, 2, all), "[subscribe," CHANNEL ",2]");
    return listener;
}

Test(redis_scripts_told, full_memory_keeps_the_first_in_line_its_turn) {
    redisContext *listener = must_listen();
    for
        EACH_LAYOUT(l) {
            stand_behind(l);
            ask("CONFIG", "SET", "maxmemory", "1", NULL);
            cr_assert_str_eq(leave_to_others(server.admin, l), "2");
            ask("CONFIG", "SET", "maxmemory", "0", NULL);
            expect_on(listener, CHANNEL ":" UUID_B, "0", l->name);
            cr_assert(!is_token(take(l, A, "8")), "%s: not reserved", l->name);
            cr_assert(is_token(take(l, B, "2")), "%s: not for him", l->name);
            cr_assert_str_eq(ask("STRLEN", "queue:" LOCK, NULL), "27", "%s: still in line", l->name);
            ask("DEL", LOCK, "queue:" LOCK, NULL);
        }
    expect_silence(listener);
    redisFree(listener);
}

Test(redis_scripts_told, full_memory_keeps_nobody_in_line_who_does_not_hear) {
    for
        EACH_LAYOUT(l) {
            stand_behind(l);
            ask("CONFIG", "SET", "maxmemory", "1", NULL);
            cr_assert_str_eq(leave_to_others(server.admin, l), "1");
            ask("CONFIG", "SET", "maxmemory", "0", NULL);
            cr_assert_str_eq(ask("STRLEN", "queue:" LOCK, NULL), "27", "%s: still in line", l->name);
            ask("DEL", "queue:" LOCK, NULL);
        }
}

Test(redis_scripts_told, who_takes_what_has_expired_stands_in_line_no_more) {
    for
        EACH_LAYOUT(l) {
            stand_behind(l);
            ask("DEL", LOCK, NULL);
            cr_assert(is_token(ask_in_line(l)), "%s", l->name);
            cr_assert_str_eq(ask("STRLEN", "queue:" LOCK, NULL), "27", "%s: still in line", l->name);
            ask("DEL", LOCK, "queue:" LOCK, NULL);
        }
}

/* Else it would be left free after each hold that follows one of another library. */
Test(redis_scripts_told, a_turn_of_others_ends_when_one_who_waits_takes_the_lock) {
    redisContext *listener = must_listen();
    for
        EACH_LAYOUT(l) {
            stand_behind(l);
            cr_assert(begins(run_on(server.admin, l->acquire, "2", LOCK, TOKENS, UUID_A ":2", "8", "1",
                                    "30000", "0", "1", "queue:" LOCK, "1", NULL),
                             "["));
            ask("SETRANGE", "queue:" LOCK, "0", "1700000000000", NULL);
            ask("DEL", LOCK, NULL);
            cr_assert(is_token(run_on(server.admin, l->acquire, "2", LOCK, TOKENS, A, "7", "1", "30000", "0",
                                      "1", "queue:" LOCK, "1", NULL)));
            cr_assert_str_eq(leave_to_others(server.admin, l), "2", "%s: left free again", l->name);
            ask("DEL", LOCK, "queue:" LOCK, NULL);
        }
    redisFree(listener);
}

/* Somebody else's, of the length that a queue may have. */
Test(redis_scripts_told, what_is_no_queue_is_in_nobodys_way) {
    static const char entry[] = UUID_B "9999999999999";
    static const char *const heads[] = {"no queue, but of this length", "                           ",
                                        "          nan          nan",   "          inf          inf",
                                        "1000000000000-             ",  "1000000000000x0000000000000",
                                        "-1e99        9-1e99        "};
    redisContext *listener = must_listen();
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        for (int entries = 0; entries < 3; entries++) {
            for
                EACH_LAYOUT(l) {
                    char text[27 + 2 * sizeof entry + 1];
                    snprintf(text, sizeof text, "%.27s%s%s", heads[i], entries > 0 ? entry : "",
                             entries > 1 ? entry : "");
                    cr_assert(is_token(take(l, A, "7")));
                    ask("SET", "queue:" LOCK, text, NULL);
                    cr_assert(begins(ask_in_line(l), "["), "'%s'", text);
                    ask("SET", "queue:" LOCK, text, NULL);
                    cr_assert_str_eq(leave_to_others(server.admin, l), "1", "'%s'", text);
                    ask("SET", "queue:" LOCK, text, NULL);
                    cr_assert_neq(ask_in_line(l)[0], '-', "'%s'", text);
                    ask("DEL", LOCK, "queue:" LOCK, NULL);
                }
        }
    }
    redisFree(listener);
}

/* Reserved, it would be so again when it is freed. */
Test(redis_scripts_told, who_cannot_take_the_first_out_of_the_line_leaves_the_lock_to_all) {
    redisContext *listener = must_listen(), *c = connect_without("-set");
    for
        EACH_LAYOUT(l) {
            stand_behind(l);
            cr_assert_str_eq(leave_to_others(c, l), "1");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            expect_on(listener, CHANNEL ":" UUID_B, "0", l->name);
            expect_message(listener, l->name);
            ask("DEL", "queue:" LOCK, NULL);
        }
    expect_silence(listener);
    redisFree(c);
    redisFree(listener);
}

/* A fair lock of Redisson's: the list of its waiters, each of whom hears of its turn on a channel of its own.
 */
Test(redis_scripts_told, the_first_of_those_who_wait_for_a_fair_lock_are_told) {
    static const char first[] = UUID_A ":77", second[] = UUID_B ":78";
    redisContext *listener = must_connect();
    const char *subscribe[] = {"SUBSCRIBE", CHANNEL ":" UUID_A ":77", CHANNEL ":" UUID_B ":78"};
    cr_assert(begins(send_words(listener, 3, subscribe), "[subscribe,"));
    redisReply *confirmed = NULL;
    cr_assert_eq(redisGetReply(listener, (void **)&confirmed), REDIS_OK);
    freeReplyObject(confirmed);
    ask("RPUSH", "queue", first, second, NULL);
    for (int by_force = 0; by_force < 2; by_force++) {
        free_with(&layouts[1], "queue", by_force);
        expect_on(listener, subscribe[1], "0", "the first");
        expect_on(listener, subscribe[2], "0", "the second, should the first be gone");
        cr_assert_str_eq(ask("LLEN", "queue", NULL), "2", "it is theirs");
    }
    ask("DEL", "queue", NULL);
    ask("SET", "queue", "no list", NULL);
    free_with(&layouts[1], "queue", 0);
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
