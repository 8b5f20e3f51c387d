/* settings.c - pins a session, whatever a server's globals and its init_connect did, and reads the facts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define OLDEST_MARIADB 100600
#define OLDEST_MYSQL 80000
#define MAX_PATIENCE_S 31536000
#define MAX_STATEMENT 1536
/* So many seconds at most a group's primary may go on without its majority. */
#define ALONE_MAX_S 60
/* Why several servers that take writes grant no locks. Still fits an error's message behind a label. */
#define TWO_WRITERS \
    "row locks end at each node, so two nodes can grant the same lock; the commits clash later"

typedef struct session {
    MYSQL *mysql;
    const char *label;
    dl_error_t *err;
} session_t;

/* DL_OK with the rows, which may be NULL, or the reason why not. */
static dl_status_t ask(const session_t *session, const char *sql, MYSQL_RES **rows) {
    dli_mysql_quiet_t quiet;
    char what[400];
    *rows = NULL;
    dli_mysql_quiet_begin(&quiet, session->mysql, DLI_UNFORKED_LIBRARY);
    int rc = mysql_real_query(session->mysql, sql, (unsigned long)strlen(sql));
    if (rc == 0) {
        *rows = mysql_store_result(session->mysql);
    }
    dli_mysql_quiet_end(&quiet);
    unsigned error = mysql_errno(session->mysql);
    if (rc == 0 && error == 0) {
        return DL_OK;
    }
    snprintf(what, sizeof what, "%s: preparing the session", session->label);
    if (error != 0 && !dli_mysql_is_library_error(error)) {
        return dli_mysql_refused(error, mysql_error(session->mysql), what, session->err);
    }
    bool is_gone = error == DLI_MYSQL_GONE || error == DLI_MYSQL_LOST || error == DLI_MYSQL_TLS_FAILED;
    dl_status_t status = error == DLI_MYSQL_NO_MEMORY ? DL_ENOMEM : DL_EPROTO;
    return dl_driver_fail(session->err, is_gone ? DL_EIO : status, (int)error, "%s: %s (%u)", what,
                          mysql_error(session->mysql), error);
}

static dl_status_t tell(const session_t *session, const char *sql) {
    MYSQL_RES *rows;
    dl_status_t status = ask(session, sql, &rows);
    if (rows != NULL) {
        mysql_free_result(rows);
    }
    return status;
}

/* ---- pins ---------------------------------------------------------------------------------------------- */

static dl_status_t pin(const session_t *session, dli_mysql_role_t role, int64_t patience_s) {
    char sql[MAX_STATEMENT];
    /* init_connect may have left a transaction open, or chosen the isolation of the next one. Without the
     * words behind it a global completion_type=RELEASE would make it end the connection. */
    dl_status_t status = tell(session, "ROLLBACK AND NO CHAIN NO RELEASE");
    if (status == DL_OK) {
        status = tell(session, role == DLI_MYSQL_ROLE_OVERLOOKING
                                   ? "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED, READ WRITE"
                                   : "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE");
    }
    if (status == DL_OK) {
        /* Values, not DEFAULT, which is the server's global; except for the clock, which may have been
         * stopped. What stands in comments is for one of the two: MariaDB skips numbers of MySQL. */
        snprintf(sql, sizeof sql,
                 "SET NAMES utf8mb4,"
                 "@@SESSION.sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',"
                 "@@SESSION.time_zone='+00:00',"
                 "@@SESSION.innodb_lock_wait_timeout=1,@@SESSION.lock_wait_timeout=1,"
                 "@@SESSION.wait_timeout=%" PRId64 ",@@SESSION.interactive_timeout=%" PRId64 ","
                 "@@SESSION.net_read_timeout=30,@@SESSION.net_write_timeout=60,"
                 "@@SESSION.completion_type=0,@@SESSION.sql_safe_updates=0,@@SESSION.sql_big_selects=1,"
                 "@@SESSION.sql_select_limit=18446744073709551615,@@SESSION.sql_auto_is_null=0,"
                 "@@SESSION.timestamp=DEFAULT,"
                 "@@SESSION.autocommit=%d"
                 "/*M!100600 ,@@SESSION.max_statement_time=0,@@SESSION.idle_transaction_timeout=0,"
                 "@@SESSION.idle_write_transaction_timeout=0,@@SESSION.idle_readonly_transaction_timeout=0*/"
                 "/*!80000 ,@@SESSION.max_execution_time=0*/",
                 patience_s, patience_s, role == DLI_MYSQL_ROLE_HOLDING ? 0 : 1);
        status = tell(session, sql);
    }
    return status;
}

