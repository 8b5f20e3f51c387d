/* refusals_cases.c - Redis servers that refuse, or are busy with other things (rows 16a and 18 to 20). */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "faults/redis_wire.h"

/* ---- ACL -------------------------------------------------------------------------------------------- */

CT_CASE(faults, row16a_publish_refused_by_acl, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 16a"), *wanted = ct_lock(ct, b, "row 16a");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    CT_AWAIT(is_subscribed(ct), 5000);
    ct_await_hearing(ct, b, "row 16a", 5000);
    (void)redis_ask(server, "ACL SETUSER default -publish");
    CT_OK(dl_unlock(held, CT_ERR)); /* what was freed was freed */
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_lease_ms(ct) + ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 16a", ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, a).background_frees, 0);
}

CT_CASE(faults, row16a_subscribe_refused_by_acl, REDIS) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 16a"), *wanted = ct_lock(ct, b, "row 16a");
    (void)redis_ask(ct_redis(ct), "ACL SETUSER default -subscribe");
    take(ct, held, 20 * ct_lease_ms(ct));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    dl_event_t warning = ct_expect_event(ct, b, DL_EVENT_WARNING, NULL, 1000 + ct_tolerance_ms(ct));
    CT_CHECKF(strstr(warning.text, "subscri") != NULL || strstr(warning.text, "SUBSCRI") != NULL,
              "not about the subscription: %s", warning.text);
    ct_sleep_ms(ct, 50);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK); /* by polling */
    CT_LE(waiter.ended_ms - before_ms, 500 + ct_tolerance_ms(ct));
    CT_EQ(is_subscribed(ct), 0);
}

CT_CASE(faults, row18_scripts_forbidden_by_acl, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL), *late;
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *wanted = ct_lock(ct, c, "row 18");
    CT_OK(dl_lock(held, CT_ERR));
    (void)redis_ask(server, "ACL SETUSER default -eval -evalsha");
    watch_t lost = start_watch(ct);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_lock(wanted, CT_ERR), DL_EAUTH); /* trying again would not help */
    IN_TIME(watch, 0);
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_EAUTH);
    dl_event_t failing = ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 18 held",
                                         ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(failing.status, DL_EAUTH);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 18 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(lost, ct_lease_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    (void)redis_ask(server, "ACL SETUSER default +eval +evalsha");
    expect_works(ct, c, "row 18");
}

CT_CASE(faults, row18_loading_of_scripts_forbidden_by_acl, REDIS) {
    (void)redis_ask(ct_redis(ct), "ACL SETUSER default -script");
    dl_client_t *c = ct_open(ct, NULL);
    expect_works(ct, c, "row 18"); /* each script once by its text */
    expect_works(ct, c, "row 18");
}

/* ---- scripts forgotten -------------------------------------------------------------------------------- */

static long long calls_in(const char *commandstats, const char *command) {
    char key[48];
    snprintf(key, sizeof key, "cmdstat_%s:calls=", command);
    const char *at = strstr(commandstats, key);
    return at == NULL ? 0 : atoll(at + strlen(key));
}

/* How often scripts of ours were sent as text. Each connection begins with one that is none of those, and two
 * HELLO. */
static long long texts(ct_t *ct) {
    const char *commandstats = redis_ask(ct_redis(ct), "INFO commandstats");
    return calls_in(commandstats, "eval") - calls_in(commandstats, "hello") / 2;
}

CT_CASE(faults, row18_script_flush, REDIS) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 18");
    for (int round = 0; round < 2; round++) {
        (void)redis_ask(ct_redis(ct), "SCRIPT FLUSH");
        long long before = texts(ct);
        CT_OK(dl_trylock(lock, CT_ERR));
        CT_EQ(texts(ct), before + 1); /* one fallback */
        CT_OK(dl_extend(lock, 2 * ct_lease_ms(ct), CT_ERR));
        CT_EQ(texts(ct), before + 1); /* by the same script */
        CT_OK(dl_unlock(lock, CT_ERR));
        CT_EQ(texts(ct), before + 2);
        expect_works(ct, c,
                     "row 18 again"); /* and asks by the hash from then on; the look inside is the third */
        CT_LE(texts(ct), before + 3);
    }
    /* Renewals too, without a moment's failure. */
    CT_OK(dl_lock(lock, CT_ERR));
    for (int i = 1; i <= 3; i++) {
        uint64_t renewed = ct_stats(ct, c).renewed;
        (void)redis_ask(ct_redis(ct), "SCRIPT FLUSH");
        CT_AWAIT_THAT(ct_stats(ct, c).renewed, >, renewed, ct_lease_ms(ct) / 3 + ct_tolerance_ms(ct));
    }
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
}

