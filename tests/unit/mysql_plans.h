/* mysql_plans.h - what a driver sent to its server, explained: which rows each statement goes to. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_PLANS_H
#define MYSQL_PLANS_H

#include <criterion/criterion.h>
#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/mysql_server.h"

/* The server's general log has the text of each statement that it was sent: of these the test asks the server
 * for the plan. For a server of the test's own. */
#define PLANS_ARGS "--log-output=TABLE"

/* Whatever was sent before is forgotten. */
static inline void hear_statements(mysql_server_t *on) {
    mysql_ask(on, "TRUNCATE mysql.general_log");
    mysql_ask(on, "SET GLOBAL general_log=1");
}

static inline MYSQL_RES *ask_rows(MYSQL *mysql, const char *sql) {
    cr_assert_eq(mysql_query(mysql, sql), 0, "%s: %s", mysql_error(mysql), sql);
    MYSQL_RES *rows = mysql_store_result(mysql);
    cr_assert_not_null(rows, "%s: %s", mysql_error(mysql), sql);
    return rows;
}

static inline const char *column(MYSQL_RES *rows, MYSQL_ROW row, const char *name) {
    for (unsigned i = 0; i < mysql_num_fields(rows); i++) {
        if (strcasecmp(mysql_fetch_field_direct(rows, i)->name, name) == 0) {
            return row[i] != NULL ? row[i] : "";
        }
    }
    cr_assert_fail("no column %s", name);
    return "";
}

/* What the server would do for each table: all of a table is gone through by ALL, all of an index by index.
 */
static inline void check_plan(MYSQL *mysql, const char *statement, unsigned long most) {
    /* MariaDB's bound of the time stands in front. */
    const char *bound = strstr(statement, " FOR */ ");
    const char *text = strncmp(statement, "/*M!", 4) == 0 && bound != NULL ? bound + 8 : statement;
    char *sql = malloc(strlen(text) + 32);
    cr_assert_not_null(sql);
    sprintf(sql, "EXPLAIN FORMAT=TRADITIONAL %s", text);
    MYSQL_RES *rows = ask_rows(mysql, sql);
    for (MYSQL_ROW row; (row = mysql_fetch_row(rows)) != NULL;) {
        const char *table = column(rows, row, "table"), *type = column(rows, row, "type");
        if (table[0] == '\0' || table[0] == '<') {
            continue; /* none, or what the statement itself has put together */
        }
        cr_assert_str_neq(type, "ALL", "%s, %s rows: %.300s", type, column(rows, row, "rows"), text);
        cr_assert_str_neq(type, "index", "%s, %s rows: %.300s", type, column(rows, row, "rows"), text);
        cr_assert_str_eq(column(rows, row, "key"), "PRIMARY", "%.300s", text);
        cr_assert_leq(strtoul(column(rows, row, "rows"), NULL, 10), most, "%.300s", text);
    }
    mysql_free_result(rows);
    free(sql);
}

/* How many statements like this there were since hear_statements. Each goes through the primary key to the
 * rows that it names, `most` at most. */
static inline unsigned check_plans(mysql_server_t *on, const char *database_name, const char *like,
                                   unsigned long most) {
    char sql[400];
    unsigned n = 0;
    mysql_ask(on, "SET GLOBAL general_log=0");
    MYSQL *mysql = mysql_init(NULL);
    cr_assert_not_null(mysql_real_connect(mysql, NULL, "root", "", database_name, 0, on->path, 0), "%s",
                       mysql_error(mysql));
    snprintf(sql, sizeof sql,
             "SELECT argument FROM mysql.general_log WHERE command_type='Query' AND"
             " user_host LIKE '" MYSQL_USER "[%%' AND CONVERT(argument USING utf8mb4) LIKE '%s'",
             like);
    MYSQL_RES *rows = ask_rows(mysql, sql);
    for (MYSQL_ROW row; (row = mysql_fetch_row(rows)) != NULL; n++) {
        check_plan(mysql, row[0], most);
    }
    mysql_free_result(rows);
    mysql_close(mysql);
    return n;
}

#endif
