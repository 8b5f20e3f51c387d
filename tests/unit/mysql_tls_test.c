/* mysql_tls_test.c - the four ways to deal with TLS, against servers with it, without it, and false ones. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_tls_fixture.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>

TestSuite(mysql_tls, .init = set_up_tls, .fini = tear_down_tls, .timeout = 120);

static void expect_cipher(bool is_encrypted) {
    dli_mysql_conn_t *conn = connect_plain();
    must_ask(conn, "SHOW SESSION STATUS LIKE 'Ssl_cipher'");
    MYSQL_ROW row = dli_mysql_answer_row(&answer, NULL);
    cr_assert_not_null(row);
    cr_assert_not_null(row[1]);
    cr_assert_eq(row[1][0] != '\0', is_encrypted, "%s: cipher '%s'", parts.tls, row[1]);
    cr_assert_not(dli_mysql_conn_is_broken(conn));
    dli_mysql_conn_close(conn);
}

/* From 3.4 on Connector/C leaves loopback addresses out. */
static bool is_comparing_addresses(void) {
    unsigned major, minor;
    return sscanf(dli_mysql_library_name(), "MariaDB Connector/C %u.%u", &major, &minor) != 2 ||
           (major == 3 && minor < 4);
}

Test(mysql_tls, with_a_server_that_has_it) {
    start_with("here");
    parts.tls = "off";
    expect_cipher(false);
    parts.tls = "prefer";
    expect_cipher(true);
    parts.tls = "require";
    expect_cipher(true);
    parts.tls = "verify";
    parts.tls_ca = file("ca.pem");
    if (is_comparing_addresses()) {
        expect_cipher(true);
    }
    parts.host = local_host();
    expect_cipher(true);
    parts.tls_ca = file("other.pem");
    expect_refusal(DL_ECONFIG, ", signed by an authority in tls_ca");
    cr_assert_null(strstr(err.message, "the system's"), "%s", err.message);
    parts.tls_ca = file("ca.key"); /* no certificate at all */
    expect_refusal(DL_ECONFIG, "");
    parts.tls_ca = NULL; /* the system's authorities do not know ours, or there are none */
    expect_refusal(DL_ECONFIG, "the system's");
    cr_assert(strstr(err.message, " signed by an authority in tls_ca (unset: the system's)") != NULL ||
                  strstr(err.message, "tls_ca: the system's trusted certificates were not found") != NULL,
              "%s", err.message);
}

Test(mysql_tls, verify_compares_the_hosts_name) {
    start_with("away");
    parts.tls = "require";
    expect_cipher(true);
    parts.tls = "verify";
    parts.tls_ca = file("ca.pem");
    expect_refusal(DL_ECONFIG, "certificate");
    parts.host = local_host();
    expect_refusal(DL_ECONFIG, "; 'tls: verify' wants one for host ");
}

/* The other end of a tunnel may be anybody. */
Test(mysql_tls, verify_lets_no_loopback_address_pass_uncompared) {
    static const char *const hosts[] = {"127.0.0.1", "127.0.0.2", "127.1", "::1", "0:0:0:0:0:0:0:1"};
    start_with("away");
    parts.tls = "verify";
    parts.tls_ca = file("ca.pem");
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        dli_mysql_conn_t *conn;
        parts.host = hosts[i];
        dl_status_t status = try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn);
        cr_assert(status == DL_ECONFIG || (is_comparing_addresses() && status == DL_EIO), "%s: %s", hosts[i],
                  err.message);
        cr_assert(is_comparing_addresses() || strstr(err.message, "loopback") != NULL, "%s", err.message);
    }
}

Test(mysql_tls, certificates_of_clients) {
    start_with("here");
    mysql_ask(server, "CREATE USER 'careful'@'%%' IDENTIFIED BY '" MYSQL_SECRET "' REQUIRE X509");
    mysql_ask(server, "GRANT SELECT ON `%s`.* TO 'careful'@'%%'", database);
    parts.user = "careful";
    parts.tls = "require";
    expect_refusal(DL_EAUTH, "1045");
    parts.tls_cert = file("me.pem");
    parts.tls_key = file("me.key");
    expect_cipher(true);
    parts.tls_key = file("away.key"); /* of another certificate */
    expect_refusal(DL_ECONFIG, "");
}