/* ---- a server that cannot ---------------------------------------------------------------------------- */

CT_CASE(faults, row18_readonly_replica, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL), *late;
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *wanted = ct_lock(ct, c, "row 18");
    take(ct, held, 20 * ct_lease_ms(ct));
    (void)redis_ask(server, "REPLICAOF 127.0.0.1 1");
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(wanted, CT_ERR), DL_EIO);
    IN_TIME(watch, 0);
    SAYS("replica");
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_EIO);
    SAYS("replica");
    CT_STATUS(dl_unlock(held, CT_ERR), DL_EIO); /* not done, and freed when it can be */
    CT_EQ(redis_number(server, "EXISTS %s", key_of(ct, "row 18 held")), 1);
    (void)redis_ask(server, "REPLICAOF NO ONE");
    ct_expect_free(ct, "row 18 held", FREE_MS + ct_tolerance_ms(ct));
    expect_back(ct, wanted);
}

CT_CASE(faults, row18_out_of_memory, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 18 held"), *freed = ct_lock(ct, c, "row 18 freed");
    dl_lock_t *wanted = ct_lock(ct, c, "row 18");
    CT_OK(dl_lock(held, CT_ERR));
    CT_OK(dl_lock(freed, CT_ERR));
    (void)redis_ask(server, "CONFIG SET maxmemory-policy noeviction");
    (void)redis_ask(server, "CONFIG SET maxmemory 1");
    CT_STATUS(dl_lock(wanted, CT_ERR), DL_ELIMIT);
    SAYS("memory");
    CT_EQ(redis_number(server, "EXISTS %s", key_of(ct, "row 18")), 0);
    /* What is there goes on: entered again, renewed, extended, left, freed. */
    CT_OK(dl_lock(held, CT_ERR));
    uint64_t renewed = ct_stats(ct, c).renewed;
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 4, 2 * ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_OK(dl_extend(held, 3 * ct_lease_ms(ct), CT_ERR));
    CT_GT(redis_number(server, "PTTL %s", key_of(ct, "row 18 held")), 2 * ct_lease_ms(ct));
    CT_OK(dl_unlock(freed, CT_ERR));
    ct_expect_free(ct, "row 18 freed", 0);
    CT_OK(dl_unlock(held, CT_ERR));
    ct_expect_held(ct, "row 18 held");
    CT_OK(dl_unlock(held, CT_ERR));
    ct_expect_free(ct, "row 18 held", 0);
    (void)redis_ask(server, "CONFIG SET maxmemory 0");
    expect_works(ct, c, "row 18");
}

CT_CASE(faults, row18_loading, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL), *late;
    dl_lock_t *lock = ct_lock(ct, c, "row 18");
    if (redis_ask(server, "CONFIG GET loading-process-events-interval-bytes")[0] == 0) {
        return; /* Redis 6.0 answers nobody in between, but for some moments */
    }
    /* 2000 keys, each of which takes its time to load. */
    (void)redis_ask(server, "EVAL %s 0", "for i = 1, 2000 do redis.call('set', 'key' .. i, i) end");
    (void)redis_ask(server, "SAVE");
    redis_server_arg(server, "--key-load-delay");
    redis_server_arg(server, "1000");
    redis_server_arg(server, "--loading-process-events-interval-bytes");
    redis_server_arg(server, "1024");
    redis_server_restart(server);
    CT_CHECKF(strncmp(redis_try(server, "GET key1"), "-LOADING", 8) == 0, "it is not loading");
    ct_sleep_ms(ct, TRUST_MS);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO);
    IN_TIME(watch, 100);
    SAYS("oading");
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_EIO);
    SAYS("oading");
    CT_CHECKF(strncmp(redis_try(server, "GET key1"), "-LOADING", 8) == 0, "it was too fast for this");
    CT_AWAIT_THAT(redis_try(server, "GET key1")[0], !=, '-', 20000);
    expect_back(ct, lock);
}

