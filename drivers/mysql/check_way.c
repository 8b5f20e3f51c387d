/* check_way.c - how statements get to the server: TLS, the session's settings, the account's rights. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "check.h"

/* ---- the way there ----------------------------------------------------------------------------------- */

/* Of the session's variables or status; "": there is no such one. */
static const char *value_of(const dli_mysql_answer_t *answer, const char *name) {
    const char *value = dli_mysql_value(answer->rows, name);
    return value != NULL ? value : "";
}

static void report_way(dli_mysql_check_t *check) {
    const dli_mysql_endpoint_t *e = check->mysql->endpoint;
    dli_mysql_answer_t answer;
    dl_error_t err;
    if (dli_mysql_check_ask(check, "SHOW SESSION STATUS LIKE 'Ssl_cipher'", &answer, &err) != DL_OK) {
        dli_mysql_check_say(check, DL_FINDING_NOTE, "transport", "not known: %s", err.message);
        return;
    }
    const dli_way_t way = {.host = e->socket != NULL ? NULL : e->host,
                           .tls = value_of(&answer, "Ssl_cipher")[0] != '\0',
                           .is_verified = e->tls == DLI_MYSQL_TLS_VERIFY,
                           .has_proof = e->password != NULL || e->tls_cert != NULL,
                           .advice = "set tls: verify"};
    dli_way_report(&check->report, &way);
    dli_mysql_answer_free(&answer);
}

/* ---- the session ------------------------------------------------------------------------------------- */

/* On a connection of the kind that takes locks. */
static dl_status_t ask_session(dli_mysql_check_t *check, dli_mysql_answer_t *answer, dl_error_t *err) {
    static const char sql[] =
        "SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation','tx_isolation','autocommit',"
        "'sql_mode','time_zone','wait_timeout','innodb_lock_wait_timeout')";
    dli_mysql_link_t *link = check->mysql->link;
    dli_mysql_conn_t *conn = NULL;
    *answer = (dli_mysql_answer_t){.rows = NULL};
    uint64_t until_ns = dli_mysql_check_until(check);
    dl_status_t status = dli_mysql_link_borrow(link, DLI_MYSQL_CALLS, check->mysql->env->now_ns(),
                                               DL_NO_DEADLINE, until_ns, NULL, &conn, err);
    dli_mysql_check_note(check, status);
    if (status != DL_OK) {
        return status;
    }
    status = dli_mysql_link_ask(link, conn, sql, sizeof sql - 1, until_ns, NULL, NULL, answer, err);
    if (status == DL_OK) {
        status = dli_mysql_link_roll_back(link, conn, until_ns, NULL, err);
    }
    if (status == DL_OK) {
        dli_mysql_link_give_back(link, conn);
    } else {
        dli_mysql_link_drop(link, conn, false);
    }
    return status;
}

static void report_session(dli_mysql_check_t *check) {
    dli_mysql_answer_t answer;
    dl_error_t err;
    if (ask_session(check, &answer, &err) != DL_OK) {
        dli_mysql_check_say(check, DL_FINDING_ERROR, "session", "no connection for locks is to be had: %s",
                            err.message);
        dli_mysql_answer_free(&answer);
        return;
    }
    const char *isolation = value_of(&answer, "transaction_isolation");
    isolation = isolation[0] != '\0' ? isolation : value_of(&answer, "tx_isolation");
    const char *autocommit = value_of(&answer, "autocommit"), *zone = value_of(&answer, "time_zone");
    bool wants_autocommit = check->mysql->kind->calls != DLI_MYSQL_ROLE_HOLDING;
    bool is_pinned = strcmp(isolation, "READ-COMMITTED") == 0 && strcmp(zone, "+00:00") == 0 &&
                     (strcmp(autocommit, "ON") == 0) == wants_autocommit;
    dli_mysql_check_say(check, is_pinned ? DL_FINDING_OK : DL_FINDING_ERROR, "session",
                        "%s, autocommit %s, time zone %s, idle for at most %s s: %s", isolation, autocommit,
                        zone, value_of(&answer, "wait_timeout"),
                        is_pinned ? "set by each connection for itself, whatever the server's defaults are"
                                  : "not what the connection has set; something between it and the server "
                                    "(a proxy, init_connect) changes sessions, and locks cannot be trusted");
    dli_mysql_answer_free(&answer);
}

