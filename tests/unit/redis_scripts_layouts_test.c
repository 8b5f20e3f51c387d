/* redis_scripts_layouts_test.c - what the layouts differ in: foreign values, levels, and their peers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_scripts_fixture.h"

TestSuite(redis_scripts_layouts, .init = set_up, .fini = tear_down, .timeout = 60);

static const layout_t *const string = &layouts[0];
static const layout_t *const hash = &layouts[1];

/* ---- redis-string ----------------------------------------------------------------------------------- */

Test(redis_scripts_layouts, the_string_is_owner_and_hold_id) {
    cr_assert(is_token(take(string, A, "7")));
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":7");
}

Test(redis_scripts_layouts, a_string_of_another_client_is_busy_and_not_ours) {
    /* The last three begin like the owner who asks, but are no hold of his. */
    static const char *const values[] = {"0123456789abcdef0123456789abcdef",
                                         "",
                                         "host_17_2f1b8a52-1111-4222-8333-444444444444",
                                         "aaaaaaaa-0000-4000-8000-00000000000:1:7",
                                         "aaaaaaaa-0000-4000-8000-0000000000011:1:7",
                                         "zaaaaaaa-0000-4000-8000-000000000001:1:7",
                                         UUID_A ":1",
                                         UUID_A ":1:7:1",
                                         A ":",
                                         A ":7x",
                                         A "x7"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char rest[160];
        ask("SET", LOCK, values[i], "PX", "20000", NULL);
        snprintf(rest, sizeof rest, "%s,0,0]", values[i]);
        cr_assert(is_busy(take(string, A, "900"), 19000, 20000, rest), "%s: %s", values[i],
                  take(string, A, "900"));
        snprintf(rest, sizeof rest, "%s,0,1,]", values[i]);
        cr_assert(is_busy(inspect(string), 19000, 20000, rest), "%s", inspect(string));
        cr_assert_str_eq(drop(string, A, "7", "0"), "nil");
        cr_assert_str_eq(renew(string, A, "7", "30000"), "0");
        cr_assert_str_eq(ask("GET", LOCK, NULL), values[i]);
        cr_assert_str_eq(force(string), "1");
    }
}

Test(redis_scripts_layouts, a_long_foreign_string_is_cut) {
    char text[600], rest[160];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ask("SET", LOCK, text, NULL);
    snprintf(rest, sizeof rest, "[-1,%.128s,0,0]", text);
    cr_assert_str_eq(take(string, A, "1"), rest);
    cr_assert_str_eq(ask("SET", LOCK, "x", "NX", NULL), "nil", "the recipe of others is excluded too");
}

Test(redis_scripts_layouts, a_level_of_a_string_only_extends) {
    cr_assert_str_eq(take_at(string, A, "7", "2", "30000", "0"), "0");
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, NULL), "0");
    cr_assert(is_token(take(string, A, "7")));
    cr_assert_str_eq(take_at(string, A, "6", "2", "60000", "0"), "0");
    cr_assert_str_eq(take_at(string, B, "7", "2", "60000", "0"), "0");
    cr_assert_str_eq(take_at(string, A, "7", "2", "60000", "0"), "1");
    cr_assert_gt(left_ms(), 59000);
    cr_assert_str_eq(take_at(string, A, "7", "2", "30000", "0"), "1");
    cr_assert_gt(left_ms(), 59000);
    cr_assert_str_eq(drop(string, A, "7", "1"), "0");
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":7");
}

Test(redis_scripts_layouts, an_owner_of_a_task_is_ours_too) {
    static const char task[] = UUID_A ":t5";
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, task, "7")));
            cr_assert(is_busy(take(l, B, "1"), 29000, 30000, UUID_A ":t5:7,1,0]"), "%s", take(l, B, "1"));
            cr_assert(is_busy(take(l, UUID_A ":5", "8"), 29000, 30000, UUID_A ":t5:7,1,0]"));
            cr_assert(is_busy(inspect(l), 29000, 30000, UUID_A ":t5:7,1,1,]"), "%s", inspect(l));
            cr_assert_str_eq(renew(l, task, "7", "60000"), "1");
            cr_assert_str_eq(force(l), "1");
        }
}

