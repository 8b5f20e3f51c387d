/* schema.c - the lock tables: looks whether they are as they have to be, and makes those that are missing. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "setup.h"

/* The server's number for a text that it cannot parse. */
#define SYNTAX_ERROR 1064

/* One look at one table. */
typedef struct look {
    dli_mysql_t *mysql;
    const dli_mysql_table_t *table;
    char name[sizeof((dli_mysql_t *)0)->tokens], shown[DLI_MYSQL_TABLE_SHOWN];
    uint64_t deadline_ns;
    dl_error_t *err;
} look_t;

void dli_mysql_table_name(const dli_mysql_t *mysql, const dli_mysql_table_t *table, char *name, size_t size) {
    (void)snprintf(name, size, "%s%s", mysql->table, table->suffix);
}

void dli_mysql_table_show(const dli_mysql_t *mysql, const dli_mysql_table_t *table,
                          char shown[DLI_MYSQL_TABLE_SHOWN]) {
    (void)snprintf(shown, DLI_MYSQL_TABLE_SHOWN, "%s%s", mysql->table_shown, table->suffix);
}

void dli_mysql_table_ddl(const dli_mysql_t *mysql, const dli_mysql_table_t *table, dli_mysql_sql_t *sql) {
    char name[sizeof mysql->tokens];
    dli_mysql_table_name(mysql, table, name, sizeof name);
    dli_mysql_sql_add(sql, "CREATE TABLE IF NOT EXISTS $t (", name);
    for (const dli_mysql_column_t *c = table->columns; c->name != NULL; c++) {
        dli_mysql_sql_add(sql, "$t $t $t $t", c == table->columns ? "" : ",", c->name, c->type, c->rest);
    }
    dli_mysql_sql_add(sql, " ) ENGINE=InnoDB");
}

/* ---- verifying --------------------------------------------------------------------------------------- */

static dl_status_t wrong(const look_t *look, const char *format, ...) __attribute__((format(printf, 2, 3)));

static dl_status_t wrong(const look_t *look, const char *format, ...) {
    char what[160];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return dl_driver_fail(look->err, DL_ECONFIG, 0,
                          "table '%s' %s; `dlock init --print` shows what it has to be", look->shown, what);
}

/* Looks at the names as they stand in every other statement, without quotes. */
static dl_status_t ask_columns(const look_t *look, dli_mysql_answer_t *answer) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "SHOW COLUMNS FROM $t", look->name);
    dl_status_t status = dli_mysql_setup_ask(look->mysql, &sql, look->deadline_ns, answer, look->err);
    if (status != DL_OK || answer->error == 0) {
        return status;
    }
    if (answer->error == SYNTAX_ERROR) {
        return dl_driver_fail(look->err, DL_ECONFIG, SYNTAX_ERROR,
                              "table '%s': the server cannot take that for a name (a number, or a word of "
                              "SQL); choose another",
                              look->shown);
    }
    if (answer->error == DLI_MYSQL_NO_SUCH_TABLE) {
        return dl_driver_fail(look->err, DL_ECONFIG, DLI_MYSQL_NO_SUCH_TABLE,
                              "table '%s' is missing in database '%s'; `dlock init` makes it", look->shown,
                              look->mysql->endpoint->database);
    }
    char what[DLI_MYSQL_TABLE_SHOWN + 24];
    (void)snprintf(what, sizeof what, "looking at table '%s'", look->shown);
    return dli_mysql_refused(answer->error, answer->message, what, look->err);
}

/* Older servers say how wide a number is shown: "bigint(20) unsigned". Case says nothing. */
static void plain_type(const char *type, char *plain, size_t size) {
    bool is_number = strncasecmp(type, "bigint", 6) == 0 || strncasecmp(type, "int", 3) == 0;
    size_t len = 0;
    for (const char *at = type; *at != '\0' && len + 1 < size; at++) {
        if (is_number && *at == '(') {
            at += strcspn(at, ")");
            if (*at == '\0') {
                break;
            }
            continue;
        }
        plain[len++] = (char)tolower((unsigned char)*at);
    }
    plain[len] = '\0';
}

static bool is_type(const char *actual, const char *wanted) {
    char a[160], b[160];
    plain_type(actual, a, sizeof a);
    plain_type(wanted, b, sizeof b);
    return strcmp(a, b) == 0;
}

/* What SHOW COLUMNS says of one. */
enum { FIELD, TYPE, MAY_BE_NULL, KEY, DEFAULT_VALUE, EXTRA, COLUMN_FACTS };

static MYSQL_ROW find_column(MYSQL_RES *rows, const char *name) {
    MYSQL_ROW row;
    mysql_data_seek(rows, 0);
    while ((row = mysql_fetch_row(rows)) != NULL) {
        if (strcasecmp(row[FIELD], name) == 0) {
            return row;
        }
    }
    return NULL;
}

/* A column of somebody else's is fine as long as rows can be made without it, and where tokens are drawn the
 * server tells no other number in place of theirs. */
static dl_status_t judge_others(const look_t *look, MYSQL_RES *rows) {
    MYSQL_ROW row;
    mysql_data_seek(rows, 0);
    while ((row = mysql_fetch_row(rows)) != NULL) {
        const dli_mysql_column_t *c = look->table->columns;
        while (c->name != NULL && strcasecmp(c->name, row[FIELD]) != 0) {
            c++;
        }
        bool is_counted = strcasestr(row[EXTRA], "auto_increment") != NULL;
        bool is_made = is_counted || strcasestr(row[EXTRA], "GENERATED") != NULL;
        if (c->name == NULL && strcmp(row[MAY_BE_NULL], "NO") == 0 && row[DEFAULT_VALUE] == NULL &&
            !is_made) {
            return wrong(look, "has a column '%s' that rows cannot be made without", row[FIELD]);
        }
        if (is_counted && look->table->suffix[0] != '\0') {
            return wrong(look, "has a column '%s' with numbers that the server tells in place of tokens",
                         row[FIELD]);
        }
    }
    return DL_OK;
}