Test(mysql_tls, with_a_server_that_has_none) {
    make_certificates();
    use_server(mysql_server_start(NULL, NULL, mysql_is_mariadb() ? "--skip-ssl" : "--tls-version=", NULL));
    parts.tls = "off";
    expect_cipher(false);
    parts.tls = "prefer";
    expect_cipher(false);
    parts.tls = "require";
    expect_refusal(DL_ECONFIG, "the server has no TLS, and tls demands it");
    parts.tls = "verify";
    parts.host = local_host();
    parts.tls_ca = file("ca.pem");
    expect_refusal(DL_ECONFIG, "the server has no TLS, and tls demands it");
}

Test(mysql_tls, over_a_unix_socket_only_if_it_is_demanded) {
    start_with("here");
    parts.socket = server->path;
    parts.tls = NULL;
    expect_cipher(false);
    parts.tls = "require";
    expect_cipher(true);
}

Test(mysql_tls, deadlines_hold) {
    start_with("here");
    parts.tls = "require";
    dli_mysql_conn_t *conn = connect_plain();
    for (int i = 0; i < 3; i++) {
        uint64_t before = now_ms();
        cr_assert_eq(ask_within(conn, "SELECT SLEEP(0.5), 'late'", 100, NULL), DL_ETIMEDOUT);
        cr_assert_lt(now_ms() - before, 100 + SLACK_MS);
        cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_OK, "%s", err.message);
        expect_value(conn, "SELECT REPEAT('x',100000)=''", "0");
        cr_assert_not(dli_mysql_conn_is_broken(conn));
    }
    send_only(conn, "SELECT SLEEP(100)");
    struct sigaction action = {.sa_handler = SIG_DFL};
    cr_assert_eq(sigaction(SIGPIPE, &action, NULL), 0);
    mysql_server_kill(server);
    cr_assert_eq(resume_within(conn, PATIENCE_MS, NULL), DL_EUNKNOWN);
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_EIO);
    dli_mysql_conn_close(conn);
}

Test(mysql_tls, what_is_cut_off_while_it_is_sent_is_no_signal) {
    start_with("here");
    parts.tls = "require";
    dli_mysql_conn_t *conn = connect_plain();
    enum { LEN = 14 * 1024 * 1024 }; /* more than the kernel takes for it */
    char *sql = malloc(LEN);
    memset(sql, ' ', LEN - 1);
    sql[LEN - 1] = '\0';
    struct sigaction action = {.sa_handler = SIG_DFL};
    cr_assert_eq(sigaction(SIGPIPE, &action, NULL), 0);
    mysql_server_freeze(server);
    cr_assert_eq(ask_within(conn, sql, 200, NULL), DL_EUNKNOWN);
    mysql_server_thaw(server);
    dli_mysql_conn_close(conn);
    free(sql);
}

/* ---- false servers ------------------------------------------------------------------------------------ */

static int listener;

static void listen_falsely(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, len), 0);
    cr_assert_eq(listen(listener, 8), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&address, &len), 0);
    parts = (dli_mysql_endpoint_parts_t){.host = "127.0.0.1",
                                         .port = ntohs(address.sin_port),
                                         .user = MYSQL_USER,
                                         .password = MYSQL_SECRET,
                                         .connect_timeout_ms = 1000};
}

#define SCRAMBLE_1 "abcdefgh"
#define SCRAMBLE_2 "ijklmnopqrst"

