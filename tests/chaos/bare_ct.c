/* bare_ct.c - what the harness' servers and proxy need of a case, for a plain program. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chaos.h"
#include "support/alloc_fail.h"
#include "support/ct.h"

static ct_t bare = {.time_scale = 10};

ct_t *ct_current(void) {
    return &bare;
}

void ct_fail(ct_t *ct, const char *file, int line, const char *format, ...) {
    va_list args;
    (void)ct;
    fprintf(stderr, "redis_chaos: %s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

int64_t ct_now_ms(ct_t *ct) {
    (void)ct;
    return (int64_t)(chaos_now_ns() / CHAOS_NS_PER_MS);
}

void ct_sleep_ms(ct_t *ct, int64_t ms) {
    (void)ct;
    chaos_sleep_ms(ms);
}

void *alloc_real(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL) {
        chaos_die("out of memory");
    }
    return memory;
}

char *alloc_real_text(const char *text) {
    size_t size = strlen(text) + 1;
    return memcpy(alloc_real(size), text, size);
}

void alloc_real_free(void *memory) {
    free(memory);
}
