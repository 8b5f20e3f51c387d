/* forgetting.c - mysql-pessimistic: deletes names long unused, so that no table grows for ever. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* Each EVERY locks that a client had, it looks at ROWS names. A lock leaves one row at most, so that looking
 * at more than that keeps the tables in proportion to the names in use. */
#define EVERY 64
#define ROWS 128u
/* It is part of somebody's release, and takes no longer than this. */
#define FORGET_MS 100u
/* Room for a statement about all of them where names are short, or a quarter of the longest ones. */
#define ROOM 32768

/*
 * Why no token falls, though names go and come again: all of it is one transaction. It locks the names' rows
 * first, so that nobody holds them or draws for them; then raises the row with the empty name, from which a
 * new name's first token counts (tokens.c), to the highest token it is going to delete. That row is never
 * deleted, and never falls.
 */
typedef struct forgetting {
    dli_mysql_t *mysql;
    dli_mysql_conn_t *conn;
    uint64_t deadline_ns;
    uint64_t count, highest; /* of the names collected last */
    dli_mysql_sql_t names;   /* as a table in SQL: SELECT x'..' AS name UNION ALL SELECT x'..' */
    dli_mysql_sql_t sql;
    char names_room[ROOM], sql_room[ROOM + 1024];
} forgetting_t;

/* false: no answer, or a refusal. */
static bool ask(forgetting_t *f, dli_mysql_answer_t *answer) {
    dl_error_t err;
    *answer = (dli_mysql_answer_t){.rows = NULL};
    if (f->sql.is_cut) {
        return false;
    }
    dl_status_t status = dli_mysql_link_ask(f->mysql->link, f->conn, f->sql.at, f->sql.len, f->deadline_ns,
                                            NULL, NULL, answer, &err);
    bool done = status == DL_OK && answer->error == 0;
    if (!done) {
        dli_mysql_answer_free(answer);
    }
    return done;
}

static bool carry_out(forgetting_t *f) {
    dli_mysql_answer_t answer;
    bool done = ask(f, &answer);
    dli_mysql_answer_free(&answer);
    return done;
}

static void begin_sql(forgetting_t *f) {
    f->sql = dli_mysql_sql_in(f->sql_room, sizeof f->sql_room);
}

static void begin_names(forgetting_t *f) {
    f->names = dli_mysql_sql_in(f->names_room, sizeof f->names_room);
    f->count = f->highest = 0;
}

/* false: there is no room for it. */
static bool collect(forgetting_t *f, const char *name, size_t len) {
    size_t len_before = f->names.len;
    dli_mysql_sql_add(&f->names, f->count == 0 ? "SELECT $x AS name" : " UNION ALL SELECT $x", name, len);
    if (f->names.is_cut) {
        f->names.len = len_before;
        f->names.at[len_before] = '\0';
        f->names.is_cut = false;
        return false;
    }
    f->count++;
    return true;
}

static void add_is_old(forgetting_t *f) {
    dli_mysql_sql_add(&f->sql, "k.drawn_at<UTC_TIMESTAMP(6)-INTERVAL $i MICROSECOND",
                      f->mysql->purge_after_ms * 1000);
}

/* One page of names behind the last one that was looked at. Locks nothing. */
static bool look(forgetting_t *f) {
    dli_mysql_t *mysql = f->mysql;
    dli_mysql_answer_t answer;
    begin_sql(f);
    dli_mysql_sql_add(&f->sql, "SELECT k.name,");
    add_is_old(f);
    dli_mysql_sql_add(&f->sql, " FROM $t k WHERE k.name>$x ORDER BY k.name LIMIT $u", mysql->tokens,
                      mysql->purged, mysql->purged_len, (uint64_t)ROWS);
    if (!ask(f, &answer)) {
        return false;
    }
    MYSQL_ROW row;
    unsigned long *lengths;
    unsigned rows = 0;
    bool has_room = true;
    begin_names(f);
    while ((row = dli_mysql_answer_row(&answer, &lengths)) != NULL) {
        has_room = dli_mysql_number(row[1]) == 0 || collect(f, row[0], lengths[0]);
        if (!has_room) {
            break; /* the rest is for next time */
        }
        mysql->purged_len = lengths[0] < sizeof mysql->purged ? lengths[0] : sizeof mysql->purged;
        memcpy(mysql->purged, row[0], mysql->purged_len);
        rows++;
    }
    dli_mysql_answer_free(&answer);
    if (has_room && rows < ROWS) {
        mysql->purged_len = 0; /* from the beginning again */
    }
    return true;
}

