/* purge.c - deletes rows of names that nobody has locked for long, so that no table grows for ever. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "rows.h"

/* Each EVERY locks that a client had, it looks at ROWS names. A lock leaves one row at most, so that looking
 * at more than that keeps the tables in proportion to the names in use. */
#define EVERY 64
#define ROWS 128u
/* It is part of somebody's release, and takes no longer than this. */
#define PURGE_MS 100u
/* Room for a statement about all of them where names are short, or half as many of the longest ones. */
#define ROOM 32768

/*
 * Why no token falls, though names go and come again:
 *   - A token goes only by the DELETE below, if it is at most `highest`. Before that the row with the empty
 *     name was raised to `highest` or above: committed, or in the same transaction. It never falls and is
 * never deleted.
 *   - mysql-lease, mysql-optimistic: a new row copies the token of the row with the empty name while it holds
 * a shared lock on it, up to its own commit (rows.c). If an older row of its name was deleted before, the
 *     raise before that was committed before the new row was inserted; as it cannot have been committed while
 *     the lock was held, it was so before the lock was granted, and its value is what was copied.
 *   - mysql-pessimistic: all of it is one transaction, which locks the names' rows first, so that nobody
 *     holds them or draws for them; a token without a row gets one before. A new token is above that of the
 *     row with the empty name (tokens.c).
 *   - Whoever takes a row gets a token above the row's. A row that was taken again meanwhile has a larger
 * token, or is not old any more: it stays.
 */
typedef struct purge {
    dli_mysql_t *mysql;
    dli_mysql_conn_t *conn; /* NULL: any, and each statement is committed by itself */
    const dl_request_t *request;
    uint64_t deadline_ns;
    const char *table;       /* that the tokens are in */
    uint64_t count, highest; /* of what was collected; the highest token that was seen */
    dli_mysql_sql_t names;   /* as a table in SQL: SELECT x'..' AS name UNION ALL SELECT x'..' */
    dli_mysql_sql_t sql;
    char names_room[ROOM], sql_room[ROOM + 1024];
} purge_t;

/* ---- statements -------------------------------------------------------------------------------------- */

static void begin_sql(purge_t *p) {
    p->sql = dli_mysql_sql_in(p->sql_room, sizeof p->sql_room);
}

/* false: no answer, or a refusal. */
static bool ask(purge_t *p, dli_mysql_answer_t *answer) {
    dl_error_t err;
    dl_status_t status = DL_ELIMIT;
    dli_mysql_exchange_t exchange = {.lane = DLI_MYSQL_CALLS,
                                     .intent = DLI_MYSQL_PLAIN,
                                     .deadline_ns = p->deadline_ns,
                                     .stop = &p->request->stop};
    if (p->conn == NULL) {
        status = dli_mysql_run(p->mysql, &exchange, &p->sql, "purging", "", &err);
    } else if (!p->sql.is_cut) {
        status = dli_mysql_link_ask(p->mysql->link, p->conn, p->sql.at, p->sql.len, p->deadline_ns, NULL,
                                    NULL, &exchange.answer, &err);
    }
    bool done = status == DL_OK && exchange.answer.error == 0;
    if (!done) {
        dli_mysql_answer_free(&exchange.answer);
    }
    *answer = exchange.answer;
    return done;
}

static bool carry_out(purge_t *p) {
    dli_mysql_answer_t answer;
    bool done = ask(p, &answer);
    dli_mysql_answer_free(&answer);
    return done;
}

/* For longer than purge_after: not locked, or held by an owner who is gone. */
static void add_is_old(purge_t *p) {
    dli_mysql_sql_add(
        &p->sql,
        "COALESCE($t<UTC_TIMESTAMP(6)-INTERVAL $i MICROSECOND,0) AND k.$t<$u AND " DLI_MYSQL_WRITABLE "=0",
        p->conn != NULL ? "k.drawn_at" : "IF(k.owner IS NULL,k.released_at,k.expires_at)",
        p->mysql->purge_after_ms * 1000, p->mysql->kind->token_column, DLI_MYSQL_TOKEN_END);
}

/* Those of the names that the table has. Each name is looked up by itself: a search for a list of names may
 * go through all of a table, and so meet rows that others have locked. */
