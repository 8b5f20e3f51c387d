/* redis_check_test.c - what dlock check says of a Redis server, and whether it is true. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_check_fixture.h"

TestSuite(redis_check, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- the server's settings -------------------------------------------------------------------------- */

Test(redis_check, a_fresh_server_is_told_what_it_gives_and_what_a_restart_takes) {
    for (size_t i = 0; i < 2; i++) {
        findings_t found;
        check_with(drivers[i], "", &found);
        cr_expect_eq(worst(&found), DL_FINDING_WARNING);
        cr_expect_eq(level_of(&found, "prefix"), -1);
        EXPECT(&found, "server", DL_FINDING_OK, "127.0.0.1");
        EXPECT(&found, "transport", DL_FINDING_OK, "loopback");
        EXPECT(&found, "round trip", DL_FINDING_OK, "s at best");
        EXPECT(&found, "eviction", DL_FINDING_OK, "noeviction");
        EXPECT(&found, "persistence", DL_FINDING_WARNING, "restart of the server frees every lock");
        EXPECT(&found, "replication", DL_FINDING_OK, "no replica");
        EXPECT(&found, "connections", DL_FINDING_OK, "maxclients");
        EXPECT(&found, "rights", DL_FINDING_OK, "every command");
        EXPECT(&found, "locking", DL_FINDING_OK, "taken, renewed and freed");
        EXPECT(&found, "wake-up", DL_FINDING_OK, "wakes");
        EXPECT(&found, "server clock", DL_FINDING_OK, "ran as ours");
        EXPECT(&found, "clock skew", DL_FINDING_OK, "harmless");
        EXPECT(&found, "guarantee", DL_FINDING_NOTE, "at most one owner");
        EXPECT(&found, "limit", DL_FINDING_NOTE, "second holder");
    }
}

Test(redis_check, a_trial_leaves_nothing_but_the_counter) {
    findings_t found;
    check_with("redis-string", "", &found);
    check_with("redis-hash-reentrant", "", &found);
    tell(&server, "SELECT 1");
    redisReply *reply = redisCommand(server.admin, "DBSIZE");
    cr_assert_eq(reply->integer, 1, "%lld keys", reply->integer);
    freeReplyObject(reply);
}

Test(redis_check, eviction_is_said_to_drop_locks) {
    findings_t found;
    tell(&server, "CONFIG SET maxmemory-policy volatile-ttl");
    check_with("redis-string", "", &found);
    EXPECT(&found, "eviction", DL_FINDING_NOTE, "without effect");
    tell(&server, "CONFIG SET maxmemory 100mb");
    check_with("redis-string", "", &found);
    EXPECT(&found, "eviction", DL_FINDING_WARNING, "a second holder gets in (keys that expire are the first");
    tell(&server, "CONFIG SET maxmemory-policy allkeys-lru");
    check_with("redis-string", "", &found);
    EXPECT(&found, "eviction", DL_FINDING_WARNING, "the token counter too");
    tell(&server, "CONFIG SET maxmemory-policy noeviction");
    check_with("redis-string", "", &found);
    EXPECT(&found, "eviction", DL_FINDING_OK, "new locks are refused");
}

Test(redis_check, persistence_is_said_with_what_a_crash_takes) {
    findings_t found;
    tell(&server, "CONFIG SET save %s", "3600 1");
    check_with("redis-string", "", &found);
    EXPECT(&found, "persistence", DL_FINDING_WARNING, "since the last snapshot");
    tell(&server, "CONFIG SET appendonly yes");
    tell(&server, "CONFIG SET appendfsync everysec");
    check_with("redis-string", "", &found);
    EXPECT(&found, "persistence", DL_FINDING_NOTE, "last second or two");
    tell(&server, "CONFIG SET appendfsync no");
    check_with("redis-string", "", &found);
    EXPECT(&found, "persistence", DL_FINDING_WARNING, "half minute");
    tell(&server, "CONFIG SET appendfsync always");
    check_with("redis-string", "", &found);
    EXPECT(&found, "persistence", DL_FINDING_OK, "loses no lock");
}

Test(redis_check, limits_of_connections_are_said) {
    findings_t found;
    tell(&server, "CONFIG SET timeout 30");
    tell(&server, "CONFIG SET tcp-keepalive 0");
    check_with("redis-string", "", &found);
    EXPECT(&found, "timeout", DL_FINDING_NOTE, "30 s");
    EXPECT(&found, "tcp-keepalive", DL_FINDING_NOTE, "off at the server");
    EXPECT(&found, "connections", DL_FINDING_OK, "up to 3");
    check_with("redis-string", ", connections: 2, min_replicas: 1, replica_shortfall: warn", &found);
    EXPECT(&found, "connections", DL_FINDING_OK, "up to 8");
    tell(&server, "CONFIG SET maxclients 10");
    check_with("redis-string", ", connections: 4, min_replicas: 1, replica_shortfall: warn", &found);
    EXPECT(&found, "connections", DL_FINDING_WARNING, "of 10 (maxclients)");
    check_with("redis-string", ", connections: 2, max_total: 1", &found);
    EXPECT(&found, "connections", DL_FINDING_OK, "up to 3");
}

