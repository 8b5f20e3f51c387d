/* common.c - the clock, random numbers and verdicts of the programs of the chaos. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "chaos.h"
#include "support/scratch.h"

uint64_t chaos_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void chaos_sleep_ms(int64_t ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

uint64_t chaos_draw(uint64_t *random, uint64_t bound) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return bound == 0 ? 0 : *random % bound;
}

__attribute__((format(printf, 1, 0))) static void say(const char *format, va_list args) {
    char line[600];
    int n = snprintf(line, sizeof line, "%s: [%llu] %d: ", program_invocation_short_name,
                     (unsigned long long)(chaos_now_ns() / CHAOS_NS_PER_MS), (int)getpid());
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    fprintf(stderr, "%s\n", line);
}

void chaos_violated(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    atomic_fetch_add(&shared->violations, 1);
}

void chaos_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    exit(2);
}

bool chaos_await_int(const atomic_int *number, int at_least, int64_t within_ms) {
    uint64_t until_ns = chaos_now_ns() + (uint64_t)within_ms * CHAOS_NS_PER_MS;
    while (atomic_load(number) < at_least) {
        if (chaos_now_ns() > until_ns) {
            return false;
        }
        chaos_sleep_ms(10);
    }
    return true;
}

int chaos_number(const char *text, int min, int max) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < min || value > max) {
        fprintf(stderr, "%s: '%s' is not a number from %d to %d\n", program_invocation_short_name, text, min,
                max);
        exit(2);
    }
    return (int)value;
}

void chaos_make_dir(char *dir, size_t size) {
    if (!scratch_make("chaos", dir, size)) {
        chaos_die("no folder: errno %d", errno);
    }
}