Test(redis_scripts_layouts, the_label_of_a_client_is_read_with_its_lock) {
    static const char prefix[] = TOKENS ":client:";
    for
        EACH_LAYOUT(l) {
            cr_assert(is_token(take(l, A, "7")));
            const char *seen = run_on(server.admin, l->inspect, "1", LOCK, prefix, NULL);
            cr_assert(is_busy(seen, 29000, 30000, A ":7,1,1,]"), "there is none: %s", seen);
            ask("SET", TOKENS ":client:" UUID_A, "host:17", NULL);
            seen = run_on(server.admin, l->inspect, "1", LOCK, prefix, NULL);
            cr_assert(is_busy(seen, 29000, 30000, A ":7,1,1,host:17]"), "%s", seen);
            ask("DEL", TOKENS ":client:" UUID_A, NULL);
            ask("RPUSH", TOKENS ":client:" UUID_A, "x", NULL);
            seen = run_on(server.admin, l->inspect, "1", LOCK, prefix, NULL);
            cr_assert(is_busy(seen, 29000, 30000, A ":7,1,1,]"), "it is something else: %s", seen);
            ask("FLUSHALL", NULL);
        }
}

/* ---- redis-hash-reentrant --------------------------------------------------------------------------- */

Test(redis_scripts_layouts, the_hash_has_the_level_and_the_hold_id) {
    cr_assert(is_token(take(hash, A, "7")));
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "1");
    cr_assert_str_eq(ask("HGET", LOCK, A ":h", NULL), "7");
    cr_assert_str_eq(ask("HLEN", LOCK, NULL), "2");
    cr_assert_str_eq(take_at(hash, A, "7", "3", "30000", "0"), "1");
    cr_assert(is_token(take(hash, A, "8")));
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "1", "a new hold begins at one");
    cr_assert_str_eq(ask("HGET", LOCK, A ":h", NULL), "8");
    cr_assert_str_eq(ask("HLEN", LOCK, NULL), "2");
}

Test(redis_scripts_layouts, a_level_is_written_for_its_own_hold_only) {
    cr_assert_str_eq(take_at(hash, A, "7", "2", "30000", "0"), "0");
    cr_assert_str_eq(ask("EXISTS", LOCK, TOKENS, NULL), "0", "created");
    cr_assert(is_token(take(hash, A, "7")));
    const char *before = content(LOCK);
    cr_assert_str_eq(take_at(hash, A, "6", "2", "60000", "0"), "0");
    cr_assert_str_eq(take_at(hash, A, "8", "2", "60000", "0"), "0");
    cr_assert_str_eq(take_at(hash, B, "7", "2", "60000", "0"), "0");
    cr_assert_str_eq(drop(hash, A, "8", "1"), "nil");
    cr_assert_str_eq(drop(hash, B, "7", "1"), "nil");
    cr_assert_str_eq(content(LOCK), before);
    cr_assert_str_eq(take_at(hash, A, "7", "2", "60000", "0"), "1");
    cr_assert_str_eq(take_at(hash, A, "7", "2", "60000", "0"), "1", "sent twice");
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "2");
    cr_assert_gt(left_ms(), 59000);
    cr_assert_str_eq(take_at(hash, A, "7", "3", "1000", "0"), "1");
    cr_assert_gt(left_ms(), 59000, "shortened");
    cr_assert(is_busy(inspect(hash), 59000, 60000, A ":7,1,3,]"), "%s", inspect(hash));
    cr_assert_str_eq(drop(hash, A, "7", "2"), "0");
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "2");
    cr_assert_gt(left_ms(), 59000);
    cr_assert_leq(left_ms(), 60000);
    cr_assert_str_eq(drop(hash, A, "7", "0"), "1");
}

Test(redis_scripts_layouts, a_level_is_shown_without_memory_and_without_an_expiry_as_far_as_can_be) {
    cr_assert(is_token(take(hash, A, "7")));
    ask("CONFIG", "SET", "maxmemory", "1", NULL);
    cr_assert_str_eq(take_at(hash, A, "7", "2", "60000", "0"), "1", "the extension goes first");
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "2");
    cr_assert_str_eq(take_at(hash, A, "7", "3", "1000", "0"), "1", "nothing to extend: not shown, no error");
    cr_assert_str_eq(drop(hash, A, "7", "1"), "0");
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "1", "a lower level can be written");
    cr_assert_gt(left_ms(), 59000);
    ask("PERSIST", LOCK, NULL);
    cr_assert_str_eq(drop(hash, A, "7", "2"), "0");
    cr_assert_str_eq(ask("PTTL", LOCK, NULL), "-1");
    ask("CONFIG", "SET", "maxmemory", "0", NULL);
    cr_assert_str_eq(drop(hash, A, "7", "2"), "0");
    cr_assert_str_eq(ask("HGET", LOCK, A, NULL), "2");
    cr_assert_str_eq(ask("PTTL", LOCK, NULL), "-1", "nobody asked for an end");
}

