/* purge.c - deletes rows of names that nobody has locked for long, so that tables do not grow for ever. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "rows.h"

/* Each PURGE_EVERY locks that a client took, it looks at PURGE_ROWS rows. A lock leaves one row at most,
 * so that looking at more rows than locks keeps the table in proportion to the names in use. */
#define PURGE_EVERY 128
#define PURGE_ROWS 256
/* A purge is part of somebody's release, and takes no longer than this. */
#define PURGE_MS 100u
/* Room for a statement about half as many of the longest names; the rest is for next time. */
#define PURGE_ROOM 65536

/*
 * Why no token falls, though rows go and come again:
 *   - A row goes only by the DELETE below, with a token of at most `highest`. Before that, and committed, the
 *     row with the empty name was raised to `highest` or above. It never falls and is never deleted.
 *   - A new row copies the token of the row with the empty name while it holds a shared lock on it, up to its
 *     own commit (dli_mysql_rows_provide). If an older row of its name was deleted before, the raise before
 *     that was committed before the new row was inserted; as it cannot have been committed while the lock was
 *     held, it was so before the lock was granted, and its value is what was copied.
 *   - Whoever takes a row gets a token above the row's.
 * A row that was taken again meanwhile has a larger token, or is not stale any more: it stays.
 */
typedef struct purge {
    dli_mysql_t *mysql;
    const dl_request_t *request;
    uint64_t deadline_ns;
    dl_error_t err;
    uint64_t rows, stale, highest;
    char text[PURGE_ROOM];
    dli_mysql_sql_t names; /* in text: the stale ones, with commas */
} purge_t;

/* A row without an owner, or one whose owner is gone, for longer than purge_after. */
static void add_stale(dli_mysql_sql_t *sql, const dli_mysql_t *mysql) {
    dli_mysql_sql_add(
        sql, "COALESCE(IF(owner IS NULL,released_at,expires_at)<UTC_TIMESTAMP(6)-INTERVAL $i MICROSECOND,0)",
        mysql->purge_after_ms * 1000);
}

static bool run(purge_t *p, const dli_mysql_sql_t *sql, dli_mysql_intent_t intent,
                dli_mysql_answer_t *answer) {
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CALLS, .intent = intent, .deadline_ns = p->deadline_ns, .stop = &p->request->stop};
    dl_status_t status = dli_mysql_run(p->mysql, &exchange, sql, "purging", "", &p->err);
    if (status == DL_OK) {
        *answer = exchange.answer;
    }
    return status == DL_OK;
}

/* Notes the name of a stale row. False: there is no room for it. */
static bool note(purge_t *p, const char *name, size_t len, uint64_t token) {
    dli_mysql_sql_t before = p->names;
    dli_mysql_sql_add(&p->names, "$t$x", p->stale > 0 ? "," : "", name, len);
    if (p->names.is_cut || token >= DLI_MYSQL_TOKEN_END) {
        bool is_full = p->names.is_cut;
        p->names = before;
        p->names.at[before.len] = '\0';
        return !is_full;
    }
    p->stale++;
    p->highest = token > p->highest ? token : p->highest;
    return true;
}

/* One page of rows behind the last one that was looked at. A consistent read, which locks nothing. */
static bool look(purge_t *p) {
    dli_mysql_t *mysql = p->mysql;
    dli_mysql_answer_t answer;
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "SELECT name,$t,", mysql->kind->token_column);
    add_stale(&sql, mysql);
    dli_mysql_sql_add(&sql, " FROM $t WHERE name>$x ORDER BY name LIMIT $u", mysql->table, mysql->purged,
                      mysql->purged_len, (uint64_t)PURGE_ROWS);
    if (!run(p, &sql, DLI_MYSQL_READ, &answer)) {
        return false;
    }
    MYSQL_ROW row;
    unsigned long *lengths;
    bool has_room = true;
    while (has_room && (row = dli_mysql_answer_row(&answer, &lengths)) != NULL) {
        size_t len = lengths[0] <= DL_NAME_MAX ? lengths[0] : DL_NAME_MAX;
        if (dli_mysql_number(row[2]) != 0 && row[1] != NULL) {
            has_room = note(p, row[0], lengths[0], dli_mysql_number(row[1]));
        }
        if (has_room) {
            memcpy(mysql->purged, row[0], len);
            mysql->purged_len = len;
            p->rows++;
        }
    }
    dli_mysql_answer_free(&answer);
    if (has_room && p->rows < PURGE_ROWS) {
        mysql->purged_len = 0; /* from the beginning again */
    }
    return true;
}

