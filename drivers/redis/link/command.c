/* command.c - encodes commands for the server, without memory for each of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/digits.h"

/* Not even all of them together are larger, so that no sum below can overflow. */
#define COMMANDS_MAX (SIZE_MAX / 8)

/* A type, up to 20 digits and two ends of lines. */
#define AROUND 25

dli_slice_t dli_slice(const char *text) {
    return (dli_slice_t){text, strlen(text)};
}

dli_slice_t dli_slice_int(char buffer[24], int64_t number) {
    size_t sign = number < 0 ? 1 : 0;
    buffer[0] = '-';
    uint64_t magnitude = sign == 1 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t len = sign + dli_digits(buffer + sign, magnitude);
    buffer[len] = '\0';
    return (dli_slice_t){buffer, len};
}

/* Wiped: commands may carry a password. */
static void drop(dli_commands_t *commands) {
    if (commands->bytes != NULL) {
        explicit_bzero(commands->bytes, commands->cap);
    }
    if (commands->bytes != commands->few) {
        free(commands->bytes);
    }
}

/* Moves to a larger buffer, the first of which is there already. */
static bool grow(dli_commands_t *commands, size_t more) {
    size_t cap = sizeof commands->few;
    if (more > COMMANDS_MAX - commands->len) {
        return false;
    }
    while (cap < commands->len + more + AROUND) {
        cap *= 2;
    }
    char *bytes = cap > sizeof commands->few ? malloc(cap) : commands->few;
    if (bytes == NULL) {
        return false;
    }
    if (commands->len > 0) {
        memcpy(bytes, commands->bytes, commands->len);
    }
    drop(commands);
    commands->bytes = bytes;
    commands->cap = cap;
    return true;
}

/* Where so many bytes and what stands around a word have room; NULL: nowhere. */
static char *room(dli_commands_t *commands, size_t len) {
    if (len > COMMANDS_MAX || commands->cap < commands->len + len + AROUND) {
        commands->out_of_memory |= !grow(commands, len);
    }
    return commands->out_of_memory ? NULL : commands->bytes + commands->len;
}

/* The word, or without one the header of a command of `number` words. */
static void put(dli_commands_t *commands, const char *word, size_t number) {
    size_t len = word != NULL ? number : 0;
    char *at = room(commands, len);
    if (at == NULL) {
        return;
    }
    *at = word != NULL ? '$' : '*';
    at += 1 + dli_digits(at + 1, number);
    at = mempcpy(at, "\r\n", 2);
    if (word != NULL) {
        at = mempcpy(mempcpy(at, word, len), "\r\n", 2);
    }
    commands->len = (size_t)(at - commands->bytes);
}

/* None is ever there in part; and once one is missing, the others are of no use. */
static void end(dli_commands_t *commands, size_t argc, size_t whole) {
    commands->out_of_memory |= argc == 0;
    commands->len = commands->out_of_memory ? whole : commands->len;
    commands->count += commands->out_of_memory ? 0 : 1;
}

static void put_all(dli_commands_t *commands, size_t n, const dli_slice_t *words) {
    for (size_t i = 0; i < n; i++) {
        put(commands, words[i].len > 0 ? words[i].at : "", words[i].len); /* an empty one may point nowhere */
    }
}

void dli_commands_add_both(dli_commands_t *commands, size_t n, const dli_slice_t *head, size_t argc,
                           const dli_slice_t *argv) {
    size_t whole = commands->len;
    put(commands, NULL, n + argc);
    put_all(commands, n, head);
    put_all(commands, argc, argv);
    end(commands, n + argc, whole);
}

void dli_commands_add(dli_commands_t *commands, size_t argc, const dli_slice_t *argv) {
    dli_commands_add_both(commands, argc, argv, 0, NULL);
}

void dli_commands_add_words(dli_commands_t *commands, ...) {
    size_t whole = commands->len, count = 0;
    const char *word;
    va_list args;
    va_start(args, commands);
    while (va_arg(args, const char *) != NULL) {
        count++;
    }
    va_end(args);
    put(commands, NULL, count);
    va_start(args, commands);
    while ((word = va_arg(args, const char *)) != NULL) {
        put(commands, word, strlen(word));
    }
    va_end(args);
    end(commands, count, whole);
}

void dli_commands_append_bytes(dli_commands_t *commands, const char *bytes, size_t len) {
    char *at = room(commands, len);
    if (at != NULL && len > 0) {
        memcpy(at, bytes, len);
        commands->len += len;
    }
}

void dli_commands_append(dli_commands_t *commands, const dli_commands_t *more) {
    dli_commands_append_bytes(commands, more->bytes, more->len);
    commands->count += commands->out_of_memory ? 0 : more->count;
}

void dli_commands_clear(dli_commands_t *commands) {
    commands->len = 0;
    commands->count = 0;
    commands->out_of_memory = false;
}

void dli_commands_free(dli_commands_t *commands) {
    drop(commands);
    memset(commands, 0, sizeof *commands);
}
