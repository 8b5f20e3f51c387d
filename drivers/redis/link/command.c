/* command.c - encodes commands for the server, without memory for each of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* No command is larger, and no sum of lengths below can overflow. */
#define COMMANDS_MAX (SIZE_MAX / 8)

dli_slice_t dli_slice(const char *text) {
    return (dli_slice_t){text, strlen(text)};
}

/* Decimal digits without an end; returns how many. By hand: printf would be a tenth of a lock and unlock. */
static size_t put_digits(char *to, uint64_t number) {
    char backwards[20];
    size_t len = 0;
    do {
        backwards[len++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    for (size_t i = 0; i < len; i++) {
        to[i] = backwards[len - 1 - i];
    }
    return len;
}

dli_slice_t dli_slice_int(char buffer[24], int64_t number) {
    size_t sign = number < 0 ? 1 : 0;
    buffer[0] = '-';
    uint64_t magnitude = sign == 1 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t len = sign + put_digits(buffer + sign, magnitude);
    buffer[len] = '\0';
    return (dli_slice_t){buffer, len};
}

/* Moves to a larger buffer and wipes the old one: commands may carry a password. */
static bool grow(dli_commands_t *commands, size_t more) {
    if (commands->bytes == NULL) {
        commands->bytes = commands->few;
        commands->cap = sizeof commands->few;
    }
    size_t cap = commands->cap;
    if (more > COMMANDS_MAX - commands->len) {
        return false;
    }
    while (cap - commands->len < more) {
        cap *= 2;
    }
    if (cap == commands->cap) {
        return true;
    }
    char *bytes = malloc(cap);
    if (bytes == NULL) {
        return false;
    }
    memcpy(bytes, commands->bytes, commands->len);
    explicit_bzero(commands->bytes, commands->len);
    if (commands->bytes != commands->few) {
        free(commands->bytes);
    }
    commands->bytes = bytes;
    commands->cap = cap;
    return true;
}

static size_t digits(size_t number) {
    size_t count = 1;
    for (; number > 9; number /= 10) {
        count++;
    }
    return count;
}

/* A type byte, a number and the end of the line. */
static size_t header_size(size_t number) {
    return 1 + digits(number) + 2;
}

static void put(dli_commands_t *commands, const char *bytes, size_t len) {
    if (len > 0) { /* an empty word may point nowhere */
        memcpy(commands->bytes + commands->len, bytes, len);
        commands->len += len;
    }
}

static void put_header(dli_commands_t *commands, char type, size_t number) {
    char line[32] = {type};
    size_t len = 1 + put_digits(line + 1, number);
    line[len++] = '\r';
    line[len++] = '\n';
    put(commands, line, len);
}

static void put_word(dli_commands_t *commands, dli_slice_t word) {
    put_header(commands, '$', word.len);
    put(commands, word.at, word.len);
    put(commands, "\r\n", 2);
}

/* Adds a word to the size of a command; false: too large. */
static bool measure(size_t *size, size_t len) {
    if (len > COMMANDS_MAX || *size > COMMANDS_MAX) {
        return false;
    }
    *size += header_size(len) + len + 2;
    return true;
}

/* Makes room for a whole command, so that none is ever there in part, and begins it. */
static bool begin(dli_commands_t *commands, size_t argc, size_t size) {
    if (argc == 0 || !grow(commands, header_size(argc) + size)) {
        commands->out_of_memory = true;
        return false;
    }
    put_header(commands, '*', argc);
    commands->count++;
    return true;
}

void dli_commands_add(dli_commands_t *commands, size_t argc, const dli_slice_t *argv) {
    size_t size = 0;
    for (size_t i = 0; i < argc && !commands->out_of_memory; i++) {
        commands->out_of_memory = !measure(&size, argv[i].len);
    }
    /* Once a command is missing, the others are of no use. */
    if (commands->out_of_memory || !begin(commands, argc, size)) {
        return;
    }
    for (size_t i = 0; i < argc; i++) {
        put_word(commands, argv[i]);
    }
}

void dli_commands_add_words(dli_commands_t *commands, ...) {
    size_t count = 0, size = 0;
    const char *word;
    va_list args;
    va_start(args, commands);
    while ((word = va_arg(args, const char *)) != NULL) {
        commands->out_of_memory = !measure(&size, strlen(word)) || commands->out_of_memory;
        count++;
    }
    va_end(args);
    if (commands->out_of_memory || !begin(commands, count, size)) {
        return;
    }
    va_start(args, commands);
    while ((word = va_arg(args, const char *)) != NULL) {
        put_word(commands, dli_slice(word));
    }
    va_end(args);
}

void dli_commands_append(dli_commands_t *commands, const dli_commands_t *more) {
    if (commands->out_of_memory || !grow(commands, more->len)) {
        commands->out_of_memory = true;
        return;
    }
    put(commands, more->bytes, more->len);
    commands->count += more->count;
}

void dli_commands_clear(dli_commands_t *commands) {
    commands->len = 0;
    commands->count = 0;
    commands->out_of_memory = false;
}

void dli_commands_free(dli_commands_t *commands) {
    if (commands->bytes != NULL) {
        explicit_bzero(commands->bytes, commands->cap);
        if (commands->bytes != commands->few) {
            free(commands->bytes);
        }
    }
    memset(commands, 0, sizeof *commands);
}
