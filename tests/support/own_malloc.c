/* own_malloc.c - an allocator that fails on demand, counts its blocks and looks into what is freed. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/own_malloc.h"

#if OWN_MALLOC
static atomic_int left = -1; /* allocations until one fails; < 0: none does */
static atomic_int failed;
static int fails_for_ever;
static atomic_long balance;
static atomic_int counting;
static const char *_Atomic watched;
static atomic_int found;

/* These stand in for the C library's in the whole process. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *memory);
size_t malloc_usable_size(void *memory);

void own_malloc_fail_after(int n, int for_ever) {
    if (n >= 0) {
        atomic_store(&failed, 0);
    }
    fails_for_ever = for_ever;
    atomic_store(&left, n);
}

int own_malloc_failed(void) {
    return atomic_load(&failed);
}

void own_malloc_count(void) {
    atomic_store(&balance, 0);
    atomic_store(&counting, 1);
}

long own_malloc_balance(void) {
    atomic_store(&counting, 0);
    return atomic_load(&balance);
}

void own_malloc_watch(const char *text) {
    atomic_store(&watched, text);
}

int own_malloc_found(void) {
    return atomic_load(&found);
}

static int should_fail(void) {
    int now = atomic_load(&left);
    if (now < 0) {
        return 0;
    }
    if (now > 0) {
        atomic_store(&left, now - 1);
        return 0;
    }
    atomic_store(&left, fails_for_ever ? 0 : -1);
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

static void *count(void *memory) {
    if (memory != NULL && counting) {
        atomic_fetch_add(&balance, 1);
    }
    return memory;
}

void *malloc(size_t size) {
    return should_fail() ? NULL : count(__libc_malloc(size));
}

void *calloc(size_t n, size_t size) {
    return should_fail() ? NULL : count(__libc_calloc(n, size));
}

void *realloc(void *old, size_t size) {
    if (should_fail()) {
        return NULL;
    }
    return old == NULL ? count(__libc_realloc(old, size)) : __libc_realloc(old, size);
}

void free(void *memory) {
    const char *text = atomic_load(&watched);
    if (text != NULL && memory != NULL &&
        memmem(memory, malloc_usable_size(memory), text, strlen(text)) != NULL) {
        atomic_fetch_add(&found, 1);
    }
    if (memory != NULL && counting) {
        atomic_fetch_sub(&balance, 1);
    }
    __libc_free(memory);
}
#endif
