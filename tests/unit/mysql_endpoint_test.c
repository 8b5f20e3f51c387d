/* mysql_endpoint_test.c - what a connection is made from, and what servers' errors mean. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/mysql/link/answer.h"
#include "drivers/mysql/link/endpoint.h"
#include "driver_env.h"

TestSuite(mysql_endpoint, .timeout = 60);
TestSuite(mysql_answer, .timeout = 60);

static dl_error_t err;

static const dli_mysql_endpoint_parts_t usual = {.host = "db.test",
                                                 .port = 3306,
                                                 .user = "app",
                                                 .password = "hunter2",
                                                 .database = "locks",
                                                 .connect_timeout_ms = 1500};

/* ---- endpoints --------------------------------------------------------------------------------------- */

static void must_refuse(dli_mysql_endpoint_parts_t parts, const char *words) {
    dli_mysql_endpoint_t *endpoint = (dli_mysql_endpoint_t *)&err;
    cr_assert_eq(dli_mysql_endpoint_new(&parts, &endpoint, &err), DL_ECONFIG, "%s", words);
    cr_assert_null(endpoint);
    cr_assert_has(err.message, words, "'%s' is not in: %s", words, err.message);
    cr_assert_null(strstr(err.message, "hunter2"));
}

static dli_mysql_endpoint_t *make(dli_mysql_endpoint_parts_t parts) {
    dli_mysql_endpoint_t *endpoint;
    cr_assert_eq(dli_mysql_endpoint_new(&parts, &endpoint, &err), DL_OK, "%s", err.message);
    return endpoint;
}

static void expect_label(dli_mysql_endpoint_parts_t parts, const char *label) {
    dli_mysql_endpoint_t *endpoint = make(parts);
    cr_assert_str_eq(endpoint->label, label);
    dli_mysql_endpoint_unref(endpoint);
}

Test(mysql_endpoint, keeps_copies_and_is_counted) {
    char host[] = "db.test";
    dli_mysql_endpoint_parts_t parts = usual;
    parts.host = host;
    dli_mysql_endpoint_t *endpoint = make(parts);
    host[0] = 'x';
    cr_assert_str_eq(endpoint->host, "db.test");
    cr_assert_eq(endpoint->port, 3306);
    cr_assert_str_eq(endpoint->user, "app");
    cr_assert_str_eq(endpoint->password, "hunter2");
    cr_assert_str_eq(endpoint->database, "locks");
    cr_assert_eq(endpoint->connect_timeout_ms, 1500);
    cr_assert_eq(endpoint->tls, DLI_MYSQL_TLS_PREFER);
    cr_assert_null(endpoint->socket);
    cr_assert_null(endpoint->tls_ca);
    cr_assert_null(endpoint->tls_cert);
    cr_assert_null(endpoint->tls_key);
    cr_assert_eq(dli_mysql_endpoint_ref(endpoint), endpoint);
    dli_mysql_endpoint_unref(endpoint);
    cr_assert_str_eq(endpoint->label, "app@db.test:3306/locks");
    dli_mysql_endpoint_unref(endpoint);
    dli_mysql_endpoint_unref(NULL);
}

Test(mysql_endpoint, labels_tell_the_place_and_no_secret) {
    dli_mysql_endpoint_parts_t parts = usual;
    parts.host = "::1";
    expect_label(parts, "app@[::1]:3306/locks");
    char host[254] = "";
    memset(host, 'h', sizeof host - 1);
    parts.host = host;
    dli_mysql_endpoint_t *endpoint = make(parts);
    cr_assert_lt(strlen(endpoint->label) + 80, sizeof err.message,
                 "a message has no room for a reason behind it");
    dli_mysql_endpoint_unref(endpoint);
    parts.socket = "/run/my.sock"; /* then host and port say nothing */
    parts.host = NULL;
    parts.port = 0;
    expect_label(parts, "app@unix:/run/my.sock/locks");
    parts.database = NULL;
    expect_label(parts, "app@unix:/run/my.sock/");
}

