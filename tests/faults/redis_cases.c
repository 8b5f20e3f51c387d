/* redis_cases.c - faults of the data on a Redis server (rows 15 to 17): gone, replaced, without expiry. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/redis_wire.h"

static int is_string(ct_t *ct) {
    return strcmp(ct_driver_name(ct), "redis-string") == 0;
}

static int key_exists(ct_t *ct, const char *name) {
    return (int)redis_number(ct_redis(ct), "EXISTS %s", key_of(ct, name));
}

/* ---- row 15: the data is gone ------------------------------------------------------------------------ */

static void delete_key(ct_t *ct) {
    CT_EQ(redis_number(ct_redis(ct), "DEL %s", key_of(ct, "row 15")), 1);
}

static void flush_all(ct_t *ct) {
    CT_STR_EQ(redis_ask(ct_redis(ct), "FLUSHALL"), "OK");
}

static void restart(ct_t *ct) {
    redis_server_restart(ct_redis(ct));
    CT_EQ(key_exists(ct, "row 15"), 0); /* the client may have said already who it is: that is a key too */
}

/* While the lock is held its key goes away like this. */
static void lose_data(ct_t *ct, void (*happens)(ct_t *ct)) {
    /* Renewed as often as by all other clients here, and valid for longer than a restart takes. */
    dl_client_t *c = ct_open(ct, "lease: 4s\nrenew_every: 133ms"), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 15"), *next = ct_lock(ct, other, "row 15");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    happens(ct);
    watch_t watch = start_watch(ct);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "row 15", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    /* The server's word counts, and the next renewal asks for it; not the end of validity. */
    CT_EQ(lost.status, DL_ELOST);
    IN_TIME(watch, ct_lease_ms(ct) / 3);
    CT_EQ(dl_valid_ms(lock), 0);
    ct_no_event(ct, c, DL_EVENT_LOST, NULL, ct_lease_ms(ct));
    CT_EQ(key_exists(ct, "row 15"), 0); /* never made anew */
    CT_OK(dl_trylock(next, CT_ERR));
    CT_GT(dl_token(next), token);
    token = dl_token(next);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_lock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    ct_expect_held(ct, "row 15");
    CT_OK(dl_unlock(next, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(faults, row15_key_deleted, REDIS) {
    lose_data(ct, delete_key);
}

CT_CASE(faults, row15_everything_flushed, REDIS) {
    lose_data(ct, flush_all);
}

CT_CASE(faults, row15_server_restarted_without_data, REDIS) {
    lose_data(ct, restart);
}

CT_CASE(faults, row15_waiters_survive_a_restart, REDIS) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 15");
    take(ct, held, 20 * ct_lease_ms(ct));
    uint64_t token = dl_token(held);
    caller_t waiter = CALLER(ct_lock(ct, b, "row 15"), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    CT_AWAIT(is_subscribed(ct), 5000);
    ct_await_hearing(ct, b, "row 15", 5000);
    int64_t before_ms = ct_now_ms(ct);
    redis_server_restart(ct_redis(ct));
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    CT_GT(waiter.token, token);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
}

CT_CASE(faults, row15_server_killed_and_back_with_the_clients_waiting, REDIS) {
    redis_server_t *server = ct_redis(ct);
    char patient[48]; /* more than the pauses of the call and of the connections together */
    snprintf(patient, sizeof patient, "call_timeout: %lldms", (long long)(4 * ct_call_timeout_ms(ct)));
    dl_client_t *c = ct_open(ct, patient);
    dl_lock_t *lock = ct_lock(ct, c, "row 15");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    redis_server_kill(server);
    caller_t caller = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &caller);
    ct_await_waiting(ct, c, 1, 5000);
    ct_sleep_ms(ct, ct_call_timeout_ms(ct) / 4);
    redis_server_boot(server);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &caller, DL_OK); /* it has gone on trying */
    CT_LE(caller.ended_ms - before_ms, 2 * RETRY_MS + ct_tolerance_ms(ct));
}

/* ---- row 16: the key is something else now ------------------------------------------------------------- */

/* Makes the key of the lock another thing, in one step: the commands are Lua. */
static void replace_key(ct_t *ct, const char *commands) {
    char script[512];
    snprintf(script, sizeof script, "redis.call('del', KEYS[1]) %s", commands);
    (void)redis_ask(ct_redis(ct), "EVAL %s 1 %s", script, key_of(ct, "row 16"));
}

/* A text that tells whether it changed. */
static void read_key(ct_t *ct, char *text, size_t size) {
    static const char *const readers[] = {"GET %s", "HGETALL %s", "LRANGE %s 0 -1"};
    text[0] = 0;
    for (size_t i = 0; i < sizeof readers / sizeof readers[0] && text[0] == 0; i++) {
        const char *value = redis_try(ct_redis(ct), readers[i], key_of(ct, "row 16"));
        snprintf(text, size, "%s", value[0] == '-' ? "" : value);
    }
    CT_NE(text[0], 0);
    CT_NE(text[0], '(');
}

/* The key of a held lock is replaced. others: what another client's attempt is answered with. */
static void lose_to(ct_t *ct, const char *commands, dl_status_t others) {
    char before[256], after[256];
    dl_client_t *c = ct_open(ct, LASTING), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 16"), *next = ct_lock(ct, other, "row 16");
    CT_OK(dl_lock(lock, CT_ERR));
    replace_key(ct, commands);
    read_key(ct, before, sizeof before);
    watch_t watch = start_watch(ct);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "row 16", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ELOST);
    IN_TIME(watch, LASTING_EVERY_MS);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_STATUS(dl_trylock(lock, CT_ERR), others);
    CT_STATUS(dl_trylock(next, CT_ERR), others);
    /* An explicit hold, which nobody renews: its unlock finds out. */
    replace_key(ct, "");
    take(ct, lock, 20 * ct_lease_ms(ct));
    replace_key(ct, commands);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    if (others == DL_EFOREIGN) {
        dl_error_t err = {.status = DL_OK};
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        CT_EQ(dl_inspect(next, &info, &err), DL_EFOREIGN);
        CT_EQ(dl_force_unlock(next, &err), DL_EFOREIGN);
        watch = start_watch(ct);
        CT_STATUS(dl_lock(next, CT_ERR), DL_EFOREIGN); /* waiting would not help */
        IN_TIME(watch, 0);
    }
    read_key(ct, after, sizeof after);
    CT_STR_EQ(after, before); /* neither overwritten nor deleted */
}

