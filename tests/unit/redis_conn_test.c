/* redis_conn_test.c - a connection to Redis against a server that misbehaves in every way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_conn_fixture.h"

#include <sys/resource.h>

#include "support/alloc_fail.h"

TestSuite(redis_conn, .init = set_up, .fini = tear_down, .timeout = 60);

static char requests[1024];

/* Plays a server that says this, once it was asked. */
static void must_reject(const char *text, dl_status_t wanted, const char *words) {
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    say(text);
    dl_status_t status = drive(conn);
    cr_assert_eq(status, wanted, "%s, not %s: %s", dl_status_name(status), dl_status_name(wanted),
                 err.message);
    cr_assert_has(err.message, words, "'%s' is not in '%s'", words, err.message);
    cr_assert_eq(turn(conn, 0), DL_EIO); /* broken is broken */
    dli_conn_close(conn, false);
    close(peer);
    peer = -1;
}

/* ---- the handshake ----------------------------------------------------------------------------------- */

Test(redis_conn, asks_everything_in_one_pipeline) {
    serve_tcp();
    char user[] = "ann", password[] = "p w";
    place.username = user;
    place.password = password;
    place.database = 3;
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    cr_assert_str_eq(requests,
                     "*7\r\n$5\r\nHELLO\r\n$1\r\n2\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$3\r\np w\r\n"
                     "$7\r\nSETNAME\r\n$16\r\ndlock:my_host:17\r\n"
                     "*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n"
                     "*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 0\r\n$1\r\n0\r\n*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
    say(HELLO "+OK\r\n" SERVER_INFO);
    cr_assert_eq(drive(conn), DL_OK, "%s", err.message);
    dli_conn_close(conn, false);
}

Test(redis_conn, a_password_alone_is_that_of_the_user_default) {
    serve_tcp();
    char password[] = "secret";
    place.password = password;
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    cr_assert_has(requests, "AUTH\r\n$7\r\ndefault\r\n$6\r\nsecret\r\n");
    dli_conn_close(conn, false);
}

Test(redis_conn, learns_what_the_server_says_byte_by_byte) {
    static const char answer[] = HELLO SERVER_INFO;
    serve_tcp();
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    for (size_t i = 0; i < strlen(answer); i++) {
        cr_assert_not(dli_conn_is_ready(conn));
        say_bytes(answer + i, 1);
        cr_assert_eq(turn(conn, 1000), DL_OK, "%s", err.message);
    }
    cr_assert_eq(drive(conn), DL_OK);
    const dli_facts_t *facts = dli_conn_facts(conn);
    cr_assert_str_eq(facts->product, "redis");
    cr_assert_str_eq(facts->version, "7.0.15");
    cr_assert_eq(facts->version_number, 70015);
    cr_assert_str_eq(facts->run_id, "abc");
    cr_assert_eq(facts->client_id, 42);
    cr_assert_not(facts->is_cluster);
    cr_assert_eq(dli_conn_until(conn), DL_NO_DEADLINE);
    dli_conn_close(conn, false);
}

Test(redis_conn, valkey_is_known_by_its_own_version) {
    serve_tcp();
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    say(HELLO_IS("7.2.4", "standalone",
                 "master") "$43\r\nredis_version:7.2.4\r\nvalkey_version:8.1.1\r\n\r\n:0\r\n" HELLO);
    cr_assert_eq(drive(conn), DL_OK, "%s", err.message);
    cr_assert_str_eq(dli_conn_facts(conn)->product, "valkey");
    cr_assert_eq(dli_conn_facts(conn)->version_number, 80101);
    dli_conn_close(conn, false);
}

Test(redis_conn, refuses_servers_that_cannot_keep_locks) {
    serve_tcp();
    must_reject(HELLO_IS("5.0.7", "standalone", "master"), DL_ENOTSUP, "older than Redis 6.0");
    must_reject(HELLO_IS("7.0.15", "cluster", "master"), DL_ENOTSUP, "cluster");
    must_reject(HELLO_IS("7.0.15", "sentinel", "master"), DL_ENOTSUP, "sentinel");
    must_reject(HELLO_IS("7.0.15", "standalone", "slave"), DL_EIO, "is a replica; locks need the primary");
    /* It became one while it held back writes. */
    must_reject(HELLO "$0\r\n\r\n:0\r\n" HELLO_IS("7.0.15", "standalone", "slave"), DL_EIO,
                "is a replica; locks need the primary");
    must_reject("-ERR unknown command `HELLO`, with args beginning with: `2`, `AUTH`, `x`\r\n", DL_ENOTSUP,
                "older than Redis 6.0");
    must_reject("-NOAUTH HELLO must be called with the client already authenticated\r\n", DL_EAUTH,
                "0: the server asks for a password: set password or password_file");
    must_reject("-WRONGPASS invalid username-password pair\r\n", DL_EAUTH, "WRONGPASS");
    must_reject("-LOADING Redis is loading the dataset in memory\r\n", DL_EIO, "LOADING");
    must_reject("-ERR max number of clients reached\r\n", DL_ELIMIT, "max number of clients");
    must_reject(HELLO "-LOADING Redis is loading the dataset in memory\r\n", DL_EIO, "LOADING");
    place.database = 99;
    must_reject(HELLO "-ERR DB index is out of range\r\n", DL_ECONFIG, "no database 99");
}

Test(redis_conn, refuses_what_is_no_answer) {
    serve_tcp();
    must_reject("HTTP/1.1 400 Bad Request\r\n\r\n", DL_EPROTO, place.label);
    cr_assert_null(strstr(err.message, "rediss://"), "%s", err.message);
    /* An alert of TLS. */
    must_reject("\x15\x03\x01", DL_EPROTO, "(perhaps it wants rediss://)");
    must_reject("%1\r\n+server\r\n+redis\r\n", DL_EPROTO, "");
    must_reject("*1000000000\r\n", DL_EPROTO, "");
    must_reject("+OK\r\n", DL_EPROTO, "HELLO");
    must_reject("*-1\r\n", DL_EPROTO, "HELLO");
    must_reject("*0\r\n", DL_EPROTO, "HELLO");
    must_reject("*2\r\n$6\r\nserver\r\n:1\r\n", DL_EPROTO, "HELLO");
    must_reject(HELLO ":1\r\n", DL_EPROTO, "INFO");
    must_reject(HELLO "*0\r\n", DL_EPROTO, "INFO");
    must_reject(HELLO "$0\r\n\r\n+OK\r\n", DL_EPROTO, "EVAL");
    must_reject(HELLO SERVER_INFO "+PONG\r\n", DL_EPROTO, "more than it was asked");
    must_reject(HELLO SERVER_INFO "$", DL_EPROTO, "more than it was asked");
    place.database = 3;
    must_reject(HELLO ":1\r\n", DL_EPROTO, "SELECT");
}

Test(redis_conn, a_hang_up_is_seen_in_every_state) {
    static const char *const said[] = {"", "*1", HELLO, HELLO SERVER_INFO};
    serve_tcp();
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        for (int reset = 0; reset < 2; reset++) {
            struct linger linger = {.l_onoff = reset, .l_linger = 0};
            dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
            say(said[i]);
            setsockopt(peer, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
            close(peer);
            peer = -1;
            dl_status_t status = drive(conn);
            if (status == DL_OK) { /* the whole handshake was there */
                cr_assert_eq(i, 3);
                cr_assert_not(dli_conn_is_quiet(conn));
                status = turn(conn, 1000);
            }
            cr_assert_eq(status, DL_EIO, "%s: %s", dl_status_name(status), err.message);
            cr_assert_has(err.message, "the server closed the connection");
            /* Only who has said nothing may have expected TLS. */
            cr_assert_eq(strstr(err.message, "(perhaps it wants rediss://)") != NULL, i < 2, "%s",
                         err.message);
            dli_conn_close(conn, false);
        }
    }
}

Test(redis_conn, too_many_clients_is_heard_before_the_reset) {
    serve_tcp();
    dli_conn_t *conn;
    cr_assert_eq(begin(&place, &conn), DL_OK);
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    say("-ERR max number of clients reached\r\n");
    close(peer); /* before it has read: a reset follows */
    peer = -1;
    cr_assert_eq(drive(conn), DL_ELIMIT, "%s", err.message);
    dli_conn_close(conn, false);
}

Test(redis_conn, silence_ends_with_the_time_for_connecting) {
    serve_tcp();
    place.connect_timeout_ms = 150;
    uint64_t before = now_ms();
    must_fail(&place, DL_EIO, "no answer to the handshake in time");
    cr_assert_geq(now_ms() - before, 149, "after %d ms", (int)(now_ms() - before));
    cr_assert_lt(now_ms() - before, 150 + SLACK_MS, "after %d ms", (int)(now_ms() - before));
}

Test(redis_conn, a_step_without_events_changes_nothing) {
    serve_tcp();
    dli_conn_t *conn = begin_with_peer(requests, sizeof requests);
    say(HELLO SERVER_INFO);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(dli_conn_step(conn, 0, &err), DL_OK);
        cr_assert_not(dli_conn_is_ready(conn));
    }
    cr_assert_eq(drive(conn), DL_OK);
    cr_assert_eq(dli_conn_step(conn, 0, &err), DL_OK);
    cr_assert(dli_conn_is_quiet(conn));
    dli_conn_close(conn, false);
}

