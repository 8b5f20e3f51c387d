/* markers.c - mysql-pessimistic: what open transactions show of their holds, seen from outside. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

/* Rows of a list in one answer. */
#define PAGE 100u

/* Columns, in the order of the statement. */
enum { NAME, OWNER, HOLD_ID, CLIENT, CONNECTION_ID, LEASE_MS, LEFT_MS, TOKEN, AGE_US };

void dli_mysql_row_lock_sql(dli_mysql_sql_t *sql, const dli_mysql_t *mysql, const char *name, size_t name_len,
                            uint64_t limit_ms) {
    if (limit_ms == 0) {
        dli_mysql_sql_add(sql, "SELECT owner FROM $t WHERE name=$x FOR UPDATE NOWAIT", mysql->table, name,
                          name_len);
        return;
    }
    /* Each server ends the wait by a way of its own, and takes the other's for a comment. */
    char seconds[32];
    (void)snprintf(seconds, sizeof seconds, "%llu.%03u", (unsigned long long)(limit_ms / 1000),
                   (unsigned)(limit_ms % 1000));
    dli_mysql_sql_add(sql,
                      "/*M! SET STATEMENT max_statement_time=$t FOR */ SELECT /*+ MAX_EXECUTION_TIME($u) */ "
                      "owner FROM $t WHERE name=$x FOR UPDATE",
                      seconds, limit_ms, mysql->table, name, name_len);
}

/* The token is the holder's, the last of those that were drawn: it was committed before the marker was
 * written. */
static void add_select(dli_mysql_sql_t *sql, const dli_mysql_t *mysql) {
    dli_mysql_sql_add(sql,
                      "SELECT l.name,l.owner,l.hold_id,l.client,l.connection_id,l.lease_ms,"
                      "GREATEST(0,CAST(l.lease_ms AS SIGNED)"
                      "-TIMESTAMPDIFF(MICROSECOND,l.acquired_at,UTC_TIMESTAMP(6)) DIV 1000),k.token,"
                      "GREATEST(0,TIMESTAMPDIFF(MICROSECOND,l.acquired_at,UTC_TIMESTAMP(6)))"
                      " FROM $t l LEFT JOIN $t k ON k.name=l.name WHERE l.owner IS NOT NULL",
                      mysql->table, mysql->tokens);
}

static void copy_text(char *to, size_t size, const char *from, unsigned long len) {
    size_t n = from == NULL ? 0 : len < size - 1 ? len : size - 1;
    if (n > 0) {
        memcpy(to, from, n);
    }
    to[n] = '\0';
}

static void read_marker(MYSQL_ROW row, const unsigned long *lengths, uint64_t asked_ns,
                        dli_mysql_marker_t *marker) {
    *marker = (dli_mysql_marker_t){.info = DL_LOCK_INFO_INIT};
    dl_lock_info_t *info = &marker->info;
    info->held = 1;
    info->holds = 1;
    info->hold_id = dli_mysql_number(row[HOLD_ID]);
    info->token = dli_mysql_number(row[TOKEN]);
    marker->lease_ms = row[LEASE_MS] == NULL ? -1 : (int64_t)dli_mysql_number(row[LEASE_MS]);
    info->remaining_ms = row[LEFT_MS] == NULL ? -1 : (int64_t)dli_mysql_number(row[LEFT_MS]);
    copy_text(info->owner, sizeof info->owner, row[OWNER], lengths[OWNER]);
    copy_text(info->client, sizeof info->client, row[CLIENT], lengths[CLIENT]);
    marker->connection_id = dli_mysql_number(row[CONNECTION_ID]);
    int64_t age_ns = (int64_t)dli_mysql_number(row[AGE_US]) * 1000;
    marker->written_ns = age_ns > 0 ? (int64_t)asked_ns - age_ns : INT64_MIN;
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
    unsigned long *lengths;
    MYSQL_ROW row = dli_mysql_answer_row(&exchange.answer, &lengths);
    if (row != NULL) {
        read_marker(row, lengths, exchange.sent_ns, marker);
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
static void add_idle_times(dli_mysql_t *mysql, dli_mysql_marker_t *markers, size_t n, uint64_t deadline_ns) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "SELECT ID,IF(COMMAND='Sleep',FLOOR(TIME*1000/*M! *0+TIME_MS*/),0)"
                            " FROM information_schema.PROCESSLIST WHERE ID IN (0");
    for (size_t i = 0; i < n; i++) {
        dl_lock_info_t *info = &markers[i].info;
        info->remaining_ms = info->remaining_ms > 0 ? info->remaining_ms : -1;
        dli_mysql_sql_add(&sql, ",$u", markers[i].connection_id);
    }
    dli_mysql_sql_add(&sql, ")");
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CONTROL, .intent = DLI_MYSQL_READ, .deadline_ns = deadline_ns};
    dl_error_t err;
    if (dli_mysql_run(mysql, &exchange, &sql, "looking for sessions", "", &err) != DL_OK) {
        return;
    }
    MYSQL_ROW row;
    while ((row = dli_mysql_answer_row(&exchange.answer, NULL)) != NULL) {
        uint64_t id = dli_mysql_number(row[0]), idle_ms = dli_mysql_number(row[1]);
        for (size_t i = 0; i < n; i++) {
            if (markers[i].connection_id == id && markers[i].lease_ms >= 0) {
                uint64_t lease_ms = (uint64_t)markers[i].lease_ms;
                int64_t left_ms = (int64_t)(lease_ms > idle_ms ? lease_ms - idle_ms : 0);
                if (left_ms > markers[i].info.remaining_ms) {
                    markers[i].info.remaining_ms = left_ms;
                }
            }
        }
    }
    dli_mysql_answer_free(&exchange.answer);
}

