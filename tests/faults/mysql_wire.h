/* mysql_wire.h - what the faults of MySQL servers share besides wire.h: tables, rows, connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_WIRE_H
#define MYSQL_WIRE_H

#include <stdlib.h>

#include "faults/wire.h"
#include "support/mysql_server.h"

/* The table of the driver under test. */
static inline const char *bare_table_of(ct_t *ct) {
    static _Thread_local char table[64];
    snprintf(table, sizeof table, "dlock_%s", ct_driver_name(ct) + strlen("mysql-"));
    return table;
}

/* The same with its database. */
static inline const char *table_of(ct_t *ct) {
    static _Thread_local char table[128];
    snprintf(table, sizeof table, "%s.%s", ct_mysql_database(ct), bare_table_of(ct));
    return table;
}

/* They are there. */
static inline void make_tables(ct_t *ct) {
    ct_close(ct, ct_open(ct, "create: true"));
}

/* What another transaction does to the row of a lock, as it goes on from "SELECT ... WHERE name=...". */
static inline void touch_row(ct_t *ct, mysql_hand_t *hand, const char *name, const char *how) {
    (void)mysql_hand_ask(hand, "SELECT * FROM %s WHERE name=x'%s' %s", table_of(ct), name_of(ct, name), how);
}

/* Another transaction, which has locked the row of a lock. */
static inline mysql_hand_t *lock_row(ct_t *ct, const char *name) {
    mysql_hand_t *hand = mysql_hand(ct_mysql(ct), NULL);
    (void)mysql_hand_ask(hand, "BEGIN");
    touch_row(ct, hand, name, "FOR UPDATE");
    return hand;
}

/* A call that cannot succeed, and must not say that it did. */
static inline void expect_refused(ct_t *ct, dl_status_t status) {
    CT_CHECKF(status == DL_EBUSY || status == DL_ETIMEDOUT || status == DL_EIO || status == DL_EUNKNOWN,
              "the call was %s", dl_status_name(status));
}

static inline void let_row_go(mysql_hand_t *hand) {
    (void)mysql_hand_ask(hand, "ROLLBACK");
    mysql_hand_close(hand);
}

/* What the case's connections are doing, a line each; another case may use the same server. */
static inline void look_at_statements(ct_t *ct, char *text, size_t size) {
    snprintf(text, size, "%s",
             mysql_ask(ct_mysql(ct),
                       "SELECT GROUP_CONCAT(CONCAT(ID,' ',LEFT(INFO,60)) ORDER BY ID SEPARATOR '\n') FROM "
                       "information_schema.PROCESSLIST WHERE DB='%s' AND COMMAND='Query'",
                       ct_mysql_database(ct)));
}

/* How many of them are at the same statement for a while: they wait for a row. (InnoDB's own table of waits
 * is not made anew while it is being asked for.) *one: one of them; NULL: whichever. */
static inline int waiting_connections(ct_t *ct, long long *one) {
    char before[4096], after[4096], *rest = before;
    int count = 0;
    look_at_statements(ct, before, sizeof before);
    ct_sleep_ms(ct, 20);
    look_at_statements(ct, after, sizeof after);
    for (const char *line; (line = strsep(&rest, "\n")) != NULL;) {
        const char *at = strstr(after, line);
        if (line[0] >= '0' && line[0] <= '9' && at != NULL && (at == after || at[-1] == '\n')) {
            count++;
            if (one != NULL) {
                *one = atoll(line);
            }
        }
    }
    return count;
}

#endif
