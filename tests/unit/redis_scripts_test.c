/* redis_scripts_test.c - what the lock scripts of both layouts promise, on a real server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_scripts_fixture.h"

TestSuite(redis_scripts, .init = set_up, .fini = tear_down, .timeout = 60);

Test(redis_scripts, the_server_names_each_script_as_we_do) {
    size_t n = 0;
    for (; dli_scripts[n] != NULL; n++) {
        cr_assert_str_eq(ask("SCRIPT", "LOAD", dli_scripts[n]->source, NULL), dli_scripts[n]->sha, "%s",
                         dli_scripts[n]->name);
        cr_assert_null(strstr(dli_scripts[n]->source, "--"), "%s carries a comment", dli_scripts[n]->name);
    }
    cr_assert_eq(n, 9);
    cr_assert_str_eq(ask("EVALSHA", dli_script_string_inspect.sha, "1", LOCK, NULL), "nil");
}

/* ---- taking ----------------------------------------------------------------------------------------- */

Test(redis_scripts, a_free_lock_is_taken_with_the_full_lease_and_a_token) {
    for
        EACH_LAYOUT(l) {
            const char *token = take(l, A, "7");
            cr_assert(is_token(token), "%s: %s", l->name, token);
            cr_assert_str_eq(ask("GET", TOKENS, NULL), token);
            cr_assert_str_eq(ask("TYPE", LOCK, NULL), l->name);
            cr_assert_gt(left_ms(), 29000);
            cr_assert_leq(left_ms(), 30000);
            cr_assert_str_eq(ask("PTTL", TOKENS, NULL), "-1");
            cr_assert(is_busy(inspect(l), 29000, 30000, A ":7,1,1,]"), "%s", inspect(l));
            ask("DEL", LOCK, NULL);
        }
}

Test(redis_scripts, another_owner_is_told_how_long_and_changes_nothing) {
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, A, "7")));
            const char *before = content(LOCK), *tokens = content(TOKENS);
            cr_assert(is_busy(take(l, B, "900"), 29000, 30000, A ":7,1,0]"), "%s", take(l, B, "900"));
            cr_assert_str_eq(content(LOCK), before);
            ask("PERSIST", LOCK, NULL);
            cr_assert_str_eq(take(l, B, "900"), "[-1," A ":7,1,0]");
            cr_assert_str_eq(content(TOKENS), tokens, "a token was drawn for nothing");
            ask("DEL", LOCK, NULL);
        }
}

Test(redis_scripts, a_larger_hold_id_of_the_same_owner_replaces_a_smaller_never_the_reverse) {
    for
        EACH_LAYOUT(l) {
            long long first = atoll(take(l, A, "9"));
            /* As numbers, not as texts: "10" sorts before "9". */
            long long second = atoll(take_at(l, A, "10", "1", "2000", "0"));
            cr_assert_gt(second, first);
            cr_assert_leq(left_ms(), 2000, "the full lease is the new one");
            cr_assert(is_busy(take(l, A, "9"), 1, 2000, A ":10,1,0]"), "%s", take(l, A, "9"));
            long long again = atoll(take(l, A, "10"));
            cr_assert_gt(again, second, "sent twice");
            cr_assert_gt(left_ms(), 29000);
            cr_assert(is_token(take(l, A, "9007199254740991")));
            cr_assert(is_busy(take(l, A, "9007199254740990"), 29000, 30000, A ":9007199254740991,1,0]"));
            cr_assert_str_eq(drop(l, A, "9007199254740991", "0"), "1");
        }
}

Test(redis_scripts, an_owner_is_compared_whole) {
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, UUID_A ":12", "7")));
            cr_assert(is_busy(take(l, A, "900"), 1, 30000, UUID_A ":12:7,1,0]"));
            cr_assert(is_busy(take(l, UUID_A ":123", "900"), 1, 30000, UUID_A ":12:7,1,0]"));
            cr_assert_str_eq(drop(l, A, "7", "0"), "nil");
            cr_assert_str_eq(renew(l, UUID_A ":123", "7", "30000"), "0");
            ask("DEL", LOCK, NULL);
        }
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

Test(redis_scripts, a_token_is_above_the_counter_the_floor_and_the_clock) {
    for
        EACH_LAYOUT(l) {
            ask("DEL", LOCK, TOKENS, NULL);
            cr_assert(is_token(take_at(l, A, "1", "1", "30000", "17")), "a floor below the clock");
            ask("SET", TOKENS, "8000000000000001", NULL);
            cr_assert_str_eq(take(l, A, "2"), "8000000000000002");
            cr_assert_str_eq(take_at(l, A, "3", "1", "30000", "8000000000000009"), "8000000000000010");
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "8000000000000010");
            cr_assert_str_eq(take_at(l, A, "4", "1", "30000", "8000000000000005"), "8000000000000011");
            /* To the last number that is exact, and no further. */
            ask("SET", TOKENS, "9007199254740990", NULL);
            cr_assert_str_eq(take(l, A, "5"), "9007199254740991");
            ask("DEL", LOCK, NULL);
            cr_assert(is_error(take(l, A, "6"), "ETOKEN"));
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "9007199254740991");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
        }
}