/* ---- what the server says of itself -------------------------------------------------------------------- */

static unsigned read_version(const char *text) {
    unsigned major = 0, minor = 0, patch = 0;
    if (sscanf(text, "%3u.%3u.%3u", &major, &minor, &patch) < 2 || minor > 99) {
        return 0;
    }
    return major * 10000 + minor * 100 + (patch < 99 ? patch : 99);
}

/* A proxy that numbers connections by itself greets with its own number, and KILL would end somebody else's.
 * The greeting has room for 32 bits. */
static uint64_t id_for_kill(const session_t *session, uint64_t id) {
    return (uint32_t)id == (uint32_t)mysql_thread_id(session->mysql) ? id : 0;
}

static dl_status_t read_facts(const session_t *session, dli_mysql_facts_t *facts) {
    MYSQL_RES *rows;
    /* Twins behind one address may have all but the numbers in common, which replication keeps apart. A run
     * is known by the instant of its start, which stays when the clock is set: the uptime goes along. */
    dl_status_t status = ask(session,
                             "SELECT VERSION(),CONNECTION_ID(),@@GLOBAL.read_only,"
                             "0/*!80000 OR @@GLOBAL.super_read_only*/,"
                             "CONCAT_WS(':',@@GLOBAL.server_id/*!80000 ,@@GLOBAL.server_uuid*/,"
                             "@@GLOBAL.hostname,@@GLOBAL.port,@@GLOBAL.datadir),"
                             "UNIX_TIMESTAMP()-(SELECT VARIABLE_VALUE FROM "
                             "/*M! information_schema.GLOBAL_STATUS*/"
                             "/*!80000 performance_schema.global_status*/ WHERE VARIABLE_NAME='Uptime')",
                             &rows);
    if (status != DL_OK) {
        return status;
    }
    MYSQL_ROW row = rows != NULL && mysql_num_fields(rows) == 6 ? mysql_fetch_row(rows) : NULL;
    if (row == NULL || row[0] == NULL) {
        status = dl_driver_fail(session->err, DL_EPROTO, 0, "%s: it does not say what it is", session->label);
    } else {
        snprintf(facts->version, sizeof facts->version, "%s", row[0]);
        facts->version_number = read_version(row[0]);
        facts->is_mariadb = strcasestr(row[0], "mariadb") != NULL;
        facts->connection_id = id_for_kill(session, dli_mysql_number(row[1]));
        facts->is_read_only = dli_mysql_is_on(row[2]) || dli_mysql_is_on(row[3]);
        int len = snprintf(facts->identity, sizeof facts->identity, "%.30s ", row[5] != NULL ? row[5] : "");
        facts->server = (size_t)len;
        snprintf(facts->identity + len, sizeof facts->identity - (size_t)len, "%s",
                 row[4] != NULL ? row[4] : "");
    }
    if (rows != NULL) {
        mysql_free_result(rows);
    }
    return status;
}

static dl_status_t judge_version(const session_t *session, const dli_mysql_facts_t *facts) {
    if (facts->version_number >= (facts->is_mariadb ? OLDEST_MARIADB : OLDEST_MYSQL)) {
        return DL_OK;
    }
    return dl_driver_fail(session->err, DL_ENOTSUP, 0,
                          "%s: the server is %s; MariaDB from 10.6 or MySQL from 8.0 is needed",
                          session->label, facts->version);
}

