/* mysql_memory_test.c - what a connection is made from, without memory, and what is left of its secret. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "driver_env.h"
#include "drivers/mysql/link/endpoint.h"
#include "drivers/mysql/link/guard.h"
#include "support/own_malloc.h"

TestSuite(mysql_memory, .timeout = 60);

#define SECRET "hunter2hunter2"
#define CALLS 20

static dl_error_t err;
static dl_driver_env_t env;
static const dli_mysql_endpoint_parts_t parts = {.host = "db.test",
                                                 .port = 3306,
                                                 .user = "app",
                                                 .password = SECRET,
                                                 .database = "locks",
                                                 .tls = "verify",
                                                 .tls_ca = "/dev/null",
                                                 .tls_cert = "/dev/null",
                                                 .tls_key = "/dev/null"};

static dl_status_t make_endpoint(void) {
    dli_mysql_endpoint_t *endpoint;
    dl_status_t status = dli_mysql_endpoint_new(&parts, &endpoint, &err);
    cr_assert_eq(status == DL_OK, endpoint != NULL);
    dli_mysql_endpoint_unref(endpoint);
    return status;
}

static dl_status_t make_guard(void) {
    dli_mysql_guard_t *guard;
    dl_status_t status = dli_mysql_guard_open(&env, &guard, &err);
    cr_assert_eq(status == DL_OK, guard != NULL);
    dli_mysql_guard_close(guard, false);
    return status;
}

/* Each allocation fails in turn, once and from then on. */
static void starve(dl_status_t (*make)(void), const char *what) {
    dl_status_t status = DL_ENOMEM;
    cr_assert_eq(make(), DL_OK); /* what is made once is there */
    for (int for_ever = 0; for_ever <= 1; for_ever++) {
        int n = 0;
        for (; n < CALLS; n++) {
            own_malloc_count();
            own_malloc_fail_after(n, for_ever);
            status = make();
            int failed = own_malloc_failed();
            own_malloc_fail_after(-1, 0);
            cr_assert_eq(own_malloc_balance(), 0, "%s left memory behind after %d", what, n);
            if (failed == 0) {
                break;
            }
            cr_assert_eq(status, DL_ENOMEM, "%s, %d: %s", what, n, dl_status_name(status));
        }
        cr_assert_gt(n, 0, "%s, %d", what, n);
        cr_assert_lt(n, CALLS, "%s, %d", what, n);
        cr_assert_eq(status, DL_OK, "%s, %d", what, n);
    }
}

Test(mysql_memory, runs_out, .disabled = !OWN_MALLOC) {
    env = make_env("", NULL, NULL);
    starve(make_endpoint, "an endpoint");
    own_malloc_fail_after(0, 1);
    dl_status_t status = make_guard();
    own_malloc_fail_after(-1, 0);
    cr_assert_eq(status, DL_ENOMEM);
}

Test(mysql_memory, forgets_the_password, .disabled = !OWN_MALLOC) {
    dli_mysql_endpoint_t *endpoint;
    cr_assert_eq(dli_mysql_endpoint_new(&parts, &endpoint, &err), DL_OK);
    own_malloc_watch(SECRET);
    free(strdup(SECRET));
    cr_assert_eq(own_malloc_found(), 1, "the watch does not see");
    dli_mysql_endpoint_unref(dli_mysql_endpoint_ref(endpoint));
    cr_assert_str_eq(endpoint->password, SECRET);
    dli_mysql_endpoint_unref(endpoint);
    cr_assert_eq(own_malloc_found(), 1);
    own_malloc_watch(NULL);
}