/* ---- connecting -------------------------------------------------------------------------------------- */

Test(redis_conn, refused_says_where_and_why) {
    int port = 0;
    int fd = listen_tcp("127.0.0.1", -1, &port); /* bound, so that nobody else listens there */
    set_place("127.0.0.1", port);
    must_fail(&place, DL_EIO, "Connection refused");
    cr_assert_has(err.message, place.port);
    cr_assert_eq(err.native, ECONNREFUSED);
    close(fd);
}

Test(redis_conn, a_socket_file_that_is_not_there) {
    serve_unix(1);
    unlink(place_path);
    must_fail(&place, DL_EIO, "No such file");
    cr_assert_has(err.message, place_path);
}

Test(redis_conn, a_unix_server_with_a_full_queue_is_tried_again) {
    dli_conn_t *first, *second, *third;
    serve_unix(1);
    cr_assert_eq(begin(&place, &first), DL_OK);
    cr_assert_eq(begin(&place, &second), DL_OK);
    cr_assert_eq(begin(&place, &third), DL_OK, "%s", err.message);
    struct pollfd fd;
    dli_conn_want(third, &fd);
    cr_assert_lt(fd.fd, 0, "the queue is not full");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(turn(third, 1000), DL_OK);
    }
    close(accept(listener, NULL, NULL));
    close(accept(listener, NULL, NULL));
    accept_peer(third, requests, sizeof requests);
    say(HELLO SERVER_INFO);
    cr_assert_eq(drive(third), DL_OK, "%s", err.message);
    dli_conn_close(first, false);
    dli_conn_close(second, false);
    dli_conn_close(third, false);
}