CT_CASE(faults, row16_key_replaced_by_a_list, REDIS) {
    lose_to(ct, "redis.call('rpush', KEYS[1], 'orders', 'of', 'somebody')", DL_EFOREIGN);
}

CT_CASE(faults, row16_key_replaced_by_a_lock_of_the_other_kind, REDIS) {
    if (is_string(ct)) {
        lose_to(ct, "redis.call('hset', KEYS[1], '6fd8ad28-4a2e-4d0f-9c36-0a5d8f1d1e11:7', '1')",
                DL_EFOREIGN);
    } else {
        lose_to(ct, "redis.call('set', KEYS[1], '6fd8ad28-4a2e-4d0f-9c36-0a5d8f1d1e11')", DL_EFOREIGN);
    }
}

CT_CASE(faults, row16_key_replaced_by_another_owner, REDIS) {
    if (is_string(ct)) {
        lose_to(ct, "redis.call('set', KEYS[1], '6fd8ad28-4a2e-4d0f-9c36-0a5d8f1d1e11')", DL_EBUSY);
    } else {
        lose_to(ct, "redis.call('hset', KEYS[1], '6fd8ad28-4a2e-4d0f-9c36-0a5d8f1d1e11:7', '1')", DL_EBUSY);
    }
}

/* Fields as Redisson's lock of a group writes them. */
static void write_beside(ct_t *ct) {
    CT_EQ(redis_number(ct_redis(ct), "HSET %s m7Yh3Q them m7Yh3Q:lock_count 1 m7Yh3Q:expire_time 9",
                       key_of(ct, "row 16")),
          3);
}