Test(mysql_endpoint, refuses_what_names_no_place) {
    dli_mysql_endpoint_parts_t parts = usual;
    char path[120];
    parts.host = NULL;
    must_refuse(parts, "host: it is missing");
    parts.host = "";
    must_refuse(parts, "host: it is missing");
    /* Connector/C would try each, or read options from it. */
    parts.host = "one,two";
    must_refuse(parts, "host: it has a byte");
    parts.host = "host=one;user=other";
    must_refuse(parts, "host: it has a byte");
    parts.host = "/run/my.sock";
    must_refuse(parts, "host: it is a path; that of a unix socket belongs into socket");
    parts.host = "db.example:3307";
    must_refuse(parts, "host: what follows the colon belongs into port");
    parts = usual;
    parts.port = 0;
    must_refuse(parts, "port: it must be a number from 1 to 65535");
    parts.port = 65536;
    must_refuse(parts, "port: it must be a number from 1 to 65535");
    parts.socket = "my.sock";
    must_refuse(parts, "socket: the whole path");
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[108] = '\0';
    parts.socket = path;
    must_refuse(parts, "socket: longer than 107 bytes");
    path[107] = '\0';
    dli_mysql_endpoint_unref(make(parts));
}

Test(mysql_endpoint, refuses_accounts_that_libraries_would_make_up_or_cut) {
    dli_mysql_endpoint_parts_t parts = usual;
    char text[1100];
    parts.user = NULL;
    must_refuse(parts, "user: it is missing");
    parts.user = "";
    must_refuse(parts, "user: it is missing");
    memset(text, 'x', sizeof text);
    text[256] = '\0';
    parts.user = text;
    must_refuse(parts, "user: longer than 255 bytes");
    parts = usual;
    parts.database = text;
    must_refuse(parts, "database: longer than 255 bytes");
    parts.database = "";
    must_refuse(parts, "database: it is empty");
    parts = usual;
    text[256] = 'x';
    text[1024] = '\0';
    parts.password = text;
    must_refuse(parts, "password: longer than 1023 bytes");
}

Test(mysql_endpoint, refuses_certificates_that_would_not_count) {
    dli_mysql_endpoint_parts_t parts = usual;
    const char *file = "/dev/null";
    parts.tls = "on";
    must_refuse(parts, "tls: it must be off, prefer, require or verify");
    parts.tls = "off";
    parts.tls_ca = file;
    must_refuse(parts, "tls_ca: it is given, but tls is off");
    parts.tls = "require";
    must_refuse(parts, "tls_ca: it is given, but only 'tls: verify'");
    parts.tls = NULL;
    must_refuse(parts, "tls_ca: it is given, but only 'tls: verify'");
    parts.tls_ca = NULL;
    parts.tls_cert = file;
    must_refuse(parts, "tls_cert and tls_key are given together");
    parts.tls_key = file;
    must_refuse(parts, "tls_cert: it is given, but 'tls: prefer' may go without");
    parts.tls = "off";
    must_refuse(parts, "tls_cert: it is given, but tls is off");
    parts.tls_cert = NULL;
    must_refuse(parts, "tls_cert and tls_key are given together");
    parts = usual;
    parts.tls = "verify";
    parts.tls_ca = "/nowhere/ca.pem";
    must_refuse(parts, "tls_ca: /nowhere/ca.pem: No such file or directory");
    parts.tls_ca_shown = "${CA}";
    must_refuse(parts, "tls_ca: ${CA}: No such file or directory");
    parts.tls_ca = file;
    parts.socket = "/run/my.sock";
    must_refuse(parts, "tls: verify compares the host's name, and a unix socket has none");
    parts.socket = NULL;
    dli_mysql_endpoint_t *endpoint = make(parts);
    cr_assert_eq(endpoint->tls, DLI_MYSQL_TLS_VERIFY);
    cr_assert_str_eq(endpoint->tls_ca, file);
    dli_mysql_endpoint_unref(endpoint);
}

/* ---- answers ----------------------------------------------------------------------------------------- */

