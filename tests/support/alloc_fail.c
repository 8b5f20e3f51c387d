/* alloc_fail.c - the wrapped allocators: count, and fail where they were told to. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/alloc_fail.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The names that the linker's --wrap=NAME prescribes. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t max);

static atomic_int fail_at, fail_forever, calls, failed;

void alloc_fail_at(int n, int forever) {
    atomic_store(&fail_at, 0);
    atomic_store(&calls, 0);
    atomic_store(&failed, 0);
    atomic_store(&fail_forever, forever);
    atomic_store(&fail_at, n);
}

int alloc_fail_calls(void) {
    return atomic_load(&calls);
}

int alloc_fail_failed(void) {
    return atomic_load(&failed);
}

static int should_fail(void) {
    int call = atomic_fetch_add(&calls, 1) + 1;
    int at = atomic_load(&fail_at);
    if (at == 0 || call < at || (call > at && !atomic_load(&fail_forever))) {
        return 0;
    }
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

void *__wrap_malloc(size_t size) {
    return should_fail() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
    return should_fail() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size) {
    return should_fail() ? NULL : __real_realloc(old, size);
}

static char *copy_text(const char *text, size_t len) {
    char *copy = __real_malloc(len + 1);
    if (copy != NULL) {
        memcpy(copy, text, len);
        copy[len] = 0;
    }
    return copy;
}

char *__wrap_strdup(const char *text) {
    return should_fail() ? NULL : copy_text(text, strlen(text));
}

char *__wrap_strndup(const char *text, size_t max) {
    return should_fail() ? NULL : copy_text(text, strnlen(text, max));
}

static void *or_die(void *memory) {
    if (memory == NULL) {
        abort();
    }
    return memory;
}

void *alloc_real(size_t size) {
    return or_die(__real_calloc(1, size));
}

void *alloc_real_again(void *old, size_t size) {
    return or_die(__real_realloc(old, size));
}

char *alloc_real_text(const char *text) {
    return or_die(copy_text(text, strlen(text)));
}

void alloc_real_free(void *memory) {
    free(memory);
}
