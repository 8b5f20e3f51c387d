/* check.c - says which guarantee this server gives to locks, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

uint64_t dli_mysql_check_until(const dli_mysql_check_t *check) {
    const dl_driver_env_t *env = check->mysql->env;
    uint64_t own_ns = env->now_ns() + (uint64_t)env->call_timeout_ms * DLI_NS_PER_MS;
    return check->is_silent || own_ns < check->deadline_ns ? check->deadline_ns : own_ns;
}

void dli_mysql_check_note(dli_mysql_check_t *check, dl_status_t status) {
    check->is_silent =
        check->is_silent || status == DL_EIO || status == DL_EUNKNOWN || status == DL_ETIMEDOUT;
}

dl_status_t dli_mysql_check_ask(dli_mysql_check_t *check, const char *sql, dli_mysql_answer_t *answer,
                                dl_error_t *err) {
    DLI_MYSQL_SQL(text);
    dli_mysql_sql_add(&text, "$t", sql);
    dl_status_t status = dli_mysql_setup_ask(check->mysql, &text, dli_mysql_check_until(check), answer, err);
    dli_mysql_check_note(check, status);
    return status;
}

bool dli_mysql_check_is_lease(dli_mysql_check_t *check) {
    return check->mysql->kind->calls != DLI_MYSQL_ROLE_HOLDING;
}

static void report_server(dli_mysql_check_t *check) {
    char server[400];
    dl_error_t err;
    dli_mysql_describe(check->mysql, server, sizeof server);
    dli_mysql_check_say(check, DL_FINDING_OK, "server",
                        "%s, through %s (MariaDB 10.6 and MySQL 8.0 are the oldest that work)", server,
                        dli_mysql_library_name());
    if (dli_mysql_refuse_unfit(check->mysql, check->settings.rows, &err) != DL_OK) {
        dli_mysql_check_say(check, DL_FINDING_ERROR, "fitness", "%s", err.message);
    } else {
        dli_mysql_check_say(check, DL_FINDING_OK, "fitness",
                            "it takes writes, and no other node takes writes beside it (no Galera, no "
                            "replication group with several primaries)");
    }
}

/* false: one is not as it should be. */
static bool report_tables(dli_mysql_check_t *check) {
    dl_error_t err;
    bool all = true;
    char name[DLI_MYSQL_TABLE_SHOWN];
    for (const dli_mysql_table_t *t = check->mysql->kind->tables; t->suffix != NULL; t++) {
        dli_mysql_table_show(check->mysql, t, name);
        dl_status_t status = dli_mysql_table_verify(check->mysql, t, dli_mysql_check_until(check), &err);
        dli_mysql_check_note(check, status);
        if (status == DL_OK) {
            dli_mysql_check_say(check, DL_FINDING_OK, "table",
                                "%s.%s is an InnoDB table with all columns and its primary key",
                                check->mysql->endpoint->database, name);
        } else {
            dli_mysql_check_say(check, DL_FINDING_ERROR, "table", "%s", err.message);
            all = false;
        }
    }
    return all;
}

static void report_guarantee(dli_mysql_check_t *check) {
    if (dli_mysql_check_is_lease(check)) {
        dli_mysql_check_say(
            check, DL_FINDING_NOTE, "guarantee",
            "at most one owner of a name among all clients of this table, until its lease ends, as long as "
            "the server keeps what it has committed and its clock is not set; each later holder has a larger "
            "token");
        dli_mysql_check_say(
            check, DL_FINDING_NOTE, "limit",
            "one server decides: while it is down nobody can lock, and where it loses commits (crash without "
            "sync, failover, a restored backup) a second holder can get in within a lease; let the guarded "
            "resource refuse smaller tokens");
        return;
    }
    dli_mysql_check_say(
        check, DL_FINDING_NOTE, "guarantee",
        "at most one session of this server holds the row of a name, whatever any clock says; the lock ends "
        "with its connection. Each later holder has a larger token, as long as the server keeps the table of "
        "tokens or its clock does not fall behind");
    dli_mysql_check_say(
        check, DL_FINDING_NOTE, "limit",
        "the server frees a row as soon as its session is over (KILL, a cut connection, restart, failover), "
        "which its holder learns a moment later: until then two can believe they hold it; let the guarded "
        "resource refuse smaller tokens");
}

dl_status_t dli_mysql_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    dli_mysql_check_t check = {.mysql = state, .report = {.fn = fn, .arg = arg}, .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_variables_ask(check.mysql, deadline_ns, &check.settings, err);
    if (status != DL_OK) {
        dli_mysql_answer_free(&check.settings);
        dli_mysql_check_say(&check, DL_FINDING_ERROR, "server", "%s", err->message);
        return status;
    }
    dli_moment_t first;
    report_server(&check);
    dli_mysql_check_clock_begin(&check, &first);
    bool has_tables = report_tables(&check);
    if (!dli_mysql_check_way(&check) || !has_tables) {
        dli_mysql_check_say(&check, DL_FINDING_NOTE, "locking", "not tried: there is no hope of it");
    }
    dli_mysql_check_settings(&check);
    dli_mysql_check_clock_end(&check, &first);
    report_guarantee(&check);
    dli_mysql_answer_free(&check.settings);
    return DL_OK;
}