Test(redis_check, options_of_a_pool_are_said_to_have_no_effect) {
    findings_t found;
    check_with("redis-string", ", connections: 2, max_idle: 3", &found);
    EXPECT(&found, "options", DL_FINDING_NOTE, ": max_idle");
    check_with("redis-hash-reentrant", ", min_idle: 1, test_while_idle: true, borrow_timeout: 2s", &found);
    EXPECT(&found, "options", DL_FINDING_NOTE, ": min_idle, test_while_idle, borrow_timeout");
    check_with("redis-string", ", idle_timeout: 2s", &found);
    cr_expect_eq(level_of(&found, "options"), -1);
}

Test(redis_check, replicas_are_counted_and_a_failover_is_explained) {
    server_t replica;
    findings_t found;
    check_with("redis-string", ", min_replicas: 1, replica_shortfall: warn", &found);
    EXPECT(&found, "replication", DL_FINDING_WARNING, "granted all the same");
    start_server(&replica, port_keep());
    tell(&replica, "REPLICAOF 127.0.0.1 %d", server.port);
    /* A fresh replica may not answer for the first second: several quick answers show that it is over. WAIT
     * counts the replicas that have the last write of its connection. */
    for (int i = 0, quick = 0; quick < 5; i++) {
        tell(&server, "INCR poke");
        redisReply *reply = redisCommand(server.admin, "WAIT 1 50");
        quick = reply->integer == 1 ? quick + 1 : 0;
        freeReplyObject(reply);
        cr_assert_lt(i, 500, "the replica does not come");
    }
    check_with("redis-string", "", &found);
    EXPECT(&found, "replication", DL_FINDING_WARNING, "1 replicas, asynchronous: a failover may lose a lock");
    EXPECT(&found, "replica", DL_FINDING_OK, "online");
    check_with("redis-string", ", min_replicas: 1", &found);
    EXPECT(&found, "replication", DL_FINDING_OK, "narrows");
    EXPECT(&found, "locking", DL_FINDING_OK, "taken");
    check_with("redis-string", ", min_replicas: 2, replica_timeout: 100ms", &found);
    EXPECT(&found, "replication", DL_FINDING_ERROR, "no lock can be taken");
    EXPECT(&found, "locking", DL_FINDING_ERROR, "could not be taken");
    tell(&server, "CONFIG SET min-replicas-to-write 2");
    check_with("redis-string", "", &found);
    EXPECT(&found, "min-replicas-to-write", DL_FINDING_ERROR, "refuses writes");
    end_server(&replica);
}

Test(redis_check, a_server_that_does_not_answer_is_the_status_and_a_finding) {
    findings_t found = {.n = 0};
    dl_client_t *client;
    dl_error_t err;
    cr_assert_eq(open_with("redis-string", ", call_timeout: 300ms", &client, &err), DL_OK, "%s", err.message);
    kill(server.pid, SIGSTOP);
    dl_status_t status = dl_client_check(client, keep, &found, &err);
    kill(server.pid, SIGCONT);
    cr_expect(status == DL_EIO || status == DL_EUNKNOWN, "%s", dl_status_name(status));
    cr_expect_eq(found.n, 1);
    EXPECT(&found, "server", DL_FINDING_ERROR, "");
    dl_client_close(client);
}

/* ---- clocks ----------------------------------------------------------------------------------------- */

static uint64_t began_ns;

/* A clock of this host that runs twice as fast as the server's. */
static uint64_t hurried_now(void) {
    return began_ns + 2 * (dli_sys_real.now_ns() - began_ns);
}

static uint64_t unhurried(uint64_t deadline_ns) {
    return deadline_ns == DL_NO_DEADLINE ? deadline_ns : began_ns + (deadline_ns - began_ns) / 2;
}

static int hurried_poll(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    return dli_sys_real.poll(fds, n, unhurried(deadline_ns));
}

static int hurried_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    return dli_sys_real.cond_wait(cond, mutex, unhurried(deadline_ns));
}

static dli_sys_t hurried;

Test(redis_check, a_server_clock_that_runs_at_another_speed_is_noticed) {
    findings_t found;
    began_ns = dli_sys_real.now_ns();
    hurried = dli_sys_real;
    hurried.now_ns = hurried_now;
    hurried.poll = hurried_poll;
    hurried.cond_wait = hurried_wait;
    dli_sys = &hurried;
    check_with("redis-string", "", &found);
    EXPECT(&found, "server clock", DL_FINDING_WARNING, "a lock can pass to another before its holder stops");
    dli_sys = &dli_sys_real;
}