CT_CASE(faults, row18_busy_with_a_script, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 18"), *held = ct_lock(ct, c, "row 18 held");
    take(ct, held, 20 * ct_lease_ms(ct));
    (void)redis_ask(server, "CONFIG SET lua-time-limit 20");
    int fd = redis_send(server, "EVAL %s 0", "while true do end");
    CT_AWAIT_THAT(strncmp(redis_try(server, "GET x"), "-BUSY", 5), ==, 0, 5000);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EIO); /* surely not carried out */
    IN_TIME(watch, 100);
    SAYS("script");
    watch = start_watch(ct);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_EIO);
    IN_TIME(watch, 100);
    watch = start_watch(ct);
    CT_EITHER(dl_lock(lock, CT_ERR), DL_EIO, DL_EUNKNOWN); /* the last of many tries has little time */
    IN_TIME(watch, ct_call_timeout_ms(ct));
    (void)redis_ask(server, "SCRIPT KILL"); /* is answered before the script ends */
    CT_AWAIT_THAT(strncmp(redis_try(server, "GET x"), "-BUSY", 5), !=, 0, 5000);
    close(fd);
    ct_expect_free(ct, "row 18 held", FREE_MS + ct_tolerance_ms(ct));
    expect_works(ct, c, "row 18");
}

CT_CASE(faults, row18_wrong_password, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c;
    (void)redis_ask(server, "CONFIG SET requirepass open-sesame");
    snprintf(server->password, sizeof server->password, "open-sesame");
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, NULL, &c, CT_ERR), DL_EAUTH);
    CT_STATUS(ct_try_open(ct, "password: \"open-barley\"", &c, CT_ERR), DL_EAUTH);
    IN_TIME(watch, 0);
    CT_CHECK(strstr(ct_last_err()->message, "barley") == NULL);
    CT_STATUS(ct_try_open(ct, "username: ali\npassword: \"open-sesame\"", &c, CT_ERR), DL_EAUTH);
    CT_CHECK(strstr(ct_last_err()->message, "sesame") == NULL);
    c = ct_open(ct, "password: \"open-sesame\"");
    dl_lock_t *lock = ct_lock(ct, c, "row 18"), *more = ct_lock(ct, c, "row 18 more");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, ct_lease_ms(ct));
    /* Changed under a client: its connections stay good, new ones are refused; it says why. */
    (void)redis_ask(server, "CONFIG SET requirepass another");
    snprintf(server->password, sizeof server->password, "another");
    (void)redis_ask(server, "CLIENT KILL TYPE normal");
    ct_sleep_ms(ct, TRUST_MS);
    CT_STATUS(dl_trylock(more, CT_ERR), DL_EAUTH);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 18", ct_lease_ms(ct) + ct_tolerance_ms(ct));
}

#define FILLERS 12

/* The answer that comes on this connection begins so. */
static void expect_answer(ct_t *ct, int fd, const char *begins) {
    char answer[64] = "";
    CT_GT(recv(fd, answer, sizeof answer - 1, 0), 0);
    CT_CHECKF(strncmp(answer, begins, strlen(begins)) == 0, "answered: %s", answer);
}