/* They are all that is in the key. They end, and the lock can be had. */
static void end_beside(ct_t *ct, dl_lock_t *next) {
    CT_EQ(redis_number(ct_redis(ct), "HLEN %s", key_of(ct, "row 16")), 3);
    CT_STATUS(dl_trylock(next, CT_ERR), DL_EFOREIGN);
    CT_EQ(redis_number(ct_redis(ct), "HDEL %s m7Yh3Q m7Yh3Q:lock_count m7Yh3Q:expire_time",
                       key_of(ct, "row 16")),
          3);
    CT_OK(dl_trylock(next, CT_ERR));
    CT_OK(dl_unlock(next, CT_ERR));
}

CT_CASE(faults, row16_others_write_into_the_hash, REDIS, .needs = DL_CAP_SERVER_COUNT) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 16"), *next = ct_lock(ct, other, "row 16");
    /* The next renewal finds it. */
    CT_OK(dl_lock(lock, CT_ERR));
    write_beside(ct);
    watch_t watch = start_watch(ct);
    dl_event_t lost = ct_expect_event(ct, c, DL_EVENT_LOST, "row 16", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(lost.status, DL_ELOST);
    IN_TIME(watch, ct_lease_ms(ct) / 3);
    CT_EQ(dl_valid_ms(lock), 0);
    end_beside(ct, next);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    /* Of an explicit hold, which nobody renews: whatever comes first. */
    for (int i = 0; i < 4; i++) {
        take(ct, lock, 20 * ct_lease_ms(ct));
        take(ct, lock, 20 * ct_lease_ms(ct));
        write_beside(ct);
        ct_expect_held(ct, "row 16");
        CT_STATUS(dl_trylock(next, CT_ERR), DL_EBUSY);
        CT_STATUS(i == 0   ? dl_lock(lock, CT_ERR)
                  : i == 1 ? dl_unlock(lock, CT_ERR)
                  : i == 2 ? dl_extend(lock, 30 * ct_lease_ms(ct), CT_ERR)
                           : dl_force_unlock(next, CT_ERR),
                  i == 3 ? DL_OK : DL_ELOST);
        end_beside(ct, next);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
        if (i != 1) { /* which has left one level */
            CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
        }
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    }
    take(ct, lock, 20 * ct_lease_ms(ct));
    write_beside(ct);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    end_beside(ct, next);
}

CT_CASE(faults, row16_token_counter_replaced, REDIS) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "row 16");
    (void)redis_ask(ct_redis(ct), "RPUSH dlock_tokens a b");
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EFOREIGN);
    CT_CHECKF(strstr(ct_last_err()->message, "dlock_tokens") != NULL, "does not name the key: %s",
              ct_last_err()->message);
    CT_EQ(key_exists(ct, "row 16"), 0); /* no lock without a token */
    CT_STR_EQ(redis_ask(ct_redis(ct), "LRANGE dlock_tokens 0 -1"), "a,b");
}

/* ---- row 16b: nothing shortens ----------------------------------------------------------------------- */

CT_CASE(faults, row16b_renewal_that_arrives_after_a_longer_extension, REDIS) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 16b");
    take(ct, lock, 30000);
    CT_OK(dl_extend(lock, 30000, CT_ERR));
    ct_call_t renewal = ct_call(ct, CT_OP_RENEW, -1);
    CT_EQ(renewal.lease_ms, 30000);
    CT_OK(dl_extend(lock, 300000, CT_ERR));
    CT_EQ(ct_replay(ct, &renewal), DL_OK);
    CT_GT(redis_number(ct_redis(ct), "PTTL %s", key_of(ct, "row 16b")), 290000);
    CT_GT(dl_valid_ms(lock), 290000);
    /* Nor does entering it again, or leaving. */
    take(ct, lock, 1000);
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_GT(redis_number(ct_redis(ct), "PTTL %s", key_of(ct, "row 16b")), 290000);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- row 17: a key without expiry -------------------------------------------------------------------- */

