/* mysql_crowd.c - a crowd on the MySQL drivers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "crowd.h"
#include "mysql_floor.h"

#define DRIVERS 3
static const char *const drivers[DRIVERS] = {"mysql-pessimistic", "mysql-lease", "mysql-optimistic"};

static dl_client_t *open_ours(const void *driver) {
    return mysql_open_client(driver, "");
}

static void *open_user(const void *driver) {
    return crowd_user_open(open_ours, driver);
}

static dl_client_t *open_without_passing(const void *driver) {
    return mysql_open_client(driver, ", pass: false");
}

static void *open_user_without(const void *driver) {
    return crowd_user_open(open_without_passing, driver);
}

void bench_mysql_crowd_passing(const char *folder, unsigned scale) {
    mysql_start(folder);
    for (int i = 0; i < DRIVERS; i++) {
        crowd_compare_passing(drivers[i], open_user, open_user_without, drivers[i], scale);
    }
}

void bench_mysql_crowd(const char *folder, unsigned scale) {
    static const way_t ours = {"dl_lock", open_user, crowd_user_await, crowd_user_give, crowd_user_close};
    mysql_start(folder);
    for (int i = 0; i < DRIVERS; i++) {
        crowd_compare_all(drivers[i], NULL, &ours, drivers[i], scale);
    }
}
