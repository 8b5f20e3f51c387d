/* admin.c - what administrators ask: who holds a lock, which are held. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <stdlib.h>
#include <string.h>

/* Locks read in one go, before the caller's function sees them. */
#define PAGE 64

static void copy_text(char *to, size_t size, sqlite3_stmt *s, int column) {
    const char *text = (const char *)sqlite3_column_text(s, column);
    to[0] = '\0';
    strncat(to, text != NULL ? text : "", size - 1);
}

/* From the columns owner, hold_id, client, remaining ns, token. */
static void fill_info(sqlite3_stmt *s, dl_lock_info_t *info) {
    info->held = 1;
    info->holds = 1;
    copy_text(info->owner, sizeof info->owner, s, 0);
    info->hold_id = (uint64_t)sqlite3_column_int64(s, 1);
    copy_text(info->client, sizeof info->client, s, 2);
    info->remaining_ms = dli_store_ms(sqlite3_column_int64(s, 3));
    info->token = (uint64_t)sqlite3_column_int64(s, 4);
}

/* ---- inspect ---------------------------------------------------------------------------------------- */

typedef struct inspection {
    const char *name;
    size_t name_len;
    dl_lock_info_t *info;
} inspection_t;

static int inspect_once(dli_connection_t *c, void *arg) {
    inspection_t *i = arg;
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, DLI_SQL_INSPECT, &s);
    if (rc != SQLITE_OK) {
        return rc;
    }
    sqlite3_bind_blob(s, 1, i->name, (int)i->name_len, SQLITE_STATIC);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        fill_info(s, i->info);
    }
    int reset = sqlite3_reset(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? reset : rc;
}

dl_status_t dli_sqlite_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                               dl_lock_info_t *info, dl_error_t *err) {
    dli_store_t *store = state;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    inspection_t i = {.name = name, .name_len = name_len, .info = info};
    int rc;
    dl_status_t status = dli_connection_run(&store->calls, inspect_once, &i,
                                            (dli_limits_t){.deadline_ns = deadline_ns}, &rc, err);
    return status == DL_OK && rc != SQLITE_OK ? dli_connection_fail(store, rc, false, err) : status;
}

/* ---- list ------------------------------------------------------------------------------------------- */

typedef struct row {
    char name[DL_NAME_MAX + 1];
    size_t name_len;
    dl_lock_info_t info;
} row_t;

typedef struct page {
    unsigned char from[DL_NAME_MAX + 2]; /* the first name that may be on the page */
    size_t from_len;
    unsigned char end[DL_NAME_MAX + 1]; /* the first name behind the prefix */
    size_t end_len;                     /* 0: there is none */
    int n;
    row_t rows[PAGE];
} page_t;

static int read_page(dli_connection_t *c, void *arg) {
    page_t *page = arg;
    sqlite3_stmt *s;
    page->n = 0;
    int rc = dli_connection_statement(c, DLI_SQL_LIST, &s);
    if (rc != SQLITE_OK) {
        return rc;
    }
    sqlite3_bind_blob(s, 1, page->from, (int)page->from_len, SQLITE_STATIC);
    if (page->end_len > 0) {
        sqlite3_bind_blob(s, 2, page->end, (int)page->end_len, SQLITE_STATIC);
    } else {
        sqlite3_bind_null(s, 2);
    }
    sqlite3_bind_int(s, 3, PAGE);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && page->n < PAGE) {
        row_t *row = &page->rows[page->n++];
        int len = sqlite3_column_bytes(s, 5);
        *row = (row_t){.info = DL_LOCK_INFO_INIT};
        row->name_len = len <= DL_NAME_MAX ? (size_t)len : DL_NAME_MAX;
        memcpy(row->name, sqlite3_column_blob(s, 5), row->name_len);
        fill_info(s, &row->info);
    }
    int reset = sqlite3_reset(s);
    return rc == SQLITE_DONE ? reset : rc;
}

static void first_page(page_t *page, const char *prefix, size_t prefix_len) {
    page->from_len = page->end_len = prefix_len;
    if (prefix_len > 0) {
        memcpy(page->from, prefix, prefix_len);
        memcpy(page->end, prefix, prefix_len);
    }
    /* The next name after all with the prefix: its last byte that can be counted up is. */
    while (page->end_len > 0 && page->end[page->end_len - 1] == 0xff) {
        page->end_len--;
    }
    if (page->end_len > 0) {
        page->end[page->end_len - 1]++;
    }
}

/* The smallest name behind the last one read: that name and a zero byte. */
static void next_page(page_t *page) {
    const row_t *last = &page->rows[page->n - 1];
    memcpy(page->from, last->name, last->name_len + 1);
    page->from_len = last->name_len + 1;
}

dl_status_t dli_sqlite_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                            uint64_t deadline_ns, dl_error_t *err) {
    dli_store_t *store = state;
    if (prefix_len > DL_NAME_MAX) {
        return DL_OK; /* no name is that long */
    }
    page_t *page = malloc(sizeof *page);
    if (page == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    first_page(page, prefix, prefix_len);
    dl_status_t status;
    bool more = true;
    do {
        int rc;
        status = dli_connection_run(&store->calls, read_page, page,
                                    (dli_limits_t){.deadline_ns = deadline_ns}, &rc, err);
        if (status == DL_OK && rc != SQLITE_OK) {
            status = dli_connection_fail(store, rc, false, err);
        }
        for (int i = 0; status == DL_OK && more && i < page->n; i++) {
            more = fn(arg, page->rows[i].name, &page->rows[i].info) == 0;
        }
        if (status == DL_OK && more && page->n == PAGE && store->env->now_ns() >= deadline_ns) {
            status = dl_driver_fail(err, DL_EIO, 0, "there are more locks than could be listed in time");
        }
        if (status == DL_OK && more && page->n == PAGE) {
            next_page(page);
        } else {
            more = false;
        }
    } while (more);
    free(page);
    return status;
}