/* The greeting of a MySQL 8 whose accounts log in by caching_sha2_password. Returns its length. */
static size_t write_greeting(char greeting[160], bool has_tls) {
    size_t n = 4;
    n += (size_t)sprintf(greeting + n, "\n8.0.36") + 1;
    memcpy(greeting + n, "\1\0\0\0" SCRAMBLE_1 "\0\377", 14);
    greeting[n + 14] = (char)(has_tls ? 0xff : 0xf7);
    memcpy(greeting + n + 15, "\55\2\0\377\337\25", 6);
    memset(greeting + n + 21, 0, 10);
    memcpy(greeting + n + 31, SCRAMBLE_2 "\0caching_sha2_password", 13 + 22);
    n += 31 + 13 + 22;
    greeting[0] = (char)(n - 4);
    greeting[1] = greeting[2] = greeting[3] = 0;
    return n;
}

static int meet(void) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(fd, 0);
    return fd;
}

static int greet(bool has_tls) {
    char greeting[160];
    size_t n = write_greeting(greeting, has_tls);
    int fd = meet();
    cr_assert_eq(send(fd, greeting, n, MSG_NOSIGNAL), (ssize_t)n);
    return fd;
}

static atomic_bool has_heard_password, has_heard_login;

static ssize_t hear(int fd) {
    char bytes[2048];
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n > 0 && memmem(bytes, (size_t)n, MYSQL_SECRET, strlen(MYSQL_SECRET)) != NULL) {
        atomic_store(&has_heard_password, true);
    }
    return n;
}

/* Asks for what the password is proved with when the server does not remember it. */
static void *serve_without_tls(void *arg) {
    int fd = greet(false);
    (void)arg;
    atomic_store(&has_heard_login, hear(fd) > 0);
    if (atomic_load(&has_heard_login)) {
        cr_assert_eq(send(fd, "\2\0\0\2\1\4", 6, MSG_NOSIGNAL), 6);
        (void)hear(fd);
    }
    close(fd);
    return NULL;
}

Test(mysql_tls, no_password_in_clear) {
    static const char *const modes[] = {"off", "prefer", "require", "verify"};
    make_certificates();
    listen_falsely();
    for (size_t i = 0; i < 4; i++) {
        pthread_t thread;
        dli_mysql_conn_t *conn;
        parts.tls = modes[i];
        parts.host = i == 3 ? local_host() : "127.0.0.1";
        parts.tls_ca = i == 3 ? file("ca.pem") : NULL;
        cr_assert_eq(pthread_create(&thread, NULL, serve_without_tls, NULL), 0);
        cr_assert_neq(try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn), DL_OK);
        cr_assert_eq(pthread_join(thread, NULL), 0);
        cr_assert_not(atomic_load(&has_heard_password), "tls: %s", modes[i]);
        cr_assert_eq(atomic_load(&has_heard_login), i < 2, "tls: %s", modes[i]);
    }
    close(listener);
}

/* So much of a greeting comes at once; with goes_on the rest comes a little later. */
typedef struct cut {
    size_t after;
    bool goes_on, is_heard, has_heard_name;
} cut_t;

static void *serve_a_cut_greeting(void *arg) {
    cut_t *cut = arg;
    char greeting[160], bytes[2048];
    size_t n = write_greeting(greeting, true);
    int fd = meet();
    cr_assert_eq(send(fd, greeting, cut->after, MSG_NOSIGNAL), (ssize_t)cut->after);
    if (cut->goes_on) {
        (void)poll(NULL, 0, 30);
        (void)send(fd, greeting + cut->after, n - cut->after, MSG_NOSIGNAL);
    } else {
        (void)shutdown(fd, SHUT_WR);
    }
    ssize_t heard = recv(fd, bytes, sizeof bytes, 0);
    cut->is_heard = heard > 0;
    cut->has_heard_name = heard > 0 && memmem(bytes, (size_t)heard, MYSQL_USER, strlen(MYSQL_USER)) != NULL;
    close(fd);
    return NULL;
}