/* Fields and values of a hash, ended by NULL. */
typedef struct fields {
    const char *at[9];
} fields_t;

static void write_hash(const fields_t *fields) {
    const char *argv[12] = {"HSET", LOCK};
    int argc = 2;
    ask("DEL", LOCK, NULL);
    for (; fields->at[argc - 2] != NULL; argc++) {
        argv[argc] = fields->at[argc - 2];
    }
    cr_assert_neq(send_words(server.admin, argc, argv)[0], '-');
    ask("PEXPIRE", LOCK, "20000", NULL);
}

Test(redis_scripts_layouts, a_hash_that_is_no_lock_is_an_error_and_stays) {
    static const fields_t hashes[] = {
        {{"mode", "read", NULL}},
        {{"mode", "write", UUID_B ":77:write", "1", NULL}},
        {{UUID_B ":77", "many", NULL}},
        {{UUID_B ":77", "1.5", NULL}},
        {{UUID_B, "1", NULL}},
        {{":77", "1", NULL}},
        {{"clicks:7", "5", NULL}},
        {{"aaaaaaaa-0000-4000-8000-00000000000:7", "1", NULL}},
        {{"aaaaaaaa-0000-4000-8000-0000000000011:7", "1", NULL}},
        {{"zaaaaaaa-0000-4000-8000-000000000001:7", "1", NULL}},
        {{"clicks:7", "5", "clicks:7:h", "7", NULL}},
        {{A ":h", "7", NULL}},
        {{A, "1", A ":h", "x", NULL}},
        {{A, "x", A ":h", "7", NULL}},
        {{A, "1", B ":h", "7", NULL}},
        {{A, "1", B, "1", NULL}},
        {{A, "1", B ":h", "7", "note", "mine", NULL}},
        {{"a", "1", "b", "2", "c", "3", "d", "4", NULL}},
    };
    for (size_t i = 0; i < sizeof hashes / sizeof hashes[0]; i++) {
        write_hash(&hashes[i]);
        const char *before = content(LOCK);
        cr_assert(begins(take(hash, A, "7"), "-EFOREIGN"), "%zu: %s", i, take(hash, A, "7"));
        cr_assert(begins(inspect(hash), "-EFOREIGN"), "%zu", i);
        cr_assert(begins(force(hash), "-EFOREIGN"), "%zu", i);
        if (i != 12 && i != 13) { /* these two differ from a lock only in what a holder does not look at */
            cr_assert_str_eq(drop(hash, A, "7", "0"), "nil", "%zu", i);
            cr_assert_str_eq(renew(hash, A, "7", "30000"), "0", "%zu", i);
        }
        cr_assert_str_eq(content(LOCK), before, "%zu", i);
    }
}

Test(redis_scripts_layouts, our_two_fields_are_known_in_either_order) {
    write_hash(&(fields_t){{A ":h", "7", A, "2", NULL}});
    cr_assert(is_busy(inspect(hash), 19000, 20000, A ":7,1,2,]"), "%s", inspect(hash));
    cr_assert(is_busy(take(hash, A, "6"), 19000, 20000, A ":7,1,0]"));
    cr_assert_str_eq(take_at(hash, A, "7", "3", "30000", "0"), "1");
    cr_assert_str_eq(drop(hash, A, "7", "0"), "1");
}

/* ---- what others have written beside our fields ------------------------------------------------------ */

/* What Redisson's write lock and group lock add to a key that they have not to themselves. */
static const fields_t beside[] = {
    {{"mode", "write", UUID_B ":77:write", "1", NULL}},
    {{"mode", "read", UUID_B ":77", "1", NULL}},
    {{"m7Yh3Q", UUID_B ":77", "m7Yh3Q:" UUID_B ":77:lock_count", "1", NULL}},
    {{"note", "mine", NULL}},
};
#define BESIDE (sizeof beside / sizeof beside[0])