Test(redis_conn, a_unix_server_whose_queue_stays_full_is_too_late) {
    dli_conn_t *first, *second;
    serve_unix(1);
    cr_assert_eq(begin(&place, &first), DL_OK);
    cr_assert_eq(begin(&place, &second), DL_OK);
    place.connect_timeout_ms = 60;
    uint64_t before = now_ms();
    must_fail(&place, DL_EIO, place_path);
    cr_assert_lt(now_ms() - before, 60 + SLACK_MS);
    dli_conn_close(first, false);
    dli_conn_close(second, false);
}

Test(redis_conn, no_descriptor_left_is_a_limit) {
    struct rlimit old, none;
    serve_tcp();
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    dli_conn_t *conn;
    dl_status_t status = dli_conn_start(&place, &env, &conn, &err);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(status, DL_ELIMIT, "%s", err.message);
    cr_assert_null(conn);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    cr_assert_eq(getsockopt(fd, level, name, &value, &len), 0);
    return value;
}

Test(redis_conn, sockets_notice_a_dead_network) {
    struct pollfd fd;
    serve_tcp();
    dli_conn_t *conn = ready_with_peer();
    dli_conn_want(conn, &fd);
    cr_assert_eq(option(fd.fd, IPPROTO_TCP, 1 /* TCP_NODELAY */), 1);
    cr_assert_eq(option(fd.fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    cr_assert_eq(option(fd.fd, IPPROTO_TCP, 4 /* TCP_KEEPIDLE */), 60);
    cr_assert_eq(option(fd.fd, IPPROTO_TCP, 5 /* TCP_KEEPINTVL */), 20);
    cr_assert_eq(option(fd.fd, IPPROTO_TCP, 18 /* TCP_USER_TIMEOUT */), 2000);
    cr_assert(fcntl(fd.fd, F_GETFD) & FD_CLOEXEC);
    cr_assert(fcntl(fd.fd, F_GETFL) & O_NONBLOCK);
    dli_conn_close(conn, false);
}

/* ---- ready ------------------------------------------------------------------------------------------- */

Test(redis_conn, what_cannot_be_sent_at_once_is_sent_later) {
    enum { LEN = 8 * 1024 * 1024 };
    char *bytes = calloc(1, LEN), part[65536];
    struct pollfd fd;
    serve_tcp();
    dli_conn_t *conn = ready_with_peer();
    cr_assert_eq(dli_conn_unsent(conn), 0);
    cr_assert_eq(send_bytes(conn, bytes, LEN), DL_OK);
    size_t left = dli_conn_unsent(conn), got = 0;
    cr_assert_gt(left, 0);
    cr_assert_lt(left, LEN);
    cr_assert_not(dli_conn_is_quiet(conn));
    dli_conn_want(conn, &fd);
    cr_assert(fd.events & POLLOUT);
    while (got < LEN) {
        ssize_t n = recv(peer, part, sizeof part, MSG_DONTWAIT);
        got += n > 0 ? (size_t)n : 0;
        cr_assert_neq(n, 0);
        cr_assert_leq(dli_conn_unsent(conn), LEN - got);
        if (n < 0) {
            cr_assert_eq(turn(conn, 1000), DL_OK);
        }
    }
    cr_assert_eq(dli_conn_unsent(conn), 0);
    dli_conn_want(conn, &fd);
    cr_assert_not(fd.events & POLLOUT);
    dli_conn_close(conn, false);
    free(bytes);
}

/* It reads as much as is sent, a step behind. */
Test(redis_conn, a_line_that_is_never_empty_asks_for_no_more_memory) {
    enum { LEN = 65536, WARM = 200, ROUNDS = 1000 };
    static char bytes[LEN];
    serve_unix(4);
    dli_conn_t *conn = ready_with_peer();
    while (dli_conn_unsent(conn) < LEN) {
        cr_assert_eq(send_bytes(conn, bytes, LEN), DL_OK);
    }
    for (int i = 0; i < ROUNDS; i++) {
        if (i == WARM) {
            alloc_fail_at(1, 1);
        }
        cr_assert_eq(send_bytes(conn, bytes, LEN), DL_OK, "round %d: %s", i, err.message);
        for (size_t got = 0; got < LEN;) {
            ssize_t n = recv(peer, bytes, LEN - got, 0);
            cr_assert_gt(n, 0);
            got += (size_t)n;
            cr_assert_eq(turn(conn, 0), DL_OK);
        }
        cr_assert_gt(dli_conn_unsent(conn), 0);
    }
    alloc_fail_at(0, 0);
    dli_conn_close(conn, false);
}

Test(redis_conn, sending_to_nobody_raises_no_signal_and_says_that_nothing_left) {
    serve_unix(4);
    dli_conn_t *conn = ready_with_peer();
    close(peer);
    peer = -1;
    cr_assert_eq(send_bytes(conn, "PING\r\n", 6), DL_EIO);
    cr_assert_eq(dli_conn_unsent(conn), 6);
    cr_assert_eq(send_bytes(conn, "PING\r\n", 6), DL_EIO);
    dli_conn_close(conn, false);
}

Test(redis_conn, replies_come_before_the_hang_up_behind_them) {
    redisReply *reply;
    serve_tcp();
    dli_conn_t *conn = ready_with_peer();
    say("+ONE\r\n+TWO\r\n+THR");
    close(peer);
    peer = -1;
    cr_assert_eq(turn(conn, 1000), DL_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) {
        reply = await_reply(conn);
        cr_assert_str_eq(reply->str, i == 0 ? "ONE" : "TWO");
        freeReplyObject(reply);
    }
    dl_status_t status = dli_conn_next(conn, &reply, &err);
    if (status == DL_OK) {
        status = turn(conn, 1000);
    }
    cr_assert_eq(status, DL_EIO);
    cr_assert_null(reply);
    dli_conn_close(conn, false);
}

Test(redis_conn, quiet_is_only_who_has_nothing_to_say) {
    redisReply *reply;
    serve_tcp();
    dli_conn_t *conn = ready_with_peer();
    cr_assert(dli_conn_is_quiet(conn));
    say("+A");
    struct pollfd fd;
    dli_conn_want(conn, &fd);
    cr_assert_eq(poll(&fd, 1, PATIENCE_MS), 1);
    cr_assert_not(dli_conn_is_quiet(conn)); /* in the socket */
    cr_assert_eq(turn(conn, 1000), DL_OK);
    cr_assert_not(dli_conn_is_quiet(conn)); /* in the decoder */
    say("\r\n");
    cr_assert_eq(turn(conn, 1000), DL_OK);
    cr_assert_eq(dli_conn_next(conn, &reply, &err), DL_OK);
    freeReplyObject(reply);
    cr_assert(dli_conn_is_quiet(conn));
    say("?");
    cr_assert_eq(turn(conn, 1000), DL_OK);
    cr_assert_eq(dli_conn_next(conn, &reply, &err), DL_EPROTO);
    cr_assert_not(dli_conn_is_quiet(conn));
    dli_conn_close(conn, false);
}

Test(redis_conn, a_child_closes_without_a_word) {
    redisReply *reply;
    char byte;
    serve_tcp();
    dli_conn_t *conn = ready_with_peer();
    struct pollfd fd;
    dli_conn_want(conn, &fd);
    pid_t pid = fork();
    if (pid == 0) {
        dli_conn_close(conn, true);
        _exit(fcntl(fd.fd, F_GETFD) == -1 && errno == EBADF ? 0 : 1);
    }
    int status = -1;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_lt(recv(peer, &byte, 1, MSG_DONTWAIT), 0);
    cr_assert(dli_conn_is_quiet(conn));
    say("+STILL\r\n");
    reply = await_reply(conn);
    cr_assert_str_eq(reply->str, "STILL");
    freeReplyObject(reply);
    dli_conn_close(conn, false);
    dli_conn_close(NULL, false);
    dli_conn_close(NULL, true);
}
