/* bare_ct.c - what the harness' servers and proxy need of a case, for a plain program. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/alloc_fail.h"
#include "support/ct.h"

static ct_t bare = {.time_scale = 10};

ct_t *ct_current(void) {
    return &bare;
}

void ct_fail(ct_t *ct, const char *file, int line, const char *format, ...) {
    va_list args;
    (void)ct;
    fprintf(stderr, "%s: %s:%d: ", program_invocation_short_name, file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

int64_t ct_now_ms(ct_t *ct) {
    struct timespec t;
    (void)ct;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t ct_ran_ms(ct_t *ct) {
    return ct_now_ms(ct);
}

void ct_sleep_ms(ct_t *ct, int64_t ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)ct;
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

void *alloc_real(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL) {
        ct_fail(&bare, __FILE__, __LINE__, "out of memory");
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
