/* own_malloc.h - the C library's allocator replaced in a whole test program, shared libraries included. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OWN_MALLOC_H
#define OWN_MALLOC_H

#include <stdlib.h> /* __GLIBC__ */

/* alloc_fail.h reaches only what is linked statically. This also makes libyaml and hiredis run out of memory,
 * and sees what they give back. */

/* A sanitizer, or another C library, has an allocator of its own. */
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#ifndef OWN_MALLOC
#define OWN_MALLOC 1
#endif

/* The next n allocations succeed; after them all fail, or only one. n < 0: none fails. */
void own_malloc_fail_after(int n, int for_ever);
int own_malloc_failed(void); /* how many did since then; those with n < 0 go on counting */
/* Begins to count the blocks in use, from 0. */
void own_malloc_count(void);
long own_malloc_balance(void); /* blocks in use now; ends the counting */
/* Looks for the text in everything that is freed. NULL: no more. */
void own_malloc_watch(const char *text);
int own_malloc_found(void); /* freed blocks that had it */

#endif
