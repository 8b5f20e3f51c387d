/* admin.c - what administrators ask of rows: who holds a lock, which are held, free one by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "rows.h"

/* Locks read by one statement. */
#define PAGE 500
/* A row with an owner whose lease is not over. */
#define IS_HELD "owner IS NOT NULL AND (expires_at IS NULL OR expires_at>UTC_TIMESTAMP(6))"

/* What is asked of a row. */
enum { OWNER, HOLD_ID, CLIENT, LEFT_US, TOKEN, NAME };

static void add_columns(dli_mysql_sql_t *sql, const dli_mysql_t *mysql) {
    dli_mysql_sql_add(sql,
                      "SELECT owner,hold_id,client,TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at),$t",
                      mysql->kind->token_column);
}

/* The text up to `size`, cut at a zero byte. */
static void copy_text(char *to, size_t size, const char *text) {
    (void)snprintf(to, size, "%s", text != NULL ? text : "");
}

static void fill_info(const dli_mysql_t *mysql, MYSQL_ROW row, dl_lock_info_t *info) {
    const char *uuid = mysql->env->client_uuid;
    const uint64_t left_us = dli_mysql_number(row[LEFT_US]);
    info->held = 1;
    info->holds = 1;
    copy_text(info->owner, sizeof info->owner, row[OWNER]);
    info->hold_id = dli_mysql_number(row[HOLD_ID]);
    copy_text(info->client, sizeof info->client, row[CLIENT]);
    info->remaining_ms = row[LEFT_US] == NULL ? -1 : (int64_t)((left_us + 999) / 1000);
    info->token = dli_mysql_number(row[TOKEN]);
    info->ours = strncmp(info->owner, uuid, strlen(uuid)) == 0 && info->owner[strlen(uuid)] == ':';
}

/* ---- one lock --------------------------------------------------------------------------------------- */

dl_status_t dli_mysql_rows_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                   dl_lock_info_t *info, dl_error_t *err) {
    dli_mysql_t *mysql = state;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    DLI_MYSQL_SQL(sql);
    add_columns(&sql, mysql);
    dli_mysql_sql_add(&sql, " FROM $t WHERE name=$x AND " IS_HELD, mysql->table, name, name_len);
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CALLS, .intent = DLI_MYSQL_READ, .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_run(mysql, &exchange, &sql, "looking at", name, err);
    if (status == DL_OK) {
        MYSQL_ROW row = dli_mysql_answer_row(&exchange.answer, NULL);
        if (row != NULL) {
            fill_info(mysql, row, info);
        }
        dli_mysql_answer_free(&exchange.answer);
    }
    return status;
}

dl_status_t dli_mysql_rows_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 dl_error_t *err) {
    dli_mysql_t *mysql = state;
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql,
                      "UPDATE $t SET $towner=NULL,expires_at=NULL,released_at=UTC_TIMESTAMP(6)"
                      " WHERE name=$x AND " IS_HELD,
                      mysql->table, mysql->kind->has_state ? "state='free'," : "", name, name_len);
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CALLS, .intent = DLI_MYSQL_FREE, .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_run(mysql, &exchange, &sql, "freeing by force", name, err);
    if (status != DL_OK) {
        return status;
    }
    bool freed = exchange.answer.affected > 0;
    dli_mysql_answer_free(&exchange.answer);
    return freed ? DL_OK : dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
}

/* ---- list ------------------------------------------------------------------------------------------- */

typedef struct listing {
    dli_mysql_t *mysql;
    const char *prefix;
    size_t prefix_len;
    char last[DL_NAME_MAX];
    size_t last_len;
    uint64_t rows, pages; /* of the page, and that have come */
    bool ended;           /* the caller wants no more */
} listing_t;

static dl_status_t read_page(listing_t *l, uint64_t deadline_ns, dli_mysql_answer_t *answer,
                             dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    add_columns(&sql, l->mysql);
    dli_mysql_sql_add(&sql, ",name FROM $t WHERE " IS_HELD, l->mysql->table);
    dli_mysql_sql_add_page(&sql, "name", l->prefix, l->prefix_len, l->last, l->last_len, PAGE);
    dli_mysql_exchange_t exchange = {
        .lane = DLI_MYSQL_CALLS, .intent = DLI_MYSQL_READ, .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_run(l->mysql, &exchange, &sql, "listing", "", err);
    if (status == DL_OK) {
        *answer = exchange.answer;
    }
    return status;
}

/* Reports the rows of a page. What cannot be a name of ours is left out. */
static void report_page(listing_t *l, dli_mysql_answer_t *answer, dl_list_fn fn, void *arg) {
    MYSQL_ROW row;
    unsigned long *lengths;
    l->rows = 0;
    while (!l->ended && (row = dli_mysql_answer_row(answer, &lengths)) != NULL) {
        size_t len = lengths[NAME];
        l->last_len = len <= DL_NAME_MAX ? len : DL_NAME_MAX;
        memcpy(l->last, row[NAME], l->last_len);
        l->rows++;
        if (len <= DL_NAME_MAX && strlen(row[NAME]) == len) {
            dl_lock_info_t info = DL_LOCK_INFO_INIT;
            fill_info(l->mysql, row, &info);
            l->ended = fn(arg, row[NAME], &info) != 0;
        }
    }
}

dl_status_t dli_mysql_rows_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                                uint64_t deadline_ns, dl_error_t *err) {
    if (prefix_len > DL_NAME_MAX) {
        return DL_OK; /* no name is that long */
    }
    listing_t l = {.mysql = state, .prefix = prefix, .prefix_len = prefix_len};
    const dl_driver_env_t *env = l.mysql->env;
    dl_status_t status;
    do {
        dli_mysql_answer_t answer;
        status = read_page(&l, deadline_ns, &answer, err);
        if (status == DL_OK) {
            l.pages++;
            report_page(&l, &answer, fn, arg);
            dli_mysql_answer_free(&answer);
        }
    } while (status == DL_OK && !l.ended && l.rows == PAGE);
    if (status == DL_EIO && l.pages > 0 && env->now_ns() >= deadline_ns) {
        return dl_driver_fail(err, status, 0, "%.100s: listing took longer than call_timeout (%s)",
                              l.mysql->endpoint->label, dl_driver_duration(env->call_timeout_ms).text);
    }
    return status;
}
