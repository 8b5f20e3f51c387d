/* setup.h - what opening, `dlock init` and `dlock check` share: asking a server about itself. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_SETUP_H
#define DLI_MYSQL_SETUP_H

#include "lock.h"

#define DLI_MYSQL_TABLE_SHOWN (sizeof((dli_mysql_t *)0)->table_shown + 8)

/* One statement that changes no lock. Whatever the server says to it is in the answer. */
dl_status_t dli_mysql_setup_ask(dli_mysql_t *mysql, const dli_mysql_sql_t *sql, uint64_t deadline_ns,
                                dli_mysql_answer_t *answer, dl_error_t *err);

/* ---- schema.c ------------------------------------------------------------------------------------------ */

/* Is this table as its kind wants it? DL_OK. DL_ECONFIG with err->native of DLI_MYSQL_NO_SUCH_TABLE: it is
 * not there; any other DL_ECONFIG: it is there and wrong. */
dl_status_t dli_mysql_table_verify(dli_mysql_t *mysql, const dli_mysql_table_t *table, uint64_t deadline_ns,
                                   dl_error_t *err);
/* The same, and makes it if it is not there; never changes what is. *made: it was not. */
dl_status_t dli_mysql_table_provide(dli_mysql_t *mysql, const dli_mysql_table_t *table, uint64_t deadline_ns,
                                    bool *made, dl_error_t *err);
/* The table's whole name; as messages have it. */
void dli_mysql_table_name(const dli_mysql_t *mysql, const dli_mysql_table_t *table, char *name, size_t size);
void dli_mysql_table_show(const dli_mysql_t *mysql, const dli_mysql_table_t *table,
                          char shown[DLI_MYSQL_TABLE_SHOWN]);
/* The statement that makes it. */
void dli_mysql_table_ddl(const dli_mysql_t *mysql, const dli_mysql_table_t *table, dli_mysql_sql_t *sql);

/* ---- client.c ------------------------------------------------------------------------------------------ */

/* The server's global variables that decide what a lock on it is worth, for dli_mysql_value. Names that it
 * does not know are simply not there. The caller frees the answer, whatever the status. */
dl_status_t dli_mysql_variables_ask(dli_mysql_t *mysql, uint64_t deadline_ns, dli_mysql_answer_t *answer,
                                    dl_error_t *err);
/* Servers on which a granted lock would be none, or none can be granted. DL_ENOTSUP, DL_ECONFIG. */
dl_status_t dli_mysql_refuse_unfit(const dli_mysql_t *mysql, MYSQL_RES *variables, dl_error_t *err);
/* Of a prepared client: connects and refuses servers that cannot carry locks. */
dl_status_t dli_mysql_connect(dli_mysql_t *mysql, uint64_t deadline_ns, dl_error_t *err);

#endif
