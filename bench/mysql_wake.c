/* mysql_wake.c - how soon a waiter that the server wakes returns, against bare waits for the same row. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "mysql_floor.h"

static void *open_bare(const void *script) {
    return bare_lock_open(script);
}

static void await_row(void *bare) {
    bare_lock_await_row(bare);
}

static void release_row(void *bare) {
    bare_lock_release_row(bare);
}

static void await_bare(void *bare) {
    bare_lock_await(bare);
}

static void release_bare(void *bare) {
    bare_lock_release(bare);
}

static void close_bare(void *bare) {
    bare_lock_close(bare);
}

static void *open_ours(const void *script) {
    (void)script;
    return user_open(mysql_open_client("mysql-pessimistic", ""));
}

void bench_mysql_wake(const char *folder, unsigned scale) {
    static const way_t row = {"bare FOR UPDATE", open_bare, await_row, release_row, close_bare};
    static const way_t whole = {"the same statements bare", open_bare, await_bare, release_bare, close_bare};
    static const way_t ours = {"dl_lock", open_ours, user_await, user_give, user_close};
    char title[120];
    mysql_start(folder);
    const script_t *script = script_record("mysql-pessimistic", "handed");
    (void)snprintf(title, sizeof title, "mysql-pessimistic wake-up between processes on %s", mysql_started());
    compare_ways(title, &row, &ours, script, scale);
    compare_ways(title, &whole, &ours, script, scale);
}
