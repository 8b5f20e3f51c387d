/* statements.c - every SQL statement of the driver. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "statements.h"

/*
 * Functions of ours inside the statements (connection.c). All of them see one instant, which is read when the
 * statement first asks for it. A writing statement takes the file's write lock before it evaluates anything,
 * so that the instant is never one from before a wait.
 *
 *   dl_now()                  the host's CLOCK_BOOTTIME in nanoseconds
 *   dl_tick()                 the smallest token that a new hold could get at this instant
 *   dl_busy(expires_ns)       false; notes how long the present hold lasts
 *   dl_token(floor, previous, count)
 *                             the last of so many new tokens, all larger than both and at least dl_tick()
 */

/* These texts are compared with what is in the file, byte by byte: another one is another format. */
#define LOCKS                                                                          \
    "CREATE TABLE dlock_locks(\n"                                                      \
    "  name        BLOB PRIMARY KEY NOT NULL,\n"                                       \
    "  owner       TEXT NOT NULL,    -- uuid:number; '' in a free row\n"               \
    "  hold_id     INTEGER NOT NULL,\n"                                                \
    "  client      TEXT NOT NULL,    -- host:pid, for people\n"                        \
    "  acquired_ns INTEGER NOT NULL, -- CLOCK_BOOTTIME of the host\n"                  \
    "  expires_ns  INTEGER NOT NULL, -- the same clock; 0: free, kept for its token\n" \
    "  token       INTEGER NOT NULL\n"                                                 \
    ") WITHOUT ROWID"
#define META                                                                           \
    "CREATE TABLE dlock_meta(\n"                                                       \
    "  id       INTEGER PRIMARY KEY CHECK (id = 1),\n"                                 \
    "  boot     TEXT NOT NULL,    -- the boot of the host that the locks are of\n"     \
    "  base_us  INTEGER NOT NULL, -- token = base_us + microseconds since that boot\n" \
    "  ceiling  INTEGER NOT NULL, -- no token reaches it\n"                            \
    "  reserved INTEGER NOT NULL  -- tokens of the next boot begin here\n"             \
    ")"

const char dli_sql_locks[] = LOCKS;
const char dli_sql_meta[] = META;

/* Small pages: a lock is one row of about 100 bytes, and each commit writes a whole page. */
const char dli_sql_schema[] = "PRAGMA page_size = 1024;\n"
                              "BEGIN EXCLUSIVE;\n" LOCKS ";\n" META ";\n"
                              "INSERT INTO dlock_meta VALUES (1, '', 0, 0, 0);\n"
                              "PRAGMA application_id = 1145848651;\n" /* DLI_APPLICATION_ID */
                              "PRAGMA user_version = 1;\n"            /* DLI_SCHEMA_VERSION */
                              "COMMIT;\n";

/* Commits are not synced one by one: no lock outlives a reboot, and tokens do not depend on it (tokens.c).
 * Sizes of the cache and of a memory map are not left to the file and to the build of SQLite. */
const char dli_sql_settings[] = "PRAGMA synchronous = NORMAL;"
                                "PRAGMA journal_size_limit = 16777216;"
                                "PRAGMA secure_delete = OFF;"
                                "PRAGMA temp_store = MEMORY;"
                                "PRAGMA cache_size = -2000;"
                                "PRAGMA mmap_size = 0;";

/* SQLite forgets what it has read of the definitions. The second pragma needs none of them, so that they are
 * read anew inside the transaction that it begins: what is compiled and what is looked at are one snapshot.
 */
const char dli_sql_snapshot[] = "PRAGMA writable_schema = RESET;"
                                "BEGIN;"
                                "PRAGMA user_version;";
const char dli_sql_definitions[] =
    "SELECT count(*), total(type = 'table' AND name = 'dlock_locks' AND tbl_name = name AND sql = ?1),"
    " total(type = 'table' AND name = 'dlock_meta' AND tbl_name = name AND sql = ?2) FROM sqlite_master";

const char dli_sql_sync_full[] = "PRAGMA synchronous = FULL";
const char dli_sql_sync_normal[] = "PRAGMA synchronous = NORMAL";