dl_status_t dli_mysql_session_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                      dl_lock_info_t *info, dl_error_t *err) {
    dli_mysql_sessions_t *sessions = state;
    dl_request_t r = {.name = name, .name_len = name_len, .deadline_ns = deadline_ns, .stop = {{-1, -1}}};
    dli_mysql_marker_t marker;
    dl_status_t status = dli_mysql_marker_look(&sessions->mysql, &r, DLI_MYSQL_READ, NULL, &marker, err);
    if (status == DL_OK && marker.info.held) {
        add_idle_times(&sessions->mysql, &marker, 1, deadline_ns);
    }
    if (status == DL_OK) {
        *info = marker.info;
    }
    return status;
}

/* ---- lists --------------------------------------------------------------------------------------------- */

typedef struct listing {
    dli_mysql_t *mysql;
    const char *prefix;
    size_t prefix_len;
    char last[DL_NAME_MAX];
    size_t last_len;
    uint64_t deadline_ns;
    size_t n; /* of the page */
    dli_mysql_marker_t markers[PAGE];
    char names[PAGE][DL_NAME_MAX + 1];
} listing_t;

/* The page behind the one that is there. */
static dl_status_t next_page(listing_t *l, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    add_select(&sql, l->mysql);
    dli_mysql_sql_add_page(&sql, "l.name", l->prefix, l->prefix_len, l->last, l->last_len, PAGE);
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CONTROL, .intent = DLI_MYSQL_READ, .deadline_ns = l->deadline_ns};
    dl_status_t status = dli_mysql_run(l->mysql, &exchange, &sql, "listing", l->prefix, err);
    if (status != DL_OK) {
        return status;
    }
    unsigned long *lengths;
    MYSQL_ROW row;
    l->n = 0;
    while (l->n < PAGE && (row = dli_mysql_answer_row(&exchange.answer, &lengths)) != NULL) {
        read_marker(row, lengths, exchange.sent_ns, &l->markers[l->n]);
        copy_text(l->names[l->n], sizeof l->names[0], row[NAME], lengths[NAME]);
        l->last_len = lengths[NAME] < sizeof l->last ? lengths[NAME] : sizeof l->last;
        memcpy(l->last, row[NAME], l->last_len);
        l->n++;
    }
    dli_mysql_answer_free(&exchange.answer);
    add_idle_times(l->mysql, l->markers, l->n, l->deadline_ns);
    return DL_OK;
}

static dl_status_t list_pages(listing_t *l, dl_list_fn fn, void *arg, dl_error_t *err) {
    do {
        dl_status_t status = next_page(l, err);
        if (status != DL_OK) {
            return status;
        }
        for (size_t i = 0; i < l->n; i++) {
            if (fn(arg, l->names[i], &l->markers[i].info) != 0) {
                return DL_OK;
            }
        }
    } while (l->n == PAGE);
    return DL_OK;
}

dl_status_t dli_mysql_session_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn,
                                   void *arg, uint64_t deadline_ns, dl_error_t *err) {
    dli_mysql_sessions_t *sessions = state;
    if (prefix_len > DL_NAME_MAX) {
        return DL_OK; /* no name is so long */
    }
    listing_t *l = malloc(sizeof *l);
    if (l == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    l->mysql = &sessions->mysql;
    l->prefix = prefix;
    l->prefix_len = prefix_len;
    l->deadline_ns = deadline_ns;
    l->last_len = 0;
    dl_status_t status = list_pages(l, fn, arg, err);
    free(l);
    return status;
}