Test(redis_scripts, the_counter_keeps_the_last_token_of_a_block) {
    for
        EACH_LAYOUT(l) {
            ask("DEL", LOCK, NULL);
            ask("SET", TOKENS, "8000000000000001", NULL);
            cr_assert_str_eq(take_block(l, A, "1", "0", "33"), "8000000000000002");
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "8000000000000034");
            cr_assert_str_eq(take(l, A, "2"), "8000000000000035");
            cr_assert_str_eq(take_block(l, A, "3", "0", "1"), "8000000000000036");
            cr_assert_str_eq(take_block(l, A, "4", "8000000000000040", "2"), "8000000000000041");
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "8000000000000042");
            cr_assert(begins(take_block(l, B, "1", "0", "33"), "["), "another has it");
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "8000000000000042");
            /* To the last number that is exact, and no further. */
            ask("SET", TOKENS, "9007199254740980", NULL);
            cr_assert_str_eq(take_block(l, A, "6", "0", "11"), "9007199254740981");
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "9007199254740991");
            ask("DEL", LOCK, NULL);
            ask("SET", TOKENS, "9007199254740980", NULL);
            cr_assert(is_error(take_block(l, A, "7", "0", "12"), "ETOKEN"));
            cr_assert_str_eq(ask("GET", TOKENS, NULL), "9007199254740980");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
        }
}

Test(redis_scripts, a_token_key_that_holds_something_else_is_never_overwritten) {
    static const char *const values[] = {"abc",  "",    "-5",    "1.5",
                                         "0x10", " 12", "1e300", "9007199254740992",
                                         "12\n", "12 ", "nan",   "99999999999999999999999"};
    for
        EACH_LAYOUT(l) {
            for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
                ask("SET", TOKENS, values[i], NULL);
                cr_assert(is_error(take(l, A, "1"), "ETOKEN"), "'%s': %s", values[i], take(l, A, "1"));
                cr_assert_str_eq(ask("GET", TOKENS, NULL), values[i]);
                cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            }
            ask("DEL", TOKENS, NULL);
            ask("RPUSH", TOKENS, "x", NULL);
            cr_assert(is_error(take(l, A, "1"), "ETOKEN"));
            cr_assert_str_eq(ask("LRANGE", TOKENS, "0", "-1", NULL), "[x]");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            ask("DEL", TOKENS, NULL);
        }
}

/* ---- freeing and renewing --------------------------------------------------------------------------- */

Test(redis_scripts, a_release_frees_its_own_hold_once_and_tells) {
    redisContext *listener = must_connect();
    const char *subscribe[] = {"SUBSCRIBE", CHANNEL};
    cr_assert_str_eq(send_words(listener, 2, subscribe), "[subscribe," CHANNEL ",1]");
    for
        EACH_LAYOUT(l) {
            cr_assert_str_eq(drop(l, A, "7", "0"), "nil", "nothing there");
            cr_assert(is_token(take(l, A, "7")));
            const char *before = content(LOCK);
            cr_assert_str_eq(drop(l, B, "7", "0"), "nil");
            cr_assert_str_eq(drop(l, A, "6", "0"), "nil");
            cr_assert_str_eq(drop(l, A, "8", "0"), "nil");
            cr_assert_str_eq(content(LOCK), before);
            cr_assert_str_eq(drop(l, A, "7", "0"), "1");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            cr_assert_str_eq(drop(l, A, "7", "0"), "nil");
            redisReply *told = NULL;
            cr_assert_eq(redisGetReply(listener, (void **)&told), REDIS_OK);
            cr_assert_str_eq(told->element[1]->str, CHANNEL);
            cr_assert_str_eq(told->element[2]->str, "0");
            freeReplyObject(told);
        }
    struct pollfd more = {.fd = listener->fd, .events = POLLIN};
    cr_assert_str_eq(ask("PING", NULL), "PONG");
    cr_assert_eq(poll(&more, 1, 0), 0, "told more than was freed");
    redisFree(listener);
}