Test(mysql_tls, a_greeting_that_is_cut_gets_no_login_in_clear) {
    static const char *const modes[] = {"prefer", "require"};
    listen_falsely();
    for (size_t i = 0; i < 4; i++) {
        for (size_t after = 1; after < 60; after += 4) {
            cut_t cut = {.after = after, .goes_on = i >= 2};
            pthread_t thread;
            dli_mysql_conn_t *conn;
            parts.tls = modes[i % 2];
            cr_assert_eq(pthread_create(&thread, NULL, serve_a_cut_greeting, &cut), 0);
            dl_status_t status = try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn);
            cr_assert_eq(pthread_join(thread, NULL), 0);
            cr_assert_eq(status, DL_EIO, "%s, %zu: %s", parts.tls, after, err.message);
            cr_assert_eq(cut.is_heard, cut.goes_on, "%s, %zu", parts.tls, after); /* it asks for TLS */
            cr_assert_not(cut.has_heard_name, "%s, %zu", parts.tls, after);
        }
    }
    close(listener);
}

/* Two addresses: nobody listens at the first. The other names are looked up as usual. */
#define TWO_ADDRESSES "two.dlock.test"
#define TURNS 25
static unsigned cut_off; /* lookups that a fork() would not have waited for */

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **list) {
    union {
        void *found;
        int (*call)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    } real = {.found = dlsym(RTLD_NEXT, "getaddrinfo")};
    if (name == NULL || strcmp(name, TWO_ADDRESSES) != 0) {
        return real.call(name, service, hints, list);
    }
    cut_off += !dli_is_unforked(DLI_UNFORKED_LOOKUP) && !dli_is_unforked(DLI_UNFORKED_LIBRARY);
    int failed = real.call("127.0.0.9", service, hints, list);
    struct addrinfo *last = *list;
    while (failed == 0 && last->ai_next != NULL) {
        last = last->ai_next;
    }
    return failed != 0 ? failed : real.call("127.0.0.1", service, hints, &last->ai_next);
}

Test(mysql_tls, a_server_at_a_names_second_address_gets_no_login_in_clear) {
    static const char *const modes[] = {"off", "prefer", "require"};
    listen_falsely();
    /* A library that looks for a server by itself may begin at any of the addresses. */
    for (size_t turn = 0; turn < 3 * TURNS; turn++) {
        size_t i = turn / TURNS;
        pthread_t thread;
        dli_mysql_conn_t *conn;
        parts.tls = modes[i];
        parts.host = TWO_ADDRESSES;
        cr_assert_eq(pthread_create(&thread, NULL, serve_without_tls, NULL), 0);
        cr_assert_neq(try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn), DL_OK);
        cr_assert_eq(pthread_join(thread, NULL), 0);
        cr_assert_eq(atomic_load(&has_heard_login), i < 2, "tls: %s", modes[i]);
    }
    close(listener);
}

Test(mysql_tls, a_server_at_a_names_second_address_is_found) {
    start_with("here");
    parts.host = TWO_ADDRESSES;
    parts.tls = "off";
    expect_cipher(false);
    parts.tls = "prefer";
    expect_cipher(true);
    parts.tls = "require";
    expect_cipher(true);
    parts.port = 1;
    expect_refusal(DL_EIO, "");
    cr_assert_eq(cut_off, 0);
    cr_assert_not(dli_is_unforked(DLI_UNFORKED_LOOKUP));
}

/* SILENCE: that Oracle's library bears for ever. */
typedef enum fault { HANG_UP, RESET, GARBAGE, SILENCE } fault_t;

static void *serve_half_a_handshake(void *arg) {
    fault_t fault = *(fault_t *)arg;
    int fd = greet(true);
    struct linger now = {1, 0};
    (void)hear(fd);
    if (fault == GARBAGE) {
        cr_assert_eq(send(fd, "no TLS at all\n", 14, MSG_NOSIGNAL), 14);
    } else if (fault == RESET) {
        cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    } else if (fault == SILENCE) {
        while (hear(fd) > 0) {}
    }
    close(fd);
    return NULL;
}