/* ---- rights ------------------------------------------------------------------------------------------ */

typedef struct right {
    const char *name;
    const char *sql; /* with the table; changes nothing, since no name holds a zero byte */
    dl_finding_level_t level;
    const char *cost; /* of its lack */
} right_t;

#define NO_ROW "WHERE name = x'00' AND 1 = 0"

static const right_t rights[] = {
    {"SELECT", "SELECT name FROM $t " NO_ROW, DL_FINDING_ERROR, "no lock can be looked at or renewed"},
    {"UPDATE", "UPDATE $t SET name = name " NO_ROW, DL_FINDING_ERROR,
     "no lock can be taken, renewed or freed"},
    {"INSERT", "INSERT INTO $t (name) SELECT x'00' FROM $t " NO_ROW, DL_FINDING_ERROR,
     "no name can be locked that has no row yet"},
    {"DELETE", "DELETE FROM $t " NO_ROW, DL_FINDING_WARNING,
     "rows of names long unused are not purged, so the table only grows"},
};

/* Of a command on a table, on a column, on the database. */
static bool is_refusal(unsigned error) {
    return error == 1142 || error == 1143 || error == 1044 || error == 1227;
}

/* false: it is lacking, and reported. */
static bool try_right(dli_mysql_check_t *check, const right_t *right, const dli_mysql_table_t *table) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    dl_error_t err;
    bool is_given = true;
    char name[sizeof check->mysql->tokens], shown[DLI_MYSQL_TABLE_SHOWN];
    dli_mysql_table_name(check->mysql, table, name, sizeof name);
    dli_mysql_table_show(check->mysql, table, shown);
    dli_mysql_sql_add(&sql, right->sql, name, name);
    dl_status_t status = dli_mysql_setup_ask(check->mysql, &sql, dli_mysql_check_until(check), &answer, &err);
    dli_mysql_check_note(check, status);
    if (status != DL_OK) {
        dli_mysql_check_say(check, DL_FINDING_ERROR, "rights", "%s on %s could not be tried: %s", right->name,
                            shown, err.message);
        return false;
    }
    if (is_refusal(answer.error)) {
        dli_mysql_check_say(check, right->level, right->name, "refused on %s: %s (the server says: %s)",
                            shown, right->cost, answer.message);
        is_given = false;
    }
    dli_mysql_answer_free(&answer);
    return is_given;
}

/* false: one that locks cannot do without. */
static bool report_rights(dli_mysql_check_t *check) {
    bool all = true, enough = true;
    for (const dli_mysql_table_t *t = check->mysql->kind->tables; t->suffix != NULL; t++) {
        for (size_t i = 0; i < sizeof rights / sizeof rights[0]; i++) {
            bool is_given = try_right(check, &rights[i], t);
            all = all && is_given;
            enough = enough && (is_given || rights[i].level != DL_FINDING_ERROR);
        }
    }
    if (all) {
        dli_mysql_check_say(
            check, DL_FINDING_OK, "rights",
            "the account may do all that locks need (tried by statements that change nothing)");
    }
    return enough;
}

static void report_proxy(dli_mysql_check_t *check) {
    dli_mysql_facts_t facts;
    dli_mysql_link_facts(check->mysql->link, &facts);
    if (facts.connection_id == 0) {
        dli_mysql_check_say(check, DL_FINDING_WARNING, "proxy",
                            DLI_MYSQL_RENUMBERED ": nothing is killed, and what was given up can still be "
                                                 "carried out after its release");
    }
}

bool dli_mysql_check_way(dli_mysql_check_t *check) {
    report_way(check);
    report_session(check);
    report_proxy(check);
    return report_rights(check);
}
