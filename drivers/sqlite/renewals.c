/* renewals.c - renewing many holds at once, on a connection of their own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

/* Holds renewed in one transaction: the write lock is kept for about a millisecond. */
#define CHUNK 512

typedef struct batch {
    dl_renewal_t *entries;
    size_t n;
} batch_t;

static void settle(batch_t *b, dl_status_t status, bool keep_lost) {
    for (size_t i = 0; i < b->n; i++) {
        if (!keep_lost || b->entries[i].status != DL_ELOST) {
            b->entries[i].status = status;
        }
    }
}

/* ---- a batch --------------------------------------------------------------------------------------- */

static int renew_one(dli_connection_t *c, dl_renewal_t *r) {
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, DLI_SQL_RENEW, &s);
    if (rc == SQLITE_OK) {
        sqlite3_bind_blob(s, 1, r->name, (int)r->name_len, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, r->owner, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 3, (sqlite3_int64)r->hold_id);
        sqlite3_bind_int64(s, 4, r->lease_ms * NS_PER_MS);
        rc = dli_connection_step(s);
    }
    if (rc == SQLITE_OK) {
        r->status = sqlite3_changes(c->db) > 0 ? DL_OK : DL_ELOST;
    }
    return rc;
}

static int renew_once(dli_connection_t *c, void *arg) {
    batch_t *b = arg;
    uint64_t sent_ns = c->store->env->now_ns();
    for (size_t i = 0; i < b->n; i++) {
        b->entries[i].sent_ns = sent_ns;
        b->entries[i].status = DL_EIO;
    }
    if (b->n == 1) {
        return renew_one(c, b->entries); /* a transaction of its own */
    }
    int rc = dli_connection_do(c, DLI_SQL_BEGIN);
    if (rc != SQLITE_OK) {
        return rc;
    }
    for (size_t i = 0; i < b->n && rc == SQLITE_OK; i++) {
        rc = renew_one(c, &b->entries[i]);
    }
    return rc == SQLITE_OK ? dli_connection_do(c, DLI_SQL_COMMIT) : rc;
}

/* ---- the op ----------------------------------------------------------------------------------------- */

static void renew_chunk(dli_store_t *store, batch_t *b, uint64_t deadline_ns) {
    dl_error_t err;
    int rc;
    dli_limits_t limits = {.deadline_ns = deadline_ns, .stop = NULL};
    dl_status_t status = dli_connection_run(&store->renewals, renew_once, b, limits, &rc, &err);
    if (status != DL_OK) {
        settle(b, DL_EIO, false);
        return;
    }
    if (rc == DLI_RC_MOVED) { /* nobody else will look at our file again */
        settle(b, DL_ELOST, false);
    } else if (rc != SQLITE_OK) {
        /* What the file said before it failed stays true for those that were not there. */
        settle(b, dli_connection_fail(store, rc, true, &err), true);
    }
}

void dli_sqlite_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    dli_store_t *store = state;
    for (size_t at = 0; at < n; at += CHUNK) {
        batch_t b = {.entries = renewals + at, .n = n - at < CHUNK ? n - at : CHUNK};
        for (size_t i = 0; i < b.n; i++) {
            b.entries[i].sent_ns = store->env->now_ns();
        }
        renew_chunk(store, &b, deadline_ns);
    }
    /* A client that only renews has to do it once in a while. */
    dli_checkpoint(store, 4, (dli_limits_t){.deadline_ns = deadline_ns});
}
