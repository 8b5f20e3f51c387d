/* redlock_refused_test.c - frees that an unlock sees refused go on without it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

#include <sys/stat.h>

/* The suite is declared in redlock_test.c. */

/* All three have it. */
static void hold_on_all(void) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
}

Test(redlock_three, a_free_that_an_unlock_saw_refused_is_tried_again) {
    char away[128];
    hold_on_all();
    snprintf(away, sizeof away, "%s.away", relays[2].path);
    cr_assert_eq(rename(relays[2].path, away), 0);
    cut_all(&relays[2]);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    cr_assert(node_has(2, KEY, OWNER ":7"));
    cr_assert_eq(rename(away, relays[2].path), 0);
    AWAIT(is_free());
}

/* -MISCONF: it cannot save, for a folder stands where the file should be. */
Test(redlock_three, a_free_that_a_node_did_not_write_is_tried_again) {
    char path[128];
    hold_on_all();
    snprintf(path, sizeof path, "%s/dump.rdb", servers[2].folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    tell(&servers[2], "CONFIG SET save %s", "3600 1");
    tell(&servers[2], "BGSAVE");
    AWAIT_THAT(info(&servers[2], "persistence", "rdb_last_bgsave_status:err"), >=, 0);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&client.nodes[2].backlog), >, 0);
    cr_assert(node_has(2, KEY, OWNER ":7"));
    tell(&servers[2], "CONFIG SET stop-writes-on-bgsave-error no");
    AWAIT(is_free());
}

static bool is_held_up(size_t i) {
    redisReply *reply = redisCommand(servers[i].admin, "PING");
    bool is_busy = reply != NULL && reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "BUSY", 4) == 0;
    freeReplyObject(reply);
    return is_busy;
}

Test(redlock_three, a_free_that_a_node_was_too_busy_for_is_tried_again) {
    int done = 0;
    redisReply *killed;
    hold_on_all();
    redisContext *c = redisConnectUnix(servers[2].path);
    cr_assert_not_null(c);
    cr_assert_eq(c->err, 0);
    tell(&servers[2], "CONFIG SET lua-time-limit 1");
    cr_assert_eq(redisAppendCommand(c, "EVAL %s 0", "while true do end"), REDIS_OK);
    cr_assert_eq(redisBufferWrite(c, &done), REDIS_OK);
    cr_assert_eq(done, 1);
    AWAIT(is_held_up(2));
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&client.nodes[2].backlog), >, 0);
    freeReplyObject(redisCommand(servers[2].admin, "SCRIPT KILL"));
    cr_assert_eq(redisGetReply(c, (void **)&killed), REDIS_OK);
    freeReplyObject(killed);
    redisFree(c);
    AWAIT(is_free());
}

/* A client that ends does not wait for a node that is away. */
Test(redlock_three, closing_waits_for_no_free_that_is_refused) {
    char away[128];
    hold_on_all();
    client.node_timeout_ms = 60000;
    snprintf(away, sizeof away, "%s.away", relays[2].path);
    cr_assert_eq(rename(relays[2].path, away), 0);
    cut_all(&relays[2]);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    uint64_t before_ns = show_ns();
    close_client();
    cr_assert_lt(show_ns() - before_ns, 1000 * MS);
    cr_assert_eq(rename(away, relays[2].path), 0);
}
