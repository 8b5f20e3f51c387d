/* check_settings.c - what the server's settings, its limits and its replicas do to locks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

static bool is_on(const dli_mysql_check_t *check, const char *name) {
    return dli_mysql_is_on(dli_mysql_value(check->settings.rows, name));
}

/* 0: it has none of that name. */
static int64_t setting_number(const dli_mysql_check_t *check, const char *name) {
    return (int64_t)dli_mysql_number(dli_mysql_value(check->settings.rows, name));
}

/* ---- what a crash takes ------------------------------------------------------------------------------ */

/* What every loss of commits has in common. */
#define SECOND_HOLDER                                                                                     \
    "a second holder can then get in while the first one's lease still runs; tokens go on rising, since " \
    "they start from the server's clock"

static void report_durability(dli_mysql_check_t *check) {
    int64_t flush = setting_number(check, "innodb_flush_log_at_trx_commit");
    int64_t sync = setting_number(check, "sync_binlog");
    bool has_binlog = is_on(check, "log_bin");
    if (!dli_mysql_check_is_lease(check)) {
        dli_mysql_check_say(
            check, DL_FINDING_OK, "durability",
            "a row lock ends with the server's process, so a crash leaves none behind; tokens "
            "go on rising after one, since they start from the server's clock");
    } else if (flush != 1) {
        dli_mysql_check_say(check, DL_FINDING_WARNING, "durability",
                            "innodb_flush_log_at_trx_commit is %" PRId64 ": %s loses the locks of the last "
                            "second: " SECOND_HOLDER ". 1 prevents it, at a sync for each lock",
                            flush, flush == 0 ? "a crash" : "a power failure or a crash of its machine");
    } else if (has_binlog && sync != 1) {
        dli_mysql_check_say(
            check, DL_FINDING_NOTE, "durability",
            "sync_binlog is %" PRId64 ": after a power failure of the server the last commits "
            "that its binary log had not on disk are taken back, locks among them: " SECOND_HOLDER
            ". 1 prevents it, at a sync for each lock",
            sync);
    } else {
        dli_mysql_check_say(check, DL_FINDING_OK, "durability",
                            "every commit is on disk before it is confirmed: a crash of the server loses no "
                            "lock that was granted");
    }
}

/* ---- replicas ---------------------------------------------------------------------------------------- */

/* A counter of the server's; -1: it has none of that name. */
static int64_t status_number(dli_mysql_check_t *check, const char *sql) {
    dli_mysql_answer_t answer;
    dl_error_t err;
    int64_t number = -1;
    if (dli_mysql_check_ask(check, sql, &answer, &err) == DL_OK) {
        MYSQL_ROW row = dli_mysql_answer_row(&answer, NULL);
        if (row != NULL && row[1] != NULL) {
            number = (int64_t)dli_mysql_number(row[1]);
        }
    }
    dli_mysql_answer_free(&answer);
    return number;
}

static void report_failover(dli_mysql_check_t *check, const char *replicas) {
    if (!dli_mysql_check_is_lease(check)) {
        dli_mysql_check_say(check, DL_FINDING_NOTE, "replication",
                            "%s: no replica knows of row locks, so after a failover every lock is free; a "
                            "holder that is not cut off at once believes in its own a moment longer",
                            replicas);
    } else {
        dli_mysql_check_say(
            check, DL_FINDING_WARNING, "replication",
            "%s, asynchronous: a failover may lose a lock that was just granted, and a second "
            "holder gets in; semi-synchronous replication narrows the gap",
            replicas);
    }
}

/* Both sides of a group that falls apart begin to count at about the same time. */
static void report_group(dli_mysql_check_t *check) {
    int64_t alone_s = setting_number(check, "group_replication_unreachable_majority_timeout");
    int64_t expel_s = setting_number(check, "group_replication_member_expel_timeout");
    bool is_late = alone_s < 1 || alone_s > expel_s;
    if (dli_mysql_check_is_lease(check)) {
        dli_mysql_check_say(check, DL_FINDING_NOTE, "replication",
                            "a group with one primary: a majority has received what a commit confirms; reach "
                            "it so that every client meets the same primary");
        return;
    }
    char alone[32] = "without end";
    if (alone_s > 0) {
        (void)snprintf(alone, sizeof alone, "for %" PRId64 " s more", alone_s);
    }
    dli_mysql_check_say(
        check, is_late ? DL_FINDING_WARNING : DL_FINDING_NOTE, "replication",
        "a group with one primary: no other member knows of row locks, so after a failover every lock is "
        "free. "
        "A primary without a majority confirms holds %s (group_replication_unreachable_majority_timeout), "
        "and "
        "they last for a lease from then; the majority makes another one primary after %" PRId64
        " s (group_replication_member_expel_timeout)%s",
        alone, expel_s, is_late ? ": let the first be no longer than the second" : "");
}

