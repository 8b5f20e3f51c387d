/* mysql_many.c - as `many`, on mysql-lease, while another program keeps one of the rows locked. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "mysql_floor.h"

static MYSQL *other;

static void lock_row(const char *name) {
    char sql[120];
    (void)snprintf(sql, sizeof sql, "SELECT 1 FROM dlock_lease WHERE name='%s' FOR UPDATE", name);
    other = mysql_open();
    if (mysql_query(other, "BEGIN") != 0 || mysql_query(other, sql) != 0) {
        die(mysql_error(other), NULL);
    }
    mysql_free_result(mysql_store_result(other));
}

void bench_mysql_many(const char *folder, unsigned scale) {
    static const unsigned counts[] = {600, 10000};
    for (unsigned i = 0; i < 2; i++) {
        mysql_start(folder);
        dl_client_t *client = mysql_open_client("mysql-lease", ", lease: 6s");
        hold_many(client, counts[i] * scale, 6000, ", one row locked by another program", lock_row);
        mysql_close(other);
    }
}

void bench_mysql_queue_scale(const char *folder, unsigned scale) {
    mysql_start(folder);
    queue_scale(mysql_open_client("mysql-lease", ", lease: 3s"), scale);
}
