/* tokens.c - where fencing tokens come from, and why they rise even over a power failure. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <string.h>
#include <time.h>

/*
 * token = max(base_us + microseconds since the host booted, token of the row + 1, token floor + 1)
 *
 * A grant may be of several, from this one on. What is said of a token below is said of the last of them, and
 * that one is in the row.
 *
 * Within one boot. Who acquires reads the clock with the write lock in hand (dl_now in statements.c), so
 * that the instants of successive holders of a name never fall. Where the clock alone cannot tell two
 * holders apart, the row does: it goes away only when dl_tick() has passed its token, and otherwise stays
 * as a free row. So every later token is larger, whatever the floor was. All that rests on memory and page
 * cache only; process crashes cannot harm it, and nothing needs a sync.
 *
 * Over a boot. A power failure can take back commits that were not synced, and the clock begins anew. So
 * each boot begins above everything the one before can have issued:
 *
 *   1. No token reaches `ceiling` as the file has it.
 *   2. `ceiling` is raised in two commits: first `reserved` is raised by a commit that is synced, then, by
 *      a second commit, `ceiling` to the same number. A ceiling that can be seen is therefore a reserve
 *      that is on disk. Should a process die between its write and its sync, and another one recover the
 *      log, that one sees a raised reserve without the ceiling, and makes a synced commit of its own.
 *   3. The first client that opens the file in a new boot puts `base_us` such that tokens begin at
 *      max(ceiling, reserved), and frees every lock. Should that commit be lost, there was one more power
 *      failure, and the next boot does the same from a `reserved` that is no smaller.
 *
 * The base is never behind the wall clock of that first open. It makes no promise inside one file; it only
 * makes the tokens of a file that was deleted or restored from a backup go on upwards, as long as the wall
 * clock did not fall behind meanwhile.
 *
 * Size: 63 bits of microseconds are 292,000 years, less RESERVE_US for each boot. Until the year 2255
 * tokens fit the 53 bits of a double.
 */

/* How much one synced write reserves: five minutes. So one commit in five minutes is slower, and after a
 * reboot tokens are at most five minutes ahead of the wall clock. */
#define RESERVE_US (300 * (int64_t)1000000)
/* A wall clock past the year 2200 is no clock. */
#define WALL_MAX_US ((int64_t)7258118400 * 1000000)

uint64_t dli_tokens_at(const dli_store_t *store, uint64_t host_ns) {
    return (uint64_t)(store->token_base_us + (int64_t)(host_ns / NS_PER_US));
}

typedef struct meta {
    char boot[64];
    int64_t base_us, ceiling, reserved;
} meta_t;

/* With room for a reserve above the largest token, and for a base below zero. */
static bool is_sane(int64_t number) {
    int64_t most = INT64_MAX / 4 * 3;
    return number >= -most && number <= most;
}

static int read_meta(dli_connection_t *c, meta_t *meta) {
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, DLI_SQL_META, &s);
    if (rc != SQLITE_OK) {
        return rc;
    }
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        const char *boot = (const char *)sqlite3_column_text(s, 0);
        meta->boot[0] = '\0';
        strncat(meta->boot, boot != NULL ? boot : "", sizeof meta->boot - 1);
        meta->base_us = sqlite3_column_int64(s, 1);
        meta->ceiling = sqlite3_column_int64(s, 2);
        meta->reserved = sqlite3_column_int64(s, 3);
        bool sane = is_sane(meta->base_us) && is_sane(meta->ceiling) && is_sane(meta->reserved) &&
                    meta->ceiling >= 0 && meta->reserved >= 0;
        int end = sqlite3_reset(s);
        return end != SQLITE_OK || sane ? end : SQLITE_CORRUPT;
    }
    int reset = sqlite3_reset(s);
    return rc != SQLITE_DONE ? rc : reset != SQLITE_OK ? reset : SQLITE_CORRUPT; /* the row belongs there */
}

static int64_t wall_us(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t) != 0 || t.tv_sec < 0 || t.tv_sec >= WALL_MAX_US / 1000000) {
        return 0;
    }
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Inside a write transaction. */
static int begin_boot(dli_connection_t *c, meta_t *meta) {
    int rc = read_meta(c, meta);
    if (rc != SQLITE_OK || strcmp(meta->boot, c->store->boot) == 0) {
        return rc;
    }
    int64_t first = meta->ceiling > meta->reserved ? meta->ceiling : meta->reserved;
    int64_t wall = wall_us();
    meta->base_us = (first > wall ? first : wall) - (int64_t)(dli_store_now(c->store) / NS_PER_US);
    rc = dli_connection_do(c, DLI_SQL_CLEAR);
    sqlite3_stmt *s;
    if (rc == SQLITE_OK) {
        rc = dli_connection_statement(c, DLI_SQL_ADOPT, &s);
    }
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(s, 1, c->store->boot, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 2, meta->base_us);
        rc = dli_connection_step(s);
    }
    return rc;
}

static int adopt_once(dli_connection_t *c, void *arg) {
    meta_t *meta = arg;
    int rc = read_meta(c, meta);
    if (rc != SQLITE_OK || strcmp(meta->boot, c->store->boot) == 0) {
        return rc;
    }
    rc = dli_connection_do(c, DLI_SQL_BEGIN);
    if (rc != SQLITE_OK) {
        return rc;
    }
    rc = begin_boot(c, meta);
    return rc == SQLITE_OK ? dli_connection_do(c, DLI_SQL_COMMIT) : rc;
}

static int adopt(dli_connection_t *c, void *meta) {
    return dli_connection_attempt(c, adopt_once, meta, false);
}

dl_status_t dli_tokens_adopt(dli_store_t *store, dli_limits_t limits, dl_error_t *err) {
    meta_t meta = {.boot = ""};
    dl_status_t status = dli_connection_retry(&store->calls, adopt, &meta, limits, err);
    if (status == DL_OK) {
        store->token_base_us = meta.base_us;
        store->token_ceiling = (uint64_t)meta.ceiling;
    }
    return status;
}

static int write_number(dli_connection_t *c, dli_sql_t which, int64_t number) {
    sqlite3_stmt *s;
    int rc = dli_connection_statement(c, which, &s);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(s, 1, number);
        rc = dli_connection_step(s);
    }
    return rc;
}

int dli_tokens_raise(dli_connection_t *c, uint64_t token) {
    meta_t meta = {.boot = ""};
    int rc = read_meta(c, &meta);
    if (rc != SQLITE_OK) {
        return rc;
    }
    if ((uint64_t)meta.ceiling <= token) {
        int64_t reserved = (int64_t)token + RESERVE_US;
        rc = dli_connection_exec(c, dli_sql_sync_full);
        if (rc == SQLITE_OK) {
            rc = write_number(c, DLI_SQL_RESERVE, reserved);
        }
        int back = dli_connection_exec(c, dli_sql_sync_normal);
        rc = rc != SQLITE_OK ? rc : back;
        if (rc == SQLITE_OK) {
            rc = write_number(c, DLI_SQL_RAISE, reserved);
        }
        meta.ceiling = reserved;
    }
    if (rc == SQLITE_OK) {
        c->store->token_ceiling = (uint64_t)meta.ceiling;
    }
    return rc;
}
