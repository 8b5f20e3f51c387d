/* redis_endpoint_test.c - which server a URL and its options name, and what is said where they are wrong. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/link/endpoint.h"

TestSuite(redis_endpoint, .timeout = 30);

static dl_error_t err;
static dli_endpoint_t endpoint;

static dli_endpoint_extras_t nothing(void) {
    return (dli_endpoint_extras_t){.database = -1, .tls_verify = true, .connect_timeout_ms = 2000};
}

/* NULL: nothing stands beside the URL. */
static dl_status_t try_to_make(const char *url, const dli_endpoint_extras_t *extras) {
    const dli_endpoint_extras_t none = nothing();
    memset(&endpoint, 0x55, sizeof endpoint);
    return dli_endpoint_make(&endpoint, url, extras != NULL ? extras : &none, &err);
}

static void make(const char *url, const dli_endpoint_extras_t *extras) {
    cr_assert_eq(try_to_make(url, extras), DL_OK, "%s: %s", url, err.message);
}

static void expect_text(const char *got, const char *expected) {
    cr_assert_eq(got == NULL, expected == NULL, "%s instead of %s", got, expected);
    if (expected != NULL) {
        cr_assert_str_eq(got, expected);
    }
}

/* Nothing may be left behind after a failure. */
static void expect_failure(const char *url, const dli_endpoint_extras_t *extras, dl_status_t status,
                           const char *message) {
    static const dli_endpoint_t zero;
    cr_expect_eq(try_to_make(url, extras), status, "%s", url);
    cr_expect_eq(err.status, status);
    cr_expect_str_eq(err.message, message, "%s: %s", url, err.message);
    cr_expect_arr_eq(&endpoint, &zero, sizeof zero);
    cr_expect_null(strstr(err.message, "hunter2"), "%s", err.message);
}

/* ---- good ones -------------------------------------------------------------------------------------- */