static void add_named(purge_t *p, const char *table) {
    dli_mysql_sql_add(&p->sql, " FROM ($t) n STRAIGHT_JOIN $t k " DLI_MYSQL_BY_NAME " ON k.name=n.name",
                      p->names.at, table);
}

/* ---- the names --------------------------------------------------------------------------------------- */

static void begin_names(purge_t *p) {
    p->names = dli_mysql_sql_in(p->names_room, sizeof p->names_room);
    p->count = 0;
}

/* false: there is no room for it. */
static bool collect(purge_t *p, const char *name, size_t len) {
    size_t len_before = p->names.len;
    dli_mysql_sql_add(&p->names, p->count == 0 ? "SELECT $x AS name" : " UNION ALL SELECT $x", name, len);
    if (p->names.is_cut) {
        p->names.len = len_before;
        p->names.at[len_before] = '\0';
        p->names.is_cut = false;
        return false;
    }
    p->count++;
    return true;
}

/* The table's next names behind the last one that was looked at. */
static void add_page(purge_t *p, const char *table) {
    dli_mysql_sql_add(&p->sql,
                      "SELECT a.name FROM (SELECT name FROM $t WHERE name>$x ORDER BY name LIMIT $u) a",
                      table, p->mysql->purged, p->mysql->purged_len, (uint64_t)ROWS);
}

/* One page of names: which are old, or never had a token? Locks nothing. */
static bool look(purge_t *p) {
    dli_mysql_t *mysql = p->mysql;
    dli_mysql_answer_t answer;
    begin_sql(p);
    dli_mysql_sql_add(&p->sql, "SELECT n.name,k.$t,k.name IS NULL OR ", mysql->kind->token_column);
    add_is_old(p);
    dli_mysql_sql_add(&p->sql, " FROM (");
    add_page(p, p->table);
    if (p->conn != NULL) {
        dli_mysql_sql_add(&p->sql, " UNION ");
        add_page(p, mysql->table);
    }
    dli_mysql_sql_add(&p->sql, ") n LEFT JOIN $t k ON k.name=n.name ORDER BY n.name LIMIT $u", p->table,
                      (uint64_t)ROWS);
    if (!ask(p, &answer)) {
        return false;
    }
    MYSQL_ROW row;
    unsigned long *lengths;
    unsigned rows = 0;
    bool has_room = true;
    begin_names(p);
    while (has_room && (row = dli_mysql_answer_row(&answer, &lengths)) != NULL) {
        bool is_old = dli_mysql_number(row[2]) != 0;
        has_room = !is_old || collect(p, row[0], lengths[0]);
        if (has_room) { /* else it is for next time, with the rest */
            uint64_t token = is_old ? dli_mysql_number(row[1]) : 0;
            p->highest = token > p->highest ? token : p->highest;
            mysql->purged_len = lengths[0] < sizeof mysql->purged ? lengths[0] : sizeof mysql->purged;
            memcpy(mysql->purged, row[0], mysql->purged_len);
            rows++;
        }
    }
    dli_mysql_answer_free(&answer);
    if (has_room && rows < ROWS) {
        mysql->purged_len = 0; /* from the beginning again */
    }
    return p->count > 0;
}

/* mysql-pessimistic: a token without a row could be drawn anew while it is deleted. */
static bool provide_rows(purge_t *p) {
    begin_sql(p);
    dli_mysql_sql_add(
        &p->sql,
        "INSERT IGNORE INTO $t(name) SELECT n.name FROM ($t) n LEFT JOIN $t k " DLI_MYSQL_BY_NAME
        " ON k.name=n.name WHERE k.name IS NULL",
        p->mysql->table, p->names.at, p->mysql->table);
    return carry_out(p);
}

/* mysql-pessimistic: those remain that nobody holds. */
static bool lock_rows(purge_t *p) {
    dli_mysql_answer_t answer;
    begin_sql(p);
    dli_mysql_sql_add(&p->sql, "SELECT k.name,k.owner");
    add_named(p, p->mysql->table);
    dli_mysql_sql_add(&p->sql, " FOR UPDATE SKIP LOCKED");
    if (!ask(p, &answer)) {
        return false;
    }
    MYSQL_ROW row;
    unsigned long *lengths;
    begin_names(p);
    while ((row = dli_mysql_answer_row(&answer, &lengths)) != NULL && collect(p, row[0], lengths[0])) {}
    dli_mysql_answer_free(&answer);
    return p->count > 0;
}