/* The caller's, or by force (no owner) whoever's it is. */
#define HOLD "CASE WHEN ?2 IS NULL THEN expires_ns > dl_now() ELSE owner = ?2 AND hold_id = ?3 END"

const char *const dli_sql[DLI_SQL_COUNT] = {
    [DLI_SQL_BEGIN] = "BEGIN IMMEDIATE",
    [DLI_SQL_COMMIT] = "COMMIT",
    [DLI_SQL_ROLLBACK] = "ROLLBACK",

    /* No row changed: held by another, or by a newer hold of the same owner. The row keeps the last token of
     * those that were drawn. */
    [DLI_SQL_ACQUIRE] =
        "INSERT INTO dlock_locks(name, owner, hold_id, client, acquired_ns, expires_ns, token)"
        " VALUES (?1, ?2, ?3, ?4, dl_now(), dl_now() + ?5, dl_token(?6, 0, ?7))"
        " ON CONFLICT(name) DO UPDATE SET"
        "  owner = excluded.owner, hold_id = excluded.hold_id, client = excluded.client,"
        "  acquired_ns = excluded.acquired_ns, expires_ns = excluded.expires_ns,"
        "  token = dl_token(?6, token, ?7)"
        " WHERE expires_ns <= dl_now()"
        "  OR (owner = excluded.owner AND hold_id <= excluded.hold_id)"
        "  OR dl_busy(expires_ns)",

    /* A row goes away only when the clock has passed its token. Otherwise it stays, free, so that the next
     * holder's token is larger all the same. */
    [DLI_SQL_RELEASE] = "DELETE FROM dlock_locks WHERE name = ?1 AND " HOLD " AND token < dl_tick()",
    [DLI_SQL_RELEASE_KEEPING_TOKEN] = "UPDATE dlock_locks SET owner = '', client = '', expires_ns = 0"
                                      " WHERE name = ?1 AND " HOLD,

    [DLI_SQL_RENEW] = "UPDATE dlock_locks SET expires_ns = max(expires_ns, dl_now() + ?4)"
                      " WHERE name = ?1 AND owner = ?2 AND hold_id = ?3 AND expires_ns > dl_now()",

    [DLI_SQL_INSPECT] = "SELECT owner, hold_id, client, expires_ns - dl_now(), token FROM dlock_locks"
                        " WHERE name = ?1 AND expires_ns > dl_now()",

    [DLI_SQL_LIST] = "SELECT owner, hold_id, client, expires_ns - dl_now(), token, name FROM dlock_locks"
                     " WHERE name >= ?1 AND (?2 IS NULL OR name < ?2) AND expires_ns > dl_now()"
                     " AND length(CAST(name AS BLOB)) BETWEEN 1 AND 255 ORDER BY name LIMIT ?3",

    /* Rows that a dead holder left more than a minute ago. */
    [DLI_SQL_SWEEP_LOOK] = "SELECT name, expires_ns < dl_now() - 60000000000 AND token < dl_tick()"
                           " FROM dlock_locks WHERE name >= ?1 ORDER BY name LIMIT ?2",
    [DLI_SQL_SWEEP] = "DELETE FROM dlock_locks WHERE name BETWEEN ?1 AND ?2"
                      " AND expires_ns < dl_now() - 60000000000 AND token < dl_tick()",

    [DLI_SQL_META] = "SELECT boot, base_us, ceiling, reserved FROM dlock_meta WHERE id = 1",
    [DLI_SQL_CLEAR] = "DELETE FROM dlock_locks",
    [DLI_SQL_ADOPT] = "UPDATE dlock_meta SET boot = ?1, base_us = ?2 WHERE id = 1",
    /* Always another number: SQLite writes, and syncs, nothing when a row stays what it was. */
    [DLI_SQL_RESERVE] = "UPDATE dlock_meta SET reserved = max(reserved + 1, ?1) WHERE id = 1",
    [DLI_SQL_RAISE] = "UPDATE dlock_meta SET ceiling = max(ceiling, ?1) WHERE id = 1",
};
