/* init.c - prepares a server for locks: makes the tables, and says what an account needs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/report.h"
#include "setup.h"

/* ---- printing ---------------------------------------------------------------------------------------- */

/* Text between quotes of this kind; a quote inside is doubled, which every sql_mode takes, and a backslash
 * too where it would escape. */
static void quote(char *room, size_t size, char mark, const char *text) {
    size_t len = 0;
    room[len++] = mark;
    for (const char *at = text; *at != '\0' && len + 3 < size; at++) {
        if (*at == mark || (*at == '\\' && mark == '\'')) {
            room[len++] = *at;
        }
        room[len++] = *at;
    }
    room[len++] = mark;
    room[len] = '\0';
}

/* What cannot be read cannot be copied: the statement would be about another account. */
static dl_status_t check_printable(const char *option, const char *name, dl_error_t *err) {
    for (const char *at = name; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "%s: it has a control character, and so cannot be printed", option);
        }
    }
    return DL_OK;
}

/* Names of users are short, and names of databases are at most 64 characters. */
#define QUOTED_MAX 600

static void print_account(const dli_report_t *report, const dli_mysql_t *mysql) {
    char user[QUOTED_MAX], database[QUOTED_MAX], table[QUOTED_MAX], name[sizeof mysql->tokens];
    quote(user, sizeof user, '\'', mysql->endpoint->user);
    quote(database, sizeof database, '`', mysql->endpoint->database);
    dli_say(
        report, DL_FINDING_NOTE, "access",
        "an account needs no more than this; put the hosts of the clients in place of %%; where it is not "
        "there yet, this makes it, with a password of its own in place of PASSWORD:");
    /* No statement to be run as it is: it would make an account whose password everybody knows. */
    dli_say(report, DL_FINDING_NOTE, "account", "CREATE USER IF NOT EXISTS %s@'%%' IDENTIFIED BY 'PASSWORD';",
            user);
    dli_say(report, DL_FINDING_NOTE, "access",
            "with this MariaDB makes no account by GRANT, which would have no password:");
    dli_say(report, DL_FINDING_NOTE, "sql",
            "SET SESSION sql_mode = CONCAT(@@sql_mode, /*M! ',NO_AUTO_CREATE_USER', */ '');");
    for (const dli_mysql_table_t *t = mysql->kind->tables; t->suffix != NULL; t++) {
        dli_mysql_table_name(mysql, t, name, sizeof name);
        quote(table, sizeof table, '`', name);
        dli_say(report, DL_FINDING_NOTE, "sql", "GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO %s@'%%';",
                database, table, user);
    }
}

/* Nothing is connected. */
static dl_status_t print_plan(const dli_report_t *report, const dli_mysql_t *mysql, dl_error_t *err) {
    char database[QUOTED_MAX];
    dl_status_t status = check_printable("user", mysql->endpoint->user, err);
    status = status == DL_OK ? check_printable("database", mysql->endpoint->database, err) : status;
    if (status != DL_OK) {
        return status;
    }
    quote(database, sizeof database, '`', mysql->endpoint->database);
    dli_say(report, DL_FINDING_NOTE, "init",
            "what `dlock init` runs, by an account that may create tables; the database has to be there");
    dli_say(report, DL_FINDING_NOTE, "sql", "USE %s;", database);
    for (const dli_mysql_table_t *t = mysql->kind->tables; t->suffix != NULL; t++) {
        DLI_MYSQL_SQL(sql);
        dli_mysql_table_ddl(mysql, t, &sql);
        dli_say(report, DL_FINDING_NOTE, "sql", "%s;", sql.at);
    }
    print_account(report, mysql);
    return DL_OK;
}

/* ---- doing ------------------------------------------------------------------------------------------- */

static dl_status_t make_table(const dli_report_t *report, dli_mysql_t *mysql, const dli_mysql_table_t *table,
                              uint64_t deadline_ns, dl_error_t *err) {
    char name[DLI_MYSQL_TABLE_SHOWN];
    bool made;
    dl_status_t status = dli_mysql_table_provide(mysql, table, deadline_ns, &made, err);
    if (status == DL_OK) {
        dli_mysql_table_show(mysql, table, name);
        dli_say(report, DL_FINDING_OK, "table", made ? "made %s.%s" : "nothing to do: %s.%s is ready",
                mysql->endpoint->database, name);
    }
    return status;
}

static dl_status_t make_tables(const dli_report_t *report, dli_mysql_t *mysql, uint64_t deadline_ns,
                               dl_error_t *err) {
    dl_status_t status = dli_mysql_connect(mysql, deadline_ns, err);
    for (const dli_mysql_table_t *t = mysql->kind->tables; status == DL_OK && t->suffix != NULL; t++) {
        status = make_table(report, mysql, t, deadline_ns, err);
    }
    if (status == DL_OK) {
        char server[400];
        dli_mysql_describe(mysql, server, sizeof server);
        dli_say(report, DL_FINDING_OK, "init", "%s can be used", server);
    }
    return status;
}

dl_status_t dli_mysql_init(const dli_mysql_kind_t *kind, const dl_option_value_t *options,
                           const dl_driver_env_t *env, unsigned flags, dl_finding_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err) {
    dli_report_t report = {.fn = fn, .arg = arg};
    dli_mysql_t *mysql = calloc(1, sizeof *mysql);
    if (mysql == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dl_status_t status = dli_mysql_prepare(mysql, kind, options, env, err);
    if (status == DL_OK && (flags & DL_INIT_PRINT) != 0) {
        status = print_plan(&report, mysql, err);
    } else if (status == DL_OK) {
        status = make_tables(&report, mysql, deadline_ns, err);
    }
    dli_mysql_close(mysql, 0);
    free(mysql);
    return status;
}
