/* alloc_fail.h - makes allocations of the code under test fail, through the linker's --wrap. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ALLOC_FAIL_H
#define ALLOC_FAIL_H

#include <stddef.h>

/* Everything linked statically into a test is wrapped, the library and the fake drivers included. Code of the
 * harness itself uses alloc_real, which never fails (it aborts) and is not counted. */

/* The n-th allocation from now (n from 1) fails, once or from then on; 0: none does. Counts begin anew. */
void alloc_fail_at(int n, int forever);
int alloc_fail_calls(void);  /* allocations since then, in all threads */
int alloc_fail_failed(void); /* how many of them failed */

void *alloc_real(size_t size); /* zeroed */
void *alloc_real_again(void *old, size_t size);
char *alloc_real_text(const char *text);
void alloc_real_free(void *memory);

#endif
