/* redis_driver_test.c - the Redis drivers through their tables: opening, holds, batches of renewals. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_driver_fixture.h"

TestSuite(redis_driver, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- opening ---------------------------------------------------------------------------------------- */

Test(redis_driver, the_tables_promise_what_they_should) {
    const uint32_t caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY;
    cr_assert_eq(dli_redis_string_driver.caps, caps);
    cr_assert_eq(dli_redis_hash_driver.caps, caps | DL_CAP_SERVER_COUNT);
    cr_assert_str_eq(dli_redis_string_driver.options[DLI_REDIS_OPT_PREFIX].default_text, "\"dlock:\"");
    cr_assert_str_eq(dli_redis_hash_driver.options[DLI_REDIS_OPT_PREFIX].default_text, "\"\"");
    for
        EACH_DRIVER(d) {
            int count = d == &drivers[0] ? DLI_REDIS_OPT_COUNT : DLI_REDIS_OPT_ALSO_PUBLISH;
            for (int i = 0; i < count; i++) {
                cr_assert_not_null((*d)->options[i].name, "option %d", i);
            }
            cr_assert_null((*d)->options[count].name);
        }
}

Test(redis_driver, options_that_contradict_each_other_are_refused) {
    client_t c;
    char text[131];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    prepare(&c, drivers[0], UUID_A);
    set_text(&c, DLI_REDIS_OPT_PREFIX, text + 1); /* 129 bytes */
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG);
    set_text(&c, DLI_REDIS_OPT_PREFIX, text + 2); /* 128 */
    cr_assert_eq(open_and_shut(&c), DL_OK, "%s", c.err.message);
    set_text(&c, DLI_REDIS_OPT_TOKEN_KEY, text + 1);
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG);
    set_text(&c, DLI_REDIS_OPT_TOKEN_KEY, "");
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG);
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_IDLE, 9);
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG, "more than max_total");
    set_number(&c, DLI_REDIS_OPT_MIN_IDLE, 3);
    set_number(&c, DLI_REDIS_OPT_MAX_IDLE, 2);
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG);
    set_number(&c, DLI_REDIS_OPT_MAX_IDLE, 9);
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG, "more than max_total");
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 2000);
    cr_assert_eq(open_and_shut(&c), DL_OK, "without replicas it says nothing");
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    cr_assert_eq(open_and_shut(&c), DL_ECONFIG);
    set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 1999);
    cr_assert_eq(open_and_shut(&c), DL_OK, "%s", c.err.message);
}

Test(redis_driver, a_state_that_was_never_opened_can_be_closed) {
    client_t c;
    prepare(&c, drivers[0], UUID_A);
    c.state = calloc(1, c.driver->state_size);
    shut(&c);
}

