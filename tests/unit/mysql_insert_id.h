/* mysql_insert_id.h - a client library that says another insert id than the server did; once in a program. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_INSERT_ID_H
#define MYSQL_INSERT_ID_H

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <mysql.h>
#include <stdint.h>

/* What it says, as a proxy in between could. 0: what the server did. */
static uint64_t said_insert_id;

typedef __typeof__(mysql_insert_id(NULL)) insert_id_t;

/* In place of the library's. */
insert_id_t STDCALL mysql_insert_id(MYSQL *mysql) {
    union {
        void *found;
        insert_id_t(STDCALL *call)(MYSQL *mysql);
    } real = {.found = dlsym(RTLD_NEXT, "mysql_insert_id")};
    cr_assert_not_null(real.found);
    return said_insert_id != 0 ? said_insert_id : real.call(mysql);
}

#endif