/* Hold 7 of A, at level 2, and these fields. */
static void take_and_write(const fields_t *fields) {
    ask("DEL", LOCK, NULL);
    cr_assert(is_token(take(hash, A, "7")));
    cr_assert_str_eq(take_at(hash, A, "7", "2", "30000", "0"), "1");
    for (int i = 0; fields->at[i] != NULL; i += 2) {
        ask("HSET", LOCK, fields->at[i], fields->at[i + 1], NULL);
    }
}

/* These fields and no other. */
static void expect_only(const fields_t *fields, size_t which) {
    char count[16];
    int i = 0;
    for (; fields->at[i] != NULL; i += 2) {
        cr_assert_str_eq(ask("HGET", LOCK, fields->at[i], NULL), fields->at[i + 1], "%zu", which);
    }
    snprintf(count, sizeof count, "%d", i / 2);
    cr_assert_str_eq(ask("HLEN", LOCK, NULL), count, "%zu", which);
}

Test(redis_scripts_layouts, a_hold_that_others_write_beside_is_busy_for_all_until_its_holder_looks) {
    for (size_t i = 0; i < BESIDE; i++) {
        take_and_write(&beside[i]);
        const char *before = content(LOCK);
        cr_assert(is_busy(inspect(hash), 29000, 30000, A ":7,1,2,]"), "%zu: %s", i, inspect(hash));
        cr_assert(is_busy(take(hash, B, "9"), 29000, 30000, A ":7,0,0]"), "%zu: %s", i, take(hash, B, "9"));
        cr_assert(is_busy(take(hash, A, "8"), 29000, 30000, A ":7,0,0]"),
                  "%zu: an older hold that others are in is not replaced", i);
        /* Nor is it lost by what is not its holder's. */
        cr_assert_str_eq(renew(hash, A, "6", "40000"), "0", "%zu", i);
        cr_assert_str_eq(take_at(hash, B, "7", "2", "40000", "0"), "0", "%zu", i);
        cr_assert_str_eq(drop(hash, B, "7", "0"), "nil", "%zu", i);
        cr_assert_str_eq(drop(hash, A, "6", "1"), "nil", "%zu", i);
        cr_assert_str_eq(content(LOCK), before, "%zu", i);
    }
}

/* What a holder does with hold 7 of A, and how that is answered when it has not the hold, or no longer. */
static const char *renew_it(void) {
    return renew(hash, A, "7", "40000");
}

static const char *enter_it(void) {
    return take_at(hash, A, "7", "3", "40000", "0");
}

static const char *leave_it(void) {
    return drop(hash, A, "7", "1");
}

static const char *free_it(void) {
    return drop(hash, A, "7", "0");
}

static const struct use {
    const char *(*run)(void);
    const char *lost;
} uses[] = {{renew_it, "0"}, {enter_it, "0"}, {leave_it, "nil"}, {free_it, "nil"}};
#define USES (sizeof uses / sizeof uses[0])

Test(redis_scripts_layouts, a_hold_that_others_write_beside_is_lost_and_taken_out) {
    for (size_t i = 0; i < BESIDE; i++) {
        for (size_t j = 0; j < USES; j++) {
            take_and_write(&beside[i]);
            cr_assert_str_eq(uses[j].run(), uses[j].lost, "%zu, %zu: goes on", i, j);
            expect_only(&beside[i], i);
            cr_assert(left_ms() > 29000 && left_ms() <= 30000, "%zu, %zu: theirs got another end", i, j);
            for (size_t k = 0; k < USES; k++) {
                cr_assert_str_eq(uses[k].run(), uses[k].lost, "%zu, %zu, %zu", i, j, k);
            }
            expect_only(&beside[i], i);
        }
        take_and_write(&beside[i]);
        cr_assert_str_eq(force(hash), "1", "%zu", i);
        expect_only(&beside[i], i);
        cr_assert(begins(force(hash), "-EFOREIGN"), "%zu", i);
        expect_only(&beside[i], i);
    }
}

