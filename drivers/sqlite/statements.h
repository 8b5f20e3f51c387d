/* statements.h - names of the SQL statements. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_SQLITE_STATEMENTS_H
#define DLI_SQLITE_STATEMENTS_H

typedef enum dli_sql {
    DLI_SQL_BEGIN,
    DLI_SQL_COMMIT,
    DLI_SQL_ROLLBACK,
    DLI_SQL_ACQUIRE,
    DLI_SQL_RELEASE,
    DLI_SQL_RELEASE_KEEPING_TOKEN,
    DLI_SQL_RENEW,
    DLI_SQL_INSPECT,
    DLI_SQL_LIST,
    DLI_SQL_SWEEP_LOOK,
    DLI_SQL_SWEEP,
    DLI_SQL_META,
    DLI_SQL_CLEAR,
    DLI_SQL_ADOPT,
    DLI_SQL_RESERVE,
    DLI_SQL_RAISE,
    DLI_SQL_COUNT
} dli_sql_t;

extern const char *const dli_sql[DLI_SQL_COUNT];

#define DLI_APPLICATION_ID 0x444c434b /* "DLCK" */
#define DLI_SCHEMA_VERSION 1

/* What makes an empty file a lock file, in one transaction, and the two tables alone. */
extern const char dli_sql_schema[];
extern const char dli_sql_locks[];
extern const char dli_sql_meta[];
/* Begins a transaction with a fresh look at the definitions. */
extern const char dli_sql_snapshot[];
/* How many definitions there are; whether the tables are the two above, which are its parameters. */
extern const char dli_sql_definitions[];
/* How every connection is set up. */
extern const char dli_sql_settings[];
/* Whether commits wait for the disk. Pragmas take effect when they are compiled, so these are never kept
 * prepared. */
extern const char dli_sql_sync_full[];
extern const char dli_sql_sync_normal[];

#endif
