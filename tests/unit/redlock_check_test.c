/* redlock_check_test.c - what dlock check and dlock init say of several servers, and whether it is true. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_nodes_fixture.h"

TestSuite(redlock_check, .init = set_up, .fini = end_servers, .timeout = 60);

/* ---- findings ----------------------------------------------------------------------------------------- */

#define FINDINGS_MAX 128

typedef struct findings {
    struct {
        int level;
        char subject[64], text[1600];
    } at[FINDINGS_MAX];
    size_t n;
} findings_t;

static findings_t found;

static void keep(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    findings_t *f = arg;
    cr_assert_lt(f->n, FINDINGS_MAX, "too long: %s", text);
    cr_assert_lt(strlen(subject), 64, "too long: %s", text);
    cr_assert_lt(strlen(text), 1500, "too long: %s", text);
    cr_assert_null(strchr(text, '\n'));
    cr_assert_null(strstr(text, "opensesame"), "a secret is printed: %s", text);
    f->at[f->n].level = (int)level;
    snprintf(f->at[f->n].subject, sizeof f->at[0].subject, "%s", subject);
    snprintf(f->at[f->n++].text, sizeof f->at[0].text, "%s", text);
}

/* A finding on the subject of this level that says so. */
static bool is_said(const char *subject, dl_finding_level_t level, const char *words) {
    for (size_t i = 0; i < found.n; i++) {
        if (strcmp(found.at[i].subject, subject) == 0 && found.at[i].level == (int)level &&
            strstr(found.at[i].text, words) != NULL) {
            return true;
        }
    }
    return false;
}

static const char *all_said(void) {
    static char text[FINDINGS_MAX * 300];
    size_t len = 0;
    for (size_t i = 0; i < found.n && len + 300 < sizeof text; i++) {
        len += (size_t)snprintf(text + len, 290, "%d %s: %s", found.at[i].level, found.at[i].subject,
                                found.at[i].text);
        len = strlen(text);
        text[len++] = '\n';
        text[len] = '\0';
    }
    return text;
}

#define EXPECT(subject, level, words) \
    cr_expect(is_said(subject, level, words), "%s does not say '%s':\n%s", subject, words, all_said())

static int worst(void) {
    int level = -1;
    for (size_t i = 0; i < found.n; i++) {
        level = found.at[i].level > level ? found.at[i].level : level;
    }
    return level;
}

static dl_status_t check(client_t *c) {
    found.n = 0;
    return table()->check(c->state, keep, &found, in_ms(2000), &c->err);
}

static void check_once(client_t *c) {
    must_open(c);
    cr_assert_eq(check(c), DL_OK, "%s", c->err.message);
    shut(c);
}

static dl_status_t init(client_t *c, unsigned flags) {
    found.n = 0;
    return table()->init(c->values, &c->env, flags, keep, &found, in_ms(2000), &c->err);
}

/* The answer of one server to one command, as text. */
static const char *answer(size_t i, const char *command) {
    static char text[128];
    redisReply *reply = redisCommand(servers[i].admin, command);
    cr_assert_not_null(reply);
    snprintf(text, sizeof text, "%s", reply->type == REDIS_REPLY_STRING ? reply->str : "");
    freeReplyObject(reply);
    return text;
}

static bool is_marked(size_t i) {
    char line[160];
    snprintf(line, sizeof line, "run_id:%s\r", answer(i, "GET dlock_tokens:node"));
    redisReply *reply = redisCommand(servers[i].admin, "INFO server");
    bool is_marked = strstr(reply->str, line) != NULL;
    freeReplyObject(reply);
    return is_marked;
}