static bool raise_floor(purge_t *p) {
    const char *token = p->mysql->kind->token_column;
    begin_sql(p);
    dli_mysql_sql_add(&p->sql,
                      "INSERT INTO $t(name,$t$t) VALUES('',$u$t) ON DUPLICATE KEY UPDATE $t=GREATEST($t,$u)",
                      p->table, token, p->conn != NULL ? ",drawn_at" : "", p->highest,
                      p->conn != NULL ? ",UTC_TIMESTAMP(6)" : "", token, token, p->highest);
    return carry_out(p);
}

static bool delete_old(purge_t *p) {
    begin_sql(p);
    dli_mysql_sql_add(&p->sql, "DELETE k");
    add_named(p, p->table);
    dli_mysql_sql_add(&p->sql, " WHERE k.$t<=$u AND ", p->mysql->kind->token_column, p->highest);
    add_is_old(p);
    return carry_out(p);
}

/* mysql-pessimistic: of the rows that are locked by now, those that have no token. */
static bool delete_locked(purge_t *p) {
    begin_sql(p);
    dli_mysql_sql_add(&p->sql, "DELETE k");
    add_named(p, p->mysql->table);
    dli_mysql_sql_add(&p->sql,
                      " LEFT JOIN $t t ON t.name=n.name WHERE t.name IS NULL AND " DLI_MYSQL_WRITABLE "=0",
                      p->table);
    return carry_out(p);
}

static bool purge_on_one(purge_t *p) {
    bool done =
        look(p) && provide_rows(p) && lock_rows(p) && raise_floor(p) && delete_old(p) && delete_locked(p);
    begin_sql(p);
    dli_mysql_sql_add(&p->sql, done ? "COMMIT" : "ROLLBACK");
    return carry_out(p);
}

static bool purge_on_any(purge_t *p) {
    (void)(look(p) && raise_floor(p) && delete_old(p));
    return true;
}

/* ---- now and then ------------------------------------------------------------------------------------ */

/* The first purge is due after a random number of locks, so that clients which live for one lock purge now
 * and then too. It begins near its own name: so they look everywhere in the end. */
static bool is_due(dli_mysql_t *mysql, const dl_request_t *request) {
    uint64_t acquired = atomic_load(&mysql->acquired);
    if (mysql->purge_at == 0) {
        unsigned char byte = 0;
        (void)mysql->env->random(&byte, sizeof byte);
        mysql->purge_at = 1 + byte % EVERY;
        mysql->purged_len = request->name_len <= DL_NAME_MAX ? request->name_len : DL_NAME_MAX;
        memcpy(mysql->purged, request->name, mysql->purged_len);
    }
    if (acquired < mysql->purge_at) {
        return false;
    }
    mysql->purge_at = acquired + EVERY;
    return true;
}

bool dli_mysql_purge(dli_mysql_t *mysql, dli_mysql_conn_t *conn, const dl_request_t *request) {
    if (mysql->purge_after_ms <= 0 || atomic_flag_test_and_set(&mysql->purging)) {
        return true;
    }
    bool is_usable = true;
    purge_t *p = is_due(mysql, request) ? malloc(sizeof *p) : NULL;
    if (p != NULL) {
        uint64_t soon_ns = mysql->env->now_ns() + PURGE_MS * (uint64_t)DLI_NS_PER_MS;
        p->mysql = mysql;
        p->conn = conn;
        p->request = request;
        p->deadline_ns = dli_mysql_earlier(soon_ns, request->deadline_ns);
        p->table = conn != NULL ? mysql->tokens : mysql->table;
        p->count = p->highest = 0;
        is_usable = conn != NULL ? purge_on_one(p) : purge_on_any(p);
        free(p);
    }
    atomic_flag_clear(&mysql->purging);
    return is_usable;
}
