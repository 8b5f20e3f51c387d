/* sqlite_host_test.c - the SQLite driver in a program that has set SQLite up in its own way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include "drivers/sqlite/store.h"

TestSuite(sqlite_host, .init = set_up, .fini = tear_down, .timeout = 60);

/* Each runs in a child, which has not used SQLite before. 0, or where it went wrong. */

static int open_without_threads(void *unused) {
    (void)unused;
    client_t c;
    if (sqlite3_config(SQLITE_CONFIG_SINGLETHREAD) != SQLITE_OK) {
        return 1;
    }
    dl_status_t status = open_options(&c, UUID_A, path, 1);
    if (status != DL_ENOTSUP || strstr(c.err.message, "to be without threads") == NULL) {
        fprintf(stderr, "%d %s\n", status, c.err.message);
        return 2;
    }
    return access(path, F_OK) != 0 ? 0 : 3;
}

Test(sqlite_host, sqlite_set_to_be_without_threads_is_refused) {
    cr_assert_eq(ended(spawn(open_without_threads, NULL)), 0);
}

/* More than the log is copied after, by the one connection while the other has the file. */
static int use_a_shared_cache(void *unused) {
    (void)unused;
    client_t c;
    char name[160];
    struct stat log;
    sqlite3_enable_shared_cache(1);
    if (open_options(&c, UUID_A, path, 1) != DL_OK || take(&c, "held", A, 1, 30000, NULL) != DL_OK) {
        return 1;
    }
    for (uint64_t i = 2; i <= 5000; i++) {
        if (take(&c, "orders", A, i, 30000, NULL) != DL_OK || drop(&c, "orders", A, i) != DL_OK) {
            return 2;
        }
    }
    snprintf(name, sizeof name, "%s-wal", path);
    if (stat(name, &log) != 0 || log.st_size > 6 << 20) {
        fprintf(stderr, "a log of %lld bytes\n", (long long)log.st_size);
        return 3;
    }
    dli_store_t *store = c.state;
    dl_renewal_t r = renewal("held", A, 1, 30000);
    if (dli_connection_exec(&store->calls, "BEGIN IMMEDIATE") != SQLITE_OK) {
        return 4;
    }
    driver()->renew(c.state, &r, 1, in_ms(100));
    return r.status == DL_EIO ? 0 : 5; /* busy */
}

Test(sqlite_host, a_cache_that_connections_share_is_not_used) {
    cr_assert_eq(ended(spawn(use_a_shared_cache, NULL)), 0);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static sqlite3_mem_methods memory;
static int until_none; /* so many more are had before one is refused */

static void *get_or_none(int size) {
    return --until_none == 0 ? NULL : memory.xMalloc(size);
}

static int open_with_none_once(void *which) {
    client_t c;
    sqlite3_mem_methods counting;
    until_none = *(int *)which;
    (void)sqlite3_config(SQLITE_CONFIG_GETMALLOC, &memory);
    counting = memory;
    counting.xMalloc = get_or_none;
    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &counting) != SQLITE_OK) {
        return 2;
    }
    dl_status_t status = open_options(&c, UUID_A, path, 1);
    driver()->close(c.state, 0);
    if (status != DL_OK && status != DL_ENOMEM) {
        fprintf(stderr, "refused %d: %d %s\n", *(int *)which, status, c.err.message);
        return 3;
    }
    if (open_options(&c, UUID_A, path, 1) != DL_OK) {
        fprintf(stderr, "after %d: %s\n", *(int *)which, c.err.message);
        return 4;
    }
    return 0;
}

Test(sqlite_host, memory_that_was_refused_once_leaves_the_process_able) {
    for (int which = 1; which <= 100; which++) { /* SQLite begins with some ten */
        cr_assert_eq(ended(spawn(open_with_none_once, &which)), 0, "%d", which);
        delete_all();
    }
}