/* The same by a client, which tries a lock too. */
static void check_by_client(const char *more) {
    char yaml[1024];
    dl_client_t *client;
    dl_error_t err;
    snprintf(yaml, sizeof yaml,
             "use: b\nbackends:\n  b: {driver: redlock, nodes: [\"unix://%s\", \"unix://%s\", "
             "\"unix://%s\"]%s}\n",
             servers[0].path, servers[1].path, servers[2].path, more);
    found.n = 0;
    cr_assert_eq(dl_client_open_text(yaml, strlen(yaml), NULL, &client, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_client_check(client, keep, &found, &err), DL_OK, "%s", err.message);
    dl_client_close(client);
}

/* ---- check -------------------------------------------------------------------------------------------- */

Test(redlock_check, servers_in_order_are_told_what_they_give_together) {
    client_t c;
    mark_all();
    prepare(&c, UUID_A);
    check_once(&c);
    EXPECT("nodes", DL_FINDING_OK, "3 servers, 2 have to agree, so 1 may be down");
    EXPECT("hosts", DL_FINDING_WARNING, "nodes 1 and 3 are on one host (this one)");
    EXPECT("node_timeout", DL_FINDING_OK, "500ms of a call_timeout of 2s");
    EXPECT("max_lease", DL_FINDING_OK, "1m");
    for (size_t i = 1; i <= 3; i++) {
        static const char *const subjects[] = {"server",   "transport",    "vote",        "round trip",
                                               "eviction", "persistence",  "replication", "connections",
                                               "rights",   "server clock", "clock skew"};
        for (size_t j = 0; j < sizeof subjects / sizeof subjects[0]; j++) {
            char subject[64];
            snprintf(subject, sizeof subject, "node %zu %s", i, subjects[j]);
            EXPECT(subject, DL_FINDING_OK, "");
        }
    }
    EXPECT("guarantee", DL_FINDING_NOTE, "at most 1 of 3 nodes");
    EXPECT("limit", DL_FINDING_NOTE, "smaller tokens");
    cr_expect_eq(worst(), DL_FINDING_WARNING, "%s", all_said());
}

Test(redlock_check, a_lock_is_tried_on_all_of_them) {
    mark_all();
    check_by_client("");
    EXPECT("locking", DL_FINDING_OK, "taken, renewed and freed");
    EXPECT("wake-up", DL_FINDING_OK, "wakes");
    for (size_t i = 0; i < 3; i++) {
        /* The trial leaves the counter, beside the marker. Its free may come to one of them late. */
        AWAIT_THAT(tell(&servers[i], "DBSIZE"), ==, 2);
    }
}

Test(redlock_check, short_leases_can_be_tried_too) {
    mark_all();
    check_by_client(", lease: 1s, max_lease: 1s");
    EXPECT("locking", DL_FINDING_OK, "taken, renewed and freed");
}

Test(redlock_check, numbers_that_do_not_fit_are_said) {
    client_t c;
    start_server(&servers[server_count++], port_keep());
    mark_all();
    prepare(&c, UUID_A);
    c.env.lease_ms = 3000;
    set_number(&c, DLI_REDLOCK_OPT_NODE_TIMEOUT, 1001);
    set_number(&c, DLI_REDLOCK_OPT_FENCING, 0);
    check_once(&c);
    EXPECT("nodes", DL_FINDING_WARNING, "one fewer would bear as much");
    EXPECT("node_timeout", DL_FINDING_WARNING, "less than half");
    EXPECT("max_lease", DL_FINDING_NOTE, "a shorter one brings it back sooner");
    EXPECT("limit", DL_FINDING_NOTE, "fencing: true");
}

Test(redlock_check, nodes_without_a_vote_are_named_and_not_made_to_wait) {
    client_t c;
    prepare(&c, UUID_A);
    check_once(&c);
    for (size_t i = 1; i <= 3; i++) {
        char subject[64];
        snprintf(subject, sizeof subject, "node %zu vote", i);
        EXPECT(subject, DL_FINDING_WARNING, "new, or was emptied");
        cr_expect_eq(tell(&servers[i - 1], "DBSIZE"), 0, "looking began a quarantine");
    }
    EXPECT("locking", DL_FINDING_ERROR, "0 of 3 nodes have a vote");
    mark_all();
    tell(&servers[1], "SET dlock_tokens:node another");
    tell(&servers[2], "SET dlock_tokens:quarantine 1 PX 40000");
    check_once(&c);
    EXPECT("node 1 vote", DL_FINDING_OK, "has one");
    EXPECT("node 2 vote", DL_FINDING_WARNING, "restarted");
    EXPECT("node 3 vote", DL_FINDING_WARNING, "(quarantine)");
    EXPECT("locking", DL_FINDING_ERROR, "1 of 3");
    tell(&servers[2], "DEL dlock_tokens:quarantine");
    set_number(&c, DLI_REDLOCK_OPT_DURABLE, 1);
    check_once(&c);
    EXPECT("node 2 vote", DL_FINDING_OK, "durable says");
    EXPECT("node 2 persistence", DL_FINDING_ERROR, "no append-only file");
    cr_expect_null(strstr(all_said(), "locking"), "it is worth a trial");
    set_number(&c, DLI_REDLOCK_OPT_DURABLE, 0);
    set_number(&c, DLI_REDLOCK_OPT_QUARANTINE, 0);
    check_once(&c);
    EXPECT("quarantine", DL_FINDING_WARNING, "a second holder can get in");
    EXPECT("node 2 persistence", DL_FINDING_WARNING, "quarantine: false");
}

Test(redlock_check, durable_is_compared_with_what_the_servers_do) {
    client_t c;
    mark_all();
    tell(&servers[0], "CONFIG SET appendonly yes");
    tell(&servers[0], "CONFIG SET appendfsync always");
    tell(&servers[1], "CONFIG SET appendonly yes");
    prepare(&c, UUID_A);
    check_once(&c);
    EXPECT("node 1 persistence", DL_FINDING_OK, "with durable: true");
    EXPECT("node 2 persistence", DL_FINDING_OK, "none is needed");
    set_number(&c, DLI_REDLOCK_OPT_DURABLE, 1);
    check_once(&c);
    EXPECT("node 1 persistence", DL_FINDING_OK, "as durable says");
    EXPECT("node 2 persistence", DL_FINDING_ERROR, "not synced with each write");
    EXPECT("node 3 persistence", DL_FINDING_ERROR, "no append-only file");
}

Test(redlock_check, replicas_are_a_danger_to_durable_only) {
    client_t c;
    mark_all();
    start_server(&servers[3], port_keep());
    tell(&servers[3], "REPLICAOF 127.0.0.1 %d", servers[0].port);
    AWAIT_THAT(info(&servers[0], "replication", "connected_slaves:"), ==, 1);
    prepare(&c, UUID_A);
    check_once(&c);
    EXPECT("node 1 replication", DL_FINDING_NOTE, "no vote for max_lease");
    EXPECT("node 2 replication", DL_FINDING_OK, "as it should be");
    set_number(&c, DLI_REDLOCK_OPT_DURABLE, 1);
    check_once(&c);
    EXPECT("node 1 replication", DL_FINDING_WARNING, "a second holder");
    end_server(&servers[3]);
}

Test(redlock_check, a_node_that_is_down_or_hangs_is_said_and_the_others_are_looked_at) {
    client_t c;
    mark_all();
    prepare(&c, UUID_A);
    set_number(&c, DLI_REDLOCK_OPT_NODE_TIMEOUT, 200);
    must_open(&c);
    cr_assert_eq(kill(servers[2].pid, SIGSTOP), 0);
    uint64_t began_ns = ran_ns();
    cr_assert_eq(check(&c), DL_OK, "%s", c.err.message);
    cr_expect_lt(ran_ns() - began_ns, 2000 * MS);
    EXPECT("node 3 server", DL_FINDING_ERROR, "in time");
    EXPECT("node 1 server", DL_FINDING_OK, "Redis");
    check_by_client(", node_timeout: 200ms");
    EXPECT("node 3 server", DL_FINDING_ERROR, "");
    EXPECT("locking", DL_FINDING_OK, "taken");
    EXPECT("wake-up", DL_FINDING_OK, "wakes");
    kill_server(&servers[1]);
    cr_expect_eq(check(&c), DL_EIO, "%s", c.err.message);
    EXPECT("node 2 server", DL_FINDING_ERROR, "");
    EXPECT("node 1 vote", DL_FINDING_OK, "has one");
    shut(&c);
}

/* `dlock init` refuses as soon as one of the servers has been in use. */
Test(redlock_check, init_is_advised_only_where_it_does_not_refuse) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_REDLOCK_OPT_FENCING, 0);
    check_once(&c);
    EXPECT("node 2 vote", DL_FINDING_WARNING, "none for 1m (max_lease) from the next lock on: it is new");
    EXPECT("node 2 vote", DL_FINDING_WARNING, "; new nodes: run `dlock init`");
    EXPECT("node_timeout", DL_FINDING_OK, "a lock takes one request, ");
    tell(&servers[1], "SET dlock_tokens:node other");
    tell(&servers[1], "SET dlock_tokens:quarantine 1 PX 49000");
    check_once(&c);
    EXPECT("node 2 vote", DL_FINDING_WARNING, "none for another 4"); /* 49 s, or less */
    EXPECT("node 2 vote", DL_FINDING_WARNING, "; new nodes: run `dlock init`");
    tell(&servers[0], "SET dlock_tokens 1");
    check_once(&c);
    EXPECT("node 2 vote", DL_FINDING_WARNING, "none for another 4");
    EXPECT("node 3 vote", DL_FINDING_WARNING, "it is new");
    cr_expect_null(strstr(all_said(), "dlock init"), "%s", all_said());
}