Test(redis_scripts, a_renewal_extends_its_own_hold_and_nothing_else) {
    for
        EACH_LAYOUT(l) {
            cr_assert_str_eq(renew(l, A, "7", "30000"), "0");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0", "created");
            cr_assert(is_token(take_at(l, A, "7", "1", "5000", "0")));
            cr_assert_str_eq(renew(l, B, "7", "30000"), "0");
            cr_assert_str_eq(renew(l, A, "6", "30000"), "0");
            cr_assert_str_eq(renew(l, A, "8", "30000"), "0");
            cr_assert_leq(left_ms(), 5000);
            cr_assert_str_eq(renew(l, A, "7", "30000"), "1");
            cr_assert_gt(left_ms(), 29000);
            cr_assert_str_eq(renew(l, A, "7", "300000"), "1");
            cr_assert_str_eq(renew(l, A, "7", "30000"), "1");
            cr_assert_gt(left_ms(), 290000, "shortened");
            ask("PERSIST", LOCK, NULL);
            cr_assert_str_eq(renew(l, A, "7", "30000"), "1");
            cr_assert_gt(left_ms(), 29000, "somebody's PERSIST stays");
            cr_assert_leq(left_ms(), 30000, "somebody's PERSIST stays");
            ask("DEL", LOCK, NULL);
        }
}

Test(redis_scripts, an_administrator_sees_and_frees_a_lock) {
    for
        EACH_LAYOUT(l) {
            cr_assert_str_eq(inspect(l), "nil");
            cr_assert_str_eq(force(l), "nil");
            cr_assert(is_token(take(l, A, "7")));
            ask("PERSIST", LOCK, NULL);
            cr_assert_str_eq(inspect(l), "[-1," A ":7,1,1,]");
            cr_assert_str_eq(force(l), "1");
            cr_assert_str_eq(inspect(l), "nil");
            cr_assert_str_eq(renew(l, A, "7", "30000"), "0");
            cr_assert_str_eq(drop(l, A, "7", "0"), "nil");
        }
}

Test(redis_scripts, a_force_frees_what_was_seen_and_nothing_else) {
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, A, "7")));
            cr_assert_str_eq(force_seen(server.admin, l, A ":6"), "nil");
            cr_assert_str_eq(force_seen(server.admin, l, B ":7"), "nil");
            cr_assert_str_eq(force_seen(server.admin, l, A), "nil");
            cr_assert_str_eq(force_seen(server.admin, l, ""), "nil");
            cr_assert_str_eq(renew(l, A, "7", "30000"), "1");
            cr_assert_str_eq(force_seen(server.admin, l, A ":7"), "1");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
        }
}

/* ---- what is not ours, and what is refused ---------------------------------------------------------- */

Test(redis_scripts, a_value_of_another_type_is_an_error_and_stays) {
    for (int i = 0; i < 3; i++) {
        const layout_t *l = &layouts[i % 2];
        ask("DEL", LOCK, NULL);
        if (i == 0) {
            ask("HSET", LOCK, A, "1", A ":h", "7", NULL);
        } else if (i == 1) {
            ask("SET", LOCK, A ":7", NULL);
        } else {
            ask("RPUSH", LOCK, "x", NULL);
        }
        const char *before = content(LOCK);
        cr_assert(begins(take(l, A, "7"), "-WRONGTYPE"), "%s", take(l, A, "7"));
        cr_assert(begins(take_at(l, A, "7", "2", "30000", "0"), "-WRONGTYPE"));
        cr_assert(begins(drop(l, A, "7", "0"), "-WRONGTYPE"));
        cr_assert(begins(drop(l, A, "7", "1"), "-WRONGTYPE"));
        cr_assert(begins(renew(l, A, "7", "30000"), "-WRONGTYPE"));
        cr_assert(begins(inspect(l), "-WRONGTYPE"));
        cr_assert(begins(force(l), "-WRONGTYPE"));
        cr_assert_str_eq(content(LOCK), before);
        cr_assert_str_eq(ask("EXISTS", TOKENS, NULL), "0");
    }
}

Test(redis_scripts, full_memory_refuses_a_new_lock_and_nothing_else) {
    for
        EACH_LAYOUT(l) {
            ask("DEL", TOKENS, NULL);
            ask("CONFIG", "SET", "maxmemory", "1", NULL);
            cr_assert(is_error(take(l, A, "7"), "OOM"), "%s", take(l, A, "7"));
            cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, NULL), "0");
            ask("CONFIG", "SET", "maxmemory", "0", NULL);
            cr_assert(is_token(take(l, A, "7")));
            ask("CONFIG", "SET", "maxmemory", "1", NULL);
            cr_assert(is_error(take(l, A, "8"), "OOM"));
            cr_assert(is_busy(inspect(l), 29000, 30000, A ":7,1,1,]"), "half replaced: %s", inspect(l));
            cr_assert_str_eq(renew(l, A, "7", "60000"), "1");
            cr_assert_gt(left_ms(), 59000);
            cr_assert_str_eq(drop(l, A, "7", "0"), "1");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            ask("CONFIG", "SET", "maxmemory", "0", NULL);
            cr_assert(is_token(take(l, A, "9")));
            ask("CONFIG", "SET", "maxmemory", "1", NULL);
            cr_assert_str_eq(force(l), "1");
            ask("CONFIG", "SET", "maxmemory", "0", NULL);
        }
}