/* What is reserved is taken out by who waits; the rest is no lock of ours. */
Test(redis_scripts_layouts, what_others_write_beside_a_reservation_stays) {
    for (size_t i = 0; i <= BESIDE; i++) {
        const fields_t *theirs = i < BESIDE ? &beside[i] : &(fields_t){{UUID_B ":77", "1", NULL}};
        for (int waits = 0; waits < 2; waits++) {
            reserve_for(hash, UUID_A);
            for (int j = 0; theirs->at[j] != NULL; j += 2) {
                ask("HSET", LOCK, theirs->at[j], theirs->at[j + 1], NULL);
            }
            const char *answer = run_on(server.admin, hash->acquire, "2", LOCK, TOKENS, A, "7", "1", "30000",
                                        "0", "1", "queue:" LOCK, waits ? "1" : "0", NULL);
            cr_assert(!is_token(answer), "%zu, %d: %s", i, waits, answer);
            for (int j = 0; theirs->at[j] != NULL; j += 2) {
                cr_assert_str_eq(ask("HGET", LOCK, theirs->at[j], NULL), theirs->at[j + 1], "%zu", i);
            }
            cr_assert(left_ms() > 19000 && left_ms() <= 20000, "%zu: theirs got another end", i);
        }
    }
    ask("DEL", LOCK, NULL);
}

/* Redisson deletes such a key when its own lock ends: nobody has it. */
Test(redis_scripts_layouts, what_a_read_write_lock_leaves_behind_keeps_nobody_out) {
    for (size_t j = 0; j < USES; j++) {
        take_and_write(&(fields_t){{"mode", "read", NULL}});
        cr_assert_str_eq(uses[j].run(), uses[j].lost, "%zu: it was taken meanwhile", j);
        cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0", "%zu", j);
    }
    take_and_write(&(fields_t){{"mode", "read", NULL}});
    cr_assert_str_eq(force(hash), "1");
    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
}

/* ---- the peers of the hash: how they enter and leave ------------------------------------------------ */

static const dli_script_t peer_enter = {
    "peer_enter",
    "if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then "
    "return redis.call('pttl', KEYS[1]) end "
    "redis.call('hincrby', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], ARGV[2]) return nil",
    "",
};
static const dli_script_t peer_leave = {
    "peer_leave",
    "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end "
    "if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end "
    "redis.call('del', KEYS[1]) return 1",
    "",
};

Test(redis_scripts_layouts, a_peer_and_we_exclude_each_other) {
    static const char peer[] = UUID_B ":77";
    cr_assert_str_eq(run_on(server.admin, &peer_enter, "1", LOCK, peer, "20000", NULL), "nil");
    cr_assert_str_eq(run_on(server.admin, &peer_enter, "1", LOCK, peer, "20000", NULL), "nil");
    cr_assert(is_busy(take(hash, A, "7"), 19000, 20000, UUID_B ":77,0,0]"), "%s", take(hash, A, "7"));
    cr_assert(is_busy(take(hash, peer, "7"), 19000, 20000, UUID_B ":77,0,0]"),
              "no hold id: not ours to take");
    cr_assert(is_busy(inspect(hash), 19000, 20000, UUID_B ":77,0,2,]"), "%s", inspect(hash));
    cr_assert_str_eq(drop(hash, peer, "7", "0"), "nil");
    cr_assert_str_eq(renew(hash, peer, "7", "30000"), "0");
    cr_assert_str_eq(take_at(hash, peer, "7", "2", "30000", "0"), "0");
    cr_assert_str_eq(run_on(server.admin, &peer_leave, "1", LOCK, peer, NULL), "0");
    cr_assert_str_eq(run_on(server.admin, &peer_leave, "1", LOCK, peer, NULL), "1");
    cr_assert(is_token(take(hash, A, "7")));
    cr_assert_gt(atoll(run_on(server.admin, &peer_enter, "1", LOCK, peer, "20000", NULL)), 29000);
    cr_assert_str_eq(run_on(server.admin, &peer_leave, "1", LOCK, peer, NULL), "nil");
    cr_assert_str_eq(drop(hash, A, "7", "0"), "1");
    cr_assert_str_eq(run_on(server.admin, &peer_enter, "1", LOCK, peer, "20000", NULL), "nil");
    cr_assert_str_eq(force(hash), "1");
}
