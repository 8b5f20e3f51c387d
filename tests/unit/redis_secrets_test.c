/* redis_secrets_test.c - no message shows the password, though servers repeat what they were told. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_conn_server.h"

#include <pthread.h>

#include "dlock/dlock.h"

#define SECRET "Geheim-4711-Geheim"
#define PART "4711" /* of it: a message may be cut */

TestSuite(redis_secrets, .init = set_up, .fini = tear_down, .timeout = 60);

static void expect_no_secret(const char *text) {
    cr_assert_null(strstr(text, PART), "the password is in '%s'", text);
}

/* ---- one connection --------------------------------------------------------------------------------- */

#define COMMAND "HELLO 2 AUTH ann " SECRET " SETNAME dlock:my_host:17"
/* Longer than what of an error is shown, and than a whole message. */
#define FILLER "012345678901234567890123456789012345678901234567890123456789"
#define FILLERS FILLER FILLER FILLER

static const struct answer {
    const char *says;
    dl_status_t status;
    const char *words; /* that the message has all the same */
} answers[] = {
    {"-ERR syntax error in '" COMMAND "'\r\n", DL_EPROTO, "HELLO"},
    {"-ERR unknown command '" COMMAND "'\r\n", DL_ENOTSUP, "HELLO"},
    {"-ERR unknown command 'HELLO', with args beginning with: '2' 'AUTH' 'ann' '" SECRET "'\r\n", DL_ENOTSUP,
     "HELLO"},
    {"-NOPERM ann may not say '" COMMAND "'\r\n", DL_EAUTH, "no permission"},
    {"-WRONGPASS invalid username-password pair: " SECRET "\r\n", DL_EAUTH, "WRONGPASS"},
    {"-NOAUTH " COMMAND "\r\n", DL_EAUTH, "NOAUTH"},
    {"-ERR AUTH ann " SECRET "\r\n", DL_EAUTH, "asks for no password"},
    {"-ERR max number of clients reached, " COMMAND "\r\n", DL_ELIMIT, "maxclients"},
    {"-LOADING before " COMMAND "\r\n", DL_EIO, "LOADING"},
    {"-" SECRET "\r\n", DL_EPROTO, "HELLO"},
    {"-" FILLERS COMMAND "\r\n", DL_EPROTO, "HELLO"},
    {"+" COMMAND "\r\n", DL_EPROTO, "HELLO"},
    {"$" COMMAND "\r\n", DL_EPROTO, "protocol"},
    {COMMAND "\r\n", DL_EPROTO, "protocol"},
    {"*7\r\n+HELLO\r\n+2\r\n+AUTH\r\n+ann\r\n+" SECRET "\r\n+SETNAME\r\n+x\r\n", DL_EPROTO, "HELLO"},
    {HELLO_IS(SECRET, "standalone", "master"), DL_ENOTSUP, "older than Redis 6.0"},
    {HELLO "-ERR " COMMAND " SELECT 3\r\n", DL_EPROTO, "SELECT"},
    {HELLO "+OK\r\n-ERR " COMMAND " INFO server\r\n", DL_EPROTO, "INFO"},
    {HELLO "+OK\r\n-LOADING " COMMAND " INFO server\r\n", DL_EIO, "LOADING"},
};

Test(redis_secrets, an_answer_to_a_password_is_not_repeated) {
    static char ann[] = "ann", secret[] = SECRET;
    serve_tcp();
    place.username = ann;
    place.password = secret;
    place.database = 3;
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        char requests[1024];
        dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
        cr_assert_has(requests, SECRET);
        say(answers[i].says);
        dl_status_t status = drive(conn);
        expect_no_secret(err.message);
        cr_assert_eq(status, answers[i].status, "%zu: %s", i, err.message);
        cr_assert_has(err.message, answers[i].words, "'%s' is not in '%s'", answers[i].words, err.message);
        dli_conn_close(conn, false);
        close(peer);
        peer = -1;
    }
}

/* Without one the server's own words are of use. */
Test(redis_secrets, an_answer_where_there_is_no_password_is_repeated) {
    char requests[1024];
    serve_tcp();
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    say("-ERR out of paper\r\n");
    cr_assert_eq(drive(conn), DL_EPROTO);
    cr_assert_has(err.message, "out of paper");
    dli_conn_close(conn, false);
}

/* ---- clients ---------------------------------------------------------------------------------------- */

