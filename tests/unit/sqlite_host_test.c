/* sqlite_host_test.c - the SQLite driver in a program that has set SQLite up in its own way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

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
