/* admin.c - what administrators ask of any of the three drivers: who holds a lock, and which are held. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "lock.h"

/* An answer about locks, and what else the view asks about them. */
typedef struct page {
    dli_mysql_answer_t locks, more;
} page_t;

void dli_mysql_held_read(MYSQL_ROW row, dl_lock_info_t *info) {
    *info = (dl_lock_info_t){.size = info->size, .held = 1, .holds = 1};
    (void)snprintf(info->owner, sizeof info->owner, "%s", row[DLI_MYSQL_HELD_OWNER]);
    (void)snprintf(info->client, sizeof info->client, "%s",
                   row[DLI_MYSQL_HELD_CLIENT] != NULL ? row[DLI_MYSQL_HELD_CLIENT] : "");
    info->hold_id = dli_mysql_number(row[DLI_MYSQL_HELD_ID]);
    info->token = dli_mysql_number(row[DLI_MYSQL_HELD_TOKEN]);
    const char *left_ms = row[DLI_MYSQL_HELD_LEFT_MS];
    info->remaining_ms = left_ms == NULL ? -1 : (int64_t)dli_mysql_number(left_ms);
}

static dl_status_t ask(dli_mysql_t *mysql, const dli_mysql_sql_t *sql, const char *doing, const char *name,
                       uint64_t deadline_ns, page_t *page, dl_error_t *err) {
    const dli_mysql_view_t *view = mysql->kind->view;
    dli_mysql_exchange_t exchange = {
        .lane = view->lane, .intent = DLI_MYSQL_READ, .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_run(mysql, &exchange, sql, doing, name, err);
    *page = (page_t){.locks = exchange.answer};
    MYSQL_RES *rows = page->locks.rows;
    if (status == DL_OK && view->ask_more != NULL && rows != NULL && mysql_num_rows(rows) > 0) {
        view->ask_more(mysql, rows, deadline_ns, &page->more);
        mysql_data_seek(rows, 0);
    }
    return status;
}

/* The next lock; *lengths (may be NULL) are of its columns. NULL: there is none. */
static MYSQL_ROW next(const dli_mysql_t *mysql, page_t *page, unsigned long **lengths, dl_lock_info_t *info) {
    MYSQL_ROW row = dli_mysql_answer_row(&page->locks, lengths);
    if (row != NULL) {
        dli_mysql_held_read(row, info);
        if (mysql->kind->view->refine != NULL) {
            mysql->kind->view->refine(row, page->more.rows, info);
        }
    }
    return row;
}

static void free_page(page_t *page) {
    dli_mysql_answer_free(&page->locks);
    dli_mysql_answer_free(&page->more);
}

dl_status_t dli_mysql_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                              dl_lock_info_t *info, dl_error_t *err) {
    dli_mysql_t *mysql = state;
    page_t page;
    DLI_MYSQL_SQL(sql);
    mysql->kind->view->add_select(&sql, mysql);
    dli_mysql_sql_add(&sql, " AND $t=$x", mysql->kind->view->name, name, name_len);
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    dl_status_t status = ask(mysql, &sql, "looking at", name, deadline_ns, &page, err);
    (void)next(mysql, &page, NULL, info);
    free_page(&page);
    return status;
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

static dl_status_t ask_page(listing_t *l, uint64_t deadline_ns, page_t *page, dl_error_t *err) {
    const dli_mysql_view_t *view = l->mysql->kind->view;
    DLI_MYSQL_SQL(sql);
    view->add_select(&sql, l->mysql);
    dli_mysql_sql_add_page(&sql, view->name, l->prefix, l->prefix_len, l->last, l->last_len, view->page);
    return ask(l->mysql, &sql, "listing", "", deadline_ns, page, err);
}

/* Reports the rows of a page. What cannot be a name of ours is left out. */
static void report_page(listing_t *l, page_t *page, dl_list_fn fn, void *arg) {
    MYSQL_ROW row;
    unsigned long *lengths;
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    l->rows = 0;
    while (!l->ended && (row = next(l->mysql, page, &lengths, &info)) != NULL) {
        const char *name = row[DLI_MYSQL_HELD_NAME];
        size_t len = lengths[DLI_MYSQL_HELD_NAME];
        l->last_len = len <= DL_NAME_MAX ? len : DL_NAME_MAX;
        memcpy(l->last, name, l->last_len);
        l->rows++;
        l->ended = len <= DL_NAME_MAX && strlen(name) == len && fn(arg, name, &info) != 0;
    }
}

dl_status_t dli_mysql_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err) {
    if (prefix_len > DL_NAME_MAX) {
        return DL_OK; /* no name is that long */
    }
    listing_t l = {.mysql = state, .prefix = prefix, .prefix_len = prefix_len};
    const dl_driver_env_t *env = l.mysql->env;
    dl_status_t status;
    do {
        page_t page;
        status = ask_page(&l, deadline_ns, &page, err);
        if (status == DL_OK) {
            l.pages++;
            report_page(&l, &page, fn, arg);
        }
        free_page(&page);
    } while (status == DL_OK && !l.ended && l.rows == l.mysql->kind->view->page);
    if (status == DL_EIO && l.pages > 0 && env->now_ns() >= deadline_ns) {
        return dl_driver_fail(err, status, 0, "%.100s: listing took longer than call_timeout (%s)",
                              l.mysql->endpoint->label, dl_driver_duration(env->call_timeout_ms).text);
    }
    return status;
}