/* ---- who else takes writes ----------------------------------------------------------------------------- */

/* A build without Galera has no such variables. Where the first is one of sessions alone (Percona's), it is
 * not among the globals: a cluster's address counts unless it is off, or nothing is there to join one. */
static bool is_galera(MYSQL_RES *variables) {
    const char *on = dli_mysql_value(variables, "wsrep_on");
    const char *provider = dli_mysql_value(variables, "wsrep_provider");
    const char *address = dli_mysql_value(variables, "wsrep_cluster_address");
    return (on == NULL || dli_mysql_is_on(on)) && address != NULL && address[0] != '\0' &&
           (provider == NULL || (provider[0] != '\0' && strcasecmp(provider, "none") != 0));
}

static bool is_of_group(MYSQL_RES *variables) {
    const char *group = dli_mysql_value(variables, "group_replication_group_name");
    return group != NULL && group[0] != '\0';
}

/* Without its group's majority a primary commits nothing, but still answers what writes nothing, as
 * heartbeats of row locks do, while its successor grants the same locks. This timeout makes it read-only, and
 * so ends them. */
static bool goes_on_alone(MYSQL_RES *variables) {
    uint64_t seconds =
        dli_mysql_number(dli_mysql_value(variables, "group_replication_unreachable_majority_timeout"));
    return is_of_group(variables) && (seconds < 1 || seconds > ALONE_MAX_S);
}

dl_status_t dli_mysql_judge_writers(MYSQL_RES *variables, const char *label, dli_mysql_role_t role,
                                    dl_error_t *err) {
    const char *what = NULL;
    if (is_galera(variables)) {
        what = "it is a node of a Galera cluster";
    } else if (is_of_group(variables) &&
               !dli_mysql_is_on(dli_mysql_value(variables, "group_replication_single_primary_mode"))) {
        what = "its replication group has several primaries";
    }
    if (what == NULL && role == DLI_MYSQL_ROLE_HOLDING && goes_on_alone(variables)) {
        return dl_driver_fail(err, DL_ENOTSUP, 0,
                              "%.80s: a primary cut off from its group would confirm row locks that its "
                              "successor grants anew; let "
                              "group_replication_unreachable_majority_timeout be 1 to %d",
                              label, ALONE_MAX_S);
    }
    return what == NULL ? DL_OK : dl_driver_fail(err, DL_ENOTSUP, 0, "%.80s: %s: " TWO_WRITERS, label, what);
}

/* Each connection is asked: a balancer may lead to another server than before, and servers change. */
static dl_status_t judge_writers(const session_t *session, dli_mysql_role_t role) {
    MYSQL_RES *rows;
    dl_status_t status =
        ask(session, "SHOW GLOBAL VARIABLES WHERE Variable_name IN (" DLI_MYSQL_WRITERS ")", &rows);
    if (status == DL_OK) {
        status = dli_mysql_judge_writers(rows, session->label, role, session->err);
    }
    if (rows != NULL) {
        mysql_free_result(rows);
    }
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

dl_status_t dli_mysql_settings_apply(MYSQL *mysql, const char *label, dli_mysql_role_t role,
                                     int64_t wait_timeout_s, dli_mysql_facts_t *facts, dl_error_t *err) {
    session_t session = {mysql, label, err};
    int64_t patience_s = wait_timeout_s < 1 ? 1 : wait_timeout_s;
    patience_s = patience_s > MAX_PATIENCE_S ? MAX_PATIENCE_S : patience_s;
    memset(facts, 0, sizeof *facts);
    dl_status_t status = pin(&session, role, patience_s);
    if (status == DL_OK) {
        status = read_facts(&session, facts);
    }
    if (status == DL_OK) {
        status = judge_version(&session, facts);
    }
    if (status == DL_OK) {
        status = judge_writers(&session, role);
    }
    return status;
}