/* Of the collected names those remain that the statement finds. Each name is looked up by itself, as a search
 * for a list of names may go through a whole small table, and so meet rows that others have locked. */
static bool narrow(forgetting_t *f, const char *column, const char *table, bool is_locking) {
    dli_mysql_answer_t answer;
    begin_sql(f);
    dli_mysql_sql_add(
        &f->sql, "SELECT k.name,$t FROM ($t) n STRAIGHT_JOIN $t k " DLI_MYSQL_BY_NAME " ON k.name=n.name",
        column, f->names.at, table);
    if (is_locking) {
        dli_mysql_sql_add(&f->sql, " FOR UPDATE SKIP LOCKED");
    } else {
        dli_mysql_sql_add(&f->sql, " WHERE ");
        add_is_old(f);
    }
    if (!ask(f, &answer)) {
        return false;
    }
    MYSQL_ROW row;
    unsigned long *lengths;
    begin_names(f);
    while ((row = dli_mysql_answer_row(&answer, &lengths)) != NULL && collect(f, row[0], lengths[0])) {
        uint64_t token = dli_mysql_number(row[1]);
        f->highest = token > f->highest ? token : f->highest;
    }
    dli_mysql_answer_free(&answer);
    return f->count > 0;
}

static bool raise_floor(forgetting_t *f) {
    begin_sql(f);
    dli_mysql_sql_add(&f->sql,
                      "INSERT INTO $t(name,token,drawn_at) VALUES('',$u,UTC_TIMESTAMP(6))"
                      " ON DUPLICATE KEY UPDATE token=GREATEST(token,$u),drawn_at=UTC_TIMESTAMP(6)",
                      f->mysql->tokens, f->highest, f->highest);
    return carry_out(f);
}

static bool delete_from(forgetting_t *f, const char *table) {
    begin_sql(f);
    dli_mysql_sql_add(&f->sql,
                      "DELETE k FROM ($t) n STRAIGHT_JOIN $t k " DLI_MYSQL_BY_NAME " ON k.name=n.name",
                      f->names.at, table);
    return carry_out(f);
}

/* true: the transaction is over. */
static bool finish(forgetting_t *f, const char *statement) {
    begin_sql(f);
    dli_mysql_sql_add(&f->sql, statement);
    return carry_out(f);
}

static bool forget_some(forgetting_t *f) {
    const dli_mysql_t *mysql = f->mysql;
    bool done = look(f) && f->count > 0 && narrow(f, "0", mysql->table, true) &&
                narrow(f, "k.token", mysql->tokens, false) && raise_floor(f) &&
                delete_from(f, mysql->tokens) && delete_from(f, mysql->table);
    return finish(f, done ? "COMMIT" : "ROLLBACK");
}

bool dli_mysql_names_forget(dli_mysql_t *mysql, dli_mysql_conn_t *conn, const dl_request_t *request) {
    if (!dli_mysql_purge_begin(mysql, request, EVERY)) {
        return true;
    }
    bool is_usable = true;
    forgetting_t *f = malloc(sizeof *f);
    if (f != NULL) {
        uint64_t soon_ns = mysql->env->now_ns() + FORGET_MS * (uint64_t)DLI_NS_PER_MS;
        f->mysql = mysql;
        f->conn = conn;
        f->deadline_ns = dli_mysql_earlier(soon_ns, request->deadline_ns);
        is_usable = forget_some(f);
        free(f);
    }
    atomic_flag_clear(&mysql->purging);
    return is_usable;
}
