/* mysql_crowd.c - a crowd on the MySQL drivers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "crowd.h"
#include "mysql_floor.h"

static dl_client_t *open_ours(const void *driver) {
    return mysql_open_client(driver, "");
}

static void *open_user(const void *driver) {
    return crowd_user_open(open_ours, driver);
}

void bench_mysql_crowd(const char *folder, unsigned scale) {
    static const way_t ours = {"dl_lock", open_user, crowd_user_await, crowd_user_give, crowd_user_close};
    static const char *const drivers[] = {"mysql-pessimistic", "mysql-lease", "mysql-optimistic"};
    mysql_start(folder);
    for (int i = 0; i < 3; i++) {
        crowd_compare_all(drivers[i], NULL, &ours, drivers[i], scale);
    }
}
