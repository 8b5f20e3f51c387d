/* redis_conn_tls_test.c - a connection over TLS: whom it trusts, who trusts it, and what goes wrong. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_conn_server.h"
#include "shell.h"

#include "openssl_locks.h"

TestSuite(redis_tls, .init = set_up, .fini = tear_down, .timeout = 60);

static char ca[100], cert[100], key[100], other_ca[100];

/* Authorities "ca" and "other", and a certificate of the first for locks.test and 127.0.0.1. */
static void make_certificates(const char *dates) {
    snprintf(ca, sizeof ca, "%s/ca.crt", folder);
    snprintf(other_ca, sizeof other_ca, "%s/other.crt", folder);
    snprintf(cert, sizeof cert, "%s/server.crt", folder);
    snprintf(key, sizeof key, "%s/server.key", folder);
    shell(
        "cd '%s' && exec 2>openssl.log && P='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes' &&"
        "for a in ca other; do openssl req -x509 $P -keyout $a.key -out $a.crt -days 2 -subj /CN=$a; done &&"
        "openssl req $P -keyout server.key -out server.csr -subj /CN=locks.test &&"
        "echo 'subjectAltName=DNS:locks.test,IP:127.0.0.1' >ext &&"
        "printf '[ca]\\ndefault_ca=c\\n[c]\\ndatabase=index\\nserial=serial\\nnew_certs_dir=.\\n"
        "default_md=sha256\\npolicy=p\\n[p]\\ncommonName=supplied\\n' >ca.cnf && : >index && echo 01 >serial "
        "&&"
        "openssl ca -batch -config ca.cnf -cert ca.crt -keyfile ca.key -in server.csr -out server.crt "
        "-notext %s "
        "-extfile ext && chmod 644 *.key",
        folder, dates);
}

static dli_endpoint_t start_tls(server_t *server, const char *clients) {
    char port[8];
    int tls_port = port_keep();
    snprintf(port, sizeof port, "%d", tls_port);
    start(server, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file",
          ca, "--tls-auth-clients", clients, NULL);
    set_place("127.0.0.1", tls_port);
    place.tls = true;
    place.tls_ca = ca;
    snprintf(place.label, sizeof place.label, "rediss://127.0.0.1:%d/0", tls_port);
    return place;
}

/* ---- fork() ------------------------------------------------------------------------------------------ */

/* In a thread that has not used OpenSSL yet. */
static void *ping(void *conn) {
    expect_text(conn, "PING", NULL, NULL, "PONG");
    atomic_store(&is_counting, false); /* the end of the thread is OpenSSL's own */
    return NULL;
}

