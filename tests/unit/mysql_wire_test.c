/* mysql_wire_test.c - answers that are cut, garbled, too many, or not what was asked for. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_wire_fixture.h"

TestSuite(mysql_wire, .init = set_up_wire, .fini = tear_down_wire, .timeout = 180);

#define QUESTION "SELECT 'question'"
/* A string literal as what it is: bytes. */
#define BYTES(text) text, sizeof text - 1
#define OK_PACKET(number) "\7\0\0" number "\0\0\0\2\0\0\0"

/* The status of a statement whose answer is replaced; the connection stays for the caller. */
static dl_status_t answer_with(dli_mysql_conn_t **conn, const char *bytes, size_t len, uint64_t ms) {
    wire_plan(NULL, WIRE_PASS, 0, NULL, 0);
    *conn = connect_plain();
    wire_plan(QUESTION, WIRE_ANSWER, 0, bytes, len);
    return ask_within(*conn, QUESTION, ms, NULL);
}

static void expect_end(const char *what, const char *bytes, size_t len, uint64_t ms, dl_status_t status) {
    dli_mysql_conn_t *conn;
    uint64_t before = now_ms();
    dl_status_t found = answer_with(&conn, bytes, len, ms);
    /* Where the libraries' words differ, both statuses say that nobody knows what was done. */
    cr_assert(found == status || (found == DL_EUNKNOWN && status == DL_EPROTO), "%s: %s: %s", what,
              dl_status_name(found), err.message);
    cr_assert(dli_mysql_conn_is_broken(conn), "%s", what);
    cr_assert_null(answer.rows);
    cr_assert_eq(answer.error, 0);
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_EIO, "%s", what);
    cr_assert_lt(now_ms() - before, PATIENCE_MS, "%s", what);
    dli_mysql_conn_close(conn);
}

Test(mysql_wire, what_makes_no_sense) {
    expect_end("text", BYTES("HTTP/1.1 400 Bad Request\r\n\r\n"), 200, DL_EPROTO);
    /* Oracle's library does not let us see what it has read on. */
    if (strncmp(dli_mysql_library_name(), "MariaDB", 7) == 0) {
        expect_end("two answers", BYTES(OK_PACKET("\1") OK_PACKET("\1")), PATIENCE_MS, DL_EPROTO);
    }
    expect_end("an empty packet", BYTES("\0\0\0\1"), PATIENCE_MS, DL_EPROTO);
    expect_end("an error without a number", BYTES("\1\0\0\1\377"), PATIENCE_MS, DL_EPROTO);
    expect_end("an error numbered 0", BYTES("\3\0\0\1\377\0\0"), PATIENCE_MS, DL_EPROTO);
    expect_end("one of two results", BYTES("\7\0\0\1\0\0\0\12\0\0\0"), PATIENCE_MS, DL_EPROTO);
    expect_end("two results", BYTES("\7\0\0\1\0\0\0\12\0\0\0" OK_PACKET("\2")), PATIENCE_MS, DL_EPROTO);
}

Test(mysql_wire, goodbyes_in_place_of_an_answer) {
    /* MySQL had waited too long for a statement: it has read none. */
    expect_end("4031", BYTES("\14\0\0\1\377\277\17#HY000idle"), PATIENCE_MS, DL_EIO);
    /* These say nothing about what was done. */
    expect_end("1927", BYTES("\15\0\0\1\377\207\7#70100kill!"), PATIENCE_MS, DL_EUNKNOWN);
    expect_end("1053", BYTES("\15\0\0\1\377\35\4#08S01down!"), PATIENCE_MS, DL_EUNKNOWN);
    expect_end("3169", BYTES("\15\0\0\1\377\141\14#HY000kill!"), PATIENCE_MS, DL_EUNKNOWN);
    /* A number of the library's own. */
    expect_end("2013", BYTES("\15\0\0\1\377\335\7#HY000lost!"), PATIENCE_MS, DL_EPROTO);
}

Test(mysql_wire, what_begins_and_does_not_end_is_ended_in_time) {
    static const char *const texts[] = {"a packet that is cut off", "one of 16 MiB", "columns without end"};
    static const struct {
        const char *bytes;
        size_t len;
    } beginnings[] = {{BYTES("\7\0\0\1\0\0")}, {BYTES("\377\377\377\1\377")}, {BYTES("\1\0\0\1\100")}};
    for (size_t i = 0; i < 3; i++) {
        dli_mysql_conn_t *conn;
        wire_plan(NULL, WIRE_PASS, 0, NULL, 0);
        conn = connect_plain();
        wire_plan(QUESTION, WIRE_ANSWER, 0, beginnings[i].bytes, beginnings[i].len);
        uint64_t before = now_ms();
        cr_assert_eq(ask_within(conn, QUESTION, 300, NULL), DL_EUNKNOWN, "%s: %s", texts[i], err.message);
        uint64_t took = now_ms() - before;
        cr_assert_geq(took, 300, "%s: %d ms", texts[i], (int)took);
        cr_assert_lt(took, 300 + SLACK_MS, "%s: %d ms", texts[i], (int)took);
        cr_assert_has(err.message, "did not end in time", "%s: %s", texts[i], err.message);
        cr_assert(dli_mysql_conn_is_broken(conn));
        dli_mysql_conn_close(conn);
    }
}