Test(redis_driver, eviction_is_warned_of_where_it_can_happen) {
    static const struct {
        const char *memory, *policy;
        int warnings;
    } cases[] = {{"0", "allkeys-lru", 0},
                 {"100mb", "noeviction", 0},
                 {"100mb", "allkeys-lru", 1},
                 {"100mb", "volatile-ttl", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        client_t c;
        ask("CONFIG", "SET", "maxmemory", cases[i].memory, NULL);
        ask("CONFIG", "SET", "maxmemory-policy", cases[i].policy, NULL);
        atomic_store(&warnings, 0);
        prepare(&c, drivers[i % 2], UUID_A);
        cr_assert_eq(open_and_shut(&c), DL_OK, "%s", c.err.message);
        cr_assert_eq(atomic_load(&warnings), cases[i].warnings, "%s", cases[i].policy);
        cr_assert(cases[i].warnings == 0 || strstr(warned, cases[i].policy) != NULL, "%s", warned);
    }
}

static void open_as_narrow(client_t *c, const dl_driver_t *driver) {
    prepare(c, driver, UUID_A);
    set_text(c, DLI_REDIS_OPT_USERNAME, "narrow");
    set_text(c, DLI_REDIS_OPT_PASSWORD, "secret");
}

static void expect_words(const client_t *c, const char *first, const char *second) {
    const char *message = c->err.message;
    cr_assert_has(message, first, "'%s' and '%s' in: %s", first, second, message);
    cr_assert_has(message, second, "'%s' and '%s' in: %s", first, second, message);
}

Test(redis_driver, a_user_who_may_not_load_scripts_can_lock_all_the_same) {
    ask("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", "-script", NULL);
    ask("ACL", "SETUSER", "narrow", "&*", NULL); /* before 7 there is no such permission */
    for
        EACH_DRIVER(d) {
            client_t c;
            open_as_narrow(&c, *d);
            cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
            cr_assert_eq(lock_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
            cr_assert_eq(free_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
            shut(&c);
        }
}

Test(redis_driver, a_user_who_may_not_run_scripts_or_touch_the_tokens_learns_it_at_once) {
    client_t c;
    ask("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", "-evalsha", NULL);
    open_as_narrow(&c, drivers[0]);
    cr_assert_eq(open_and_shut(&c), DL_EAUTH, "%s", c.err.message);
    ask("ACL", "SETUSER", "narrow", "resetkeys", "~dlock:*", "+@all", NULL);
    open_as_narrow(&c, drivers[1]);
    cr_assert_eq(open_and_shut(&c), DL_EAUTH, "%s", c.err.message);
    expect_words(&c, "the token key '" TOKENS "'", "user 'narrow' lacks rights");
}

Test(redis_driver, it_says_what_it_is_connected_to) {
    client_t c;
    char text[128], expected[128];
    must_open(&c, drivers[0], UUID_A);
    c.driver->describe(c.state, text, sizeof text);
    cr_assert(begins(text, "Redis ") || begins(text, "Valkey "), "%s", text);
    snprintf(expected, sizeof expected, " at unix://%s", server.path);
    cr_assert_has(text, expected);
    shut(&c);
}

Test(redis_driver, a_name_may_not_be_the_token_key) {
    client_t c;
    prepare(&c, drivers[1], UUID_A);
    set_text(&c, DLI_REDIS_OPT_PREFIX, "dlock");
    cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
    cr_assert_eq(c.driver->check_name(c.state, "_tokens", 7, &c.err), DL_EINVAL);
    cr_assert_eq(c.driver->check_name(c.state, "_tokens2", 8, &c.err), DL_OK);
    cr_assert_eq(c.driver->check_name(c.state, "_token", 6, &c.err), DL_OK);
    shut(&c);
}

/* ---- holds ------------------------------------------------------------------------------------------ */

Test(redis_driver, a_lock_is_taken_seen_and_freed) {
    for
        EACH_DRIVER(d) {
            client_t a, b;
            dl_grant_t grant;
            must_open(&a, *d, UUID_A);
            must_open(&b, *d, UUID_B);
            uint64_t before_ns = ran_ns();
            unsigned long trips = atomic_load(&round_trips);
            dl_request_t r = request("orders", A, 7);
            cr_assert_eq(lock_full(&a, &r, &grant), DL_OK, "%s", a.err.message);
            cr_assert_eq(atomic_load(&round_trips), trips + 1);
            cr_assert_gt(grant.token, 0);
            cr_assert_eq(grant.session_fd, -1);
            cr_assert_geq(grant.sent_ns, before_ns);
            cr_assert_leq(grant.sent_ns, ran_ns());
            dl_lock_info_t info = look(&b, "orders");
            cr_assert(info.held);
            cr_assert_eq(info.hold_id, 7);
            cr_assert_eq(info.holds, 1);
            cr_assert_str_eq(info.owner, A);
            cr_assert_gt(info.remaining_ms, 29000);
            cr_assert_leq(info.remaining_ms, 30000);
            r = request("orders", B, 1);
            cr_assert_eq(lock_full(&b, &r, &grant), DL_EBUSY);
            cr_assert_gt(grant.busy_ms, 29000);
            cr_assert_leq(grant.busy_ms, 30000);
            cr_assert_eq(grant.busy_is_dlock, 1);
            cr_assert_eq(free_name(&b, "orders", B, 1), DL_ELOST);
            cr_assert_eq(free_name(&a, "orders", A, 7), DL_OK);
            cr_assert_eq(free_name(&a, "orders", A, 7), DL_ELOST);
            cr_assert(!look(&a, "orders").held);
            cr_assert_eq(force_name(&a, "orders"), DL_ENOTOWNER);
            shut(&a);
            shut(&b);
        }
}

Test(redis_driver, levels_are_shown_by_the_hash) {
    client_t c;
    dl_grant_t grant;
    must_open(&c, drivers[1], UUID_A);
    dl_request_t r = request("orders", A, 7);
    r.level = 2;
    cr_assert_eq(lock_full(&c, &r, &grant), DL_ELOST);
    cr_assert_eq(lock_name(&c, "orders", A, 7), DL_OK);
    cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
    cr_assert_eq(look(&c, "orders").holds, 2);
    r.level = 1;
    cr_assert_eq(c.driver->release(c.state, NULL, &r, &c.err), DL_OK);
    cr_assert_eq(look(&c, "orders").holds, 1);
    cr_assert_eq(free_name(&c, "orders", A, 7), DL_OK);
    shut(&c);
}

Test(redis_driver, a_level_on_what_is_no_lock_any_more_is_a_loss) {
    for
        EACH_DRIVER(d) {
            client_t c;
            dl_grant_t grant;
            must_open(&c, *d, UUID_A);
            cr_assert_eq(lock_name(&c, "orders", A, 7), DL_OK);
            dl_request_t r = request("orders", A, 7);
            r.level = 2;
            ask("DEL", LOCK, NULL);
            ask("RPUSH", LOCK, "x", NULL);
            cr_assert_eq(lock_full(&c, &r, &grant), DL_ELOST, "%s", c.err.message);
            ask("DEL", LOCK, NULL);
            ask("HSET", LOCK, "mode", "read", NULL);
            cr_assert_eq(lock_full(&c, &r, &grant), DL_ELOST, "%s", c.err.message);
            cr_assert_str_eq(ask("HGET", LOCK, "mode", NULL), "read");
            ask("DEL", LOCK, NULL);
            shut(&c);
        }
}

Test(redis_driver, a_name_in_an_error_is_short_and_controls_no_terminal) {
    static const char name[] =
        "a\x1b[2J\n\xc3\xa4"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4";
    client_t c;
    char key[128];
    must_open(&c, drivers[1], UUID_A);
    snprintf(key, sizeof key, "dlock:%s", name);
    ask("SET", key, "x", NULL);
    cr_assert_eq(lock_name(&c, name, A, 1), DL_EFOREIGN);
    expect_words(&c, "'dlock:a?[2J?\xc3\xa4xxx", "xxx\xc3\xa4\xc3\xa4...' at unix://");
    shut(&c);
}

Test(redis_driver, a_right_that_is_missed_at_a_lock_is_said_with_user_and_server) {
    for
        EACH_DRIVER(d) {
            client_t c;
            ask("ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", NULL);
            open_as_narrow(&c, *d);
            cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
            ask("ACL", "SETUSER", "narrow", "-time", NULL);
            cr_assert_eq(lock_name(&c, "orders", A, 1), DL_EAUTH);
            expect_words(&c, "unix://", "user 'narrow' lacks rights: see `dlock init --print`");
            shut(&c);
        }
}

Test(redis_driver, foreign_values_are_told_apart_and_stay) {
    for
        EACH_DRIVER(d) {
            client_t c;
            must_open(&c, *d, UUID_A);
            ask("DEL", LOCK, NULL);
            ask("RPUSH", LOCK, "x", NULL);
            cr_assert_eq(lock_name(&c, "orders", A, 1), DL_EFOREIGN);
            cr_assert_null(strstr(c.err.message, TOKENS));
            expect_words(&c, "'" LOCK "' at unix://", "a value of another type, not a lock of ");
            expect_words(&c, (*d)->name, "");
            cr_assert_eq(free_name(&c, "orders", A, 1), DL_ELOST);
            cr_assert_eq(force_name(&c, "orders"), DL_EFOREIGN);
            cr_assert_str_eq(ask("LRANGE", LOCK, "0", "-1", NULL), "[x]");
            ask("SET", TOKENS, "no number", NULL);
            cr_assert_eq(lock_name(&c, "others", A, 2), DL_EFOREIGN);
            expect_words(&c, "'" TOKENS "' at unix://", "not a token counter");
            ask("DEL", TOKENS, NULL);
            shut(&c);
        }
    client_t hash;
    must_open(&hash, drivers[1], UUID_A);
    ask("DEL", LOCK, NULL);
    ask("HSET", LOCK, "mode", "read", NULL);
    cr_assert_eq(lock_name(&hash, "orders", A, 1), DL_EFOREIGN);
    expect_words(&hash, "'" LOCK "' at unix://", "another hash, not a lock of redis-hash-reentrant");
    cr_assert_eq(force_name(&hash, "orders"), DL_EFOREIGN);
    expect_words(&hash, "'" LOCK "' at unix://", "another hash");
    /* A counter of somebody's is no lock, and not freed by force. */
    ask("DEL", LOCK, NULL);
    ask("HSET", LOCK, "clicks:7", "5", NULL);
    cr_assert_eq(lock_name(&hash, "orders", A, 1), DL_EFOREIGN);
    cr_assert_eq(force_name(&hash, "orders"), DL_EFOREIGN);
    cr_assert_str_eq(ask("HGET", LOCK, "clicks:7", NULL), "5");
    cr_assert_eq(free_name(&hash, "orders", A, 1), DL_ELOST);
    shut(&hash);
}

Test(redis_driver, numbers_beyond_the_servers_are_refused) {
    const uint64_t end = (uint64_t)1 << 53;
    for
        EACH_DRIVER(d) {
            client_t c;
            dl_grant_t grant;
            must_open(&c, *d, UUID_A);
            cr_assert_eq(lock_name(&c, "orders", A, end), DL_ELIMIT);
            cr_assert_eq(free_name(&c, "orders", A, end), DL_ELIMIT);
            dl_request_t r = request("orders", A, 1);
            r.token_floor = end - 1;
            cr_assert_eq(lock_full(&c, &r, &grant), DL_ELIMIT);
            r = request("orders", A, 1);
            r.lease_ms = 0;
            cr_assert_eq(lock_full(&c, &r, &grant), DL_EINVAL);
            r.lease_ms = DL_LEASE_MAX_MS + 1;
            cr_assert_eq(lock_full(&c, &r, &grant), DL_EINVAL);
            cr_assert_str_eq(ask("DBSIZE", NULL), "0");
            r = request("orders", A, end - 1);
            r.token_floor = end - 3;
            cr_assert_eq(lock_full(&c, &r, &grant), DL_OK);
            cr_assert_eq(grant.token, end - 2);
            r.token_floor = end - 1;
            r.level = 0;
            cr_assert_eq(c.driver->release(c.state, NULL, &r, &c.err), DL_OK, "%s", c.err.message);
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

/* The port of the connection on which this owner took a lock. */
static long port_of(client_t *c, const char *name, const char *owner) {
    ask("SLOWLOG", "RESET", NULL);
    (void)lock_name(c, name, owner, 1);
    const char *at = strstr(ask("SLOWLOG", "GET", "1", NULL), ",127.0.0.1:");
    cr_assert_not_null(at);
    return atol(at + strlen(",127.0.0.1:"));
}

static void *lock_by_the_first(void *client) {
    client_t mine = *(client_t *)client; /* with an error of its own */
    (void)lock_name(&mine, "crowd", A, 1);
    return NULL;
}

/* Another connection is made where many requests wait on one. */
static void crowd(client_t *c) {
    pthread_t threads[16];
    kill(server.pid, SIGSTOP);
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, lock_by_the_first, c), 0);
    }
    (void)poll(NULL, 0, 50);
    kill(server.pid, SIGCONT);
    for (int i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
    }
}

static int are_both_connected(client_t *c) {
    crowd(c);
    return port_of(c, "orders", A) != port_of(c, "stock", UUID_A ":2");
}

/* Threads have the numbers, owned handles the letter. */
Test(redis_driver, owners_of_either_kind_share_all_connections) {
    static const char *const owners[][2] = {{A, UUID_A ":2"}, {UUID_A ":t1", UUID_A ":t2"}};
    client_t c;
    prepare(&c, drivers[0], UUID_A);
    snprintf(c.url, sizeof c.url, "redis://127.0.0.1:%d", server.port);
    set_number(&c, DLI_REDIS_OPT_CONNECTIONS, 2);
    cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
    ask("CONFIG", "SET", "slowlog-log-slower-than", "0", NULL);
    AWAIT(are_both_connected(&c));
    for (int i = 0; i < 2; i++) {
        cr_assert_neq(port_of(&c, "orders", owners[i][0]), port_of(&c, "stock", owners[i][1]));
    }
    shut(&c);
}

Test(redis_driver, a_grant_has_as_many_tokens_as_were_asked_for) {
    const uint64_t end = (uint64_t)1 << 53, high = end - 1000000;
    for
        EACH_DRIVER(d) {
            client_t c;
            dl_grant_t grant;
            must_open(&c, *d, UUID_A);
            dl_request_t r = request("orders", A, 1);
            r.token_floor = high;
            r.tokens = 33;
            cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
            cr_assert_eq(grant.token, high + 1);
            cr_assert_eq(grant.tokens, 33);
            r = request("orders", A, 2);
            cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
            cr_assert_eq(grant.token, high + 34);
            cr_assert_eq(grant.tokens, 1);
            /* To the end of the numbers, and no further. */
            r = request("orders", A, 3);
            r.token_floor = end - 4;
            r.tokens = 33;
            cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
            cr_assert_eq(grant.token, end - 3);
            cr_assert_eq(grant.tokens, 3);
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

Test(redis_driver, scripts_that_were_flushed_are_sent_again) {
    for
        EACH_DRIVER(d) {
            client_t c;
            must_open(&c, *d, UUID_A);
            ask("SCRIPT", "FLUSH", NULL);
            cr_assert_eq(lock_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "1");
            ask("SCRIPT", "FLUSH", NULL);
            cr_assert_eq(free_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            shut(&c);
        }
}

static dl_status_t renew_orders(client_t *c) {
    dl_renewal_t r = {.name = "orders", .name_len = 6, .owner = A, .hold_id = 1, .lease_ms = 60000};
    c->driver->renew(c->state, &r, 1, in_ms(2000));
    return r.status;
}

static dl_status_t enter_orders(client_t *c) {
    dl_request_t r = request("orders", A, 1);
    dl_grant_t grant;
    r.level = 2;
    return lock_full(c, &r, &grant);
}

static dl_status_t leave_orders(client_t *c) {
    dl_request_t r = request("orders", A, 1);
    r.level = 1;
    return c->driver->release(c->state, NULL, &r, &c->err);
}

static dl_status_t free_orders(client_t *c) {
    return free_name(c, "orders", A, 1);
}

/* Theirs may be the field `mode` alone: then nobody has the lock, and who waits is told. */
static void lose_orders(client_t *c, const char *theirs, bool told) {
    static dl_status_t (*const uses[])(client_t *) = {renew_orders, enter_orders, leave_orders, free_orders};
    static const char channel[] = "redisson_lock__channel:{dlock:orders}";
    redisContext *listener = must_connect();
    const char *subscribe[] = {"SUBSCRIBE", channel};
    cr_assert_has(send_words(listener, 2, subscribe), channel);
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        struct pollfd message = {.fd = listener->fd, .events = POLLIN};
        redisReply *reply = NULL;
        cr_assert_eq(lock_name(c, "orders", A, 1), DL_OK, "%s", c->err.message);
        cr_assert_eq(renew_orders(c), DL_OK);
        ask("HSET", "dlock:orders", theirs, "1", NULL);
        cr_assert_eq(uses[i](c), DL_ELOST, "%s, %zu", theirs, i);
        cr_assert_str_eq(ask("HLEN", "dlock:orders", NULL), told ? "0" : "1", "%s, %zu", theirs, i);
        cr_assert_eq(renew_orders(c), DL_ELOST, "%s, %zu", theirs, i);
        cr_assert_eq(poll(&message, 1, told ? 2000 : 0), told ? 1 : 0, "%s, %zu", theirs, i);
        cr_assert(!told || redisGetReply(listener, (void **)&reply) == REDIS_OK);
        freeReplyObject(reply);
        ask("DEL", "dlock:orders", NULL);
    }
    redisFree(listener);
}

Test(redis_driver, a_hold_is_lost_once_others_have_written_into_its_hash) {
    client_t c;
    must_open(&c, drivers[1], UUID_A);
    lose_orders(&c, "note", false);
    lose_orders(&c, "mode", true);
    shut(&c);
}

static char woken_name[16];
static int woken; /* how often that name was said */

static void note_woken(void *core, const char *name, size_t name_len, int hears) {
    (void)core;
    cr_assert_eq(hears, 1);
    cr_assert_lt(name_len, sizeof woken_name);
    memcpy(woken_name, name, name_len);
    woken++;
}

/* As the core does, until the driver says woken. */
static void listen_until_woken(client_t *c) {
    uint64_t end_ns = in_ms(5000), due_ns;
    for (woken = 0; woken == 0;) {
        struct pollfd fds[DL_LISTEN_MAX];
        cr_assert_lt(in_ms(0), end_ns, "not woken");
        size_t n = c->driver->listen_fds(c->state, fds, DL_LISTEN_MAX, &due_ns);
        cr_assert_eq(n, 1);
        cr_assert_geq(poll_while_it_runs(fds, n, due_ns < end_ns ? due_ns : end_ns), 0);
        c->driver->listen(c->state, fds, n);
    }
    cr_assert_str_eq(woken_name, "or{ders");
}

Test(redis_driver, a_waiter_hears_of_the_release) {
    for
        EACH_DRIVER(d) {
            client_t a, b;
            dl_watch_t *watch;
            must_open(&a, *d, UUID_A);
            must_open(&b, *d, UUID_B);
            b.env.woken = note_woken;
            cr_assert_eq(lock_name(&a, "or{ders", A, 1), DL_OK);
            cr_assert_eq(b.driver->watch(b.state, "or{ders", 7, &watch, &b.err), DL_OK);
            listen_until_woken(&b); /* it hears */
            cr_assert_eq(free_name(&a, "or{ders", A, 1), DL_OK);
            listen_until_woken(&b);
            b.driver->unwatch(b.state, watch);
            shut(&a);
            shut(&b);
        }
}
