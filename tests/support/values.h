/* values.h - Criterion's comparisons, which say of a failure what both sides were; included by the build. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VALUES_H
#define VALUES_H

#include <criterion/criterion.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/*
 * Criterion 2.4 says "The expression (a) == (b) is false." With these it is "a == b is false: 3 and 4". Every
 * Criterion program of this tree is compiled with `-include` of this file, so that none is without them.
 * A message may follow the operands, as in Criterion: it is added.
 */

#define VALUES_SHOWN 500 /* bytes of a text */
#define VALUES_UNUSED __attribute__((unused))

/* The texts of the calling thread's last eight calls. */
VALUES_UNUSED static char *values_room(void) {
    static _Thread_local char rooms[8][VALUES_SHOWN + 64];
    static _Thread_local unsigned next;
    return rooms[next++ % 8];
}

VALUES_UNUSED __attribute__((format(printf, 1, 2))) static const char *values_text(const char *format, ...) {
    char *room = values_room();
    va_list args;
    va_start(args, format);
    (void)vsnprintf(room, VALUES_SHOWN + 64, format, args);
    va_end(args);
    return room;
}

VALUES_UNUSED static const char *values_said(const char *text) {
    return text[2] == 0 ? "" : text;
}

VALUES_UNUSED static const char *values_of_int(long long value) {
    return values_text("%lld", value);
}

VALUES_UNUSED static const char *values_of_uint(unsigned long long value) {
    return values_text("%llu", value);
}

VALUES_UNUSED static const char *values_of_bool(int value) {
    return value ? "true" : "false";
}

VALUES_UNUSED static const char *values_of_double(double value) {
    return values_text("%.17g", value);
}

VALUES_UNUSED static const char *values_of_pointer(const volatile void *value) {
    return value == NULL ? "NULL" : values_text("%p", (const void *)(uintptr_t)value);
}

VALUES_UNUSED static const char *values_of_string(const char *value) {
    return value == NULL
               ? "NULL"
               : values_text("'%.*s'%s", VALUES_SHOWN, value, strlen(value) > VALUES_SHOWN ? "..." : "");
}

/* How many bytes are the same. */
VALUES_UNUSED static size_t values_same(const void *a, const void *b, size_t len) {
    size_t same = 0;
    while (same < len && ((const unsigned char *)a)[same] == ((const unsigned char *)b)[same]) {
        same++;
    }
    return same;
}

/* So many bytes from there on, printable. */
VALUES_UNUSED static const char *values_of_bytes(const void *from, size_t at, size_t len) {
    char *room = values_room();
    size_t used = 0;
    for (const unsigned char *byte = from; at < len && used < 60; at++) {
        int plain = byte[at] >= ' ' && byte[at] < 127 && byte[at] != '\\';
        used += (size_t)snprintf(room + used, 8, plain ? "%c" : "\\x%02x", byte[at]);
    }
    room[used] = 0;
    return room;
}

VALUES_UNUSED static uint64_t values_now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* clang-format off */
#define VALUES_OF(value)                                                                             \
    _Generic((value), _Bool: values_of_bool, float: values_of_double, double: values_of_double,      \
        char: values_of_int, signed char: values_of_int, short: values_of_int, int: values_of_int,   \
        long: values_of_int, long long: values_of_int, unsigned char: values_of_uint,                \
        unsigned short: values_of_uint, unsigned: values_of_uint, unsigned long: values_of_uint,     \
        unsigned long long: values_of_uint, default: values_of_pointer)(value)

/* What was said behind the operands, if anything. */
#define VALUES_SAID(...) values_said(values_text("; " __VA_ARGS__))

/* Each operand is evaluated once. That the signs of two operands may differ is as in Criterion. */
#define VALUES_COMPARE(fail, a_text, a, op, b_text, b, ...)                                          \
    do {                                                                                             \
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsign-compare\"")          \
        __auto_type values_a_ = (a);                                                                 \
        __auto_type values_b_ = (b);                                                                 \
        if (!(values_a_ op values_b_)) {                                                             \
            fail("%s " #op " %s is false: %s and %s%s", a_text, b_text, VALUES_OF(values_a_),        \
                 VALUES_OF(values_b_), VALUES_SAID(__VA_ARGS__));                                    \
        }                                                                                            \
        _Pragma("GCC diagnostic pop")                                                                \
    } while (0)

/* Looks until it holds; nobody tells when. */
#define VALUES_AWAIT(a, op, b, within_ms)                                                            \
    do {                                                                                             \
        uint64_t values_until_ = values_now_ms() + (uint64_t)(within_ms);                            \
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsign-compare\"")          \
        for (;;) {                                                                                   \
            __auto_type values_a_ = (a);                                                             \
            __auto_type values_b_ = (b);                                                             \
            if (values_a_ op values_b_) {                                                            \
                break;                                                                               \
            }                                                                                        \
            if (values_now_ms() >= values_until_) {                                                  \
                cr_assert_fail("%s " #op " %s did not come true in time: %s and %s", #a, #b,         \
                               VALUES_OF(values_a_), VALUES_OF(values_b_));                          \
            }                                                                                        \
            (void)poll(NULL, 0, 1);                                                                  \
        }                                                                                            \
        _Pragma("GCC diagnostic pop")                                                                \
    } while (0)