/* Repeats whatever it is told, as an error. */
static void *repeat(void *arg) {
    char bytes[4096], line[5000];
    (void)arg;
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            return NULL;
        }
        ssize_t n;
        while ((n = recv(fd, bytes, sizeof bytes - 1, 0)) > 0) {
            for (ssize_t i = 0; i < n; i++) {
                bytes[i] = bytes[i] == '\r' || bytes[i] == '\n' ? ' ' : bytes[i];
            }
            bytes[n] = '\0';
            int len = snprintf(line, sizeof line, "-ERR what is '%s'?\r\n", bytes);
            if (send(fd, line, (size_t)len, MSG_NOSIGNAL) != len) {
                break;
            }
        }
        close(fd);
    }
}

static pthread_t repeater;

static void start_repeater(void) {
    serve_tcp();
    cr_assert_eq(pthread_create(&repeater, NULL, repeat, NULL), 0);
}

static void end_repeater(void) {
    shutdown(listener, SHUT_RDWR);
    cr_assert_eq(pthread_join(repeater, NULL), 0);
}

static void expect_refused(const char *yaml) {
    dl_client_t *client;
    dl_error_t why;
    dl_status_t status = dl_client_open_text(yaml, strlen(yaml), "b", &client, &why);
    cr_assert_eq(status, DL_EPROTO, "%s", why.message);
    expect_no_secret(why.message);
}

Test(redis_secrets, drivers_show_no_password_of_an_option_or_of_a_url) {
    static const char *const drivers[] = {"redis-string", "redis-hash-reentrant"};
    char yaml[640];
    start_repeater();
    for (size_t i = 0; i < 2; i++) {
        snprintf(yaml, sizeof yaml,
                 "backends: {b: {driver: %s, url: \"redis://127.0.0.1:%s\", password: " SECRET "}}",
                 drivers[i], place.port);
        expect_refused(yaml);
        snprintf(yaml, sizeof yaml,
                 "backends: {b: {driver: %s, url: \"redis://ann:" SECRET "@127.0.0.1:%s/3\"}}", drivers[i],
                 place.port);
        expect_refused(yaml);
    }
    snprintf(yaml, sizeof yaml,
             "backends: {b: {driver: redlock, nodes: [\"redis://ann:" SECRET "@127.0.0.1:%s\", "
             "\"redis://ann:" SECRET "@localhost:%s\", \"redis://ann:" SECRET "@127.0.0.2:%s\"]}}",
             place.port, place.port, place.port);
    dl_client_t *client;
    dl_error_t why;
    cr_assert_neq(dl_client_open_text(yaml, strlen(yaml), "b", &client, &why), DL_OK);
    expect_no_secret(why.message);
    end_repeater();
}

static atomic_int findings;

static void look_at_line(void *arg, dl_log_level_t level, const char *text) {
    (void)arg;
    (void)level;
    expect_no_secret(text);
}

static void look_at_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    (void)level;
    expect_no_secret(subject);
    expect_no_secret(text);
    atomic_fetch_add(&findings, 1);
}

Test(redis_secrets, a_node_that_repeats_it_shows_it_in_no_event_line_or_finding) {
    server_t servers[2];
    char yaml[640];
    dl_client_t *client;
    dl_error_t why;
    dl_event_t event = DL_EVENT_INIT;
    for (size_t i = 0; i < 2; i++) {
        start(&servers[i], "--requirepass", SECRET, NULL);
    }
    start_repeater();
    snprintf(yaml, sizeof yaml,
             "backends: {b: {driver: redlock, quarantine: false, password: " SECRET
             ", nodes: [\"redis://127.0.0.1:%d\", \"redis://127.0.0.1:%d\", \"redis://127.0.0.1:%s\"]}}",
             servers[0].port, servers[1].port, place.port);
    cr_assert_eq(dl_client_open_text(yaml, strlen(yaml), "b", &client, &why), DL_OK, "%s", why.message);
    cr_assert_eq(dl_client_set_log(client, look_at_line, NULL), DL_OK);
    cr_assert_eq(dl_event_next(client, &event), DL_OK);
    cr_assert_has(event.text, place.port, "it is of another node: %s", event.text);
    do {
        expect_no_secret(event.text);
    } while (dl_event_next(client, &event) == DL_OK);
    cr_assert_eq(dl_client_check(client, look_at_finding, NULL, &why), DL_OK, "%s", why.message);
    cr_assert_gt(atomic_load(&findings), 0);
    dl_client_close(client);
    end_repeater();
    stop(&servers[0]);
    stop(&servers[1]);
}