static void report_replication(dli_mysql_check_t *check) {
    const char *group = dli_mysql_value(check->settings.rows, "group_replication_group_name");
    bool is_lease = dli_mysql_check_is_lease(check);
    bool is_semi_sync =
        is_on(check, "rpl_semi_sync_master_enabled") || is_on(check, "rpl_semi_sync_source_enabled");
    int64_t replicas = status_number(check, "SHOW GLOBAL STATUS LIKE 'Slaves_connected'");
    if (group != NULL && group[0] != '\0') {
        report_group(check);
    } else if (!is_on(check, "log_bin")) {
        dli_mysql_check_say(
            check, DL_FINDING_OK, "replication",
            "no binary log, so no replica to fail over to; while the server is down nobody can "
            "lock");
    } else if (is_lease && is_semi_sync) {
        dli_mysql_check_say(check, DL_FINDING_NOTE, "replication",
                            "semi-synchronous: a commit waits until a replica has received it, unless none "
                            "answers in time; a failover to another one can still lose a lock");
    } else if (replicas > 0) {
        report_failover(check, "replicas are connected");
    } else {
        dli_mysql_check_say(check, DL_FINDING_NOTE, "replication",
                            "there is a binary log; where replicas follow it, %s",
                            is_lease ? "they do so a little later: a failover may lose a lock that was just "
                                       "granted"
                                     : "none knows of row locks: after a failover every lock is free");
    }
    if (status_number(check, "SHOW GLOBAL STATUS WHERE Variable_name = 'Slave_running' AND Value = 'ON'") >=
        0) {
        dli_mysql_check_say(check, DL_FINDING_WARNING, "source",
                            "this server itself follows another one and takes writes all the same: clients "
                            "that lock at the other server and clients that lock here exclude nobody");
    }
}

/* ---- connections ------------------------------------------------------------------------------------- */

/* What a client opens besides its pool: those for renewals or tokens, and those for control. */
static int64_t besides(dli_mysql_check_t *check) {
    return dli_mysql_check_is_lease(check) ? 4 + 4 : 8 + 4;
}

static void report_connections(dli_mysql_check_t *check) {
    int64_t limit = setting_number(check, "max_connections");
    int64_t own = setting_number(check, "max_user_connections");
    int64_t used = status_number(check, "SHOW GLOBAL STATUS LIKE 'Threads_connected'");
    int64_t wanted = check->mysql->max_total + besides(check);
    if (own > 0 && own < wanted) {
        dli_mysql_check_say(check, DL_FINDING_WARNING, "max_user_connections",
                            "%" PRId64 " for each account, and this client alone opens up to %" PRId64
                            " (max_total, and %" PRId64 ")",
                            own, wanted, besides(check));
    }
    if (limit > 0 && used >= 0) {
        bool is_tight = used >= limit / 10 * 9 || limit - used < wanted;
        dli_mysql_check_say(
            check, is_tight ? DL_FINDING_WARNING : DL_FINDING_OK, "connections",
            "%" PRId64 " of %" PRId64 " (max_connections) are in use, and this client opens up to %" PRId64
            " (max_total, and %" PRId64 ")%s",
            used, limit, wanted, besides(check),
            is_tight ? ": when none is left, clients that have to connect cannot lock or renew" : "");
    }
    if (!dli_mysql_check_is_lease(check)) {
        dli_mysql_check_say(
            check, DL_FINDING_NOTE, "capacity",
            "each lock that is held or waited for keeps a connection: this client holds at most "
            "%" PRId64 " at a time (max_total)",
            check->mysql->max_total);
    }
}

static void report_rollback(dli_mysql_check_t *check) {
    if (!dli_mysql_check_is_lease(check) && is_on(check, "innodb_rollback_on_timeout")) {
        dli_mysql_check_say(
            check, DL_FINDING_NOTE, "innodb_rollback_on_timeout",
            "ON: a wait that times out ends its transaction; no lock depends on it, since each "
            "one has a transaction to itself");
    }
}

/* Oracle's servers do not show the setting, so it is tried: does SYSDATE go on during a statement? */
static void report_sysdate(dli_mysql_check_t *check) {
    dli_mysql_answer_t answer;
    dl_error_t err;
    if (!dli_mysql_check_is_lease(check)) {
        return;
    }
    if (dli_mysql_check_ask(check, "SELECT SLEEP(0.002), SYSDATE(6) > NOW(6)", &answer, &err) == DL_OK) {
        MYSQL_ROW row = dli_mysql_answer_row(&answer, NULL);
        if (row != NULL && row[1] != NULL && dli_mysql_number(row[1]) == 0) {
            dli_mysql_check_say(check, DL_FINDING_NOTE, "sysdate-is-now",
                                "the server runs with it: a renewal that waits for its row while its lease "
                                "ends still extends it, if nobody has taken the lock meanwhile");
        }
    }
    dli_mysql_answer_free(&answer);
}

void dli_mysql_check_settings(dli_mysql_check_t *check) {
    report_durability(check);
    report_replication(check);
    report_connections(check);
    report_rollback(check);
    report_sysdate(check);
}
