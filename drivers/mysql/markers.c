/* markers.c - mysql-pessimistic: what open transactions show of their holds, seen from outside. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

/* Locks read by one statement; a statement about their sessions has room for as many numbers. */
#define PAGE 100
/* Older than any (some 285 years, in us): somebody has written it by hand. */
#define AGE_MAX_US (UINT64_C(1) << 53)

/* Columns, in the order of the statement, behind those of every view. */
enum { CONNECTION_ID = DLI_MYSQL_HELD_COLUMNS, LEASE_MS, AGE_US };

void dli_mysql_row_lock_sql(dli_mysql_sql_t *sql, const dli_mysql_t *mysql, const char *name, size_t name_len,
                            uint64_t limit_ms) {
    if (limit_ms == 0) {
        dli_mysql_sql_add(sql, "SELECT owner FROM $t WHERE name=$x FOR UPDATE NOWAIT", mysql->table, name,
                          name_len);
        return;
    }
    dli_mysql_sql_add_bounded_select(sql, limit_ms);
    dli_mysql_sql_add(sql, "owner FROM $t WHERE name=$x FOR UPDATE", mysql->table, name, name_len);
}

dl_status_t dli_mysql_row_foreign(const dli_mysql_t *mysql, dl_error_t *err) {
    return dl_driver_fail(
        err, DL_EFOREIGN, 0,
        "its row in table '%s' has a committed owner, which no lock of this kind has; set the "
        "owner to NULL",
        mysql->table_shown);
}

/* The token is the holder's, the last of those that were drawn: it was committed before the marker was
 * written. */
static void add_select(dli_mysql_sql_t *sql, const dli_mysql_t *mysql) {
    dli_mysql_sql_add(sql,
                      "SELECT l.name,l.owner,l.hold_id,l.client,k.token,GREATEST(0,CAST(l.lease_ms AS SIGNED)"
                      "-TIMESTAMPDIFF(MICROSECOND,l.acquired_at,UTC_TIMESTAMP(6)) DIV 1000),"
                      "l.connection_id,l.lease_ms,"
                      "GREATEST(0,TIMESTAMPDIFF(MICROSECOND,l.acquired_at,UTC_TIMESTAMP(6)))"
                      " FROM $t l LEFT JOIN $t k ON k.name=l.name WHERE l.owner IS NOT NULL",
                      mysql->table, mysql->tokens);
}

dl_status_t dli_mysql_marker_look(dli_mysql_t *mysql, const dl_request_t *r, dli_mysql_intent_t intent,
                                  dli_mysql_conn_t **kept, dli_mysql_marker_t *marker, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    *marker = (dli_mysql_marker_t){.info = DL_LOCK_INFO_INIT};
    add_select(&sql, mysql);
    dli_mysql_sql_add(&sql, " AND l.name=$x", r->name, r->name_len);
    dli_mysql_exchange_t exchange = {.lane = DLI_MYSQL_CONTROL,
                                     .intent = intent,
                                     .deadline_ns = r->deadline_ns,
                                     .stop = &r->stop,
                                     .kept = kept};
    dl_status_t status = dli_mysql_run(mysql, &exchange, &sql, "looking at", r->name, err);
    if (status != DL_OK) {
        if (kept != NULL && *kept != NULL) {
            dli_mysql_link_give_back(mysql->link, *kept);
        }
        return status;
    }
    MYSQL_ROW row = dli_mysql_answer_row(&exchange.answer, NULL);
    if (row != NULL) {
        uint64_t age_us = dli_mysql_number(row[AGE_US]);
        dli_mysql_held_read(row, &marker->info);
        marker->connection_id = dli_mysql_number(row[CONNECTION_ID]);
        marker->written_ns = age_us > 0 && age_us < AGE_MAX_US
                                 ? (int64_t)exchange.sent_ns - (int64_t)(age_us * 1000)
                                 : INT64_MIN;
    }
    dli_mysql_answer_free(&exchange.answer);
    return DL_OK;
}

/* ---- how long the server will be patient --------------------------------------------------------------- */

/*
 * Heartbeats write nothing, so what is left of a lease is known only to the server: the lease less the time
 * that the holder's session has been idle. MySQL tells that in whole seconds, of which the first may be over
 * in a moment: no less is left than the marker's own time says, which only a heartbeat can have made longer.
 * An account sees its own sessions; where it may not see the holder's, the marker's own time is taken, and
 * nothing is known when that is over.
 */
static void ask_idle_times(dli_mysql_t *mysql, MYSQL_RES *locks, uint64_t deadline_ns,
                           dli_mysql_answer_t *idle) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "SELECT ID,IF(COMMAND='Sleep',FLOOR(TIME*1000/*M! *0+TIME_MS*/),0)"
                            " FROM information_schema.PROCESSLIST WHERE ID IN (0");
    MYSQL_ROW row;
    while ((row = mysql_fetch_row(locks)) != NULL) {
        dli_mysql_sql_add(&sql, ",$u", dli_mysql_number(row[CONNECTION_ID]));
    }
    dli_mysql_sql_add(&sql, ")");
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CONTROL, .intent = DLI_MYSQL_READ, .deadline_ns = deadline_ns};
    dl_error_t err;
    if (dli_mysql_run(mysql, &exchange, &sql, "looking for sessions", "", &err) == DL_OK) {
        *idle = exchange.answer;
    }
}

static void refine(MYSQL_ROW row, MYSQL_RES *idle, dl_lock_info_t *info) {
    const char *id = row[CONNECTION_ID], *idle_text = id != NULL ? dli_mysql_value(idle, id) : NULL;
    info->remaining_ms = info->remaining_ms > 0 ? info->remaining_ms : -1;
    if (idle_text != NULL && row[LEASE_MS] != NULL) {
        uint64_t lease_ms = dli_mysql_number(row[LEASE_MS]), idle_ms = dli_mysql_number(idle_text);
        int64_t left_ms = (int64_t)(lease_ms > idle_ms ? lease_ms - idle_ms : 0);
        info->remaining_ms = left_ms > info->remaining_ms ? left_ms : info->remaining_ms;
    }
}

const dli_mysql_view_t dli_mysql_markers_view = {.lane = DLI_MYSQL_CONTROL,
                                                 .name = "l.name",
                                                 .page = PAGE,
                                                 .add_select = add_select,
                                                 .ask_more = ask_idle_times,
                                                 .refine = refine};