Test(redis_endpoint, a_url_over_tcp) {
    static const struct {
        const char *url, *host, *port, *username, *password;
        int database;
        const char *label;
    } cases[] = {
        {"redis://cache", "cache", "6379", NULL, NULL, 0, "redis://cache:6379/0"},
        {"redis://cache/", "cache", "6379", NULL, NULL, 0, "redis://cache:6379/0"},
        {"REDIS://cache:1", "cache", "1", NULL, NULL, 0, "redis://cache:1/0"},
        {"redis://cache:65535/15", "cache", "65535", NULL, NULL, 15, "redis://cache:65535/15"},
        {"redis://cache/007", "cache", "6379", NULL, NULL, 7, "redis://cache:6379/7"},
        {"redis://cache:06380", "cache", "6380", NULL, NULL, 0, "redis://cache:6380/0"},
        {"redis://:pw@10.0.0.1:6380/2", "10.0.0.1", "6380", NULL, "pw", 2, "redis://10.0.0.1:6380/2"},
        {"redis://app:pw@c-1.my_net.example./3", "c-1.my_net.example.", "6379", "app", "pw", 3,
         "redis://c-1.my_net.example.:6379/3"},
        {"redis://app@cache", "cache", "6379", "app", NULL, 0, "redis://cache:6379/0"},
        {"redis://app:@cache", "cache", "6379", "app", NULL, 0, "redis://cache:6379/0"},
        {"redis://@cache", "cache", "6379", NULL, NULL, 0, "redis://cache:6379/0"},
        {"redis://:@cache", "cache", "6379", NULL, NULL, 0, "redis://cache:6379/0"},
        {"redis://a%40b:p%2Fw%3a%25%20x%C3%A4@cache", "cache", "6379", "a@b", "p/w:% x\xC3\xA4", 0,
         "redis://cache:6379/0"},
        {"redis://app:a:b@c@cache", "cache", "6379", "app", "a:b@c", 0, "redis://cache:6379/0"},
        {"redis://app:a+b&c=d@cache", "cache", "6379", "app", "a+b&c=d", 0, "redis://cache:6379/0"},
        {"redis://[::1]", "::1", "6379", NULL, NULL, 0, "redis://[::1]:6379/0"},
        {"redis://app:pw@[2001:db8::A]:7000/1", "2001:db8::A", "7000", "app", "pw", 1,
         "redis://[2001:db8::A]:7000/1"},
        {"redis://[::ffff:10.0.0.1]/1", "::ffff:10.0.0.1", "6379", NULL, NULL, 1,
         "redis://[::ffff:10.0.0.1]:6379/1"},
        {"redis://h/2147483647", "h", "6379", NULL, NULL, 2147483647, "redis://h:6379/2147483647"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(cases[i].url, NULL);
        cr_assert(!endpoint.tls);
        cr_assert(endpoint.tls_verify);
        cr_assert_str_eq(endpoint.host, cases[i].host);
        cr_assert_str_eq(endpoint.port, cases[i].port);
        cr_assert_null(endpoint.path);
        expect_text(endpoint.username, cases[i].username);
        expect_text(endpoint.password, cases[i].password);
        cr_assert_eq(endpoint.database, cases[i].database);
        cr_assert_str_eq(endpoint.label, cases[i].label);
        cr_assert_eq(endpoint.connect_timeout_ms, 2000);
        cr_assert_eq(endpoint.keepalive_s, 0);
        dli_endpoint_free(&endpoint);
        cr_assert_null(endpoint.host);
        dli_endpoint_free(&endpoint);
    }
}

Test(redis_endpoint, a_url_of_a_unix_socket) {
    static const struct {
        const char *url, *path;
        int database;
        const char *label;
    } cases[] = {
        {"unix:///run/redis.sock", "/run/redis.sock", 0, "unix:///run/redis.sock?db=0"},
        {"Unix:///run/redis.sock?db=12", "/run/redis.sock", 12, "unix:///run/redis.sock?db=12"},
        {"unix:///run/a%20b%25@x:y", "/run/a b%@x:y", 0, "unix:///run/a b%@x:y?db=0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(cases[i].url, NULL);
        cr_assert_null(endpoint.host);
        cr_assert_str_eq(endpoint.path, cases[i].path);
        cr_assert_eq(endpoint.database, cases[i].database);
        cr_assert_str_eq(endpoint.label, cases[i].label);
        cr_assert(!endpoint.tls);
        dli_endpoint_free(&endpoint);
    }
}

Test(redis_endpoint, what_stands_beside_the_url) {
    dli_endpoint_extras_t extras = nothing();
    extras.username = "app";
    extras.password = "secret";
    extras.database = 5;
    extras.connect_timeout_ms = 700;
    extras.keepalive_ms = 1001;
    make("redis://cache", &extras);
    expect_text(endpoint.username, "app");
    expect_text(endpoint.password, "secret");
    cr_assert_eq(endpoint.database, 5);
    cr_assert_eq(endpoint.connect_timeout_ms, 700);
    cr_assert_eq(endpoint.keepalive_s, 2, "rounded up: 0 would switch it off");
    cr_assert_str_eq(endpoint.label, "redis://cache:6379/5");
    cr_assert_neq(endpoint.password, extras.password, "a copy");
    dli_endpoint_free(&endpoint);
    /* The same once more. */
    make("redis://app:secret@cache/5", &extras);
    expect_text(endpoint.password, "secret");
    cr_assert_eq(endpoint.database, 5);
    dli_endpoint_free(&endpoint);
    /* Not given: the URL decides. */
    extras = nothing();
    make("redis://app:pw@cache/5", &extras);
    expect_text(endpoint.username, "app");
    expect_text(endpoint.password, "pw");
    cr_assert_eq(endpoint.database, 5);
    dli_endpoint_free(&endpoint);
    /* One of the two. */
    extras.password = "secret";
    make("redis://app@cache/5", &extras);
    expect_text(endpoint.username, "app");
    expect_text(endpoint.password, "secret");
    dli_endpoint_free(&endpoint);
    /* Given and empty: none. */
    extras.username = extras.password = "";
    make("redis://app:pw@cache/5", &extras);
    expect_text(endpoint.username, NULL);
    expect_text(endpoint.password, NULL);
    dli_endpoint_free(&endpoint);
    /* Percent-encoding is of URLs only. */
    extras.password = "a%20b";
    extras.keepalive_ms = 0;
    make("unix:///s?db=3", &extras);
    expect_text(endpoint.password, "a%20b");
    cr_assert_eq(endpoint.database, 3);
    cr_assert_eq(endpoint.keepalive_s, 0);
    dli_endpoint_free(&endpoint);
}

Test(redis_endpoint, what_is_given_twice_has_to_be_the_same) {
    dli_endpoint_extras_t extras = nothing();
    extras.password = "hunter2";
    expect_failure("redis://app:pw@cache/5", &extras, DL_ECONFIG,
                   "password: given twice: the url says another");
    expect_failure("redis://:hunter22@cache", &extras, DL_ECONFIG,
                   "password: given twice: the url says another");
    extras = nothing();
    extras.username = "other";
    expect_failure("redis://app@cache/5", &extras, DL_ECONFIG, "username: given twice: the url says another");
    extras = nothing();
    extras.database = 2;
    expect_failure("redis://cache/5", &extras, DL_ECONFIG, "database: given twice: the url says another");
    expect_failure("unix:///s?db=0", &extras, DL_ECONFIG, "database: given twice: the url says another");
    make("redis://cache/", &extras);
    cr_assert_eq(endpoint.database, 2);
    dli_endpoint_free(&endpoint);
}

/* `ACL SETUSER app nopass reset ...` */
Test(redis_endpoint, a_user_with_a_blank_is_refused) {
    dli_endpoint_extras_t extras = nothing();
    expect_failure("redis://app%20nopass:hunter2@cache", &extras, DL_ECONFIG,
                   "username: it has a blank, which no user of Redis has");
    extras.username = "app\nnopass";
    expect_failure("redis://cache", &extras, DL_ECONFIG,
                   "username: it has a blank, which no user of Redis has");
}

/* ---- wrong ones ------------------------------------------------------------------------------------- */

#define FORMS "redis://host:6379/0, rediss://host:6379/0 (TLS) or unix:///path?db=0"
#define PORT "url: the port must be a number from 1 to 65535"
#define DATABASE "url: the database must be a number from 0 on, as in redis://host:6379/0"
#define HOST "url: the host has a byte that no host name has"
#define BRACKETS "url: between '[' and ']' stands no IPv6 address, such as [::1]"
#define PERCENT "must be followed by two hex digits; write '%25' for a plain '%'"
#define ENCODE "url: in a user or a password write '%2F' for '/', '%3F' for '?', '%23' for '#'"
#define SOCKET                                                                                \
    "url: unix:// is followed by the whole path of the socket, which begins with '/', as in " \
    "unix:///run/redis.sock"

Test(redis_endpoint, a_wrong_url_is_explained_without_the_password) {
    static const struct {
        const char *url, *message;
    } cases[] = {
        {"", "url: it must be " FORMS},
        {"cache:6379", "url: it must be " FORMS},
        {"app:hunter2@cache", "url: it must be " FORMS},
        {"app:hunter2@redis://cache", "url: it must be " FORMS},
        {"://cache", "url: it must be " FORMS},
        {"redis:/cache", "url: it must be " FORMS},
        {"http://:hunter2@cache", "url: its scheme is not known; it must be " FORMS},
        {"redis+sentinel://cache", "url: its scheme is not known; it must be " FORMS},
        {"redi://cache", "url: its scheme is not known; it must be " FORMS},
        {"redisx://cache", "url: its scheme is not known; it must be " FORMS},
        {"redis://", "url: the host is missing; expected " FORMS},
        {"redis:///0", "url: the host is missing; expected " FORMS},
        {"redis://:6379", "url: the host is missing; expected " FORMS},
        {"redis://:hunter2@", "url: the host is missing; expected " FORMS},
        {"redis://:hunter2", "url: the host is missing; expected " FORMS},
        {"redis://[]", BRACKETS},
        {"redis://[::1", BRACKETS},
        {"redis://[cache]", BRACKETS},
        {"redis://[10.0.0.1]", BRACKETS},
        {"redis://[::1]6379", "url: after ']' comes ':' and the port, or nothing"},
        {"redis://::1", "url: the host has more than one ':'; an IPv6 address stands in brackets, as in "
                        "redis://[::1]:6379/0"},
        {"redis://app:hunter2:cache", "url: the host has more than one ':'; an IPv6 address stands in "
                                      "brackets, as in redis://[::1]:6379/0"},
        {"redis://a b", HOST},
        {"redis://a%20b", HOST},
        {"redis://c\xC3\xA4", HOST},
        {"redis://${HOST}", HOST},
        {"redis://a,b", HOST},
        {"redis://cache:", PORT},
        {"redis://cache:0", PORT},
        {"redis://cache:65536", PORT},
        {"redis://cache:-1", PORT},
        {"redis://cache:+1", PORT},
        {"redis://cache:99999999999999999999", PORT},
        {"redis://app:hunter2", PORT},
        {"redis://[::1]:x", PORT},
        {"redis://cache/x", DATABASE},
        {"redis://cache/-1", DATABASE},
        {"redis://cache/2147483648", DATABASE},
        {"redis://cache/99999999999999999999", DATABASE},
        {"redis://cache/0/", DATABASE},
        {"redis://cache//", DATABASE},
        {"redis://cache#1", DATABASE},
        {"redis://cache/1#x", DATABASE},
        {"redis://cache/0?password=hunter2",
         "url: redis:// and rediss:// take no parameters after '?'; write options of their own"},
        {"redis://cache?db=1", "url: redis:// and rediss:// take no parameters after '?'; write options of "
                               "their own"},
        {"redis://app:hunter2/x@cache", ENCODE},
        {"redis://app:hunter2?x@cache", ENCODE},
        {"redis://app:hunter2#x@cache", ENCODE},
        {"redis://app:hunter2%@cache", "url: a '%' in the password " PERCENT},
        {"redis://app:hunter2%2@cache", "url: a '%' in the password " PERCENT},
        {"redis://app:hunter2%2x@cache", "url: a '%' in the password " PERCENT},
        {"redis://app:%x2hunter2@cache", "url: a '%' in the password " PERCENT},
        {"redis://a%:hunter2@cache", "url: a '%' in the user " PERCENT},
        {"redis://app:hunter2%00x@cache", "url: the password must not contain '%00'"},
        {"unix://", SOCKET},
        {"unix:///", SOCKET},
        {"unix://run/redis.sock", SOCKET},
        {"unix://app:hunter2@/run/redis.sock", SOCKET},
        {"unix://?db=1", SOCKET},
        {"unix:///run/a%zz", "url: a '%' in the path " PERCENT},
        {"unix:///run/a?", "url: the only parameter after '?' is db, as in unix:///run/redis.sock?db=0"},
        {"unix:///run/a?password=hunter2",
         "url: the only parameter after '?' is db, as in unix:///run/redis.sock?db=0"},
        {"unix:///run/a?db=", DATABASE},
        {"unix:///run/a?db=1&x=2", DATABASE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_failure(cases[i].url, NULL, DL_ECONFIG, cases[i].message);
    }
}

Test(redis_endpoint, lengths_have_bounds) {
    char url[400] = "redis://";
    memset(url + 8, 'h', 255);
    make(url, NULL);
    cr_assert_eq(strlen(endpoint.host), 255);
    cr_assert_eq(strlen(endpoint.label), sizeof endpoint.label - 1);
    dli_endpoint_free(&endpoint);
    url[8 + 255] = 'h';
    expect_failure(url, NULL, DL_ECONFIG, "url: the host is longer than 255 bytes");

    memset(url, 0, sizeof url);
    strcpy(url, "unix:///");
    memset(url + 8, 's', 106);
    make(url, NULL);
    cr_assert_eq(strlen(endpoint.path), 107);
    dli_endpoint_free(&endpoint);
    url[8 + 106] = 's';
    expect_failure(url, NULL, DL_ECONFIG, "url: the path of the socket is longer than 107 bytes");
}

Test(redis_endpoint, wrong_options_beside_a_good_url_are_explained) {
    dli_endpoint_extras_t extras = nothing();
    extras.database = INT64_C(1) << 31;
    expect_failure("redis://:hunter2@cache", &extras, DL_ECONFIG, "database: the number is too large");
    extras = nothing();
    extras.tls_ca = "/ca.pem";
    expect_failure("redis://:hunter2@cache", &extras, DL_ECONFIG,
                   "tls_ca is given, but the url does not begin with rediss://");
    extras = nothing();
    extras.tls_server_name = "cache";
    expect_failure("unix:///s", &extras, DL_ECONFIG,
                   "tls_server_name is given, but the url does not begin with rediss://");
    extras = nothing();
    extras.tls_key = "/key.pem";
    expect_failure("rediss://cache", &extras, DL_ECONFIG,
                   "tls_cert and tls_key are given together or not at all");
    extras = nothing();
    extras.tls_cert = "/cert.pem";
    expect_failure("rediss://cache", &extras, DL_ECONFIG,
                   "tls_cert and tls_key are given together or not at all");
}

/* ---- who we are, for messages ------------------------------------------------------------------------- */

static void expect_user(const char *url, const char *username, const char *shown, const char *expected) {
    dli_endpoint_extras_t extras = nothing();
    char text[DLI_ENDPOINT_USER_MAX];
    extras.username = username;
    extras.username_shown = shown;
    make(url, &extras);
    dli_endpoint_show_user(&endpoint, text);
    cr_expect_str_eq(text, expected, "%s, %s", url, username != NULL ? username : "no username");
    dli_endpoint_free(&endpoint);
}

/* Who forgets the ':' before the password in a URL has written a user's name; nobody knows what a variable
 * holds. */
Test(redis_endpoint, a_user_is_shown_as_the_configuration_has_it) {
    expect_user("redis://cache", NULL, NULL, "user 'default'");
    expect_user("redis://:hunter2@cache", NULL, NULL, "user 'default'");
    expect_user("redis://cache", "ann", NULL, "user 'ann'");
    expect_user("redis://cache", "hunter2", "${WHO}", "user '${WHO}'");
    expect_user("redis://hunter2@cache", NULL, NULL, "the user in the URL");
    expect_user("redis://ann@cache", "ann", "ann", "user 'ann'");
    expect_user("redis://ann@cache", "", "", "user 'default'");
}

/* ---- TLS -------------------------------------------------------------------------------------------- */

#ifdef DLOCK_HAVE_TLS
Test(redis_endpoint, a_url_over_tls) {
    dli_endpoint_extras_t extras = nothing();
    extras.tls_ca = "/ca.pem";
    extras.tls_cert = "/cert.pem";
    extras.tls_key = "/key.pem";
    extras.tls_server_name = "cache.example";
    extras.tls_verify = false;
    make("rediss://app:pw@cache:6390/1", &extras);
    cr_assert(endpoint.tls);
    cr_assert(!endpoint.tls_verify);
    expect_text(endpoint.tls_ca, "/ca.pem");
    expect_text(endpoint.tls_cert, "/cert.pem");
    expect_text(endpoint.tls_key, "/key.pem");
    expect_text(endpoint.tls_server_name, "cache.example");
    cr_assert_str_eq(endpoint.label, "rediss://cache:6390/1");
    dli_endpoint_free(&endpoint);
    make("rediss://cache", NULL);
    cr_assert(endpoint.tls && endpoint.tls_verify);
    cr_assert_null(endpoint.tls_ca);
    cr_assert_null(endpoint.tls_server_name);
    dli_endpoint_free(&endpoint);
}
#else
Test(redis_endpoint, tls_is_refused_where_it_was_not_built) {
    expect_failure("rediss://:hunter2@cache", NULL, DL_ENOTSUP,
                   "rediss:// needs TLS, and dlock was built without it");
}
#endif
