/* config_memory_test.c - the configuration loader when memory runs out, and what it leaves in memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#include "config_fake.h"

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_ALLOCATOR 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OWN_ALLOCATOR 0
#endif
#endif
#ifndef OWN_ALLOCATOR
#define OWN_ALLOCATOR 1
#endif

static const char yaml[] =
    "use: a\n"
    "defaults: {lease: 10s}\n"
    "backends:\n"
    "  a: {driver: store, path: \"x$$y\", password: 'hunter2hunter2', nodes: [\"${CFG_NOT:-b}\"]}\n"
    "  b: {driver: store, path: x}\n";

#if OWN_ALLOCATOR
/* How many allocations from now succeed; < 0: all. After that all fail, or only the next one. */
static atomic_int left = -1;
static atomic_int failed;
static int for_ever;
static atomic_int watched;    /* 1: look into everything that is freed */
static const char *forbidden; /* what must not be in it */
static atomic_int leaks;

/* These stand in for the C library's in the whole process, libyaml included. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *memory);
size_t malloc_usable_size(void *memory);

static int should_fail(void) {
    int now = atomic_load(&left);
    if (now < 0) {
        return 0;
    }
    if (now > 0) {
        atomic_store(&left, now - 1);
        return 0;
    }
    atomic_store(&left, for_ever ? 0 : -1);
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) {
    return should_fail() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    return should_fail() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size) {
    return should_fail() ? NULL : __libc_realloc(old, size);
}

void free(void *memory) {
    if (watched && memory != NULL &&
        memmem(memory, malloc_usable_size(memory), forbidden, strlen(forbidden)) != NULL) {
        atomic_fetch_add(&leaks, 1);
    }
    __libc_free(memory);
}
#endif

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
        cr_assert_str_eq(driver.values[STORE_PASSWORD].string, "hunter2hunter2");
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

#if OWN_ALLOCATOR /* a sanitizer, or another C library, has an allocator of its own */

/* The n-th allocation fails, for every n until all succeed. */
static void fail_each(int always) {
    dl_error_t err = {0};
    dl_status_t status = DL_ENOMEM;
    int n = 0;
    for_ever = always;
    for (; status != DL_OK; n++) {
        atomic_store(&failed, 0);
        atomic_store(&left, n);
        status = load_and_resolve(&err);
        atomic_store(&left, -1);
        cr_assert_lt(n, 10000);
        if (status != DL_OK) {
            cr_assert_gt(atomic_load(&failed), 0);
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
    char *volatile probe = strdup("hunter2hunter2");
    forbidden = "hunter2hunter2";
    watched = 1;
    dl_status_t status = load_and_resolve(&err);
    watched = 0;
    cr_assert_eq(status, DL_OK, "%s", err.message);
    cr_assert_eq(atomic_load(&leaks), 0);
    /* The test must be able to fail. */
    watched = 1;
    free(probe);
    watched = 0;
    cr_assert_eq(atomic_load(&leaks), 1);
}
#endif