Test(mysql_wire, real_answers_cut_anywhere) {
    for (size_t after = 1; after < 50; after += 4) {
        wire_plan(NULL, WIRE_PASS, 0, NULL, 0);
        dli_mysql_conn_t *conn = connect_plain();
        bool hang_up = after % 8 == 1;
        wire_plan(QUESTION, hang_up ? WIRE_HANG_UP : WIRE_CUT, after, NULL, 0);
        uint64_t before = now_ms();
        cr_assert_eq(ask_within(conn, QUESTION, hang_up ? PATIENCE_MS : 60, NULL), DL_EUNKNOWN, "%zu: %s",
                     after, err.message);
        cr_assert_lt(now_ms() - before, hang_up ? PATIENCE_MS : 60 + SLACK_MS);
        cr_assert(dli_mysql_conn_is_broken(conn));
        dli_mysql_conn_close(conn);
    }
}

Test(mysql_wire, cut_while_it_is_made) {
    bool is_made = false;
    parts.connect_timeout_ms = 1000;
    for (size_t after = 0; !is_made; after += 61) {
        dli_mysql_conn_t *conn;
        bool hang_up = after % 2 == 0;
        cr_assert_lt(after, 3000);
        wire_plan(MYSQL_USER, hang_up ? WIRE_HANG_UP : WIRE_CUT, after, NULL, 0); /* from the login on */
        uint64_t before = now_ms();
        dl_status_t status = try_connect(DLI_MYSQL_ROLE_PLAIN, 60, &conn);
        is_made = status == DL_OK;
        cr_assert(is_made || status == DL_EIO, "%zu: %s: %s", after, dl_status_name(status), err.message);
        cr_assert_lt(now_ms() - before, 5000);
        dli_mysql_conn_close(conn);
    }
}

Test(mysql_wire, no_answer_at_all_leaves_it_in_step) {
    dli_mysql_conn_t *conn = connect_plain();
    wire_plan(QUESTION, WIRE_CUT, 0, NULL, 0);
    uint64_t before = now_ms();
    cr_assert_eq(ask_within(conn, QUESTION, 200, NULL), DL_ETIMEDOUT);
    cr_assert_lt(now_ms() - before, 200 + SLACK_MS);
    cr_assert(dli_mysql_conn_is_asking(conn) && !dli_mysql_conn_is_broken(conn));
    dli_mysql_conn_close(conn);
}

Test(mysql_wire, bytes_that_nobody_asked_for) {
    dli_mysql_conn_t *conn = connect_plain();
    must_ask(conn, QUESTION);
    cr_assert_not(dli_mysql_conn_is_broken(conn));
    wire_say(BYTES(OK_PACKET("\1"))); /* would be taken for the answer to the next statement */
    await_broken(conn);
    cr_assert_eq(ask_within(conn, QUESTION, PATIENCE_MS, NULL), DL_EIO);
    dli_mysql_conn_close(conn);
}

/* FAULTS 33. The server wants a file in answer to any statement. */
Test(mysql_wire, local_files_are_refused) {
    static const char *const files[] = {"\14\0\0\1\373/etc/passwd", "\2\0\0\1\373."};
    static const size_t lens[] = {16, 6};
    char bytes[64];
    for (size_t i = 0; i < 4; i++) {
        dli_mysql_conn_t *conn;
        size_t len = lens[i % 2];
        bool goes_on = i < 2; /* it says OK as if it had got what it wanted */
        memcpy(bytes, files[i % 2], len);
        memcpy(bytes + len, OK_PACKET("\3"), 11);
        dl_status_t status = answer_with(&conn, bytes, len + (goes_on ? 11 : 0), goes_on ? PATIENCE_MS : 200);
        cr_assert(status == DL_EPROTO || (!goes_on && status == DL_EUNKNOWN), "%s: %s",
                  dl_status_name(status), err.message);
        cr_assert(dli_mysql_conn_is_broken(conn));
        dli_mysql_conn_close(conn);
        pthread_mutex_lock(&wire.mutex);
        cr_assert(wire.has_met, "it got %zu bytes", wire.heard);
        cr_assert_leq(wire.heard, 4, "it got %zu bytes", wire.heard); /* an empty packet */
        pthread_mutex_unlock(&wire.mutex);
    }
}

/* Whatever comes: in time, with a status, and the connection is not used again unless it was an answer. */
Test(mysql_wire, random_answers) {
    unsigned seed = 1;
    for (int i = 0; i < 150; i++) {
        char bytes[64];
        dli_mysql_conn_t *conn;
        size_t len = 5 + (size_t)rand_r(&seed) % 59;
        for (size_t j = 0; j < len; j++) {
            bytes[j] = (char)(rand_r(&seed) % (j % 3 == 0 ? 256 : 8));
        }
        bytes[0] = (char)(rand_r(&seed) % 32); /* a packet that begins well */
        bytes[1] = bytes[2] = 0;
        bytes[3] = 1;
        uint64_t before = now_ms();
        dl_status_t status = answer_with(&conn, bytes, len, 50);
        uint64_t took = now_ms() - before;
        cr_assert(status == DL_OK || status == DL_EPROTO || status == DL_EUNKNOWN, "%d: %s", i,
                  dl_status_name(status));
        cr_assert(status == DL_OK || dli_mysql_conn_is_broken(conn), "%d", i);
        cr_assert_lt(took, PATIENCE_MS, "%d", i);
        dli_mysql_conn_close(conn);
    }
}