/* Its locks would stay locked in a child that is forked in the midst. */
Test(redis_tls, openssl_is_used_where_fork_waits_for_us) {
    server_t server;
    make_certificates("-days 2");
    dli_endpoint_t right = start_tls(&server, "no"), wrong = right;
    pthread_t thread;
    atomic_store(&is_counting, true);
    dli_conn_t *conn = must_connect(&right);
    cr_assert_eq(pthread_create(&thread, NULL, ping, conn), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    atomic_store(&is_counting, true);
    dli_conn_close(conn, false);
    wrong.tls_ca = other_ca;
    must_fail(&wrong, DL_EAUTH, "tls_ca");
    atomic_store(&is_counting, false);
    cr_assert_gt(atomic_load(&locked), 0);
    cr_assert_eq(atomic_load(&locked_cut_off), 0);
}

/* ---- certificates ------------------------------------------------------------------------------------ */

Test(redis_tls, verifies_the_chain_and_the_name) {
    server_t server;
    char name[] = "locks.test", false_name[] = "other.test", false_address[] = "127.0.0.9",
         none[] = "/nowhere", short_address[] = "127.1";
    make_certificates("-days 2");
    dli_endpoint_t right = start_tls(&server, "no"), endpoint = right;
    dli_conn_t *conn = must_connect(&endpoint);
    expect_text(conn, "PING", NULL, NULL, "PONG");
    cr_assert(dli_conn_is_quiet(conn));
    dli_conn_close(conn, false);
    endpoint.tls_server_name = name;
    dli_conn_close(must_connect(&endpoint), false);
    endpoint.tls_server_name = false_name;
    must_fail(&endpoint, DL_EAUTH,
              "hostname mismatch: it is for locks.test, 127.0.0.1, not for tls_server_name: set "
              "tls_server_name to its name");
    endpoint.tls_server_name = false_address;
    must_fail(&endpoint, DL_EAUTH, "IP address mismatch: it is for locks.test, 127.0.0.1, not for ");
    endpoint = right;
    endpoint.host = short_address; /* is looked for as a name */
    must_fail(&endpoint, DL_EAUTH,
              "it is for locks.test, 127.0.0.1, not for host 127.1: set tls_server_name");
    endpoint = right;
    endpoint.tls_ca = other_ca;
    must_fail(
        &endpoint, DL_EAUTH,
        ": set tls_ca to the certificate of the authority that signed it, which the one in tls_ca did not");
    endpoint.tls_ca = NULL; /* the system's do not know ours */
    must_fail(&endpoint, DL_EAUTH,
              ": set tls_ca to the certificate of the authority that signed it (unset: the system's)");
    endpoint.tls_verify = false;
    endpoint.tls_server_name = false_name;
    dli_conn_close(must_connect(&endpoint), false);
    endpoint = right;
    endpoint.tls_ca = none;
    must_fail(&endpoint, DL_ECONFIG, "tls_ca: /nowhere: No such file or directory");
    endpoint.tls_ca = key;
    must_fail(&endpoint, DL_ECONFIG, "tls_ca");
    stop(&server);
}

Test(redis_tls, certificates_of_clients) {
    server_t server;
    char secret_key[120];
    make_certificates("-days 2");
    shell("cd '%s' && openssl ec -in server.key -aes128 -passout pass:x -out secret.key 2>>openssl.log",
          folder);
    snprintf(secret_key, sizeof secret_key, "%s/secret.key", folder);
    dli_endpoint_t endpoint = start_tls(&server, "yes");
    must_fail(&endpoint, DL_EAUTH, "certificate required");
    endpoint.tls_cert = cert;
    endpoint.tls_key = key;
    dli_conn_close(must_connect(&endpoint), false);
    endpoint.tls_key = other_ca; /* no key at all */
    must_fail(&endpoint, DL_ECONFIG, "tls_key");
    endpoint.tls_key = secret_key; /* nobody is asked for its passphrase */
    must_fail(&endpoint, DL_ECONFIG, "tls_key");
    endpoint.tls_cert = secret_key;
    must_fail(&endpoint, DL_ECONFIG, "tls_cert");
    stop(&server);
}

Test(redis_tls, an_expired_certificate) {
    server_t server;
    make_certificates("-startdate 20200101000000Z -enddate 20200102000000Z");
    dli_endpoint_t endpoint = start_tls(&server, "no");
    must_fail(&endpoint, DL_EAUTH, "certificate has expired");
    stop(&server);
}

Test(redis_tls, against_a_plain_port_and_the_other_way_round) {
    server_t server;
    make_certificates("-days 2");
    dli_endpoint_t secure = start_tls(&server, "no"), plain = at_port(&server), mixed = secure;
    dl_status_t status;
    dli_conn_close(must_connect(&plain), false);
    memcpy(mixed.port, plain.port, sizeof mixed.port);
    mixed.connect_timeout_ms = 300;
    cr_assert_null(connect_to(&mixed, &status)); /* it says an error in plain text, or nothing at all */
    cr_assert(status == DL_EPROTO || status == DL_EIO, "%s: %s", dl_status_name(status), err.message);
    cr_assert_has(err.message, "does the server speak TLS on this port?");
    memcpy(plain.port, secure.port, sizeof plain.port);
    cr_assert_null(connect_to(&plain, &status));
    cr_assert(status == DL_EPROTO || status == DL_EIO, "%s: %s", dl_status_name(status), err.message);
    cr_assert_has(err.message, "perhaps it wants rediss://");
    stop(&server);
}

Test(redis_tls, silence_and_hang_up_during_its_handshake) {
    dli_conn_t *conn;
    char hello[4096];
    serve_tcp();
    place.tls = true;
    place.tls_verify = false;
    place.connect_timeout_ms = 100;
    uint64_t before = now_ms();
    must_fail(&place, DL_EIO,
              "no answer to the TLS handshake in time (does the server speak TLS on this port?)");
    cr_assert_lt(now_ms() - before, 100 + SLACK_MS);
    close(accept(listener, NULL, NULL));
    place.connect_timeout_ms = PATIENCE_MS;
    for (int garbage = 0; garbage < 2; garbage++) {
        cr_assert_eq(begin(&place, &conn), DL_OK);
        peer = accept(listener, NULL, NULL);
        cr_assert_eq(turn(conn, 100), DL_OK);
        cr_assert_gt(recv(peer, hello, sizeof hello, 0), 0);
        if (garbage) {
            say("-ERR what?\r\n");
        }
        close(peer);
        cr_assert_eq(drive(conn), garbage ? DL_EPROTO : DL_EIO, "%s", err.message);
        cr_assert_has(err.message, garbage ? "does the server speak TLS" : "during the TLS handshake");
        dli_conn_close(conn, false);
    }
    peer = -1;
    stop_serving();
}

Test(redis_tls, large_values_go_both_ways) {
    enum { LEN = 14 * 1024 * 1024 }; /* more than the kernel takes for a stopped server */
    server_t server;
    char *value = malloc(LEN + 1);
    memset(value, 'v', LEN);
    value[LEN] = '\0';
    make_certificates("-days 2");
    dli_endpoint_t endpoint = start_tls(&server, "no");
    dli_conn_t *conn = must_connect(&endpoint);
    kill(server.pid, SIGSTOP);
    dli_commands_add_words(dli_conn_out(conn), "SET", "key", value, NULL);
    size_t queued = dli_conn_unsent(conn);
    cr_assert_eq(dli_conn_flush(conn, &err), DL_OK);
    size_t left = dli_conn_unsent(conn);
    cr_assert_gt(left, 0, "%zu of %zu", left, queued);
    cr_assert_lt(left, queued, "%zu of %zu", left, queued);
    kill(server.pid, SIGCONT);
    redisReply *reply = await_reply(conn);
    cr_assert_str_eq(reply->str, "OK");
    freeReplyObject(reply);
    cr_assert_eq(dli_conn_unsent(conn), 0);
    reply = ask(conn, "GET", "key", NULL);
    cr_assert_eq(reply->len, LEN);
    cr_assert_eq(memcmp(reply->str, value, LEN), 0);
    freeReplyObject(reply);
    cr_assert(dli_conn_is_quiet(conn));
    stop(&server);
    cr_assert_eq(turn(conn, 1000), DL_EIO);
    dli_conn_close(conn, false);
    free(value);
}