/* ---- init --------------------------------------------------------------------------------------------- */

Test(redlock_check, init_marks_new_servers_and_they_vote_at_once) {
    client_t c;
    prepare(&c, UUID_A);
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    cr_expect_eq(worst(), DL_FINDING_OK, "%s", all_said());
    for (size_t i = 0; i < 3; i++) {
        cr_expect(is_marked(i));
    }
    EXPECT("node 3", DL_FINDING_OK, "marked");
    must_open(&c);
    cr_expect_eq(lock_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    cr_expect_eq(free_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    shut(&c);
    /* Again: nothing changes, also when they have been in use. */
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    cr_expect_eq(worst(), DL_FINDING_OK, "%s", all_said());
    EXPECT("node 1", DL_FINDING_OK, "nothing to do");
}

Test(redlock_check, init_ends_a_quarantine_that_an_early_lock_began) {
    client_t c;
    prepare(&c, UUID_A);
    must_open(&c);
    cr_expect_neq(lock_name(&c, "orders", A, 1), DL_OK, "a new server has no vote");
    AWAIT_THAT(tell(&servers[0], "EXISTS dlock_tokens:quarantine"), ==, 1); /* perhaps after the refusal */
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    cr_expect_eq(tell(&servers[0], "EXISTS dlock_tokens:quarantine"), 0, "%s", all_said());
    cr_expect_eq(lock_name(&c, "orders", A, 2), DL_OK, "%s", c.err.message);
    shut(&c);
}

/* One that joins, or was emptied, may stand for one that had locks. */
Test(redlock_check, init_refuses_a_node_of_servers_that_have_been_in_use) {
    static const char *const traces[][2] = {
        {"SET dlock_tokens 1700000000000000", "a token counter"},
        {"SET dlock:orders " A ":1 PX 60000", "a lock"},
    };
    for (size_t i = 0; i < 2; i++) {
        client_t c;
        for (size_t j = 0; j < 3; j++) {
            tell(&servers[j], "FLUSHALL");
        }
        mark_all();
        tell(&servers[1], traces[i][0]);
        tell(&servers[2], "FLUSHALL");
        prepare(&c, UUID_A);
        cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
        EXPECT("node 1", DL_FINDING_OK, "nothing to do");
        EXPECT("node 3", DL_FINDING_ERROR, traces[i][1]);
        EXPECT("node 3", DL_FINDING_ERROR, "1m");
        cr_expect_eq(tell(&servers[2], "DBSIZE"), 0, "it was marked all the same");
        tell(&servers[1], "SET dlock_tokens:quarantine 1 PX 40000");
        cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
        EXPECT("node 2", DL_FINDING_ERROR, "not marked");
        cr_expect_eq(tell(&servers[1], "EXISTS dlock_tokens:quarantine"), 1);
    }
}

Test(redlock_check, init_marks_nobody_while_a_node_cannot_be_looked_at) {
    client_t c;
    prepare(&c, UUID_A);
    kill_server(&servers[1]);
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    EXPECT("node 2", DL_FINDING_ERROR, "could not be looked at");
    EXPECT("node 1", DL_FINDING_ERROR, "node 2 could not be looked at");
    cr_expect_eq(tell(&servers[0], "DBSIZE"), 0);
    boot_server(&servers[1]);
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    cr_expect_eq(worst(), DL_FINDING_OK, "%s", all_said());
}

Test(redlock_check, init_without_quarantine_has_nothing_to_do) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_REDLOCK_OPT_QUARANTINE, 0);
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    EXPECT("init", DL_FINDING_OK, "nothing to do");
    cr_expect_eq(tell(&servers[0], "DBSIZE"), 0);
}

