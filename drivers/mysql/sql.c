/* sql.c - the text of statements: names and owners go in as literals that no content can break out of. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sql.h"

#include <stdarg.h>
#include <string.h>

#include "core/digits.h"
#include "dlock/dlock.h"

dli_mysql_sql_t dli_mysql_sql_in(char *room, size_t size) {
    room[0] = '\0';
    return (dli_mysql_sql_t){.at = room, .size = size};
}

/* One byte more is always left for the zero at the end. */
static void put(dli_mysql_sql_t *sql, const char *bytes, size_t len) {
    if (sql->is_cut || len >= sql->size - sql->len) {
        sql->is_cut = true;
        return;
    }
    memcpy(sql->at + sql->len, bytes, len);
    sql->len += len;
    sql->at[sql->len] = '\0';
}

static void put_bytes(dli_mysql_sql_t *sql, const char *bytes, size_t len) {
    static const char digits[] = "0123456789abcdef";
    put(sql, len > 0 ? "x'" : "'", len > 0 ? 2 : 1);
    for (size_t i = 0; i < len && !sql->is_cut; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        const char pair[2] = {digits[byte >> 4], digits[byte & 15]};
        put(sql, pair, 2);
    }
    put(sql, "'", 1);
}

static void put_number(dli_mysql_sql_t *sql, uint64_t number, bool is_negative) {
    char text[1 + DLI_DIGITS_MAX] = "-";
    put(sql, is_negative ? text : text + 1, is_negative + dli_digits(text + 1, number));
}

void dli_mysql_sql_add(dli_mysql_sql_t *sql, const char *format, ...) {
    va_list args;
    va_start(args, format);
    for (const char *at = format; *at != '\0';) {
        size_t plain = strcspn(at, "$");
        put(sql, at, plain);
        at += plain;
        if (*at == '\0') {
            break;
        }
        const char *text;
        int64_t number;
        switch (at[1]) {
        case 't':
            text = va_arg(args, const char *);
            put(sql, text, strlen(text));
            break;
        case 'x':
            text = va_arg(args, const char *);
            put_bytes(sql, text, va_arg(args, size_t));
            break;
        case 's':
            text = va_arg(args, const char *);
            put_bytes(sql, text, strlen(text));
            break;
        case 'u':
            put_number(sql, va_arg(args, uint64_t), false);
            break;
        case 'i':
            number = va_arg(args, int64_t);
            put_number(sql, number < 0 ? 0 - (uint64_t)number : (uint64_t)number, number < 0);
            break;
        default:
            sql->is_cut = true; /* no such letter: nothing that could be sent */
        }
        at += at[1] != '\0' ? 2 : 1;
    }
    va_end(args);
}

void dli_mysql_sql_add_bounded_select(dli_mysql_sql_t *sql, uint64_t ms) {
    dli_mysql_sql_add(
        sql, "/*M! SET STATEMENT max_statement_time=$ue-3 FOR */ SELECT /*+ MAX_EXECUTION_TIME($u) */ ", ms,
        ms);
}

void dli_mysql_sql_add_page(dli_mysql_sql_t *sql, const char *column, const char *prefix, size_t prefix_len,
                            const char *last, size_t last_len, uint64_t rows) {
    char end[DL_NAME_MAX]; /* the least name behind all with the prefix: its last byte that can be counted up
                              is */
    size_t len = prefix_len;
    dli_mysql_sql_add(sql, " AND $t>=$x AND $t>$x", column, prefix, prefix_len, column, last, last_len);
    while (len > 0 && (unsigned char)prefix[len - 1] == 0xff) {
        len--;
    }
    if (len > 0) {
        memcpy(end, prefix, len);
        end[len - 1] = (char)((unsigned char)end[len - 1] + 1);
        dli_mysql_sql_add(sql, " AND $t<$x", column, end, len);
    }
    dli_mysql_sql_add(sql, " ORDER BY $t LIMIT $u", column, rows);
}