CT_CASE(faults, row18_maxclients, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL), *late;
    dl_lock_t *lock = ct_lock(ct, c, "row 18");
    CT_OK(dl_lock(lock, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, ct_lease_ms(ct));
    /* The client has its connections; now others take all that are left. */
    int fds[FILLERS] = {redis_send(server, "CONFIG SET maxclients %d", 8)};
    expect_answer(ct, fds[0], "+OK");
    for (int i = 1; i < FILLERS; i++) {
        fds[i] = redis_connect(server);
    }
    expect_answer(ct, fds[FILLERS - 1], "-ERR max number of clients");
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, NULL, &late, CT_ERR), DL_ELIMIT);
    IN_TIME(watch, 100);
    SAYS("max");
    uint64_t renewed = ct_stats(ct, c).renewed;
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, renewed + 3, 2 * ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, c).renewals_failed, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    for (int i = 0; i < FILLERS; i++) {
        close(fds[i]);
    }
    CT_AWAIT_THAT(ct_try_open(ct, NULL, &late, NULL), ==, DL_OK, 1000);
    expect_works(ct, late, "row 18");
}

/* ---- rows 19 and 20 ---------------------------------------------------------------------------------- */

CT_CASE(faults, row19_eviction_configured, REDIS) {
    static const char *const policies[] = {"allkeys-lru", "volatile-ttl", "volatile-random"};
    redis_server_t *server = ct_redis(ct);
    (void)redis_ask(server, "CONFIG SET maxmemory 100mb");
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        (void)redis_ask(server, "CONFIG SET maxmemory-policy %s", policies[i]);
        dl_client_t *c = ct_open(ct, NULL);
        dl_event_t warning = ct_expect_event(ct, c, DL_EVENT_WARNING, NULL, ct_tolerance_ms(ct));
        CT_CHECKF(strstr(warning.text, policies[i]) != NULL, "does not name the policy: %s", warning.text);
        ct_no_event(ct, c, DL_EVENT_WARNING, NULL, 20);
        expect_works(ct, c, "row 19");
    }
    (void)redis_ask(server, "CONFIG SET maxmemory-policy noeviction");
    ct_no_event(ct, ct_open(ct, NULL), DL_EVENT_WARNING, NULL, 20);
}

/* As while a server hands over to its replica. Connections are answered all the same. */
CT_CASE(faults, row20_calls_outlast_a_pause_of_writes, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 20 held"), *wanted = ct_lock(ct, c, "row 20");
    int pause_ms = (int)ct_call_timeout_ms(ct) * 3 / 4;
    CT_OK(dl_trylock_for(held, 0, 20 * ct_lease_ms(ct), CT_ERR));
    (void)redis_ask(server, "CLIENT PAUSE %d WRITE", pause_ms);
    CT_OK(dl_unlock(held, CT_ERR));
    (void)redis_ask(server, "CLIENT PAUSE %d WRITE", pause_ms);
    CT_OK(dl_lock(wanted, CT_ERR));
    CT_OK(dl_unlock(wanted, CT_ERR));
}

CT_CASE(faults, row20_client_pause_longer_than_the_call, REDIS) {
    redis_server_t *server = ct_redis(ct);
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 20 held"), *wanted = ct_lock(ct, c, "row 20");
    int64_t timeout_ms = ct_call_timeout_ms(ct), pause_ms = 2 * timeout_ms;
    CT_OK(dl_lock(held, CT_ERR));
    (void)redis_ask(server, "CLIENT PAUSE %d", (int)pause_ms);
    watch_t paused = start_watch(ct), watch = start_watch(ct);
    CT_EITHER(dl_trylock_for(wanted, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, 50);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 20 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(paused, ct_lease_ms(ct));
    watch = start_watch(ct);
    CT_EITHER(dl_trylock(wanted, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, timeout_ms);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    CT_EQ(dl_hold_count(wanted), 0);
    /* What was given up is carried out when the pause ends; then nothing of it stays. */
    int64_t left_ms = paused.began_ms + pause_ms - ct_now_ms(ct);
    CT_CHECK(left_ms > 0 || ct_stood_ms(ct) > 0);
    ct_sleep_ms(ct, left_ms);
    ct_expect_free(ct, "row 20", timeout_ms + FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_lease_ms(ct));
    ct_expect_free(ct, "row 20", 0);
    ct_expect_free(ct, "row 20 held", 0);
    expect_works(ct, c, "row 20");
}
