/* redlock_nodes_test.c - opening a client of several servers, and what administrators ask them together. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_nodes_fixture.h"

TestSuite(redlock_nodes, .init = set_up, .fini = end_servers, .timeout = 60);

#define EXPECT_ERR(c, words) cr_expect_not_null(strstr((c)->err.message, words), "%s", (c)->err.message)

/* ---- bad options ------------------------------------------------------------------------------------- */

Test(redlock_nodes, options_that_cannot_be_are_refused_in_one_line, .init = NULL, .fini = NULL) {
    static const struct {
        const char *urls[3];
        int option;
        int64_t number;
        const char *says;
    } bad[] = {
        {{"redis://a", "redis://b", NULL}, -1, 0, "nodes names 2 servers; 3 to 15 are needed"},
        {{"redis://a", "redis://b", "redis://A:6379/3"}, -1, 0, "6379/3; list 3 or 5 different ones"},
        {{"redis://a", "unix:///s", "unix:///s?db=2"}, -1, 0, "nodes 2 and 3 are the same server"},
        {{"redis://a", "http://b", "redis://c"},
         -1,
         0,
         "nodes: the URL of node 2: its scheme is not known; "},
        {{"redis://a", "redis://b", "redis://c"}, DLI_REDLOCK_OPT_MAX_LEASE, 29999, "max_lease (29.999s)"},
        {{"redis://a", "redis://b", "redis://c"}, DLI_REDIS_OPT_MIN_IDLE, 9, "min_idle (9), max_idle (8)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        client_t c;
        prepare_none(&c, UUID_A);
        for (size_t j = 0; j < 3 && bad[i].urls[j] != NULL; j++) {
            add_url(&c, "%s", bad[i].urls[j]);
        }
        if (bad[i].option >= 0) {
            set_number(&c, bad[i].option, bad[i].number);
        }
        cr_expect_eq(open_and_shut(&c), DL_ECONFIG, "%zu: %s", i, c.err.message);
        EXPECT_ERR(&c, bad[i].says);
        cr_expect_null(strchr(c.err.message, '\n'));
    }
}

Test(redlock_nodes, a_password_in_a_url_is_never_printed, .init = NULL, .fini = NULL) {
    client_t c;
    prepare_none(&c, UUID_A);
    for (int i = 0; i < 2; i++) {
        add_url(&c, "redis://app:opensesame@a:6379");
    }
    add_url(&c, "redis://app:opensesame@b:notaport");
    cr_expect_eq(open_and_shut(&c), DL_ECONFIG);
    cr_expect_null(strstr(c.err.message, "opensesame"), "%s", c.err.message);
}

Test(redlock_nodes, the_table_of_options_is_the_one_that_files_are_read_by, .init = NULL, .fini = NULL) {
    static const struct {
        const char *yaml, *says;
    } bad[] = {
        {"nodes: [\"redis://a\", \"redis://b\"]", "nodes"},
        {"nodes: \"redis://a\"", "nodes"},
        {"prefix: x", "nodes"},
        {"nodes: [\"redis://a\", \"redis://b\", \"redis://c\"], max_lease: 10ms", "max_lease"},
        {"nodes: [\"redis://a\", \"redis://b\", \"redis://c\"], node_timeout: 2m", "node_timeout"},
        {"nodes: [\"redis://a\", \"redis://b\", \"redis://c\"], url: x", "url"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char yaml[256];
        dl_client_t *client;
        dl_error_t err;
        snprintf(yaml, sizeof yaml, "use: q\nbackends:\n  q: {driver: redlock, %s}\n", bad[i].yaml);
        cr_expect_eq(dl_client_open_text(yaml, strlen(yaml), NULL, &client, &err), DL_ECONFIG);
        cr_expect_has(err.message, bad[i].says);
    }
}

/* ---- who the nodes are ------------------------------------------------------------------------------- */

Test(redlock_nodes, an_even_number_is_warned_about) {
    client_t c;
    prepare(&c, UUID_A);
    must_open(&c);
    cr_expect_eq(warnings(), 0, "%s", reports.text);
    shut(&c);
    start_server(&servers[server_count++], port_keep());
    prepare(&c, UUID_A);
    cr_expect_eq(open_and_shut(&c), DL_OK, "%s", c.err.message);
    cr_expect_eq(warnings(), 1, "%s", reports.text);
    cr_expect_eq(times_said("even number"), 1);
}

Test(redlock_nodes, one_server_under_two_addresses_is_refused) {
    for (int way = 0; way < 3; way++) {
        client_t c;
        prepare_none(&c, UUID_A);
        add_url(&c, "redis://127.0.0.1:%d", servers[0].port);
        add_url(&c, "unix://%s", servers[1].path);
        if (way == 0) {
            add_url(&c, "redis://127.1:%d/0", servers[0].port);
        } else {
            add_url(&c, "unix://%s?db=%d", servers[0].path, way - 1);
        }
        cr_expect_eq(open_and_shut(&c), DL_ECONFIG, "%d: %s", way, c.err.message);
        EXPECT_ERR(&c, "nodes 1 and 3 are the same server");
    }
}

/* Two servers, and a third address where nobody is yet. */
static void prepare_with_a_gap(client_t *c, char *gap, size_t size) {
    snprintf(gap, size, "%s/gap", servers[2].folder);
    prepare_none(c, UUID_A);
    add_url(c, "unix://%s", servers[0].path);
    add_url(c, "unix://%s", servers[1].path);
    add_url(c, "unix://%s", gap);
}

static int known_as_twin(client_t *c) {
    return redlock_of(c)->nodes[2].is_twin;
}

Test(redlock_nodes, one_that_turns_out_later_to_be_another_has_no_vote_and_is_reported_once) {
    client_t c;
    char gap[96];
    mark_all();
    prepare_with_a_gap(&c, gap, sizeof gap);
    must_open(&c);
    cr_expect_eq(times_said("node 3 is down"), 1, "%s", reports.text);
    cr_assert_eq(symlink(servers[0].path, gap), 0);
    uint64_t hold_id = 0;
    AWAIT((inspect_name(&c, "orders", &(dl_lock_info_t)DL_LOCK_INFO_INIT), known_as_twin(&c)));
    /* Without the second server there are two addresses of one: no majority. */
    kill_server(&servers[1]);
    for (int i = 0; i < 3; i++) {
        dl_status_t status = lock_name(&c, "orders", A, ++hold_id);
        cr_expect_neq(status, DL_OK, "two addresses of one server were counted as two");
    }
    cr_expect_eq(times_said("are the same server"), 1, "%s", reports.text);
    /* Another server there is one of its own. */
    boot_server(&servers[1]);
    cr_assert_eq(unlink(gap), 0);
    cr_assert_eq(symlink(servers[2].path, gap), 0);
    tell(&servers[0], "CLIENT KILL TYPE normal SKIPME yes");
    AWAIT((inspect_name(&c, "orders", &(dl_lock_info_t)DL_LOCK_INFO_INIT), !known_as_twin(&c)));
    cr_expect_eq(times_said("a server of its own again"), 1, "%s", reports.text);
    shut(&c);
}

static dl_status_t meet(dli_node_t *node, const char *run_id, dl_error_t *err) {
    dli_facts_t facts = {.version_number = 0};
    (void)snprintf(facts.run_id, sizeof facts.run_id, "%s", run_id);
    return dli_node_meet(node, &facts, err);
}

Test(redlock_nodes, nodes_that_change_places_are_told_apart, .init = NULL, .fini = NULL) {
    static dli_redlock_t redlock;
    static const char *const ids[] = {"one", "two", "three"};
    dl_driver_env_t env = make_env(UUID_A, note_report, note_count);
    dl_error_t err;
    redlock.env = &env;
    redlock.n = 3;
    redlock.core = &dli_redis_no_core;
    for (size_t i = 0; i < 3; i++) {
        redlock.nodes[i].redlock = &redlock;
        redlock.nodes[i].index = i;
        cr_assert_eq(meet(&redlock.nodes[i], ids[i], &err), DL_OK);
    }
    cr_expect_eq(meet(&redlock.nodes[0], "two", &err), DL_ECONFIG);
    cr_expect_has(err.message, "nodes 1 and 2 are the same server");
    cr_expect_eq(meet(&redlock.nodes[0], "two", &err), DL_ECONFIG);
    cr_expect_eq(times_said("are the same server"), 1);
    /* The one that was there first goes on. */
    cr_expect_eq(meet(&redlock.nodes[1], "two", &err), DL_OK);
    cr_expect_eq(meet(&redlock.nodes[1], "one", &err), DL_OK);
    cr_expect_eq(meet(&redlock.nodes[0], "two", &err), DL_OK);
    cr_expect_eq(meet(&redlock.nodes[2], "", &err), DL_EAUTH);
    redlock.voting.durable = true;
    cr_expect_eq(meet(&redlock.nodes[2], "", &err), DL_EAUTH, "it may be one of the others");
}

Test(redlock_nodes, every_change_of_a_node_is_told_once, .init = NULL, .fini = NULL) {
    static dli_redlock_t redlock;
    dl_driver_env_t env = make_env(UUID_A, note_report, note_count);
    dl_error_t why = {.message = "redis://a:6379/0: connection refused"};
    dli_node_t *node = &redlock.nodes[0];
    redlock.env = &env;
    redlock.core = &dli_redis_no_core;
    node->redlock = &redlock;
    dli_node_tell(node, DL_OK, &why);
    cr_expect_eq(warnings() + reports.notes, 0);
    for (int i = 0; i < 3; i++) {
        dli_node_tell(node, DL_EIO, &why);
        dli_node_tell(node, DL_ENOMEM, &why);
        dli_node_tell(node, DL_ECANCELED, &why);
    }
    cr_expect_eq(warnings(), 1);
    cr_expect_eq(times_said("node 1 is down: redis://a:6379/0: connection refused"), 1);
    dli_node_tell(node, DL_OK, &why);
    dli_node_tell(node, DL_OK, &why);
    cr_expect_eq(reports.notes, 1);
    dli_node_tell_excluded(node, 60000);
    dli_node_tell_excluded(node, 59000);
    /* It still answers renewals. */
    dli_node_tell(node, DL_OK, &why);
    cr_expect_eq(times_said("no vote for 1m,"), 1);
    cr_expect_eq(warnings(), 2);
    cr_expect_eq(reports.notes, 1);
    dli_node_tell_excluded(node, 0);
    dli_node_tell(node, DL_OK, &why);
    cr_expect_eq(times_said("has a vote again"), 1);
    /* Somebody has set it by hand, without an end. */
    dli_node_tell_excluded(node, -1);
    dli_node_tell(node, DL_OK, &why);
    dli_node_tell_excluded(node, -1);
    dli_node_tell(node, DL_OK, &why);
    cr_expect_eq(times_said("no vote for ever"), 1);
    cr_expect_eq(times_said("has a vote again"), 1);
}

/* ---- opening ------------------------------------------------------------------------------------------ */

Test(redlock_nodes, opening_bears_a_minority_that_is_down) {
    client_t c;
    prepare(&c, UUID_A);
    kill_server(&servers[1]);
    must_open(&c);
    cr_expect_eq(warnings(), 1, "%s", reports.text);
    cr_expect_eq(times_said("node 2 is down"), 1, "%s", reports.text);
    cr_expect(!look(&c, "orders").held);
    shut(&c);
}

Test(redlock_nodes, opening_waits_no_longer_than_node_timeout_for_a_minority_that_hangs) {
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_REDLOCK_OPT_NODE_TIMEOUT, 200);
    cr_assert_eq(kill(servers[2].pid, SIGSTOP), 0);
    uint64_t began_ns = ran_ns();
    must_open(&c);
    uint64_t took_ms = (ran_ns() - began_ns) / MS;
    cr_expect_geq(took_ms, 200, "%lu ms", took_ms);
    cr_expect_lt(took_ms, 1500, "%lu ms", took_ms);
    cr_expect_eq(times_said("node 3 is down"), 1, "%s", reports.text);
    shut(&c);
}

Test(redlock_nodes, opening_fails_in_time_when_a_majority_is_down) {
    client_t c;
    prepare(&c, UUID_A);
    kill_server(&servers[0]);
    cr_assert_eq(kill(servers[2].pid, SIGSTOP), 0);
    uint64_t began_ns = ran_ns();
    cr_expect_eq(open_and_shut(&c), DL_EIO, "%s", c.err.message);
    uint64_t took_ms = (ran_ns() - began_ns) / MS;
    EXPECT_ERR(&c, "1 of 3 nodes can be used, 2 are needed; unix://");
    cr_expect_lt(took_ms, 2000, "%lu ms", took_ms);
}

/* Each that is bad is named, as far as there is room, and one reason that all have is said once. */
Test(redlock_nodes, the_reasons_of_all_bad_nodes_are_said, .init = NULL, .fini = NULL) {
    dli_redlock_t redlock = {.n = 5, .quorum = 3};
    dl_error_t said[5] = {{.status = DL_OK}};
    dl_error_t err;
    for (size_t i = 0; i < 5; i++) {
        said[i].status = i == 1 ? DL_OK : DL_EIO;
        snprintf(said[i].message, sizeof said[i].message, "redis://%zu:6379: refused", i);
    }
    cr_expect_eq(dli_nodes_need_majority(&redlock, said, &err), DL_EIO);
    cr_expect_str_eq(err.message,
                     "1 of 5 nodes can be used, 3 are needed; redis://0:6379: refused; "
                     "redis://2:6379: refused; redis://3:6379: refused; redis://4:6379: refused");
    memset(said[3].message, 'x', 140);
    cr_expect_eq(dli_nodes_need_majority(&redlock, said, &err), DL_EIO);
    cr_expect_str_eq(err.message, "1 of 5 nodes can be used, 3 are needed; redis://0:6379: refused; "
                                  "redis://2:6379: refused; and 2 more");
    for (size_t i = 0; i < 5; i++) {
        said[i].status = i == 1 ? DL_OK : DL_ENOMEM;
        strcpy(said[i].message, "out of memory");
    }
    cr_expect_eq(dli_nodes_need_majority(&redlock, said, &err), DL_ENOMEM);
    cr_expect_str_eq(err.message, "1 of 5 nodes can be used, 3 are needed; out of memory");
}

static void require_password(const char *password) {
    for (size_t i = 0; i < server_count; i++) {
        tell(&servers[i], "CONFIG SET requirepass %s", password);
    }
}

Test(redlock_nodes, a_wrong_password_is_said) {
    client_t c;
    require_password("opensesame");
    prepare(&c, UUID_A);
    set_text(&c, DLI_REDIS_OPT_PASSWORD, "wrong");
    cr_expect_eq(open_and_shut(&c), DL_EAUTH, "%s", c.err.message);
    EXPECT_ERR(&c, "0 of 3 nodes can be used");
    set_text(&c, DLI_REDIS_OPT_PASSWORD, "opensesame");
    cr_expect_eq(open_and_shut(&c), DL_OK, "%s", c.err.message);
}

Test(redlock_nodes, a_user_without_the_right_to_ask_who_the_server_is_is_refused) {
    client_t c;
    for (size_t i = 0; i < server_count; i++) {
        tell(&servers[i], "ACL SETUSER app on >opensesame ~* &* +@all -info");
    }
    prepare(&c, UUID_A);
    set_text(&c, DLI_REDIS_OPT_USERNAME, "app");
    set_text(&c, DLI_REDIS_OPT_PASSWORD, "opensesame");
    cr_expect_eq(open_and_shut(&c), DL_EAUTH, "%s", c.err.message);
    EXPECT_ERR(&c, "INFO");
    set_number(&c, DLI_REDLOCK_OPT_DURABLE, 1);
    cr_expect_eq(open_and_shut(&c), DL_EAUTH, "one server may be listed twice: %s", c.err.message);
    EXPECT_ERR(&c, "INFO");
}

Test(redlock_nodes, a_user_without_the_keys_is_told_at_open) {
    client_t c;
    for (size_t i = 0; i < server_count; i++) {
        tell(&servers[i], "ACL SETUSER app on >opensesame ~dlock:* ~dlock_tokens &* +@all");
    }
    prepare(&c, UUID_A);
    set_text(&c, DLI_REDIS_OPT_USERNAME, "app");
    set_text(&c, DLI_REDIS_OPT_PASSWORD, "opensesame");
    cr_expect_eq(open_and_shut(&c), DL_EAUTH, "%s", c.err.message);
    set_number(&c, DLI_REDLOCK_OPT_QUARANTINE, 0);
    cr_expect_eq(open_and_shut(&c), DL_OK, "%s", c.err.message);
}

Test(redlock_nodes, closing_is_safe_at_any_time, .init = NULL, .fini = NULL) {
    dli_redlock_t *state = calloc(1, sizeof *state);
    dli_redlock_driver.close(state, 0);
    dli_redlock_driver.close(state, 1);
    free(state);
}

/* ---- names, and what it is ---------------------------------------------------------------------------- */

Test(redlock_nodes, names_that_meet_its_own_keys_are_refused) {
    client_t c;
    prepare(&c, UUID_A);
    set_text(&c, DLI_REDIS_OPT_PREFIX, "dlock_");
    must_open(&c);
    static const char *const own[] = {"tokens", "tokens:node", "tokens:quarantine", "tokens:client:x"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        cr_expect_eq(table()->check_name(c.state, own[i], strlen(own[i]), &c.err), DL_EINVAL);
    }
    cr_expect_eq(table()->check_name(c.state, "tokens:nod", 10, &c.err), DL_OK);
    shut(&c);
}

Test(redlock_nodes, it_says_what_and_where_the_servers_are) {
    client_t c;
    char text[128], small[48];
    prepare_none(&c, UUID_A);
    for (size_t i = 0; i < 3; i++) {
        add_url(&c, "redis://127.0.0.1:%d/1", servers[i].port);
    }
    must_open(&c);
    table()->describe(c.state, text, sizeof text);
    cr_expect_has(text, "3 nodes");
    cr_expect_has(text, c.urls[0]);
    cr_expect_has(text, c.urls[1]);
    table()->describe(c.state, small, sizeof small);
    cr_expect_str_eq(small + strlen(small) - 4, " ...", "%s", small);
    shut(&c);
}

/* ---- a forked child ----------------------------------------------------------------------------------- */

/* Bytes that the server has read; asking adds as many each time. */
static long long bytes_read(size_t server) {
    return info(&servers[server], "stats", "total_net_input_bytes:");
}

Test(redlock_nodes, a_forked_child_closes_without_a_word) {
    client_t c;
    long long asking[3], before[3];
    mark_all();
    prepare(&c, UUID_A);
    must_open(&c);
    cr_assert_eq(lock_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    for (size_t i = 0; i < 3; i++) { /* until what was late for the majority has come */
        long long last = bytes_read(i), step = 0;
        do {
            asking[i] = step;
            before[i] = bytes_read(i);
            step = before[i] - last;
            last = before[i];
        } while (step != asking[i]);
    }
    pid_t child = fork();
    if (child == 0) {
        table()->close(c.state, 1);
        _exit(0);
    }
    int result;
    cr_assert_eq(waitpid(child, &result, 0), child);
    cr_expect(WIFEXITED(result));
    cr_expect_eq(WEXITSTATUS(result), 0);
    for (size_t i = 0; i < 3; i++) {
        cr_expect_eq(bytes_read(i), before[i] + asking[i], "server %zu", i);
    }
    cr_expect_eq(free_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    shut(&c);
}