static dl_status_t judge_columns(const look_t *look, MYSQL_RES *rows) {
    for (const dli_mysql_column_t *c = look->table->columns; c->name != NULL; c++) {
        MYSQL_ROW row = find_column(rows, c->name);
        if (row == NULL) {
            return wrong(look, "has no column '%s', or this account may not see it", c->name);
        }
        if (!is_type(row[TYPE], c->type)) {
            return wrong(look, "has a column '%s' of type %s, which has to be %s", c->name, row[TYPE],
                         c->type);
        }
    }
    return judge_others(look, rows);
}

/* The engine, and the keys. Unique keys on a part of the name, or on other columns, would let two names meet.
 * The primary key has to be one by that name, for DLI_MYSQL_BY_NAME: SHOW COLUMNS calls a column PRI for a
 * unique key too where there is no other. */
static dl_status_t judge_engine_and_keys(const look_t *look) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dli_mysql_sql_add(&sql,
                      "SELECT TABLE_TYPE, ENGINE, (SELECT COUNT(*) FROM information_schema.STATISTICS"
                      " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '$t' AND NON_UNIQUE = 0"
                      " AND (SUB_PART IS NOT NULL OR NOT COLUMN_NAME <=> 'name')),"
                      " (SELECT COUNT(*) FROM information_schema.STATISTICS"
                      " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '$t' AND INDEX_NAME = 'PRIMARY')"
                      " FROM information_schema.TABLES"
                      " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '$t'",
                      look->name, look->name, look->name);
    dl_status_t status = dli_mysql_setup_ask(look->mysql, &sql, look->deadline_ns, &answer, look->err);
    if (status == DL_OK && answer.error != 0) {
        status = dli_mysql_refused(answer.error, answer.message,
                                   "looking at the lock table's engine and keys", look->err);
    }
    MYSQL_ROW row = status == DL_OK ? dli_mysql_answer_row(&answer, NULL) : NULL;
    if (status == DL_OK && row == NULL) {
        status = wrong(look, "is gone, or this account may not see it");
    } else if (status == DL_OK && (row[0] == NULL || strcmp(row[0], "BASE TABLE") != 0)) {
        status = wrong(look, "is no ordinary table (%s)", row[0] != NULL ? row[0] : "?");
    } else if (status == DL_OK && (row[1] == NULL || strcasecmp(row[1], "InnoDB") != 0)) {
        status = wrong(look, "is kept by the engine %s; locks need InnoDB's row locks and transactions",
                       row[1] != NULL ? row[1] : "?");
    } else if (status == DL_OK && dli_mysql_number(row[2]) != 0) {
        status = wrong(look, "has a primary or unique key on something else than the whole name");
    } else if (status == DL_OK && dli_mysql_number(row[3]) == 0) {
        status = wrong(look, "has no primary key on its column 'name' (a unique key is none)");
    }
    dli_mysql_answer_free(&answer);
    return status;
}

dl_status_t dli_mysql_table_verify(dli_mysql_t *mysql, const dli_mysql_table_t *table, uint64_t deadline_ns,
                                   dl_error_t *err) {
    look_t look = {.mysql = mysql, .table = table, .deadline_ns = deadline_ns, .err = err};
    dli_mysql_answer_t answer;
    dli_mysql_table_name(mysql, table, look.name, sizeof look.name);
    dli_mysql_table_show(mysql, table, look.shown);
    dl_status_t status = ask_columns(&look, &answer);
    if (status == DL_OK && (answer.rows == NULL || mysql_num_fields(answer.rows) < COLUMN_FACTS)) {
        status = dl_driver_fail(err, DL_EPROTO, 0, "an answer to SHOW COLUMNS that makes no sense");
    }
    if (status == DL_OK) {
        status = judge_columns(&look, answer.rows);
    }
    dli_mysql_answer_free(&answer);
    return status == DL_OK ? judge_engine_and_keys(&look) : status;
}

/* ---- making ------------------------------------------------------------------------------------------ */

static dl_status_t create(dli_mysql_t *mysql, const dli_mysql_table_t *table, uint64_t deadline_ns,
                          dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dli_mysql_table_ddl(mysql, table, &sql);
    dl_status_t status = dli_mysql_setup_ask(mysql, &sql, deadline_ns, &answer, err);
    if (status == DL_OK && answer.error != 0) {
        char what[DLI_MYSQL_TABLE_SHOWN + 24];
        (void)snprintf(what, sizeof what, "making table '%s%s'", mysql->table_shown, table->suffix);
        status = dli_mysql_refused(answer.error, answer.message, what, err);
        if (status == DL_EAUTH) {
            dl_error_t why = *err;
            (void)dl_driver_fail(err, DL_EAUTH, why.native,
                                 "%s; `dlock init --print` gives the SQL for an account that may",
                                 why.message);
        }
    }
    dli_mysql_answer_free(&answer);
    return status;
}

dl_status_t dli_mysql_table_provide(dli_mysql_t *mysql, const dli_mysql_table_t *table, uint64_t deadline_ns,
                                    bool *made, dl_error_t *err) {
    dl_status_t status = dli_mysql_table_verify(mysql, table, deadline_ns, err);
    *made = status == DL_ECONFIG && err->native == DLI_MYSQL_NO_SUCH_TABLE;
    if (*made) {
        status = create(mysql, table, deadline_ns, err);
        if (status == DL_OK) {
            status = dli_mysql_table_verify(mysql, table, deadline_ns, err);
        }
    }
    return status;
}
