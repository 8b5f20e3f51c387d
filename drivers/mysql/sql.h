/* sql.h - the text of statements: names and owners go in as literals that no content can break out of. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_SQL_H
#define DLI_MYSQL_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for every statement about one name: a name (255 bytes) and an owner, each several times. */
#define DLI_MYSQL_SQL_MAX 8192

/* Text that grows to the end of its room; zero-terminated. What does not fit sets is_cut, and the statement
 * must not be sent. No memory is allocated: freeing and renewing must work without. */
typedef struct dli_mysql_sql {
    char *at;
    size_t len, size;
    bool is_cut;
} dli_mysql_sql_t;

/* DLI_MYSQL_SQL(sql) declares one with the usual room. */
#define DLI_MYSQL_SQL(name)              \
    char name##_room[DLI_MYSQL_SQL_MAX]; \
    dli_mysql_sql_t name = dli_mysql_sql_in(name##_room, sizeof name##_room)

dli_mysql_sql_t dli_mysql_sql_in(char *room, size_t size);
/* A format of this tree's own, small enough to be checked by eye. Everything else is copied:
 *   $t  const char *               as it is: for table names and constants of ours only
 *   $x  const char *, size_t       bytes, as x'6162' (bytes of length 0: '')
 *   $s  const char *               a text, the same way
 *   $u  uint64_t                   decimal
 *   $i  int64_t                    decimal
 */
void dli_mysql_sql_add(dli_mysql_sql_t *sql, const char *format, ...);
/* SELECT, which the server ends when the time is over, as it does no statement that writes: MariaDB by the
 * prefix, MySQL by the hint. Each takes the other's for a comment. */
void dli_mysql_sql_add_bounded_select(dli_mysql_sql_t *sql, uint64_t ms);
/* Behind a condition: so many names that begin with the prefix, behind the last one that came, in order. */
void dli_mysql_sql_add_page(dli_mysql_sql_t *sql, const char *column, const char *prefix, size_t prefix_len,
                            const char *last, size_t last_len, uint64_t rows);

#endif
