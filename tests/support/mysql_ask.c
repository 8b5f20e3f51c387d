/* mysql_ask.c - statements of a test to its MariaDB or MySQL server, past the code under test. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <mysql.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/mysql_server.h"

#define ANSWER_S 20
#define NO_SUCH_THREAD 1094

struct mysql_hand {
    MYSQL *mysql;
};

#define HANDS_MAX 256
/* Not from malloc, which a test may make fail. */
static mysql_hand_t hands[HANDS_MAX];
static atomic_bool is_taken[HANDS_MAX];

/* ---- connections -------------------------------------------------------------------------------------- */

static mysql_hand_t *take_hand(void) {
    for (int i = 0; i < HANDS_MAX; i++) {
        if (!atomic_exchange(&is_taken[i], true)) {
            return &hands[i];
        }
    }
    mysql_server_fail("more than %d connections of a test", HANDS_MAX);
}

void mysql_hand_close(mysql_hand_t *hand) {
    if (hand != NULL) {
        mysql_close(hand->mysql);
        atomic_store(&is_taken[hand - hands], false);
    }
}

mysql_hand_t *mysql_hand_as(mysql_server_t *server, const char *user, const char *password,
                            const char *database, char *refusal, size_t size) {
    unsigned seconds = ANSWER_S;
    mysql_hand_t *hand = take_hand();
    hand->mysql = mysql_init(NULL);
    if (hand->mysql == NULL) {
        mysql_server_fail("there is no memory for a connection");
    }
    (void)mysql_options(hand->mysql, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    (void)mysql_options(hand->mysql, MYSQL_OPT_READ_TIMEOUT, &seconds);
    (void)mysql_options(hand->mysql, MYSQL_OPT_WRITE_TIMEOUT, &seconds);
    if (mysql_real_connect(hand->mysql, NULL, user, password, database, 0, server->path, 0) == NULL) {
        if (refusal != NULL) {
            snprintf(refusal, size, "-%u %s", mysql_errno(hand->mysql), mysql_error(hand->mysql));
        }
        mysql_hand_close(hand);
        return NULL;
    }
    return hand;
}

mysql_hand_t *mysql_hand(mysql_server_t *server, const char *database) {
    char refusal[512];
    mysql_hand_t *hand = mysql_hand_as(server, "root", "", database, refusal, sizeof refusal);
    if (hand == NULL) {
        mysql_server_fail("cannot connect to the MySQL server: %s", refusal);
    }
    return hand;
}

uint64_t mysql_hand_id(mysql_hand_t *hand) {
    return mysql_thread_id(hand->mysql);
}

/* ---- statements ---------------------------------------------------------------------------------------- */

static size_t put_text(char *text, size_t size, size_t at, const char *bytes, size_t len) {
    len = len < size - at - 1 ? len : size - at - 1;
    memcpy(text + at, bytes, len);
    text[at + len] = 0;
    return at + len;
}

static const char *say_error(MYSQL *mysql, char *text, size_t size) {
    snprintf(text, size, "-%u %s", mysql_errno(mysql), mysql_error(mysql));
    return text;
}

static const char *answer(MYSQL *mysql, const char *sql) {
    static _Thread_local char text[65536];
    text[0] = 0;
    if (mysql_query(mysql, sql) != 0) {
        return say_error(mysql, text, sizeof text);
    }
    MYSQL_RES *rows = mysql_store_result(mysql);
    if (rows == NULL) {
        return mysql_errno(mysql) == 0 ? text : say_error(mysql, text, sizeof text);
    }
    MYSQL_ROW row = mysql_fetch_row(rows);
    unsigned long *lengths = row == NULL ? NULL : mysql_fetch_lengths(rows);
    size_t at = 0;
    for (unsigned i = 0; row != NULL && i < mysql_num_fields(rows); i++) {
        at = i == 0 ? at : put_text(text, sizeof text, at, ",", 1);
        at = row[i] == NULL ? put_text(text, sizeof text, at, "NULL", 4)
                            : put_text(text, sizeof text, at, row[i], lengths[i]);
    }
    mysql_free_result(rows);
    return text;
}

__attribute__((format(printf, 2, 0))) static const char *answer_format(mysql_hand_t *hand, const char *format,
                                                                       va_list args) {
    char sql[16384];
    int n = vsnprintf(sql, sizeof sql, format, args);
    if (n < 0 || (size_t)n >= sizeof sql) {
        mysql_server_fail("the statement is too long: %.100s", format);
    }
    return answer(hand->mysql, sql);
}

/* Negative numbers are answers, "-1146 Table ..." is an error. */
static const char *must_work(const char *text, const char *format) {
    const char *end = text + (text[0] == '-' ? 1 + strspn(text + 1, "0123456789") : 0);
    if (end > text + 1 && *end == ' ') {
        mysql_server_fail("the server on '%s': %s", format, text);
    }
    return text;
}

const char *mysql_hand_try(mysql_hand_t *hand, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = answer_format(hand, format, args);
    va_end(args);
    return text;
}

const char *mysql_hand_ask(mysql_hand_t *hand, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = must_work(answer_format(hand, format, args), format);
    va_end(args);
    return text;
}

__attribute__((format(printf, 2, 0))) static const char *ask_once(mysql_server_t *server, const char *format,
                                                                  va_list args) {
    mysql_hand_t *hand = mysql_hand(server, NULL);
    const char *text = answer_format(hand, format, args);
    mysql_hand_close(hand);
    return text;
}

const char *mysql_try(mysql_server_t *server, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = ask_once(server, format, args);
    va_end(args);
    return text;
}

const char *mysql_ask(mysql_server_t *server, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = must_work(ask_once(server, format, args), format);
    va_end(args);
    return text;
}

long long mysql_number(mysql_server_t *server, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *text = must_work(ask_once(server, format, args), format);
    va_end(args);
    char *end;
    long long number = strtoll(text, &end, 10);
    if (*end != 0 && *end != ',' && *end != '.') {
        mysql_server_fail("the server on '%s': %s, which is no number", format, text);
    }
    return number;
}

/* ---- databases, users, connections --------------------------------------------------------------------- */

void mysql_database(mysql_server_t *server, char name[MYSQL_DATABASE_MAX]) {
    static atomic_uint count;
    struct timespec now; /* process ids come again */
    clock_gettime(CLOCK_BOOTTIME, &now);
    snprintf(name, MYSQL_DATABASE_MAX, "dlock_%d_%lx_%u", (int)getpid(),
             (unsigned long)(now.tv_sec * 1000 + now.tv_nsec / 1000000), atomic_fetch_add(&count, 1));
    (void)mysql_ask(server, "CREATE DATABASE %s", name);
}

void mysql_user(mysql_server_t *server, const char *name, const char *rights, const char *on) {
    (void)mysql_ask(server, "CREATE USER '%s'@'%%' IDENTIFIED BY '" MYSQL_SECRET "'", name);
    (void)mysql_ask(server, "GRANT %s ON %s TO '%s'@'%%'", rights, on, name);
}

/* Calls fn with the id of each connection of this user. */
static int each_connection(mysql_server_t *server, const char *user,
                           void (*fn)(mysql_server_t *, const char *)) {
    mysql_hand_t *hand = mysql_hand(server, NULL);
    int count = 0;
    MYSQL_RES *rows =
        mysql_query(hand->mysql, "SHOW PROCESSLIST") == 0 ? mysql_store_result(hand->mysql) : NULL;
    if (rows == NULL) {
        mysql_server_fail("the server on SHOW PROCESSLIST: %s", mysql_error(hand->mysql));
    }
    for (MYSQL_ROW row; (row = mysql_fetch_row(rows)) != NULL;) {
        if (row[1] != NULL && strcmp(row[1], user) == 0 &&
            strtoull(row[0], NULL, 10) != mysql_hand_id(hand)) {
            count++;
            if (fn != NULL) {
                fn(server, row[0]);
            }
        }
    }
    mysql_free_result(rows);
    mysql_hand_close(hand);
    return count;
}

int mysql_connections(mysql_server_t *server, const char *user) {
    return each_connection(server, user, NULL);
}

static void kill_one(mysql_server_t *server, const char *id) {
    const char *text = mysql_try(server, "KILL %s", id);
    if (text[0] == '-' && atoi(text + 1) != NO_SUCH_THREAD) {
        mysql_server_fail("the server on KILL %s: %s", id, text);
    }
}

int mysql_kill_connections(mysql_server_t *server, const char *user) {
    return each_connection(server, user, kill_one);
}

void mysql_server_await_uptime(mysql_server_t *server, int seconds) {
    mysql_hand_t *hand = mysql_hand(server, NULL);
    int up = 0;
    while (sscanf(mysql_hand_ask(hand, "SHOW GLOBAL STATUS LIKE 'Uptime'"), "Uptime,%d", &up) != 1 ||
           up < seconds) {
        (void)mysql_hand_ask(hand, "DO SLEEP(0.05)");
    }
    mysql_hand_close(hand);
}
