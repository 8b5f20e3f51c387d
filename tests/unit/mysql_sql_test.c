/* mysql_sql_test.c - the text of statements: literals that no content breaks out of, what does not fit. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/mysql/sql.h"

TestSuite(mysql_sql, .timeout = 10);

Test(mysql_sql, everything_but_letters_behind_a_dollar_is_copied) {
    DLI_MYSQL_SQL(sql);
    cr_assert_str_eq(sql.at, "");
    dli_mysql_sql_add(&sql, "SELECT 'a%s\\n' ");
    dli_mysql_sql_add(&sql, "FROM $t WHERE x=$u AND y=$i;", "locks", (uint64_t)7, (int64_t)-8);
    cr_assert_str_eq(sql.at, "SELECT 'a%s\\n' FROM locks WHERE x=7 AND y=-8;");
    cr_assert_eq(sql.len, strlen(sql.at));
    cr_assert(!sql.is_cut);
    dli_mysql_sql_add(&sql, "");
    cr_assert_eq(sql.len, strlen(sql.at));
}

Test(mysql_sql, bytes_are_digits_whatever_they_are) {
    static const char odd[] = {'\'', '"', '\\', '\n', '\x1a', '\xff', '`', ';', '\x80', '$'};
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "$x,$x,$s,$s", odd, sizeof odd, "", (size_t)0, "a$t'b", "");
    cr_assert_str_eq(sql.at, "x'27225c0a1aff603b8024','',x'6124742762',''");
    DLI_MYSQL_SQL(all);
    char bytes[256];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
    }
    dli_mysql_sql_add(&all, "$x", bytes, sizeof bytes);
    cr_assert_eq(all.len, 2 + 512 + 1);
    for (int i = 0; i < 256; i++) {
        char pair[3] = {all.at[2 + 2 * i], all.at[3 + 2 * i], '\0'};
        cr_assert_eq(strtoul(pair, NULL, 16), (unsigned long)i);
    }
}

Test(mysql_sql, numbers_are_whole_at_their_ends) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "$u $u $i $i $i", (uint64_t)0, UINT64_MAX, INT64_MIN, INT64_MAX, (int64_t)0);
    cr_assert_str_eq(sql.at, "0 18446744073709551615 -9223372036854775808 9223372036854775807 0");
}

Test(mysql_sql, what_does_not_fit_cuts_the_statement_for_good) {
    for (size_t size = 1; size < 40; size++) {
        char room[64];
        memset(room, '#', sizeof room);
        dli_mysql_sql_t sql = dli_mysql_sql_in(room, size);
        dli_mysql_sql_add(&sql, "WHERE name=$x AND n=$u", "abcd", (size_t)4, (uint64_t)12345);
        const size_t whole = strlen("WHERE name=x'61626364' AND n=12345");
        cr_assert_eq(sql.is_cut, size < whole + 1, "size %zu: %s", size, room);
        cr_assert_lt(sql.len, size);
        cr_assert_eq(room[sql.len], '\0');
        cr_assert_eq(room[size], '#', "written behind the room of %zu", size);
        if (sql.is_cut) {
            size_t len = sql.len;
            dli_mysql_sql_add(&sql, "");
            dli_mysql_sql_add(&sql, "x");
            cr_assert(sql.is_cut, "grows again behind what is missing");
            cr_assert_eq(sql.len, len, "grows again behind what is missing");
        }
    }
}

Test(mysql_sql, an_unknown_letter_makes_nothing_that_could_be_sent) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "a $q b");
    cr_assert(sql.is_cut);
    DLI_MYSQL_SQL(end);
    dli_mysql_sql_add(&end, "a $");
    cr_assert(end.is_cut);
}

Test(mysql_sql, the_usual_room_holds_the_longest_name_and_owner_several_times) {
    char name[255], owner[96];
    memset(name, 'n', sizeof name);
    memset(owner, 'o', sizeof owner - 1);
    owner[sizeof owner - 1] = '\0';
    DLI_MYSQL_SQL(sql);
    for (int i = 0; i < 10; i++) {
        dli_mysql_sql_add(&sql, "$x,$s,$u,", name, sizeof name, owner, UINT64_MAX);
    }
    cr_assert(!sql.is_cut);
}
