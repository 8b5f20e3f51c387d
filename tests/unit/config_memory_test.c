/* config_memory_test.c - the configuration loader when memory runs out, and what it leaves in memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdint.h>

#include "config_fake.h"
#include "support/own_malloc.h"

#define SECRET "hunter2hunter2"

static const char yaml[] =
    "use: a\n"
    "defaults: {lease: 10s}\n"
    "backends:\n"
    "  a: {driver: store, path: \"x$$y\", password: '" SECRET "', nodes: [\"${CFG_NOT:-b}\"]}\n"
    "  b: {driver: store, path: x}\n";

/* Everything from the text to the values. */
static dl_status_t load_and_resolve(dl_error_t *err) {
    dli_config_t *config = NULL;
    dli_values_t driver, core;
    dl_status_t status = fake_load(yaml, sizeof yaml - 1, &config, err);
    if (status != DL_OK) {
        cr_assert_null(config);
        return status;
    }
    status = dli_config_resolve(config, "a", fake_store, &driver, fake_core, &core, err);
    if (status == DL_OK) {
        cr_assert_str_eq(driver.values[STORE_PASSWORD].string, SECRET);
    } else {
        cr_assert_null(driver.memory);
        cr_assert_null(core.memory);
    }
    dli_values_free(&driver);
    dli_values_free(&core);
    dli_config_free(config);
    return status;
}

Test(config_memory, enough_memory_is_enough) {
    dl_error_t err = {0};
    cr_assert_eq(load_and_resolve(&err), DL_OK, "%s", err.message);
}

#if OWN_MALLOC

/* The n-th allocation fails, for every n until all succeed. */
static void fail_each(int for_ever) {
    dl_error_t err = {0};
    dl_status_t status = DL_ENOMEM;
    int n = 0;
    for (; status != DL_OK; n++) {
        own_malloc_fail_after(n, for_ever);
        status = load_and_resolve(&err);
        own_malloc_fail_after(-1, 0);
        cr_assert_lt(n, 10000);
        if (status != DL_OK) {
            cr_assert_gt(own_malloc_failed(), 0);
            cr_assert_eq(status, DL_ENOMEM, "allocation %d: %s", n, err.message);
            cr_assert_eq(err.status, DL_ENOMEM);
        }
    }
    cr_assert_gt(n, 30);
}

Test(config_memory, each_allocation_fails_once) {
    fail_each(0);
}

Test(config_memory, each_allocation_fails_and_all_after_it) {
    fail_each(1);
}

/* Whatever is given back to the allocator may be read by the next who gets it. */
Test(config_memory, secrets_are_wiped_before_memory_is_freed) {
    dl_error_t err = {0};
    /* volatile, or the compiler drops the copy and its free. */
    char *volatile probe = strdup(SECRET);
    own_malloc_watch(SECRET);
    dl_status_t status = load_and_resolve(&err);
    own_malloc_watch(NULL);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    cr_assert_eq(own_malloc_found(), 0);
    /* The test must be able to fail. */
    own_malloc_watch(SECRET);
    free(probe);
    own_malloc_watch(NULL);
    cr_assert_eq(own_malloc_found(), 1);
}
#endif