Test(mysql_tls, handshakes_that_fail) {
    static const char *const modes[] = {"prefer", "require", "verify"};
    make_certificates();
    listen_falsely();
    size_t n = strncmp(dli_mysql_library_name(), "MariaDB", 7) == 0 ? 12 : 9;
    for (size_t i = 0; i < n; i++) {
        pthread_t thread;
        dli_mysql_conn_t *conn;
        fault_t fault = (fault_t)(i / 3);
        parts.tls = modes[i % 3];
        parts.host = i % 3 == 2 ? local_host() : "127.0.0.1";
        parts.tls_ca = i % 3 == 2 ? file("ca.pem") : NULL;
        cr_assert_eq(pthread_create(&thread, NULL, serve_half_a_handshake, &fault), 0);
        uint64_t before = now_ms();
        dl_status_t status = try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn);
        uint64_t took = now_ms() - before;
        cr_assert_eq(status, fault == GARBAGE ? DL_ECONFIG : DL_EIO, "%s, %d: %s", parts.tls, (int)fault,
                     err.message);
        cr_assert_lt(took, 6000, "%d ms", (int)took); /* a second for each step */
        cr_assert_eq(pthread_join(thread, NULL), 0);
    }
    close(listener);
}

/* ---- OpenSSL, which the program may use too ----------------------------------------------------------- */

/* Nothing of it is called by name: the client library may use another one. */
static void *of_openssl(const char *symbol) {
    return dlsym(RTLD_DEFAULT, symbol);
}

static unsigned long (*peek_error)(void);
static void (*new_error)(void), (*set_error)(int, int, const char *, ...);

static void find_openssl_3(void) {
    *(void **)&peek_error = of_openssl("ERR_peek_error");
    *(void **)&new_error = of_openssl("ERR_new");
    *(void **)&set_error = of_openssl("ERR_set_error");
    if (peek_error == NULL || new_error == NULL || set_error == NULL) {
        cr_skip_test("the client library does not use OpenSSL 3");
    }
}

static void make_an_error(void) {
    new_error();
    set_error(2, 22, "the program's own");
    cr_assert_neq(peek_error(), 0);
}

/* Where nothing is encrypted, OpenSSL is not asked at all. */
static void ask_with_an_error(const char *tls, bool is_emptied) {
    parts.tls = tls;
    dli_mysql_conn_t *conn = connect_plain();
    make_an_error();
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_OK, "%s", err.message);
    cr_assert_eq(peek_error() == 0, is_emptied);
    dli_mysql_conn_close(conn);
}

Test(mysql_tls, errors_in_openssls_list_are_nobody_elses) {
    find_openssl_3();
    start_with("here");
    ask_with_an_error("require", true);
    ask_with_an_error("off", false);
}

/* Else OpenSSL would see to it later, when a fork() does not wait for it. */
Test(mysql_tls, a_thread_that_ends_has_nothing_in_openssl) {
    find_openssl_3();
    use_server(mysql_server_any());
    cr_assert_eq(dli_mysql_library_start(&err), DL_OK);
    make_an_error();
    dli_mysql_library_thread_end();
    cr_assert_eq(peek_error(), 0);
}

#define EXITS "DLOCK_TEST_EXITS"

static int (*init_openssl)(uint64_t options, const void *settings);

/* Of what was registered before, so the last thing that is run. After its end OpenSSL refuses. */
static void look_whether_openssl_is_there(void) {
    _exit(init_openssl(0, NULL) == 1 ? 0 : 1);
}

/* This program, run as one that has used the library and exits. Criterion's own use OpenSSL, once it has
 * begun.
 */
__attribute__((constructor)) static void use_and_exit(void) {
    if (getenv(EXITS) != NULL) {
        *(void **)&init_openssl = of_openssl("OPENSSL_init_crypto");
        if (atexit(look_whether_openssl_is_there) != 0 || dli_mysql_library_start(&err) != DL_OK) {
            _exit(2);
        }
        exit(0);
    }
}

Test(mysql_tls, openssl_stays_until_the_program_has_ended) {
    if (of_openssl("OPENSSL_init_crypto") == NULL) {
        cr_skip_test("the client library does not use OpenSSL");
    }
    shell(EXITS "=1 /proc/%d/exe", (int)getpid());
}