/* The rule that is printed, given to a user of every server. */
static void grant_printed_rule(client_t *c) {
    cr_assert_eq(init(c, DL_INIT_PRINT), DL_OK, "%s", c->err.message);
    for (size_t i = 0; i < found.n; i++) {
        const char *at = strstr(found.at[i].text, ">PASSWORD");
        if (strcmp(found.at[i].subject, "rule") != 0) {
            continue;
        }
        cr_assert_not_null(at);
        char rule[1600];
        snprintf(rule, sizeof rule, "%.*s on >opensesame%s", (int)(at - found.at[i].text), found.at[i].text,
                 at + strlen(">PASSWORD"));
        for (size_t j = 0; j < server_count; j++) {
            bool is_old = info(&servers[j], "server", "redis_version:") < 7 &&
                          info(&servers[j], "server", "redis_version:6.") < 2;
            char *channels = strstr(rule, " &");
            if (is_old && channels != NULL) {
                memset(channels + 1, ' ', strcspn(channels + 1, " "));
            }
            tell(&servers[j], rule);
        }
        return;
    }
    cr_assert_fail("no rule is printed: %s", all_said());
}

Test(redlock_check, a_user_with_the_printed_rule_can_do_everything) {
    client_t c;
    dl_lock_info_t info;
    prepare(&c, UUID_A);
    set_text(&c, DLI_REDIS_OPT_USERNAME, "locker");
    set_text(&c, DLI_REDIS_OPT_PASSWORD, "opensesame");
    grant_printed_rule(&c);
    EXPECT("init", DL_FINDING_NOTE, "dlock_tokens:node");
    cr_assert_eq(init(&c, 0), DL_OK, "%s", c.err.message);
    cr_expect_eq(worst(), DL_FINDING_OK, "%s", all_said());
    must_open(&c);
    cr_assert_eq(check(&c), DL_OK, "%s", c.err.message);
    EXPECT("node 2 rights", DL_FINDING_OK, "every command");
    cr_expect_eq(lock_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    cr_expect_eq(inspect_name(&c, "orders", &info), DL_OK, "%s", c.err.message);
    cr_expect_eq(force_name(&c, "orders"), DL_OK, "%s", c.err.message);
    shut(&c);
    check_by_client(", username: locker, password: opensesame");
    EXPECT("locking", DL_FINDING_OK, "taken, renewed and freed");
    EXPECT("wake-up", DL_FINDING_OK, "wakes");
}
