/* redis_conn_server_test.c - a connection to real servers: sockets, users, databases, replicas, limits. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_conn_server.h"

TestSuite(redis_server, .init = set_up, .fini = remove_folder, .timeout = 60);

/* ---- sockets, users, databases ----------------------------------------------------------------------- */

Test(redis_server, tcp_and_unix_sockets) {
    server_t server;
    start(&server, NULL);
    dli_endpoint_t ends[] = {at_port(&server), at_path(&server)};
    for (size_t i = 0; i < 2; i++) {
        dli_conn_t *conn = must_connect(&ends[i]);
        const dli_facts_t *facts = dli_conn_facts(conn);
        redisReply *id = ask(conn, "CLIENT", "ID", NULL);
        cr_assert_eq(id->integer, facts->client_id);
        cr_assert_geq(facts->version_number, 60000);
        cr_assert_eq(strlen(facts->run_id), 40);
        expect_text(conn, "CLIENT", "GETNAME", NULL, "dlock:my_host:17");
        expect_text(conn, "INFO", "server", NULL, facts->run_id);
        expect_text(conn, "INFO", "server", NULL, facts->version);
        cr_assert(dli_conn_is_quiet(conn));
        freeReplyObject(id);
        dli_conn_close(conn, false);
    }
    stop(&server);
}

Test(redis_server, users_and_passwords) {
    server_t server;
    char secret[] = "geheim", wrong[] = "falsch", ann[] = "ann", bob[] = "bob", off[] = "off";
    start(&server, "--requirepass", secret, "--user", "ann", "on", ">geheim", "~*", "&*", "+@all", "-info",
          "--user", "bob", "on", "nopass", "~*", "&*", "+@all", "--user", "off", "off", ">geheim", "+@all",
          NULL);
    dli_endpoint_t endpoint = at_port(&server);
    must_fail(&endpoint, DL_EAUTH, "the server asks for a password: set password or password_file");
    endpoint.password = wrong;
    must_fail(&endpoint, DL_EAUTH, "WRONGPASS");
    cr_assert_null(strstr(err.message, wrong));
    endpoint.password = secret;
    dli_conn_close(must_connect(&endpoint), false);
    endpoint.username = off;
    must_fail(&endpoint, DL_EAUTH, "WRONGPASS");
    endpoint.username = ann;
    dli_conn_t *conn = must_connect(&endpoint);
    expect_text(conn, "ACL", "WHOAMI", NULL, "ann");
    cr_assert_str_eq(dli_conn_facts(conn)->run_id, ""); /* she may not ask */
    cr_assert_gt(dli_conn_facts(conn)->client_id, 0);
    dli_conn_close(conn, false);
    endpoint.username = bob;
    endpoint.password = NULL;
    dli_conn_close(must_connect(&endpoint), false);
    stop(&server);
}

/* It is there, and what it holds back takes as long as it takes. */
Test(redis_server, a_pause_of_writes_outlasts_connect_timeout) {
    server_t server;
    start(&server, NULL);
    dli_endpoint_t endpoint = at_port(&server);
    endpoint.connect_timeout_ms = 100;
    dli_conn_t *first = must_connect(&endpoint), *conn;
    dli_commands_add_words(dli_conn_out(first), "CLIENT", "PAUSE", "500", "WRITE", NULL);
    freeReplyObject(ask(first, "PING", NULL, NULL));
    conn = must_connect(&endpoint);
    cr_assert_lt(dli_conn_facts(conn)->made_ns, 500 * MS);
    expect_text(conn, "PING", NULL, NULL, "PONG");
    dli_conn_close(conn, false);
    dli_conn_close(first, false);
    stop(&server);
}

Test(redis_server, databases) {
    server_t server;
    start(&server, NULL);
    dli_endpoint_t endpoint = at_port(&server);
    endpoint.database = 3;
    dli_conn_t *conn = must_connect(&endpoint);
    freeReplyObject(ask(conn, "SET", "key", "value"));
    expect_text(conn, "INFO", "keyspace", NULL, "db3:keys=1");
    dli_conn_close(conn, false);
    endpoint.database = 16;
    must_fail(&endpoint, DL_ECONFIG, "no database 16");
    stop(&server);
}

/* ---- servers that cannot keep locks ------------------------------------------------------------------ */

Test(redis_server, a_replica_a_cluster_and_a_sentinel_are_refused) {
    server_t server;
    char bus[8];
    start(&server, "--replicaof", "127.0.0.1 1", NULL);
    dli_endpoint_t endpoint = at_port(&server);
    must_fail(&endpoint, DL_EIO, "is a replica; locks need the primary");
    stop(&server);
    snprintf(bus, sizeof bus, "%d", port_keep()); /* usually the port and 10000, which may be none */
    start(&server, "--cluster-enabled", "yes", "--cluster-port", bus, NULL);
    endpoint = at_port(&server);
    must_fail(&endpoint, DL_ENOTSUP, "cluster");
    stop(&server);
    start_sentinel(&server);
    endpoint = at_port(&server);
    must_fail(&endpoint, DL_ENOTSUP, "is a sentinel");
    stop(&server);
}

Test(redis_server, no_room_for_another_client) {
    server_t server;
    start(&server, "--maxclients", "1", NULL);
    dli_endpoint_t ends[] = {at_port(&server), at_path(&server)};
    dli_conn_t *first = must_connect(&ends[0]);
    for (int i = 0; i < 20; i++) {
        must_fail(&ends[i % 2], DL_ELIMIT, "max number of clients");
    }
    dli_conn_close(first, false);
    stop(&server);
}

Test(redis_server, a_stopped_server_is_too_late_and_a_killed_one_hangs_up) {
    server_t server;
    start(&server, NULL);
    dli_endpoint_t ends[] = {at_port(&server), at_path(&server)};
    dli_conn_t *conn[] = {must_connect(&ends[0]), must_connect(&ends[1])};
    kill(server.pid, SIGSTOP);
    for (int i = 0; i < 2; i++) {
        uint64_t before = now_ms();
        ends[i].connect_timeout_ms = 100;
        must_fail(&ends[i], DL_EIO, "no answer to the handshake in time");
        cr_assert_lt(now_ms() - before, 100 + SLACK_MS);
        cr_assert(dli_conn_is_quiet(conn[i])); /* nothing tells it from one that is slow */
    }
    stop(&server);
    for (int i = 0; i < 2; i++) {
        cr_assert_not(dli_conn_is_quiet(conn[i]));
        cr_assert_eq(turn(conn[i], 1000), DL_EIO, "%s", err.message);
        dli_conn_close(conn[i], false);
        dl_status_t status;
        cr_assert_null(connect_to(&ends[i], &status));
        cr_assert_eq(status, DL_EIO);
    }
}