Test(mysql_answer, numbers_are_whole_or_none) {
    cr_assert_eq(dli_mysql_number("0"), 0);
    cr_assert_eq(dli_mysql_number("42"), 42);
    cr_assert_eq(dli_mysql_number("18446744073709551615"), UINT64_MAX);
    const char *const none[] = {
        "18446744073709551616", "99999999999999999999", "", "-1", "1x", "x1", "1.5", " 1"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        cr_assert_eq(dli_mysql_number(none[i]), 0, "'%s'", none[i]);
    }
    cr_assert_eq(dli_mysql_number(NULL), 0);
}

static void expect_meaning(unsigned error, dl_status_t status, const char *words) {
    cr_assert_eq(dli_mysql_refused(error, "server's words", "taking 'x'", &err), status, "%u", error);
    cr_assert_eq(err.status, status);
    cr_assert_eq(err.native, (int)error);
    cr_assert_eq(strncmp(err.message, "taking 'x': ", 12), 0, "%s", err.message);
    cr_assert_has(err.message, "server's words");
    cr_assert_has(err.message, words);
}

Test(mysql_answer, errors_have_a_status_and_a_mend) {
    expect_meaning(1146, DL_ECONFIG, "dlock init");
    expect_meaning(1054, DL_ECONFIG, "dlock init");
    expect_meaning(1049, DL_ECONFIG, "dlock init");
    expect_meaning(1045, DL_EAUTH, "");
    expect_meaning(1142, DL_EAUTH, "right");
    expect_meaning(1290, DL_ENOTSUP, "");
    expect_meaning(1792, DL_ENOTSUP, "");
    expect_meaning(1040, DL_ELIMIT, "max_connections");
    expect_meaning(1203, DL_ELIMIT, "max_user_connections");
    expect_meaning(1205, DL_EIO, "");
    expect_meaning(1213, DL_EIO, "");
    expect_meaning(3572, DL_EIO, "");
    expect_meaning(1053, DL_EIO, "");
    expect_meaning(1064, DL_EPROTO, "1064");
    cr_assert(dli_mysql_is_contention(1205) && dli_mysql_is_contention(1213) &&
              dli_mysql_is_contention(3572));
    cr_assert_not(dli_mysql_is_contention(0) || dli_mysql_is_contention(1146) ||
                  dli_mysql_is_contention(1317) || dli_mysql_is_contention(1969) ||
                  dli_mysql_is_contention(3024));
}

static void expect_hidden(const char *text, const char *expected) {
    static const dli_mysql_hidden_t hidden = {.name = "Hunter2", .shown = "${PW}"};
    char shown[64];
    dli_mysql_hide(&hidden, text, shown, sizeof shown);
    cr_assert_str_eq(shown, expected);
}

Test(mysql_answer, a_hidden_name_is_replaced_in_what_a_server_says) {
    expect_hidden("", "");
    expect_hidden("Table 'db.hunter2' doesn't exist", "Table 'db.${PW}' doesn't exist");
    expect_hidden("HUNTER2 hunter2_tokens", "${PW} ${PW}_tokens");
    expect_hidden("a_hunter2 hunter23 xhunter2 hunter", "a_hunter2 hunter23 xhunter2 hunter");
    /* Cut, in whatever the end falls. */
    expect_hidden("0123456789012345678901234567890123456789012345678901234567 hunter2",
                  "0123456789012345678901234567890123456789012345678901234567 ${PW");
    expect_hidden("012345678901234567890123456789012345678901234567890123456789012345",
                  "012345678901234567890123456789012345678901234567890123456789012");
    const dli_mysql_hidden_t none = {.name = ""};
    char same[16];
    dli_mysql_hide(&none, "as it is", same, sizeof same);
    cr_assert_str_eq(same, "as it is");
}

Test(mysql_answer, an_empty_one_has_no_rows) {
    dli_mysql_answer_t answer = {0};
    unsigned long *lengths = (unsigned long *)&answer;
    cr_assert_null(dli_mysql_answer_row(&answer, &lengths));
    cr_assert_null(lengths);
    dli_mysql_answer_free(&answer);
}