static bool raise_first(purge_t *p) {
    const char *token = p->mysql->kind->token_column;
    dli_mysql_answer_t answer;
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql,
                      "INSERT INTO $t(name,$t) VALUES('',$u) ON DUPLICATE KEY UPDATE $t=GREATEST($t,$u)",
                      p->mysql->table, token, p->highest, token, token, p->highest);
    bool done = run(p, &sql, DLI_MYSQL_PLAIN, &answer);
    if (done) {
        dli_mysql_answer_free(&answer);
    }
    return done;
}

/* By the names alone, or the server may go through the table and lock all of it (DLI_MYSQL_BY_NAME). */
static void delete_stale(purge_t *p, dli_mysql_sql_t *sql) {
    dli_mysql_answer_t answer;
    dli_mysql_sql_add(sql, "DELETE k FROM $t k " DLI_MYSQL_BY_NAME " WHERE k.name IN ($t) AND $t<=$u AND ",
                      p->mysql->table, p->names.at, p->mysql->kind->token_column, p->highest);
    add_stale(sql, p->mysql);
    if (run(p, sql, DLI_MYSQL_PLAIN, &answer)) {
        dli_mysql_answer_free(&answer);
    }
}

static void purge_once(dli_mysql_t *mysql, const dl_request_t *request) {
    uint64_t soon_ns = mysql->env->now_ns() + PURGE_MS * (uint64_t)DLI_NS_PER_MS;
    purge_t *p = malloc(sizeof *p);
    char *room = malloc(PURGE_ROOM + 1024);
    if (p != NULL && room != NULL) {
        p->mysql = mysql;
        p->request = request;
        p->deadline_ns = dli_mysql_earlier(soon_ns, request->deadline_ns);
        p->rows = p->stale = p->highest = 0;
        p->names = dli_mysql_sql_in(p->text, sizeof p->text);
        dli_mysql_sql_t sql = dli_mysql_sql_in(room, PURGE_ROOM + 1024);
        if (look(p) && p->stale > 0 && raise_first(p)) {
            delete_stale(p, &sql);
        }
    }
    free(p);
    free(room);
}

/* The first purge is due after a random number of locks, so that clients which live for one lock purge now
 * and then too. It begins near its own name: so they look everywhere in the end. */
static bool is_due(dli_mysql_t *mysql, const dl_request_t *request, unsigned every) {
    uint64_t acquired = atomic_load(&mysql->acquired);
    if (mysql->purge_at == 0) {
        unsigned char byte = 0;
        (void)mysql->env->random(&byte, sizeof byte);
        mysql->purge_at = 1 + byte % every;
        mysql->purged_len = request->name_len <= DL_NAME_MAX ? request->name_len : DL_NAME_MAX;
        memcpy(mysql->purged, request->name, mysql->purged_len);
    }
    if (acquired < mysql->purge_at) {
        return false;
    }
    mysql->purge_at = acquired + every;
    return true;
}

bool dli_mysql_purge_begin(dli_mysql_t *mysql, const dl_request_t *request, unsigned every) {
    if (mysql->purge_after_ms <= 0 || atomic_flag_test_and_set(&mysql->purging)) {
        return false;
    }
    bool is_its_turn = is_due(mysql, request, every);
    if (!is_its_turn) {
        atomic_flag_clear(&mysql->purging);
    }
    return is_its_turn;
}

void dli_mysql_rows_purge(dli_mysql_t *mysql, const dl_request_t *request) {
    if (dli_mysql_purge_begin(mysql, request, PURGE_EVERY)) {
        purge_once(mysql, request);
        atomic_flag_clear(&mysql->purging);
    }
}