/* Another who waits, with its process in the queue. */
static const char *wait_behind(const char *owner) {
    return run_on(server.admin, layouts[0].acquire, "2", LOCK, TOKENS, owner, "1", "1", "30000", "0", "1",
                  TOKENS ":queue:orders", "1", NULL);
}

Test(redis_scripts, who_waits_where_nothing_can_be_written_now_is_not_told_that_it_may_not) {
    cr_assert_str_eq(take(&layouts[0], A, "1"), ask("GET", TOKENS, NULL));
    ask("CONFIG", "SET", "min-replicas-to-write", "1", NULL);
    const char *answer = wait_behind(B);
    cr_assert(strstr(answer, "," A ":1,1,0]") != NULL, "%s", answer);
    ask("CONFIG", "SET", "min-replicas-to-write", "0", NULL);
    answer = wait_behind(B);
    cr_assert(strstr(answer, "," A ":1,1,1]") != NULL, "%s", answer);
}

Test(redis_scripts, who_waits_learns_that_its_server_has_become_a_replica) {
    cr_assert_str_eq(take(&layouts[0], A, "1"), ask("GET", TOKENS, NULL));
    ask("REPLICAOF", "127.0.0.1", "1", NULL);
    const char *answer = wait_behind(B);
    cr_assert(strstr(answer, "READONLY") != NULL, "%s", answer);
}

Test(redis_scripts, who_may_not_publish_frees_all_the_same) {
    redisContext *c = connect_without("-publish");
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, A, "7")));
            cr_assert_str_eq(run_on(c, l->release, "1", LOCK, A, "7", "0", CHANNEL, NULL), "1");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            cr_assert(is_token(take(l, A, "8")));
            cr_assert_str_eq(force_on(c, l), "1");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
        }
    redisFree(c);
}

Test(redis_scripts, who_may_not_do_all_of_it_leaves_no_lock) {
    static const char *const commands[] = {"-set", "-hset", "-pexpire", "-time", "-get", "-hlen"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        redisContext *c = connect_without(commands[i]);
        for
            EACH_LAYOUT(l) {
                const char *answer =
                    run_on(c, l->acquire, "2", LOCK, TOKENS, A, "7", "1", "30000", "0", NULL);
                if (answer[0] == '-') {
                    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0", "%s, %s: %s", commands[i], l->name,
                                     answer);
                } else {
                    cr_assert_gt(left_ms(), 29000, "%s, %s: a lock without an end", commands[i], l->name);
                    ask("DEL", LOCK, NULL);
                }
            }
        redisFree(c);
    }
}

/* What is reserved for who waits may go before the lock is there. */
Test(redis_scripts, who_may_not_do_all_of_it_leaves_no_lock_where_one_is_reserved) {
    static const char *const commands[] = {"-set", "-hset", "-pexpire", "-time",
                                           "-get", "-hlen", "-hdel",    "-del"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        redisContext *c = connect_without(commands[i]);
        for
            EACH_LAYOUT(l) {
                reserve_for(l, UUID_A);
                const char *answer = run_on(c, l->acquire, "2", LOCK, TOKENS, A, "7", "1", "30000", "0", "1",
                                            "queue:" LOCK, "1", NULL);
                if (answer[0] == '-') {
                    long long left = left_ms();
                    cr_assert(left == -2 || (left >= 0 && left <= 20000), "%s, %s: %lld", commands[i],
                              l->name, left);
                } else {
                    cr_assert_gt(left_ms(), 29000, "%s, %s: %s", commands[i], l->name, answer);
                }
                ask("DEL", LOCK, NULL);
            }
        redisFree(c);
    }
}

Test(redis_scripts, who_may_not_take_a_lost_hold_out_of_its_hash_has_lost_it_all_the_same) {
    const layout_t *hash = &layouts[1];
    redisContext *c = connect_without("-hdel");
    cr_assert(is_token(take(hash, A, "7")));
    ask("HSET", LOCK, "note", "mine", NULL);
    const char *before = content(LOCK);
    for (int level = 0; level < 3; level += 2) {
        const char *text = level == 0 ? "0" : "2";
        cr_assert_str_eq(
            run_on(c, hash->acquire, "2", LOCK, TOKENS, A, "7", text, "40000", "0", CHANNEL, "", NULL), "0");
    }
    cr_assert_str_eq(run_on(c, hash->release, "1", LOCK, A, "7", "1", CHANNEL, "", NULL), "nil");
    cr_assert_str_eq(run_on(c, hash->release, "1", LOCK, A, "7", "0", CHANNEL, "", NULL), "nil");
    cr_assert_eq(force_on(c, hash)[0], '-');
    cr_assert_str_eq(content(LOCK), before);
    redisFree(c);
}