typedef struct told {
    _Atomic int times;
} told_t;

static void note_missing_expiry(void *arg, dl_log_level_t level, const char *line) {
    told_t *told = arg;
    told->times +=
        level == DL_LOG_WARNING && strstr(line, "row 17") != NULL && strstr(line, "expiry") != NULL;
}

CT_CASE(faults, row17_persist_on_the_key, REDIS) {
    told_t told = {0};
    redis_server_t *server = ct_redis(ct);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 17"), *wanted = ct_lock(ct, b, "row 17");
    take(ct, held, 20 * ct_lease_ms(ct));
    CT_EQ(redis_number(server, "PERSIST %s", key_of(ct, "row 17")), 1);
    CT_OK(dl_client_set_log(b, note_missing_expiry, &told));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    CT_AWAIT_THAT(told.times, ==, 1, 1000);
    /* Nobody tells that the key is gone, and there is no lease to wait for. */
    CT_AWAIT(is_subscribed(ct), 5000);
    ct_await_hearing(ct, b, "row 17", 5000);
    CT_EQ(redis_number(server, "DEL %s", key_of(ct, "row 17")), 1);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, 500 + ct_tolerance_ms(ct)); /* backoff_max */
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    CT_EQ(told.times, 1); /* once a wait */
    CT_EQ(dl_client_set_log(b, NULL, NULL), DL_OK);
}