#define VALUES_STRINGS(fail, a_text, a, op, b_text, b, ...)                                          \
    do {                                                                                             \
        const char *values_a_ = (a), *values_b_ = (b);                                               \
        if (!(values_a_ != NULL && values_b_ != NULL && strcmp(values_a_, values_b_) op 0)) {        \
            fail("%s " #op " %s is false: %s and %s%s", a_text, b_text, values_of_string(values_a_), \
                 values_of_string(values_b_), VALUES_SAID(__VA_ARGS__));                             \
        }                                                                                            \
    } while (0)

#define VALUES_BYTES(fail, a_text, a, b_text, b, size, ...)                                          \
    do {                                                                                             \
        const void *values_a_ = (a), *values_b_ = (b);                                               \
        size_t values_len_ = (size), values_at_ = values_same(values_a_, values_b_, values_len_);    \
        if (values_at_ < values_len_) {                                                              \
            fail("%s == %s is false: from byte %zu of %zu on '%s' and '%s'%s", a_text, b_text,       \
                 values_at_, values_len_, values_of_bytes(values_a_, values_at_, values_len_),       \
                 values_of_bytes(values_b_, values_at_, values_len_), VALUES_SAID(__VA_ARGS__));     \
        }                                                                                            \
    } while (0)

#define VALUES_NEAR(fail, a_text, a, b_text, b, epsilon, ...)                                        \
    do {                                                                                             \
        double values_a_ = (a), values_b_ = (b), values_off_ = values_a_ - values_b_;                \
        if (!(values_off_ <= (epsilon) && values_off_ >= -(epsilon))) {                              \
            fail("%s == %s is false: %.17g and %.17g%s", a_text, b_text, values_a_, values_b_,       \
                 VALUES_SAID(__VA_ARGS__));                                                          \
        }                                                                                            \
    } while (0)

#define VALUES_HAS(fail, text_text, text, part, ...)                                                 \
    do {                                                                                             \
        const char *values_a_ = (text), *values_b_ = (part);                                         \
        if (values_a_ == NULL || strstr(values_a_, values_b_) == NULL) {                             \
            fail("%s has no '%s': it is %s%s", text_text, values_b_, values_of_string(values_a_),    \
                 VALUES_SAID(__VA_ARGS__));                                                          \
        }                                                                                            \
    } while (0)

#undef cr_assert_eq
#undef cr_assert_neq
#undef cr_assert_lt
#undef cr_assert_leq
#undef cr_assert_gt
#undef cr_assert_geq
#undef cr_assert_null
#undef cr_assert_str_eq
#undef cr_assert_str_neq
#undef cr_assert_str_empty
#undef cr_assert_arr_eq
#undef cr_assert_float_eq
#undef cr_expect_eq
#undef cr_expect_neq
#undef cr_expect_lt
#undef cr_expect_leq
#undef cr_expect_gt
#undef cr_expect_geq
#undef cr_expect_null
#undef cr_expect_str_eq
#undef cr_expect_arr_eq

#define cr_assert_eq(a, b, ...) VALUES_COMPARE(cr_assert_fail, #a, a, ==, #b, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) VALUES_COMPARE(cr_assert_fail, #a, a, !=, #b, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) VALUES_COMPARE(cr_assert_fail, #a, a, <, #b, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) VALUES_COMPARE(cr_assert_fail, #a, a, <=, #b, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) VALUES_COMPARE(cr_assert_fail, #a, a, >, #b, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) VALUES_COMPARE(cr_assert_fail, #a, a, >=, #b, b, __VA_ARGS__)
#define cr_assert_null(a, ...) VALUES_COMPARE(cr_assert_fail, #a, a, ==, "NULL", NULL, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) VALUES_STRINGS(cr_assert_fail, #a, a, ==, #b, b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) VALUES_STRINGS(cr_assert_fail, #a, a, !=, #b, b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) VALUES_STRINGS(cr_assert_fail, #a, a, ==, "\"\"", "", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, size, ...) VALUES_BYTES(cr_assert_fail, #a, a, #b, b, size, __VA_ARGS__)
#define cr_assert_float_eq(a, b, epsilon, ...) VALUES_NEAR(cr_assert_fail, #a, a, #b, b, epsilon, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) VALUES_COMPARE(cr_expect_fail, #a, a, ==, #b, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) VALUES_COMPARE(cr_expect_fail, #a, a, !=, #b, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) VALUES_COMPARE(cr_expect_fail, #a, a, <, #b, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) VALUES_COMPARE(cr_expect_fail, #a, a, <=, #b, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) VALUES_COMPARE(cr_expect_fail, #a, a, >, #b, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) VALUES_COMPARE(cr_expect_fail, #a, a, >=, #b, b, __VA_ARGS__)
#define cr_expect_null(a, ...) VALUES_COMPARE(cr_expect_fail, #a, a, ==, "NULL", NULL, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) VALUES_STRINGS(cr_expect_fail, #a, a, ==, #b, b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, size, ...) VALUES_BYTES(cr_expect_fail, #a, a, #b, b, size, __VA_ARGS__)
/* A text with this part in it. */
#define cr_assert_has(text, part, ...) VALUES_HAS(cr_assert_fail, #text, text, part, __VA_ARGS__)
#define cr_expect_has(text, part, ...) VALUES_HAS(cr_expect_fail, #text, text, part, __VA_ARGS__)
/* clang-format on */

#endif