CT_CASE(faults, row17_persist_is_mended_by_the_next_renewal, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 17");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(redis_number(server, "PERSIST %s", key_of(ct, "row 17")), 1);
    CT_AWAIT_THAT(redis_number(server, "PTTL %s", key_of(ct, "row 17")), >, 0,
                  ct_lease_ms(ct) / 3 + ct_tolerance_ms(ct));
    CT_LE(redis_number(server, "PTTL %s", key_of(ct, "row 17")), ct_lease_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- shipped by others ------------------------------------------------------------------------------- */

CT_CASE(shipped_bugs, a_lock_without_expiry_is_never_made, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "no TTL");
    for (int i = 0; i < 3; i++) {
        take(ct, lock, i == 0 ? DL_LEASE_AUTO : 10 * ct_lease_ms(ct) * i);
        CT_BETWEEN(redis_number(server, "PTTL %s", key_of(ct, "no TTL")), 1, 10 * ct_lease_ms(ct) * (i + 1));
    }
    for (int i = 0; i < 2; i++) {
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_GT(redis_number(server, "PTTL %s", key_of(ct, "no TTL")), 0);
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(key_exists(ct, "no TTL"), 0);
}

CT_CASE(shipped_bugs, a_lock_whose_reply_was_lost_counts_once_on_the_server, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "resent");
    proxy_plan_t lost = {.request = "resent", .way = PROXY_REPLIES, .act = PROXY_CUT};
    proxy_plan(ct, proxy, &lost);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    CT_EQ(ct_server_info(ct, "resent").holds, 1);
    /* The second level asks the server where that shows the count. */
    proxy_plan(ct, proxy, &lost);
    CT_EITHER(dl_lock(lock, CT_ERR), DL_OK, DL_EUNKNOWN);
    CT_LE(ct_server_info(ct, "resent").holds, 2);
    for (uint32_t left = dl_hold_count(lock); left > 0; left--) {
        (void)CT_EITHER(dl_unlock(lock, CT_ERR), DL_OK, DL_EUNKNOWN);
    }
    ct_expect_free(ct, "resent", 0);
    CT_EQ(key_exists(ct, "resent"), 0);
    proxy_stop(ct, proxy);
}

/* ---- row 6: the program's log function blocks --------------------------------------------------------- */

typedef struct blocked {
    ct_t *ct;
    ct_latch_t *is_in, *may_go;
} blocked_t;

static void block_in_log(void *arg, dl_log_level_t level, const char *line) {
    blocked_t *blocked = arg;
    (void)level;
    if (strstr(line, "lost the connection that hears") != NULL) {
        ct_latch_down(blocked->ct, blocked->is_in);
        ct_latch_wait(blocked->ct, blocked->may_go, 20 * ct_lease_ms(blocked->ct));
    }
}

/* One more try would have half of the time that an answer takes, and be cut off in doubt. */
CT_CASE(faults, row18_too_few_replicas_is_a_clear_no, REDIS) {
    char with[80];
    snprintf(with, sizeof with, "min_replicas: 1\nreplica_timeout: %lldms",
             (long long)ct_call_timeout_ms(ct) * 3 / 8);
    dl_client_t *c = ct_open(ct, with);
    CT_STATUS(dl_lock(ct_lock(ct, c, "row 18"), CT_ERR), DL_EIO);
    CT_EQ(ct_calls_of(ct, CT_OP_TRY, c, "row 18"), 1);
    CT_EQ(key_exists(ct, "row 18"), 0);
}

/* Nothing that they say makes it a yes. */
CT_CASE(faults, row18_busy_is_told_before_the_replicas_are_heard, REDIS) {
    dl_client_t *c =
        ct_open(ct, "call_timeout: 10s\nmin_replicas: 1\nreplica_timeout: 5s\nreplica_shortfall: warn");
    CT_OK(dl_lock(ct_lock(ct, ct_open(ct, NULL), "row 18"), CT_ERR));
    CT_STATUS(dl_trylock(ct_lock(ct, c, "row 18"), CT_ERR), DL_EBUSY);
    const char *clients = redis_ask(ct_redis(ct), "INFO clients");
    CT_CHECKF(strstr(clients, "blocked_clients:1") != NULL, "the WAIT is over: %s", clients);
    CT_STATUS(dl_trylock(ct_lock(ct, c, "row 18"), CT_ERR), DL_EBUSY); /* on another connection */
    clients = redis_ask(ct_redis(ct), "INFO clients");
    CT_CHECKF(strstr(clients, "blocked_clients:2") != NULL, "it had to wait for that: %s", clients);
}

/* It is told of something while a caller reads for all; nobody's reply may lie unread meanwhile. */
CT_CASE(faults, row06_log_function_that_blocks_keeps_nobody_from_renewing, REDIS) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *kept = ct_lock(ct, c, "row 6 kept"), *wanted = ct_lock(ct, c, "row 6 wanted");
    dl_lock_t *theirs = ct_lock(ct, other, "row 6 wanted");
    blocked_t blocked = {.ct = ct, .is_in = ct_latch(ct, 1), .may_go = ct_latch(ct, 1)};
    CT_OK(dl_lock(kept, CT_ERR));
    CT_OK(dl_lock(theirs, CT_ERR));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_await_hearing(ct, c, "row 6 wanted", 5000);
    CT_OK(dl_client_set_log(c, block_in_log, &blocked));
    CT_GE(redis_number(ct_redis(ct), "CLIENT KILL TYPE pubsub"), 1);
    ct_latch_wait(ct, blocked.is_in, 5000);
    ct_sleep_ms(ct, 3 * ct_lease_ms(ct));
    CT_GT(dl_valid_ms(kept), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    ct_latch_down(ct, blocked.may_go);
    CT_OK(dl_unlock(theirs, CT_ERR));
    end_caller(ct, &waiter, DL_OK);
    CT_OK(dl_client_set_log(c, NULL, NULL));
    CT_OK(dl_unlock(kept, CT_ERR));
}

/* The release of a client that closes is cut off with its connection. */
CT_CASE(faults, row10_hung_up_before_the_release_of_a_close, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    CT_OK(dl_trylock_for(ct_lock(ct, c, "row 10"), 0, 60000, CT_ERR));
    proxy_plan_t cut = {.request = "row 10", .way = PROXY_REQUESTS, .act = PROXY_CUT};
    proxy_plan(ct, proxy, &cut);
    ct_close(ct, c);
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    ct_expect_free(ct, "row 10", 0);
    proxy_stop(ct, proxy);
}
